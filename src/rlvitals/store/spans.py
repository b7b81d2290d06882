"""The phases of a run, one line each: `logs/phases.jsonl`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlvitals.codec import encode
from rlvitals.records import PhaseSpan, Row
from rlvitals.store.reader import last_rows, read_rows


def span_line(
    phase: str, start: float, end: float, *, step: int, attempt: int, parent: str = "", error: str = ""
) -> bytes:
    """One `PhaseSpan` as a line that `read_rows` can read too. Takes plain values, because creating a PhaseSpan is
    slower.
    """
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


def read_spans(log: Path) -> Iterator[PhaseSpan]:
    """Every span, in the order in which the phases ended. Lines that are not spans are skipped."""
    return (span for row in read_rows(log) if (span := _span(row)) is not None)


def last_spans(log: Path, count: int) -> list[PhaseSpan]:
    """The newest `count` spans, read from the end of the log."""
    return [span for row in last_rows(log, count) if (span := _span(row)) is not None]


def _span(row: Row) -> PhaseSpan | None:
    if "phase" not in row.texts or not {"start", "end"} <= row.numbers.keys():
        return None
    return PhaseSpan(
        phase=row.texts["phase"],
        start=row.numbers["start"],
        end=row.numbers["end"],
        step=row.step,
        attempt=row.attempt,
        parent=row.texts.get("parent", ""),
        error=row.texts.get("error", ""),
    )
