"""A failed judgement is missing, whatever exception was raised. The guard and every judge behind it are tested on texts
that really make them raise.
"""

from __future__ import annotations

import json
import logging
import os
import signal

import pytest

from rlvitals.compute import groups as grouping
from rlvitals.train import functions
from rlvitals.train.judge_guard import JudgeGuard
from rlvitals.train.mailbox import episode as episode_module
from rlvitals.train.mailbox import worlds
from rlvitals.train.mailbox.episode import Episode
from rlvitals.train.mailbox.graders import Grade
from rlvitals.train.mailbox.tools import write_call
from rlvitals.train.ppo import data as ppo_data
from rlvitals.train.rlaif import tasks as rlaif_tasks
from rlvitals.train.teachers import runner as runner_module
from rlvitals.train.teachers.base import WEIGHTS, AnswerToJudge, Judgement
from rlvitals.train.teachers.cache import CachedTeacher
from rlvitals.train.teachers.offline import OfflineTeacher
from rlvitals.train.teachers.runner import CannotRun, Runner

TASK = functions.tasks(1, seed=0)[0]


def answer(expression):
    return f"def {TASK.entry_point}({TASK.argument}): return {expression}"


TOO_DEEP = {
    "a long unary chain": answer("-" * 1900 + TASK.argument),
    "a long sum": answer("+".join(["1"] * 1900)),
    "a chain of subscripts": answer(TASK.argument + "[0]" * 1200),
    "a chain of calls": answer(TASK.argument + ".copy()" * 500),
}
"""Accepted Python code with a syntax tree deeper than Python's stack."""

HOSTILE = TOO_DEEP | {
    "deep brackets": answer("(" * 1900 + "1" + ")" * 1900),
    "nested lists": answer("[" * 150 + "1" + "]" * 150),
    "lambdas in lambdas": answer("lambda:" * 500 + "1"),
    "a megabyte of digits": "1" * 1_000_000,
    "a number of 3,900 digits": answer("1" * 3900),
    "a number too long to write": answer("str(10 ** 5000)"),
    "null bytes": answer("1\0") + "\0" * 20,
    "lone surrogates": answer("'\ud800'") + "\udfff" * 20,
    "signs that turn the text around": answer("'\u202e\u2066\u2069'"),
    "a byte order mark and odd ends of lines": "\ufeff" + answer("1") + "\x0b\x0c\x1c\x85\u2028\u2029",
    "endless recursion": answer(f"{TASK.entry_point}({TASK.argument})"),
    "more memory than there is": answer("[0] * 10 ** 12"),
    "blank lines alone": "\n" * 3999,
    "nothing": "",
}


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def thrower(error, when=lambda question: True):
    def ask(questions):
        for question in questions:
            if when(question):
                raise error
        return [question * 10 for question in questions]

    return ask


@pytest.mark.parametrize(
    "error", [RecursionError("deep"), MemoryError(), KeyError("x"), Unprintable(), CannotRun("no")]
)
def test_whatever_is_thrown_costs_its_own_judgement_and_no_other(error, caplog):
    guard = JudgeGuard("the judge")
    with caplog.at_level(logging.WARNING, "rlvitals"):
        found = guard.judge(thrower(error, lambda question: question in (3, 4, 9)), list(range(11)), missing=str)
    name = type(error).__name__
    assert [one for one in found if not isinstance(one, str)] == [0, 10, 20, 50, 60, 70, 80, 100]
    assert [place for place, one in enumerate(found) if isinstance(one, str) and one.startswith(name)] == [3, 4, 9]
    (record,) = caplog.records  # once, however many there are
    assert name in record.getMessage()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_the_user_wants_ends_it(error):
    with pytest.raises(error):
        JudgeGuard("the judge").judge(thrower(error()), [1, 2], missing=str)


