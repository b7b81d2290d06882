"""Where failures come from, and whether they came before the reward fell. This distinguishes a broken sandbox from a
policy that has got worse.

A `Rise` is one share of failures that has left its level, with the state of the run in the row before. The rule
`lost_to_failures` uses it to decide whether the failures explain the loss of reward. The rules about the reward check
it before they blame the policy for a fall.
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
"""Signals that count failures, with the cause that each stands for. The more specific ones come first."""

WRITTEN = frozenset({"failed_context", "failed_tool", "failed_call", "failed_parsing", "truncated"})
"""Failures that a policy can cause by its output: calls that do not parse, answers without end. Only a jump that no
change of the policy explains is attributed to something else."""

LONG = frozenset({"failed_context", "failed_time_out", "truncated"})
"""Failures that longer answers cause."""

LEAST_RISE = 0.05
"""The least rise of a share of failures above its level."""

LEAST_COUNT = 2.0
"""The same for a number of failures."""

NOISES = 6.0
"""How far it must be above its level, in units of the noise of its first values."""

LATE = 5
"""A failure whose name first comes after this many rows did not happen before: many frameworks log a kind of error only
when it occurs."""

QUIET = 4
"""Values in a row at the old level after which the failures have ended."""

JUMP = 4
"""Values after the onset within which failures that jump reach their new level."""


RowLevels = tuple[float, ...]
"""The state of a run: the reward, its best level, then the fast and the slow level of entropy, length and turns, then
the length and its baseline. They are kept unprocessed, because every row stores them and few are read."""


class Before(NamedTuple):
    """The state of the run in the row before the failures began."""

    reward: float
    best: float
    entropy: float
    """The fast level over the slow one, 1 while it does not move; `length` and `turns` are such ratios, too."""
    length: float
    turns: float
    grown: float
    """The length over its baseline."""

    @classmethod
    def of(cls, last: RowLevels) -> Before:
        """The state that the levels of a row give."""
        reward, best, *moves = last
        shares = [now / usual if usual > 0 else 1.0 for now, usual in zip(moves[::2], moves[1::2], strict=True)]
        return cls(reward, best, *(1.0 if math.isnan(share) else share for share in shares))


class Rise:
    """One share of failures: its usual level, and where it left that level."""

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
        """The usual level."""
        self._limit = -math.inf
        self.clear()

    def clear(self) -> None:
        """Reset it: the failures are at their usual level."""
        self.point = self.step = self.quiet = 0
        self.before: Before | None = None
        self.early = 0.0
        """The highest value of the first few since the onset."""
        self.is_proven = False
        """Whether it explains the reward's fall. Once set, it stays set until the failures end."""
        self.is_over = False
        """Whether it can no longer be the reason: the reward did not fall when the failures began."""
        self.is_grave = False
        """Whether most of the reward was lost to it at some time."""

    @property
    def name(self) -> str:
        """The signal's name."""
        return self.signal.name

    @property
    def is_count(self) -> bool:
        """Whether it is a number of failures out of an unknown total, not a share."""
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
        """Whether most of the rise came within the first values."""
        return self.early - self.level >= 0.6 * (self.now - self.level)

    def take(self, last: RowLevels, step: int) -> None:
        """Take a new value of the signal."""
        signal = self.signal
        if self.before is None and signal.last <= self._limit:  # true for nearly every value
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
"""Stands in for a signal that is not logged: it has no levels, so it does not move."""


class Origins:
    """The failures of one run."""

    def __init__(self) -> None:
        self._rises: dict[str, Rise] = {}
        self._last: RowLevels = (math.nan,) * 10
        self._reward: Signal | None = None
        self._beside = (_STILL, _STILL, _STILL)
        self.is_watching = False
        """Whether the run logs any failures."""

    def bind(self, signals: Mapping[str, Signal], point: int) -> None:
        """Take the run's signals after they have changed."""
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
        """Forget the failures, because the run restarted."""
        for rise in self._rises.values():
            rise.first_point = 0
            rise.clear()

    def take(self, point: int, step: int) -> None:
        """Take a row that has been read. The state of the run is kept even while nothing fails, because an error's name
        may first come with the error.
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
        """The failures that explain the loss of reward; None if there are none."""
        return next((rise for rise in self._rises.values() if rise.is_proven), None)

    @property
    def is_open(self) -> bool:
        """Whether failures have just begun, so it is too early to decide what caused a fall of the reward."""
        return any(
            rise.before is not None and not rise.is_over and rise.points <= JUMP + 1 for rise in self._rises.values()
        )

    def cause_of(self, key: str) -> str:
        """The cause of the failures under a logged name, if they are proven or jumped; empty otherwise."""
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
"""The kind of failure for each cause: rollouts that could not do their work, answers that were cut off, and wrong
scores."""


def caused(alarm: Alarm, found: Origins) -> Alarm | None:
    """The alarm of a rule about a fall of the reward, after a look at the failures. None while they have just begun.
    Where they are proven, the alarm names them as the cause. Otherwise it is unchanged.
    """
    proven = found.proven
    if proven is None:
        return None if found.is_watching and found.is_open else alarm
    alarm.cause, alarm.kind, alarm.variant = proven.cause, KINDS[proven.cause], "failures"
    alarm.evidence |= {"failures": proven.signal.key, "failing": failing_text(proven)}
    return since(proven.step, alarm)


def failing_text(rise: Rise) -> str:
    """How many fail, as text."""
    return f"{rise.now:.0f} a row" if rise.is_count else f"{rise.now:.0%}"
