"""Reward falls that the policy does not cause: rollouts fail because of a sandbox, a tool, a time-out, the context
limit, the verifier or the parser, and each counts as a wrong answer. Also runs that look similar: a policy that
collapses and therefore fails more, failures that cost nothing because they are masked, short bursts of failures.

The runs come from the same model as the others. The failures are added to its log under the frameworks' own names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from corpus.bends import collapse_reward, explode_entropy, grow_length, shrink_length
from corpus.build import Rows, Scene, Variant, make
from corpus.labelled import LabelledRun
from corpus.latent import Series, ramp
from corpus.names import KEYS, family
from corpus.noise import Array


class Counted(NamedTuple):
    """A framework's name for failures of one cause."""

    framework: str | None
    cause: str
    name: str
    form: str = "share"
    """share, success (1 - share), total (a count since the start), or sometimes (a share, logged only if above 0)."""


COUNTED: tuple[Counted, ...] = (
    Counted("trl", "tool", "tools/failure_frequency"),
    Counted("trl", "context_limit", "completions/clipped_ratio"),
    Counted("verl", "tool", "rollout/tool_success_rate", "success"),
    Counted("verl", "context_limit", "response_length/clip_ratio"),
    Counted("verl", "verifier", "reward/verifier_error_rate"),
    Counted("prime_rl", "sandbox", "train/agg/all/solver/error/SandboxError", "sometimes"),
    Counted("prime_rl", "tool", "train/agg/all/solver/error/ToolCallError", "sometimes"),
    Counted("prime_rl", "time_out", "train/agg/all/solver/stop_condition/timeout_reached", "sometimes"),
    Counted("prime_rl", "context_limit", "train/agg/all/solver/stop_condition/prompt_too_long"),
    Counted("nemo_rl", "tool", "train/invalid_tool_call_rate"),
    Counted("nemo_rl", "sandbox", "rollout/infra_drops_total/sandbox_crash", "total"),
    Counted("nemo_rl", "time_out", "rollout/infra_drops_total/timeout", "total"),
    Counted("nemo_rl", "parsing", "train/malformed_thinking_rate"),
    Counted("slime", "time_out", "rollout/error_cat/timeout"),
    Counted("slime", "sandbox", "rollout/error_cat/sandbox_error", "sometimes"),
    Counted("slime", "verifier", "rollout/error_cat/verifier_error"),
    Counted("slime", "parsing", "rollout/error_cat/parse_error"),
    Counted("tinker", "parsing", "env/all/parse_error"),
    Counted("tinker", "context_limit", "env/all/context_overflow"),
    Counted("tinker", "time_out", "rollout_errors/TimeoutError", "total"),
    Counted("skyrl", "sandbox", "environment/container_failure_rate"),
    Counted("skyrl", "tool", "environment/tool_error_rate"),
    Counted(None, "sandbox", "agent.failures.sandbox"),
    Counted(None, "tool", "agent.failures.tool"),
    Counted(None, "time_out", "agent.failures.timeout"),
    Counted(None, "context_limit", "agent.failures.context"),
    Counted(None, "verifier", "agent.failures.verifier"),
    Counted(None, "verifier", "judge.parse_failure_fraction"),
)

WRITTEN = ("tool", "parsing", "context_limit")
"""Failures that a policy can cause by itself."""

Shares = Callable[[Scene], Array]


def failing_run(seed: int, counted: Counted) -> LabelledRun:
    """The infrastructure breaks at `onset`. The cause is `counted.cause`."""

    def shares(scene: Scene) -> Array:
        rng, n = scene.rng, scene.n
        over = rng.uniform(1, 3) if counted.cause in WRITTEN else rng.uniform(1, 15)
        level = rng.uniform(0.3, 0.95)
        return np.clip(_usual(scene) + level * ramp(n, scene.at, over), 0, 0.98)

    def later(scene: Scene) -> None:
        """In some runs the policy slowly gets worse, because it is penalised for failures that are not its own."""
        if scene.rng.random() < 0.4:
            fall = 1.2 * ramp(scene.n, scene.at + 20, 0.5 * scene.n)
            scene.curves.skill = scene.curves.skill - fall
            scene.curves.truth = scene.curves.truth - fall

    return _made(seed, counted, shares, "broken", is_scored=True, bend=later)


