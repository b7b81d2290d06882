"""One set of numbers from all ranks of a torch.distributed job, as if one process had seen every sample.

    stats = reduce({"loss": values.mean(losses), "tokens": values.total([n])}, step=step)   # every rank, once a step
    if rank == 0:
        run.log(stats, step=step)

Every rank of the group calls `reduce` once per step, with the values it has, even if it has none. A call makes one
packed all-reduce of maxima and one of sums. The ranks share a list of names. A rank with a new name sets a flag in the
first cell of the maxima. Only then do the ranks exchange the new names and repeat the maxima. A rank that logs
different names therefore costs two more collectives the first time and blocks no other rank.

A rank that skips a call stays one call behind, and its numbers are merged with those of another step. The collectives
cannot detect this, so each rank also sends its step with the maxima.

The maxima come first because they give the range of each name. The sums are taken around the middle of that range.
Otherwise a standard deviation far smaller than the mean would be lost in the difference of two large sums.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from rlvitals.adapters.plain_values import Plain, plain
from rlvitals.errors import RanksOutOfStep, needs
from rlvitals.guard import Once, value_or
from rlvitals.values import Derived, Kind, Value

Formula = Callable[..., float | None]

SharedName = tuple[str, Kind, int | None]
"""The metric's name, its kind, and the index of the part if it belongs to a derived number. Sums are merged only where
all three agree.
"""

_HEAD: Final = 3
"""Cells of the maxima before those of the names: whether a name is new, the highest step and the lowest, each with
its rank."""

_RANGE: Final = 4
"""Cells of each name in the maxima: largest, smallest negated, and whether each is NaN (a maximum may lose a NaN)."""

_SUMS: Final = 3
"""Cells of each name in the sums: count, first and second moments around the middle of the range."""


def reduce(metrics: Mapping[str, Any], group: Any = None, *, step: int | None = None) -> dict[str, Plain]:
    """Merge every rank's numbers. All ranks of the group must call it, and all get the same values.

    With `step` the ranks compare their steps. If a rank has skipped a call, all ranks raise RanksOutOfStep.

    Mergeable values (`rlvitals.values`) merge according to their kind. A plain number counts as one sample, so a plain
    loss becomes the mean over the ranks that have it. Texts are not merged: each rank keeps its own. A name without a
    number on any rank is not in the result. Without an initialised process group only this rank's values are used.
    """
    own = _Own(plain(metrics))
    ranks = _ranks_of(group)
    if ranks is None:
        merged, formulas = own.values, own.formulas
    else:
        merged, formulas = ranks.merge(own, step)
    return {**_by_name(merged, formulas), **own.texts}


class _Own:
    """The metrics of this rank: values, the formulas of derived values, and texts, which are not sent."""

    def __init__(self, metrics: Mapping[str, Plain]) -> None:
        self.values: dict[SharedName, Value] = {}
        self.formulas: dict[str, Formula] = {}
        self.texts: dict[str, Plain] = {}
        for name, given in metrics.items():
            if isinstance(given, str):
                self.texts[name] = given
            elif isinstance(given, Derived):
                self.formulas[name] = given.formula
                self.values |= {(name, part.kind, number): part for number, part in enumerate(given.parts)}
            else:
                number = given if isinstance(given, Value) else float(given)
                value = number if isinstance(number, Value) else Value(1.0, number, 0.0, number, number)
                if value.count:
                    self.values[name, value.kind, None] = value


class Ranks:
    """One process group as seen by this rank, and the names its ranks have agreed on so far."""

    def __init__(self, group: Any, device: Any) -> None:
        import torch.distributed

        self._group = ref(group)  # weak, so that a destroyed group can be freed
        self._device = device
        self._rank: int = torch.distributed.get_rank(group)
        self._size: int = torch.distributed.get_world_size(group)
        self._names: list[SharedName] = []
        self._formulas: dict[str, Formula] = {}
        self._calls = 0

    def merge(self, own: _Own, step: int | None = None) -> tuple[dict[SharedName, Value], dict[str, Formula]]:
        """The merged value of every agreed name that has a number on some rank, and the formulas of derived ones."""
        self._calls += 1
        values = own.values
        is_new = not values.keys() <= set(self._names)
        ranges = self._maximum(values, is_new, step)
        self._compare_steps(highest=ranges[1], lowest=-ranges[2])
        if ranges[0] > 0:
            self._exchange_names(own)
            ranges = self._maximum(values, is_new=False)
        spans = [_Span(ranges[at : at + _RANGE]) for at in range(_HEAD, len(ranges), _RANGE)]
        agreed = list(zip(self._names, spans, strict=True))
        cells: list[float] = []
        for name, span in agreed:
            cells += self._contribution(values.get(name), name[1], span)
        sums = iter(self._all_reduce(cells, "SUM") if cells else [])
        merged = {}
        for name, span in agreed:
            width = self._size if name[1] == "last" else _SUMS
            value = span.finish([next(sums) for _ in range(width)], name[1])
            if value.count or name[2] is not None:
                merged[name] = value
        return merged, self._formulas | own.formulas

    def _maximum(self, own: Mapping[SharedName, Value], is_new: bool, step: int | None = None) -> list[float]:
        cells = [float(is_new), -math.inf, -math.inf]
        if step is not None:
            place = float(step * self._size + self._rank)
            cells[1:] = [place, -place]
        for name in self._names:
            cells += _range_cells(own.get(name))
        return self._all_reduce(cells, "MAX")

    def _compare_steps(self, highest: float, lowest: float) -> None:
        """Raise if the steps differ. All ranks see the same two numbers, so all raise or none does."""
        if highest == -math.inf:
            return  # no rank passed a step
        ahead, behind = divmod(int(highest), self._size), divmod(int(lowest), self._size)
        if ahead[0] != behind[0]:
            raise RanksOutOfStep(
                f"rank {ahead[1]} calls reduce at step {ahead[0]} while rank {behind[1]} is at step {behind[0]} (call "
                f"{self._calls} of each). One rank skipped a call or made an extra one: every rank must call it once "
                f"per step, unconditionally; a rank without values passes {{}}. Nothing was merged."
            )

    def _exchange_names(self, own: _Own) -> None:
        import torch.distributed

        known = set(self._names)
        new = [name for name in own.values if name not in known]
        formulas = {name: formula for name, formula in own.formulas.items() if _can_travel(formula)}
        gathered: list[Any] = [None] * self._size
        torch.distributed.all_gather_object(gathered, (new, formulas), self._group())
        # In the order of the ranks, so that the list is the same everywhere.
        self._names += list(dict.fromkeys(name for names, _ in gathered for name in names))
        for _, others in gathered:
            self._formulas |= others

    def _contribution(self, value: Value | None, kind: Kind, span: _Span) -> list[float]:
        if kind != "last":
            return span.moments(value)
        # One cell per rank for the newest value, because several ranks may be equally new.
        slots = [0.0] * self._size
        is_newest = value is not None and value.count > 0 and value.order == span.greatest
        slots[self._rank] = value.mean if value is not None and is_newest else -math.inf
        return slots

    def _all_reduce(self, cells: Sequence[float], operation: str) -> list[float]:
        import torch.distributed

        packed = torch.tensor(cells, dtype=torch.float64, device=self._device)
        try:
            torch.distributed.all_reduce(packed, getattr(torch.distributed.ReduceOp, operation), self._group())
        except RuntimeError as error:  # the backend timed out, or ran into another collective
            error.add_note(
                f"This was call {self._calls} of rlvitals' reduce on rank {self._rank} of {self._size}. A rank that "
                f"has ended, that never calls reduce, or that is in another collective at this place ends like this."
            )
            raise
        reduced: list[float] = packed.tolist()
        return reduced


class _Span:
    """The result of the maxima for one name: the range of all ranks' samples (for `last`: the newest order)."""

    def __init__(self, cells: Sequence[float]) -> None:
        greatest, negated, self.greatest_is_nan, self.least_is_nan = cells
        self.greatest, self.least = greatest, -negated
        middle = self.least / 2 + self.greatest / 2
        self._middle = middle if math.isfinite(middle) else 0.0

    def moments(self, value: Value | None) -> list[float]:
        if value is None or value.count == 0:
            return [0.0] * _SUMS
        offset = value.mean - self._middle
        return [value.count, value.count * offset, value.m2 + value.count * offset * offset]

    def finish(self, sums: Sequence[float], kind: Kind) -> Value:
        if kind == "last":
            # NaN first, then the largest: the same order of ties as in values.py.
            number = math.nan if any(map(math.isnan, sums)) else max(sums)
            return Value(float(self.greatest > -math.inf), number, 0.0, number, number, kind, self.greatest)
        count, first, second = sums
        if count == 0:
            return Value(0.0, 0.0, 0.0, math.inf, -math.inf, kind)
        m2 = second - first * (first / count)
        return Value(
            count=count,
            mean=self._middle + first / count,
            m2=m2 if math.isnan(m2) else max(m2, 0.0),  # rounding may make it slightly negative
            min=math.nan if self.least_is_nan else self.least,
            max=math.nan if self.greatest_is_nan else self.greatest,
            kind=kind,
        )


