"""Pure formulas for the numbers that a trainer logs, from its tensors (numpy or torch, any device, any precision).

`policy`, `advantage`, `preference` and `rollout` each hold small functions for single quantities and one `stats(...)`.
It returns mergeable values under the names that the caller chooses. Nothing here reads a clock, a file or a setting.
An undefined result (an empty mask, one sample where two are needed) stays undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from rlvitals.values import Derived, Value, mean

_used_by_steps: set[Callable[..., float | None]] = set()


def used_by_step(formula: Callable[..., float | None]) -> Callable[..., float | None]:
    """Mark the formula of a number that each step computes once and trains with. It is averaged over steps."""
    _used_by_steps.add(formula)
    return formula


def merge(parts: Iterable[Mapping[str, Value | Derived]]) -> dict[str, Value | Derived]:
    """Merge the statistics of several micro-batches or ranks into those of one batch. A part may lack some names.

    >>> from rlvitals import values
    >>> merge([{"loss": values.mean([1.0, 2.0])}, {"loss": values.mean([6.0])}])["loss"].number
    3.0
    """
    merged: dict[str, Value | Derived] = {}
    for part in parts:
        for name, value in part.items():
            merged[name] = merged[name] + value if name in merged else value  # type: ignore[operator]
    return merged


def merge_steps(steps: Iterable[Mapping[str, Value | Derived]]) -> dict[str, Value | Derived]:
    """Merge the statistics of several whole steps into one row, for runs that do not log every step.

    Works like `merge`, but averages the numbers that each step computed once and used in its loss. An example is KTO's
    reference point, z = max(0, mean) of a step: mean(max(0, .)) of three steps is not max(0, mean(.)) of their pooled
    samples. Merge the micro-batches and ranks of each step first.

    >>> from rlvitals.compute import preference
    >>> def step(kl):
    ...     given = {"logprobs": [0.0], "ref_logprobs": [0.0], "desirable": [True]}
    ...     return preference.stats(**given, kl_logprobs=[kl], ref_kl_logprobs=[0.0])
    >>> merge_steps([step(-4.0), step(2.0)])["kl_ref.kto"].number, merge([step(-4.0), step(2.0)])["kl_ref.kto"].number
    (1.0, 0.0)
    """
    return merge({name: _of_one_step(value) for name, value in step.items()} for step in steps)


def _of_one_step(value: Value | Derived) -> Value | Derived:
    if isinstance(value, Value) or value.formula not in _used_by_steps:
        return value
    return mean([] if value.number is None else [value.number])
