"""The interface of a dump form: a class that recognises one framework's rollout files and reads them piece by piece.

A piece is a group of rollouts, or a part of one. Most frameworks write a row for each rollout; the caller merges the
rows of one step and one prompt. `LineForm` reads JSON lines, `DocumentForm` a file as a whole.
"""

from __future__ import annotations

import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeGuard

from rlvitals.codec import parse_shallow
from rlvitals.errors import NotALog
from rlvitals.importers.base import Notes, open_foreign
from rlvitals.importers.jsonl import parse_lenient
from rlvitals.records import MAX_STEP, Group
from rlvitals.splits import HELD_OUT_WORDS
from rlvitals.store.reader import read_tail
from rlvitals.store.rollout_forms import group_of
from rlvitals.store.rollouts import read_lines

Split = Literal["train", "validation"]

HEAD_BYTES = 16 * 2**20
"""How much of a first line is read. NeMo-RL's lines hold thousands of tokens."""

WHOLE_BYTES = 2**30
"""The largest document that is read at once."""

_MOST_DIGITS = len(str(MAX_STEP))
_HELD_OUT = re.compile(rf"(?:^|[_.-])(?:{'|'.join(HELD_OUT_WORDS)})(?:$|[_.-])", re.IGNORECASE)


class RowContents(NamedTuple):
    """The step, group and split of a row."""

    step: int
    group: Mapping[str, Any]
    """A group in the form that `store.rollout_forms.group_of` accepts."""
    split: Split = "train"


NO_ROLLOUT = ("1 row holds no rollout and was skipped", "{} rows hold no rollout and were skipped")
"""The remark on rows without a rollout, for `Notes.count`."""

NO_ROLLOUTS = "no row of it is a rollout: a prompt and a completion, or messages"


class DumpedGroup(NamedTuple):
    """A group of a dump, or a part of one, and its position."""

    offset: int
    """A byte offset in the file, or a row number; `pick` accepts it."""
    end: int
    """Where a later read continues."""
    contents: RowContents


class DumpForm(ABC):
    """One framework's format of rollouts. It has no state."""

    name: ClassVar[str]
    writes: ClassVar[str]
    """A description, for lists."""
    places: ClassVar[tuple[str, ...]] = ()
    """Patterns of its files, relative to the folder that counts as one dump."""
    grows: ClassVar[bool] = False
    """Whether its files are only appended to. A later read then continues where the last one ended."""

    @abstractmethod
    def recognises(self, path: Path, row: Any) -> bool:
        """Whether a file is of this form, by its name and its first row. The row is None for files without JSON."""

    @abstractmethod
    def read(self, path: Path, start: int, notes: Notes, needle: bytes = b"") -> Iterator[DumpedGroup]:
        """The pieces of a file from `start` on. Raises NotALog if it cannot be read, OSError if it no longer exists.

        Pieces that cannot contain the `needle`, a lower-case text as JSON encodes it, may be skipped.
        """

    @abstractmethod
    def pick(self, path: Path, offsets: Collection[int] | None, notes: Notes) -> Iterator[DumpedGroup]:
        """The pieces at these offsets, or all, in full detail."""

    def split_of(self, path: Path) -> Split | None:
        """Whether a file holds training or validation rollouts; None if its rows decide."""
        return held_out([path.parent.name, path.stem])

    def is_left_out(self, path: Path) -> bool:
        """Whether a file that matches `places` holds no rollouts, or repeats those of another file."""
        return False


class LineForm(DumpForm):
    """JSON lines."""

    @abstractmethod
    def contents(self, row: Mapping[str, Any], path: Path, notes: Notes) -> RowContents | None:
        """The content of a row; None if it is not a rollout."""

    def read(self, path: Path, start: int, notes: Notes, needle: bytes = b"") -> Iterator[DumpedGroup]:
        end = start
        for offset, line in read_lines(path, start):
            end = offset + len(line) + 1
            if needle and needle not in line.lower():
                continue
            if piece := self._piece(path, offset, line, end, notes):
                yield piece
        tail = read_tail(path, end)
        if _is_whole(tail):
            if piece := self._piece(path, end, tail, end + len(tail), notes):
                yield piece
        elif tail.strip():
            notes.say("the last line is not whole and was left out")

    def pick(self, path: Path, offsets: Collection[int] | None, notes: Notes) -> Iterator[DumpedGroup]:
        if offsets is None:
            yield from self.read(path, 0, notes)
            return
        with open_foreign(path) as file:
            for offset in sorted(offsets):
                file.seek(offset)
                line = file.readline()
                if piece := self._piece(path, offset, line, offset + len(line), notes):
                    yield piece

    def _piece(self, path: Path, offset: int, line: bytes, end: int, notes: Notes) -> DumpedGroup | None:
        if not line.strip():
            return None
        try:
            row = parsed(line)
        except ValueError:
            notes.count("1 line is not JSON and was skipped", "{} lines are not JSON and were skipped")
            return None
        contents = self.contents(row, path, notes) if isinstance(row, Mapping) else self.contents_of_list(row, path)
        if contents is None:
            notes.count(*NO_ROLLOUT)
            return None
        return DumpedGroup(offset, end, contents)

    def contents_of_list(self, row: Any, path: Path) -> RowContents | None:
        """The content of a line that is not a JSON object."""
        return None


