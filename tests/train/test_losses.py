"""Each trainer's loss and gradient, compared with ones written here token by token in plain torch and float64.

There are two comparisons. The formulas of `losses` are compared with derivatives in closed form. The updates of a real
trainer are compared with the gradients of a float64 copy of the model that reads every row alone, without padding.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import rlvitals
from rlvitals.compute import advantage
from rlvitals.train import grpo, losses, ppo, recipe, sharded, supervised, tiny
from rlvitals.train.grpo import warm_start
from rlvitals.train.grpo.update import UpdateBatch
from rlvitals.train.kto import data as preferences
from rlvitals.train.kto import trainer as kto
from rlvitals.train.ppo import experience, reward_model
from rlvitals.train.ppo.actor_critic import ActorCritic, parameter_groups
from rlvitals.train.ppo.experience import Experience
from rlvitals.train.sampling import Sampling, answered, left_padded
from rlvitals.train.supervised import right_padded

LOW, HIGH, DUAL, HORIZON = 0.2, 0.3, 1.6, 40
PROMPTS = [[5, 6, 7], [8], [9, 10]]
ANSWERS = [[6, 7, 8, 9, 10], [11, 5, 6], [7, 12, 9, 5]]
MOVES = torch.tensor(
    [[-0.6, -0.22, 0.1, 0.5, -0.3], [-0.6, 0.5, 0.2, 0.0, 0.0], [-0.2, 0.26, -0.1, -0.6, 0.0]], dtype=torch.float64
)
"""Differences between the policy and the old one: ratios beyond every bound, and between LOW and HIGH around 1."""


@pytest.fixture
def run(tmp_path):
    with rlvitals.start(tmp_path / "run", display="none") as started:
        yield started


def model_of(seed, width=16):
    """A small model that is confident about some tokens: its weights are large enough for entropies to differ."""
    model, _ = tiny.build(["a b c d e f g h i j k"], width=width, layers=1, heads=2, seed=seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4.0)
    return model


def drawn(*shape, seed, low=-1.0, high=1.0):
    return low + (high - low) * torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain(tensor):
    return tensor.detach().item()


def read_alone(model, prompt, answer, temperature=1.0):
    """Log-probs and entropies of an answer's tokens, computed only from logits."""
    output = model(input_ids=torch.tensor([prompt + answer]), output_hidden_states=True)
    every = torch.log_softmax(output.logits[0, len(prompt) - 1 : -1] / temperature, dim=-1)
    return every[torch.arange(len(answer)), torch.tensor(answer)], -(every.exp() * every).sum(dim=-1), output


def clipped(r, a, dual):
    """PPO's objective for one token, case by case."""
    gain = min(r * a, min(max(r, 1 - LOW), 1 + HIGH) * a)
    return max(gain, dual * a) if dual is not None and a < 0 else gain


def kept_gradients(optimizer):
    """The gradients of every update, as the optimizer gets them."""
    seen = []
    optimizer.optimizer.register_step_pre_hook(
        lambda one, *_: seen.append([weight.grad.clone() for group in one.param_groups for weight in group["params"]])
    )
    return seen


def agree(found, wanted):
    """All gradients agree to the precision of float32."""
    largest = max(plain(one.abs().max()) for one in wanted)
    assert largest > 1e-3
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one.double(), other, rtol=2e-4, atol=2e-5 * largest)


# The formulas alone


def policy_case():
    """Ratios on both sides of both bounds and of the dual clip, with advantages of both signs."""
    old = drawn(4, 6, seed=1, low=-3.0, high=-0.5)
    shifts = torch.tensor([-0.6, -0.1, 0.1, 0.2, 0.4, 0.7], dtype=torch.float64)
    advantages = torch.tensor([1.5, -1.5, 0.7, -0.7], dtype=torch.float64)[:, None].expand(4, 6).contiguous()
    return old + shifts, old, advantages


