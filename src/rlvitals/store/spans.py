"""The phases of a run, one line each: `logs/phases.jsonl`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlvitals.codec import encode
from rlvitals.records import Row, Span
from rlvitals.store.reader import last_rows, read_rows


def span_line(
    phase: str, start: float, end: float, *, step: int, attempt: int, parent: str = "", error: str = ""
) -> bytes:
    """One `Span` as a line, of a shape that `read_rows` reads too. (A Span itself would take longer to make.)"""
    line = {
        "step": step,
        "attempt": attempt,
        "phase": phase,
        "start": int(start * 1e6) / 1e6,
        "end": int(end * 1e6) / 1e6,
    }
    if parent:
        line["parent"] = parent
    if error:
        line["error"] = error
    return encode(line)


def read_spans(log: Path) -> Iterator[Span]:
    """In the order in which they ended; lines that are no span are passed over."""
    return (span for row in read_rows(log) if (span := _span(row)) is not None)


def last_spans(log: Path, count: int) -> list[Span]:
    """The newest so many, found from the end."""
    return [span for row in last_rows(log, count) if (span := _span(row)) is not None]


def _span(row: Row) -> Span | None:
    if "phase" not in row.texts or not {"start", "end"} <= row.numbers.keys():
        return None
    return Span(
        phase=row.texts["phase"],
        start=row.numbers["start"],
        end=row.numbers["end"],
        step=row.step,
        attempt=row.attempt,
        parent=row.texts.get("parent", ""),
        error=row.texts.get("error", ""),
    )
