"""`rlvitals import LOG --to RUN` creates a normal run with every point of the log."""

from __future__ import annotations

import json
import math
import os

import pytest

import rlvitals
from rlvitals.cli.main import main
from rlvitals.importers import read_log
from rlvitals.store.layout import RunDir
from rlvitals.store.reader import read_rows
from rlvitals.views.run import open_run

ROWS = [
    {"step": 1, "timestamp": 1764000001.0, "loss": 0.5, "kl": 0.1},
    {"step": 2, "timestamp": 1764000002.0, "loss": math.nan, "kl": math.inf},
    {"step": 2, "timestamp": 1764000003.0, "eval_loss": 0.7, "epoch": 1},
    {"step": 3, "timestamp": 1764000004.0, "loss": 0.3, "eval_acc": 0.9},
]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def rows_of(folder, stream="train"):
    return list(read_rows(RunDir(folder).log(stream)))


def test_an_imported_log_is_a_finished_run(log, tmp_path, capsys):
    assert main(["import", str(log), "--to", str(tmp_path / "run")]) == 0
    assert "3 rows, 1 evaluations from" in capsys.readouterr().out
    view = open_run(tmp_path / "run")
    assert (view.status, view.info.name) == ("finished", "train")
    steps, losses = view.series("loss")
    assert list(steps) == [1, 2, 3]
    assert (losses[0], losses[2]) == (0.5, 0.3)
    assert math.isnan(losses[1])
    assert (view.info.created, view.info.ended) == (1764000001.0, 1764000004.0)
    assert main(["show", str(tmp_path / "run")]) == 0


def test_rows_keep_their_names_times_and_what_is_not_finite(log, tmp_path):
    main(["import", str(log), "--to", str(tmp_path / "run")])
    train = rows_of(tmp_path / "run")
    assert [row.timestamp for row in train] == [1764000001.0, 1764000002.0, 1764000004.0]
    assert train[1].numbers["kl"] == math.inf
    assert train[2].numbers == {"loss": 0.3, "eval_acc": 0.9}  # a mixed row stays whole
    lines = (tmp_path / "run" / "logs" / "training_metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[1])["_nonfinite"] == "loss=nan kl=inf"
    (evaluation,) = rows_of(tmp_path / "run", "eval")
    assert evaluation.numbers == {"eval_loss": 0.7, "epoch": 1}


def test_json_tells_the_facts(log, tmp_path, capsys):
    with log.open("a") as file:
        file.write("garbage\n")
    assert main(["import", str(log), "--to", str(tmp_path / "run"), "--json", "--name", "mine"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == {
        "path": str(tmp_path / "run"), "from": str(log), "format": "jsonl", "rows": 3, "eval_rows": 1, "attempts": 1,
        "notes": ["1 line is not JSON and was skipped"],
    }  # fmt: skip
    assert open_run(tmp_path / "run").info.name == "mine"


def test_a_restart_opens_another_attempt(tmp_path):
    path = tmp_path / "log.jsonl"
    steps = [0, 1, 2, 3, 0, 1]
    path.write_text("".join(json.dumps({"step": step, "loss": n / 8}) + "\n" for n, step in enumerate(steps)))
    assert main(["import", str(path), "--to", str(tmp_path / "run")]) == 0
    view = open_run(tmp_path / "run")
    assert [attempt.number for attempt in view.attempts] == [1, 2]
    assert [row.attempt for row in rows_of(tmp_path / "run")] == [1, 1, 1, 1, 2, 2]
    assert list(view.series("loss").values) == [4 / 8, 5 / 8]  # the rows of the last attempt
    assert view.config["rlvitals"]["notes"] == ["steps start again at row 5: a restart inside the file"]


def test_settings_of_the_log_are_the_runs_and_secrets_are_masked(tmp_path):
    path = tmp_path / "trainer_state.json"
    state = {"log_history": [{"step": 1, "loss": 0.5}], "max_steps": 40, "config": {"learning_rate": 1e-6}}
    path.write_text(json.dumps(state, indent=1))
    main(["import", str(path), "--to", str(tmp_path / "run")])
    view = open_run(tmp_path / "run")
    assert view.info.total_steps == 40
    assert view.config["learning_rate"] == 1e-6
    assert view.config["rlvitals"]["imported_from"] == "trainer_state.json"
    assert str(tmp_path) not in (tmp_path / "run" / "config.json").read_text()


def test_a_directory_that_holds_a_run_is_refused_as_start_refuses_it(log, tmp_path, capsys):
    with rlvitals.start(tmp_path / "run", display="none") as run:
        run.log({"loss": 1.0})
    assert main(["import", str(log), "--to", str(tmp_path / "run")]) == 64
    message = capsys.readouterr().err.strip().removeprefix("rlvitals: error: ")
    with pytest.raises(rlvitals.errors.RunExists) as caught:
        rlvitals.start(tmp_path / "run")
    assert message == str(caught.value)
    assert len(rows_of(tmp_path / "run")) == 1


def test_what_is_no_log_exits_64_and_leaves_nothing(tmp_path, capsys):
    (tmp_path / "diary").write_text("nothing was trained today\n")
    assert main(["import", str(tmp_path / "diary"), "--to", str(tmp_path / "run")]) == 64
    assert "is not a training log" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_full_disk_leaves_nothing_behind(small_disk, tmp_path, capsys):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps({"step": n, "loss": 0.123456789}) + "\n" for n in range(20_000)))
    assert main(["import", str(path), "--to", str(small_disk / "run")]) == 64
    assert "No space left" in capsys.readouterr().err
    assert os.listdir(small_disk) == []


def test_an_imported_run_can_be_exported_compacted_and_resumed(log, tmp_path, capsys):
    main(["import", str(log), "--to", str(tmp_path / "run")])
    assert main(["compact", str(tmp_path / "run")]) == 0
    with rlvitals.start(tmp_path / "run", resume=True) as run:
        run.log({"loss": 0.2}, step=4)
        assert run.attempt == 2
    assert main(["export", str(tmp_path / "run"), "--to", "csv", "--output", str(tmp_path / "out.csv")]) == 0
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 5
    assert [row["step"] for row in read_log(tmp_path / "out.csv").rows] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "name", ["grpo_nan_grad_46.log", "verl_agent_collapse_step30.log", "dpo_zephyr_reference_114.csv"]
)
def test_a_real_log_loses_no_point(shared, tmp_path, name):
    source = shared / "logs" / name
    assert main(["import", str(source), "--to", str(tmp_path / "run")]) == 0
    stored = [
        {"step": row.step, **row.numbers}
        for stream in ("train", "eval")
        if RunDir(tmp_path / "run").log(stream).exists()
        for row in rows_of(tmp_path / "run", stream)
    ]
    given = [{name: float(value) for name, value in row.items()} for row in read_log(source).rows]
    assert sorted(map(written, stored)) == sorted(map(written, given))


def written(row):
    return repr(sorted((name, float(value)) for name, value in row.items()))
