"""Lossless compression of finished logs.

`training_metrics.jsonl.archive` replaces `training_metrics.jsonl`. `open_log` returns the original bytes of the log
from whichever of the two exists, so readers need not distinguish them. `packing` compresses the blocks of lines.
"""

from __future__ import annotations

import io
import os
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from rlvitals.codec import encode, parse_shallow
from rlvitals.errors import RunUnreadable
from rlvitals.store.files import open_regular, replace_file, stamp, sync_folder, unreadable
from rlvitals.store.layout import RunDir, SideLog, Stream, archive_of

BLOCK_BYTES = 8 * 2**20
_MAGIC = b"RLVARCH1"
_SIZE = struct.Struct("<Q")


class _Block(NamedTuple):
    start: int
    end: int
    """Its byte range in the log."""
    offset: int
    size: int
    checksum: int


def open_log(log: Path) -> BinaryIO:
    """Open a log for reading, from the log or its archive. Raises FileNotFoundError if neither exists, and
    RunUnreadable if the file cannot be read.
    """
    place = log
    try:
        try:
            return open_regular(log)
        except FileNotFoundError:
            place = archive_of(log)
            return cast(BinaryIO, io.BufferedReader(ArchiveFile(place), 2**20))
    except FileNotFoundError:
        raise FileNotFoundError(2, "no such log", str(log)) from None
    except NotADirectoryError:
        raise
    except OSError as error:
        raise unreadable(place, error) from error


def log_state(log: Path) -> tuple[int, int, int]:
    """Inode, size and modification time of a log, or of the archive in its place; zeros if neither exists."""
    if (found := stamp(log)) is not None:
        return found
    packed = stamp(archive_of(log))
    if packed is None:
        return (0, 0, 0)
    try:
        with ArchiveFile(archive_of(log)) as archive:
            return (packed[0], archive.size, packed[2])
    except OSError:
        return (0, 0, 0)


def logs_of(run_dir: RunDir) -> list[Path]:
    """The logs of a run that can be packed: metrics, phases, system samples and rollouts, packed or not."""
    streams: tuple[Stream | SideLog, ...] = ("train", "eval", "phases", "system")
    logs = [run_dir.log(stream, rank) for stream in streams for rank in (0, *run_dir.rank_numbers(stream))]
    logs += [*run_dir.rollout_logs(), *run_dir.rollout_logs("eval")]
    return [log for log in logs if os.path.exists(log) or os.path.exists(archive_of(log))]


def compact_logs(run_dir: RunDir) -> tuple[int, int]:
    """Pack the logs of a run that is not being recorded and delete its index. Returns the bytes before and after."""
    before = after = 0
    for log in logs_of(run_dir):
        sizes = compact(log) if os.path.exists(log) else (log_state(log)[1], archive_of(log).stat().st_size)
        before, after = before + sizes[0], after + sizes[1]
    if os.path.isdir(run_dir.index):  # `rmtree` would block on a FIFO of that name
        shutil.rmtree(run_dir.index, ignore_errors=True)
    return before, after


def expand_logs(run_dir: RunDir) -> int:
    """Unpack every packed log of a run; returns their number."""
    packed = [log for log in logs_of(run_dir) if not os.path.exists(log)]
    for log in packed:
        expand(log)
    return len(packed)


def compact(log: Path) -> tuple[int, int]:
    """Replace a log by its archive; returns the bytes before and after. If the archive does not reproduce the log
    exactly, the log is kept and RunUnreadable is raised.
    """
    from rlvitals.store.packing import pack, unpack

    parts, blocks, offset, start = [_MAGIC], [], len(_MAGIC), 0
    with open_regular(log) as file:
        while data := file.read(BLOCK_BYTES):
            data += file.readline()
            packed = pack(data)
            if unpack(packed) != data:
                raise RunUnreadable(f"{log} cannot be packed without loss at byte {start}; it is not changed")
            blocks.append(_Block(start, start + len(data), offset, len(packed), zlib.crc32(packed)))
            parts.append(packed)
            offset += len(packed)
            start += len(data)
    footer = encode({"blocks": [[*block] for block in blocks]})
    replace_file(archive_of(log), [*parts, footer, _SIZE.pack(len(footer)), _MAGIC])
    _check(log)
    sync_folder(log.parent)
    log.unlink()
    return start, archive_of(log).stat().st_size


