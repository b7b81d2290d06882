"""Builds a tiny Llama-style language model from scratch, with a tokenizer that covers exactly the given texts.

The trainers use it when no weights are available. It takes a few seconds to build and a minute to train, and uses the
real classes (a `LlamaForCausalLM`, a fast tokenizer with a chat template). It knows no language beyond its texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rlvitals.errors import ConfigError, needs

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

PIECE = r"\w+|\s|[^\w\s]"
"""A token is a word, one whitespace character or one sign. Joined without separators, tokens give the text."""

PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ message['role'] }}: {{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
CHAT_TEXT = "system: user: assistant: \n"
"""The text that the template adds to the messages; the vocabulary includes its tokens."""


def build(
    texts: Iterable[str], *, width: int = 64, layers: int = 2, heads: int = 4, context: int = 128, seed: int = 0
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A model with random weights and its tokenizer. `texts` must contain every token that will be read or written.

    The same texts and seed give the same weights. torch's random state is not changed.
    """
    if width % (2 * heads):
        raise ConfigError(f"a tiny model's width must be a multiple of twice its heads, not {width} for {heads} heads")
    tokenizer = build_tokenizer(texts, context=context)
    with needs("a tiny model", "train"):
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = LlamaForCausalLM(config)
    return model, tokenizer


def build_tokenizer(texts: Iterable[str], *, context: int = 128) -> PreTrainedTokenizerFast:
    """A fast, reversible tokenizer over the tokens of `texts`. Unknown tokens become `<unk>`.

    It adds nothing to a text: trainers insert `<bos>` and `<eos>` themselves.
    """
    pieces = {piece for text in texts for piece in re.findall(PIECE, text)}
    if not pieces:
        raise ConfigError("a tiny model needs texts to take its vocabulary from, and was given none")
    pieces.update(re.findall(PIECE, CHAT_TEXT))
    with needs("a tiny model", "train"):
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast
    vocabulary = {piece: number for number, piece in enumerate([PAD, BOS, EOS, UNKNOWN, *sorted(pieces)])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), behavior="isolated")
    words.decoder = decoders.Fuse()  # joins tokens without spaces
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
