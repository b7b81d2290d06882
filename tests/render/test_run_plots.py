"""Pictures: thinning and smoothing hide nothing, and everything that can be logged can be drawn."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvitals.errors import MissingDependency
from rlvitals.render.curves import axis_scale, envelope, is_smooth, rolling_mean
from rlvitals.render.run_plots import Mark, Panel, Picture, PlotLine, draw

numbers = st.one_of(st.floats(-1e6, 1e6), st.just(float("nan")), st.just(float("inf")))


def picture(*lines: PlotLine, **settings) -> Picture:
    return Picture("a run", "about it", "step", [Panel("Title", "name", list(lines), **settings)])


def line(values) -> PlotLine:
    y = np.asarray(values, dtype=float)
    return PlotLine("curve", np.arange(len(y), dtype=float), y)


def pixels(data: bytes) -> np.ndarray:
    from matplotlib.image import imread

    return imread(io.BytesIO(data), format="png")


@given(st.lists(numbers, min_size=1, max_size=60), st.integers(1, 20))
def test_an_envelope_keeps_every_extreme(values, buckets):
    y = np.array(values)
    shape = envelope(np.arange(len(y), dtype=float), y, buckets)
    finite = y[np.isfinite(y)]
    assert len(shape.x) <= buckets
    if len(finite):
        assert (np.nanmin(shape.low), np.nanmax(shape.high)) == (finite.min(), finite.max())
    else:
        assert np.isnan(shape.mean).all()


@given(st.lists(numbers, min_size=1, max_size=40), st.integers(1, 50))
def test_smoothing_is_the_mean_of_the_finite_points_around(values, window):
    y = np.array(values)
    for place, smoothed in enumerate(rolling_mean(y, window)):
        around = y[max(0, place - window // 2) : place + window // 2 + 1]
        if np.isfinite(y[place]):
            assert smoothed == pytest.approx(around[np.isfinite(around)].mean(), rel=1e-9, abs=1e-6)
        else:
            assert np.isnan(smoothed)


def test_a_huge_spike_does_not_spoil_the_smoothing_elsewhere():
    y = np.full(100, 0.1)
    y[10] = 1e18
    assert rolling_mean(y, 5)[50] == pytest.approx(0.1, rel=1e-12)


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        (np.linspace(0, 1, 100), "linear"),
        (np.append(np.linspace(0.1, 0.2, 99), 500.0), "log"),
        (np.append(np.linspace(-0.2, 0.2, 99), 500.0), "symlog"),
        (np.logspace(-6, 0, 100), "log"),
        (np.append(np.linspace(4.0, 4.1, 99), 15.0), "linear"),
        (np.zeros(10), "linear"),
        (np.append(np.zeros(50), 0.1), "linear"),
        (np.array([]), "linear"),
    ],
)
def test_the_axis_shows_both_the_usual_and_the_extreme(values, scale):
    assert axis_scale(values) == scale


def test_a_schedule_needs_no_smoothing_and_noise_does():
    assert is_smooth(np.linspace(1e-6, 0, 500))
    assert not is_smooth(np.random.default_rng(0).normal(size=500))


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1.0],
        [np.nan, np.nan],
        [np.inf, 1.0, -np.inf],
        [0.0] * 5,
        [1e300, -1e300, 0.0],
        [1e-300, 2e-300],
        [5.0, 5.0 + 1e-12],
        np.append(np.random.default_rng(0).normal(size=5000), [1e9]),
    ],
)
def test_anything_that_can_be_logged_can_be_drawn(values):
    assert draw(picture(line(values), band=(0.1, None))).startswith(b"\x89PNG")


@pytest.mark.slow
def test_names_of_any_letters_are_drawn_as_they_are():
    panel = Panel("$x_1$ 漢字 \x1b[31m", "a" * 300, [line([1, 2])])
    assert draw(Picture("$\\frac{", "{}", "步", [panel] * 5, remarks=[("critical", "$" * 500)])).startswith(b"\x89PNG")


@pytest.mark.parametrize("format_and_mark", [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_pictures_come_in_three_formats(format_and_mark):
    image_format, mark = format_and_mark
    assert draw(picture(line([1, 2, 3])), image_format=image_format).startswith(mark)


def test_a_long_title_is_not_cut_off():
    panel = Panel("Chosen log-probability of pairs and rejected log-probability", "name", [line([1, 2])])
    image = pixels(draw(Picture("a run", "about it", "step", [panel] * 4)))
    assert (image[:, -2:, :3] == 1).all()  # nothing is drawn up to the right edge


def test_one_spike_among_thousands_can_be_seen():
    y = np.zeros(20_000)
    calm = pixels(draw(picture(line(np.append(y, 0.001)))))
    y[12_345] = 0.9
    spiky = pixels(draw(picture(line(np.append(y, 1.0)))))
    column = slice(int(0.55 * spiky.shape[1]), int(0.68 * spiky.shape[1]))
    upper = slice(int(0.3 * spiky.shape[0]), int(0.6 * spiky.shape[0]))
    blue = [(image[upper, column, 2] - image[upper, column, 0] > 0.1).any() for image in (calm, spiky)]
    assert blue == [False, True]


def test_a_gap_is_marked_in_red_where_it_was_logged():
    values = np.ones(50)
    whole = pixels(draw(picture(line(values))))
    values[20:25] = np.nan
    broken = pixels(draw(picture(line(values))))
    red = [(image[..., 0] - image[..., 1] > 0.4).sum() for image in (whole, broken)]
    assert red[0] == 0
    assert red[1] > 20


def test_the_gaps_of_every_line_are_marked():
    first, second = np.ones(50), np.ones(50)
    first[5:8] = second[40:45] = np.nan
    one, both = (pixels(draw(picture(line(first), line(other)))) for other in (np.ones(50), second))
    right = slice(one.shape[1] // 2, int(0.93 * one.shape[1]))  # left of the count, which both show
    below = slice(int(0.6 * one.shape[0]), None)
    red = [(image[below, right, 0] - image[below, right, 1] > 0.4).sum() for image in (one, both)]
    assert red[1] > red[0] + 10


def test_marks_and_boundaries_outside_the_axis_are_left_out_quietly():
    marks = [Mark(-500.0, "critical", 1), Mark(1.0, "warning", 2), Mark(1.01, "critical", 3, is_about=False)]
    shown = Picture(
        "t", "a", "step", [Panel("p", "n", [line([1, 2, 3])], marks=marks)], boundaries=[(1.0, "attempt 2")]
    )
    assert draw(shown).startswith(b"\x89PNG")


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependency, match=r"rlvitals\[plots\]"):
        draw(picture(line([1, 2])))


@pytest.mark.slow
def test_drawing_needs_no_display_and_no_global_figures():
    code = (
        "import sys, numpy as np\n"
        "from rlvitals.render.run_plots import *\n"
        "assert 'matplotlib' not in sys.modules\n"
        "draw(Picture('t', 'a', 'x', [Panel('p', 'n', [PlotLine('l', np.arange(3.0), np.arange(3.0))])]))\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False).returncode == 0
