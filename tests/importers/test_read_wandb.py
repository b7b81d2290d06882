"""Weights & Biases: real offline runs, whole, torn, and without the package."""

from __future__ import annotations

import json
import math
import sys
import time

import pytest

pytest.importorskip("wandb", reason="needs the wandb package")

import wandb

from conftest import until
from rlvitals.errors import MissingDependency
from rlvitals.importers import LogTail, NotALog, find_log, importer_for, read_log

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def offline_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wandb")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOME", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
            patch.setenv(name, str(folder / "home"))
        config = {"learning_rate": 5e-6, "model": {"name": "tiny"}}
        settings = wandb.Settings(console="off", x_disable_stats=True)
        run = wandb.init(project="p", mode="offline", dir=str(folder), config=config, settings=settings)
        for step in range(1, 300):
            kl = math.nan if step == 7 else 0.25
            run.log({"train/global_step": step * 10, "loss": 1 / step, "actor": {"kl": kl}, "note": "x" * 300})
        run.log({"train/global_step": 2990, "eval/acc": 0.5, "histogram": wandb.Histogram([1, 2, 3])})
        run.finish()
    (path,) = folder.glob("wandb/offline-run-*")
    (file,) = path.glob("*.wandb")
    # The vendor's own process writes the file, and may still be at it when finish() returns.
    until(lambda: len(set(_sizes(file))) == 1)
    return path


def _sizes(file):
    for _ in range(5):
        yield file.stat().st_size
        time.sleep(0.1)


def test_every_row_is_read_with_its_own_step_and_time(offline_run):
    log = read_log(offline_run)
    assert (log.format, importer_for(find_log(offline_run)).name) == ("wandb", "wandb")
    assert [row["step"] for row in log.rows] == [*range(10, 2991, 10), 2990]
    assert log.rows[3]["loss"] == 0.25
    assert math.isnan(log.rows[6]["actor/kl"])
    assert log.rows[0]["timestamp"] > 1_700_000_000
    assert log.rows[-1]["eval/acc"] == 0.5
    assert not any("histogram" in name for name in log.rows[-1])
    assert (log.config["learning_rate"], log.config["model"]) == (5e-6, {"name": "tiny"})


def test_a_torn_file_gives_the_rows_before_the_tear(offline_run, tmp_path):
    (path,) = offline_run.glob("*.wandb")
    data = path.read_bytes()
    (tmp_path / "run-x.wandb").write_bytes(data[: len(data) // 2])
    rows = read_log(tmp_path).rows
    assert 50 < len(rows) < 299
    assert repr(rows) == repr(read_log(path).rows[: len(rows)])


def test_a_file_that_grows_gives_each_row_once(offline_run, tmp_path):
    (path,) = offline_run.glob("*.wandb")
    data, copy, rows = path.read_bytes(), tmp_path / "run-x.wandb", []
    tail = LogTail(copy)
    for end in range(0, len(data) + 10_000, 10_000):
        copy.write_bytes(data[:end])
        rows += tail.poll().rows
    assert repr(rows) == repr(read_log(path).rows)


def test_without_the_package_the_console_output_is_read_instead(offline_run, tmp_path, monkeypatch):
    (path,) = offline_run.glob("*.wandb")
    (tmp_path / "run-x.wandb").write_bytes(path.read_bytes())
    monkeypatch.setitem(sys.modules, "wandb.proto.wandb_internal_pb2", None)
    with pytest.raises(MissingDependency, match=r"pip install 'rlvitals\[wandb\]'"):
        read_log(tmp_path)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "wandb-summary.json").write_text(json.dumps({"_step": 7, "loss": 0.5, "_runtime": 3}))
    log = read_log(tmp_path)
    assert (log.rows[0]["step"], log.rows[0]["loss"]) == (7, 0.5)
    assert "only the last values" in log.notes[-1]
    (tmp_path / "files" / "output.log").write_text("step:1 - actor/pg_loss:0.5\nstep:2 - actor/pg_loss:0.25\n")
    log = read_log(tmp_path)
    assert (log.format, len(log.rows)) == ("verl", 2)
    assert "read from files/output.log" in log.notes[-1]


def test_a_folder_that_holds_only_the_console_output_is_read(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "output.log").write_text("{'loss': 0.5, 'epoch': 1}\n")
    assert read_log(tmp_path).rows == [{"step": 1, "loss": 0.5, "epoch": 1}]


def test_a_run_without_history_is_no_log(tmp_path):
    (tmp_path / "run-x.wandb").write_bytes(b":W&B\xe1\xbe\x00")
    with pytest.raises(NotALog, match="holds no history"):
        read_log(tmp_path)
