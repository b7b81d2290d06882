"""Following a log that grows: against a real writer, through tears, rotation and replacement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from rlvitals.importers import LogTail, read_log

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
        is_over = writer.poll() is not None  # asked before the poll: what was written until then is still read
        polls += [rows] if (rows := tail.poll().rows) else []
        time.sleep(0.01)
    assert writer.wait() == 0
    rows = [row for rows in polls for row in rows]
    assert [(row["step"], row["loss"], row["kl"]) for row in rows] == [(n, 1 / n, n / 1000) for n in range(1, 301)]
    assert len(polls) > 3
    assert rows == read_log(path).rows


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
    """A new run of the same script: as long as the old log, and its last lines are the same."""
    path, draft, lines = tmp_path / "log", tmp_path / "draft", "=" * 300
    path.write_text(f'{{"step": 1, "loss": 0.5}}\n{lines}\n')
    tail = LogTail(path)
    assert tail.poll().rows == [{"step": 1, "loss": 0.5}]
    draft.write_text(f'{{"step": 1, "loss": 0.7}}\n{lines}\n')
    os.replace(draft, path)
    assert tail.poll().rows == [{"step": 1, "loss": 0.7}]
    assert tail.poll().rows == []


def test_a_longer_copy_in_a_log_s_place_goes_on_where_it_ended(tmp_path):
    """rsync writes a whole new file and renames it, at every turn."""
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
    begun = time.perf_counter()
    for step in range(50):
        add(path, 100_000 + step)
        assert steps(tail) == [100_000 + step]
    assert time.perf_counter() - begun < 1.0
