"""The three pictures: the guide's panels and colours, each series over its own epochs, gaps at missing numbers."""

from __future__ import annotations

import math
import struct
import subprocess
import sys

import pytest

from rlvitals.errors import MissingDependency
from rlvitals.render import epoch_plots
from rlvitals.render.epoch_plots import BLUE, GREEN, ORANGE, PURPLE, RED, figures, pictures, png

pytestmark = pytest.mark.slow

NAN = math.nan


def full(count: int = 10) -> list[tuple[int, dict[str, float]]]:
    names = ("loss", "reward", "kl_divergence", "entropy", "bertscore", "codebleu", "bleu", "rouge", "ruby")
    return [(epoch, {name: 0.1 * epoch + place for place, name in enumerate(names)}) for epoch in range(1, count + 1)]


def lines_of(axis):
    """Label -> line, for the lines that a legend would name."""
    return {line.get_label(): line for line in axis.get_lines() if not line.get_label().startswith("_")}


def points(line):
    return list(zip(line.get_xdata(), line.get_ydata(), strict=True))


def test_the_panels_titles_sizes_and_colours_are_the_guides():
    made = figures(full())
    assert list(made) == ["training_progress", "policy_metrics", "evaluation_metrics"]
    progress, policy, scores = made.values()
    assert [tuple(figure.get_size_inches()) for figure in made.values()] == [(12, 8), (12, 8), (12, 6)]
    titles = [axis.get_title(loc="left") for figure in (progress, policy) for axis in figure.axes]
    assert titles == ["Loss over Epochs", "Reward over Epochs", "KL Divergence", "Entropy"]
    (axis,) = scores.axes
    drawn = {label.split()[0]: line.get_color() for label, line in lines_of(axis).items()}
    assert drawn == {"BERTScore": RED, "CodeBLEU": BLUE, "BLEU": GREEN, "ROUGE": ORANGE, "RUBY": PURPLE}
    assert (RED, BLUE, GREEN, ORANGE, PURPLE) == ("#e74c3c", "#3498db", "#2ecc71", "#f39c12", "#9b59b6")


def test_series_that_share_a_panel_have_markers_of_their_own():
    (axis,) = figures(full())["evaluation_metrics"].axes
    markers = [line.get_marker() for line in lines_of(axis).values()]
    assert len(set(markers)) == 5


def test_a_picture_is_a_png_at_150_dots_an_inch():
    picture = pictures(full())["evaluation_metrics"]
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", picture[16:24]) == (1800, 900)


def test_each_series_is_drawn_over_its_own_epochs():
    epochs = [(1, {"bleu": 0.1}), (2, {"bleu": 0.2, "ruby": 0.9}), (3, {"rouge": 0.3}), (5, {"bleu": 0.5})]
    (axis,) = figures(epochs)["evaluation_metrics"].axes
    drawn = {label.split()[0]: points(line) for label, line in lines_of(axis).items()}
    assert drawn == {"BLEU": [(1, 0.1), (2, 0.2), (5, 0.5)], "ROUGE": [(3, 0.3)], "RUBY": [(2, 0.9)]}


def test_a_number_that_is_none_breaks_the_line_and_leaves_a_cross():
    epochs = [(1, {"loss": 1.0}), (2, {"loss": NAN}), (3, {"loss": math.inf}), (4, {"loss": 0.5})]
    axis = figures(epochs)["training_progress"].axes[0]
    (line,) = lines_of(axis).values()
    assert [value for _, value in points(line)][0::3] == [1.0, 0.5]
    assert all(math.isnan(value) for _, value in points(line)[1:3])
    crosses = [line for line in axis.get_lines() if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses] == [[2, 3]]
    assert "x: no number" in axis.get_title(loc="right")


def test_a_point_between_two_gaps_is_marked_however_many_points_there_are():
    epochs = [(epoch, {"loss": NAN if epoch in (250, 252) else 1.0}) for epoch in range(1, 501)]
    (line,) = lines_of(figures(epochs)["training_progress"].axes[0]).values()
    assert 250 in line.get_markevery()  # epoch 251
    assert len(line.get_markevery()) < 40


def test_the_best_epochs_are_named():
    epochs = [(1, {"loss": 2.0, "reward": 0.1}), (2, {"loss": 1.0, "reward": 0.7}), (3, {"loss": 1.5, "reward": 0.3})]
    loss, reward = figures(epochs)["training_progress"].axes
    assert loss.get_title(loc="right") == "lowest 1 at epoch 2   last 1.5"
    assert reward.get_title(loc="right") == "highest 0.7 at epoch 2   last 0.3"


def test_only_pictures_with_something_to_show_are_made():
    assert list(figures([(1, {"loss": 1.0})])) == ["training_progress"]
    assert list(figures([(1, {"entropy": 0.0})])) == ["policy_metrics"]
    assert figures([]) == {}


def test_one_spike_does_not_flatten_the_rest():
    calm = [(epoch, {"loss": 1.0 / epoch}) for epoch in range(1, 20)]
    assert figures(calm)["training_progress"].axes[0].get_yscale() == "linear"
    assert figures([*calm, (20, {"loss": 1e6})])["training_progress"].axes[0].get_yscale() == "log"


@pytest.mark.parametrize("count", [1, 2, 500])
def test_epochs_are_whole_on_the_axis(count):
    axis = figures(full(count))["training_progress"].axes[-1]
    low, high = axis.get_xlim()
    ticks = [tick for tick in axis.get_xticks() if low <= tick <= high]
    assert ticks
    assert all(tick == int(tick) for tick in ticks)
    assert len(ticks) < 15


@pytest.mark.parametrize("value", [0.0, -3.0, 1e-300, 1e300, 5])
def test_odd_values_can_be_drawn(value):
    for figure in figures([(1, dict.fromkeys(("loss", "bleu"), value)), (2, {"loss": value, "bleu": value})]).values():
        assert png(figure)


def test_drawing_touches_no_global_state_of_matplotlib():
    code = (
        "import sys, matplotlib; before = matplotlib.rcParams.copy()\n"
        "from rlvitals.render.epoch_plots import pictures\n"
        "assert pictures([(1, {'loss': 1.0, 'bleu': 0.5})])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert matplotlib.rcParams.copy() == before\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_matplotlib_the_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependency, match=r"rlvitals\[plots\]"):
        epoch_plots.pictures([(1, {"loss": 1.0})])
