"""A user's own limits for a gate: `reward>=0.8`, `speed>-10%`, `kl.max<0.5`.

    NAME[.STATISTIC] OP NUMBER[%]

NAME is one of the gate's measures, a logged metric or a concept of the catalogue. `reward` and `margin` stand for the
goal at the end of the run. Without `%` the candidate's value is compared; with `%`, its change from the baselines'
mean.

>>> parse_rule("speed > -10%")
GateRule(text='speed > -10%', name='speed', statistic='', operator='>', number=-0.1, is_change=True)
>>> parse_rule("kl.max<0.5").statistic
'max'
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlvitals.errors import ConfigError, NotComparable, UnknownMetric, did_you_mean
from rlvitals.render.numbers import number
from rlvitals.values import is_number
from rlvitals.views.gate_measures import Measure, Measured, curve_of
from rlvitals.views.run import RunView
from rlvitals.yaml_reader import read_yaml

STATISTICS: dict[str, Callable[[Any], float]] = {
    "final": lambda values: float(np.mean(values[-max(len(values) // 10, 1) :])),
    "last": lambda values: float(values[-1]),
    "mean": lambda values: float(np.mean(values)),
    "median": lambda values: float(np.median(values)),
    "max": lambda values: float(np.max(values)),
    "min": lambda values: float(np.min(values)),
}
"""Statistics of a metric's curve. The default is `final`, the mean of its last tenth."""

GOAL = ("reward", "margin", "goal")
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": lambda one, other: one >= other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    "<": lambda one, other: one < other,
}
_RULE = re.compile(
    r"\s*(?P<name>\S(?:.*?\S)?)\s*(?P<operator>>=|<=|>|<)\s*(?P<number>[-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*(?P<percent>%?)\s*"
)
_KEYS = ("rules", "margins", "alpha")


@dataclass(frozen=True, slots=True)
class GateRule:
    """One limit."""

    text: str
    name: str
    statistic: str
    operator: str
    number: float
    is_change: bool


@dataclass(frozen=True, slots=True)
class JudgedLimit:
    """The result of one limit."""

    title: str
    """The rule as it was written."""
    state: Literal["pass", "fail"]
    value: float
    """The candidate's value, or its change from the baselines' mean."""
    is_change: bool
    text: str


@dataclass(frozen=True, slots=True)
class RuleFile:
    """The contents of a file of limits."""

    rules: list[GateRule]
    margins: dict[str, float]
    alpha: float | None


def parse_rule(text: str) -> GateRule:
    """Parse a limit. Raises ConfigError."""
    parts = _RULE.fullmatch(text)
    try:
        amount = float(parts["number"]) if parts else math.nan
    except ValueError:
        amount = math.nan
    if parts is None or not math.isfinite(amount):
        raise ConfigError(
            f"--rule {text!r}: write NAME OP NUMBER, as in 'reward>=0.8' (a value) or 'speed>-10%' (a change beside "
            "the baselines); OP is one of >=, <=, > and <"
        )
    name, dot, last = parts["name"].rpartition(".")
    is_statistic = bool(dot) and last in STATISTICS
    is_change = bool(parts["percent"])
    return GateRule(
        text=text.strip(),
        name=name if is_statistic else parts["name"],
        statistic=last if is_statistic else "",
        operator=parts["operator"],
        number=amount / 100.0 if is_change else amount,
        is_change=is_change,
    )


def parse_margin(text: str) -> tuple[str, float]:
    """Parse `speed=5%` or `spikes=3`: a measure and the difference that matters. Raises ConfigError.

    >>> parse_margin("speed=5%"), parse_margin("spikes=3")
    (('speed', 0.05), ('spikes', 3.0))
    """
    name, equals, amount = text.partition("=")
    try:
        value = float(amount.strip().removesuffix("%")) / (100.0 if amount.strip().endswith("%") else 1.0)
    except ValueError:
        value = math.nan
    if not equals or not name.strip() or not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"--margin {text!r}: write MEASURE=SHARE, as in speed=5%")
    return name.strip(), value


