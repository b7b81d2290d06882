"""Samples of the machine, `logs/system.jsonl`: with a separate axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rlvitals.records import Row
from rlvitals.store.reader import read_rows


def read_samples(log: Path) -> Iterator[Row]:
    """Every sample with its place in the log as its step, 0 for the first: an axis that never goes back."""
    for place, row in enumerate(read_rows(log)):
        yield replace(row, step=place)
