"""A small model of policy-gradient training: smooth latent curves first, sampled and noisy observations second.

A `World` describes the run, `curves_of` gives the trajectories of a healthy run, a failure bends them, and `observe`
samples the rows that a trainer would have logged. Rewards, lengths and truncation come from sampled completions. So the
mean, its spread, the dead groups and the truncated share are consistent, as in real logs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from corpus.noise import Array, ar1, logit, sigmoid, spikes, wobble

SMALL_BATCH = 3

Series = dict[str, Array]
"""Canonical name -> one value per logged point; masked where nothing was logged."""


@dataclass
class World:
    """The parameters of one run. The defaults describe an average GRPO run on a verifiable task."""

    points: int = 150
    every: int = 1
    prompts: int = 24
    """Groups per logged point (the batch, times the steps between rows where rows are averages)."""
    group: int = 8
    start: float = 0.3
    end: float = 0.65
    spread: float = 1.3
    """How much prompts differ in difficulty, in logits."""
    delay: float = 0.0
    """The share of the run before learning starts."""
    pace: float = 1.2
    reward_low: float = 0.0
    reward_high: float = 1.0
    format_weight: float = 0.0
    """If above 0, a second reward component gives this much for a well-formed answer."""
    score_noise: float = 0.0
    """If above 0, the reward is a model's score: continuous, with this spread within a group."""
    entropy: float = 0.45
    entropy_drop: float = 0.4
    kl: float = 0.15
    kl_start: float = 0.0
    """Above 0 if the reference is another model, such as a teacher."""
    kl_noise: float = 0.25
    length: float = 350.0
    growth: float = 1.15
    max_length: float = 1024.0
    length_spread: float = 0.35
    grad: float = 0.35
    grad_noise: float = 0.2
    lr: float = 1e-6
    warmup: float = 0.04
    decay: str = "linear"
    clip: float = 0.004
    turns: float = 0.0
    max_turns: float = 16.0
    turns_growth: float = 1.05
    eval_every: int = 0
    eval_size: int = 200
    seconds: float = 30.0
    seconds_per_token: float = 0.06
    spike_rate: float = 0.004
    beta: float = 0.02


@dataclass
class Curves:
    """The latent trajectories of a run, one value per point; failures bend these."""

    progress: Array
    skill: Array
    format: Array
    diversity: Array
    """The share of groups whose completions are independent; the others repeat one answer."""
    entropy: Array
    kl: Array
    length: Array
    grad: Array
    lr: Array
    clip: Array
    turns: Array
    overhead: Array
    """Factor on the time of a step, independent of the length."""
    endless: Array
    """The share of completions that do not stop by themselves."""
    truth: Array
    """Skill as a held-out evaluation measures it."""
    jitter: Array
    """Factor on the row-to-row noise of loss, KL, reward and gradient."""
    extra: Series = field(default_factory=dict)
    """Series of `instruments`, by canonical name, as they will be logged."""


def ramp(points: int, start: int, length: float) -> Array:
    """0 before start, then rising to 1 over `length` points, smoothly at both ends."""
    x = np.clip((np.arange(points) - start) / max(length, 1e-9), 0, 1)
    return x * x * (3 - 2 * x)


def rise(points: int, start: int, tau: float) -> Array:
    """0 before start, then 1 - exp(-t/tau)."""
    t = np.clip(np.arange(points) - start + 1, 0, None)
    return 1 - np.exp(-t / tau)


def wander(rng: np.random.Generator, points: int, size: float) -> Array:
    """Slow drift around 1 that does not depend on the batch, because real curves are never smooth."""
    return np.exp(size * np.cumsum(rng.normal(0, 1, points)) / np.sqrt(points))


def schedule(world: World) -> Array:
    """The learning rate: warm-up, then decay. The first logged rate is above 0, as in rows that average steps."""
    u = (np.arange(world.points) + 0.5) / world.points
    factor = np.minimum(1, u / world.warmup) if world.warmup else np.ones_like(u)
    past = np.clip((u - world.warmup) / (1 - world.warmup), 0, 1)
    if world.decay == "linear":
        factor = factor * (1 - past)
    elif world.decay == "cosine":
        factor = factor * 0.5 * (1 + np.cos(np.pi * past))
    return world.lr * factor


