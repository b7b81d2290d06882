"""Compiles the rules' YAML into the JSON the package loads, so that training processes need no YAML parser.

`python -m rlvitals.health.build` writes it; `--check` says whether it is up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rlvitals.codec import to_json
from rlvitals.errors import RuleError
from rlvitals.yaml_reader import read_yaml

DATA = Path(__file__).parent / "data"
TARGET = DATA / "rules.json"


def compiled() -> bytes:
    """The JSON of all data files."""
    rules = [entry for path in sorted((DATA / "rules").glob("*.yaml")) for entry in read_yaml(path, RuleError)]
    presets = {path.stem: read_yaml(path, RuleError) for path in sorted((DATA / "presets").glob("*.yaml"))}
    return to_json({"signals": read_yaml(DATA / "signals.yaml", RuleError), "rules": rules, "presets": presets})


def main(arguments: list[str]) -> int:
    """Write the file, or with `--check` compare it."""
    fresh = compiled()
    if "--check" in arguments:
        if TARGET.exists() and TARGET.read_bytes() == fresh:
            return 0
        print(f"{TARGET.name} is out of date: run python -m rlvitals.health.build", file=sys.stderr)
        return 1
    TARGET.write_bytes(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
