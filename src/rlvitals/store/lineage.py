"""Which rows of a resumed run are its story, and which were abandoned.

An attempt that resumes from step s takes the run over with its first row: what earlier attempts logged beyond s is then
a ghost. Ghosts are kept and can be shown, and are never mixed with the line that lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlvitals.records import Attempt


@dataclass(frozen=True, slots=True)
class Lineage:
    """For each attempt that took over: the first step of earlier attempts that became a ghost."""

    cuts: dict[int, int]

    def is_ghost(self, attempts: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which rows were abandoned."""
        ghosts = np.zeros(len(steps), dtype=bool)
        for number, cut in self.cuts.items():
            ghosts |= (attempts < number) & (steps >= cut)
        return ghosts

    def is_abandoned(self, attempt: int, step: int) -> bool:
        """The same of one row."""
        return any(attempt < number and step >= cut for number, cut in self.cuts.items())


def trace(
    known: Iterable[Attempt],
    train: tuple[NDArray[np.int64], NDArray[np.int64]],
    evals: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> Lineage:
    """Work out the lineage from the recorded attempts and the (attempts, steps) of the training and evaluation rows, in
    file order.

    Where an attempt said which step it resumes from, that decides, unless it logged an earlier step first: then its
    rows do.
    """
    said = {attempt.number: attempt.from_step for attempt in known}
    cuts = {}
    for number in sorted(_distinct(train[0]) | _distinct(evals[0])):
        if number == 1:
            continue
        first = _first_step(train, number)
        from_step = said.get(number)
        if first is None and from_step is None and (evaluated := _first_step(evals, number)) is not None:
            first = evaluated + 1  # an evaluation of step s is of the weights that row s led to
        candidates = [step for step in (first, None if from_step is None else from_step + 1) if step is not None]
        if candidates:
            cuts[number] = min(candidates)
    return Lineage(cuts)


def _distinct(attempts: NDArray[np.int64]) -> set[int]:
    """The numbers that occur. Not np.unique, which imports numpy.ma: 10 ms of a fresh process."""
    return {*attempts[:1].tolist(), *attempts[1:][attempts[1:] != attempts[:-1]].tolist()}


def _first_step(rows: Sequence[NDArray[np.int64]], attempt: int) -> int | None:
    attempts, steps = rows
    where = np.flatnonzero(attempts == attempt)
    return int(steps[where[0]]) if len(where) else None
