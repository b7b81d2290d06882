"""Compiles the authored YAML files to `catalog.json`: `python -m rlvitals.catalog.build [--check]`.

Parsing the YAML files is slow and needs a YAML parser. The compiled file loads in milliseconds with the JSON decoder
that the recorder uses anyway. A test fails when the two differ.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlvitals.catalog.source import parse
from rlvitals.errors import CatalogError, did_you_mean
from rlvitals.yaml_reader import read_yaml

DATA = Path(__file__).parent / "data"
COMPILED = DATA / "catalog.json"


def read_data() -> Iterator[tuple[str, Any]]:
    """The documents of the YAML files, each with its file's name."""
    for path in sorted(DATA.glob("*.yaml")):
        yield path.name, read_yaml(path, CatalogError)


def compile_data() -> str:
    """Validate every document and return the compiled JSON text."""
    documents, parsed = [], {}
    for where, document in read_data():
        parsed[where] = parse(document, where)
        documents.append({"where": where, "document": document})
    frameworks = {framework.id for data in parsed.values() for framework in data.frameworks}
    for where, data in parsed.items():
        for metric in data.metrics:
            for framework in {alias.framework for alias in metric.names} - frameworks:
                raise CatalogError(
                    f"{where}: metric {metric.id!r}: frameworks.yaml has no {framework!r}."
                    f"{did_you_mean(framework, frameworks)}"
                )
    return json.dumps(documents, ensure_ascii=False, separators=(",", ":")) + "\n"


def main(arguments: list[str]) -> int:
    """Compile, or with --check only compare; returns the exit code."""
    return write_generated(COMPILED, compile_data().encode(), arguments)


def write_generated(file: Path, fresh: bytes, arguments: list[str]) -> int:
    """Write a generated file, or with --check only compare it; returns the exit code."""
    if "--check" not in arguments:
        file.write_bytes(fresh)
    elif not file.exists() or file.read_bytes() != fresh:
        print(f"{file.name} is out of date; run: make catalog", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except CatalogError as error:
        sys.exit(f"error: {error}")
