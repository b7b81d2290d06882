"""Which metric names do the frameworks emit, and how many of them does the catalogue resolve?

    python benchmarks/framework_names.py collect SOURCES [NAME]  # reads checkouts, writes framework_names.tsv again
    python benchmarks/framework_names.py table             # writes docs/framework-names.md from that list
    python benchmarks/framework_names.py missing [NAME]    # names that the catalogue does not resolve

`framework_names.yaml` lists for each framework the version to read and the keys in its code that are metrics; SOURCES
has one folder for each (`at` there). `framework_keys.py` reads the keys. The resulting list, `framework_names.tsv`, is
committed: facts only (name, example, file and line, concept), so that the table needs no sources. Read its diff before
you commit it: the last column is the meaning of a name in the catalogue. If only the catalogue changed, `resolve`
rewrites that column.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import framework_keys
from rlvitals import catalog
from rlvitals.errors import ConfigError
from rlvitals.yaml_reader import read_yaml

HERE = Path(__file__).parent
RECIPES = HERE / "framework_names.yaml"
LIST = HERE / "framework_names.tsv"
PAGE = HERE.parent / "docs" / "framework-names.md"
COLUMNS = ("framework", "trainer", "pattern", "example", "source", "concept")
LEAST_SHARE = 0.95

PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Name:
    """One name that a framework emits."""

    framework: str
    trainer: str
    """The framework of the catalogue in which it is looked up: `trl_grpo` for a name of TRL's GRPOTrainer."""
    pattern: str
    example: str
    source: str
    """File and line of the key in the framework's code."""
    concept: str = ""
    """The concept in the catalogue; empty if the name is unknown."""


def recipes() -> list[dict]:
    return read_yaml(RECIPES, ConfigError)["frameworks"]


def meaning(name: Name) -> str:
    """The concept of the name in its framework; empty for none, or if only another framework has the name."""
    found = catalog.reader(name.trainer).matches(name.example)
    return found[0].metric.id if found and found[0].in_framework else ""


def listed() -> list[Name]:
    with LIST.open(encoding="utf-8", newline="") as file:
        return [Name(**row) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def write(names: list[Name]) -> None:
    with LIST.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE, lineterminator="\n")
        rows.writerow(COLUMNS)
        rows.writerows([*(getattr(name, column) for column in COLUMNS[:-1]), meaning(name)] for name in names)


def collected(recipe: dict, sources: Path) -> Iterator[Name]:
    """The names of one framework: those its rules select from the code, then those listed by hand."""
    root = sources / recipe["at"]
    seen = set()
    for rule in recipe["rules"]:
        trainer = rule.get("trainer", recipe["id"])
        picked = _written(rule, root) if "names" in rule else _picked(rule, root)
        count = 0
        for key, source in picked:
            for pattern in _patterns(key, rule, recipe):
                count += 1
                if (trainer, pattern) not in seen:
                    seen.add((trainer, pattern))
                    yield Name(recipe["id"], trainer, pattern, _example(pattern, rule, recipe), source)
        if not count:
            raise SystemExit(f"{recipe['id']}: the rule {rule} finds nothing in {root}")


def _picked(rule: dict, root: Path) -> Iterator[tuple[str, str]]:
    """Keys in the code with one of the rule's containers."""
    into, scope = re.compile(rule["into"]), re.compile(rule.get("of", ""))
    only, but = re.compile(rule.get("only", ".+")), re.compile(rule.get("but", "$^"))
    for path in _files(rule, root):
        for key in framework_keys.keys(path.read_text(encoding="utf-8")):
            if not into.fullmatch(key.container) or not scope.search(key.scope):
                continue
            if only.fullmatch(key.name) and not but.fullmatch(key.name):
                yield key.name, f"{path.relative_to(root)}:{key.line}"


def _written(rule: dict, root: Path) -> Iterator[tuple[str, str]]:
    """Names that the code builds in a way the syntax tree does not show, with the line that builds them."""
    (path,) = _files(rule, root)
    lines = path.read_text(encoding="utf-8").splitlines()
    line = next((number for number, text in enumerate(lines, 1) if rule["line"] in text), None)
    if line is None:
        raise SystemExit(f"{path}: no line has {rule['line']!r}")
    for name in rule["names"]:
        yield name, f"{path.relative_to(root)}:{line}"


