"""Compiles the rules' YAML into the JSON the package loads, so that training processes need no YAML parser.

`python -m rlvitals.health.build` writes it; `--check` checks whether it is up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rlvitals.catalog.build import write_generated
from rlvitals.codec import to_json
from rlvitals.errors import RuleError
from rlvitals.health.rulebook import from_data
from rlvitals.yaml_reader import read_yaml, read_yaml_with_lines

DATA = Path(__file__).parent / "data"
TARGET = DATA / "rules.json"


def compiled() -> bytes:
    """The JSON of all data files. Raises RuleError that names the file and line of a wrong entry."""
    signals = read_yaml(DATA / "signals.yaml", RuleError)
    book = from_data({"signals": signals, "rules": []})
    rules, presets = [], {}
    for path in sorted((DATA / "rules").glob("*.yaml")):
        entries, lines = read_yaml_with_lines(path, RuleError)
        book = book.changed_by(entries, path.name, lines)
        rules += entries
    for path in sorted((DATA / "presets").glob("*.yaml")):
        presets[path.stem], lines = read_yaml_with_lines(path, RuleError)
        book.changed_by(presets[path.stem], path.name, lines)
    causes = read_yaml(DATA / "causes.yaml", RuleError)
    return to_json({"signals": signals, "rules": rules, "presets": presets, "causes": causes})


def main(arguments: list[str]) -> int:
    """Write the file, or with `--check` compare it."""
    return write_generated(TARGET, compiled(), arguments)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RuleError as error:
        sys.exit(f"error: {error}")
