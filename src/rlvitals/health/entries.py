"""Reads one entry of a rule file; an error names the line and the problem.

An entry is a mapping, or a rule in its one-line form:

>>> parse_line("kl > 0.5 for 5: warning").when
'kl > 0.5'
>>> parse_line("reward.drop > 0.2: critical").severity
'critical'
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple

from rlvitals import catalog
from rlvitals.errors import RuleError, UnknownMetric, did_you_mean
from rlvitals.health import conditions
from rlvitals.health.case import SignalSource
from rlvitals.health.rules import FUNCTIONS
from rlvitals.records import ACTIONS, KINDS, SEVERITIES, Action, Severity
from rlvitals.values import is_number, is_whole

FAMILIES = ("policy", "preference", "other")
MAX_HOLD = 60
NO_SIGNALS = frozenset({"case", "recheck", "one_slice", "scanned"})
"""Parameters of a rule's function that are not signals: the run's facts, a step compared with its tokens, one slice of
an outcome at a time, and a pattern in the texts of rollouts."""
_HOLD = re.compile(r"^(\d+) of (\d+)$")
_LINE = re.compile(r"^\s*(?P<when>.+?)(?:\s+for\s+(?P<points>\d+))?\s*:\s*(?P<severity>info|warning|critical)\s*$")


@dataclass(frozen=True, slots=True)
class FindingTexts:
    """The texts of a finding."""

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
    reads: dict[str, str] = field(default_factory=dict)
    """Which signal, concept or logged name the function gets for one of its parameters: {reward: Epoch/AvgReward}."""
    severity: Severity = "warning"
    """The severity of a rule without code."""
    families: tuple[str, ...] = ()
    """The algorithm families it is for; empty for all."""
    algorithms: tuple[str, ...] = ()
    """The algorithms it is for; empty for all of the families."""
    warm_up: int = 0
    """Points its first signal must have."""
    hold: tuple[int, int] = (2, 3)
    """(n, m): the rule must hold at n of the last m points."""
    hold_critical: tuple[int, int] | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    words: FindingTexts = FindingTexts()
    variants: dict[str, FindingTexts] = field(default_factory=dict)
    action: Action = "none"
    """The action that a warning requests."""
    action_critical: Action = "warn"
    certain: bool = False
    """Whether one critical finding of this rule is enough to stop."""
    confidence: float = 0.7
    enabled: bool = True
    echoes: tuple[str, ...] = ()
    """Rules that report the same problem more clearly. After one of them is raised, this one is held back a while."""
    sources: tuple[str, ...] = ()
    where: str = ""
    """The file and line it comes from, for messages."""

    def texts_of(self, variant: str) -> FindingTexts:
        """The texts of a variant; texts that it does not define are the rule's plain ones."""
        plain = self.words
        other = self.variants.get(variant)
        if other is None:
            return plain
        return FindingTexts(other.title or plain.title, other.causes or plain.causes, other.advice or plain.advice)


@dataclass(frozen=True, slots=True)
class EntryPlace:
    """The place of an entry in its file, for messages."""

    source: str
    path: tuple[Any, ...] = ()
    lines: Mapping[tuple[Any, ...], int] = field(default_factory=dict)
    name: str = ""

    def at(self, *keys: Any) -> str:
        """The place of a value inside the entry, as precisely as it is known."""
        named = f" ({self.name})" if self.name else ""
        for length in range(len(keys), -1, -1):
            if line := self.lines.get((*self.path, *keys[:length])):
                return f"{self.source}, line {line}{named}"
        number = f", rule {self.path[-1] + 1}" if self.path else ""
        return f"{self.source}{number}{named}"


class Parameters(NamedTuple):
    """The parameters of a rule's function."""

    signals: tuple[tuple[str, bool], ...]
    """Names in order; True where the signal is optional."""
    numbers: frozenset[str]


@cache
def parameters(function: str) -> Parameters:
    """The signals and numbers of a function of `rules/`."""
    signals, numbers = [], set()
    for name, parameter in inspect.signature(FUNCTIONS[function]).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            numbers.add(name)
        else:
            signals.append((name, "None" in str(parameter.annotation)))
    return Parameters(tuple(signals), frozenset(numbers))


def is_line(text: str) -> bool:
    """Whether a text is meant as a one-line rule, well formed or not."""
    return _LINE.match(text) is not None or re.search(r"[<>]|==", text) is not None


