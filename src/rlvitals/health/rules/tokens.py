"""Logged numbers that recorded tokens contradict, and the trainer bug that explains them (`compute.recomputation`)."""

from __future__ import annotations

from collections.abc import Callable

from rlvitals.health.alarm import Alarm, critical, info, warning
from rlvitals.records import Difference, Recheck


def recomputed_loss_scale(recheck: Recheck, *, told: float, confidence_in_part: float) -> Alarm | None:
    """The logged loss is the recomputed one multiplied or divided by a whole number."""
    if recheck.cause != "loss_scale":
        return None
    return _alarm(recheck, warning, told, confidence_in_part, "counted" if recheck.facts.get("count_of") else "")


def recomputed_mask_shift(recheck: Recheck, *, told: float, confidence_in_part: float) -> Alarm | None:
    """Moving the mask by one token gives the logged numbers."""
    if recheck.cause != "mask_shift":
        return None
    direction = "to_the_right" if recheck.facts.get("shift") == 1 else ""
    return _alarm(recheck, critical if recheck.is_whole else warning, told, confidence_in_part, direction)


def recomputed_advantage_sign(recheck: Recheck, *, told: float) -> Alarm | None:
    """Reversing the sign of the advantages gives the logged numbers, or advantages are opposite to rewards."""
    return _alarm(recheck, critical, told) if recheck.cause == "advantage_sign" else None


def recomputed_microbatch_weighting(recheck: Recheck, *, told: float, confidence_in_part: float) -> Alarm | None:
    """The logged numbers are means of the micro-batches' means, although these have unequal numbers of tokens."""
    return _alarm(recheck, warning, told, confidence_in_part) if recheck.cause == "microbatch_weighting" else None


def recomputed_not_explained(recheck: Recheck, *, told: float, confidence_in_part: float) -> Alarm | None:
    """A logged number differs from the recomputed one, and no known fault explains it."""
    if recheck.cause != "not_explained":
        return None
    return _alarm(recheck, warning if recheck.is_whole else info, told, confidence_in_part)


def recorded_gap(
    recheck: Recheck, *, gap: float, gap_critical: float, kl: float, kl_critical: float, least: float
) -> Alarm | None:
    """Engine and trainer disagree about the recorded tokens."""
    seen = recheck.gap
    if seen is None or seen.tokens < least or not (seen.mean > gap or seen.k3 > kl):
        return None
    found = (critical if seen.mean > gap_critical or seen.k3 > kl_critical else warning)(
        None, level=seen.mean, worst=seen.worst, k1=seen.k1, k3=seen.k3, tokens=float(seen.tokens)
    )
    details = {"by_length": seen.by_length, "later_over_earlier": seen.later, "fresh_over_old": seen.fresh}
    found.evidence |= {name: value for name, value in details.items() if value is not None}
    return found


def _alarm(
    recheck: Recheck,
    grave: Callable[..., Alarm],
    most: float,
    confidence_in_part: float | None = None,
    variant: str = "",
) -> Alarm | None:
    """The alarm about the number that is furthest off; it lists up to `most` numbers. `confidence_in_part` is for steps
    of which not all rollouts were recorded.
    """
    if not recheck.differences:
        return None
    first = max(recheck.differences, key=_distance)
    found = grave(
        None, variant, metric=first.name, logged=first.logged, recomputed=first.recomputed,
        rollouts=float(recheck.rollouts),
    )  # fmt: skip
    found.evidence |= recheck.facts
    for other in [each for each in recheck.differences if each is not first][: int(most) - 1]:
        found.evidence[f"also {other.name}"] = f"logged {other.logged:.4g}, recomputed {other.recomputed:.4g}"
    if not recheck.is_whole:
        found.confidence = confidence_in_part
    return found


def _distance(each: Difference) -> tuple[bool, float]:
    """The sort key of a difference: losses first, because they are trained on, then by relative distance."""
    size = abs(each.recomputed) + abs(each.logged)
    return "loss" in each.name, abs(each.logged - each.recomputed) / size if size else 0.0
