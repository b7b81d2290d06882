"""A step's tensors, and its statistics computed from the definitions by numpy in float64."""

from __future__ import annotations

import numpy as np

from compute.by_hand import PER_TOKEN

TOKEN_NAMES = (
    "logprobs", "old_logprobs", "ref_logprobs", "rollout_logprobs", "advantages", "returns", "values", "old_values",
    "entropy",
)  # fmt: skip


def make_step(rows: int = 12, length: int = 150, seed: int = 0) -> dict[str, np.ndarray]:
    """Ragged responses after a prompt. One sequence has no token, one is full. Masked values are NaN."""
    draw = np.random.default_rng(seed)
    logp = -(draw.random((rows, length)) ** 3) * 6
    ends = draw.integers(1, length + 1, rows)
    ends[-1] = 0
    ends[0] = length
    places = np.arange(length)
    starts = np.minimum(draw.integers(0, max(length // 3, 1), rows), ends)
    starts[0] = 0
    mask = (places >= starts[:, None]) & (places < ends[:, None])
    rewards = (draw.random(rows) > 0.4).astype(float)

    def noise(scale: float) -> np.ndarray:
        return scale * draw.standard_normal((rows, length))

    values = 0.5 + noise(0.4)
    tensors = {
        "logprobs": logp,
        "old_logprobs": logp + noise(0.15),
        "ref_logprobs": logp + noise(0.3),
        "rollout_logprobs": logp + noise(0.02),
        "advantages": rewards[:, None] - 0.5 + noise(0.3),
        "returns": rewards[:, None] + noise(0.4),
        "values": values,
        "old_values": values + noise(0.2),
        "entropy": draw.random((rows, length)),
    }
    tensors = {name: np.where(mask, tensor, np.nan).astype(np.float32) for name, tensor in tensors.items()}
    return tensors | {
        "mask": mask,
        "rewards": rewards.astype(np.float32),
        "prompt_lengths": draw.integers(10, 90, rows),
    }


def every_input(seed: int = 0, rows: int = 7, length: int = 9) -> dict[str, np.ndarray]:
    """Every input of every implementation: ragged rows, two of them empty, a hole, and NaN in the padding."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(2, length + 1, rows)
    lengths[2] = lengths[-1] = 0
    mask = np.arange(length) < lengths[:, None]
    mask[0, 0] = False
    old = -draw.exponential(1.0, mask.shape)
    around = {
        "logprobs": old + draw.normal(0, 0.3, mask.shape),
        "old_logprobs": old,
        "ref_logprobs": old + draw.normal(0, 0.5, mask.shape),
        "rollout_logprobs": old + draw.normal(0, 0.5, mask.shape),
        "values": draw.normal(0, 1, mask.shape),
    }
    rest = {name: draw.normal(0, 1, mask.shape) for name in PER_TOKEN if name not in around}
    rest["old_values"] = around["values"] + draw.normal(0, 0.3, mask.shape)
    tokens = {name: np.where(mask, x, np.nan).astype(np.float32) for name, x in (around | rest).items()}
    return tokens | {
        "mask": mask,
        "rewards": draw.choice([0.0, 0.25, 1.0], rows).astype(np.float32),
        "prompt_lengths": draw.integers(3, 30, rows),
        "sample_weights": draw.random(rows),
        "scores": draw.normal(0, 1, rows),
        "success": draw.random(rows) > 0.5,
        "truncated": draw.random(rows) > 0.6,
        "group_ids": np.array([0, 0, 1, 1, 1, 2, 3]),
        "trained": draw.random(rows) > 0.4,
        "seconds": draw.exponential(20.0, rows),
    }


def reference(data: dict[str, np.ndarray], low: float = 0.2, high: float = 0.28, dual: float = 1.2) -> dict[str, float]:
    """The numbers, computed token by token where the definition requires it."""
    mask = data["mask"]
    flat = {name: data[name].astype(np.float64)[mask] for name in TOKEN_NAMES}
    logp, old, ref, rollout = (flat[f"{name}logprobs"] for name in ("", "old_", "ref_", "rollout_"))
    ratio, weight, adv = np.exp(logp - old), np.exp(old - rollout), flat["advantages"]
    resid = flat["returns"] - flat["values"]
    missed = flat["returns"] - flat["old_values"]
    gain = np.minimum(ratio * adv, np.clip(ratio, 1 - low, 1 + high) * adv)
    moved = flat["old_values"] + np.clip(flat["values"] - flat["old_values"], -0.2, 0.2) - flat["returns"]
    upper, lower = (ratio > 1 + high) & (adv > 0), (ratio < 1 - low) & (adv < 0)
    rows = [row for row in range(len(mask)) if mask[row].any()]
    each = {name: [data[name].astype(np.float64)[row][mask[row]] for row in rows] for name in TOKEN_NAMES}
    lengths = mask.sum(axis=1)
    row_logs = [new.mean() - before.mean() for new, before in zip(each["logprobs"], each["old_logprobs"], strict=True)]
    hits = np.zeros(mask.shape)
    hits[mask] = upper
    low_hits = np.zeros(mask.shape)
    low_hits[mask] = lower
    drifts = [(new - base).sum() for new, base in zip(each["logprobs"], each["ref_logprobs"], strict=True)]
    gaps = [(a - b).mean() for a, b in zip(each["rollout_logprobs"], each["old_logprobs"], strict=True)]
    found = {
        "policy.logp.old.mean": old.mean(),
        "policy.logp.ref.mean": ref.mean(),
        "policy.logp.rollout.mean": rollout.mean(),
        "policy.ratio.var": ratio.var(),
        "policy.kl_old.k1": (old - logp).mean(),
        "policy.kl_old.k2": ((logp - old) ** 2).mean() / 2,
        "policy.kl_old.k3": (ratio - 1 - np.log(ratio)).mean(),
        "policy.kl_old.k3.max": (ratio - 1 - np.log(ratio)).max(),
        "policy.loss": -np.where(adv < 0, np.maximum(gain, dual * adv), gain).mean(),
        "policy.clip_fraction": (upper | lower).mean(),
        "policy.clip_fraction.upper": upper.mean(),
        "policy.clip_fraction.lower": lower.mean(),
        "policy.clip_fraction.upper.max": max(hits[row][mask[row]].mean() for row in rows),
        "policy.clip_fraction.lower.min": min(low_hits[row][mask[row]].mean() for row in rows),
        "policy.dual_clip_fraction": ((ratio > dual) & (adv < 0)).mean(),
        "policy.perplexity.train": np.mean([np.exp(-row.mean()) for row in each["logprobs"]]),
        "policy.ratio.effective_sample_size": ratio.sum() ** 2 / (ratio**2).sum() / ratio.size,
        "kl_ref.k1": (logp - ref).mean(),
        "kl_ref.k2": ((logp - ref) ** 2).mean() / 2,
        "kl_ref.k3": (np.exp(ref - logp) - (ref - logp) - 1).mean(),
        "kl_ref.k3.max": (np.exp(ref - logp) - (ref - logp) - 1).max(),
        "mismatch.kl.k1": (rollout - old).mean(),
        "mismatch.kl.k2": ((rollout - old) ** 2).mean() / 2,
        "mismatch.kl.k3": (weight - 1 - np.log(weight)).mean(),
        "mismatch.prob_abs_diff.mean": np.abs(np.exp(old) - np.exp(rollout)).mean(),
        "mismatch.prob_abs_diff.max": np.abs(np.exp(old) - np.exp(rollout)).max(),
        "mismatch.chi2.token": (weight**2).mean() - 1,
        "mismatch.effective_sample_size": weight.sum() ** 2 / (weight**2).sum() / weight.size,
        "mismatch.ppl_ratio": np.mean(
            [np.exp((a - b).mean()) for a, b in zip(each["rollout_logprobs"], each["old_logprobs"], strict=True)]
        ),
        "mismatch.extreme_ratio_fraction": (np.maximum(weight, 1 / weight) > 2).mean(),
        "mismatch.log_ppl_gap.mean": np.mean(gaps),
        "mismatch.log_ppl_gap.max": np.max(gaps),
        "mismatch.log_ppl_gap.min": np.min(gaps),
        "policy.log_perplexity.train": np.mean([-row.mean() for row in each["logprobs"]]),
        "policy.log_perplexity.rollout": np.mean([-row.mean() for row in each["rollout_logprobs"]]),
        "policy.perplexity.rollout": np.mean([np.exp(-row.mean()) for row in each["rollout_logprobs"]]),
        "mismatch.token_mult_prob_error": np.maximum(weight, 1 / weight).mean(),
        "mismatch.seq_mult_prob_error.max": max(
            np.exp(np.abs(a - b)).mean() for a, b in zip(each["rollout_logprobs"], each["old_logprobs"], strict=True)
        ),
        "value.error": (resid**2).mean(),
        "value.loss": np.maximum(resid**2, moved**2).mean() / 2,
        "value.clip_fraction": (moved**2 > resid**2).mean(),
        "value.explained_variance": 1 - missed.var() / flat["returns"].var(),
        "value.predicted.mean": flat["values"].mean(),
        "entropy.sequence.mean": np.mean([row.mean() for row in each["entropy"]]),
        "train.samples.total": float(len(mask)),
        "train.samples.valid": float(len(rows)),
        "train.samples.valid_fraction": len(rows) / len(mask),
        "train.tokens": float(mask.sum()),
        "train.tokens.nonfinite": 0.0,
    }
    gap = np.abs(old - rollout)
    spreads = {
        "policy.logp": logp, "policy.log_ratio": logp - old, "policy.ratio": ratio, "mismatch.is_weight": weight,
        "mismatch.logp_abs_diff": gap, "advantage": adv, "return": flat["returns"], "value": flat["old_values"],
        "entropy": flat["entropy"], "length.response": lengths, "reward.total": data["rewards"].astype(float),
        "length.prompt": data["prompt_lengths"], "policy.ratio.sequence": np.exp(row_logs), "kl_ref.sequence": drifts,
        "policy.logp.sequence": [row.sum() for row in each["logprobs"]],
    }  # fmt: skip
    for name, numbers in spreads.items():
        found[f"{name}.mean"], found[f"{name}.std"] = np.mean(numbers), _sample_std(numbers)
        found[f"{name}.min"], found[f"{name}.max"] = np.min(numbers), np.max(numbers)
    found["mismatch.is_weight.std"], found["mismatch.logp_abs_diff.std"] = weight.std(), gap.std()
    found["length.response.std"] = np.std(lengths)
    return {name: float(number) for name, number in found.items()}


def _sample_std(numbers) -> float:
    return float(np.std(numbers, ddof=1)) if len(numbers) > 1 else float("nan")


def error(got: float, name: str, want: dict[str, float]) -> float:
    """The error, relative to the number; for a mean, to the spread of its numbers if that is larger; for a share, to 1.

    Numbers cancel in a mean near 0, and in another precision a token at the edge of a clip may be on the other side. A
    NaN is an infinite error.
    """
    spread = want.get(name.replace(".mean", ".std"), 0.0) if name.endswith(".mean") else 0.0
    size = 1.0 if "fraction" in name else max(abs(want[name]), 0.0 if np.isnan(spread) else spread, 1e-2)
    gap = abs(got - want[name]) / size
    return float("inf") if np.isnan(gap) else gap
