"""Statistics of one policy update: ratios, clipping, KL, entropy, losses, sample weights.

All per-token arguments are [sequences, tokens]; `mask` is 1 on the tokens that count. A single row may be [tokens].
Advantages and scores may be one number per sequence.

>>> lp, old = [[-1.0, -0.5]], [[-1.2, -0.5]]
>>> named = stats(logprobs=lp, old_logprobs=old, advantages=[[1.0, 1.0]], names="roll")
>>> round(named["actor/ratio_max"].number, 4), named["actor/clipfrac"].number
(1.2214, 0.5)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlvitals.compute import mismatch
from rlvitals.compute.aggregate import terms
from rlvitals.compute.arrays import Array, library, masked_mean, real, share
from rlvitals.compute.names import naming
from rlvitals.compute.packing import Packed, StatisticSheet, reading
from rlvitals.compute.shapes import per_sequence, per_token, token_rows
from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.values import Value


def ratio(logprobs: Array, old_logprobs: Array) -> Array:
    """Importance ratio of each token: exp(logp - logp_old).

    >>> ratio([0.0], [0.0])
    array([1.])
    """
    difference = real(logprobs) - real(old_logprobs, logprobs)
    return library(difference).exp(difference)


def sequence_ratio(logprobs: Array, old_logprobs: Array, mask: Array) -> Array:
    """Importance ratio of each sequence as in GSPO: exp of the masked mean of the log ratio; NaN without tokens.

    >>> sequence_ratio([[0.5, 9.0]], [[0.5, 0.0]], [[1, 0]])
    array([1.])
    """
    lp, old, kept = real(logprobs), real(old_logprobs, logprobs), real(mask, logprobs)
    xp = library(lp)
    zero = 0.0 * kept
    # Padding may be -inf in both arrays, and -inf minus -inf raises a warning.
    difference = xp.where(kept > 0, lp, zero) - xp.where(kept > 0, old, zero)
    return xp.exp(masked_mean(difference, kept, axis=-1))


def kl_k1(logprobs: Array, base_logprobs: Array) -> Array:
    """Logp - logp_base on samples of the policy: unbiased, and negative on many tokens."""
    return real(logprobs) - real(base_logprobs, logprobs)


def kl_k2(logprobs: Array, base_logprobs: Array) -> Array:
    """Half of the squared log ratio: never negative, low variance, biased."""
    difference = kl_k1(logprobs, base_logprobs)
    return 0.5 * difference * difference


def kl_k3(logprobs: Array, base_logprobs: Array, clamp: float | None = None) -> Array:
    """Exp(d) - d - 1 with d = logp_base - logp: unbiased, never negative. `clamp` limits it to +-clamp (ROLL: 10).

    >>> kl_k3([0.0, -1.0], [0.0, -1.0])
    array([0., 0.])
    """
    difference = -kl_k1(logprobs, base_logprobs)
    xp = library(difference)
    estimate = xp.expm1(difference) - difference
    return estimate if clamp is None else xp.clip(estimate, -clamp, clamp)


def kl_exact(logits: Array, base_logits: Array) -> Array:
    """Sum over the vocabulary of p (log p - log p_base), from logits [..., vocabulary]."""
    log_p, log_base = _log_softmax(logits), _log_softmax(real(base_logits, logits))
    return _expected(log_p, log_p - log_base)


def entropy(logits: Array) -> Array:
    """Entropy in nats from logits [..., vocabulary]; a token with logit -inf adds nothing.

    >>> entropy([0.0, 0.0]).round(6)
    np.float64(0.693147)
    """
    log_p = _log_softmax(logits)
    return -_expected(log_p, log_p)


KL_ESTIMATORS = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}


def clip_binds(ratios: Array, advantages: Array, low: float, high: float) -> Array:
    """1 where clipping changes the loss: the ratio is too high and A > 0, or too low and A < 0; NaN where one is NaN.

    >>> clip_binds([1.5, 1.5, 0.5], [1.0, -1.0, -1.0], 0.2, 0.2)
    array([1., 0., 1.])
    """
    r, a = real(ratios), real(advantages, ratios)
    return share(((r > 1 + high) & (a > 0)) | ((r < 1 - low) & (a < 0)), r, a)


def policy_gradient_loss(
    ratios: Array, advantages: Array, low: float = 0.2, high: float = 0.2, dual_clip: float | None = None
) -> Array:
    """PPO's loss of each token: -min(r A, clip(r) A). With a dual clip c the minimum is at least c A where A < 0.

    >>> policy_gradient_loss([2.0, 9.0], [1.0, -1.0], dual_clip=3.0)
    array([-1.2,  3. ])
    """
    r, a = real(ratios), real(advantages, ratios)
    xp = library(r)
    gain = xp.minimum(r * a, xp.clip(r, 1 - low, 1 + high) * a)
    if dual_clip is not None:
        gain = xp.where(a < 0, xp.maximum(gain, dual_clip * a), gain)
    return -gain


def covariance(x: Value, y: Value, sums: Value) -> float:
    """Covariance of x and y (divided by n) from the moments of x, y and x + y.

    >>> from rlvitals import values
    >>> covariance(values.mean([0.0, 2.0]), values.mean([1.0, 5.0]), values.mean([1.0, 7.0]))
    2.0
    """
    return (sums.m2 - x.m2 - y.m2) / (2.0 * x.count)


def response_part(mask: Array, parts: int) -> Array:
    """The part (from 0) of its response that each token is in, for `parts` equal parts of the tokens inside the mask.

    >>> response_part([[0, 1, 1, 1, 1, 1, 1]], 3)
    array([[0., 0., 0., 1., 1., 2., 2.]])
    """
    kept = real(mask)
    xp = library(kept)
    before = xp.cumsum(kept, axis=-1) - kept
    count = kept.sum(axis=-1)[..., None]
    return xp.floor(parts * before / xp.where(count > 0, count, 1.0 + 0.0 * count))


@np.errstate(over="ignore", invalid="ignore")  # an overflowing ratio is inf, as with torch
def pack(
    *,
    logprobs: Array,
    old_logprobs: Array = None,
    ref_logprobs: Array = None,
    rollout_logprobs: Array = None,
    advantages: Array = None,
    mask: Array = None,
    entropy: Array = None,
    exact_kl_ref: Array = None,
    exact_kl_old: Array = None,
    scores: Array = None,
    sample_weights: Array = None,
    group_ids: Array = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    ratio_level: str = "token",
    aggregation: str = "token-mean",
    horizon: float | None = None,
    kl: str = "k3",
    kl_clamp: float | None = None,
    kl_coef: float | None = None,
    entropy_coef: float | None = None,
    weight_cap: float | None = None,
    weight_floor: float | None = None,
    names: str = "canonical",
) -> Packed:
    """Compute the statistics of a step or micro-batch without reading from the device. Statistics of missing arguments
    are not computed. `stats` takes the same arguments and returns mergeable values.

    `ratio_level` is "token" or "sequence" (GSPO). `aggregation` applies to the policy and total loss, the KL to the old
    policy, the KL to the reference and the binding clip fraction; other means are over tokens or sequences.
    `train.loss` is computed if a coefficient is given, with the KL estimator `kl`. `scores` (one per sequence) split
    the supervised loss. `weight_cap` and `weight_floor` are the trainer's bounds for the weights p_train / p_rollout.
    """
    _check_choice("ratio_level", ratio_level, ("token", "sequence"))
    _check_choice("kl", kl, tuple(KL_ESTIMATORS))
    lp, old, ref, rollout, ent, kl_r, kl_o, m = token_rows(
        logprobs, old_logprobs, ref_logprobs, rollout_logprobs, entropy, exact_kl_ref, exact_kl_old, mask=mask
    )
    weight = None if sample_weights is None else per_sequence(sample_weights, lp)
    batch = _Batch(StatisticSheet(naming(names, "policy")), m, aggregation, group_ids, horizon)
    clip = _Clip(clip_low, clip_high, dual_clip)
    batch.over_tokens(lp, mean="policy.logp.mean")
    log_perplexity = -masked_mean(lp, m, axis=-1)
    batch.over_sequences(log_perplexity, mean="policy.log_perplexity.train")
    batch.over_sequences(library(lp).exp(log_perplexity), mean="policy.perplexity.train")
    _show_samples(batch, weight)
    r = None if old is None else _show_old(batch, lp, old, clip, is_token_level=ratio_level == "token")
    penalty = None if ref is None else _show_reference(batch, lp, ref, kl=kl, clamp=kl_clamp, coefficient=kl_coef)
    for exact, metric in ((kl_r, "kl_ref.exact"), (kl_o, "policy.kl_old.exact")):
        if exact is not None:
            batch.averaged(exact, metric)
    adv = None if advantages is None else per_token(advantages, lp, m)
    if ent is not None:
        _show_entropy(batch, ent, adv)
    if adv is not None:
        rows = (batch.over_tokens(x) for x in (lp, adv, lp + adv))
        batch.sheet.derive("policy.logp_advantage_cov", covariance, *rows)
        loss = _show_loss(batch, lp, r, adv, clip=clip, weights=weight)
        if kl_coef is not None or entropy_coef is not None:
            _require(kl_coef, ref, "kl_coef", "ref_logprobs")
            _require(entropy_coef, ent, "entropy_coef", "entropy")
            total = loss if penalty is None else loss + penalty
            batch.averaged(total - entropy_coef * ent if entropy_coef else total, "train.loss")
    if scores is not None:
        _show_supervised(batch, lp, per_sequence(scores, lp))
    if rollout is not None:
        bounds = mismatch.WeightBounds(weight_floor, weight_cap)
        mismatch.add(batch.sheet, lp if old is None else old, rollout, m, bounds)
    return batch.sheet.pack()


stats = reading(pack)
"""The statistics of a step (or a micro-batch) as mergeable values; the arguments are those of `pack`."""


class _Clip(NamedTuple):
    """The clip range 1 - low .. 1 + high, and the dual clip for negative advantages."""

    low: float
    high: float
    dual: float | None


@dataclass(frozen=True, slots=True)
class _Batch:
    """The sheet that collects the statistics of one call, and how they are averaged."""

    sheet: StatisticSheet
    mask: Array
    aggregation: str
    group_ids: Array
    horizon: float | None

    def over_tokens(self, x: Array, **ids: str) -> int:
        return self.sheet.moments(x, self.mask, **ids)

    def over_sequences(self, x: Array, **ids: str) -> None:
        self.sheet.moments(x, self.has_tokens, **ids)

    def averaged(self, x: Array, metric: str) -> None:
        """Show it averaged in the same way as the loss."""
        numbers, shares, kind = terms(x, self.mask, self.aggregation, group_ids=self.group_ids, horizon=self.horizon)
        self.sheet.moments(numbers, shares, **{kind: metric})

    @property
    def has_tokens(self) -> Array:
        """1 for each sequence with a token inside the mask."""
        return real(self.mask.sum(axis=-1) > 0)


def _show_old(batch: _Batch, lp: Array, old: Array, clip: _Clip, *, is_token_level: bool) -> Array:
    """Show the distance to the policy that sampled, and return the ratio as [sequences, tokens]."""
    by_sequence = sequence_ratio(lp, old, batch.mask)
    r = ratio(lp, old) if is_token_level else per_token(by_sequence, lp)
    above, below = r > 1 + clip.high, r < 1 - clip.low
    batch.over_tokens(old, mean="policy.logp.old.mean")
    row = batch.over_tokens(
        r, mean="policy.ratio.mean", var="policy.ratio.var", max="policy.ratio.max", min="policy.ratio.min"
    )
    batch.sheet.derive("policy.ratio.effective_sample_size", mismatch.effective_sample_size, row)
    batch.over_sequences(
        by_sequence,
        mean="policy.ratio_sequence.mean", max="policy.ratio_sequence.max", min="policy.ratio_sequence.min",
    )  # fmt: skip
    batch.over_tokens(library(r).clip(r, 1 - clip.low, 1 + clip.high), mean="policy.ratio_clipped.mean")
    batch.over_tokens(share(above, r), mean="policy.ratio_outside.upper")
    batch.over_tokens(share(below, r), mean="policy.ratio_outside.lower")
    batch.over_tokens(share(above | below, r), mean="policy.ratio_outside")
    # The old policy drew the samples, so these estimate KL(old || new).
    batch.averaged(kl_k1(old, lp), "policy.kl_old.k1")
    batch.averaged(kl_k2(old, lp), "policy.kl_old.k2")
    batch.averaged(kl_k3(old, lp), "policy.kl_old.k3")
    return r


def _show_reference(
    batch: _Batch, lp: Array, ref: Array, *, kl: str, clamp: float | None, coefficient: float | None
) -> Array:
    """Show the distance to the reference, and return the penalty of each token; None without a coefficient."""
    batch.over_tokens(ref, mean="policy.logp.ref.mean")
    estimates = {name: _clamped(estimate(lp, ref), clamp) for name, estimate in KL_ESTIMATORS.items()}
    for name, estimate in estimates.items():
        batch.averaged(estimate, f"kl_ref.{name}")
    if coefficient is None:
        return None
    batch.averaged(coefficient * estimates[kl], "kl_ref.penalty")
    return coefficient * estimates[kl]


def _show_loss(batch: _Batch, lp: Array, r: Array, a: Array, *, clip: _Clip, weights: Array) -> Array:
    """Show the policy-gradient loss and the effect of clipping; return the weighted loss of each token."""
    loss = -a * lp if r is None else policy_gradient_loss(r, a, clip.low, clip.high, clip.dual)
    batch.averaged(loss, "policy.loss")
    if r is not None:
        batch.averaged(clip_binds(r, a, clip.low, clip.high), "policy.clip_fraction")
        above, below = share((r > 1 + clip.high) & (a > 0), r, a), share((r < 1 - clip.low) & (a < 0), r, a)
        batch.over_tokens(above, mean="policy.clip_fraction.upper")
        batch.over_tokens(below, mean="policy.clip_fraction.lower")
        batch.over_sequences(masked_mean(above, batch.mask, axis=-1), max="policy.clip_fraction.upper.max")
        batch.over_sequences(masked_mean(below, batch.mask, axis=-1), min="policy.clip_fraction.lower.min")
        if clip.dual is not None:
            batch.over_tokens(share((r > clip.dual) & (a < 0), r, a), mean="policy.dual_clip_fraction")
    if weights is None:
        return loss
    batch.averaged(loss * weights[:, None], "policy.loss.weighted")
    return loss * weights[:, None]


def _show_entropy(batch: _Batch, ent: Array, a: Array) -> None:
    """Show the entropy over all tokens, by thirds of each response, and by the sign of the advantage."""
    batch.over_tokens(ent, mean="entropy.mean", max="entropy.max", min="entropy.min")
    third = response_part(batch.mask, 3)
    for place, part in enumerate(("start", "middle", "end")):
        batch.sheet.moments(ent, batch.mask * (third == place), mean=f"entropy.position.{part}")
    if a is not None:
        batch.sheet.moments(ent, batch.mask * (a > 0), mean="entropy.positive.mean")
        batch.sheet.moments(ent, batch.mask * (a < 0), mean="entropy.negative.mean")


def _show_samples(batch: _Batch, weights: Array) -> None:
    batch.sheet.moments(
        batch.has_tokens,
        sum="train.samples.valid", mean="train.samples.valid_fraction", count="train.samples.total",
    )  # fmt: skip
    if weights is not None:
        batch.sheet.moments(
            weights, mean="train.sample_weight.mean", min="train.sample_weight.min", max="train.sample_weight.max"
        )


def _show_supervised(batch: _Batch, lp: Array, scores: Array) -> None:
    batch.over_tokens(-lp, mean="sft.loss")
    for is_in, metric in ((scores > 0, "sft.loss.positive"), (scores <= 0, "sft.loss.negative")):
        batch.sheet.moments(-lp, batch.mask * is_in[:, None], mean=metric)


def _clamped(x: Array, clamp: float | None) -> Array:
    return x if clamp is None else library(x).clip(x, -clamp, clamp)


def _check_choice(argument: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise ConfigError(f"unknown {argument} {given!r}.{did_you_mean(given, known)} Known: {', '.join(known)}")


def _require(coefficient: float | None, tensor: Array, argument: str, needed: str) -> None:
    if coefficient and tensor is None:
        raise ConfigError(f"{argument}={coefficient} needs {needed}: without it the total loss would be another one")


def _log_softmax(logits: Array) -> Array:
    z = real(logits)
    xp = library(z)
    shifted = z - xp.amax(z, axis=-1)[..., None]
    return shifted - xp.log(xp.exp(shifted).sum(axis=-1))[..., None]


def _expected(log_p: Array, x: Array) -> Array:
    xp = library(log_p)
    p = xp.exp(log_p)
    return xp.where(p > 0, p * xp.where(p > 0, x, 0.0 * p), 0.0 * p).sum(axis=-1)
