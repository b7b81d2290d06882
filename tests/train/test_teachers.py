"""Judging: the offline teacher's four scores, verdicts of models, the cache in front of any teacher."""

from __future__ import annotations

import ast
import json
import random

import pytest

from rlvitals.train import functions, tiny
from rlvitals.train.teachers import runner as runner_module
from rlvitals.train.teachers.base import (
    WEIGHTS,
    AnswerToJudge,
    BadVerdict,
    Judgement,
    messages,
    read_object,
    read_scores,
)
from rlvitals.train.teachers.cache import CachedTeacher
from rlvitals.train.teachers.local import LocalTeacher
from rlvitals.train.teachers.offline import OfflineTeacher, cost, documentation, quality

TASK = next(task for task in functions.every_task() if task.family == "below" and task.constant == 4)
A = TASK.argument


@pytest.fixture(scope="module")
def teacher():
    kept = OfflineTeacher(seconds=0.3)
    yield kept
    kept.close()


def scores_of(teacher, answer, task=TASK):
    return teacher.judge([AnswerToJudge(task, answer)])[0].scores


def test_the_weights_are_the_documents():
    assert dict(WEIGHTS) == {"correctness": 0.3, "quality": 0.3, "efficiency": 0.2, "documentation": 0.2}


def test_the_reward_is_the_weighted_sum():
    scores = {"correctness": 0.5, "quality": 0.25, "efficiency": 1.0, "documentation": 0.0}
    assert Judgement(scores).reward == pytest.approx(0.3 * 0.5 + 0.3 * 0.25 + 0.2)


def test_every_reference_gets_full_marks(teacher):
    for task in functions.tasks(60, seed=0):
        assert scores_of(teacher, task.reference, task) == pytest.approx(dict.fromkeys(WEIGHTS, 1.0))


def test_only_right_answers_are_fully_correct(teacher):
    rng = random.Random(1)
    for task in functions.tasks(30, seed=2):
        for answer, right in functions.answers(task, rng):
            assert (scores_of(teacher, answer, task)["correctness"] == 1.0) is right


def test_each_criterion_is_lost_on_its_own(teacher):
    direct = f"[i for i in {A} if i < 4]"
    bare = scores_of(teacher, f"def below({A}): return {direct}")
    assert bare == {"correctness": 1.0, "quality": 0.5, "efficiency": 1.0, "documentation": 0.0}
    slow = scores_of(teacher, f"def below({A}: list) -> list: return list(filter(lambda i: i < 4, {A}))")
    assert slow["correctness"] == 1.0
    assert slow["quality"] == 0.75
    assert slow["efficiency"] < 1.0
    wrong = scores_of(teacher, f'def below({A}: list) -> list: "Keep the items of {A} below 4."; return []')
    assert wrong["documentation"] == 1.0
    assert wrong["correctness"] < 1.0
    assert wrong["efficiency"] == pytest.approx(wrong["correctness"])  # it is multiplied by the share of tests passed


def test_what_is_no_function_scores_nothing_and_that_is_a_judgement(teacher):
    for answer in ("", "hello", "def below(", "def other(x): return x", "x = 3", "\0", "def below(:" * 2000):
        judgement = teacher.judge([AnswerToJudge(TASK, answer)])[0]
        assert judgement.scores == dict.fromkeys(WEIGHTS, 0.0)
        assert judgement.reason


def test_refused_code_is_not_correct_and_not_quick(teacher):
    judgement = teacher.judge([AnswerToJudge(TASK, f"def below({A}):\n    import os\n    return []")])[0]
    assert judgement.scores["correctness"] == judgement.scores["efficiency"] == 0.0
    assert "not run: Import" in judgement.reason


def test_a_judge_that_cannot_run_code_gives_no_judgement(monkeypatch):
    monkeypatch.setattr(runner_module.sys, "executable", "/nowhere/python")
    broken = OfflineTeacher()
    judgement = broken.judge([AnswerToJudge(TASK, TASK.reference)])[0]
    broken.close()
    assert judgement.scores is None
    assert judgement.reward is None
    assert "no process can be started" in judgement.reason


