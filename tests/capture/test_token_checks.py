"""Recorded tokens compared with the rows of their steps. A run reports a planted fault during training. `check`, the
report, the Health page and its address show the same finding, also for a run that was not monitored.
"""

from __future__ import annotations

import json

import pytest

import rlvitals
from rlvitals.cli.main import main
from rlvitals.records import Group, Rollout
from rlvitals.views.diagnosis import diagnose, findings_answer
from rlvitals.views.rechecks import events_on_record, token_events
from rlvitals.views.sources import source_of_run
from token_updates import Update

FAULTS = {
    "scale": ("recomputed_loss_scale", "warning"),
    "mask": ("recomputed_mask_shift", "critical"),
    "sign": ("recomputed_advantage_sign", "critical"),
    "microbatch": ("recomputed_microbatch_weighting", "warning"),
}


def recorded(folder, faults, *, is_late=False, kept=None, **given):
    """A run with a step for each fault."""
    config = Update().config
    with rlvitals.start(folder, config=config, algorithm="grpo", display="none", **given) as run:
        for step, fault in enumerate(faults, 1):
            update = Update(seed=step, fault=fault)
            groups = update.groups(kept)
            if not is_late:
                run.log_groups(groups, step=step)
            run.log(update.log(), step=step)
            if is_late:
                run.log_groups(groups, step=step)
    return rlvitals.open_run(folder)


def of_tokens(events):
    return [
        (event.type, event.step, event.rule, event.finding, event.attempt)
        for event in events
        if event.seen_in == "tokens"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("is_late", [False, True], ids=["before the row", "after the row"])
def test_a_planted_fault_is_found_while_it_trains_and_again_from_the_files(tmp_path, fault, is_late):
    view = recorded(tmp_path / "run", ["", fault, "", "", ""], is_late=is_late)
    rule, severity = FAULTS[fault]
    live = of_tokens(view.health_events)
    assert [(kind, step, name) for kind, step, name, _, _ in live] == [("raised", 2, rule), ("recovered", 5, rule)]
    finding = live[0][3]
    assert (finding.severity, finding.kind, finding.onset_step) == (severity, "data", 2)
    assert finding.causes
    assert finding.advice
    (tmp_path / "run/logs/findings.jsonl").unlink()
    unwatched = rlvitals.open_run(tmp_path / "run")
    assert of_tokens(events_on_record(unwatched)) == live
    assert of_tokens(token_events(view)) == live  # recomputed, not read from the record


def test_the_rules_about_tokens_can_be_switched_off_and_changed(tmp_path):
    entries = [
        {"rule": "recomputed_loss_scale", "enabled": False},
        {"rule": "recomputed_mask_shift", "hold": "1 of 2", "title": "mine, {rollouts:.0f} rollouts"},
    ]
    view = recorded(tmp_path / "run", ["scale", "mask", "", "", ""], rules=entries)
    live = of_tokens(view.health_events)
    assert [(kind, step, name) for kind, step, name, _, _ in live] == [
        ("raised", 2, "recomputed_mask_shift"), ("recovered", 4, "recomputed_mask_shift"),
    ]  # fmt: skip
    assert live[0][3].title.startswith("mine, ")
    (tmp_path / "run/logs/findings.jsonl").unlink()
    assert of_tokens(source_of_run(rlvitals.open_run(tmp_path / "run")).recorded) == live


def test_a_right_trainer_is_never_accused(tmp_path):
    view = recorded(tmp_path / "run", [""] * 5)
    assert of_tokens(view.health_events) == of_tokens(token_events(view)) == []
    view = recorded(tmp_path / "part", [""] * 3, kept=3)
    assert of_tokens(view.health_events) == of_tokens(token_events(view)) == []


def test_the_finding_is_in_check_in_the_report_in_health_and_at_its_address(tmp_path, capsys):
    view = recorded(tmp_path / "run", ["scale"] * 3)
    (finding,) = [
        each for each in findings_answer(view, diagnose(view))["findings"] if each["rule"].startswith("recomputed")
    ]
    logged = Update(seed=1, fault="scale").log()["train.loss"]
    assert finding["evidence"]["logged"] == pytest.approx(logged)
    assert finding["evidence"]["recomputed"] == pytest.approx(logged / 8, abs=1e-4)
    assert finding["causes"] == [
        "the logged loss is 8 times the recomputed one, which is the number of steps of gradient accumulation"
    ]
    for command in (["check", str(tmp_path / "run")], ["report", str(tmp_path / "run"), "--markdown", "--output", "-"]):
        main(command)
        assert "the scale of the loss is off" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "run/logs/findings.jsonl").unlink()
    main(["check", str(tmp_path / "run"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert "recomputed_loss_scale" in json.dumps(found)


def test_steps_that_come_faster_than_they_are_compared_are_compared_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("rlvitals.capture.token_checks.MOST_STEPS", 2)
    view = recorded(tmp_path / "run", ["sign", *[""] * 8])
    assert [step for _, step, *_ in of_tokens(view.health_events)] == [1, 4]
    assert of_tokens(view.health_events) == of_tokens(token_events(view))


def test_an_alarm_of_an_earlier_attempt_is_not_raised_again(tmp_path):
    recorded(tmp_path / "run", ["", "sign", "sign"])
    with rlvitals.start(tmp_path / "run", resume=True, config=Update().config, display="none") as run:
        for step in (4, 5):
            update = Update(seed=step, fault="sign")
            run.log_groups(update.groups(), step=step)
            run.log(update.log(), step=step)
    events = rlvitals.open_run(tmp_path / "run").health_events
    assert [(event.type, event.step) for event in events if event.seen_in == "tokens"] == [("raised", 2)]


def test_what_cannot_be_compared_disturbs_nothing(tmp_path):
    broken = [{"rollouts": [{"completion": "x", "trace": {"ids": [1], "trained": [True], "logprobs": ["nan"]}}]}]
    with rlvitals.start(tmp_path / "run", display="none") as run:
        for step in range(1, 4):
            run.log_groups(broken, step=step)
            run.log({"train.loss": float("nan"), "entropy.mean": 1.0}, step=step)
        run.log_groups([Group(rollouts=(Rollout(),))], step=9)
    assert len(list(rlvitals.open_run(tmp_path / "run").iterate())) == 3
    assert of_tokens(rlvitals.open_run(tmp_path / "run").health_events) == []


def test_the_last_step_is_compared_before_the_run_is_closed(tmp_path, caplog):
    view = recorded(tmp_path / "run", ["scale"])
    assert [step for _, step, *_ in of_tokens(view.health_events)] == [1]
    assert "cannot write" not in caplog.text


def test_it_is_compared_while_the_run_goes_on(tmp_path):
    with rlvitals.start(tmp_path / "run", config=Update().config, display="none") as run:
        for step, fault in enumerate(["sign", ""], 1):
            update = Update(seed=step, fault=fault)
            run.log_groups(update.groups(), step=step)
            run.log(update.log(), step=step)
        assert "recomputed_advantage_sign" in [finding.rule for finding in run.findings]
