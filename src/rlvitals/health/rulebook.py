"""The rules' data: numbers, warm-ups, words, causes, advice, actions, sources; ours, and what users change of it.

A rule is a function of `rules/` with an entry here, or an entry alone (a concept, a detector, numbers), which also has
a one-line form:

>>> parse_line("kl > 0.5 for 5: warning").when
'kl > 0.5'
>>> parse_line("reward.drop > 0.2: critical").severity
'critical'

A rule file holds a list of entries. One whose `rule` is known changes that rule (only what it names); another adds one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from rlvitals.codec import parse_json
from rlvitals.errors import RuleError, did_you_mean
from rlvitals.health.case import SignalSource
from rlvitals.records import ACTIONS, KINDS, SEVERITIES, Action, Severity
from rlvitals.yaml_reader import read_yaml_with_lines

_COMPILED = Path(__file__).parent / "data" / "rules.json"

FAMILIES = ("policy", "preference", "other")
_HOLD = re.compile(r"^(\d+) of (\d+)$")
_LINE = re.compile(r"^\s*(?P<when>[^:]+?)(?:\s+for\s+(?P<points>\d+))?\s*:\s*(?P<severity>info|warning|critical)\s*$")


@dataclass(frozen=True, slots=True)
class Words:
    """What is said of a finding."""

    title: str = ""
    causes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule's entry."""

    rule: str
    kind: str
    function: str = ""
    """The function of `rules/`; empty for a rule without code."""
    when: str = ""
    """The condition of a rule without code: `kl.fast > 0.5`."""
    severity: Severity = "warning"
    """That rule's severity."""
    families: tuple[str, ...] = ()
    """The algorithm families it is for; empty for all."""
    algorithms: tuple[str, ...] = ()
    """The algorithms it is for; empty for all of the families."""
    warm_up: int = 0
    """Points its first signal must have."""
    hold: tuple[int, int] = (2, 3)
    """It must hold at so many of the last so many points."""
    hold_critical: tuple[int, int] | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    words: Words = Words()
    variants: dict[str, Words] = field(default_factory=dict)
    action: Action = "none"
    """What a warning asks for."""
    action_critical: Action = "warn"
    certain: bool = False
    """Whether one critical of it is enough to stop."""
    confidence: float = 0.7
    enabled: bool = True
    sources: tuple[str, ...] = ()
    where: str = ""
    """The file and line it comes from, for messages."""

    def says(self, variant: str) -> Words:
        """The words for a variant; what it leaves out is the plain wording's."""
        plain = self.words
        other = self.variants.get(variant)
        if other is None:
            return plain
        return Words(other.title or plain.title, other.causes or plain.causes, other.advice or plain.advice)


class Rulebook:
    """The rules a monitor runs, by name, and where their signals come from."""

    def __init__(self, rules: Iterable[Rule], sources: Iterable[SignalSource]) -> None:
        self.rules: dict[str, Rule] = {rule.rule: rule for rule in rules}
        self.sources = tuple(sources)

    @property
    def signal_names(self) -> set[str]:
        return {source.name for source in self.sources}

    def changed_by(
        self, entries: Sequence[Any], where: str, lines: Mapping[tuple[Any, ...], int] | None = None
    ) -> Rulebook:
        """A rulebook with a user's entries on top."""
        rules = dict(self.rules)
        for number, entry in enumerate(entries):
            line = (lines or {}).get(("rules", number)) or (lines or {}).get((number,))
            place = f"{where}, line {line}" if line else f"{where}, rule {number + 1}"
            rule = _parse(entry, rules, place, self.signal_names)
            rules[rule.rule] = rule
        return Rulebook(rules.values(), self.sources)


def load(*sources: str | Path | Sequence[Any]) -> Rulebook:
    """The shipped rules, changed by presets (`kto_guide`), rule files, lists of entries and one-line rules, in that
    order.
    """
    book = _shipped()
    for source in sources:
        if isinstance(source, str) and source in presets():
            book = book.changed_by(presets()[source], f"the preset {source}")
        elif isinstance(source, str) and _LINE.match(source):
            book = book.changed_by([source], "the rule")
        elif isinstance(source, str | Path):
            data, lines = _read(source)
            book = book.changed_by(data, str(source), lines)
        else:
            book = book.changed_by(list(source), "rules")
    return book