@pytest.mark.parametrize("dual", [None, DUAL])
@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.2])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_the_policys_loss_and_derivative_are_those_written_by_hand(dual, kl_coef, entropy_coef, is_weighted):
    now, old, advantages = policy_case()
    ref, entropy = old + drawn(4, 6, seed=2), drawn(4, 6, seed=3, low=0.1, high=2.0)
    weights = torch.tensor([1.0, 0.5, 0.0, 2.0], dtype=torch.float64) if is_weighted else None
    now.requires_grad_(True)
    entropy.requires_grad_(True)
    found = losses.policy_losses(
        now, old_logprobs=old, advantages=advantages, clip_low=LOW, clip_high=HIGH, dual_clip=dual, row_weights=weights,
        ref_logprobs=ref if kl_coef else None, kl_coef=kl_coef, entropy=entropy if entropy_coef else None,
        entropy_coef=entropy_coef,
    )  # fmt: skip
    slope = torch.autograd.grad(found.sum(), now, retain_graph=True)[0]
    cases = set()
    for row in range(4):
        for place in range(6):
            lp, a, base = plain(now[row, place]), plain(advantages[row, place]), plain(ref[row, place])
            r, weight = math.exp(lp - plain(old[row, place])), 1.0 if weights is None else plain(weights[row])
            is_held = (a > 0 and r > 1 + HIGH) or (a < 0 and (r < 1 - LOW or (dual is not None and r > dual)))
            cases.add((a > 0, r < 1 - LOW, r > 1 + HIGH, r > DUAL))
            loss = -weight * clipped(r, a, dual) + kl_coef * (math.exp(base - lp) - (base - lp) - 1)
            loss -= entropy_coef * plain(entropy[row, place])
            derivative = (0.0 if is_held else -weight * a * r) + kl_coef * (1 - math.exp(base - lp))
            assert plain(found[row, place]) == pytest.approx(loss, rel=1e-12)
            assert plain(slope[row, place]) == pytest.approx(derivative, rel=1e-12, abs=1e-15)
    assert len(cases) == 8  # below, within, above and above the dual clip; both signs
    if entropy_coef:
        of_entropy = torch.autograd.grad(found.sum(), entropy)[0]
        assert torch.equal(of_entropy, torch.full((4, 6), -entropy_coef, dtype=torch.float64))


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_critics_loss_is_clipped_around_its_old_values(clip):
    # Predictions within the clip; beyond it towards the return, where the clipped error is larger; and away from it.
    values = torch.tensor([1.1, 1.9, 0.1, 1.9, 0.1], dtype=torch.float64, requires_grad=True)
    old, returns = torch.ones(5, dtype=torch.float64), torch.tensor([2.0, 2.0, 2.0, 0.0, 0.0], dtype=torch.float64)
    found, _ = advantage.value_losses(values, returns, old, clip)
    slopes = torch.autograd.grad(found.sum(), values)[0]
    wanted, wanted_slopes, held = [], [], 0
    for v, target in zip(values.tolist(), returns.tolist(), strict=True):
        near = v if clip is None else min(max(v, 1 - clip), 1 + clip)
        is_held = (near - target) ** 2 > (v - target) ** 2
        held += is_held
        wanted.append(0.5 * max((v - target) ** 2, (near - target) ** 2))
        wanted_slopes.append(0.0 if is_held else v - target)
    assert held == (0 if clip is None else 2)
    assert found.tolist() == pytest.approx(wanted, rel=1e-12)
    assert slopes.tolist() == pytest.approx(wanted_slopes, rel=1e-12)


@pytest.mark.parametrize("kl_coef", [0.0, 0.4])
def test_the_reinforce_loss_and_its_derivative(kl_coef):
    now, ref, advantages = drawn(2, 3, seed=4, low=-3, high=-0.1), drawn(2, 3, seed=5, low=-3, high=-0.1), [1.5, -0.5]
    now.requires_grad_(True)
    found = losses.reinforce_losses(
        now, ref_logprobs=ref, advantages=torch.tensor(advantages, dtype=torch.float64), kl_coef=kl_coef
    )
    slopes = torch.autograd.grad(found.sum(), now)[0]
    for row, a in enumerate(advantages):
        for lp, base, loss, slope in zip(now[row].tolist(), ref[row].tolist(), found[row], slopes[row], strict=True):
            assert plain(loss) == pytest.approx(-a * lp + kl_coef * (math.exp(base - lp) - (base - lp) - 1), rel=1e-12)
            assert plain(slope) == pytest.approx(-a + kl_coef * (1 - math.exp(base - lp)), rel=1e-12)


def test_what_a_mask_leaves_out_is_in_neither_the_loss_nor_the_gradient():
    numbers = torch.tensor([[1.0, math.inf], [math.nan, 3.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 0], [0, 1]])
    total = losses.summed(numbers, mask, torch.tensor([[0.5, 9.0], [9.0, 2.0]]))
    assert plain(total) == 6.5
    assert torch.autograd.grad(total, numbers)[0].tolist() == [[0.5, 0.0], [0.0, 2.0]]


