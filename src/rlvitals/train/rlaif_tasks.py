"""What RLAIF trains on: tasks (made, or read from a file and checked), a warmed-up student, the code in its answers."""

from __future__ import annotations

import ast
import json
import random
import re
from pathlib import Path
from typing import Any

import torch

from rlvitals.errors import ConfigError
from rlvitals.train import functions, models, supervised, tiny
from rlvitals.train.functions import Task

CONTEXT = 128
"""Tokens a tiny student can read and write; the longest task with the longest answer has fewer than 100."""

FENCED = re.compile(r"```\w*[^\S\n]*\n(.*?)```", re.DOTALL)


def read_tasks(file: str) -> list[Task]:
    """The tasks of a JSONL file; the first line that is wrong is an error that names it."""
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"dataset {file!r}: there is no such file")
    found = [
        _task(f"{file}:{number}", line)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if line.strip()
    ]
    if not found:
        raise ConfigError(f"dataset {file!r} is empty: it needs a task on each line")
    return found


def _task(where: str, line: str) -> Task:
    try:
        row = json.loads(line)
    except ValueError:
        raise ConfigError(f"{where}: this line is no JSON object") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: a task is a JSON object, not {type(row).__name__}")
    if missing := [name for name in ("prompt", "entry_point", "reference", "tests") if name not in row]:
        raise ConfigError(f"{where}: the task lacks {', '.join(missing)}")
    for name in ("prompt", "entry_point", "reference"):
        if not isinstance(row[name], str) or not row[name].strip():
            raise ConfigError(f"{where}: {name} must be a text that is not empty")
    if not isinstance(row["tests"], list) or not row["tests"]:
        raise ConfigError(f"{where}: tests must be a list of [call, expected] pairs, at least one")
    return Task("dataset", row["prompt"], row["reference"], row["entry_point"], tuple(map(_test, row["tests"])), "", 0)


def _test(test: Any) -> tuple[str, str]:
    match test:
        case [str(call), str(expected)]:
            try:
                ast.literal_eval(expected)
            except (ValueError, SyntaxError):
                raise ConfigError(f"the test {call!r} expects {expected!r}, which is no literal of Python") from None
            return call, expected
    raise ConfigError(f"a test must be two texts, a call and the literal it gives, not {str(test)[:60]!r}")


def split_tasks(
    dataset: str | None, eval_dataset: str | None, *, share: float, count: int, eval_count: int, seed: int
) -> tuple[list[Task], list[Task]]:
    """The tasks to train on and the held-out ones."""
    if dataset is None:
        made = functions.tasks(count, seed=seed)
        held = read_tasks(eval_dataset) if eval_dataset else functions.tasks(eval_count, seed=seed, split="held_out")
        return made, held[:eval_count]
    read = read_tasks(dataset)
    if eval_dataset:
        return read, read_tasks(eval_dataset)[:eval_count]
    random.Random(seed).shuffle(read)  # noqa: S311
    cut = max(1, round(len(read) * share))
    if cut >= len(read):
        raise ConfigError(f"dataset {dataset!r} has {len(read)} tasks: too few to hold {cut} out for evaluation")
    return read[cut:], read[:cut][:eval_count]


def warmed_up(
    seed: int, *, steps: int, batch_size: int, learning_rate: float, device: torch.device | str = "cpu"
) -> models.Loaded:
    """A tiny student that has read right and wrong answers in all styles: it writes them in the proportions it saw."""
    model: Any
    model, tokenizer = tiny.build(functions.corpus(), context=CONTEXT, seed=seed)
    rng = random.Random(f"warm-up {seed}")  # noqa: S311
    end = tokenizer.eos_token_id
    texts = [
        (task.prompt, answer) for task in functions.tasks(2000, seed=seed) for answer, _ in functions.answers(task, rng)
    ]
    prompts, answers = (tokenizer(list(column))["input_ids"] for column in zip(*texts, strict=True))  # all at once
    pairs = [(prompt, [*answer, end]) for prompt, answer in zip(prompts, answers, strict=True)]
    model.to(device)
    if steps:
        supervised.warm_up(
            model, pairs, steps=steps, batch_size=batch_size, learning_rate=learning_rate,
            pad_id=tokenizer.pad_token_id, generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
    return models.Loaded(model.cpu(), tokenizer)


def prompt_ids(task: Task, tokenizer: Any, *, is_chat: bool) -> list[int]:
    """A task as the student reads it: as a chat where it knows chats, else the bare text."""
    if not is_chat:
        ids: list[int] = tokenizer(task.prompt)["input_ids"]
        return ids
    asked = [{"role": "user", "content": f"{task.prompt.strip()} Answer with the function's code alone."}]
    text = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    chat: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return chat


def code_of(text: str) -> str:
    r"""The code in an answer: what stands in the first fence, or all of it.

    >>> code_of("Here you are:\n```python\ndef f(): return 1\n```")
    'def f(): return 1'
    >>> code_of("def f(): return 1")
    'def f(): return 1'
    """
    fenced = FENCED.search(text)
    return (fenced[1] if fenced else text).strip()
