"""Files of SwanLab, Trackio and MLflow, and Parquet tables: written by the real packages, offline."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import struct
import sys
import zlib
from importlib.util import find_spec

import pytest

import rlvitals
from followed import with_growth
from rlvitals.errors import MissingDependency
from rlvitals.importers import LogTail, NotALog, find_log, read_log
from rlvitals.importers.base import Notes
from rlvitals.importers.sqlite import RunInDatabase, choose, opened, tables_of

STEPS = [10, 20, 30]


# SwanLab.


@pytest.fixture(scope="module")
def swanlab_run(tmp_path_factory):
    swanlab = pytest.importorskip("swanlab", reason="needs the swanlab package")
    folder = tmp_path_factory.mktemp("swanlab")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("SWANLAB_")]:
            patch.delenv(name)
        patch.setenv("SWANLAB_ROOT", str(folder / "home"))
        patch.chdir(folder)
        settings = {"learning_rate": 5e-6, "model": {"name": "tiny"}}
        run = swanlab.init(project="p", mode="offline", log_dir=str(folder / "swanlog"), config=settings)
        for number, step in enumerate(STEPS):
            run.log({"train/global_step": step, "loss": 1 / step, "kl": math.nan, "note": swanlab.Text("x" * 9000)})
            run.log({"train/global_step": step, "reward": number / 2})
        run.finish()
    (path,) = (folder / "swanlog").glob("run-*")
    return path


def test_a_swanlab_run_has_the_trainings_steps_and_its_settings(swanlab_run):
    log = read_log(swanlab_run.parent)
    assert (log.format, log.path.suffix) == ("swanlab", ".swanlab")
    assert [row["step"] for row in log.rows] == [10, 10, 20, 20, 30, 30]
    assert [row["loss"] for row in log.rows if "loss" in row] == [1 / step for step in STEPS]
    assert [row["reward"] for row in log.rows if "reward" in row] == [0.0, 0.5, 1.0]
    assert math.isnan(log.rows[0]["kl"])
    assert log.rows[0]["timestamp"] > 1_700_000_000
    assert log.config == {"learning_rate": 5e-6, "model": {"name": "tiny"}}


def test_a_swanlab_file_that_grows_gives_each_row_once(swanlab_run, tmp_path):
    (path,) = swanlab_run.glob("*.swanlab")
    data, copy, rows = path.read_bytes(), tmp_path / "run-x.swanlab", []
    tail = LogTail(copy)
    for end in range(0, len(data) + 500, 500):
        copy.write_bytes(data[:end])
        rows = with_growth(rows, tail.poll())
        assert all(type(row["step"]) is int for row in rows)
    assert repr(rows) == repr(read_log(path).rows)


def swanlab_backup(*records):
    """A file of version 1, whose records are JSON."""
    found = struct.pack("<4sHB", b":SWL", 0xE1D6, 1)
    for record in records:
        data = json.dumps(record).encode()
        found += struct.pack("<IHB", zlib.crc32(data, zlib.crc32(b"\x01")), len(data), 1) + data
    return found


def test_a_swanlab_backup_of_json_records_is_read(tmp_path):
    scalars = [
        {"model_type": "SCALAR", "key": name, "step": step, "epoch": 1, "metric": {"index": step, "data": step / 4}}
        for step in (1, 2)
        for name in ("loss", "__swanlab__.cpu.pct")
    ]
    (tmp_path / "backup.swanlab").write_bytes(swanlab_backup({"model_type": "HEADER", "version": "0.6"}, *scalars))
    assert read_log(tmp_path).rows == [{"step": 1, "loss": 0.25}, {"step": 2, "loss": 0.5}]


def test_the_logs_of_older_local_swanlab_runs_are_read(tmp_path):
    for name in ("train%2Floss", "kl"):
        for file, steps in (("10.log", (1, 2)), ("20.log", (3,))):
            (tmp_path / "run-1" / "logs" / name).mkdir(parents=True, exist_ok=True)
            lines = [{"index": n, "data": n / 4, "create_time": "2024-05-01T10:00:00+00:00"} for n in steps]
            (tmp_path / "run-1" / "logs" / name / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "runs.swanlab").write_bytes(b"SQLite format 3\x00")
    log = read_log(tmp_path)
    assert [(row["step"], row["train/loss"], row["kl"]) for row in log.rows] == [(n, n / 4, n / 4) for n in (1, 2, 3)]


# Trackio, and tests for all databases.


@pytest.fixture(scope="module")
def trackio_project(tmp_path_factory):
    pytest.importorskip("trackio", reason="needs the trackio package")
    from trackio.sqlite_storage import SQLiteStorage

    folder = tmp_path_factory.mktemp("trackio")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trackio.sqlite_storage.TRACKIO_DIR", folder)
        patch.setenv("HF_HUB_OFFLINE", "1")
        for number, (run, steps) in enumerate([("old", 5), ("new", 4)]):
            SQLiteStorage.bulk_log(
                "project", run,
                [{"train/global_step": 10 * n, "loss": 1 / (n + 1), "kl": math.nan, "top": -math.inf}
                 for n in range(steps)],
                steps=list(range(steps)), config={"learning_rate": 5e-6, "_Created": "now"}, run_id=f"id-{run}",
                timestamps=[f"2026-01-0{number + 1}T00:00:0{n}+00:00" for n in range(steps)],
            )  # fmt: skip
        SQLiteStorage.export_to_parquet()
    return folder


@pytest.mark.parametrize("ending", ["db", "parquet"])
def test_the_newest_run_of_a_trackio_project_is_read_and_another_by_its_name(trackio_project, ending):
    path = trackio_project / f"project.{ending}"
    log = read_log(path)
    assert log.format == ("trackio" if ending == "db" else "parquet")
    assert [row["step"] for row in log.rows] == [0, 10, 20, 30]
    assert log.rows[1]["loss"] == 0.5
    assert (math.isnan(log.rows[1]["kl"]), log.rows[1]["top"]) == (True, -math.inf)
    assert log.config == ({"learning_rate": 5e-6} if ending == "db" else {})
    assert "it holds 2 runs: read 'new', the newest run with at least half as many metrics as any other" in log.notes[0]
    assert log.notes[0].endswith(f"name it: 'project.{ending}#old'")
    assert len(read_log(f"{path}#old").rows) == len(read_log(f"{path}#id-old").rows) == 5
    assert rlvitals.check(f"{path}#old").points == 5
    with pytest.raises(NotALog, match="it holds no run 'other'; it holds new"):
        read_log(f"{path}#other")


def test_reading_a_database_makes_no_file_beside_it(tmp_path):
    """Opening a database normally would recreate a write-ahead log that no process has open."""
    path = make_database(tmp_path / "x.db", "PRAGMA journal_mode = WAL; CREATE TABLE users (id)")
    with opened(path) as database:
        assert tables_of(database) == {"users": {"id"}}
        assert list(tmp_path.iterdir()) == [path]
        with pytest.raises(sqlite3.OperationalError):
            database.execute("INSERT INTO users VALUES (1)")
    with pytest.raises(sqlite3.ProgrammingError):
        database.execute("SELECT 1")  # closed


def test_a_database_that_a_training_writes_is_followed(tmp_path):
    """The database has a write-ahead log that its writer keeps open."""
    path = tmp_path / "project.db"
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_name, timestamp, step, metrics)")
    writer.commit()
    tail, rows = LogTail(f"{path}#kto"), []
    for step in range(1, 4):
        for run in ("kto", "other"):
            row = json.dumps({"loss": step / 4})
            writer.execute(
                "INSERT INTO metrics (run_name, timestamp, step, metrics) VALUES (?, '', ?, ?)", (run, step, row)
            )
        writer.commit()
        rows = with_growth(rows, tail.poll())
        assert [row["step"] for row in rows] == list(range(1, step + 1))
    assert tail.poll().rows == []
    writer.close()


# MLflow.


@pytest.fixture(scope="module")
def mlflow_stores(tmp_path_factory):
    """A file store and a database with the same three runs."""
    if find_spec("mlflow") is None:
        pytest.skip("needs the mlflow package")
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        for uri in (f"file://{folder}/mlruns", f"sqlite:///{folder}/mlflow.db"):
            client = MlflowClient(tracking_uri=uri)
            experiment = client.create_experiment("grpo", artifact_location=f"file://{folder}/artifacts")
            for number, name in enumerate(["first", "second", "notes only"]):
                run = client.create_run(experiment, start_time=1_764_000_000_000 + number, run_name=name).info.run_id
                metrics = [
                    Metric(key, value, 1_764_000_000_000 + step, step)
                    for step in STEPS
                    for key, value in [("train/loss", number + 1 / step), ("kl", math.nan), ("top", math.inf),
                                       ("system/cpu", 3.0)]
                ]  # fmt: skip
                given = metrics if name != "notes only" else metrics[:1]
                client.log_batch(run, given, [Param("learning_rate", "5e-06"), Param("model", "tiny")])
    return folder


def in_order(rows):
    return [repr(sorted(row.items())) for row in rows]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_runs_are_read_from_folders_and_from_a_database(mlflow_stores):
    (experiment,) = (path for path in (mlflow_stores / "mlruns").iterdir() if any(path.glob("*/metrics")))
    newest = read_log(f"{mlflow_stores / 'mlflow.db'}")
    assert newest.format == "mlflow"
    assert [(row["step"], row["train/loss"]) for row in newest.rows] == [(step, 1 + 1 / step) for step in STEPS]
    assert math.isnan(newest.rows[0]["kl"])
    assert newest.rows[0]["top"] == math.inf
    assert newest.rows[0]["timestamp"] == 1_764_000_000.01
    assert newest.config == {"learning_rate": 5e-6, "model": "tiny"}
    assert newest.notes[0].startswith(
        "it holds 3 runs: read 'second', the newest run with at least half as many metrics as any other. "
        "Others: notes only"
    )
    assert "left out: MLflow's samples of the machine" in newest.notes[1]
    first = read_log(f"{mlflow_stores / 'mlflow.db'}#first")
    assert [row["train/loss"] for row in first.rows] == [1 / step for step in STEPS]
    runs = {meta.parent: meta.read_text() for meta in experiment.glob("*/meta.yaml")}
    (second,) = (folder for folder, meta in runs.items() if "run_name: second" in meta)
    assert in_order(read_log(second).rows) == in_order(newest.rows)
    assert read_log(second).config == newest.config
    for place in (experiment, mlflow_stores / "mlruns"):
        assert find_log(place) == second
        assert "the folder holds 3 runs" in read_log(place).notes[0]
    assert len(rlvitals.check(mlflow_stores / "mlruns")) == 3


def mlflow_run(folder, name="run", start=0, **metrics):
    """A run as the file store writes it. Creating one with the package takes seconds."""
    for metric, lines in {"loss": [(1, 0.5, 10)], **metrics}.items():
        file = folder / name / "metrics" / metric
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{1_764_000_000_000 + time} {value} {step}\n" for time, value, step in lines))
    (folder / name / "meta.yaml").write_text(f"run_name: {name}\nstart_time: {1_764_000_000_000 + start}\n")
    return folder / name


def test_an_mlflow_run_without_steps_is_numbered(tmp_path):
    run = mlflow_run(tmp_path, loss=[(n, 1 / n, 0) for n in (1, 2, 3)], kl=[(1, 0.5, 0)])
    log = read_log(run)
    assert [(row["step"], row["loss"], row.get("kl")) for row in log.rows] == [
        (1, 1, 0.5),
        (2, 0.5, None),
        (3, 1 / 3, None),
    ]
    assert log.notes == ["no step was logged: the points of each metric are numbered from 1"]


def test_a_newer_mlflow_run_with_few_metrics_comes_after_a_rich_one(tmp_path):
    line = [(1, 0.5, 10)]
    mlflow_run(tmp_path, "rich", start=1, kl=line, reward=line)
    mlflow_run(tmp_path, "poor", start=2, **{"system/cpu": line, "system/gpu": line})
    assert find_log(tmp_path) == tmp_path / "rich"
    mlflow_run(tmp_path, "half", start=3, kl=line)
    assert find_log(tmp_path) == tmp_path / "half"


def test_the_settings_of_an_mlflow_run_and_lines_that_are_damaged(tmp_path):
    run = mlflow_run(tmp_path)
    (run / "params" / "optim").mkdir(parents=True)
    (run / "params" / "optim" / "lr").write_text("5e-06")
    (run / "params" / "model").write_text("tiny\n")
    (run / "metrics" / "loss").write_text(
        "1764000000001 0.5 7 data digest\n\n1764000000002 half 8\n1764000000003 0.25\n9"
    )
    log = read_log(run)
    assert log.config == {"optim/lr": 5e-6, "model": "tiny"}
    assert [(row["step"], row["loss"]) for row in log.rows] == [(7, 0.5), (0, 0.25)]
    assert log.notes[0] == "1 line is damaged and was skipped"


def test_an_mlflow_run_with_nothing_but_samples_of_the_machine_is_no_log(tmp_path):
    run = mlflow_run(tmp_path, **{"system/cpu": [(1, 0.5, 0)]})
    (run / "metrics" / "loss").unlink()
    with pytest.raises(NotALog, match="the MLflow run holds no metrics"):
        read_log(run)


def test_an_mlflow_run_that_was_resumed_starts_again(tmp_path):
    lines = [(time, 0.5, step) for time, step in enumerate((1, 2, 3, 2, 3, 4))]
    log = read_log(mlflow_run(tmp_path, loss=lines, kl=lines))
    assert [row["step"] for row in log.rows] == [1, 2, 3, 2, 3, 4]
    assert log.notes == ["steps start again at row 4: a restart inside the file"]


def test_an_mlflow_folder_that_grows_is_followed_and_a_torn_line_waits(tmp_path):
    run = mlflow_run(tmp_path)
    tail = LogTail(tmp_path)
    assert [row["step"] for row in tail.poll().rows] == [10]
    with (run / "metrics" / "loss").open("a") as file:
        file.write("1764000000002 0.25 2")
    assert tail.poll().rows == []
    with (run / "metrics" / "loss").open("a") as file:
        file.write("0\n")
    assert [(row["step"], row["loss"]) for row in tail.poll().rows] == [(20, 0.25)]


# One of several runs.


def runs(*facts):
    """Runs from tuples of id, name, start, metrics and points."""
    return [RunInDatabase(*fact) for fact in facts]


@pytest.mark.parametrize(
    ("given", "choice", "chosen"),
    [
        (runs(("a1", "old", 1, 9, 99), ("b1", "new", 2, 9, 99)), "", "b1"),
        (runs(("a1", "rich", 1, 10, 99), ("b1", "half", 2, 5, 99)), "", "b1"),
        (runs(("a1", "rich", 1, 10, 99), ("b1", "poor", 2, 4, 99)), "", "a1"),
        (runs(("a1", "rich", 1, 10, 99), ("b1", "empty", 2, 10, 0)), "", "a1"),
        (runs(("a1", "kto", 1, 9, 99), ("b1", "kto", 2, 9, 99)), "kto", "b1"),
        (runs(("a1", "kto", 1, 9, 99), ("b1", "kto-2", 2, 9, 99)), "kto", "a1"),
        (runs(("a1", "kto", 1, 9, 99), ("b1", "dpo", 2, 9, 99)), "a", "a1"),
        (runs(("a1", "my kto", 1, 9, 99), ("b1", "dpo", 2, 9, 99)), "kto", "a1"),
    ],
)
def test_the_newest_of_the_runs_with_most_metrics_is_chosen_or_the_one_that_is_named(tmp_path, given, choice, chosen):
    assert choose(given, choice, tmp_path, Notes()).id == chosen


def test_only_runs_with_points_are_listed(tmp_path):
    notes = Notes()
    choose(runs(("a1", "only", 1, 9, 99), ("b1", "empty", 2, 9, 0)), "", tmp_path, notes)
    assert notes.texts() == []
    choose(runs(*((f"id-{n}-of-a-run", f"run {n}", n, 9, n) for n in range(1, 10))), "", tmp_path / "x.db", notes)
    listed = ", ".join(f"run {n} (id-{n}-of-, {n} points)" for n in (8, 7, 6, 5, 4, 3))
    assert notes.texts() == [
        "it holds 9 runs: read 'run 9', the newest run with at least half as many metrics as any other. "
        f"Others: {listed} and 2 more. To read one, name it: 'x.db#run 8'"
    ]
    for given, why in (([], "it holds no runs"), (runs(("a", "b", 1, 1, 0)), "its 1 runs hold no metrics")):
        with pytest.raises(NotALog, match=why):
            choose(given, "", tmp_path, notes)


# Databases that are damaged, hostile or something else.


def make_database(path, script):
    with sqlite3.connect(path) as connection:
        connection.executescript(script)
    connection.close()
    return path


def test_a_project_without_numbers_and_rows_that_are_damaged_are_reported(tmp_path):
    path = make_database(
        tmp_path / "x.db",
        """CREATE TABLE metrics (id, run_name, timestamp, step, metrics);
           INSERT INTO metrics VALUES (1, 'a', '', 1, '{"note": "x"}'), (2, 'a', '', 1, '{"note":')""",
    )
    with pytest.raises(NotALog, match="the Trackio run holds no numbers"):
        read_log(path)
    make_database(path, """INSERT INTO metrics VALUES (3, 'a', '', 3, '{"loss": 0.5}')""")
    log = read_log(path)
    assert log.rows == [{"step": 3, "loss": 0.5}]
    assert "1 row is damaged and was skipped" in log.notes


def test_another_database_says_which_tables_it_has(tmp_path):
    path = make_database(tmp_path / "x.db", "CREATE TABLE users (id); CREATE TABLE orders (id)")
    with pytest.raises(NotALog, match=r"not one of MLflow or Trackio \(its tables: orders, users\)"):
        read_log(path)


def test_a_view_with_no_end_in_a_tables_place_is_not_read(tmp_path):
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
    path = make_database(
        tmp_path / "x.db", f"CREATE VIEW metrics AS {endless} 'a' AS run_name, i AS step, '{{}}' AS metrics FROM n"
    )
    with pytest.raises(NotALog, match="its tables: none"):
        read_log(path)


@pytest.mark.parametrize("end", [100, 4096, 5000])
def test_a_database_that_is_cut_is_reported(tmp_path, end):
    path = make_database(tmp_path / "x.db", "CREATE TABLE metrics (id, run_name, timestamp, step, metrics)")
    with sqlite3.connect(path) as connection:
        connection.executemany("INSERT INTO metrics VALUES (1, 'a', '', 1, ?)", [("{}" * 500,)] * 50)
    connection.close()
    (tmp_path / "cut.db").write_bytes(path.read_bytes()[:end])
    with pytest.raises(NotALog, match=r"SQLite cannot read it|is an SQLite database, but not one"):
        read_log(tmp_path / "cut.db")


# Parquet.


def test_a_parquet_table_distinguishes_missing_from_nan(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    from pyarrow import parquet

    table = arrow.table({"step": [1, 2, 3], "loss": [0.5, math.nan, None], "note": ["x", "y", "z"], "kl": [1, None, 3]})
    parquet.write_table(table, tmp_path / "metrics.parquet")
    log = read_log(tmp_path)
    assert repr(log.rows) == repr(
        [{"step": 1, "loss": 0.5, "kl": 1}, {"step": 2, "loss": math.nan}, {"step": 3, "kl": 3}]
    )
    assert log.notes == ["left out, because they hold no numbers: note"]


def test_a_damaged_parquet_file_and_a_missing_package_are_reported(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    (tmp_path / "x.parquet").write_bytes(b"PAR1" + b"\x00" * 100)
    with pytest.raises(NotALog, match="the Parquet file cannot be read"):
        read_log(tmp_path / "x.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"pip install 'rlvitals\[parquet\]'"):
        read_log(tmp_path / "x.parquet")
