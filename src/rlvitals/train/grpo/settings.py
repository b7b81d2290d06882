"""GRPO's settings and their checks, which run before anything is loaded, built or written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlvitals.compute.credit import read_rules
from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.train.mailbox.tools import Style
from rlvitals.train.settings import Amount, ClippedSettings, Count, Pair, Positive, Whole, check_limits

GENERATED = ("mini", "generated")


@dataclass(frozen=True, slots=True)
class GRPOSettings(ClippedSettings):
    """The settings of GRPO. `recipes/grpo.yaml` explains them."""

    mode: Literal["masked", "simple", "rollout"]
    mailbox: str
    messages: Count
    questions: str | None
    max_turns: Count
    tiny_start: Literal["careless", "syntax"]
    warm_up_steps: Count | None
    groups_per_step: Count
    rollouts_per_group: Pair
    rollout_batch: Count | None
    trace_rollouts: Whole
    max_new_tokens: Count | None
    max_context: Count | None
    reward: Literal["document", "progress", "plain"]
    grader: Literal["token_recall", "exact", "judge"]
    judge_url: str | None
    judge_model: str | None
    judge_key: str
    advantages: Literal["group", "turn"]
    credit_rules: str | None
    scale: Literal["std", "none"]
    min_group_std: Amount
    dynamic_sampling: Whole
    grpo_epochs: Count
    minibatch_size: Count | None
    clip_low: Amount
    clip_high: Amount
    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
    names: Literal["trl", "roll", "verl", "canonical"]
    eval_steps: Count
    eval_rollouts: Count
    eval_temperature: Amount
    target_accuracy: Positive | None
    keep_last_evals: Count | None
    verbose: bool

    @property
    def style(self) -> Style:
        """The message format of episodes: tags for the tiny model, chat for others."""
        return "tags" if self.is_tiny else "chat"

    @property
    def is_training(self) -> bool:
        return self.mode != "rollout"


def check(settings: GRPOSettings) -> None:
    """Raise ConfigError for settings that cannot work."""
    check_limits(settings)
    if settings.grader == "judge" and not (settings.judge_url and settings.judge_model):
        raise ConfigError("grader: judge needs judge_url and judge_model")
    read_rules(settings.credit_rules)
    if settings.mailbox in GENERATED:
        if settings.questions is not None:
            raise ConfigError(f"questions are for your own mailbox; {settings.mailbox} has its own")
    elif not Path(settings.mailbox).is_file():
        near = did_you_mean(settings.mailbox, GENERATED)
        raise ConfigError(f"mailbox must be mini, generated or a file; there is no file {settings.mailbox!r}.{near}")
    elif settings.families:
        raise ConfigError("families can only be selected in the mini and the generated mailbox")
    if settings.is_tiny and settings.mailbox != "mini":
        raise ConfigError(
            "the tiny model only knows the words of the mini mailbox; for another mailbox pass --model-size"
        )
    if settings.warm_up_steps and settings.mailbox not in GENERATED:
        raise ConfigError(
            "warm_up_steps needs the mini or the generated mailbox, because other mailboxes have no examples"
        )
