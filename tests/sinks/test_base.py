"""What every tracker has in common: names, the run's facts, rows written once more, settings and packages."""

from __future__ import annotations

import pytest

import rlvitals
from rlvitals.records import Attempt
from rlvitals.sinks.base import RunFacts, Sink, SinkError, check_settings, import_vendor, metric_name, stored_rows


def test_an_evaluation_is_told_from_training_by_its_name():
    assert [metric_name("eval", name) for name in ("loss", "eval_loss", "eval/loss")] == [
        "eval/loss",
        "eval_loss",
        "eval/loss",
    ]
    assert metric_name("train", "loss") == "loss"
    assert metric_name("system", "System/CPU_Percent") == "System/CPU_Percent"


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
    # A sample of the machine has its place among all samples as its step, as on its first way.
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
    """The least a tracker of somebody's own has to say."""

    def write(self, rows): ...
    def commit(self): ...
    def close(self): ...


def test_a_tracker_of_somebody_s_own_finds_what_it_was_opened_with(tmp_path):
    facts, settings, memory = RunFacts(tmp_path, "id", "name", None, {}), {"path": "x"}, {"count": 3}
    sink = OwnSink(facts, settings, memory)
    assert (sink.facts, sink.settings, sink.memory) == (facts, settings, memory)
    assert not sink.takes_samples
    sink.abandon()  # nothing to let go of, unless it says so
    assert sink.memory == {"count": 3}
