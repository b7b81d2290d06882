"""The tiny model and its tokenizer."""

from __future__ import annotations

import random
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from rlvitals.errors import ConfigError
from rlvitals.train import functions, tiny

TEXTS = ["def add(a, b):\n    return a + b  # süm", "\tx\u00a0y"]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.build_tokenizer(TEXTS)


@given(
    st.lists(st.sampled_from(["def", "add", "(", "a", ",", " ", "\n", "+", "süm", "\t", "\u00a0", "#"]), max_size=20)
)
@settings(deadline=None)
def test_a_text_of_known_pieces_comes_back_as_it_was(pieces):
    words = tiny.build_tokenizer(TEXTS)
    text = "".join(pieces)
    known = re.findall(tiny.PIECE, text)
    ids = words(text).input_ids
    assert len(ids) == len(known)
    if words.unk_token_id not in ids:  # two adjacent words make a third
        assert words.decode(ids) == text


def test_every_prompt_and_answer_of_the_task_comes_back(tokenizer):
    words = tiny.build_tokenizer(functions.corpus())
    for split in ("train", "held_out"):
        for task in functions.tasks(60, seed=1, split=split):
            for answer, _ in functions.answers(task, random.Random(0)):
                ids = words(task.prompt + answer).input_ids
                assert words.unk_token_id not in ids
                assert words.decode(ids) == task.prompt + answer


def test_an_unseen_word_is_unknown_and_nothing_is_added(tokenizer):
    assert tokenizer("never").input_ids == [tokenizer.unk_token_id]
    assert tokenizer("add").input_ids == [tokenizer.convert_tokens_to_ids("add")]
    assert tokenizer.padding_side == "left"
    assert {tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token} == {"<pad>", "<bos>", "<eos>"}


def test_a_saved_tokenizer_is_the_same_one(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer(TEXTS[0]).input_ids
    assert again(TEXTS[0]).input_ids == ids
    assert again.decode(ids) == TEXTS[0]
    assert again.chat_template == tokenizer.chat_template


def test_a_chat_is_written_out_and_an_answer_ends(tokenizer):
    chat = [{"role": "user", "content": "add"}, {"role": "assistant", "content": "a"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "user: add\nassistant: a<eos>\n"
    asked = tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
    assert asked == "user: add\nassistant: "
    assert tokenizer.unk_token_id not in tokenizer(asked).input_ids


def test_the_same_seed_gives_the_same_weights_and_leaves_torchs_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, _ = tiny.build(TEXTS, seed=1)
    two, _ = tiny.build(TEXTS, seed=1)
    other, _ = tiny.build(TEXTS, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


def test_the_model_is_causal_and_of_the_size_asked_for():
    model, words = tiny.build(TEXTS, width=32, layers=3, heads=2)
    ids = torch.tensor([words("def add(a, b)").input_ids])
    with torch.no_grad():
        whole, part = model(ids).logits, model(ids[:, :4]).logits
    assert whole.shape == (1, ids.shape[1], len(words))
    assert torch.allclose(whole[:, :4], part, atol=1e-5)
    assert model.config.num_hidden_layers == 3


def test_no_texts_and_a_width_that_does_not_divide_are_errors():
    with pytest.raises(ConfigError, match="texts"):
        tiny.build([])
    with pytest.raises(ConfigError, match="multiple"):
        tiny.build(TEXTS, width=30)
