"""What the optimiser did: learning rates and gradient norms, from the objects a trainer has at hand.

>>> class Optimiser:
...     param_groups = [{"lr": 5e-7}, {"lr": 1e-3}]
>>> stats(optimizer=Optimiser(), names="roll")["actor/lr"].number
5e-07
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlvitals.compute.arrays import Array, gather, real
from rlvitals.compute.names import naming
from rlvitals.compute.packing import Packed, Sheet, reading
from rlvitals.errors import ConfigError


def learning_rate(source: Any) -> float:
    """The learning rate of the first parameter group, from an optimiser or a scheduler."""
    groups = getattr(source, "param_groups", None)
    if groups is None:
        groups = getattr(getattr(source, "optimizer", None), "param_groups", None)
    if groups:
        return float(groups[0]["lr"])
    raise ConfigError(f"expected an optimiser or a scheduler of one, found a {type(source).__name__}")


def gradient_norm(gradients: Iterable[Array]) -> Array:
    """Length of all gradients taken as one vector, before any clipping; None among them is left out.

    >>> gradient_norm([[3.0], None, [0.0, 4.0]])
    np.float64(5.0)
    """
    squares = [(real(gradient) ** 2).sum() for gradient in gradients if gradient is not None]
    if not squares:
        raise ConfigError("no gradients: call it after backward() and before zero_grad()")
    return sum(squares) ** 0.5


def pack(
    *,
    optimizer: Any = None,
    critic_optimizer: Any = None,
    grad_norm: Array = None,
    critic_grad_norm: Array = None,
    names: str = "canonical",
) -> Packed:
    """Learning rates (of an optimiser or a scheduler) and gradient norms of one update; what is not given is left out.
    `stats` returns them as mergeable values.
    """
    sheet = Sheet(naming(names, "policy"))
    for source, metric in ((optimizer, "optim.lr"), (critic_optimizer, "optim.critic_lr")):
        if source is not None:
            sheet.moments([learning_rate(source)], mean=metric)
    for norm, metric in ((grad_norm, "optim.grad_norm"), (critic_grad_norm, "optim.critic_grad_norm")):
        if norm is not None:
            sheet.moments(gather(norm)[0].reshape(-1), mean=metric)
    return sheet.pack()


stats = reading(pack)
"""The statistics as mergeable values; the arguments are those of `pack`."""
