"""Rows with numbers that a device has not delivered yet: order, steps, and every way a run can end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import numpy as np
import pytest
import torch

import rlvitals
from rlvitals.values import mean


class Delayed:
    """Numbers that another thread delivers later."""

    def __init__(self, numbers, seconds=0.05):
        self._numbers = numbers
        self._here = threading.Event()
        threading.Thread(target=self._deliver, args=(seconds,), daemon=True).start()

    def _deliver(self, seconds):
        if seconds is not None:
            time.sleep(seconds)
            self.deliver()

    def deliver(self):
        self.delivered_at = time.perf_counter()
        self._here.set()

    def ready(self):
        return self._here.is_set()

    def values(self):
        self._here.wait()
        if isinstance(self._numbers, Exception):
            raise self._numbers
        return self._numbers


@pytest.fixture
def run(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False, display="none") as run:
        yield run


def rows(run_or_dir):
    path = os.path.join(getattr(run_or_dir, "dir", run_or_dir), "logs", "training_metrics.jsonl")
    with open(path) as lines:
        return [json.loads(line) for line in lines]


def test_step_statistics_are_logged_as_they_are(run):
    from rlvitals.compute.step import StepStatistics

    arrival = StepStatistics()(logprobs=torch.full((2, 3), -0.5))
    run.log({"loss": 1.0, "statistics": arrival}, step=1)
    run.flush()
    assert (rows(run)[0]["policy.logp.mean"], rows(run)[0]["train.tokens"]) == (-0.5, 6)


def test_a_pending_row_returns_at_once_and_the_next_call_writes_it_first(run):
    late = Delayed({"kl": 0.25}, seconds=None)
    run.log({"loss": 1.0, "statistics": late}, step=3)
    assert rows(run) == []
    assert run.last_step == 3
    late.deliver()
    run.log({"loss": 0.5}, step=4)
    first, second = rows(run)
    assert (first["step"], first["loss"], first["kl"]) == (3, 1.0, 0.25)
    assert (second["step"], second["loss"]) == (4, 0.5)
    assert first["timestamp"] <= second["timestamp"]


def test_the_next_row_waits_for_the_one_before(run):
    run.log({"statistics": Delayed({"kl": 1.0}, seconds=0.2)})
    run.log({"statistics": Delayed({"kl": 2.0}, seconds=0.01)})
    run.log({"kl": 3.0})
    assert [(row["step"], row["kl"]) for row in rows(run)] == [(0, 1.0), (1, 2.0), (2, 3.0)]


def test_rows_of_the_common_kind_stay_in_order_around_it(run):
    for step in range(6):
        run.log({"loss": float(step)}, step=step)
        if step == 3:
            run.log({"statistics": Delayed({"kl": 0.5})}, step=step)
    assert [row["step"] for row in rows(run)] == [0, 1, 2, 3, 3, 4, 5]
    assert rows(run)[4]["kl"] == 0.5


def test_flush_writes_it(run):
    run.log({"statistics": Delayed({"kl": 0.5})}, step=7)
    run.flush()
    assert rows(run)[0]["kl"] == 0.5
    run.flush()
    assert len(rows(run)) == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda run: run.findings,
        lambda run: run.request(),
        lambda run: run.log_eval({"a": 1}),
        lambda run: run.phase("generate"),
        lambda run: run.timer("adv"),
        lambda run: run.count(tokens=1),
        lambda run: run.log_groups([]),
        lambda run: run.progress([]),
        lambda run: run.take_findings([], ()),
    ],
)
def test_any_other_call_writes_it_first(run, ask):
    run.log({"statistics": Delayed({"kl": 0.5})}, step=7)
    ask(run)
    assert rows(run)[0]["kl"] == 0.5


def test_a_phase_begins_when_the_row_before_it_is_written(run):
    """The time spent waiting for a device does not count as the phase's time."""
    delayed = Delayed({"kl": 0.5}, seconds=0.5)
    run.log({"statistics": delayed}, step=7)
    with run.phase("generate"):
        assert rows(run)[0]["kl"] == 0.5
    since_delivery = time.perf_counter() - delayed.delivered_at
    run.log({"loss": 1.0}, step=8)
    assert rows(run)[1]["time/generate/total"] <= since_delivery


def test_where_nothing_is_pending_measuring_does_not_touch_it(run, monkeypatch):
    monkeypatch.setattr(run, "flush", lambda: pytest.fail("nothing is pending"))
    with run.phase("generate"), run.timer("adv"):
        run.count(tokens=1)
    monkeypatch.undo()


def test_finishing_writes_it(tmp_path):
    run = rlvitals.start(tmp_path / "run", monitor=False, display="none")
    run.log({"statistics": Delayed({"kl": 0.5})}, step=7)
    run.finish()
    assert rows(run)[0]["kl"] == 0.5


def test_an_exception_in_the_training_writes_it(tmp_path):
    with pytest.raises(RuntimeError), rlvitals.start(tmp_path / "run", monitor=False, display="none") as run:  # noqa: PT012
        run.log({"statistics": Delayed({"kl": 0.5})}, step=7)
        raise RuntimeError("out of memory")
    assert rows(run)[0]["kl"] == 0.5
    assert run.status == "failed"


