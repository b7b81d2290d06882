"""Failures of preference optimisation: DPO and KTO."""

from __future__ import annotations

from typing import Any

import numpy as np

from corpus.build import Rows, Scene, Variant
from corpus.latent import Series, ramp, rise
from corpus.noise import wobble


def swap_labels(scene: Scene) -> None:
    """Chosen and rejected are swapped: the run learns the opposite from the start."""
    c = scene.curves
    c.chosen, c.rejected = -0.9 * scene.hard * c.chosen, -0.9 * scene.hard * c.rejected
    c.eval_chosen, c.eval_rejected = -c.eval_chosen, -c.eval_rejected


def turn_around(scene: Scene) -> None:
    """After good progress the margin falls below zero and continues to fall."""
    c = scene.curves
    fall = (
        2.2 * scene.hard * max(c.chosen[scene.at] - c.rejected[scene.at], 0.4) * rise(scene.n, scene.at, 0.2 * scene.n)
    )
    c.chosen, c.rejected = c.chosen - 0.6 * fall, c.rejected + 0.4 * fall


def no_signal(scene: Scene) -> None:
    """Margins are noise around zero."""
    c = scene.curves
    for name in ("chosen", "rejected", "eval_chosen", "eval_rejected"):
        setattr(c, name, 0.002 * getattr(c, name))
    c.spread = np.where(np.arange(scene.n) > 0, 0.02 * scene.hard, 0.0)
    c.eval_spread = np.full(scene.n, 0.02)
    stay(scene)


def stay(scene: Scene) -> None:
    """A policy that does not move keeps its entropy and its gradients."""
    c = scene.curves
    c.entropy[:], c.grad[:] = c.entropy[0], c.grad[0]
    c.kl[:] = 0.0


def frozen(scene: Scene) -> None:
    """The gradient is zero: the loss is exactly ln 2 and nothing moves."""
    c = scene.curves
    for name in ("chosen", "rejected", "spread", "grad", "kl", "eval_chosen", "eval_rejected", "eval_spread"):
        getattr(c, name)[:] = 0.0
    c.entropy[:] = c.entropy[0]


def displace(depth: float):
    """The margin grows, but only because both answers lose likelihood and the rejected one loses it faster."""

    def bend(scene: Scene) -> None:
        c = scene.curves
        fall = depth * scene.hard * ramp(scene.n, scene.at, 0.45 * scene.n)
        for name in ("chosen", "rejected", "eval_chosen", "eval_rejected"):
            setattr(c, name, getattr(c, name) - fall * (1.0 if "chosen" in name else 1.5))

    return bend


def crash(nats: float, over: float):
    """All answers become impossible within a few rows; the margin is lost with them."""

    def bend(scene: Scene) -> None:
        c = scene.curves
        share = ramp(scene.n, scene.at, over)
        c.shock = nats * scene.hard * share
        for name in ("chosen", "rejected"):
            setattr(c, name, getattr(c, name) * (1 - 0.95 * share))
        c.grad = c.grad * (1 + 6 * share)

    return bend


def use_up(scene: Scene) -> None:
    """The policy separates all pairs early. Further training only lowers the likelihoods."""
    c, n = scene.curves, scene.n
    margin = 14 * scene.hard * rise(n, 0, 0.35 * n)
    c.chosen, c.rejected = -0.15 * margin, -1.15 * margin
    c.spread = 0.22 * margin
    c.eval_chosen, c.eval_rejected, c.eval_spread = 0.9 * c.chosen, 0.9 * c.rejected, 0.3 * margin
    c.grad = c.grad * np.exp(-0.45 * margin)
    scene.at = int(np.argmax(margin > 6.5))


def overfit(scene: Scene) -> None:
    """Training metrics keep improving while the evaluation gets worse."""
    c, n = scene.curves, scene.n
    share = ramp(n, scene.at, 1.3 * (n - scene.at))
    margin = (c.chosen - c.rejected)[:, None][:, 0]
    c.eval_spread = c.eval_spread + 2.6 * scene.hard * share * np.maximum(margin, 0.3)
    c.eval_chosen = c.eval_chosen - 0.35 * share * margin
    c.chosen, c.rejected = c.chosen * (1 + 0.5 * share), c.rejected * (1 + 0.8 * share)


def run_away(scene: Scene) -> None:
    """KTO with a learning rate far too high: the KL estimate grows exponentially from the first rows on."""
    c, n = scene.curves, scene.n
    scene.at = 1
    doublings = np.clip(np.arange(n), 0, 24) / 3.2
    c.kl = 0.03 * 2**doublings * wobble(scene.rng, n, 0.15)
    c.lr = np.full(n, scene.world.lr)
    c.shock = 90 * ramp(n, 3, 25)
    c.grad = c.grad * (1 + 12 * ramp(n, 2, 12))
    c.spread = c.spread + 1.5 * ramp(n, 2, 20)


def never_warm(scene: Scene) -> None:
    """The warm-up is longer than the run: the learning rate rises to the end and margins hardly move."""
    c, n = scene.curves, scene.n
    c.lr = scene.world.lr * 0.05 * (np.arange(n) + 1) / n
    for name in ("chosen", "rejected", "eval_chosen", "eval_rejected"):
        setattr(c, name, 0.01 * getattr(c, name))
    c.spread = 0.02 * rise(n, 1, 3)
    c.eval_spread = np.full(n, 0.02)
    stay(scene)


def tiny_rate(scene: Scene) -> None:
    """A learning rate of 1e-9: all changes are noise."""
    never_warm(scene)
    scene.curves.lr = np.full(scene.n, 1e-9)
    scene.config["learning_rate"] = 1e-9


