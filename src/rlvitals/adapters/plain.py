"""What a trainer hands over, as numbers that may leave the process: for another rank, or for the recorder's process."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from rlvitals.values import Derived, Value

logger = logging.getLogger("rlvitals")

Plain = float | int | bool | str | Value | Derived

MAX_DEPTH = 16
"""As in a row: deeper mappings are a mistake, or refer to themselves."""

_said: set[str] = set()


def plain(metrics: Mapping[str, Any]) -> dict[str, Plain]:
    """Numbers, texts and mergeable values by name, nested mappings joined with `/`; what is neither is left out with a
    warning.

    Scalars on a device are read together, with one copy for each device.

    >>> plain({"loss": 0.5, "rewards": {"margins": 2}, "nothing": None})
    {'loss': 0.5, 'rewards/margins': 2}
    """
    taken: dict[str, Plain] = {}
    on_device: dict[str, Any] = {}
    for name, value in _flat(metrics, "", 0):
        if isinstance(value, float | int | str | Value | Derived):
            taken[name] = value
        elif _is_scalar_on_device(value):
            taken[name] = float("nan")  # keeps its place in the row
            on_device[name] = value
        elif value is not None:
            _take_item(taken, name, value)
    return taken | _read(on_device)


def _flat(metrics: Mapping[Any, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in metrics.items():
        if isinstance(value, Mapping) and depth < MAX_DEPTH:
            yield from _flat(value, f"{prefix}{key}/", depth + 1)
        else:
            yield f"{prefix}{key}", value


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


def _take_item(taken: dict[str, Plain], name: str, value: Any) -> None:
    try:
        number = value.item()  # numpy's and torch's scalars; an array of several raises
        if not isinstance(number, float | int | str):
            number = float(number)
    except Exception:  # noqa: BLE001 - whatever a stranger's number does, it costs only itself
        if name not in _said:
            _said.add(name)
            logger.warning("%r is left out: a %s is no number", name, type(value).__name__)
        return
    taken[name] = number
