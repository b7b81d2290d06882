"""Policy statistics compared with loops over single tokens."""

from __future__ import annotations

import math

import loops
import numpy as np
import pytest
from loops import mean, token_list

from rlvitals.compute import merge, policy
from rlvitals.errors import ConfigError

LOW, HIGH = 0.1, 0.2


@pytest.fixture(params=range(4), ids="seed{}".format)
def tensors(request):
    return loops.batch(request.param)


def numbers(stats):
    return {name: value.number for name, value in stats.items()}


def pick(tensors, *names):
    return {name: tensors[name] for name in (*names, "mask")}


def test_ratios_are_those_of_single_tokens(tensors):
    found = numbers(policy.stats(**pick(tensors, "logprobs", "old_logprobs")))
    ratios = [
        math.exp(lp - old) for lp, old in token_list(tensors["mask"], tensors["logprobs"], tensors["old_logprobs"])
    ]
    assert found["policy.ratio.mean"] == pytest.approx(mean(ratios), rel=1e-12)
    assert found["policy.ratio.max"] == pytest.approx(max(ratios), rel=1e-12)
    assert found["policy.ratio.min"] == pytest.approx(min(ratios), rel=1e-12)
    assert found["policy.ratio.var"] == pytest.approx(loops.variance(ratios), rel=1e-12)
    clipped = [min(max(r, 0.8), 1.2) for r in ratios]
    assert found["policy.ratio_clipped.mean"] == pytest.approx(mean(clipped), rel=1e-12)


def test_sequence_ratios_are_exponentials_of_mean_log_ratios(tensors):
    rows = loops.rows_of(tensors["logprobs"] - tensors["old_logprobs"], tensors["mask"])
    expected = [math.exp(mean(row)) for row in rows]
    by_token = numbers(policy.stats(**pick(tensors, "logprobs", "old_logprobs")))
    perplexities = [math.exp(-mean(row)) for row in loops.rows_of(tensors["logprobs"], tensors["mask"])]
    assert by_token["policy.perplexity.train"] == pytest.approx(mean(perplexities), rel=1e-12)
    assert by_token["policy.ratio_sequence.mean"] == pytest.approx(mean(expected), rel=1e-12)
    by_sequence = numbers(policy.stats(**pick(tensors, "logprobs", "old_logprobs"), ratio_level="sequence"))
    repeated = [ratio for row, ratio in zip(rows, expected, strict=True) for _ in row]
    assert by_sequence["policy.ratio.mean"] == pytest.approx(mean(repeated), rel=1e-12)
    assert by_sequence["policy.ratio.max"] == pytest.approx(max(expected), rel=1e-12)


def test_clip_fractions_with_and_without_the_sign_of_the_advantage(tensors):
    found = numbers(
        policy.stats(
            **pick(tensors, "logprobs", "old_logprobs", "advantages"), clip_low=LOW, clip_high=HIGH, dual_clip=1.3
        )
    )
    tokens = token_list(tensors["mask"], tensors["logprobs"], tensors["old_logprobs"], tensors["advantages"])
    pairs = [(math.exp(lp - old), a) for lp, old, a in tokens]
    expected = {
        "policy.ratio_outside.upper": [r > 1 + HIGH for r, a in pairs],
        "policy.ratio_outside.lower": [r < 1 - LOW for r, a in pairs],
        "policy.ratio_outside": [not 1 - LOW <= r <= 1 + HIGH for r, a in pairs],
        "policy.clip_fraction.upper": [r > 1 + HIGH and a > 0 for r, a in pairs],
        "policy.clip_fraction.lower": [r < 1 - LOW and a < 0 for r, a in pairs],
        "policy.clip_fraction": [min(max(r, 1 - LOW), 1 + HIGH) * a < r * a for r, a in pairs],
        "policy.dual_clip_fraction": [r > 1.3 and a < 0 for r, a in pairs],
    }
    assert {name: found[name] for name in expected} == pytest.approx({n: mean(v) for n, v in expected.items()})
    assert found["policy.ratio_outside"] >= found["policy.clip_fraction"]


