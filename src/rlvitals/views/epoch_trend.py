"""The state of a run at its end, from one value per epoch: improving, converged, inconsistent, or another verdict.

A change counts if it is larger than the noise of the two epochs and not small compared with the whole run. Fixed
thresholds would fit only one scale of rewards.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlvitals.health.course import SIGMA_OF_MEDIAN, scatter
from rlvitals.render.numbers import number

EpochTrend = Literal["improving", "converged", "inconsistent", "worsening", "flat", "cannot judge"]

SURE = 2.0
"""Standard errors that a difference must exceed to be more than noise."""

SMALL = 0.05
"""A change below this share of the run's whole range counts as no change."""

WINDOW = 3
"""Epochs at the end whose change decides the verdict."""

VAGUE = 0.25
"""If the noise is above this share of the run's whole range, a few epochs cannot show that a run has converged."""

SWING_WINDOW = 6
"""Epochs at the end in which changes of direction are counted."""

HIGH = 0.65
"""A run that never changed counts as converged from this share of its scale (the limit of the RLAIF document). Below
it, the run has learned nothing.
"""


class TrendVerdict(NamedTuple):
    """The verdict and one sentence with the reason."""

    verdict: EpochTrend
    why: str


def judge(
    name: str, values: NDArray[np.float64], errors: NDArray[np.float64], scale: tuple[float, float] | None = None
) -> TrendVerdict:
    """Judge one finite value per epoch, each with its standard error (NaN: unknown). Higher values are better.

    `scale` is the lowest and the highest possible value, if they are known.

    >>> rising = np.array([0.2, 0.4, 0.6, 0.8])
    >>> judge("reward", rising, np.full(4, 0.01)).verdict
    'improving'
    >>> judge("reward", np.array([0.2, 0.7, 0.71, 0.705]), np.full(4, 0.01)).verdict
    'converged'
    """
    count = len(values)
    if count < 2:
        return TrendVerdict("cannot judge", f"{name} is known for {'one epoch' if count else 'no epoch'} only")
    errors = _filled(values, errors)
    if np.isnan(errors).any():
        return TrendVerdict("cannot judge", f"two epochs of one row each do not tell how noisy {name} is")
    moves = _moves(values, errors)
    turns = _turns(moves[-(SWING_WINDOW - 1) :])
    span = float(values.max() - values.min())
    first = max(0, count - WINDOW)
    change, noise = _difference(values, errors, first, count - 1)
    while abs(change) <= noise and noise > VAGUE * span and first > 0:  # too noisy: include earlier epochs
        first -= 1
        change, noise = _difference(values, errors, first, count - 1)
    moved = f"{name} {'rose' if change > 0 else 'fell'} by {number(abs(change))} over the last {count - first} epochs"
    if turns >= 2 or (change > noise and moves[-1] < 0):
        return TrendVerdict(
            "inconsistent", f"{name} goes up and down between epochs by more than its noise ({number(noise)})"
        )
    if abs(change) > noise and abs(change) >= SMALL * span:
        return TrendVerdict(
            "improving" if change > 0 else "worsening", f"{moved}, more than its noise ({number(noise)})"
        )
    if count == 2:
        return TrendVerdict("cannot judge", f"{moved}, which is within its noise ({number(noise)})")
    return _settled(name, values, errors, scale)


def _settled(
    name: str, values: NDArray[np.float64], errors: NDArray[np.float64], scale: tuple[float, float] | None
) -> TrendVerdict:
    """The verdict on a run that no longer changes: after a gain, after a loss, or from the beginning."""
    gain, noise = _difference(values, errors, 0, len(values) - 1)
    last = number(float(values[-1]))
    still = f"{name} stands at {last} and no longer moves beyond its noise"
    if gain > noise:
        return TrendVerdict("converged", f"{still}, {number(gain)} above the first epoch")
    if gain < -noise:
        return TrendVerdict("worsening", f"{still}, {number(-gain)} below the first epoch")
    if scale is not None and values[-1] >= scale[0] + HIGH * (scale[1] - scale[0]):
        return TrendVerdict("converged", f"{still}; it was high from the first epoch on")
    return TrendVerdict(
        "flat", f"{name} stands at {last} and has not left the first epoch's by more than noise ({number(noise)})"
    )


def _difference(
    values: NDArray[np.float64], errors: NDArray[np.float64], before: int, after: int
) -> tuple[float, float]:
    """The change between two epochs, and the largest change that noise explains."""
    return float(values[after] - values[before]), SURE * math.hypot(errors[before], errors[after])


def _moves(values: NDArray[np.float64], errors: NDArray[np.float64]) -> list[int]:
    """The direction from epoch to epoch: 1 up, -1 down, 0 if the change is noise or small compared with the whole
    range.
    """
    least = 2 * SMALL * float(values.max() - values.min())
    found = []
    for after in range(1, len(values)):
        change, noise = _difference(values, errors, after - 1, after)
        found.append(int(np.sign(change)) if abs(change) > noise and abs(change) >= least else 0)
    return found


def _turns(moves: list[int]) -> int:
    signs = [move for move in moves if move]
    return sum(one != other for one, other in pairwise(signs))


def _filled(values: NDArray[np.float64], errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace unknown errors by the median of the known ones. If none is known, use the scatter of the curve."""
    known = errors[np.isfinite(errors)]
    if len(known):
        return np.where(np.isfinite(errors), errors, np.median(known))
    if len(values) < 3:
        return errors
    usual = scatter(values.tolist())
    # The median of one or two distances is their mean, not that of a distribution.
    return np.full(len(values), usual if len(values) > 4 else usual / SIGMA_OF_MEDIAN)