def parse_line(text: str, place: str = "the rule", sources: Sequence[SignalSource] = ()) -> Rule:
    """A rule in its one-line form: CONDITION [for POINTS]: SEVERITY."""
    match = _LINE.match(text)
    if match is None:
        raise RuleError(
            f"{place}: {text!r} is not a rule. Write CONDITION [for POINTS]: SEVERITY, as in 'kl > 0.5 for 5: warning' "
            f"({', '.join(SEVERITIES)})"
        )
    points = int(match["points"] or 1)
    if not 0 < points <= MAX_HOLD:
        raise RuleError(f"{place}: 'for {points}': a rule can ask for 1 to {MAX_HOLD} points")
    when = " ".join(match["when"].split())
    term = conditions.parse(when, place)[0]
    severity: Severity = match["severity"]  # type: ignore[assignment]
    held = f" for {points}" if points > 1 else ""
    return Rule(
        # The whole line is its name: two rules may have the same condition with two severities.
        rule=f"{when}{held}: {severity}",
        kind=kind_of(term, sources),
        when=when,
        severity=severity,
        hold=(points, points),
        words=FindingTexts(f"{when}{held}{' points' if held else ''} (now {{{term.statistic}:.4g}})"),
        action="warn",
        confidence=1.0,
        where=place,
    )


_WORDS = ("title", "causes", "advice")
_KEYS = sorted({entry.name for entry in fields(Rule)} - {"words", "where"} | set(_WORDS))
_FOR_ALL = ("enabled", "action", "action_critical", "certain", "confidence", "hold", "hold_critical", "warm_up")
"""The keys that an entry for many rules may change."""


def parse(entry: Any, known: Mapping[str, Rule], place: EntryPlace, sources: Sequence[SignalSource]) -> list[Rule]:
    """The rules an entry adds or changes: one, or all that match its pattern."""
    if isinstance(entry, Mapping) and len(entry) == 1 and "rule" not in entry:
        entry = ": ".join(
            str(part) for part in next(iter(entry.items()))
        )  # a one-line rule that YAML read as a key and a value
    if isinstance(entry, str):
        return [parse_line(entry, place.at(), sources)]
    if not isinstance(entry, Mapping) or not isinstance(entry.get("rule"), str):
        raise RuleError(
            f"{place.at()}: a rule is a mapping with 'rule: NAME', or a line such as 'kl > 0.5 for 5: warning'"
        )
    name = entry["rule"]
    place = replace(place, name=name)
    if "*" in name:
        return _parse_pattern(entry, known, place)
    for key in entry:
        if key not in _KEYS:
            raise RuleError(f"{place.at(key)}: unknown key {key!r}.{did_you_mean(str(key), _KEYS)}")
    present = known.get(name)
    if present is None and not {"kind", "when", "function"} & entry.keys():
        raise RuleError(
            f"{place.at()}: no rule has this name, and a new one needs a 'when' or a 'function'."
            f"{did_you_mean(name, known)}"
        )
    rule = present or Rule(rule=name, kind="", function="" if "when" in entry else name)
    rule = replace(rule, where=place.at())
    changes = {key: _checked(key, value, rule, place) for key, value in entry.items() if key not in (*_WORDS, "rule")}
    if present is not None and "when" in entry:
        changes = {"numbers": {}, "reads": {}} | changes | {"function": ""}  # a condition replaces the function
    rule = replace(rule, words=_words(entry, rule.words, place), **changes)
    check(rule, place, {source.name for source in sources})
    if rule.kind:
        return [rule]
    if not rule.when:
        raise RuleError(f"{place.at()}: a new rule needs a 'kind': one of {', '.join(KINDS)}")
    return [replace(rule, kind=kind_of(conditions.parse(rule.when)[0], sources))]


def _parse_pattern(entry: Mapping[str, Any], known: Mapping[str, Rule], place: EntryPlace) -> list[Rule]:
    """An entry with `rule: "*"` (or `gradient_*`), for some `kinds` or all: it changes every rule that matches."""
    for key in entry:
        if key not in ("rule", "kinds", *_FOR_ALL):
            raise RuleError(
                f"{place.at(key)}: unknown key {key!r} for many rules at once.{did_you_mean(str(key), _FOR_ALL)} "
                f"It may say: kinds, {', '.join(_FOR_ALL)}"
            )
    kinds = _texts("kinds", entry.get("kinds", list(KINDS)), place.at("kinds"))
    for number, kind in enumerate(kinds):
        _known_kind(kind, place.at("kinds", number))
    fitting = [rule for name, rule in known.items() if fnmatchcase(name, entry["rule"]) and rule.kind in kinds]
    if not fitting:
        raise RuleError(f"{place.at()}: no rule fits this pattern{' and these kinds' if 'kinds' in entry else ''}")
    return [
        replace(rule, **{key: _checked(key, value, rule, place) for key, value in entry.items() if key in _FOR_ALL})
        for rule in fitting
    ]


