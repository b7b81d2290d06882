"""No cell of our CSV files is a formula, numbers stay numbers, and what was written reads back the same."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlvitals
from rlvitals.cli.main import main
from rlvitals.importers import read_log
from rlvitals.store.spreadsheet import as_text, from_text

FORMULAS = ['=HYPERLINK("http://x")', "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "'=1", "''=1", "=1\n=2"]
BEGINNINGS = tuple("=+-@\t\r\n")


@given(st.text(st.sampled_from("'=+-@\t\r\na1 "), max_size=8))
def test_any_text_comes_back_and_begins_no_formula(text):
    assert from_text(as_text(text)) == text
    assert not as_text(text).startswith(BEGINNINGS)
    assert as_text(text) in (text, f"'{text}")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same names and texts in the tracker's table, an export and the table of epochs."""
    folder = tmp_path_factory.mktemp("formulas")
    run = rlvitals.start(folder / "run", track_with="csv", tracker_wait=30, monitor=False, hardware=False)
    tracker = rlvitals.MetricsTracker(folder / "run" / "metrics", display="none")
    for step, text in enumerate(FORMULAS, 1):
        run.log({"loss": -float(step), "=cmd": 1.5, "note": text}, step=step)
        tracker.log_epoch(step, **{"loss": -float(step), "=cmd": 1.5, "note": text})
    run.finish()
    main(["export", str(folder / "run"), "--to", "csv", "--output", str(folder / "export.csv")])
    return {
        "tracker": folder / "run" / "logs" / "metrics.csv",
        "export": folder / "export.csv",
        "epochs": folder / "run" / "metrics" / "training_metrics.csv",
    }


@pytest.mark.parametrize("which", ["tracker", "export", "epochs"])
def test_a_spreadsheet_finds_no_formula_and_negative_numbers_are_numbers(files, which):
    with files[which].open(newline="") as file:
        header, *rows = csv.reader(file)
    assert "'=cmd" in header
    assert [from_text(row[header.index("note")]) for row in rows] == FORMULAS
    assert [float(row[header.index("loss")]) for row in rows] == [-float(step) for step in range(1, len(FORMULAS) + 1)]
    texts = [cell for row in [header, *rows] for cell in row if not is_number(cell)]
    assert not [cell for cell in texts if cell.startswith(BEGINNINGS)]


@pytest.mark.parametrize("which", ["tracker", "export", "epochs"])
def test_our_reader_has_the_names_as_they_were_logged(files, which):
    rows = read_log(files[which]).rows
    assert rows[0]["=cmd"] == 1.5
    assert [row["loss"] for row in rows] == [-float(step) for step in range(1, len(FORMULAS) + 1)]


def test_the_tracker_goes_on_with_a_table_whose_names_are_formulas(tmp_path):
    for resume, note in ((False, "=a"), (True, "=b")):
        with rlvitals.start(
            tmp_path / "run", resume=resume, track_with="csv", tracker_wait=30, monitor=False, hardware=False
        ) as run:
            run.log({"=cmd": 1.0, "@new" if resume else "x": 2.0, "note": note})
    text = (tmp_path / "run" / "logs" / "metrics.csv").read_text()
    header, *rows = csv.reader(io.StringIO(text))
    assert header.count("'=cmd") == 1
    assert [row[header.index("note")] for row in rows] == ["'=a", "'=b"]


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
