"""Where failures come from, and whether they came before the reward fell: what tells a broken sandbox from a policy
that has got worse.

A `Rise` is one share of failures that has left its level, with how the run stood in the row before it did. The rule
`lost_to_failures` decides by that whether the failures explain what the reward lost, and the rules about the reward ask
here before they call a fall the policy's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from rlvitals.health.alarm import Alarm, since
from rlvitals.health.statistics import HEAD, Signal

CAUSES: dict[str, str] = {
    "failed_sandbox": "sandbox",
    "failed_verifier": "verifier",
    "failed_time_out": "time_out",
    "failed_context": "context_limit",
    "failed_tool": "tool",
    "failed_call": "tool",
    "failed_parsing": "parsing",
    "truncated": "context_limit",
    "failed_any": "",
}
"""Signals that count failures, with what each is the cause of. Those that say more come first."""

WRITTEN = frozenset({"failed_context", "failed_tool", "failed_call", "failed_parsing", "truncated"})
"""What a policy can do by what it writes: calls that do not parse, answers without end. There only a jump that nothing
in the policy explains is somebody else's."""

LONG = frozenset({"failed_context", "failed_time_out", "truncated"})
"""What longer answers bring about."""

LEAST_RISE = 0.05
"""A share of failures that is less above its level is none."""

LEAST_COUNT = 2.0
"""The same for a number of failures."""

NOISES = 6.0
"""How many noises of its first values it must be above its level."""

LATE = 5
"""Rows without a failure's name after which it is known that there were none: many frameworks log a kind of error only
when it happens."""

QUIET = 4
"""Values in a row at the old level after which failures are over."""

JUMP = 4
"""Values after the onset within which failures that jumped are where they stay."""


Levels = tuple[float, ...]
"""How a run stands: the reward, its best level, and fast and usual level of entropy, length and turns in turn, then the
length and its baseline. As they are: this is kept of every row, and rarely looked at."""


class Before(NamedTuple):
    """The state of the run in the row before the failures began."""

    reward: float
    best: float
    entropy: float
    """The fast level over the slow one, which is 1 while it stands still; so the others."""
    length: float
    turns: float
    grown: float
    """The length over that of the run's start."""

    @classmethod
    def of(cls, last: Levels) -> Before:
        """What the levels of a row come to."""
        reward, best, *moves = last
        shares = [now / usual if usual > 0 else 1.0 for now, usual in zip(moves[::2], moves[1::2], strict=True)]
        return cls(reward, best, *(1.0 if math.isnan(share) else share for share in shares))


class Rise:
    """One share of failures: its old level, and where it left it."""

    __slots__ = (
        "_limit",
        "before",
        "cause",
        "early",
        "first_point",
        "is_grave",
        "is_over",
        "is_proven",
        "level",
        "point",
        "quiet",
        "signal",
        "step",
    )

    def __init__(self, signal: Signal, point: int) -> None:
        self.signal = signal
        self.cause = CAUSES[signal.name]
        self.first_point = point
        """The row in which its name first came."""
        self.level = 0.0
        """What was usual."""
        self._limit = -math.inf
        self.clear()

    def clear(self) -> None:
        """Nothing is out of the ordinary."""
        self.point = self.step = self.quiet = 0
        self.before: Before | None = None
        self.early = 0.0
        """The highest value of the first few since the onset."""
        self.is_proven = False
        """Whether it explains the reward's fall. Once it does, it does as long as it lasts."""
        self.is_over = False
        """Whether it can no longer be the reason: the reward did not fall when the failures began."""
        self.is_grave = False
        """Whether most of the reward was lost to it at some time."""

    @property
    def name(self) -> str:
        """The signal's."""
        return self.signal.name

    @property
    def is_count(self) -> bool:
        """Whether failures are counted, out of nobody knows how many."""
        return self.signal.highest > 1.0

    @property
    def now(self) -> float:
        return min(self.signal.median5, self.signal.highest)

    @property
    def points(self) -> int:
        """Values since the onset, this one included."""
        return self.signal.n - self.point + 1

    @property
    def is_jump(self) -> bool:
        """Whether most of it came within the first values."""
        return self.early - self.level >= 0.6 * (self.now - self.level)

    def take(self, last: Levels, step: int) -> None:
        """The signal has a new value."""
        signal = self.signal
        if self.before is None and signal.last <= self._limit:  # which nearly every value is
            return
        if self.first_point > LATE:
            self.level, noise = 0.0, 0.0
        else:
            self.level, noise = min(signal.base, signal.start), signal.noise_base
        least = LEAST_COUNT if self.is_count else LEAST_RISE
        limit = self.level + max(least, NOISES * noise if self.before is None else least)
        self._limit = limit if signal.n > HEAD else -math.inf  # until then the usual level is not known
        is_up = signal.last > limit
        if self.before is None:
            if not is_up:
                return
            self.point, self.step, self.before = signal.n, step, Before.of(last)
        self.quiet = 0 if is_up else self.quiet + 1
        if self.points <= JUMP:
            self.early = max(self.early, signal.last)
        if self.quiet >= QUIET:
            self.clear()