def test_clipping_cannot_bind_where_the_advantage_is_zero():
    found = policy.stats(logprobs=[[-1.0, -1.0]], old_logprobs=[[-9.0, -0.1]], advantages=[[0.0, 0.0]])
    assert found["policy.ratio_outside"].number == 1.0
    assert found["policy.clip_fraction"].number == 0.0


@pytest.mark.parametrize("dual_clip", [None, 1.3])
def test_the_policy_gradient_loss_and_its_weighted_form(tensors, dual_clip):
    weights = np.linspace(0.5, 1.5, len(tensors["mask"]))
    found = numbers(
        policy.stats(
            **pick(tensors, "logprobs", "old_logprobs", "advantages"),
            clip_low=LOW,
            clip_high=HIGH,
            dual_clip=dual_clip,
            sample_weights=weights,
        )
    )
    losses, weighted = [], []
    spread = np.broadcast_to(weights[:, None], tensors["mask"].shape)
    for lp, old, a, w in token_list(
        tensors["mask"], tensors["logprobs"], tensors["old_logprobs"], tensors["advantages"], spread
    ):
        r = math.exp(lp - old)
        gain = min(r * a, min(max(r, 1 - LOW), 1 + HIGH) * a)
        if dual_clip and a < 0:
            gain = max(gain, dual_clip * a)
        losses.append(-gain)
        weighted.append(-gain * w)
    assert found["policy.loss"] == pytest.approx(mean(losses), rel=1e-12)
    assert found["policy.loss.weighted"] == pytest.approx(mean(weighted), rel=1e-12)
    assert found["train.sample_weight.mean"] == pytest.approx(mean(list(weights)))
    assert (found["train.sample_weight.min"], found["train.sample_weight.max"]) == (0.5, 1.5)


def test_without_an_old_policy_the_loss_is_reinforce(tensors):
    found = numbers(policy.stats(**pick(tensors, "logprobs", "advantages")))
    tokens = token_list(tensors["mask"], tensors["logprobs"], tensors["advantages"])
    assert found["policy.loss"] == pytest.approx(mean([-lp * a for lp, a in tokens]), rel=1e-12)
    assert "policy.clip_fraction" not in found


def test_kl_to_the_old_policy_and_to_the_reference(tensors):
    found = numbers(policy.stats(**pick(tensors, "logprobs", "old_logprobs", "ref_logprobs")))
    tokens = token_list(tensors["mask"], tensors["logprobs"], tensors["old_logprobs"], tensors["ref_logprobs"])
    expected = {
        "policy.kl_old.k1": [old - lp for lp, old, _ in tokens],
        "policy.kl_old.k2": [(lp - old) ** 2 / 2 for lp, old, _ in tokens],
        "policy.kl_old.k3": [math.exp(lp - old) - 1 - (lp - old) for lp, old, _ in tokens],
        "kl_ref.k1": [lp - ref for lp, _, ref in tokens],
        "kl_ref.k2": [(lp - ref) ** 2 / 2 for lp, _, ref in tokens],
        "kl_ref.k3": [math.exp(ref - lp) - (ref - lp) - 1 for lp, _, ref in tokens],
        "policy.logp.mean": [lp for lp, _, _ in tokens],
        "policy.logp.old.mean": [old for _, old, _ in tokens],
        "policy.logp.ref.mean": [ref for _, _, ref in tokens],
    }
    assert {name: found[name] for name in expected} == pytest.approx(
        {n: mean(v) for n, v in expected.items()}, rel=1e-11
    )


def test_a_kl_estimate_can_be_clamped_as_roll_does():
    found = policy.stats(logprobs=[[-30.0, -1.0]], ref_logprobs=[[-1.0, -1.0]], kl_clamp=10.0)
    assert found["kl_ref.k3"].number == pytest.approx(5.0)


