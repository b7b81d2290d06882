"""The filter's expressions compared with Python's `re`, and expressions on which `re` never ends."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from expression_table import ENDLESS, EXPRESSIONS, NAMES, REFUSED
from rlvitals.errors import ConfigError
from rlvitals.views.expressions import LONGEST_TEXT, Expression


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_expression_finds_what_python_finds(text):
    ours, theirs = Expression(text), re.compile(text.replace("$", r"\Z"), re.IGNORECASE)
    assert [ours.is_found_in(name) for name in NAMES] == [theirs.search(name) is not None for name in NAMES]


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_expression_or_needs_trying_is_refused_with_a_reason(text):
    with pytest.raises(ConfigError, match=r"\w+ \w+"):
        Expression(text)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(("text", "name", "is_found"), ENDLESS)
def test_no_expression_takes_for_ever(text, name, is_found):
    assert Expression(text).is_found_in(name) is is_found


def test_a_text_is_looked_at_as_far_as_a_name_may_be_long():
    assert Expression("b").is_found_in("a" * (LONGEST_TEXT - 1) + "b")
    assert not Expression("b").is_found_in("a" * LONGEST_TEXT + "b")


parts = some.recursive(
    some.sampled_from(["a", "b", "A", ".", "[ab]", "[^a]", r"\d", r"\b", "^", r"\Z", "1"]),
    lambda inner: some.one_of(
        some.lists(inner, max_size=3).map("".join),
        some.lists(inner, min_size=1, max_size=3).map(lambda several: f"({'|'.join(several)})"),
        some.tuples(inner, some.sampled_from(["*", "+", "?", "{2}", "{1,2}", "*?"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=6,
)


@given(parts, some.lists(some.text("abA1 \n", max_size=7), min_size=1, max_size=5))
def test_any_expression_finds_what_python_finds(text, names):
    ours, theirs = Expression(text.replace(r"\Z", "$")), re.compile(text, re.IGNORECASE)
    for name in names:
        assert ours.is_found_in(name) == (theirs.search(name) is not None)
