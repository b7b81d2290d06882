"""The channels of a step's statistics by plain torch operations, in float64: for the CPU, for devices without Triton,
and as the readable definition of the kernels' results.

No operation here needs a number on the host, so the host never waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlvitals.compute.mismatch import EXTREME
from rlvitals.compute.step_channels import CHANNELS, FIELDS, ROW_CHANNELS, Channel

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Given = tuple["Tensor | None", ...]
"""The inputs, in the order of `step.INPUTS`."""

LOG_BOUND = 20.0
"""Exponents are clamped to this, so one outlier token cannot make a mean infinite. Log-ratios are not clamped."""


@dataclass(frozen=True, slots=True)
class Clipping:
    """The bounds of PPO's clips; None is no clip."""

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None
    value: float | None = 0.2


def plain_moments(given: Mapping[str, Tensor], mask: Tensor, clipping: Clipping) -> Tensor:
    """The moments of all channels, [channels, 5] in float64 on the inputs' device; absent channels have count 0."""
    import torch

    wide = {name: tensor.detach().to(_wide_type(tensor)) for name, tensor in given.items()}
    used = mask != 0
    tokens = token_channels(wide, clipping)
    rows = _row_channels(tokens, wide, used)
    none = torch.zeros(FIELDS, dtype=_wide_type(wide["logprobs"]), device=used.device)
    gathered = []
    for channel in CHANNELS:
        if channel.name in rows:
            gathered.append(_moments(*rows[channel.name]))
        elif channel.name in tokens:
            gathered.append(_moments(tokens[channel.name], used))
        else:
            gathered.append(none)
    return torch.stack(gathered)


def token_channels(given: Mapping[str, Tensor], clipping: Clipping) -> dict[str, Tensor]:
    """Each token channel that the inputs allow, one number per token."""
    logp, old, advantages = given["logprobs"], given.get("old_logprobs"), given.get("advantages")
    found = {"logp": logp}
    if old is not None:
        found |= _policy(logp, old, advantages, clipping)
    if (ref := given.get("ref_logprobs")) is not None:
        drift = logp - ref
        found |= {"logp_ref": ref, "kl_ref_k1": drift, "kl_ref_k2": drift.square() / 2, "kl_ref_k3": _k3(-drift)}
    if (rollout := given.get("rollout_logprobs")) is not None:
        found |= _mismatch(logp if old is None else old, rollout)
    if (returns := given.get("returns")) is not None:
        found["return"] = returns
    values, old_values = given.get("values"), given.get("old_values")
    collected = values if old_values is None else old_values  # the values that the advantages were computed with
    if collected is not None:
        found["value"] = collected
        if returns is not None:
            found["residual"] = returns - collected
    if values is not None:
        found["value_predicted"] = values
        if returns is not None:
            found |= _value(values, returns, old_values, clipping.value)
    if advantages is not None:
        found["advantage"] = advantages
    if (entropy := given.get("entropy")) is not None:
        found["entropy"] = entropy
    broken = ~logp.isfinite()
    for name, tensor in given.items():
        if name not in ("rewards", "prompt_lengths"):
            broken = broken | ~tensor.isfinite()
    return found | {"nonfinite": broken.to(logp.dtype)}


def _policy(logp: Tensor, old: Tensor, advantages: Tensor | None, clipping: Clipping) -> dict[str, Tensor]:
    log_ratio = logp - old
    ratio = _exp(log_ratio)
    found = {
        "logp_old": old,
        "log_ratio": log_ratio,
        "ratio": ratio,
        "kl_old_k2": log_ratio.square() / 2,
        "kl_old_k3": _k3(log_ratio),
    }
    if advantages is None:
        return found
    clipped = ratio.clamp(1 - clipping.low, 1 + clipping.high)
    gain = (ratio * advantages).minimum(clipped * advantages)
    found |= {
        "clip_upper": _share((ratio > 1 + clipping.high) & (advantages > 0), ratio * advantages),
        "clip_lower": _share((ratio < 1 - clipping.low) & (advantages < 0), ratio * advantages),
    }
    if clipping.dual is not None:
        gain = gain.maximum(clipping.dual * advantages).where(advantages < 0, gain)
        found["dual_clip"] = _share((ratio > clipping.dual) & (advantages < 0), ratio * advantages)
    return found | {"loss": -gain}