def test_exact_kl_and_entropy_from_logits_are_sums_over_the_vocabulary():
    rng = np.random.default_rng(0)
    z, base = rng.normal(0, 3, (2, 11)), rng.normal(0, 3, (2, 11))
    for row in range(2):
        p = [math.exp(v) / math.fsum(map(math.exp, z[row])) for v in z[row]]
        q = [math.exp(v) / math.fsum(map(math.exp, base[row])) for v in base[row]]
        exact = math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        assert policy.kl_exact(z, base)[row] == pytest.approx(exact, rel=1e-12)
        assert policy.entropy(z)[row] == pytest.approx(-math.fsum(a * math.log(a) for a in p), rel=1e-12)
    measured = policy.stats(logprobs=[[-1.0, -1.0]], exact_kl_ref=[[0.2, 0.4]], exact_kl_old=[[0.0, 0.1]])
    assert measured["kl_ref.exact"].number == pytest.approx(0.3)
    assert measured["policy.kl_old.exact"].number == pytest.approx(0.05)


def test_a_token_that_is_ruled_out_adds_nothing_to_the_entropy():
    assert policy.entropy([0.0, 0.0, -math.inf]) == pytest.approx(math.log(2))
    assert policy.kl_exact([0.0, -math.inf], [0.0, 0.0]) == pytest.approx(math.log(2))


def test_the_k3_estimate_is_the_exact_kl_on_average():
    rng = np.random.default_rng(1)
    z, base = rng.normal(0, 1, 8), rng.normal(0, 1, 8)
    p = np.exp(z) / np.exp(z).sum()
    lp, ref = np.log(p), base - np.log(np.exp(base).sum())
    assert (p * policy.kl_k3(lp, ref)).sum() == pytest.approx(policy.kl_exact(z, base), rel=1e-12)
    assert (p * policy.kl_k1(lp, ref)).sum() == pytest.approx(policy.kl_exact(z, base), rel=1e-12)


def test_entropy_and_the_total_loss(tensors):
    weights = np.linspace(0.5, 1.5, len(tensors["mask"]))
    given = pick(tensors, "logprobs", "old_logprobs", "ref_logprobs", "advantages", "entropy")
    found = numbers(policy.stats(**given, sample_weights=weights, kl_coef=0.05, entropy_coef=0.01, kl="k1"))
    h = [h for (h,) in token_list(tensors["mask"], tensors["entropy"])]
    assert found["entropy.mean"] == pytest.approx(mean(h))
    assert (found["entropy.min"], found["entropy.max"]) == (min(h), max(h))
    assert found["kl_ref.penalty"] == pytest.approx(0.05 * found["kl_ref.k1"])
    total = found["policy.loss.weighted"] + found["kl_ref.penalty"] - 0.01 * found["entropy.mean"]
    assert found["train.loss"] == pytest.approx(total, rel=1e-12)


def test_a_total_loss_that_would_lack_a_part_is_refused():
    with pytest.raises(ConfigError, match="needs ref_logprobs"):
        policy.stats(logprobs=[[-1.0]], advantages=[[1.0]], kl_coef=0.1)
    assert "train.loss" not in policy.stats(logprobs=[[-1.0]], advantages=[[1.0]])


def test_the_supervised_loss_splits_by_score(tensors):
    scores = np.array([1.0, 0.0, -1.0, 0.5, 0.0])
    found = numbers(policy.stats(**pick(tensors, "logprobs"), scores=scores))
    spread = np.broadcast_to(scores[:, None], tensors["mask"].shape)
    tokens = token_list(tensors["mask"], tensors["logprobs"], spread)
    assert found["sft.loss"] == pytest.approx(mean([-lp for lp, _ in tokens]))
    assert found["sft.loss.positive"] == pytest.approx(mean([-lp for lp, score in tokens if score > 0]))
    assert found["sft.loss.negative"] == pytest.approx(mean([-lp for lp, score in tokens if score <= 0]))


def test_samples_without_a_token_are_counted_and_are_not_valid(tensors):
    found = numbers(policy.stats(**pick(tensors, "logprobs")))
    assert found["train.samples.total"] == 5
    assert found["train.samples.valid"] == 4
    assert found["train.samples.valid_fraction"] == 0.8