class DocumentForm(DumpForm):
    """A file that is read as a whole. Its pieces are numbered."""

    @abstractmethod
    def rows(self, path: Path, notes: Notes, *, whole: bool) -> Iterable[RowContents]:
        """Every row of a file. With `whole`, also the data that a table of rollouts does not need, such as tokens."""

    def read(self, path: Path, start: int, notes: Notes, needle: bytes = b"") -> Iterator[DumpedGroup]:
        return (
            DumpedGroup(place, place + 1, contents)
            for place, contents in enumerate(self.rows(path, notes, whole=False))
        )

    def pick(self, path: Path, offsets: Collection[int] | None, notes: Notes) -> Iterator[DumpedGroup]:
        numbered = enumerate(self.rows(path, notes, whole=True))
        return (
            DumpedGroup(place, place + 1, contents)
            for place, contents in numbered
            if offsets is None or place in offsets
        )


def _is_whole(tail: bytes) -> bool:
    """Whether the text after the last newline is a complete object, so that no later text can belong to it."""
    try:
        return isinstance(parsed(tail), dict | list)
    except ValueError:
        return False


def group_in(contents: RowContents, notes: Notes) -> Group | None:
    """The group of a row, or a part of one, with its step; None, with a remark, if it is not a group."""
    group = group_of(contents.group, notes.say)
    return None if group is None else replace(group, step=contents.step)


def with_part(known: Group | None, part: Group) -> Group:
    """A group with the rollouts of one more part."""
    return replace(known, rollouts=(*known.rollouts, *part.rollouts)) if known is not None else part


_OUTCOMES = {"true": "correct", "1": "correct", "false": "wrong", "0": "wrong"}


def outcome_of(right: Any) -> str:
    """The outcome of a rollout by a mark of right and wrong: a boolean, 1 or 0, or one of them as text; else empty.

    >>> outcome_of(True), outcome_of(0.0), outcome_of("1"), outcome_of(0.5), outcome_of(None)
    ('correct', 'wrong', 'correct', '', '')
    """
    return _OUTCOMES.get(str(right).lower().removesuffix(".0"), "")


def beside(path: Path, folder: str, *patterns: str) -> list[Path]:
    """The matching files of a sibling folder of the dump file's folder. Links that lead elsewhere are skipped."""
    root = path.parent.parent
    found = sorted({file for pattern in patterns for file in (root / folder).glob(pattern)})
    here = os.path.realpath(root)
    return [file for file in found if os.path.realpath(file) == os.path.join(here, folder, file.name)]


def first_row(path: Path) -> Any:
    """The first row of a file of JSON lines; None if it has none."""
    with open_foreign(path) as file:
        for _ in range(3):
            line = file.readline(HEAD_BYTES)
            if line.strip():
                try:
                    return parsed(line)
                except ValueError:
                    return None
    return None


def parsed(data: bytes) -> Any:
    """Parses JSON, also with NaN. Lone surrogates, which are not valid text, are replaced. Raises ValueError on
    anything else and on too deep nesting.
    """
    try:
        return parse_shallow(data)
    except ValueError:
        return _repaired(parse_lenient(data.decode("utf-8-sig", "replace")))


def object_in(data: bytes | str) -> Mapping[str, Any]:
    """The JSON object in bytes or a text; empty if they hold none."""
    try:
        found = parsed(data.encode("utf-8", "replace") if isinstance(data, str) else data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _repaired(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_repaired(key): _repaired(item) for key, item in value.items()}
    return [_repaired(item) for item in value] if isinstance(value, list) else value


def document(path: Path) -> Any:
    """The content of a JSON file. Raises NotALog if it is too large or not JSON."""
    with open_foreign(path) as file:
        data = file.read(WHOLE_BYTES + 1)
    if len(data) > WHOLE_BYTES:
        raise NotALog(path, f"it has more than {WHOLE_BYTES // 2**20} MiB")
    try:
        return parsed(data)
    except ValueError as error:
        raise NotALog(path, "it is not JSON") from error


def held_out(names: Iterable[str]) -> Split:
    """The split that the names of a file and its folders indicate.

    >>> held_out(["rollout_data", "10"]), held_out(["validation_data", "10"]), held_out(["rollout_data", "eval_10"])
    ('train', 'validation', 'validation')
    """
    return "validation" if any(_HELD_OUT.search(name) for name in names) else "train"


def is_usable(value: Any) -> TypeGuard[float]:
    """Whether a value is a number that can be used: NaN is, an infinity is not."""
    return isinstance(value, int | float) and not (isinstance(value, float) and math.isinf(value))


def step_in(name: str) -> int:
    """The first number in a file's name; 0 if there is none.

    >>> step_in("completions_00010.parquet"), step_in("results.jsonl")
    (10, 0)
    """
    digits = re.findall(r"\d+", name)
    return int(digits[0]) if digits and len(digits[0]) < _MOST_DIGITS else 0


def whole(value: Any, otherwise: int) -> int:
    """A row's step as an integer; `otherwise` if it is not a number."""
    if isinstance(value, str) and value.isdecimal() and len(value) < _MOST_DIGITS:
        return int(value)
    return int(value) if is_usable(value) and abs(value) <= MAX_STEP else otherwise


def inner(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object inside a row; empty if there is none."""
    value = row.get(key)
    return value if isinstance(value, Mapping) else {}


def numbers(values: Any) -> list[float] | None:
    """A list of floats, with NaN for missing numbers; None if the value is not a list."""
    if not isinstance(values, list):
        return None
    return [float(value) if is_usable(value) else math.nan for value in values]
