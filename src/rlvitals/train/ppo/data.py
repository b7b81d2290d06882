"""PPO's data: prompts with their references, demonstrations, and pairs of answers of which one was preferred.

Without a file this is the functions task (`functions.py`) in its plain style, without annotations, docstrings and
detours, so that a tiny model learns the form in a minute. The demonstrations include right and wrong answers, so that
some answers can be preferred. `dataset` and `preferences` are files with the user's data.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TypeVar

from rlvitals.errors import ConfigError
from rlvitals.train import functions
from rlvitals.train.functions import FunctionTask
from rlvitals.train.jsonl import read_rows
from rlvitals.train.judge_guard import JudgeGuard
from rlvitals.train.ppo.settings import PPOSettings
from rlvitals.train.teachers.runner import Runner

T = TypeVar("T")

PREFERENCES_A_TASK = 3
HELD_OUT_PREFERENCES = 256
ALMOST_RIGHT = 0.5
"""The limit of the grade of an answer that fails a test. An answer that passes all tests gets 1."""


@dataclass(frozen=True, slots=True)
class PromptExample:
    """A prompt and a good answer to it."""

    prompt: str
    reference: str
    task: FunctionTask | None = None
    """The task with the tests that grade an answer, if there are any."""


@dataclass(frozen=True, slots=True)
class Preference:
    """Two answers to a prompt, of which the first was preferred."""

    prompt: str
    chosen: str
    rejected: str


@dataclass(frozen=True, slots=True)
class Data:
    """All data of a training run."""

    examples: list[PromptExample]
    held_out: list[PromptExample]
    demonstrations: list[tuple[str, str]]
    preferences: list[Preference]
    held_out_preferences: list[Preference]


def data_of(settings: PPOSettings) -> Data:
    """The data that the settings name, checked before training."""
    if settings.dataset is None:
        return made(settings.seed, families=settings.families, held_out=settings.held_out)
    return read(settings.dataset, settings.preferences, held_out=settings.held_out)


def made(seed: int, *, families: tuple[str, ...], held_out: int) -> Data:
    """The data of the functions task, generated from a seed."""
    if unknown := set(families) - set(functions.BY_NAME):
        known = ", ".join(functions.BY_NAME)
        raise ConfigError(f"families: there is no family {sorted(unknown)[0]!r} of functions; there are {known}")
    rng = random.Random(seed)  # noqa: S311
    chosen = families or None
    count = sum(not functions.is_held_out(task) for task in functions.every_task(chosen))
    tasks = functions.tasks(count, seed=seed, families=chosen)
    others = functions.tasks(max(held_out, HELD_OUT_PREFERENCES), seed=seed, split="held_out", families=chosen)
    return Data(
        examples=[_example(task) for task in tasks],
        held_out=[_example(task) for task in others[:held_out]],
        demonstrations=[(task.prompt, answer) for task in tasks for answer, _ in _plain_answers(task, rng)],
        preferences=[_preference(task, tasks, rng) for task in tasks for _ in range(PREFERENCES_A_TASK)],
        held_out_preferences=[_preference(task, others, rng) for task in others[:HELD_OUT_PREFERENCES]],
    )


def _example(task: FunctionTask) -> PromptExample:
    family = functions.BY_NAME[task.family]
    plain = functions.function(task, family.best.format(a=task.argument, k=task.constant))
    return PromptExample(task.prompt, plain, task)


def _plain_answers(task: FunctionTask, rng: random.Random) -> list[tuple[str, bool]]:
    """Right and wrong answers in the plain style."""
    return [
        (answer, is_right)
        for answer, is_right in functions.answers(task, rng)
        if '"' not in answer and "->" not in answer and (not is_right or answer == _example(task).reference)
    ]


def _preference(task: FunctionTask, tasks: list[FunctionTask], rng: random.Random) -> Preference:
    """A right answer preferred over a wrong one, or over the right answer to another task of the same family."""
    plain: list[tuple[str, bool]] = []
    while not {True, False} <= {is_right for _, is_right in plain}:
        plain += _plain_answers(task, rng)
    right = rng.choice([answer for answer, is_right in plain if is_right])
    wrong = rng.choice([answer for answer, is_right in plain if not is_right])
    if rng.random() < 0.5:
        like = [other for other in rng.sample(tasks, min(len(tasks), 100)) if other.family == task.family]
        mixed_up = (_example(other).reference for other in like)  # the first that differs is enough
        wrong = next((answer for answer in mixed_up if answer != _example(task).reference), wrong)
    return Preference(task.prompt, right, wrong)


def sampled_preferences(examples: list[PromptExample], sampled: list[list[str]], grader: Grader) -> list[Preference]:
    """Pairs of a model's answers to each prompt: a right answer is preferred over each wrong one. If none is right, the
    reference is preferred. An answer without a grade is in no pair.
    """
    pairs = []
    for example, texts in zip(examples, sampled, strict=True):
        grades = {text: grader.grade(example, text) for text in texts}
        right = [text for text in texts if grades[text] == 1.0]
        wrong = [text for text in texts if grades[text] is not None and text not in right]
        chosen = right[0] if right else example.reference
        pairs += [Preference(example.prompt, chosen, text) for text in wrong]
    return pairs


class Grader:
    """Grades answers by the true objective, which the reward model never sees: by tests if there are any, otherwise by
    the overlap with the reference (ROUGE-L).
    """

    def __init__(self) -> None:
        self._runner = Runner()
        self._guard = JudgeGuard("the grader")

    def grade(self, example: PromptExample, answer: str) -> float | None:
        """From 0 to 1; an answer that fails a test gets at most half. None if it cannot be graded."""
        return self._guard.judge_one(lambda: self._grade(example, answer), missing=lambda _: None)

    def _grade(self, example: PromptExample, answer: str) -> float | None:
        if example.task is None:
            from rlvitals.textscore import rouge_l

            return float(rouge_l(answer, example.reference))
        tested = self._runner.test(answer, example.task.tests)
        return 1.0 if all(tested.passed) else ALMOST_RIGHT * tested.share

    def close(self) -> None:
        self._runner.close()


def read(dataset: str, preferences: str | None, *, held_out: int) -> Data:
    """The user's files: `dataset` has `prompt` and `reference` on each line, `preferences` has `prompt`, `chosen` and
    `rejected`. The last lines of each are held out.
    """
    rows = read_rows(dataset, ("prompt", "reference"))
    examples = [PromptExample(row.text("prompt"), row.text("reference")) for row in rows]
    if len(examples) < 2:
        raise ConfigError(
            f"dataset {dataset!r} has {len(examples)} example(s): at least 2 are needed, one for evaluation"
        )
    examples, others = _split(examples, held_out)
    pairs, other_pairs = _split([] if preferences is None else _read_pairs(preferences), HELD_OUT_PREFERENCES)
    demonstrations = [(example.prompt, example.reference) for example in examples]
    return Data(examples, others, demonstrations, pairs, other_pairs)


def _split(items: list[T], most: int) -> tuple[list[T], list[T]]:
    """The items to train on, and the last fifth, at most `most`."""
    cut = len(items) - min(most, max(1, len(items) // 5))
    return items[:cut], items[cut:]


def _read_pairs(preferences: str) -> list[Preference]:
    columns = ("prompt", "chosen", "rejected")
    pairs = [Preference(*map(row.text, columns)) for row in read_rows(preferences, columns)]
    same = next((number for number, pair in enumerate(pairs, 1) if pair.chosen == pair.rejected), None)
    if same is not None:
        raise ConfigError(f"preferences {preferences!r}, pair {same}: chosen and rejected are the same text")
    if len(pairs) < 2:
        raise ConfigError(f"preferences {preferences!r} has {len(pairs)} pair(s): at least 2 are needed")
    return pairs
