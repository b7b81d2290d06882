"""The rules: small typed functions, one module per part of training.

A positional parameter is a signal (`Signal | None` where it is optional), `case` the run's facts, `recheck` a step
compared with its recorded tokens, `one_slice` one slice at a time, `scanned` a pattern in the texts of rollouts.
Keyword-only parameters are the numbers of the rule's entry in `data/rules/*.yaml`: every threshold, factor and number
of points is there, under a name, and none is in the code. A rule returns None while its condition does not hold.
"""

from __future__ import annotations

from types import FunctionType

from rlvitals.health.rules import (
    agent,
    audit,
    distillation,
    engine,
    experts,
    exploration,
    failures,
    guides,
    judging,
    optimisation,
    policy,
    preference,
    reward,
    rollout,
    slices,
    system,
    texts,
    tokens,
)

_MODULES = (
    failures,
    optimisation,
    preference,
    reward,
    slices,
    policy,
    engine,
    experts,
    distillation,
    rollout,
    agent,
    exploration,
    system,
    audit,
    guides,
    judging,
    tokens,
    texts,
)

FUNCTIONS: dict[str, FunctionType] = {
    name: value
    for module in _MODULES
    for name, value in vars(module).items()
    if not name.startswith("_") and getattr(value, "__annotations__", {}).get("return") == "Alarm | None"
}
"""Every public function of these modules that is annotated to return `Alarm | None`."""

OUTSIDE = frozenset({"stall", "process_gone"})
"""Rules that a process beside the trainer can run."""

ON_TICK = OUTSIDE | {"phase_stall"}
"""Rules that run when the clock ticks, not when a row comes."""
