"""KTO's data: single answers marked good or bad. Read from a JSONL file, or generated from the functions task.

Everything is checked here, before a model is built or a step is trained; an error names the line.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.train import functions
from rlvitals.train.jsonl import JsonLine, read_rows

Text = str | list[dict[str, Any]]
"""Plain text, or the messages of a chat, each with `role` and `content`."""


@dataclass(frozen=True, slots=True)
class LabelledAnswer:
    """One answer to a prompt, and whether it is a good one."""

    prompt: Text
    completion: Text
    label: bool


class Preferences(NamedTuple):
    """The data of a run. No prompt is in both parts."""

    train: list[LabelledAnswer]
    held_out: list[LabelledAnswer]


class ClassWeights(NamedTuple):
    """Factors for the losses of good and bad answers."""

    desirable: float
    undesirable: float


def make(count: int, *, seed: int, held_out_share: float) -> Preferences:
    """One answer to each of `count` tasks, right (good) or wrong (bad) at random.

    Right and wrong answers have the same styles, so that only the content distinguishes them. The held-out tasks ask
    for constants that their family never has in training.
    """
    held_out = round(count * held_out_share)
    return Preferences(_made(count - held_out, seed, "train"), _made(held_out, seed, "held_out"))


def _made(count: int, seed: int, split: Any) -> list[LabelledAnswer]:
    rng = random.Random(f"preferences {split} {seed}")  # noqa: S311
    drawn = (
        (task, rng.choice(functions.answers(task, rng))) for task in functions.tasks(count, seed=seed, split=split)
    )
    return [LabelledAnswer(task.prompt, answer, right) for task, (answer, right) in drawn]


def read(path: str) -> list[LabelledAnswer]:
    """The examples of a JSONL file, in its order. A line that is not an example raises an error that names it."""
    examples = [_example(row) for row in read_rows(path, ("prompt", "completion", "label"), _hint)]
    if len({isinstance(example.prompt, list) for example in examples}) > 1:
        raise ConfigError(f"{path} mixes chats (lists of messages) and plain texts; a dataset is one or the other")
    return examples


def split(examples: Sequence[LabelledAnswer], *, held_out_share: float, seed: int) -> Preferences:
    """Shuffle, and hold out a share of the prompts with all of their answers."""
    rng = random.Random(f"split {seed}")  # noqa: S311
    shuffled = list(examples)
    rng.shuffle(shuffled)
    prompts = sorted({_key(example) for example in shuffled})
    chosen = set(rng.sample(prompts, round(len(prompts) * held_out_share)))
    return Preferences(
        [example for example in shuffled if _key(example) not in chosen],
        [example for example in shuffled if _key(example) in chosen],
    )


def check(train: Sequence[LabelledAnswer], batch_size: int, where: str) -> None:
    """Raise ConfigError if KTO cannot learn from these examples."""
    counts = Counter(example.label for example in train)
    for label, what in ((True, "good (label true)"), (False, "bad (label false)")):
        if not counts[label]:
            raise ConfigError(
                f"{where} has {len(train)} examples for training and none is {what}: KTO needs both kinds"
            )
    if len(train) < batch_size:
        raise ConfigError(f"{where} has {len(train)} examples for training, fewer than one batch: lower batch_size")


def class_weights(train: Sequence[LabelledAnswer], desirable: float | None, undesirable: float | None) -> ClassWeights:
    """The given weights. A weight that is None is chosen so that weight times count is the same for both classes.

    If both are None, the rarer class gets a higher weight and the other keeps 1. The KTO paper recommends a ratio of
    desirable to undesirable (weight times count) between 1 and 4/3; this is 1.

    >>> data = [LabelledAnswer("p", "a", True)] * 30 + [LabelledAnswer("p", "b", False)] * 10
    >>> class_weights(data, None, None)
    ClassWeights(desirable=1.0, undesirable=3.0)
    >>> class_weights(data, 2.0, None)
    ClassWeights(desirable=2.0, undesirable=6.0)
    """
    good = sum(example.label for example in train)
    ratio = good / (len(train) - good)
    if desirable is None and undesirable is None:
        return ClassWeights(max(1.0, 1 / ratio), max(1.0, ratio))
    if desirable is None:
        return ClassWeights((undesirable or 0.0) / ratio, undesirable or 0.0)
    return ClassWeights(desirable, desirable * ratio if undesirable is None else undesirable)


def texts(examples: Iterable[LabelledAnswer]) -> list[str]:
    """Every text in the examples, to build a tokenizer from."""
    return [text for example in examples for part in (example.prompt, example.completion) for text in _plain(part)]


def _plain(part: Text) -> list[str]:
    return [part] if isinstance(part, str) else [str(message["content"]) for message in part]


def _key(example: LabelledAnswer) -> str:
    return example.prompt if isinstance(example.prompt, str) else repr(example.prompt)


def _example(row: JsonLine) -> LabelledAnswer:
    where, label = row.where, row.values["label"]
    prompt, completion = (_text(row.values[column], column, where) for column in ("prompt", "completion"))
    if isinstance(prompt, list) != isinstance(completion, list):
        raise ConfigError(f"{where}: prompt and completion must both be texts, or both be lists of messages")
    if not isinstance(label, bool) and (not isinstance(label, int) or label not in (0, 1)):
        raise ConfigError(f"{where}: label must be true or false (or 1 or 0), not {label!r}")
    return LabelledAnswer(prompt, completion, bool(label))


def _hint(column: str, row: dict[str, Any]) -> str:
    if {"chosen", "rejected"} <= row.keys():
        return " A pair (chosen, rejected) becomes two lines: the chosen one with label true, the rejected with false."
    return did_you_mean(column, map(str, row))


def _text(value: Any, column: str, where: str) -> Text:
    if isinstance(value, str):
        if not value.strip() and column == "completion":
            raise ConfigError(f"{where}: {column} is empty")
        return value
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where}: {column} must be a text or a list of messages, not {value!r}")
    for message in value:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise ConfigError(f"{where}: each message of {column} needs the texts role and content, not {message!r}")
    return value
