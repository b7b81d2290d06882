"""Recording under faults. Each fault is real: processes are killed, disks are full or become read-only, directories
vanish.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import rlvitals
from conftest import fill, until
from rlvitals.store.reader import Problems, read_rows

LOG = Path("logs/training_metrics.jsonl")


def rows_of(folder, log=LOG):
    """The rows of a log, read strictly: every line must be complete JSON."""
    data = (Path(folder) / log).read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def steps_of(folder, log=LOG):
    return [row["step"] for row in rows_of(folder, log)]


def card_of(folder):
    return json.loads((Path(folder) / "run.json").read_text())


def holds(folder, steps, log=LOG):
    """A function that returns whether a log holds exactly these steps; the log may still be written."""

    def check():
        try:
            return [row.step for row in read_rows(Path(folder) / log)] == list(steps)
        except OSError:
            return False

    return check


@pytest.fixture
def python(child_environment):
    """Run a script in a separate Python process and return the completed process."""

    def run(script, *arguments, **options):
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *map(str, arguments)],
            env={**child_environment, **options.pop("env", {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            **options,
        )

    return run


@pytest.fixture
def trainer(child_environment):
    """Start a Python process that exchanges lines with the test through its standard input and output."""
    children = []

    def begin(script, *arguments):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
            env=child_environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield begin
    for child in children:
        child.kill()
        child.communicate()


# kill -9


KILLS = """
import json, os, random, select, signal, sys, time
from pathlib import Path

import rlvitals
from rlvitals.capture.start import start  # warm: nothing is left to import in the children
from rlvitals.store.reader import last_row, last_rows

folder, kills = Path(sys.argv[1]), int(sys.argv[2])
log = folder / "logs/training_metrics.jsonl"
dice = random.Random(20)
wide = {f"text/{number}": "x" * 900 for number in range(24)}  # a line of several pages can be torn in its middle


def work(resume, acknowledge):
    run = start(folder, resume=resume, monitor=False)  # hundreds of starts: the recording is what is tested
    before = last_row(log)
    step = (before.step if before else -1) if resume is True else resume
    while True:
        step += 1
        row = {"loss": step / 8, "attempt_number": run.attempt}
        run.log(row | wide if step % 32 == 0 else row)  # which counts on by itself
        os.write(acknowledge, b"%d %d\\n" % (run.attempt, step))


lost, acknowledged, resumed = [], 0, 0
last = -1
for number in range(kills):
    # Mostly from the last row on; now and then from a checkpoint some steps back.
    back = last > 20 and dice.random() < 0.25
    resume = last - dice.randint(1, 15) if back else True
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        work(resume, write_end)
    os.close(write_end)
    # The random moment: for some right after the fork, in the middle of start(); for most among the rows.
    if dice.random() < 0.75:
        select.select([read_end], [], [], 30)
    time.sleep(dice.uniform(0, 0.005))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with os.fdopen(read_end, "rb") as pipe:
        # The kill may have cut the last acknowledgement; a row without a whole one is not held against anybody.
        whole, _, _ = pipe.read().rpartition(b"\\n")
    got = [tuple(map(int, line.split())) for line in whole.split(b"\\n")] if whole else []
    there = {(row.attempt, row.step): row for row in last_rows(log, len(got) + 4)}
    for attempt, step in got:
        row = there.get((attempt, step))
        if row is None or row.numbers["loss"] != step / 8 or row.numbers["attempt_number"] != attempt:
            lost.append((number, attempt, step))
    acknowledged += len(got)
    resumed += back
    last = max(there)[1] if there else last
    print(json.dumps({"kill": number, "acknowledged": got[-1:] and [got[0], got[-1]], "back": back}), flush=True)
print(json.dumps({"lost": lost, "acknowledged": acknowledged, "resumed_back": resumed}), flush=True)
"""


@pytest.mark.slow
def test_no_acknowledged_row_is_lost_in_hundreds_of_kills_and_the_run_reads_whole(tmp_path, python):
    kills = 150
    folder = tmp_path / "run"
    driver = python(KILLS, folder, kills)
    assert driver.returncode == 0, driver.stderr
    *each, outcome = [json.loads(line) for line in driver.stdout.splitlines()]
    assert len(each) == kills
    assert outcome["lost"] == []
    # Some kills came when there were rows to lose, and some before the first row.
    assert outcome["acknowledged"] > kills
    assert outcome["resumed_back"] > 10
    assert any(not round["acknowledged"] for round in each)

    before = {(row.attempt, row.step) for row in read_rows(folder / LOG)}
    for one in each:
        if one["acknowledged"]:
            (attempt, first), (_, last) = one["acknowledged"]
            assert {(attempt, step) for step in range(first, last + 1)} <= before

    with rlvitals.start(folder, resume=True) as run:
        run.log({"loss": 0.0, "attempt_number": run.attempt})
    rows = rows_of(folder)  # every line is strict JSON now: torn ones were cut off at each resume
    assert {(row["attempt"], row["step"]) for row in rows} == before | {(run.attempt, rows[-1]["step"])}
    assert all(row["attempt_number"] == row["attempt"] for row in rows)
    assert [row["attempt"] for row in rows] == sorted(row["attempt"] for row in rows)

    view = rlvitals.open_run(folder)
    assert view.status == "finished"
    assert view.problems == []
    # Recompute the current rows from the lines alone: each attempt replaces earlier rows from its own first row on.
    living, newest = {}, 0
    for row in rows:
        if row["attempt"] > newest:
            newest = row["attempt"]
            living = {step: kept for step, kept in living.items() if step < row["step"]}
        living[row["step"]] = (row["attempt"], row["loss"])
    steps, losses = view.series("loss")
    assert steps.tolist() == sorted(living) == list(range(len(living)))
    assert losses.tolist() == [living[step][1] for step in sorted(living)]
    assert view.series("attempt_number").values.tolist() == [living[step][0] for step in sorted(living)]
    assert view.ghost_rows == len(rows) - len(living)


def test_a_process_that_kills_itself_right_after_log_loses_nothing(tmp_path, python):
    script = """
        import os, signal, sys
        import rlvitals
        run = rlvitals.start(sys.argv[1])
        run.log({"loss": 0.25}, step=3)
        run.log({"text": "x" * 900, "loss": 0.5}, step=4)
        run.log_eval({"accuracy": 0.5})
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert python(script, tmp_path).returncode == -signal.SIGKILL
    assert steps_of(tmp_path) == [3, 4]
    assert steps_of(tmp_path, Path("logs/eval_metrics.jsonl")) == [4]
    view = rlvitals.open_run(tmp_path)
    assert view.status == "interrupted"
    assert "is gone without finishing" in view.status_note
    assert view.problems == []