def test_a_judge_that_loses_count_is_asked_one_by_one():
    found = JudgeGuard("the judge").judge(lambda questions: [1] * min(2, len(questions)), list(range(5)), missing=str)
    assert found == [1] * 5
    assert "0 judgements came for 1" in JudgeGuard("the judge").judge(lambda questions: [], [1], missing=str)[0]


def test_a_reason_is_one_line_that_any_terminal_can_take():
    (reason,) = JudgeGuard("the judge").judge(thrower(ValueError("a\x1b[2J\n\ud800é" + "x" * 500)), [1], missing=str)
    assert reason.startswith(r"ValueError: a\x1b[2J\n\ud800éx")
    assert reason.isprintable()
    assert len(reason) < 300


# The offline teacher


@pytest.fixture(scope="module")
def teacher():
    kept = OfflineTeacher(seconds=0.3, memory_mib=300)
    yield kept
    kept.close()


def test_no_text_ends_the_offline_teacher_and_its_neighbours_are_judged_as_ever(teacher):
    good = [TASK.reference, answer(TASK.argument)]
    alone = [CachedTeacher(teacher).judge([AnswerToJudge(TASK, text)])[0].scores for text in good]
    cached = CachedTeacher(teacher)
    texts = [good[0], *HOSTILE.values(), good[1]]
    found = cached.judge([AnswerToJudge(TASK, text) for text in texts])
    missing = {text for text, judgement in zip(texts, found, strict=True) if judgement.scores is None}
    assert missing == set(TOO_DEEP.values())
    assert all("RecursionError" in one.reason for one in found if one.scores is None)
    assert [found[0].scores, found[-1].scores] == alone
    assert [one.scores for one in cached.judge_again([AnswerToJudge(TASK, text) for text in TOO_DEEP.values()])] == [
        None
    ] * 4


@pytest.mark.parametrize(
    "scores",
    [
        {"correctness": 1.0},
        dict.fromkeys(WEIGHTS, 1.5),
        dict.fromkeys(WEIGHTS, float("nan")),
        dict.fromkeys(WEIGHTS, "1"),
    ],
)
def test_scores_that_are_none_are_no_judgement(scores):
    class Odd(OfflineTeacher):
        def judge(self, questions):
            return [Judgement(scores)] * len(questions)

    (found,) = CachedTeacher(Odd()).judge([AnswerToJudge(TASK, "x")])
    assert found.scores is None
    assert "BadVerdict" in found.reason


def test_code_is_found_in_a_text_of_blank_lines_without_end():
    assert rlaif_tasks.code_of("```" + "\n" * 200_000) == "```"
    assert rlaif_tasks.code_of("a\n```python  \n\n\ndef f(): return 1\n```\n```\nb\n```") == "def f(): return 1"


# The process that code runs in


def stopped(own):
    """Stop the worker: it exists and does nothing."""
    own.described()
    os.kill(own._worker.pid, signal.SIGSTOP)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no such signal here")
@pytest.mark.parametrize("padding", [0, 1_000_000], ids=["short", "more than a pipe holds"])
def test_a_process_that_hangs_is_given_up_and_the_next_one_answers(monkeypatch, padding):
    monkeypatch.setattr(runner_module, "PATIENCE", 0.2)
    own = Runner(seconds=0.01)
    tests = ((f"f({1:{padding}d})", "2"),)
    try:
        stopped(own)
        with pytest.raises(CannotRun, match="no processor time"):
            own.test("def f(x): return x + 1", tests)
    finally:
        own.close()
    own = Runner()
    try:
        assert own.test("def f(x): return x + 1", (("f(1)", "2"),)).share == 1.0
    finally:
        own.close()


