"""SkyRL: `dumped_evals/global_step_10_evals/SOURCE.jsonl` below the export path.

Read in NovaSky-AI/SkyRL at a9564572 (`skyrl/train/utils/trainer_utils.py`). The training batches that
`dump_data_batch` pickles hold no texts and are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvitals.importers.base import Notes
from rlvitals.importers.dumps.base import LineForm, RowContents, Split, is_usable, step_in
from rlvitals.importers.dumps.chatml import completion_fields


class SkyRl(LineForm):
    """One line per rollout of an evaluation."""

    name = "skyrl"
    writes = "SkyRL's dumped_evals"
    places = ("dumped_evals/global_step_*_evals/*.jsonl", "global_step_*_evals/*.jsonl")

    def recognises(self, path: Path, row: Any) -> bool:
        return isinstance(row, Mapping) and "input_prompt" in row and "output_response" in row

    def split_of(self, path: Path) -> Split | None:
        return "validation"

    def is_left_out(self, path: Path) -> bool:
        return path.name == "aggregated_results.jsonl"  # aggregated metrics, no rollouts

    def contents(self, row: Mapping[str, Any], path: Path, notes: Notes) -> RowContents | None:
        if "input_prompt" not in row or "output_response" not in row:
            return None
        score = row.get("score")
        if isinstance(score, list):  # one reward per token
            score = sum(part for part in score if is_usable(part))
        rollout = {
            **completion_fields(str(row["output_response"])),
            "reward": score,
            "stop": row.get("stop_reason") or "",
            "meta": {key: row[key] for key in ("data_source", "env_class", "env_extras") if row.get(key)},
        }
        group = {"prompt": str(row["input_prompt"]), "rollouts": [rollout]}
        return RowContents(step_in(path.parent.name), group, "validation")