# Torn files


TORN = ['{"step":3,"timestamp":1.0,"attempt":1,"lo', "{", '{"step":3,"loss":0.5', "\x00\x00\x00", "x" * 200_000]


@pytest.mark.parametrize("tail", TORN, ids=lambda tail: f"{len(tail)} bytes")
def test_a_torn_last_line_is_reported_by_readers_and_cut_off_by_the_next_writer(tmp_path, caplog, tail):
    with rlvitals.start(tmp_path) as run:
        for step in range(3):
            run.log({"loss": float(step)}, step=step)
    with open(tmp_path / LOG, "a") as file:
        file.write(tail)
    view = rlvitals.open_run(tmp_path)
    assert view.series("loss").steps.tolist() == [0, 1, 2]
    assert view.problems == [
        f"training_metrics.jsonl: the last line is torn ({len(tail)} bytes of a row that was never acknowledged)"
    ]
    problems = Problems()
    assert [row.step for row in read_rows(tmp_path / LOG, problems)] == [0, 1, 2]
    assert (problems.torn_bytes, problems.bad_lines) == (len(tail), 0)

    with rlvitals.start(tmp_path, resume=True) as run:
        run.log({"loss": 3.0})
    assert steps_of(tmp_path) == [0, 1, 2, 3]
    assert any(f"the last {len(tail)} bytes were half a row" in message for message in caplog.messages)
    assert rlvitals.open_run(tmp_path).problems == []


def test_a_last_row_that_only_lacks_its_newline_is_kept(tmp_path, caplog):
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 1.0}, step=0)
    with open(tmp_path / LOG, "a") as file:
        file.write('{"step":1,"timestamp":1.0,"attempt":1,"loss":2.0}')
    assert rlvitals.open_run(tmp_path).series("loss").values.tolist() == [1.0, 2.0]
    with rlvitals.start(tmp_path, resume=True) as run:
        run.log({"loss": 3.0})
    assert [(row["step"], row["loss"]) for row in rows_of(tmp_path)] == [(0, 1.0), (1, 2.0), (2, 3.0)]
    assert not caplog.records


def test_a_torn_line_in_the_list_of_attempts_does_not_cost_the_next_one(tmp_path):
    with rlvitals.start(tmp_path) as run:
        for step in range(5):
            run.log({"loss": 1.0}, step=step)
    with open(tmp_path / "attempts.jsonl", "a") as file:
        file.write('{"number":2,"started":1763190000.1,"from_st')
    with rlvitals.start(tmp_path, resume=1) as run:
        run.log({"loss": 2.0}, step=4)
    view = rlvitals.open_run(tmp_path)
    assert [(attempt.number, attempt.from_step) for attempt in view.attempts] == [(1, None), (run.attempt, 1)]
    assert view.series("loss").steps.tolist() == [0, 1, 4]


# A full disk


def test_rows_for_a_full_disk_wait_in_memory_and_are_written_when_there_is_room(small_disk, caplog):
    folder = small_disk / "run"
    with rlvitals.start(folder, fsync=0.05) as run:
        for step in range(10):
            run.log({"loss": float(step)}, step=step)
        filler = fill(small_disk)
        for step in range(10, 200):
            run.log({"loss": float(step), "note": "x" * 900}, step=step)
        on_disk = steps_of(folder)  # whole lines only, although the disk filled up inside a line
        assert on_disk == list(range(len(on_disk)))
        assert 10 <= len(on_disk) < 200
        assert rlvitals.open_run(folder).rows == len(on_disk)
        loud = [message for message in caplog.messages if "No space left on device" in message]
        assert len(loud) == 1
        assert "Rows are kept in memory" in loud[0]
        filler.unlink()
        assert until(holds(folder, range(200)))
        run.log({"loss": 200.0}, step=200)
    assert steps_of(folder) == list(range(201))
    assert any("can be written again, and all waiting rows are in it" in message for message in caplog.messages)
    assert (card_of(folder)["status"], card_of(folder)["rows_dropped"]) == ("finished", 0)
    assert rlvitals.open_run(folder).problems == []


def test_a_second_full_disk_is_as_loud_as_the_first(small_disk, caplog):
    folder = small_disk / "run"
    with rlvitals.start(folder, fsync=0.05) as run:
        for time_round in (1, 2):
            filler = fill(small_disk)
            for _ in range(10):
                run.log({"note": "x" * 900})
            assert sum("No space left on device" in message for message in caplog.messages) == time_round
            filler.unlink()
            assert until(holds(folder, range(10 * time_round)))
    assert steps_of(folder) == list(range(20))


