"""Columns over runs: exact at the first request, updated with new rows, and not read again without need."""

from __future__ import annotations

import difflib
import json

import pytest

import rlvitals
from rlvitals.errors import UnknownMetric
from rlvitals.views import run_table
from rlvitals.views.run import open_run
from rlvitals.views.run_table import CellSource, RunTable

COLUMNS = ["reward.last", "reward.best", "kl.best", "reward@2", "accuracy.last", "lr", "seeds", "sweep", "nowhere.last"]


def start(path, **config):
    return rlvitals.start(path, monitor=False, hardware=False, display="none", config=config)


@pytest.fixture
def opened(monkeypatch):
    """The runs that were opened completely, once per opening."""
    counted = []
    monkeypatch.setattr(run_table, "_cell", lambda view, wanted: counted.append(view.path.name) or CELL(view, wanted))
    return counted


CELL = run_table._cell


def sources(folder, *names):
    return {name: CellSource(folder / name, lambda name=name: open_run(folder / name)) for name in names}


def test_cells_are_those_of_the_run_and_follow_what_is_added(tmp_path, opened):
    run = start(tmp_path / "a", lr=1e-6, optim={"seed": 1})
    for step, reward in ((1, 0.5), (2, 0.9), (3, 0.7)):
        run.log({"reward": reward, "kl": 0.1 * step}, step=step)
    run.log_eval({"accuracy": 0.25}, step=3)
    table, asked = RunTable(), sources(tmp_path, "a")
    cells, pending = table.cells(asked, COLUMNS)
    # A KL has no better direction, and a single run has no sweep.
    assert (cells["a"], pending) == ([0.7, 0.9, None, 0.9, 0.25, 1e-6, "the same settings", None, None], 0)
    opened.clear()
    for step, reward in ((4, 1.5), (5, 0.1), (6, float("nan"))):
        run.log({"reward": reward, "kl": 0.1}, step=step)
    run.log_eval({"accuracy": 0.5}, step=6)
    cells, _ = table.cells(asked, COLUMNS)
    assert cells["a"] == ["nan", 1.5, None, 0.9, 0.5, 1e-6, "the same settings", None, None]
    assert cells["a"][1] == open_run(tmp_path / "a").best("reward").best
    assert opened == []  # reading the new rows was enough
    run.log({"reward": 0.2, "nowhere": 3.0}, step=7)
    assert table.cells(asked, COLUMNS)[0]["a"][-1] == 3.0
    assert set(opened) == {"a"}  # a new metric: its name and its better direction must be looked up
    run.finish()


def test_another_column_is_computed_alone_unless_rows_were_added(tmp_path, opened):
    run = start(tmp_path / "a")
    run.log({"reward": 0.5, "kl": 0.1}, step=1)
    table, asked = RunTable(), sources(tmp_path, "a")
    assert table.cells(asked, ["reward.last", "reward.best"])[0] == {"a": [0.5, 0.5]}
    opened.clear()
    assert table.cells(asked, ["reward.last", "kl.last"])[0] == {"a": [0.5, 0.1]}
    assert opened == ["a"]
    run.log({"reward": 0.25, "kl": 0.2}, step=2)
    assert table.cells(asked, ["reward.last", "kl.last", "reward@1"])[0] == {"a": [0.25, 0.2, 0.5]}
    assert table.cells(asked, ["reward.best"])[0] == {"a": [0.5]}
    run.finish()


def test_rows_that_a_resume_overtook_do_not_count(tmp_path):
    run = start(tmp_path / "a")
    for step in range(1, 21):
        run.log({"reward": 9.0 if step > 10 else 1.0}, step=step)
    table, asked = RunTable(), sources(tmp_path, "a")
    assert table.cells(asked, ["reward.best", "reward@15"])[0] == {"a": [9.0, 9.0]}
    run.finish()
    run = rlvitals.start(tmp_path / "a", monitor=False, hardware=False, display="none", resume=10)
    run.log({"reward": 2.0}, step=11)
    assert table.cells(asked, ["reward.best", "reward@15"])[0] == {"a": [2.0, 2.0]}
    run.finish()


