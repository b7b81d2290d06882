"""Exports of Neptune: tables as neptune-exporter writes them (with its schema and file names), and series as returned
by `fetch_values()` of the neptune client, saved with pandas.
"""

from __future__ import annotations

import hashlib
import json
import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pandas
import pytest
from brought import folders, points, rows

from rlvitals.cli.main import main
from rlvitals.store.distributions import read_distributions
from rlvitals.store.layout import RunDir
from rlvitals.views.run import open_run

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402 - where it is installed

START = datetime(2026, 1, 1, tzinfo=UTC)
ODD = {3: math.nan, 4: math.inf, 5: -math.inf}

SCHEMA = pyarrow.schema(
    [
        ("project_id", pyarrow.string()), ("run_id", pyarrow.string()), ("attribute_path", pyarrow.string()),
        ("attribute_type", pyarrow.string()), ("step", pyarrow.decimal128(18, 6)),
        ("timestamp", pyarrow.timestamp("ms", tz="UTC")), ("int_value", pyarrow.int64()),
        ("float_value", pyarrow.float64()), ("string_value", pyarrow.string()), ("bool_value", pyarrow.bool_()),
        ("datetime_value", pyarrow.timestamp("ms", tz="UTC")), ("string_set_value", pyarrow.list_(pyarrow.string())),
        ("file_value", pyarrow.struct([("path", pyarrow.string())])),
        ("histogram_value", pyarrow.struct([("type", pyarrow.string()), ("edges", pyarrow.list_(pyarrow.float64())),
                                            ("values", pyarrow.list_(pyarrow.float64()))])),
    ]
)  # fmt: skip
"""The format that neptune-exporter documents."""


def sanitized(part: str) -> str:
    safe = "".join(letter if letter.isalnum() or letter in "_-" else "_" for letter in part)
    return f"{safe}-{hashlib.blake2b(part.encode(), digest_size=8).hexdigest()}"


