"""Cuts a learning rate so that it stays cut: in the optimizer's groups and in whatever the scheduler computes it from.

Most schedulers multiply base rates by a shape (every schedule of transformers is a LambdaLR), some go on from the
group's present rate, and some keep several of each. Their state is part of a checkpoint, so that a run resumed from a
later checkpoint keeps the cut. torch is not imported: it is the caller's.
"""

from __future__ import annotations

from typing import Any

_GROUP_RATES = ("lr", "initial_lr", "max_lr", "min_lr")
"""What a group keeps for its scheduler: OneCycleLR and CyclicLR keep their limits there."""

_SCHEDULER_RATES = ("base_lrs", "max_lrs", "eta_min", "min_lrs", "min_lr", "max_lr", "_last_lr")
"""What schedulers keep on their own: rates, or lists of one for each group."""


class CannotCut(Exception):
    """The learning rate cannot be cut here; the message says why."""


def learning_rate(optimizer: Any) -> float:
    """The first group's present rate. Raises CannotCut where it has none of its own (Adafactor's relative steps)."""
    groups = getattr(optimizer, "param_groups", None)
    if not groups:
        raise CannotCut("the optimizer has no parameter groups to set a learning rate in")
    rate = groups[0].get("lr")
    if rate is None:
        raise CannotCut("the optimizer chooses its own learning rate")
    return float(rate)


def cut_learning_rate(optimizer: Any, scheduler: Any, factor: float) -> tuple[float, float]:
    """Multiply the rate now and in what the scheduler will set; returns the first group's before and after.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    >>> cut_learning_rate(optimizer, scheduler, 0.5)
    (1.0, 0.5)
    >>> optimizer.step(); scheduler.step(); scheduler.get_last_lr()
    [0.5]
    """
    before = learning_rate(optimizer)
    _scale(scheduler, factor)  # first: it may refuse
    for group in optimizer.param_groups:
        for key in _GROUP_RATES:
            if group.get(key) is not None:
                group[key] = _times(group[key], factor)
    return before, learning_rate(optimizer)


def _scale(scheduler: Any, factor: float) -> None:
    if scheduler is None:
        return
    inner = getattr(scheduler, "scheduler", None)  # accelerate wraps it
    if inner is not None:
        _scale(inner, factor)
        return
    if not callable(getattr(scheduler, "state_dict", None)):
        raise CannotCut(f"a {type(scheduler).__name__} does not tell what it computes the learning rate from")
    for part in getattr(scheduler, "_schedulers", None) or ():  # SequentialLR, ChainedScheduler
        _scale(part, factor)
    for key in _SCHEDULER_RATES:
        kept = getattr(scheduler, key, None)
        if isinstance(kept, list | tuple):
            setattr(scheduler, key, [_times(rate, factor) for rate in kept])
        elif isinstance(kept, float | int) and not isinstance(kept, bool):
            setattr(scheduler, key, kept * factor)


def _times(rate: Any, factor: float) -> Any:
    """A rate that is a tensor is read where it is by a compiled or fused optimizer: it is changed in place."""
    if callable(getattr(rate, "mul_", None)):
        return rate.mul_(factor)
    return rate * factor
