"""Rules without code: `SIGNAL[.STATISTIC] OP NUMBER`, several joined by `and`.

The signal is one of the rulebook's, a concept of the catalogue or a logged name; the statistic one of `STATISTICS`
(the value itself where none is given).

>>> condition = parse("kl.fast > 0.5 and reward.rising < 1")
>>> [term.signal for term in condition]
['kl', 'reward']
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlvitals.errors import RuleError, did_you_mean
from rlvitals.health.alarm import Alarm
from rlvitals.health.statistics import Signal
from rlvitals.records import Severity

STATISTICS: dict[str, Callable[[Signal], float]] = {
    "value": operator.attrgetter("last"),
    "fast": operator.attrgetter("fast"),
    "slow": operator.attrgetter("slow"),
    "median5": operator.attrgetter("median5"),
    "base": operator.attrgetter("base"),
    "ratio": operator.attrgetter("ratio"),
    "noise": operator.attrgetter("noise"),
    "drop": operator.attrgetter("drop"),
    "rising": operator.attrgetter("rising"),
    "trend": operator.attrgetter("trend"),
    "top_age": operator.attrgetter("top_age"),
    "bottom_age": operator.attrgetter("bottom_age"),
    "zero_share": operator.attrgetter("zero_share"),
    "zero_streak": operator.attrgetter("zero_streak"),
    "equal_streak": operator.attrgetter("equal_streak"),
    "jump_ratio": operator.attrgetter("jump_ratio"),
    "spread": operator.attrgetter("spread"),
    "nonfinite": operator.attrgetter("nonfinite"),
    "points": operator.attrgetter("n"),
}

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
}
_TERM = re.compile(r"^(?P<what>\S+)\s*(?P<op>>=|<=|==|>|<)\s*(?P<number>[-+]?[0-9.]+(?:[eE][-+]?\d+)?)$")


@dataclass(frozen=True, slots=True)
class Term:
    """One comparison."""

    signal: str
    statistic: str
    op: str
    number: float

    def holds(self, signal: Signal) -> bool:
        return signal.n > 0 and _OPERATORS[self.op](STATISTICS[self.statistic](signal), self.number)


def parse(text: str, place: str = "the rule") -> list[Term]:
    """Read a condition; what is wrong with it is a RuleError that says how to write it."""
    terms = []
    for piece in re.split(r"\s+and\s+", text.strip()):
        match = _TERM.match(piece.strip())
        if match is None:
            raise RuleError(
                f"{place}: {piece!r} is no condition. Write SIGNAL[.STATISTIC] OP NUMBER, such as 'kl.fast > 0.5'"
            )
        signal, statistic = match["what"], "value"
        head, dot, tail = signal.rpartition(".")
        if dot and tail in STATISTICS:
            signal, statistic = head, tail
        elif dot and did_you_mean(tail, STATISTICS, 0.75) and "/" not in tail:
            raise RuleError(f"{place}: {tail!r} is no statistic.{did_you_mean(tail, STATISTICS, 0.75)}")
        try:
            number = float(match["number"])
        except ValueError as error:
            raise RuleError(f"{place}: {match['number']!r} is no number") from error
        terms.append(Term(signal, statistic, match["op"], number))
    return terms


def judge(terms: Sequence[Term], severity: Severity, signals: Sequence[Signal]) -> Alarm | None:
    """The alarm of a rule without code, when all of its terms hold."""
    for term, signal in zip(terms, signals, strict=True):
        if not term.holds(signal):
            return None
    first, signal = terms[0], signals[0]
    return Alarm(severity, signal, {"threshold": first.number, first.statistic: STATISTICS[first.statistic](signal)})
