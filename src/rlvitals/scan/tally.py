"""Counts the hits of scanners step by step: how many rollouts show a pattern, their rewards compared with the others,
whether their share grows, and where they are. Memory does not grow with the length of a run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from rlvitals.compute.association import Gain, Trend
from rlvitals.guard import Once, guarded, words_of
from rlvitals.health.history import History
from rlvitals.health.rulebook import Rulebook, shipped
from rlvitals.health.texts import TextRules
from rlvitals.records import Citation, Finding, Group, HealthEvent, Scanned
from rlvitals.scan.reading import GroupReading, Reading, Span
from rlvitals.scan.registry import Scanner, shipped_scanners

FEW_ROLLOUTS, MOST_RECENT_STEPS = 64, 32
"""The newest and the first shares are counted over as many steps as contain FEW_ROLLOUTS rollouts; the newest share
over at most MOST_RECENT_STEPS steps.
"""

KEPT_CITATIONS, SHOWN_CITATIONS = 48, 6
MOST_STEPS = 4096
"""Steps whose shares are kept to find the onset. The oldest are dropped first."""

QUOTED = 200
SPANS_OF_ROLLOUT = 3
FEW_MIXED = 5
"""Minimum hits in groups that also have other rollouts. With fewer, rewards are compared within steps instead of
groups.
"""


class PatternHit(NamedTuple):
    """A rollout that shows a pattern."""

    pattern: str
    citations: list[Citation]
    """The first passages that show it, at most SPANS_OF_ROLLOUT."""


@dataclass(slots=True)
class Tally:
    """The counts and rewards of one pattern so far."""

    rollouts: int = 0
    hits: int = 0
    hit_reward: float = 0.0
    hit_rewards: int = 0
    other_reward: float = 0.0
    other_rewards: int = 0
    within_groups: Gain = field(default_factory=Gain)
    within_steps: Gain = field(default_factory=Gain)
    trend: Trend = field(default_factory=Trend)
    start: list[int] = field(default_factory=lambda: [0, 0])
    shares: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))
    """Step, rollouts, hits."""
    cited: deque[Citation] = field(default_factory=lambda: deque(maxlen=KEPT_CITATIONS))

    @property
    def mean_of_hits(self) -> float | None:
        return self.hit_reward / self.hit_rewards if self.hit_rewards else None

    @property
    def mean_of_others(self) -> float | None:
        return self.other_reward / self.other_rewards if self.other_rewards else None

    def add(self, step: int, groups: Sequence[Group], marks: Sequence[Sequence[bool]], found: list[Citation]) -> None:
        """Add a step: for each rollout of each group whether it shows the pattern, and the citations."""
        count, hits = sum(map(len, marks)), sum(map(sum, marks))
        if not count:
            return
        if self.start[0] < FEW_ROLLOUTS:
            self.start = [self.start[0] + count, self.start[1] + hits]
        self.rollouts += count
        self.hits += hits
        self.trend.add(step, marked=hits, count=count)
        self.shares.append((step, count, hits))
        self.cited.extend(found[-KEPT_CITATIONS:])
        everything: list[tuple[float, bool]] = []
        for group, marked in zip(groups, marks, strict=True):
            rewarded = [
                (rollout.reward, mark)
                for rollout, mark in zip(group.rollouts, marked, strict=True)
                if rollout.reward is not None and math.isfinite(rollout.reward)
            ]
            self.within_groups.add(*_columns(rewarded))
            everything += rewarded
        self.within_steps.add(*_columns(everything))
        for reward, mark in everything:
            if mark:
                self.hit_reward, self.hit_rewards = self.hit_reward + reward, self.hit_rewards + 1
            else:
                self.other_reward, self.other_rewards = self.other_reward + reward, self.other_rewards + 1

    @property
    def gain(self) -> Gain:
        """The gain within groups, or within steps where groups have too few hits."""
        return self.within_groups if self.within_groups.marked >= FEW_MIXED else self.within_steps

    def scanned(self, pattern: str, step: int, spread: float) -> Scanned:
        """The input of the rules after a step."""
        recent_rollouts = recent_hits = 0
        for place, (_, count, hits) in enumerate(reversed(self.shares)):
            recent_rollouts, recent_hits = recent_rollouts + count, recent_hits + hits
            if recent_rollouts >= FEW_ROLLOUTS or place + 1 >= MOST_RECENT_STEPS:
                break
        half = recent_hits / max(recent_rollouts, 1) / 2
        onset = next((at for at, count, hits in self.shares if hits and hits >= half * count), step)
        gain = self.gain
        return Scanned(
            pattern, step, self.rollouts, self.hits, recent_rollouts, recent_hits, self.start[0], self.start[1],
            gain=gain.difference, gain_z=gain.z, spread=spread, growth_z=self.trend.z, onset_step=onset,
            cited=self._chosen(),
        )  # fmt: skip

    def _chosen(self) -> tuple[Citation, ...]:
        """The newest hits with the highest rewards, different groups first, in the order of their steps."""
        by_reward = sorted(
            self.cited, key=lambda place: (-(place.reward if place.reward is not None else -math.inf), -place.step)
        )
        taken: list[Citation] = []
        for is_other_group in (True, False):
            groups = {(place.step, place.group) for place in taken}
            for place in by_reward:
                where = (place.step, place.group)
                if len(taken) < SHOWN_CITATIONS and place not in taken and not (is_other_group and where in groups):
                    taken.append(place)
                    groups.add(where)
        return tuple(sorted(taken, key=lambda place: (place.step, place.group, place.rollout)))


def _columns(rewarded: list[tuple[float, bool]]) -> tuple[list[float], list[bool]]:
    return [reward for reward, _ in rewarded], [mark for _, mark in rewarded]


class Scans:
    """Runs the scanners on one run. Steps come in order; the groups of a step may come in several calls."""

    def __init__(self, book: Rulebook | None = None, own: Sequence[Scanner] = ()) -> None:
        self.rules = TextRules(book or shipped(), [scanner.rule for scanner in own if scanner.rule is not None])
        everything = [*shipped_scanners(), *own]
        self.scanners = [scanner for scanner in everything if scanner.name in self.rules.patterns]
        self.tallies = {scanner.name: Tally() for scanner in self.scanners}
        self.problems: dict[str, str] = {}
        """Scanners that raised an error, and the error."""
        self._rewards = (0, 0.0, 0.0)  # count, mean, sum of squares around it
        self._warn_once = Once()

    def hits(self, group: Group, step: int, number: int) -> list[list[PatternHit]]:
        """The patterns of each rollout of a group. `number` is the number of the group, from 1."""
        page = GroupReading(group)
        return [self._hits(reading, step, number, place) for place, reading in enumerate(page.readings, 1)]

    def take(self, groups: Sequence[Group], step: int, first: int = 1) -> list[HealthEvent]:
        """Scan the groups of a step. `first` is the number of the first group."""
        found = [self.hits(group, step, first + place) for place, group in enumerate(groups)]
        for group in groups:
            for rollout in group.rollouts:
                if rollout.reward is not None and math.isfinite(rollout.reward):
                    self._add_reward(rollout.reward)
        events: list[HealthEvent] = []
        for scanner in self.scanners:
            name, cited = scanner.name, list[Citation]()
            marks = []
            for of_group in found:
                own = [next((hit for hit in of_rollout if hit.pattern == name), None) for of_rollout in of_group]
                marks.append([hit is not None for hit in own])
                cited += [hit.citations[0] for hit in own if hit is not None]
            tally = self.tallies[name]
            tally.add(step, groups, marks, cited)
            if tally.hits:
                events += self.rules.take(tally.scanned(name, step, self.spread))
        return events

    @property
    def spread(self) -> float:
        """Standard deviation of all rewards."""
        count, _, squares = self._rewards
        return math.sqrt(squares / count) if count else 0.0

    def _add_reward(self, reward: float) -> None:
        count, mean, squares = self._rewards
        count += 1
        new = mean + (reward - mean) / count
        self._rewards = count, new, squares + (reward - mean) * (reward - new)

    def _hits(self, reading: Reading, step: int, number: int, place: int) -> list[PatternHit]:
        found = []
        for scanner in self.scanners:
            if scanner.name in self.problems:
                continue
            spans: list[Span] = []
            with guarded(partial(self._put_aside, scanner.name)):
                for span in scanner.find(reading):
                    spans.append(span)
                    if len(spans) >= SPANS_OF_ROLLOUT:
                        break
            if spans:
                found.append(PatternHit(scanner.name, [_cited(span, reading, step, number, place) for span in spans]))
        return found

    def _put_aside(self, name: str, error: Exception) -> None:
        self.problems[name] = words_of(error)
        self._warn_once(f"the scanner {name} failed and is disabled: {words_of(error)}", key=name)


def _cited(span: Span, reading: Reading, step: int, group: int, rollout: int) -> Citation:
    text = next((part.text for part in reading.parts if (part.turn, part.name) == span[:2]), "")
    start, end = span.start, min(span.end, span.start + 2 * QUOTED)
    if end - start < QUOTED:  # a short passage is quoted with the rest of its lines
        line = text.find("\n", end)
        start = max(text.rfind("\n", 0, start) + 1, start - QUOTED // 2)
        end = min(line if line >= 0 else len(text), end + QUOTED // 2)
    quote = " ".join(text[start:end].split())
    short = quote if len(quote) <= QUOTED else quote[: QUOTED - 1] + "…"
    return Citation(step, group, rollout, span.turn, span.part, span.start, span.end, short, reading.rollout.reward)


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of a scan."""

    rollouts: int
    steps: int
    scans: Scans
    events: list[HealthEvent]

    @property
    def findings(self) -> list[Finding]:
        """All findings in the order they were raised."""
        return History(self.events).findings


def scan(
    groups: Iterable[Group], *, scanners: Sequence[Scanner] = (), rules: Rulebook | None = None
) -> Scan:  # fmt: skip
    """Scan groups that are sorted by step. `scanners` are the user's own."""
    scans = Scans(rules, scanners)
    events: list[HealthEvent] = []
    rollouts, steps = 0, 0
    for step, of_step in _by_step(groups):
        events += scans.take(of_step, step)
        rollouts += sum(len(group.rollouts) for group in of_step)
        steps += 1
    return Scan(rollouts, steps, scans, events)


def _by_step(groups: Iterable[Group]) -> Iterable[tuple[int, list[Group]]]:
    taken: list[Group] = []
    for group in groups:
        if taken and group.step != taken[0].step:
            yield taken[0].step, taken
            taken = []
        taken.append(group)
    if taken:
        yield taken[0].step, taken
