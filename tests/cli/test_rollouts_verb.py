"""`rlvitals rollouts` as a user runs it."""

from __future__ import annotations

import json

import pytest

import rlvitals
from rlvitals.cli.main import main
from rlvitals.compute import groups
from rlvitals.records import Group, Rollout, ToolCall, Turn


def step_groups(step):
    good = Rollout(
        reward=1.0,
        outcome="correct",
        stop="answered",
        turns=(
            Turn("Look.", (ToolCall("search_emails", {"keywords": ["budget"]}, f"m7 of step {step} " + "x" * 300),)),
            Turn("", (ToolCall("return_final_answer", {"answer": "40"}),)),
        ),
    )
    bad = Rollout(reward=-1.0 - step / 10, outcome="wrong", stop="turn_limit", turns=(Turn("Hm."),) * 4)
    return groups.advantages(
        [
            Group(prompt="What is the budget?", id="q1", sources=("m7",), max_turns=4, rollouts=(good, bad)),
            Group(prompt=f"Only at step {step}", rollouts=(Rollout(reward=0.5, stop="answered"),) * 2),
        ]
    )


@pytest.fixture
def run_path(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False, display="none") as run:
        for step in (10, 20):
            done = step_groups(step)
            run.log_groups(done, step=step)
            run.log(groups.stats(done), step=step)
    return str(tmp_path / "run")


def printed(capsys, *words):
    assert main(["rollouts", *words]) == 0
    return capsys.readouterr().out


def facts(capsys, *words):
    return json.loads(printed(capsys, *words, "--json"))


def test_without_a_step_it_tells_what_steps_there_are(run_path, capsys):
    assert "mean reward" in printed(capsys, run_path)
    assert [(row["step"], row["kept"], row["filtered"], row["early"]) for row in facts(capsys, run_path)["steps"]] == [
        (10, 1, 1, 3), (20, 1, 1, 3),
    ]  # fmt: skip


def test_a_steps_groups_have_mean_spread_and_outcome(run_path, capsys):
    shown = printed(capsys, run_path, "--step", "10")
    for word in ("-0.500", "± 1.500", "correct 1, wrong 1", "kept", "filtered", "q1: What is the budget?"):
        assert word in shown
    first, second = facts(capsys, run_path, "--step", "10")["groups"]
    assert (first["number"], first["mean"], first["outcomes"]) == (1, -0.5, {"correct": 1, "wrong": 1})
    assert (second["kept"], second["reason"]) == (False, "reward std 0.000 < 0.05")


def test_a_group_has_its_turn_table_and_folded_transcripts(run_path, capsys):
    shown = printed(capsys, run_path, "--step", "10", "--group", "1")
    assert "    1  | +1.800 | +2.500 |  ---   |  ---   |" in shown
    assert "    2  | -1.000 | -1.000 | -1.000 | -1.000 |" in shown
    assert '> search_emails({"keywords": ["budget"]})' in shown
    assert "characters]" in shown
    assert printed(capsys, run_path, "--step", "10", "--group", "q1") == shown
    whole = printed(capsys, run_path, "--step", "10", "--group", "1", "--full")
    assert whole.replace("\n", "").count("x" * 100) >= 3
    assert "characters]" not in whole


def test_verbose_shows_every_groups_table_filtered_ones_too(run_path, capsys):
    assert printed(capsys, run_path, "--step", "10", "--verbose").count("Turn-by-Turn Advantage Table:") == 2


def test_the_worst_rollouts_are_shown_with_their_transcripts(run_path, capsys):
    assert [(hit["step"], hit["reward"]) for hit in facts(capsys, run_path, "--worst", "2")["rollouts"]] == [
        (20, -3.0), (10, -2.0),
    ]  # fmt: skip
    shown = printed(capsys, run_path, "--worst", "1", "--step", "10")
    assert "reward -2.000" in shown
    assert "Hm." in shown


def test_a_text_is_found(run_path, capsys):
    (hit,) = facts(capsys, run_path, "--search", "of step 20")["rollouts"]
    assert (hit["step"], hit["group"], hit["rollout"]) == (20, 1, 1)
    assert "What is the budget?" in printed(capsys, run_path, "--search", "m7")
    assert "no rollout is like that" in printed(capsys, run_path, "--search", "giraffe")
    assert "> search_emails" in printed(capsys, run_path, "--search", "m7", "--full")


def test_rollouts_are_found_by_outcome(run_path, capsys):
    assert len(facts(capsys, run_path, "--outcome", "wrong")["rollouts"]) == 2
    assert len(facts(capsys, run_path, "--outcome", "wrong", "--step", "20")["rollouts"]) == 1


def test_two_steps_are_compared_by_prompt(run_path, capsys):
    shown = printed(capsys, run_path, "--step", "20", "--diff", "10")
    assert "-0.500" in shown  # the change: from -0.5 to -1.0
    assert shown.count("not tried") == 2
    first = facts(capsys, run_path, "--step", "20", "--diff", "10")["prompts"][0]
    assert (first["key"], first["before"]["mean"], first["after"]["mean"]) == ("q1", -0.5, -1.0)
    lines = printed(capsys, run_path, "--step", "20", "--diff", "10", "--group", "q1", "--full").split("\n")
    assert any(line.startswith("-") and "m7 of step 10" in line for line in lines)
    assert any(line.startswith("+") and "m7 of step 20" in line for line in lines)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--step", "11"], "the nearest are at 10, 20"),
        (["--step", "10", "--group", "7"], "there is no group '7'"),
        (["--group", "1"], "need a step: --step N"),
        (["--step", "20", "--diff", "10", "--group", "2"], "was not tried at step 10"),
    ],
)
def test_what_is_not_there_is_reported_without_a_traceback(run_path, capsys, words, message):
    assert main(["rollouts", run_path, *words]) == 64
    assert message in capsys.readouterr().err


def test_a_run_without_rollouts_says_how_they_are_recorded(tmp_path, capsys):
    with rlvitals.start(tmp_path / "run", monitor=False, display="none") as run:
        run.log({"loss": 1.0}, step=1)
    assert "no rollouts were recorded" in printed(capsys, str(tmp_path / "run"))
    assert main(["rollouts", str(tmp_path / "run"), "--step", "1"]) == 64
    assert "run.log_groups" in capsys.readouterr().err


def test_a_dump_of_another_trainer_is_shown_too(tmp_path, capsys):
    (tmp_path / "5.jsonl").write_text('{"input": "p", "output": "a", "score": 1.0, "step": 5}\n')
    assert "+1.000" in printed(capsys, str(tmp_path / "5.jsonl"), "--step", "5")


def test_control_characters_do_not_reach_the_terminal(tmp_path, capsys):
    evil = "\x1b[2J\x07"
    with rlvitals.start(tmp_path / "run", monitor=False, display="none") as run:
        for step in (1, 2):
            rollout = {"completion": evil + str(step), "outcome": evil, "stop": evil, "reward": 1.0}
            run.log_groups(
                [{"prompt": evil, "id": evil, "answer": evil, "reason": evil, "kept": False, "rollouts": [rollout]}],
                step=step,
            )
    path = str(tmp_path / "run")
    for words in ([], ["--step", "1"], ["--step", "1", "--group", "1"], ["--worst", "1"], ["--outcome", evil],
                  ["--step", "2", "--diff", "1"], ["--step", "2", "--diff", "1", "--group", "1"]):  # fmt: skip
        shown = printed(capsys, path, *words)
        assert not {"\x1b", "\x07"} & set(shown)
