"""Weights & Biases: the file of a run (`run-ID.wandb`), or the console output or summary next to it if it has no
history.

The file has seven bytes of header and a LevelDB log of protobuf records.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlvitals.errors import NotALog
from rlvitals.importers.base import (
    Importer,
    Notes,
    add_histograms,
    lines_of,
    settings_beside,
    start_in_name,
    text_in,
    text_of,
)
from rlvitals.importers.console import ConsoleImporter
from rlvitals.importers.jsonl import JsonlImporter, are_json_lines, object_in, parse_lenient
from rlvitals.importers.wire import WireMessage, inner, leveldb_records, message, raw_of, text_at, whole_at
from rlvitals.records import MAX_STEP, Fields
from rlvitals.store.distributions import Logged, sketch_of_buckets
from rlvitals.store.files import changed_at
from rlvitals.store.lines import metric_key

SUMMARY, LINES = "wandb-summary.json", "wandb-history.jsonl"
ONLY_LAST = "a W&B summary holds the last value of each metric and no history"
MOST_PARTS = 50
"""The most earlier files of a resumed run that are read."""

_OWN = frozenset({"_runtime", "_wandb"})

_HISTORY, _CONFIG, _RUN = 2, 5, 17  # of a Record
_ITEM, _STEP = 1, 2  # of a HistoryRecord
_KEY, _NESTED_KEY, _JSON = 1, 2, 16  # of an item


class WandbImporter(Importer):
    """A run that the wandb package wrote on this machine."""

    name = "wandb"
    description = "W&B runs: their .wandb file, history or summary"
    marks = ("*.wandb", LINES, f"files/{LINES}")
    beside = ("files/output.log", f"files/{SUMMARY}")

    @classmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        if path.name == SUMMARY:
            return text_in(head).startswith("{")
        return head.startswith(b":W&B") or (path.name == LINES and are_json_lines(text_in(head)))

    @classmethod
    def log_in(cls, folder: Path) -> Path | None:
        found = super().log_in(folder)
        if found is not None:
            return found
        if os.path.exists(folder / cls.beside[0]):
            return None  # the console output holds more than the summary
        summaries = (folder / cls.beside[1], folder / SUMMARY)
        return next((path for path in summaries if os.path.isfile(path)), None)

    @classmethod
    def is_one_log(cls, folder: Path) -> bool:
        return cls.log_in(folder) is not None

    @classmethod
    def started_at(cls, log: Path) -> float:
        return start_in_name(log) or changed_at(log)

    def rows(self, path: Path) -> list[Fields]:
        rows = self._rows(path)
        self.config = settings_beside(path.parent / "config.yaml", path.parent / "files/config.yaml") | self.config
        return rows

    def _rows(self, path: Path) -> list[Fields]:
        """The history. Without one, the rows of the console output, or the last values."""
        if path.name == SUMMARY:
            return self._last_values(path)
        try:
            return self._history_of(path)
        except NotALog as reason:
            output, summary = (path.parent / name for name in self.beside)
            rows = self._rows_beside(output, summary, reason.why)
            if not rows:
                raise
            return rows

    def _history_of(self, path: Path) -> list[Fields]:
        reader = JsonlImporter(self.notes)
        rows: list[Fields] = []
        config: dict[str, Any] = {}
        earlier = _earlier_parts(path)
        for file in (*earlier, path):
            for raw in _lines(file) if file.name == LINES else _records(file, config, self.notes):
                row = reader.take(without_media(raw))
                rows += [row] if row else []
                step = rows[-1]["step"] if rows else raw.get("_step")
                add_histograms(self.distributions, histograms_in(raw, step), self.notes)
        reader.finish()
        if not rows:
            raise NotALog(path, "the W&B run holds no history")
        if earlier:
            parts = ", ".join(file.parent.name for file in earlier)
            self.notes.say(f"the run was resumed under its id: read after what it logged before, in {parts}")
        config.pop("_wandb", None)
        self.config = config
        return rows

    def _rows_beside(self, output: Path, summary: Path, why: str) -> list[Fields]:
        """The rows of the console output, or of the summary, with a note."""
        console = ConsoleImporter()
        with contextlib.suppress(NotALog, FileNotFoundError):
            rows = console.rows(output)
            console.notes.say(f"read from files/output.log: {why}")
            self.format, self.config, self.notes = console.format, console.config, console.notes
            return rows
        with contextlib.suppress(NotALog, FileNotFoundError):
            rows = self._last_values(summary)
            self.notes.say(f"read from files/{SUMMARY}: {why}")
            return rows
        return []

    def _last_values(self, path: Path) -> list[Fields]:
        last = object_in(text_of(path))
        row = JsonlImporter().take(without_media(last)) if last else None
        if not row:
            raise NotALog(path, "the W&B summary holds no numbers")
        self.notes.say(ONLY_LAST)
        return [row]


def without_media(found: dict[str, Any]) -> dict[str, Any]:
    """A W&B row, flat or nested, without images, histograms and W&B's own counters."""
    media = tuple(name.removesuffix("_type") for name in found if name.endswith("/_type"))
    return {
        name: value
        for name, value in found.items()
        if name not in _OWN
        and not (media and name.startswith(media))
        and not (isinstance(value, dict) and "_type" in value)
    }


