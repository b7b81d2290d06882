"""SwanLab, with the real package offline; its files are read back by a small reader of their record format."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("swanlab", reason="swanlab is not installed: pip install 'rlvitals[swanlab]'")

import swanlab
from kills import kill_at_random
from rows import START, facts, files_with, row, rows, samples, write_log
from swanlab.proto.swanlab.record.v1.record_pb2 import Record

from rlvitals.records import Attempt
from rlvitals.sinks import swanlab as module
from rlvitals.sinks.base import SinkError, SinkRow
from rlvitals.sinks.swanlab import SwanLabSink

pytestmark = pytest.mark.slow

TWO_ATTEMPTS = (Attempt(1, START), Attempt(2, START + 50, from_step=3))


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Removes settings of the environment, and closes an open run for the next test."""
    for name in [name for name in os.environ if name.startswith("SWANLAB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SWANLAB_ROOT", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    yield
    if swanlab.has_run():
        swanlab.get_run().finish()


def open_sink(tmp_path: Path, memory: dict[str, Any] | None = None, **settings: Any) -> SwanLabSink:
    given = {"mode": "offline", "project": "roll", "logdir": str(tmp_path / "swanlog"), **settings}
    return SwanLabSink(facts(tmp_path, TWO_ATTEMPTS), given, memory or {})


def deliver(sink: SwanLabSink, *given: SinkRow) -> None:
    """Log, write and commit, as the recorder and the follower do."""
    write_log(sink.facts, given)
    sink.write(given)
    sink.commit()


@dataclass
class Experiment:
    """The content of one SwanLab file."""

    start: Any = None
    finish: Any = None
    numbers: dict[tuple[str, int], float] = field(default_factory=dict)
    texts: dict[tuple[str, int], str] = field(default_factory=dict)
    copies: Counter[tuple[str, int]] = field(default_factory=Counter)
    config: str = ""

    def series(self, key: str) -> dict[int, float]:
        return {step: number for (name, step), number in self.numbers.items() if name == key}


def read_records(path: Path) -> Iterator[bytes]:
    """The records of a SwanLab file: LevelDB's log format, with a header of 7 bytes and zlib's crc32."""
    data = path.read_bytes()
    assert struct.unpack("<4sHB", data[:7]) == (b":SWL", 0xE1D6, 2)
    position, parts = 7, b""
    while position < len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        checksum, length, kind = struct.unpack("<IHB", data[position : position + 7])
        piece = data[position + 7 : position + 7 + length]
        assert zlib.crc32(piece, zlib.crc32(bytes([kind]))) == checksum
        position += 7 + length
        parts += piece
        if kind in (1, 4):  # full, last
            yield parts
            parts = b""


def read(tmp_path: Path) -> dict[str, Experiment]:
    """Every experiment in SwanLab's folder, by name."""
    found = {}
    for path in sorted((tmp_path / "swanlog").glob("*/*.swanlab")):
        experiment = Experiment()
        for data in read_records(path):
            record = Record.FromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "start":
                experiment.start = record.start
            elif kind == "finish":
                experiment.finish = record.finish
            elif kind == "scalar":
                place = record.scalar.key, record.scalar.step
                experiment.numbers[place] = record.scalar.value.number
                experiment.copies[place] += 1
            elif kind == "media":
                place = record.media.key, record.media.step
                file = path.parent / "media" / "text" / record.media.value.items[0].filename
                experiment.texts[place] = file.read_text()
                experiment.copies[place] += 1
        experiment.config = (path.parent / "files" / "config.yaml").read_text()
        assert experiment.start.name not in found, "two experiments of one name"
        found[experiment.start.name] = experiment
    return found


def test_values_come_back_exact_at_their_steps(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    deliver(sink, *rows([3, 1]), row(3, lr=1e-300))  # out of order, and two rows of one step
    deliver(sink, row(2, loss=0.1 + 0.2))  # late
    assert read(tmp_path)["kto-7b"].series("loss") == {1: 1 / 2, 2: 0.1 + 0.2, 3: 1 / 4}  # commit has written it
    sink.close()
    experiment = read(tmp_path)["kto-7b"]
    assert experiment.series("loss") == {1: 1 / 2, 2: 0.1 + 0.2, 3: 1 / 4}
    assert experiment.series("rewards/margins") == {1: 1.1, 3: 1.3}
    assert experiment.series("lr") == {3: 1e-300}
    assert set(experiment.copies.values()) == {1}
    assert experiment.finish is not None


def test_nonfinite_numbers_texts_and_evaluations(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    deliver(
        sink,
        row(1, a=math.nan, b=math.inf, c=-math.inf, texts={"note": "warm-up ended"}),
        row(1, stream="eval", numbers={"accuracy": 0.5, "eval_loss": 0.25}, texts={"verdict": "good"}),
    )
    sink.close()
    experiment = read(tmp_path)["kto-7b"]
    assert math.isnan(experiment.numbers["a", 1])
    assert (experiment.numbers["b", 1], experiment.numbers["c", 1]) == (math.inf, -math.inf)
    assert experiment.texts == {("note", 1): "warm-up ended", ("eval/verdict", 1): "good"}
    assert experiment.series("eval/accuracy") == {1: 0.5}
    assert experiment.series("eval_loss") == {1: 0.25}


def test_names_swanlab_does_not_like_and_steps_it_does_not_take(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    deliver(sink, row(1, numbers={"/loss.": 1.0, "__swanlab__.x": 2.0, "tab\there": 3.0, "...": 4.0}))
    deliver(sink, row(-1, loss=5.0), row(2, both=6.0), row(3, texts={"both": "now a text"}), row(4))
    sink.close()
    experiment = read(tmp_path)["kto-7b"]
    assert experiment.numbers == {
        ("loss", 1): 1.0,
        ("metric/__swanlab__.x", 1): 2.0,
        ("tab_here", 1): 3.0,
        ("metric", 1): 4.0,
        ("both", 2): 6.0,
    }
    assert experiment.texts == {("both/text", 3): "now a text"}


def test_an_attempt_is_an_experiment_of_the_group(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    deliver(sink, *rows(range(1, 6)), *rows(range(4, 8), attempt=2))
    # The follower reads the logs in parallel, so an evaluation of the first attempt may arrive now.
    deliver(sink, row(5, stream="eval", loss=0.5), row(8, attempt=2, loss=0.8))
    sink.close()
    found = read(tmp_path)
    assert set(found) == {"kto-7b", "kto-7b (attempt 2)"}
    assert {experiment.start.group for experiment in found.values()} == {"kto-7b"}
    assert found["kto-7b"].series("rewards/margins") == {step: step / 10 + 1 for step in range(1, 6)}
    assert found["kto-7b"].series("eval/loss") == {5: 0.5}
    assert list(found["kto-7b (attempt 2)"].series("loss")) == [4, 5, 6, 7, 8]
    assert "from_step: 3" in found["kto-7b (attempt 2)"].config


def test_rows_sent_again_are_read_once(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    deliver(sink, *rows(range(5)), row(4, stream="eval", loss=0.5))
    saved = json.loads(json.dumps(sink.memory))
    deliver(sink, *rows(range(5, 9)))  # committed, but its memory is lost
    late = rows(range(9, 12))
    write_log(sink.facts, late)
    sink.write(late)
    sink.abandon()
    assert not swanlab.has_run()
    sink = open_sink(tmp_path, saved)
    sink.write(rows(range(5, 12)))
    sink.commit()
    sink.close()
    experiment = read(tmp_path)["kto-7b"]
    assert experiment.series("loss") == {step: 1 / (1 + step) for step in range(12)}
    assert experiment.series("eval/loss") == {4: 0.5}
    assert set(experiment.copies.values()) == {1}
    assert len(list((tmp_path / "swanlog").glob("run-*"))) == 1


def test_a_lost_cursor_does_no_harm(tmp_path: Path) -> None:
    other = tmp_path / "swanlog" / "run-20260101_000000-someone"
    other.mkdir(parents=True)
    for _ in range(2):
        sink = open_sink(tmp_path)
        sink.write(rows(range(5)))
        sink.commit()
        sink.close()
    assert list(read(tmp_path)["kto-7b"].series("loss")) == [0, 1, 2, 3, 4]
    assert other.exists()


def test_a_log_that_lost_rows_is_reported(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    sink.write(rows(range(5)))
    sink.commit()
    sink.close()
    sink = open_sink(tmp_path, sink.memory)
    sink.write(rows([5]))
    with pytest.raises(SinkError, match="lacks 5 of its 5 rows"):
        sink.commit()
    sink.abandon()


def test_a_full_disk_is_noticed_and_made_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SwanLab suppresses the error and would count the values as written."""
    from swanlab.sdk.internal.core_python.store import DataStoreWriter

    sink = open_sink(tmp_path)
    deliver(sink, *rows(range(3)))
    saved = sink.memory

    def fail(self: object, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(DataStoreWriter, "write", fail)
        with pytest.raises(SinkError, match="No space left"):
            deliver(sink, *rows(range(3, 6)))
        sink.abandon()
    sink = open_sink(tmp_path, saved)
    sink.write(rows(range(3, 6)))
    sink.commit()
    sink.close()
    assert list(read(tmp_path)["kto-7b"].series("loss")) == [0, 1, 2, 3, 4, 5]


def test_abandoning_does_not_wait_for_what_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = open_sink(tmp_path)
    deliver(sink, *rows([1]))
    run = swanlab.get_run()
    monkeypatch.setattr(module, "LETTING_GO_SECONDS", 0.05)
    with run._api_lock:  # as held by a finish that waits for the network
        sink.abandon()
    assert list(read(tmp_path)["kto-7b"].series("loss")) == [1]


CHILD = """
import json, sys
from pathlib import Path
from rows import facts, rows, write_log
from rlvitals.sinks.swanlab import SwanLabSink

root, cursor = Path(sys.argv[1]), Path(sys.argv[1]) / "cursor.json"
done, memory = json.loads(cursor.read_text()) if cursor.exists() else (0, {})
sink = SwanLabSink(facts(root), {"mode": "offline", "project": "roll", "logdir": str(root / "swanlog")}, memory)
print("open", flush=True)
while done < 3000:
    sink.write(rows(range(done, done + 60)))
    sink.commit()
    done += 60
    cursor.with_suffix(".new").write_text(json.dumps([done, sink.memory]))
    cursor.with_suffix(".new").rename(cursor)
sink.close()
"""


def test_every_row_once_after_kill_9(tmp_path: Path, child_environment: dict[str, str]) -> None:
    write_log(facts(tmp_path), rows(range(3000)))
    environment = {**child_environment, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    kills = kill_at_random(command, environment, tmp_path / "cursor.json", random.Random(11), times=5, longest=0.6)
    done, memory = json.loads((tmp_path / "cursor.json").read_text())
    sink = open_sink(tmp_path, memory)
    sink.write(rows(range(done, 3000)))
    sink.commit()
    sink.close()
    assert kills >= 3
    assert 0 < done < 3000
    experiment = read(tmp_path)["kto-7b"]
    assert experiment.series("loss") == {step: 1 / (1 + step) for step in range(3000)}
    assert set(experiment.copies.values()) == {1}


def test_settings_as_roll_gives_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "sk-your-swanlab-key"
    settings = {
        "login_kwargs": {"api_key": secret},
        "project": "roll-experiments",
        "logdir": "./swanlog",
        "experiment_name": "agentic",
        "tags": ["roll", "rl", "experiment"],
        "workspace": "team",
        "description": "first try",
        "mode": "offline",
    }
    sink = SwanLabSink(facts(tmp_path), settings, {})
    deliver(sink, *rows([1]))
    sink.close()
    start = read(tmp_path)["agentic"].start
    assert (start.project, start.workspace, start.description) == ("roll-experiments", "team", "first try")
    assert list(start.tags) == ["roll", "rl", "experiment"]
    config = read(tmp_path)["agentic"].config
    assert "layers: 2" in config
    assert "***" in config
    assert secret not in json.dumps(sink.memory)
    assert files_with(tmp_path, secret) == []
    assert capsys.readouterr().out == ""


def test_swanlab_local_keeps_the_same_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink = open_sink(tmp_path, mode="local", settings={"probe": {"swanlab": True}})
    deliver(sink, *rows(range(3)))
    sink.close()
    assert list(read(tmp_path)["kto-7b"].series("loss")) == [0, 1, 2]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"experimentname": "x"}, "Did you mean 'experiment_name'"),
        ({"login_kwargs": {"apikey": "x"}}, "Did you mean 'api_key'"),
        ({"resume": "must"}, "no setting 'resume'"),
        ({"mode": "disabled"}, "keeps nothing"),
        ({"settings": {"mode": "elsewhere"}, "mode": None}, "Invalid mode"),
    ],
)
def test_wrong_settings_are_reported_at_the_start(tmp_path: Path, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(SinkError, match=problem):
        open_sink(tmp_path, **settings)


def test_a_key_that_is_missing_is_asked_for(tmp_path: Path) -> None:
    sink = open_sink(tmp_path, mode="online")
    sink.write(rows([1]))
    with pytest.raises(SinkError, match=r"login_kwargs: \{api_key"):
        sink.commit()
    sink.abandon()


def test_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "swanlab", None)
    with pytest.raises(SinkError, match=r"pip install 'rlvitals\[swanlab\]'"):
        open_sink(tmp_path)


def test_samples_of_the_machine_are_at_their_place_also_when_written_again(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    deliver(sink, *rows([100]), *samples(range(3)))
    memory = json.loads(json.dumps(sink.memory))
    sink.close()
    sink = open_sink(tmp_path, memory)
    deliver(sink, *samples([3]))
    sink.close()
    experiment = read(tmp_path)["kto-7b"]
    assert experiment.series("System/CPU_Percent") == {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0}
    assert experiment.series("loss") == {100: 1 / 101}
    assert set(experiment.copies.values()) == {1}


def test_a_memory_from_before_there_were_samples_is_gone_on_from(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    deliver(sink, *rows([1]))
    memory = json.loads(json.dumps(sink.memory))
    del memory["experiments"]["1"]["system"]
    sink.close()
    sink = open_sink(tmp_path, memory)
    deliver(sink, *rows([2]), *samples([0]))
    sink.close()
    assert read(tmp_path)["kto-7b"].series("loss") == {1: 1 / 2, 2: 1 / 3}
    assert read(tmp_path)["kto-7b"].series("System/CPU_Percent") == {0: 0.0}