@pytest.mark.parametrize(
    ("kl", "answers", "wanted"),
    [
        (6.0, 64, 0.1),  # as wanted
        (6.6, 100, 0.1 * (1 + 0.1 * 0.1)),  # too far from the reference: the penalty grows
        (5.4, 100, 0.1 * (1 - 0.1 * 0.1)),  # too near: it shrinks
        (600.0, 100, 0.1 * (1 + 0.2 * 0.1)),  # the error is bounded on both sides
        (-600.0, 100, 0.1 * (1 - 0.2 * 0.1)),
        (0.0, 50_000, 0.1 * 0.8),  # and so is its weight: the coefficient never changes its sign
        (600.0, 50_000, 0.1 * 1.2),
        (math.nan, 100, 0.1),  # a KL of NaN changes nothing
        (math.inf, 100, 0.1),
    ],
)
def test_the_kls_coefficient_moves_towards_the_kl_that_is_wanted(kl, answers, wanted):
    found = losses.adapted_kl_coef(0.1, kl, target=6.0, answers=answers, horizon=1000)
    assert found == pytest.approx(wanted, rel=1e-12)


# GRPO


def grpo_batch():
    """Three conversations with tool results, and a padding row that does not count."""
    prompts, prompt_mask = left_padded([*PROMPTS, [0]], 0)
    answers, mask = right_padded([*ANSWERS, [0]], 0)
    rows = answered(prompts, prompt_mask, answers, mask)
    own = torch.tensor([[1, 1, 0, 1, 1], [1, 0, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 0, 0, 0]], dtype=torch.float32)
    advantages = (drawn(4, 5, seed=6, low=0.4, high=2.0) * torch.tensor([[1.0], [-1.0], [-1.0], [1.0]])).float() * own
    return UpdateBatch(rows, own, torch.zeros_like(own), advantages)


def share(own, mode, row):
    """The weight of one token of a row."""
    rows = int((own.sum(dim=1) > 0).sum())
    if mode == "token-mean":
        return 1 / plain(own.sum())
    return 1 / (rows * (plain(own[row].sum()) if mode == "seq-mean-token-mean" else HORIZON))


def grpo_by_hand(model, batch, old, ref, s):
    """The loss of all conversations and its gradient; `old` and `ref` are lists of each row's log-probs."""
    total, ratios = torch.zeros((), dtype=torch.float64), []
    for row in range(3):
        now, entropy, _ = read_alone(model, PROMPTS[row], ANSWERS[row], s.temperature)
        for place in range(len(ANSWERS[row])):
            if not batch.own[row, place]:
                continue
            lp, a, base = now[place], plain(batch.advantages[row, place]), ref[row][place]
            r = (lp - old[row][place]).exp()
            ratios.append((plain(r), a))
            loss = -clipped(r, a, s.dual_clip) + s.kl_coef * ((base - lp).exp() - (base - lp) - 1)
            total = total + share(batch.own, s.aggregation, row) * (loss - s.entropy_coef * entropy[place])
    return total, list(torch.autograd.grad(total, list(model.parameters()))), ratios


def grpo_settings_of(**changes):
    given = {"output_dir": "nowhere", "clip_low": LOW, "clip_high": HIGH, "max_grad_norm": 1e9, "kl_coef": 0.0,
             "entropy_coef": 0.0, "names": "canonical", "microbatch_size": None}  # fmt: skip
    return recipe.load("grpo", grpo.Settings, given=given | changes)


def grpo_trainer(run, settings, rate=0.0):
    """A trainer in its first step, made of what an update needs."""
    accelerator, model, reference = sharded.accelerator(is_bf16=False), model_of(1), model_of(2)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=rate))
    trainer = object.__new__(grpo.GrpoTrainer)
    vars(trainer).update(
        settings=settings, run=run, accelerator=accelerator, step=1, rank=0, model=model, optimizer=optimizer,
        reference=reference if settings.kl_coef else None, max_context=HORIZON,
    )  # fmt: skip
    return trainer, model, reference, kept_gradients(optimizer)


GRPO = [
    {},
    {"dual_clip": DUAL},
    {"kl_coef": 0.3},
    {"entropy_coef": 0.2},
    {"temperature": 0.7},
    {"aggregation": "seq-mean-token-mean"},
    {"aggregation": "seq-mean-token-sum-norm"},
    {"microbatch_size": 1},
    {
        "microbatch_size": 2,
        "aggregation": "seq-mean-token-mean",
        "kl_coef": 0.3,
        "entropy_coef": 0.2,
        "dual_clip": DUAL,
    },
]


