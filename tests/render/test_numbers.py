"""Numbers for people are short, whatever their size."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvitals.render.numbers import number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e300, "1e+300"),
        (-sys.float_info.max, "-1.798e+308"),
        (1234567890123456.5, "1.235e+15"),
        (999_999_999_999_999, "999,999,999,999,999"),
        (12345.678, "12,345.7"),
    ],
)
def test_a_number_is_written_out_only_while_that_is_readable(value, text):
    assert number(value) == text


@given(st.floats(-1e307, 1e307))
def test_a_number_takes_at_most_twenty_letters_and_stays_itself(value):
    text = number(value)
    assert len(text) <= 20
    assert float(text.replace(",", "")) == pytest.approx(value, rel=1e-3)
