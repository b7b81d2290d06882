"""Charts of characters: the curve, the mark and the labels are in the right place for any series."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvitals.render.charts import HEIGHT, ChartSeries, chart


def series(values, steps=None):
    rows = list(range(1, len(values) + 1))
    return ChartSeries(rows, steps or rows, values, values)


def test_the_mark_stands_where_the_trouble_began():
    drawn = series([float(step) for step in range(1, 101)])
    assert drawn.onset(41, 60) == pytest.approx(40 / 99)
    assert drawn.onset(1, 60) == 0.0
    assert drawn.onset(100, 100) == 1.0
    lines = chart(drawn, drawn.onset(41, 60), "since 41", width=66, ascii_only=True)
    start = len("100 |")
    assert lines[HEIGHT].index("^") - start == round(40 / 99 * (66 - start - 1 + 1 - 1))
    assert lines[HEIGHT].index("^") == lines[HEIGHT + 1].index("since 41")


def test_a_mark_in_the_first_part_of_a_log_that_starts_again_stays_there():
    drawn = series([0.0] * 40, [*range(1, 21), *range(1, 21)])
    assert drawn.onset(5, 10) == pytest.approx(4 / 39)
    assert drawn.onset(5, 30) == pytest.approx(24 / 39)
    assert drawn.onset(0, 30) == pytest.approx(20 / 39)  # never before the restart


def test_a_series_that_begins_after_the_finding_has_no_mark():
    late = ChartSeries([50, 60], [50, 60], [1.0, 2.0], [1.0, 2.0])
    assert late.onset(10, 20) is None


def test_a_rising_series_fills_from_the_lower_left_to_the_upper_right():
    for ascii_only in (True, False):
        lines = chart(series([float(step) for step in range(30)]), None, "", width=40, ascii_only=ascii_only)
        inner = [line.partition("|" if ascii_only else "│")[2] for line in lines[:HEIGHT]]
        firsts = [len(line) - len(line.lstrip()) for line in inner]
        assert firsts == sorted(firsts, reverse=True)
        assert firsts[-1] == 0
        assert lines[0].startswith("29")
        assert lines[HEIGHT - 1].startswith(" 0")


def test_a_spike_within_a_bucket_is_drawn():
    lows, highs = [0.0] * 50, [0.0] * 50
    highs[25] = 9.0
    rows = list(range(1, 51))
    lines = chart(ChartSeries(rows, rows, lows, highs), None, "", width=40, ascii_only=True)
    assert "*" in lines[0]


def test_a_series_that_differs_by_rounding_alone_is_drawn_as_constant():
    constant, rounded = ([0.5 + wave * n for n in (0, 1, 0, 1)] for wave in (0.0, 1e-9))
    drawn = [
        chart(ChartSeries([1, 2, 3, 4], [1, 2, 3, 4], values, values), None, "", ascii_only=True)
        for values in (constant, rounded)
    ]
    assert drawn[0] == drawn[1]


def test_a_constant_series_is_one_line_with_one_label():
    lines = chart(series([0.5] * 20), None, "", width=40, ascii_only=True)
    assert [line.count("*") > 20 for line in lines[:HEIGHT]].count(True) == 1
    assert "".join(lines).count("0.5") == 1


def test_nothing_finite_is_no_chart():
    assert chart(series([None, None]), 0.0, "since 1", ascii_only=True) == []


@given(
    st.lists(st.none() | st.floats(-1e300, 1e300), min_size=1, max_size=300),
    st.integers(20, 120),
    st.floats(0, 1),
    st.booleans(),
)
def test_any_series_is_drawn_within_its_width(values, width, mark, ascii_only):
    lines = chart(series(values), mark, f"since {len(values)}", width=width, ascii_only=ascii_only)
    if any(value is not None for value in values):
        assert len(lines) == HEIGHT + 2
        assert max(map(len, lines)) <= max(width, 22)
    if ascii_only:
        assert all(line.isascii() for line in lines)