@pytest.mark.parametrize("changes", GRPO, ids=lambda changes: " ".join(changes) or "plain")
def test_grpos_update_is_the_gradient_of_the_loss_written_by_hand(run, changes):
    """With a different old policy, so that every bound is reached."""
    settings = grpo_settings_of(**({"aggregation": "token-mean", "temperature": 1.0} | changes))
    trainer, model, reference, seen = grpo_trainer(run, settings)
    exact, exact_ref = copy.deepcopy(model).double(), reference.double()
    batch = grpo_batch()
    with torch.no_grad():
        both = [
            [read_alone(net, p, a, settings.temperature)[0] for p, a in zip(PROMPTS, ANSWERS, strict=True)]
            for net in (exact, exact_ref)
        ]
    old = [lp + move[: len(lp)] for lp, move in zip(both[0], MOVES, strict=True)]
    reference.float()
    held = [*old, torch.zeros(1)], [*both[1], torch.zeros(1)]
    old_rows, ref_rows = (torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).float() for rows in held)
    given = replace(batch, old_logprobs=old_rows, ref_logprobs=ref_rows if settings.kl_coef else None)
    packs = []
    trainer._update(given, packs, visits=3.0)
    loss, wanted, ratios = grpo_by_hand(exact, batch, old, both[1], settings)
    agree(seen[0], wanted)
    assert any(r < 1 - LOW and a < 0 for r, a in ratios)
    assert any(r > 1 + HIGH and a > 0 for r, a in ratios)
    assert any(r > DUAL and a < 0 for r, a in ratios)
    if settings.aggregation == "token-mean":
        merged = rlvitals.compute.merge(pack.values() for pack in packs)
        assert merged["train.loss"].number == pytest.approx(plain(loss), rel=1e-4, abs=1e-6)


def test_grpo_compares_every_update_of_a_step_with_the_policy_that_began_it(run):
    settings = grpo_settings_of(grpo_epochs=2, kl_coef=0.3, aggregation="token-mean", temperature=0.7)
    trainer, model, reference, seen = grpo_trainer(run, settings, rate=0.05)
    exact, exact_ref, batch = copy.deepcopy(model).double(), copy.deepcopy(reference).double(), grpo_batch()
    with torch.no_grad():
        old, ref = (
            [read_alone(net, p, a, 0.7)[0] for p, a in zip(PROMPTS, ANSWERS, strict=True)] for net in (exact, exact_ref)
        )
        entropies = [read_alone(exact, p, a, 0.7)[1] for p, a in zip(PROMPTS, ANSWERS, strict=True)]
    trainer.improve(batch)
    for recorded, wanted in zip(trainer.seen["entropies"], entropies, strict=False):  # of the first epoch
        assert recorded[: len(wanted)].tolist() == pytest.approx(wanted.tolist(), abs=1e-5)
    assert len(seen) == 2
    for gradients in seen:
        _, wanted, ratios = grpo_by_hand(exact, batch, old, ref, settings)
        agree(gradients, wanted)
        with torch.no_grad():
            for weight, slope in zip(exact.parameters(), wanted, strict=True):
                weight.sub_(0.05 * slope)
    assert any(abs(r - 1) > 0.05 for r, _ in ratios)  # the policy has changed in between


def test_grpo_compares_the_minibatches_of_one_epoch_with_the_policy_that_began_the_step(run):
    settings = grpo_settings_of(minibatch_size=2, temperature=0.7)
    trainer, model, _, seen = grpo_trainer(run, settings, rate=0.05)
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        old = [read_alone(exact, p, a, 0.7)[0] for p, a in zip(PROMPTS, ANSWERS, strict=True)]
    row = trainer.improve(grpo_batch())
    assert len(seen) == 2
    for recorded, logprobs in zip(trainer.seen["logprobs"], old, strict=False):
        assert recorded[: len(logprobs)].tolist() == pytest.approx(logprobs.tolist(), abs=1e-5)
    assert abs(row["policy.ratio.max"].number - 1) + abs(row["policy.ratio.min"].number - 1) > 0.02


# PPO


def ppo_trainer(settings, run, **parts):
    """A trainer in its first step, made of only these parts."""
    trainer = object.__new__(ppo.PpoTrainer)
    vars(trainer).update(settings=settings, run=run, step=1, rank=0, **parts)
    return trainer


def ppo_sampler(settings, run, **parts):
    sampling = Sampling(max_new_tokens=4, eos_id=11, pad_id=0)
    return ppo_trainer(settings, run, prompts=PROMPTS, kl_coef=0.4, sampling=sampling, **parts)


