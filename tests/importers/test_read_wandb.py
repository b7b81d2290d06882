"""Weights & Biases: real offline runs, complete, torn, and without the package."""

from __future__ import annotations

import json
import math
import sys
import time

import pytest

pytest.importorskip("wandb", reason="needs the wandb package")

import numpy
import wandb

from conftest import until
from rlvitals.importers import LogTail, NotALog, find_log, importer_for, read_log
from rlvitals.importers.wandb import ONLY_LAST
from rlvitals.importers.wire import leveldb_records

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
    # A process of wandb writes the file, and may still be writing when finish() returns.
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


def test_no_package_is_needed_to_read_it(offline_run, monkeypatch):
    for name in ("wandb", "google.protobuf"):
        monkeypatch.setitem(sys.modules, name, None)
    assert len(read_log(offline_run).rows) == 300


def test_the_rows_are_those_of_the_packages_own_records(offline_run):
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = offline_run.glob("*.wandb")
    losses = []
    for data in leveldb_records(path):
        items = Record.FromString(data).history.item
        values = {item.key or "/".join(item.nested_key): item.value_json for item in items}
        losses += [float(values["loss"])] if "loss" in values else []
    assert losses == [row["loss"] for row in read_log(path).rows if "loss" in row]


def test_a_run_without_history_gives_its_console_output_or_its_last_values(tmp_path):
    (tmp_path / "run-x.wandb").write_bytes(b":W&B\xe1\xbe\x00")
    with pytest.raises(NotALog, match="the W&B run holds no history"):
        read_log(tmp_path)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "wandb-summary.json").write_text(json.dumps({"_step": 7, "loss": 0.5, "_runtime": 3}))
    log = read_log(tmp_path)
    assert log.rows == [{"step": 7, "loss": 0.5}]
    assert log.notes == [ONLY_LAST, "read from files/wandb-summary.json: the W&B run holds no history"]
    (tmp_path / "files" / "output.log").write_text("step:1 - actor/pg_loss:0.5\nstep:2 - actor/pg_loss:0.25\n")
    log = read_log(tmp_path)
    assert (log.format, len(log.rows)) == ("verl", 2)
    assert "read from files/output.log" in log.notes[-1]


def test_a_summary_alone_says_that_it_has_no_history(tmp_path):
    summary = {"_step": 40, "train/global_step": 7, "train": {"loss": 0.5}, "plot": {"_type": "histogram", "bins": [1]}}
    (tmp_path / "wandb-summary.json").write_text(json.dumps(summary))
    for place in (tmp_path, tmp_path / "wandb-summary.json"):
        log = read_log(place)
        assert log.rows == [{"step": 7, "train/global_step": 7, "train/loss": 0.5}]
        assert log.notes == [ONLY_LAST]


def test_the_history_older_versions_wrote_is_read_without_media(tmp_path):
    path = tmp_path / "run-20200101_000000-x" / "wandb-history.jsonl"
    path.parent.mkdir()
    rows = [{"_step": n, "_runtime": n, "_timestamp": 1.6e9 + n, "loss": 1 / (n + 1)} for n in range(3)]
    rows[1]["picture"] = {"_type": "image-file", "width": 3}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path.parent / "config.yaml").write_text(
        "wandb_version: 1\n_wandb:\n  value: 1\nbeta:\n  desc: null\n  value: 0.5\n"
    )
    log = read_log(path.parent)
    assert (log.format, log.config) == ("wandb", {"beta": 0.5})
    assert log.rows == [{"step": n, "timestamp": 1.6e9 + n, "loss": 1 / (n + 1)} for n in range(3)]


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_an_exported_history_has_the_trainings_step_and_no_padding(tmp_path, kind):
    """The results of `run.history()` and `run.scan_history()`, written with pandas."""
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    rows = [{"_step": 2 * n, "_runtime": 1.0 * n, "_timestamp": 1.7e9 + n, "train/global_step": 10 * n,
             "train/loss": 1 / n, "train/reward": 0.5} for n in range(1, 9)]  # fmt: skip
    rows += [{"_step": 17, "_timestamp": 1.7e9 + 9, "train/global_step": 80, "eval/acc": 0.5}]
    frame, path = pandas.DataFrame(rows), tmp_path / f"export.{kind}"
    if kind == "csv":
        frame.to_csv(path)
    elif kind == "parquet":
        pytest.importorskip("pyarrow", reason="needs pyarrow")
        frame.to_parquet(path)
    else:
        path.write_text(json.dumps(rows))
    read = read_log(path).rows
    assert [row["step"] for row in read] == [*range(10, 81, 10), 80]
    assert [row.get("train/loss") for row in read] == [*(1 / n for n in range(1, 9)), None]
    assert read[-1]["eval/acc"] == 0.5
    assert read[0]["timestamp"] == 1.7e9 + 1


