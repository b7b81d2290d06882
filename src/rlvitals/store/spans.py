"""The phases of a run, one line each: `logs/phases.jsonl`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlvitals.codec import encode
from rlvitals.records import Span
from rlvitals.store.reader import read_rows


def span_line(span: Span) -> bytes:
    """One line, of a shape that `read_rows` reads too."""
    line = {
        "step": span.step,
        "attempt": span.attempt,
        "phase": span.phase,
        "start": int(span.start * 1e6) / 1e6,
        "end": int(span.end * 1e6) / 1e6,
    }
    if span.parent:
        line["parent"] = span.parent
    if span.error:
        line["error"] = span.error
    return encode(line)


def read_spans(log: Path) -> Iterator[Span]:
    """In the order in which they ended; lines that are no span are passed over."""
    for row in read_rows(log):
        if "phase" in row.texts and {"start", "end"} <= row.numbers.keys():
            yield Span(
                phase=row.texts["phase"],
                start=row.numbers["start"],
                end=row.numbers["end"],
                step=row.step,
                attempt=row.attempt,
                parent=row.texts.get("parent", ""),
                error=row.texts.get("error", ""),
            )
