"""PPO's settings and their checks, which run before anything is loaded, built or written."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.train.settings import Amount, ClippedSettings, Count, Positive, Share, Whole, check_divides, check_limits

TEXT_SCORES = {"bertscore": "bertscore", "codebleu": "codebleu", "bleu": "bleu", "rouge": "rouge_l", "ruby": "ruby"}
"""Maps the document's names to the functions of `rlvitals.textscore`."""

Scorer = Callable[[Sequence[str], Sequence[str], Sequence[str]], Sequence[float | None]]
"""Takes prompts, answers and references. Returns a number for each answer, or None if there is none."""


@dataclass(frozen=True, slots=True)
class PPOSettings(ClippedSettings):
    """The settings of PPO. `recipes/ppo.yaml` explains them."""

    dataset: str | None
    preferences: str | None
    chat: bool | None
    warm_up_steps: Whole | None
    reward: str
    reward_model: str | None
    reward_model_steps: Count
    reward_model_batch: Count
    reward_model_learning_rate: Amount | None
    reward_model_noise: Share
    reward_clip: Amount
    missing_eos_penalty: Amount
    batch_size: Count
    minibatch_size: Count
    ppo_epochs: Count
    value_learning_rate: Amount | None
    value_warm_up_steps: Whole | None
    critic: Literal["shared", "separate"]
    clip_range: Positive
    clip_range_high: Positive | None
    value_clip: Amount
    value_coef: Amount
    gamma: Share
    gae_lambda: Share
    whiten: bool
    truncated_weight: Amount
    max_new_tokens: Count
    kl_target: Positive | None
    kl_horizon: Positive
    kl_loss_coef: Amount
    steps_per_epoch: Count
    text_scores: tuple[str, ...]
    plots: bool


def check(settings: PPOSettings) -> None:
    """Raise ConfigError for settings that cannot work."""
    check_limits(settings)
    check_divides(settings, "minibatch_size", "batch_size")
    check_divides(settings, "microbatch_size", "minibatch_size")
    for name in settings.text_scores:
        if name not in TEXT_SCORES:
            raise ConfigError(f"text_scores: there is no {name!r}.{did_you_mean(name, TEXT_SCORES)}")
    if settings.preferences is not None and settings.dataset is None:
        raise ConfigError("preferences need a dataset as well: without one the functions task is trained on")
    if settings.dataset is not None and settings.families:
        raise ConfigError("families belong to the functions task; with a dataset there are none")
    if settings.reward not in ("model", "grade"):
        reward_function(settings.reward)
    elif settings.reward == "model" and settings.dataset and not (settings.preferences or settings.reward_model):
        raise ConfigError(
            "reward: model needs pairs to learn from: give preferences (a file with prompt, chosen and rejected), "
            "a trained reward_model, or another reward"
        )


def reward_function(name: str) -> Scorer:
    """The user's function, from `package.module:function`."""
    module, _, function = name.partition(":")
    if not function:
        near = did_you_mean(name, ("model", "grade"))
        raise ConfigError(f"reward must be model, grade or package.module:function, not {name!r}.{near}")
    try:
        found: Scorer | None = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise ConfigError(f"reward {name!r}: {error}") from error
    if not callable(found):
        raise ConfigError(f"reward {name!r}: the module {module} has no function {function!r}")
    return found
