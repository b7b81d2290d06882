"""Failures of the update: numerics, gradients, learning rates, divergence, clipping, off-policy data, the critic."""

from __future__ import annotations

import numpy as np

from corpus.bends import (
    collapse_entropy,
    explode_entropy,
    explode_gradient,
    explode_kl,
    harm,
    hold,
    saturate_clip,
    shake,
    start_too_fast,
    stop_learning,
    times,
)  # fmt: skip
from corpus.build import Scene, Variant
from corpus.habits import AGENT
from corpus.latent import Series, ramp
from corpus.noise import wobble


def spoil(*names: str, value: float = float("nan")):
    """These series are not finite from the onset on."""

    def touch(scene: Scene, series: Series) -> None:
        for name in names:
            series[name] = np.where(np.arange(scene.n) >= scene.at, value, series[name])

    return touch


def skip_updates(scene: Scene) -> None:
    """Non-finite updates are skipped: the policy does not change."""
    stand(scene, scene.at)


def stand(scene: Scene, at: int) -> None:
    for name in ("skill", "truth", "entropy", "kl", "length"):
        setattr(scene.curves, name, hold(getattr(scene.curves, name), at))
    if at == 0:
        scene.curves.kl[:] = 0.0


def freeze(scene: Scene) -> None:
    """No update reaches the model: gradients are exactly zero and nothing moves."""
    scene.curves.grad[scene.at :] = 0.0
    stand(scene, scene.at)


def diverge(names: tuple[str, ...], size: float, bumpy: bool = False):
    """The loss grows and does not come back. `hurt_later` makes the policy worse afterwards."""

    def touch(scene: Scene, series: Series) -> None:
        grown = size * scene.hard * ramp(scene.n, scene.at, 0.3 * scene.n)
        for name in names:
            bumps = wobble(scene.rng, scene.n, 0.7 if bumpy else 0.25, df=4)
            series[name] = series[name] + grown * bumps

    return touch


def hurt_later(scene: Scene) -> None:
    scene.curves.grad = times(scene.curves.grad, scene, 3, 20, 5)
    harm(scene, 0.1 * scene.n, 1.5, 0.1 * scene.n)


def tiny_rate(scene: Scene) -> None:
    """The learning rate is thousands of times too small: nothing moves."""
    c = scene.curves
    scene.world.lr = 1e-10
    scene.config["learning_rate"] = 1e-10
    c.lr = c.lr / max(c.lr.max(), 1e-30) * 1e-10
    for name in ("skill", "truth", "entropy", "length"):
        setattr(c, name, hold(getattr(c, name), 0))
    c.kl[:] = 2e-6


def endless_warmup(scene: Scene) -> None:
    """The warm-up was given in the wrong unit: the learning rate is still rising when the run ends."""
    c = scene.curves
    c.lr = scene.world.lr * 0.04 * (np.arange(scene.n) + 1) / scene.n
    for name in ("skill", "truth", "entropy", "length"):
        values = getattr(c, name)
        setattr(c, name, values[0] + 0.02 * (values - values[0]))
    c.kl = c.kl * 0.004


def negative_kl(depth: float):
    """Samples do not come from the policy that is scored, so the sampled KL estimate turns negative."""

    def bend(scene: Scene) -> None:
        c = scene.curves
        c.kl = c.kl - (depth * scene.hard + c.kl) * ramp(scene.n, scene.at, 0.15 * scene.n)
        stop_learning(scene, int(0.1 * scene.n))

    return bend


def drift_ratio(factor: float):
    """Old log-probabilities belong to other samples: the ratio leaves 1, clipping follows."""

    def bend(scene: Scene) -> None:
        c, n = scene.curves, scene.n
        share = ramp(n, scene.at, 15)
        c.extra["ratio"] = (
            np.exp(np.log(factor) * scene.hard * share)
            * wobble(scene.rng, n, 0.002)
            * np.exp(0.08 * share * scene.rng.normal(0, 1, n))
        )
        c.clip = c.clip + 0.35 * ramp(n, scene.at + 3, 15)
        stop_learning(scene, 5)
        harm(scene, 15, 0.7, 20)

    return bend


def drift_apart(peak: float):
    """The sampler and the trainer disagree more and more; the reward falls late."""

    def bend(scene: Scene) -> None:
        extra, n = scene.curves.extra, scene.n
        share = ramp(n, scene.at, 0.2 * n)
        up = np.exp(np.log(peak * scene.hard / 0.0015) * share)
        for name in ("mismatch_kl", "mismatch_k3"):
            extra[name] = extra[name] * up
        for name in ("probs_diff", "logp_diff", "logp_diff_max"):
            extra[name] = extra[name] * np.sqrt(up)
        extra["prob_error"] = extra["prob_error"] + 0.35 * share * wobble(scene.rng, n, 0.2)
        extra["is_weight"] = extra["is_weight"] * (1 - 0.55 * share)
        extra["ess"] = np.clip(extra["ess"] * (1 - 0.8 * share), 0, 1)
        harm(scene, 0.25 * n, 1.0, 0.15 * n)

    return bend


