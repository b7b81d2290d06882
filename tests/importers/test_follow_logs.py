"""Following a log that grows: with a real writer, torn lines, rotation and replacement."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from format_samples import SAMPLES as OF_EVERY_FORMAT
from format_samples import sample_bytes

from followed import with_growth
from rlvitals.importers import LineImporter, LogTail, NotALog, read_log
from rlvitals.importers.registry import shipped
from rlvitals.views.feeds import LogFeed
from rlvitals.views.logs import open_any

WRITER = """
import json, os, random, sys, time
path, kind = sys.argv[1:]
chance = random.Random(0)
descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def put(text):
    data = text.encode()
    while data:  # in pieces, as a buffered writer on a busy machine does it
        cut = chance.randrange(1, 200)
        os.write(descriptor, data[:cut]); data = data[cut:]
        if chance.random() < 0.2: time.sleep(0.001)
if kind == "csv":
    put("step,loss,kl\\n")
for step in range(1, 301):
    row = {"step": step, "loss": 1 / step, "kl": step / 1000}
    if kind == "jsonl": put(json.dumps(row) + "\\n")
    if kind == "csv": put(f"{step},{row['loss']},{row['kl']}\\n")
    if kind == "verl": put(f"step:{step} - loss:{row['loss']} - kl:np.float64({row['kl']})\\n")
    if kind == "console":
        put(f"\\r{step // 3:3d}%|█▊  | {step}/300 [00:10<08:15, 10.12s/it]\\r")
        put(f"{{'loss': {row['loss']},\\n 'kl': {row['kl']}}}\\n")
