"""Phases and timers: exact seconds from an injected clock, the document's keys, nesting, peaks, exceptions, threads."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import re
import subprocess
import sys
import threading
import time

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlvitals
from conftest import REPO
from rlvitals.capture.memory import DeviceMemory, process_memory
from rlvitals.capture.phases import Phases
from rlvitals.health.monitor import Monitor
from rlvitals.records import OpenPhase

GIB = 2**30


class Clock:
    """A clock that advances only by `pass_`."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def pass_(self, seconds):
        self.now += seconds


class Reached:
    """A position in the stream of a device; the test decides when the device reaches it."""

    def __init__(self, device, at):
        self.device, self.at, self.stream = device, at, "stream"

    def query(self):
        return self.device.has_reached >= self.at

    def elapsed_time(self, end):
        assert end.query(), "reading a mark that is not reached would wait for the device"
        return (end.at - self.at) * 1000.0


class Card:
    """An accelerator with 80 GiB and an allocator that counts like torch's: current, and peak since the last reset."""

    def __init__(self, *numbers):
        self.numbers = numbers or (0,)
        self.allocated = dict.fromkeys(self.numbers, 0)
        self.peak = dict.fromkeys(self.numbers, 0)
        self.queued = self.has_reached = 0.0

    def hold(self, gib, device=0):
        self.allocated[device] = int(gib * GIB)
        self.peak[device] = max(self.peak[device], self.allocated[device])

    def used(self):
        return list(self.numbers)

    def memory(self, device):
        allocated, peak = self.allocated[device], self.peak[device]
        return DeviceMemory(allocated, allocated + GIB, peak, peak + GIB)

    def reset_peaks(self, device):
        self.peak[device] = self.allocated[device]

    def total(self, device):
        return 80 * GIB

    def mark(self, like=None):
        return Reached(self, self.queued)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def phases(clock):
    return Phases(clock=clock, devices=lambda: None)


def times(row, phase):
    return tuple(row[f"time/{phase}/{part}"] for part in ("total", "execute", "onload", "offload"))


def test_each_part_of_a_phase_has_its_own_seconds(phases, clock):
    with phases.phase("train_step", onload=lambda: clock.pass_(2), offload=lambda: clock.pass_(3)):
        clock.pass_(10)
    assert times(phases.take(), "train_step") == (15.0, 10.0, 2.0, 3.0)


def test_a_phase_without_loading_has_the_same_keys(phases, clock):
    with phases.phase("generate"):
        clock.pass_(4)
    assert times(phases.take(), "generate") == (4.0, 4.0, 0.0, 0.0)


def test_what_was_taken_is_not_taken_again(phases):
    with phases.phase("generate"):
        pass
    assert phases.take()
    assert phases.take() == {}


def test_several_runs_of_a_phase_before_one_row_add_up(phases, clock):
    for seconds in (1, 2, 4):
        with phases.phase("train_step"):
            clock.pass_(seconds)
    assert phases.take()["time/train_step/total"] == 7.0


def test_a_phase_inside_another_counts_in_both(phases, clock):
    with phases.phase("train_step") as outer:
        clock.pass_(1)
        with phases.phase("compute_log_probs") as inner:
            clock.pass_(2)
        clock.pass_(4)
    row = phases.take()
    assert times(row, "compute_log_probs")[0] == 2.0
    assert times(row, "train_step")[0] == 7.0
    assert inner.parent is outer
    assert outer.parent is None


def test_a_phase_that_is_still_open_is_in_the_next_row(phases, clock):
    with phases.phase("train_step"):
        clock.pass_(1)
        assert phases.take() == {}
    assert phases.take()["time/train_step/total"] == 1.0


def test_an_exception_goes_through_and_closes_the_phase(phases, clock):
    unloaded = []
    failing = phases.phase("generate", offload=lambda: unloaded.append(True))

    def run_out():
        clock.pass_(1)
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"), failing:
        run_out()
    assert unloaded == [True]
    assert failing.error == "RuntimeError"
    assert phases.take()["time/generate/execute"] == 1.0
    with phases.phase("after") as after:
        pass
    assert after.parent is None


