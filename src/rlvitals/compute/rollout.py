"""Statistics of rollouts: lengths, truncation, discards, scores, groups of one prompt, pass@k, repetition.

>>> seen = stats(response_lengths=[3, 8], finish_reasons=["stop", "length"], names="roll")
>>> seen["tokens/response_length/mean"].number, seen["actor/max_len_mask_ratio"].number
(5.5, 0.5)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlvitals.compute.arrays import Array, from_one_of_group, gather, group_slots, group_sum, library, real
from rlvitals.compute.names import naming
from rlvitals.compute.packing import Packed, StatisticSheet, reading
from rlvitals.compute.repetition import LOOPING_RATIO, compression_ratio, longest_repeat, ngram_repetition
from rlvitals.errors import ConfigError
from rlvitals.values import Value

TRUNCATED = frozenset({"length", "max_tokens", "max_length", "model_length"})
"""Finish reasons of common engines that mean the response was truncated."""

Z_95 = 1.959963984540054
"""Normal quantile of a two-sided 95 % interval."""


def clip_fraction(rewards: Array, low: float | None = None, high: float | None = None) -> Array:
    """Share of rewards outside the limits, before clipping; a reward on the limit is inside.

    >>> clip_fraction([-2.0, 0.0, 1.0], low=-1.0, high=1.0).round(4)
    np.float64(0.3333)
    """
    return _outside(real(rewards), low, high).mean()


def weighted_reward(components: Mapping[str, Array], weights: Mapping[str, float]) -> Array:
    """Sum over components of weight * reward, for each sample; a NaN component adds nothing.

    >>> weighted_reward({"correct": [1.0, 0.0], "style": [0.5, float("nan")]}, {"correct": 0.8, "style": 0.2})
    array([0.9, 0. ])
    """
    if missing := components.keys() ^ weights.keys():
        raise ConfigError(f"each component needs a weight, and each weight a component: {', '.join(sorted(missing))}")
    parts = gather(*components.values())
    xp = library(*parts)
    applied = [xp.where(xp.isnan(part), xp.zeros_like(part), part) for part in parts]
    return sum(weights[name] * part for name, part in zip(components, applied, strict=True))


class GroupSums(NamedTuple):
    """For each group: its number of rows, their mean and standard deviation, and 1 if all are equal."""

    size: Array
    mean: Array
    spread: Array
    is_flat: Array


def group_moments(numbers: Array, group_ids: Array, *, unbiased: bool = False) -> GroupSums:
    """Size, mean and standard deviation of each group, and 1 if all its numbers are equal; places without a group have
    size 0. `unbiased` divides by size - 1, so the deviation of a group of one is NaN.
    """
    x = gather(numbers)[0].reshape(-1)
    slots = group_slots(group_ids, x)
    xp = library(x)
    size = group_sum(xp.ones_like(x), slots)
    apart, one = from_one_of_group(x, slots)
    mean = group_sum(apart, slots) / xp.where(size > 0, size, xp.ones_like(size))
    off = apart - mean[slots]
    divisor = size - 1.0 if unbiased else size
    spread = xp.sqrt(group_sum(off * off, slots) / xp.where(divisor > 0, divisor, xp.nan + 0.0 * divisor))
    return GroupSums(size, one + mean, spread, real(group_sum(real(apart != 0), slots) == 0))


def pass_at_k(samples: Array, correct: Array, k: int) -> Array:
    """Probability that at least one of k samples of a prompt is correct, estimated without bias from n samples of which
    c are correct (Chen et al. 2021): 1 - C(n - c, k) / C(n, k). NaN where n < k.

    >>> pass_at_k([4, 4, 1], [1, 0, 1], k=2)
    array([0.5, 0. , nan])
    """
    if k < 1:
        raise ConfigError(f"k must be 1 or more, not {k}")
    return _hits(samples, correct, k, lambda n, c, drawn: n - c - drawn, complement=True)


def pass_hat_k(samples: Array, correct: Array, k: int) -> Array:
    """Probability that all k samples of a prompt are correct: C(c, k) / C(n, k). NaN where n < k."""
    return _hits(samples, correct, k, lambda _, c, drawn: c - drawn, complement=False)


def interval(share: Value) -> tuple[float, float] | None:
    """Wilson's 95 % interval of a mean of numbers between 0 and 1, over prompts; None if there are none.

    It is meant for numbers that are 0 or 1. For numbers in between it is wider than necessary: a number in 0..1 with
    mean p has a variance of at most p (1 - p). Its width is never 0, unlike a normal interval when all prompts agree.

    >>> from rlvitals import values
    >>> [round(end, 3) for end in interval(values.mean([1, 1, 1, 1, 1, 1, 1, 0, 0, 0]))]
    [0.397, 0.892]
    """
    if not share.count:
        return None
    n, p = share.count, share.mean
    centre = p + Z_95**2 / (2 * n)
    reach = Z_95 * math.sqrt(max(p * (1 - p), 0.0) / n + Z_95**2 / (4 * n * n))
    scale = 1 + Z_95**2 / n
    return max((centre - reach) / scale, 0.0), min((centre + reach) / scale, 1.0)


@np.errstate(invalid="ignore")
def pack(
    *,
    response_lengths: Array = None,
    prompt_lengths: Array = None,
    response_mask: Array = None,
    prompt_mask: Array = None,
    finish_reasons: Sequence[str | None] | None = None,
    truncated: Array = None,
    max_response_length: int | None = None,
    scores: Array = None,
    success: Array = None,
    trained: Array = None,
    seconds: Array = None,
    components: Mapping[str, Array] | None = None,
    component_weights: Mapping[str, float] | None = None,
    score_low: float | None = None,
    score_high: float | None = None,
    group_ids: Array = None,
    min_group_std: float | None = None,
    unbiased: bool = False,
    pass_k: Sequence[int] = (),
    tokens: Sequence[Sequence[Any]] | None = None,
    texts: Sequence[str] | None = None,
    stage: str = "train",
    names: str = "canonical",
) -> Packed:
    """Compute the statistics of rollouts, with one number (or text, or list of tokens) for each. Statistics of missing
    arguments are not computed. `stats` returns them as mergeable values. Pass a whole group in one call: groups cannot
    be merged across calls.

    Truncation is read from `finish_reasons` or `truncated` (true or false). With `max_response_length` alone, every
    response of that length counts as truncated, even if it ended there by itself. `scores` are rewards before clipping,
    `score_low` and `score_high` the clipping limits. `components` are parts of the reward by name, NaN where one does
    not apply; without `scores`, their sum weighted by `component_weights` is the score. `success` is true or false for
    each rollout and decides whether a group is solved, failed or mixed. `trained` is true for the rollouts that reach
    the loss: pass all generated rollouts to compare the lengths and `seconds` of both kinds. `stage="eval"` uses the
    names of an evaluation for the scores (`eval.score.mean`).
    """
    if scores is None and components and component_weights:
        scores = weighted_reward(components, component_weights)
    lengths, prompts, scores, won, used, took = gather(
        _lengths(response_lengths, response_mask),
        _lengths(prompt_lengths, prompt_mask),
        *map(_flat, (scores, success, trained, seconds)),
    )
    won = None if won is None else real(won > 0)
    sheet = StatisticSheet(naming(names, "rollout"))
    is_cut = _truncation(finish_reasons, truncated, max_response_length, lengths)
    if lengths is not None:
        _show_lengths(sheet, lengths, is_cut)
    if is_cut is not None:
        sheet.moments(is_cut, mean="length.truncated_fraction")
    if prompts is not None:
        sheet.moments(prompts, mean="length.prompt.mean", max="length.prompt.max", min="length.prompt.min")
        if lengths is not None:
            sheet.moments(prompts + lengths, mean="length.total.mean")
    if won is not None:
        sheet.moments(won, mean="reward.accuracy")
        if lengths is not None:
            sheet.moments(lengths, won, mean="length.correct.mean")
            sheet.moments(lengths, 1.0 - won, mean="length.incorrect.mean")
    if took is not None:
        sheet.moments(took, mean="agent.trajectory_time.mean")
    if used is not None:
        show_discarded(sheet, used)
        for what, numbers in (("length", lengths), ("time", took)):
            if numbers is not None:
                show_discard_bias(sheet, what, numbers, used)
    if scores is not None:
        _show_scores(sheet, scores, score_low, score_high, stage)
    _show_components(sheet, components or {}, component_weights or {})
    if group_ids is not None:
        _show_groups(sheet, scores, won, group_ids, min_group_std, unbiased=unbiased)
        _show_pass(sheet, won, group_ids, pass_k)
    elif pass_k:
        raise ConfigError("pass_k needs success and group_ids: which samples belong to one prompt")
    _show_repetition(sheet, tokens, texts)
    return sheet.pack()


stats = reading(pack)
"""The statistics as mergeable values; the arguments are those of `pack`."""


def _outside(r: Array, low: float | None, high: float | None) -> Array:
    return real((r < (-math.inf if low is None else low)) | (r > (math.inf if high is None else high)))


def _hits(samples: Array, correct: Array, k: int, left: Any, *, complement: bool) -> Array:
    n, c = gather(samples, correct)
    xp = library(n)
    chance = xp.ones_like(n)
    for drawn in range(k):
        # Without replacement: the remaining samples of the wanted kind, divided by all remaining samples.
        pool = n - drawn
        chance = chance * xp.clip(left(n, c, drawn), 0.0, None) / xp.where(pool > 0, pool, xp.ones_like(pool))
    return xp.where(n >= k, 1.0 - chance if complement else chance, xp.nan + 0.0 * n)


def _flat(numbers: Array) -> Array:
    return None if numbers is None else gather(numbers)[0].reshape(-1)


def _lengths(lengths: Array, mask: Array) -> Array:
    if lengths is not None:
        return _flat(lengths)
    return None if mask is None else (real(gather(mask)[0] != 0)).sum(axis=-1)


def _truncation(reasons: Sequence[str | None] | None, truncated: Array, limit: int | None, lengths: Array) -> Array:
    if reasons is not None:
        return real([reason in TRUNCATED for reason in reasons], lengths)
    if truncated is not None:
        return real(_flat(truncated) > 0)
    return None if limit is None or lengths is None else real(lengths >= limit)


def _show_lengths(sheet: StatisticSheet, lengths: Array, is_cut: Array) -> None:
    sheet.moments(
        lengths, mean="length.response.mean", max="length.response.max", min="length.response.min",
        std="length.response.std",
    )  # fmt: skip
    sheet.moments(real(lengths == 0), mean="length.aborted_fraction")
    sheet.moments(
        lengths, real(lengths > 0), mean="length.non_empty.mean", max="length.non_empty.max", min="length.non_empty.min"
    )
    if is_cut is not None:
        ended = 1.0 - real(is_cut, lengths)
        sheet.moments(
            lengths, ended, mean="length.terminated.mean", max="length.terminated.max", min="length.terminated.min"
        )


def show_discarded(sheet: StatisticSheet, trained: Array) -> None:
    """Show how many of the generated rollouts are not trained on."""
    sheet.moments(1.0 - real(gather(trained)[0] > 0), mean="discard.fraction")


def show_discard_bias(sheet: StatisticSheet, what: str, numbers: Array, trained: Array) -> None:
    """Show whether the rollouts that are trained on are shorter ("length") or faster ("time") than all rollouts."""
    used = real(gather(trained)[0] > 0)
    everything = sheet.moments(numbers)
    kept = sheet.moments(numbers, used, mean=f"discard.{what}.trained.mean")
    sheet.moments(numbers, 1.0 - used, mean=f"discard.{what}.discarded.mean")
    sheet.derive(f"discard.{what}_ratio", _ratio_of_means, kept, everything)


def _ratio_of_means(part: Value, whole: Value) -> float | None:
    return part.mean / whole.mean if whole.mean else None


def _show_scores(sheet: StatisticSheet, scores: Array, low: float | None, high: float | None, stage: str) -> None:
    if stage == "eval":
        sheet.moments(scores, mean="eval.score.mean", max="eval.score.max", min="eval.score.min")
        return
    sheet.moments(
        scores, mean="reward.total.mean", max="reward.total.max", min="reward.total.min",
        sample_std="reward.total.std", var="reward.total.var",
    )  # fmt: skip
    if low is not None or high is not None:
        sheet.moments(_outside(scores, low, high), mean="reward.clip_fraction")


def _show_components(sheet: StatisticSheet, components: Mapping[str, Array], weights: Mapping[str, float]) -> None:
    for component, numbers in components.items():
        x = _flat(numbers)
        defined = real(~library(x).isnan(x))
        sheet.moments(x, defined, mean=f"rewards/{component}/mean", sample_std=f"rewards/{component}/std")
    for component, weight in weights.items():
        sheet.moments([weight], mean=f"rewards/{component}/weight")


def _show_groups(
    sheet: StatisticSheet, scores: Array, won: Array, group_ids: Array, min_std: float | None, *, unbiased: bool
) -> None:
    if scores is not None:
        groups = group_moments(scores, group_ids, unbiased=unbiased)
        there = real(groups.size > 0)
        # A group of one has no variance: it counts neither as varied nor as constant.
        several = real(groups.size > 1)
        sheet.moments(groups.is_flat, several, mean="group.zero_std_fraction")
        sheet.moments(groups.spread, several, mean="group.reward_std.mean")
        sheet.moments(groups.mean, there, mean="group.reward_mean.mean")
        sheet.moments(there, there, sum="group.total_count")
        if min_std is not None:
            kept = real(groups.spread >= min_std)
            sheet.moments(kept, there, sum="group.kept_count", mean="group.filter_pass_rate")
            sheet.moments(1.0 - kept, there, sum="group.dropped_count")
    if won is not None:
        rates = group_moments(won, group_ids)
        there = real(rates.size > 0)
        solved, failed = rates.is_flat * (rates.mean == 1), rates.is_flat * (rates.mean == 0)
        sheet.moments(solved, there, mean="group.all_pass_fraction")
        sheet.moments(failed, there, mean="group.all_fail_fraction")
        sheet.moments(1.0 - solved - failed, there, mean="group.mixed_fraction")
        sheet.moments(rates.mean, there, std="group.correct_ratio.std")


def _show_pass(sheet: StatisticSheet, won: Array, group_ids: Array, ks: Sequence[int]) -> None:
    if ks and won is None:
        raise ConfigError("pass_k needs success: true or false for each sample")
    for k in ks:
        rates = group_moments(won, group_ids)
        enough = real(rates.size >= k)
        hit = pass_at_k(rates.size, rates.mean * rates.size, k)
        row = sheet.moments(hit, enough, mean=f"eval.pass_at_k/{k}")
        sheet.derive(f"eval.pass_at_k/{k}/low", _low, row)
        sheet.derive(f"eval.pass_at_k/{k}/high", _high, row)
        if k > 1:
            sheet.moments(hit - rates.mean, enough, mean=f"eval.pass_gap_at_k/{k}")
        every = pass_hat_k(rates.size, rates.mean * rates.size, k)
        sheet.moments(every, enough, mean=f"eval.pass_hat_k/{k}")


def _show_repetition(
    sheet: StatisticSheet, tokens: Sequence[Sequence[Any]] | None, texts: Sequence[str] | None
) -> None:
    if tokens is not None:
        responses = [response.tolist() if hasattr(response, "tolist") else list(response) for response in tokens]
        shares = [share for response in responses if (share := ngram_repetition(response)) is not None]
        sheet.moments(shares, mean="text.ngram_repetition.mean", max="text.ngram_repetition.max")
        sheet.moments(
            [longest_repeat(response) for response in responses],
            mean="text.longest_repeat.mean", max="text.longest_repeat.max",
        )  # fmt: skip
    if texts is not None:
        ratios = [ratio for text in texts if (ratio := compression_ratio(text)) is not None]
        sheet.moments([ratio > LOOPING_RATIO for ratio in ratios], mean="text.repetition_fraction")


def _low(share: Value) -> float | None:
    found = interval(share)
    return found[0] if found else None


def _high(share: Value) -> float | None:
    found = interval(share)
    return found[1] if found else None
