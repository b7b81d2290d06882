"""The CSV tracker: read back with the csv module and with pandas."""

from __future__ import annotations

import csv
import math
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kills import fed_row, feed_through_kills
from rows import facts, row, rows

from rlvitals.records import Attempt
from rlvitals.sinks.base import SinkError
from rlvitals.sinks.csv_file import CsvSink
from rlvitals.store.layout import RunDir
from rlvitals.store.spreadsheet import from_text

FIXED = ["step", "timestamp", "attempt", "stream"]


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    return [dict(zip(map(from_text, header), map(from_text, line), strict=True)) for line in lines]


def default_file(tmp_path: Path) -> Path:
    return tmp_path / "run" / "logs" / "metrics.csv"


def expected(items) -> list[dict[str, str]]:
    """The expected table for these rows, built independently: every cell is text, missing cells are empty."""
    lines = []
    for item in items:
        line = {"step": str(item.row.step), "timestamp": repr(item.row.timestamp), "attempt": str(item.row.attempt)}
        line["stream"] = item.stream
        for name, value in {**item.row.numbers, **item.row.texts}.items():
            key = f"eval/{name}" if item.stream == "eval" and name[:4] != "eval" else name
            line[key] = value if isinstance(value, str) else repr(value)
        lines.append(line)
    names = dict.fromkeys(name for line in lines for name in line)
    return [{name: line.get(name, "") for name in names} for line in lines]


def test_every_value_is_at_its_step_in_full_precision(tmp_path):
    handed = [*rows(range(1, 50)), *rows([3, 60, 55, -1]), row(61, numbers={"loss": 0.1 + 0.2, "big": 1.7e308})]
    sink = CsvSink(facts(tmp_path), {}, {})
    sink.write(handed)
    sink.commit()
    sink.close()
    assert table(default_file(tmp_path)) == expected(handed)
    assert list(table(default_file(tmp_path))[0]) == [*FIXED, "loss", "rewards/margins", "big"]


def test_pandas_reads_it(tmp_path):
    pandas = pytest.importorskip("pandas", reason="reads the table back with pandas")
    sink = CsvSink(facts(tmp_path), {}, {})
    sink.write([row(1, loss=0.5), row(2, loss=math.nan), row(3, kl=math.inf, loss=-math.inf), row(4, texts={"a": "x"})])
    sink.commit()
    frame = pandas.read_csv(default_file(tmp_path))
    assert frame["step"].tolist() == [1, 2, 3, 4]
    assert frame["loss"].iloc[0] == 0.5
    assert frame["loss"].isna().tolist() == [False, True, False, True]
    assert frame["loss"].iloc[2] == -math.inf
    assert frame["kl"].iloc[2] == math.inf
    assert frame["a"].iloc[3] == "x"
    sink.close()


def test_non_finite_numbers_missing_cells_and_texts_are_distinguished(tmp_path):
    sink = CsvSink(facts(tmp_path), {}, {})
    texts = {"note": 'a "quote", a comma\nand a line', "empty": ""}
    sink.write([row(1, nan=math.nan, up=math.inf, down=-math.inf), row(2, texts=texts), row(3, timestamp=math.nan)])
    sink.commit()
    sink.close()
    first, second, third = table(default_file(tmp_path))
    assert (first["nan"], first["up"], first["down"], first["note"]) == ("nan", "inf", "-inf", "")
    assert second["note"] == texts["note"]
    assert third["timestamp"] == ""
    assert default_file(tmp_path).read_text().splitlines()[-2].endswith(',""')  # empty text is not a missing one


