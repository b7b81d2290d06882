"""The JSON tracker, read back with the parser of the standard library and with the decoder of the log."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from kills import fed_row, feed_through_kills
from rows import facts, row, rows

from rlvitals.codec import encode, parse_json
from rlvitals.records import Attempt, Row
from rlvitals.sinks.base import SinkError, SinkRow
from rlvitals.sinks.json_file import JsonSink
from rlvitals.store.layout import RunDir
from rlvitals.store.lines import decode
from rlvitals.values import mean


def default_file(tmp_path: Path) -> Path:
    return tmp_path / "run" / "logs" / "metrics.json"


def document(path: Path) -> list[dict]:
    """The whole file as strict JSON: no NaN, no trailing bytes."""
    assert parse_json(path.read_bytes()) == json.loads(path.read_text())
    return json.loads(path.read_text())


def as_rows(path: Path) -> list[SinkRow]:
    """The rows, read by the decoder of the log, which does not know `stream`."""
    found = []
    for entry in document(path):
        stream = entry.pop("stream")
        found.append(SinkRow(stream, decode(encode(entry))))
    return found


def test_an_empty_run_is_an_empty_array(tmp_path):
    JsonSink(facts(tmp_path), {}, {}).close()
    assert document(default_file(tmp_path)) == []


def test_every_value_is_at_its_step_in_full_precision(tmp_path):
    handed = [*rows(range(1, 50)), *rows([3, 60, 55, -1]), row(61, numbers={"loss": 0.1 + 0.2, "big": 1.7e308})]
    sink = JsonSink(facts(tmp_path), {}, {})
    sink.write(handed)
    sink.commit()
    sink.close()
    assert as_rows(default_file(tmp_path)) == handed
    assert list(document(default_file(tmp_path))[0])[:4] == ["step", "timestamp", "attempt", "stream"]


def test_it_is_a_whole_document_after_every_batch(tmp_path):
    sink = JsonSink(facts(tmp_path), {}, {})
    for step in range(1, 20):
        sink.write(rows([step]))
        assert len(document(default_file(tmp_path))) == step
        sink.commit()
    sink.write([])
    sink.commit()
    assert as_rows(default_file(tmp_path)) == rows(range(1, 20))
    sink.close()


def test_what_json_cannot_hold_is_kept_as_the_log_keeps_it(tmp_path):
    value = mean([1.0, 2.0])
    odd = Row(1, math.nan, 1, {"nan": math.nan, "up": math.inf, "down": -math.inf, "a b": math.nan, "score": 1.5})
    rich = Row(2, 5.0, 1, {"loss": 1.5}, {"note": 'a "quote"\nand a line'}, {"loss": value}, gap=3)
    sink = JsonSink(facts(tmp_path), {}, {})
    sink.write([SinkRow("train", odd), SinkRow("train", rich)])
    sink.commit()
    sink.close()
    first, second = document(default_file(tmp_path))
    assert first == {
        "step": 1, "attempt": 1, "stream": "train", "score": 1.5, "_nonfinite": "nan=nan up=inf down=-inf a%20b=nan",
    }  # fmt: skip
    found = as_rows(default_file(tmp_path))
    assert repr(found[0].row.numbers["nan"]) == "nan"
    assert (found[0].row.numbers["up"], found[0].row.numbers["down"]) == (math.inf, -math.inf)
    assert found[1].row == rich
    assert second["note"] == 'a "quote"\nand a line'


def test_evaluations_have_their_own_names_and_rows_their_attempt(tmp_path):
    of = facts(tmp_path, attempts=(Attempt(1, 1.0), Attempt(2, 2.0, from_step=5)))
    ghost = SinkRow(
        "eval", Row(6, 1.0, 1, {"accuracy": 0.5, "eval_loss": math.inf}, {"who": "x"}, {"accuracy": mean([0.5])})
    )
    sink = JsonSink(of, {}, {})
    sink.write([*rows([6]), ghost, *rows([6], attempt=2), row(7, 2, numbers={"stream": 3.0})])
    sink.commit()
    sink.close()
    found = document(default_file(tmp_path))
    assert [(entry["step"], entry["attempt"]) for entry in found] == [(6, 1), (6, 1), (6, 2), (7, 2)]
    assert (found[1]["eval/accuracy"], found[1]["eval/who"], found[1]["_nonfinite"]) == (0.5, "x", "eval_loss=inf")
    assert list(found[1]["_m"]) == ["eval/accuracy"]
    assert (found[3]["stream"], found[3]["metric/stream"]) == ("train", 3.0)


def test_rows_sent_again_after_a_failure_are_there_once(tmp_path):
    of = facts(tmp_path)
    sink = JsonSink(of, {}, {})
    sink.write(rows([1, 2]))
    sink.commit()
    memory = dict(sink.memory)
    for _ in range(3):  # written and committed, but the cursor was not saved
        sink.write(rows([3, 4]))
        sink.commit()
        sink.abandon()
        sink = JsonSink(of, {}, dict(memory))
        assert as_rows(default_file(tmp_path)) == rows([1, 2])
    sink.write(rows([3, 4]))
    sink.commit()
    sink.close()
    assert as_rows(default_file(tmp_path)) == rows([1, 2, 3, 4])


@pytest.mark.parametrize("left", [b',\n{"step":2,"timest', b"", b"\n]", b",\n"])
def test_a_document_torn_by_a_crash_is_repaired(tmp_path, left):
    of = facts(tmp_path)
    sink = JsonSink(of, {}, {})
    sink.write(rows([1]))
    sink.commit()
    sink.abandon()
    path = default_file(tmp_path)
    path.write_bytes(path.read_bytes()[: -len(b"\n]\n")] + left)
    sink = JsonSink(of, {}, sink.memory)
    assert as_rows(path) == rows([1])
    sink.write(rows([2]))
    sink.commit()
    sink.close()
    assert as_rows(path) == rows([1, 2])


@pytest.mark.slow
def test_every_row_is_there_once_after_kills_at_random_moments(tmp_path, child_environment):
    path = tmp_path / "rows.json"
    feed_through_kills(
        "rlvitals.sinks.json_file", "JsonSink", tmp_path, {"path": str(path)},
        total=2400, kills=12, environment=child_environment,
    )  # fmt: skip
    found = as_rows(path)
    assert [item.row.timestamp for item in found] == [fed_row(index).row.timestamp for index in range(2400)]
    assert [item for item in found if item.stream == "train"] == [
        item for item in map(fed_row, range(2400)) if item.stream == "train"
    ]


def test_commit_returns_when_the_disk_has_it(tmp_path, monkeypatch):
    sink = JsonSink(facts(tmp_path), {}, {})
    sink.write(rows([1]))
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (synced.append(os.fstat(number).st_ino), real(number)))
    sink.commit()
    assert synced == [default_file(tmp_path).stat().st_ino]
    sink.close()


def test_a_full_disk_costs_nothing_that_was_committed(tmp_path, monkeypatch):
    of = facts(tmp_path)
    sink = JsonSink(of, {}, {})
    sink.write(rows([1]))
    sink.commit()
    real = type(sink._file).put

    def fill(self, offset, data):
        real(self, offset, data[:20])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(sink._file), "put", fill)
    with pytest.raises(OSError, match="No space"):
        sink.write(rows([2]))
    monkeypatch.undo()
    sink.abandon()
    sink = JsonSink(of, {}, sink.memory)
    sink.write(rows([2]))
    sink.commit()
    sink.close()
    assert as_rows(default_file(tmp_path)) == rows([1, 2])


def test_the_path_is_used_as_given_and_a_file_that_was_there_is_kept(tmp_path):
    path = tmp_path / "deep" / "rows.json"
    path.parent.mkdir()
    path.write_text('{"somebody": "else"}')
    sink = JsonSink(facts(tmp_path), {"path": str(path)}, {})
    sink.write(rows([1]))
    sink.commit()
    sink.close()
    assert as_rows(path) == rows([1])
    assert json.loads(Path(f"{path}.1").read_text()) == {"somebody": "else"}


@pytest.mark.parametrize("harm", ["deleted", "cut", "changed"])
def test_committed_rows_that_vanish_are_an_error_that_says_what_to_do(tmp_path, harm):
    sink = JsonSink(facts(tmp_path), {}, {})
    sink.write(rows([1, 2]))
    sink.commit()
    path = default_file(tmp_path)
    if harm == "deleted":
        path.unlink()
        sink.write(rows([3]))
        with pytest.raises(SinkError, match="is gone"):
            sink.commit()
    sink.abandon()
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:-15])
    if harm == "changed":
        path.write_text("{}" * 200)
    with pytest.raises(SinkError, match=r"delete .*json\.json to write the whole log again"):
        JsonSink(facts(tmp_path), {}, sink.memory)


def test_wrong_settings_are_refused_with_the_way_out(tmp_path):
    of = facts(tmp_path)
    with pytest.raises(SinkError, match=r"no setting 'pth'.*path"):
        JsonSink(of, {"pth": "x.json"}, {})
    with pytest.raises(SinkError, match="belongs to the run itself"):
        JsonSink(of, {"path": str(RunDir(of.root).config)}, {})