def test_rows_the_disk_never_takes_are_rescued_elsewhere_and_can_be_brought_back(
    small_disk, tmp_path, monkeypatch, caplog
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    folder = small_disk / "run"
    with rlvitals.start(folder, monitor=False) as run:  # a finding would have its own rescue file
        run.log({"loss": 0.0}, step=0)
        filler = fill(small_disk)
        for step in range(1, 20):
            run.log({"loss": float(step), "note": "x" * 900}, step=step)
    (rescue,) = elsewhere.iterdir()
    advice = next(message for message in caplog.messages if "Restore them with: cat " in message)
    assert f"cat {rescue} >> {folder / LOG}" in advice
    assert rlvitals.open_run(folder).status == "interrupted"  # the card could not be written either
    filler.unlink()
    command = advice.partition("Restore them with: ")[2]
    subprocess.run(command, shell=True, check=True)
    assert steps_of(folder) == list(range(20))


BIG_ROW = {f"text/{number}": "x" * 1000 for number in range(1000)}
"""About a megabyte: some sixty of them fill the buffer of 64 MiB."""


@pytest.mark.slow
def test_a_buffer_too_small_for_the_outage_drops_the_oldest_rows_and_marks_the_gap(tmp_path, python):
    script = """
        import json, logging, resource, sys, time
        from pathlib import Path
        import rlvitals
        logging.basicConfig(level=logging.WARNING, format="%(message)s")
        big = {f"text/{number}": "x" * 1000 for number in range(1000)}
        with rlvitals.start(sys.argv[1]) as run:
            run.log({"loss": 0.0}, step=0)
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (16384, hard))
            for step in range(1, 101):
                run.log(big, step=step)
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            run.log({"loss": 1.0}, step=101)
    """
    done = python(script, tmp_path)
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path)
    (gap,) = [row for row in rows if "_gap" in row]
    dropped = gap["_gap"]["rows"]
    assert 30 < dropped < 60
    assert [row["step"] for row in rows] == [0, *range(1 + dropped, 102)]  # the oldest are dropped, the order is kept
    assert gap["step"] == 1 + dropped  # marked where the rows are missing
    assert card_of(tmp_path)["rows_dropped"] == dropped
    assert f"{dropped} rows were dropped and the gap is marked" in done.stderr
    assert rlvitals.open_run(tmp_path).problems == [
        f"training_metrics.jsonl: {dropped} rows are missing: they could not be written to disk"
    ]


