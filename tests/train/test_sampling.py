"""Sampling with a cache gives the same log-probs as a plain pass over each answer alone."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from rlvitals.errors import ConfigError
from rlvitals.train.sampling import Sampling, answer_stats, answered, left_padded, sample
from rlvitals.train.supervised import TrainingCourse, answer_loss, shuffled_batches, warm_up

EOS, PAD = 1, 0
PROMPTS = [[5, 6, 7, 8], [9], [4, 3]]


def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=20, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    )


def gpt2():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=64, n_embd=32, n_layer=2, n_head=4))


def answers(model, *, seed=0, prompts=PROMPTS, **how):
    ids, mask = left_padded(prompts, PAD)
    sampling = Sampling(**{"max_new_tokens": 12, "eos_id": EOS, "pad_id": PAD, **how})
    return sample(model, ids, mask, sampling, torch.Generator().manual_seed(seed)), ids, mask


def alone(model, prompt, answer, temperature):
    """Log-probs of an answer's tokens from one pass over the unpadded text: no cache, no mask, no positions."""
    text = torch.tensor([[*prompt, *answer]])
    model.eval()
    with torch.no_grad():
        logprobs = (model(text).logits[0] / temperature).log_softmax(-1)
    return [logprobs[len(prompt) + place - 1, token].item() for place, token in enumerate(answer)]


@pytest.mark.parametrize("build", [llama, gpt2])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_are_those_of_a_pass_over_each_answer_alone(build, temperature):
    model = build()
    found, ids, mask = answers(model, temperature=temperature)
    for row, prompt in enumerate(PROMPTS):
        length = int(found.mask[row].sum())
        answer = found.tokens[row, :length].tolist()
        assert found.logprobs[row, :length].tolist() == pytest.approx(
            alone(model, prompt, answer, temperature), abs=1e-5
        )
    rows = answered(ids, mask, found.tokens, found.mask)
    again = answer_stats(model, rows, temperature=temperature)
    assert torch.allclose(again.logprobs, found.logprobs, atol=1e-5)


@pytest.mark.parametrize("build", [llama, gpt2])
def test_the_prompts_beside_it_do_not_change_an_answer(build):
    model = build()
    together, _, _ = answers(model, temperature=0.0)
    for row, prompt in enumerate(PROMPTS):
        single, _, _ = answers(model, prompts=[prompt], temperature=0.0)
        length = int(single.mask.sum())
        assert together.tokens[row, :length].tolist() == single.tokens[0, :length].tolist()


def test_an_answer_ends_with_its_end_token_and_padding_follows():
    found, _, _ = answers(llama(), prompts=[[5]] * 64, max_new_tokens=40)
    assert found.finished.any()
    for tokens, mask, logprobs, finished in zip(*found, strict=True):
        length = int(mask.sum())
        assert mask.tolist() == [1] * length + [0] * (len(mask) - length)
        assert (EOS in tokens.tolist()) == bool(finished)
        if finished:
            assert tokens.tolist().index(EOS) == length - 1
            assert tokens[length:].tolist() == [PAD] * (len(mask) - length)
            assert logprobs[length:].tolist() == [0.0] * (len(mask) - length)
        else:
            assert length == 40


def test_tokens_come_as_often_as_their_probability_says():
    model, temperature = llama(), 0.05
    found, ids, _ = answers(model, prompts=[[5, 6]] * 4000, max_new_tokens=1, temperature=temperature)
    model.eval()
    with torch.no_grad():
        wanted = (model(ids[:1]).logits[0, -1] / temperature).softmax(-1)
    seen = torch.bincount(found.tokens[:, 0], minlength=20) / 4000
    spread = (wanted * (1 - wanted) / 4000).sqrt()
    assert wanted.max() - wanted.min() > 0.05  # the values differ enough to compare
    assert ((seen - wanted).abs() <= 5 * spread + 1e-9).all()


def test_the_same_generator_gives_the_same_answers_and_another_one_others():
    model = llama()
    first, same, other = (answers(model, seed=seed)[0].tokens.tolist() for seed in (0, 0, 1))
    assert first == same
    assert first != other


def test_a_model_in_training_is_sampled_without_dropout_and_stays_in_training():
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=20, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                    attention_dropout=0.5)
    )  # fmt: skip
    model.train()
    first, second = (answers(model, temperature=0.0)[0].logprobs.tolist() for _ in range(2))
    assert first == second
    assert model.training


def test_the_loss_of_a_warm_up_is_over_the_answers_tokens_alone():
    model = llama()
    pairs = [([5, 6, 7], [8, EOS]), ([4], [3, 2, 9, EOS])]
    wanted = [-number for prompt, answer in pairs for number in alone(model, prompt, answer, 1.0)]
    assert answer_loss(model, pairs, PAD).item() == pytest.approx(sum(wanted) / len(wanted), abs=1e-5)


def test_a_warm_up_learns_to_copy_what_it_was_shown():
    model, losses = llama(), []
    pairs = [([5, digit], [digit, EOS]) for digit in range(6, 12)]
    course = TrainingCourse(120, 6, 1e-2, torch.Generator().manual_seed(0), lambda step, loss: losses.append(loss))
    last = warm_up(model, pairs, course, PAD)
    assert losses[0] > 2.0
    assert last == losses[-1] < 0.05
    found, _, _ = answers(model, prompts=[prompt for prompt, _ in pairs], temperature=0.0)
    assert [tokens[0] for tokens in found.tokens.tolist()] == [answer[0] for _, answer in pairs]


def test_every_pair_is_dealt_equally_often():
    batches = shuffled_batches(5, 3, torch.Generator().manual_seed(3))
    drawn = [place for _ in range(10) for place in next(batches)]
    assert sorted(drawn) == sorted(list(range(5)) * 6)


def test_a_warm_up_without_examples_is_refused():
    with pytest.raises(ConfigError, match="no examples to learn from"):
        warm_up(llama(), [], TrainingCourse(1, 2, 1e-2, torch.Generator()), PAD)