@pytest.mark.parametrize("which", ["onload", "offload"])
def test_a_failing_onload_or_offload_goes_through_and_closes_the_phase(phases, which):
    def fail():
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"), phases.phase("train_step", **{which: fail}):
        pass
    with phases.phase("after") as after:
        pass
    assert after.parent is None
    assert "time/train_step/total" in phases.take()


def test_threads_nest_on_their_own(phases):
    inner, both_open = [], threading.Barrier(2, timeout=10)

    def work():
        with phases.phase("rollout") as phase:
            both_open.wait()
            inner.append(phase.parent)
            both_open.wait()

    thread = threading.Thread(target=work)
    with phases.phase("train_step"):
        thread.start()
        both_open.wait()
        with phases.phase("compute_values") as own:
            pass
        both_open.wait()
        thread.join()
    assert inner == [None]
    assert own.parent.name == "train_step"
    assert {"time/rollout/total", "time/train_step/total"} <= phases.take().keys()


def test_tasks_of_one_thread_nest_on_their_own(phases):
    parents = {}

    async def work(name):
        with phases.phase(name):
            await asyncio.sleep(0)
            with phases.phase(f"{name}_inner") as inner:
                await asyncio.sleep(0)
            parents[name] = inner.parent.name

    async def both():
        await asyncio.gather(work("one"), work("two"))

    asyncio.run(both())
    assert parents == {"one": "one", "two": "two"}


def test_many_threads_lose_no_second(clock):
    phases = Phases(clock=time.perf_counter, devices=lambda: None)
    durations = []

    def work():
        for _ in range(200):
            with phases.phase("rollout", memory=False) as phase:
                pass
            durations.append(phase.seconds["total"])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert phases.take()["time/rollout/total"] == pytest.approx(sum(durations))


def test_a_timer_is_the_bare_name_and_adds_up(phases, clock):
    for _ in range(2):
        with phases.timer("ref_log_probs_values_reward") as timer:
            clock.pass_(1.5)
    assert timer.seconds == 1.5
    assert phases.take() == {"time/ref_log_probs_values_reward": 3.0}


def test_the_process_memory_is_what_psutil_says():
    info, own = psutil.Process().memory_info(), process_memory()
    assert own.rss == pytest.approx(info.rss, rel=0.05)
    assert own.vms == pytest.approx(info.vms, rel=0.05)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_process_sees_its_own_memory_and_not_its_parents():
    process_memory()  # the parent has read its memory
    reader, writer = os.pipe()
    if os.fork() == 0:
        held = mmap.mmap(-1, 64 * 2**20)
        held.write(b"x" * (64 * 2**20))
        os.write(writer, f"{process_memory().rss} {psutil.Process().memory_info().rss}".encode())
        os._exit(0)
    os.wait()
    ours, theirs = map(int, os.read(reader, 100).split())
    assert ours == pytest.approx(theirs, rel=0.05)


def test_a_phase_sees_the_memory_its_process_takes():
    phases = Phases()
    with phases.phase("do_checkpoint"):
        held = mmap.mmap(-1, 2**26)  # 64 MiB of new memory, all of it written
        for _ in range(0, len(held), mmap.PAGESIZE):  # page by page: an allocator might keep a second copy
            held.write(b"x" * mmap.PAGESIZE)
    row = phases.take()
    grown = row["memory/cpu/do_checkpoint/end/rss"] - row["memory/cpu/do_checkpoint/start/rss"]
    assert grown == pytest.approx(len(held) / GIB, rel=0.2)
    assert row["memory/cpu/do_checkpoint/end/vms"] >= row["memory/cpu/do_checkpoint/end/rss"]


def test_without_a_device_there_are_no_device_keys(phases):
    with phases.phase("train_step"):
        pass
    assert not [key for key in phases.take() if key.startswith("memory/train_step")]


def test_memory_can_be_left_out(phases):
    with phases.phase("train_step", memory=False):
        pass
    assert not [key for key in phases.take() if key.startswith("memory")]