def test_evaluations_are_named_apart_and_attempts_are_in_their_column(tmp_path):
    of = facts(tmp_path, attempts=(Attempt(1, 1.0), Attempt(2, 2.0, from_step=5)))
    handed = [
        *rows(range(1, 8)), *rows([6, 7], attempt=2), *rows([7], attempt=2, stream="eval"),
        row(7, 2, "eval", eval_loss=0.25), row(8, 2, stream_rate=1.0, numbers={"stream": 3.0}),
    ]  # fmt: skip
    sink = CsvSink(of, {}, {})
    sink.write(handed)
    sink.commit()
    sink.close()
    found = table(default_file(tmp_path))
    assert [(line["step"], line["attempt"]) for line in found[5:9]] == [("6", "1"), ("7", "1"), ("6", "2"), ("7", "2")]
    assert found[9]["eval/rewards/margins"] == repr(7 / 10 + 2)
    assert found[9]["rewards/margins"] == ""
    assert found[10]["eval_loss"] == "0.25"
    assert found[11]["metric/stream"] == "3.0"
    assert found[11]["stream"] == "train"


def test_a_new_metric_widens_the_table_and_every_commit_leaves_a_readable_one(tmp_path):
    sink = CsvSink(facts(tmp_path), {}, {})
    handed = []
    for step in range(30):
        batch = [row(step, texts={"note": f"two\nlines {step}"}, numbers={"loss": 1.0, f"new {step // 10}, x": 2.0})]
        handed += batch
        sink.write(batch)
        sink.commit()
        assert table(default_file(tmp_path)) == expected(handed)
    sink.close()
    assert [path.name for path in default_file(tmp_path).parent.iterdir()] == ["metrics.csv"]


def test_rows_sent_again_after_a_failure_are_there_once(tmp_path):
    of = facts(tmp_path)
    sink = CsvSink(of, {}, {})
    sink.write(rows([1, 2]))
    sink.commit()
    memory = dict(sink.memory)
    sink.write(rows([3, 4]))
    sink.abandon()
    sink = CsvSink(of, {}, dict(memory))
    sink.write(rows([3]))
    sink.write([row(4, wider=1.0)])  # the file is rewritten, then the follower dies before it saves its cursor
    sink.commit()
    sink.abandon()
    sink = CsvSink(of, {}, dict(memory))
    sink.write([*rows([3]), row(4, wider=1.0), row(5, other=2.0)])
    sink.commit()
    sink.close()
    found = table(default_file(tmp_path))
    assert [line["step"] for line in found] == ["1", "2", "3", "4", "5"]
    assert (found[3]["wider"], found[4]["other"], found[0]["loss"]) == ("1.0", "2.0", "0.5")


def test_half_a_line_left_by_a_crash_is_cut_off(tmp_path):
    of = facts(tmp_path)
    sink = CsvSink(of, {}, {})
    sink.write(rows([1]))
    sink.commit()
    sink.abandon()
    with open(default_file(tmp_path), "ab") as file:
        file.write(b'2,17631900,1,train,"half a te')
    sink = CsvSink(of, {}, sink.memory)
    assert table(default_file(tmp_path)) == expected(rows([1]))
    sink.close()


ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
ANY_ROW = st.tuples(
    st.dictionaries(ANY_TEXT, st.floats(), max_size=3),
    st.dictionaries(st.sampled_from(["note", "a,b", 'q"']), ANY_TEXT),
)


@pytest.mark.slow
@given(batches=st.lists(st.tuples(st.lists(ANY_ROW, max_size=4), st.booleans()), max_size=6))
@settings(max_examples=60)
def test_any_names_and_texts_come_back_whatever_batches_were_lost(batches):
    with tempfile.TemporaryDirectory() as folder:
        of = facts(Path(folder))
        handed, memory = [], {}
        sink = CsvSink(of, {}, {})
        for number, (contents, is_lost) in enumerate(batches):
            batch = [
                row(number, numbers={f"m/{name}": value for name, value in numbers.items()}, texts=texts)
                for numbers, texts in contents
            ]
            if is_lost:
                sink.write(batch)
                sink.commit()
                sink.abandon()
                sink = CsvSink(of, {}, dict(memory))
            sink.write(batch)
            sink.commit()
            memory = dict(sink.memory)
            handed += batch
        sink.close()
        wanted = expected(handed)
        found = table(RunDir(of.root).logs / "metrics.csv")
        # A lost batch may have added columns first, so only the cells are compared, not their order.
        assert [{name: cell for name, cell in line.items() if cell} for line in found] == [
            {name: cell for name, cell in line.items() if cell} for line in wanted
        ]