def test_a_question_that_was_broken_off_does_not_answer_the_next(monkeypatch):
    """Interrupted as by Ctrl-C: the process is still busy with the first request."""

    def interrupt(*_):
        raise KeyboardInterrupt

    own = Runner(seconds=20)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        own.described()
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            own.test("def f(x):\n    while True: pass", (("f(1)", "2"),))
        assert own.test("def f(x): return x + 1", (("f(1)", "2"), ("f(2)", "3"))).passed == (True, True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        own.close()


# PPO's grader


def test_no_text_ends_ppos_grader():
    grader = ppo_data.Grader()
    try:
        for text in HOSTILE.values():
            assert grader.grade(ppo_data.PromptExample(TASK.prompt, TASK.reference, TASK), text) in (0.0, *_shares())
            assert 0.0 <= grader.grade(ppo_data.PromptExample(TASK.prompt, TASK.reference), text) <= 1.0
    finally:
        grader.close()


def _shares():
    return [0.5 * passed / len(TASK.tests) for passed in range(len(TASK.tests) + 1)]


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no such signal here")
def test_an_answer_without_a_grade_is_in_no_pair(monkeypatch):
    monkeypatch.setattr(runner_module, "PATIENCE", 0.2)
    grader, example = ppo_data.Grader(), ppo_data.PromptExample(TASK.prompt, TASK.reference, TASK)
    grader._runner = Runner(seconds=0.01)
    try:
        stopped(grader._runner)
        assert grader.grade(example, TASK.reference) is None
        stopped(grader._runner)
        pairs = ppo_data.sampled_preferences([example], [[answer("0 + 0"), "no code"]], grader)
        assert [pair.rejected for pair in pairs] == ["no code"]  # rejected without the process, so it has a grade
    finally:
        grader.close()


# The mailbox


WORLD = worlds.mini(0)
ASKED = WORLD.questions[0]


def answered(grader, text="blue"):
    episode = Episode(ASKED, WORLD.mailbox, grader=grader, style="tags")
    episode.step(write_call("return_final_answer", {"answer": text, "source_message_ids": []}))
    return episode


def fails(question, text, sources):
    raise MemoryError


def test_an_answer_that_cannot_be_graded_has_no_reward_and_does_not_count_in_its_group(monkeypatch, caplog):
    monkeypatch.setattr(episode_module, "GUARD", JudgeGuard("the grader"))
    right, wrong = (lambda *_, found=found: Grade(found, float(found)) for found in (True, False))
    with caplog.at_level(logging.WARNING, "rlvitals"):
        episodes = [answered(right), answered(fails), answered(wrong), answered(fails)]
    assert len(caplog.records) == 1
    assert [one.is_judged for one in episodes] == [True, False, True, False]
    assert (episodes[1].outcome, episodes[1].reason) == ("answered", "not graded: MemoryError")
    assert episodes[1].turns[-1].outcome == "unjudged"
    assert episodes[1].reward() == {}
    (group,) = grouping.advantages([episode_module.group(episodes, "plain")])
    assert [one.reward for one in group.rollouts] == [1.0, None, 0.0, None]
    assert [one.advantage is None for one in group.rollouts] == [False, True, False, True]
    assert group.mean == 0.5
    assert group.kept
    stats = grouping.stats([group], names="canonical")
    assert (stats["reward.accuracy"].number, stats["reward.accuracy"].count) == (0.5, 2)
    assert group.rollouts[1].error == "not graded: MemoryError"


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("form", ["tags", "json", "arguments"])
def test_no_text_of_a_model_raises_in_an_episode(text, form):
    for tool, given in (
        ("search_emails", {"keywords": [text]}),
        ("read_email", {"message_id": text}),
        ("return_final_answer", {"answer": text, "source_message_ids": [text]}),
    ):
        episode = Episode(ASKED, WORLD.mailbox)
        message = {
            "tags": write_call(tool, given),
            "json": f"<tool_call>{json.dumps({'name': tool, 'arguments': given})}</tool_call>",
            "arguments": {"tool_calls": [{"id": "1", "function": {"name": tool, "arguments": json.dumps(given)}}]},
        }[form]
        for seen in episode.step(message):
            assert seen.content
        assert len(episode.turns) == 1
