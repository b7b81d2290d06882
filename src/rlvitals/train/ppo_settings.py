"""PPO's settings, and what they must be to work together: said before anything is loaded, built or written."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.train import models

TEXT_SCORES = {"bertscore": "bertscore", "codebleu": "codebleu", "bleu": "bleu", "rouge": "rouge_l", "ruby": "ruby"}
"""The document's names, and the functions of `rlvitals.textscore`."""

AT_LEAST_ONE = (
    "max_steps", "batch_size", "minibatch_size", "ppo_epochs", "max_new_tokens", "held_out", "warm_up_batch",
    "reward_model_steps", "reward_model_batch", "steps_per_epoch", "logging_steps", "save_steps",
)  # fmt: skip
NOT_NEGATIVE = (
    "learning_rate", "value_learning_rate", "warm_up_learning_rate", "reward_model_learning_rate", "warm_up_steps",
    "reward_clip", "missing_eos_penalty", "value_clip", "value_coef", "entropy_coef", "kl_coef", "kl_loss_coef",
    "truncated_weight", "eval_steps", "early_stopping", "warmup_steps",
)  # fmt: skip
ABOVE_ZERO = (
    "temperature", "clip_range", "clip_range_high", "dual_clip", "max_grad_norm", "kl_target", "kl_horizon",
    "keep_last", "microbatch_size",
)  # fmt: skip
SHARES = ("gamma", "gae_lambda", "reward_model_noise")


@dataclass(frozen=True, slots=True)
class Settings:
    """What `recipes/ppo.yaml` explains."""

    output_dir: str
    model_size: str | None
    model: str | None
    dataset: str | None
    preferences: str | None
    families: tuple[str, ...]
    held_out: int
    chat: bool | None
    seed: int
    warm_up_steps: int | None
    warm_up_batch: int
    warm_up_learning_rate: float | None
    reward: str
    reward_model: str | None
    reward_model_steps: int
    reward_model_batch: int
    reward_model_learning_rate: float | None
    reward_model_noise: float
    reward_clip: float
    missing_eos_penalty: float
    max_steps: int
    batch_size: int
    minibatch_size: int
    microbatch_size: int | None
    ppo_epochs: int
    learning_rate: float | None
    value_learning_rate: float | None
    lr_schedule: Literal["linear", "constant"]
    warmup_steps: int
    critic: Literal["shared", "separate"]
    clip_range: float
    clip_range_high: float | None
    dual_clip: float | None
    value_clip: float
    value_coef: float
    entropy_coef: float
    gamma: float
    gae_lambda: float
    whiten: bool
    truncated_weight: float
    max_grad_norm: float
    temperature: float
    max_new_tokens: int
    kl_coef: float
    kl_target: float | None
    kl_horizon: float
    kl_loss_coef: float
    bf16: bool | None
    gradient_checkpointing: bool
    steps_per_epoch: int
    early_stopping: int
    text_scores: tuple[str, ...]
    plots: bool
    logging_steps: int
    eval_steps: int
    save_steps: int
    keep_last: int | None
    resume_from: str | None
    track_with: tuple[str, ...]
    actions: Literal["advise", "act"]
    rules: str | None
    display: str

    @property
    def is_tiny(self) -> bool:
        return models.is_tiny(self.model, self.model_size)


def check(settings: Settings) -> None:
    """Raise ConfigError for what cannot work."""
    models.is_tiny(settings.model, settings.model_size)  # knows the sizes
    for name in AT_LEAST_ONE:
        require(settings, name, "must be at least 1", lambda number: number >= 1)
    for name in NOT_NEGATIVE:
        require(settings, name, "cannot be negative", lambda number: number >= 0)
    for name in ABOVE_ZERO:
        require(settings, name, "must be above 0", lambda number: number > 0)
    for name in SHARES:
        require(settings, name, "must be between 0 and 1", lambda number: 0 <= number <= 1)
    divides("minibatch_size", settings.minibatch_size, "batch_size", settings.batch_size)
    if settings.microbatch_size is not None:
        divides("microbatch_size", settings.microbatch_size, "minibatch_size", settings.minibatch_size)
    divides("logging_steps", settings.logging_steps, "save_steps", settings.save_steps)
    for name in settings.text_scores:
        if name not in TEXT_SCORES:
            raise ConfigError(f"text_scores: there is no {name!r}.{did_you_mean(name, TEXT_SCORES)}")
    if settings.preferences is not None and settings.dataset is None:
        raise ConfigError("preferences need a dataset as well: without one the functions task is trained on")
    if settings.dataset is not None and settings.families:
        raise ConfigError("families belong to the functions task; with a dataset there are none")
    _check_reward(settings)


def _check_reward(settings: Settings) -> None:
    reward = settings.reward
    if reward == "model":
        if settings.dataset is not None and settings.preferences is None and settings.reward_model is None:
            raise ConfigError(
                "reward: model needs pairs to learn from: give preferences (a file with prompt, chosen and rejected), "
                "a trained reward_model, or another reward"
            )
    elif reward != "grade":
        module, _, function = reward.partition(":")
        if not function:
            near = did_you_mean(reward, ("model", "grade"))
            raise ConfigError(f"reward must be model, grade or package.module:function, not {reward!r}.{near}")
        try:
            found = getattr(importlib.import_module(module), function, None)
        except ImportError as error:
            raise ConfigError(f"reward {reward!r}: {error}") from error
        if not callable(found):
            raise ConfigError(f"reward {reward!r}: the module {module} has no function {function!r}")


def require(settings: Any, name: str, must: str, is_right: Callable[[float], bool]) -> None:
    """Raise ConfigError where a setting has a value that cannot be."""
    number = getattr(settings, name)
    if number is not None and not is_right(number):
        raise ConfigError(f"{name} {must}, not {number}")


def divides(small: str, part: int, large: str, whole: int) -> None:
    """Raise ConfigError where one setting must divide another and does not."""
    if whole % part:
        raise ConfigError(f"{small} must divide {large}: {whole} is no multiple of {part}")
