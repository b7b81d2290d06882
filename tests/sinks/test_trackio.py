"""Trackio, with the real package: its own storage returns the rows, also after kill -9."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trackio", reason="trackio is not installed: pip install 'rlvitals[trackio]'")

from kills import kill_at_random
from rows import START, facts, files_with, row, rows, samples
from trackio.sqlite_storage import SQLiteStorage

from rlvitals.records import Attempt
from rlvitals.sinks.base import SinkError
from rlvitals.sinks.trackio import TrackioSink

pytestmark = pytest.mark.slow

PROJECT = "kto"
TWO_ATTEMPTS = (Attempt(1, START), Attempt(2, START + 50, from_step=3))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Trackio's folder, which it otherwise reads from the environment when it is imported."""
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_STORAGE_MODE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    return tmp_path / "trackio"


def open_sink(tmp_path: Path, memory: dict[str, Any] | None = None, **settings: Any) -> TrackioSink:
    return TrackioSink(facts(tmp_path, TWO_ATTEMPTS), {"project": PROJECT, **settings}, memory or {})


def read(run: str = "kto-7b") -> list[dict[str, Any]]:
    """The rows of one run as Trackio reads them, sorted by step."""
    return sorted(SQLiteStorage.get_logs(PROJECT, run), key=lambda log: log["step"])