def read_rules(path: str | os.PathLike[str]) -> RuleFile:
    """Read a YAML file: a list of limits, or `rules`, `margins` and `alpha`. Raises ConfigError."""
    content = read_yaml(path, ConfigError)
    if isinstance(content, list):
        content = {"rules": content}
    if not isinstance(content, Mapping):
        raise ConfigError(f"{os.fspath(path)!r} holds no list of rules and no mapping with {', '.join(_KEYS)}")
    for key in content:
        if key not in _KEYS:
            raise ConfigError(
                f"{os.fspath(path)!r}: there is no setting {key!r}.{did_you_mean(str(key), _KEYS)} "
                f"Settings: {', '.join(_KEYS)}"
            )
    rules = content.get("rules") or []
    margins = content.get("margins") or {}
    alpha = content.get("alpha")
    if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        raise ConfigError(f"{os.fspath(path)!r}: rules is a list of texts such as 'reward>=0.8'")
    if not isinstance(margins, Mapping):
        raise ConfigError(f"{os.fspath(path)!r}: margins is a mapping such as speed: 5%")
    if alpha is not None and not is_number(alpha):
        raise ConfigError(f"{os.fspath(path)!r}: alpha is a number, not {alpha!r}")
    return RuleFile(
        [parse_rule(rule) for rule in rules],
        dict(parse_margin(f"{name}={value}") for name, value in margins.items()),
        alpha,
    )


def is_rule_file(text: str) -> bool:
    """Whether `--rule` names a file of limits."""
    return Path(text).suffix in (".yaml", ".yml")


def judge_rules(
    rules: Sequence[GateRule], candidate: RunView, baselines: Sequence[RunView], measured: Measured
) -> list[JudgedLimit]:
    """Judge every limit. Raises NotComparable if a run does not log its metric."""
    return [_judged(rule, candidate, baselines, measured) for rule in rules]


def _judged(rule: GateRule, candidate: RunView, baselines: Sequence[RunView], measured: Measured) -> JudgedLimit:
    measure = _measure(rule, measured)
    if measure is not None:
        own, others = measure.candidate.value, [sample.value for sample in measure.baselines]
    else:
        own = _value(rule, candidate, measured.horizon)
        others = [_value(rule, view, measured.horizon) for view in baselines] if rule.is_change else []
    value, text = own, number(own)
    if rule.is_change:
        mean = sum(others) / len(others)
        if mean == 0:
            raise NotComparable(f"--rule {rule.text!r}: the baselines' mean is 0, so there is no change in per cent")
        value = (own - mean) / abs(mean)
        text = f"{number(own)}, {value:+.1%} beside the baselines' {number(mean)}"
    is_kept = OPERATORS[rule.operator](value, rule.number)
    return JudgedLimit(rule.text, "pass" if is_kept else "fail", value, rule.is_change, text)


def _measure(rule: GateRule, measured: Measured) -> Measure | None:
    """The gate's own measure for the name of a rule; None if there is none."""
    name = rule.name
    if name in GOAL and rule.statistic in ("", "final"):
        name = "final"
    elif rule.statistic:
        return None
    return next((measure for measure in measured.measures if measure.name == name), None)


def _value(rule: GateRule, view: RunView, horizon: int) -> float:
    name = rule.name
    if name in GOAL and view.outcome is not None and name not in view.metrics:
        name = view.outcome
    try:
        logged = view.resolve(name)
    except UnknownMetric as error:
        raise NotComparable(f"--rule {rule.text!r}: {view.path}: {error}") from None
    curve = curve_of(view, logged)
    values = curve.values[curve.steps <= horizon]
    if not len(values):
        raise NotComparable(f"--rule {rule.text!r}: {view.path} has no value of {logged!r} up to step {horizon}")
    return STATISTICS[rule.statistic or "final"](values)
