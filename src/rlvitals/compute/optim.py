"""Optimiser statistics: learning rates, gradient norms and gradient noise, from the trainer's own objects.

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
from rlvitals.compute.packing import Packed, StatisticSheet, reading
from rlvitals.errors import ConfigError
from rlvitals.values import Value


def learning_rate(source: Any) -> float:
    """The learning rate of the first parameter group, from an optimiser or a scheduler."""
    groups = getattr(source, "param_groups", None)
    if groups is None:
        groups = getattr(getattr(source, "optimizer", None), "param_groups", None)
    if groups:
        return float(groups[0]["lr"])
    raise ConfigError(f"expected an optimiser or a scheduler of one, found a {type(source).__name__}")


def gradient_norm(gradients: Iterable[Array]) -> Array:
    """The norm of all gradients as one vector, before any clipping. None entries are ignored.

    >>> gradient_norm([[3.0], None, [0.0, 4.0]])
    np.float64(5.0)
    """
    squares = [(real(gradient) ** 2).sum() for gradient in gradients if gradient is not None]
    if not squares:
        raise ConfigError("no gradients: call it after backward() and before zero_grad()")
    return sum(squares) ** 0.5


def noise_power(norm: Array, part_norms: Array) -> Array:
    """Variance of the mean g of n gradients g_i, (mean of ||g_i||^2 - ||g||^2) / (n - 1), from the norms.

    >>> noise_power(5.0, [5.0, 5.0]), noise_power(0.0, [1.0, 1.0])
    (np.float64(0.0), np.float64(1.0))
    """
    whole, parts = gather(norm, part_norms)
    if parts.ndim != 1 or len(parts) < 2:
        raise ConfigError("the noise of a gradient needs the norms of the gradients of two parts of the batch or more")
    return ((parts * parts).mean() - (whole * whole).reshape(())) / (len(parts) - 1)


def noise_to_signal(noise: Value, signal: Value) -> float | None:
    """The mean noise divided by the mean signal; None if the noise is as large as the measured norm or larger."""
    return noise.mean / signal.mean if signal.mean > 0 else None


def pack(
    *,
    optimizer: Any = None,
    critic_optimizer: Any = None,
    grad_norm: Array = None,
    critic_grad_norm: Array = None,
    lm_head_grad_norm: Array = None,
    part_grad_norms: Array = None,
    names: str = "canonical",
) -> Packed:
    """Learning rates (of an optimiser or a scheduler) and gradient norms of one update, for the arguments that are
    given. `stats` returns them as mergeable values.

    `part_grad_norms` are the gradient norms of equal parts of the batch (micro-batches or ranks), each for its own mean
    loss. With `grad_norm`, the norm of the mean gradient, they determine the gradient noise.
    """
    sheet = StatisticSheet(naming(names, "policy"))
    for source, metric in ((optimizer, "optim.lr"), (critic_optimizer, "optim.critic_lr")):
        if source is not None:
            sheet.moments([learning_rate(source)], mean=metric)
    for norm, metric in (
        (grad_norm, "optim.grad_norm"),
        (critic_grad_norm, "optim.critic_grad_norm"),
        (lm_head_grad_norm, "optim.lm_head_grad_norm"),
    ):
        if norm is not None:
            sheet.moments(gather(norm)[0].reshape(-1), mean=metric)
    if part_grad_norms is not None:
        if grad_norm is None:
            raise ConfigError("part_grad_norms need grad_norm, the norm of their mean")
        noise = noise_power(grad_norm, part_grad_norms)
        whole = gather(grad_norm, noise)[0].reshape(())
        rows = sheet.moments(noise.reshape(1), mean="optim.noise_power"), sheet.moments((whole**2 - noise).reshape(1))
        sheet.derive("optim.noise_to_signal", noise_to_signal, *rows)
    return sheet.pack()


stats = reading(pack)
"""The statistics as mergeable values; the arguments are those of `pack`."""