def _range_cells(value: Value | None) -> list[float]:
    if value is None or value.count == 0:
        return [-math.inf, -math.inf, 0.0, 0.0]
    if value.kind == "last":
        return [value.order, -math.inf, 0.0, 0.0]
    broken = math.isnan(value.max), math.isnan(value.min)
    return [
        -math.inf if broken[0] else value.max,
        -math.inf if broken[1] else -value.min,
        float(broken[0]),
        float(broken[1]),
    ]


def _can_travel(formula: Formula) -> bool:
    """Whether a formula can be pickled; a lambda cannot, so only ranks that have it compute the number.

    An error in the exchange itself would block all ranks.
    """
    return value_or(b"", pickle.dumps, formula) != b""


_warn_once = Once()


def _by_name(merged: Mapping[SharedName, Value], formulas: Mapping[str, Formula]) -> dict[str, Plain]:
    """One value per name. If ranks use different kinds, the first agreed one is kept; it is the same on every rank."""
    values: dict[str, Plain] = {}
    parts: dict[str, dict[int, Value]] = {}
    for (name, kind, part), value in merged.items():
        if part is not None:
            parts.setdefault(name, {})[part] = value
        elif name not in values:
            values[name] = value
        else:
            _warn_once(f"{name!r} is a {kind} on some ranks and not on others; the {kind} is dropped", key=name)
    for name, found in parts.items():
        is_whole = all(part.count for part in found.values())
        if is_whole and name in formulas and name not in values:
            values[name] = Derived(tuple(found[number] for number in sorted(found)), formulas[name])
    return values


_known: WeakKeyDictionary[Any, Ranks] = WeakKeyDictionary()


def _ranks_of(group: Any) -> Ranks | None:
    """The `Ranks` of one process group. A group that is created again, as after a restart, starts without names."""
    with needs("reducing over ranks", package="torch"):
        import torch
        import torch.distributed as dist
    if not (dist.is_available() and dist.is_initialized()):
        return None
    # WORLD is read here, since torch sets it only after initialisation
    actual: Any = dist.group.WORLD if group is None else group
    if actual not in _known:
        _known[actual] = Ranks(actual, _device_for(torch, dist.get_backend_config(actual)))
    return _known[actual]


def _device_for(torch: Any, backends: str) -> Any:
    """The device of the packed numbers: the CPU if the group has a backend for it, else this rank's device."""
    kinds = [pair.partition(":")[0] for pair in backends.split(",")]
    if "cpu" in kinds:
        return torch.device("cpu")
    return torch.device(kinds[0], torch.get_device_module(kinds[0]).current_device())
