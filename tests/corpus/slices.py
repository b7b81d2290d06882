"""Runs over several environments: one of them collapses while the overall mean hardly moves, or none does.

Every environment has its own learning curve and its own number of samples per row. Some are healthy but odd: never
learnt, solved, missing from some rows, dipping and recovering, slowly losing a little. Values are shares of right
answers, in some runs scaled to -1..1 or smoothed. The same seed gives the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from corpus.latent import ramp
from corpus.noise import Array, ar1, generator, logit, sigmoid

NAMES = (
    "math", "code", "search", "sudoku", "logic", "science", "tables", "chess", "games", "medicine", "law", "physics",
    "sql", "shell", "proofs", "reading", "planning", "physics2", "dialogue", "geometry", "music", "history", "maps",
    "ciphers",
)  # fmt: skip

LEAST_KEPT = 0.7
"""The share of its best level that a healthy environment always keeps; one that loses a third is not healthy."""

SPELLINGS: dict[str, tuple[str, str, str, bool]] = {
    "rlvitals": ("reward/env={}", "reward", "env", False),
    "prime_rl": ("train/{}/all/solver/reward/mean", "train/agg/all/solver/reward/mean", "env", False),
    "tinker": ("env/{}/reward/total", "env/all/reward/total", "env", False),
    "roll": ("{}/critic/score/mean", "critic/score/mean", "source", False),
    "open_instruct": ("objective/{}_reward", "objective/verifiable_reward", "source", False),
    "nemo_rl": ("train/{}/reward/mean", "train/reward", "agent", False),
    "verl": ("val-core/{}/acc/mean@8", "critic/score/mean", "source", True),
    "skyrl": ("eval/{}/avg_score", "reward/avg_raw_reward", "source", True),
}
"""By framework: the names of a slice and of the whole, the label's key, and whether only evaluations have slices."""

BESIDE: dict[str, dict[str, str]] = {
    "rlvitals": {"loss": "loss", "entropy": "entropy", "grad": "grad_norm"},
    "prime_rl": {"loss": "loss/mean", "entropy": "entropy/all/mean", "grad": "optim/grad_norm"},
    "tinker": {"entropy": "optim/entropy", "lr": "optim/lr"},
    "roll": {"loss": "actor/pg_loss", "entropy": "critic/entropy/mean", "grad": "actor_train/grad_norm"},
    "open_instruct": {"loss": "loss/policy_avg", "grad": "optim/grad_norm"},
    "nemo_rl": {"loss": "train/loss", "grad": "train/grad_norm"},
    "verl": {"loss": "actor/pg_loss", "entropy": "actor/entropy", "grad": "actor/grad_norm"},
    "skyrl": {"loss": "policy/policy_loss", "entropy": "policy/policy_entropy", "grad": "policy/grad_norm"},
}


@dataclass(frozen=True)
class SlicedRun:
    """The rows of a run over several environments, and which of them collapses, if any."""

    name: str
    framework: str
    label: str | None
    """The label of the slice that collapses; None for a healthy run."""
    onset: int | None
    """The index of the row at which the collapse starts."""
    rows: list[dict[str, Any]]

    @property
    def deadline(self) -> float:
        """The last index at which a finding is in time: 15 rows or a fifth of the run after the onset."""
        return -1.0 if self.onset is None else self.onset + max(15.0, 0.2 * len(self.rows))


def collapsing_run(seed: int, framework: str, count: int = 8) -> SlicedRun:
    """One of `count` environments collapses."""
    return _run(seed, framework, count, "collapsing")


def healthy_run(seed: int, framework: str, count: int = 20) -> SlicedRun:
    """None of `count` environments collapses."""
    return _run(seed, framework, count, "healthy")


