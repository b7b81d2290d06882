"""What kind of log a file or folder is, by its content."""

from __future__ import annotations

import codecs
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rlvitals.store.files import open_regular
from rlvitals.store.importers.base import NotALog
from rlvitals.store.importers.cells import number_in
from rlvitals.store.importers.jsonl import parse_lenient
from rlvitals.store.importers.table import delimiter_of, split
from rlvitals.store.layout import RunDir

HEAD = 1 << 16
JUDGED_LINES = 50
_VERL = re.compile(r"(?:^|[\s\])])step:\d+ - \S+:")


def open_foreign(path: Path) -> BinaryIO:
    """A log's bytes. Raises FileNotFoundError, and NotALog for what is there and cannot be read: a FIFO is none."""
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotALog(path, f"it cannot be read ({error.strerror or error})") from error


def text_of(path: Path) -> str:
    """The whole of a text file, in whatever way it is encoded."""
    with open_foreign(path) as file, io.TextIOWrapper(file, encoding_of(path), errors="replace") as text:
        return text.read()


def lines_of(path: Path) -> Iterator[str]:
    """A text file's lines, one in memory at a time. A carriage return ends one too: progress bars go on for hours."""
    with open_foreign(path) as file, io.TextIOWrapper(file, encoding_of(path), errors="replace", newline=None) as lines:
        yield from lines


def encoding_of(path: Path) -> str:
    """UTF-8, or what the mark at the beginning says (a redirect in PowerShell writes UTF-16)."""
    with open_foreign(path) as file:
        begin = file.read(4)
    return "utf-16" if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def find_log(path: Path) -> Path:
    """The log a folder holds: itself for TensorBoard files, otherwise the newest file of one of the known names."""
    if not os.path.exists(path):
        raise NotALog(path, "there is nothing there")
    if not os.path.isdir(path):
        return path
    if RunDir(path).holds_run:
        return RunDir(path).train_log
    for pattern in ("*.wandb", "trainer_state.json", "checkpoint-*/trainer_state.json"):
        found = sorted(path.glob(pattern), key=_number)
        if found:
            return found[-1]
    if any(path.rglob("*tfevents*")):
        return path
    output = path / "files" / "output.log"
    if os.path.exists(output):
        return output
    known = [*path.glob("*.jsonl"), *path.glob("*metrics*.csv"), *path.glob("progress.csv"), *path.glob("output.log")]
    if len(known) == 1:
        return known[0]
    runs = sorted([*path.glob("*run-*/*.wandb"), *path.glob("wandb/*run-*/*.wandb")])
    if len(runs) == 1:
        return runs[0]
    shown = ", ".join(str(file.relative_to(path)) for file in (known or runs)[:4])
    why = f"the folder holds several, name one of them: {shown}" if shown else "the folder holds none that is known"
    raise NotALog(path, why)


def sniff(path: str | Path) -> str:
    """The format of a log: "trainer_state", "jsonl", "json", "csv", "tensorboard", "wandb", "verl" or "console"."""
    path = find_log(Path(path))
    if os.path.isdir(path):
        return "tensorboard"
    try:
        with open_foreign(path) as file:
            head = file.read(HEAD)
    except OSError as error:
        raise NotALog(path, f"it cannot be read ({error.strerror or error})") from error
    if head.startswith(b":W&B"):
        return "wandb"
    if b"brain.Event:" in head[:64]:
        return "tensorboard"
    encoding = encoding_of(path)
    if encoding != "utf-16" and b"\x00" in head[:4096]:
        raise NotALog(path, "it is a binary file of another kind")
    text = head.decode(encoding, "replace").lstrip()
    if not text:
        raise NotALog(path, "it is empty")
    return _text_format(path, text)


def is_notebook_log(path: Path) -> bool:
    """Whether console output is wrapped in a notebook service's JSON."""
    begin = next(lines_of(path), "")[:200]
    return begin.startswith("[{") and '"stream_name"' in begin


def _text_format(path: Path, text: str) -> str:
    first = text.partition("\n")[0].strip()
    if text.startswith("[") and '"stream_name"' in first:
        return "console"
    if _are_json_lines(text):
        whole = parse_lenient(first) if "log_history" in first else {}
        return "trainer_state" if "log_history" in whole else "jsonl"
    if re.match(r"\{|\[\s*[\[{\]]", text):
        document = _document(path)
        if document is not None:
            return "trainer_state" if isinstance(document, dict) and "log_history" in document else "json"
    lines = [line for line in text.splitlines() if line.strip()]
    if _is_table(lines):
        return "csv"
    return "verl" if any(_VERL.search(line) for line in lines_of(path)) else "console"


def _is_table(lines: list[str]) -> bool:
    """Whether a header is followed by a line of as many cells with a number among them. Quoted cells may hold lines."""
    delimiter = delimiter_of(lines[0])
    if delimiter is None:
        return False
    rows = [split(line, delimiter) for line in lines[1:JUDGED_LINES] if line.count('"') % 2 == 0]
    width = len(split(lines[0], delimiter))
    return any(len(cells) == width and any(number_in(cell) is not None for cell in cells) for cells in rows[:10])


def _are_json_lines(text: str) -> bool:
    """Whether most of the first lines are JSON objects; the last one may be cut, by us or by a kill."""
    lines = [line for line in text.split("\n") if line.strip()]
    lines = lines[:-1][:JUDGED_LINES] if len(lines) > 1 else lines
    objects = 0
    for line in lines:
        if line.lstrip().startswith("{"):
            try:
                objects += isinstance(parse_lenient(line.strip().rstrip(",")), dict)
            except ValueError:
                continue
    return objects * 2 > len(lines)


def _document(path: Path) -> Any:
    """The whole file as JSON; None where it is none."""
    try:
        return parse_lenient(text_of(path))
    except ValueError:
        return None


def _number(file: Path) -> int:
    match = re.search(r"(\d+)$", file.parent.name)
    return int(match[1]) if match else -1
