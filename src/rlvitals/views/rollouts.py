"""Looking at rollouts: the groups of a step, the worst, a text among them, what changed between two steps.

A run's own are shown as its rows are: what a resumed attempt superseded is left out, and where two attempts recorded
rollouts of one step, the later one's count. A framework's dump is looked at in the same way, and one that a run is
linked to is shown with it: at a step that the run recorded itself, its own groups are. Groups are read from the files
of their step; everything else asks a table.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar, cast

import numpy as np

from rlvitals.contract import RolloutStep
from rlvitals.errors import NotALog, RunNotFound
from rlvitals.importers.dumps.base import Split
from rlvitals.importers.dumps.files import DumpFiles
from rlvitals.records import Group
from rlvitals.store.archive import log_state
from rlvitals.store.layout import RunDir
from rlvitals.store.lineage import Lineage
from rlvitals.store.reader import Problems
from rlvitals.store.rollout_index import Found, RolloutFiles, RolloutIndex, RunFiles, Sample
from rlvitals.store.rollouts import has_tokens, read_groups, rollout_files

T = TypeVar("T")

SHOWN = 20
"""Hits that are shown unless more are asked for."""


class Hit(NamedTuple):
    """One rollout that was asked for, and where it is."""

    step: int
    group: int
    """From 1, as they are listed."""
    rollout: int
    reward: float | None
    outcome: str
    stop: str
    turns: int
    prompt: str


class RolloutSource(Protocol):
    """Rollouts to look at: a run's, a dump's, or both."""

    @property
    def steps(self) -> list[int]: ...
    @property
    def last_step(self) -> int | None: ...
    @property
    def problems(self) -> list[str]: ...
    def at(self, step: int) -> list[Group]: ...
    def overview(self) -> list[RolloutStep]: ...
    def samples(self) -> list[Sample]: ...
    def find(
        self, *, step: int | None = None, outcome: str | None = None, text: str | None = None, worst: bool = False,
        best: bool = False, limit: int = SHOWN,
    ) -> list[Hit]: ...  # fmt: skip


class _InTable:
    """What a table answers."""

    def __init__(self, files: RolloutFiles) -> None:
        self._files = files

    def overview(self) -> list[RolloutStep]:
        """One line a step."""

        def tell(index: RolloutIndex) -> list[RolloutStep]:
            living = self._living(index)
            return [cast(RolloutStep, row) for row in index.steps() if living.get(row["step"]) == row["attempt"]]

        return self._ask(tell)

    def samples(self) -> list[Sample]:
        """Every rollout in numbers, step by step."""

        def tell(index: RolloutIndex) -> list[Sample]:
            living = self._living(index)
            return [sample for sample in index.samples() if living.get(sample.step) == sample.attempt]

        return self._ask(tell)

    def find(
        self,
        *,
        step: int | None = None,
        outcome: str | None = None,
        text: str | None = None,
        worst: bool = False,
        best: bool = False,
        limit: int = SHOWN,
    ) -> list[Hit]:
        """Rollouts by step, outcome, text; `worst` brings those of the lowest reward first, `best` of the highest."""

        def tell(index: RolloutIndex) -> list[Hit]:
            living = self._living(index)
            found = index.find(step=step, outcome=outcome, text=text, worst=worst, best=best)
            taken = islice((item for item in found if living.get(item.step) == item.attempt), limit)
            return list(_placed(index, taken))

        return self._ask(tell)

    def _ask(self, question: Callable[[RolloutIndex], T]) -> T:
        """Ask the table; where it turns out to be damaged, one created again from the files."""
        try:
            with RolloutIndex(self._files) as index:
                return question(index)
        except (sqlite3.Error, LookupError, TypeError, ValueError, OverflowError):
            with RolloutIndex(self._files, in_memory=True) as index:
                return question(index)

    def _living(self, index: RolloutIndex) -> dict[int, int]:
        """For each step the attempt whose rollouts count."""
        return dict(index.attempts)


def _placed(index: RolloutIndex, found: Iterator[Found]) -> Iterator[Hit]:
    places: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
    for item in found:
        key = (item.step, item.attempt)
        if key not in places:
            places[key] = index.places(*key)
        group, before = places[key][item.group_id]
        yield Hit(item.step, group, before + item.number, *item[4:])


class RunRollouts(_InTable):
    """The rollouts of a recorded run."""

    def __init__(self, run_dir: RunDir, lineage: Lineage) -> None:
        super().__init__(RunFiles(run_dir))
        self._dir = run_dir
        self._lineage = lineage
        self._passed_over: dict[str, str] = {}

    @cached_property
    def steps(self) -> list[int]:
        """The steps that have rollouts, in order."""
        return self._ask(lambda index: sorted(self._living(index)))

    @property
    def last_step(self) -> int | None:
        """The newest step with rollouts."""
        files = rollout_files(self._dir)
        return next((file.step for file in reversed(files) if self.at(file.step)), None)

    @property
    def problems(self) -> list[str]:
        """What had to be passed over in the files that were read."""
        return list(self._passed_over.values())

    def at(self, step: int, rank: int | None = None) -> list[Group]:
        """The groups of a step, rank by rank in the order they were recorded; or those of one rank."""
        found = []
        for file in rollout_files(self._dir):
            if file.step == step and rank in (None, file.rank):
                problems = Problems()
                found += [group for group in read_groups(file.path, problems) if group.step == step]
                for sentence in problems.sentences:
                    self._passed_over[file.path.name] = f"{file.path.name}: {sentence}"
        newest = max((group.attempt for group in found if not self._is_ghost(group.step, group.attempt)), default=0)
        return [with_moments(group) for group in found if group.attempt == newest]

    def steps_with_tokens(self, most_bytes: int) -> list[int]:
        """The steps of which rank 0 recorded tokens, in order; the newest where the files are larger than that."""
        found, left = [], most_bytes
        for file in reversed(rollout_files(self._dir)):
            if file.rank == 0 and (left := left - log_state(file.path)[1]) >= 0 and has_tokens(file.path):
                found.append(file.step)
        return found[::-1]

    def _living(self, index: RolloutIndex) -> dict[int, int]:
        return {step: attempt for step, attempt in index.attempts if not self._is_ghost(step, attempt)}

    def _is_ghost(self, step: int, attempt: int) -> bool:
        return bool(self._lineage.is_ghost(np.array([attempt]), np.array([step]))[0])


class DumpedRollouts(_InTable):
    """The rollouts of one split of a dump. What is new in its files is seen by the next question."""

    def __init__(self, place: Path, split: Split = "train") -> None:
        self._dump = DumpFiles(place, split)
        super().__init__(self._dump)
        self._passed_over: list[str] = []

    @property
    def state(self) -> object:
        """What changes when a file is added or changes."""
        return self._dump.state

    @property
    def changed(self) -> float:
        """When one of its files was last written to; 0 where there are none."""
        return max((file.state[2] for file in self._dump.files()), default=0) / 1e9

    @property
    def steps(self) -> list[int]:
        return self._ask(lambda index: sorted(self._living(index)))

    @property
    def steps_by_file(self) -> dict[Path, set[int]]:
        """The steps of each file that was understood as a whole."""
        return self._ask(lambda index: index.steps_by_file())

    @property
    def last_step(self) -> int | None:
        return max(self.steps, default=None)

    @property
    def problems(self) -> list[str]:
        """What had to be passed over in all files."""
        return list(dict.fromkeys([*self._ask(lambda index: index.notes), *self._passed_over]))

    def at(self, step: int) -> list[Group]:
        parts = self._ask(lambda index: index.parts(step, 1))
        return [with_moments(group) for group in self._dump.groups(parts, self._passed_over)]


def open_dump(place: Path, split: Split | None = None) -> DumpedRollouts:
    """A dump's rollouts of one split: of training, or of validation where there are no others. Raises NotALog where it
    holds none.
    """
    train = DumpedRollouts(place, split or "train")
    if train.steps:
        return train
    validation = DumpedRollouts(place, "validation")
    if split is None and validation.steps:
        return validation
    why = "; ".join(train.problems[:3]) or "no row of it is a rollout: a prompt and a completion, or messages"
    raise NotALog(place, f"it has no rollouts of {split}" if split and not train.problems else why)


class JoinedRollouts:
    """A run's own rollouts, and those of dumps it is linked to: each step is of the first that has it."""

    def __init__(self, sources: Sequence[RolloutSource]) -> None:
        self._sources = sources

    @property
    def steps(self) -> list[int]:
        return sorted({step for source in self._sources for step in source.steps})

    @property
    def last_step(self) -> int | None:
        return max(self.steps, default=None)

    @property
    def problems(self) -> list[str]:
        return [problem for source in self._sources for problem in source.problems]

    def at(self, step: int) -> list[Group]:
        return next((groups for source in self._sources if (groups := source.at(step))), [])

    def overview(self) -> list[RolloutStep]:
        told: dict[int, RolloutStep] = {}
        for source in self._sources:
            for row in source.overview():
                told.setdefault(row["step"], row)
        return [told[step] for step in sorted(told)]

    def samples(self) -> list[Sample]:
        found: list[Sample] = []
        shown: set[int] = set()
        for source in self._sources:
            found += [sample for sample in source.samples() if sample.step not in shown]
            shown |= set(source.steps)
        return sorted(found, key=lambda sample: sample.step)

    def find(
        self,
        *,
        step: int | None = None,
        outcome: str | None = None,
        text: str | None = None,
        worst: bool = False,
        best: bool = False,
        limit: int = SHOWN,
    ) -> list[Hit]:
        """As of a run; each source is asked for as many as are wanted."""
        hits: list[Hit] = []
        shown: set[int] = set()
        for source in self._sources:
            hidden = 0
            while True:  # what an earlier source has in its place takes no room
                found = source.find(step=step, outcome=outcome, text=text, worst=worst, best=best, limit=limit + hidden)
                mine = [hit for hit in found if hit.step not in shown]
                if len(mine) >= limit or len(found) < limit + hidden:
                    break
                hidden = 2 * (limit + hidden)
            hits += mine
            shown |= set(source.steps)
        if worst or best:
            hits.sort(key=lambda hit: ((hit.reward or 0.0) * (-1 if best else 1), hit.step))
        else:
            hits.sort(key=lambda hit: hit.step)
        return hits[:limit]