def fall_behind(scene: Scene) -> None:
    """Training is faster than sampling: the samples get older and older."""
    extra, n = scene.curves.extra, scene.n
    age = 13 * scene.hard * ramp(n, scene.at, 0.3 * n) * wobble(scene.rng, n, 0.08)
    extra["staleness"] = extra["staleness"] + age
    extra["staleness_max"] = np.ceil(extra["staleness_max"] + 1.5 * age)
    scene.curves.clip = np.clip(scene.curves.clip * (1 + 4 * ramp(n, scene.at, 0.3 * n)), 0, 0.1)
    stop_learning(scene, int(0.15 * n))


def lose_critic(growth: float):
    """The value head gets worse than predicting the mean, though returns did not change."""

    def bend(scene: Scene) -> None:
        extra, n = scene.curves.extra, scene.n
        share = ramp(n, scene.at, 0.12 * n)
        extra["value_loss"] = times(extra["value_loss"], scene, growth * scene.hard, 0.12 * n)
        extra["explained_variance"] = extra["explained_variance"] - 1.1 * scene.hard * share * wobble(scene.rng, n, 0.2)
        extra["values"] = extra["values"] + 0.8 * share * scene.rng.normal(0, 1, n)
        extra["critic_grad"] = times(extra["critic_grad"], scene, 6, 0.12 * n)
        stop_learning(scene, int(0.15 * n))

    return bend