CHILD = """
    import os, signal, sys
    sys.path[:0] = {paths!r}
    import rlvitals
    from capture.test_device_rows import Delayed
    run = rlvitals.start({directory!r}, monitor=False, display="none")
    run.log({{"loss": 1.0}}, step=1)
    run.log({{"loss": 0.5, "statistics": Delayed({{"kl": 0.25}}, seconds=0.3)}}, step=2)
    os.kill(os.getpid(), signal.{signal})
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(("number", "kept"), [("SIGTERM", [1, 2]), ("SIGKILL", [1])])
def test_a_signal_writes_it_and_a_kill_loses_that_row_alone(tmp_path, child_environment, number, kept):
    directory = str(tmp_path / "run")
    tests = os.path.dirname(os.path.dirname(__file__))
    code = textwrap.dedent(CHILD).format(directory=directory, signal=number, paths=[tests])
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, check=False, env=child_environment, capture_output=True, text=True)
    assert ended.returncode == -getattr(signal, number), ended.stderr
    assert [row["step"] for row in rows(directory)] == kept
    if number == "SIGTERM":
        assert rows(directory)[1]["kl"] == 0.25


def test_a_silent_device_is_waited_for_so_long_and_no_longer(run, caplog):
    run.log({"loss": 1.0, "statistics": Delayed({"kl": 0.5}, seconds=None)}, step=1)
    run.flush(0.05)
    assert rows(run)[0]["loss"] == 1.0
    assert "kl" not in rows(run)[0]
    assert "did not deliver" in caplog.text


def test_a_broken_device_costs_its_own_numbers(run, caplog):
    run.log({"loss": 1.0, "statistics": Delayed(RuntimeError("CUDA error: illegal address"))}, step=1)
    run.log({"loss": 0.9}, step=2)
    assert [(row["step"], row["loss"]) for row in rows(run)] == [(1, 1.0), (2, 0.9)]
    assert "illegal address" in caplog.text


def test_what_is_on_the_host_is_read_at_once(run):
    array, tensor, nested = np.array(1.5), torch.tensor(2.5), {"deep": 1}
    metrics = {"array": array, "tensor": tensor, "nested": nested, "mean": mean([1.0, 3.0]), "statistics": Delayed({})}
    run.log(metrics, step=1)
    array += 1
    tensor += 1
    nested["deep"] = 9
    metrics["new"] = 1
    run.flush()
    (row,) = rows(run)
    assert (row["array"], row["tensor"], row["nested/deep"], row["mean"]) == (1.5, 2.5, 1, 2.0)
    assert "new" not in row
    assert row["_m"]["mean"][0] == 2.0


def test_tensors_of_the_processor_make_no_row_wait(run):
    run.log({"loss": torch.tensor(0.5), "count": torch.tensor(3)}, step=1)
    assert (rows(run)[0]["loss"], rows(run)[0]["count"]) == (0.5, 3)


def test_a_pending_row_is_seen_by_the_doctor(tmp_path):
    with rlvitals.start(tmp_path / "run", display="none") as run:
        run.log({"loss": 1.0}, step=1)
        run.log({"statistics": Delayed({"loss": float("nan")})}, step=2)
        assert [finding.kind for finding in run.findings] == ["nonfinite"]


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@needs_cuda
def test_device_tensors_are_copied_without_waiting(run, caplog):
    half = torch.tensor(1.5, dtype=torch.bfloat16)
    given = {"loss": torch.tensor(0.5), "count": torch.tensor(3), "half": half, "flag": torch.tensor(True)}
    scalars = {name: scalar.cuda() for name, scalar in given.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        run.log(scalars | {"lr": 1e-6}, step=1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert rows(run) == []
    assert not caplog.text
    run.log({"loss": 0.25}, step=2)
    first, second = rows(run)
    assert list(first)[3:] == ["loss", "count", "half", "flag", "lr"]
    assert (first["loss"], first["count"], first["half"], first["flag"]) == (0.5, 3, 1.5, True)
    assert second["loss"] == 0.25


@needs_cuda
def test_a_device_tensor_that_changes_afterwards_keeps_its_number(run):
    loss = torch.tensor(0.5, device="cuda")
    run.log({"loss": loss}, step=1)
    loss += 1
    run.log({"loss": loss}, step=2)
    run.flush()
    assert [row["loss"] for row in rows(run)] == [0.5, 1.5]


@needs_cuda
def test_a_phase_writes_the_row_of_a_busy_device_first(run):
    held = torch.ones(2**28, device="cuda")
    for _ in range(200):
        held.mul_(1.0)
    run.log({"loss": held.mean()}, step=1)
    assert rows(run) == []
    with run.phase("generate"):
        assert [(row["step"], row["loss"]) for row in rows(run)] == [(1, 1.0)]
    run.log({"loss": 0.5}, step=2)
    assert "time/generate/total" in rows(run)[1]