def expand(log: Path) -> int:
    """Replace an archive by its log; returns the size of the log in bytes."""
    with open_log(log) as archive:
        data = archive.read()
    replace_file(log, data)
    sync_folder(log.parent)
    archive_of(log).unlink(missing_ok=True)
    return len(data)


def _check(log: Path) -> None:
    """Compare the archive with the log byte by byte, before the log is deleted. Raises RunUnreadable if they differ."""
    with open_regular(log) as file, io.BufferedReader(ArchiveFile(archive_of(log)), 2**20) as archive:
        while block := file.read(2**20):
            if archive.read(len(block)) != block:
                raise RunUnreadable(f"{archive_of(log)} does not read back as {log}; the log is kept")


class ArchiveFile(io.RawIOBase):
    """Reads an archive as the original log: seekable, read-only."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file = open_regular(path)  # closed with this object
        self._position = 0
        self._current: tuple[int, bytes] = (-1, b"")
        try:
            self._blocks = self._read_footer()
        except (ValueError, KeyError, TypeError, OSError, struct.error) as error:
            self._file.close()
            raise self._damaged(str(error)) from error

    @property
    def size(self) -> int:
        return self._blocks[-1].end if self._blocks else 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        places = enumerate(self._blocks)
        found = next((number for number, block in places if block.start <= self._position < block.end), None)
        if found is None:
            return 0
        data = self._block(found)
        start = self._position - self._blocks[found].start
        piece = data[start : start + len(buffer)]
        buffer[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

    def _block(self, number: int) -> bytes:
        if self._current[0] != number:
            from rlvitals.store.packing import unpack  # imports numpy, which the write path must not need

            block = self._blocks[number]
            self._file.seek(block.offset)
            packed = self._file.read(block.size)
            if zlib.crc32(packed) != block.checksum:
                raise self._damaged(f"block {number} does not match its checksum")
            try:
                data = unpack(packed)
            except (
                ArithmeticError,
                LookupError,
                TypeError,
                ValueError,
                StopIteration,
                struct.error,
                zlib.error,
            ) as error:
                raise self._damaged(f"block {number} cannot be unpacked") from error
            if len(data) != block.end - block.start:
                raise self._damaged(f"block {number} is not as long as it should be")
            self._current = (number, data)
        return self._current[1]

    def _damaged(self, what: str) -> RunUnreadable:
        return RunUnreadable(
            f"{self._path} is damaged: {what}. Restore it from a backup; the other files are not affected."
        )

    def _read_footer(self) -> list[_Block]:
        end = self._file.seek(0, os.SEEK_END) - len(_MAGIC) - _SIZE.size
        self._file.seek(max(end, 0))
        trailer = self._file.read()
        if end < 0 or trailer[_SIZE.size :] != _MAGIC:
            raise ValueError("not an archive, or truncated")
        (size,) = _SIZE.unpack(trailer[: _SIZE.size])
        if size > end:
            raise ValueError("not an archive, or truncated")
        self._file.seek(end - size)
        blocks = [_Block(*block) for block in parse_shallow(self._file.read(size))["blocks"]]
        start, offset = 0, len(_MAGIC)
        for block in blocks:  # blocks must be contiguous in the log and in the archive
            if not all(type(part) is int and 0 <= part < 2**63 for part in block):
                raise ValueError("an invalid block")
            if (block.start, block.offset) != (start, offset) or block.end < start or offset + block.size > end - size:
                raise ValueError("the blocks are not contiguous")
            start, offset = block.end, offset + block.size
        return blocks
