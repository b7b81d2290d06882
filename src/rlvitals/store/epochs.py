"""The files of a run's epochs: the record `epochs.jsonl`, and the table, the history and the plots made from it.

Each call appends one line to the record, and the record is never rewritten. The last value logged for an epoch wins. No
lock is needed: each line is a single append, and a process reads the lines of others before it writes the table. Files
are replaced atomically, so a reader sees either the old file or the new one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from rlvitals.codec import NONFINITE, encode, parse_shallow, read_nonfinite
from rlvitals.records import MAX_ATTEMPT, AttemptNumber, Time
from rlvitals.store.fields import checked
from rlvitals.store.files import (
    DRAFTS,
    append_line,
    make_folder,
    open_regular,
    put_file,
    read_json,
    remove_old_drafts,
    sync_folder,
)
from rlvitals.store.layout import EpochDir
from rlvitals.store.lines import stored_metrics
from rlvitals.store.spreadsheet import csv_line

TRAINING = ("loss", "reward", "kl_divergence", "entropy", "learning_rate", "epoch_time", "samples_per_second")
SCORES = ("bertscore", "codebleu", "bleu", "rouge", "ruby")
FIXED = ("epoch", "timestamp", *TRAINING, *SCORES)
"""The first columns of the table, which are always there. Other metrics follow in order of first appearance."""

MOST_PASSES = 5
"""How many times the files are rewritten because another process appended a line meanwhile."""

Number = float | int
Cell = Number | str


class Word(NamedTuple):
    """One line of the record: the values that one call logged for an epoch."""

    epoch: int
    timestamp: float
    attempt: int
    """The number of the tracker that wrote the line. Each new tracker gets the next number."""
    metrics: dict[str, Cell]
    step: int | None = None
    """The run's last step at that time, if a run was being recorded."""


class _Head(TypedDict, total=False):
    """The fields of a line besides its metrics."""

    epoch: int
    timestamp: Time
    attempt: AttemptNumber
    step: int | None


class EpochRow:
    """One epoch's row, combined from all lines about it."""

    def __init__(self, word: Word) -> None:
        self.number = word.epoch
        self.timestamp = word.timestamp
        self.step = word.step
        self.metrics = dict(word.metrics)
        self._attempt = word.attempt
        self._train_names = _training_names(word.metrics)

    @property
    def numbers(self) -> dict[str, float]:
        """The metrics that are numbers."""
        return {name: value for name, value in self.metrics.items() if not isinstance(value, str)}

    def is_trained_again(self, word: Word) -> bool:
        """Whether a later tracker logged all training metrics of the epoch. The epoch was then trained again, and
        scores of the old weights do not apply to the new ones.
        """
        return word.attempt > self._attempt and bool(self._train_names) and self._train_names <= word.metrics.keys()

    def take(self, word: Word) -> None:
        """Apply another line about the epoch. Late scores and corrections change only their own values."""
        self.metrics.update(word.metrics)
        if word.step is not None:
            self.step = word.step
        if not self._train_names:
            self._attempt, self._train_names = word.attempt, _training_names(word.metrics)


class EpochStore:
    """The epochs of one folder: reads the record, appends to it and writes the files made from it.

    Reading never raises because of a line's content. OSError is raised to the caller without loss: a line that could
    not be written is kept, counts in `epochs`, and is written first the next time.
    """

    def __init__(self, folder: Path, *, fsync: bool = False) -> None:
        self.paths = EpochDir(folder)
        self.epochs: dict[int, EpochRow] = {}
        self.attempt = 1
        """The number of the tracker that writes: one more than any in the record."""
        self.fsync = fsync
        """Whether files are synced to disk."""
        self._latest = 0
        self._offset = 0
        self._columns = dict.fromkeys(FIXED)
        self._unwritten: list[bytes] = []

    @property
    def history(self) -> list[EpochRow]:
        """The epochs in order."""
        return [self.epochs[number] for number in sorted(self.epochs)]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._columns)

    @property
    def is_stale(self) -> bool:
        """Whether the table is missing or older than the record."""
        try:
            return self.paths.table.stat().st_mtime_ns < self.paths.record.stat().st_mtime_ns
        except OSError:
            return os.path.exists(self.paths.record)

    def load(self) -> None:
        """Read the record; if there is none, read a history file that another program wrote."""
        for folder in (self.paths.folder, self.paths.plots):
            remove_old_drafts(folder, DRAFTS)
        if not os.path.exists(self.paths.record):
            for word in _foreign_history(self.paths.history):
                self._take(word)
        self.read()
        self.attempt = min(self._latest + 1, MAX_ATTEMPT)

    def read(self) -> None:
        """Read the lines that any process has added since the last read."""
        try:
            with open_regular(self.paths.record) as file:
                if file.seek(0, os.SEEK_END) < self._offset:
                    self._offset = 0  # the file was replaced: its lines are applied on top
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            self._offset = 0
            return
        whole = data.rfind(b"\n") + 1
        for line in data[:whole].splitlines():
            if (word := decode(line)) is not None:
                self._take(word)
        self._offset += whole

    def append(self, word: Word) -> None:
        """Log values for an epoch. They count at once. OSError means that the disk has not accepted them yet."""
        self._unwritten.append(_encode(word))
        try:
            self.write_waiting()
            self.read()
        except OSError:
            self._take(word)
            raise

    def remember(self, word: Word) -> None:
        """Apply a line without writing it: for ranks that do not write."""
        self._take(word)

    def write_waiting(self) -> None:
        """Write the lines that could not be written so far."""
        if not self._unwritten:
            return
        make_folder(self.paths.folder)
        if self.epochs and not os.path.lexists(self.paths.record):
            # The record is missing: a foreign history is continued, or the folder was deleted. Known epochs go to disk
            # first, because the foreign history, which is replaced later, may be the only copy.
            put_file(self.paths.record, b"".join(_encode(_word_of(epoch)) for epoch in self.history))
            sync_folder(self.paths.folder)
        while self._unwritten:
            append_line(self.paths.record, self._unwritten[0], sync=self.fsync and len(self._unwritten) == 1)
            self._unwritten.pop(0)

    def save(self, keep_last: int | None = None) -> None:
        """Write the table and the history; with `keep_last`, only of the last epochs."""
        self.write_waiting()
        for _ in range(MOST_PASSES):
            self.read()
            shown = self.history[-keep_last:] if keep_last else self.history
            put_file(self.paths.table, table(shown, self.columns))
            put_file(self.paths.history, document(shown, self.columns))
            if not self._has_grown():
                return

    def save_plot(self, name: str, picture: bytes) -> None:
        """Write a plot and replace the previous one."""
        put_file(self.paths.plot(name), picture)

    def _has_grown(self) -> bool:
        try:
            return self.paths.record.stat().st_size > self._offset
        except OSError:
            return False

    def _take(self, word: Word) -> None:
        self._latest = max(self._latest, word.attempt)
        self._columns.update(dict.fromkeys(word.metrics))
        epoch = self.epochs.get(word.epoch)
        if epoch is None or epoch.is_trained_again(word):
            self.epochs[word.epoch] = EpochRow(word)
        else:
            epoch.take(word)


