"""The optimizer and its learning rate: the default for a model's size, and the share of it at each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlvitals.train.settings import ClippedSettings


def adamw(groups: list[dict[str, Any]], share: Callable[[int], float]) -> tuple[Any, Any]:
    """The optimizer of these parameter groups (`params`, `lr`), and the scheduler that gives each step (from 0) its
    share of the learning rate.
    """
    import torch  # not needed to read settings

    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def rise_and_fall(steps: int, longest_rise: int) -> Callable[[int], float]:
    """The share of the learning rate by step: the minimum of a short rise and a linear fall to a tenth."""
    rise = max(1, min(longest_rise, steps // 10))
    return lambda step: min((step + 1) / rise, 1.0 - 0.9 * step / max(1, steps))


def rate_by_size(parameters: int, *, tiny: float, large: float = 1e-6) -> float:
    """The learning rate for a number of parameters: `tiny` below ten million, `large` from a billion on.

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
