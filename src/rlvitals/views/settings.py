"""Settings of several runs: which are bookkeeping, which vary, and which runs differ only in their seed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlvitals.config import flatten

SEEDS = frozenset({"seed", "random_seed", "data_seed", "rng_seed"})
PLACES = frozenset({"name", "exp_name", "run_name", "output_dir", "logging_dir"})
"""Settings that usually differ between runs of one experiment."""

_BOOKKEEPING = re.compile(
    r"""(?:^|_)(?:id|ids|uuid|guid|timestamp|time|date|datetime|host|hostname|node|nodes|pid|port|addr|address|user|version
    |commit|branch|argv|command|cwd|dir|dirs|folder|path_prefix|started|created|updated|rank|world_size|n_gpu)$
    |^_name_or_path$  # where transformers loaded a model from; which one it is, model_name_or_path and its sizes say
    |^(?:git|wandb|mlflow|swanlab|trackio|tensorboard|comet|hub)(?:_|$)|^(?:experiment_name|project|project_name)$""",
    re.VERBOSE,
)
"""The last part of names that differ between any two runs: ids, folders, times, machines, versions."""

_KEPT = frozenset({"dataset_dir", "data_dir", "max_time", "pad_token_id", "eos_token_id", "bos_token_id"})
"""Names that match this pattern but affect the training."""

MOST_IN_LABEL = 4
"""Maximum settings in the label of a family of runs."""


def is_bookkeeping(key: str) -> bool:
    """Whether a setting describes who ran it, where and when, not what was trained.

    >>> [is_bookkeeping(key) for key in ("rlvitals.monitor", "args.output_dir", "run_id", "lr", "data_dir", "grid")]
    [True, True, True, False, False, False]
    """
    name = key.rpartition(".")[2].lower()
    if name in _KEPT:
        return False
    return key.startswith("rlvitals.") or name in PLACES or _BOOKKEEPING.search(name) is not None


def is_seed(key: str) -> bool:
    """Whether a setting is a random seed."""
    return key.rpartition(".")[2] in SEEDS


def plain_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted key, each a number, a text, a boolean or None. Other values are written as JSON."""
    return {key: _plain(value) for key, value in flatten(config).items()}


def setting_of(settings: Mapping[str, Any], name: str) -> Any:
    """A setting by its dotted key, or by the last part of the key if all settings with this part have the same value.

    >>> setting_of({"args.lr": 1e-6, "seed": 1}, "lr"), setting_of({"a.lr": 1, "b.lr": 2}, "lr")
    (1e-06, None)
    """
    if name in settings:
        return settings[name]
    found = [value for key, value in settings.items() if key.endswith(f".{name}")]
    return found[0] if found and all(value == found[0] for value in found) else None


def families(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Run -> the label of its family. Runs that differ only in seeds and bookkeeping form a family. Its label has the
    settings in which the families differ.

    >>> families({"a": {"lr": 1, "seed": 1}, "b": {"lr": 1, "seed": 2}, "c": {"lr": 2, "seed": 1}})
    {'a': 'lr=1', 'b': 'lr=1', 'c': 'lr=2'}
    """
    own = {
        run: {key: value for key, value in settings.items() if not is_bookkeeping(key) and not is_seed(key)}
        for run, settings in runs.items()
    }
    keys = varying(own.values())
    having = {key: sum(key in settings for settings in own.values()) for key in keys}
    keys.sort(key=lambda key: -having[key])  # settings of most runs first
    return {run: _label(settings, keys) for run, settings in own.items()}


def _label(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The label of a family. A digest stands for omitted settings, so that no two families have the same label."""
    if not keys:
        return "the same settings"
    parts = [f"{key}={value_text(settings[key])}" for key in keys[:MOST_IN_LABEL] if key in settings]
    if len(keys) > len(parts):
        parts.append(f"+{_digest(settings, keys)}")
    return ", ".join(parts)


def varying(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The settings that are not the same in all runs, in order."""
    flat = list(runs)
    keys = sorted(set().union(*flat)) if flat else []
    return [key for key in keys if any(settings.get(key) != flat[0].get(key) for settings in flat[1:])]


def _digest(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    """A short digest of all settings in which the families differ."""
    text = json.dumps([[key, settings[key]] for key in keys if key in settings], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return json.dumps(value, default=str, ensure_ascii=False)


def value_text(value: Any) -> str:
    """A setting's value in a label."""
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)[:40]
