"""How failures of a policy change its curves, each curve at its own time. Several families of failures use them."""

from __future__ import annotations

import numpy as np

from corpus.build import Scene
from corpus.latent import ramp, rise
from corpus.noise import Array


def harm(scene: Scene, after: float, depth: float, tau: float) -> None:
    """The policy gets worse: skill falls by `depth` logits, starting `after` points after the cause."""
    fall = depth * scene.hard * rise(scene.n, scene.at + int(after), tau)
    scene.curves.skill = scene.curves.skill - fall
    scene.curves.truth = scene.curves.truth - fall


def hold(values: Array, at: int) -> Array:
    """The curve stays constant from `at` on."""
    out = values.copy()
    out[at:] = values[min(at, len(values) - 1)]
    return out


def stop_learning(scene: Scene, after: int = 0) -> None:
    """Skill stops improving."""
    at = min(scene.at + after, scene.n - 1)
    for name in ("skill", "truth", "progress"):
        setattr(scene.curves, name, hold(getattr(scene.curves, name), at))


def times(values: Array, scene: Scene, factor: float, over: float, after: float = 0) -> Array:
    """The curve multiplied by a factor that grows to `factor` over `over` points, on a log scale."""
    return values * np.exp(np.log(factor) * ramp(scene.n, scene.at + int(after), over))


def collapse_entropy(tau: float, floor: float = 0.03):
    """The policy becomes certain: entropy decays, groups repeat one answer, learning stops, skill erodes."""

    def bend(scene: Scene) -> None:
        c, n, at = scene.curves, scene.n, scene.at
        decay = np.exp(-np.clip(np.arange(n) - at, 0, None) / (tau * n / scene.hard))
        c.entropy = c.entropy * (floor + (1 - floor) * decay)
        stop_learning(scene, int(tau * n))
        c.diversity = c.diversity * (1 - 0.8 * (1 - decay) ** 2)
        c.kl = c.kl * (1 + 0.8 * (1 - decay))
        harm(scene, 1.5 * tau * n, 0.5, tau * n)

    return bend


def explode_entropy(scene: Scene) -> None:
    """Text gets garbled: entropy climbs, answers get longer, then reward falls."""
    c = scene.curves
    over = 0.15 * scene.n
    c.entropy = times(c.entropy, scene, 3.6 * scene.hard, over)
    c.length = times(c.length, scene, 1.7, over, 3)
    c.kl = times(c.kl, scene, 2.5, over, 4)
    harm(scene, 0.05 * scene.n, 1.8, 0.08 * scene.n)


def explode_kl(peak: float, over: float = 18):
    """KL takes off exponentially and stays up; reward breaks a little later, then answers change."""

    def bend(scene: Scene) -> None:
        c, n, at = scene.curves, scene.n, scene.at
        base = c.kl[at]
        c.kl = hold(c.kl, at) * np.exp(np.log(peak * scene.hard / base) * np.clip((np.arange(n) - at) / over, 0, 1))
        c.grad = times(c.grad, scene, 5, over, 3)
        harm(scene, 0.4 * over, 3.0, 6)
        c.length = times(c.length, scene, 0.45, over, 0.6 * over)
        c.entropy = times(c.entropy, scene, 0.5, over, 0.6 * over)

    return bend


def start_too_fast(peak: float, garbled: bool):
    """A learning rate far too high: in the first twenty points KL and gradients rise and the policy is destroyed."""

    def bend(scene: Scene) -> None:
        c, n = scene.curves, scene.n
        scene.at = int(scene.rng.integers(2, 6))
        c.lr = np.full(n, scene.world.lr)
        explode_kl(peak, over=9)(scene)
        c.grad = times(c.grad, scene, 4, 6)
        harm(scene, 5, 4, 4)
        c.entropy = times(c.entropy, scene, 7.0 if garbled else 0.04, 10, 3)
        quiet = 1 - 0.97 * ramp(n, scene.at + 15, 12)  # nothing left to learn from
        c.grad = c.grad * quiet

    return bend


