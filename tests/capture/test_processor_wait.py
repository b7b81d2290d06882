"""The share of time that a training thread waits for a processor, counted by the kernel under real contention."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import rlvitals
from rlvitals.capture.processor_wait import SCHEDSTAT, ProcessorWait

needs_the_counter = pytest.mark.skipif(not os.path.exists(SCHEDSTAT), reason="needs Linux's count of waiting threads")

CONTENTION = """
    import json, os, subprocess, sys, time
    from rlvitals.capture.processor_wait import ProcessorWait

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]  # on the same processor
    try:
        wait = ProcessorWait(window=1)
        wait.begin(time.perf_counter())
        until = time.process_time() + 0.15
        while time.process_time() < until:
            pass
        working = wait.take(time.perf_counter())
        time.sleep(1.0)
        sleeping = wait.take(time.perf_counter())
    finally:
        for other in others:
            other.kill()
    print(json.dumps([working, sleeping]))
"""


@needs_the_counter
def test_a_thread_that_shares_its_processor_with_three_others_waits_and_one_that_sleeps_does_not(child_environment):
    command = [sys.executable, "-c", textwrap.dedent(CONTENTION)]
    printed = subprocess.run(command, env=child_environment, check=True, capture_output=True).stdout
    working, sleeping = json.loads(printed)
    assert 0.5 < working < 1.0  # 0.75 if the processor does nothing else
    assert sleeping < 0.5  # it waits once, after waking up


def counted(tmp_path, waited):
    """Write a file in the kernel's format, in nanoseconds."""
    path = tmp_path / "schedstat"
    path.write_text(f"999 {waited} 7\n")
    return str(path)


def test_the_share_is_the_windows_waiting_over_its_seconds(tmp_path):
    wait = ProcessorWait(window=2, path=counted(tmp_path, 5_000_000_000))
    wait.begin(10.0)
    shares = []
    for now, waited in ((12.0, 6.0), (16.0, 6.0), (17.0, 7.0), (18.0, 99.0)):
        counted(tmp_path, int(waited * 1e9))
        shares.append(wait.take(now))
    assert shares == [0.5, pytest.approx(1 / 6), pytest.approx(1 / 5), 1.0]  # of 2, 6, 5 and 2 seconds


@pytest.mark.parametrize("text", [None, "", "5", "a b c"])
def test_without_the_kernels_counter_the_share_is_missing(tmp_path, text):
    path = tmp_path / "schedstat"
    if text is not None:
        path.write_text(text)
    wait = ProcessorWait(window=5, path=str(path))
    wait.begin(0.0)
    assert [wait.take(1.0), wait.take(2.0)] == [None, None]


def test_a_counter_that_goes_away_is_missing_from_then_on(tmp_path):
    path = counted(tmp_path, 0)
    wait = ProcessorWait(window=5, path=path)
    wait.begin(0.0)
    assert wait.take(1.0) == 0.0
    with open(path, "w"):
        pass
    assert [wait.take(2.0), wait.take(3.0)] == [None, None]


@needs_the_counter
def test_another_thread_and_a_forked_process_begin_their_own_count():
    wait = ProcessorWait(window=5)
    wait.begin(time.perf_counter())
    found = []
    thread = threading.Thread(target=lambda: found.extend([wait.take(time.perf_counter()), wait.take(1e12)]))
    thread.start()
    thread.join()
    assert found[0] is None
    assert found[1] is not None
    assert wait.take(time.perf_counter()) is None  # back in this thread
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, json.dumps([wait.take(time.perf_counter()), wait.take(1e12)]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    first, second = json.loads(os.read(read, 100))
    os.close(read)
    os.close(write)
    assert first is None
    assert second is not None
    wait.close()


@needs_the_counter
def test_rows_with_measurements_have_the_share_and_others_do_not(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False) as run:
        run.log({"loss": 1.0}, step=0)
        run.count(tokens=10)
        run.log({"loss": 1.0}, step=1)
        run.log({"reward": 1.0}, step=1)  # nothing was measured since the row before
        run.count(tokens=10)
        run.log({"loss": 1.0, "system/cpu_wait": 0.25}, step=2)
    rows = [json.loads(line) for line in (tmp_path / "run/logs/training_metrics.jsonl").read_text().splitlines()]
    assert ["system/cpu_wait" in row for row in rows] == [False, True, False, True]
    assert 0.0 <= rows[1]["system/cpu_wait"] <= 1.0
    assert rows[3]["system/cpu_wait"] == 0.25  # the caller's own value
    assert rlvitals.open_run(tmp_path / "run").concept("system/cpu_wait") == "sys.cpu_wait"


@needs_the_counter
def test_an_ended_run_keeps_no_file_of_the_kernel_open(tmp_path):
    def opened():
        found = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
        return sum("schedstat" in os.readlink(file) for file in found if os.path.islink(file))

    before = opened()
    run = rlvitals.start(tmp_path / "run", monitor=False)
    run.count(tokens=1)
    assert opened() == before + 1
    run.finish()
    assert opened() == before
