"""Counts in the documents match the data. They are rounded down, so that one more rule or metric changes no page."""

from __future__ import annotations

import re

import pytest

from conftest import REPO
from rlvitals import catalog
from rlvitals.health import rulebook


def stated(page, pattern):
    return [int(number.replace(",", "")) for number in re.search(pattern, (REPO / page).read_text()).groups()]


def rounded_down(number, unit):
    return number // unit * unit


@pytest.mark.parametrize("page", ["README.md", "docs/doctor.md"])
def test_the_number_of_rules_and_kinds_is_correct(page):
    shipped = rulebook.shipped().rules
    kinds = {entry.kind for entry in shipped.values()}
    found = stated(page, r"more than (\d+) rules for more than (\d+) kinds")
    assert found == [rounded_down(len(shipped), 100), rounded_down(len(kinds), 10)]


@pytest.mark.usefixtures("shipped_catalogue")
def test_the_number_of_concepts_and_names_is_correct():
    metrics = list(catalog.metrics())
    names = sum(len(metric.names) for metric in metrics)
    found = stated("README.md", r"more than (\d+) concepts and ([\d,]+) names")
    assert found == [rounded_down(len(metrics), 100), rounded_down(names, 100)]
