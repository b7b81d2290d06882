"""Which rows of a resumed run are current, and which were abandoned.

An attempt that resumes from step s replaces earlier attempts with its first row. Rows that earlier attempts logged
after step s are then ghosts. Ghosts are kept and can be shown, but are never mixed with the current rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlvitals.records import Attempt

if TYPE_CHECKING:  # resuming needs the lineage on the write path, which does not import numpy
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Lineage:
    """For each attempt that took over: the first step of earlier attempts that was abandoned."""

    cuts: dict[int, int]

    def is_ghost(self, attempts: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which rows were abandoned."""
        import numpy as np

        ghosts = np.zeros(len(steps), dtype=bool)
        for number, cut in self.cuts.items():
            ghosts |= (attempts < number) & (steps >= cut)
        return ghosts

    def is_abandoned(self, attempt: int, step: int) -> bool:
        """Whether one row was abandoned."""
        return any(attempt < number and step >= cut for number, cut in self.cuts.items())


def lineage_of(
    known: Iterable[Attempt], first_trained: Mapping[int, int], first_evaluated: Mapping[int, int]
) -> Lineage:
    """Derive the lineage from the recorded attempts and from the steps of each attempt's first training row and first
    evaluation.

    If an attempt recorded the step it resumes from, that step is used. If it logged an earlier step first, its first
    row is used instead.
    """
    from_steps = {attempt.number: attempt.from_step for attempt in known}
    cuts = {}
    for number in sorted({*first_trained, *first_evaluated} - {1}):
        first = first_trained.get(number)
        from_step = from_steps.get(number)
        if first is None and from_step is None:
            first = first_evaluated[number] + 1  # an evaluation at step s measures the weights after row s
        candidates = [step for step in (first, None if from_step is None else from_step + 1) if step is not None]
        cuts[number] = min(candidates)
    return Lineage(cuts)


def trace(
    known: Iterable[Attempt],
    train: tuple[NDArray[np.int64], NDArray[np.int64]],
    evals: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> Lineage:
    """The lineage from the (attempts, steps) of all training and evaluation rows, in file order."""
    return lineage_of(known, _first_steps(*train), _first_steps(*evals))


def _first_steps(attempts: NDArray[np.int64], steps: NDArray[np.int64]) -> dict[int, int]:
    """The step of each attempt's first row."""
    import numpy as np

    changes = [0, *(np.flatnonzero(attempts[1:] != attempts[:-1]) + 1).tolist()] if len(attempts) else []
    found: dict[int, int] = {}
    for place in changes:
        found.setdefault(int(attempts[place]), int(steps[place]))
    return found
