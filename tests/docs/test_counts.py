"""Counts in the documents match the data."""

from __future__ import annotations

import re

import pytest

from conftest import REPO
from rlvitals import catalog
from rlvitals.health import rulebook


@pytest.mark.parametrize("page", ["README.md", "docs/doctor.md", "CHANGELOG.md"])
def test_the_number_of_rules_and_kinds_is_correct(page):
    rules, kinds = re.search(r"(\d+) rules for (\d+) kinds", (REPO / page).read_text()).groups()
    shipped = rulebook.shipped().rules
    assert (int(rules), int(kinds)) == (len(shipped), len({entry.kind for entry in shipped.values()}))


@pytest.mark.usefixtures("shipped_catalogue")
def test_the_number_of_concepts_is_correct():
    told = re.search(r"(\d+) concepts", (REPO / "README.md").read_text())[1]
    assert int(told) == len(list(catalog.metrics()))
