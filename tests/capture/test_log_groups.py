"""Recording rollouts: every accepted form, unsupported values, and the same faults as for rows."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import rlvitals
from conftest import fill, until
from rlvitals.errors import BadValue, ConfigError
from rlvitals.importers.rollouts import read_rollouts
from rlvitals.records import Group, Rollout, ToolCall, Turn
from rlvitals.render.step_summary import is_verbose


@pytest.fixture
def run(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False, display="none") as run:
        yield run


def lines_of(run, step):
    folder = rlvitals.open_run(run.dir).path / "logs" / "rollouts"
    return [json.loads(line) for line in (folder / f"step-{step:06d}.jsonl").read_bytes().splitlines()]


def stored(run, step):
    return rlvitals.open_run(run.dir).rollouts(step)


WHOLE = Group(
    prompt="What is the budget?",
    id="q1",
    answer="40",
    sources=("m7",),
    max_turns=4,
    mean=0.5,
    std=0.5,
    kept=True,
    meta={"difficulty": 2},
    rollouts=(
        Rollout(
            turns=(
                Turn(
                    text="Let me look.", calls=(ToolCall("search", {"q": "x"}, "m7"), ToolCall("f", "{", error="bad")),
                    observation="ok", outcome="search_hit", tokens=20, trainable_tokens=5, seconds=0.5, reward=0.1,
                    advantage=1.8,
                ),
            ),
            reward=1.0, advantage=1.0, outcome="correct", stop="answered", rubric={"found": True, "n": [1, 2]},
            reward_parts={"answer": 1.0, "style": math.inf}, tokens=100, trainable_tokens=50, seconds=2.5, seed=7,
            policy_version=9, meta={"temperature": 0.5},
        ),
        Rollout(reward=-0.5, stop="turn_limit", error="the sandbox died"),
    ),
)  # fmt: skip


def test_a_group_comes_back_as_it_was_recorded(run):
    run.log_groups([WHOLE], step=10)
    (found,) = stored(run, 10)
    assert (found.step, found.attempt) == (10, 1)
    assert found.timestamp > 0
    for part in ("prompt", "id", "answer", "sources", "max_turns", "mean", "std", "kept", "meta", "rollouts"):
        assert getattr(found, part) == getattr(WHOLE, part)


def test_each_group_is_a_line_of_strict_json_in_its_steps_file(run):
    run.log_groups([WHOLE, WHOLE], step=10)
    run.log_groups(WHOLE, step=11)
    first, second = lines_of(run, 10)
    assert list(first)[:3] == ["step", "timestamp", "attempt"]
    assert first["rollouts"][0]["reward_parts"]["style"] == "inf"
    assert second["prompt"] == "What is the budget?"
    assert len(lines_of(run, 11)) == 1


def test_groups_of_one_step_may_come_in_several_calls(run):
    for step in (1, 2, 1):
        run.log_groups([{"prompt": "p", "rollouts": ["a"]}], step=step)
    assert (len(stored(run, 1)), len(stored(run, 2))) == (2, 1)


MESSAGES = [
    {"role": "system", "content": "You search."},
    {"role": "user", "content": [{"type": "text", "text": "Who wrote?"}, {"type": "image_url"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}},
            {"id": "b", "type": "function", "function": {"name": "search", "arguments": '{"q": '}},
        ],
    },
    {"role": "tool", "tool_call_id": "b", "content": "bad arguments"},
    {"role": "tool", "tool_call_id": "a", "content": "Ann"},
    {"role": "assistant", "content": "Ann."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes."},
]


@pytest.mark.parametrize(
    "given",
    [
        MESSAGES,
        [MESSAGES],
        [[MESSAGES]],
        {"rollouts": [MESSAGES]},
        [{"rollouts": [{"messages": MESSAGES}]}],
        {"prompt": MESSAGES[:2], "rollouts": [{"completion": MESSAGES[2:]}]},
        {"messages": MESSAGES},
        {"prompt": MESSAGES[:2], "completion": MESSAGES[2:]},
    ],
)
def test_message_lists_are_rollouts(run, given):
    run.log_groups(given, step=1)
    (group,) = stored(run, 1)
    assert group.prompt == "system: You search.\n\nuser: Who wrote?\n[image_url]"
    (rollout,) = group.rollouts
    assert [turn.text for turn in rollout.turns] == ["", "Ann.", "Yes."]
    assert rollout.turns[0].calls == (
        ToolCall("search", {"q": "x"}, "Ann"),
        ToolCall("search", '{"q": ', "bad arguments"),
    )
    assert rollout.turns[1].observation == "Sure?"


def test_plain_dicts_with_numbers_of_any_kind_are_groups(run):
    given = {
        "question": "p",
        "query_id": 7,
        "difficulty": np.float32(0.5),
        "rollouts": [
            {"completion": "a", "score": np.float32(0.5), "stop_reason": "length", "judge": "kind"},
            {"turns": [{"content": "b", "tool_calls": [{"name": "f"}], "time": 2}, "c"], "reward": np.array(1)},
        ],
    }
    run.log_groups([given], step=1)
    (group,) = stored(run, 1)
    assert (group.prompt, group.id, group.meta) == ("p", "7", {"difficulty": 0.5})
    first, second = group.rollouts
    assert (first.reward, first.stop, first.meta) == (0.5, "length", {"judge": "kind"})
    assert second.turns == (Turn(text="b", calls=(ToolCall("f"),), seconds=2.0), Turn(text="c"))
    assert (group.mean, group.std) == (0.75, 0.25)


def test_what_json_cannot_hold_is_recorded_all_the_same(run):
    odd = {"prompt": "half \ud800 a surrogate", "rollouts": [{"completion": "x", "reward": math.nan, "n": 2**70}]}
    run.log_groups([odd], step=1)
    (group,) = stored(run, 1)
    assert group.prompt == "half ? a surrogate"
    assert math.isnan(group.rollouts[0].reward)
    assert group.rollouts[0].meta == {"n": str(2**70)}


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        (3, "is not a list of groups"),
        ("text", "is not a list of groups"),
        ([3], "an? int is not a group"),
        ([{"rollouts": 3}], "its rollouts are a int"),
        ([{"prompt": "p", "rollouts": [3, "fine"]}], "a int is not a rollout"),
        ([{"prompt": "p", "rollouts": [{"turns": [3], "reward": 1.0}]}], "a int is not a turn"),
        ([{"prompt": "p", "rollouts": [{"completion": "fine", "reward": "much"}]}], "rollout.reward is dropped"),
        ([{"prompt": "p", "rollouts": [{"completion": "fine", "tokens": 1.5}]}], "rollout.tokens is dropped"),
        ([{"prompt": "p", "rollouts": [{"turns": [{"calls": [3]}]}]}], "a tool call is dropped"),
    ],
)
def test_bad_input_is_a_warning_and_the_rest_is_kept(run, caplog, given, warning):
    with caplog.at_level(logging.WARNING, "rlvitals"):
        run.log_groups(given, step=1)
        run.log_groups(given, step=1)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert re.search(warning, caplog.text)
    kept = [rollout for group in stored(run, 1) for rollout in group.rollouts]
    assert len(kept) == (2 if isinstance(given, list) and isinstance(given[0], dict) and "prompt" in given[0] else 0)


def test_strict_raises_on_bad_input(tmp_path):
    with (
        rlvitals.start(tmp_path / "run", monitor=False, display="none", strict=True) as run,
        pytest.raises(BadValue, match="a int is not a rollout"),
    ):
        run.log_groups([{"rollouts": [3]}], step=1)


class Exploding(dict):
    def items(self):
        raise RuntimeError("boom")


def test_nothing_is_raised_into_training(run, caplog):
    run.log_groups([Exploding(rollouts=[])], step=1)
    run.log_groups([WHOLE], step="seven")
    assert "boom" in caplog.text
    assert "step must be a whole number" in caplog.text
    run.log({"loss": 1.0}, step=1)


def test_without_a_step_rollouts_belong_to_the_last_row(run):
    run.log({"loss": 1.0}, step=5)
    run.log_groups([WHOLE])
    assert len(stored(run, 5)) == 1


def test_after_the_end_rollouts_are_dropped_with_a_word(tmp_path, caplog):
    run = rlvitals.start(tmp_path / "run", monitor=False, display="none")
    run.finish()
    run.log_groups([WHOLE], step=1)
    assert "rollouts for" in caplog.text
    assert not (tmp_path / "run" / "logs" / "rollouts").exists()


def test_many_steps_do_not_keep_their_files_open(run):
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for step in range(200):
        run.log_groups([{"rollouts": ["x"]}], step=step)
    if before:
        assert len(os.listdir("/proc/self/fd")) - before < 64
    assert len(rlvitals.open_run(run.dir).rollout_log.steps) == 200


def test_other_ranks_write_files_of_their_own(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False, display="none") as first:
        with rlvitals.start(tmp_path / "run", monitor=False, display="none", rank=1) as second:
            second.log_groups([{"prompt": "b", "rollouts": ["x"]}], step=3)
        first.log_groups([{"prompt": "a", "rollouts": ["x"]}], step=3)
    assert (tmp_path / "run" / "logs" / "rollouts" / "step-000003-rank-1.jsonl").exists()
    assert [group.prompt for group in rlvitals.open_run(tmp_path / "run").rollouts(3)] == ["a", "b"]


def test_overwriting_a_run_removes_its_rollouts(tmp_path):
    for overwrite in (False, True):
        with rlvitals.start(tmp_path / "run", monitor=False, display="none", overwrite=overwrite) as run:
            if not overwrite:
                run.log_groups([WHOLE], step=1)
            run.log({"loss": 1.0}, step=1)
    assert rlvitals.open_run(tmp_path / "run").rollouts(1) == []


def test_a_kill_loses_no_group_whose_call_had_returned(tmp_path, child_environment):
    code = textwrap.dedent("""
        import sys, rlvitals
        run = rlvitals.start(sys.argv[1], monitor=False, display="none")
        text = "long words " * 2000
        for step in range(100000):
            run.log_groups([{"prompt": f"p{g}", "rollouts": [text, text]} for g in range(4)], step=step)
            print(step, flush=True)
    """)
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment) as child:
        for _ in range(40):
            acknowledged = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, child.stdout.read().split())])
    view = rlvitals.open_run(tmp_path / "run")
    assert acknowledged >= 39
    for step in range(acknowledged + 1):
        groups = view.rollouts(step)
        assert [group.prompt for group in groups] == ["p0", "p1", "p2", "p3"]
        assert all(len(group.rollouts[1].turns[0].text) == 22000 for group in groups)


def test_a_full_disk_keeps_rollouts_until_there_is_room(small_disk, caplog):
    run = rlvitals.start(small_disk / "run", monitor=False, display="none")
    try:
        run.log_groups([{"prompt": "before", "rollouts": ["x"]}], step=1)
        filler = fill(small_disk)
        for step in (1, 2, 3):
            run.log_groups([{"prompt": "during", "rollouts": ["word " * 1000]}], step=step)
        assert "kept in memory" in caplog.text
        filler.unlink()
        run.log_groups([{"prompt": "after", "rollouts": ["x"]}], step=3)
        run._beat()
        view = rlvitals.open_run(run.dir)
        assert until(lambda: len(view.rollouts(3)) == 2)
        assert [[group.prompt for group in view.rollouts(step)] for step in (1, 2, 3)] == [
            ["before", "during"], ["during"], ["during", "after"],
        ]  # fmt: skip
    finally:
        run.finish()


def test_a_folder_that_vanishes_is_made_again(run):
    import shutil

    run.log_groups([{"prompt": "a", "rollouts": ["x"]}], step=1)
    shutil.rmtree(rlvitals.open_run(run.dir).path / "logs" / "rollouts")
    run._beat()
    run.log_groups([{"prompt": "b", "rollouts": ["x"]}], step=1)
    assert [group.prompt for group in stored(run, 1)] == ["a", "b"]


def test_recording_rollouts_imports_nothing_heavy(tmp_path, child_environment):
    code = textwrap.dedent(f"""
        import rlvitals, sys
        with rlvitals.start({str(tmp_path / "run")!r}, monitor=False, display="none") as run:
            run.log_groups([{{"prompt": "p", "rollouts": ["x"]}}], step=1)
        assert not {{"numpy", "torch", "rich", "sqlite3", "yaml", "pandas"}} & sys.modules.keys()
    """)
    subprocess.run([sys.executable, "-c", code], check=True, env=child_environment)


@pytest.mark.parametrize(("word", "verbose"), [("true", True), ("1", True), ("False", False), ("", False)])
def test_the_environment_asks_for_the_long_form(monkeypatch, word, verbose):
    monkeypatch.setenv("VERBOSE", word)
    assert is_verbose() is verbose
    assert is_verbose(not verbose) is not verbose


def test_rollouts_of_evaluations_are_apart(run):
    run.log({"loss": 1.0}, step=1)
    run.log_groups([{"prompt": "trained", "rollouts": ["a"]}], step=1)
    run.log_groups([{"prompt": "evaluated", "rollouts": ["b"]}], step=1, stream="eval")
    assert [group.prompt for group in stored(run, 1)] == ["trained"]
    folder = rlvitals.open_run(run.dir).path / "eval_logs" / "rollouts"
    assert [group.prompt for group in read_rollouts(folder).groups] == ["evaluated"]


def test_rollouts_stay_within_their_limit_while_they_are_recorded(tmp_path):
    limit = 0.05 * 2**20
    with rlvitals.start(tmp_path / "run", monitor=False, display="none", rollout_megabytes=0.05, fsync=0.05) as run:
        folder = tmp_path / "run" / "logs" / "rollouts"

        def size():
            with contextlib.suppress(FileNotFoundError):  # removed after it was listed
                return sum(path.stat().st_size for path in folder.iterdir())
            return math.inf

        for step in range(1, 31):
            run.log_groups([{"prompt": "p", "rollouts": ["x" * 4000]}], step=step)
        assert until(lambda: size() <= limit)
        run.log_groups([{"prompt": "q", "rollouts": ["y"]}], step=30)  # its file is open and was not removed
    steps = rlvitals.open_run(tmp_path / "run").rollout_log.steps
    assert size() <= limit
    assert (steps[0], steps[-2:]) == (1, [29, 30])
    assert len(steps) > 4, "older steps are thinned out, not all dropped"
    assert [group.prompt for group in rlvitals.open_run(tmp_path / "run").rollouts(30)] == ["p", "q"]


def test_a_limit_that_is_no_number_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="rollout_megabytes must be a number of megabytes above 0"):
        rlvitals.start(tmp_path, rollout_megabytes="much")
