"""The output of one step: the KTO guide's table, compact lines, ROLL's JSON line, in any width."""

from __future__ import annotations

import json
import math

import pytest

from rlvitals import catalog
from rlvitals.render.steps import (
    LAYOUTS,
    MOST_METRICS,
    Column,
    Layout,
    cells,
    closing,
    json_line,
    plain,
    short_names,
    step_text,
)

KTO = LAYOUTS["kto"]
LINE = LAYOUTS["line"]


def kto_row(loss, chosen, rejected, margin):
    return {"loss": loss, "rewards/chosen": chosen, "rewards/rejected": rejected, "rewards/margins": margin}


GUIDE = {
    5: kto_row(0.650, -0.045, 0.033, -0.078),
    10: kto_row(0.620, 0.012, -0.015, 0.027),
    25: kto_row(0.580, 0.089, -0.112, 0.201),
    50: kto_row(0.520, 0.234, -0.189, 0.423),
    100: kto_row(0.450, 0.512, -0.298, 0.810),
    145: kto_row(0.420, 0.678, -0.445, 1.123),
}
GUIDE_TABLE = """\
Step     Loss    Chosen  Reject  Margin
5        0.650   -0.045  0.033   -0.078
10       0.620   0.012   -0.015  0.027
25       0.580   0.089   -0.112  0.201
50       0.520   0.234   -0.189  0.423
100      0.450   0.512   -0.298  0.810
145      0.420   0.678   -0.445  1.123"""


def shown(text, rows, *, eta=None, width=120):
    """All lines of several rows, without their roles."""
    return [plain(line) for step, row in rows.items() for line in text.lines(step, row, eta, width)]


def test_the_kto_layout_is_the_guides_table():
    assert "\n".join(shown(step_text(KTO, encoding="utf-8"), GUIDE)) == GUIDE_TABLE


def test_the_kto_table_is_what_the_reference_document_prints(shared):
    document = (shared / "reference" / "kto-metrics.md").read_text(encoding="utf-8")
    example = document.partition("## Example Healthy Training")[2].split("```")[1].strip()
    without_remarks = [line.partition("←")[0].rstrip() for line in example.splitlines()]
    assert without_remarks == shown(step_text(KTO, encoding="utf-8"), GUIDE)


def test_where_the_last_step_is_known_a_table_tells_progress_to_its_right():
    assert shown(step_text(KTO, total=145, encoding="utf-8"), {10: GUIDE[10], 145: GUIDE[145]}, eta=200) == [
        "Step     Loss    Chosen  Reject  Margin   Done  ETA",
        "10       0.620   0.012   -0.015  0.027      6%  3 min 20 s",
        "145      0.420   0.678   -0.445  1.123    100%  3 min 20 s",
    ]


def test_a_missing_value_is_blank_and_a_broken_one_is_marked():
    row = {"loss": math.nan, "rewards/chosen": math.inf, "rewards/margins": -0.078}
    (line,) = step_text(KTO, encoding="utf-8").lines(5, row, None, 80)[1:]
    assert plain(line) == "5        nan     inf             -0.078"
    assert [piece.role for piece in line] == ["step", "bad", "bad", "", ""]


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"train_runtime": 12.0, "train_loss": 0.5},  # Hugging Face's last row: averages over the run
        {"eval_loss": 0.5, "eval/rewards/margins": 1.0},
        {"margin": 0.3},  # another metric in the catalogue
    ],
)
def test_a_row_with_nothing_for_the_table_makes_no_line(row):
    text = step_text(KTO, encoding="utf-8")
    assert not text.shows(row)
    assert text.lines(5, row, None, 80) == []


def test_other_frameworks_names_fill_the_same_table():
    row = {"train/loss": 0.5, "dpo/chosen_reward/avg": 0.1, "dpo/rejected_reward/avg": -0.1, "pref.reward.margin": 0.2}
    assert shown(step_text(KTO, encoding="utf-8"), {5: row})[1] == "5        0.500   0.100   -0.100  0.200"