def test_a_run_that_was_resumed_under_its_id_is_one_log(offline_run, tmp_path):
    (path,) = offline_run.glob("*.wandb")
    for name in ("run-20250101_120000-kto", "run-20250102_120000-kto", "run-20250101_180000-other"):
        run = tmp_path / name / f"run-{name.rpartition('-')[2]}.wandb"
        run.parent.mkdir()
        run.write_bytes(path.read_bytes())
    log = read_log(tmp_path / "run-20250102_120000-kto")
    assert len(log.rows) == 600
    assert log.notes == [
        "left out, because they hold no numbers: note",
        "the run was resumed under its id: read after what it logged before, in run-20250101_120000-kto",
        "steps start again at row 301: a restart inside the file",
    ]
    assert [
        len(read_log(tmp_path / name).rows) for name in ("run-20250101_120000-kto", "run-20250101_180000-other")
    ] == [
        300,
        300,
    ]


def test_of_a_folder_of_runs_the_newest_is_read_and_links_are_no_runs(offline_run, tmp_path):
    (path,) = offline_run.glob("*.wandb")
    for name in ("run-20250101_120000-old", "run-20250301_120000-new", "run-20250201_120000-mid"):
        (tmp_path / "wandb" / name).mkdir(parents=True)
        (tmp_path / "wandb" / name / f"run-{name[-3:]}.wandb").write_bytes(path.read_bytes())
    (tmp_path / "wandb" / "latest-run").symlink_to("run-20250301_120000-new", target_is_directory=True)
    (tmp_path / "wandb" / "debug.log").write_text("nothing\n")
    for place, prefix in ((tmp_path, "wandb/"), (tmp_path / "wandb", "")):
        log = read_log(place)
        assert log.path.parent.name == "run-20250301_120000-new"
        assert log.notes[0] == (
            f"the folder holds 3 runs: read {prefix}run-20250301_120000-new, the newest. Others, to be passed by their "
            f"path: {prefix}run-20250201_120000-mid, {prefix}run-20250101_120000-old"
        )
    assert len(read_log(tmp_path / "wandb" / "latest-run").rows) == 300


def test_a_folder_that_holds_only_the_console_output_is_read(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "output.log").write_text("{'loss': 0.5, 'epoch': 1}\n")
    assert read_log(tmp_path).rows == [{"step": 1, "loss": 0.5, "epoch": 1}]


def test_histograms_are_distributions(tmp_path, monkeypatch):
    for name in ("HOME", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    settings = wandb.Settings(console="off", x_disable_stats=True)
    run = wandb.init(project="p", mode="offline", dir=str(tmp_path), settings=settings)
    drawn = [numpy.random.default_rng(step).normal(step, 2.0, size=5000) for step in range(3)]
    for step, values in enumerate(drawn):
        made = wandb.Histogram(values, num_bins=200)
        run.log({"loss": 1.0, "train/global_step": 10 * step, "grads": made, "deep": {"inner": made}})
    run.finish()
    (path,) = tmp_path.glob("wandb/offline-run-*")
    (file,) = path.glob("*.wandb")
    until(lambda: len(set(_sizes(file))) == 1)
    log = read_log(path)
    assert log.rows[0].keys() == {"step", "timestamp", "loss", "train/global_step"}
    assert [(one.name, one.step) for one in log.distributions if one.name == "grads"] == [
        ("grads", 0), ("grads", 10), ("grads", 20)
    ]  # fmt: skip
    assert {one.name for one in log.distributions} == {"grads", "deep/inner"}
    for one, values in zip([one for one in log.distributions if one.name == "grads"], drawn, strict=True):
        width = numpy.ptp(values) / 200
        assert one.sketch.count == 5000
        assert one.sketch.mean == pytest.approx(values.mean(), abs=width)
        assert one.sketch.quantiles == pytest.approx(numpy.quantile(values, numpy.linspace(0, 1, 21)), abs=width)


def test_histograms_of_an_older_history_flat_packed_and_damaged(tmp_path):
    rows = [
        {"_step": 1, "loss": 1.0, "a": {"_type": "histogram", "bins": [0, 1, 3], "values": [1, 1]}},
        {"_step": 2, "loss": 1.0, "a/_type": "histogram", "a/bins": [0, 2], "a/values": [4]},
        {"_step": 3, "loss": 1.0, "p": {"_type": "histogram", "packedBins": {"min": 1, "size": 2, "count": 2},
                                        "values": [0, 8]}},
        *({"_step": 4, "loss": 1.0, "bad": {"_type": "histogram"} | item}
          for item in ({}, {"bins": [1], "values": [1]}, {"bins": "ab", "values": [1]}, {"bins": [1, 2], "values": [0]},
                       {"bins": [2, 1], "values": [3]}, {"bins": [None, 1], "values": [3]},
                       {"packedBins": {"count": 1}, "values": [3]}, {"bins": [0, 1], "values": ["x"]})),
    ]  # fmt: skip
    (tmp_path / "wandb-history.jsonl").write_text("\n".join(map(json.dumps, rows)))
    log = read_log(tmp_path)
    found = {(one.name, one.step): (one.sketch.count, one.sketch.quantiles[::10]) for one in log.distributions}
    assert found == {
        ("a", 1): (2, (0.0, 1.0, 3.0)),
        ("a", 2): (4, (0.0, 1.0, 2.0)),
        ("p", 3): (8, (3.0, 4.0, 5.0)),
    }
    assert all(row.keys() <= {"step", "timestamp", "loss"} for row in log.rows)
