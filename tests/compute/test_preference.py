"""Preference statistics compared with loops over pairs and completions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from loops import mean

from rlvitals.compute import merge, merge_steps, preference
from rlvitals.errors import ConfigError

BETA = 0.1


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@pytest.fixture(params=range(3), ids="seed{}".format)
def rng(request):
    return np.random.default_rng(request.param)


def sums(rng, count):
    return list(-rng.exponential(30, count)), list(-rng.exponential(30, count))


def test_dpo_pair_by_pair(rng):
    (won, ref_won), (lost, ref_lost) = sums(rng, 6), sums(rng, 6)
    found = preference.stats(
        chosen_logprobs=won, ref_chosen_logprobs=ref_won, rejected_logprobs=lost, ref_rejected_logprobs=ref_lost,
        beta=BETA, label_smoothing=0.1,
    )  # fmt: skip
    good = [BETA * (a - b) for a, b in zip(won, ref_won, strict=True)]
    bad = [BETA * (a - b) for a, b in zip(lost, ref_lost, strict=True)]
    margins = [g - b for g, b in zip(good, bad, strict=True)]
    expected = {
        "pref.reward.chosen": mean(good),
        "pref.reward.rejected": mean(bad),
        "pref.reward.margin": mean(margins),
        "pref.accuracy": mean([m > 0 for m in margins]),
        "pref.logp.chosen": mean(won),
        "pref.logp.rejected": mean(lost),
        "pref.preference_loss": mean([-0.9 * math.log(sigmoid(m)) - 0.1 * math.log(sigmoid(-m)) for m in margins]),
    }
    assert {name: value.number for name, value in found.items()} == pytest.approx(expected, rel=1e-11)


def test_ties_are_what_the_caller_says():
    equal = {"chosen_logprobs": [-1.0, -2.0], "rejected_logprobs": [-3.0, -4.0]}
    given = equal | {f"ref_{name}": logprobs for name, logprobs in equal.items()}
    assert preference.stats(**given)["pref.accuracy"].number == 0.0
    assert preference.stats(**given, ties=0.5)["pref.accuracy"].number == 0.5
    assert preference.stats(**given)["pref.preference_loss"].number == pytest.approx(math.log(2))


def test_ipo_has_its_target_at_half_the_inverse_of_beta():
    found = preference.stats(
        chosen_logprobs=[-1.0], ref_chosen_logprobs=[-3.0], rejected_logprobs=[-2.0], ref_rejected_logprobs=[-1.5],
        loss="ipo", beta=BETA,
    )  # fmt: skip
    assert found["pref.preference_loss"].number == pytest.approx((2.5 - 1 / (2 * BETA)) ** 2)


def kto_by_hand(lp, ref, labels, z, *, weight_good, weight_bad):
    losses = []
    for a, b, label in zip(lp, ref, labels, strict=True):
        rho = a - b
        losses.append(
            weight_good * (1 - sigmoid(BETA * (rho - z))) if label else weight_bad * (1 - sigmoid(BETA * (z - rho)))
        )
    return mean(losses)


@pytest.mark.parametrize("shift", [0.0, 60.0])
def test_kto_completion_by_completion(rng, shift):
    lp, ref = sums(rng, 7)
    labels = [True, False, False, True, False, False, False]
    kl_lp, kl_ref = sums(rng, 7)
    kl_lp = [x + shift for x in kl_lp]
    found = preference.stats(
        logprobs=lp, ref_logprobs=ref, desirable=labels, kl_logprobs=kl_lp, ref_kl_logprobs=kl_ref, beta=BETA,
        desirable_weight=1.5, undesirable_weight=0.5,
    )  # fmt: skip
    z = max(0.0, mean([a - b for a, b in zip(kl_lp, kl_ref, strict=True)]))
    rewards = [BETA * (a - b) for a, b in zip(lp, ref, strict=True)]
    good = [r for r, label in zip(rewards, labels, strict=True) if label]
    bad = [r for r, label in zip(rewards, labels, strict=True) if not label]
    assert found["kl_ref.kto"].number == pytest.approx(z)
    assert found["pref.reward.chosen"].number == pytest.approx(mean(good))
    assert found["pref.reward.chosen"].count == 2
    assert found["pref.reward.rejected"].number == pytest.approx(mean(bad))
    assert found["pref.reward.margin"].number == pytest.approx(mean(good) - mean(bad))
    assert found["pref.preference_loss"].number == pytest.approx(
        kto_by_hand(lp, ref, labels, z, weight_good=1.5, weight_bad=0.5)
    )


def kto_step(*differences):
    """A step in which the mismatched pairs have these log ratios."""
    return preference.stats(
        logprobs=[-1.0], ref_logprobs=[-1.0], desirable=[True], kl_logprobs=list(differences),
        ref_kl_logprobs=[0.0] * len(differences),
    )  # fmt: skip


def test_the_reference_point_of_ranks_is_pooled_and_that_of_steps_is_averaged():
    ranks = [kto_step(-3.0), kto_step(1.0, 5.0)]
    assert merge(ranks)["kl_ref.kto"].number == pytest.approx(max(0.0, (-3.0 + 1.0 + 5.0) / 3))
    steps = [merge(ranks), kto_step(-8.0, -2.0), kto_step(2.0)]
    assert merge_steps(steps)["kl_ref.kto"].number == pytest.approx((1.0 + 0.0 + 2.0) / 3)
    assert merge(steps)["kl_ref.kto"].number == 0.0  # the step with the sum -10 outweighs the rest
    assert merge_steps([merge_steps(steps[:2]), steps[2]])["kl_ref.kto"].number == pytest.approx(1.0)


def test_steps_merge_as_batches_do_in_everything_else():
    lp, ref, labels = [-1.0, -2.0, -3.0, -4.0], [-2.0, -2.5, -2.0, -4.5], [1, 1, 0, 0]
    parts = [
        preference.stats(logprobs=lp[some], ref_logprobs=ref[some], desirable=labels[some], kl=0.5)
        for some in (slice(1), slice(1, 4))
    ]
    assert merge_steps(parts) == merge(parts)
    assert merge_steps(parts)["pref.reward.margin"].number is not None


def test_a_step_without_a_reference_point_does_not_count_as_zero():
    nothing = preference.stats(
        logprobs=[-1.0], ref_logprobs=[-1.0], desirable=[True], kl_logprobs=[], ref_kl_logprobs=[]
    )
    assert merge_steps([nothing, kto_step(3.0)])["kl_ref.kto"].number == 3.0


def test_kto_starts_at_one_half():
    found = preference.stats(logprobs=[-5.0, -6.0], ref_logprobs=[-5.0, -6.0], desirable=[True, False], kl=0.0)
    assert found["pref.preference_loss"].number == 0.5


def test_classes_given_apart_may_differ_in_number():
    apart = preference.stats(
        chosen_logprobs=[-1.0], ref_chosen_logprobs=[-2.0], rejected_logprobs=[-3.0, -4.0],
        ref_rejected_logprobs=[-3.0, -3.0], loss="kto", kl=0.5,
    )  # fmt: skip
    together = preference.stats(
        logprobs=[-1.0, -3.0, -4.0], ref_logprobs=[-2.0, -3.0, -3.0], desirable=[1, 0, 0], kl=0.5
    )
    assert apart == together


def test_margins_of_unequal_classes_merge_by_class_counts():
    lp, ref, labels = [-1.0, -2.0, -3.0, -4.0, -5.0], [-2.0, -2.5, -2.0, -4.5, -1.0], [1, 1, 1, 0, 0]
    whole = preference.stats(logprobs=lp, ref_logprobs=ref, desirable=labels)["pref.reward.margin"]
    first = preference.stats(logprobs=lp[:1], ref_logprobs=ref[:1], desirable=labels[:1])["pref.reward.margin"]
    rest = preference.stats(logprobs=lp[1:], ref_logprobs=ref[1:], desirable=labels[1:])["pref.reward.margin"]
    assert first.number is None  # one class alone has no margin
    assert (first + rest).number == pytest.approx(whole.number, rel=1e-12)
    assert (first + rest).number != pytest.approx(rest.number)


def test_a_batch_of_one_class_leaves_the_other_undefined():
    found = preference.stats(logprobs=[-1.0], ref_logprobs=[-2.0], desirable=[True])
    assert found["pref.reward.rejected"].number is None
    assert found["pref.reward.margin"].number is None
    assert found["pref.reward.chosen"].number == pytest.approx(0.1)
    assert "pref.preference_loss" not in found  # no z was given


def test_tokens_are_summed_where_the_mask_says():
    found = preference.stats(
        logprobs=[[-1.0, -2.0, math.nan], [-1.0, -9.0, -9.0]], ref_logprobs=[[-1.0, -1.0, -1.0], [-3.0, -1.0, -1.0]],
        mask=[[1, 1, 0], [1, 0, 0]], desirable=[True, False],
    )  # fmt: skip
    assert found["pref.logp.chosen"].number == -3.0
    assert found["pref.reward.rejected"].number == pytest.approx(0.2)


def test_extreme_margins_do_not_overflow():
    assert preference.dpo_loss([-5000.0, 5000.0]).tolist() == [5000.0, 0.0]
    assert preference.kto_loss([5000.0, -5000.0], [True, True]).tolist() == [0.0, 1.0]


def test_what_does_not_fit_is_reported():
    with pytest.raises(ConfigError, match="as many of both"):
        preference.stats(
            chosen_logprobs=[-1.0], ref_chosen_logprobs=[-1.0], rejected_logprobs=[-1.0, -2.0],
            ref_rejected_logprobs=[-1.0, -2.0],
        )  # fmt: skip
    with pytest.raises(ConfigError, match="reference's"):
        preference.stats(logprobs=[-1.0], desirable=[True])
    with pytest.raises(ConfigError, match="each of the 1 completions"):
        preference.stats(logprobs=[-1.0], ref_logprobs=[-1.0])
    with pytest.raises(ConfigError, match="Did you mean 'sigmoid'"):
        preference.stats(logprobs=[-1.0], loss="sigmoids")
