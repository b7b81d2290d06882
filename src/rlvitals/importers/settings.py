"""Reads the training's settings from console output: arguments, banners, printed settings. Nothing is guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rlvitals.importers.cells import number_in, number_of

SETTINGS = (
    "num_generations", "max_completion_length", "max_prompt_length", "learning_rate", "beta", "max_steps",
    "num_train_epochs", "max_turns",
)  # fmt: skip

_PATHS = {
    "actor_rollout_ref/rollout/n": "num_generations",
    "data/max_response_length": "max_completion_length",
    "data/max_prompt_length": "max_prompt_length",
    "actor_rollout_ref/actor/optim/lr": "learning_rate",
    "actor_rollout_ref/rollout/multi_turn/max_assistant_turns": "max_turns",
    "trainer/total_training_steps": "max_steps",
    "trainer/total_epochs": "num_train_epochs",
}
"""verl's (Hydra's) names."""

_BANNERS = {
    re.compile(r"\bTotal (?:optimization )?steps\s*=\s*([\d,]+)"): "max_steps",
    re.compile(r"\bTotal training steps\s*[:=]\s*([\d,]+)"): "max_steps",
    re.compile(r"\bNum Epochs\s*=\s*([\d,]+)"): "num_train_epochs",
}
_FLAG = re.compile(r"--([A-Za-z][\w.-]*)(?:=|\s+)['\"]?([+-]?[\d.][\w.+-]*)")
_EQUALS = re.compile(r"\b([a-z_][\w.]*)=['\"]?([+-]?[\d.][\w.+-]*)")
_SETTING = re.compile(
    r"output_dir|per_device|_name_or_path|vocab_size|weight_decay|adam_|warmup|num_train_epochs|batch_size$|token_id|"
    r"^zero_|^gradient_accumulation_steps$|_warmup_steps_ratio$|"
    r"^model(?:_name)?$|^seed$"
)
_HINTS = ("--", "=", "Total ")


def settings_in(line: str, *, is_beginning: bool = True) -> dict[str, Any]:
    """The settings in one line of console output. `name=1` counts only before the training's first row; later it may be
    part of a sample.

    >>> settings_in("python train.py --num-generations 4 --learning-rate 5e-6 data.max_response_length=512")
    {'num_generations': 4, 'learning_rate': 5e-06, 'max_completion_length': 512}
    """
    if not any(hint in line for hint in _HINTS) or len(line) > 20_000:
        return {}
    found: dict[str, Any] = {}
    for pattern, name in _BANNERS.items():
        banner = pattern.search(line)
        if banner:
            found[name] = int(banner[1].replace(",", ""))
    for name, value in (*_FLAG.findall(line), *(_EQUALS.findall(line) if is_beginning else ())):
        number = number_in(value.rstrip("."))
        known = name.replace("-", "_")
        known = _PATHS.get(known.replace(".", "/"), known)
        is_optimizers = known == "beta" and "--beta" not in line and "Config(" not in line
        if known in SETTINGS and number is not None and number > 0 and not is_optimizers:
            found.setdefault(known, number)
    return found


def are_settings(mapping: Mapping[Any, Any]) -> bool:
    """Whether a mapping is a configuration rather than a row of metrics."""
    return any(_SETTING.search(str(name)) for name in mapping) or any(_at(mapping, path) is not None for path in _PATHS)


def settings_of(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    """The settings in a printed configuration."""
    found: dict[str, Any] = {}
    for path, name in _PATHS.items():
        number = number_of(_at(mapping, path))
        if number is not None and number > 0:
            found[name] = number
    if _at(mapping, "actor_rollout_ref/actor/use_kl_loss") is True:
        beta = number_of(_at(mapping, "actor_rollout_ref/actor/kl_loss_coef"))
        found |= {"beta": beta} if beta is not None else {}
    for name in SETTINGS:
        number = number_of(mapping.get(name))
        if number is not None and (number > 0 or name == "beta"):
            found[name] = number
    return found


def _at(mapping: Mapping[Any, Any], path: str) -> Any:
    value: Any = mapping
    for part in path.split("/"):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
