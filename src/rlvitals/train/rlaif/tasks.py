"""RLAIF's tasks (generated, or read from a file and checked), its warmed-up student, and the code in its answers."""

from __future__ import annotations

import ast
import random
import re
from typing import Any, NamedTuple

import torch

from rlvitals.errors import ConfigError
from rlvitals.train import functions, models, supervised, tiny
from rlvitals.train.functions import FunctionTask
from rlvitals.train.jsonl import JsonLine, read_rows
from rlvitals.train.rlaif.settings import RLAIFSettings

CONTEXT = 128
"""Tokens a tiny student can read and write; the longest task with the longest answer has fewer than 100."""

FENCED = re.compile(r"```\w*[^\S\n]*\n(.*?)```", re.DOTALL)


def read_tasks(file: str) -> list[FunctionTask]:
    """The tasks of a JSONL file. The first wrong line raises an error that names it."""
    rows = read_rows(file, ("prompt", "entry_point", "reference", "tests"))
    return [
        FunctionTask("dataset", row.text("prompt"), row.text("reference"), row.text("entry_point"), _tests(row), "", 0)
        for row in rows
    ]


def _tests(row: JsonLine) -> tuple[tuple[str, str], ...]:
    tests = row.values["tests"]
    if not isinstance(tests, list) or not tests:
        raise ConfigError(f"{row.where}: tests must be a list of [call, expected] pairs, at least one")
    return tuple(_test(row.where, test) for test in tests)


def _test(where: str, test: Any) -> tuple[str, str]:
    match test:
        case [str(call), str(expected)]:
            try:
                ast.literal_eval(expected)
            except (ValueError, SyntaxError):
                raise ConfigError(
                    f"{where}: the test {call!r} expects {expected!r}, which is not a literal of Python"
                ) from None
            return call, expected
    raise ConfigError(f"{where}: a test must be two texts, a call and the expected literal, not {str(test)[:60]!r}")


class Split(NamedTuple):
    """The tasks to train on and the held-out ones."""

    train: list[FunctionTask]
    held_out: list[FunctionTask]


def split_tasks(settings: RLAIFSettings) -> Split:
    """The tasks that the settings name; at most `eval_tasks` of them are held out."""
    seed, most = settings.seed, settings.eval_tasks
    train = functions.tasks(settings.tasks, seed=seed) if settings.dataset is None else read_tasks(settings.dataset)
    if settings.eval_dataset:
        return Split(train, read_tasks(settings.eval_dataset)[:most])
    if settings.dataset is None:
        return Split(train, functions.tasks(most, seed=seed, split="held_out"))
    random.Random(seed).shuffle(train)  # noqa: S311
    cut = max(1, round(len(train) * settings.eval_share))
    if cut >= len(train):
        raise ConfigError(
            f"dataset {settings.dataset!r} has {len(train)} tasks: too few to hold {cut} out for evaluation"
        )
    return Split(train[cut:], train[:cut][:most])


def warmed_up(
    seed: int, *, steps: int, batch_size: int, learning_rate: float, device: torch.device | str = "cpu"
) -> models.Loaded:
    """A tiny student, trained on right and wrong answers in all styles. It writes them in the same proportions."""
    model: Any
    model, tokenizer = tiny.build(functions.corpus(), context=CONTEXT, seed=seed)
    rng = random.Random(f"warm-up {seed}")  # noqa: S311
    texts = [
        (task.prompt, answer) for task in functions.tasks(2000, seed=seed) for answer, _ in functions.answers(task, rng)
    ]

    def encode(text: tuple[str, str]) -> supervised.Pair:
        prompt, answer = tokenizer(list(text))["input_ids"]
        return prompt, [*answer, tokenizer.eos_token_id]

    model.to(device)
    if steps:
        course = supervised.TrainingCourse(steps, batch_size, learning_rate, torch.Generator().manual_seed(seed))
        supervised.warm_up(model, supervised.Tokenized(texts, encode), course, tokenizer.pad_token_id)
    return models.Loaded(model.cpu(), tokenizer)


def prompt_ids(task: FunctionTask, tokenizer: Any, *, is_chat: bool) -> list[int]:
    """A task as the student's prompt: in the chat template if `is_chat`, otherwise the bare text."""
    if is_chat:
        asked = f"{task.prompt.strip()} Answer with the function's code alone."
        return models.chat_ids(tokenizer, [{"role": "user", "content": asked}])
    ids: list[int] = tokenizer(task.prompt)["input_ids"]
    return ids


def code_of(text: str) -> str:
    r"""The code in an answer: the content of the first fence, or the whole text.

    >>> code_of("Here you are:\n```python\ndef f(): return 1\n```")
    'def f(): return 1'
    >>> code_of("def f(): return 1")
    'def f(): return 1'
    """
    fenced = FENCED.search(text)
    return (fenced[1] if fenced else text).strip()