def ppo_batch(model, reference, s):
    """Experience of another policy and critic, so that every bound is reached."""
    prompts, prompt_mask = left_padded(PROMPTS, 0)
    answers, mask = right_padded(ANSWERS, 0)
    rows, mask = answered(prompts, prompt_mask, answers, mask), mask.float()
    with torch.no_grad():
        now = [read_alone(model.policy, p, a, s.temperature)[0] for p, a in zip(PROMPTS, ANSWERS, strict=True)]
        ref = [read_alone(reference, p, a, s.temperature)[0] for p, a in zip(PROMPTS, ANSWERS, strict=True)]
        values = [values_alone(model, p, a) for p, a in zip(PROMPTS, ANSWERS, strict=True)]
    now, ref, values = (torch.nn.utils.rnn.pad_sequence(found, batch_first=True) for found in (now, ref, values))
    signs = torch.tensor([[1.0], [-1.0], [-1.0]])
    return Experience(
        rows=rows, mask=mask,
        sampled_logprobs=torch.zeros(3, 5),
        old_logprobs=((now + MOVES) * mask).float(),
        ref_logprobs=(ref * mask).float(),
        values=((values + drawn(3, 5, seed=9, low=-0.6, high=0.6)) * mask).float(),
        scores=torch.zeros(3), token_rewards=torch.zeros(3, 5),
        advantages=(drawn(3, 5, seed=10, low=0.4, high=2.0) * signs * mask).float(),
        returns=((values + drawn(3, 5, seed=11, low=-1.0, high=1.0)) * mask).float(),
        weights=torch.tensor([1.0, 0.25, 1.0]), finished=torch.tensor([True, False, True]),
    )  # fmt: skip


def values_alone(model, prompt, answer):
    """The value of the state before each token of an answer."""
    ids = torch.tensor([prompt + answer])
    if model.critic is None:
        hidden = model.policy(input_ids=ids, output_hidden_states=True).hidden_states[-1]
    else:
        hidden = model.critic(input_ids=ids).last_hidden_state
    return (hidden[0, len(prompt) - 1 : -1] @ model.value_head.weight.T)[:, 0] + model.value_head.bias


def ppo_by_hand(model, batch, s):
    total, seen = torch.zeros((), dtype=torch.float64), []
    for row in range(3):
        now, entropy, _ = read_alone(model.policy, PROMPTS[row], ANSWERS[row], s.temperature)
        values = values_alone(model, PROMPTS[row], ANSWERS[row])
        for place in range(len(ANSWERS[row])):
            names = ("old_logprobs", "ref_logprobs", "advantages", "returns", "values")
            old, base, a, target, before = (plain(getattr(batch, name)[row, place]) for name in names)
            lp, v, c = now[place], values[place], s.value_clip
            r = (lp - old).exp()
            loss = -clipped(r, a, s.dual_clip) * plain(batch.weights[row])
            loss = loss + s.kl_loss_coef * ((base - lp).exp() - (base - lp) - 1) - s.entropy_coef * entropy[place]
            near = min(max(v, before - c), before + c) if c else v
            total = total + loss + s.value_coef * 0.5 * max((v - target) ** 2, (near - target) ** 2)
            seen.append((plain(r), a, abs(plain(v) - before) > c, bool((near - target) ** 2 > (v - target) ** 2)))
    total = total / sum(map(len, ANSWERS))
    weights = [weight for group in parameter_groups(model, 1, 1) for weight in group["params"]]
    found = torch.autograd.grad(total, weights, allow_unused=True)
    return [torch.zeros_like(weight) if one is None else one for one, weight in zip(found, weights, strict=True)], seen


PPO = [
    {},
    {"dual_clip": DUAL},
    {"kl_loss_coef": 0.3},
    {"entropy_coef": 0.2},
    {"value_coef": 0.7},
    {"value_coef": 0.7, "value_clip": 0.2},
    {"temperature": 0.7},
    {"clip_range_high": None, "clip_range": HIGH},
    {"microbatch_size": 1, "value_coef": 0.7},
    {"dual_clip": DUAL, "kl_loss_coef": 0.3, "entropy_coef": 0.2, "value_coef": 0.7, "value_clip": 0.2},
]