def test_memory_is_looked_at_before_and_after_loading_and_unloading(clock):
    card = Card()
    phases = Phases(clock=clock, devices=lambda: card)
    card.hold(1)
    with phases.phase("train_step", onload=lambda: card.hold(20), offload=lambda: card.hold(2)):
        card.hold(60)
        card.hold(30)
    row = phases.take()

    def at(point, counter):
        return row[f"memory/train_step/{point}/{counter}/0"]

    assert [at("start/offload", key) for key in ("allocated", "reserved", "max_allocated")] == [1.0, 2.0, 1.0]
    assert [at("start/onload", key) for key in ("allocated", "max_allocated", "max_reserved")] == [20.0, 20.0, 21.0]
    assert [at("end/onload", key) for key in ("allocated", "reserved", "max_allocated")] == [30.0, 31.0, 60.0]
    assert [at("end/offload", key) for key in ("allocated", "max_allocated", "max_reserved")] == [2.0, 60.0, 61.0]
    assert at("end/onload", "max_allocated_frac") == 60 / 80
    assert at("end/onload", "max_reserved_frac") == 61 / 80


def test_a_peak_before_a_phase_is_not_its_own(clock):
    card = Card()
    phases = Phases(clock=clock, devices=lambda: card)
    card.hold(70)
    card.hold(5)
    with phases.phase("generate"):
        card.hold(9)
    assert phases.take()["memory/generate/end/onload/max_allocated/0"] == 9.0


def test_a_phase_keeps_its_peak_through_the_phases_inside_it(clock):
    card = Card()
    phases = Phases(clock=clock, devices=lambda: card)
    with phases.phase("train_step"):
        card.hold(50)
        card.hold(10)
        with phases.phase("compute_values"):
            card.hold(20)
            card.hold(10)
        card.hold(15)
    row = phases.take()
    assert row["memory/compute_values/end/onload/max_allocated/0"] == 20.0
    assert row["memory/train_step/end/onload/max_allocated/0"] == 50.0


def test_a_peak_inside_an_inner_phase_is_the_outer_phases_too(clock):
    card = Card()
    phases = Phases(clock=clock, devices=lambda: card)
    with phases.phase("train_step"):
        with phases.phase("one"):
            card.hold(40)
            card.hold(10)
        with phases.phase("two"):
            pass
    row = phases.take()
    assert row["memory/two/end/onload/max_allocated/0"] == 10.0
    assert row["memory/train_step/end/onload/max_allocated/0"] == 40.0


@given(st.lists(st.one_of(st.integers(0, 70), st.sampled_from(["enter", "leave"])), max_size=60))
def test_every_phases_peak_is_the_highest_since_it_began_however_they_nest(program):
    card = Card()
    phases = Phases(clock=Clock(), devices=lambda: card)
    held, open_phases, wanted = 0, [], {}
    for number, order in enumerate(program):
        if order == "enter":
            phase = phases.phase(f"p{number}")
            phase.__enter__()
            open_phases.append(phase)
            wanted[phase.name] = held
        elif order == "leave":
            if open_phases:
                open_phases.pop().__exit__(None, None, None)
        else:
            held = order
            card.hold(held)
            for phase in open_phases:
                wanted[phase.name] = max(wanted[phase.name], held)
    for phase in reversed(open_phases):
        phase.__exit__(None, None, None)
    row = phases.take()
    assert {name: row[f"memory/{name}/end/offload/max_allocated/0"] for name in wanted} == wanted


def test_of_several_runs_before_one_row_the_first_start_the_last_end_and_the_highest_peak_are_kept(clock):
    card = Card()
    phases = Phases(clock=clock, devices=lambda: card)
    for start, peak, end in ((1, 50, 2), (2, 30, 3)):
        card.hold(start)
        with phases.phase("train_step"):
            card.hold(peak)
            card.hold(end)
    row = phases.take()
    assert row["memory/train_step/start/onload/allocated/0"] == 1.0
    assert row["memory/train_step/end/onload/allocated/0"] == 3.0
    assert row["memory/train_step/end/onload/max_allocated/0"] == 50.0
    assert row["memory/train_step/end/onload/max_allocated_frac/0"] == 50 / 80


def test_the_keys_are_those_of_the_document(shared, clock):
    card = Card(0, 1)
    phases = Phases(clock=clock, devices=lambda: card)
    text = (shared / "reference" / "roll-trackers-and-metrics.md").read_text()
    section = text[text.index("### Execution Phases") :].replace("**", "")
    named = set(re.findall(r"- ((?:time|memory)/\S*\{metric_infix\}\S*):", section))
    assert len(named) == 4 + 18 + 4
    documented = re.findall(r"^- (\w+): [A-Z]", section[: section.index("#### Time")], re.MULTILINE)
    assert len(documented) == 7
    for name in documented:
        with phases.phase(name, onload=lambda: None, offload=lambda: None):
            pass
        expected = {
            key.replace("{metric_infix}", name).replace("{device_id}", str(device))
            for key in named
            for device in (0, 1)
        }
        card.has_reached = -1.0  # no mark is reached: the device's own time is not in the document
        assert phases.take().keys() == expected


