"""The definitions as slow and simple loops over single tokens, to compare the real functions with."""

from __future__ import annotations

import math

import numpy as np

NAN = math.nan


def batch(seed: int, sequences: int = 5, tokens: int = 7, *, with_empty: bool = True) -> dict[str, np.ndarray]:
    """A trainer's tensors with ragged masks and NaN in the padding, as in real trainings."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, tokens + 1, sequences)
    if with_empty:
        lengths[-1] = 0
    mask = (np.arange(tokens) < lengths[:, None]).astype(float)
    mask[0, 0] = 0.0 if lengths[0] > 1 else 1.0  # a hole, like tool output
    old = -rng.exponential(1.0, (sequences, tokens))

    def near(spread: float) -> np.ndarray:
        return np.where(mask > 0, old + rng.normal(0, spread, old.shape), NAN)

    return {
        "logprobs": near(0.3),
        "old_logprobs": np.where(mask > 0, old, NAN),
        "ref_logprobs": near(0.5),
        "rollout_logprobs": near(0.1),
        "advantages": np.where(mask > 0, rng.normal(0, 1, old.shape), NAN),
        "entropy": np.where(mask > 0, rng.exponential(1.0, old.shape), NAN),
        "mask": mask,
    }


def token_list(mask: np.ndarray, *arrays: np.ndarray) -> list[tuple[float, ...]]:
    """The tokens that count, in order, one tuple each."""
    return [
        tuple(float(array[i, t]) for array in arrays)
        for i in range(mask.shape[0])
        for t in range(mask.shape[1])
        if mask[i, t]
    ]


def mean(numbers: list[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def variance(numbers: list[float], ddof: int = 0) -> float:
    average = mean(numbers)
    return math.fsum((number - average) ** 2 for number in numbers) / (len(numbers) - ddof)


def rows_of(x: np.ndarray, mask: np.ndarray) -> list[list[float]]:
    """Each sequence's counted numbers; sequences without any are skipped."""
    found = [[float(x[i, t]) for t in range(x.shape[1]) if mask[i, t]] for i in range(x.shape[0])]
    return [row for row in found if row]