_STILL = Signal("still")
"""In place of what is not logged: it has no levels, so it does not move."""


class Origins:
    """The failures of one run."""

    def __init__(self) -> None:
        self._rises: dict[str, Rise] = {}
        self._last: Levels = (math.nan,) * 10
        self._reward: Signal | None = None
        self._beside = (_STILL, _STILL, _STILL)
        self.is_watching = False
        """Whether the run logs any failures."""

    def bind(self, signals: Mapping[str, Signal], point: int) -> None:
        """The run's signals are others than before."""
        for name in CAUSES:
            signal = signals.get(name)
            known = self._rises.get(name)
            if signal is None:
                self._rises.pop(name, None)
            elif known is None or known.signal is not signal:
                self._rises[name] = Rise(signal, point)
        self._reward = signals.get("reward")
        self._beside = (
            signals.get("entropy", _STILL),
            signals.get("length", _STILL),
            signals.get("turns", _STILL),
        )
        self.is_watching = bool(self._rises) and self._reward is not None

    def reset(self) -> None:
        """The run began again."""
        for rise in self._rises.values():
            rise.first_point = 0
            rise.clear()

    def take(self, point: int, step: int) -> None:
        """A row has been read. How the run stands is kept also while nothing fails: an error's name may first come with
        the error.
        """
        for rise in self._rises.values():
            if rise.signal.seen_at == point:
                rise.take(self._last, step)
        reward = self._reward
        if reward is not None and reward.seen_at == point:
            entropy, length, turns = self._beside
            self._last = (
                reward.fast, reward.top, entropy.fast, entropy.slow, length.fast, length.slow, turns.fast, turns.slow,
                length.fast, length.base,
            )  # fmt: skip

    @property
    def risen(self) -> list[Rise]:
        """The failures that are above their level now."""
        return [rise for rise in self._rises.values() if rise.before is not None]

    @property
    def proven(self) -> Rise | None:
        """The failures that explain what the reward has lost."""
        return next((rise for rise in self._rises.values() if rise.is_proven), None)

    @property
    def is_open(self) -> bool:
        """Whether failures have just begun, so that it is too early to say whose fault a fall of the reward is."""
        return any(
            rise.before is not None and not rise.is_over and rise.points <= JUMP + 1 for rise in self._rises.values()
        )

    def cause_of(self, key: str) -> str:
        """What the failures under a logged name come from, as far as it is not the policy's writing."""
        for rise in self._rises.values():
            if rise.signal.key == key and (
                rise.is_proven or (rise.before is not None and rise.is_jump and rise.points > JUMP)
            ):
                return rise.cause
        return ""


KINDS = {
    "sandbox": "tool_errors",
    "tool": "tool_errors",
    "time_out": "tool_errors",
    "": "tool_errors",
    "context_limit": "truncation",
    "verifier": "data",
    "parsing": "data",
}
"""The kind of trouble that each cause is: rollouts that could not do their work, answers that were cut off, and scores
that are wrong."""


def caused(alarm: Alarm, found: Origins) -> Alarm | None:
    """What a rule about the reward's fall says: nothing while failures have just begun; that they are the reason where
    they are; else what it would have said.
    """
    proven = found.proven
    if proven is None:
        return None if found.is_watching and found.is_open else alarm
    alarm.cause, alarm.kind, alarm.variant = proven.cause, KINDS[proven.cause], "failures"
    alarm.evidence |= {"failures": proven.signal.key, "failing": told(proven)}
    return since(proven.step, alarm)


def told(rise: Rise) -> str:
    """How many fail, in words."""
    return f"{rise.now:.0f} a row" if rise.is_count else f"{rise.now:.0%}"