@pytest.mark.slow
def test_a_gap_is_marked_in_rescued_rows_as_well(small_disk, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    with rlvitals.start(small_disk / "run") as run:
        run.log({"loss": 0.0}, step=0)
        fill(small_disk)
        for step in range(1, 81):
            run.log(BIG_ROW, step=step)
    (rescue,) = elsewhere.iterdir()
    rescued = [json.loads(line) for line in rescue.read_bytes().splitlines()]
    first = rescued[0]["step"]
    assert [row["step"] for row in rescued] == list(range(first, 81))
    assert first > 1
    assert rescued[0].get("_gap") == {"rows": first - 1}


def test_a_file_size_limit_is_outlived_like_a_full_disk(tmp_path, python):
    script = """
        import json, logging, resource, sys
        from pathlib import Path
        import rlvitals
        logging.basicConfig(level=logging.WARNING, format="%(message)s")
        log = Path(sys.argv[1]) / "logs/training_metrics.jsonl"
        with rlvitals.start(sys.argv[1]) as run:
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
            for step in range(100):
                run.log({"loss": float(step), "note": "x" * 700}, step=step)
            lines = log.read_bytes().split(b"\\n")
            assert lines.pop() == b""
            print(json.dumps([json.loads(line)["step"] for line in lines]))
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    """
    done = python(script, tmp_path)
    assert done.returncode == 0, done.stderr
    at_the_limit = json.loads(done.stdout)
    assert 10 < len(at_the_limit) < 40
    assert at_the_limit == list(range(len(at_the_limit)))
    assert steps_of(tmp_path) == list(range(100))
    assert done.stderr.count("File too large") == 1
    assert "can be written again" in done.stderr
    assert card_of(tmp_path)["rows_dropped"] == 0


# A directory that vanishes


def heartbeats(folder, count):
    """Wait until the background thread has checked the files `count` times."""
    for _ in range(count):
        seen = (folder / "heartbeat").read_text()
        assert until(lambda seen=seen: (folder / "heartbeat").read_text() not in (seen, ""))


def test_a_deleted_run_directory_is_made_again_with_every_row(tmp_path, caplog):
    folder = tmp_path / "run"
    with rlvitals.start(folder, config={"seed": 1}, fsync=0.05) as run:
        for step in range(10):
            run.log({"loss": float(step)}, step=step)
        heartbeats(folder, 2)
        shutil.rmtree(folder)
        for step in range(10, 15):
            run.log({"loss": float(step)}, step=step)
        assert until(lambda: (folder / LOG).exists() and steps_of(folder)[-1:] == [14])
        run.log({"loss": 15.0}, step=15)
    assert steps_of(folder) == list(range(16))
    assert any("it is created again (no row is lost)" in message for message in caplog.messages)
    card = card_of(folder)
    assert (card["status"], card["id"], card["rows_dropped"]) == ("finished", run.id, 0)
    view = rlvitals.open_run(folder)
    assert view.config["seed"] == 1
    assert view.problems == []


def test_rows_of_earlier_attempts_come_back_with_a_deleted_log(tmp_path):
    with rlvitals.start(tmp_path / "run") as run:
        run.log({"loss": 1.0}, step=1)
    with rlvitals.start(tmp_path / "run", resume=True) as run:
        run.log({"loss": 2.0}, step=2)
        (tmp_path / "run" / LOG).unlink()
        run.log({"loss": 3.0}, step=3)
    assert steps_of(tmp_path / "run") == [1, 2, 3]


def test_a_deleted_log_waits_for_room_to_be_made_again(small_disk, caplog):
    folder = small_disk / "run"
    with rlvitals.start(folder, fsync=0.05) as run:
        for step in range(40):
            run.log({"note": "x" * 700}, step=step)
        (folder / LOG).unlink()
        fill(small_disk)
        run.log({"note": "x" * 700}, step=40)
        assert until(lambda: any("cannot write" in message for message in caplog.messages))
        # No partial copy remains. It exists only during the copy, and a reader may see it then.
        assert until(lambda: not (folder / LOG).exists() or not (folder / LOG).read_bytes())
        (small_disk / "filler").unlink()
        assert until(lambda: (folder / LOG).exists() and (folder / LOG).read_bytes().count(b"\n") == 41)
    assert steps_of(folder) == list(range(41))
    assert card_of(folder)["rows_dropped"] == 0


def unreadable(run):
    """Make the log's descriptor write-only: rows cannot be read back, as on some network disks."""
    blind = os.open(os.path.join(run.dir, LOG), os.O_WRONLY | os.O_APPEND)
    os.dup2(blind, run._writer.fd)
    os.close(blind)


def test_what_a_deleted_log_does_not_give_back_is_marked_as_a_gap(tmp_path, caplog):
    folder = tmp_path / "run"
    with rlvitals.start(folder, fsync=0.05) as run:
        for step in range(10):
            run.log({"loss": float(step)}, step=step)
        unreadable(run)
        shutil.rmtree(folder)
        assert until((folder / LOG).exists)
        run.log({"loss": 10.0}, step=10)
        run.log({"loss": 11.0}, step=11)
    rows = rows_of(folder)
    assert [(row["step"], row.get("_gap")) for row in rows] == [(10, {"rows": 10}), (11, None)]
    assert any("10 earlier rows are gone" in message for message in caplog.messages)
    assert card_of(folder)["rows_dropped"] == 10
    assert rlvitals.open_run(folder).problems == [
        "training_metrics.jsonl: 10 rows are missing: they could not be written to disk"
    ]


def test_rows_lost_at_the_very_end_are_reported_by_the_reader_too(tmp_path):
    """There is no later row to carry the gap mark."""
    folder = tmp_path / "run"
    with rlvitals.start(folder, fsync=0.05) as run:
        for step in range(10):
            run.log({"loss": float(step)}, step=step)
        unreadable(run)
        shutil.rmtree(folder)
    assert card_of(folder)["rows_dropped"] == 10
    assert any("10 rows are missing" in sentence for sentence in rlvitals.open_run(folder).problems)


def test_a_directory_made_again_holds_everything_a_run_has(tmp_path):
    folder = tmp_path / "run"
    with rlvitals.start(folder, fsync=0.05) as run:
        run.log({"loss": 1.0})
        run.log_eval({"accuracy": 0.5})
        shutil.rmtree(folder)
        for name in ("run.json", "config.json", "run.lock", "heartbeat", "attempts.jsonl", LOG):
            assert until((folder / name).exists), name
        assert until((folder / "logs/eval_metrics.jsonl").exists)
        with pytest.raises(rlvitals.errors.RunLocked):
            rlvitals.start(folder, resume=True)
    # Both logs were restored, and there is still only one attempt.
    assert [attempt.number for attempt in rlvitals.open_run(folder).attempts] == [1]


def test_a_directory_deleted_right_before_finish_keeps_its_last_rows(tmp_path):
    folder = tmp_path / "run"
    with rlvitals.start(folder) as run:
        for step in range(5):
            run.log({"loss": float(step)}, step=step)
        shutil.rmtree(folder)
        run.log({"loss": 5.0}, step=5)
    rows = rows_of(folder)
    assert rows[-1]["step"] == 5
    assert len(rows) + rows[0].get("_gap", {"rows": 0})["rows"] == 6
    assert card_of(folder)["status"] == "finished"


def test_a_deleted_log_alone_is_made_again_and_the_attempt_stays_one(tmp_path, caplog):
    with rlvitals.start(tmp_path, fsync=0.05) as run:
        run.log({"loss": 1.0}, step=0)
        (tmp_path / LOG).unlink()
        run.log({"loss": 2.0}, step=1)
        assert until((tmp_path / LOG).exists)
        run.log({"loss": 3.0}, step=2)
    assert steps_of(tmp_path)[-2:] == [1, 2]
    assert any("was deleted" in message for message in caplog.messages)
    assert [attempt.number for attempt in rlvitals.open_run(tmp_path).attempts] == [1]


def test_rows_wait_while_even_the_directory_above_is_gone_and_come_when_it_is_back(tmp_path, caplog):
    """A lost mount: recreating the directory would write to the disk of the mount point."""
    above = tmp_path / "above"
    folder = above / "run"
    with rlvitals.start(folder, fsync=0.05) as run:
        shutil.rmtree(above)
        run.log({"loss": 0.0}, step=0)
        assert until(lambda: any("Rows are kept in memory" in message for message in caplog.messages))
        for step in range(1, 20):
            run.log({"loss": float(step)}, step=step)
        assert not above.exists()
        above.mkdir()
        assert until(holds(folder, range(20)))
        run.log({"loss": 20.0}, step=20)
    assert steps_of(folder) == list(range(21))
    assert card_of(folder)["status"] == "finished"


# A read-only disk


def test_a_disk_that_turns_read_only_costs_no_row_and_stops_no_training(small_disk, tmp_path, caplog):
    """A symlink puts the logs on another disk, because a disk with a file open for writing cannot be remounted
    read-only.
    """
    folder, logs = small_disk / "run", tmp_path / "logs"
    folder.mkdir()
    logs.mkdir()
    (folder / "logs").symlink_to(logs)
    with rlvitals.start(folder, fsync=0.05) as run:
        run.log({"loss": 0.0}, step=0)
        card = (folder / "run.json").read_bytes()
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
        run.log({"loss": 1.0}, step=1)
        run.log_eval({"accuracy": 0.5}, step=1)
        run.log({"loss": 2.0}, step=2)
    assert steps_of(folder) == [0, 1, 2]
    assert steps_of(folder, Path("logs/eval_metrics.jsonl")) == [1]
    assert any("eval_step_0001.json: Read-only file system; its row is kept" in text for text in caplog.messages)
    assert any("run.json: Read-only file system" in text for text in caplog.messages)
    assert (folder / "run.json").read_bytes() == card
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    (folder / "run.lock").unlink()  # it names this live process; normally that process would be dead
    with rlvitals.start(folder, resume=True) as run:
        run.log({"loss": 3.0})
    assert steps_of(folder) == [0, 1, 2, 3]


@pytest.fixture
def failing_disk(tmp_path):
    """A real ext4 disk in a file; `remount,abort` makes it read-only at once, as a disk error does."""
    folder, image = tmp_path / "disk", tmp_path / "image"
    folder.mkdir()
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        pytest.skip("making a disk that fails needs root and mkfs.ext4")
    with open(image, "wb") as file:
        file.truncate(4 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", image], check=True)
    mount = ["mount", "-o", "loop,errors=remount-ro", image, folder]
    mounted = subprocess.run(mount, check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no image can be mounted here: {mounted.stderr.decode().strip()}")

    def replace() -> None:
        """Mount a copy of the failed disk in its place.

        The image itself stays read-only while the mount namespace of another process holds it, for example a browser's
        in a parallel test.
        """
        subprocess.run(["umount", folder], check=True)
        replacement = shutil.copy(image, tmp_path / "replacement")
        subprocess.run(["mount", "-o", "loop", replacement, folder], check=True)

    yield folder, replace
    subprocess.run(["umount", folder], check=True)


def test_rows_for_a_disk_that_fails_under_the_log_are_kept_rescued_and_brought_back(
    failing_disk, tmp_path, monkeypatch, caplog
):
    disk, replace = failing_disk
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    folder = disk / "run"
    with rlvitals.start(folder, fsync=0.05) as run:
        for step in range(10):
            run.log({"loss": float(step)}, step=step)
        os.sync()
        subprocess.run(["mount", "-o", "remount,abort", disk], check=True)
        for step in range(10, 30):
            run.log({"loss": float(step)}, step=step)
        loud = [message for message in caplog.messages if "Rows are kept in memory" in message]
        assert len(loud) == 1
        assert "Read-only file system" in loud[0]
    (rescue,) = elsewhere.iterdir()
    assert [json.loads(line)["step"] for line in rescue.read_bytes().splitlines()] == list(range(10, 30))
    replace()
    advice = next(message for message in caplog.messages if "Restore them with: " in message)
    subprocess.run(advice.partition("Restore them with: ")[2], shell=True, check=True)
    assert steps_of(folder) == list(range(30))


# SIGTERM


READY = """
    import logging, signal, sys, time
    import rlvitals
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
"""


def test_sigterm_marks_the_run_interrupted_and_still_ends_the_process(tmp_path, trainer):
    child = trainer(
        READY
        + """
    run = rlvitals.start(sys.argv[1])
    run.log({"loss": 1.0})
    run.log({"loss": 2.0, "odd": [1]})
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
    """,
        tmp_path,
    )
    assert child.stdout.readline() == "ready\n"
    child.terminate()
    assert child.wait(timeout=30) == -signal.SIGTERM
    assert steps_of(tmp_path) == [0, 1]
    assert card_of(tmp_path)["status"] == "interrupted"
    assert card_of(tmp_path)["left_out"]["odd"]["count"] == 1
    with rlvitals.start(tmp_path, resume=True) as run:
        run.log({"loss": 3.0})
    assert rlvitals.open_run(tmp_path).status == "finished"


def test_sigterm_flushes_rows_that_were_waiting(tmp_path, trainer):
    child = trainer(
        READY
        + """
    import resource
    run = rlvitals.start(sys.argv[1])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    for step in range(100):
        run.log({"note": "x" * 500})
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
    """,
        tmp_path,
    )
    assert child.stdout.readline() == "ready\n"
    assert len(steps_of(tmp_path)) < 100
    child.terminate()
    assert child.wait(timeout=30) == -signal.SIGTERM
    assert steps_of(tmp_path) == list(range(100))


def test_a_handler_of_the_user_s_own_is_called_and_may_go_on_logging(tmp_path, trainer):
    child = trainer(
        READY
        + """
    def on_sigterm(number, frame):
        run.log({"saved": True}, step=100)
        print("saved", flush=True)
    signal.signal(signal.SIGTERM, on_sigterm)
    run = rlvitals.start(sys.argv[1])
    run.log({"loss": 1.0})
    print("ready", flush=True)
    sys.stdin.readline()
    run.log({"loss": 2.0}, step=101)
    run.finish()
    """,
        tmp_path,
    )
    assert child.stdout.readline() == "ready\n"
    child.terminate()
    assert child.stdout.readline() == "saved\n"
    assert card_of(tmp_path)["status"] == "interrupted"
    child.communicate("\n")
    assert child.returncode == 0
    assert steps_of(tmp_path) == [0, 100, 101]
    assert card_of(tmp_path)["status"] == "finished"  # the script reached its end and called finish


def test_a_handler_that_exits_leaves_the_run_interrupted(tmp_path, trainer):
    """On a cluster that preempts jobs, trainers save a checkpoint and call sys.exit()."""
    child = trainer(
        READY
        + """
    def on_sigterm(number, frame):
        print("saved", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, on_sigterm)
    run = rlvitals.start(sys.argv[1])
    run.log({"loss": 1.0})
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
    """,
        tmp_path,
    )
    assert child.stdout.readline() == "ready\n"
    child.terminate()
    assert child.stdout.readline() == "saved\n"
    assert child.wait(timeout=30) == 0
    assert steps_of(tmp_path) == [0]
    assert card_of(tmp_path)["status"] == "interrupted"
    assert not (tmp_path / "run.lock").exists()


def test_a_handler_that_calls_the_one_before_it_does_not_go_round_in_circles(tmp_path, trainer):
    """Libraries chain their handlers. Ours may already be in the chain when a second run starts."""
    child = trainer(
        READY
        + """
    first = rlvitals.start(sys.argv[1] + "/first")
    before = signal.getsignal(signal.SIGTERM)
    def chained(number, frame):
        print("chained", flush=True)
        before(number, frame)
    signal.signal(signal.SIGTERM, chained)
    second = rlvitals.start(sys.argv[1] + "/second")
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
    """,
        tmp_path,
    )
    assert child.stdout.readline() == "ready\n"
    child.terminate()
    out, err = child.communicate(timeout=30)
    assert out == "chained\n"
    assert "RecursionError" not in err
    assert child.returncode == -signal.SIGTERM
    assert [card_of(tmp_path / name)["status"] for name in ("first", "second")] == ["interrupted"] * 2


@pytest.mark.slow
def test_the_identity_card_stays_whole_when_a_signal_meets_the_background_thread(tmp_path, python):
    """Both save run.json: the handler marks the run interrupted while the thread writes counts of dropped values."""
    script = """
        import json, logging, os, signal, sys
        from pathlib import Path
        import rlvitals
        logging.basicConfig(level=logging.WARNING, format="%(message)s")
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        card = Path(sys.argv[1], "run.json")
        with rlvitals.start(sys.argv[1], fsync=0.0005) as run:
            for _ in range(1500):
                run.log({"loss": 1.0, "odd": [1]})
                os.kill(os.getpid(), signal.SIGTERM)
                json.loads(card.read_text())
    """
    done = python(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "cannot write" not in done.stderr
    assert card_of(tmp_path)["left_out"]["odd"]["count"] == 1500
    assert not [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")]


def test_an_ignored_sigterm_stays_ignored_and_finish_gives_the_signal_back(tmp_path, python):
    script = """
        import os, signal, sys
        import rlvitals
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with rlvitals.start(sys.argv[1] + "/a") as run:
            os.kill(os.getpid(), signal.SIGTERM)
            run.log({"loss": 1.0})
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with rlvitals.start(sys.argv[1] + "/b"), rlvitals.start(sys.argv[1] + "/c"):
            assert callable(signal.getsignal(signal.SIGTERM))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    """
    done = python(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert card_of(tmp_path / "a")["status"] == "finished"


def test_a_run_started_in_a_thread_records_without_signals(tmp_path, python):
    script = """
        import signal, sys, threading
        import rlvitals
        def train():
            with rlvitals.start(sys.argv[1]) as run:
                run.log({"loss": 1.0})
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    """
    done = python(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert card_of(tmp_path)["status"] == "finished"


# The end of the interpreter


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("pass", (0, "finished", None)),
        ("raise ValueError('lost the reward model')", (1, "failed", "ValueError: lost the reward model")),
        ("raise KeyboardInterrupt", (-signal.SIGINT, "interrupted", "KeyboardInterrupt")),
        ("sys.exit(0)", (0, "finished", None)),
        ("sys.exit(1)", (1, "failed", "SystemExit: 1")),
        ("sys.exit('no checkpoint')", (1, "failed", "SystemExit: no checkpoint")),
        ("sys.exit('')", (1, "failed", "SystemExit")),
        ("sys.exit(130)", (130, "interrupted", "SystemExit: 130")),
        ("exit(3)", (3, "failed", "SystemExit: 3")),
        ("(lambda: (lambda: sys.exit(2))())()", (2, "failed", "SystemExit: 2")),
        ("import argparse; argparse.ArgumentParser().error('odd')", (2, "failed", "SystemExit: 2")),
        ("CAUGHT", (0, "finished", None)),
        ("CAUGHT; sys.exit(4)", (4, "failed", "SystemExit: 4")),
        (
            "import threading; t = threading.Thread(target=sys.exit, args=(1,)); t.start(); t.join()",
            (0, "finished", None),
        ),
        ("sys.exit(5) if run.finish() is None else None", (5, "finished", None)),
        ("import os; pid = os.fork(); pid or sys.exit(1); os.waitpid(pid, 0)", (0, "finished", None)),
        # A literal `raise SystemExit` cannot be noticed: see capture/endings.py.
        ("raise SystemExit(0)", (0, "finished", None)),
        ("raise SystemExit(1)", (1, "finished", None)),
    ],
)
def test_an_end_without_finish_is_recorded_for_what_it_was(tmp_path, child_environment, ending, expected):
    assert end_of(ending, "-c", tmp_path, child_environment) == expected


@pytest.mark.parametrize("way", ["file", "-m"])
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "expected"), [("CAUGHT", (0, "finished", None)), ("sys.exit(1)", (1, "failed", "SystemExit: 1"))]
)
def test_the_end_of_a_script_or_a_module_is_recorded_for_what_it_was(
    tmp_path, child_environment, way, ending, expected
):
    assert end_of(ending, way, tmp_path, child_environment) == expected


def end_of(ending, way, tmp_path, environment):
    """The exit status of a program with this ending, and the status and error in its run's card."""
    ending = ending.replace("CAUGHT", "catch(sys.exit, 1)")
    script = f"""
import sys
import rlvitals
def catch(function, argument):
    try:
        function(argument)
    except SystemExit:
        pass
run = rlvitals.start(sys.argv[1], monitor=False)
run.log({{"loss": 1.0}})
{ending}
"""
    (tmp_path / "script.py").write_text(script)
    how = {"-c": ["-c", script], "file": [str(tmp_path / "script.py")], "-m": ["-m", "script"]}[way]
    run = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, *how, str(run)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    card = card_of(run)
    assert steps_of(run) == [0]
    assert not (run / "run.lock").exists()
    return done.returncode, card["status"], card["error"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("sys.exit(1)", (1, "failed", "SystemExit: 1")),
        ("sys.exit(0)", (0, "finished", None)),
        ("raise SystemExit('')", (1, "failed", "SystemExit")),
        ("os.kill(os.getpid(), signal.SIGTERM)", (0, "interrupted", None)),
    ],
)
def test_an_exit_in_the_block_is_recorded_for_what_it_was(tmp_path, python, ending, expected):
    script = f"""
        import os, signal, sys
        import rlvitals
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with rlvitals.start(sys.argv[1], monitor=False) as run:
            {ending}
    """
    done = python(script, tmp_path)
    card = card_of(tmp_path)
    assert (done.returncode, card["status"], card["error"]) == expected, done.stderr


def test_a_spawned_worker_that_fails_leaves_its_run_failed(tmp_path, child_environment):
    """multiprocessing catches the exception, prints it and exits with a nonzero status."""
    script = """
import multiprocessing, sys
import rlvitals

def work(folder, fails):
    run = rlvitals.start(folder, monitor=False)
    run.log({"loss": 1.0})
    if fails:
        raise ValueError("out of data")

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    for name in ("fails", "ends"):
        worker = context.Process(target=work, args=(f"{sys.argv[1]}/{name}", name == "fails"))
        worker.start()
        worker.join()
        print(worker.exitcode)
"""
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path)], env=child_environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["1", "0"], done.stderr
    assert [card_of(tmp_path / name)["status"] for name in ("fails", "ends")] == ["failed", "finished"]


