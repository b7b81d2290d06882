"""Queries for rollouts: the groups of a step, the worst ones, those with a text, and the changes between two steps.

A run's own rollouts follow its rows: those that a resumed attempt superseded are left out, and if two attempts recorded
rollouts of one step, those of the later one are used. A framework's dump is read in the same way. A dump that is linked
to a run is shown with it; at a step that the run recorded itself, its own groups are shown. Groups are read from the
files of their step; all other queries use an index table.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, Unpack, cast

from rlvitals import values
from rlvitals.contract import RolloutStep
from rlvitals.errors import NotALog, RunNotFound
from rlvitals.importers.dumps.base import Split
from rlvitals.importers.dumps.files import DumpFiles
from rlvitals.records import Group, Rollout
from rlvitals.store.archive import log_state
from rlvitals.store.layout import RunDir
from rlvitals.store.lineage import Lineage
from rlvitals.store.reader import Problems
from rlvitals.store.rollout_forms import plain
from rlvitals.store.rollout_index import (
    FoundRollout,
    RolloutFiles,
    RolloutIndex,
    RolloutNumbers,
    RolloutQuery,
    RunFiles,
)
from rlvitals.store.rollouts import has_tokens, read_groups, rollout_files

T = TypeVar("T")

SHOWN = 20
"""Hits that are returned by default."""


class RolloutHit(NamedTuple):
    """One rollout that was found, and its position."""

    step: int
    group: int
    """Counted from 1, in the listed order."""
    rollout: int
    reward: float | None
    outcome: str
    stop: str
    turns: int
    prompt: str


class RolloutSource(Protocol):
    """A source of rollouts: a run's, a dump's, or both."""

    @property
    def steps(self) -> list[int]: ...
    @property
    def last_step(self) -> int | None: ...
    @property
    def problems(self) -> list[str]: ...
    def at(self, step: int) -> list[Group]: ...
    def overview(self) -> list[RolloutStep]: ...
    def samples(self) -> list[RolloutNumbers]: ...
    def find(self, *, limit: int = SHOWN, **asked: Unpack[RolloutQuery]) -> list[RolloutHit]: ...


class _InTable:
    """The queries that use an index table."""

    def __init__(self, files: RolloutFiles) -> None:
        self._files = files

    def overview(self) -> list[RolloutStep]:
        """One line per step."""

        def read(index: RolloutIndex) -> list[RolloutStep]:
            living = self._living(index)
            return [cast(RolloutStep, row) for row in index.steps() if living.get(row["step"]) == row["attempt"]]

        return self._ask(read)

    def samples(self) -> list[RolloutNumbers]:
        """The numbers of every rollout, step by step."""

        def read(index: RolloutIndex) -> list[RolloutNumbers]:
            living = self._living(index)
            return [sample for sample in index.samples() if living.get(sample.step) == sample.attempt]

        return self._ask(read)

    def find(self, *, limit: int = SHOWN, **asked: Unpack[RolloutQuery]) -> list[RolloutHit]:
        """Rollouts by step, outcome or text. `worst` sorts by the lowest reward first, `best` by the highest."""

        def read(index: RolloutIndex) -> list[RolloutHit]:
            living = self._living(index)
            taken = islice((item for item in index.find(**asked) if living.get(item.step) == item.attempt), limit)
            return list(_placed(index, taken))

        return self._ask(read)

    def _ask(self, question: Callable[[RolloutIndex], T]) -> T:
        """Query the index table. If it is damaged, build a new one in memory from the files."""
        try:
            with RolloutIndex(self._files) as index:
                return question(index)
        except (sqlite3.Error, LookupError, TypeError, ValueError, OverflowError):
            with RolloutIndex(self._files, in_memory=True) as index:
                return question(index)

    def _living(self, index: RolloutIndex) -> dict[int, int]:
        """For each step the attempt whose rollouts are used."""
        return dict(index.attempts)


def _placed(index: RolloutIndex, found: Iterator[FoundRollout]) -> Iterator[RolloutHit]:
    places: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
    for item in found:
        key = (item.step, item.attempt)
        if key not in places:
            places[key] = index.places(*key)
        group, before = places[key][item.group_id]
        yield RolloutHit(item.step, group, before + item.number, *item[4:])


class RunRollouts(_InTable):
    """The rollouts of a recorded run."""

    def __init__(self, run_dir: RunDir, lineage: Lineage) -> None:
        super().__init__(RunFiles(run_dir))
        self._dir = run_dir
        self._lineage = lineage
        self._skipped: dict[str, str] = {}

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
        """What was skipped in the files that were read."""
        return list(self._skipped.values())

    def at(self, step: int, rank: int | None = None) -> list[Group]:
        """The groups of a step by rank, in the order they were recorded, or those of one rank."""
        found = []
        for file in rollout_files(self._dir):
            if file.step == step and rank in (None, file.rank):
                problems = Problems()
                found += [group for group in read_groups(file.path, problems) if group.step == step]
                for sentence in problems.sentences:
                    self._skipped[file.path.name] = f"{file.path.name}: {sentence}"
        newest = max(
            (group.attempt for group in found if not self._lineage.is_abandoned(group.attempt, step)), default=0
        )
        return [with_moments(group) for group in found if group.attempt == newest]

    def steps_with_tokens(self, most_bytes: int) -> list[int]:
        """The steps for which rank 0 recorded tokens, in order. Only the newest if the files exceed `most_bytes`."""
        found, left = [], most_bytes
        for file in reversed(rollout_files(self._dir)):
            if file.rank == 0 and (left := left - log_state(file.path)[1]) >= 0 and has_tokens(file.path):
                found.append(file.step)
        return found[::-1]

    def _living(self, index: RolloutIndex) -> dict[int, int]:
        return {step: attempt for step, attempt in index.attempts if not self._lineage.is_abandoned(attempt, step)}


class DumpedRollouts(_InTable):
    """The rollouts of one split of a dump. Each query sees the current files."""

    def __init__(self, place: Path, split: Split = "train") -> None:
        self._dump = DumpFiles(place, split)
        super().__init__(self._dump)
        self._skipped: list[str] = []

    @property
    def state(self) -> object:
        """A value that changes when a file is added or changes."""
        return self._dump.state

    @property
    def changed(self) -> float:
        """The time at which a file was last written; 0 if there are no files."""
        return max((file.state[2] for file in self._dump.files()), default=0) / 1e9

    @property
    def steps(self) -> list[int]:
        return self._ask(lambda index: sorted(self._living(index)))

    @property
    def steps_by_file(self) -> dict[Path, set[int]]:
        """The steps of each file that could be read completely."""
        return self._ask(lambda index: index.steps_by_file())

    @property
    def last_step(self) -> int | None:
        return max(self.steps, default=None)

    @property
    def problems(self) -> list[str]:
        """What was skipped in all files."""
        return list(dict.fromkeys([*self._ask(lambda index: index.notes), *self._skipped]))

    def at(self, step: int) -> list[Group]:
        parts = self._ask(lambda index: index.parts(step, 1))
        return [with_moments(group) for group in self._dump.groups(parts, self._skipped)]


def open_dump(place: Path, split: Split | None = None) -> DumpedRollouts:
    """The rollouts of one split of a dump: training, or validation if there is no other. Raises NotALog if there are
    none.
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
    """The rollouts of several sources, such as a run and its linked dumps. Each step is read from the first source that
    has it.
    """

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
        by_step: dict[int, RolloutStep] = {}
        for source in self._sources:
            for row in source.overview():
                by_step.setdefault(row["step"], row)
        return [by_step[step] for step in sorted(by_step)]

    def samples(self) -> list[RolloutNumbers]:
        found: list[RolloutNumbers] = []
        shown: set[int] = set()
        for source in self._sources:
            found += [sample for sample in source.samples() if sample.step not in shown]
            shown |= set(source.steps)
        return sorted(found, key=lambda sample: sample.step)

    def find(self, *, limit: int = SHOWN, **asked: Unpack[RolloutQuery]) -> list[RolloutHit]:
        """As for a run. Each source is queried for up to `limit` hits."""
        hits: list[RolloutHit] = []
        shown: set[int] = set()
        for source in self._sources:
            hidden = 0
            while True:  # hits that an earlier source replaces do not count
                found = source.find(**asked, limit=limit + hidden)
                mine = [hit for hit in found if hit.step not in shown]
                if len(mine) >= limit or len(found) < limit + hidden:
                    break
                hidden = 2 * (limit + hidden)
            hits += mine
            shown |= set(source.steps)
        if asked.get("worst") or asked.get("best"):
            hits.sort(key=lambda hit: ((hit.reward or 0.0) * (-1 if asked.get("best") else 1), hit.step))
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