def function(text):
    return ast.parse(text).body[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(x: int) -> int: return x", 1.0),
        ("def f(x: int): return x", 0.75),
        ("def f(x): return x", 0.5),
        ("def f(x: int) -> int: y = x; return y", 0.75),
        ("def f(x: int) -> bool: return True if x else False", 0.75),
        ("def f(x: bool) -> bool: return x == True", 0.75),
        ("def f(x: list) -> int: return len([i for i in x])", 0.75),
        ("def f(x: int) -> int: return 3", 0.75),  # the argument is not used
        ("def f(x): y = len([a for a in x if a == True]); return y", 0.0),
    ],
)
def test_quality_counts_annotations_and_needless_things(text, expected):
    assert quality(function(text)) == expected


def test_cost_ranks_nested_loops_above_loops_above_steps():
    one, loop, nested = "x + 1", "[i for i in x]", "[i for i in x for j in x]"
    assert cost(ast.parse(one)) < cost(ast.parse(loop)) < cost(ast.parse(nested))
    by_hand = "for i in x:\n    y = y + i"
    assert cost(ast.parse(by_hand)) == 10 * (1 + 2)  # in each round: one step of the loop, an addition, an assignment


def test_documentation_asks_for_words_names_and_numbers():
    scores = [
        documentation(function(f"def below({A}): {text}\n"), TASK)
        for text in ("pass", '""; pass', '"Filter."', f'"Filter {A} please."', f'"Items of {A} below 4."')
    ]
    assert scores == pytest.approx([0.0, 0.0, 0.4, 0.8, 1.0])


# Verdicts of models


@pytest.mark.parametrize(
    "text",
    [
        '{"correctness": 1, "quality": 0.5, "efficiency": 0.25, "documentation": 0}',
        'Sure:\n```json\n{"correctness": 1.0, "quality": 0.5, "efficiency": 0.25, "documentation": 0.0}\n```\nBye {}',
        'I {think} so: {"correctness": 1, "quality": 0.5, "efficiency": 0.25, "documentation": 0, "why": "x"}',
    ],
)
def test_a_verdict_is_found_whatever_stands_around_it(text):
    assert read_scores(read_object(text)) == {
        "correctness": 1.0, "quality": 0.5, "efficiency": 0.25, "documentation": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "", "good", "[1, 2]", "{", '{"correctness": 1}', "{" * 5000,
        '{"correctness": 2, "quality": 1, "efficiency": 1, "documentation": 1}',
        '{"correctness": -0.1, "quality": 1, "efficiency": 1, "documentation": 1}',
        '{"correctness": "1", "quality": 1, "efficiency": 1, "documentation": 1}',
        '{"correctness": true, "quality": 1, "efficiency": 1, "documentation": 1}',
        '{"correctness": NaN, "quality": 1, "efficiency": 1, "documentation": 1}',
        '{"correctness": null, "quality": 1, "efficiency": 1, "documentation": 1}',
    ],
)  # fmt: skip
def test_anything_else_is_no_verdict(text):
    with pytest.raises(BadVerdict):
        read_scores(read_object(text))


def test_a_local_model_is_asked_in_its_template_and_its_unreadable_reply_is_no_judgement():
    question = AnswerToJudge(TASK, TASK.reference)
    texts = [message["content"] for message in messages(question)]
    model, tokenizer = tiny.build(texts, width=16, layers=1, heads=2, context=1000)
    local = LocalTeacher(model, tokenizer, "tiny", max_tokens=3, batch_size=2)
    chat = tokenizer.apply_chat_template(messages(question), add_generation_prompt=True, tokenize=False)
    for asked in (chat, "".join(f"{text}\n\n" for text in texts)):
        found = local.judge([question] * 3)
        assert [one.prompt_tokens for one in found] == [len(tokenizer(asked)["input_ids"])] * 3
        assert all(one.scores is None and one.is_unread and 0 < one.completion_tokens <= 3 for one in found)
        tokenizer.chat_template = None