@cache
def _compiled() -> dict[str, Any]:
    data: dict[str, Any] = parse_json(_COMPILED.read_bytes())
    return data


@cache
def _shipped() -> Rulebook:
    data = _compiled()
    sources = [
        SignalSource(name, tuple(entry.get("concepts", ())), tuple(re.compile(text) for text in entry.get("names", ())))
        for name, entry in data["signals"].items()
    ]
    return Rulebook((), sources).changed_by(data["rules"], "the shipped rules")


@cache
def presets() -> dict[str, list[Any]]:
    """The named sets of rules that come with rlvitals."""
    found: dict[str, list[Any]] = _compiled()["presets"]
    return found


def _read(path: str | Path) -> tuple[list[Any], dict[tuple[Any, ...], int]]:
    if isinstance(path, str) and not Path(path).exists():
        known = ", ".join(sorted(presets()))
        raise RuleError(
            f"{path!r} is neither a rule file, nor a rule such as 'kl > 0.5 for 5: warning', nor one of the presets "
            f"({known}).{did_you_mean(path, presets())}"
        )
    data, lines = read_yaml_with_lines(path, RuleError)
    if isinstance(data, Mapping):
        data = data.get("rules")
    if not isinstance(data, list):
        raise RuleError(f"{path}: a rule file is a list of rules, or has one under 'rules:'")
    return data, lines


def parse_line(text: str, place: str = "the rule") -> Rule:
    """A rule in its one-line form: CONDITION [for POINTS]: SEVERITY."""
    match = _LINE.match(text)
    if match is None:
        raise RuleError(
            f"{place}: {text!r} is no rule. Write CONDITION [for POINTS]: SEVERITY, such as 'kl > 0.5 for 5: warning'"
        )
    points = int(match["points"] or 1)
    when = " ".join(match["when"].split())
    severity: Severity = match["severity"]  # type: ignore[assignment]
    return Rule(
        rule=when,
        kind="data",
        when=when,
        severity=severity,
        hold=(points, points),
        words=Words(f"{when} for {points} points" if points > 1 else when),
        confidence=1.0,
        where=place,
    )


_FIELDS = {entry.name for entry in fields(Rule)} - {"words", "where"} | {"title", "causes", "advice"}


def _parse(entry: Any, known: Mapping[str, Rule], place: str, signals: set[str]) -> Rule:
    if isinstance(entry, str):
        return _with_kind(parse_line(entry, place), signals)
    if not isinstance(entry, Mapping) or not isinstance(entry.get("rule"), str):
        raise RuleError(f"{place}: a rule is a mapping with 'rule: NAME', or a line such as 'kl > 0.5 for 5: warning'")
    name = entry["rule"]
    place = f"{place} ({name})"
    for key in entry:
        if key not in _FIELDS:
            raise RuleError(f"{place}: unknown key {key!r}.{did_you_mean(str(key), _FIELDS)}")
    present = known.get(name)
    if present is None and "kind" not in entry and "when" not in entry:
        raise RuleError(
            f"{place}: no rule has this name, and a new one needs a 'when' and a 'kind'.{did_you_mean(name, known)}"
        )
    rule = present or Rule(rule=name, kind=entry.get("kind", ""), function="" if "when" in entry else name)
    rule = replace(rule, where=place)
    changes: dict[str, Any] = {}
    for key, value in entry.items():
        if key not in ("title", "causes", "advice", "rule"):
            changes[key] = _checked(key, value, rule, place)
    words = Words(
        _text("title", entry["title"], place) if "title" in entry else rule.words.title,
        _texts("causes", entry["causes"], place) if "causes" in entry else rule.words.causes,
        _texts("advice", entry["advice"], place) if "advice" in entry else rule.words.advice,
    )
    rule = replace(rule, words=words, **changes)
    return rule if rule.kind else _with_kind(rule, signals)


