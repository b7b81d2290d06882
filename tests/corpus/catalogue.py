"""All variants in one place."""

from __future__ import annotations

from corpus import failures_optimisation, failures_preference, failures_reward, failures_system, healthy
from corpus.build import Variant, make
from corpus.labelled import LabelledRun

FAILING: tuple[Variant, ...] = (
    *failures_optimisation.VARIANTS,
    *failures_reward.VARIANTS,
    *failures_preference.VARIANTS,
    *failures_system.VARIANTS,
)


def failing_runs(seed: int) -> list[LabelledRun]:
    """One run of every failing variant."""
    return [make(variant, seed) for variant in FAILING]


def healthy_runs(seed: int) -> list[LabelledRun]:
    """One run of every healthy variant."""
    return [make(variant, seed) for variant in healthy.VARIANTS]
