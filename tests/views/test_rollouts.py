"""Stored rollouts as a reader sees them: the current line, places, changes."""

from __future__ import annotations

import rlvitals
from rlvitals.records import Group, Rollout
from rlvitals.views.places import open_rollouts
from rlvitals.views.rollouts import changes, outcomes, with_moments


def record(folder, steps, word, *, rows=True, resume=False):
    with rlvitals.start(folder, monitor=False, display="none", resume=resume) as run:
        for step in steps:
            run.log_groups([{"prompt": "p", "rollouts": [{"completion": f"{word} {step}", "reward": step}]}], step=step)
            if rows:
                run.log({"loss": 1.0}, step=step)


def texts(view, step):
    return [rollout.turns[0].text for group in view.rollouts(step) for rollout in group.rollouts]


def test_a_resumed_run_replaces_the_abandoned_rollouts(tmp_path):
    record(tmp_path / "run", range(1, 7), "first")
    record(tmp_path / "run", range(4, 6), "second", resume=3)
    view = rlvitals.open_run(tmp_path / "run")
    assert [texts(view, step) for step in range(1, 7)] == [
        ["first 1"], ["first 2"], ["first 3"], ["second 4"], ["second 5"], [],
    ]  # fmt: skip
    log = view.rollout_log
    assert log.steps == [1, 2, 3, 4, 5]
    assert log.last_step == 5
    assert [row["step"] for row in log.overview()] == [1, 2, 3, 4, 5]
    assert [hit.step for hit in log.find(text="first")] == [1, 2, 3]
    assert [hit.step for hit in log.find(text="second")] == [4, 5]


def test_an_attempt_that_logged_rollouts_and_no_row_yet_has_its_own_steps(tmp_path):
    record(tmp_path / "run", range(1, 5), "first")
    record(tmp_path / "run", [4], "second", rows=False, resume=3)
    view = rlvitals.open_run(tmp_path / "run")
    assert texts(view, 4) == ["second 4"]
    assert [hit.step for hit in view.rollout_log.find(text="first")] == [1, 2, 3]


def test_without_a_step_the_newest_is_read(tmp_path):
    record(tmp_path / "run", [3, 12, 7], "x")
    assert texts(rlvitals.open_run(tmp_path / "run"), None) == ["x 12"]


def test_a_run_without_rollouts_has_none(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False, display="none") as run:
        run.log({"loss": 1.0}, step=1)
    view = rlvitals.open_run(tmp_path / "run")
    assert (view.rollouts(), view.rollouts(1), view.rollout_log.steps) == ([], [], [])
    assert view.rollout_log.find(text="x") == []


def test_hits_say_where_a_rollout_is(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False, display="none") as run:
        run.log_groups([{"prompt": f"p{g}", "rollouts": ["a", f"needle{g}"]} for g in range(3)], step=4)
    log = rlvitals.open_run(tmp_path / "run").rollout_log
    (hit,) = log.find(text="needle2")
    assert (hit.step, hit.group, hit.rollout, hit.prompt) == (4, 3, 2, "p2")
    assert log.at(4)[hit.group - 1].rollouts[hit.rollout - 1].turns[0].text == "needle2"


def test_rollouts_are_found_by_outcome_and_limited(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False, display="none") as run:
        rollouts = [
            {"completion": "x", "outcome": outcome, "reward": n} for n, outcome in enumerate(["idk", "correct"] * 5)
        ]
        run.log_groups([{"prompt": "p", "rollouts": rollouts}], step=1)
    log = rlvitals.open_run(tmp_path / "run").rollout_log
    assert [hit.rollout for hit in log.find(outcome="idk", limit=2)] == [1, 3]
    assert [hit.rollout for hit in log.find(outcome="correct", worst=True, limit=2)] == [2, 4]


def test_torn_lines_are_reported(tmp_path):
    record(tmp_path / "run", [1], "x")
    with (tmp_path / "run" / "logs" / "rollouts" / "step-000001.jsonl").open("ab") as file:
        file.write(b'{"step":1,"roll')
    log = rlvitals.open_run(tmp_path / "run").rollout_log
    assert len(log.at(1)) == 1
    assert log.problems == ["step-000001.jsonl: the last line is torn (15 bytes of a row that was never acknowledged)"]


def test_a_resume_mends_a_torn_line_of_the_step_it_comes_to_again(tmp_path):
    record(tmp_path / "run", [1, 2], "first")
    with (tmp_path / "run" / "logs" / "rollouts" / "step-000002.jsonl").open("ab") as file:
        file.write(b'{"step":2,"roll')
    record(tmp_path / "run", [2], "second", resume=1)
    view = rlvitals.open_run(tmp_path / "run")
    assert texts(view, 2) == ["second 2"]
    assert view.rollout_log.problems == []


def test_prompts_are_the_same_by_id_or_by_text():
    before = [Group(prompt="old wording", id="q1"), Group(prompt="same"), Group(prompt="gone")]
    after = [Group(prompt="same"), Group(prompt="new"), Group(prompt="new wording", id="q1")]
    found = [(change.key, change.before is not None, change.after is not None) for change in changes(before, after)]
    assert found == [("same", True, True), ("q1", True, True), ("new", False, True), ("gone", True, False)]


def test_moments_are_worked_out_where_they_were_not_recorded():
    group = with_moments(Group(rollouts=(Rollout(reward=1.0), Rollout(reward=3.0), Rollout())))
    assert (group.mean, group.std) == (2.0, 1.0)
    assert with_moments(Group(mean=5.0, rollouts=(Rollout(reward=1.0),))).mean == 5.0
    assert with_moments(Group(rollouts=(Rollout(),))).mean is None


def test_outcomes_are_counted_by_their_end_where_there_are_none():
    rollouts = (Rollout(outcome="idk"), Rollout(stop="length"), Rollout(stop="length"), Rollout())
    assert outcomes(Group(rollouts=rollouts)) == {"length": 2, "idk": 1, "unknown": 1}


def test_dumps_of_others_are_looked_at_in_the_same_way(tmp_path):
    rows = [
        '{"input": "p", "output": "bad", "score": 0.0, "step": 3}',
        '{"input": "p", "output": "good", "score": 1.0, "step": 3}',
    ]
    (tmp_path / "3.jsonl").write_text("\n".join(rows))
    log = open_rollouts(tmp_path / "3.jsonl")
    assert log.steps == [3]
    assert log.overview()[0]["mean"] == 0.5
    assert [hit.rollout for hit in log.find(worst=True, limit=1)] == [1]
    assert [hit.rollout for hit in log.find(text="GOOD")] == [2]
    assert log.at(3)[0].std == 0.5