def test_the_header_comes_again_after_twenty_lines():
    rows = dict.fromkeys(range(1, 50), GUIDE[5])
    lines = shown(step_text(KTO, encoding="utf-8"), rows)
    assert [place for place, line in enumerate(lines) if line.startswith("Step")] == [0, 21, 42]


@pytest.mark.parametrize("value", [-1234.5678, 1e9, -1e-300, 99999.999, -0.0, 123456789])
def test_a_number_never_touches_its_neighbour(value):
    rows = {5: kto_row(value, value, value, value)}
    for text in (step_text(KTO, encoding="utf-8"), step_text(LINE, as_table=True, encoding="utf-8")):
        header, line = shown(text, rows)
        assert len(line.split()) == 5
        assert cells(line) <= cells(header) + 3


@pytest.mark.parametrize("width", [1, 12, 20, 37, 38, 39, 55, 56, 57, 80, 200])
@pytest.mark.parametrize("as_table", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_line_is_wider_than_it_may_be(layout, as_table, width):
    rows = {step: {**GUIDE[10], "critic/score/mean": 0.5, "奖励/平均": 12345.678} for step in (1, 2, 45)}
    text = step_text(LAYOUTS[layout], as_table=as_table, total=145, encoding="utf-8")
    lines = shown(text, rows, eta=3599, width=width)
    assert lines
    assert all(cells(line) <= max(width, len("step  45/145")) for line in lines)


def test_columns_that_do_not_fit_go_from_the_right():
    text = step_text(KTO, total=145, encoding="utf-8")
    assert shown(text, {10: GUIDE[10]}, eta=60, width=50)[0] == "Step     Loss    Chosen  Reject  Margin"
    assert shown(text, {10: GUIDE[10]}, eta=60, width=31) == ["Step     Loss    Chosen", "10       0.620   0.012"]


def test_a_line_begins_with_the_algorithms_vital_signs():
    row = {"epoch": 0.1, "grad_norm": 12.345, **GUIDE[10], "kl": 0.0213, "learning_rate": 5e-7}
    (line,) = step_text(LINE, algorithm="kto", total=145, encoding="utf-8").lines(10, row, 200, 120)
    assert plain(line) == (
        "step  10/145  margins 0.027  loss 0.62  chosen 0.012  rejected -0.015  kl 0.0213  grad_norm 12.3"
        "  eta 3 min 20 s"
    )


def test_without_an_algorithm_the_names_tell_which_vital_signs_are_meant():
    row = {"timing_s/step": 61.2, "actor/entropy": 1.197, "critic/score/mean": 0.2041, "actor/pg_clipfrac": 0.002}
    assert shown(step_text(LINE, encoding="utf-8"), {7: row}) == [
        "step 7  score/mean 0.204  entropy 1.2  pg_clipfrac 0.002  step 61.2"
    ]


def test_names_nobody_knows_are_shown_as_they_were_logged():
    assert shown(step_text(LINE, encoding="utf-8"), {1: {"b": 2, "a": True}}) == ["step 1  b 2  a 1"]


def test_lines_stay_below_each_other_and_leave_out_what_is_missing():
    rows = {
        9: {"loss": 0.5, "kl": 0.1},
        10: {"loss": -0.12345, "kl": 0.1},
        11: {"kl": math.nan},
        12: {"loss": 0.5, "kl": 1},
    }
    assert shown(step_text(LINE, total=99, encoding="utf-8"), rows) == [
        "step  9/99  loss 0.5  kl 0.1",
        "step 10/99  loss -0.123  kl 0.1",
        "step 11/99  kl nan",
        "step 12/99  loss 0.5     kl 1",
    ]


def test_the_metrics_of_a_line_do_not_change_when_the_eta_appears():
    row = {f"metric_{letter}": 0.5 for letter in "abcdefgh"}
    text = step_text(LINE, total=99, encoding="utf-8")
    first, second = (plain(text.lines(step, row, eta, 90)[0]) for step, eta in ((1, None), (2, 3599)))
    assert second.partition("  eta")[0].replace("step  2", "step  1") == first


def test_a_line_is_never_a_wall():
    row = {f"metric_{place}": 0.5 for place in range(60)}
    assert shown(step_text(LINE, encoding="utf-8"), {1: row}, width=10_000)[0].count("metric_") == MOST_METRICS - 1


def test_on_a_terminal_a_line_becomes_a_table_with_a_blank_for_what_is_missing():
    rows = {1: {"loss": 0.62, "rewards/margins": 0.027}, 2: {"loss": math.nan}}
    assert shown(step_text(LINE, as_table=True, algorithm="kto", total=9, encoding="utf-8"), rows, eta=5) == [
        "Step      margins      loss   Done  ETA",
        "1          0.0270     0.620    11%  5.0 s",
        "2                       nan    22%  5.0 s",
    ]


def test_a_new_metric_brings_a_new_header():
    rows = {1: {"loss": 0.5}, 2: {"loss": 0.5}, 3: {"loss": 0.5, "kl": 1.5}, 4: {"loss": 0.5}}
    lines = shown(step_text(LINE, as_table=True, encoding="utf-8"), rows)
    assert [line.split() for line in lines if line.startswith("Step")] == [["Step", "loss"], ["Step", "loss", "kl"]]


@pytest.mark.parametrize("as_table", [False, True])
def test_names_cannot_move_the_cursor_nor_leave_the_encoding(as_table):
    row = {"loss\x1b[2J\n": 1.5, "奖励": 2.5, "a_very_long_name_for_a_metric_indeed": 3.5}
    text = "\n".join(shown(step_text(LINE, as_table=as_table, encoding="ascii"), {1: row}))
    assert text.isascii()
    assert "\x1b" not in text
    assert r"loss\x1b[2J\n" in text
    assert ("a_very_long_name_fo~" if as_table else "a_very_long_name_for_a_metric_indeed 3.5") in text


def test_short_names_are_never_anothers():
    names = ["kl", "actor/kl", "a/x/mean", "b/x/mean", "c/y/max", "d/", ""]
    assert list(short_names(names).values()) == ["kl", "actor/kl", "a/x/mean", "b/x/mean", "y/max", "d/", ""]


def test_json_is_rolls_line_and_strict():
    text = json_line(10, {"loss": 0.62, "kl": math.nan, "up": math.inf, "note": "x\ny", "ok": True, "n": 3}, "utf-8")
    assert text == (
        'metrics_tag: {"step":10,"metrics":{"loss":0.62,"kl":"nan","up":"inf","note":"x\\ny","ok":true,"n":3}}'
    )


def test_json_in_another_encoding_is_the_same_json():
    metrics = {"奖励": 0.5, "emoji": "😀é"}
    text = json_line(1, metrics, "latin-1")
    assert text.isascii()
    assert json.loads(text.removeprefix("metrics_tag: ")) == {"step": 1, "metrics": metrics}
    assert "奖励" in json_line(1, metrics, "utf-8")


def test_how_a_run_ended_fits_on_a_line():
    error = "RuntimeError: " + "CUDA\nout of memory " * 20
    line = plain(closing("failed", 90, None, 3725, error=error, encoding="utf-8", width=60))
    assert line.startswith(r"failed at step 90 after 1 h 2 min: RuntimeError: CUDA\n")
    assert cells(line) <= 60
    finished = closing("finished", 145, 145, 0.5, error=None, encoding="utf-8", width=20)
    assert plain(finished) == "finished at step 145/145 after 0.5 s"


def test_a_layout_is_only_data():
    mine = Layout(columns=(Column("Mails", ("mail.read",), 8, 1), Column("Reward", ("reward.total.mean",))))
    assert shown(step_text(mine, encoding="utf-8"), {1: {"mail.read": 3, "reward": 0.5}}) == [
        "Step     Mails   Reward",
        "1        3.0     0.500",
    ]


def test_layouts_name_concepts_the_catalogue_has():
    known = {metric.id for metric in catalog.metrics()}
    assert {name for layout in LAYOUTS.values() for column in layout.columns for name in column.shows} <= known
