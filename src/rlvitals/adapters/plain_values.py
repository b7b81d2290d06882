"""Convert logged metrics to plain values that can be sent to another process: another rank, or the recorder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlvitals.capture.intake import CannotTake, flatten, scalar
from rlvitals.guard import Once
from rlvitals.values import Derived, Value

Plain = float | int | bool | str | Value | Derived

_warn_once = Once()


def plain(metrics: Mapping[str, Any]) -> dict[str, Plain]:
    """Numbers, texts and mergeable values by name; names of nested mappings are joined with `/`. Other values are
    dropped with a warning.

    Scalars on a device are read together, with one copy per device.

    >>> plain({"loss": 0.5, "rewards": {"margins": 2}, "nothing": None})
    {'loss': 0.5, 'rewards/margins': 2}
    """
    taken: dict[str, Plain] = {}
    on_device: dict[str, Any] = {}
    for name, value in flatten(metrics, "", 0):
        if isinstance(value, Value | Derived):
            taken[name] = value
        elif _is_scalar_on_device(value):
            taken[name] = float("nan")  # placeholder that keeps the order of the row
            on_device[name] = value
        else:
            try:
                number = scalar(value)
            except CannotTake as reason:
                _warn_once(f"{name!r} is dropped: {reason}", key=name)
                continue
            if number is not None:
                taken[name] = number
    return taken | _read(on_device)


def _is_scalar_on_device(value: Any) -> bool:
    place = getattr(getattr(value, "device", None), "type", "cpu")
    return place != "cpu" and callable(getattr(value, "numel", None)) and value.numel() == 1


def _read(on_device: dict[str, Any]) -> dict[str, float]:
    if not on_device:
        return {}
    import torch

    by_device: dict[Any, list[str]] = {}
    for name, tensor in on_device.items():
        by_device.setdefault(tensor.device, []).append(name)
    numbers: dict[str, float] = {}
    for names in by_device.values():
        packed = torch.stack([on_device[name].detach().reshape(()).double() for name in names])
        numbers.update(zip(names, packed.tolist(), strict=True))
    return numbers
