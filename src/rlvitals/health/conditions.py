"""Rules without code: `SIGNAL[.STATISTIC] OP NUMBER`, several joined by `and`.

The signal is one of the rulebook's, a concept of the catalogue or a logged name, which may contain spaces. The
statistic is one of `STATISTICS`; without one it is the value itself. A concept's name is read as a whole, so
`train.loss.trend` is the concept. For a logged name that ends like a statistic, write `NAME.value`.

>>> condition = parse("kl.fast > 0.5 and reward.rising < 1")
>>> [term.signal for term in condition]
['kl', 'reward']
>>> parse("loss outside 0.4..0.6")[0].number, parse("loss outside 0.4..0.6")[0].upper
(0.4, 0.6)
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from rlvitals import catalog
from rlvitals.errors import RuleError, did_you_mean
from rlvitals.health.alarm import Alarm
from rlvitals.health.statistics import Signal
from rlvitals.records import Severity


def _change(signal: Signal) -> float:
    window = signal.window
    return window[-1] - window[-2] if len(window) > 1 else math.nan


STATISTICS: dict[str, Callable[[Signal], float]] = {
    "value": operator.attrgetter("last"),
    "change": _change,
    "fast": operator.attrgetter("fast"),
    "slow": operator.attrgetter("slow"),
    "median5": operator.attrgetter("median5"),
    "base": operator.attrgetter("base"),
    "ratio": operator.attrgetter("ratio"),
    "noise": operator.attrgetter("noise"),
    "drop": operator.attrgetter("drop"),
    "highest": operator.attrgetter("highest"),
    "lowest": operator.attrgetter("lowest"),
    "rising": operator.attrgetter("rising"),
    "trend": operator.attrgetter("trend"),
    "top_age": operator.attrgetter("top_age"),
    "bottom_age": operator.attrgetter("bottom_age"),
    "zero_share": operator.attrgetter("zero_share"),
    "zero_streak": operator.attrgetter("zero_streak"),
    "equal_streak": operator.attrgetter("equal_streak"),
    "jump": operator.attrgetter("jump"),
    "jump_ratio": operator.attrgetter("jump_ratio"),
    "spread": operator.attrgetter("spread"),
    "nonfinite": operator.attrgetter("nonfinite"),
    "points": operator.attrgetter("n"),
    "at_step": operator.attrgetter("step"),
}
"""The statistics that a condition may use; `statistics.Signal` defines each. `at_step` is the training step of the last
value, for rules that begin or end at a step."""

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
}
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_WHAT = r"[^\s<>=](?:[^<>=]|=(?=[A-Za-z{]))*?"
"""A signal and its statistic; a slice has a label in its name: `reward/env=math`."""
_TERM = re.compile(rf"^(?P<what>{_WHAT})\s*(?P<op>>=|<=|==|>|<)\s*(?P<number>{_NUMBER})$")
_BAND = re.compile(rf"^(?P<what>{_WHAT})\s+outside\s+(?P<number>{_NUMBER})\s*\.\.\s*(?P<upper>{_NUMBER})$")


@dataclass(frozen=True, slots=True)
class Term:
    """One comparison."""

    signal: str
    statistic: str
    op: str
    number: float
    upper: float = math.nan
    """The other end of the band, for `outside`."""

    def holds(self, signal: Signal) -> bool:
        if not signal.n:
            return False
        value = STATISTICS[self.statistic](signal)
        if self.op == "outside":
            return value < self.number or value > self.upper
        return _OPERATORS[self.op](value, self.number)


@cache
def _concepts() -> frozenset[str]:
    return frozenset(metric.id for metric in catalog.metrics())


def parse(text: str, place: str = "the rule") -> list[Term]:
    """Read a condition. Raises RuleError that shows how to write it."""
    terms = []
    for piece in re.split(r"\s+and\s+", text.strip()):
        match = _BAND.match(piece.strip()) or _TERM.match(piece.strip())
        if match is None:
            points = re.search(r" for (\d+)$", piece)  # as in a rule of one line
            held = f". The points are a separate key of the entry: 'hold: {points[1]} of {points[1]}'" if points else ""
            raise RuleError(
                f"{place}: {piece!r} is not a condition. Write SIGNAL[.STATISTIC] OP NUMBER, as in 'kl.fast > 0.5', or "
                f"SIGNAL outside LOW..HIGH{held}"
            )
        signal, statistic = _split(match["what"], place)
        found = match.groupdict()
        upper = float(found["upper"]) if "upper" in found else math.nan
        term = Term(signal, statistic, found.get("op", "outside"), float(match["number"]), upper)
        if term.op == "outside" and not term.number < term.upper:
            raise RuleError(f"{place}: {piece!r}: the band's first number must be below its second")
        terms.append(term)
    return terms


def _split(what: str, place: str) -> tuple[str, str]:
    """The name and the statistic in a term."""
    head, dot, tail = what.rpartition(".")
    if not dot or not head or what in _concepts():
        return what, "value"
    if tail in STATISTICS:
        return head, tail
    if "/" not in tail and (guess := did_you_mean(tail, STATISTICS, 0.75)):
        raise RuleError(
            f"{place}: {tail!r} is not a statistic.{guess} (For a metric of that name write '{what}.value')"
        )
    return what, "value"


def judge(terms: Sequence[Term], severity: Severity, signals: Sequence[Signal]) -> Alarm | None:
    """The alarm of a rule without code, when all of its terms hold."""
    for term, signal in zip(terms, signals, strict=True):
        if not term.holds(signal):
            return None
    first, signal = terms[0], signals[0]
    evidence: dict[str, float | str] = {"threshold": first.number, first.statistic: STATISTICS[first.statistic](signal)}
    if first.op == "outside":
        evidence["low"], evidence["high"] = first.number, first.upper
    for term, other in zip(terms[1:], signals[1:], strict=True):
        evidence[f"{term.signal}.{term.statistic}"] = STATISTICS[term.statistic](other)
    return Alarm(severity, signal, evidence)