def curves_of(world: World, rng: np.random.Generator) -> Curves:
    """The trajectories of a healthy run with these parameters."""
    n = world.points
    u = np.arange(n) / max(n - 1, 1)
    v = np.clip((u - world.delay) / (1 - world.delay), 0, 1)
    progress = (1 - np.exp(-world.pace * v)) / (1 - np.exp(-world.pace))
    if world.delay:
        progress = progress * ramp(n, int(world.delay * n), 0.2 * n)
    skill = logit(world.start) + (logit(world.end) - logit(world.start)) * progress + np.log(wander(rng, n, 0.1))
    moved = np.sqrt(u) * 0.35 + 0.65 * progress
    return Curves(
        progress=progress,
        skill=skill,
        format=0.55 + 0.43 * rise(n, 0, 0.12 * n),
        diversity=np.ones(n),
        entropy=world.entropy * (1 - world.entropy_drop * progress) * wander(rng, n, 0.06),
        kl=world.kl_start + world.kl * moved + 1e-4 * world.kl,
        length=world.length * world.growth**progress * wander(rng, n, 0.05),
        grad=world.grad * (1 + 0.6 * np.exp(-u * 12)) * (1 - 0.25 * progress),
        lr=schedule(world),
        clip=np.full(n, world.clip),
        turns=world.turns * world.turns_growth**progress,
        overhead=np.ones(n),
        endless=np.zeros(n),
        truth=skill - 0.1,
        jitter=np.ones(n),
    )  # fmt: skip


