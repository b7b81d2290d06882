"""The critic before PPO: it learns from answers of the first policy what each of their tokens leads to.

Without it the values are noise when PPO begins, and so are the advantages that are measured against them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlvitals.compute import advantage
from rlvitals.train import losses
from rlvitals.train.ppo.actor_critic import ActorCritic
from rlvitals.train.ppo.experience import token_rewards
from rlvitals.train.ppo.settings import PPOSettings
from rlvitals.train.sampling import Answered, Sampled
from rlvitals.train.supervised import dealt, fit


class Lesson(NamedTuple):
    """Some answers and what was still to come at each of their tokens."""

    rows: Answered
    mask: Tensor
    returns: Tensor


def lesson(rows: Answered, sampled: Sampled, scores: Tensor, settings: PPOSettings) -> Lesson:
    """Of answers of the reference, whose KL to itself is 0; one without a score teaches nothing."""
    mask = sampled.mask.float() * (~scores.isnan())[:, None]
    rewards = token_rewards(settings, scores.nan_to_num(), sampled.finished, torch.zeros_like(mask), mask)
    return Lesson(rows, mask, advantage.discounted_returns(rewards, mask, gamma=settings.gamma).float())


def teach(
    model: ActorCritic, lessons: Sequence[Lesson], *, steps: int, learning_rate: float, generator: torch.Generator,
    on_step: Callable[[int, float], None] | None = None,
) -> None:  # fmt: skip
    """Train the separate critic and its head, a lesson a step, with AdamW, a short rise of the learning rate and a fall
    to a tenth. The policy is not touched.
    """
    own = [weight for name, weight in model.named_parameters() if not name.startswith("policy.")]
    optimizer = torch.optim.AdamW(own, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    rise = max(1, min(20, steps // 10))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / rise, 1.0 - 0.9 * step / max(1, steps))
    )
    decks = dealt(len(lessons), 1, generator)

    def loss_of(step: int) -> Tensor:
        rows, mask, returns = lessons[next(decks)[0]]
        values = model.read_values(rows, returns)
        missed = losses.value_losses(values, returns=returns, old_values=returns, value_clip=None)
        return losses.summed(missed, mask) / mask.sum().clamp(min=1.0)

    fit(model, loss_of, optimizer, schedule, steps=steps, on_step=on_step)