def export(folder, run_id, lines, parts=1):
    place = folder / sanitized("team/grpo")
    place.mkdir(parents=True, exist_ok=True)
    size = -(-len(lines) // parts)
    for part in range(parts):
        table = [
            {"project_id": "team/grpo", "run_id": run_id, **line} for line in lines[part * size : (part + 1) * size]
        ]
        parquet.write_table(
            pyarrow.Table.from_pylist(table, schema=SCHEMA), place / f"{sanitized(run_id)}_part_{part}.parquet",
            compression="snappy",
        )  # fmt: skip


def setting(path, kind, **value):
    return {"attribute_path": path, "attribute_type": kind, **value}


def series(path, step, value, seconds=None, kind="float_series", **more):
    moment = START + timedelta(seconds=float(step) if seconds is None else seconds)
    given = {"float_value": value} if kind == "float_series" else {}
    return {
        "attribute_path": path,
        "attribute_type": kind,
        "step": Decimal(str(step)),
        "timestamp": moment,
        **given,
        **more,
    }


@pytest.fixture
def exported(tmp_path):
    folder = tmp_path / "exports" / "data"
    lines = [
        setting("sys/name", "string", string_value="grpo 7b"),
        setting("sys/tags", "string_set", string_set_value=["rl", "try"]),
        setting("sys/description", "string", string_value="a note"),
        setting("sys/creation_time", "datetime", datetime_value=START),
        setting("sys/failed", "bool", bool_value=True),
        setting("params/lr", "float", float_value=1e-5),
        setting("params/layers", "int", int_value=2),
        setting("params/hf_token", "string", string_value="hf_abcdefghijklmnopqrstuvwxyz012345"),
        *(series("train/loss", i, ODD.get(i, 1 / (1 + i))) for i in range(50)),
        *(series("eval/accuracy", i, i / 50, seconds=i + 0.5) for i in range(0, 50, 10)),
        *(series("monitoring/cpu", i, i / 2) for i in range(3)),
        series("said", 7, None, kind="string_series", string_value="hello"),
        series("lengths", 7, None, kind="histogram_series",
               histogram_value={"type": "COUNTING", "edges": [0.0, 1.0, 2.0], "values": [3.0, 4.0]}),
    ]  # fmt: skip
    export(folder, "RUN-1", lines, parts=3)
    export(folder, "../../evil", [series("loss", Decimal(i) / 4, i / 7) for i in range(9)])
    return folder


def test_an_export_comes_with_every_point(exported, tmp_path, capsys):
    assert main(["import", f"neptune:{exported}", "--to", str(tmp_path / "runs"), "--json"]) == 0
    facts = {one["id"]: one for one in json.loads(capsys.readouterr().out)["runs"]}
    assert {name: (one["rows"], one["eval_rows"], one["samples"]) for name, one in facts.items()} == {
        "RUN-1": (51, 5, 3), "../../evil": (9, 0, 0),
    }  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exports", "runs"]
    found = folders(tmp_path / "runs")
    start = START.timestamp()
    assert points(found["grpo 7b"], "train/loss") == [
        (i, start + i, repr(float(ODD.get(i, 1 / (1 + i))))) for i in range(50)
    ]
    assert points(found["grpo 7b"], "eval/accuracy", "eval") == [
        (i, start + i + 0.5, repr(i / 50)) for i in range(0, 50, 10)
    ]
    assert [row.numbers for row in rows(found["grpo 7b"], "system")] == [{"monitoring/cpu": i / 2} for i in range(3)]
    assert [(row.step, row.texts) for row in rows(found["grpo 7b"]) if row.texts] == [(7, {"said": "hello"})]
    assert [one.step for one in read_distributions(RunDir(found["grpo 7b"]).log("distributions"))] == [7]
    view = open_run(found["grpo 7b"])
    assert (view.info.status, view.info.created) == ("failed", start)
    assert view.config["params/lr"] == 1e-5
    assert view.config["params/hf_token"] == "***"
    assert view.config["rlvitals"]["tracker"]["tags"] == ["rl", "try"]
    # Steps in Neptune have decimals, steps of a run do not.
    assert [(step, value) for step, _, value in points(found["../../evil"], "loss")] == [
        (25 * i, repr(i / 7)) for i in range(9)
    ]
    assert facts["../../evil"]["notes"] == [
        "steps have decimals: they are multiplied by 100, since steps are whole numbers here"
    ]
    assert main(["import", f"neptune:{exported}", "--to", str(tmp_path / "runs")]) == 0
    assert "2 unchanged" in capsys.readouterr().out


def test_one_run_of_an_export_and_one_that_is_not_whole(exported, tmp_path, capsys):
    assert main(["import", f"neptune:{exported}#RUN-1", "--to", str(tmp_path / "run")]) == 0
    assert len(points(tmp_path / "run", "train/loss")) == 50
    next(exported.glob("*/RUN-1*_part_0.parquet")).unlink()
    capsys.readouterr()
    assert main(["import", f"neptune:{exported}", "--to", str(tmp_path / "runs")]) == 1
    output = capsys.readouterr()
    assert "the export of RUN-1 is not whole (its part_0 is missing). Run neptune-exporter again" in output.err
    assert "1 new, 1 failed" in output.out
    assert main(["import", f"neptune:{tmp_path}/none", "--to", str(tmp_path / "no")]) == 64
    assert "there is no folder" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["import", f"neptune:{tmp_path}/empty", "--to", str(tmp_path / "no")]) == 64
    assert "holds no export of Neptune" in capsys.readouterr().err


def test_series_that_were_saved_with_the_client(tmp_path):
    folder = tmp_path / "download" / "RUN-7"
    (folder / "train").mkdir(parents=True)
    moments = [datetime.fromtimestamp(1_763_190_000 + i) for i in range(6)]  # without a zone
    frame = {
        "step": [float(i) for i in range(6)],
        "value": [1.0, 0.5, math.nan, 0.25, math.inf, 0.1],
        "timestamp": moments,
    }
    pandas.DataFrame(frame).to_csv(folder / "train" / "loss.csv")  # with the index, as pandas does
    pandas.DataFrame(frame).to_csv(folder / "kl.csv", index=False)
    (folder / "run.json").write_text(json.dumps({"sys": {"name": "seventh"}, "params": {"lr": 1e-5}}))
    assert main(["import", f"neptune:{tmp_path / 'download'}", "--to", str(tmp_path / "runs")]) == 0
    found = folders(tmp_path / "runs")
    expected = [(i, 1_763_190_000.0 + i, repr(float(value))) for i, value in enumerate(frame["value"])]
    assert points(found["seventh"], "train/loss") == expected
    assert points(found["seventh"], "kl") == expected
    assert open_run(found["seventh"]).config["params/lr"] == 1e-5