def test_settings_families_and_sweeps(tmp_path):
    for name, config in {
        "grid/one": {"optim": {"lr": 1e-6}, "seed": 1, "output_dir": "x", "run_id": "1"},
        "grid/two": {"optim": {"lr": 1e-6}, "seed": 2, "output_dir": "y", "run_id": "2"},
        "grid/three": {"optim": {"lr": 1e-5}, "seed": 1, "tags": ["a"], "sweep": "mine"},
    }.items():
        with start(tmp_path / name, **config) as run:
            run.log({"reward": 1.0}, step=1)
    names = ["grid/one", "grid/two", "grid/three"]
    table = RunTable()
    cells, _ = table.cells(sources(tmp_path, *names), ["lr", "optim.lr", "seeds", "sweep", "tags"])
    assert cells["grid/one"][:2] == [1e-6, 1e-6]
    assert cells["grid/one"][2] == cells["grid/two"][2] != cells["grid/three"][2]
    assert cells["grid/one"][3] == "grid"
    assert cells["grid/three"][3:] == ["mine", '["a"]']
    choices = table.choices(names)
    assert choices["metrics"] == ["reward"]
    assert {"optim.lr", "seed", "sweep"} <= set(choices["settings"])


def test_an_answer_does_not_wait_for_every_log(tmp_path):
    names = [f"r{number}" for number in range(4)]
    for name in names:
        with start(tmp_path / name) as run:
            run.log({"reward": 1.0}, step=1)
    table, asked = RunTable(), sources(tmp_path, *names)
    cells, pending = table.cells(asked, ["reward.last"], patience=-1.0)
    assert (pending, {value for (value,) in cells.values()}) == (4, {None})
    assert table.cells(asked, ["reward.last"], patience=60.0) == ({name: [1.0] for name in names}, 0)
    assert table.cells(asked, ["reward.last"], patience=-1.0) == ({name: [1.0] for name in names}, 0)


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path):
    with start(tmp_path / "fine") as run:
        run.log({"reward": 1.0}, step=1)
    (tmp_path / "broken").mkdir()
    cells, pending = RunTable().cells(sources(tmp_path, "broken", "fine"), ["reward.last"])
    assert (cells, pending) == ({"broken": [None], "fine": [1.0]}, 0)


def test_a_bare_log_that_begins_another_attempt_is_read_again(tmp_path):
    """Without a list of attempts, a restart is inferred from the rows."""
    log = tmp_path / "a" / "logs" / "training_metrics.jsonl"
    log.parent.mkdir(parents=True)

    def lines(attempt, first, last, reward):
        rows = [{"step": step, "timestamp": 1.0, "attempt": attempt, "reward": reward} for step in range(first, last)]
        return "".join(json.dumps(row) + "\n" for row in rows)

    log.write_text(lines(1, 1, 11, 1.0) + lines(1, 11, 21, 9.0))
    table, asked = RunTable(), sources(tmp_path, "a")
    assert table.cells(asked, ["reward.best"])[0] == {"a": [9.0]}
    with log.open("a") as file:
        file.write(lines(2, 11, 13, 2.0))
    assert (
        table.cells(asked, ["reward.best"])[0] == {"a": [open_run(tmp_path / "a").best("reward").best]} == {"a": [2.0]}
    )


def test_what_a_run_does_not_log_is_not_compared_with_every_name_there_is(tmp_path, monkeypatch):
    with start(tmp_path / "a") as run:
        run.log({"reward": 0.5}, step=1)
    compared = []
    close = difflib.get_close_matches
    monkeypatch.setattr(
        difflib, "get_close_matches", lambda *given, **how: compared.append(given) or close(*given, **how)
    )
    asked = ["rewrad.last", "entropy.last", "reward.total.mean.last"]
    assert RunTable().cells(sources(tmp_path, "a"), asked)[0]["a"] == [None, None, 0.5]
    assert not compared
    with pytest.raises(UnknownMetric, match="reward"):
        open_run(tmp_path / "a").resolve("rewrad")
    assert compared
