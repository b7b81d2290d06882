"""verl: `trainer.rollout_data_dir` and `trainer.validation_data_dir`, with one file such as `10.jsonl` per step.

Read in volcengine/verl at b178a3cd (`verl/trainer/ppo/ray_trainer.py`, `_dump_generations`): `input`, `output`,
`gts`, `score`, `step`, and each list that the reward function returned. Both folders have the same form; validation is
recognised by the folder's name. The texts have no special tokens, so several turns are one text.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvitals.importers.base import Notes
from rlvitals.importers.dumps.base import LineForm, RowContents, held_out, outcome_of, step_in, whole
from rlvitals.importers.dumps.chatml import completion_fields

_OWN = frozenset({"input", "output", "gts", "score", "step"})
_FOLDERS = ("rollout_data", "rollout_data_dir", "rollouts", "rollout", "generations")
_HELD_OUT_FOLDERS = ("validation_data", "validation_data_dir", "val_data", "validation", "val")


class Verl(LineForm):
    """One file per step, such as `10.jsonl`, written at once."""

    name = "verl"
    writes = "verl's rollout_data_dir and validation_data_dir"
    places = ("[0-9]*.jsonl", *(f"{folder}/[0-9]*.jsonl" for folder in (*_FOLDERS, *_HELD_OUT_FOLDERS)))

    def recognises(self, path: Path, row: Any) -> bool:
        return isinstance(row, Mapping) and "input" in row and "output" in row

    def contents(self, row: Mapping[str, Any], path: Path, notes: Notes) -> RowContents | None:
        if "input" not in row or "output" not in row:
            return None
        rest = {key: value for key, value in row.items() if key not in _OWN}
        rollout = {
            **completion_fields(str(row["output"])),
            "reward": row.get("score"),
            "outcome": outcome_of(row.get("acc")),  # a numpy bool is written as text
            "meta": rest,
        }
        group = {"prompt": str(row["input"]), "answer": row.get("gts"), "rollouts": [rollout]}
        return RowContents(whole(row.get("step"), step_in(path.name)), group, held_out([path.parent.name, path.stem]))
