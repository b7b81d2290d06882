"""RLAIF's settings, checked, and what they name: the teacher, the checkpoint to go on from, the learning rate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from rlvitals.errors import ConfigError
from rlvitals.store.layout import kept_folder
from rlvitals.train import checkpoint, models
from rlvitals.train.teachers.base import Teacher


@dataclass(frozen=True, slots=True)
class Settings:
    """What `recipes/rlaif.yaml` explains."""

    output_dir: str
    model_size: str | None
    model: str | None
    dataset: str | None
    eval_dataset: str | None
    eval_share: float
    tasks: int
    eval_tasks: int
    seed: int
    max_steps: int
    prompts_per_step: int
    group_size: int
    max_new_tokens: int
    temperature: float
    learning_rate: float | None
    lr_warmup_steps: int
    kl_coef: float
    max_grad_norm: float
    micro_batch_size: int | None
    warm_up_steps: int
    warm_up_batch_size: int
    warm_up_learning_rate: float
    bf16: bool | None
    gradient_checkpointing: bool
    chat: bool | None
    teacher: Literal["offline", "endpoint", "local"]
    teacher_url: str | None
    teacher_model: str | None
    teacher_key_variable: str
    teacher_seconds: float
    teacher_tries: int
    teacher_requests_per_minute: float | None
    teacher_concurrency: int
    teacher_max_tokens: int
    teacher_json_mode: bool
    code_seconds: float
    code_memory_mib: int
    agreement_steps: int
    agreement_samples: int
    teacher_patience: int
    logging_steps: int
    eval_steps: int
    save_steps: int
    keep_last: int | None
    resume_from: str | None
    track_with: tuple[str, ...]
    actions: Literal["advise", "act"]
    rules: str | None
    display: str


def check(settings: Settings) -> None:
    """Raise ConfigError for what cannot be trained with."""
    for name in ("max_steps", "prompts_per_step", "group_size", "max_new_tokens", "tasks", "eval_tasks"):
        if getattr(settings, name) < 1:
            raise ConfigError(f"{name} must be 1 or more, not {getattr(settings, name)}")
    if settings.group_size < 2:
        raise ConfigError("group_size must be 2 or more: an answer is compared with the others to its task")
    if not settings.temperature > 0:
        raise ConfigError(f"temperature must be above 0, not {settings.temperature}: equal answers teach nothing")
    if not 0 < settings.eval_share < 1:
        raise ConfigError(f"eval_share must be between 0 and 1, not {settings.eval_share}")
    if settings.dataset is None and settings.tasks < settings.prompts_per_step:
        raise ConfigError(f"tasks ({settings.tasks}) must be at least prompts_per_step ({settings.prompts_per_step})")
    if settings.teacher == "endpoint" and not (settings.teacher_url and settings.teacher_model):
        raise ConfigError("the teacher 'endpoint' needs teacher_url and teacher_model")
    if settings.teacher == "local" and not settings.teacher_model:
        raise ConfigError("the teacher 'local' needs teacher_model")


def open_teacher(settings: Settings) -> Teacher:
    """The teacher that the settings name."""
    if settings.teacher == "endpoint":
        from rlvitals.train.teachers.endpoint import EndpointTeacher, JudgeClient

        client = JudgeClient(
            settings.teacher_url or "", settings.teacher_model or "", key_variable=settings.teacher_key_variable,
            seconds=settings.teacher_seconds, tries=settings.teacher_tries, max_tokens=settings.teacher_max_tokens,
            requests_per_minute=settings.teacher_requests_per_minute, json_mode=settings.teacher_json_mode,
        )  # fmt: skip
        return EndpointTeacher(client, concurrency=settings.teacher_concurrency)
    if settings.teacher == "local":
        from rlvitals.train.teachers.local import LocalTeacher

        name = settings.teacher_model or ""
        loaded = models.load(None, name) if name in models.SIZES else models.load(name, None)
        loaded.model.to("cuda" if torch.cuda.is_available() else "cpu")
        return LocalTeacher(loaded.model, loaded.tokenizer, name, max_tokens=settings.teacher_max_tokens)
    from rlvitals.train.teachers.offline import OfflineTeacher

    return OfflineTeacher(seconds=settings.code_seconds, memory_mib=settings.code_memory_mib)


def find_checkpoint(settings: Settings) -> Path | None:
    """The folder to resume from; a bare name is one of the run's own."""
    if settings.resume_from is None:
        return None
    for place in (Path(settings.resume_from), Path(settings.output_dir) / settings.resume_from):
        if (place / checkpoint.STATE_FILE).is_file():
            return kept_folder(place)
    raise ConfigError(f"resume_from {settings.resume_from!r}: there is no checkpoint of this trainer")


def learning_rate(settings: Settings, model: Any) -> float:
    """As given, or what fits the model's size."""
    if settings.learning_rate is not None:
        return settings.learning_rate
    size = models.parameters(model)
    return 1e-6 if size >= 1e9 else 5e-6 if size >= 1e7 else 7e-4


def is_chat(settings: Settings, tokenizer: Any) -> bool:
    """Whether tasks are put as a chat."""
    if settings.chat is not None:
        return settings.chat
    return bool(tokenizer.chat_template) and not models.is_tiny(settings.model, settings.model_size)
