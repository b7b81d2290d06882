"""Appends lines to one file so that none is lost while the process lives, and none that returned is lost when it dies.

Owns the descriptor, the bounded buffer for a disk that will not take lines, and the marks of what had to be dropped.
One `os.write` per line on an O_APPEND descriptor: when `append` returns, the operating system has the line, and a
SIGKILL cannot take it back. There is no thread here; `tend` is called now and then by whoever has one.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from rlvitals.codec import encode
from rlvitals.store.files import open_descriptor
from rlvitals.store.lines import BadLine, decode

BUFFER_BYTES = 64 * 2**20
"""How much is kept in memory while the disk refuses; the oldest lines are dropped beyond it."""

RETRY_SECONDS = 1.0
VERIFY_SECONDS = 1.0
COPY_BYTES = 2**20


class LogWriter:
    """One append-only file of lines. Safe from several threads; `append` never raises.

    `notify` gets a sentence when trouble starts and ends. `restore` is called when the directory has vanished and has
    just been made again, so that the owner can put its other files back.

    The public attributes are for `Run.log`, which writes and counts the common line itself, holding `lock`.
    """

    def __init__(
        self,
        path: Path,
        *,
        notify: Callable[[str], None],
        restore: Callable[[], None] | None = None,
        fsync_each: bool = False,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self.path = path
        self.rows_dropped = 0
        self._notify = notify
        self._restore = restore
        self._fsync_each = fsync_each
        self._buffer_bytes = buffer_bytes
        self.lock = threading.RLock()  # not a Lock: a signal handler may come in the middle of an append
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._gap_rows = 0
        self.rows_written = 0
        self.next_verify = time.time() + VERIFY_SECONDS
        self._next_retry = 0.0
        self._in_trouble = False
        self._fsync_failed = False
        self._is_torn = False
        self.is_plain = not fsync_each
        """Whether a line may be written as it is: nothing waits, nothing is to be marked or mended."""
        repair_tail(path, notify)
        self.fd = _open(path)

    @property
    def is_settled(self) -> bool:
        """Whether no line waits for the disk."""
        return not self._waiting

    def append(self, line: bytes) -> None:
        """Hand one line (with its newline) to the operating system, or keep it until the disk takes it again."""
        with self.lock:
            if self.is_plain:
                try:
                    written = os.write(self.fd, line)
                except OSError:
                    written = 0  # the long way meets it again and says so
                if written == len(line):
                    self.rows_written += 1
                    if time.time() >= self.next_verify:
                        self.verify()
                else:
                    self.complete(line, written)
                return
            if self._waiting:
                self._keep(line)
                self._retry()
                self._settle()
                return
            if self._gap_rows:
                line = _with_gap(line, self._gap_rows)
                self._gap_rows = 0
            self.complete(line, 0)

    def complete(self, line: bytes, written: int) -> None:
        """Write the rest of a line, so many bytes of which the system has; for a caller that holds `lock`."""
        try:
            self._write(line, written)
        except OSError as error:
            self._keep(line)
            self._report(error)
        else:
            if time.time() >= self.next_verify:
                self.verify()
        self._settle()

    def tend(self) -> None:
        """Try what is waiting again and look whether the file is still there. For a background thread, every few
        seconds.
        """
        with self.lock:
            self.verify()
            self._next_retry = 0.0
            self._retry()
            self._settle()

    def sync(self) -> None:
        """Ask the disk itself (fsync); errors are reported, not raised. The lock is not held while the disk works."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            if not self._fsync_failed:
                self._fsync_failed = True
                self._notify(f"the disk of {self.path} does not confirm what was written: {error.strerror or error}")

    def close(self) -> Path | None:
        """Write what is left and close. Lines the disk still refuses go to a rescue file, whose path is returned."""
        with self.lock:
            if self.fd < 0:
                return None
            self.tend()
            rescue = self._rescue() if self._waiting else None
            os.close(self.fd)
            self.fd = -1
            return rescue

    def _write(self, line: bytes, written: int = 0) -> None:
        """Write a line, so many bytes of which are written already; a part of it is taken back when the rest fails."""
        data = b"\n" + line if self._is_torn else line
        try:
            while written < len(data):
                written += os.write(self.fd, data[written:])
        except OSError:
            if written:
                self._cut_back(written)
            raise
        self._is_torn = False
        self.rows_written += 1
        if self._fsync_each:
            self.sync()

    def _cut_back(self, written: int) -> None:
        """Take a half-written line out again, so that every line of the file stays strict JSON."""
        try:
            os.ftruncate(self.fd, os.fstat(self.fd).st_size - written)
        except OSError:
            self._is_torn = True

    def _keep(self, line: bytes) -> None:
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        while self._waiting_bytes > self._buffer_bytes and len(self._waiting) > 1:
            self._waiting_bytes -= len(self._waiting.popleft())
            self._gap_rows += 1
            self.rows_dropped += 1

    def _retry(self) -> None:
        if not self._waiting or time.monotonic() < self._next_retry:
            return
        self._next_retry = time.monotonic() + RETRY_SECONDS
        if not self._is_there():  # what is written into a deleted file is gone; first it must be made again
            self._reopen()
            return
        try:
            while self._waiting:
                line = self._waiting[0]
                self._write(_with_gap(line, self._gap_rows) if self._gap_rows else line)
                self._gap_rows = 0
                self._waiting.popleft()
                self._waiting_bytes -= len(line)
        except OSError as error:
            self._report(error)
            return
        if self._in_trouble:
            self._in_trouble = False
            dropped = f"; {self.rows_dropped} rows were dropped and the gap is marked" if self.rows_dropped else ""
            self._notify(f"{self.path} can be written again, all waiting rows are in it{dropped}")

    def verify(self) -> None:
        """Make a file that was deleted again; for a caller that holds `lock`, every second or so.

        A deleted file takes writes, and gives them back, as long as its descriptor is open: nothing is lost until then.
        """
        self.next_verify = time.time() + VERIFY_SECONDS
        if not self._is_there():
            self._reopen()
            self._settle()

    def _settle(self) -> None:
        self.is_plain = not (self._waiting or self._is_torn or self._gap_rows or self._fsync_each)

    def _is_there(self) -> bool:
        try:
            return os.fstat(self.fd).st_nlink > 0
        except OSError:
            return False

    def _reopen(self) -> None:
        """The file was deleted. Make it again with all it held, unless even the directory above the run is gone (a lost
        mount): then wait.
        """
        try:
            if not self.path.parent.is_dir():
                run_directory = self.path.parent.parent
                if not run_directory.parent.is_dir():
                    raise FileNotFoundError(2, "the directory has vanished", str(run_directory))
                self.path.parent.mkdir(parents=True)
            fd = _open(self.path)
        except OSError as error:
            self._report(error)
            return
        lost = 0
        try:
            _copy(self.fd, fd)
        except _Unreadable:
            lost, self.rows_written = self.rows_written, 0
        except OSError as error:  # the new disk is full: the old descriptor goes on taking rows
            os.close(fd)
            self._report(error)
            return
        os.close(self.fd)
        self.fd = fd
        self._in_trouble = True
        self._gap_rows += lost
        self.rows_dropped += lost
        kept = f"{lost} earlier rows are gone" if lost else "no row is lost"
        self._notify(f"{self.path} was deleted while the run was being recorded; it is made again ({kept})")
        if self._restore is not None:
            self._restore()
        self._next_retry = 0.0
        self._retry()

    def _report(self, error: OSError) -> None:
        if not self._in_trouble:
            self._in_trouble = True
            self._notify(
                f"cannot write {self.path}: {error.strerror or error}. Rows are kept in memory (up to "
                f"{self._buffer_bytes // 2**20} MiB) and written as soon as it can be; free the disk or restore "
                f"the directory"
            )

    def _rescue(self) -> Path | None:
        if self._gap_rows:
            self._waiting[0] = _with_gap(self._waiting[0], self._gap_rows)
        try:
            handle, name = tempfile.mkstemp(prefix="rlvitals-rescue-", suffix=".jsonl")
            with os.fdopen(handle, "wb") as file:
                file.write(b"".join(self._waiting))
        except OSError as error:
            self._notify(
                f"{len(self._waiting)} rows could not be written anywhere and are lost: {error.strerror or error}"
            )
            return None
        self._notify(
            f"{len(self._waiting)} rows could not be written to {self.path}; they are in {name}. "
            f"Bring them back with: cat {name} >> {self.path}"
        )
        return Path(name)


