"""verl's functions, written from the papers as loops in plain Python, for comparison where verl is not installed. Names
and arguments are verl's, so one test can call either. The loops were compared with verl 0.9.1.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from compute.by_hand import mean, variance


def _kept(mask: Tensor, *tensors: Tensor) -> list[list[tuple[float, ...]]]:
    """The tokens of each sequence that count."""
    rows, columns = mask.shape
    return [[tuple(float(x[i, t]) for x in tensors) for t in range(columns) if mask[i, t]] for i in range(rows)]


def _tokens(mask: Tensor, *tensors: Tensor) -> list[tuple[float, ...]]:
    return [token for row in _kept(mask, *tensors) for token in row]


def agg_loss(loss_mat: Tensor, loss_mask: Tensor, loss_agg_mode: str) -> float:
    rows = [[x for (x,) in row] for row in _kept(loss_mask, loss_mat)]
    match loss_agg_mode:
        case "token-mean":
            return mean([x for row in rows for x in row])
        case "seq-mean-token-sum":
            return mean([math.fsum(row) for row in rows])
        case "seq-mean-token-mean":
            return mean([mean(row) for row in rows])
        case "seq-mean-token-sum-norm":
            return math.fsum(math.fsum(row) for row in rows) / (len(rows) * loss_mat.shape[1])
    raise ValueError(loss_agg_mode)


def kl_penalty(logprob: Tensor, ref_logprob: Tensor, kind: str) -> Tensor:
    def estimate(lp: float, ref: float) -> float:
        d = ref - lp
        return {"k1": -d, "k2": d * d / 2, "k3": math.exp(d) - d - 1}[kind]

    pairs = zip(logprob.flatten().tolist(), ref_logprob.flatten().tolist(), strict=True)
    return torch.tensor([estimate(*pair) for pair in pairs], dtype=torch.float64).view(logprob.shape)


def compute_policy_loss_vanilla(  # noqa: PLR0917 - verl's arguments
    old_log_prob: Tensor, log_prob: Tensor, advantages: Tensor, response_mask: Tensor, loss_agg_mode: str, config: Any
) -> tuple[float, dict[str, float]]:
    low, high, cap = config.clip_ratio_low, config.clip_ratio_high, config.clip_ratio_c
    losses = torch.zeros(log_prob.shape, dtype=torch.float64)
    clipped, capped, kl = [], [], []
    for i, t in (response_mask > 0).nonzero().tolist():
        a, log = float(advantages[i, t]), float(log_prob[i, t] - old_log_prob[i, t])
        r = math.exp(log)
        plain, near = -a * r, -a * min(max(r, 1 - low), 1 + high)
        worse = max(plain, near)
        losses[i, t] = min(worse, -a * cap) if a < 0 else worse
        clipped.append(float(near > plain))
        capped.append(float(a < 0 and worse > -a * cap))
        kl.append(-log)
    metrics = {"actor/pg_clipfrac": mean(clipped), "actor/ppo_kl": mean(kl), "actor/pg_clipfrac_lower": mean(capped)}
    return agg_loss(losses, response_mask, loss_agg_mode), metrics


def compute_gae_advantage_return(
    token_level_rewards: Tensor, values: Tensor, response_mask: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    advantages, returns = (torch.zeros(values.shape, dtype=torch.float64) for _ in range(2))
    for i in range(len(values)):
        places = [t for t in range(values.shape[1]) if response_mask[i, t]]
        following, running = 0.0, 0.0
        for t in reversed(places):
            error = float(token_level_rewards[i, t]) + gamma * following - float(values[i, t])
            running = error + gamma * lam * running
            following = float(values[i, t])
            advantages[i, t], returns[i, t] = running, running + following
    of_tokens = [a for (a,) in _tokens(response_mask, advantages)]
    centre, scale = mean(of_tokens), math.sqrt(variance(of_tokens, 1) + 1e-8)
    return (advantages - centre) / scale, returns


def _scores(rewards: Tensor) -> list[float]:
    return [math.fsum(row) for row in rewards.tolist()]


def compute_grpo_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Any, *, norm_adv_by_std_in_grpo: bool
) -> tuple[Tensor, None]:
    scores = _scores(token_level_rewards)
    found = []
    for score, group in zip(scores, index, strict=True):
        own = [other for other, its in zip(scores, index, strict=True) if its == group]
        apart = score - mean(own)
        found.append(apart / (math.sqrt(variance(own, 1)) + 1e-6) if norm_adv_by_std_in_grpo else apart)
    return torch.tensor(found, dtype=torch.float64)[:, None] * response_mask, None


def compute_rloo_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Any
) -> tuple[Tensor, None]:
    scores = _scores(token_level_rewards)
    found = []
    for place, (score, group) in enumerate(zip(scores, index, strict=True)):
        others = [x for at, (x, its) in enumerate(zip(scores, index, strict=True)) if its == group and at != place]
        found.append(score - mean(others))
    return torch.tensor(found, dtype=torch.float64)[:, None] * response_mask, None


def compute_value_loss(
    vpreds: Tensor, returns: Tensor, values: Tensor, response_mask: Tensor, cliprange_value: float
) -> tuple[float, float]:
    losses, clipped = [], []
    for v, target, old in _tokens(response_mask, vpreds, returns, values):
        plain = (v - target) ** 2
        near = (min(max(v, old - cliprange_value), old + cliprange_value) - target) ** 2
        losses.append(max(plain, near) / 2)
        clipped.append(float(near > plain))
    return mean(losses), mean(clipped)


def compute_offpolicy_metrics(
    old_log_prob: Tensor, rollout_log_prob: Tensor, response_mask: Tensor
) -> dict[str, float]:
    rows = _kept(response_mask, old_log_prob, rollout_log_prob)
    apart = [[train - rollout for train, rollout in row] for row in rows]
    every = [d for row in apart for d in row]
    trained, sampled = ([-mean([pair[side] for pair in row]) for row in rows] for side in (0, 1))
    gaps = [here - there for here, there in zip(trained, sampled, strict=True)]
    return {
        "kl": mean([-d for d in every]),
        "k3_kl": mean([math.exp(d) - d - 1 for d in every]),
        "ppl_ratio": mean([math.exp(-mean(row)) for row in apart]),
        "chi2_token": mean([math.exp(2 * d) for d in every]) - 1,
        "chi2_seq": mean([math.exp(2 * math.fsum(row)) for row in apart]) - 1,
        "training_ppl": mean([math.exp(one) for one in trained]),
        "training_log_ppl": mean(trained),
        "rollout_ppl": mean([math.exp(one) for one in sampled]),
        "rollout_log_ppl": mean(sampled),
        "log_ppl_diff": mean(gaps),
        "log_ppl_abs_diff": mean([abs(gap) for gap in gaps]),
        "log_ppl_diff_max": max(gaps),
        "log_ppl_diff_min": min(gaps),
    }


def compute_data_metrics(batch: Any, use_critic: bool) -> dict[str, float]:
    """The metrics that verl logs for a batch; rewards exclude responses without a token."""
    given = batch.batch
    assert use_critic
    width = given["responses"].shape[1]
    lengths = [float(row[-width:].sum()) for row in given["attention_mask"]]
    there = [i for i, length in enumerate(lengths) if length]
    kept = given["response_mask"]
    found = {}

    def record(name: str, x: list[float]) -> None:
        found[f"{name}/mean"], found[f"{name}/max"], found[f"{name}/min"] = mean(x), max(x), min(x)

    record("critic/rewards", [math.fsum(given["token_level_rewards"][i].tolist()) for i in there])
    for name in ("advantages", "returns", "values"):
        record(f"critic/{name}", [x for (x,) in _tokens(kept, given[name])])
    pairs = _tokens(kept, given["returns"], given["values"])
    missed = variance([target - v for target, v in pairs], 1)
    found["critic/vf_explained_var"] = 1 - missed / (variance([target for target, _ in pairs], 1) + 1e-5)
    record("response_length", lengths)
    record("response_length_non_aborted", [lengths[i] for i in there])
    found["response/aborted_ratio"] = 1 - len(there) / len(lengths)
    return found


core = SimpleNamespace(
    agg_loss=agg_loss,
    kl_penalty=kl_penalty,
    compute_policy_loss_vanilla=compute_policy_loss_vanilla,
    compute_gae_advantage_return=compute_gae_advantage_return,
    compute_grpo_outcome_advantage=compute_grpo_outcome_advantage,
    compute_rloo_outcome_advantage=compute_rloo_outcome_advantage,
    compute_value_loss=compute_value_loss,
)
correction = SimpleNamespace(compute_offpolicy_metrics=compute_offpolicy_metrics)
data = SimpleNamespace(compute_data_metrics=compute_data_metrics)