def test_device_time_comes_with_the_row_after_the_device_has_got_there(clock):
    card = Card()
    phases = Phases(clock=clock, devices=lambda: card)
    card.has_reached = -1.0
    with phases.phase("train_step") as phase:
        phase.tokens(600)
        clock.pass_(0.5)  # the host only queues the work
        card.queued += 3.0
    row = phases.take()
    assert row["time/train_step/execute"] == 0.5
    assert "time/train_step/device" not in row
    assert "perf/train_step/tokens_per_s" not in row
    card.has_reached = 3.0
    assert phases.take() == {
        "time/train_step/device": 3.0,
        "perf/train_step/tokens_per_s": 200.0,
        "perf/train_step/tokens_per_s/mean": 200.0,
        "perf/train_step/tokens_per_s/p1": 200.0,
        "perf/train_step/tokens_per_s/p99": 200.0,
    }


def test_a_device_error_is_reported_once_and_never_raised(clock):
    class Broken(Card):
        def memory(self, device):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    warnings = []
    phases = Phases(clock=clock, devices=Broken, warn=warnings.append)
    for _ in range(2):
        with phases.phase("train_step"):
            clock.pass_(1)
    assert phases.take()["time/train_step/total"] == 2.0
    assert len(warnings) == 1
    assert "illegal memory access" in warnings[0]


def stalled(monitor, phases):
    """The findings of the rulebook's rule about the open phases."""
    found = monitor.tick(0.0, open_phases=phases.open())
    assert {finding.rule for finding in found} <= {"phase_stall"}
    return [(finding.evidence["phase"], finding.evidence["silence"]) for finding in found]


def test_a_phase_that_has_always_ended_and_now_does_not_is_reported_once(phases, clock):
    monitor, usual = Monitor(), 240.0
    for _ in range(3):
        with phases.phase("generate"):
            clock.pass_(usual)
    with phases.phase("generate"):
        clock.pass_(30 * usual - 1)
        assert stalled(monitor, phases) == []
        clock.pass_(2)
        assert phases.open() == [("generate", 30 * usual + 1, usual)]
        assert stalled(monitor, phases) == [("generate", 30 * usual + 1)]
        assert stalled(monitor, phases) == []
    assert phases.open() == []
    assert stalled(monitor, phases) == []


def test_of_phases_inside_each_other_the_innermost_is_reported(phases, clock):
    with phases.phase("train_step"), phases.phase("compute_log_probs"):
        clock.pass_(1801)
        assert stalled(Monitor(), phases) == [("compute_log_probs", 1801)]


def test_of_phases_side_by_side_the_one_that_is_silent_longest_is_reported():
    stuck = [OpenPhase("generate", 2000.0, 3.0), OpenPhase("reward", 9000.0), OpenPhase("adv", 100.0, 1.0)]
    (finding,) = Monitor().tick(0.0, open_phases=stuck)
    assert finding.title == "the phase reward does not end: no progress for 9000 s, and it has not ended before"
    (finding,) = Monitor().tick(0.0, open_phases=stuck[:1])
    assert finding.title == "the phase generate does not end: no progress for 2000 s; it usually takes 3 s"


def test_a_short_phase_is_given_half_an_hour(phases, clock):
    monitor = Monitor()
    with phases.phase("adv"):
        clock.pass_(0.001)
    with phases.phase("adv"):
        clock.pass_(1799)
        assert stalled(monitor, phases) == []
        clock.pass_(2)
        assert stalled(monitor, phases) == [("adv", 1801)]


def test_a_phase_in_which_something_happens_is_not_stalled(phases, clock):
    monitor = Monitor()
    with phases.phase("epoch"):
        for _ in range(5):
            clock.pass_(1799)
            with phases.phase("train_step"):
                clock.pass_(5)
            assert stalled(monitor, phases) == []
        clock.pass_(1799)
        phases.take()  # a row
        clock.pass_(1799)
        assert stalled(monitor, phases) == []


