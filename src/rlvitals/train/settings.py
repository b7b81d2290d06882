"""The settings that trainers share, and the limits of numbers: a field's type says which values it takes.

A trainer's `Settings` is a frozen dataclass that inherits from one of these; `recipes/NAME.yaml` holds the default and
the explanation of each field.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from rlvitals.config import ActionMode
from rlvitals.errors import ConfigError
from rlvitals.train import models


class Limit(NamedTuple):
    """A condition for a number, in words and as a function."""

    words: str
    holds: Callable[[float], bool]


Count = Annotated[int, Limit("must be at least 1", lambda number: number >= 1)]
Pair = Annotated[int, Limit("must be at least 2", lambda number: number >= 2)]
Whole = Annotated[int, Limit("cannot be negative", lambda number: number >= 0)]
Amount = Annotated[float, Limit("cannot be negative", lambda number: number >= 0)]
Positive = Annotated[float, Limit("must be above 0", lambda number: number > 0)]
Rate = Annotated[float, Limit("must be above 0", lambda number: 0 < number < math.inf)]
Share = Annotated[float, Limit("must be between 0 and 1", lambda number: 0 <= number <= 1)]
Part = Annotated[float, Limit("must be from 0 to below 1", lambda number: 0 <= number < 1)]


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """The settings of every trainer: the model, the optimizer, when files are written, how the run is recorded."""

    model_size: str | None
    model: str | None
    seed: int
    learning_rate: Rate | None
    max_grad_norm: Positive
    bf16: bool | None
    gradient_checkpointing: bool
    logging_steps: Count
    eval_steps: Whole
    save_steps: Count
    keep_last: Count | None
    resume_from: str | None
    track_with: tuple[str, ...]
    actions: ActionMode
    rules: str | None
    display: str

    @property
    def is_tiny(self) -> bool:
        return models.is_tiny(self.model, self.model_size)

    @property
    def is_quiet(self) -> bool:
        """Whether only rows may be printed."""
        return self.display in ("none", "json")

    @property
    def recording(self) -> dict[str, Any]:
        """How the run is recorded: arguments of `rlvitals.start`."""
        return {
            "track_with": list(self.track_with),
            "actions": self.actions,
            "rules": self.rules,
            "display": self.display,
        }


@dataclass(frozen=True, slots=True)
class LoopSettings(TrainerSettings):
    """Further settings of trainers with their own loop."""

    output_dir: str
    max_steps: Count
    temperature: Positive
    kl_coef: Amount


@dataclass(frozen=True, slots=True)
class ClippedSettings(LoopSettings):
    """Further settings of trainers with PPO's clipped loss."""

    families: tuple[str, ...]
    held_out: Count
    warm_up_batch: Count
    warm_up_learning_rate: Amount | None
    microbatch_size: Count | None
    lr_schedule: Literal["linear", "constant"]
    warmup_steps: Whole
    dual_clip: Positive | None
    entropy_coef: Amount
    early_stopping: Whole


def check_limits(settings: TrainerSettings) -> None:
    """Raise ConfigError for an unknown model size, and for a number outside the limits of its type."""
    models.check_size(settings.model_size)
    for name, kind in get_type_hints(type(settings), include_extras=True).items():
        number = getattr(settings, name)
        for option in (kind, *get_args(kind)) if number is not None else ():
            for limit in get_args(option)[1:] if get_origin(option) is Annotated else ():
                if not limit.holds(number):
                    raise ConfigError(f"{name} {limit.words}, not {number}")


def check_divides(settings: Any, small: str, large: str) -> None:
    """Raise ConfigError if `small` does not divide `large`."""
    part, whole = getattr(settings, small), getattr(settings, large)
    if part is not None and whole % part:
        raise ConfigError(f"{small} must divide {large}: {whole} is not a multiple of {part}")
