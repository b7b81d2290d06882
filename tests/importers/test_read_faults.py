"""Files that are not logs, huge files, and other content where a log was expected."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import struct
import subprocess
import sys
import zipfile

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

import rlvitals
from followed import with_growth
from rlvitals.errors import RlvitalsError
from rlvitals.importers import LogTail, NotALog, read_log


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b" \n\n\t\n", "it is empty"),
        (b"\x7fELF\x02\x01\x01\x00\x00\x00", "it is a binary file of another kind"),
        (b"\x80\x05\x95K\x00\x00\x00", "it is a binary file of another kind"),
        (b"Dear diary,\nnothing was trained today.\n", "no line holds a training step's numbers"),
        (b"step,note\n1,hello\n2,world\n", "no line holds a training step's numbers"),
    ],
)
def test_what_holds_no_numbers_says_why_and_what_can_be_read(tmp_path, content, why):
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(NotALog, match=why) as caught:
        read_log(path)
    assert isinstance(caught.value, RlvitalsError)
    assert "CSV or TSV; Parquet tables; TensorBoard event files" in str(caught.value)


def test_a_missing_file_and_an_empty_folder_are_no_log(tmp_path):
    with pytest.raises(NotALog, match="there is nothing there"):
        read_log(tmp_path / "nowhere")
    with pytest.raises(NotALog, match="the folder is empty"):
        read_log(tmp_path)


def test_a_folder_with_several_logs_asks_for_one(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"step": 1, "loss": 1.0}\n')
    with pytest.raises(NotALog, match=r"Name one of them: rlvitals check .*a\.jsonl; rlvitals check .*b\.jsonl"):
        read_log(tmp_path)


def test_bytes_that_are_no_text_cost_only_their_line(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b'{"step": 1, "loss": 1.0}\n\xff\xfe\xfa broken\n{"step": 2, "loss": 0.5}\n')
    assert len(read_log(path).rows) == 2


def test_zero_bytes_after_a_crash_of_the_machine_cost_no_row(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b'{"step": 1, "loss": 1.0}\n{"step": 2, "loss": 0.5}\n' + bytes(100))
    assert [row["step"] for row in read_log(path).rows] == [1, 2]


def test_a_runs_directory_of_our_own_gives_its_rows(tmp_path):
    with rlvitals.start(tmp_path / "run") as run:
        run.log({"loss": 0.5}, step=1)
    assert [row["loss"] for row in read_log(tmp_path / "run").rows] == [0.5]


PIECES = some.sampled_from(
    ["{", "}", "'loss': 0.5", '"loss": 1', ", ", "\n", "\r", "step:3 - ", "a/kl:0.1", " - ", "step,loss",
     "1,0.5", "nan",
     " 5%|█ | 5/50 [00:12<01:40", ", kl=0.1]", '{"step": 1, "loss": 2}', "[", "]", '"', "\t", "\x1b[36m", "\x00", "é",
     ":",
     '[{"stream_name":"stdout","data":"{\'loss\': 1}\\n"}', '("Initial validation metrics: {', "np.float64(", ")",
     '{"log_history": [', "Total steps = 5", "--max-steps 3", "(W pid=1) ", "1e999", "9" * 30, "step 4: ", "loss=0.5"]
)  # fmt: skip


@settings(max_examples=150)
@given(some.lists(PIECES, max_size=40).map("".join) | some.text(max_size=200), some.integers(1, 20))
@example("step 4: a/kl:0.1\n\x00", 1)
def test_whatever_a_file_holds_reading_and_following_it_end_well(tmp_path_factory, text, piece):
    path = tmp_path_factory.mktemp("any") / "log"
    data = text.encode("utf-8", "replace")
    path.write_bytes(data)
    try:
        rows = read_log(path).rows
    except NotALog:
        rows = []
    else:
        assert rows
        assert all(type(row["step"]) is int for row in rows)
        assert all(type(value) in (int, float) for row in rows for value in row.values())
    tail, followed = LogTail(path), []
    for end in (*range(0, len(data), max(piece, len(data) // 10)), len(data)):
        path.write_bytes(data[:end])
        followed = with_growth(followed, tail.poll())
    assert repr(with_growth(followed, tail.finish())) == repr(rows)


def leveldb(mark, *records):
    """A log of records as W&B and SwanLab write it, all in one block."""
    chunks = [struct.pack("<IHB", 0, len(record), 1) + record for record in records]
    return mark + b"".join(chunks)


def field(number, value):
    """One field of a protobuf message: a number, or bytes."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    key = number << 3 | 2
    return bytes([key] if key < 128 else [key & 127 | 128, key >> 7]) + bytes([len(value)]) + value


