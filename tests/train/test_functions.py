"""The trainers' task: the answers are as good or bad as labelled, and held-out tasks are not trained on."""

from __future__ import annotations

import ast
import random
import re

import pytest

from rlvitals.train import functions
from rlvitals.train.tiny import PIECE


def passes(task, answer):
    """Whether an answer from this repository passes all tests, by executing it here."""
    space: dict = {}
    exec(answer, space)
    for call, expected in task.tests:
        try:
            if eval(call, space) != ast.literal_eval(expected):
                return False
        except Exception:
            return False
    return True


@pytest.mark.parametrize("family", [family.name for family in functions.FAMILIES])
def test_right_answers_pass_all_tests_and_wrong_ones_fail_one(family):
    rng = random.Random(0)
    for task in functions.tasks(25, seed=3, families=[family]) + functions.tasks(
        10, seed=3, split="held_out", families=[family]
    ):
        assert passes(task, task.reference)
        answers = functions.answers(task, rng)
        assert {right for _, right in answers} == {True, False}
        for answer, right in answers:
            assert passes(task, answer) is right, answer


def test_there_are_twelve_families():
    assert len(functions.FAMILIES) == len(functions.BY_NAME) == 12


def test_training_never_pairs_a_family_with_a_held_out_constant():
    pairs = {
        split: {(task.family, task.constant) for task in functions.tasks(5000, seed=0, split=split)}
        for split in ("train", "held_out")
    }
    assert not pairs["train"] & pairs["held_out"]
    assert {family for family, _ in pairs["held_out"]} == set(functions.BY_NAME)
    assert {constant for _, constant in pairs["held_out"]} <= {constant for _, constant in pairs["train"]}


def test_a_seed_gives_the_same_tasks_and_another_seed_others():
    assert functions.tasks(40, seed=1) == functions.tasks(40, seed=1)
    assert functions.tasks(40, seed=1) != functions.tasks(40, seed=2)


def test_no_task_comes_twice_before_all_have_come():
    every = sum(1 for task in functions.every_task() if not functions.is_held_out(task))
    drawn = functions.tasks(every, seed=0)
    assert len({task.prompt for task in drawn}) == every


def test_the_corpus_holds_every_piece_of_every_prompt_and_answer():
    known = {piece for text in functions.corpus() for piece in re.findall(PIECE, text)}
    rng = random.Random(0)
    for task in functions.every_task():
        for text in (task.prompt, task.reference, *(answer for answer, _ in functions.answers(task, rng))):
            assert set(re.findall(PIECE, text)) <= known


def test_answers_come_with_and_without_documentation_whether_right_or_wrong():
    rng = random.Random(0)
    styles = {
        (right, '"' in answer, "->" in answer)
        for task in functions.tasks(60, seed=0)
        for answer, right in functions.answers(task, rng)
    }
    assert len(styles) == 8
