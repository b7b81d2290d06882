"""A key-value cache of fixed size gives the same samples as a growing one; on a GPU also with CUDA graphs."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from rlvitals.train import decoding
from rlvitals.train.decoding import Fixed, Growing, reading
from rlvitals.train.sampling import BatchSampler, Sampled, Sampling, left_padded, sample

EOS, PAD = 1, 0
PROMPTS = [[5, 6, 7, 8], [9], [4, 3], [9], [9]]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def llama(device="cpu"):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=20, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().to(device)


def turns(model, cache, *, length=7, prompts=PROMPTS):
    """Three messages, each after new input, with rows that are dropped in between."""
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(3)
    sampler = BatchSampler(cache, Sampling(length, EOS, PAD), generator)
    messages = []
    with torch.no_grad():
        for turn in range(3):
            messages.append(sampler.write(*left_padded(prompts, PAD, device)))
            if turn < 2:
                rows = [4, 0, 1] if turn == 0 else [1, 2]
                sampler.keep(torch.tensor(rows, device=device))
                prompts = [[7, 7, 3], [2], [8, 4]][: len(rows)]
    return messages


def assert_alike(found, expected, *, within=1e-5):
    for one, other in zip(found, expected, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.mask.tolist() == other.mask.tolist()
        assert torch.allclose(one.logprobs, other.logprobs, atol=within)


def test_fixed_storage_gives_the_samples_of_growing_storage():
    model = llama()
    assert_alike(turns(model, Fixed(model, 5, 64, with_graphs=False)), turns(model, Growing(model)))


def test_a_batch_that_outgrows_its_storage_gets_more(monkeypatch):
    model = llama()
    monkeypatch.setattr(decoding, "COLUMN_STEP", 4)
    read = Fixed(model, 5, 4, with_graphs=False)
    assert_alike(turns(model, read), turns(model, Growing(model)))
    assert read.nbytes >= 2 * 2 * 5 * 2 * 28 * 8 * 4  # two layers of keys and values, two heads of 8 floats, 28 columns


def test_storage_that_was_used_before_starts_empty():
    model = llama()
    read = Fixed(model, 5, 64, with_graphs=False)
    first = turns(model, read)
    read.begin()
    assert_alike(turns(model, read), first)


@pytest.mark.parametrize("way", [Growing, lambda model: Fixed(model, 8, 64, with_graphs=False)])
def test_equal_prompts_are_read_once(way):
    model, sizes = llama(), []
    model.register_forward_pre_hook(
        lambda _, __, given: sizes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    ids, mask = left_padded(PROMPTS, PAD)
    how = Sampling(3, -1, PAD, temperature=0.0)
    with torch.no_grad():
        together = BatchSampler(way(model), how).write(ids, mask)
        each = [BatchSampler(way(model), how).write(ids[[row]], mask[[row]]) for row in range(5)]
    assert sizes == [(3, 4), (5, 1), (5, 1), *[(1, 4), (1, 1), (1, 1)] * 5]
    assert_alike([together], [Sampled(*map(torch.cat, zip(*each, strict=True)))])


def gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=64, n_embd=32, n_layer=1, n_head=4))


def sliding():
    config = MistralConfig(
        vocab_size=20,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        sliding_window=4,
    )
    return MistralForCausalLM(config)


@pytest.mark.parametrize(("build", "is_plain"), [(llama, True), (sliding, False)])
def test_layers_that_see_a_part_of_the_text_are_left_to_transformers(build, is_plain):
    assert decoding._has_plain_attention(build()) is is_plain


def test_without_a_gpu_any_model_is_read_as_transformers_does():
    for model in (llama(), gpt2(), sliding()):
        with reading(model, 2, 10) as read:
            assert isinstance(read, Growing)


@needs_cuda
def test_graphs_give_the_samples_of_plain_passes():
    model = llama("cuda")
    expected = turns(model, Growing(model), prompts=PROMPTS * 8)
    read = Fixed(model, 40, 64, with_graphs=True)
    read.begin()
    found = turns(model, read, prompts=PROMPTS * 8)
    assert read._graphs.steps
    assert_alike(found, expected, within=1e-4)


@needs_cuda
def test_a_kept_graph_follows_the_weights():
    model = llama("cuda")
    ids, mask = left_padded(PROMPTS, PAD, "cuda")
    how = Sampling(8, -1, PAD, temperature=0.0)
    first = sample(model, ids, mask, how)
    with torch.no_grad():
        for weight in model.parameters():  # in place, like an optimizer
            weight.mul_(1.3)
    changed = sample(model, ids, mask, how)
    assert not torch.allclose(first.logprobs, changed.logprobs, atol=1e-3)
    assert_alike([changed], [sample(copy.deepcopy(model), ids, mask, how)], within=1e-4)
    for weight in model.parameters():  # in other memory, as when a checkpoint is loaded
        weight.data = (weight.data / 1.3).clone()
    assert_alike([sample(model, ids, mask, how)], [first], within=1e-4)


@needs_cuda
def test_autocast_samples_with_graphs_of_its_own():
    model = llama("cuda")
    ids, mask = left_padded(PROMPTS, PAD, "cuda")
    how = Sampling(8, -1, PAD, temperature=0.0)
    plain = sample(model, ids, mask, how)
    model.forward = torch.autocast("cuda", torch.bfloat16)(model.forward)  # like accelerate's `prepare`
    with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
        expected = BatchSampler(Growing(model), how).write(ids, mask)
    for _ in range(3):  # autocast frees the weights it has cast when it ends: no graph may use them
        with torch.autocast("cuda", torch.bfloat16):
            rounded = sample(model, ids, mask, how)
        assert_alike([rounded], [expected], within=0.05)
        torch.cuda.empty_cache()
        overwritten = [torch.full((64, 64), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(200)]
        assert len(overwritten) == 200
    assert (rounded.logprobs - plain.logprobs).abs().max() > 1e-6


@needs_cuda
def test_a_model_that_cannot_be_captured_is_read_without_graphs(caplog):
    model = llama("cuda")
    model.register_forward_hook(lambda *_: torch.cuda.synchronize())  # not allowed while a graph is captured
    read = Fixed(model, 5, 64, with_graphs=True)
    read.begin()
    torch.manual_seed(7)
    found = turns(model, read)
    assert "without CUDA graphs" in caplog.text
    drawn = torch.randn(5, device="cuda")  # the failed capture does not keep the random numbers
    torch.manual_seed(7)
    assert_alike(found, turns(model, Growing(model)), within=1e-4)
    assert torch.equal(drawn, torch.randn(5, device="cuda"))
