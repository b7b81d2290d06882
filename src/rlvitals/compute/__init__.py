"""Pure formulas: the numbers a trainer logs, from its tensors (numpy or torch, any device, any precision).

`policy`, `advantage`, `preference` and `rollout` each hold small functions for single quantities and one `stats(...)`
that returns mergeable values under the names asked for. Nothing here reads a clock, a file or a setting, and what is
undefined (an empty mask, one sample where two are needed) stays undefined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rlvitals.values import Derived, Value


def merge(parts: Iterable[Mapping[str, Value | Derived]]) -> dict[str, Value | Derived]:
    """The statistics of several micro-batches, ranks or steps as if they had been one. Not all need to have all names.

    >>> from rlvitals import values
    >>> merge([{"loss": values.mean([1.0, 2.0])}, {"loss": values.mean([6.0])}])["loss"].number
    3.0
    """
    merged: dict[str, Value | Derived] = {}
    for part in parts:
        for name, value in part.items():
            merged[name] = merged[name] + value if name in merged else value  # type: ignore[operator]
    return merged
