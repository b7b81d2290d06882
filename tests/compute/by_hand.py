"""A second implementation of every statistic of a step: from its definition, token by token, in plain Python floats.

It shares no code with `rlvitals.compute`, so every implementation there can be compared with it. It also replaces the
frameworks' own functions where those are not installed. Undefined numbers are None; a NaN among the numbers gives NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Token = dict[str, float]
PER_TOKEN = (
    "logprobs", "old_logprobs", "ref_logprobs", "rollout_logprobs", "advantages", "returns", "values", "old_values",
    "entropy", "exact_kl_ref", "exact_kl_old", "raw_advantages", "token_rewards",
)  # fmt: skip
"""Of shape [sequences, tokens]; the two kinds of advantages may also be [sequences]."""


@dataclass(frozen=True)
class Settings:
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    value_clip: float | None = None
    advantage_clip: float | None = None
    weight_cap: float | None = None
    weight_floor: float | None = None
    kl_coef: float | None = None
    entropy_coef: float | None = None
    score_low: float | None = None
    score_high: float | None = None
    min_group_std: float | None = None


ALL = Settings(
    dual_clip=1.2, value_clip=0.2, advantage_clip=0.7, weight_cap=1.05, weight_floor=0.9, kl_coef=0.05,
    entropy_coef=0.01, score_low=0.1, score_high=0.6, min_group_std=0.05,
)  # fmt: skip
"""Every clip binds on some tokens of `step_data.every_input` and not on others."""


def numbers(given: Mapping[str, Any], settings: Settings) -> dict[str, float | None]:
    """All numbers that can be computed from the inputs, by id."""
    rows = [list(tokens) for tokens in _rows(given)]
    found: dict[str, float | None] = {}
    _samples(found, rows, given)
    _policy(found, rows, given, settings)
    _reference(found, rows, given, settings)
    _mismatch(found, rows, given, settings)
    _values(found, rows, given, settings)
    _rollouts(found, rows, given, settings)
    return found


def _rows(given: Mapping[str, Any]) -> Iterable[Iterable[Token]]:
    shape = given["logprobs"].shape
    for i in range(shape[0]):
        kept = [t for t in range(shape[1]) if given.get("mask") is None or given["mask"][i, t]]
        yield [
            {
                name: float(given[name][i] if given[name].ndim == 1 else given[name][i, t])
                for name in PER_TOKEN
                if given.get(name) is not None
            }
            for t in kept
        ]


# Basic functions


def mean(x: Sequence[float]) -> float | None:
    return math.fsum(x) / len(x) if x else None


def variance(x: Sequence[float], ddof: int = 0) -> float | None:
    if len(x) <= ddof:
        return None
    centre = math.fsum(x) / len(x)
    return math.fsum((one - centre) ** 2 for one in x) / (len(x) - ddof)


def deviation(x: Sequence[float], ddof: int = 0) -> float | None:
    found = variance(x, ddof)
    return None if found is None else math.sqrt(found)


def least(x: Sequence[float]) -> float | None:
    return math.nan if any(map(math.isnan, x)) else min(x, default=None)


def greatest(x: Sequence[float]) -> float | None:
    found = least([-one for one in x])
    return None if found is None else -found


def share(holds: bool, *decided_by: float) -> float:
    return math.nan if any(map(math.isnan, decided_by)) else float(holds)


def effective(weights: Sequence[float]) -> float | None:
    """(sum w)^2 / (n sum w^2)"""
    return math.fsum(weights) ** 2 / (len(weights) * math.fsum(w * w for w in weights)) if weights else None


def _cut(x: float, low: float | None, high: float | None) -> float:
    x = x if low is None or not x < low else low
    return x if high is None or not x > high else high


def _all(name: str, x: Sequence[float], *, ddof: int = 1) -> dict[str, float | None]:
    return {
        f"{name}.mean": mean(x), f"{name}.std": deviation(x, ddof), f"{name}.min": least(x), f"{name}.max": greatest(x),
    }  # fmt: skip


def _flat(rows: list[list[Token]], number: Callable[[Token], float]) -> list[float]:
    return [number(token) for row in rows for token in row]


def _each(rows: list[list[Token]], number: Callable[[Token], float]) -> list[list[float]]:
    """The numbers of each sequence that has tokens."""
    return [[number(token) for token in row] for row in rows if row]


# The families


def _samples(found: dict[str, float | None], rows: list[list[Token]], given: Mapping[str, Any]) -> None:
    found["train.samples.total"] = len(rows)
    found["train.samples.valid"] = sum(bool(row) for row in rows)
    found["train.samples.valid_fraction"] = found["train.samples.valid"] / len(rows)
    found["optim.valid_tokens"] = sum(map(len, rows)) or None
    looked_at = [name for name in PER_TOKEN[:9] if given.get(name) is not None]
    broken = [any(not math.isfinite(token[name]) for name in looked_at) for row in rows for token in row]
    found["train.tokens.nonfinite"] = sum(broken) if broken else None
    if given.get("sample_weights") is not None:
        weights = [float(w) for w in given["sample_weights"]]
        for end, number in (("mean", mean), ("min", least), ("max", greatest)):
            found[f"train.sample_weight.{end}"] = number(weights)


def _policy(found: dict[str, float | None], rows: list[list[Token]], given: Mapping[str, Any], s: Settings) -> None:
    logp = _flat(rows, lambda token: token["logprobs"])
    found |= _all("policy.logp", logp)
    sums = [math.fsum(row) for row in _each(rows, lambda token: token["logprobs"])]
    found |= {k: v for k, v in _all("policy.logp.sequence", sums).items() if not k.endswith("std")}
    perplexities = [math.exp(-mean(row)) for row in _each(rows, lambda token: token["logprobs"])]
    found["policy.perplexity.train"] = mean(perplexities)
    found["policy.log_perplexity.train"] = mean([-mean(row) for row in _each(rows, lambda token: token["logprobs"])])
    for name, metric in (("old", "old"), ("ref", "ref"), ("rollout", "rollout")):
        if given.get(f"{name}_logprobs") is not None:
            found[f"policy.logp.{metric}.mean"] = mean(_flat(rows, lambda token, n=name: token[f"{n}_logprobs"]))
    if given.get("entropy") is not None:
        found |= _all("entropy", _flat(rows, lambda token: token["entropy"]))
        found["entropy.sequence.mean"] = mean([mean(row) for row in _each(rows, lambda token: token["entropy"])])
        _entropy_by_place(found, rows, given)
    if given.get("exact_kl_old") is not None:
        found["policy.kl_old.exact"] = mean(_flat(rows, lambda token: token["exact_kl_old"]))
    has_old = given.get("old_logprobs") is not None
    if has_old:
        _ratios(found, rows, s)
    if given.get("advantages") is None:
        return

    found["policy.logp_advantage_cov"] = _covariance(logp, _flat(rows, lambda token: token["advantages"]))

    def loss(token: Token) -> float:
        a = token["advantages"]
        if not has_old:
            return -a * token["logprobs"]
        r = math.exp(token["logprobs"] - token["old_logprobs"])
        gain = least([r * a, _cut(r, 1 - s.clip_low, 1 + s.clip_high) * a])
        if s.dual_clip is not None and a < 0:
            gain = greatest([gain, s.dual_clip * a])
        return -gain

    losses = _flat(rows, loss)
    found["policy.loss"] = mean(losses)
    if given.get("sample_weights") is not None:
        weight = [float(given["sample_weights"][i]) for i, row in enumerate(rows) for _ in row]
        losses = [one * w for one, w in zip(losses, weight, strict=True)]
        found["policy.loss.weighted"] = mean(losses)
    if s.kl_coef is not None or s.entropy_coef is not None:
        extra = _flat(rows, lambda token: _penalty(token, s))
        found["train.loss"] = mean([one + more for one, more in zip(losses, extra, strict=True)])
    if has_old:
        _clips(found, rows, s)


def _entropy_by_place(found: dict[str, float | None], rows: list[list[Token]], given: Mapping[str, Any]) -> None:
    thirds: dict[str, list[float]] = {"start": [], "middle": [], "end": []}
    for row in rows:
        for place, token in enumerate(row):
            third = "start" if 3 * place < len(row) else "middle" if 3 * place < 2 * len(row) else "end"
            thirds[third].append(token["entropy"])
    found |= {f"entropy.position.{third}": mean(numbers) for third, numbers in thirds.items()}
    if given.get("advantages") is not None:
        tokens = [token for row in rows for token in row]
        found["entropy.positive.mean"] = mean([token["entropy"] for token in tokens if token["advantages"] > 0])
        found["entropy.negative.mean"] = mean([token["entropy"] for token in tokens if token["advantages"] < 0])


def _penalty(token: Token, s: Settings) -> float:
    d = token["ref_logprobs"] - token["logprobs"] if s.kl_coef else 0.0
    kl = math.expm1(d) - d
    return (s.kl_coef or 0.0) * kl - (s.entropy_coef * token["entropy"] if s.entropy_coef else 0.0)


def _ratios(found: dict[str, float | None], rows: list[list[Token]], s: Settings) -> None:
    logs = _flat(rows, lambda token: token["logprobs"] - token["old_logprobs"])
    ratios = [math.exp(log) for log in logs]
    found |= _all("policy.log_ratio", logs) | _all("policy.ratio", ratios)
    found["policy.ratio.var"] = variance(ratios)
    found["policy.ratio.effective_sample_size"] = effective(ratios)
    found["policy.ratio_clipped.mean"] = mean([_cut(r, 1 - s.clip_low, 1 + s.clip_high) for r in ratios])
    found["policy.ratio_outside.upper"] = mean([share(r > 1 + s.clip_high, r) for r in ratios])
    found["policy.ratio_outside.lower"] = mean([share(r < 1 - s.clip_low, r) for r in ratios])
    found["policy.ratio_outside"] = mean([share(not 1 - s.clip_low <= r <= 1 + s.clip_high, r) for r in ratios])
    found["policy.kl_old.k1"] = mean([-log for log in logs])
    found["policy.kl_old.k2"] = mean([log * log / 2 for log in logs])
    k3 = [math.expm1(log) - log for log in logs]
    found["policy.kl_old.k3"], found["policy.kl_old.k3.max"] = mean(k3), greatest(k3)
    of_rows = [math.exp(mean(row)) for row in _each(rows, lambda t: t["logprobs"] - t["old_logprobs"])]
    found |= {k: v for k, v in _all("policy.ratio_sequence", of_rows).items() if not k.endswith("std")}


def _clips(found: dict[str, float | None], rows: list[list[Token]], s: Settings) -> None:
    def ratio(token: Token) -> tuple[float, float]:
        return math.exp(token["logprobs"] - token["old_logprobs"]), token["advantages"]

    def upper(token: Token) -> float:
        r, a = ratio(token)
        return share(r > 1 + s.clip_high and a > 0, r, a)

    def lower(token: Token) -> float:
        r, a = ratio(token)
        return share(r < 1 - s.clip_low and a < 0, r, a)

    def binds(token: Token) -> float:
        r, a = ratio(token)
        return share(_cut(r, 1 - s.clip_low, 1 + s.clip_high) * a < r * a, r, a)

    found["policy.clip_fraction"] = mean(_flat(rows, binds))
    found["policy.clip_fraction.upper"] = mean(_flat(rows, upper))
    found["policy.clip_fraction.lower"] = mean(_flat(rows, lower))
    found["policy.clip_fraction.upper.max"] = greatest([mean(row) for row in _each(rows, upper)])
    found["policy.clip_fraction.lower.min"] = least([mean(row) for row in _each(rows, lower)])
    if s.dual_clip is not None:
        found["policy.dual_clip_fraction"] = mean(
            [share(r > s.dual_clip and a < 0, r, a) for row in rows for r, a in map(ratio, row)]
        )


def _reference(found: dict[str, float | None], rows: list[list[Token]], given: Mapping[str, Any], s: Settings) -> None:
    if given.get("exact_kl_ref") is not None:
        found["kl_ref.exact"] = mean(_flat(rows, lambda token: token["exact_kl_ref"]))
    if given.get("ref_logprobs") is None:
        return
    drifts = _flat(rows, lambda token: token["logprobs"] - token["ref_logprobs"])
    found["kl_ref.k1"] = mean(drifts)
    found["kl_ref.k2"] = mean([d * d / 2 for d in drifts])
    k3 = [math.expm1(-d) + d for d in drifts]
    found["kl_ref.k3"], found["kl_ref.k3.max"] = mean(k3), greatest(k3)
    if s.kl_coef is not None:
        found["kl_ref.penalty"] = mean([s.kl_coef * k for k in k3])
    of_rows = [math.fsum(row) for row in _each(rows, lambda token: token["logprobs"] - token["ref_logprobs"])]
    found |= {k: v for k, v in _all("kl_ref.sequence", of_rows).items() if not k.endswith("std")}


def _mismatch(found: dict[str, float | None], rows: list[list[Token]], given: Mapping[str, Any], s: Settings) -> None:
    if given.get("rollout_logprobs") is None:
        return
    trained = "logprobs" if given.get("old_logprobs") is None else "old_logprobs"

    def gap(token: Token) -> float:
        return token[trained] - token["rollout_logprobs"]

    gaps = _flat(rows, gap)
    weights = [math.exp(d) for d in gaps]
    distances = [abs(d) for d in gaps]
    found |= {k: v for k, v in _all("mismatch.logp_abs_diff", distances, ddof=0).items() if not k.endswith("min")}
    found |= _all("mismatch.is_weight", weights, ddof=0)
    found["mismatch.kl.k1"] = mean([-d for d in gaps])
    found["mismatch.kl.k2"] = mean([d * d / 2 for d in gaps])
    found["mismatch.kl.k3"] = mean([math.expm1(d) - d for d in gaps])
    found["mismatch.effective_sample_size"] = effective(weights)
    found["mismatch.chi2.token"] = mean([w * w - 1 for w in weights])
    found["mismatch.token_mult_prob_error"] = mean([math.exp(abs(d)) for d in gaps])
    of_rows = _each(rows, gap)
    found["mismatch.seq_mult_prob_error.max"] = greatest([mean([math.exp(abs(d)) for d in row]) for row in of_rows])
    found["mismatch.ppl_ratio"] = mean([math.exp(-mean(row)) for row in of_rows])
    found["mismatch.extreme_ratio_fraction"] = mean([share(w < 0.5 or w > 2.0, w) for w in weights])
    apart = [-mean(row) for row in of_rows]
    found |= {k: v for k, v in _all("mismatch.log_ppl_gap", apart).items() if not k.endswith("std")}
    found["mismatch.log_ppl_gap.abs_mean"] = mean([abs(gap) for gap in apart])
    sampled = [-mean(row) for row in _each(rows, lambda token: token["rollout_logprobs"])]
    found["policy.log_perplexity.rollout"] = mean(sampled)
    found["policy.perplexity.rollout"] = mean([math.exp(one) for one in sampled])
    whole = [math.exp(math.fsum(row)) for row in of_rows]
    found |= _all("mismatch.is_weight_sequence", whole, ddof=0)
    found["mismatch.effective_sample_size.sequence"] = effective(whole)
    found["mismatch.chi2.sequence"] = mean([w * w - 1 for w in whole])
    if s.weight_cap is not None or s.weight_floor is not None:
        cut = [_cut(w, s.weight_floor, s.weight_cap) for w in weights]
        found["mismatch.is_truncated_fraction"] = mean([share(c != w, w) for c, w in zip(cut, weights, strict=True)])
        found |= _all("mismatch.is_weight_truncated", cut, ddof=0)
        if s.weight_cap is not None:
            found["mismatch.is_truncated_fraction.upper"] = mean([share(w > s.weight_cap, w) for w in weights])
        if s.weight_floor is not None:
            found["mismatch.is_truncated_fraction.lower"] = mean([share(w < s.weight_floor, w) for w in weights])
        touched = [
            greatest([share(_cut(w, s.weight_floor, s.weight_cap) != w, w) for w in map(math.exp, row)])
            for row in of_rows
        ]
        found["mismatch.is_truncated_fraction.sequence"] = mean(touched)
        found["mismatch.effective_sample_size.truncated"] = effective(cut)
    p = _flat(rows, lambda token: math.exp(token[trained]))
    q = _flat(rows, lambda token: math.exp(token["rollout_logprobs"]))
    apart = [abs(a - b) for a, b in zip(p, q, strict=True)]
    found |= {k: v for k, v in _all("mismatch.prob_abs_diff", apart, ddof=0).items() if not k.endswith("min")}
    found["mismatch.prob_pearson"] = _correlation(p, q)


def _covariance(x: Sequence[float], y: Sequence[float]) -> float | None:
    if not x:
        return None
    return math.fsum((a - mean(x)) * (b - mean(y)) for a, b in zip(x, y, strict=True)) / len(x)


def _correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    if not x:
        return None
    scale = deviation(x) * deviation(y)
    if scale == 0:
        return None
    return _covariance(x, y) / scale


def _values(found: dict[str, float | None], rows: list[list[Token]], given: Mapping[str, Any], s: Settings) -> None:
    def of(name: str) -> list[float]:
        return _flat(rows, lambda token: token[name])

    if given.get("advantages") is not None:
        found |= _all("advantage", of("advantages"))
        found["advantage.abs_mean"] = mean([abs(a) for a in of("advantages")])
    if given.get("raw_advantages") is not None:
        found["advantage.raw.mean"] = mean(of("raw_advantages"))
        if s.advantage_clip is not None:
            far = [share(abs(a) > s.advantage_clip, a) for a in of("raw_advantages")]
            found["advantage.clip_fraction"] = mean(far)
    if given.get("returns") is not None:
        found |= _all("return", of("returns"))
    has_old, has_values = given.get("old_values") is not None, given.get("values") is not None
    if has_old or has_values:
        collected = of("old_values" if has_old else "values")  # the baseline of the advantages
        found |= _all("value", collected)
        if given.get("returns") is not None:
            missed = [target - v for target, v in zip(of("returns"), collected, strict=True)]
            total = variance(of("returns"))
            is_defined = len(collected) > 1 and (total > 0 or math.isnan(total))
            found["value.explained_variance"] = 1 - variance(missed) / total if is_defined else None
    if has_values:
        found["value.predicted.mean"] = mean(of("values"))
        if has_old and s.value_clip is not None:
            moves = [v - old for v, old in zip(of("values"), of("old_values"), strict=True)]
            found["value.outside_fraction"] = mean([share(abs(move) > s.value_clip, move) for move in moves])
    if has_values and given.get("returns") is not None:
        _value_loss(found, rows, s, has_clip=has_old and s.value_clip is not None)
    if given.get("token_rewards") is not None:
        sums = [math.fsum(row) for row in _each(rows, lambda token: token["token_rewards"])]
        found |= {k: v for k, v in _all("reward.shaped", sums).items() if not k.endswith("std")}


def _value_loss(found: dict[str, float | None], rows: list[list[Token]], s: Settings, *, has_clip: bool) -> None:
    losses, errors, clipped = [], [], []
    for token in (token for row in rows for token in row):
        v, target = token["values"], token["returns"]
        error = near = (v - target) ** 2
        if has_clip:
            old = token["old_values"]
            near = math.nan if math.isnan(old) else (_cut(v, old - s.value_clip, old + s.value_clip) - target) ** 2
        losses.append(greatest([error, near]) / 2)
        errors.append(error)
        clipped.append(share(near > error, near, error))
    found["value.loss"], found["value.error"] = mean(losses), mean(errors)
    if has_clip:
        found["value.clip_fraction"] = mean(clipped)


def _rollouts(found: dict[str, float | None], rows: list[list[Token]], given: Mapping[str, Any], s: Settings) -> None:
    lengths = [float(len(row)) for row in rows]
    found |= _all("length.response", lengths, ddof=0)
    found["length.aborted_fraction"] = mean([float(length == 0) for length in lengths])
    some = [length for length in lengths if length]
    found |= {k: v for k, v in _all("length.non_empty", some).items() if not k.endswith("std")}
    if given.get("prompt_lengths") is not None:
        prompts = [float(length) for length in given["prompt_lengths"]]
        found |= {k: v for k, v in _all("length.prompt", prompts).items() if not k.endswith("std")}
        found["length.total.mean"] = mean([p + r for p, r in zip(prompts, lengths, strict=True)])
    if given.get("truncated") is not None:
        cut = [bool(one) for one in given["truncated"]]
        found["length.truncated_fraction"] = mean([float(one) for one in cut])
        ended = [length for length, one in zip(lengths, cut, strict=True) if not one]
        found |= {k: v for k, v in _all("length.terminated", ended).items() if not k.endswith("std")}
    if given.get("success") is not None:
        won = [bool(one) for one in given["success"]]
        found["reward.accuracy"] = mean([float(one) for one in won])
        found["length.correct.mean"] = mean([n for n, one in zip(lengths, won, strict=True) if one])
        found["length.incorrect.mean"] = mean([n for n, one in zip(lengths, won, strict=True) if not one])
    took = None if given.get("seconds") is None else [float(one) for one in given["seconds"]]
    if took is not None:
        found["agent.trajectory_time.mean"] = mean(took)
    if given.get("trained") is not None:
        used = [bool(one) for one in given["trained"]]
        found["discard.fraction"] = mean([float(not one) for one in used])
        for what, x in (("length", lengths), ("time", took)):
            if x is not None:
                kept, lost = (
                    [one for one, is_used in zip(x, used, strict=True) if is_used is side] for side in (True, False)
                )
                found[f"discard.{what}.trained.mean"], found[f"discard.{what}.discarded.mean"] = mean(kept), mean(lost)
                found[f"discard.{what}_ratio"] = mean(kept) / mean(x) if kept and mean(x) else None
    if given.get("scores") is not None:
        positive = [float(score) > 0 for score in given["scores"]]
        found["sft.loss"] = mean(_flat(rows, lambda token: -token["logprobs"]))
        for side, end in ((True, "positive"), (False, "negative")):
            own = [row for row, one in zip(rows, positive, strict=True) if one is side]
            found[f"sft.loss.{end}"] = mean(_flat(own, lambda token: -token["logprobs"]))
    if given.get("rewards") is not None:
        rewards = [float(reward) for reward in given["rewards"]]
        found |= _all("reward.total", rewards)
        found["reward.total.var"] = variance(rewards)
        if s.score_low is not None or s.score_high is not None:
            outside = [float(_cut(r, s.score_low, s.score_high) != r) for r in rewards]
            found["reward.clip_fraction"] = mean(outside)
        if given.get("group_ids") is not None:
            _groups(found, given, rewards, s)


def _groups(found: dict[str, float | None], given: Mapping[str, Any], rewards: list[float], s: Settings) -> None:
    members: dict[Any, list[int]] = {}
    for place, group in enumerate(given["group_ids"]):
        members.setdefault(group, []).append(place)
    groups = [[rewards[place] for place in places] for places in members.values()]
    spreads = [deviation(group) for group in groups]
    several = [spread for spread, group in zip(spreads, groups, strict=True) if len(group) > 1]
    found["group.total_count"] = len(groups)
    found["group.reward_mean.mean"] = mean([mean(group) for group in groups])
    found["group.reward_std.mean"] = mean(several)
    found["group.zero_std_fraction"] = mean([float(len(set(group)) == 1) for group in groups if len(group) > 1])
    if s.min_group_std is not None:
        kept = [float(spread >= s.min_group_std) for spread in spreads]
        found["group.kept_count"], found["group.filter_pass_rate"] = sum(kept), mean(kept)
        found["group.dropped_count"] = len(kept) - sum(kept)
    if given.get("success") is not None:
        rates = [mean([float(bool(given["success"][place])) for place in places]) for places in members.values()]
        found["group.all_pass_fraction"] = mean([float(rate == 1) for rate in rates])
        found["group.all_fail_fraction"] = mean([float(rate == 0) for rate in rates])
        found["group.mixed_fraction"] = mean([float(0 < rate < 1) for rate in rates])
        found["group.correct_ratio.std"] = deviation(rates)