@pytest.mark.parametrize("is_separate", [False, True])
@pytest.mark.parametrize("changes", PPO, ids=lambda changes: " ".join(changes) or "plain")
def test_ppos_update_is_the_gradient_of_the_loss_written_by_hand(run, changes, is_separate, monkeypatch):
    off = {"output_dir": "nowhere", "clip_range": LOW, "clip_range_high": HIGH, "dual_clip": None, "value_clip": 0.0,
           "value_coef": 0.0, "entropy_coef": 0.0, "kl_loss_coef": 0.0, "temperature": 1.0, "ppo_epochs": 1,
           "batch_size": 3, "minibatch_size": 3, "max_grad_norm": 1e9}  # fmt: skip
    settings = recipe.load("ppo", ppo.Settings, given=off | changes)
    accelerator, model = sharded.accelerator(is_bf16=False), ActorCritic(model_of(1), is_separate=is_separate)
    torch.nn.init.constant_(model.value_head.weight, 0.1)
    exact, reference = copy.deepcopy(model).double(), model_of(2).double()
    batch = ppo_batch(exact, reference, settings)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(parameter_groups(model, 0.0, 0.0), lr=0.0))
    seen = kept_gradients_of_all(optimizer)
    ppo_trainer(settings, run, accelerator=accelerator, model=model, optimizer=optimizer).improve(batch)
    if changes.get("clip_range_high", HIGH) is None:
        monkeypatch.setitem(globals(), "LOW", HIGH)  # one bound for both sides
    wanted, cases = ppo_by_hand(exact, batch, settings)
    agree(seen[0], wanted)
    assert any(r < 1 - LOW and a < 0 for r, a, _, _ in cases)
    assert any(r > 1 + HIGH and a > 0 for r, a, _, _ in cases)
    assert any(r > DUAL and a < 0 for r, a, _, _ in cases)
    assert any(is_far and not is_held for _, _, is_far, is_held in cases)
    assert any(is_held for *_, is_held in cases) == bool(settings.value_clip)


def kept_gradients_of_all(optimizer):
    """Like `kept_gradients`, but some weights may not be part of the loss."""
    seen = []
    optimizer.optimizer.register_step_pre_hook(
        lambda one, *_: seen.append(
            [
                torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
                for group in one.param_groups
                for weight in group["params"]
            ]
        )
    )
    return seen


@pytest.mark.parametrize("is_whitened", [False, True])
def test_ppos_experience_is_what_the_answers_score_less_their_kl(run, is_whitened):
    """Rewards, advantages and returns of a really sampled batch, token by token."""
    given = {"output_dir": "nowhere", "whiten": is_whitened, "temperature": 1.0, "reward_clip": 2.0,
             "missing_eos_penalty": 0.5, "gamma": 0.9, "gae_lambda": 0.8, "truncated_weight": 0.25}  # fmt: skip
    settings = recipe.load("ppo", ppo.Settings, given=given)
    accelerator, model = sharded.accelerator(is_bf16=False), ActorCritic(model_of(1), is_separate=False)
    torch.nn.init.constant_(model.value_head.weight, 0.1)
    reference, scores = model_of(2), torch.tensor([3.0, -0.5, 0.25])
    reward = lambda rows, places: scores[torch.tensor(places)]  # noqa: E731
    trainer = ppo_sampler(settings, run, accelerator=accelerator, model=model, reference=reference, reward=reward)
    batch = trainer.collect([2, 0, 1])
    exact, exact_ref = copy.deepcopy(model).double(), copy.deepcopy(reference).double()
    advantages, returns, distances = [], [], []
    for row, place in enumerate([2, 0, 1]):
        length = int(batch.mask[row].sum())
        answer = batch.rows.ids[row, -batch.rows.width :][:length].tolist()
        with torch.no_grad():
            old, ref = (read_alone(net, PROMPTS[place], answer)[0] for net in (exact.policy, exact_ref))
            values = values_alone(exact, PROMPTS[place], answer).tolist()
        gaps = (old - ref).tolist()
        distances.append(sum(gaps))
        rewards = [-0.4 * gap for gap in gaps]
        rewards[-1] += min(2.0, plain(scores[place])) - (0.0 if answer[-1] == 11 else 0.5)
        running, found = 0.0, []
        for t in reversed(range(length)):
            after = values[t + 1] if t + 1 < length else 0.0
            running = rewards[t] + 0.9 * after - values[t] + 0.9 * 0.8 * running
            found.insert(0, running)
        advantages += found
        returns += [a + v for a, v in zip(found, values, strict=True)]
        assert plain(batch.weights[row]) == (1.0 if answer[-1] == 11 else 0.25)
    if is_whitened:
        mean = sum(advantages) / len(advantages)
        spread = math.sqrt(sum((a - mean) ** 2 for a in advantages) / (len(advantages) - 1))
        advantages = [(a - mean) / spread for a in advantages]
    counted = batch.mask > 0
    assert batch.advantages[counted].tolist() == pytest.approx(advantages, rel=1e-3, abs=1e-4)
    assert batch.returns[counted].tolist() == pytest.approx(returns, rel=1e-3, abs=1e-4)
    assert experience.kl_of_answers(batch).tolist() == pytest.approx(distances, rel=1e-3, abs=1e-4)
    assert max(map(abs, distances)) > 0.1