def test_the_mismatch_of_rollout_and_trainer(tensors):
    found = numbers(policy.stats(**pick(tensors, "logprobs", "old_logprobs", "rollout_logprobs")))
    tokens = token_list(tensors["mask"], tensors["old_logprobs"], tensors["rollout_logprobs"])
    d = [train - rollout for train, rollout in tokens]
    w = [math.exp(x) for x in d]
    p, q = [math.exp(train) for train, _ in tokens], [math.exp(rollout) for _, rollout in tokens]
    gaps = [abs(a - b) for a, b in zip(p, q, strict=True)]
    expected = {
        "mismatch.logp_abs_diff.mean": mean([abs(x) for x in d]),
        "mismatch.logp_abs_diff.max": max(abs(x) for x in d),
        "mismatch.logp_abs_diff.std": math.sqrt(loops.variance([abs(x) for x in d])),
        "mismatch.kl.k1": mean([-x for x in d]),
        "mismatch.kl.k2": mean([x * x / 2 for x in d]),
        "mismatch.kl.k3": mean([math.exp(x) - x - 1 for x in d]),
        "mismatch.is_weight.mean": mean(w),
        "mismatch.is_weight.max": max(w),
        "mismatch.is_weight.min": min(w),
        "mismatch.is_weight.std": math.sqrt(loops.variance(w)),
        "mismatch.effective_sample_size": sum(w) ** 2 / (len(w) * sum(x * x for x in w)),
        "mismatch.chi2.token": mean([x * x for x in w]) - 1,
        "mismatch.token_mult_prob_error": mean([math.exp(abs(x)) for x in d]),
        "mismatch.prob_abs_diff.mean": mean(gaps),
        "mismatch.prob_abs_diff.max": max(gaps),
        "mismatch.prob_abs_diff.std": math.sqrt(loops.variance(gaps)),
        "mismatch.prob_pearson": np.corrcoef(p, q)[0, 1],
    }
    rows = loops.rows_of(tensors["old_logprobs"] - tensors["rollout_logprobs"], tensors["mask"])
    expected["mismatch.seq_mult_prob_error.max"] = max(mean([math.exp(abs(x)) for x in row]) for row in rows)
    expected["mismatch.ppl_ratio"] = mean([math.exp(-mean(row)) for row in rows])
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-9)


def test_nothing_counted_is_undefined_and_never_zero():
    given = loops.batch(0)
    given["mask"] = np.zeros_like(given["mask"])
    found = policy.stats(**given, kl_coef=0.1, scores=np.ones(5), sample_weights=np.ones(5))
    undefined = {name for name, value in found.items() if value.number is None}
    counted = set(found) - undefined
    assert all(name.startswith(("train.samples", "train.sample_weight")) for name in counted)
    assert len(undefined) > 40


def test_a_ratio_that_overflows_is_shown_as_it_is():
    found = policy.stats(logprobs=[[0.0, -1.0]], old_logprobs=[[-2000.0, -1.0]])
    assert found["policy.ratio.max"].number == math.inf
    assert found["policy.ratio.min"].number == 1.0


def test_a_nan_among_the_tokens_is_not_hidden():
    found = policy.stats(logprobs=[[math.nan, -1.0]], old_logprobs=[[-1.0, -1.0]])
    assert math.isnan(found["policy.ratio.mean"].number)
    assert math.isnan(found["policy.ratio.max"].number)


def test_a_share_that_a_nan_decides_is_nan():
    found = policy.stats(
        logprobs=[[math.nan, -1.0]], old_logprobs=[[-1.0, -1.0]], rollout_logprobs=[[math.nan, -1.0]],
        advantages=[[1.0, 1.0]], dual_clip=3.0, weight_cap=2.0,
    )  # fmt: skip
    shares = [name for name in found if "fraction" in name or "outside" in name]
    assert len(shares) >= 9
    for name in set(shares) - {"train.samples.valid_fraction"}:
        assert math.isnan(found[name].number), name


