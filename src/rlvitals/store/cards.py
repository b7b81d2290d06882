"""The small whole files of a run: `run.json`, `config.json`, `attempts.jsonl`, one evaluation's file.

Whole files are replaced atomically, so a reader sees the old one or the new one.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, fields
from typing import Any

from rlvitals.codec import to_json
from rlvitals.errors import RunNotFound, RunUnreadable
from rlvitals.records import SCHEMA, STATUSES, Attempt, RunInfo
from rlvitals.store.files import append_line, read_whole, replace_file
from rlvitals.store.layout import RunDir, archive_of

DRAFT_SECONDS = 120.0
"""A draft that is older belongs to nobody."""


def sweep(run_dir: RunDir) -> None:
    """Remove the drafts that killed processes left behind. Recent ones may be in use."""
    for pattern in (".*.tmp", "run.lock.draft.*", "run.lock.after.*"):
        for path in run_dir.root.glob(pattern):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > DRAFT_SECONDS:
                    path.unlink()


def write_info(run_dir: RunDir, info: RunInfo) -> None:
    """Write the identity card."""
    replace_file(run_dir.info, to_json(asdict(info)))


def read_info(run_dir: RunDir) -> RunInfo:
    """Read the identity card. A bare log without one (older recorders) gets a minimal card."""
    try:
        raw = json.loads(run_dir.info.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return _card_of_bare_log(run_dir)
    except NotADirectoryError:
        raise RunNotFound(f"there is no run in {run_dir.root}: it is a file, not a directory") from None
    except (OSError, ValueError) as error:
        raise RunUnreadable(
            f"{run_dir.info} cannot be read: {error}. The rows in {run_dir.logs} are not affected"
        ) from error
    if not isinstance(raw, dict):
        raise RunUnreadable(
            f"{run_dir.info} is damaged: expected a JSON object. The rows in {run_dir.logs} are not affected"
        )
    schema = raw.get("schema", 0)
    if not isinstance(schema, int) or schema > SCHEMA:
        raise RunUnreadable(
            f"{run_dir.root} has run format {schema}, written by rlvitals {raw.get('written_by', '(unknown)')}; "
            f"this version reads "
            f"formats up to {SCHEMA}. Upgrade with: pip install --upgrade rlvitals"
        )
    return _card(raw, run_dir)


def _card(raw: dict[str, Any], run_dir: RunDir) -> RunInfo:
    known = {field.name for field in fields(RunInfo)}
    given = {key: value for key, value in raw.items() if key in known}
    defaults = {"id": "", "name": run_dir.root.name, "created": 0.0, "updated": 0.0}
    if given.get("status") not in STATUSES:
        given["status"] = "interrupted"
    return RunInfo(**{**defaults, **given})


def _card_of_bare_log(run_dir: RunDir) -> RunInfo:
    if not run_dir.holds_run:
        raise RunNotFound(
            f"there is no run in {run_dir.root}: neither run.json nor logs/training_metrics.jsonl is there. "
            f"'rlvitals runs DIR' lists the runs below a directory."
        )
    log = run_dir.train_log
    changed = (log if log.exists() else archive_of(log)).stat().st_mtime
    return RunInfo(
        id="", name=run_dir.root.resolve().name, status="finished", created=changed, updated=changed, schema=0
    )


def write_config(run_dir: RunDir, config: dict[str, Any]) -> None:
    """Write the resolved settings (masked by the caller)."""
    replace_file(run_dir.config, to_json(config))


def read_config(run_dir: RunDir) -> dict[str, Any]:
    """Read the settings back; empty when there are none."""
    try:
        raw = json.loads(run_dir.config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


def append_attempt(run_dir: RunDir, attempt: Attempt) -> None:
    """Add one line to the list of (re)starts."""
    line = json.dumps(asdict(attempt), separators=(",", ":")).encode() + b"\n"
    append_line(run_dir.attempts, line, sync=True)  # rows that are on the disk must not lose the attempt they are of


def read_attempts(run_dir: RunDir) -> list[Attempt]:
    """All (re)starts, in order; damaged lines are left out."""
    try:
        lines = read_whole(run_dir.attempts).splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError, TypeError):
            found.append(Attempt(**json.loads(line)))
    return found
