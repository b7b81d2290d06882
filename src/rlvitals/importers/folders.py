"""Which runs and logs a folder holds, at its top and below: by the marks of importers, and by files' names.

Walking is bounded and follows no links. What a file holds is not looked at here.
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
"""Files of one folder that are considered; those with the most telling names are."""

PASSED_OVER = frozenset({"node_modules", "site-packages", "__pycache__", "venv"})

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


class Run(NamedTuple):
    """One log, and the folder that is it."""

    kind: type[Importer]
    folder: Path
    log: Path


def marked(folder: Path, importers: Sequence[type[Importer]]) -> Run | None:
    """The log that a folder is, by the marks of the first importer that knows it."""
    for kind in importers:
        log = kind.log_in(folder)
        if log is not None:
            return Run(kind, folder, log)
    return None


def survey(folder: Path, importers: Sequence[type[Importer]]) -> tuple[list[Run], list[Path]]:
    """The folders below one that are a log each, and those that are none. What is below the former is theirs."""
    runs: list[Run] = []
    others: list[Path] = []
    for below, found in _walk(folder, importers):
        if found is None:
            others.append(below)
        else:
            runs.append(found)
    return runs, others


def _walk(folder: Path, importers: Sequence[type[Importer]]) -> Iterator[tuple[Path, Run | None]]:
    """Each folder below, level by level, with the log it is."""
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
    return [folder / name for name in sorted(names) if not name.startswith(".") and name not in PASSED_OVER]


def files_in(folder: Path, importers: Sequence[type[Importer]]) -> list[Path]:
    """The files of a folder that may be logs, by their endings or an importer's patterns; the most telling first."""
    patterns = [pattern.rpartition("/")[2] for kind in importers for pattern in kind.names]
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_file() and not entry.name.startswith(".")]
    except OSError:
        return []
    logs = [name for name in names if ends_as_log(name) or any(fnmatch(name, pattern) for pattern in patterns)]
    return [folder / name for name in sorted(logs, key=lambda name: (-telling(name), name))[:MOST_FILES]]


def ends_as_log(name: str) -> bool:
    """Whether a file's name ends as those of logs do, packed ones too."""
    stem, ending = os.path.splitext(name.lower())
    if ending in PACKED_ENDINGS:
        ending = os.path.splitext(stem)[1]
    return ending in ENDINGS


def telling(name: str) -> int:
    """How much a file's name says that it is a training's log: 2 and 1, and below 0 that it is something else.

    >>> [telling(name) for name in ("train_metrics.jsonl", "progress.csv", "a.jsonl", "eval_log.jsonl", "config.json")]
    [2, 1, 0, -1, -2]
    """
    score = 2 if _TRAINING.search(name) else 1 if _LOG.search(name) else 0
    return score - 2 if _OTHER.search(name) else score


def is_plainly_other(name: str) -> bool:
    """Whether a file is by its whole name something else than a log: settings, a tokenizer's files, a README.

    >>> is_plainly_other("adapter_config.json"), is_plainly_other("my-config-2.jsonl")
    (True, False)
    """
    return bool(_NO_LOG.fullmatch(name))


def newest_first(runs: list[Run]) -> list[Run]:
    """By when they began, or by the numbers in their names where that is the same; those with few metrics last."""
    widths = {run: run.kind.width(run.log) for run in runs}
    most = max(widths.values(), default=0)
    return sorted(
        runs,
        key=lambda run: (widths[run] * 2 >= most, run.kind.begun(run.log), _counted(run.folder)),
        reverse=True,
    )


def _counted(folder: Path) -> list[tuple[int, str]]:
    """A name in the order people count: PPO_2 before PPO_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", folder.as_posix())]
