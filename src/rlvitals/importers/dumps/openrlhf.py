"""OpenRLHF: the table `train/generated_samples` as W&B stores it, with one sample per step.

Read in OpenRLHF/OpenRLHF at 3c3be623 (`openrlhf/utils/logging_utils.py`): columns `global_step`, `text` (prompt and
answer in one) and `reward`. OpenRLHF writes no other file of samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlvitals.importers.base import Notes
from rlvitals.importers.dumps.base import DocumentForm, RowContents, document, whole
from rlvitals.importers.dumps.chatml import completion_fields
from rlvitals.importers.dumps.trl import table_rows

_COLUMNS = ["global_step", "text", "reward"]


class OpenRlhf(DocumentForm):
    """W&B's table."""

    name = "openrlhf"
    writes = "OpenRLHF's generated_samples"
    places = ("*generated_samples*.table.json", "media/table/train/generated_samples*.table.json")

    def recognises(self, path: Path, row: Any) -> bool:
        return isinstance(row, Mapping) and row.get("columns") == _COLUMNS

    def rows(self, path: Path, notes: Notes, *, whole: bool) -> Iterable[RowContents]:
        return (contents_of(row, 0) for row in table_rows(document(path)))


def contents_of(row: Mapping[str, Any], step: int) -> RowContents:
    """The content of a sample: a mapping with `text`, `reward` and optionally `global_step`."""
    text = str(row.get("text", ""))
    rollout = {**completion_fields(text), "reward": row.get("reward")}
    return RowContents(whole(row.get("global_step"), step), {"rollouts": [rollout]})