def trackio_bytes():
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_name, timestamp, step, metrics)")
    rows = [("kto", "", step, json.dumps({"loss": 1 / step})) for step in range(1, 9)]
    connection.executemany("INSERT INTO metrics (run_name, timestamp, step, metrics) VALUES (?, ?, ?, ?)", rows)
    connection.commit()
    return connection.serialize()


def wandb_bytes():
    items = [field(1, field(1, b"loss") + field(16, b"0.5")), field(2, field(1, 7))]
    return leveldb(b":W&B\xe1\xbe\x00", *[field(2, b"".join(items))] * 4)


def swanlab_bytes():
    number = b"\x09" + struct.pack("<d", 0.5)
    return leveldb(
        b":SWL\xd6\xe1\x02", *(field(13, field(1, b"loss") + field(2, n) + field(5, number)) for n in range(1, 5))
    )


def events_bytes():
    version = b"\x09" + struct.pack("<d", 1.0) + field(3, b"brain.Event:2")
    value = field(1, b"loss") + b"\x15" + struct.pack("<f", 0.5)
    events = [b"\x09" + struct.pack("<d", 1.7e9) + field(2, n) + field(5, field(1, value)) for n in range(1, 5)]
    return b"".join(struct.pack("<QI", len(event), 0) + event + bytes(4) for event in (version, *events))


def archive_bytes():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("run/train.jsonl", '{"step": 1, "loss": 0.5}\n' * 4)
    return out.getvalue()


BINARIES = {
    "wandb": wandb_bytes(),
    "swanlab": swanlab_bytes(),
    "tensorboard": events_bytes(),
    "trackio": trackio_bytes(),
    "zip": archive_bytes(),
    "gzip": gzip.compress(b'{"step": 1, "loss": 0.5}\n' * 40),
}


@pytest.mark.parametrize("kind", BINARIES)
def test_the_samples_of_binary_formats_are_logs(tmp_path, kind):
    (tmp_path / "log").write_bytes(BINARIES[kind])
    assert read_log(tmp_path / "log").rows[0]["loss"] in (0.5, 1.0)


@settings(max_examples=60)
@pytest.mark.parametrize("kind", BINARIES)
@given(
    damage=some.lists(
        some.tuples(some.floats(0, 1, exclude_max=True), some.binary(min_size=1, max_size=9)), max_size=4
    ),
    end=some.floats(0.5, 1),
)
def test_damaged_files_of_trackers_give_rows_or_say_why_not(tmp_path_factory, kind, damage, end):
    data = bytearray(BINARIES[kind])
    for place, other in damage:
        at = int(place * len(data))
        data[at : at + len(other)] = other
    path = tmp_path_factory.mktemp("damaged") / "log"
    path.write_bytes(data[: int(end * len(data))])
    try:
        rows = read_log(path).rows
    except NotALog:
        rows = []
    assert all(type(row["step"]) is int for row in rows)
    assert all(type(value) in (int, float) for row in rows for value in row.values())
    tail = LogTail(path)
    followed = with_growth([], tail.poll())
    assert repr(with_growth(followed, tail.finish())) == repr(rows)


MEASURE = """
import resource, sys
from rlvitals.importers import read_log
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = read_log(sys.argv[1]).rows
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
scale = 1 if sys.platform == "darwin" else 1024
print(len(rows), (after - before) * scale)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "csv", "verl"])
def test_a_long_log_needs_little_more_memory_than_its_numbers(tmp_path, kind, child_environment):
    pytest.importorskip("resource", reason="memory is measured with a POSIX call")
    path, lines, names = tmp_path / "log", 60_000, [f"policy/metric_{n}" for n in range(8)]
    with path.open("w") as file:
        if kind == "csv":
            file.write(",".join(["step", *names]) + "\n")
        for step in range(lines):
            values = [(step * 7 + n) % 1000 / 997 for n in range(8)]
            if kind == "csv":
                file.write(",".join(map(str, [step, *values])) + "\n")
            elif kind == "jsonl":
                file.write(json.dumps(dict(zip(["step", *names], [step, *values], strict=True))) + "\n")
            else:
                file.write(f"step:{step} - " + " - ".join(map("{}:{}".format, names, values)) + "\n")
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True, env=child_environment
    )
    rows, used = map(int, done.stdout.split())
    assert rows == lines
    # A float and its entry in a row take about 60 bytes; names are shared.
    assert used < lines * 9 * 110, f"{used / 2**20:.0f} MiB for a file of {path.stat().st_size / 2**20:.0f} MiB"


def test_a_console_line_that_never_ends_is_not_kept_whole(tmp_path):
    path = tmp_path / "log"
    bars = "".join(f"\r{n % 100:3d}%|█   | {n}/100000 [00:10<08:15, 10.12s/it]" for n in range(1, 20_000))
    path.write_text(bars + "\r{'loss': 0.5, 'epoch': 0.1}\n")
    (row,) = read_log(path).rows
    assert row["step"] == 19_999
