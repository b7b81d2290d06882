"""The slices of a run that are judged separately: one series for each environment, data source or agent of an outcome,
in addition to the signal over all of them.

A run may log one metric divided in several ways, each under several spellings. For each division (by `env`, by `agent`)
the best spelling is read, in the same order of preference as for a signal. A division with a single slice is the whole
run, so only the rules about the whole judge it.
"""

from __future__ import annotations

from collections.abc import Iterator

from rlvitals.catalog import slices
from rlvitals.health.naming import Claim
from rlvitals.health.statistics import Signal

JUDGED = ("reward", "true_score", "eval_score")
"""The signals whose slices are judged: the outcomes. A collapsed environment shows in these first."""

MOST_JUDGED = 64
"""The most slices that are judged in one run: each costs a few microseconds per row."""

FEWEST = 2
"""The fewest slices of a division that is judged."""


class Slice:
    """One slice of one outcome."""

    __slots__ = ("division", "label", "signal")

    def __init__(self, label: str, signal: Signal, division: OutcomeSlices) -> None:
        self.label = label
        """As it is shown: `env=math`."""
        self.signal = signal
        self.division = division

    @property
    def others(self) -> list[Signal]:
        """The series of the other slices."""
        return [one.signal for one in self.division.slices.values() if one is not self]


class OutcomeSlices:
    """An outcome divided in one way."""

    __slots__ = ("place", "series", "slices")

    def __init__(self, claim: Claim) -> None:
        self.place = claim.place
        self.series = claim.series
        self.slices: dict[str, Slice] = {}
        """By label."""


class Slices:
    """The divisions of a run, built as its names come."""

    def __init__(self) -> None:
        self._divisions: dict[tuple[str, tuple[str, ...]], OutcomeSlices] = {}

    def take(self, key: str, claim: Claim) -> tuple[Signal | None, list[Signal]]:
        """The series that a name feeds, or None; and the series that it replaces because it is a better spelling."""
        name = claim.taken.signal
        if claim.slice is None or name not in JUDGED or claim.taken.sureness == "guess":
            return None, []
        way = (name, tuple(claim.slice.labels))
        division, over = self._divisions.get(way), []
        if division is None or claim.place < division.place:
            over = [one.signal for one in division.slices.values()] if division is not None else []
            division = self._divisions[way] = OutcomeSlices(claim)
        elif claim.place > division.place:
            return None, []
        label = slices.text(claim.slice.labels)
        known = division.slices.get(label)
        if known is None:
            if sum(len(one.slices) for one in self._divisions.values()) >= MOST_JUDGED:
                return None, over
            known = division.slices[label] = Slice(label, Signal(f"{name}[{label}]", key), division)
        return (known.signal if known.signal.key == key else None), over

    def forget(self, key: str) -> None:
        """Drop the series of a name that was read wrongly."""
        for division in self._divisions.values():
            division.slices = {label: one for label, one in division.slices.items() if one.signal.key != key}

    @property
    def signals(self) -> Iterator[Signal]:
        """Every series."""
        return (one.signal for division in self._divisions.values() for one in division.slices.values())

    @property
    def judged(self) -> list[Slice]:
        """The slices that rules look at. A series that feeds two outcomes is judged once."""
        seen: set[str] = set()
        found: list[Slice] = []
        for (_, _), division in sorted(self._divisions.items(), key=lambda item: JUDGED.index(item[0][0])):
            if len(division.slices) >= FEWEST and division.series not in seen:
                seen.add(division.series)
                found += division.slices.values()
        return found