def _checked(key: str, value: Any, rule: Rule, place: str) -> Any:
    if key == "kind" and value not in KINDS:
        raise RuleError(f"{place}: {value!r} is no kind.{did_you_mean(str(value), KINDS)} Known: {', '.join(KINDS)}")
    if key == "severity" and value not in SEVERITIES:
        raise RuleError(f"{place}: severity is one of {', '.join(SEVERITIES)}, not {value!r}")
    if key in ("action", "action_critical") and value not in ACTIONS:
        raise RuleError(f"{place}: {key} is one of {', '.join(ACTIONS)}, not {value!r}")
    if key in ("hold", "hold_critical"):
        match = _HOLD.match(str(value))
        if match is None or not 0 < int(match[1]) <= int(match[2]) <= 60:
            raise RuleError(f"{place}: {key} is written '3 of 5' (at most 60), not {value!r}")
        return (int(match[1]), int(match[2]))
    if key == "numbers":
        return _numbers(value, rule, place)
    if key == "families":
        if not isinstance(value, list) or any(family not in FAMILIES for family in value):
            raise RuleError(f"{place}: families is a list of {', '.join(FAMILIES)}, not {value!r}")
        return tuple(value)
    if key in ("algorithms", "sources"):
        return _texts(key, value, place)
    if key == "variants":
        if not isinstance(value, Mapping):
            raise RuleError(f"{place}: variants is a mapping of names to words")
        return rule.variants | {
            name: Words(
                str(words.get("title", "")),
                _texts("causes", words.get("causes", []), place),
                _texts("advice", words.get("advice", []), place),
            )
            for name, words in value.items()
        }
    if key == "warm_up" and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise RuleError(f"{place}: warm_up is a number of points, not {value!r}")
    if key in ("enabled", "certain") and not isinstance(value, bool):
        raise RuleError(f"{place}: {key} is true or false, not {value!r}")
    if key == "confidence" and not (isinstance(value, int | float) and 0 <= value <= 1):
        raise RuleError(f"{place}: confidence is between 0 and 1, not {value!r}")
    if key in ("function", "when"):
        return _text(key, value, place)
    return value


def _numbers(value: Any, rule: Rule, place: str) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise RuleError(f"{place}: numbers is a mapping of names to numbers")
    for name, number in value.items():
        if rule.numbers and name not in rule.numbers:
            raise RuleError(
                f"{place}: it has no number {name!r}.{did_you_mean(str(name), rule.numbers)} "
                f"Its numbers: {', '.join(rule.numbers)}"
            )
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise RuleError(f"{place}: {name} must be a number, not {number!r}")
    return rule.numbers | {name: float(number) for name, number in value.items()}


def _text(key: str, value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise RuleError(f"{place}: {key} is a text, not {value!r}")
    return value


def _texts(key: str, value: Any, place: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise RuleError(f"{place}: {key} is a list of texts, not {value!r}")
    return tuple(value)


KIND_OF_SIGNAL = {
    "kl": "kl_explosion", "kto_kl": "kl_explosion", "update_kl": "kl_explosion", "entropy": "entropy_collapse",
    "grad_norm": "grad_explosion", "loss": "loss_divergence", "policy_loss": "loss_divergence",
    "value_loss": "value_failure", "reward": "reward_collapse", "eval_score": "overfit", "eval_loss": "overfit",
    "length": "length_explosion", "truncation": "truncation", "clip": "clip_saturation", "ratio": "ratio_off",
    "staleness": "staleness", "explained_variance": "value_failure", "zero_variance": "zero_variance",
    "margin": "margin_inversion", "turns": "turn_runaway", "tool_failures": "tool_errors", "step_time": "throughput",
    "tokens_per_s": "throughput", "gpu_utilisation": "gpu_idle", "gpu_memory": "memory", "lr": "lr_too_high",
}  # fmt: skip
"""What a simple rule about a signal is taken to be about, where it does not say."""


def _with_kind(rule: Rule, signals: set[str]) -> Rule:
    signal = rule.when.split(".")[0].split()[0] if rule.when else ""
    return replace(rule, kind=KIND_OF_SIGNAL.get(signal, "data"))
