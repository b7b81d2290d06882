"""A step's statistics recomputed from recorded tokens: they agree with updates computed by hand, and planted faults are
found and named.

The updates come from `token_updates`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from rlvitals.compute.recomputation import LossSettings, recheck
from rlvitals.records import Group, Rollout
from token_updates import GROUP, KL, MODES, SIZE, Update


@cache
def checked(kept=None, config=True, **given):
    update = Update(**given)
    return recheck(update.groups(kept), update.log(), config=update.config if config else {})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_a_right_update_has_no_difference(mode, dtype):
    for seed in range(6):
        found = checked(seed=seed, mode=mode, dtype=dtype)
        assert (found.is_whole, found.rollouts, found.differences) == (True, 16, ())
        assert set(found.compared) == {
            "train.loss", "policy.ratio.mean", "policy.ratio.max", "policy.ratio.min", "entropy.mean", "kl_ref.k3",
            "kl_ref.k1", "policy.clip_fraction", "mismatch.logp_abs_diff.mean", "mismatch.logp_abs_diff.max",
        }  # fmt: skip


FAULTS = {
    "scale": "loss_scale", "mask": "mask_shift", "mask inside": "mask_shift", "sign": "advantage_sign",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "cause", "mode"),
    [
        *((fault, cause, mode) for fault, cause in FAULTS.items() for mode in MODES),
        # In the other modes, rollouts have equal weight in micro-batches of equal size: the mean of means is the mean.
        ("microbatch", "microbatch_weighting", "token-mean"),
    ],
)
def test_a_planted_fault_is_found_and_named(fault, cause, mode):
    for seed in range(4):
        update = Update(seed=seed, mode=mode, fault=fault)
        row, right = update.log(), Update(seed=seed, mode=mode).log()
        found = recheck(update.groups(), row, config=update.config)
        if not found.differences:  # if every group's mean is 0, a wrong sign hardly changes the loss
            assert fault == "sign"
            assert abs(row["train.loss"] - right["train.loss"]) < 0.005
            continue
        assert found.cause == cause, seed
        for each in found.differences:
            assert each.logged == row[each.name]
            if each.name in ("train.loss", "policy.ratio.mean", "entropy.mean"):
                assert each.recomputed == pytest.approx(right[each.name], abs=2e-4)


def test_the_facts_name_the_factor_the_shift_and_the_micro_batches():
    assert checked(fault="scale").facts == {
        "factor": 8,
        "count_of": "steps of gradient accumulation",
    }
    assert checked(fault="mask").facts == {"shift": 1}
    assert checked(fault="microbatch").facts == {"microbatches": 8, "microbatch_size": SIZE}


def test_without_settings_any_usual_way_of_averaging_agrees_and_a_fault_is_still_found():
    for mode in MODES[:2]:
        assert checked(mode=mode, has_kl=False, config=False).differences == ()
    assert checked(fault="mask", config=False, has_kl=False).cause == "mask_shift"


def test_sums_over_a_horizon_that_is_not_known_are_left_out():
    update = Update(mode="seq-mean-token-sum-norm")
    config = {name: value for name, value in update.config.items() if name != "max_context"}
    found = recheck(update.groups(), update.log(), config=config)
    assert ("train.loss" in found.compared, found.differences) == (False, ())
    assert "entropy.mean" in found.compared


def test_micro_batches_are_known_where_rollouts_say_theirs():
    update = Update(seed=3, fault="microbatch")
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    groups = [
        replace(
            group,
            rollouts=tuple(
                replace(rollout, meta={"microbatch": int(order[at * GROUP + number]) // SIZE})
                for number, rollout in enumerate(group.rollouts)
            ),
        )
        for at, group in enumerate(update.groups())
    ]
    row = update.log()
    losses = Update(seed=3)
    parts = [[place for place in range(16) if int(order[place]) // SIZE == part] for part in range(8)]
    gain = torch.minimum(
        (losses.new - losses.old).exp() * losses.advantages,
        (losses.new - losses.old).exp().clamp(0.8, 1.28) * losses.advantages,
    )
    apart = losses.reference - losses.new
    of_tokens = -gain + KL * (apart.exp() - apart - 1)
    means = [(of_tokens * losses.mask)[part].sum() / losses.mask[part].sum() for part in parts]
    row["train.loss"] = float(torch.stack(means).mean())
    found = recheck(groups, row, config=update.config)
    assert (found.cause, found.facts["microbatches"]) == ("microbatch_weighting", 8)


def test_advantages_against_the_rewards_of_their_group_are_found_in_any_rollouts():
    update = Update(seed=1)
    groups = [
        replace(group, rollouts=tuple(replace(each, advantage=-each.advantage, trace=None) for each in group.rollouts))
        for group in update.groups()
    ]
    one = update.groups()[0].rollouts[0]
    turned = replace(one.trace, advantages=tuple(-number for number in one.trace.advantages))
    groups[0] = replace(groups[0], rollouts=(replace(one, trace=turned), *groups[0].rollouts[1:]))
    found = recheck(groups, {}, config=update.config)
    assert (found.cause, found.is_whole) == ("advantage_sign", False)
    assert found.differences[0].logged == pytest.approx(-found.differences[0].recomputed)


@pytest.mark.parametrize("seed", range(4))
def test_chosen_rollouts_agree_within_the_error_of_sampling(seed):
    found = checked(seed=seed, groups=16, kept=20)
    assert (found.is_whole, found.rollouts, found.differences) == (False, 20, ())
    assert {"entropy.mean", "train.loss", "policy.ratio.max", "mismatch.logp_abs_diff.max"} <= set(found.compared)


def test_chosen_rollouts_cannot_lie_beyond_a_logged_extreme():
    update = Update(seed=2, groups=16)
    row = update.log() | {"policy.ratio.max": 1.01}
    (one,) = recheck(update.groups(kept=2), row, config=update.config).differences
    assert (one.name, one.logged) == ("policy.ratio.max", 1.01)
    assert one.recomputed == pytest.approx(
        float((update.new - update.old)[:2][update.mask[:2] > 0].exp().max()), rel=1e-4
    )


def test_a_loss_far_from_that_of_chosen_rollouts_is_found():
    update = Update(seed=4, groups=16)
    row = update.log() | {"train.loss": 25.0}
    found = recheck(update.groups(kept=32), row, config=update.config)
    assert [each.name for each in found.differences] == ["train.loss"]


def test_several_passes_leave_only_what_the_sampler_saw():
    update = Update()
    found = recheck(update.groups(), update.log(), config=update.config | {"grpo_epochs": 2})
    assert set(found.compared) == {"mismatch.logp_abs_diff.mean", "mismatch.logp_abs_diff.max"}


def test_unknown_clip_bounds_leave_out_what_depends_on_them():
    update = Update()
    config = {"aggregation": "token-mean", "kl_coef": KL}
    assert not {"policy.clip_fraction", "train.loss"} & set(
        recheck(update.groups(), update.log(), config=config).compared
    )


def test_a_difference_has_the_sign_of_its_name():
    """ROLL's policykl is the catalogue's k1 with the opposite sign."""
    update = Update(has_kl=False)
    used = update.mask > 0
    right = float((update.new - update.old)[used].mean())
    row = {"actor/policykl": right}
    known = {"config": update.config, "framework": "roll", "algorithm": "grpo"}
    assert recheck(update.groups(), row, **known).differences == ()
    (one,) = recheck(update.groups(), {"actor/policykl": right + 1.0}, **known).differences
    assert one.recomputed == pytest.approx(right, abs=1e-4) or one.recomputed > 0


def test_without_tokens_there_is_nothing_to_compare():
    assert recheck([Group(rollouts=(Rollout(reward=1.0),))], {"train.loss": 1.0}) is None


def test_settings_are_found_under_the_names_of_frameworks():
    verl = LossSettings.of({"loss_agg_mode": "seq-mean-token-mean", "clip_ratio": 0.3, "clip_ratio_high": 0.4})
    assert (verl.modes, verl.clip_low, verl.clip_high) == (("seq-mean-token-mean",), 0.3, 0.4)
    trl = LossSettings.of({"loss_type": "dapo", "epsilon": 0.2, "beta": 0.04, "num_iterations": 2})
    assert (trl.modes, trl.clip_high, trl.kl_coef, trl.passes) == (("token-mean",), 0.2, 0.04, 2)
