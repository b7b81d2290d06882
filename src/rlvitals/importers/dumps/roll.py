"""ROLL: `rollout_dump_data.step_10.jsonl` in `rollout_dump_dir`.

Read in alibaba/ROLL at 8eb27cc2 (`roll/pipeline/rlvr/utils.py`, `roll/pipeline/agentic/utils.py`). A file has one
line with the columns of the whole step. Single answers have `prompt`, `responses`, `scores`, `ground_truth` and other
columns; agents have `messages` and `trajectory_data` as JSON texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlvitals.importers.base import Notes
from rlvitals.importers.dumps.base import DocumentForm, RowContents, document, inner, object_in, parsed, step_in, whole
from rlvitals.store.messages import are_messages, text_of

_NAME = re.compile(r"rollout_dump_data\.step_\d+\.jsonl")
_TAKEN = frozenset(
    {"global_step", "id", "prompt", "messages", "ground_truth", "responses", "scores", "trajectory_data", "tools"}
)


class Roll(DocumentForm):
    """One table per step."""

    name = "roll"
    writes = "ROLL's rollout_dump_dir"
    places = ("rollout_dump_data.step_*.jsonl",)

    def recognises(self, path: Path, row: Any) -> bool:
        return _NAME.fullmatch(path.name) is not None and isinstance(row, Mapping) and "global_step" in row

    def rows(self, path: Path, notes: Notes, *, whole: bool) -> Iterable[RowContents]:
        table = document(path)
        if isinstance(table, Mapping):
            columns = {str(name): column for name, column in table.items() if isinstance(column, list)}
            for place in range(max(map(len, columns.values()), default=0)):
                row = {name: column[place] for name, column in columns.items() if place < len(column)}
                if contents := contents_of(row, step_in(path.name)):
                    yield contents


def contents_of(row: Mapping[str, Any], step: int) -> RowContents | None:
    """The content of a ROLL sample, given as a mapping of its columns; None if it holds no rollout."""
    at = whole(row.get("global_step"), step)
    rest = {key: value for key, value in row.items() if key not in _TAKEN}
    messages = _parsed(row.get("messages"))
    if "responses" in row:
        rollout = {"completion": text_of(row["responses"]), "reward": row.get("scores"), "meta": rest}
        prompt = text_of(row.get("prompt")) or (messages and text_of(messages))
        group = {"prompt": prompt, "answer": row.get("ground_truth"), "rollouts": [rollout]}
        return RowContents(at, group)
    if not are_messages(messages):
        return None
    facts = object_in(row["trajectory_data"]) if isinstance(row.get("trajectory_data"), str) else {}
    failure = inner(facts, "failure_info")
    failed = str(failure.get("failure_mode") or "")
    rollout = {
        "messages": messages,
        "reward": inner(facts, "reward_info").get("episode_reward"),
        "stop": str(failure.get("stop_reason") or "").lower(),
        "error": failed if failure.get("has_failure") else "",
        "outcome": "error" if failure.get("has_failure") else "",
        "meta": {**rest, "metrics": inner(facts, "metrics")},
    }
    return RowContents(at, {"rollouts": [rollout]})


def _parsed(messages: Any) -> Any:
    if not isinstance(messages, str):
        return messages
    try:
        return parsed(messages.encode("utf-8", "replace"))
    except ValueError:
        return None
