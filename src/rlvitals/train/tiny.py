"""A tiny Llama-style language model from nothing, with a tokenizer that knows exactly the texts it was given.

It is what the trainers learn on where no weights can be had: a few seconds to build, a minute to train, and every
part of it is the real thing (a `LlamaForCausalLM`, a fast tokenizer with a chat template). It knows no language
beyond its texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rlvitals.errors import ConfigError, MissingDependency

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

PIECE = r"\w+|\s|[^\w\s]"
"""A token is a word, a single white space or a single sign: joined as they are, they give the text back."""

PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ message['role'] }}: {{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
CHAT_TEXT = "system: user: assistant: \n"
"""What the template adds to the messages; the vocabulary holds its pieces."""


def build(
    texts: Iterable[str], *, width: int = 64, layers: int = 2, heads: int = 4, context: int = 128, seed: int = 0
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A model with random weights and its tokenizer. `texts` hold every piece that will ever be read or written.

    The same texts and seed give the same weights, and torch's random state is left as it was.
    """
    if width % (2 * heads):
        raise ConfigError(f"a tiny model's width must be a multiple of twice its heads, not {width} for {heads} heads")
    tokenizer = build_tokenizer(texts, context=context)
    try:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise MissingDependency("a tiny model", "train") from error
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
    """A fast tokenizer over the pieces of `texts`. Reversible; a piece it has not seen becomes `<unk>`.

    It adds nothing to a text: `<bos>` and `<eos>` are put where a trainer wants them.
    """
    pieces = {piece for text in texts for piece in re.findall(PIECE, text)}
    if not pieces:
        raise ConfigError("a tiny model needs texts to take its vocabulary from, and was given none")
    pieces.update(re.findall(PIECE, CHAT_TEXT))
    try:
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast
    except ImportError as error:
        raise MissingDependency("a tiny model", "train") from error
    vocabulary = {piece: number for number, piece in enumerate([PAD, BOS, EOS, UNKNOWN, *sorted(pieces)])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), behavior="isolated")
    words.decoder = decoders.Fuse()  # pieces are joined as they are, without a space between them
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
