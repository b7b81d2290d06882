"""Exports hold every point, distinguish missing values from NaN, and can be read by common tools."""

from __future__ import annotations

import io
import json
import math
import sys

import pandas
import pyarrow.parquet
import pytest

import rlvitals
from rlvitals.errors import MissingDependency
from rlvitals.views.export import export


@pytest.fixture
def view(tmp_path):
    with rlvitals.start(tmp_path / "run") as run:
        for step in range(1000):
            run.log({"loss": 0.1 + step / 3}, step=step)
        run.log({"kl": float("nan"), "ratio": float("inf"), "note": 'a, "quoted" text'}, step=1000)
        run.log_eval({"accuracy": 0.5}, step=1000)
    with rlvitals.start(tmp_path / "run", resume=998) as run:
        run.log({"loss": -1.0}, step=999)
    return rlvitals.open_run(tmp_path / "run")


def test_csv_keeps_every_point_exactly(view):
    data, rows = export(view, "csv")
    frame = pandas.read_csv(io.BytesIO(data))
    assert rows == len(frame) == 1000
    assert frame["loss"].tolist() == [0.1 + step / 3 for step in range(999)] + [-1.0]


def test_csv_leaves_missing_cells_empty_and_writes_what_was_not_finite(view):
    lines = export(view, "csv", ghosts=True)[0].decode().splitlines()
    assert lines[0] == "step,timestamp,attempt,loss,note,kl,ratio" or set(lines[0].split(",")) == {
        "step", "timestamp", "attempt", "loss", "note", "kl", "ratio",
    }  # fmt: skip
    frame = pandas.read_csv(io.StringIO("\n".join(lines)), keep_default_na=False)
    last = frame.iloc[-1]
    assert (last["loss"], last["kl"], last["ratio"], last["note"]) == ("", "nan", "inf", 'a, "quoted" text')


def test_json_is_the_logs_own_row_format(view):
    rows = json.loads(export(view, "json")[0])
    assert rows[5] == {"step": 5, "timestamp": rows[5]["timestamp"], "attempt": 1, "loss": 0.1 + 5 / 3}
    ghost = json.loads(export(view, "json", ghosts=True)[0])[-1]
    assert "kl" not in ghost
    assert set(ghost["_nonfinite"].split()) == {"kl=nan", "ratio=inf"}


def test_parquet_has_nulls_for_missing_and_nan_for_nan(view):
    table = pyarrow.parquet.read_table(io.BytesIO(export(view, "parquet", ghosts=True)[0]))
    kl = table.column("kl").to_pylist()
    assert kl[0] is None
    assert math.isnan(kl[-1])
    assert pyarrow.parquet.read_table(io.BytesIO(export(view, "parquet")[0])).num_rows == 1000


def test_evaluations_export_too(view):
    assert b"0.5" in export(view, "csv", stream="eval", ghosts=True)[0]


def test_parquet_without_pyarrow_says_how_to_get_it(view, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"pip install 'rlvitals\[parquet\]'"):
        export(view, "parquet")
