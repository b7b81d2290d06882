"""The small files of a run that are written whole: `run.json`, `config.json`, `attempts.jsonl`, an evaluation's file.

They are replaced atomically, so a reader sees either the old file or the new one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rlvitals.codec import parse_shallow, to_json
from rlvitals.errors import RunNotFound, RunUnreadable
from rlvitals.records import SCHEMA, Attempt, RunInfo
from rlvitals.store.fields import damage_in, record_of
from rlvitals.store.files import DRAFTS, append_line, read_json, read_whole, remove_old_drafts, replace_file, unreadable
from rlvitals.store.layout import RunDir, archive_of


def new_id() -> str:
    """An id for a new run: the time, and six random digits."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"


def sweep(run_dir: RunDir) -> None:
    """Remove the drafts that killed processes left behind."""
    remove_old_drafts(run_dir.root, DRAFTS, "run.lock.draft.*", "run.lock.after.*")


def write_info(run_dir: RunDir, info: RunInfo) -> None:
    """Write the identity card."""
    replace_file(run_dir.info, to_json(asdict(info)))


def read_info(run_dir: RunDir, problems: list[str] | None = None) -> RunInfo:
    """Read the identity card. A bare log without one (older recorders) gets a minimal card.

    Fields of a wrong type get their defaults, and a sentence about them is added to `problems`. Raises RunNotFound or
    RunUnreadable.
    """
    try:
        raw = read_json(run_dir.info)
    except FileNotFoundError:
        return _card_of_bare_log(run_dir)
    except NotADirectoryError:
        raise RunNotFound(
            f"there is no run in {run_dir.root}: it is a file, not a directory. 'rlvitals import LOG --to DIR' makes a "
            f"run of a log"
        ) from None
    except OSError as error:
        raise unreadable(run_dir.info, error) from error
    except ValueError as error:
        raise _damaged(run_dir, str(error)) from error
    if not isinstance(raw, dict):
        raise _damaged(run_dir, "expected a JSON object")
    schema = raw.get("schema", 0)
    if type(schema) is not int:
        raise _damaged(run_dir, f"{str(schema)[:40]!r} is not a run format")
    if schema > SCHEMA:
        writer = str(raw.get("written_by", "(unknown)"))[:40]
        raise RunUnreadable(
            f"{run_dir.root} has run format {schema}, written by rlvitals {writer}; this version reads formats up to "
            f"{SCHEMA}. Upgrade with: pip install --upgrade rlvitals"
        )
    defaults = {"id": "", "name": run_dir.root.name, "created": 0.0, "updated": 0.0, "status": "interrupted"}
    wrong: list[str] = []
    info = record_of(RunInfo, raw, defaults=defaults, wrong=wrong)
    if problems is not None:
        problems += damage_in(run_dir.info.name, wrong)
    return info


def _damaged(run_dir: RunDir, what: str) -> RunUnreadable:
    return RunUnreadable(
        f"{run_dir.info} is damaged: {what}. The rows in {run_dir.logs} are not affected: restore the file from a "
        f"backup, or remove it to read the rows without it."
    )


def _card_of_bare_log(run_dir: RunDir) -> RunInfo:
    if not run_dir.holds_run:
        raise RunNotFound(
            f"there is no run in {run_dir.root}: neither run.json nor logs/training_metrics.jsonl is there. "
            f"'rlvitals runs DIR' lists the runs below a directory."
        )
    log = run_dir.train_log
    try:
        changed = (log if os.path.exists(log) else archive_of(log)).stat().st_mtime
    except OSError as error:
        raise unreadable(log, error) from error
    return RunInfo(
        id="", name=run_dir.root.resolve().name, status="finished", created=changed, updated=changed, schema=0
    )


def write_config(run_dir: RunDir, config: dict[str, Any]) -> None:
    """Write the resolved settings (masked by the caller)."""
    replace_file(run_dir.config, to_json(config))


def read_config(run_dir: RunDir, problems: list[str] | None = None) -> dict[str, Any]:
    """Read the settings; empty if there are none. Problems are added to `problems` as sentences."""
    what = ""
    try:
        raw = read_json(run_dir.config)
        if isinstance(raw, dict):
            return raw
        what = "expected a JSON object"
    except FileNotFoundError:
        pass
    except OSError as error:
        what = error.strerror or str(error)
    except ValueError as error:
        what = str(error)
    if problems is not None and what:
        problems.append(f"{run_dir.config.name} cannot be read: {what}; the run is shown without its settings")
    return {}


def append_attempt(run_dir: RunDir, attempt: Attempt) -> None:
    """Add one line to the list of (re)starts."""
    line = json.dumps(asdict(attempt), separators=(",", ":")).encode() + b"\n"
    append_line(run_dir.attempts, line, sync=True)  # rows on disk must not lose their attempt


def write_attempts(run_dir: RunDir, attempts: Iterable[Attempt]) -> None:
    """Write the whole list of (re)starts and replace the old one."""
    replace_file(
        run_dir.attempts, [json.dumps(asdict(one), separators=(",", ":")).encode() + b"\n" for one in attempts]
    )


def read_attempts(run_dir: RunDir, problems: list[str] | None = None) -> list[Attempt]:
    """All (re)starts, in order. Damaged lines are skipped, and a sentence about them is added to `problems`."""
    notes: list[str] = []
    try:
        lines = read_whole(run_dir.attempts).splitlines()
    except FileNotFoundError:
        lines = []
    except OSError as error:
        notes.append(f"{run_dir.attempts.name} cannot be read: {error.strerror or error}; restarts are unknown")
        lines = []
    found = []
    bad = 0
    wrong: list[str] = []
    for line in lines:
        try:
            found.append(record_of(Attempt, parse_shallow(line), defaults={"started": 0.0}, wrong=wrong))
        except ValueError:
            bad += 1
    if problems is not None:
        notes += [f"{run_dir.attempts.name} is damaged: {bad} of {len(lines)} lines are skipped"] if bad else []
        problems += [*notes, *damage_in(run_dir.attempts.name, wrong)]
    return found
