"""Builds a labelled run from a variant (the kind of run and its failure) and a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from corpus.habits import HABITS, PAIR_HABITS
from corpus.instruments import INSTRUMENTS
from corpus.labelled import LabelledRun
from corpus.latent import Series, World, curves_of, observe
from corpus.names import KEYS, family, rows_of
from corpus.noise import generator, punch_holes
from corpus.preference import PairWorld, observe_pairs, pair_curves_of

Rows = list[dict[str, Any]]


@dataclass
class Scene:
    """Everything that a bend may read and change."""

    world: Any
    curves: Any
    at: int
    """The point at which the failure starts."""
    rng: np.random.Generator
    hard: float
    """How severe it is, about 1."""
    config: dict[str, Any]

    @property
    def n(self) -> int:
        return int(self.world.points)


@dataclass(frozen=True)
class Variant:
    """One kind of run: a base run, the functions that bend it, and the label."""

    kind: str | None
    framework: str | None
    algorithm: str
    tag: str = ""
    bend: Callable[[Scene], None] | None = None
    """Changes the latent curves."""
    touch: Callable[[Scene, Series], None] | None = None
    """Changes the sampled series, for faults of the log rather than of the policy."""
    edit: Callable[[Scene, Rows], list[float] | None] | None = None
    """Changes the rows; may return the clock ticks that follow them."""
    onset: tuple[float, float] = (0.3, 0.6)
    """Where the failure starts, as a share of the run; (0, 0) for runs that fail from the first row."""
    hard: tuple[float, float] = (0.8, 1.3)
    accept: tuple[str, ...] = ()
    scored: bool = True
    suffix: str = ""
    """Added to the name after the seed."""
    marker: str = "reward"
    world: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the world. A pair is a range from which a value is drawn."""
    instruments: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = field(default_factory=dict)
    """Settings that are known in addition to the rows; None when none are known."""
    total_known: bool = True
    holes: float = 0.0
    """The share of values that are missing from the log."""

    @property
    def name(self) -> str:
        parts = [self.algorithm, self.framework or "hand", self.kind or "healthy", self.tag]
        return "_".join(part for part in parts if part)


def make(variant: Variant, seed: int) -> LabelledRun:
    """The run of this variant and seed; other variants do not change it."""
    rng = generator(seed, variant.name)
    where = family(variant.framework, variant.algorithm)
    pairwise = where in PAIR_HABITS
    chosen = {**(PAIR_HABITS if pairwise else HABITS)[where], **variant.world}
    drawn = {name: draw(rng, value, name) for name, value in chosen.items()}
    world: Any = PairWorld(**drawn) if pairwise else World(**drawn)
    curves: Any = pair_curves_of(world, rng) if pairwise else curves_of(world, rng)
    for name in variant.instruments:
        INSTRUMENTS[name](world, curves, rng)
    at = int(rng.uniform(*variant.onset) * world.points)
    config = {} if variant.config is None else {**settings_of(world), **variant.config}
    scene = Scene(world, curves, at, rng, float(rng.uniform(*variant.hard)), config)
    if variant.bend:
        variant.bend(scene)
    series = observe_pairs(world, curves, rng) if pairwise else complete(scene, where, observe(world, curves, rng))
    if variant.touch:
        variant.touch(scene, series)
    rows, index = rows_of(
        series, variant.framework, variant.algorithm, world.every, only=frozenset(variant.only) or None
    )
    onset = None if variant.kind is None else index[scene.at]
    ticks = variant.edit(scene, rows) if variant.edit else None
    if variant.holes:
        punch_holes(rng, rows, variant.holes)
    return LabelledRun(
        name=f"{variant.name}-{seed}{variant.suffix}",
        kind=variant.kind,
        accept=frozenset({variant.kind, *variant.accept}) if variant.kind and variant.scored else frozenset(),
        onset=onset,
        algorithm=variant.algorithm,
        framework=variant.framework,
        total_steps=world.points * world.every if variant.total_known else None,
        config=scene.config if variant.config is not None else {},
        rows=rows,
        ticks=ticks or [],
        marker=KEYS[where].get(variant.marker, variant.marker),
    )


SHARE_OF_RIGHT_ANSWERS = ("accuracy", "pass1", "avg@8", "correctness", "aime")
"""Evaluations under other names are mean rewards, on the scale of the training reward."""

WHOLE = {"points", "every", "prompts", "group", "pairs", "eval_every", "eval_size"}


def draw(rng: np.random.Generator, value: Any, name: str) -> Any:
    """The value as given, or one drawn from a pair (integers uniformly, positive floats on a log scale)."""
    if not isinstance(value, tuple):
        return value
    low, high = value
    if name in WHOLE:
        return int(rng.integers(low, high + 1))
    return float(np.exp(rng.uniform(np.log(low), np.log(high)))) if low > 0 else float(rng.uniform(low, high))


def settings_of(world: Any) -> dict[str, Any]:
    """The configuration a trainer would have passed on."""
    if isinstance(world, PairWorld):
        return {"beta": world.beta, "learning_rate": world.lr, "per_device_train_batch_size": world.pairs}
    known = {
        "num_generations": world.group, "max_completion_length": int(world.max_length), "beta": world.beta,
        "learning_rate": world.lr, "gpu_memory_total_gb": 80.0,
    }  # fmt: skip
    if not world.score_noise:
        known |= {"reward_min": world.reward_low, "reward_max": world.reward_high + world.format_weight}
    return known | ({"max_turns": int(world.max_turns)} if world.turns else {})


def complete(scene: Scene, where: str, out: Series) -> Series:
    """Add the series that are computed from others."""
    world, curves, rng, n = scene.world, scene.curves, scene.rng, scene.n
    out["kl_term"] = -world.beta * out["kl"]
    out["shaped"] = out["reward"] + out["kl_term"]
    out["clip_low"], out["clip_high"] = 0.45 * out["clip"], 0.55 * out["clip"]
    out["sequence_entropy"] = out["entropy"] * out["length"]
    spread = np.abs(np.log(np.maximum(out["ratio"], 1e-9))) + 0.3 + 3 * out["clip"]
    out.setdefault("ratio_var", 1e-7 * np.exp(rng.normal(0, 1.2, n)) * (1 + 50 * out["clip"]))
    out["ratio_max"], out["ratio_min"] = out["ratio"] * np.exp(spread), out["ratio"] * np.exp(-spread)
    out["episode"] = np.arange(1, n + 1) * float(world.every * world.prompts * world.group)
    out["epoch_whole"] = np.floor(out["epoch"])
    out["mfu"] = 0.42 + 0.01 * rng.normal(0, 1, n)
    out["samples_per_s"] = world.prompts * world.group / out["seconds"]
    if world.turns:
        out["turns_max"] = np.minimum(np.ceil(out["turns"] * 2.4), world.max_turns)
    out["eval_reward"] = out["eval"] * 1.1 - 0.2 if world.eval_every else np.zeros(n)
    if world.eval_every and not KEYS[where].get("eval", "").endswith(SHARE_OF_RIGHT_ANSWERS):
        out["eval"] = world.reward_low + (world.reward_high - world.reward_low) * out["eval"]
        out["eval"] = out["eval"] + world.format_weight * curves.format
    return out