def histograms_in(found: dict[str, Any], step: Any) -> Iterator[Logged]:
    """The histograms of a W&B row, flat or nested."""
    if type(step) is not int or abs(step) > MAX_STEP:
        return
    nested = {name: value for name, value in found.items() if isinstance(value, dict)}
    for mark in [name for name in found if name.endswith("/_type")]:
        name = mark.removesuffix("/_type")
        parts = {key.removeprefix(f"{name}/"): value for key, value in found.items() if key.startswith(f"{name}/")}
        nested[name] = {key: value for key, value in parts.items() if "/" not in key} | _packed_of(parts)
    for name, value in nested.items():
        if value.get("_type") != "histogram":
            continue
        with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError):
            yield Logged(step, 1, metric_key(name), sketch_of_buckets(_buckets(value)))


def _packed_of(parts: dict[str, Any]) -> dict[str, Any]:
    packed = {key.removeprefix("packedBins/"): value for key, value in parts.items() if key.startswith("packedBins/")}
    return {"packedBins": packed} if packed else {}


def _buckets(histogram: dict[str, Any]) -> list[tuple[float, float, float]]:
    """The buckets of a histogram: from its bin edges, one more than there are counts, or from the start, width and
    number of equal bins.
    """
    counts = [float(count) for count in histogram.get("values") or ()]
    edges = histogram.get("bins")
    packed = histogram.get("packedBins")
    if edges is None and isinstance(packed, dict) and packed.get("count") == len(counts):
        edges = [float(packed["min"]) + float(packed["size"]) * place for place in range(len(counts) + 1)]
    if not isinstance(edges, list) or len(edges) != len(counts) + 1:
        raise ValueError("no histogram")
    return [(float(low), float(high), count) for (low, high), count in zip(pairwise(edges), counts, strict=True)]


def _earlier_parts(path: Path) -> list[Path]:
    """The earlier files of a resumed run: the id is in their names, the time in the folder names."""
    own, known = start_in_name(path), glob.escape(path.name)
    folders = f"*run-*-{glob.escape(path.stem.removeprefix('run-'))}"
    files = path.absolute().parent.parent.glob(f"{folders}/{known}") if own and path.suffix == ".wandb" else ()
    return sorted((file for file in files if 0 < start_in_name(file) < own), key=start_in_name)[-MOST_PARTS:]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The history file that older versions wrote next to the run."""
    return (found for line in lines_of(path) if (found := object_in(line)) is not None)


def _records(path: Path, config: dict[str, Any], notes: Notes) -> Iterator[dict[str, Any]]:
    """The history in a run's file. Settings are added to `config` as they are read."""
    for data in leveldb_records(path):
        try:
            record = message(data)
            found = [_history(history) for history in inner(record, _HISTORY)]
            settings = [*inner(record, _CONFIG), *(item for run in inner(record, _RUN) for item in inner(run, 4))]
            for update in settings:
                config.update(_items(inner(update, 1)))
        except ValueError:
            notes.count("1 record is damaged and was skipped", "{} records are damaged and were skipped")
            continue
        yield from found


def _history(history: WireMessage) -> dict[str, Any]:
    found = _items(inner(history, _ITEM))
    for step in inner(history, _STEP):
        found.setdefault("_step", whole_at(step, 1))
    return found


def _items(items: Iterable[WireMessage]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in items:
        name = b"/".join(map(raw_of, item.get(_KEY) or item.get(_NESTED_KEY) or ())).decode("utf-8", "replace")
        try:
            found[name] = parse_lenient(text_at(item, _JSON))
        except ValueError:
            continue
    return found
