"""Reads the records in trackers' files: protobuf's wire format, and the LevelDB log of W&B and SwanLab.

Only requested fields are decoded, by field number. Protobuf keeps field numbers stable, so a tracker's files can be
read without its package.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from rlvitals.importers.base import open_foreign

WireValue = int | bytes
"""An int for a varint; bytes for length-delimited and fixed 32- and 64-bit values."""

WireMessage = dict[int, list[WireValue]]
"""The fields of a message by number, each with all its values in order."""

HEADER, BLOCK, CHUNK = 7, 32768, struct.Struct("<IHB")
WHOLE, FIRST, LAST = 1, 2, 4
MAX_RECORD = 2**28

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")


def message(data: bytes) -> WireMessage:
    r"""The fields of one message. Raises ValueError if the bytes are not a message.

    >>> message(b"\x08\x96\x01\x12\x02hi")
    {1: [150], 2: [b'hi']}
    """
    found: WireMessage = {}
    position, end = 0, len(data)
    while position < end:
        key = data[position]  # most keys and lengths are one byte: reading long logs spends its time in this loop
        position += 1
        if key >= 0x80:
            key, position = _varint(data, position - 1)
        kind = key & 7
        value: WireValue
        if kind == _VARINT:
            value, position = _varint(data, position)
        else:
            if kind == _LENGTH:
                size, position = _varint(data, position)
            elif kind in (_FIXED64, _FIXED32):
                size = 8 if kind == _FIXED64 else 4
            else:
                raise ValueError(f"no wire type {kind}")
            start, position = position, position + size
            if position > end:
                raise ValueError("a field is cut off")
            value = data[start:position]
        values = found.get(key >> 3)
        if values is None:
            found[key >> 3] = [value]
        else:
            values.append(value)
    return found


def _varint(data: bytes, position: int) -> tuple[int, int]:
    if position < len(data) and data[position] < 0x80:
        return data[position], position + 1
    number = shift = 0
    while shift < 70:
        if position >= len(data):
            raise ValueError("a number is cut off")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    raise ValueError("a number has no end")


def inner(fields: WireMessage, number: int) -> list[WireMessage]:
    """The messages of a field. Raises ValueError if it holds something else."""
    return [message(raw_of(value)) for value in fields.get(number, ())]


def text_at(fields: WireMessage, number: int) -> str:
    """The last text of a field; empty if there is none."""
    values = fields.get(number)
    return raw_of(values[-1]).decode("utf-8", "replace") if values else ""


def whole_at(fields: WireMessage, number: int) -> int:
    """The last signed number of a field; 0, protobuf's default, if there is none."""
    values = fields.get(number)
    value = values[-1] if values else 0
    if isinstance(value, bytes):
        raise ValueError("a number was expected")
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def double_of(value: WireValue) -> float:
    """The float in 8 or 4 bytes."""
    raw = raw_of(value)
    if len(raw) not in (_DOUBLE.size, _FLOAT.size):
        raise ValueError("a float was expected")
    found: float = (_DOUBLE if len(raw) == _DOUBLE.size else _FLOAT).unpack(raw)[0]
    return found


def doubles_at(fields: WireMessage, number: int) -> list[float]:
    """The doubles of a field, packed into one value or stored as one value each."""
    raw = b"".join(raw_of(value) for value in fields.get(number, ()))
    if len(raw) % _DOUBLE.size:
        raise ValueError("doubles were expected")
    return [found for (found,) in _DOUBLE.iter_unpack(raw)]


def raw_of(value: WireValue) -> bytes:
    """The bytes of a field. Raises ValueError if it is a number."""
    if isinstance(value, int):
        raise ValueError("bytes were expected")
    return value


def time_at(fields: WireMessage, number: int) -> float:
    """The last google.protobuf.Timestamp of a field, as Unix seconds; 0 if there is none."""
    values = fields.get(number)
    if not values:
        return 0.0
    stamp = message(raw_of(values[-1]))
    return whole_at(stamp, 1) + whole_at(stamp, 2) / 1e9


def leveldb_records(path: Path) -> Iterator[bytes]:
    """Every complete record of a LevelDB log with seven bytes of header. An incomplete last record is ignored."""
    record = b""
    with open_foreign(path) as file:
        position = len(file.read(HEADER))
        while True:
            left = BLOCK - position % BLOCK
            if left < CHUNK.size:
                file.read(left)  # too small for a chunk: padding
                position += left
            head = file.read(CHUNK.size)
            if len(head) < CHUNK.size:
                return
            _, length, kind = CHUNK.unpack(head)
            data = file.read(length)
            position += CHUNK.size + length
            if len(data) < length or kind == 0 or len(record) > MAX_RECORD:
                return
            record = data if kind in (WHOLE, FIRST) else record + data
            if kind in (WHOLE, LAST):
                yield record
                record = b""
