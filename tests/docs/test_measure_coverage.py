"""The page that says which function computes which metric tells the truth."""

from __future__ import annotations

import csv
import re
from importlib import import_module

import pytest

from conftest import REPO

PAGE = REPO / "docs" / "measure-coverage.md"
ROWS = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| `([^`]+)` \|$", PAGE.read_text(), re.MULTILINE)


def resolve(dotted: str) -> object:
    """The object a dotted name stands for: the longest part that is a module, then attributes."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return found
    raise AssertionError(f"{dotted} is no module")


@pytest.mark.parametrize("function", sorted({function for _, function, _ in ROWS}))
def test_every_function_exists(function):
    assert callable(resolve(function))


@pytest.mark.parametrize("test", sorted({test for _, _, test in ROWS}))
def test_every_test_exists(test):
    file, name = test.split("::")
    assert re.search(rf"^def {name}\(", (REPO / file).read_text(), re.MULTILINE)


def test_every_metric_of_the_documents_is_there_once(shared):
    with (shared / "reference" / "document-metrics.tsv").open() as file:
        listed = [row["name"] for row in csv.DictReader(file, delimiter="\t") if row["document"] in ("001", "004")]
    assert len(listed) == 89 + 35
    assert sorted(name for name, _, _ in ROWS) == sorted(listed)