def decode(line: bytes) -> Word | None:
    """One line of the record; None if it is not valid.

    >>> decode(b'{"epoch":3,"timestamp":5.0,"attempt":1,"loss":0.5,"_nonfinite":"reward=nan"}').metrics
    {'loss': 0.5, 'reward': nan}
    """
    try:
        raw = parse_shallow(line)
    except ValueError:
        return None
    return _word(raw) if isinstance(raw, dict) else None


def _word(raw: Mapping[Any, Any]) -> Word | None:
    head: _Head = checked(_Head, raw)  # type: ignore[assignment]
    if "epoch" not in head:
        return None
    ours = _Head.__annotations__
    metrics = {
        name: int(value) if isinstance(value, bool) else value
        for name, value in raw.items()
        if name not in ours and not name.startswith("_") and isinstance(value, int | float | str)
    }
    if isinstance(marked := raw.get(NONFINITE), str):
        metrics |= read_nonfinite(marked)
    return Word(head["epoch"], head.get("timestamp", math.nan), head.get("attempt", 1), metrics, head.get("step"))


def _encode(word: Word) -> bytes:
    line: dict[str, Any] = {"epoch": word.epoch, "timestamp": word.timestamp, "attempt": word.attempt}
    if not math.isfinite(word.timestamp):
        del line["timestamp"]
    if word.step is not None:
        line["step"] = word.step
    return encode(line | stored_metrics(word.metrics))


def table(epochs: Sequence[EpochRow], columns: Iterable[str]) -> bytes:
    """The epochs as CSV, one row each. Values that were not logged are empty; nan and inf are written as `nan` and
    `inf`. A text that a spreadsheet would run as a formula gets an apostrophe before it.
    """
    columns = tuple(columns)
    lines = [csv_line(columns)]
    for epoch in epochs:
        row = _flat(epoch)
        lines.append(csv_line(row.get(name) for name in columns))
    return "".join(lines).encode("utf-8", "replace")


def document(epochs: Sequence[EpochRow], columns: Iterable[str]) -> bytes:
    """The epochs as one JSON list, with a line for each. Every epoch has every name; the value is null if there is no
    number. Numbers that JSON cannot hold are in `_nonfinite`.
    """
    columns = tuple(columns)
    rows = []
    for epoch in epochs:
        rows.append(encode(dict.fromkeys(columns) | stored_metrics(_flat(epoch))).rstrip())
    return b"[\n" + b",\n".join(rows) + b"\n]\n"


def _flat(epoch: EpochRow) -> dict[str, Cell]:
    stamp = {"timestamp": epoch.timestamp} if math.isfinite(epoch.timestamp) else {}
    return {"epoch": epoch.number, **stamp, **epoch.metrics}


def _training_names(metrics: Mapping[str, Cell]) -> frozenset[str]:
    return frozenset(name for name in metrics if name not in SCORES and not name.startswith("eval"))


def _word_of(epoch: EpochRow) -> Word:
    return Word(epoch.number, epoch.timestamp, 1, epoch.metrics, epoch.step)


def _foreign_history(path: Path) -> list[Word]:
    """The epochs of a `training_metrics.json` without a record, as other trackers write it."""
    try:
        rows = read_json(path)
    except (OSError, ValueError):
        return []
    words = [_word(row) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [word for word in words if word is not None]