def test_sequence_weights_are_products_and_their_effective_sample_size_is_that_of_products():
    # Sequences of weights 2 * 2 and 1/2, and one without tokens.
    log2 = math.log(2)
    given = {
        "logprobs": [[-1.0, -1.0], [-1.0, 9.0], [9.0, 9.0]],
        "rollout_logprobs": [[-1.0 - log2, -1.0 - log2], [-1.0 + log2, 0.0], [0.0, 0.0]],
        "mask": [[1, 1], [1, 0], [0, 0]],
    }
    found = numbers(policy.stats(**given))
    assert found["mismatch.is_weight_sequence.mean"] == pytest.approx((4 + 0.5) / 2)
    assert (found["mismatch.is_weight_sequence.max"], found["mismatch.is_weight_sequence.min"]) == pytest.approx(
        (4, 0.5)
    )
    assert found["mismatch.is_weight_sequence.std"] == pytest.approx((4 - 0.5) / 2)
    assert found["mismatch.effective_sample_size.sequence"] == pytest.approx(4.5**2 / (2 * (16 + 0.25)))
    assert found["mismatch.chi2.sequence"] == pytest.approx((16 + 0.25) / 2 - 1)
    assert found["mismatch.effective_sample_size"] == pytest.approx(4.5**2 / (3 * (4 + 4 + 0.25)))


@pytest.mark.parametrize(
    ("floor", "cap", "cut", "share"),
    [(None, 2.0, (0.25, 1.0, 2.0, 2.0), 1 / 4), (0.5, None, (0.5, 1.0, 2.0, 8.0), 1 / 4),
     (0.5, 2.0, (0.5, 1.0, 2.0, 2.0), 2 / 4)],
)  # fmt: skip
def test_truncated_weights_are_cut_to_the_bounds(floor, cap, cut, share):
    weights = (0.25, 1.0, 2.0, 8.0)  # one is exactly on the bound, which counts as inside
    given = {"logprobs": [[math.log(w) for w in weights]], "rollout_logprobs": [[0.0] * 4]}
    found = numbers(policy.stats(**given, weight_floor=floor, weight_cap=cap))
    assert found["mismatch.is_truncated_fraction"] == pytest.approx(share)
    assert found["mismatch.is_weight_truncated.mean"] == pytest.approx(mean(list(cut)))
    assert found["mismatch.is_weight_truncated.std"] == pytest.approx(math.sqrt(loops.variance(list(cut))))
    assert found["mismatch.effective_sample_size.truncated"] == pytest.approx(
        sum(cut) ** 2 / (4 * sum(w * w for w in cut))
    )
    assert found["mismatch.is_weight.max"] == pytest.approx(8.0)  # the maximum before truncation
    ends = found["mismatch.is_weight_truncated.min"], found["mismatch.is_weight_truncated.max"]
    assert ends == pytest.approx((min(cut), max(cut)))
    sides = {"upper": cap, "lower": floor}
    for side, bound in sides.items():  # one weight is beyond each given bound
        assert found.get(f"mismatch.is_truncated_fraction.{side}") == (None if bound is None else 0.25)
    assert found["mismatch.is_truncated_fraction.sequence"] == 1.0
    assert not [name for name in policy.stats(**given) if "truncated" in name]


def test_extreme_ratios_are_beyond_a_factor_of_two_either_way():
    weights = [0.49, 0.51, 1.0, 1.99, 2.01, 9.0]
    given = {"logprobs": [[math.log(w) for w in weights]], "rollout_logprobs": [[0.0] * 6]}
    assert numbers(policy.stats(**given))["mismatch.extreme_ratio_fraction"] == pytest.approx(3 / 6)