def check(rule: Rule, place: EntryPlace, signals: set[str]) -> None:
    """Raise RuleError where a rule's data and its condition or function disagree."""
    if rule.when:
        conditions.parse(rule.when, place.at("when"))
        if rule.reads or rule.numbers:
            raise RuleError(f"{place.at('numbers')}: a rule with 'when' has neither numbers nor 'reads'")
        return
    if rule.function not in FUNCTIONS:
        raise RuleError(
            f"{place.at('function')}: no rule function is called {rule.function!r}."
            f"{did_you_mean(rule.function, FUNCTIONS)}"
        )
    asked, expected = parameters(rule.function)
    for name in rule.numbers:
        if name not in expected:
            raise RuleError(
                f"{place.at('numbers', name)}: {rule.function} has no number {name!r}.{did_you_mean(name, expected)} "
                f"Its numbers: {', '.join(sorted(expected)) or 'none'}"
            )
    if missing := expected - rule.numbers.keys():
        raise RuleError(f"{place.at('numbers')}: the numbers {', '.join(sorted(missing))} are missing")
    names = {name for name, _ in asked} - NO_SIGNALS
    for name in rule.reads:
        if name not in names:
            raise RuleError(
                f"{place.at('reads', name)}: {rule.function} reads no {name!r}.{did_you_mean(name, names)} "
                f"It reads: {', '.join(sorted(names))}"
            )
    if unbound := names - rule.reads.keys() - signals:
        raise RuleError(f"{place.at('reads')}: say what {rule.function} reads as {', '.join(sorted(unbound))}")


def _checked(key: str, value: Any, rule: Rule, place: EntryPlace) -> Any:
    """One value of an entry, checked and converted to the form that a Rule keeps."""
    here = place.at(key)
    if key == "kind":
        return _known_kind(value, here)
    if key == "severity" and value not in SEVERITIES:
        raise RuleError(f"{here}: severity is one of {', '.join(SEVERITIES)}, not {value!r}")
    if key in ("action", "action_critical") and value not in ACTIONS:
        raise RuleError(f"{here}: {key} is one of {', '.join(ACTIONS)}, not {value!r}")
    if key in ("hold", "hold_critical"):
        match = _HOLD.match(str(value))
        if match is None or not 0 < int(match[1]) <= int(match[2]) <= MAX_HOLD:
            raise RuleError(f"{here}: {key} is written '3 of 5' (at most {MAX_HOLD}), not {value!r}")
        return (int(match[1]), int(match[2]))
    if key == "numbers":
        return _numbers(value, rule, place)
    if key == "reads":
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for pair in value.items() for name in pair):
            raise RuleError(f"{here}: reads is a mapping of the function's names to metrics, not {value!r}")
        return rule.reads | dict(value)
    if key == "families":
        if not isinstance(value, list) or any(family not in FAMILIES for family in value):
            raise RuleError(f"{here}: families is a list of {', '.join(FAMILIES)}, not {value!r}")
        return tuple(value)
    if key == "algorithms":
        return tuple(name.lower() for name in _texts(key, value, here))
    if key in ("sources", "echoes"):
        return _texts(key, value, here)
    if key == "variants":
        return _variants(value, rule, place)
    if key == "warm_up" and (not is_whole(value) or value < 0):
        raise RuleError(f"{here}: warm_up is a number of points, not {value!r}")
    if key in ("enabled", "certain") and not isinstance(value, bool):
        raise RuleError(f"{here}: {key} is true or false, not {value!r}")
    if key == "confidence" and (not is_number(value) or not 0 <= value <= 1):
        raise RuleError(f"{here}: confidence is between 0 and 1, not {value!r}")
    if key in ("function", "when"):
        return _text(key, value, here)
    return value


def _known_kind(value: Any, here: str) -> str:
    if value not in KINDS:
        raise RuleError(f"{here}: {value!r} is not a kind.{did_you_mean(str(value), KINDS)} Known: {', '.join(KINDS)}")
    return str(value)


