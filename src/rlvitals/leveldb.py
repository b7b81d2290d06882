"""Reads LevelDB's log format, in which W&B and SwanLab write the records of a run, also while the file grows."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

HEADER, BLOCK = 7, 32768
"""Bytes of the tracker's own header, and of a block. A chunk (checksum, length, kind, data) never crosses a block."""

CHUNK = struct.Struct("<IHB")
WHOLE, FIRST, LAST = 1, 2, 4
"""Kinds of chunks; a record is one whole chunk, or several from the first to the last."""

MAX_RECORD = 2**28


class LevelDbReader:
    """Reads the records of one file, each once."""

    def __init__(self) -> None:
        self.position = HEADER
        """The end of the last complete chunk that was read."""
        self._record = b""

    def read(self, file: BinaryIO) -> Iterator[bytes]:
        """The complete records that were added since the last call."""
        file.seek(self.position)
        while True:
            left = BLOCK - self.position % BLOCK
            if left < CHUNK.size:  # too small for a chunk: padding
                if len(file.read(left)) < left:
                    return
                self.position += left
            head = file.read(CHUNK.size)
            if len(head) < CHUNK.size:
                return
            _, length, kind = CHUNK.unpack(head)
            data = file.read(length)
            if len(data) < length or kind == 0 or len(self._record) > MAX_RECORD:
                return
            self.position += CHUNK.size + length
            self._record = data if kind in (WHOLE, FIRST) else self._record + data
            if kind in (WHOLE, LAST):
                record, self._record = self._record, b""
                yield record