def _files(rule: dict, root: Path) -> list[Path]:
    patterns = rule["in"] if isinstance(rule["in"], list) else [rule["in"]]
    found = sorted({path for pattern in patterns for path in root.glob(pattern) if "test" not in path.name})
    if not found:
        raise SystemExit(f"{root}: no file is called {rule['in']}")
    return found


def _patterns(key: str, rule: dict, recipe: dict) -> Iterator[str]:
    """The full names of a key: with what the framework adds around it, and the alternatives listed in the code."""
    for template in rule.get("as", ["{}"]):
        expanded = {**recipe.get("expand", {}), **rule.get("expand", {})}
        pieces = PLACEHOLDER.split(template.replace("{}", key))
        choices = [
            [piece] if place % 2 == 0 else [str(value) for value in expanded.get(piece, ["{" + piece + "}"])]
            for place, piece in enumerate(pieces)
        ]
        for chosen in product(*choices):
            yield (
                re.sub(r"@(mean|max|min|sum|std)$", "", "".join(chosen)) if recipe["id"] == "roll" else "".join(chosen)
            )


def _example(pattern: str, rule: dict, recipe: dict) -> str:
    examples = {**recipe.get("examples", {}), **rule.get("examples", {})}

    def value(found: re.Match[str]) -> str:
        if found[1] not in examples:
            raise SystemExit(f"{recipe['id']}: {pattern} needs an example of {found[1]!r}")
        return str(examples[found[1]])

    return PLACEHOLDER.sub(value, pattern)


def page(names: list[Name]) -> str:
    """The page for the docs."""
    rows = []
    for recipe in recipes():
        own = [name for name in names if name.framework == recipe["id"]]
        known = [name for name in own if meaning(name)]
        rows.append(
            f"| {recipe['title']} | {recipe['version']} | {len(own)} | {len(known)} | {len(known) / len(own):.1%} |"
        )
    every, known = len(names), sum(bool(meaning(name)) for name in names)
    return PAGE_TEXT.format(rows="\n".join(rows), every=every, known=known)


PAGE_TEXT = """# Names that frameworks emit

How many of the metric names in each framework's code the [catalogue](metrics/README.md) resolves: {known} of {every}.

| framework | version | names | resolved | share |
|---|---|---|---|---|
{rows}

**Names** are collected from the syntax tree of the given version: keys of the dictionaries and calls that reach the
framework's logger, with the prefixes and suffixes that its reducers add. A name with a part that depends on the run (an
environment, a reward function, a layer) counts once. Histograms, tables, recipes, examples and tests are left out;
torchtune's recipes are its trainers, and are read.
Where a framework passes on whatever a user's environment or reward function returns, that name counts once, as a
pattern.

**Resolved** means that `rlvitals explain NAME --framework FRAMEWORK` finds a concept under that framework's own name.
Names that only count, time or configure something have concepts in the [progress](metrics/progress.md),
[time](metrics/time.md) and [system](metrics/system.md) families. A number that differs from its concept carries a
caveat, which `explain` prints: `statistic` says that it is another statistic of the same values, such as the largest
one where the concept is the mean.

The list, with the file and line of every name and its concept, is `benchmarks/framework_names.tsv`. A test fails when a
framework falls below 95 %, when a name changes its concept, or when a pattern explains just any name.

Of a random sample of 60 names, compared with the code that computes them, 59 had the right concept. One, an older entry
(prime-rl's `is_completed`), measures something else, and its caveat states this. Five others had a missing or inexact
caveat; they were corrected. Two checks over the whole list, of names that an open pattern explained and of names with
several meanings, found 16 wrong concepts, which were corrected too. Not every other entry was compared with the code:
many times, counts and settings were entered by their names.

```bash
python benchmarks/framework_names.py collect SOURCES   # folders of the frameworks, see benchmarks/framework_names.yaml
python benchmarks/framework_names.py table
```
"""


def main(arguments: list[str]) -> None:
    match arguments:
        case ["collect", sources, *only]:
            before = listed() if only else []
            write(
                [
                    name
                    for recipe in recipes()
                    for name in (
                        [old for old in before if old.framework == recipe["id"]]
                        if only and recipe["id"] not in only
                        else collected(recipe, Path(sources))
                    )
                ]
            )
        case ["resolve"]:
            write(listed())
        case ["table"]:
            PAGE.write_text(page(listed()), encoding="utf-8")
        case ["missing", *only]:
            for name in listed():
                if (not only or name.framework in only) and not meaning(name):
                    print(name.framework, name.trainer, name.pattern, name.source, sep="\t")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