def blow_up(scene: Scene, series: Series) -> None:
    """The loss leaves its level and grows in bumps; accuracy falls back to chance."""
    n = scene.n
    grown = 2.5 * scene.hard * ramp(n, scene.at, 0.25 * n) * wobble(scene.rng, n, 0.5)
    series["loss"] = series["loss"] + grown
    series["grad"] = series["grad"] * (1 + 8 * ramp(n, scene.at, 0.25 * n))
    series["accuracy"] = np.clip(series["accuracy"] - 0.3 * ramp(n, scene.at + 5, 0.2 * n), 0, 1)


def lose_numbers(scene: Scene, series: Series) -> None:
    """Loss, log-probabilities, rewards and gradient are NaN from the onset on."""
    for name in ("loss", "logp_chosen", "chosen", "rejected", "margin"):
        series[name][scene.at :] = np.nan
    series["grad"][scene.at :] = np.nan


def count(scene: Scene, series: Series) -> None:
    """How many desirable and undesirable examples were in the batch."""
    size, share = 2 * scene.world.pairs, scene.world.desirable
    series["count_chosen"] = scene.rng.binomial(size, share, scene.n).astype(float)
    series["count_rejected"] = size - series["count_chosen"]


def accuracy_in_percent(scene: Scene, rows: Rows) -> None:
    """From the onset on, accuracies are logged in percent."""
    for row in rows[scene.at :]:
        if "rewards/accuracies" in row:
            row["rewards/accuracies"] = round(100 * row["rewards/accuracies"], 2)


LOPSIDED: dict[str, Any] = {"desirable_weight": 1.0, "undesirable_weight": 1.0}
V = Variant
VARIANTS: tuple[Variant, ...] = (
    V("margin_inversion", "trl", "dpo", "swapped", bend=swap_labels, onset=(0, 0), marker="margin",
      world={"warmup": 0.1}),
    V("margin_inversion", "trl", "kto", "turns-around", bend=turn_around, marker="margin", world={"every": 5,
      "pairs": 32}),
    V("margin_inversion", "kto_guide", "kto", "swapped", bend=swap_labels, onset=(0, 0), marker="margin"),
    V("preference_signal_lost", "trl", "dpo", "", bend=no_signal, onset=(0, 0), marker="margin",
      world={"points": (160, 220)}),
    V("preference_signal_lost", "trl", "kto", "", bend=no_signal, onset=(0, 0), marker="margin",
      world={"points": (160, 220)}),
    V("dead_gradient", "trl", "dpo", "frozen-adapter", bend=frozen, onset=(0, 0), marker="grad",
      accept=("preference_signal_lost",)),
    V("likelihood_displacement", "trl", "dpo", "", bend=displace(3.5), marker="chosen", world={"chosen_share": 0.2}),
    V("likelihood_displacement", "openrlhf", "dpo", "", bend=displace(2.2), marker="chosen", onset=(0.15, 0.3)),
    V("likelihood_displacement", "unsloth", "dpo", "deep", bend=displace(6), marker="chosen", config=None),
    V("logprob_crash", "trl", "dpo", "", bend=crash(900, 8), marker="logp_chosen"),
    V("logprob_crash", "trl", "kto", "early", bend=crash(700, 12), onset=(0.12, 0.2), marker="logp_chosen"),
    V("saturated", "trl", "dpo", "", bend=use_up, marker="loss", accept=("likelihood_displacement",),
      world={"points": (130, 200)}),
    V("saturated", "openrlhf", "dpo", "", bend=use_up, marker="loss", accept=("likelihood_displacement",),
      world={"points": (130, 200)}),
    V("overfit", "trl", "dpo", "mild", bend=overfit, marker="eval_loss", onset=(0.25, 0.4), hard=(0.5, 0.8),
      world={"eval_every": 10, "points": (140, 200)}),
    V("overfit", "trl", "kto", "", bend=overfit, marker="eval_loss", onset=(0.3, 0.45),
      world={"eval_every": 12, "points": (140, 200), "every": 10, "pairs": 64}),
    V("overfit", "openrlhf", "dpo", "many-epochs", bend=overfit, marker="eval_loss", onset=(0.3, 0.4), hard=(1.4, 1.8),
      world={"eval_every": 15, "points": (150, 180)}),
    V("class_imbalance", "trl", "kto", "counts", touch=count, onset=(0, 0), marker="count_chosen",
      world={"desirable": 0.92}, config=LOPSIDED),
    V("class_imbalance", "trl", "kto", "config", onset=(0, 0), marker="margin", world={"desirable": 0.12},
      config={**LOPSIDED, "num_desirable": 1200, "num_undesirable": 8800}),
    V("class_imbalance", "kto_guide", "kto", "weights", onset=(0, 0), marker="margin",
      config={"desirable_weight": 1.0, "undesirable_weight": 6.0, "num_desirable": 5000, "num_undesirable": 5000}),
    V("lr_too_high", "trl", "kto", "", bend=run_away, onset=(0, 0), marker="kl", world={"lr": 2e-5, "pairs": 8},
      accept=("kl_explosion",)),
    V("lr_too_low", "trl", "dpo", "endless-warmup", bend=never_warm, onset=(0, 0), marker="lr",
      world={"points": (140, 200)}),
    V("lr_too_low", "kto_guide", "kto", "tiny", bend=tiny_rate, onset=(0, 0), marker="lr", world={"points": (100,
      150)}),
    V("loss_divergence", "trl", "dpo", "", touch=blow_up, marker="loss", accept=("grad_explosion",)),
    V("nonfinite", "trl", "dpo", "", touch=lose_numbers, marker="loss"),
    V("data", "trl", "dpo", "percent", edit=accuracy_in_percent, marker="accuracy"),
)  # fmt: skip