def _mismatch(trained: Tensor, rollout: Tensor) -> dict[str, Tensor]:
    gap = trained - rollout
    return {
        "logp_rollout": rollout,
        "mismatch_log": gap,
        "mismatch_k3": _k3(gap),
        "mismatch_weight": _exp(gap),
        "mismatch_abs": gap.abs(),
        "mismatch_prob": (trained.exp() - rollout.exp()).abs(),
        "mismatch_factor": _exp(gap.abs()),
        "mismatch_extreme": _share(gap.abs() > EXTREME, gap),
    }


def _value(values: Tensor, returns: Tensor, old: Tensor | None, bound: float | None) -> dict[str, Tensor]:
    error = (returns - values).square()
    found = {"value_error": error, "value_loss": error / 2}
    if old is None or bound is None:
        return found
    change = values - old
    is_far = change.abs() > bound  # within the bound both errors are equal
    clipped_error = ((old + change.clamp(-bound, bound)).where(is_far | change.isnan(), values) - returns).square()
    return found | {
        "value_loss": error.maximum(clipped_error) / 2,
        "value_clip": _share(is_far & (clipped_error > error), clipped_error + error),
    }


def _row_channels(
    tokens: Mapping[str, Tensor], given: Mapping[str, Tensor], used: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """Each sequence channel as (number per sequence, whether it counts)."""
    lengths = used.sum(dim=1).to(given["logprobs"].dtype)
    has_tokens, every = lengths > 0, lengths >= 0
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for channel in ROW_CHANNELS:
        if channel.row == "length":
            found[channel.name] = lengths, every
        elif channel.row == "used":
            found[channel.name] = has_tokens.to(lengths.dtype), every
        elif channel.row in ("rewards", "prompt_lengths"):
            if channel.row in given:
                found[channel.name] = given[channel.row], every
        elif channel.source in tokens:
            total = tokens[channel.source].where(used, 0).sum(dim=1)
            found[channel.name] = _row_number(channel, total, lengths), has_tokens
    return found


def _row_number(channel: Channel, total: Tensor, lengths: Tensor) -> Tensor:
    mean = total / lengths.clamp(min=1)
    match channel.row:
        case "sum":
            return total
        case "exp":
            return mean.exp()
        case "exp_minus":
            return (-mean).exp()
        case _:
            return mean


def _moments(numbers: Tensor, used: Tensor) -> Tensor:
    """[count, mean, M2, min, max] of the used numbers. A NaN among them makes all but the count NaN."""
    import torch

    if not numbers.numel():
        return torch.zeros(FIELDS, dtype=numbers.dtype, device=numbers.device)
    count = used.sum().to(numbers.dtype)
    mean = numbers.where(used, 0).sum() / count.clamp(min=1)
    m2 = (numbers - mean).square().where(used, 0).sum()
    least, greatest = numbers.where(used, torch.inf).amin(), numbers.where(used, -torch.inf).amax()
    return torch.stack([count, mean, m2, least, greatest])


def _exp(exponent: Tensor) -> Tensor:
    return exponent.clamp(-LOG_BOUND, LOG_BOUND).exp()


def _k3(log_ratio: Tensor) -> Tensor:
    """exp(d) - 1 - d, the non-negative KL estimate."""
    bounded = log_ratio.clamp(-LOG_BOUND, LOG_BOUND)
    return bounded.expm1() - bounded


def _share(condition: Tensor, decided_by: Tensor) -> Tensor:
    """1 where the condition holds, 0 where not, NaN where it is unknown."""
    import torch

    return condition.to(decided_by.dtype).where(~decided_by.isnan(), torch.nan)


def _wide_type(tensor: Tensor) -> torch.dtype:
    """float64 if the device supports it, else float32."""
    import torch

    return torch.float32 if tensor.device.type == "mps" else torch.float64
