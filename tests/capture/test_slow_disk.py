"""A run directory on a disk that is slow, fails now and then, or hangs: no row is lost, and training hardly waits.

The disk is real. A preloaded library (slow_disk.c) delays, fails and shortens the writes of the process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from conftest import until
from rlvitals.store import writer

COMPILER = shutil.which("gcc") or shutil.which("cc")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD and /proc are Linux'"),
    pytest.mark.skipif(COMPILER is None, reason="no C compiler"),
]

FEW = 3
"""One row waits for the disk; one or two more may wait because the machine is busy."""

TRAINER = """
import json, sys, time
import rlvitals
from rlvitals.store import writer

rows, pause = int(sys.argv[2]), float(sys.argv[3])
for name, value in json.loads(sys.argv[4]).items():
    setattr(writer, name, value)
run = rlvitals.start(sys.argv[1], monitor=False, display="none", hardware=False, fsync="never")
waits = []
print("ready", flush=True)
sys.stdin.readline()
for step in range(rows):
    began = time.monotonic()
    run.log({"loss": step / 8, "text": "x" * (step % 300)}, step=step)
    waits.append(time.monotonic() - began)
    time.sleep(pause)
print(json.dumps(waits), flush=True)
sys.stdin.readline()
began = time.monotonic()
run.finish()
print(json.dumps(time.monotonic() - began), flush=True)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    place = tmp_path_factory.mktemp("slow_disk") / "slow_disk.so"
    source = Path(__file__).with_name("slow_disk.c")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", place, source, "-ldl"], check=True)
    return place


class Training:
    """A trainer on the slow disk, which the test runs stage by stage."""

    def __init__(self, library, folder, environment, rows, pause=0.0, **constants):
        self.folder = folder
        self._control = folder.parent / "control"
        self.disk(0, 0)
        environment = environment | {
            "LD_PRELOAD": str(library),
            "SLOW_DISK_FOLDER": str(folder / "logs"),
            "SLOW_DISK_CONTROL": str(self._control),
            "TMPDIR": str(folder.parent),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(TRAINER), folder, str(rows), str(pause), json.dumps(constants)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout.readline() == "ready\n"

    def disk(self, delay_ms, every=1, fail_every=0, short_every=0):
        draft = self._control.with_suffix(".draft")
        draft.write_text(f"{delay_ms} {every} {fail_every} {short_every}\n")
        draft.replace(self._control)

    def go_on(self):
        """Run the next stage and return the numbers it prints."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        """Wait for the trainer to exit without an error; returns its standard error."""
        _, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        return errors

    @property
    def steps(self):
        data = (self.folder / "logs" / "training_metrics.jsonl").read_bytes()
        assert data.endswith(b"\n")
        return [json.loads(line)["step"] for line in data.splitlines()]


@pytest.fixture
def train(library, tmp_path, child_environment):
    trainings = []

    def begin(rows, pause=0.0, **constants):
        trainings.append(Training(library, tmp_path / "run", child_environment, rows, pause, **constants))
        return trainings[-1]

    yield begin
    for one in trainings:
        one.process.kill()
        one.process.communicate()


def test_a_disk_that_is_slow_for_every_write_is_waited_for_once(train):
    """Without the thread, the 300 rows would wait 6 minutes."""
    training = train(300)
    training.disk(1200)
    waits = training.go_on()
    assert 1 <= slow(waits) <= FEW
    assert sum(waits) < 20
    training.disk(0)
    training.go_on()
    assert "a write took" in training.end()
    assert training.steps == [*range(300)]


def test_a_disk_that_is_slow_now_and_then_is_waited_for_once_in_calm_seconds(train):
    training = train(400, 0.005)
    training.disk(1200, every=20)
    waits = training.go_on()
    assert 1 <= slow(waits) <= FEW
    assert training.go_on() < 60
    training.end()
    assert training.steps == [*range(400)]


def test_a_disk_that_fails_cuts_and_is_slow_loses_no_row_and_tears_no_line(train):
    training = train(500, 0.02, RETRY_SECONDS=0.05)
    training.disk(1200, fail_every=3, short_every=2)  # rows arrive during a write that then fails
    waits = training.go_on()
    assert 1 <= slow(waits) <= FEW
    training.disk(0)
    training.go_on()
    training.end()
    assert training.steps == [*range(500)]


def test_a_quick_disk_again_is_written_to_without_the_thread(train):
    """After a calm period, the operating system has accepted every row when `log` returns, as usual."""
    training = train(250, 0.02, CALM_SECONDS=0.5)
    training.disk(1200, every=1)
    quick_again = threading.Timer(2.0, training.disk, (0,))
    quick_again.start()
    waits = training.go_on()
    assert 1 <= slow(waits) <= FEW
    assert training.steps == [*range(250)]  # before finish
    training.process.kill()
    _, errors = training.process.communicate()
    assert "the disk responds again" in errors


def test_a_disk_that_hangs_at_the_end_is_given_up_and_the_rows_are_rescued(train, tmp_path):
    training = train(100, 0.0, CATCH_UP_SECONDS=1.0)
    training.disk(1200)
    began = threading.Timer(0.6, training.disk, (10**8,))  # the write after the first slow one never returns
    began.start()
    waits = training.go_on()
    assert 1 <= slow(waits) <= FEW
    assert until(lambda: is_hanging(training), 10)
    assert training.go_on() < 30
    errors = training.end()
    [rescue] = re.findall(r"they are in (\S+)\.", errors)
    rescued = [json.loads(line)["step"] for line in Path(rescue).read_bytes().splitlines()]
    there = training.steps
    assert there == [*range(len(there))]
    assert sorted({*there, *rescued}) == [*range(100)]


def slow(waits):
    """The number of rows that waited for a slow write."""
    return sum(wait >= writer.SLOW_SECONDS for wait in waits)


def is_hanging(training):
    """Whether the thread's write does not return: the log no longer grows."""
    before = os.path.getsize(training.folder / "logs" / "training_metrics.jsonl")
    time.sleep(1.0)
    return os.path.getsize(training.folder / "logs" / "training_metrics.jsonl") == before