def test_responses_that_truncation_touched_are_counted_once_however_many_weights_it_changed():
    weights = [[1.0, 9.0, 9.0], [1.0, 1.0, 1.0], [5.0, 1.0, 1.0], [9.0, 9.0, 9.0]]
    mask = [[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 0, 0]]
    given = {"logprobs": np.log(weights), "rollout_logprobs": np.zeros((4, 3)), "mask": mask}
    found = numbers(policy.stats(**given, weight_cap=2.0))
    assert found["mismatch.is_truncated_fraction.sequence"] == pytest.approx(1 / 3)
    assert found["mismatch.is_truncated_fraction.upper"] == pytest.approx(2 / 8)


def test_the_log_perplexity_gap_counts_each_response_once():
    train, engine = [[-2.0, -2.0, -2.0, -2.0], [-1.0, 0.0, 0.0, 0.0]], [[-1.0] * 4, [-4.0, 0.0, 0.0, 0.0]]
    found = numbers(policy.stats(logprobs=train, rollout_logprobs=engine, mask=[[1, 1, 1, 1], [1, 0, 0, 0]]))
    gap = {end: found[f"mismatch.log_ppl_gap.{end}"] for end in ("mean", "abs_mean", "max", "min")}
    assert gap == {"mean": -1.0, "abs_mean": 2.0, "max": 1.0, "min": -3.0}
    assert (found["policy.log_perplexity.train"], found["policy.log_perplexity.rollout"]) == (1.5, 2.5)
    assert found["policy.perplexity.rollout"] == pytest.approx((math.e + math.e**4) / 2)


def test_entropy_by_third_of_a_response_and_by_the_sign_of_the_advantage():
    entropy = [[9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [7.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0]]
    mask = [[0, 1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0, 0]]
    given = {"logprobs": np.zeros((2, 7)), "entropy": entropy, "mask": mask}
    found = numbers(policy.stats(**given, advantages=[[1, 1, -1, -1, 0, 0, 2], [-3] * 7]))
    thirds = [found[f"entropy.position.{third}"] for third in ("start", "middle", "end")]
    assert thirds == pytest.approx([(1 + 2 + 7) / 3, (3 + 4) / 2, (5 + 6) / 2])
    assert found["entropy.positive.mean"] == pytest.approx((1 + 6) / 2)
    assert found["entropy.negative.mean"] == pytest.approx((2 + 3 + 7) / 3)


def test_the_covariance_of_log_prob_and_advantage_is_numpys_and_merges(tensors):
    given = pick(tensors, "logprobs", "advantages")
    tokens = np.array(token_list(tensors["mask"], tensors["logprobs"], tensors["advantages"]))
    expected = np.cov(tokens.T, ddof=0)[0, 1]
    assert numbers(policy.stats(**given))["policy.logp_advantage_cov"] == pytest.approx(expected, rel=1e-9)
    rows = [policy.stats(**{name: x[at] for name, x in given.items()}) for at in (slice(0, 1), slice(1, None))]
    assert numbers(merge(rows))["policy.logp_advantage_cov"] == pytest.approx(expected, rel=1e-9)


def test_one_sequence_may_come_without_a_batch_dimension():
    flat = policy.stats(logprobs=[-1.0, -2.0], old_logprobs=[-1.1, -2.0], advantages=[1.0, 1.0])
    boxed = policy.stats(logprobs=[[-1.0, -2.0]], old_logprobs=[[-1.1, -2.0]], advantages=[1.0])
    assert flat == boxed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"old_logprobs": [[-1.0]]}, "must have one shape"),
        ({"mask": [[1, 1, 1]]}, "must have one shape"),
        ({"advantages": [1.0, 2.0, 3.0]}, "each of 1 sequences"),
        ({"sample_weights": [1.0, 2.0]}, "each of 1 sequences"),
        ({"ratio_level": "tokens"}, "Did you mean 'token'"),
        ({"kl": "k4"}, "Known: k1, k2, k3"),
        ({"names": "rol"}, "Did you mean 'roll'"),
    ],
)
def test_what_does_not_fit_is_reported(arguments, message):
    with pytest.raises(ConfigError, match=message):
        policy.stats(logprobs=[[-1.0, -2.0]], **arguments)