def explode_gradient(factor: float):
    """Gradients grow and stay large; KL and then reward follow."""

    def bend(scene: Scene) -> None:
        c = scene.curves
        c.grad = times(c.grad, scene, factor * scene.hard, 12)
        c.kl = times(c.kl, scene, 3, 15, 8)
        c.clip = np.clip(times(c.clip, scene, 6, 15, 4), 0, 0.25)
        c.jitter = c.jitter + 1.2 * ramp(scene.n, scene.at + 6, 12)
        harm(scene, 12, 1.2, 15)

    return bend


def shake(factor: float):
    """The level stays the same, and the jumps from row to row grow."""

    def bend(scene: Scene) -> None:
        scene.curves.jitter = scene.curves.jitter + (factor * scene.hard - 1) * ramp(scene.n, scene.at, 0.3 * scene.n)
        stop_learning(scene)

    return bend


def saturate_clip(scene: Scene) -> None:
    """Updates are too large for the trust region."""
    c = scene.curves
    c.clip = c.clip + 0.5 * scene.hard * ramp(scene.n, scene.at, 15)
    c.kl = times(c.kl, scene, 2.5, 25, 8)
    c.jitter = c.jitter + 1.0 * ramp(scene.n, scene.at + 5, 15)
    harm(scene, 20, 0.8, 25)


def collapse_reward(depth: float, over: float):
    """Reward falls for a reason the other series do not show at first; KL and entropy react later."""

    def bend(scene: Scene) -> None:
        c = scene.curves
        stop_learning(scene)
        harm(scene, 0, depth, over)
        c.kl = times(c.kl, scene, 1.8, 15, over)
        c.entropy = times(c.entropy, scene, 1.25, 15, over)

    return bend


def grow_length(factor: float, over: float):
    """Answers grow without getting better and hit the limit, and steps take longer because of them."""

    def bend(scene: Scene) -> None:
        stop_learning(scene)
        scene.curves.length = times(scene.curves.length, scene, factor * scene.hard, over * scene.n)
        scene.curves.entropy = times(scene.curves.entropy, scene, 1.3, over * scene.n)

    return bend


def shrink_length(factor: float, over: float):
    """Answers shrink to nothing, and are wrong."""

    def bend(scene: Scene) -> None:
        c = scene.curves
        c.length = np.maximum(times(c.length, scene, factor, over), 1)
        stop_learning(scene)
        harm(scene, 0.5 * over, 2.2, over)
        c.entropy = times(c.entropy, scene, 0.4, over, over)
        c.kl = times(c.kl, scene, 3, over, 0.7 * over)

    return bend


def abandon_tools(over: float, longer: float):
    """The agent stops calling tools: turns change first, reward and KL follow, answers grow or shrink."""

    def bend(scene: Scene) -> None:
        c, n, at = scene.curves, scene.n, scene.at
        gone = ramp(n, at, over)
        c.turns = c.turns * (1 - gone) + 2.0 * gone
        stop_learning(scene, 2)
        c.length = times(c.length, scene, longer, 2 * over, 0.4 * over)
        c.entropy = times(c.entropy, scene, 2.2 if longer > 1 else 0.7, 2 * over, 0.5 * over)
        c.kl = times(c.kl, scene, 3.0, over, 0.8 * over)
        harm(scene, 0.6 * over, 2.0, over)

    return bend


def run_in_circles(scene: Scene) -> None:
    """The number of turns grows to the limit without any gain."""
    c = scene.curves
    stop_learning(scene)
    share = ramp(scene.n, scene.at, 0.25 * scene.n)
    c.turns = c.turns * (1 - share) + 0.97 * scene.world.max_turns * share
    c.length = times(c.length, scene, 1.7, 0.25 * scene.n)
    if "turn_limit" in c.extra:
        c.extra["turn_limit"] = np.clip(c.extra["turn_limit"] + 0.8 * share, 0, 1)