def consequence_run(seed: int, counted: Counted) -> LabelledRun:
    """The policy collapses, and rollouts fail because of it: the failures are not the cause."""
    bends = {
        "tool": explode_entropy, "parsing": explode_entropy, "context_limit": grow_length(3.0, 0.25),
        "time_out": grow_length(3.0, 0.25), "sandbox": collapse_reward(3.0, 12), "verifier": shrink_length(0.1, 15),
    }  # fmt: skip

    def shares(scene: Scene) -> Array:
        rng, n = scene.rng, scene.n
        return np.clip(_usual(scene) + rng.uniform(0.2, 0.7) * ramp(n, scene.at + int(0.1 * n), 0.2 * n), 0, 0.98)

    def bend(scene: Scene) -> None:
        bends[counted.cause](scene)
        if counted.cause in ("context_limit", "time_out"):
            collapse_reward(2.5, 25)(scene)

    return _made(seed, counted, shares, "collapsed", is_scored=False, bend=bend)


def harmless_run(seed: int, counted: Counted) -> LabelledRun:
    """Healthy: a few failures throughout, short bursts of them, or many that are masked and cost nothing."""

    def shares(scene: Scene) -> Array:
        rng, n = scene.rng, scene.n
        how = rng.choice(["steady", "spikes", "masked"])
        if how == "steady":
            return np.clip(_usual(scene) + rng.uniform(0, 0.15), 0, 1)
        if how == "masked":
            return np.clip(_usual(scene) + rng.uniform(0.1, 0.5) * ramp(n, scene.at, rng.uniform(1, 20)), 0, 0.98)
        spiky = _usual(scene)
        for at in rng.integers(15, n - 3, 3):
            spiky[at : at + int(rng.integers(1, 4))] += 0.4
        return np.clip(spiky, 0, 0.98)

    return _made(seed, counted, shares, "harmless", is_scored=False)


def _usual(scene: Scene) -> Array:
    return scene.rng.binomial(scene.world.prompts * scene.world.group, scene.rng.uniform(0.0, 0.05), scene.n) / (
        scene.world.prompts * scene.world.group
    )


def _made(
    seed: int, counted: Counted, shares: Shares, how: str, *, is_scored: bool,
    bend: Callable[[Scene], None] | None = None,
) -> LabelledRun:  # fmt: skip
    kept: dict[str, Array] = {}

    def touch(scene: Scene, series: Series) -> None:
        world = scene.world
        size = world.prompts * world.group
        kept["share"] = share = scene.rng.binomial(size, shares(scene)) / size
        kept["count"] = np.cumsum(np.round(share * size))
        if is_scored:
            for name in ("reward", "part_main", "shaped"):
                if name in series:
                    low = world.reward_low if name != "part_main" else 0.0
                    series[name] = low + (series[name] - low) * (1 - share)

    def edit(scene: Scene, rows: Rows) -> None:
        reward = KEYS[family(counted.framework, "grpo")]["reward"]
        at = 0
        for row in rows:
            if reward not in row:
                continue
            share = float(kept["share"][at])
            if counted.form == "total":
                row[counted.name] = float(kept["count"][at])
            elif counted.form == "success":
                row[counted.name] = 1.0 - share
            elif counted.form == "share" or share > 0:
                row[counted.name] = share
            at += 1

    variant = Variant(
        "tool_errors" if how != "harmless" else None, counted.framework, "grpo",
        f"{how}-{counted.cause}-{counted.name.replace('/', '.')}", bend=bend, touch=touch, edit=edit,
        world={"format_weight": 0.0, "turns": 4.0} if counted.framework in ("trl", "nemo_rl", "verl") else {},
    )  # fmt: skip
    run = make(variant, seed)
    return replace(run, accept=frozenset())
