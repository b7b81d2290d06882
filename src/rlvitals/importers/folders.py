"""Finds the runs and logs in a folder and below it, by importers' marks and by file names.

The walk is bounded and follows no links. File contents are not read here.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from rlvitals.importers.base import Importer
from rlvitals.store.layout import RunDir

DEPTH = 5
MOST_FOLDERS = 1_000
MOST_FILES = 64
"""The most files considered in one folder; those with the most likely names come first."""

SKIPPED = frozenset({"node_modules", "site-packages", "__pycache__", "venv"})

ENDINGS = frozenset(
    {
        ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".log", ".txt", ".out", ".ipynb", ".parquet", ".db", ".sqlite",
        ".sqlite3", ".wandb", ".swanlab", ".zip", ".tar", ".tgz",
    }
)  # fmt: skip
PACKED_ENDINGS = frozenset({".gz", ".bz2", ".xz", ".zst"})

_TRAINING = re.compile(r"(?<![a-z])train(?!ing_args)", re.IGNORECASE)
_LOG = re.compile(
    r"metric|histor|progress|scalar|stats|log|loss|reward|output|console|stdout|nohup|slurm", re.IGNORECASE
)
_OTHER = re.compile(
    r"eval|valid|test|rollout|sample|predict|completion|generation|dataset|debug|error|config|args|result|requirement|"
    r"tokenizer|vocab|special_tokens|readme|licen[cs]e|index\.json",
    re.IGNORECASE,
)

_NO_LOG = re.compile(
    r"(?:\w+_)?config\.(?:json|ya?ml)|tokenizer\w*\.\w+|(?:special|added)_tokens(?:_map)?\.json|vocab\.\w+|merges\.txt|"
    r".*\.index\.json|(?:args|params|hparams|training_args|package(?:-lock)?)\.\w+|requirements[\w-]*\.txt|"
    r"readme(?:\.\w+)?|licen[cs]e(?:\.\w+)?",
    re.IGNORECASE,
)


class LogFolder(NamedTuple):
    """One log and the folder it represents."""

    kind: type[Importer]
    folder: Path
    log: Path


def marked(folder: Path, importers: Sequence[type[Importer]]) -> LogFolder | None:
    """The log that a folder is, according to the marks of the first importer that matches."""
    for kind in importers:
        log = kind.log_in(folder)
        if log is not None:
            return LogFolder(kind, folder, log)
    return None


def survey(folder: Path, importers: Sequence[type[Importer]]) -> tuple[list[LogFolder], list[Path]]:
    """The folders below one that are a log each, and the other folders. Folders below a log belong to that log."""
    runs: list[LogFolder] = []
    others: list[Path] = []
    for below, found in _walk(folder, importers):
        if found is None:
            others.append(below)
        else:
            runs.append(found)
    return runs, others


def _walk(folder: Path, importers: Sequence[type[Importer]]) -> Iterator[tuple[Path, LogFolder | None]]:
    """Each folder below, level by level, with its log if it is one."""
    waiting = deque((child, 1) for child in _folders_in(folder))
    for _ in range(MOST_FOLDERS):
        if not waiting:
            return
        below, depth = waiting.popleft()
        if RunDir(below).holds_run:
            continue
        found = marked(below, importers)
        yield below, found
        if found is None and depth < DEPTH:
            waiting.extend((child, depth + 1) for child in _folders_in(below))


def _folders_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if not name.startswith(".") and name not in SKIPPED]


def files_in(folder: Path, importers: Sequence[type[Importer]]) -> list[Path]:
    """The files of a folder that may be logs, by their endings or an importer's patterns; the most likely first."""
    patterns = [pattern.rpartition("/")[2] for kind in importers for pattern in kind.names]
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_file() and not entry.name.startswith(".")]
    except OSError:
        return []
    logs = [name for name in names if ends_as_log(name) or any(fnmatch(name, pattern) for pattern in patterns)]
    return [folder / name for name in sorted(logs, key=lambda name: (-telling(name), name))[:MOST_FILES]]


def ends_as_log(name: str) -> bool:
    """Whether a file name has the ending of a log, compressed or not."""
    stem, ending = os.path.splitext(name.lower())
    if ending in PACKED_ENDINGS:
        ending = os.path.splitext(stem)[1]
    return ending in ENDINGS


def telling(name: str) -> int:
    """How likely a file is a training's log, by its name: 2 and 1 for likely, negative for something else.

    >>> [telling(name) for name in ("train_metrics.jsonl", "progress.csv", "a.jsonl", "eval_log.jsonl", "config.json")]
    [2, 1, 0, -1, -2]
    """
    score = 2 if _TRAINING.search(name) else 1 if _LOG.search(name) else 0
    return score - 2 if _OTHER.search(name) else score


def is_plainly_other(name: str) -> bool:
    """Whether a file's whole name shows that it is not a log: settings, a tokenizer's files, a README.

    >>> is_plainly_other("adapter_config.json"), is_plainly_other("my-config-2.jsonl")
    (True, False)
    """
    return bool(_NO_LOG.fullmatch(name))


def newest_first(runs: list[LogFolder]) -> list[LogFolder]:
    """Sorted by when they began, or by the numbers in their names if that is equal; runs with few metrics come last."""
    widths = {run: run.kind.width(run.log) for run in runs}
    most = max(widths.values(), default=0)
    return sorted(
        runs,
        key=lambda run: (widths[run] * 2 >= most, run.kind.started_at(run.log), _counted(run.folder)),
        reverse=True,
    )


def _counted(folder: Path) -> list[tuple[int, str]]:
    """A sort key that orders numbers in names by value: PPO_2 before PPO_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", folder.as_posix())]