@pytest.mark.parametrize("missing", [[1], [0, 2], [0, 1, 2]])
def test_an_answer_without_a_score_has_no_part_in_ppos_update(run, missing):
    settings = recipe.load("ppo", ppo.Settings, given={
        "output_dir": "nowhere", "kl_loss_coef": 0.3, "entropy_coef": 0.2, "value_coef": 0.7, "ppo_epochs": 1,
        "batch_size": 3, "minibatch_size": 3, "microbatch_size": 1, "max_grad_norm": 1e9, "temperature": 1.0,
    })  # fmt: skip
    accelerator, model = sharded.accelerator(is_bf16=False), ActorCritic(model_of(1), is_separate=False)
    exact, reference = copy.deepcopy(model).double(), model_of(2).double()
    batch = ppo_batch(exact, reference, settings)
    kept = [row for row in range(3) if row not in missing]
    scores = torch.tensor([math.nan if row in missing else 1.0 for row in range(3)])
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(parameter_groups(model, 0.0, 0.0), lr=0.0))
    seen = kept_gradients_of_all(optimizer)
    trainer = ppo_trainer(settings, run, accelerator=accelerator, model=model, optimizer=optimizer)
    masked = replace(batch, scores=scores, mask=batch.mask * (~scores.isnan())[:, None])
    found = experience.stats(masked, settings)
    assert found["reward.unscorable_fraction"].number == pytest.approx(len(missing) / 3)
    trainer.improve(masked)
    if not kept:
        assert not any(one.any() for one in seen[0])
        return
    trainer.improve(batch.take(torch.tensor(kept)))
    agree(seen[0], [one.double() for one in seen[1]])
    assert found["critic/score/mean"].number == 1.0
    assert len(experience.kl_of_answers(masked)) == len(kept)


def test_ppo_leaves_an_answer_out_that_its_reward_has_no_score_for(run):
    settings = recipe.load("ppo", ppo.Settings, given={"output_dir": "nowhere", "whiten": False})
    model, found = ActorCritic(model_of(1), is_separate=False), []
    for scores in (torch.tensor([1.0, 0.5, -1.0]), torch.tensor([1.0, math.nan, -1.0])):
        trainer = ppo_sampler(
            settings, run, accelerator=sharded.accelerator(is_bf16=False), model=model, reference=model_of(2),
            reward=lambda rows, places, scores=scores: scores,
        )  # fmt: skip
        found.append(trainer.collect([0, 1, 2]))
    for name in ("mask", "advantages", "returns", "token_rewards", "values"):
        whole, part = getattr(found[0], name), getattr(found[1], name)
        assert torch.equal(whole[[0, 2]], part[[0, 2]])
        assert not part[1].any()
    assert found[1].is_scored.tolist() == [True, False, True]


# KTO


def completion_logprobs(model, ids, mask):
    """The log-prob of each whole completion."""
    found = []
    for row, kept in zip(ids, mask, strict=True):
        every = torch.log_softmax(model(input_ids=row[None]).logits[0, :-1], dim=-1)
        found.append((every[torch.arange(len(row) - 1), row[1:]] * kept[1:]).sum())
    return torch.stack(found)


def kto_by_hand(model, reference, batch, s, weights):
    with torch.no_grad():
        base = completion_logprobs(reference, batch["input_ids"], batch["completion_mask"])
        mismatched = (batch["KL_input_ids"], batch["KL_completion_mask"]) if s.loss_type == "kto" else None
        z = torch.zeros(())
        if mismatched is not None:
            z = (completion_logprobs(model, *mismatched) - completion_logprobs(reference, *mismatched)).mean()
            z = z.clamp(min=0)
    total = torch.zeros((), dtype=torch.float64)
    for lp, ref, is_good in zip(
        completion_logprobs(model, batch["input_ids"], batch["completion_mask"]), base, batch["label"], strict=True
    ):
        gain = s.beta * (lp - ref - z)
        total = total + (weights[0] / (1 + gain.exp()) if is_good else weights[1] / (1 + (-gain).exp()))
    return total / len(base), plain(z)