@pytest.mark.slow
def test_every_row_is_there_once_after_kills_at_random_moments(tmp_path, child_environment):
    path = tmp_path / "table.csv"
    feed_through_kills(
        "rlvitals.sinks.csv_file", "CsvSink", tmp_path, {"path": str(path)},
        total=2400, kills=12, environment=child_environment,
    )  # fmt: skip
    wanted = expected([fed_row(index) for index in range(2400)])
    found = table(path)
    assert len(found) == len(wanted)
    assert [{name: cell for name, cell in line.items() if cell} for line in found] == [
        {name: cell for name, cell in line.items() if cell} for line in wanted
    ]


def test_commit_returns_when_the_disk_has_it(tmp_path, monkeypatch):
    sink = CsvSink(facts(tmp_path), {}, {})
    sink.write(rows([1]))
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (synced.append(os.fstat(number).st_ino), real(number)))
    sink.commit()
    assert synced == [default_file(tmp_path).stat().st_ino]
    sink.close()


def test_the_path_is_used_as_given_and_a_file_that_was_there_is_kept(tmp_path):
    path = tmp_path / "deep" / "table.csv"
    path.parent.mkdir()
    path.write_text("somebody's own table\n")
    sink = CsvSink(facts(tmp_path), {"path": str(path)}, {})
    sink.write(rows([1]))
    sink.commit()
    sink.close()
    assert table(path) == expected(rows([1]))
    assert Path(f"{path}.1").read_text() == "somebody's own table\n"


def test_tries_that_fail_before_the_first_commit_leave_nothing_behind(tmp_path):
    path = tmp_path / "table.csv"
    for _ in range(3):
        sink = CsvSink(facts(tmp_path), {"path": str(path)}, {})
        sink.write(rows([1]))
        sink.abandon()
    sink = CsvSink(facts(tmp_path), {"path": str(path)}, {})
    sink.write(rows([1]))
    sink.commit()
    sink.close()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["run", "table.csv"]


def test_overwriting_a_run_starts_a_new_table(tmp_path):
    for step in (1, 2):
        sink = CsvSink(facts(tmp_path), {}, {})
        sink.write(rows([step]))
        sink.commit()
        sink.close()
    assert table(default_file(tmp_path)) == expected(rows([2]))


@pytest.mark.parametrize("harm", ["deleted", "cut", "changed"])
def test_committed_rows_that_vanish_are_an_error_that_says_what_to_do(tmp_path, harm):
    sink = CsvSink(facts(tmp_path), {}, {})
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
        path.write_bytes(path.read_bytes()[:-5])
    if harm == "changed":
        path.write_text("a,b\n1,2\n")
    with pytest.raises(SinkError, match=r"delete .*csv\.json to write the whole log again"):
        CsvSink(facts(tmp_path), {}, sink.memory)


def test_wrong_settings_are_refused_with_the_way_out(tmp_path):
    of = facts(tmp_path)
    with pytest.raises(SinkError, match=r"no setting 'paht'.*path"):
        CsvSink(of, {"paht": "x.csv"}, {})
    with pytest.raises(SinkError, match="path must be a file name"):
        CsvSink(of, {"path": 3}, {})
    with pytest.raises(SinkError, match="belongs to the run itself"):
        CsvSink(of, {"path": str(RunDir(of.root).train_log)}, {})
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SinkError, match="choose another file with path"):
        CsvSink(of, {"path": str(tmp_path / "file" / "table.csv")}, {})