def test_exits_are_left_as_they_were_when_no_run_is_open(tmp_path):
    before = sys.exit, type(exit).__call__
    with rlvitals.start(tmp_path):
        assert sys.exit is not before[0]
    assert (sys.exit, type(exit).__call__) == before


def test_the_global_run_is_finished_at_the_end_too(tmp_path, python):
    script = """
        import sys
        import rlvitals
        rlvitals.init(sys.argv[1])
        rlvitals.log({"loss": 1.0})
    """
    done = python(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert card_of(tmp_path)["status"] == "finished"


# Forks


FORKING = """
        import json, logging, os, signal, sys, time, warnings
        from pathlib import Path
        # Newer Pythons warn of any fork beside a thread; a data loader's workers are such forks all the same.
        warnings.simplefilter("ignore", DeprecationWarning)
        import rlvitals
        logging.basicConfig(level=logging.WARNING, format="%(message)s")
"""


def test_a_forked_worker_writes_nothing_and_says_so_once(tmp_path, python):
    script = """
        run = rlvitals.start(sys.argv[1])
        run.log({"loss": 1.0})
        pid = os.fork()
        if pid == 0:
            for _ in range(3):
                run.log({"loss": -1.0})
                run.log_eval({"accuracy": -1.0})
            run.finish("failed")
            sys.exit(0)  # the whole way out, with what is registered for the end
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        run.log({"loss": 2.0})
        assert run.status == "running"
        run.finish()
    """
    done = python(FORKING + script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["loss"] for row in rows_of(tmp_path)] == [1.0, 2.0]
    assert not (tmp_path / "logs/eval_metrics.jsonl").exists()
    assert card_of(tmp_path)["status"] == "finished"
    assert done.stderr.count("a row for ") == 1
    assert done.stderr.count("an evaluation for ") == 1
    assert "this is a forked process, and only the process that started the run records it" in done.stderr


@pytest.mark.slow
def test_a_fork_in_the_middle_of_logging_neither_hangs_nor_writes(tmp_path, python):
    """A fork copies the locks in their current state: a thread that the child does not have may hold one."""
    script = """
        import threading
        run = rlvitals.start(sys.argv[1])
        stop = threading.Event()
        def train():
            while not stop.is_set():
                run.log({"loss": 1.0})
        threads = [threading.Thread(target=train) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(30):
            pid = os.fork()
            if pid == 0:
                run.log({"loss": -1.0})
                run.finish("failed")
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
        run.finish()
    """
    done = python(FORKING + script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert {row["loss"] for row in rows_of(tmp_path)} == {1.0}
    assert card_of(tmp_path)["status"] == "finished"


CALLS = """
        import threading, traceback

        def through(iterator):
            for item in iterator:
                pass

        def entered(block):
            with block:
                pass

        CALLS = {
            "log": lambda run: run.log({"loss": -1.0}),
            "log_eval": lambda run: run.log_eval({"accuracy": -1.0}),
            "log_groups": lambda run: run.log_groups([{"prompt": "p", "rollouts": [{"text": "t", "reward": 1.0}]}]),
            "log_distribution": lambda run: run.log_distribution({"entropy": [1.0, 2.0]}),
            "log_image": lambda run: run.log_image("grid", [[0, 255], [255, 0]]),
            "flush": lambda run: run.flush(),
            "request": lambda run: run.request(everywhere=False),
            "take_findings": lambda run: run.take_findings(list(run.findings), []),
            "progress": lambda run: through(run.progress(range(3))),
            "phase": lambda run: entered(run.phase("generate")),
            "timer": lambda run: entered(run.timer("score")),
            "count": lambda run: run.count(tokens=5, samples=1),
            "place": lambda run: run.place(),
            "ends_by_steps": lambda run: run.ends_by_steps,
            "finish_by_steps": lambda run: run.finish_by_steps(),
            "finish": lambda run: run.finish("failed"),
            "_repr_html_": lambda run: run._repr_html_(),
            "with": lambda run: entered(run),
        }
        # How a run is told of the end of its process, and what `start` calls: not for a trainer to call.
        OWN = {"interrupt", "close_at_exit", "detach", "forward_to", "look_for_checkpoints_in"}
        TRACKER = {
            "log_epoch": lambda tracker: tracker.log_epoch(epoch=9, loss=-1.0),
            "get_best_metrics": lambda tracker: tracker.get_best_metrics(),
            "get_remaining_epochs": lambda tracker: tracker.get_remaining_epochs(),
            "export_summary": lambda tracker: tracker.export_summary(),
            "set_total_epochs": lambda tracker: tracker.set_total_epochs(5),
            "flush": lambda tracker: tracker.flush(),
            "close": lambda tracker: tracker.close(),
        }

        def calls_of(thing, methods):
            public = {name for name in dir(type(thing)) if not name.startswith("_")}
            properties = {name for name in public if isinstance(getattr(type(thing), name), property)}
            missing = public - properties - methods.keys() - OWN
            assert not missing, f"called in no forked child: {missing}"
            reads = {name: lambda thing, name=name: getattr(thing, name) for name in sorted(properties)}
            return {**reads, **methods}

        def in_child(call, thing):
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(10)  # a child that hangs is ended by it
                try:
                    call(thing)
                except BaseException:  # it ends here, whatever the test has below on its stack
                    traceback.print_exc(file=sys.__stderr__)
                    os._exit(1)
                os._exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


@pytest.mark.slow
def test_everything_a_run_offers_returns_in_a_forked_child_while_a_thread_holds_its_locks(tmp_path, python):
    script = """
        import io
        sys.stderr = io.StringIO()  # for the bars
        run = rlvitals.start(sys.argv[1], rules=["loss > 0.5 for 3: warning"], actions="act", display="none")
        run.count(tokens=1)
        entered(run.phase("warm"))
        tracker = rlvitals.MetricsTracker(sys.argv[1] + "/metrics", plots=False, display="none")
        tracker.log_epoch(epoch=1, loss=1.0)
        for step in range(10):
            run.log({"loss": 1.0}, step=step)
        run.log_eval({"accuracy": 1.0})
        assert run.findings
        holders = [run, run._writer, run._card, run._measurements, run._measurements._phases, tracker]
        locks = [getattr(thing, "lock", None) or thing._lock for thing in holders]
        held, done = threading.Event(), threading.Event()

        def hold():
            for lock in locks:
                lock.acquire()
            held.set()
            done.wait()
            for lock in locks:
                lock.release()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        bad = {}
        try:
            for thing, methods in ((run, CALLS), (tracker, TRACKER)):
                for name, call in calls_of(thing, methods).items():
                    if code := in_child(call, thing):
                        bad[name] = code
        finally:  # an assertion that fails is told, and does not wait for a thread that waits for it
            sys.stderr = sys.__stderr__
            done.set()
            thread.join()
        run.finish()
        tracker.close()
        print(json.dumps(bad))
    """
    done = python(FORKING + CALLS + script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}, done.stderr
    assert {row["loss"] for row in rows_of(tmp_path)} == {1.0}
    assert [row["accuracy"] for row in rows_of(tmp_path, "logs/eval_metrics.jsonl")] == [1.0]
    assert [row["type"] for row in rows_of(tmp_path, "logs/findings.jsonl")] == ["monitor", "raised", "request"]
    assert not (tmp_path / "logs/rollouts").exists()
    assert card_of(tmp_path)["status"] == "finished"


def test_a_forked_worker_dies_of_sigterm_without_marking_the_run(tmp_path, python):
    """Data loader workers are terminated with SIGTERM after each epoch."""
    script = """
        run = rlvitals.start(sys.argv[1])
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(write_end, b"x")
            time.sleep(60)
            os._exit(1)
        os.read(read_end, 1)
        os.kill(pid, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
        assert json.loads(Path(sys.argv[1], "run.json").read_text())["status"] == "running"
        run.finish()
    """
    done = python(FORKING + script, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_forked_worker_may_record_a_run_of_its_own(tmp_path, python):
    script = """
        run = rlvitals.start(sys.argv[1] + "/parent")
        pid = os.fork()
        if pid == 0:
            try:
                rlvitals.start(sys.argv[1] + "/parent", resume=True)
            except rlvitals.errors.RunLocked:
                own = rlvitals.start(sys.argv[1] + "/child")
                own.log({"loss": 5.0})
                sys.exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        run.finish()
    """
    done = python(FORKING + script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["loss"] for row in rows_of(tmp_path / "child")] == [5.0]
    assert card_of(tmp_path / "child")["status"] == "finished"
    assert card_of(tmp_path / "parent")["status"] == "finished"


# Threads


def test_rows_of_many_threads_are_all_whole_and_in_each_thread_s_order(tmp_path):
    threads, rows_each = 8, 400
    together = threading.Barrier(threads)

    with rlvitals.start(tmp_path) as run:

        def train(thread):
            together.wait()
            for number in range(rows_each):
                run.log({"thread": thread, "number": number, f"only/{thread}": 1.0, "text": "x" * (number % 300)})

        workers = [threading.Thread(target=train, args=(thread,)) for thread in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    rows = rows_of(tmp_path)
    assert [row["step"] for row in rows] == list(range(threads * rows_each))  # each row got its own step
    for thread in range(threads):
        own = [row for row in rows if row["thread"] == thread]
        assert [row["number"] for row in own] == list(range(rows_each))
        assert all(row[f"only/{thread}"] == 1.0 and row["text"] == "x" * (row["number"] % 300) for row in own)
    assert rlvitals.open_run(tmp_path).problems == []


def test_values_left_out_in_many_threads_are_all_counted(tmp_path, caplog):
    with rlvitals.start(tmp_path) as run:

        def train():
            for _ in range(200):
                run.log({"loss": 1.0, "odd": [1]})

        workers = [threading.Thread(target=train) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert card_of(tmp_path)["left_out"]["odd"]["count"] == 800
    assert sum("'odd' is dropped" in message for message in caplog.messages) == 1


def test_finish_while_threads_log_loses_no_row_that_was_taken(tmp_path, caplog):
    taken = []
    run = rlvitals.start(tmp_path)
    started = threading.Event()

    def train():
        number = 0
        while run.status == "running" and number < 100_000:
            run.log({"number": number})
            number += 1
            if number == 50:
                started.set()
        taken.append(number)

    worker = threading.Thread(target=train)
    worker.start()
    assert started.wait(timeout=30)
    run.finish()
    worker.join()
    numbers = [row["number"] for row in rows_of(tmp_path)]
    assert numbers == list(range(len(numbers)))
    assert 50 <= len(numbers) <= taken[0]
    if len(numbers) < taken[0]:
        warning = "a row for .* cannot be recorded: the run is finished"
        assert any(re.search(warning, message) for message in caplog.messages)