def test_the_numbers_and_the_words_of_a_stalled_phase_are_the_users_to_change():
    entry = {"rule": "phase_stall", "numbers": {"times": 2, "seconds": 5}, "title": "{phase} hangs ({silence:.1f} s)"}
    monitor = Monitor(rules=[entry])
    assert monitor.tick(0.0, open_phases=[OpenPhase("generate", 7.9, 4.0)]) == []
    (finding,) = monitor.tick(0.0, open_phases=[OpenPhase("generate", 8.1, 4.0)])
    assert (finding.title, finding.kind, finding.severity) == ("generate hangs (8.1 s)", "stall", "warning")
    off = Monitor(rules=[{"rule": "phase_stall", "enabled": False}])
    assert off.tick(0.0, open_phases=[OpenPhase("generate", 1e6)]) == []


# With a run


def rows_of(run, name="training_metrics"):
    with open(f"{run.dir}/logs/{name}.jsonl") as file:
        return [json.loads(line) for line in file]


def test_a_phase_is_in_the_row_of_the_next_log(tmp_path):
    with rlvitals.start(tmp_path / "run") as run:
        with run.phase("train_step"), run.timer("rollout"):
            time.sleep(0.02)
        run.log({"loss": 0.5}, step=1)
        run.log({"loss": 0.4}, step=2)
    first, second = rows_of(run)
    assert first["loss"] == 0.5
    assert first["time/train_step/total"] >= first["time/train_step/execute"] >= first["time/rollout"] >= 0.02
    assert second.keys() == {"step", "timestamp", "attempt", "loss"}


def test_the_callers_own_values_win(tmp_path):
    with rlvitals.start(tmp_path / "run") as run:
        for metrics in ({"time/rollout": 9.0}, {"time": {"rollout": 8.0}}):
            with run.timer("rollout"):
                pass
            run.log(metrics)
    assert [row["time/rollout"] for row in rows_of(run)] == [9.0, 8.0]


def test_ended_phases_are_on_record_with_their_parents(tmp_path):
    with rlvitals.start(tmp_path / "run") as run:
        run.log({"loss": 0.5}, step=7)
        before = time.time()
        with pytest.raises(KeyError), run.phase("train_step"), run.phase("generate"):
            raise KeyError("gone")
        after = time.time()
    generate, train = rlvitals.open_run(run.dir).phases()
    assert (generate.phase, generate.parent, generate.step, generate.error) == ("generate", "train_step", 7, "KeyError")
    assert (train.phase, train.parent) == ("train_step", "")
    assert before - 0.001 <= train.start <= generate.start <= generate.end <= train.end <= after + 0.001


@pytest.mark.parametrize("name", ["\ud800", "", 3, None])
def test_an_odd_name_is_no_reason_to_raise(tmp_path, name):
    with rlvitals.start(tmp_path / "run") as run:
        with run.phase(name), run.timer(name):
            pass
        run.log({"loss": 0.5})
    (row,) = rows_of(run)
    assert row["loss"] == 0.5
    assert len(row) >= 3 + 1 + 5


def test_another_ranks_phases_have_a_file_of_their_own(tmp_path):
    with rlvitals.start(tmp_path / "run") as run, rlvitals.start(tmp_path / "run", rank=3) as other:
        run.log({"loss": 0.5}, step=1)
        with other.phase("generate"):
            pass
        other.log({"loss": 0.6}, step=1)
    view = rlvitals.open_run(run.dir)
    assert view.phases() == []
    assert [span.phase for span in view.phases(rank=3)] == ["generate"]
    assert view.ranks == [0, 3]


def test_the_framework_is_still_recognised_beside_measurements():
    own = ["loss", "reward", "kl", "completions/mean_length", "frac_reward_zero_std", "entropy"]
    measured = [f"time/{phase}/{part}" for phase in ("generate", "train_step") for part in ("total", "execute")]
    measured += [f"memory/cpu/{phase}/end/rss" for phase in ("generate", "train_step", "adv", "model_update")]
    assert rlvitals.catalog.recognise(own + measured) == rlvitals.catalog.recognise(own)


def stall_in(run, name="generate"):
    """Run two heartbeats of the background thread inside a phase that has been open for more than half an hour."""
    with run.phase(name):
        run._measurements._phases.clock = lambda: time.perf_counter() + 1860
        run._beat()
        run._beat()


