"""prime-rl: an additional monitor, like its W&B and file monitors, in each process that has monitors.

    python -m rlvitals.adapters.prime_rl -m prime_rl.entrypoints.orchestrator @ orchestrator.toml

    from rlvitals.adapters import prime_rl                  # or in your own program, before its monitors are set up
    prime_rl.install()

Written against PrimeIntellect-ai/prime-rl at 559b44772 with verifiers 0.4.1.dev86. `prime_rl.monitors.setup` creates
a fixed list of monitors once per process; `install` wraps it and appends ours to `MONITORS`. Orchestrator and trainer
are separate processes with separate runs: `OUTPUT_DIR/rlvitals/orchestrator` has the rewards and the rollouts,
`.../trainer` the losses.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from importlib import import_module
from itertools import groupby
from typing import Any

from rlvitals.adapters.framework import TRACED, follow, launch, open_run, record, setting, whole_or_none

PATHS = {"num_generations": "train.group_size", "learning_rate": "optim.lr"}


class VitalsMonitor:
    """Records what the monitors of one process receive as one run."""

    def __init__(self, output_dir: Any, config: Any = None, **settings: Any) -> None:
        dump = getattr(config, "model_dump", None)
        plain = dump(mode="json") if callable(dump) else config or {}
        defaults = {
            "output_dir": os.path.join(str(output_dir), "rlvitals", _role(config)),
            "name": os.environ.get("PRL_RUN_NAME") or None,
            "algorithm": None if _role(config) == "sft" else "grpo",
            "total_steps": whole_or_none(setting(plain, "max_steps")),
            # An existing directory means a resume: otherwise prime-rl removes it.
            "resume": True,
        }
        self.run = open_run("prime_rl", plain, defaults, settings, paths=PATHS)

    async def log(self, data: Any, step: int, kind: str = "train", subset: str = "effective") -> None:
        """Record a row, or episodes: those of the cohort that is trained on, and all that failed."""
        if isinstance(data, Mapping):
            record(self.run, {name: value for name, value in data.items() if name != "step"}, step)
            return
        episodes = [
            each for each in (data if isinstance(data, list) else [data]) if subset == "effective" or not each.ok
        ]
        if episodes:
            groups = await asyncio.to_thread(groups_of, episodes, kind)
            self.run.log_groups(groups, step)

    async def finalize(self) -> None:
        self.run.finish()


def install(**settings: Any) -> None:
    """Record in every process that sets up its monitors from now on. `settings` are those of `rlvitals.start`."""
    monitors: Any = import_module("prime_rl.monitors")

    def begin(_: None, *__: Any, output_dir: Any, run_config: Any = None, **___: Any) -> None:
        if int(os.environ.get("RANK", os.environ.get("DP_RANK", "0"))) == 0:
            monitors.MONITORS.append(VitalsMonitor(output_dir, run_config, **settings))

    follow(monitors, "setup", begin)


def groups_of(episodes: list[Any], kind: str = "train") -> list[dict[str, Any]]:
    """Group episodes by their group id. Each agent's trace becomes a rollout."""
    ordered = sorted(episodes, key=_group_id)
    groups = []
    count = 0
    for _, found in groupby(ordered, key=_group_id):
        members, rollouts = list(found), []
        for episode in members:
            for trace in episode.traces:
                rollouts.append(_rollout(trace, is_traced=count < TRACED))
                count += 1
            if not episode.traces:
                rollouts.append({"completion": "", "error": _words(episode.errors) or "no trace"})
        meta = {"split": kind, "env": members[0].env.name or members[0].env.id}
        groups.append({"id": members[0].task.key or "", "rollouts": rollouts, "meta": meta})
    return groups


def _rollout(trace: Any, *, is_traced: bool) -> dict[str, Any]:
    rollout = {
        "messages": [_message(message) for message in trace.messages],
        "reward": trace.reward,
        "reward_parts": {name: each.value for name, each in trace.rewards.items() if each is not None},
        "stop": "length" if trace.is_truncated else trace.stop_condition or "",
        "error": _words(trace.errors),
        "trainable_tokens": trace.num_output_tokens,
        "tokens": trace.num_total_tokens,
        "seconds": trace.timing.agent.duration or None,
        "meta": {"agent": trace.agent.name, **{k: v for k, v in trace.metrics.items() if v is not None}},
    }
    branches = [branch for branch in trace.branches if branch.trainable]
    if is_traced and branches:
        rollout["trace"] = _tokens(branches[-1])
    return rollout


def _tokens(branch: Any) -> dict[str, Any] | None:
    trained = branch.sampled_mask.tolist()
    if True not in trained:
        return None
    begin = trained.index(True)
    columns = {
        "ids": branch.token_ids, "trained": branch.sampled_mask, "engine_logprobs": branch.logprobs,
        "advantages": branch.advantages, "logprobs": branch.trainer_logprobs, "entropies": branch.entropies,
        "reference_logprobs": branch.reference_logprobs,
    }  # fmt: skip
    return {name: column[begin:].tolist() for name, column in columns.items() if column is not None}


def _message(message: Any) -> dict[str, Any]:
    plain: dict[str, Any] = message.model_dump(mode="json", exclude_none=True)
    if plain.get("tool_calls"):
        plain["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in plain["tool_calls"]
        ]
    return plain


def _group_id(episode: Any) -> str:
    """The group id within this batch; the same prompt has a different id in the next batch."""
    return str(episode.group.id if episode.group is not None else episode.task.key or episode.id)


def _words(errors: Any) -> str:
    return "; ".join(f"{each.type}: {each.message}" for each in errors)


def _role(config: Any) -> str:
    """`orchestrator`, `trainer`, `sft` and so on, inferred from the class of the configuration."""
    name = type(config).__name__.removesuffix("Config").lower()
    return next((role for role in ("orchestrator", "trainer", "sft", "evals") if role in name), "run")


if __name__ == "__main__":
    launch(install)
