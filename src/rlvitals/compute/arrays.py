"""One way of calculating for numpy arrays and torch tensors: which library, which precision, and groups of rows.

Everything is calculated in float64 (float32 where a device has no other), whatever the trainer's precision is: a sum of
bf16 numbers in bf16 is wrong in its third digit. Nothing here reads a number from a device.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

Array = Any
"""A numpy array, a torch tensor, or what numpy can turn into an array."""


def is_tensor(array: Array) -> bool:
    """Whether it is a torch tensor; torch is never imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def library(*arrays: Array) -> Any:
    """The library to calculate with: torch where any array is a tensor, numpy otherwise."""
    return sys.modules["torch"] if any(map(is_tensor, arrays)) else np


def real(array: Array, like: Array = None) -> Array:
    """The array as floating-point numbers, exact enough to be summed; on the device of `like` where that is a tensor.

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
    """Arrays of one call as measured data: one library, one device, floating point, without gradients. None stays."""
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
    """Mean where the mask is 1; NaN where there is nothing to average.

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
    """Sum of each row where the mask is 1; what lies outside the mask is never touched, were it NaN."""
    return library(x).where(mask > 0, x, 0.0 * mask).sum(axis=-1)


def group_slots(group_ids: Array, like: Array) -> Array:
    """Number each row's group from 0; rows with one id (numbers or texts) share a number.

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
    # torch.unique would have to tell the host how many groups there are; this does not.
    slots[order] = torch.cumsum(steps, 0)
    return slots


def group_sum(numbers: Array, slots: Array) -> Array:
    """Sum of each group, in as many places as there are rows: the places beyond the last group stay 0."""
    if is_tensor(numbers):
        return numbers.new_zeros(numbers.shape).index_add(0, slots, numbers)
    return np.bincount(slots, weights=numbers, minlength=len(numbers))


def from_one_of_group(numbers: Array, slots: Array) -> tuple[Array, Array]:
    """How far each number lies from one of its group, and that one, at the place of the group.

    Sums are taken of these: 0.1 + 0.1 + 0.1 is not 3 * 0.1, and a group of equal rewards must have a deviation of 0.
    """
    one = library(numbers).zeros_like(numbers)
    one[slots] = numbers
    return numbers - one[slots], one


def _precision(device: Any) -> Any:
    torch = sys.modules["torch"]
    return torch.float32 if device.type == "mps" else torch.float64