def _numbers(value: Any, rule: Rule, place: EntryPlace) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise RuleError(f"{place.at('numbers')}: numbers is a mapping of names to numbers, not {value!r}")
    for name, number in value.items():
        # The comparison rejects NaN and integers that are too large for a float.
        if not is_number(number) or not abs(number) <= sys.float_info.max:
            raise RuleError(f"{place.at('numbers', name)}: {name} must be a number, not {number!r}")
    return rule.numbers | {str(name): float(number) for name, number in value.items()}


def _variants(value: Any, rule: Rule, place: EntryPlace) -> dict[str, FindingTexts]:
    if not isinstance(value, Mapping) or not all(isinstance(words, Mapping) for words in value.values()):
        raise RuleError(f"{place.at('variants')}: variants is a mapping of names to words (title, causes, advice)")
    for name, words in value.items():
        for key in words:
            if key not in _WORDS:
                raise RuleError(
                    f"{place.at('variants', name, key)}: unknown key {key!r}.{did_you_mean(str(key), _WORDS)}"
                )
    return rule.variants | {
        str(name): _words(words, rule.variants.get(name, FindingTexts()), place, "variants", name)
        for name, words in value.items()
    }


def _words(entry: Mapping[str, Any], present: FindingTexts, place: EntryPlace, *path: Any) -> FindingTexts:
    """The texts of an entry; those that it does not give stay as they are."""
    title, causes, advice = present.title, present.causes, present.advice
    if "title" in entry:
        title = _text("title", entry["title"], place.at(*path, "title"))
    if "causes" in entry:
        causes = _texts("causes", entry["causes"], place.at(*path, "causes"))
    if "advice" in entry:
        advice = _texts("advice", entry["advice"], place.at(*path, "advice"))
    return FindingTexts(title, causes, advice)


def _text(key: str, value: Any, here: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise RuleError(f"{here}: {key} is a text, not {value!r}")
    return value


def _texts(key: str, value: Any, here: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise RuleError(f"{here}: {key} is a list of texts, not {value!r}")
    return tuple(value)


KIND_OF_SIGNAL = {
    "kl": ("kl_explosion", "kl_negative"), "kto_kl": ("kl_explosion", "kl_negative"),
    "update_kl": ("kl_explosion", "kl_negative"), "entropy": ("entropy_explosion", "entropy_collapse"),
    "grad_norm": ("grad_explosion", "dead_gradient"), "loss": ("loss_divergence", "loss_divergence"),
    "policy_loss": ("loss_divergence", "loss_divergence"), "value_loss": ("value_failure", "value_failure"),
    "explained_variance": ("value_failure", "value_failure"), "reward": ("data", "reward_collapse"),
    "eval_score": ("data", "overfit"), "eval_loss": ("overfit", "overfit"),
    "length": ("length_explosion", "length_collapse"), "truncated": ("truncation", "truncation"),
    "clip": ("clip_saturation", "clip_saturation"), "ratio": ("ratio_off", "ratio_off"),
    "staleness": ("staleness", "staleness"), "zero_variance": ("zero_variance", "zero_variance"),
    "margin": ("overfit", "margin_inversion"), "chosen": ("data", "likelihood_displacement"),
    "pair_accuracy": ("saturated", "margin_inversion"), "logp_chosen": ("data", "logprob_crash"),
    "turns": ("turn_runaway", "tool_abandonment"), "tool_calls": ("turn_runaway", "tool_abandonment"),
    "tool_failures": ("tool_errors", "tool_errors"), "step_time": ("throughput", "throughput"),
    "tokens_per_s": ("throughput", "throughput"), "gpu_utilisation": ("gpu_idle", "gpu_idle"),
    "gpu_memory": ("memory", "memory"), "gpu_memory_share": ("memory", "memory"),
    "host_memory_share": ("memory", "memory"), "lr": ("lr_too_high", "lr_too_low"),
}  # fmt: skip
"""The kind of a rule without code that names none, by its signal: above the number, and below it."""


def kind_of(term: conditions.Term, sources: Sequence[SignalSource]) -> str:
    """The kind of a condition that names none: that of the signal its metric feeds."""
    name = term.signal
    if name not in KIND_OF_SIGNAL:
        try:
            concept = catalog.find(name)[0].metric.id
        except UnknownMetric:
            return "data"
        name = next((source.name for source in sources if concept in source.concepts), "")
    if name == "reward" and term.statistic == "top_age":
        return "plateau"
    above, below = KIND_OF_SIGNAL.get(name, ("data", "data"))
    # A drop is a fall, but its number grows.
    return below if ("<" in term.op) != (term.statistic == "drop") else above
