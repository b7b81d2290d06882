"""The rules a monitor runs: the shipped ones, those of plug-ins and presets, and the changes that users make.

A rule is a function of `rules/` with an entry in `data/rules/*.yaml`, or an entry alone (a metric, a statistic, a
number), which also has a one-line form. A rule file holds a list of entries. An entry whose `rule` is known changes
only the keys it names. An entry whose `rule` is a pattern (`"*"`) changes every rule that matches. Any other entry adds
a rule.

>>> book = load("kl > 0.5 for 5: warning", [{"rule": "plateau", "enabled": False}])
>>> book.rules["kl > 0.5 for 5: warning"].kind, book.rules["plateau"].enabled
('kl_explosion', False)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rlvitals import plugins
from rlvitals.codec import parse_json
from rlvitals.errors import RuleError, did_you_mean
from rlvitals.health import conditions
from rlvitals.health import entries as _entries
from rlvitals.health.case import SignalSource
from rlvitals.health.entries import EntryPlace, FindingTexts, Rule, parse_line
from rlvitals.yaml_reader import read_yaml_with_lines

__all__ = ["DEFAULT", "FindingTexts", "Rule", "Rulebook", "from_data", "load", "parse_line", "presets", "shipped"]

DEFAULT = "default"

_COMPILED = Path(__file__).parent / "data" / "rules.json"

LineNumbers = Mapping[tuple[Any, ...], int]


class Rulebook:
    """The rules a monitor runs, by name, and where their signals come from."""

    def __init__(self, rules: Iterable[Rule], sources: Iterable[SignalSource]) -> None:
        self.rules: dict[str, Rule] = {rule.rule: rule for rule in rules}
        self.sources = tuple(sources)

    @property
    def signal_names(self) -> set[str]:
        return {source.name for source in self.sources}

    def changed_by(self, entries: Sequence[Any], where: str, lines: LineNumbers | None = None) -> Rulebook:
        """A rulebook with a list of entries on top. Raises RuleError that names the line, where lines are known."""
        rules = dict(self.rules)
        under = ("rules",) if lines and ("rules",) in lines else ()
        for number, entry in enumerate(entries):
            place = EntryPlace(where, (*under, number), lines or {})
            rules |= {rule.rule: rule for rule in _entries.parse(entry, rules, place, self.sources)}
        return Rulebook(rules.values(), self.sources)

    def with_own_signals(self) -> Rulebook:
        """Add a signal for each concept or logged name that a rule reads and that is not a known signal."""
        known, added = self.signal_names, []
        for rule in self.rules.values():
            names = (
                [term.signal for term in conditions.parse(rule.when, rule.where)] if rule.when else rule.reads.values()
            )
            for name in names:
                if name not in known:
                    known.add(name)
                    added.append(SignalSource(name, (name,), key=name))
        return Rulebook(self.rules.values(), (*self.sources, *added)) if added else self


def load(*sources: str | Path | Sequence[Any]) -> Rulebook:
    """The shipped rules and the plug-ins', changed by presets (`kto_guide`), rule files, one-line rules and lists of
    entries, in the order given: later entries override earlier ones. Metrics that only these rules read become
    separate signals. `default` changes nothing: with it, a run that was monitored with other rules can be judged by the
    shipped ones.
    """
    book = _with_plugins()
    for source in sources:
        if source == DEFAULT:
            continue
        if isinstance(source, str) and source in presets():
            book = book.changed_by(presets()[source], f"the preset {source}")
        elif isinstance(source, str) and not Path(source).exists() and _entries.is_line(source):
            book = Rulebook([*book.rules.values(), parse_line(source, sources=book.sources)], book.sources)
        else:
            book = _changed_by(book, source, "rules")
    return book.with_own_signals()


def _changed_by(book: Rulebook, source: Any, where: str) -> Rulebook:
    """A rulebook changed by a rule file, a list of entries, or a mapping with one under `rules`."""
    if isinstance(source, str | os.PathLike):
        where = os.fspath(source)
        return book.changed_by(*_entries_of(*_read(source), where))
    return book.changed_by(*_entries_of(source, None, where))


def entries_in(path: str | os.PathLike[str]) -> list[Any]:
    """The entries of a rule file, not checked. Raises RuleError if it is not a rule file."""
    return list(_entries_of(*_read(path), os.fspath(path))[0])


def _entries_of(source: Any, lines: LineNumbers | None, where: str) -> tuple[Sequence[Any], str, LineNumbers | None]:
    if isinstance(source, Mapping):
        if unknown := [key for key in source if key != "rules"]:
            line = f", line {lines[(unknown[0],)]}" if lines else ""
            raise RuleError(f"{where}{line}: unknown key {unknown[0]!r}; a rule file has its list under 'rules:'")
        source = source.get("rules")
    if not isinstance(source, list | tuple):
        raise RuleError(f"{where}: a rule file is a list of rules, or has one under 'rules:'")
    return source, where, lines


@cache
def _compiled() -> dict[str, Any]:
    data: dict[str, Any] = parse_json(_COMPILED.read_bytes())
    return data


@cache
def shipped() -> Rulebook:
    """The shipped rules, without changes by plug-ins or users."""
    return from_data(_compiled())


def from_data(data: Mapping[str, Any]) -> Rulebook:
    """The rulebook of the data files in their compiled form."""
    sources = [
        SignalSource(
            name,
            tuple(entry.get("concepts", ())),
            tuple(re.compile(text) for text in entry.get("names", ())),
            takes_highest=entry.get("of_several") == "highest",
        )
        for name, entry in data["signals"].items()
    ]
    return Rulebook((), sources).changed_by(data["rules"], "the shipped rules")


def _with_plugins() -> Rulebook:
    book = shipped()
    for where, source in _plugins():
        book = _changed_by(book, source, where)
    return book


@cache
def _plugins() -> tuple[tuple[str, Any], ...]:
    """What other packages have registered under `rlvitals.rules`: rule files by path, or lists of entries."""
    return tuple(plugins.load("rules"))


@cache
def presets() -> dict[str, list[Any]]:
    """The named sets of rules that come with rlvitals."""
    found: dict[str, list[Any]] = _compiled()["presets"]
    return found


def causes() -> dict[str, Any]:
    """The texts and numbers with which `gap` explains the cause of a gap."""
    found: dict[str, Any] = _compiled()["causes"]
    return found


def _read(path: str | os.PathLike[str]) -> tuple[Any, LineNumbers]:
    if isinstance(path, str) and not Path(path).exists():
        known = ", ".join(sorted([*presets(), DEFAULT]))
        raise RuleError(
            f"{path!r} is neither a rule file, nor a rule such as 'kl > 0.5 for 5: warning', nor one of the presets "
            f"({known}).{did_you_mean(path, presets())}"
        )
    return read_yaml_with_lines(path, RuleError)
