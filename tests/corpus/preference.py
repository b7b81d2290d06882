"""A small model of preference optimisation (DPO, KTO). All series are computed from the margins of single pairs.

As in `latent`: a `PairWorld` gives healthy `PairCurves`, a failure bends them, `observe_pairs` samples the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from corpus.latent import Series, World, schedule
from corpus.noise import Array, ar1, sigmoid, spikes, wobble


@dataclass
class PairWorld:
    """The parameters of one preference run; rewards are beta times log-ratios, as trainers log them."""

    points: int = 120
    every: int = 1
    pairs: int = 16
    beta: float = 0.1
    margin: float = 1.8
    """The mean margin at the end of a healthy run."""
    chosen_share: float = 0.35
    """The share of the margin that comes from chosen answers getting more likely; negative if they get less likely."""
    pace: float = 3.0
    spread: float = 0.6
    """How much pairs differ, as a share of the mean margin."""
    logp_chosen: float = -210.0
    logp_rejected: float = -190.0
    logp_noise: float = 0.2
    entropy: float = 1.1
    grad: float = 4.0
    grad_noise: float = 0.3
    lr: float = 5e-7
    warmup: float = 0.1
    decay: str = "linear"
    eval_every: int = 0
    kto: bool = False
    desirable: float = 0.5
    """The share of desirable examples (KTO)."""
    kl_end: float = 0.0
    """KTO: the KL estimate at the end; with 0 it is cut off at zero nearly everywhere."""
    spike_rate: float = 0.004


@dataclass
class PairCurves:
    """Latent trajectories: mean rewards of chosen and rejected answers, their spread, and the same in evaluations."""

    chosen: Array
    rejected: Array
    spread: Array
    grad: Array
    lr: Array
    kl: Array
    shock: Array
    """Nats that all answers lose, good or bad, when the model is destroyed."""
    entropy: Array
    eval_chosen: Array
    eval_rejected: Array
    eval_spread: Array
    jitter: Array
    extra: Series = field(default_factory=dict)


def pair_curves_of(world: PairWorld, rng: np.random.Generator) -> PairCurves:
    """The trajectories of a healthy run with these parameters: nothing moves before the warm-up of the rate."""
    n = world.points
    lr = schedule(World(points=n, lr=world.lr, warmup=world.warmup, decay=world.decay))
    applied = np.concatenate([[0.0], np.cumsum(lr)[:-1]])
    applied = applied / applied[-1] if applied[-1] else applied
    progress = (1 - np.exp(-world.pace * applied)) / (1 - np.exp(-world.pace))
    drift = np.cumsum(rng.normal(0, 0.05, n)) / np.sqrt(n)
    margin = world.margin * progress * (1 + drift)
    chosen, rejected = world.chosen_share * margin, -(1 - world.chosen_share) * margin
    return PairCurves(
        chosen=chosen, rejected=rejected, spread=world.spread * margin + 0.02 * np.minimum(progress * 50, 1),
        grad=world.grad * (0.25 + 0.75 * sigmoid(2.5 - 2 * margin)), lr=lr,
        kl=world.kl_end * progress if world.kl_end else -0.06 * margin, shock=np.zeros(n),
        entropy=world.entropy * (1 - 0.25 * progress),
        eval_chosen=0.92 * chosen, eval_rejected=0.92 * rejected, eval_spread=1.1 * world.spread * margin + 0.02,
        jitter=np.ones(n),
    )  # fmt: skip


def observe_pairs(world: PairWorld, curves: PairCurves, rng: np.random.Generator) -> Series:
    """The series that a trainer would have logged."""
    n, size = world.points, (world.points, world.pairs)
    batch = 0.10 * ar1(rng, n) * curves.jitter
    good = curves.chosen[:, None] + (curves.spread[:, None] * rng.standard_t(6, size) * 0.5)
    bad = curves.rejected[:, None] + (curves.spread[:, None] * rng.standard_t(6, size) * 0.5)
    good, bad = good + (batch * curves.spread)[:, None], bad - (batch * curves.spread)[:, None]
    if world.kto:
        good, bad = unpaired(world, good, rng), unpaired(world, bad, rng, desirable=False)
    margins = good - bad
    out: Series = {"chosen": np.nanmean(good, 1), "rejected": np.nanmean(bad, 1)}
    out["margin"] = out["chosen"] - out["rejected"]
    out["accuracy"] = (margins > 0).mean(1)
    lost = curves.shock * wobble(rng, n, 0.05)
    seen = wobble(rng, n, world.logp_noise), wobble(rng, n, world.logp_noise)
    out["logp_chosen"] = world.logp_chosen * seen[0] + out["chosen"] / world.beta - lost
    out["logp_rejected"] = world.logp_rejected * seen[1] + out["rejected"] / world.beta - lost
    if lost.any():
        out["chosen"], out["rejected"] = out["chosen"] - world.beta * lost, out["rejected"] - world.beta * lost
    out["logits_chosen"] = -2.6 + 0.1 * curves.chosen + 0.12 * ar1(rng, n)
    out["logits_rejected"] = -2.5 + 0.1 * curves.rejected + 0.12 * ar1(rng, n)
    if world.kto:
        # The estimate comes from mismatched pairs and is cut at 0. It stays at 0 while the policy moves away from them.
        out["kl"] = np.maximum(
            0,
            curves.kl
            + (0.04 * np.abs(curves.chosen - curves.rejected) + 0.1 * np.abs(curves.kl)) * ar1(rng, n, 0.0, 4),
        )
        z = (out["kl"] * (world.beta if world.beta < 1 else 1))[:, None]
        per_good, per_bad = 1 - sigmoid(good - z), 1 - sigmoid(z - bad)
        out["loss"] = np.nanmean(np.concatenate([per_good, per_bad], 1), 1)
    else:
        out["loss"] = np.logaddexp(0, -margins).mean(1)
    out["entropy"] = curves.entropy * wobble(rng, n, 0.03)
    out["grad"] = curves.grad * wobble(rng, n, world.grad_noise) * spikes(rng, n, world.spike_rate, 5, 80)
    out["lr"] = curves.lr
    out["tokens_total"] = np.cumsum(np.full(n, 2.0 * world.pairs * 320) * wobble(rng, n, 0.08)).round()
    out["epoch"] = np.round(np.arange(1, n + 1) * world.every * world.pairs / 6000, 4)
    out["token_accuracy"] = np.clip(0.72 + 0.01 * ar1(rng, n), 0, 1)
    if world.eval_every:
        held_out(world, curves, rng, out)
    out.update(curves.extra)
    return out


def unpaired(world: PairWorld, values: Array, rng: np.random.Generator, desirable: bool = True) -> Array:
    """KTO trains on single answers: each class has only a share of the batch, and at least one value."""
    share = world.desirable if desirable else 1 - world.desirable
    kept = rng.random(values.shape) < share
    kept[:, 0] |= ~kept.any(1)
    return np.where(kept, values, np.nan)


def held_out(world: PairWorld, curves: PairCurves, rng: np.random.Generator, out: Series) -> None:
    """Evaluation rows every few points, on more pairs than a batch has."""
    n = world.points
    seen = np.zeros(n, bool)
    seen[world.eval_every - 1 :: world.eval_every] = True
    noise = rng.standard_t(6, (2, 1, 256)) * 0.5  # the same pairs every time
    good = curves.eval_chosen[:, None] + curves.eval_spread[:, None] * noise[0]
    bad = curves.eval_rejected[:, None] + curves.eval_spread[:, None] * noise[1]
    margins = good - bad
    values = {
        "eval_loss": np.logaddexp(0, -margins).mean(1) * (0.72 if world.kto else 1.0),
        "eval_margin": margins.mean(1),
        "eval_accuracy": (margins > 0).mean(1),
        "eval_chosen": good.mean(1),
        "eval_rejected": bad.mean(1),
    }
    for name, series in values.items():
        out[name] = np.ma.array(series * (1 + 0.012 * rng.normal(0, 1, n)), mask=~seen)
