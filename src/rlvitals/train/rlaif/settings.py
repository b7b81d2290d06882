"""RLAIF's settings, checked, and the teacher that they name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from rlvitals.errors import ConfigError
from rlvitals.train import models
from rlvitals.train.settings import Amount, Count, LoopSettings, Pair, Positive, Whole, check_limits
from rlvitals.train.teachers.base import Teacher
from rlvitals.train.teachers.endpoint import EndpointTeacher, JudgeClient
from rlvitals.train.teachers.local import LocalTeacher
from rlvitals.train.teachers.offline import OfflineTeacher


@dataclass(frozen=True, slots=True)
class RLAIFSettings(LoopSettings):
    """The settings of RLAIF. `recipes/rlaif.yaml` explains them."""

    dataset: str | None
    eval_dataset: str | None
    eval_share: float
    tasks: Count
    eval_tasks: Count
    prompts_per_step: Count
    group_size: Pair
    max_new_tokens: Count
    lr_warmup_steps: Whole
    micro_batch_size: Count | None
    save_steps: Whole
    warm_up_steps: Whole
    warm_up_batch_size: Count
    warm_up_learning_rate: Amount
    chat: bool | None
    teacher: Literal["offline", "endpoint", "local"]
    teacher_url: str | None
    teacher_model: str | None
    teacher_key_variable: str
    teacher_seconds: Positive
    teacher_tries: Count
    teacher_requests_per_minute: Positive | None
    teacher_concurrency: Count
    teacher_max_tokens: Count
    teacher_json_mode: bool
    code_seconds: Positive
    code_memory_mib: Count
    agreement_steps: Whole
    agreement_samples: Count
    gold_tests: bool | None
    teacher_patience: Count


def check(settings: RLAIFSettings) -> None:
    """Raise ConfigError for settings that cannot work."""
    check_limits(settings)
    if not 0 < settings.eval_share < 1:
        raise ConfigError(f"eval_share must be between 0 and 1, not {settings.eval_share}")
    if settings.dataset is None and settings.tasks < settings.prompts_per_step:
        raise ConfigError(f"tasks ({settings.tasks}) must be at least prompts_per_step ({settings.prompts_per_step})")
    if settings.teacher == "endpoint" and not (settings.teacher_url and settings.teacher_model):
        raise ConfigError("the teacher 'endpoint' needs teacher_url and teacher_model")
    if settings.teacher == "local" and not settings.teacher_model:
        raise ConfigError("the teacher 'local' needs teacher_model")


def open_teacher(settings: RLAIFSettings) -> Teacher:
    """The teacher that the settings name."""
    if settings.teacher == "endpoint":
        client = JudgeClient(
            settings.teacher_url or "", settings.teacher_model or "", key_variable=settings.teacher_key_variable,
            seconds=settings.teacher_seconds, tries=settings.teacher_tries, max_tokens=settings.teacher_max_tokens,
            requests_per_minute=settings.teacher_requests_per_minute, json_mode=settings.teacher_json_mode,
        )  # fmt: skip
        return EndpointTeacher(client, concurrency=settings.teacher_concurrency)
    if settings.teacher == "local":
        name = settings.teacher_model or ""
        loaded = models.load(None, name) if name in models.SIZES else models.load(name, None)
        loaded.model.to("cuda" if torch.cuda.is_available() else "cpu")
        return LocalTeacher(loaded.model, loaded.tokenizer, name, max_tokens=settings.teacher_max_tokens)
    return _tests(settings)


def open_gold(settings: RLAIFSettings) -> Teacher | None:
    """The tests, to measure how often a model's verdict is right. None if the settings do not ask for it, or if the
    tests are the teacher. Answers to a user's own tasks are run only if `gold_tests` is true.
    """
    is_ours = settings.dataset is None and settings.eval_dataset is None
    is_wanted = is_ours if settings.gold_tests is None else settings.gold_tests
    return _tests(settings) if is_wanted and settings.teacher != "offline" else None


def _tests(settings: RLAIFSettings) -> Teacher:
    return OfflineTeacher(seconds=settings.code_seconds, memory_mib=settings.code_memory_mib)
