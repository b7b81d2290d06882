"""Failures of the machine and of the log: stalls, slow steps, memory, idle GPUs, broken data."""

from __future__ import annotations

import numpy as np

from corpus.build import Rows, Scene, Variant
from corpus.latent import ramp
from corpus.noise import wobble

START = 1_763_190_000.0


def slow_down(factor: float, over: float):
    """Steps take longer though answers do not."""

    def bend(scene: Scene) -> None:
        c, n = scene.curves, scene.n
        slower = 1 + (factor * scene.hard - 1) * ramp(n, scene.at, over)
        c.overhead = c.overhead * slower
        for name in ("generation_tps", "backward_tps"):
            if name in c.extra:
                c.extra[name] = c.extra[name] / slower

    return bend


def leak(scene: Scene) -> None:
    """Memory creeps up row by row towards the card's 80 GB."""
    extra, n = scene.curves.extra, scene.n
    used = extra["gpu_memory"] + (79.2 - extra["gpu_memory"]) * np.clip(
        (np.arange(n) - scene.at) / (0.9 * (n - scene.at)), 0, 1
    )
    used = np.minimum(used, 79.6)
    extra["gpu_memory"], extra["gpu_memory_percent"] = used.round(2), (used / 0.8).round(1)
    extra["memory_frac"] = np.clip(used / 80, 0, 1)
    extra["memory_reserved"] = np.floor(np.maximum.accumulate(used) * 2) / 2  # the allocator grows in blocks
    extra["memory"] = (np.maximum.accumulate(used) - 6).round(3)


def starve(level: float):
    """The GPU waits for something else most of the time."""

    def bend(scene: Scene) -> None:
        extra, n = scene.curves.extra, scene.n
        share = ramp(n, scene.at, 6) if scene.at else np.ones(n)
        idle = np.clip(level * wobble(scene.rng, n, 0.5), 0, 60)
        extra["gpu"] = np.round(extra["gpu"] * (1 - share) + idle * share)
        extra["cpu"] = np.clip(extra["cpu"] * (1 - share) + 96 * share, 0, 100).round(1)
        scene.curves.overhead = scene.curves.overhead * (1 + 1.2 * share)

    return bend


def stall(interval: float, spread: float = 0.1):
    """Rows arrive at their usual pace and then stop; the clock continues."""

    def edit(scene: Scene, rows: Rows) -> list[float]:
        del rows[scene.at + 1 :]
        now = START
        for row in rows:
            now += interval * float(np.exp(spread * scene.rng.normal()))
            row["timestamp"] = round(now, 3)
        waits = np.array([2, 5, 8, 12, 20, 40, 80]) * max(interval, 60)
        return [round(now + float(wait), 3) for wait in (*waits, 7200.0) if wait <= 7200]

    return edit


def two_writers(scene: Scene, rows: Rows) -> None:
    """A second process writes its own, older steps into the same log: the step jumps back and forth."""
    for i, row in enumerate(rows[scene.at :]):
        if i % 2:
            row["step"] = max(row["step"] - 40 - i // 2, 1)


def backwards(scene: Scene, rows: Rows) -> None:
    """The step counter runs backwards."""
    top = rows[scene.at]["step"]
    for i, row in enumerate(rows[scene.at :]):
        row["step"] = max(top - i, 0)


def duplicates(scene: Scene, rows: Rows) -> None:
    """Every rank logs: from the onset on, each step appears three times with different values."""
    tail = rows[scene.at :]
    del rows[scene.at :]
    for row in tail:
        for _ in range(3):
            shaken = {
                key: value * (1 + 0.05 * float(scene.rng.normal())) if isinstance(value, float) else value
                for key, value in row.items()
            }
            rows.append({**shaken, "step": row["step"]})


def vanish(*keys: str):
    """The most important keys are no longer logged; the others are."""

    def edit(scene: Scene, rows: Rows) -> None:
        for row in rows[scene.at :]:
            for key in keys:
                row.pop(key, None)

    return edit


def impossible(key: str, factor: float):
    """A share is above 1: it was summed over ranks instead of averaged."""

    def edit(scene: Scene, rows: Rows) -> None:
        for row in rows[scene.at :]:
            if key in row:
                row[key] = 0.3 + row[key] * factor + factor * 0.3 * abs(float(scene.rng.normal()))

    return edit


V = Variant
VARIANTS: tuple[Variant, ...] = (
    V("stall", "verl", "grpo", "slow-steps", edit=stall(240), marker="seconds", onset=(0.3, 0.7)),
    V("stall", "trl", "grpo", "quick-steps", edit=stall(9, 0.2), marker="seconds", onset=(0.3, 0.7)),
    V("stall", None, "grpo", "no-settings", edit=stall(45, 0.3), onset=(0.3, 0.6), config=None,
      world={"points": (120, 250)}),
    V("throughput", "verl", "grpo", "", bend=slow_down(5, 10), marker="seconds"),
    V("throughput", "rlaif", "rlaif", "tokens", bend=slow_down(3, 12), instruments=("machine",),
      marker="generation_tps"),
    V("throughput", "skyrl", "grpo", "slow", bend=slow_down(4.5, 30), marker="seconds"),
    V("memory", "verl", "grpo", "", bend=leak, instruments=("machine",), marker="memory_reserved",
      onset=(0.15, 0.35)),
    V("memory", "rlaif", "rlaif", "", bend=leak, instruments=("machine",), marker="gpu_memory", onset=(0.2, 0.4)),
    V("memory", "roll", "grpo", "", bend=leak, instruments=("machine",), marker="memory_frac", onset=(0.2, 0.4)),
    V("gpu_idle", "rlaif", "rlaif", "", bend=starve(12), instruments=("machine",), marker="gpu", onset=(0.2, 0.4),
      world={"points": (250, 350)}),
    V("gpu_idle", "skyrl", "grpo", "from-start", bend=starve(20), instruments=("machine",), marker="gpu", onset=(0, 0),
      world={"points": (180, 250)}),
    V("data", "trl", "grpo", "backwards", edit=backwards, marker="step"),
    V("data", "verl", "grpo", "two-writers", edit=two_writers, marker="step"),
    V("data", "openrlhf", "grpo", "duplicates", edit=duplicates, marker="step"),
    V("data", "verl", "grpo", "vanished", edit=vanish("critic/score/mean", "critic/score/max", "critic/score/min",
      "critic/rewards/mean", "actor/entropy"), marker="reward"),
    V("data", "trl", "grpo", "impossible-share", edit=impossible("completions/clipped_ratio", 8.0), marker="truncated"),
)  # fmt: skip
