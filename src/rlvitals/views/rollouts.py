"""Looking at stored rollouts: the groups of a step, the worst, a text among them, what changed between two steps.

The living line only, as for rows: what a resumed attempt overtook is left out, and where two attempts recorded rollouts
of one step, the later one's count. A step's groups are read from its own file; everything else asks the index.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar, cast

import numpy as np

from rlvitals.contract import RolloutStep
from rlvitals.errors import RunNotFound
from rlvitals.importers.rollouts import read_rollouts
from rlvitals.records import Group
from rlvitals.store.archive import log_state
from rlvitals.store.layout import RunDir
from rlvitals.store.lineage import Lineage
from rlvitals.store.reader import Problems
from rlvitals.store.rollout_forms import plain
from rlvitals.store.rollout_index import Found, RolloutIndex
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
    """Rollouts to look at: a run's, or a file of others."""

    @property
    def steps(self) -> list[int]: ...
    @property
    def problems(self) -> list[str]: ...
    def at(self, step: int) -> list[Group]: ...
    def overview(self) -> list[RolloutStep]: ...
    def find(
        self, *, step: int | None = None, outcome: str | None = None, text: str | None = None, worst: bool = False,
        limit: int = SHOWN,
    ) -> list[Hit]: ...  # fmt: skip


class RunRollouts:
    """The rollouts of a recorded run."""

    def __init__(self, run_dir: RunDir, lineage: Lineage) -> None:
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

    def overview(self) -> list[RolloutStep]:
        """One line a step."""

        def tell(index: RolloutIndex) -> list[RolloutStep]:
            living = self._living(index)
            return [cast(RolloutStep, row) for row in index.steps() if living.get(row["step"]) == row["attempt"]]

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
            return list(self._placed(index, taken))

        return self._ask(tell)

    def _ask(self, question: Callable[[RolloutIndex], T]) -> T:
        """Ask the table; where it turns out to be damaged, one made anew from the files."""
        try:
            with RolloutIndex(self._dir) as index:
                return question(index)
        except (sqlite3.Error, LookupError, TypeError, ValueError, OverflowError):
            with RolloutIndex(self._dir, in_memory=True) as index:
                return question(index)

    def _living(self, index: RolloutIndex) -> dict[int, int]:
        """For each step the attempt whose rollouts count."""
        return {step: attempt for step, attempt in index.attempts if not self._is_ghost(step, attempt)}

    def _is_ghost(self, step: int, attempt: int) -> bool:
        return bool(self._lineage.is_ghost(np.array([attempt]), np.array([step]))[0])

    def _placed(self, index: RolloutIndex, found: Iterator[Found]) -> Iterator[Hit]:
        places: dict[tuple[int, int], dict[int, int]] = {}
        for item in found:
            key = (item.step, item.attempt)
            if key not in places:
                places[key] = {group: place for place, group in enumerate(index.groups(*key), 1)}
            yield Hit(item.step, places[key][item.group_id], item.number, *item[4:])


class DumpedRollouts:
    """The rollouts of files somebody else wrote; read whole, because they are looked at once."""

    def __init__(self, path: Path) -> None:
        dump = read_rollouts(path)
        self.problems = dump.notes
        self._groups = [with_moments(group) for group in dump.groups]

    @property
    def steps(self) -> list[int]:
        return sorted({group.step for group in self._groups})

    def at(self, step: int) -> list[Group]:
        return [group for group in self._groups if group.step == step]

    def overview(self) -> list[RolloutStep]:
        told: list[RolloutStep] = []
        for step in self.steps:
            groups = self.at(step)
            rewards = [r.reward for group in groups for r in group.rollouts if r.reward is not None]
            told.append(
                {
                    "step": step, "attempt": 1, "groups": len(groups), "kept": sum(g.kept is True for g in groups),
                    "filtered": sum(g.kept is False for g in groups),
                    "rollouts": sum(len(g.rollouts) for g in groups),
                    "mean": sum(rewards) / len(rewards) if rewards else None,
                    "early": sum(len(g.early_rollouts) for g in groups),
                }
            )  # fmt: skip
        return told

    def find(
        self,
        *,
        step: int | None = None,
        outcome: str | None = None,
        text: str | None = None,
        worst: bool = False,
        limit: int = SHOWN,
    ) -> list[Hit]:
        hits = []
        for one in self.steps if step is None else [step]:
            for place, group in enumerate(self.at(one), 1):
                for number, rollout in enumerate(group.rollouts, 1):
                    told = f"{group.prompt if number == 1 else ''} {plain(replace(rollout, trace=None))}"
                    if outcome in (None, rollout.outcome) and (text is None or text.casefold() in told.casefold()):
                        facts = (rollout.reward, rollout.outcome, rollout.stop, len(rollout.turns), group.prompt[:200])
                        hits.append(Hit(one, place, number, *facts))
        if worst:
            hits = sorted((hit for hit in hits if hit.reward is not None), key=lambda hit: hit.reward or 0.0)
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