def groups_at(source: RolloutSource, step: int) -> list[Group]:
    """The groups of a step. Raises RunNotFound, which names the nearest steps, if there are none."""
    if groups := source.at(step):
        return groups
    if not (steps := source.steps):
        raise RunNotFound("no rollouts were recorded; a trainer records them with run.log_groups(groups, step=...)")
    nearest = sorted(sorted(steps, key=lambda known: abs(known - step))[:5])
    raise RunNotFound(f"there are no rollouts at step {step}; the nearest are at {', '.join(map(str, nearest))}")


def tried_before(before: Iterable[Group], group: Group, number: int, step: int) -> tuple[int, Group]:
    """The group of the same prompt at an earlier step, and its number. Raises RunNotFound."""
    for place, earlier in enumerate(before, 1):
        if earlier.key == group.key:
            return place, earlier
    raise RunNotFound(f"the prompt of group {number} was not tried at step {step}")


def rollout_of(groups: Sequence[Group], hit: RolloutHit) -> Rollout:
    """The rollout of a hit among the groups of its step."""
    return groups[hit.group - 1].rollouts[hit.rollout - 1]


class Change(NamedTuple):
    """One prompt at two steps. One of the groups may be missing."""

    key: str
    before: Group | None
    after: Group | None


def changes(before: list[Group], after: list[Group]) -> list[Change]:
    """The prompts of two steps side by side: first those at both steps, then those at one."""
    earlier = {group.key: group for group in before}
    later = {group.key: group for group in after}
    both = [Change(key, earlier[key], group) for key, group in later.items() if key in earlier]
    gone = [Change(key, group, None) for key, group in earlier.items() if key not in later]
    return [*both, *[Change(key, None, group) for key, group in later.items() if key not in earlier], *gone]


def with_moments(group: Group) -> Group:
    """The group with the mean and population standard deviation of its rewards, computed if missing."""
    if group.mean is not None:
        return group
    rewards = values.mean(rollout.reward for rollout in group.rollouts if rollout.reward is not None)
    return replace(group, mean=rewards.number, std=rewards.showing("std").number) if rewards.count else group


def brief(group: Group | None) -> dict[str, Any] | None:
    """The rewards and outcomes of a group that is compared with another one."""
    if group is None:
        return None
    return {"mean": group.mean, "std": group.std, "rollouts": len(group.rollouts), "outcomes": outcomes(group)}


def whole(number: int, group: Group) -> dict[str, Any]:
    """A group with its rollouts as plain data."""
    facts = {"number": number, "outcomes": outcomes(group), **plain(group)}
    return facts | {"early": len(group.early_rollouts)}


def outcomes(group: Group) -> dict[str, int]:
    """The outcomes of its rollouts, the most frequent first. Without an outcome, the reason why a rollout ended is
    used.
    """
    return dict(Counter(rollout.outcome or rollout.stop or "unknown" for rollout in group.rollouts).most_common())
