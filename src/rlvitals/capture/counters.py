"""Counts and rates: tokens and samples of the whole loop, tokens per second of phases.

A rate over several steps is the sum of tokens divided by the sum of seconds, not a mean of rates. Both tails are
reported: the 1st percentile is the slow one, and the 99th is close to the best case.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Literal

from rlvitals.capture.intake import shown
from rlvitals.errors import BadValue
from rlvitals.guard import value_or
from rlvitals.values import quantile

RateNames = Literal["canonical", "rlaif"]

WINDOW_ROWS = 5
"""Number of rows that `system/tps` covers, as in ROLL."""

KEPT_RATES = 10_000
"""Number of recent rates of a phase from which the percentiles are computed."""

GENERATION = frozenset({"generate", "generation", "rollout"})
BACKWARD = frozenset({"backward", "backprop"})


def amount(count: float) -> float:
    """The count as a float; raises BadValue if it is not a finite number of at least 0."""
    number = value_or(None, float, count)  # a user's type may raise anything
    if number is None:
        raise BadValue(f"a count must be a number, not {shown(count)}")
    if not 0 <= number < math.inf:
        raise BadValue(f"a count cannot be {count!r}")
    return number


class Throughput:
    """Tokens and samples of the loop: `system/tps` over the last rows that had tokens, `system/samples` since the run
    began.

    >>> loop = Throughput(since=0.0)
    >>> loop.count(tokens=100, samples=2)
    >>> loop.take(now=10.0)
    {'system/tps': 10.0, 'system/samples': 2}
    >>> loop.take(now=11.0)
    {}
    >>> loop.count(tokens=700)
    >>> loop.take(now=20.0)
    {'system/tps': 40.0}
    """

    def __init__(self, *, since: float, samples: int = 0) -> None:
        """`since` is the start of the work, on the same clock as `take`; `samples` is the count of earlier attempts."""
        self.since = since
        self.samples: float = samples
        self._samples_new = self._tokens_new = 0.0
        self._window: deque[tuple[float, float]] = deque(maxlen=WINDOW_ROWS)

    def count(self, tokens: float = 0, samples: float = 0) -> None:
        """Add what was processed since the last call."""
        more_tokens, more_samples = amount(tokens), amount(samples)
        self._tokens_new += more_tokens
        self._samples_new += more_samples

    def take(self, now: float) -> dict[str, float]:
        """The metrics for the next row; empty if nothing was counted since the last row."""
        row: dict[str, float] = {}
        if self._tokens_new:
            self._window.append((self._tokens_new, now - self.since))
            self.since, self._tokens_new = now, 0.0
            seconds = sum(spent for _, spent in self._window)
            if seconds > 0:
                row["system/tps"] = sum(tokens for tokens, _ in self._window) / seconds
        if self._samples_new:
            self.samples += self._samples_new
            self._samples_new = 0.0
            row["system/samples"] = int(self.samples) if self.samples == int(self.samples) else self.samples
        return row


class Rates:
    """Tokens per second of each phase that reports its tokens.

    >>> rates = Rates("rlaif")
    >>> rates.add("generate", tokens=100, seconds=1.0)
    >>> rates.add("generate", tokens=900, seconds=3.0)
    >>> rates.take()["Performance/Generation_AvgTokensPerSec"]
    250.0
    """

    def __init__(self, names: RateNames = "canonical") -> None:
        self._names = names
        self._phases: dict[str, _PhaseRate] = {}

    def add(self, phase: str, tokens: float, seconds: float) -> None:
        """Add one run of a phase."""
        known = self._phases.get(phase)
        if known is None:
            known = self._phases[phase] = _PhaseRate()
        known.add(tokens, seconds)

    def take(self) -> dict[str, float]:
        """For each phase that ran since the last row: its rate since then, the mean since the start, and both tails."""
        row: dict[str, float] = {}
        for phase, rate in self._phases.items():
            if rate.seconds_new > 0:
                row |= self._named(phase, rate)
                rate.tokens_new = rate.seconds_new = 0.0
        return row

    def _named(self, phase: str, rate: _PhaseRate) -> dict[str, float]:
        now, mean = rate.tokens_new / rate.seconds_new, rate.tokens / rate.seconds
        slow, fast = quantile(rate.ordered, 0.01), quantile(rate.ordered, 0.99)
        if self._names == "rlaif":
            stem = f"Performance/{_document_name(phase)}"
            named = {"TokensPerSec": now, "AvgTokensPerSec": mean, "P1TokensPerSec": slow, "P99TokensPerSec": fast}
            return {f"{stem}_{name}": value for name, value in named.items()} | {f"{stem}_Time": rate.seconds_new}
        stem, dot = f"perf/{phase}/tokens_per_s", "/"
        if phase in GENERATION:
            stem, dot = "perf.generation_tokens_per_s", "."
        elif phase in BACKWARD:
            stem, dot = "perf.backward_tokens_per_s", "."
        return {stem: now, f"{stem}{dot}mean": mean, f"{stem}{dot}p1": slow, f"{stem}{dot}p99": fast}


class _PhaseRate:
    """The tokens, seconds and recent rates of one phase."""

    __slots__ = ("_kept", "ordered", "seconds", "seconds_new", "tokens", "tokens_new")

    def __init__(self) -> None:
        self.tokens = self.tokens_new = 0.0
        self.seconds = self.seconds_new = 0.0
        self.ordered: list[float] = []
        self._kept: deque[float] = deque()

    def add(self, tokens: float, seconds: float) -> None:
        if seconds <= 0:
            return  # too short for the clock: the rate is unknown
        self.tokens += tokens
        self.tokens_new += tokens
        self.seconds += seconds
        self.seconds_new += seconds
        rate = tokens / seconds
        insort(self.ordered, rate)
        self._kept.append(rate)
        if len(self._kept) > KEPT_RATES:
            oldest = self._kept.popleft()
            del self.ordered[bisect_left(self.ordered, oldest)]


def _document_name(phase: str) -> str:
    """The phase's name in the style of the RLAIF document.

    >>> _document_name("generate"), _document_name("backward"), _document_name("train_step")
    ('Generation', 'Backprop', 'TrainStep')
    """
    if phase in GENERATION:
        return "Generation"
    return "Backprop" if phase in BACKWARD else "".join(part[:1].upper() + part[1:] for part in phase.split("_"))
