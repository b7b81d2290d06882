"""One set of numbers from all ranks of a torch.distributed job, as if one process had seen every sample.

    stats = reduce({"loss": values.mean(losses), "tokens": values.total([n])}, step=step)   # every rank, once a step
    if rank == 0:
        run.log(stats, step=step)

Every rank of the group calls `reduce` once a step, with whatever it has, even with nothing. A call is one packed
maximum and one packed sum over the ranks. The ranks keep one common list of names; a rank with a name that is not on it
raises a flag in the first cell of the maximum, and only then the new names are exchanged and the maximum is repeated.
So a rank that logs other names than the rest costs two collectives the first time and blocks nobody.

A rank that leaves a call out is one call behind the others from then on, and its numbers meet those of another step.
The collectives themselves cannot tell; the ranks' steps can, which travel in the same maximum.

The maximum goes first because it gives each name's range. The sums are taken around the middle of that range: a
standard deviation far smaller than the mean would otherwise vanish in the difference of two large sums.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from rlvitals.adapters.plain import Plain, plain
from rlvitals.errors import MissingDependency, RanksOutOfStep
from rlvitals.guard import Once, value_or
from rlvitals.values import Derived, Kind, Value

Formula = Callable[..., float | None]

Name = tuple[str, Kind, int | None]
"""A metric, the number it finishes as, and which part of a derived number it is. Ranks that disagree on these do not
mix their sums.
"""

_HEAD: Final = 3
"""Cells before the names' in the maximum: whether a name is new, the highest step and the lowest, each with its
rank."""

_RANGE: Final = 4
"""Cells of each name in the maximum: greatest, least negated, and whether either is NaN (a maximum may lose a NaN)."""

_SUMS: Final = 3
"""Cells of each name in the sum: count, and first and second moments around the middle."""


def reduce(metrics: Mapping[str, Any], group: Any = None, *, step: int | None = None) -> dict[str, Plain]:
    """Merge every rank's numbers; all ranks of the group must call it, and all get the same values back.

    With `step` the ranks compare where they are: RanksOutOfStep on all of them where one has left a call out.

    Mergeable values (`rlvitals.values`) merge as their kind says. A plain number counts as one sample, so that a plain
    loss becomes the mean over the ranks that have it. Texts stay what they are on this rank. A name that no rank has a
    number for is not in the result. Without an initialised process group this rank is all there is.
    """
    own = _Own(plain(metrics))
    ranks = _ranks_of(group)
    if ranks is None:
        merged, formulas = own.values, own.formulas
    else:
        merged, formulas = ranks.merge(own, step)
    return {**_by_name(merged, formulas), **own.texts}


class _Own:
    """What this rank has to give: values, the formulas of derived ones, and texts, which are given to nobody."""

    def __init__(self, metrics: Mapping[str, Plain]) -> None:
        self.values: dict[Name, Value] = {}
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

        self._group = ref(group)  # a group that is destroyed must be free to go
        self._device = device
        self._rank: int = torch.distributed.get_rank(group)
        self._size: int = torch.distributed.get_world_size(group)
        self._names: list[Name] = []
        self._formulas: dict[str, Formula] = {}
        self._calls = 0

    def merge(self, own: _Own, step: int | None = None) -> tuple[dict[Name, Value], dict[str, Formula]]:
        """Every agreed name that some rank has a number for, and the formulas of those that are derived."""
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

    def _maximum(self, own: Mapping[Name, Value], is_new: bool, step: int | None = None) -> list[float]:
        cells = [float(is_new), -math.inf, -math.inf]
        if step is not None:
            place = float(step * self._size + self._rank)
            cells[1:] = [place, -place]
        for name in self._names:
            cells += _range_cells(own.get(name))
        return self._all_reduce(cells, "MAX")

    def _compare_steps(self, highest: float, lowest: float) -> None:
        """All ranks see the same two numbers, so that all raise or none does."""
        if highest == -math.inf:
            return  # nobody has told
        ahead, behind = divmod(int(highest), self._size), divmod(int(lowest), self._size)
        if ahead[0] != behind[0]:
            raise RanksOutOfStep(
                f"rank {ahead[1]} calls reduce at step {ahead[0]} while rank {behind[1]} is at step {behind[0]} (call "
                f"{self._calls} of each). One has left a call out, or made one too many: every rank must call it once "
                f"a step, outside of any condition, with {{}} where it has nothing. Nothing was merged."
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
        # The newest of all: a cell for each rank, because several may be equally new.
        slots = [0.0] * self._size
        is_newest = value is not None and value.count > 0 and value.order == span.greatest
        slots[self._rank] = value.mean if value is not None and is_newest else -math.inf
        return slots

    def _all_reduce(self, cells: Sequence[float], operation: str) -> list[float]:
        import torch.distributed

        packed = torch.tensor(cells, dtype=torch.float64, device=self._device)
        try:
            torch.distributed.all_reduce(packed, getattr(torch.distributed.ReduceOp, operation), self._group())
        except RuntimeError as error:  # the backend timed out, or met another collective
            error.add_note(
                f"This was call {self._calls} of rlvitals' reduce on rank {self._rank} of {self._size}. A rank that "
                f"has ended, that never calls reduce, or that is in another collective at this place ends like this."
            )
            raise
        reduced: list[float] = packed.tolist()
        return reduced


class _Span:
    """What the maximum says of one name: the range of all ranks' samples (of a `last`: the newest order)."""

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
            # A NaN first of all, then the greatest: the order of ties in values.py.
            number = math.nan if any(map(math.isnan, sums)) else max(sums)
            return Value(float(self.greatest > -math.inf), number, 0.0, number, number, kind, self.greatest)
        count, first, second = sums
        if count == 0:
            return Value(0.0, 0.0, 0.0, math.inf, -math.inf, kind)
        m2 = second - first * (first / count)
        return Value(
            count=count,
            mean=self._middle + first / count,
            m2=m2 if math.isnan(m2) else max(m2, 0.0),  # rounding may leave less than nothing
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
    """A lambda cannot: then only the ranks that have it compute the number. Failing in the exchange would block all."""
    return value_or(b"", pickle.dumps, formula) != b""


_warn_once = Once()


def _by_name(merged: Mapping[Name, Value], formulas: Mapping[str, Formula]) -> dict[str, Plain]:
    """One value a name. Where ranks gave it different kinds the first agreed one stays, the same on every rank."""
    values: dict[str, Plain] = {}
    parts: dict[str, dict[int, Value]] = {}
    for (name, kind, part), value in merged.items():
        if part is not None:
            parts.setdefault(name, {})[part] = value
        elif name not in values:
            values[name] = value
        else:
            _warn_once(f"{name!r} is a {kind} on some ranks and not on others; the {kind} is left out", key=name)
    for name, found in parts.items():
        is_whole = all(part.count for part in found.values())
        if is_whole and name in formulas and name not in values:
            values[name] = Derived(tuple(found[number] for number in sorted(found)), formulas[name])
    return values


_known: WeakKeyDictionary[Any, Ranks] = WeakKeyDictionary()


def _ranks_of(group: Any) -> Ranks | None:
    """The agreed names of one process group; a group created again, as after a restart, begins without any."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        raise MissingDependency("reducing over ranks", package="torch") from None
    if not (dist.is_available() and dist.is_initialized()):
        return None
    # torch names the group of all ranks only once there is one
    actual: Any = dist.group.WORLD if group is None else group
    if actual not in _known:
        _known[actual] = Ranks(actual, _device_for(torch, dist.get_backend_config(actual)))
    return _known[actual]


def _device_for(torch: Any, backends: str) -> Any:
    """Where the packed numbers are: in main memory where the group has a backend for it, else on this rank's device."""
    kinds = [pair.partition(":")[0] for pair in backends.split(",")]
    if "cpu" in kinds:
        return torch.device("cpu")
    return torch.device(kinds[0], torch.get_device_module(kinds[0]).current_device())
