"""tinker-cookbook: `iteration_000010/train_rollout_summaries.jsonl`, and the trajectories of its benchmarks.

Read in thinking-machines-lab/tinker-cookbook at 9dfcc3a2 (`tinker_cookbook/rl/rollout_logging.py`,
`stores/training_store.py`, `eval/benchmarks/_types.py`). A summary has no texts except those that an environment added
to the `logs` of its steps. A benchmark's trajectory has the whole conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvitals.importers.base import Notes
from rlvitals.importers.dumps.base import LineForm, RowContents, Split, inner, outcome_of, whole
from rlvitals.store.messages import text_of


class Summaries(LineForm):
    """One line per trajectory of the training or of an evaluation during it."""

    name = "tinker"
    writes = "tinker-cookbook's rollout summaries"
    places = ("iteration_*/*_rollout_summaries.jsonl",)

    def recognises(self, path: Path, row: Any) -> bool:
        return isinstance(row, Mapping) and "traj_idx" in row and isinstance(row.get("steps"), list)

    def split_of(self, path: Path) -> Split | None:
        return "train" if path.name.startswith("train_") else "validation"

    def contents(self, row: Mapping[str, Any], path: Path, notes: Notes) -> RowContents | None:
        steps = row.get("steps")
        if "traj_idx" not in row or not isinstance(steps, list):
            return None
        step, split = whole(row.get("iteration"), 0), str(row.get("split", ""))
        tags = ", ".join(map(str, row["tags"])) if isinstance(row.get("tags"), list) else ""
        rollout = {
            "turns": [_turn(part) for part in steps if isinstance(part, Mapping)],
            "reward": row.get("total_reward"),
            "policy_version": row.get("sampling_client_step"),
            "trainable_tokens": sum(whole(part.get("ac_len"), 0) for part in steps if isinstance(part, Mapping)),
            "meta": {key: row[key] for key in ("trajectory_metrics", "final_reward", "final_ob_len") if key in row},
        }
        name = f"group {row.get('group_idx')}"
        group = {
            "id": f"{split} {step} {name}",  # problems are sampled again at each iteration
            "prompt": f"{name} ({tags})" if tags else name,
            "rollouts": [rollout],
        }
        return RowContents(step, group, "train" if split == "train" else "validation")


def _turn(part: Mapping[str, Any]) -> dict[str, Any]:
    logs = inner(part, "logs")
    return {
        "text": "\n".join(f"{name}: {text_of(value)}" for name, value in logs.items()),
        "reward": part.get("reward"),
        "trainable_tokens": part.get("ac_len"),
    }


class Trajectories(LineForm):
    """`trajectories.jsonl` of a benchmark."""

    name = "tinker trajectories"
    writes = "tinker-cookbook's benchmark trajectories"
    places = ("trajectories.jsonl", "*/trajectories.jsonl")
    grows = True

    def recognises(self, path: Path, row: Any) -> bool:
        return isinstance(row, Mapping) and "benchmark" in row and isinstance(row.get("turns"), list)

    def split_of(self, path: Path) -> Split | None:
        return "validation"

    def contents(self, row: Mapping[str, Any], path: Path, notes: Notes) -> RowContents | None:
        turns = row.get("turns")
        if not isinstance(turns, list):
            return None
        messages = [_message(turn) for turn in turns if isinstance(turn, Mapping)]
        metrics, error = inner(row, "metrics"), row.get("error")
        rollout = {
            **({"messages": messages} if messages else {"completion": ""}),
            "reward": row.get("reward"),
            "outcome": "error" if error else outcome_of(metrics.get("correct")),
            "error": str(error or ""),
            "seconds": row.get("time_seconds"),
            "meta": {"benchmark": row.get("benchmark"), "metrics": dict(metrics), "logs": dict(inner(row, "logs"))},
        }
        return RowContents(0, {"id": str(row.get("example_id") or ""), "rollouts": [rollout]}, "validation")


def _message(turn: Mapping[str, Any]) -> dict[str, Any]:
    role = str(turn.get("role", "user"))
    return {"role": role if role in ("assistant", "system") else "user", "content": text_of(turn.get("content"))}
