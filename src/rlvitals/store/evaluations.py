"""Evaluation files: writing, reading and deleting them; and the control that later evaluations are compared with."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvitals.codec import to_json, unreadable_text
from rlvitals.errors import RunUnreadable
from rlvitals.guard import guarded
from rlvitals.store.fields import record_of
from rlvitals.store.files import make_folder, put_file, read_json, replace_file, sync_folder
from rlvitals.store.layout import RunDir
from rlvitals.values import Derived, Value

_NAME = re.compile(r"eval_step_(\d+)\.json")


@dataclass(frozen=True, slots=True)
class Control:
    """The best reward of each query before training, by the query's id."""

    step: int
    rewards: dict[str, float]


def write_evaluation(run_dir: RunDir, stats: Mapping[str, Any], step: int, *, sync: bool = False) -> str:
    """Write an evaluation's own file. Returns an error message, or an empty text on success. With `sync`, the file's
    name is on disk on return.
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
    """An evaluation as stored in its file: array scalars become numbers, other values stay unchanged."""
    return {str(key): _plain(value) for key, value in stats.items()}


def _plain(value: Any) -> Any:
    met: list[Exception] = []
    with guarded(met.append):  # one unreadable value must not lose the evaluation
        if isinstance(value, Mapping):
            return _file_form(value)
        if isinstance(value, list | tuple):
            return [_plain(item) for item in value]
        if isinstance(value, Value | Derived):
            return value.number
        return _plain(value.tolist()) if hasattr(value, "tolist") else value
    return unreadable_text(value, met[0])


def evaluation_files(run_dir: RunDir) -> dict[int, Path]:
    """The evaluations' files by step, in order."""
    named = ((_NAME.fullmatch(path.name), path) for path in run_dir.eval_logs.glob("eval_step_*.json"))
    return dict(sorted((int(name[1]), path) for name, path in named if name))


def read_evaluations(run_dir: RunDir) -> tuple[dict[int, dict[str, Any]], list[str]]:
    """Every evaluation that has a file, by step; and a sentence for each file that cannot be read."""
    found, problems = {}, []
    for step, path in evaluation_files(run_dir).items():
        try:
            stats = read_json(path)
        except FileNotFoundError:
            continue  # deleted meanwhile by the run that writes it
        except (OSError, ValueError) as error:
            problems.append(f"{path.name} cannot be read: {getattr(error, 'strerror', None) or error}")
            continue
        if isinstance(stats, dict):
            found[step] = {"step": step} | stats | {"step": step}
        else:
            problems.append(f"{path.name} holds no evaluation")
    return found, problems


def drop_evaluations(run_dir: RunDir, keep_last: int, spare: Collection[int] = ()) -> None:
    """Delete all but the newest files, except the steps in `spare`. Rows stay in the log."""
    files = {step: path for step, path in evaluation_files(run_dir).items() if step not in spare}
    old = list(files)[: max(0, len(files) - keep_last)]
    try:
        sync_folder(run_dir.eval_logs)  # the newest file's name must be on disk before older files are deleted
    except OSError:
        return
    for step in old:
        with contextlib.suppress(OSError):
            files[step].unlink()


def write_control(run_dir: RunDir, control: Control) -> None:
    """Store the control for this run and for every run that resumes it."""
    put_file(run_dir.eval_control, to_json({"step": control.step, "rewards": control.rewards}))


def read_control(run_dir: RunDir) -> Control | None:
    """The control; None if there is none. Raises RunUnreadable if it is damaged."""
    try:
        return record_of(Control, read_json(run_dir.eval_control))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunUnreadable(
            f"{run_dir.eval_control} cannot be read: {error}; evaluate the first policy again"
        ) from error
