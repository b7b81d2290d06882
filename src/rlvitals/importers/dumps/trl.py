"""TRL with `log_completions=True`: `completions/completions_00010.parquet`, and the same table as W&B stores it.

Each column of numbers is a part of the reward. The weights of the parts are not in the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlvitals.errors import NotALog
from rlvitals.importers.base import Notes, open_parquet
from rlvitals.importers.dumps.base import DocumentForm, RowContents, document, is_usable, step_in, whole
from rlvitals.store.rollout_forms import prompt_text

UNWEIGHTED = "the table does not hold the weights of its rewards: a rollout's reward is their plain sum"
_NOT_REWARDS = frozenset({"step", "prompt", "completion", "advantage", "advantages", "image", "images"})
_BATCH = 256


class Trl(DocumentForm):
    """The Parquet tables, and W&B's."""

    name = "trl"
    writes = "TRL's completions"
    places = ("completions/completions_*.parquet", "completions_*.parquet", "*.table.json")

    def recognises(self, path: Path, row: Any) -> bool:
        if path.suffix == ".parquet":
            return path.name.startswith("completions_") or "completion" in _columns(path)
        if not path.name.endswith(".json") or not isinstance(row, Mapping):
            return False
        return isinstance(row.get("columns"), list) and "completion" in row["columns"]

    def rows(self, path: Path, notes: Notes, *, whole: bool) -> Iterable[RowContents]:
        for row in parquet_rows(path) if path.suffix == ".parquet" else table_rows(document(path)):
            if "completion" in row:
                yield contents_of(row, step_in(path.name), notes)


def contents_of(row: Mapping[str, Any], step: int, notes: Notes) -> RowContents:
    """The content of a row of TRL's table."""
    parts = {key: float(value) for key, value in row.items() if key not in _NOT_REWARDS and is_usable(value)}
    reward = parts.pop("reward", None)
    known = [part for part in parts.values() if not math.isnan(part)]
    if len(parts) > 1 and reward is None:
        notes.say(UNWEIGHTED)
    rollout = {
        "completion": row["completion"],
        "reward": reward if reward is not None else (sum(known) if known else None),
        "reward_parts": parts,
        "advantage": row.get("advantage"),
        **{key: value for key, value in row.items() if key not in {*_NOT_REWARDS, *parts, "reward"}},
    }
    return RowContents(whole(row.get("step"), step), {"prompt": prompt_text(row.get("prompt")), "rollouts": [rollout]})


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file, read in batches."""
    try:
        with open_parquet(path) as table:
            for batch in table.iter_batches(_BATCH):
                yield from batch.to_pylist()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise NotALog(path, f"it is not a Parquet file ({error})") from error


def _columns(path: Path) -> list[str]:
    try:
        with open_parquet(path) as table:
            names: list[str] = table.schema_arrow.names
    except FileNotFoundError:
        raise
    except (OSError, ValueError):
        return []
    return names


def table_rows(table: Any) -> Iterator[dict[str, Any]]:
    """The rows of a table as W&B stores it."""
    if isinstance(table, Mapping) and isinstance(table.get("columns"), list) and isinstance(table.get("data"), list):
        for row in table["data"]:
            if isinstance(row, list):
                yield dict(zip(map(str, table["columns"]), row, strict=False))
