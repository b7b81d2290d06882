"""The evidence of a finding as text: how each number of a rule is worded, and which numbers are shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rlvitals.render.charts import short

_PHRASES = {
    "level": "moving average {}", "base": "at the start {}", "noise": "typical noise {}", "points": "{} points",
    "best": "best {}", "highest": "highest {}", "lowest": "lowest {}", "value": "last value {}", "first": "first {}",
    "limit": "limit {}", "cap": "limit {}", "ceiling": "limit {}", "threshold": "limit {}", "most": "limit {}",
    "least": "limit {}", "largest": "limit {}", "band": "within ±{}", "allowed": "{} allowed", "target": "target {}",
    "silence": "no row for {} s", "usual": "usually {}", "count": "{} times", "streak": "{} in a row",
    "distance": "{} standard errors away", "away": "moved by {} times its initial noise",
    "depth": "{} times the noise of the moving average below 0",
    "after": "after step {}", "missed": "missing in {} rows", "age": "{} points without a new best",
    "best_step": "best at step {}", "arrival": "about {} points left", "left": "about {} points left",
    "jump": "typical jump between rows {}", "jumps": "jumps are {} times as large as at the start",
    "signs": "seen in {} metrics", "spread": "range over the run {}", "change": "changed by {}",
    "t": "{} standard errors",
    "chance": "{} expected by chance", "share": "a share of {}", "kept": "{} kept", "growth": "grown by {}",
    "total": "the parts add up to {}", "start": "{} at the start", "now": "now {}", "level_now": "now {}",
    "eval_then": "evaluation before {}", "climb": "climbed by {}", "ended": "ended at step {}", "rows": "{} rows",
    "eval_now": "evaluation now {}", "eval_best": "evaluation at its best {}", "true_gain": "true reward gained {}",
    "balance": "{} to 1", "net": "net {}", "length": "answers are {} times as long",
    "waiting": "{} of the time without a processor",
    "progress": "{} of the planned steps",
    "gain": "gained {}", "drop": "fell by {}", "risen": "risen by {}", "percent": "{} %",
}  # fmt: skip
"""The wording of each number of the evidence, in the order shown. A number without an entry is shown under its name."""

_TEXT_PHRASES = {
    "start_share": "{} at the start", "hits": "{} rollouts show it", "of_rollouts": "of {} that were read",
    "gain": "they earn {} more than others of the same prompt", "gain_z": "{} times as much as chance explains",
    "growth_z": "the rise is {} times what chance explains",
}  # fmt: skip
"""The same for patterns in the texts of rollouts."""

_OF_EVERY_FINDING = frozenset({"value", "level", "base", "noise", "points"})
"""Shown even if the title contains the same number."""

ROUNDING = 2e-9
"""A noise of at most this share of the level is that of equal values: a signal's noise is never 0."""

_NUMBER = re.compile(r"([-+]?\d[\d,]*)(?:\.(\d+))?(?:e([-+]?\d+))?(\s?%)?")
"""A number in a title: its whole part, decimals, exponent and percent sign."""

_FOLLOWING = {"times", "ratio", "rise", "fall", "share"}
"""Numbers that follow from the level and the start; left out if the evidence has both."""


def evidence(finding: Mapping[str, Any]) -> str:
    """The evidence as one line: the metric, its level now and at the start, then the other numbers that the rule used.
    Of these, numbers that the title contains are left out.
    """
    facts = finding["evidence"]
    left_out = {"metric"} | (_FOLLOWING if "level" in facts and "base" in facts else set())
    if "level" in facts:
        left_out.add("value")
    title = finding.get("title", "")
    phrases = _TEXT_PHRASES | _PHRASES | _TEXT_PHRASES if "hits" in facts else _PHRASES  # those for texts come first
    order = {name: place for place, name in enumerate(phrases)}
    words = []
    for name in sorted(facts.keys() - left_out, key=lambda name: (order.get(name, len(order)), name)):
        value = facts[name]
        if name == "points" and value == 0:
            continue  # there was no finite value
        if name == "noise" and _is_rounding(value, facts.get("level", 0.0)):
            continue
        if name not in _OF_EVERY_FINDING and _is_in_title(value, title):
            continue
        if isinstance(value, int | float):
            text = f"{value:,.0f}" if float(value).is_integer() else short(value)
            words.append(phrases.get(name, f"{name.replace('_', ' ')} {{}}").format(text))
        elif isinstance(value, str) and value != "nan":
            words.append(f"{name.replace('_', ' ')}: {value}")
    metric = facts.get("metric") or ", ".join(finding["metrics"])
    known = ", ".join(words)
    return f"{metric}: {known}" if metric and known else str(metric) or known


def _is_rounding(noise: object, level: object) -> bool:
    """Whether a noise is that of equal values, or of none."""
    if not isinstance(noise, int | float) or not isinstance(level, int | float):
        return False
    return noise <= ROUNDING * abs(level)


def _is_in_title(value: object, title: str) -> bool:
    """Whether a title contains the value: a text word for word, a number rounded or as a percentage."""
    if isinstance(value, str):
        return value in title
    if not isinstance(value, int | float):
        return False
    for digits, decimals, exponent, percent in _NUMBER.findall(title):
        unit = 10.0 ** (int(exponent or 0) - len(decimals) - (2 if percent else 0))
        if abs(float(digits.replace(",", "") + decimals) * unit - value) <= 0.51 * unit:
            return True
    return False