@pytest.mark.parametrize("loss_type", ["kto", "apo_zero_unpaired"])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.4, 0.6)])
def test_ktos_loss_is_the_one_written_by_hand(tmp_path, loss_type, weights):
    """TRL computes it; this checks that it gets our weights, beta, labels and reference."""
    from trl.trainer.kto_config import KTOConfig

    given = {"output_dir": str(tmp_path), "loss_type": loss_type, "beta": 0.3, "desirable_weight": weights[0],
             "undesirable_weight": weights[1], "warm_up_steps": 0, "examples": 16, "batch_size": 6, "eval_steps": 0,
             "display": "none"}  # fmt: skip
    settings = recipe.load("kto", kto.KTOSettings, given=given)
    data = kto.read_data(settings)
    shares = preferences.class_weights(data.train, settings.desirable_weight, settings.undesirable_weight)
    args = KTOConfig(**kto.arguments(settings, tmp_path, data, shares, is_resumed=False))
    loaded = kto.the_model(settings, tmp_path, data, args, is_resumed=False)
    start = copy.deepcopy(loaded.model).double()
    moved = copy.deepcopy(loaded.model)
    pairs = [kto._tokens(loaded.tokenizer, example, 128) for example in data.train]
    supervised.warm_up(moved, pairs, supervised.TrainingCourse(6, 8, 3e-3, torch.Generator().manual_seed(0)), pad_id=0)
    trainer = kto.build_trainer(settings, args, data, loaded, callbacks=[])
    trainer.model.load_state_dict(moved.state_dict())  # away from the reference
    exact = moved.double()
    batch = next(iter(trainer.get_train_dataloader()))
    assert {True, False} == {bool(label) for label in batch["label"]}
    loss = trainer.compute_loss(trainer.model, batch)
    wanted, z = kto_by_hand(exact, start, batch, settings, weights)
    assert plain(loss) == pytest.approx(plain(wanted), rel=1e-4)
    agree(gradients(trainer.model, loss), gradients(exact, wanted))
    texts = [(example.prompt, example.completion, example.label) for example in data.train]
    for ids, kept, label in zip(batch["input_ids"], batch["completion_mask"], batch["label"], strict=True):
        answer = loaded.tokenizer.decode(ids[kept.bool()], skip_special_tokens=True)
        assert any(completion == answer and is_good == bool(label) for _, completion, is_good in texts)
    assert (z > 0.1) == (loss_type == "kto")  # at 0 the two losses are the same


# Supervised and reward model


def gradients(model, loss):
    return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))


def test_the_warm_ups_loss_is_the_mean_negative_log_prob_of_the_answers(run):
    model = model_of(3)
    exact = copy.deepcopy(model).double()
    loss = supervised.answer_loss(model, list(zip(PROMPTS, ANSWERS, strict=True)), 0)
    wanted = -torch.cat([read_alone(exact, p, a)[0] for p, a in zip(PROMPTS, ANSWERS, strict=True)]).mean()
    assert plain(loss) == pytest.approx(plain(wanted), rel=1e-5)
    agree(gradients(model, loss), gradients(exact, wanted))


def test_the_mailbox_warm_ups_loss_is_over_what_the_agent_wrote():
    model = model_of(3)
    exact = copy.deepcopy(model).double()
    rows = [SimpleNamespace(ids=p + a, own=[0] * len(p) + [1, 0] + [1] * (len(a) - 2))
            for p, a in zip(PROMPTS, ANSWERS, strict=True)]  # fmt: skip
    loss = warm_start.example_loss(model, rows, SimpleNamespace(pad_id=0), "cpu")
    kept = [read_alone(exact, p, a)[0][[0, *range(2, len(a))]] for p, a in zip(PROMPTS, ANSWERS, strict=True)]
    wanted = -torch.cat(kept).mean()
    assert plain(loss) == pytest.approx(plain(wanted), rel=1e-5)
    agree(gradients(model, loss), gradients(exact, wanted))


def test_the_reward_models_loss_pushes_the_preferred_answer_up(tmp_path):
    model_of(3).save_pretrained(tmp_path)
    torch.manual_seed(0)
    judge = reward_model.build(str(tmp_path), 0)
    exact = copy.deepcopy(judge).double()
    pairs = [(PROMPTS[0], [6, 7, 8], [9]), (PROMPTS[1], [5], [10, 11, 12, 6])]

    def score(prompt, answer):
        return exact(input_ids=torch.tensor([prompt + answer])).logits[0, 0]

    wanted = sum((1 + (-(score(p, good) - score(p, bad))).exp()).log() for p, good, bad in pairs) / 2
    slopes = dict(zip(dict(exact.named_parameters()), gradients(exact, wanted), strict=True))
    before = {name: weight.detach().clone() for name, weight in judge.named_parameters()}
    found = []
    generator = torch.Generator().manual_seed(0)
    course = supervised.TrainingCourse(1, 2, 1e-3, generator, on_step=lambda step, loss: found.append(loss))
    reward_model.learn(judge, pairs, course, pad_id=0)
    assert found == pytest.approx([plain(wanted)], rel=1e-5)
    for name, weight in judge.named_parameters():
        # AdamW's first step goes against the sign of each gradient.
        moved, clear = weight.detach() - before[name], slopes[name].abs() > 1e-4
        assert torch.equal(moved[clear].sign(), -slopes[name][clear].sign().float())