def pick(groups: list[Group], wanted: str) -> tuple[int, Group]:
    """One group by its number in the list, from 1, or its id."""
    if wanted.isdecimal() and 0 < int(wanted) <= len(groups):
        return int(wanted), groups[int(wanted) - 1]
    for number, group in enumerate(groups, 1):
        if wanted in (group.id, group.prompt):
            return number, group
    raise RunNotFound(f"there is no group {wanted!r} at this step: there are {len(groups)}, numbered from 1")


class Change(NamedTuple):
    """One prompt at two steps; one of the groups may be missing."""

    key: str
    before: Group | None
    after: Group | None


def changes(before: list[Group], after: list[Group]) -> list[Change]:
    """The prompts of two steps side by side: those at both first, then those at one."""
    earlier = {group.key: group for group in before}
    later = {group.key: group for group in after}
    both = [Change(key, earlier[key], group) for key, group in later.items() if key in earlier]
    gone = [Change(key, group, None) for key, group in earlier.items() if key not in later]
    return [*both, *[Change(key, None, group) for key, group in later.items() if key not in earlier], *gone]


def with_moments(group: Group) -> Group:
    """The group with the mean and population deviation of its rewards, where it came without them."""
    rewards = [rollout.reward for rollout in group.rollouts if rollout.reward is not None]
    if group.mean is not None or not rewards:
        return group
    mean = sum(rewards) / len(rewards)
    spread = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5
    return replace(group, mean=mean, std=spread)


def outcomes(group: Group) -> dict[str, int]:
    """How its rollouts came out, the most frequent first; by their end where no outcome was recorded."""
    return dict(Counter(rollout.outcome or rollout.stop or "not said" for rollout in group.rollouts).most_common())
