"""AReaL: `rollout/VERSION/TASK.jsonl` and `eval-rollout/VERSION/TASK.jsonl` in a trial's log folder.

Read in AReaL 1.0.4 (`areal/infra/workflow_executor.py`, with `rollout.dump_to_file=true`). A task is a prompt and all
its samples. The folder is named after the newest policy version of its tokens. In synchronous training, this is the
step that trains on the task; the step of asynchronous training is not written. A task with several turns is written as
one prompt and one completion.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvitals.importers.base import Notes
from rlvitals.importers.dumps.base import LineForm, RowContents, Split, is_usable, step_in, whole
from rlvitals.importers.dumps.chatml import completion_fields

_KEYS = frozenset({"task_id", "sample_idx", "head_version", "tail_version", "prompt", "completion"})


class Areal(LineForm):
    """One line per sample."""

    name = "areal"
    writes = "AReaL's rollout and eval-rollout folders"
    places = tuple(f"{folder}[0-9]*/[0-9]*.jsonl" for folder in ("rollout/", "eval-rollout/", ""))
    grows = True

    def recognises(self, path: Path, row: Any) -> bool:
        return isinstance(row, Mapping) and row.keys() >= _KEYS

    def split_of(self, path: Path) -> Split | None:
        return "validation" if path.parent.parent.name.startswith("eval") else "train"

    def contents(self, row: Mapping[str, Any], path: Path, notes: Notes) -> RowContents | None:
        if not row.keys() >= _KEYS:
            return None
        length, prompt_length = row.get("seqlen"), row.get("prompt_len")
        rollout = {
            **completion_fields(str(row["completion"])),
            "reward": row.get("reward"),
            "tokens": length,
            "policy_version": row["head_version"],
            "meta": {"task_id": row["task_id"]},
        }
        if is_usable(length) and is_usable(prompt_length):
            rollout["trainable_tokens"] = length - prompt_length
        group = {"prompt": str(row["prompt"]), "rollouts": [rollout]}
        return RowContents(whole(row["tail_version"], step_in(path.parent.name)), group, self.split_of(path) or "train")