def _run(seed: int, framework: str, count: int, how: str) -> SlicedRun:
    spelled, whole_name, key, is_evaluated = SPELLINGS[framework]
    rng = generator(seed, f"slices-{framework}-{count}-{how}")
    points = int(rng.integers(120, 260))
    names = [str(name) for name in rng.choice(NAMES, count, replace=False)]
    onset = int(rng.uniform(0.3, 0.65) * points) if how == "collapsing" else None
    victim = int(rng.integers(count)) if onset is not None else -1
    hardness = 0.15 * ar1(rng, points, 0.1)
    levels = [_level(rng, points, hardness, is_odd=place != victim) for place in range(count)]
    if onset is not None:
        levels[victim] = _collapsed(rng, levels[victim], onset)
    few, many = (100, 800) if is_evaluated else (16, 192)
    sizes = np.exp(rng.uniform(np.log(few), np.log(many), count)).astype(int)
    scale, low = (2.0, -1.0) if rng.random() < 0.2 else (1.0, 0.0)
    shown = [low + scale * rng.binomial(int(size), level) / size for size, level in zip(sizes, levels, strict=True)]
    if rng.random() < 0.15:
        shown = [_running(series) for series in shown]
    whole = sum(size * series for size, series in zip(sizes, shown, strict=True)) / sizes.sum()
    holes = rng.uniform(0, 0.4) if rng.random() < 0.4 else 0.0
    every = int(rng.integers(4, 11)) if is_evaluated else 1
    beside = _beside(rng, points)
    rows: list[dict[str, Any]] = []
    for at in range(points):
        row: dict[str, Any] = {"step": at + 1, whole_name: round(float(whole[at]), 6)}
        row |= {key_name: float(beside[name][at]) for name, key_name in BESIDE[framework].items()}
        if (at + 1) % every == 0:
            for name, series in zip(names, shown, strict=True):
                if rng.random() >= holes or is_evaluated:
                    row[spelled.format(name)] = round(float(series[at]), 6)
        rows.append(row)
    label = None
    if onset is not None:
        agent = ",agent=solver" if framework == "prime_rl" else ""
        label = f"{key}={names[victim]}{agent}"
    return SlicedRun(f"{framework}-{how}-{count}-{seed}", framework, label, onset, rows)


def _level(rng: np.random.Generator, points: int, hardness: Array, *, is_odd: bool) -> Array:
    """The share of right answers of one healthy environment."""
    kind = rng.choice(["learns", "flat", "solved", "hopeless", "dips", "forgets"], p=[0.5, 0.15, 0.1, 0.1, 0.1, 0.05])
    kind = kind if is_odd else str(rng.choice(["learns", "flat"]))
    start = logit(float(rng.uniform(0.2, 0.6)))
    progress = 1 - np.exp(-float(rng.uniform(0.5, 3.0)) * np.arange(points) / points)
    drift = 0.25 * np.cumsum(rng.normal(0, 1, points)) / np.sqrt(points)
    if kind == "hopeless":
        return sigmoid(np.full(points, -4.5) + drift)
    gain = {"flat": 0.0, "solved": 5.0, "forgets": -0.45}.get(str(kind), float(rng.uniform(0.3, 1.6)))
    skill = start + gain * progress + drift
    kept = sigmoid(skill)
    least = LEAST_KEPT * np.maximum.accumulate(kept)
    skill = np.where(kept < least, np.log(least / (1 - least)), skill) + hardness
    if kind == "dips":
        at = int(rng.uniform(0.2, 0.8) * points)
        since = np.clip(np.arange(points) - at, 0, None)
        skill = skill - 1.2 * (np.arange(points) >= at) * np.exp(-since / (0.05 * points))
    return sigmoid(skill)


def _collapsed(rng: np.random.Generator, level: Array, onset: int) -> Array:
    """The level, of which most is lost within 1 to 20 points after the onset."""
    depth, over = float(rng.uniform(0.7, 1.0)), float(rng.uniform(1, 20))
    return level * (1 - depth * ramp(len(level), onset, over))


def _running(series: Array) -> Array:
    """A logged running mean of about ten values."""
    out, mean = np.empty_like(series), float(series[0])
    for at, value in enumerate(series):
        mean += 0.18 * (float(value) - mean)
        out[at] = mean
    return out


def _beside(rng: np.random.Generator, points: int) -> dict[str, Array]:
    return {
        "loss": 0.02 + 0.006 * ar1(rng, points),
        "entropy": 0.6 * np.exp(-0.3 * np.arange(points) / points) + 0.01 * ar1(rng, points),
        "grad": np.abs(0.5 + 0.08 * ar1(rng, points)),
        "lr": np.full(points, 1e-6),
    }
