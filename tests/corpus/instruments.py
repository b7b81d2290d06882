"""Healthy series of special metrics: a critic, rollout correction, staleness, tools, searches, the machine.

Each function adds the series of a healthy run to `curves.extra`; failures bend them there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from corpus.latent import Curves, World, rise
from corpus.noise import Array, ar1, sigmoid, wobble

Instrument = Callable[[World, Curves, np.random.Generator], None]


def critic(world: World, curves: Curves, rng: np.random.Generator) -> None:
    """A value head: it learns during the first fifth of the run and follows the return."""
    n = world.points
    level = world.reward_low + (world.reward_high - world.reward_low) * sigmoid(0.8 * curves.skill)
    scale = (world.reward_high - world.reward_low) ** 2 * 0.2 + world.score_noise**2
    learned = rise(n, 0, n / 6)
    curves.extra["value_loss"] = scale * (1.6 - 0.9 * learned) * wobble(rng, n, 0.12)
    curves.extra["explained_variance"] = np.minimum(0.65 * learned + 0.06 * ar1(rng, n), 0.95)
    curves.extra["values"] = level * learned + 0.02 * ar1(rng, n)
    curves.extra["returns"] = level + 0.03 * ar1(rng, n)
    curves.extra["value_clip"] = np.clip(0.01 * wobble(rng, n, 0.4), 0, 1)
    curves.extra["critic_grad"] = 2.0 * wobble(rng, n, 0.3)


def mismatch(world: World, curves: Curves, rng: np.random.Generator) -> None:
    """The sampler's and the trainer's probabilities: close, never equal."""
    n = world.points
    base = 0.0012 * (1 + 0.5 * curves.progress)
    extra = curves.extra
    extra["mismatch_kl"] = base * wobble(rng, n, 0.15)
    extra["mismatch_k3"] = 1.05 * base * wobble(rng, n, 0.15)
    extra["is_weight"] = 1 + 0.003 * ar1(rng, n)
    extra["ess"] = np.clip(0.95 + 0.01 * ar1(rng, n), 0, 1)
    extra["probs_diff"] = 0.006 * wobble(rng, n, 0.08)
    extra["logp_diff"] = 0.012 * wobble(rng, n, 0.08)
    extra["logp_diff_max"] = 0.9 * wobble(rng, n, 0.4)
    extra["prob_error"] = 1.012 + 0.002 * np.abs(ar1(rng, n))


def staleness(world: World, curves: Curves, rng: np.random.Generator) -> None:
    """Versions between sampling and training in an asynchronous run."""
    n = world.points
    mean = np.clip(1.6 * rise(n, 0, 4) + 0.25 * ar1(rng, n, 0.4), 0, None)
    curves.extra["staleness"] = mean
    curves.extra["staleness_max"] = np.ceil(mean + 1 + rng.integers(0, 2, n))


def tools(world: World, curves: Curves, rng: np.random.Generator) -> None:
    """Failures of tool calls: a few in a hundred, fewer as the agent learns the schema."""
    n = world.points
    failing = np.clip(0.06 * (1 - 0.4 * curves.progress) * wobble(rng, n, 0.25), 0, 1)
    curves.extra["tool_failures"], curves.extra["tool_success"] = failing, 1 - failing
    curves.extra["turn_limit"] = np.clip(0.03 * wobble(rng, n, 0.4), 0, 1)


def searches(world: World, curves: Curves, rng: np.random.Generator) -> None:
    """The counts of the e-mail agent's trainer, in rollouts and in evaluations of 100 questions."""
    n, rollouts = world.points, world.prompts * world.group
    curves.extra["early_exit"] = rng.binomial(rollouts, np.clip(0.38 + 0.25 * curves.progress, 0, 1), n).astype(float)
    share = 0.08 * (1 - 0.3 * curves.progress)
    total = np.round(245 * wobble(rng, n, 0.05))
    repeated = rng.binomial(total.astype(int), share)
    seen = np.zeros(n, bool)
    seen[max(world.eval_every, 5) - 1 :: max(world.eval_every, 5)] = True
    values: dict[str, Array] = {
        "searches": total, "repeated": repeated.astype(float), "unique": total - repeated,
        "turns_correct": 3.5 * wobble(rng, n, 0.05), "turns_idk": 4.3 * wobble(rng, n, 0.08),
        "search_attempts": total / 100, "idk": rng.binomial(100, 0.07, n).astype(float),
    }  # fmt: skip
    for name, series in values.items():
        curves.extra[name] = np.ma.array(series, mask=~seen)


def filtering(world: World, curves: Curves, rng: np.random.Generator) -> None:
    """The share of groups that dynamic sampling keeps."""
    curves.extra["keep_rate"] = np.clip(0.72 + 0.05 * ar1(rng, world.points), 0, 1)


def repetition(world: World, curves: Curves, rng: np.random.Generator) -> None:
    """The share of answers that repeat themselves."""
    curves.extra["repetition"] = rng.binomial(256, 0.012, world.points) / 256


def machine(world: World, curves: Curves, rng: np.random.Generator) -> None:
    """GPU, CPU and memory of the host, as a sampler reads them at the end of a step."""
    n = world.points
    gpu = np.clip(88 + 6 * ar1(rng, n, 0.3), 20, 100).round()
    used = 58 + 4 * rise(n, 0, 8) + 0.4 * ar1(rng, n)
    curves.extra.update(
        gpu=gpu, gpu_memory=used.round(2), gpu_memory_total=np.full(n, 80.0),
        gpu_memory_percent=(used / 0.8).round(1), memory_frac=np.clip(used / 80, 0, 1),
        cpu=np.clip(35 + 8 * ar1(rng, n, 0.3), 2, 100).round(1), host_memory=np.clip(42 + 1.5 * ar1(rng, n, 0.5), 5,
      100),
        generation_tps=1450 * wobble(rng, n, 0.07), backward_tps=5200 * wobble(rng, n, 0.04),
    )  # fmt: skip


INSTRUMENTS: dict[str, Instrument] = {
    f.__name__: f for f in (critic, mismatch, staleness, tools, searches, filtering, repetition, machine)
}
