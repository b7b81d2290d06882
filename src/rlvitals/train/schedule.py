"""The learning rate: how high it is for a model of some size, and which share of it a step has."""

from __future__ import annotations

from collections.abc import Callable

from rlvitals.train.settings import ClippedSettings


def rate_by_size(parameters: int, *, tiny: float, large: float = 1e-6) -> float:
    """The learning rate of a model with so many parameters: `tiny` below ten million, `large` from a billion on.

    >>> rate_by_size(116_096, tiny=3e-4), rate_by_size(135_000_000, tiny=3e-4), rate_by_size(7_000_000_000, tiny=3e-4)
    (0.0003, 5e-06, 1e-06)
    """
    if parameters < 10_000_000:
        return tiny
    return large if parameters >= 1_000_000_000 else 5e-6


def shares_of_rate(settings: ClippedSettings) -> Callable[[int], float]:
    """The share of the learning rate by step (from 0): a rise, then constant or a linear fall to a tenth."""

    def share(step: int) -> float:
        rise = min(1.0, (step + 1) / (settings.warmup_steps + 1))
        left = max(0.0, 1.0 - step / settings.max_steps)
        return rise * (0.1 + 0.9 * left) if settings.lr_schedule == "linear" else rise

    return share
