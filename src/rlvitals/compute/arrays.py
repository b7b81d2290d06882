"""Common operations on numpy arrays and torch tensors: the library, the precision, and groups of rows.

Everything is calculated in float64 (float32 on devices without float64), whatever precision the trainer uses: a sum of
bf16 numbers in bf16 is wrong in its third digit. Nothing here reads a number from a device.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

Array = Any
"""A numpy array, a torch tensor, or anything that numpy can turn into an array."""


def is_tensor(array: Array) -> bool:
    """Whether it is a torch tensor. The check never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def library(*arrays: Array) -> Any:
    """The library to calculate with: torch if any array is a tensor, numpy otherwise."""
    return sys.modules["torch"] if any(map(is_tensor, arrays)) else np


def real(array: Array, like: Array = None) -> Array:
    """The array in a floating-point type precise enough for sums, on the device of `like` if that is a tensor.

    >>> real([True, False])
    array([1., 0.])
    """
    if is_tensor(array):
        return array.to(_precision(array.device))
    host = np.asarray(array, dtype=np.float64)
    if not is_tensor(like):
        return host
    return sys.modules["torch"].as_tensor(host, dtype=_precision(like.device), device=like.device)


def gather(*arrays: Array) -> list[Array]:
    """Convert the arrays of one call to one library, one device and floating point, without gradients. None stays."""
    first = next((array for array in arrays if is_tensor(array)), None)
    plain = [array.detach() if is_tensor(array) else array for array in arrays]
    return [None if array is None else real(array, first) for array in plain]


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    return library(x).exp(log_sigmoid(x))


def log_sigmoid(x: Array) -> Array:
    """Log of the sigmoid, exact in both tails.

    >>> float(log_sigmoid(real(-1000.0)))
    -1000.0
    """
    return -library(x).logaddexp(library(x).zeros_like(x), -x)


def masked_mean(x: Array, mask: Array, axis: int | None = None) -> Array:
    """Mean where the mask is 1; NaN where the mask selects nothing.

    >>> masked_mean(real([[1.0, 3.0], [5.0, 7.0]]), real([[1, 1], [0, 0]]), axis=1)
    array([ 2., nan])
    """
    xp = library(x)
    count = mask.sum() if axis is None else mask.sum(axis=axis)
    kept = xp.where(mask > 0, x, 0.0 * mask)
    total = kept.sum() if axis is None else kept.sum(axis=axis)
    return xp.where(count > 0, total / xp.where(count > 0, count, 1.0 + 0.0 * count), xp.nan + 0.0 * count)


def share(condition: Array, *decided_by: Array) -> Array:
    """1 where the condition holds, 0 where not, NaN where a number that decides it is NaN: unknown is not "no".

    >>> x = real([2.0, 0.5, float("nan")])
    >>> share(x > 1, x)
    array([ 1.,  0., nan])
    """
    found = real(condition)
    xp = library(found)
    for number in decided_by:
        found = xp.where(xp.isnan(number), xp.nan + 0.0 * found, found)
    return found


def row_sum(x: Array, mask: Array) -> Array:
    """Sum of each row where the mask is 1. Values outside the mask are ignored, NaN included."""
    return library(x).where(mask > 0, x, 0.0 * mask).sum(axis=-1)


def group_slots(group_ids: Array, like: Array) -> Array:
    """Number each row's group from 0; rows with the same id (number or text) get the same number.

    >>> group_slots(["b", "a", "b"], None).tolist()
    [1, 0, 1]
    """
    if not is_tensor(group_ids):
        slots = np.unique(np.asarray(group_ids), return_inverse=True)[1]
        if not is_tensor(like):
            return slots
        return sys.modules["torch"].as_tensor(slots, device=like.device)
    torch = sys.modules["torch"]
    ordered, order = torch.sort(group_ids)
    steps = torch.zeros_like(order)
    steps[1:] = ordered[1:] != ordered[:-1]
    slots = torch.empty_like(order)
    # torch.unique waits for the device, because its output's size is the number of groups; cumsum does not.
    slots[order] = torch.cumsum(steps, 0)
    return slots


def group_sum(numbers: Array, slots: Array) -> Array:
    """Sum of each group, in an array with one place per row; the places after the last group are 0."""
    if is_tensor(numbers):
        return numbers.new_zeros(numbers.shape).index_add(0, slots, numbers)
    return np.bincount(slots, weights=numbers, minlength=len(numbers))


def from_one_of_group(numbers: Array, slots: Array) -> tuple[Array, Array]:
    """The difference of each number from one member of its group, and that member, at the group's place.

    Sums use these differences: 0.1 + 0.1 + 0.1 is not 3 * 0.1, and a group of equal rewards must have a deviation of 0.
    """
    one = library(numbers).zeros_like(numbers)
    one[slots] = numbers
    return numbers - one[slots], one


def _precision(device: Any) -> Any:
    torch = sys.modules["torch"]
    return torch.float32 if device.type == "mps" else torch.float64