V = Variant
VARIANTS: tuple[Variant, ...] = (
    V("nonfinite", "trl", "grpo", "nan-gradient", bend=skip_updates, touch=spoil("grad", "loss"), marker="grad"),
    V("nonfinite", "unsloth", "grpo", "from-start", bend=skip_updates, touch=spoil("grad"), onset=(0, 0),
      marker="grad", config=None),
    V("nonfinite", "verl", "grpo", "inf", bend=skip_updates, touch=spoil("policy_loss", value=float("inf")),
      marker="policy_loss"),
    V("nonfinite", None, "grpo", "kl", bend=skip_updates, touch=spoil("kl"), marker="kl", onset=(0.5, 0.8)),
    V("dead_gradient", "trl", "grpo", "frozen", bend=freeze, onset=(0, 0), marker="grad"),
    V("dead_gradient", "verl", "grpo", "after-resume", bend=freeze, marker="grad"),
    V("dead_gradient", None, "ppo", "frozen", bend=freeze, onset=(0, 0), marker="grad", config=None),
    V("grad_explosion", "verl", "grpo", "", bend=explode_gradient(35), marker="grad", holes=0.04),
    V("grad_explosion", None, "grpo", "noisy", bend=explode_gradient(50), marker="grad", config=None),
    V("grad_explosion", "openrlhf", "grpo", "mild", bend=explode_gradient(15), marker="grad"),
    V("loss_divergence", None, "grpo", "", bend=hurt_later, touch=diverge(("loss",), 1.2), marker="loss"),
    V("loss_divergence", "trl", "ppo", "policy-loss", bend=hurt_later, instruments=("critic",),
      touch=diverge(("policy_loss", "value_loss"), 6, True), marker="policy_loss"),
    V("loss_divergence", "rlhf_tracker", "ppo", "epochs", bend=hurt_later, touch=diverge(("loss",), 0.8),
      marker="loss"),
    V("instability", None, "grpo", "", bend=shake(8), marker="loss", accept=("grad_explosion",),
      world={"points": (140, 250)}),
    V("instability", "verl", "grpo", "", bend=shake(6), marker="reward", world={"points": (150, 220)}),
    V("instability", "trl", "grpo", "log-every-5", bend=shake(5), marker="kl", world={"every": 5, "prompts": 20}),
    V("lr_too_low", "trl", "grpo", "tiny", bend=tiny_rate, onset=(0, 0), marker="lr", world={"points": (180, 260)}),
    V("lr_too_low", "openrlhf", "grpo", "endless-warmup", bend=endless_warmup, onset=(0, 0), marker="lr"),
    V("lr_too_high", "trl", "grpo", "", bend=start_too_fast(6, garbled=False), onset=(0, 0), marker="kl",
      accept=("kl_explosion", "grad_explosion"), world={"lr": 5e-4, "points": (100, 150)}),
    V("lr_too_high", "verl", "grpo", "garbled", bend=start_too_fast(9, garbled=True), onset=(0, 0), marker="kl",
      accept=("kl_explosion", "grad_explosion"), world={"lr": 1e-4, "points": (80, 120), "grad": 0.5}),
    V("kl_explosion", "verl", "grpo", "", bend=explode_kl(16), marker="kl"),
    V("kl_explosion", "openrlhf", "grpo", "slow", bend=explode_kl(12, 35), marker="kl", world={"every": 5}),
    V("kl_explosion", None, "grpo", "long", bend=explode_kl(10, 60), marker="kl", world={"points": 1000, "pace": 0.8}),
    V("kl_explosion", "trl", "ppo", "sequence-sum", bend=explode_kl(140, 25), instruments=("critic",), marker="kl"),
    V("kl_explosion", "unsloth", "grpo", "late", bend=explode_kl(8, 15), onset=(0.6, 0.75), marker="kl", config=None),
    V("kl_negative", "trl", "ppo", "", bend=negative_kl(6), instruments=("critic",), marker="kl"),
    V("kl_negative", None, "grpo", "reused-samples", bend=negative_kl(22), onset=(0.05, 0.15), marker="kl",
      world={"spike_rate": 0.0},
      accept=("ratio_off",)),
    V("kl_negative", "trl", "rloo", "", bend=negative_kl(3), marker="kl"),
    V("entropy_collapse", "trl", "grpo", "slow", bend=collapse_entropy(0.13), marker="entropy", onset=(0.15, 0.3),
      world={"points": (180, 260), "every": 10, "prompts": 32}),
    V("entropy_collapse", "verl", "grpo", "fast", bend=collapse_entropy(0.05, 0.01), marker="entropy", holes=0.05),
    V("entropy_collapse", "roll", "grpo", "", bend=collapse_entropy(0.09), marker="entropy"),
    V("entropy_collapse", None, "grpo", "early", bend=collapse_entropy(0.08, 0.01), marker="entropy",
      onset=(0.06, 0.1), config=None),
    V("entropy_explosion", "verl", "grpo", "", bend=explode_entropy, marker="entropy"),
    V("entropy_explosion", "trl", "grpo", "", bend=explode_entropy, marker="entropy", hard=(0.8, 1.0)),
    V("entropy_explosion", "slime", "grpo", "", bend=explode_entropy, marker="entropy"),
    V("clip_saturation", "trl", "grpo", "", bend=saturate_clip, marker="clip", world={"clip": 0.01}),
    V("clip_saturation", "verl", "grpo", "mild", bend=saturate_clip, marker="clip", hard=(0.7, 0.9)),
    V("clip_saturation", "roll", "grpo", "", bend=saturate_clip, marker="clip", accept=("ratio_off",)),
    V("ratio_off", "trl", "ppo", "", bend=drift_ratio(2.2), instruments=("critic",), marker="ratio",
      accept=("clip_saturation",)),
    V("ratio_off", "roll", "grpo", "low", bend=drift_ratio(0.4), marker="ratio", accept=("clip_saturation",)),
    V("ratio_off", None, "grpo", "reused-batch", bend=drift_ratio(1e-4), onset=(0.08, 0.15), marker="ratio",
      accept=("clip_saturation",)),
    V("logprob_mismatch", "verl", "grpo", "", bend=drift_apart(0.25), instruments=("mismatch",), marker="mismatch_kl"),
    V("logprob_mismatch", "trl", "grpo", "", bend=drift_apart(0.3), instruments=("mismatch",), marker="logp_diff"),
    V("logprob_mismatch", "nemo_rl", "grpo", "", bend=drift_apart(0.15), instruments=("mismatch",),
      marker="mismatch_kl"),
    V("logprob_mismatch", "prime_rl", "grpo", "slow", bend=drift_apart(0.12), instruments=("mismatch",),
      marker="mismatch_kl", world={"points": (200, 250)}),
    V("staleness", "skyrl", "grpo", "", bend=fall_behind, instruments=("staleness",), marker="staleness"),
    V("staleness", "verl", "grpo", "", bend=fall_behind, instruments=("staleness",), marker="staleness"),
    V("staleness", "prime_rl", "grpo", "", bend=fall_behind, instruments=("staleness",), marker="staleness"),
    V("value_failure", "verl", "ppo", "", bend=lose_critic(4), instruments=("critic",), marker="explained_variance"),
    V("value_failure", "trl", "ppo", "", bend=lose_critic(6), instruments=("critic",), marker="value_loss"),
    V("value_failure", "openrlhf", "ppo", "", bend=lose_critic(5), instruments=("critic",), marker="value_loss"),
    V("kl_explosion", "verl", "grpo", "agent", bend=explode_kl(14, 12), world=AGENT, marker="kl"),
)  # fmt: skip
