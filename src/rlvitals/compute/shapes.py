"""Converts a trainer's tensors to the shape [sequences, tokens]."""

from __future__ import annotations

from rlvitals.compute.arrays import Array, gather, library, real
from rlvitals.errors import ConfigError


def token_rows(*arrays: Array, mask: Array = None) -> list[Array]:
    """Per-token arrays as [sequences, tokens] with zeros outside the mask, and the mask last. A single sequence may be
    [tokens], and None stays None. Values in padding (NaN, -inf) must not reach a formula.
    """
    *tensors, kept = (
        array[None] if array is not None and array.ndim == 1 else array for array in gather(*arrays, mask)
    )
    first = next(array for array in tensors if array is not None)
    kept = library(first).ones_like(first) if kept is None else real(kept != 0)
    for array in (*tensors, kept):
        if array is not None and (array.ndim != 2 or array.shape != first.shape):
            raise ConfigError(
                f"per-token tensors of one call must have one shape [sequences, tokens]; found {tuple(first.shape)} "
                f"and {tuple(array.shape)}"
            )
    xp = library(first)
    return [*(None if array is None else xp.where(kept > 0, array, 0.0 * kept) for array in tensors), kept]


def per_token(numbers: Array, like: Array, mask: Array = None) -> Array:
    """Numbers for each token. One number per sequence is repeated for its tokens.

    >>> import numpy as np
    >>> per_token([1.0, 2.0], np.zeros((2, 3)))[1].tolist()
    [2.0, 2.0, 2.0]
    """
    numbers = gather(numbers, like)[0]
    xp = library(numbers)
    if numbers.ndim == 1 and like.shape[0] == 1 and numbers.shape[0] == like.shape[1]:
        numbers = numbers[None]
    elif numbers.ndim < 2:
        numbers = per_sequence(numbers, like)[:, None]
    if tuple(numbers.shape) not in (tuple(like.shape), (like.shape[0], 1)):
        raise ConfigError(f"expected one number for each of {tuple(like.shape)} tokens, found {tuple(numbers.shape)}")
    numbers = xp.broadcast_to(numbers, like.shape)
    return numbers if mask is None else xp.where(mask > 0, numbers, 0.0 * mask)


def per_sequence(numbers: Array, like: Array) -> Array:
    """One number for each sequence (row of `like`)."""
    numbers = gather(numbers, like)[0].reshape(-1)
    if len(numbers) != len(like):
        raise ConfigError(f"expected one number for each of {len(like)} sequences, found {len(numbers)}")
    return numbers
