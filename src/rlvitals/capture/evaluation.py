"""The two forms of one evaluation: whole, in a file of its own, and what of it a row can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlvitals.codec import to_json
from rlvitals.store.files import make_folder, replace_file, sync_folder
from rlvitals.store.layout import RunDir
from rlvitals.values import Derived, Value


def write_evaluation(run_dir: RunDir, stats: Mapping[str, Any], step: int, *, sync: bool = False) -> str:
    """Write an evaluation's own file; returns what went wrong with it, if anything did. `sync`: the disk knows its name
    on return.
    """
    path = run_dir.eval_file(step)
    try:
        make_folder(run_dir.eval_logs, above=False)
        replace_file(path, to_json({"step": step, **_file_form(stats)}))
        if sync:
            sync_folder(run_dir.eval_logs)
    except OSError as error:
        return f"cannot write {path}: {error.strerror or error}; its row is kept"
    return ""


def _file_form(stats: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation as its file holds it: array scalars as numbers, the rest as it came."""

    def plain(value: Any) -> Any:
        try:
            return form_of(value)
        except Exception as error:  # noqa: BLE001 - one odd value does not cost the evaluation
            return f"({type(value).__name__} that cannot be read: {type(error).__name__})"

    def form_of(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if isinstance(value, Value | Derived):
            return value.number
        return plain(value.tolist()) if hasattr(value, "tolist") else value

    return {str(key): plain(value) for key, value in stats.items()}


def without_sequences(stats: Mapping[str, Any]) -> dict[str, Any]:
    """What of an evaluation goes into its row; the rest is in its file."""
    row: dict[str, Any] = {}
    for key, value in stats.items():
        try:
            if isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0:
                continue
            row[key] = without_sequences(value) if isinstance(value, Mapping) else value
        except Exception:  # noqa: BLE001 - the intake reports the value
            row[key] = value
    return row
