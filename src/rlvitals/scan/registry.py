"""The available scanners: those of rlvitals, and a user's, which are YAML entries with a pattern or Python functions.

A built-in scanner is a function in `exploits` or `habits` with a rule of the same name in
`health/data/rules/texts.yaml`. The rule has its texts and numbers and can disable it.

    scanners:
    - {name: says_trust_me, match: "trust me", severity: warning}
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.guard import words_of
from rlvitals.health.entries import FindingTexts, Rule
from rlvitals.records import KINDS, SEVERITIES, Group, Rollout
from rlvitals.scan import exploits, habits
from rlvitals.scan.reading import TEXT, Reading, Span, TextPart
from rlvitals.yaml_reader import read_yaml_with_lines

ScanFunction = Callable[[Reading], Iterable[Span]]

WHERE = ("all", "text", "calls", "answer")
_KEYS = ("name", "match", "where", "severity", "kind", "share", "title", "advice", "ignore_case")
_NAME = re.compile(r"^[A-Za-z][\w-]{0,60}$")

EXPLOITS = ("edited_tests", "special_cased_tests", "ends_the_process", "patched_checks", "reads_the_grader")
HABITS = (
    "only_the_format", "gives_no_number", "repeats_itself", "switches_language", "refuses", "does_not_reason",
    "copies_the_reference", "leaks_the_prompt", "says_the_same",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scanner:
    """A pattern that texts are searched for."""

    name: str
    find: ScanFunction
    """Yields the spans of a rollout that show the pattern."""
    rule: Rule | None = None
    """The rule that judges the hits of a user's scanner; None: the rulebook's rule of the same name."""


def shipped_scanners() -> list[Scanner]:
    """The built-in scanners."""
    ours = [*((exploits, name) for name in EXPLOITS), *((habits, name) for name in HABITS)]
    return [Scanner(name, getattr(module, name)) for module, name in ours]


def load_scanners(*sources: Any) -> list[Scanner]:
    """Load a user's scanners from YAML files, Python files, functions, and entries in the form of YAML. Raises
    ConfigError that names the file and the line.
    """
    found: list[Scanner] = []
    for source in sources:
        if callable(source):
            found.append(_of_function(source))
        elif isinstance(source, Mapping):
            found += _of_entries([source], "scanners", {}, ())
        elif isinstance(source, list | tuple):
            found += load_scanners(*source)
        elif Path(os.fspath(source)).suffix == ".py":
            found += _of_python(Path(os.fspath(source)))
        else:
            found += _of_yaml(os.fspath(source))
    taken = {scanner.name for scanner in shipped_scanners()}
    for scanner in found:
        if scanner.name in taken:
            raise ConfigError(f"the scanner {scanner.name!r} has the name of another one: give it its own")
        taken.add(scanner.name)
    return found


def _of_yaml(path: str) -> list[Scanner]:
    content, lines = read_yaml_with_lines(path, ConfigError)
    under: tuple[Any, ...] = ()
    if isinstance(content, Mapping):
        if unknown := [key for key in content if key != "scanners"]:
            line = lines.get((unknown[0],), 1)
            raise ConfigError(f"{path}, line {line}: unknown key {unknown[0]!r}; the list belongs under 'scanners:'")
        content, under = content.get("scanners"), ("scanners",)
    if not isinstance(content, list):
        raise ConfigError(
            f"{path}: a file of scanners is a list, or has one under 'scanners:', such as "
            '- {name: says_trust_me, match: "trust me", severity: warning}'
        )
    return _of_entries(content, path, lines, under)


def _of_entries(
    entries: Sequence[Any], source: str, lines: Mapping[tuple[Any, ...], int], under: tuple[Any, ...]
) -> list[Scanner]:
    def at(number: int, *keys: str) -> str:
        for path in ((*under, number, *keys), (*under, number)):
            if path in lines:
                return f"{source}, line {lines[path]}"
        return f"{source}, entry {number + 1}"

    found = []
    for number, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise ConfigError(f"{at(number)}: a scanner has at least 'name' and 'match', not {str(entry)[:80]!r}")
        for key in entry:
            if key not in _KEYS:
                raise ConfigError(f"{at(number, key)}: unknown key {key!r}.{did_you_mean(str(key), _KEYS)}")
        found.append(_of_entry(entry, lambda *keys, number=number: at(number, *keys)))
    return found


def _of_entry(entry: Mapping[str, Any], at: Callable[..., str]) -> Scanner:
    name = entry["name"]
    if not _NAME.match(name):
        raise ConfigError(f"{at('name')}: a name has letters, digits and _, not {name[:80]!r}")
    pattern = entry.get("match")
    if not isinstance(pattern, str) or not pattern:
        raise ConfigError(f"{at('match')}: the scanner {name!r} needs 'match', a text or a regular expression")
    try:
        compiled = re.compile(pattern, re.MULTILINE | (re.IGNORECASE if entry.get("ignore_case", True) else 0))
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{at('match')}: {pattern[:80]!r} is not a regular expression: {error}") from error
    if compiled.match(""):
        raise ConfigError(f"{at('match')}: {pattern[:80]!r} fits every text, the empty one too")
    where = entry.get("where", "all")
    if where not in WHERE:
        raise ConfigError(f"{at('where')}: where is one of {', '.join(WHERE)}, not {where!r}")
    rule = _rule(name, entry, at)

    def find(reading: Reading) -> Iterator[Span]:
        for part in _parts_in(reading, where):
            for match in compiled.finditer(part.text):
                if match.end() > match.start():
                    yield Span(part.turn, part.name, *match.span())

    return Scanner(name, find, rule)


def _parts_in(reading: Reading, where: str) -> list[TextPart]:
    if where == "answer":
        return [reading.last] if reading.last else []
    return [part for part in reading.parts if where == "all" or (part.name == TEXT) == (where == "text")]


def _rule(name: str, entry: Mapping[str, Any], at: Callable[..., str]) -> Rule:
    """The rule for a user's scanner: with the user's values, or with the numbers of the built-in exploits."""
    severity, kind, share = entry.get("severity"), entry.get("kind", "reward_hacking"), entry.get("share")
    if severity is not None and severity not in SEVERITIES:
        raise ConfigError(f"{at('severity')}: severity is one of {', '.join(SEVERITIES)}, not {severity!r}")
    if kind not in KINDS:
        known = f"{did_you_mean(str(kind), KINDS)} Known: {', '.join(KINDS)}"
        raise ConfigError(f"{at('kind')}: {kind!r} is not a kind.{known}")
    if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1):
        raise ConfigError(f"{at('share')}: share is between 0 and 1, not {share!r}")
    for key in ("title", "advice"):
        if not isinstance(entry.get(key, ""), str):
            raise ConfigError(f"{at(key)}: {key} is a text, not {entry[key]!r}")
    words = FindingTexts(
        entry.get("title") or f"{{share:.0%}} of the newest rollouts show {name} ({{hits:.0f}} in all)",
        ("found by a scanner of your own",),
        (entry.get("advice") or "read the cited rollouts",),
    )
    made = Rule(name, kind, function="gamed_text", words=words, confidence=0.5, hold=(1, 3), numbers=dict(_GAMED))
    if severity is None:
        return made if share is None else replace(made, numbers=_GAMED | {"share": float(share)})
    numbers = {"least": 3.0, "share": float(share or 0.0), "gravity": float(SEVERITIES.index(severity))}
    return replace(made, function="declared_text", numbers=numbers)


_GAMED = {
    "least": 3.0, "share": 0.02, "share_critical": 0.1, "share_alone": 0.5, "gain": 0.1, "gain_z": 3.0, "growth_z": 3.0,
}  # fmt: skip
"""The same numbers as those of the exploits in texts.yaml."""


def _of_function(function: Callable[[Rollout, Group], Iterable[Any]]) -> Scanner:
    """A scanner from a user's function. The function gets a rollout and its group and returns spans, quoted words, or
    True for the whole answer.
    """
    name = getattr(function, "__name__", type(function).__name__)
    declared: dict[str, Any] = dict(getattr(function, "scanner", {}))
    unknown = [key for key in declared if key not in _KEYS]
    where = f"the scanner {name!r}"
    if unknown:
        raise ConfigError(f"{where}: unknown key {unknown[0]!r} in its 'scanner'.{did_you_mean(unknown[0], _KEYS)}")
    rule = _rule(name, declared, lambda *_: where)

    def find(reading: Reading) -> Iterator[Span]:
        found = function(reading.rollout, reading.group)
        for item in _listed(found):
            if (span := _span(item, reading)) is not None:
                yield span

    return Scanner(name, find, rule)


def _listed(found: Any) -> Iterable[Any]:
    if found is None or found is False:
        return ()
    if found is True or isinstance(found, str | Span):
        return (found,)
    return found  # type: ignore[no-any-return]


def _span(item: Any, reading: Reading) -> Span | None:
    """The position of a user's hit, which is a span, words of the text, or True for the whole answer."""
    if isinstance(item, Span):
        return item
    if isinstance(item, str):
        for part in reading.parts:
            if item and (start := part.text.find(item)) >= 0:
                return Span(part.turn, part.name, start, start + len(item))
    last = reading.last or (reading.parts[-1] if reading.parts else None)
    return Span(last.turn, last.name, 0, len(last.text)) if last and (item is True or isinstance(item, str)) else None


def _of_python(path: Path) -> list[Scanner]:
    """The scanners in a Python file that the user named. The file is executed."""
    name = f"rlvitals_scanners_{path.stem}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"{path}: there is no such file of scanners")
    module = module_from_spec(spec)
    try:
        sys.modules[name] = module
        spec.loader.exec_module(module)
    except Exception as error:  # a user's file may raise anything: it is reported in one line
        line = _line_in(error, path)
        raise ConfigError(f"{path}{line}: it cannot be run: {words_of(error)}") from error
    functions = [
        value
        for key, value in vars(module).items()
        if callable(value) and not key.startswith("_") and getattr(value, "__module__", "") == name
        and not isinstance(value, type)
    ]  # fmt: skip
    if not functions:
        raise ConfigError(
            f"{path}: it has no scanner: its own function, such as "
            "def says_trust_me(rollout, group): return ['trust me'] if 'trust me' in rollout.turns[-1].text else []"
        )
    return [_of_function(function) for function in functions]


def _line_in(error: Exception, path: Path) -> str:
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    trace, line = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    return line
