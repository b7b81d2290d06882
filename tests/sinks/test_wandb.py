"""Weights & Biases: real offline runs, read back with a small reader of their files (wandb itself has none)."""

from __future__ import annotations

import getpass
import json
import math
import random
import socket
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("wandb", reason="needs the wandb package")

from kills import kill_at_random
from rows import CONFIG, START, facts, files_with, row, rows, samples, write_log

from rlvitals.records import Attempt
from rlvitals.sinks.base import SinkError
from rlvitals.sinks.wandb import WandbSink

pytestmark = pytest.mark.slow

RESUMED = (Attempt(1, START), Attempt(2, START + 1000, from_step=5))


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    """Each test has its own caches and settings of W&B."""
    for name in ("HOME", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_RUN_GROUP"):
        monkeypatch.delenv(name, raising=False)


def records(path: Path) -> list:
    """Every complete record: a 7-byte header, then a LevelDB log (blocks of 32 KiB, chunks with a 7-byte head)."""
    from wandb.proto import wandb_internal_pb2

    data, position, parts, found = path.read_bytes(), 7, b"", []
    assert data[:4] == b":W&B"
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            found.append(wandb_internal_pb2.Record.FromString(parts))
            parts = b""
    return found


def run_files(folder: Path, attempt: int = 1) -> list[Path]:
    """The files of an attempt that `wandb sync` finds."""
    return sorted(folder.glob(f"wandb/offline-run-*/run-*-a{attempt}.wandb"))


def history(folder: Path, attempt: int = 1) -> list[dict]:
    (path,) = run_files(folder, attempt)
    return [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for record in records(path)
        if record.WhichOneof("record_type") == "history"
    ]


def points(folder: Path, name: str, attempt: int = 1) -> list[tuple[int, float]]:
    return [(values["rlvitals/step"], values[name]) for values in history(folder, attempt) if name in values]


def run_record(folder: Path, attempt: int = 1):
    (path,) = run_files(folder, attempt)
    (record,) = [record.run for record in records(path) if record.WhichOneof("record_type") == "run"]
    return record


def write(of, folder, *batches, memory=None, **settings):
    """Log like the recorder, then write like the follower."""
    sink = WandbSink(of, {"mode": "offline", "dir": str(folder), **settings}, json.loads(json.dumps(memory or {})))
    for batch in batches:
        sink.write(batch)
        sink.commit()
    sink.close()
    return sink.memory


def test_every_value_is_at_its_step_and_time_at_full_precision(tmp_path):
    given = rows([5, 1, 9, 2**53, 0, -3, 5, *range(100, 400)])
    write(facts(tmp_path), tmp_path, given[:4], given[4:])
    for name in ("loss", "rewards/margins"):
        assert points(tmp_path, name) == [(item.row.step, item.row.numbers[name]) for item in given]
    assert [values["_timestamp"] for values in history(tmp_path)] == [item.row.timestamp for item in given]


def test_all_charts_are_on_the_runs_own_step_axis(tmp_path):
    write(facts(tmp_path), tmp_path, rows([1]))
    (path,) = run_files(tmp_path)
    metrics = [record.metric for record in records(path) if record.WhichOneof("record_type") == "metric"]
    assert [metric.step_metric for metric in metrics if metric.glob_name == "*"] == ["rlvitals/step"]
    assert "rlvitals/step" in [metric.name for metric in metrics]


def test_not_finite_numbers_texts_and_evaluations(tmp_path):
    odd = row(1, texts={"sample": "schön"}, a=math.nan, b=math.inf, c=-math.inf, d=1e300, timestamp=math.nan)
    evaluation = row(1, stream="eval", numbers={"loss": 2.0, "eval_kl": 3.0}, texts={"judge": "fine"})
    write(facts(tmp_path), tmp_path, [odd, evaluation])
    first, second = history(tmp_path)
    assert math.isnan(first["a"])
    assert (first["b"], first["c"], first["d"], first["sample"]) == (math.inf, -math.inf, 1e300, "schön")
    assert {name: second[name] for name in ("eval/loss", "eval_kl", "eval/judge")} == {
        "eval/loss": 2.0, "eval_kl": 3.0, "eval/judge": "fine",
    }  # fmt: skip


def test_a_commit_returns_when_the_file_holds_the_rows(tmp_path):
    sink = WandbSink(facts(tmp_path), {"mode": "offline", "dir": str(tmp_path)}, {})
    sink.write(rows(range(50)))
    sink.commit()
    assert len(history(tmp_path)) == 50
    sink.write(rows(range(50, 51)))
    sink.commit()
    assert len(history(tmp_path)) == 51
    sink.close()


def test_each_attempt_is_a_run_of_its_own_in_one_group(tmp_path):
    of = facts(tmp_path, RESUMED)
    memory = write(facts(tmp_path), tmp_path, rows(range(1, 11)))
    write(of, tmp_path, rows(range(6, 9), attempt=2), memory=memory)
    assert [step for step, _ in points(tmp_path, "loss", 1)] == list(range(1, 11))
    assert points(tmp_path, "rewards/margins", 2) == [(step, step / 10 + 2) for step in range(6, 9)]
    first, second = run_record(tmp_path, 1), run_record(tmp_path, 2)
    assert {first.run_group, second.run_group} == {of.id}
    assert (first.display_name, second.display_name) == ("kto-7b", "kto-7b (attempt 2)")


def test_attempts_may_be_mixed_in_one_batch(tmp_path):
    of = facts(tmp_path, RESUMED)
    batch = [*rows([1, 2]), *rows([6], attempt=2), *rows([2], stream="eval"), *rows([6], attempt=2, stream="eval")]
    write(of, tmp_path, batch)
    assert points(tmp_path, "eval/loss", 1) == [(2, 1 / 3)]
    assert points(tmp_path, "eval/loss", 2) == [(6, 1 / 7)]


def test_late_rows_of_a_closed_attempt_are_added_to_it(tmp_path):
    of = facts(tmp_path, RESUMED)
    early, late = [*rows(range(1, 11)), *rows([3], stream="eval")], [*rows([11]), *rows([5], stream="eval")]
    write_log(of, [*early, *rows([6], attempt=2), *late])
    memory = write(of, tmp_path, early, rows([6], attempt=2))
    write(of, tmp_path, late, memory=memory)
    assert [step for step, _ in points(tmp_path, "loss")] == list(range(1, 12))
    assert points(tmp_path, "eval/loss") == [(3, 1 / 4), (5, 1 / 6)]
    assert len(history(tmp_path)) == 13
    assert points(tmp_path, "loss", 2) == [(6, 1 / 7)]


def test_rows_sent_again_after_an_error_are_read_once(tmp_path):
    of, settings = facts(tmp_path), {"mode": "offline", "dir": str(tmp_path)}
    write_log(of, rows(range(1, 12)))
    sink = WandbSink(of, settings, {})
    sink.write(rows(range(1, 6)))
    sink.abandon()
    memory = write(of, tmp_path, rows(range(1, 6)))
    sink = WandbSink(of, settings, json.loads(json.dumps(memory)))
    sink.write(rows(range(6, 9)))
    sink.abandon()
    assert len(run_files(tmp_path)) == 2, "the committed file stays until another holds as much"
    write(of, tmp_path, rows(range(6, 12)), memory=memory)
    assert [step for step, _ in points(tmp_path, "loss")] == list(range(1, 12))


def test_without_the_log_an_attempt_cannot_be_written_again(tmp_path):
    memory = write(facts(tmp_path), tmp_path, rows([1]))
    with pytest.raises(SinkError, match=r"lacks \d+ of its \d+ rows. Restore .*training_metrics\.jsonl"):
        write(facts(tmp_path), tmp_path, rows([2]), memory=memory)
    assert len(history(tmp_path)) == 1


def test_a_disk_that_takes_nothing_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("rlvitals.sinks.wandb.PATIENCE_SECONDS", 0.2)
    sink = WandbSink(facts(tmp_path), {"mode": "offline", "dir": str(tmp_path), "settings": {FLUSH: 1000.0}}, {})
    sink.write(rows([1]))
    with pytest.raises(SinkError, match="0 of 1 rows"):
        sink.commit()
    sink.abandon()


FLUSH = "x_transaction_log_flush_interval"

CHILD = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from rows import facts, rows, write_log
from rlvitals.sinks.wandb import WandbSink
tmp = Path(sys.argv[1])
saved = tmp / "cursor.json"
state = json.loads(saved.read_text()) if saved.exists() else {{"next": 0, "memory": {{}}}}
sink = WandbSink(facts(tmp), {{"mode": "offline", "dir": str(tmp)}}, state["memory"])
step = state["next"]
print("open", flush=True)
while step < {total}:
    batch = rows(range(step, min(step + 30, {total})))
    sink.write(batch)
    sink.commit()
    step += len(batch)
    (tmp / "new").write_text(json.dumps({{"next": step, "memory": sink.memory}}))
    os.replace(tmp / "new", saved)
sink.close()
"""


def test_a_writer_killed_at_random_moments_leaves_every_row_once(tmp_path, child_environment):
    write_log(facts(tmp_path), rows(range(2000)))
    command = [sys.executable, "-c", CHILD.format(here=str(Path(__file__).parent), total=10**9), str(tmp_path)]
    cursor = tmp_path / "cursor.json"
    assert kill_at_random(command, child_environment, cursor, random.Random(7), times=4, longest=1.0) == 4
    reached = json.loads(cursor.read_text())["next"]
    assert any(len(history_of(path)) >= reached for path in run_files(tmp_path)), "committed rows are in a file"
    command[2] = CHILD.format(here=str(Path(__file__).parent), total=reached + 100)
    subprocess.run(command, env=child_environment, check=True, capture_output=True)
    found = points(tmp_path, "rewards/margins")
    assert Counter(step for step, _ in found) == Counter(range(reached + 100))
    assert all(value == step / 10 + 1 for step, value in found)


def history_of(path: Path) -> list:
    return [record for record in records(path) if record.WhichOneof("record_type") == "history"]


def test_settings_as_the_roll_document_shows_them(tmp_path, capfd):
    document = {
        "api_key": "0123456789abcdef0123456789abcdefverysecret",
        "project": "your_project_name",
        "name": "experiment_name",
        "notes": "Experiment description",
        "tags": ["tag1", "tag2"],
    }
    sink = WandbSink(facts(tmp_path), {**document, "mode": "offline", "log_dir": str(tmp_path)}, {})
    sink.write(rows([1]))
    sink.commit()
    sink.close()
    record = run_record(tmp_path)
    assert (record.project, record.display_name, record.notes) == (
        "your_project_name", "experiment_name", "Experiment description",
    )  # fmt: skip
    assert list(record.tags) == ["tag1", "tag2"]
    assert not files_with(tmp_path, document["api_key"])
    assert capfd.readouterr() == ("", "")


def test_the_configuration_goes_along_and_the_machine_does_not(tmp_path):
    write(facts(tmp_path), tmp_path, rows([1]), config={"extra": 1}, group="mine", id="own id", job_type="train")
    record = run_record(tmp_path)
    config = {item.key: json.loads(item.value_json) for item in record.config.update}
    about = {"run": "kto-7b-0123abcd", "algorithm": "kto", "attempt": 1, "from_step": None}
    assert config["rlvitals"] == about
    assert {name: config[name] for name in (*CONFIG, "extra")} == {**CONFIG, "extra": 1}
    assert (record.run_group, record.run_id, record.job_type) == ("mine", "own-id-a1", "train")
    (path,) = run_files(tmp_path)
    for name in (socket.gethostname(), getpass.getuser()):
        assert f'"{name}"' not in str(records(path))


def test_the_default_folder_is_below_the_run(tmp_path):
    of = facts(tmp_path)
    sink = WandbSink(of, {"mode": "offline"}, {})
    sink.write(rows([1]))
    sink.commit()
    sink.close()
    assert points(of.root / "logs", "loss") == [(1, 0.5)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"projet": "x"}, r"'projet'.*Did you mean 'project'"),
        ({"resume": "allow"}, "decides 'resume' itself"),
        ({"mode": "disabled"}, "would keep nothing"),
        ({"settings": {"silnt": True}}, "Did you mean 'silent'"),
        ({"settings": 3}, "must be a mapping"),
        ({"dir": "/proc/nowhere"}, "Give another dir"),
    ],
)
def test_settings_that_cannot_be(tmp_path, settings, message):
    with pytest.raises(SinkError, match=message):
        WandbSink(facts(tmp_path), {"mode": "offline", **settings}, {})


def test_a_wrong_value_is_an_error_that_says_so(tmp_path):
    sink = WandbSink(facts(tmp_path), {"mode": "nowhere", "dir": str(tmp_path)}, {})
    with pytest.raises(SinkError, match="cannot start"):
        sink.write(rows([1]))
    sink.abandon()


def test_without_the_package_the_error_holds_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(SinkError, match=r"pip install 'rlvitals\[wandb\]'"):
        WandbSink(facts(tmp_path), {}, {})


def test_samples_of_the_machine_have_an_axis_of_their_own(tmp_path):
    of = facts(tmp_path)
    write_log(of, [*rows([100]), *samples(range(3))])
    memory = write(of, tmp_path, [*rows([100]), *samples(range(2))])
    write(of, tmp_path, samples([2]), memory=memory)  # a closed run is rewritten with its samples
    found = [values for values in history(tmp_path) if "System/CPU_Percent" in values]
    assert [(values["rlvitals/sample"], values["System/CPU_Percent"]) for values in found] == [(0, 0), (1, 1), (2, 2)]
    assert not any("rlvitals/step" in values for values in found)
    assert [values["_timestamp"] for values in found] == [START, START + 5, START + 10]
    assert points(tmp_path, "loss") == [(100, 1 / 101)]
    (path,) = run_files(tmp_path)
    metrics = [record.metric for record in records(path) if record.WhichOneof("record_type") == "metric"]
    axes = [metric.step_metric for metric in metrics if metric.name == "System/CPU_Percent"]
    assert axes == ["rlvitals/sample"]
