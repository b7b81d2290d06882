"""Runs of a mixture of experts. The trainer and the engine both compute routes with the router. It is healthy, narrows
to few experts, or gives the two different routes.

A token has a score for each expert, from the kind of token and from the router's bias. The load of the busiest expert,
the idle experts and the differing routes are counted from the scores of a batch of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from corpus.noise import ar1, generator, wobble

TOKENS, SHOWN = 1500, 24
NAMES: dict[str, dict[str, str]] = {
    "rlvitals": {"load": "moe.max_violation", "idle": "moe.idle_fraction", "routes": "moe.routing_mismatch"},
    "verl": {"load": "rollout/moe/max_vio/avg"},
    "prime_rl": {"load": "max_vio/mean"},
    "nemo_rl": {"lost": "train/r3/routed_experts_fallback_token_route_fraction"},
}
"""By framework: its names of the busiest expert's load, idle experts, differing routes and routes without a record."""

TROUBLES = {
    "narrowing": ("rlvitals", "verl", "prime_rl"),
    "starving": ("rlvitals",),
    "differing": ("rlvitals",),
    "unrecorded": ("nemo_rl",),
}
"""For each trouble, the frameworks whose logs can show it."""


@dataclass(frozen=True)
class RoutedRun:
    """The rows of a run. `onset` is the row at which its router goes wrong; None for a healthy run."""

    name: str
    framework: str
    rows: list[dict[str, Any]]
    onset: int | None


def routed_run(seed: int, framework: str, trouble: str = "") -> RoutedRun:
    """A run whose router narrows to few experts, starves many of them, differs from the engine's, or whose routes get
    lost. Without a trouble, the router only drifts a little.
    """
    rng = generator(seed, f"experts-{framework}-{trouble}")
    points, experts = int(rng.integers(60, 160)), int(rng.choice([8, 16, 32, 64]))
    chosen = min(int(rng.choice([1, 2, 4, 8])), experts // 4)
    onset = int(rng.uniform(0.3, 0.5) * points) if trouble else None
    kinds = rng.normal(0, 1.0, (SHOWN, experts))  # the scores of each kind of token
    leaning = rng.normal(0, rng.uniform(0.1, 0.4), experts)
    drift = rng.normal(0, 1, experts) * float(rng.uniform(0.0, 0.25))
    narrowed = np.where(np.arange(experts) < chosen, float(rng.uniform(2.0, 4.0)), 0.0)
    starved = np.where(rng.random(experts) < rng.uniform(0.4, 0.7), -float(rng.uniform(4.0, 7.0)), 0.0)
    pace, rounding = float(rng.uniform(8, 30)), float(np.exp(rng.uniform(np.log(0.003), np.log(0.05))))
    off, lost = float(rng.uniform(0.3, 1.0)), float(rng.uniform(0.05, 0.5))
    mix = rng.dirichlet(np.full(SHOWN, 3.0))
    reward = 0.3 + 0.3 * (1 - np.exp(-2 * np.arange(points) / points)) + 0.02 * ar1(rng, points)
    names, rows = NAMES[framework], []
    for step in range(points):
        since = 0.0 if onset is None else float(np.clip((step - onset + 1) / pace, 0, 1))
        bent = {"narrowing": narrowed, "starving": starved}.get(trouble, np.zeros(experts)) * since
        batch = rng.dirichlet(60 * mix)  # every batch has another mix of tokens
        scores = kinds[rng.choice(SHOWN, TOKENS, p=batch)] + leaning + drift * step / points + bent
        scores = scores + rng.normal(0, 0.5, scores.shape)
        taken = np.argpartition(-scores, chosen - 1)[:, :chosen]
        load = np.bincount(taken.ravel(), minlength=experts) / taken.size
        apart = rounding + (off * since if trouble == "differing" else 0.0)
        theirs = np.argpartition(-(scores + rng.normal(0, apart, scores.shape)), chosen - 1)[:, :chosen]
        same = (taken[:, :, None] == theirs[:, None, :]).any(-1).mean()
        seen = {
            "load": float(load.max() * experts - 1), "idle": float((load == 0).mean()), "routes": float(1 - same),
            "lost": lost * since * float(wobble(rng, 1, 0.2)[0]) if trouble == "unrecorded" else
            float(rng.random() < 0.03) * 0.01,
        }  # fmt: skip
        row = {"step": step + 1, "reward": float(reward[step]), "loss": 0.01 * float(rng.normal())}
        rows.append(row | {key: seen[name] for name, key in names.items()})
    return RoutedRun(f"{framework}-{trouble or 'fine'}-{seed}", framework, rows, onset)