# The cache


class Counting:
    """A teacher that counts its questions, and fails on answers that ask for it."""

    identity = "counting 1"

    def __init__(self):
        self.asked = []

    def check(self): ...

    def close(self): ...

    def judge(self, questions):
        self.asked += [question.answer for question in questions]
        return [
            Judgement(None, "no", 5, 1)
            if "fail" in question.answer
            else Judgement(dict.fromkeys(WEIGHTS, len(question.answer) / 10), "", 10, 2)
            for question in questions
        ]


def ask(cached, *answers):
    return cached.judge([AnswerToJudge(TASK, answer) for answer in answers])


def test_an_answer_is_judged_once_and_returned_in_order():
    inner = Counting()
    cached = CachedTeacher(inner)
    first = ask(cached, "aa", "b", "aa")
    assert [judgement.scores["quality"] for judgement in first] == [0.2, 0.1, 0.2]
    assert [judgement.is_cached for judgement in first] == [False, False, True]
    again = ask(cached, "b", "ccc")
    assert inner.asked == ["aa", "b", "ccc"]
    assert [judgement.is_cached for judgement in again] == [True, False]
    assert [(one.prompt_tokens, one.completion_tokens) for one in first + again] == [
        (10, 2), (10, 2), (0, 0), (0, 0), (10, 2),
    ]  # fmt: skip


def test_a_failed_judgement_is_asked_for_again_and_paid_for():
    inner = Counting()
    cached = CachedTeacher(inner)
    for _ in range(2):
        first, second = ask(cached, "fail", "fail")
        assert (first.scores, first.is_cached, first.prompt_tokens) == (None, False, 5)
        assert (second.scores, second.is_cached, second.prompt_tokens) == (None, False, 0)  # asked for once
    assert inner.asked == ["fail", "fail"]


def test_the_key_depends_on_task_and_teacher():
    other = next(task for task in functions.every_task() if task != TASK)
    inner = Counting()
    cached = CachedTeacher(inner)
    cached.judge([AnswerToJudge(TASK, "a"), AnswerToJudge(other, "a")])
    inner.identity = "counting 2"
    ask(cached, "a")
    assert inner.asked == ["a", "a", "a"]


def test_what_was_judged_survives_the_process_and_a_torn_line(tmp_path):
    file = tmp_path / "judgements.jsonl"
    ask(CachedTeacher(Counting(), file), "aa", "b", "fail")
    with file.open("a") as stream:
        stream.write('{"step": 1, "key": "x", "sco')
    inner = Counting()
    assert [judgement.is_cached for judgement in ask(CachedTeacher(inner, file), "aa", "b", "fail")] == [
        True, True, False,
    ]  # fmt: skip
    assert inner.asked == ["fail"]


def test_a_resumed_run_forgets_what_came_after_its_checkpoint(tmp_path):
    file = tmp_path / "judgements.jsonl"
    cached = CachedTeacher(Counting(), file)
    for step, answer in enumerate(("a", "bb", "ccc")):
        cached.step = step
        ask(cached, answer)
    cached.forget_after(1)
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [0, 1]
    assert [judgement.is_cached for judgement in ask(cached, "a", "bb", "ccc")] == [True, True, False]


def test_the_oldest_go_first_when_the_cache_is_full():
    inner = Counting()
    cached = CachedTeacher(inner, size=2)
    ask(cached, "a", "b", "c")
    ask(cached, "b", "c")
    assert inner.asked == ["a", "b", "c"]
    ask(cached, "a")
    assert inner.asked[-1] == "a"


def test_judging_again_asks_the_teacher_itself():
    inner = Counting()
    cached = CachedTeacher(inner)
    ask(cached, "a")
    (again,) = cached.judge_again([AnswerToJudge(TASK, "a")])
    assert (again.is_cached, again.prompt_tokens) == (False, 10)
    assert inner.asked == ["a", "a"]
