"""GRPO's settings, and what they must be to work together: said before anything is loaded, built or written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlvitals.compute.credit import read_rules
from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.train import models
from rlvitals.train.mailbox.grade import OFFLINE
from rlvitals.train.mailbox.reward import PARTS

AT_LEAST_ONE = (
    "messages", "held_out", "max_turns", "warm_up_steps", "warm_up_batch", "groups_per_step", "rollout_batch",
    "max_new_tokens", "max_context", "max_steps", "grpo_epochs", "minibatch_size", "microbatch_size", "logging_steps",
    "eval_steps", "eval_rollouts", "keep_last_evals", "save_steps", "keep_last",
)  # fmt: skip
NOT_NEGATIVE = (
    "warm_up_learning_rate", "min_group_std", "dynamic_sampling", "learning_rate", "warmup_steps", "clip_low",
    "clip_high", "kl_coef", "entropy_coef", "eval_temperature", "early_stopping",
)  # fmt: skip
ABOVE_ZERO = ("temperature", "dual_clip", "max_grad_norm", "target_accuracy")
GRADERS = (*OFFLINE, "judge")


@dataclass(frozen=True, slots=True)
class Settings:
    """What `recipes/grpo.yaml` explains."""

    output_dir: str
    mode: Literal["masked", "simple", "rollout"]
    model_size: str | None
    model: str | None
    seed: int
    mailbox: str
    messages: int
    questions: str | None
    families: tuple[str, ...]
    held_out: int
    max_turns: int
    warm_up_steps: int | None
    warm_up_batch: int
    warm_up_learning_rate: float | None
    groups_per_step: int
    rollouts_per_group: int
    rollout_batch: int | None
    max_new_tokens: int | None
    max_context: int | None
    temperature: float
    reward: str
    grader: str
    judge_url: str | None
    judge_model: str | None
    judge_key: str
    advantages: Literal["group", "turn"]
    credit_rules: str | None
    scale: Literal["std", "none"]
    min_group_std: float
    dynamic_sampling: int
    max_steps: int
    grpo_epochs: int
    minibatch_size: int | None
    microbatch_size: int | None
    learning_rate: float | None
    lr_schedule: Literal["linear", "constant"]
    warmup_steps: int
    clip_low: float
    clip_high: float
    dual_clip: float | None
    kl_coef: float
    entropy_coef: float
    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
    max_grad_norm: float
    bf16: bool | None
    gradient_checkpointing: bool
    logging_steps: int
    names: Literal["trl", "roll", "verl", "canonical"]
    eval_steps: int
    eval_rollouts: int
    eval_temperature: float
    target_accuracy: float | None
    early_stopping: int
    keep_last_evals: int | None
    save_steps: int
    keep_last: int | None
    resume_from: str | None
    track_with: tuple[str, ...]
    actions: Literal["advise", "act"]
    rules: str | None
    verbose: bool
    display: str

    @property
    def is_tiny(self) -> bool:
        return models.is_tiny(self.model, self.model_size)


def check(settings: Settings) -> None:
    """Raise ConfigError for what cannot work."""
    for name in AT_LEAST_ONE:
        require(settings, name, "must be at least 1", lambda number: number >= 1)
    for name in NOT_NEGATIVE:
        require(settings, name, "cannot be negative", lambda number: number >= 0)
    for name in ABOVE_ZERO:
        require(settings, name, "must be above 0", lambda number: number > 0)
    require(settings, "rollouts_per_group", "must be at least 2: one rollout has no group", lambda number: number >= 2)
    for name, known in (("reward", tuple(PARTS)), ("grader", GRADERS)):
        given = getattr(settings, name)
        if given not in known:
            raise ConfigError(f"{name} must be one of {', '.join(known)}, not {given!r}.{did_you_mean(given, known)}")
    if settings.grader == "judge" and not (settings.judge_url and settings.judge_model):
        raise ConfigError("grader: judge needs judge_url and judge_model")
    read_rules(settings.credit_rules)
    _check_mailbox(settings)


def _check_mailbox(settings: Settings) -> None:
    if settings.mailbox in ("mini", "generated"):
        if settings.questions is not None:
            raise ConfigError(f"questions belong to a mailbox of one's own; {settings.mailbox} has its own")
    elif not Path(settings.mailbox).is_file():
        near = did_you_mean(settings.mailbox, ("mini", "generated"))
        raise ConfigError(f"mailbox must be mini, generated or a file; there is no file {settings.mailbox!r}.{near}")
    elif settings.families:
        raise ConfigError("families belong to the mini and the generated mailbox")
    if settings.is_tiny and settings.mailbox != "mini":
        raise ConfigError("the tiny model knows the mini mailbox's words alone; for another mailbox give --model-size")
    if settings.warm_up_steps and settings.mailbox not in ("mini", "generated"):
        raise ConfigError("warm_up_steps: there are no examples for a mailbox of one's own")


def require(settings: Any, name: str, must: str, is_right: Callable[[float], bool]) -> None:
    """Raise ConfigError where a setting has a value that cannot be."""
    number = getattr(settings, name)
    if number is not None and not is_right(number):
        raise ConfigError(f"{name} {must}, not {number}")
