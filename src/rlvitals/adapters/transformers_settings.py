"""Interprets a Hugging Face trainer's arguments and log events: the algorithm, the settings, the kind of event.

Recognises objects of transformers and TRL by their attributes and imports neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rlvitals import catalog
from rlvitals.adapters.framework import plain_config
from rlvitals.splits import is_held_out, is_of_whole_training

Event = Literal["train", "eval", "summary"]

_SUMMARY = frozenset({"train_runtime", "train_loss"})
_BESIDE = frozenset({"epoch", "num_input_tokens_seen"})
"""Keys that transformers adds to every event."""


def algorithm_of(args: object) -> str | None:
    """The algorithm that the arguments belong to; None for a plain `TrainingArguments`. A subclass of one of TRL's
    classes counts as that class.

    >>> class KTOConfig: pass
    >>> class MyConfig(KTOConfig): pass
    >>> algorithm_of(MyConfig())
    'kto'
    """
    named = (kind.__name__ for kind in type(args).__mro__ if kind.__name__.endswith("Config"))
    return next((known.id for name in named if (known := catalog.algorithm(name)) is not None), None)


def names_of(args: object) -> str:
    """The framework id for the metric names of such a trainer. In TRL, `kl` means something else in each trainer."""
    return catalog.reader("trl", algorithm_of(args)).framework or "trl"


def event_of(logs: Mapping[str, Any]) -> Event:
    """The kind of a log event: a training step, an evaluation, or the summary at the end of the training.

    >>> event_of({"loss": 0.6, "learning_rate": 1e-4, "epoch": 0.1})
    'train'
    >>> event_of({"eval_loss": 0.7, "eval_runtime": 1.2, "epoch": 0.1}), event_of({"test_f1": 0.7, "test_runtime": 1.2})
    ('eval', 'eval')
    >>> event_of({"train_runtime": 60.0, "train_loss": 0.65, "total_flos": 1e9, "epoch": 1.0})
    'summary'
    """
    if logs.keys() >= _SUMMARY:
        return "summary"
    if "loss" in logs:
        return "train"
    names = logs.keys() - _BESIDE
    if any(name.endswith("_runtime") and name != "train_runtime" for name in names):
        return "eval"
    return "eval" if names and all(is_held_out(name) for name in names) else "train"


def is_of_the_summary(name: str) -> bool:
    """Whether a key of the last event describes the whole training. TRL also adds means of steps that were not logged
    yet; those do not.

    >>> [is_of_the_summary(name) for name in ("train_runtime", "total_flos", "epoch", "rewards/margins")]
    [True, True, True, False]
    """
    return name in _BESIDE or is_of_whole_training(name)


def settings_of(args: Any, model: Any, train_dataloader: Any) -> dict[str, Any]:
    """The settings to record: the trainer's arguments under their own names, the model's configuration under `model`,
    the model's size, and the number of training examples.
    """
    settings: dict[str, Any] = plain_config(args.to_sanitized_dict())
    for name in ("world_size", "n_gpu"):  # properties, not fields; the cost of a training is computed from them
        if isinstance(count := getattr(args, name, None), int):
            settings[name] = count
    beta = getattr(args, "beta", None)
    if isinstance(beta, list | tuple) and len(beta) == 1:  # OnlineDPO has one per epoch; rules read a number
        settings["beta"] = beta[0]
    described = getattr(getattr(model, "config", None), "to_dict", None)
    if callable(described):
        settings["model"] = plain_config(described())
    counted = getattr(model, "num_parameters", None)
    if callable(counted):
        settings["model_parameters"] = counted()
    examples = _size(getattr(train_dataloader, "dataset", None))
    if examples is not None:
        settings["train_examples"] = examples
    return settings


def _size(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:  # a stream has no length
        return None