def repair_tail(path: Path, notify: Callable[[str], None]) -> None:
    """Make a log end in a whole line before it is appended to.

    A last line without newline was never acknowledged: it is completed if it is a row, and cut off otherwise.
    """
    try:
        with os.fdopen(open_descriptor(path, os.O_RDWR), "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            tail = _last_piece(file, size)
            if not tail:
                return
            try:
                decode(tail)
            except BadLine:
                file.truncate(size - len(tail))
                notify(f"{path}: the last {len(tail)} bytes were half a row, left by a crash; they are cut off")
            else:
                file.write(b"\n")
    except FileNotFoundError:
        return


def _last_piece(file: BinaryIO, size: int) -> bytes:
    """The bytes after the last newline."""
    piece = b""
    position = size
    while position > 0:
        start = max(0, position - 65536)
        file.seek(start)
        piece = file.read(position - start) + piece
        newline = piece.rfind(b"\n")
        if newline >= 0:
            file.seek(size)
            return piece[newline + 1 :]
        position = start
    file.seek(size)
    return piece


class _Unreadable(Exception):
    """A deleted file does not give its bytes back: a network disk."""


def _copy(old: int, new: int) -> None:
    """Append all of one file to another, or nothing of it. Raises _Unreadable, and OSError where the new one fails."""
    begun, position = os.fstat(new).st_size, 0
    try:
        while piece := _read(old, position):
            position += len(piece)
            while piece:
                piece = piece[os.write(new, piece) :]
    except (_Unreadable, OSError):
        os.ftruncate(new, begun)
        raise


def _read(file: int, position: int) -> bytes:
    try:
        os.lseek(file, position, os.SEEK_SET)
        return os.read(file, COPY_BYTES)
    except OSError as error:
        raise _Unreadable from error


def _open(path: Path) -> int:
    return open_descriptor(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)


def _with_gap(line: bytes, rows: int) -> bytes:
    return line[:-2] + b',"_gap":' + encode({"rows": rows}).rstrip() + b"}\n"
