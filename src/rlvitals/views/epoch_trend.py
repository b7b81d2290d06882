"""Where a run stood at its end, from one value an epoch: improving, converged, inconsistent, or none of these.

A change counts when it is larger than the noise of the two epochs it lies between, and when it matters beside what the
run did as a whole; fixed thresholds fit one scale of rewards only.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlvitals.render.numbers import number

Trend = Literal["improving", "converged", "inconsistent", "worsening", "flat", "cannot judge"]

SURE = 2.0
"""Standard errors a difference must exceed to be more than noise."""

SMALL = 0.05
"""A change of less than this share of all the run has covered counts as standing still."""

WINDOW = 3
"""Epochs at the end whose change decides."""

VAGUE = 0.25
"""Where noise covers more than this share of all the run has covered, a few epochs cannot show that it stands still."""

SWING_WINDOW = 6
"""Epochs at the end in which ups and downs are counted."""

HIGH = 0.65
"""A run that never moved counts as converged from this share of its scale on (the RLAIF document's own bar); below it,
nothing was learned."""


class Ending(NamedTuple):
    """The verdict and one sentence that says why."""

    verdict: Trend
    why: str


def judge(
    name: str, values: NDArray[np.float64], errors: NDArray[np.float64], scale: tuple[float, float] | None = None
) -> Ending:
    """Judge one finite value an epoch where more is better, each with its standard error (NaN: unknown).

    `scale` is the lowest and highest value there can be, where they are known.

    >>> rising = np.array([0.2, 0.4, 0.6, 0.8])
    >>> judge("reward", rising, np.full(4, 0.01)).verdict
    'improving'
    >>> judge("reward", np.array([0.2, 0.7, 0.71, 0.705]), np.full(4, 0.01)).verdict
    'converged'
    """
    count = len(values)
    if count < 2:
        return Ending("cannot judge", f"{name} is known for {'one epoch' if count else 'no epoch'} only")
    errors = _filled(values, errors)
    if np.isnan(errors).any():
        return Ending("cannot judge", f"two epochs of one row each do not tell how noisy {name} is")
    moves = _moves(values, errors)
    turns = _turns(moves[-(SWING_WINDOW - 1) :])
    span = float(values.max() - values.min())
    first = max(0, count - WINDOW)
    change, noise = _difference(values, errors, first, count - 1)
    while abs(change) <= noise and noise > VAGUE * span and first > 0:  # too noisy to tell: look further back
        first -= 1
        change, noise = _difference(values, errors, first, count - 1)
    said = f"{name} {'rose' if change > 0 else 'fell'} by {number(abs(change))} over the last {count - first} epochs"
    if turns >= 2 or (change > noise and moves[-1] < 0):
        return Ending(
            "inconsistent", f"{name} goes up and down between epochs by more than its noise ({number(noise)})"
        )
    if abs(change) > noise and abs(change) >= SMALL * span:
        return Ending("improving" if change > 0 else "worsening", f"{said}, more than its noise ({number(noise)})")
    if count == 2:
        return Ending("cannot judge", f"{said}, which is within its noise ({number(noise)})")
    return _settled(name, values, errors, scale)


def _settled(
    name: str, values: NDArray[np.float64], errors: NDArray[np.float64], scale: tuple[float, float] | None
) -> Ending:
    """A run that stands still at its end: after a gain, after a loss, or from the beginning."""
    gain, noise = _difference(values, errors, 0, len(values) - 1)
    last = number(float(values[-1]))
    still = f"{name} stands at {last} and no longer moves beyond its noise"
    if gain > noise:
        return Ending("converged", f"{still}, {number(gain)} above the first epoch")
    if gain < -noise:
        return Ending("worsening", f"{still}, {number(-gain)} below the first epoch")
    if scale is not None and values[-1] >= scale[0] + HIGH * (scale[1] - scale[0]):
        return Ending("converged", f"{still}; it was high from the first epoch on")
    return Ending(
        "flat", f"{name} stands at {last} and has not left the first epoch's by more than noise ({number(noise)})"
    )


def _difference(
    values: NDArray[np.float64], errors: NDArray[np.float64], before: int, after: int
) -> tuple[float, float]:
    """A change between two epochs, and how large a change noise alone makes."""
    return float(values[after] - values[before]), SURE * math.hypot(errors[before], errors[after])


def _moves(values: NDArray[np.float64], errors: NDArray[np.float64]) -> list[int]:
    """From epoch to epoch: 1 up, -1 down, 0 where it is noise or does not matter beside the run's whole span."""
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
    """Unknown errors take the typical known one; where none is known, what the curve scatters about itself tells."""
    known = errors[np.isfinite(errors)]
    if len(known):
        return np.where(np.isfinite(errors), errors, np.median(known))
    if len(values) < 3:
        return errors
    # A straight line has no second difference; noise of s makes one of s * sqrt(1.5).
    bends = np.abs(values[1:-1] - (values[:-2] + values[2:]) / 2) / math.sqrt(1.5)
    return np.full(len(values), float(np.median(bends)) * (1.4826 if len(bends) > 2 else 1.0))
