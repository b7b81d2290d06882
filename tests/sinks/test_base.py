"""Features of every tracker: names, the facts of the run, rewritten rows, settings and packages."""

from __future__ import annotations

import threading
import time

import pytest

import rlvitals
from rlvitals.errors import SinkError
from rlvitals.records import Attempt
from rlvitals.sinks.base import (
    RunFacts,
    Sink,
    attempt_name,
    check_settings,
    end_aside,
    explained,
    import_vendor,
    metric_name,
    rows_held,
    stored_rows,
)
from rlvitals.splits import held_out_name


def test_an_evaluation_is_distinguished_from_training_by_its_name():
    assert [metric_name("eval", name) for name in ("loss", "eval_loss", "eval/loss")] == [
        "eval/loss",
        "eval_loss",
        "eval/loss",
    ]
    assert metric_name("train", "loss") == "loss"
    assert metric_name("system", "System/CPU_Percent") == "System/CPU_Percent"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("evaluate_x", "eval/evaluate_x"),
        ("evalue", "eval/evalue"),
        ("val/x", "val/x"),
        ("test_accuracy", "test_accuracy"),
    ],
)
def test_trackers_and_the_doctor_call_an_evaluations_metric_the_same(name, expected):
    """`evaluate_x` only starts like a held-out name, and `val/x` is one. The trackers used to name both differently."""
    assert metric_name("eval", name) == held_out_name(name) == expected


def test_an_attempt_is_found_by_its_number_and_not_by_its_place(tmp_path):
    facts = RunFacts(tmp_path, "id", "name", None, {}, (Attempt(2, 20.0), Attempt(3, 30.0)))
    assert [facts.attempt(number) and facts.attempt(number).started for number in (1, 2, 3, 4)] == [
        None,
        20.0,
        30.0,
        None,
    ]


def test_a_log_is_read_again_as_it_was_handed_over(tmp_path):
    with rlvitals.start(tmp_path, monitor=False, hardware=False, display="none") as run:
        for step in (3, 5):
            run.log({"loss": float(step)}, step=step)
        run.log_eval({"loss": 7.0}, step=5)
    (tmp_path / "logs" / "system.jsonl").write_text(
        "".join(f'{{"step": 9, "timestamp": {at}, "attempt": 1, "System/CPU_Percent": 50}}\n' for at in (1, 2))
    )
    assert [(row.step, row.numbers["loss"]) for row in stored_rows(tmp_path, "train")] == [(3, 3.0), (5, 5.0)]
    assert [(row.step, row.numbers["loss"]) for row in stored_rows(tmp_path, "eval")] == [(5, 7.0)]
    # The step of a hardware sample is its number among all samples, as when it was forwarded first.
    assert [(row.step, row.timestamp) for row in stored_rows(tmp_path, "system")] == [(0, 1.0), (1, 2.0)]


def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it():
    assert import_vendor("json", "json").dumps([1]) == "[1]"
    with pytest.raises(SinkError, match=r"'wandb' needs a package: pip install 'rlvitals\[wandb\]' \(No module named"):
        import_vendor("no_such_module_here", "wandb")


def test_a_setting_a_tracker_does_not_take_is_refused_with_the_nearest_one():
    known = frozenset({"path", "every"})
    check_settings("csv", {"path": "x", "every": 3}, known)
    with pytest.raises(SinkError, match=r"'csv' has no setting 'paht'\. Did you mean 'path'\? Settings: every, path"):
        check_settings("csv", {"every": 3, "paht": "x"}, known)


class OwnSink(Sink):
    """The minimum that a user's own tracker has to define."""

    def write(self, rows): ...
    def commit(self): ...
    def close(self): ...


def test_a_tracker_of_somebody_s_own_finds_what_it_was_opened_with(tmp_path):
    facts, settings, memory = RunFacts(tmp_path, "id", "name", None, {}), {"path": "x"}, {"count": 3}
    sink = OwnSink(facts, settings, memory)
    assert (sink.facts, sink.settings, sink.memory) == (facts, settings, memory)
    assert not sink.takes_samples
    sink.abandon()  # does nothing by default
    assert sink.memory == {"count": 3}


def two_attempts(path) -> RunFacts:
    with rlvitals.start(path, monitor=False) as run:
        for step in range(4):
            run.log({"loss": float(step)}, step=step)
        run.log_eval({"accuracy": 0.5}, step=3)
    with rlvitals.start(path, monitor=False, resume=1) as run:
        run.log({"loss": 9.0}, step=2)
    return RunFacts(path, "id", "kto", "kto", {}, (Attempt(1, 1.0), Attempt(2, 2.0, from_step=1)))


def test_a_tracker_that_starts_again_gets_the_attempts_rows_it_held_and_no_others(tmp_path):
    facts = two_attempts(tmp_path)
    again = [(item.stream, item.row.step) for item in rows_held(facts, 1, {"train": 3, "eval": 1}, "W&B")]
    assert again == [("train", 0), ("train", 1), ("train", 2), ("eval", 3)]
    assert [item.row.step for item in rows_held(facts, 2, {"train": 1, "eval": 0}, "W&B")] == [2]


def test_rows_that_are_gone_cannot_be_written_again(tmp_path):
    facts = two_attempts(tmp_path)
    with pytest.raises(SinkError, match=r"attempt 2 again, but the log lacks 2 of its 3 rows.*training_metrics.jsonl"):
        list(rows_held(facts, 2, {"train": 3}, "W&B"))
    (tmp_path / "logs" / "eval_metrics.jsonl").unlink()
    with pytest.raises(SinkError, match="lacks 1 of its 1 rows"):
        rows_held(facts, 1, {"train": 1, "eval": 1}, "W&B")  # raised before iteration starts


def test_an_attempt_says_what_it_is(tmp_path):
    facts = RunFacts(tmp_path, "id", "kto", "ppo", {}, (Attempt(1, 1.0), Attempt(2, 2.0, from_step=7)))
    assert facts.about(2) == {"run": "id", "algorithm": "ppo", "attempt": 2, "from_step": 7}
    assert facts.about(3)["from_step"] is None
    assert (attempt_name("a", 1), attempt_name("a", 3)) == ("a", "a (attempt 3)")


def test_what_a_vendor_raises_is_reported_with_the_fix():
    with (
        pytest.raises(SinkError, match="no key; give one") as raised,
        explained(lambda problem: f"{problem}; give one"),
    ):
        raise ValueError("no key")
    assert isinstance(raised.value.__cause__, ValueError)
    with pytest.raises(SinkError, match=r"^as it is$"), explained(lambda problem: f"{problem}; give one"):
        raise SinkError("as it is")


def test_a_vendor_that_does_not_end_is_not_waited_for():
    ended, never = threading.Event(), threading.Event()

    def fail() -> None:
        ended.set()
        raise ValueError("no network")

    began = time.monotonic()
    end_aside([fail, never.wait], 0.1)
    never.set()
    assert ended.is_set()
    assert time.monotonic() - began < 30
