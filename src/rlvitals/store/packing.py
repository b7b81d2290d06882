r"""Packs lines without loss: numbers as columns, everything else as templates.

Each line is split into a template (the line without its numbers) and its numbers. The numbers are stored column by
column with their bytes sorted by position; without that, random doubles hardly compress. A line whose numbers would not
be restored exactly is stored unchanged.

>>> lines = b'{"step":1,"loss":0.5}\n{"step":2,"loss":5e-7}\nnot JSON'
>>> unpack(pack(lines)) == lines
True
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlvitals.codec import encode, parse_json

_SIZE = struct.Struct("<Q")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)')
_THOUSANDTHS = re.compile(rb"(0|[1-9]\d{0,14})\.(\d{3})")
_FLOAT, _INT, _FIXED = b"\x01", b"\x02", b"\x03"
"""Placeholders for numbers in a template. Fixed numbers have three decimals, like timestamps, and are stored as whole
thousandths. JSON cannot contain control characters; a line with one is stored unchanged."""


def pack(data: bytes) -> bytes:
    """Pack some whole lines."""
    templates: dict[tuple[bytes, bool], int] = {}
    order: list[int] = []
    floats: list[list[list[float]]] = []
    ints: list[list[list[int]]] = []
    for line in data.split(b"\n"):
        template, own_floats, own_ints = _take_apart(line)
        key = (template, bool(own_floats or own_ints))
        number = templates.setdefault(key, len(templates))
        if number == len(floats):
            floats.append([])
            ints.append([])
        order.append(number)
        floats[number].append(own_floats)
        ints[number].append(own_ints)
    table = encode({"templates": [[template.decode("latin-1"), filled] for template, filled in templates]})
    sections = [zlib.compress(table, 9), zlib.compress(np.array(order, dtype="<u4").tobytes(), 9)]
    for own, whole in zip(floats, ints, strict=True):
        sections.append(_shuffled(np.array(own, dtype="<f8"), lambda column: column))
        sections.append(_shuffled(np.array(whole, dtype="<i8"), lambda column: np.diff(column, axis=0, prepend=0)))
    return b"".join(_SIZE.pack(len(section)) + section for section in sections)


def unpack(packed: bytes) -> bytes:
    """Restore the lines byte for byte."""
    sections = _sections(packed)
    templates = [
        (text.encode("latin-1"), filled) for text, filled in parse_json(zlib.decompress(sections[0]))["templates"]
    ]
    order = np.frombuffer(zlib.decompress(sections[1]), dtype="<u4")
    counts = np.bincount(order, minlength=len(templates))
    lines: list[list[bytes]] = []
    for number, (template, filled) in enumerate(templates):
        if not filled:
            lines.append([template] * int(counts[number]))
            continue
        rows = int(counts[number])
        floats = _unshuffled(sections[2 + 2 * number], rows, "<f8", lambda column: column).tolist()
        ints = _unshuffled(sections[3 + 2 * number], rows, "<i8", lambda column: np.cumsum(column, axis=0)).tolist()
        lines.append([_put_together(template, own, whole) for own, whole in zip(floats, ints, strict=True)])
    cursors = [iter(own) for own in lines]
    return b"\n".join(next(cursors[number]) for number in order.tolist())


def _take_apart(line: bytes) -> tuple[bytes, list[float], list[int]]:
    """A line as template and numbers; as a template alone if it would not be restored exactly."""
    if _FLOAT in line or _INT in line or _FIXED in line:
        return line, [], []
    floats: list[float] = []
    ints: list[int] = []

    def take(match: re.Match[bytes]) -> bytes:
        token = match[1]
        if token is None:
            return match[0]
        if token.isdigit() or token[1:].isdigit():
            ints.append(int(token))
            return _INT
        if fixed := _THOUSANDTHS.fullmatch(token):
            ints.append(int(fixed[1] + fixed[2]))
            return _FIXED
        floats.append(float(token))
        return _FLOAT

    template = _TOKEN.sub(take, line)
    if any(not -(2**62) < number < 2**62 for number in ints) or any(number - number != 0 for number in floats):
        return line, [], []
    return (template, floats, ints) if _put_together(template, floats, ints) == line else (line, [], [])


def _put_together(template: bytes, floats: list[float], ints: list[int]) -> bytes:
    words = encode({"f": floats, "i": ints})
    own, _, whole = words[6:].partition(b'],"i":[')
    float_words = iter(own.split(b","))
    int_words = iter(whole.rstrip().rstrip(b"}").rstrip(b"]").split(b","))
    fill = {
        _FLOAT: lambda: next(float_words),
        _INT: lambda: next(int_words),
        _FIXED: lambda: _with_point(next(int_words)),
    }
    return b"".join(fill[piece]() if piece in fill else piece for piece in re.split(rb"([\x01-\x03])", template))


def _with_point(digits: bytes) -> bytes:
    digits = digits.zfill(4)
    return digits[:-3] + b"." + digits[-3:]


def _shuffled(table: NDArray[Any], prepare: Callable[[NDArray[Any]], NDArray[Any]]) -> bytes:
    """Compress rows x columns of 8-byte numbers, column by column, each with its bytes sorted by position."""
    if table.size == 0:
        return b""
    columns = np.ascontiguousarray(prepare(table).T)
    placed = columns.view(np.uint8).reshape(columns.shape[0], columns.shape[1], 8).transpose(0, 2, 1)
    return zlib.compress(np.ascontiguousarray(placed).tobytes(), 6)


def _unshuffled(packed: bytes, rows: int, kind: str, restore: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
    if not packed:
        return np.empty((rows, 0), dtype=kind)
    placed = np.frombuffer(zlib.decompress(packed), dtype=np.uint8).reshape(-1, 8, rows).transpose(0, 2, 1)
    return restore(np.ascontiguousarray(placed).view(kind).reshape(-1, rows).T)


def _sections(packed: bytes) -> list[bytes]:
    found, position = [], 0
    while position < len(packed):
        (size,) = _SIZE.unpack_from(packed, position)
        position += _SIZE.size
        found.append(packed[position : position + size])
        position += size
    return found