def test_values_come_back_exact_at_their_steps_and_times(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    sink.write(rows([3, 1]))  # out of order
    sink.commit()
    sink.write([row(2, loss=0.1 + 0.2), row(2, lr=1e-300)])  # late, and two rows of one step
    sink.commit()
    sink.close()
    logs = read()
    assert [log["step"] for log in logs] == [1, 2, 2, 3]
    assert logs[0]["loss"] == 1 / 2
    assert logs[0]["rewards/margins"] == 1.1
    assert {log.get("loss") for log in logs[1:3]} == {0.1 + 0.2, None}
    assert logs[2].get("lr", logs[1].get("lr")) == 1e-300
    assert datetime.fromisoformat(logs[3]["timestamp"]).timestamp() == START + 3


def test_nonfinite_numbers_texts_and_evaluations(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    sink.write([row(1, a=math.nan, b=math.inf, c=-math.inf, texts={"note": "warm-up ended"})])
    sink.write([row(1, stream="eval", timestamp=START + 9, numbers={"accuracy": 0.5, "eval_loss": 0.25})])
    sink.write([row(2, timestamp=math.nan, numbers={"time": 3.0})])
    sink.commit()
    sink.close()
    train, evaluation, reserved = read()
    assert math.isnan(train["a"])
    assert (train["b"], train["c"], train["note"]) == (math.inf, -math.inf, "warm-up ended")
    assert (evaluation["eval/accuracy"], evaluation["eval_loss"]) == (0.5, 0.25)
    assert reserved["__time"] == 3.0


def test_an_attempt_is_a_run_of_the_group(tmp_path: Path) -> None:
    sink = open_sink(tmp_path, tags=["roll", "rl"])
    sink.write([*rows(range(1, 6)), *rows(range(4, 8), attempt=2)])
    sink.commit()
    sink.close()
    assert [log["step"] for log in read("kto-7b")] == [1, 2, 3, 4, 5]
    second = read("kto-7b (attempt 2)")
    assert [log["step"] for log in second] == [4, 5, 6, 7]
    assert second[0]["rewards/margins"] == 2.4
    configs = SQLiteStorage.get_all_run_configs(PROJECT)
    assert {config["_Group"] for config in configs.values()} == {"kto-7b"}
    stories = [config["rlvitals"] for config in configs.values()]
    assert [(story["attempt"], story["from_step"]) for story in stories] == [(1, None), (2, 3)]
    config = next(iter(configs.values()))
    assert (config["lr"], config["model"], config["tags"]) == (1e-5, {"name": "tiny", "layers": 2}, ["roll", "rl"])


def test_rows_sent_again_are_read_once(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    sink.write(rows(range(5)))
    sink.commit()
    saved = json.loads(json.dumps(sink.memory))
    sink.write([*rows(range(5, 9)), row(5, stream="eval", loss=1.0)])
    sink.commit()  # committed, but its memory is lost
    sink.write(rows(range(9, 12)))
    sink.abandon()
    sink = open_sink(tmp_path, saved)
    sink.write([*rows(range(5, 9)), row(5, stream="eval", loss=1.0), *rows(range(9, 12))])
    sink.commit()
    sink.close()
    assert sorted(log["step"] for log in read()) == sorted([*range(12), 5])


def test_a_lost_cursor_does_no_harm(tmp_path: Path) -> None:
    for _ in range(2):
        sink = open_sink(tmp_path)
        sink.write(rows(range(5)))
        sink.commit()
        sink.close()
    assert [log["step"] for log in read()] == [0, 1, 2, 3, 4]


def test_on_a_network_disk_fragments_are_written(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trackio import fragments

    monkeypatch.setenv("TRACKIO_STORAGE_MODE", "jsonl")
    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", folder)
    monkeypatch.setattr(fragments, "local_inbox_dir", lambda: folder / "inbox")
    for _ in range(2):
        sink = open_sink(tmp_path)
        sink.write([*rows(range(5)), row(5, loss=math.inf)])
        sink.commit()
        sink.close()
    assert not list(folder.glob("*.db"))
    fragments.import_inbox_dir(folder / "inbox")  # as the dashboard does
    assert [log["step"] for log in read()] == [0, 1, 2, 3, 4, 5]
    assert read()[5]["loss"] == math.inf
    assert datetime.fromisoformat(read()[5]["timestamp"]).timestamp() == START + 5


CHILD = """
import json, sys
from pathlib import Path
from rows import facts, rows
from rlvitals.sinks.trackio import TrackioSink

root, cursor = Path(sys.argv[1]), Path(sys.argv[1]) / "cursor.json"
done, memory = json.loads(cursor.read_text()) if cursor.exists() else (0, {})
sink = TrackioSink(facts(root), {"project": "kto"}, memory)
print("open", flush=True)
while True:
    for _ in range(2):  # the first commit's memory is lost, as when the process dies before it is saved
        sink.write(rows(range(done, done + 3)))
        sink.commit()
        done += 3
    cursor.with_suffix(".new").write_text(json.dumps([done, sink.memory]))
    cursor.with_suffix(".new").rename(cursor)
"""


def test_every_row_once_after_kill_9(tmp_path: Path, folder: Path, child_environment: dict[str, str]) -> None:
    environment = {**child_environment, "TRACKIO_DIR": str(folder), "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    cursor = tmp_path / "cursor.json"
    assert kill_at_random(command, environment, cursor, random.Random(7), times=10, longest=0.1) == 10
    done, memory = json.loads(cursor.read_text())
    sink = TrackioSink(facts(tmp_path), {"project": PROJECT}, memory)
    sink.write(rows(range(done, done + 100)))
    sink.commit()
    sink.close()
    logs = read()
    assert [log["step"] for log in logs] == list(range(done + 100))
    assert all(log["loss"] == 1 / (1 + log["step"]) for log in logs)


SERVER = """
import trackio
_, url, _, _ = trackio.show(open_browser=False, block_thread=False)
print("url", url, flush=True)
input()
"""


def test_a_server_of_ones_own_acknowledges_and_takes_a_row_once(
    tmp_path: Path, folder: Path, child_environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "write-token-0123456789"
    environment = {**child_environment, "TRACKIO_DIR": str(folder), "TRACKIO_WRITE_TOKEN": secret}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        url = next(line.split()[1] for line in server.stdout if line.startswith("url "))
        settings = {"server_url": f"{url}?write_token={secret}"}
        sink = open_sink(tmp_path, **settings)
        sink.write(rows(range(4)))
        sink.commit()
        assert [log["step"] for log in read()] == [0, 1, 2, 3]  # in the storage when commit returns
        sink.abandon()
        sink = open_sink(tmp_path, **settings)
        sink.write([*rows(range(4)), row(4, loss=math.nan), row(4, attempt=2, loss=-math.inf)])
        sink.commit()
        sink.close()
        assert [log["step"] for log in read()] == [0, 1, 2, 3, 4]
        assert math.isnan(read()[4]["loss"])
        assert [log["loss"] for log in read("kto-7b (attempt 2)")] == [-math.inf]
        assert capsys.readouterr().out == ""
        assert secret not in json.dumps(sink.memory)
        assert files_with(tmp_path, secret) == []
    finally:
        server.kill()
        server.communicate()
    with pytest.raises(SinkError, match="write token"):
        open_sink(tmp_path, **settings)


def test_settings(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="Did you mean 'project'"):
        TrackioSink(facts(tmp_path), {"projekt": "x"}, {})
    with pytest.raises(SinkError, match="no setting 'resume'"):
        TrackioSink(facts(tmp_path), {"project": PROJECT, "resume": "must"}, {})
    with pytest.raises(SinkError, match="registry-"):
        TrackioSink(facts(tmp_path), {"project": "registry-x"}, {})
    with pytest.raises(SinkError, match="write token"):
        TrackioSink(facts(tmp_path), {"project": PROJECT, "server_url": "http://127.0.0.1:1"}, {})
    sink = open_sink(tmp_path, name="mine", group="ours")
    sink.write(rows([1]))
    sink.commit()
    sink.close()
    assert read("mine")
    assert SQLiteStorage.get_all_run_configs(PROJECT)["kto-7b-0123abcd-1"]["_Group"] == "ours"


def test_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(SinkError, match=r"pip install 'rlvitals\[trackio\]'"):
        open_sink(tmp_path)


def test_nothing_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink = open_sink(tmp_path)
    sink.write(rows([1]))
    sink.commit()
    sink.close()
    assert capsys.readouterr().out == ""


def test_samples_of_the_machine_are_system_metrics_on_the_axis_of_time(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    sink.write([*samples([0]), *rows([100])])
    sink.commit()
    saved = json.loads(json.dumps(sink.memory))
    for memory in (saved, saved):  # the second time, they are sent again
        sink = open_sink(tmp_path, json.loads(json.dumps(memory)))
        sink.write(samples([1, 2]))
        sink.commit()
        sink.close()
    found = SQLiteStorage.get_system_logs(PROJECT, "kto-7b")
    assert sorted(log["System/CPU_Percent"] for log in found) == [0.0, 1.0, 2.0]
    times = sorted(datetime.fromisoformat(log["timestamp"]).timestamp() for log in found)
    assert times == [START, START + 5, START + 10]
    assert [log["step"] for log in read()] == [100]
    assert len(SQLiteStorage.get_all_run_configs(PROJECT)) == 1
