"""Factories for the sink tests: the facts of a run, rows, and log files with rows.

Imported as `from rows import facts, row, ...`: pytest puts this folder on the path.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlvitals.codec import encode, write_nonfinite
from rlvitals.records import Attempt, Row
from rlvitals.sinks.base import RunFacts, SinkRow
from rlvitals.store.layout import Forwarded, RunDir

START = 1_763_190_000.0
"""The time of step 0. The timestamp of a row is START plus its step in seconds."""

CONFIG = {"lr": 1e-5, "model": {"name": "tiny", "layers": 2}, "token": "***"}


def facts(
    tmp_path: Path,
    attempts: Iterable[Attempt] = (Attempt(1, START),),
    config: Mapping[str, Any] = CONFIG,
    id: str = "kto-7b-0123abcd",
    name: str = "kto-7b",
) -> RunFacts:
    """The facts of a run in `tmp_path/run`; creates the folder."""
    root = tmp_path / "run"
    root.mkdir(parents=True, exist_ok=True)
    return RunFacts(root=root, id=id, name=name, algorithm="kto", config=dict(config), attempts=tuple(attempts))


def row(
    step: int,
    attempt: int = 1,
    stream: Forwarded = "train",
    *,
    texts: Mapping[str, str] | None = None,
    timestamp: float | None = None,
    numbers: Mapping[str, float] | None = None,
    **more: float,
) -> SinkRow:
    """One row. Metrics whose names are not identifiers go into `numbers`."""
    when = START + step if timestamp is None else timestamp
    return SinkRow(stream, Row(step, when, attempt, {**(numbers or {}), **more}, dict(texts or {})))


def rows(steps: Iterable[int], attempt: int = 1, stream: Forwarded = "train") -> list[SinkRow]:
    """Rows whose values identify them: loss = 1 / (1 + |step|), rewards/margins = step / 10 + attempt."""
    return [
        row(step, attempt, stream, numbers={"loss": 1 / (1 + abs(step)), "rewards/margins": step / 10 + attempt})
        for step in steps
    ]


def samples(places: Iterable[int], attempt: int = 1) -> list[SinkRow]:
    """Hardware samples, one every 5 s. Their CPU use is their number."""
    return [
        row(place, attempt, "system", timestamp=START + 5 * place, numbers={"System/CPU_Percent": float(place)})
        for place in places
    ]


def write_log(of: RunFacts, written: Iterable[SinkRow]) -> None:
    """Append the rows to the run's logs as the recorder does, for sinks that read them again."""
    for item in written:
        path = RunDir(of.root).log(item.stream)
        path.parent.mkdir(parents=True, exist_ok=True)
        finite = {name: number for name, number in item.row.numbers.items() if math.isfinite(number)}
        odd = {name: number for name, number in item.row.numbers.items() if not math.isfinite(number)}
        line = {"step": item.row.step, "timestamp": item.row.timestamp, "attempt": item.row.attempt}
        line |= {**finite, **item.row.texts, **({"_nonfinite": write_nonfinite(odd)} if odd else {})}
        with open(path, "ab") as file:
            file.write(encode(line))


def files_with(root: Path, secret: str) -> list[Path]:
    """Every file below a folder that contains the secret."""
    found = []
    for path in root.rglob("*"):
        if path.is_file() and secret.encode() in path.read_bytes():
            found.append(path)
    return found
