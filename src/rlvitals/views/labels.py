"""Labels of logs by people: a table with each log's true verdict and the step at which its problem began."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from rlvitals.errors import ConfigError
from rlvitals.records import KINDS

VERDICTS = ("healthy", "watch", "fail")
NEEDED = ("file", "verdict")


@dataclass(frozen=True, slots=True)
class Label:
    """The correct judgement of one log."""

    verdict: str
    """healthy, watch or fail."""
    onset_step: int | None = None
    what: str = ""
    """The failure as described by the labeller."""
    kinds: tuple[str, ...] = ()
    """The kinds that describe it correctly, if the labeller gives them."""


def read_labels(path: Path) -> dict[str, Label]:
    """Read labels by file name from a tab-separated table. The columns are file and verdict, and optionally onset_step,
    failure_class and kind (several are separated by commas).
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file, delimiter="\t")
            missing = [name for name in NEEDED if name not in (table.fieldnames or ())]
            if missing:
                raise ConfigError(
                    f"{path}: a table of labels has the columns {', '.join(NEEDED)}; no {missing[0]!r} here"
                )
            return {row["file"]: _label(row, f"{path}, line {table.line_num}") for row in table if row["file"]}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"cannot read the labels in {path}: {error}") from error


def is_labels(path: Path) -> bool:
    """Whether a file is such a table and therefore not a log."""
    if path.suffix != ".tsv":
        return False
    try:
        with path.open(encoding="utf-8-sig") as file:
            return set(NEEDED) <= set(file.readline().rstrip("\r\n").split("\t"))
    except (OSError, UnicodeDecodeError):
        return False


def _label(row: dict[str, str], place: str) -> Label:
    verdict = (row["verdict"] or "").strip()
    if verdict not in VERDICTS:
        raise ConfigError(f"{place}: a verdict is one of {', '.join(VERDICTS)}, not {verdict!r}")
    onset = (row.get("onset_step") or "").strip()
    try:
        onset_step = int(float(onset)) if onset else None
    except (ValueError, OverflowError):
        raise ConfigError(f"{place}: onset_step is a step, not {onset!r}") from None
    kinds = tuple(kind for kind in (word.strip() for word in (row.get("kind") or "").split(",")) if kind)
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ConfigError(f"{place}: {unknown[0]!r} is not a kind. Known: {', '.join(KINDS)}")
    return Label(verdict, onset_step, (row.get("failure_class") or "").strip(), kinds)