def observe(world: World, curves: Curves, rng: np.random.Generator) -> Series:
    """The series that a trainer would have logged."""
    n = world.points
    hardness = ar1(rng, n, 0.1)  # a batch of harder prompts: lower reward, longer answers, more entropy
    out = completions(world, curves, rng, hardness)
    calm = 1 - out["zero_std"]
    alive = np.sqrt(np.clip(calm / max(calm[: max(n // 8, 1)].mean(), 0.05), 0, 4))
    out["entropy"] = curves.entropy * wobble(rng, n, 0.045) * np.exp(0.02 * hardness)
    if world.prompts <= SMALL_BATCH:  # one odd prompt shows in the mean
        out["entropy"] = out["entropy"] * wobble(rng, n, 0.12) * spikes(rng, n, 2 * world.spike_rate, 1.5, 5)
    kl_spikes = spikes(rng, n, world.spike_rate, 8, 60)
    grad_spikes = spikes(rng, n, world.spike_rate, 6, 100)
    kl_noise = np.clip(np.log(wobble(rng, n, world.kl_noise)) * curves.jitter, -2.5, 2.5)
    out["kl"] = curves.kl * np.exp(kl_noise) * kl_spikes
    grad_wobble = np.exp(np.log(wobble(rng, n, world.grad_noise)) * np.minimum(curves.jitter, 4))
    # The loss is a mean over tokens: gradients shrink as answers grow.
    per_token = np.minimum((curves.length[0] / curves.length) ** 0.7, 1.3)
    out["grad"] = curves.grad * per_token * (0.15 + 0.85 * alive) * grad_wobble * grad_spikes
    out["lr"] = curves.lr
    out["policy_loss"] = 0.01 * ar1(rng, n, 0.0, 4) * curves.jitter * np.sqrt(np.clip(calm, 0.01, 1))
    out["loss"] = out["policy_loss"] + world.beta * out["kl"]
    out["clip"] = np.clip(curves.clip * wobble(rng, n, 0.12), 0, 1)
    out["ppo_kl"] = (0.1 * curves.clip + 0.0001) * 0.2 * ar1(rng, n)
    out["approx_kl"] = (0.004 + 0.4 * curves.clip) * wobble(rng, n, 0.25)
    out["ratio"] = 1 + 0.002 * ar1(rng, n)
    if world.turns:
        out["turns"] = np.clip(curves.turns * wobble(rng, n, 0.035) * np.exp(0.01 * hardness), 1, world.max_turns)
        out["tool_calls"] = np.maximum(out["turns"] / 2 - 1, 0)
    timing(world, curves, rng, out)
    tokens = out["length"] * world.prompts * world.group
    out["tokens_total"] = np.cumsum(tokens).round()
    out["epoch"] = np.round(np.arange(1, n + 1) * world.every * world.prompts / 7473, 4)
    if world.eval_every:
        out["eval"] = evaluation(world, curves, rng)
    for name, values in curves.extra.items():
        out[name] = values
    return out


def completions(world: World, curves: Curves, rng: np.random.Generator, hardness: Array) -> Series:
    """Sample every completion's length and reward, and take the statistics of the batch."""
    n, size = world.points, (world.points, world.prompts, world.group)
    prompt = rng.normal(0, 1, size[:2]) * world.spread + 0.12 * hardness[:, None]
    copied = rng.random(size[:2]) > curves.diversity[:, None]
    logs = np.log(curves.length)[:, None] + 0.06 * prompt + 0.02 * hardness[:, None]
    drawn = rng.normal(0, world.length_spread, size)
    drawn = np.where(copied[..., None], drawn[..., :1], drawn)
    lengths = np.maximum(np.round(np.exp(logs[..., None] + drawn)), 1)
    truncated = (lengths >= world.max_length) | (rng.random(size) < curves.endless[:, None, None])
    lengths = np.where(truncated, world.max_length, lengths)
    luck = rng.random(size)
    luck = np.where(copied[..., None], luck[..., :1], luck)
    shake = 0.25 * (curves.jitter - 1) * ar1(rng, n, 0.0)
    correct = luck < sigmoid(curves.skill[:, None] - prompt + shake[:, None])[..., None]
    correct &= ~truncated  # a truncated answer earns nothing
    reward = world.reward_low + (world.reward_high - world.reward_low) * correct.astype(float)
    out: Series = {}
    if world.score_noise:
        scored = rng.normal(0, world.score_noise, size)
        reward = reward + np.where(copied[..., None], scored[..., :1], scored)
    out["part_main"], out["part_main_std"] = reward.mean((1, 2)), reward.reshape(n, -1).std(1)
    if world.format_weight:
        form = rng.random(size)
        form = np.where(copied[..., None], form[..., :1], form)
        well_formed = world.format_weight * ((form < curves.format[:, None, None]) & ~truncated)
        out["part_format"], out["part_format_std"] = well_formed.mean((1, 2)), well_formed.reshape(n, -1).std(1)
        reward = reward + well_formed
    within = reward.std(2, ddof=1) if world.group > 1 else np.zeros(size[:2])
    dead = (within < 1e-8) & (world.group > 1)  # a group of one sample cannot be dead
    out["reward"] = reward.mean((1, 2))
    out["reward_min"], out["reward_max"] = reward.min((1, 2)), reward.max((1, 2))
    out["reward_std"] = within.mean(1)
    out["batch_std"] = reward.reshape(n, -1).std(1, ddof=1)
    out["zero_std"] = dead.mean(1)
    out["all_fail"] = (dead & (reward[..., 0] <= world.reward_low + 1e-9)).mean(1)
    out["all_pass"] = out["zero_std"] - out["all_fail"]
    out["kept"], out["filtered"] = (~dead).sum(1).astype(float), dead.sum(1).astype(float)
    out["length"], out["length_max"], out["length_min"] = (f(lengths, axis=(1, 2)) for f in (np.mean, np.max, np.min))
    out["truncated"] = truncated.mean((1, 2))
    ended = np.where(truncated, np.nan, lengths).reshape(n, -1)
    some = ~np.isnan(ended).all(1)
    for name, f in (("ended", np.nanmean), ("ended_max", np.nanmax), ("ended_min", np.nanmin)):
        out[name] = np.zeros(n)  # TRL logs 0 when nothing ended by itself
        out[name][some] = f(ended[some], axis=1)
    return out


def timing(world: World, curves: Curves, rng: np.random.Generator, out: Series) -> None:
    """Seconds, tokens a second and memory: they follow length unless something else slows the run."""
    n = world.points
    generation = (
        (0.4 * world.seconds + world.seconds_per_token * out["length"]) * curves.overhead * wobble(rng, n, 0.06)
    )
    update = (0.6 * world.seconds + 0.6 * world.seconds_per_token * out["length"]) * wobble(rng, n, 0.03)
    out["seconds_gen"], out["seconds"] = generation, generation + update
    if world.eval_every:
        pause = np.zeros(n)
        pause[world.eval_every - 1 :: world.eval_every] = rng.uniform(1.0, 2.5) * out["seconds"].mean()
        out["seconds"] = out["seconds"] + pause
    tokens = out["length"] * world.prompts * world.group
    out["tokens_per_s"] = tokens / (generation + update)
    peak = 46 + 0.7 * rise(n, 0, 6) + 0.1 * np.maximum.accumulate(rng.exponential(1, n))
    out["memory"], out["memory_reserved"] = peak.round(3), (peak + 8.4).round(3)


def evaluation(world: World, curves: Curves, rng: np.random.Generator) -> Array:
    """Accuracy on a held-out set every few points; masked in between."""
    n = world.points
    prompt = rng.normal(0, world.spread, world.eval_size)  # the same questions every time
    chance = sigmoid(curves.truth[:, None] - prompt[None, :])
    score = (rng.random((n, world.eval_size)) < chance).mean(1)
    seen = np.zeros(n, bool)
    seen[0] = True
    seen[world.eval_every - 1 :: world.eval_every] = True
    return np.ma.array(score, mask=~seen)