def test_a_phase_that_does_not_end_is_a_finding(tmp_path):
    with rlvitals.start(tmp_path / "run", display="none") as run:
        run.log({"loss": 0.5}, step=3)
        stall_in(run)
        (finding,) = run.findings
    assert (finding.rule, finding.kind, finding.severity, finding.step) == ("phase_stall", "stall", "warning", 3)
    assert finding.title == "the phase generate does not end: no progress for 1860 s, and it has not ended before"
    assert [recorded.rule for recorded in rlvitals.open_run(run.dir).findings] == ["phase_stall"]


def test_a_phase_that_hangs_before_the_first_row_is_a_finding_and_rows_are_judged_after(tmp_path):
    with rlvitals.start(tmp_path / "run", display="none") as run:
        stall_in(run)
        assert [finding.rule for finding in run.findings] == ["phase_stall"]
        for step in range(12):
            run.log({"loss": 0.5 + 0.01 * (step % 3), "grad_norm": 0.0, "reward": 0.1 * (step % 3)}, step=step)
        assert "dead_gradient" in [finding.rule for finding in run.findings]


def test_a_stalled_phase_is_switched_off_like_any_rule(tmp_path):
    with rlvitals.start(tmp_path / "run", display="none", rules=[{"rule": "phase_stall", "enabled": False}]) as run:
        run.log({"loss": 0.5}, step=3)
        stall_in(run)
        assert run.findings == []


def test_a_stalled_phase_is_recorded_though_a_clock_outside_looks_for_silence(tmp_path):
    with rlvitals.start(tmp_path / "run", display="none", actions="act") as run:
        run.log({"loss": 0.5}, step=3)
        stall_in(run)
    assert [recorded.rule for recorded in rlvitals.open_run(run.dir).findings] == ["phase_stall"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_fork_in_a_phase_leaves_the_parent_as_it_was(tmp_path):
    with rlvitals.start(tmp_path / "run") as run:
        with run.phase("train_step"):
            child = os.fork()
            if child == 0:
                with run.phase("in_the_child"):
                    pass
                run.log({"loss": 0.0})
                os._exit(0)
            _, status = os.waitpid(child, 0)
        run.log({"loss": 0.5})
    assert status == 0
    (row,) = rows_of(run)
    assert "time/train_step/total" in row
    assert [span["phase"] for span in rows_of(run, "phases")] == ["train_step"]


def test_a_run_that_is_finished_still_lets_phases_through(tmp_path):
    run = rlvitals.start(tmp_path / "run")
    run.finish()
    loaded = []
    with run.phase("train_step", onload=lambda: loaded.append(True)) as phase:
        phase.tokens(3)
    run.count(tokens=3)
    assert loaded == [True]


def test_torch_is_not_imported_for_phases(tmp_path):
    code = (
        f"import rlvitals, sys\nrun = rlvitals.start({str(tmp_path / 'run')!r})\n"
        "with run.phase('train_step'): pass\nrun.log({'loss': 1.0})\nrun.finish()\nprint('torch' in sys.modules)"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPO)
    assert child.stdout.strip() == "False"


@pytest.mark.slow
def test_torch_without_cuda_gives_no_device_keys(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with rlvitals.start(tmp_path / "run") as run:
        with run.phase("train_step"):
            torch.ones(3).sum()
        run.log({"loss": 0.5})
    (row,) = rows_of(run)
    assert not [key for key in row if key.startswith("memory/train_step") or key.endswith("/device")]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_real_gpu_is_measured_without_waiting_for_it():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU that torch can use; this machine has none")
    torch.cuda.init()
    phases = Phases()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # waiting for the device raises
    try:
        with phases.phase("train_step") as phase:
            phase.tokens(1000)
            held = torch.ones(2**28, dtype=torch.float32, device="cuda")  # 1 GiB
            for _ in range(200):
                held.mul_(1.0)
        early = phases.take()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert early["memory/train_step/end/onload/max_allocated/0"] >= 1.0
    assert 0 < early["memory/train_step/end/onload/max_allocated_frac/0"] < 1
    torch.cuda.synchronize()
    late = early | phases.take()
    assert late["time/train_step/device"] > late["time/train_step/execute"]