"""


@pytest.mark.parametrize("kind", ["jsonl", "csv", "verl", "console"])
def test_a_process_that_really_writes_is_followed_row_by_row(tmp_path, kind):
    path = tmp_path / "log"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, path, kind])
    tail, polls, is_over = LogTail(path), [], False
    while not is_over:
        is_over = writer.poll() is not None  # checked before the poll, so the last rows are still read
        polls += [rows] if (rows := tail.poll().rows) else []
        time.sleep(0.01)
    assert writer.wait() == 0
    rows = [row for rows in polls for row in rows]
    assert [(row["step"], row["loss"], row["kl"]) for row in rows] == [(n, 1 / n, n / 1000) for n in range(1, 301)]
    assert len(polls) > 3
    assert rows == read_log(path).rows


def verl_lines():
    yield "loading the model\n"
    yield "(\"Initial validation metrics: {'val-core/acc': 0.25, \"\n \"'val-core/score': np.float64(0.5)}\")\n"
    for step in range(1, 6):
        yield f"(Runner pid=7) step:{step} - actor/pg_loss:{1 / step} - critic/score/mean:np.float64(0.{step})\n"


def console_lines():
    """Each kind of row has more information than those before. A mapping has two lines, and progress bars redraw."""
    yield "step 1: loss=0.9\r\nstep 2: loss=0.8\r\n"
    for done in range(1, 4):
        yield f"\rTrain: {done * 10}%|█▊  | {done}/10 [00:10<08:15, 1.0s/it, policy_loss=0.{done}, kl=nan]"
    yield "\n"
    for step in range(1, 4):
        yield f"\r{step * 10}%|█▊  | {step}/10 [00:10<08:15]\r{{'loss': 0.{step},\n 'grad_norm': 1.{step}}}\n"
    yield "{'train_runtime': 10.0, 'train_loss': 0.5}\n"


def bar_lines():
    for done in range(1, 6):
        yield f"\rTrain: {done * 10}%|█▊  | {done}/10 [00:10<08:15, 1.0s/it, policy_loss=0.{done}]"


def notebook_lines():
    pieces = [f"{{'loss': 0.{n}, 'epoch': 0.{n}}}\n{n * 10}%|█ | {n}/9 [00:01]" for n in range(1, 6)]
    lines = [json.dumps({"stream_name": "stdout", "time": n, "data": piece}) for n, piece in enumerate(pieces)]
    return ["[" + lines[0] + "\n", *("," + line + "\n" for line in lines[1:]), "]\n"]


def notebook():
    text = "".join(f"{{'loss': 0.{n}, 'reward': 0.5, 'step': {n}}}\n" for n in range(1, 9))
    cell = {"cell_type": "code", "source": "", "outputs": [{"output_type": "stream", "name": "stdout", "text": text}]}
    return [json.dumps({"cells": [cell], "nbformat": 4}, indent=1)]


ROWS = [{"step": step, "loss": 1 / step, "kl": math.nan if step == 3 else 0.5} for step in range(1, 7)]
JSONL = ['{"model": "tiny", "seed": 1, "output_dir": "out"}\n', *(json.dumps(row) + "\n" for row in ROWS)]
SAMPLES = {
    "jsonl": JSONL,
    "jsonl, torn": [*JSONL, '{"step": 7, "loss": 0.1}'],
    "trainer_state": [f"{json.dumps({'max_steps': 9, 'log_history': ROWS}, indent=1)}\n"],
    "json without an end of line": [json.dumps(ROWS)],
    "csv": ["step,note,loss\r\n", *(f'{n},"two\r\nlines",{1 / n}\r\n' for n in range(1, 6)), "6,x,0.1"],
    "csv with padding": ["step,loss,reward,len/mean,len/min,eval_loss\n",
                         *(f"{n},0.5,{'nan,nan,nan' if n % 2 else '1.0,64.0,60.0'},nan\n" for n in range(12))],
    "csv that turns out to have no padding": ["step,loss,eval_loss\n", "1,0.5,nan\n", "2,nan,0.5\n", "3,,0.5\n"],
    "csv of epochs": ["epoch,loss\n", *(f"{n},{0.5 + n}\n" for n in range(4))],
    "csv of epochs that come again": ["epoch,loss\n", *(f"{n // 2},{0.5 + n}\n" for n in range(4))],
    "verl": list(verl_lines()),
    "console": list(console_lines()),
    "progress bars": list(bar_lines()),
    "notebook log": notebook_lines(),
    "lines of a loop": [*(f"step {n} reward 0.{n} | kl 0.1\n" for n in range(1, 6)), "Step 3: so reward: 5, I say\n",
                        *(f"Eval step {n}: reward 0.{n}\n" for n in range(1, 4))],
    "blocks": [f"=== Step {n}/9 ===\nloss: 0.{n}\n  • reward: 0.{n}\n  • time: 3s (10%)\n" for n in range(1, 6)],
    "drawn tables": [f"Step {n}\n┌──┬──┐\n│ loss │ 0.{n} │\n│ kl │ 0.1 │\n└──┴──┘\n" for n in range(1, 6)],
    "columns of JSON": [json.dumps({"train": {"step": [1, 2, 3], "loss": [3.0, 2.0, 1.0]}, "eval": {"loss": [1, 2]}})],
    "csv after a preamble": ["# made by me\n", "seed: 3\n", "step;loss\n", *(f"{n};0,{n}\n" for n in range(1, 6))],
    "csv of samples": ["step,reward\n", *(f"{n},{n + k}\n" for n in range(5) for k in range(4))],
    "csv of one metric a row": ["step,metric,value\n", *(f"{n},{m},{n}\n" for m in ("loss", "kl") for n in range(5))],
    "notebook": notebook(),
}  # fmt: skip
FILES = {name: "".join(lines).encode() for name, lines in SAMPLES.items()}
FILES |= {
    kind.name: sample_bytes(OF_EVERY_FORMAT[kind.name][0])
    for kind in shipped()
    if issubclass(kind, LineImporter) and kind.name not in FILES
}
FILES["jsonl in UTF-16"] = "".join(JSONL).encode("utf-16")
FILES["jsonl in gzip"] = gzip.compress("".join(JSONL).encode(), mtime=0)
FILES["a very long head"] = "".join([*(f"loading {n}\n" for n in range(9000)), *console_lines()]).encode()


def events():
    """The bytes of an event file with one event per tag. The evaluation of a step comes after the next step."""
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer", reason="needs tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    with tempfile.TemporaryDirectory() as folder:
        file = writer.EventFileWriter(folder)
        for step, tag in [(1, "loss"), (1, "kl"), (2, "loss"), (1, "eval/acc"), (2, "kl"), (3, "loss")]:
            value = Summary.Value(tag=tag, simple_value=step / 4)
            file.add_event(Event(step=step, wall_time=1_764_000_000.0, summary=Summary(value=[value])))
        file.close()
        (path,) = Path(folder).iterdir()
        return path.read_bytes()


def bytes_of(kind):
    return events() if kind == "tensorboard" else FILES[kind]


def rows_in(path):
    try:
        return read_log(path).rows
    except NotALog:
        return []


def follow(path, data, sizes, rows=(), tail=None):
    """Append to a file piece by piece. Returns the follower and its rows before it knows that the writer is done."""
    tail, rows, at = tail or LogTail(path), list(rows), 0
    for size in itertools.cycle(sizes):
        with path.open("ab") as file:
            file.write(data[at : at + size])
        at += size
        rows = with_growth(rows, tail.poll())
        if at >= len(data):
            return tail, rows


KINDS = [*FILES, "tensorboard"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [[1], [3, 50, 1, 200], [100_000]], ids=["bytes", "pieces", "at once"])
def test_following_gives_the_rows_that_reading_gives(tmp_path, kind, sizes):
    path, data = tmp_path / "log", bytes_of(kind)
    if len(data) > 10_000:
        sizes = [size * 1000 for size in sizes]
    tail, rows = follow(path, data, sizes)
    rows = with_growth(rows, tail.finish())
    assert rows
    log = read_log(path)
    assert repr(rows) == repr(log.rows)
    assert (tail.format, tail.config) == (log.format, log.config)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "a very long head"])
def test_a_log_torn_anywhere_is_followed_to_what_reading_it_gives(tmp_path, kind):
    data = bytes_of(kind)
    for end in range(1, len(data), max(1, len(data) // 60)):
        path = tmp_path / f"log{end}"
        tail, rows = follow(path, data[:end], [end // 2 + 1])
        assert repr(with_growth(rows, tail.finish())) == repr(rows_in(path)), data[:end]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut in place", "rotated", "replaced"])
@pytest.mark.parametrize(("old", "new"), [*zip(KINDS, KINDS, strict=True), *itertools.pairwise(KINDS)])
def test_another_log_in_a_log_s_place_is_read_from_its_beginning(tmp_path, old, new, how):
    path, before, after = tmp_path / "log", bytes_of(old), bytes_of(new)
    after = after.replace(b"0.5", b"0.7").replace(b"loss", b"cost") if new != "tensorboard" else after
    tail, rows = follow(path, before, [1000])
    if how == "cut in place":
        path.write_bytes(after[:40])
    elif how == "rotated":
        path.rename(tmp_path / "log.1")
        rows = with_growth(rows, tail.poll())
        path.write_bytes(after[:40])
    else:
        (tmp_path / "draft").write_bytes(after[:40])
        os.replace(tmp_path / "draft", path)
    _, rows = follow(path, after[40:], [70, 1000], rows, tail)
    assert repr(with_growth(rows, tail.finish())) == repr(rows_in(path))


def test_rows_that_no_longer_count_are_judged_again(tmp_path):
    """As `check --follow` and `watch` read a log."""
    path = tmp_path / "log"
    path.write_text("step 1: loss=0.9\nstep 2: loss=0.8\n")
    feed = LogFeed(path)
    assert (len(feed.poll().rows), feed.poll().before) == (2, None)
    with path.open("a") as file:
        file.write("step:1 - actor/pg_loss:0.5\nstep:2 - actor/pg_loss:0.4\nstep:3 - actor/pg_loss:0.3\n")
    news = feed.poll()
    assert feed.source().format == "verl"
    assert [row["step"] for row in [*news.before, *news.rows]][:2] == [1, 2]
    assert not any("loss" in row for row in [*news.before, *news.rows])


def test_rows_that_are_logged_again_after_a_restart_count_once(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps({"step": step, "loss": 0.5}) + "\n" for step in [3, 4, 5, 6, 4, 5]))
    feed = LogFeed(path)
    feed.poll()
    feed.flush()
    view = open_any(path)
    assert (feed.counted.rows, feed.counted.first_step, feed.counted.last_step) == (view.rows, 3, view.last_step)
    assert (view.rows, view.last_step) == (3, 5)


def test_a_longer_copy_of_each_log_goes_on_where_it_ended(tmp_path):
    """rsync writes a whole new file and renames it. Rows are judged again only if they change."""
    path, draft, data = tmp_path / "log", tmp_path / "draft", FILES["verl"]
    tail, rows = LogTail(path), []
    for end in range(50, len(data) + 50, 50):
        draft.write_bytes(data[:end])
        os.replace(draft, path)
        growth = tail.poll()
        assert growth.before is None
        rows = with_growth(rows, growth)
    assert repr(rows) == repr(rows_in(path))
    assert tail.notes == []


def add(path, *rows, mode="a"):
    with path.open(mode) as file:
        file.writelines(json.dumps({"loss": 0.5, "step": step}) + "\n" for step in rows)


def steps(tail):
    return [row["step"] for row in tail.poll().rows]


def test_a_log_that_is_not_there_yet_is_waited_for(tmp_path):
    tail = LogTail(tmp_path / "log")
    assert tail.poll().rows == []
    (tmp_path / "log").touch()
    assert tail.poll().rows == []
    add(tmp_path / "log", 1, 2)
    assert steps(tail) == [1, 2]
    assert tail.format == "jsonl"


def test_a_torn_last_line_waits_for_its_end(tmp_path):
    path = tmp_path / "log"
    add(path, 1)
    tail = LogTail(path)
    assert steps(tail) == [1]
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    assert steps(tail) == []
    with path.open("a") as file:
        file.write('ss": 0.25}\n')
    assert tail.poll().rows == [{"step": 2, "loss": 0.25}]


def test_letters_cut_in_the_middle_are_put_together(tmp_path):
    path, line = tmp_path / "log", '{"step": 1, "längd": 0.5}\n'.encode()
    tail, rows = LogTail(path), []
    for end in range(1, len(line) + 1):
        path.write_bytes(line[:end])
        rows += tail.poll().rows
    assert rows == [{"step": 1, "längd": 0.5}]


def test_a_rotated_log_is_read_from_its_beginning(tmp_path):
    path = tmp_path / "log"
    add(path, 1, 2, 3)
    tail = LogTail(path)
    assert steps(tail) == [1, 2, 3]
    os.rename(path, tmp_path / "log.1")
    assert steps(tail) == []
    add(path, 4)
    assert steps(tail) == [4]
    assert "replaced or cut" in tail.notes[0]


@pytest.mark.parametrize("rows", [[10], [10, 11, 12, 13, 14, 15]], ids=["shorter", "longer"])
def test_a_log_cut_in_place_is_read_from_its_beginning(tmp_path, rows):
    path = tmp_path / "log"
    add(path, 1, 2, 3)
    tail = LogTail(path)
    assert steps(tail) == [1, 2, 3]
    add(path, *rows, mode="w")
    assert steps(tail) == rows


def test_another_log_that_ends_the_same_way_is_read_from_its_beginning(tmp_path):
    """A new run of the same script: its log has the length and the last lines of the old one."""
    path, draft, lines = tmp_path / "log", tmp_path / "draft", "=" * 300
    path.write_text(f'{{"step": 1, "loss": 0.5}}\n{lines}\n')
    tail = LogTail(path)
    assert tail.poll().rows == [{"step": 1, "loss": 0.5}]
    draft.write_text(f'{{"step": 1, "loss": 0.7}}\n{lines}\n')
    os.replace(draft, path)
    assert tail.poll().rows == [{"step": 1, "loss": 0.7}]
    assert tail.poll().rows == []


def test_a_longer_copy_in_a_log_s_place_goes_on_where_it_ended(tmp_path):
    """rsync writes a whole new file each time and renames it."""
    path, draft = tmp_path / "log", tmp_path / "draft"
    add(path, 1)
    tail = LogTail(path)
    assert steps(tail) == [1]
    for last in (2, 3, 4):
        add(draft, *range(1, last + 1), mode="w")
        os.replace(draft, path)
        assert steps(tail) == [last]
    assert tail.notes == []


def test_a_first_line_of_settings_does_not_decide_what_it_is(tmp_path):
    path = tmp_path / "log"
    path.write_text('{"model": "tiny", "seed": 1, "output_dir": "out"}\n')
    tail = LogTail(path)
    assert tail.poll().rows == []
    with path.open("a") as file:
        file.write("step:1 - actor/pg_loss:0.5\nstep:2 - actor/pg_loss:0.4\n")
    assert steps(tail) == [1, 2]
    assert tail.format == "verl"


def write_state(path, *steps):
    draft = path.with_suffix(".draft")
    draft.write_text(
        json.dumps({"log_history": [{"step": step, "loss": 0.5} for step in steps], "max_steps": 9}, indent=1)
    )
    os.replace(draft, path)


def test_a_trainer_state_is_read_again_when_it_is_replaced(tmp_path):
    path = tmp_path / "trainer_state.json"
    tail = LogTail(tmp_path)
    write_state(path, 1, 2)
    assert steps(tail) == [1, 2]
    assert steps(tail) == []
    write_state(path, 1, 2, 3)
    assert steps(tail) == [3]
    assert tail.config == {"max_steps": 9}
    path.write_text('{"log_history": [{"step": 1')
    assert steps(tail) == []
    write_state(path, 1, 2, 3, 4)
    assert steps(tail) == [4]


def test_a_new_checkpoint_goes_on_where_the_old_one_ended(tmp_path):
    tail = LogTail(tmp_path)
    for number in (2, 4):
        (tmp_path / f"checkpoint-{number}").mkdir()
        write_state(tmp_path / f"checkpoint-{number}" / "trainer_state.json", *range(1, number + 1))
        assert steps(tail) == [number - 1, number]


@pytest.mark.slow
def test_polling_costs_what_was_added(tmp_path):
    path = tmp_path / "log"
    add(path, *range(100_000))
    tail = LogTail(path)
    assert len(tail.poll().rows) == 100_000
    start = time.thread_time()
    for step in range(50):
        add(path, 100_000 + step)
        assert steps(tail) == [100_000 + step]
    assert time.thread_time() - start < 1.0
