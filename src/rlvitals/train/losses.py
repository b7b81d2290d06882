"""The loss functions of the trainers. They depend only on tensors, not on a model, a batch or settings.

All per-token arguments are [rows, tokens]. The terms come from `rlvitals.compute`; this module combines them with their
signs, weights and masks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlvitals.compute import policy

KL_STEP = 0.2
"""The largest relative change of the KL coefficient in one step, before it is scaled by answers / horizon."""


def policy_losses(
    logprobs: Tensor,
    *,
    old_logprobs: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    row_weights: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    kl_coef: float = 0.0,
    entropy: Tensor | None = None,
    entropy_coef: float = 0.0,
) -> Tensor:
    """PPO's clipped loss of each token, plus a KL to the reference (k3), less an entropy bonus.

    `row_weights` apply only to the clipped loss. A term with coefficient 0 is left out, and its inputs may be None.

    >>> one = torch.zeros(1, 1)
    >>> policy_losses(one, old_logprobs=one, advantages=one + 2, clip_low=0.2, clip_high=0.2).tolist()
    [[-2.0]]
    """
    ratios = policy.ratio(logprobs, old_logprobs)
    losses: Tensor = policy.policy_gradient_loss(ratios, advantages, clip_low, clip_high, dual_clip)
    if row_weights is not None:
        losses = losses * row_weights[:, None]
    if kl_coef:
        losses = losses + kl_coef * policy.kl_k3(logprobs, ref_logprobs)
    if entropy_coef:
        assert entropy is not None
        losses = losses - entropy_coef * entropy
    return losses


def reinforce_losses(logprobs: Tensor, *, ref_logprobs: Tensor, advantages: Tensor, kl_coef: float) -> Tensor:
    """-A log p of each token, plus a KL to the reference (k3); one advantage for each row.

    >>> same = torch.tensor([[-1.0]])
    >>> reinforce_losses(same, ref_logprobs=same, advantages=torch.tensor([2.0]), kl_coef=0.1).tolist()
    [[2.0]]
    """
    losses: Tensor = -advantages[:, None] * logprobs + kl_coef * policy.kl_k3(logprobs, ref_logprobs)
    return losses


def summed(losses: Tensor, mask: Tensor, weights: Tensor | float = 1.0) -> Tensor:
    """The weighted sum over the tokens in the mask. Other tokens are not multiplied by 0, because 0 * inf is NaN."""
    return (torch.where(mask > 0, losses, 0.0) * weights).sum()


def adapted_kl_coef(kl_coef: float, kl: float, *, target: float, answers: int, horizon: float) -> float:
    """The coefficient adapted towards the target KL (Ziegler et al. 2019): raised if the policy is too far away.

    It never changes sign, for any number of answers, and is unchanged if the KL is not a number.

    >>> round(adapted_kl_coef(0.1, 12.0, target=6.0, answers=50, horizon=100), 6)
    0.11
    """
    if not math.isfinite(kl):
        return kl_coef
    error = min(max(kl / target - 1.0, -KL_STEP), KL_STEP)
    return kl_coef * (1.0 + error * min(1.0, answers / horizon))
