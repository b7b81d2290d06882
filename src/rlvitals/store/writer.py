"""Appends lines to one log file and keeps them in memory while the disk refuses or delays writes.

Owns the file descriptor, the bounded buffer for lines that could not be written, and the gap marks for dropped lines.
Each line is one `os.write` on an O_APPEND descriptor. Once that write returns, the operating system holds the line and
a SIGKILL cannot lose it. While writes succeed quickly, this module runs no thread; a background thread of the caller
calls `tend` every few seconds. If a write takes longer than SLOW_SECONDS, the writer starts a thread. New lines then
wait in memory until that thread has written them, and the caller does not wait. The thread runs until the disk has been
fast for CALM_SECONDS, so the caller waits for at most one slow write in that time.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from rlvitals.codec import encode
from rlvitals.store.files import lines_from_end, open_descriptor, sync_folder, write_all
from rlvitals.store.home import Home
from rlvitals.store.lines import BadLine, decode

BUFFER_BYTES = 64 * 2**20
"""Size limit of the lines kept in memory while the disk refuses writes. Beyond it the oldest lines are dropped."""

SLOW_SECONDS = 1.0
"""If a write or a check of the file takes longer, later lines wait in memory for the writer thread."""

CALM_SECONDS = 30.0
"""How long a slow disk must be fast again before callers write to it directly."""

CATCH_UP_SECONDS = 60.0
"""How long the end of a run waits for a slow disk. Lines not written by then go to a rescue file."""

DRAIN_BYTES = 2**20
"""Approximate size of one write to a slow disk."""

RETRY_SECONDS = 1.0
VERIFY_SECONDS = 1.0
COPY_BYTES = 2**20


class LogWriter:
    """One append-only file of lines. Safe from several threads; `append` never raises.

    `place` returns the file's path, which changes when the run's directory is renamed; `home` detects the rename.
    `notify` receives a message when a problem starts and when it ends.

    The public attributes are for `Run.log`, which holds `lock` and writes and counts ordinary lines itself.
    """

    def __init__(
        self,
        place: Callable[[], Path],
        *,
        home: Home,
        notify: Callable[[str], None],
        fsync_each: bool = False,
    ) -> None:
        self._place, self._home = place, home
        self.rows_dropped = 0
        self._notify = notify
        self._fsync_each = fsync_each
        self.lock = threading.RLock()  # reentrant: a signal handler may log during an append
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._gap_rows = 0
        self.rows_written = 0
        self.next_verify = time.time() + VERIFY_SECONDS
        self._clock_lead = _clock_lead()
        self._next_retry = 0.0
        self._in_trouble = False
        self._fsync_failed = False
        self._is_torn = False
        self._is_named = False
        self._is_lost = False
        self._is_slow = False
        self._under_way: list[bytes] = []
        """Lines the thread is writing now."""
        self._has_work = threading.Event()
        self._has_given_up = False
        self.is_plain = not fsync_each
        """Whether a line can be written directly: no line waits, and no gap or torn line must be handled first."""
        home.make(self.path.parent)
        repair_tail(self.path, notify)
        self.fd = _open(self.path)
        self._opened_as = self.path

    @property
    def path(self) -> Path:
        return self._place()

    @property
    def is_settled(self) -> bool:
        """Whether no line waits for the disk."""
        return not self._waiting and not self._under_way

    def append(self, line: bytes) -> None:
        """Write one line (with its newline), or keep it in memory until the disk accepts writes again."""
        with self.lock:
            if self._is_slow:
                self._keep(line)
                self._has_work.set()
                return
            if self.is_plain:
                began = time.time()
                try:
                    written = os.write(self.fd, line)
                except OSError:
                    written = 0  # `complete` tries again and reports the error
                if written == len(line):
                    self.rows_written += 1
                    self.look_after(began)
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
        """Write the rest of a line of which `written` bytes are already written. The caller holds `lock`."""
        began = time.time()
        try:
            self._write(line, written)
        except OSError as error:
            self._keep(line)
            self._report(error)
            self._go_aside(self._seconds_since(began))
        else:
            self.look_after(began)
        self._settle()

    def look_after(self, began: float) -> None:
        """Check whether the write that started at `began` took too long. When `next_verify` is due, also check whether
        the file still exists. The caller holds `lock`.
        """
        now = time.time()
        if now - began > SLOW_SECONDS:
            self._go_aside(self._seconds_since(began))
        elif now >= self.next_verify:
            looked = time.monotonic()
            self.verify()
            self._go_aside(time.monotonic() - looked)

    def _seconds_since(self, began: float) -> float:
        """The seconds since a wall-clock time, corrected for changes of the clock since then. Rows need the wall clock
        anyway, so measuring with it saves reading a second clock for every row.
        """
        lead = _clock_lead()
        jump, self._clock_lead = lead - self._clock_lead, lead
        return time.time() - began - jump

    def tend(self) -> None:
        """Retry the waiting lines and check whether the file still exists. A background thread calls this every few
        seconds.
        """
        if self._is_slow or (self.fd >= 0 and self._is_there() and self.is_plain):
            return  # checked without `lock`: a slow disk must not block `append`
        with self.lock:
            if self._is_slow:
                return
            self.verify()
            self._next_retry = 0.0
            self._retry()
            self._settle()

    def sync(self) -> None:
        """Call fsync on the file and, the first time, on its directory. Errors are reported, not raised. This method
        does not take `lock`.
        """
        try:
            os.fsync(self.fd)
            if not self._is_named:
                sync_folder(self.path.parent)
                self._is_named = True
        except OSError as error:
            if not self._fsync_failed:
                self._fsync_failed = True
                self._notify(f"cannot confirm that {self.path} is on disk: {error.strerror or error}")

    def catch_up(self, seconds: float | None = None) -> bool:
        """Wait until a slow disk has every line. Returns False if lines still wait after `seconds` (CATCH_UP_SECONDS by
        default). After one time-out, later calls do not wait.
        """
        until = time.monotonic() + (CATCH_UP_SECONDS if seconds is None else seconds)
        while self._is_slow and not self.is_settled:
            self._has_work.set()
            if time.monotonic() >= until or self._has_given_up:
                self._has_given_up = True
                with self.lock:
                    if not self._under_way:  # a signal handler runs while `lock` is held, and the thread waits for it
                        self._next_retry = 0.0
                        self._retry()
                return self.is_settled
            time.sleep(0.01)
        return True

    def close(self) -> Path | None:
        """Write the waiting lines and close. Returns the path of the rescue file if the disk still refuses lines."""
        has_caught_up = self.catch_up()
        with self.lock:
            if self.fd < 0:
                return None
            if has_caught_up:
                self._is_slow = False
                self.tend()
            else:  # the thread may be blocked in a write that cannot be cancelled: its lines are rescued too
                self._waiting.extendleft(reversed(self._under_way))
            rescue = self._rescue() if self._waiting or not _has_name(self.fd) else None
            if has_caught_up:
                os.close(self.fd)  # not while a write is blocked: another file could get the same number
            self.fd = -1
            self._has_work.set()
            return rescue

    def _go_aside(self, seconds: float) -> None:
        """Start the writer thread if an operation took `seconds` and that is more than SLOW_SECONDS. With `fsync_each`
        the caller keeps waiting for the disk instead. The caller holds `lock`.
        """
        if seconds <= SLOW_SECONDS or self._is_slow or self._fsync_each:
            return
        try:
            threading.Thread(target=self._drain, name="rlvitals-writer", daemon=True).start()
        except RuntimeError:  # the interpreter is ending
            return
        self._is_slow = True
        self._settle()
        self._notify(
            f"{self.path}: a write took {seconds:.1f} s (the disk is slow or the machine is overloaded). Rows now wait "
            f"in memory (up to {BUFFER_BYTES // 2**20} MiB), and a thread writes them; training does not wait"
        )

    def _drain(self) -> None:
        """Write the waiting lines until the disk has been fast for CALM_SECONDS. Meanwhile no other thread writes."""
        calm_since = time.monotonic()
        while True:
            self._has_work.wait(RETRY_SECONDS)
            self._has_work.clear()
            began = time.monotonic()
            is_there = self._is_there()
            with self.lock:
                if self.fd < 0:
                    return
                if not is_there and not self._find():
                    continue
                fd = self.fd
                self._take_under_way()
            written, error = self._write_lines(fd)
            ended = time.monotonic()
            with self.lock:
                self.rows_written += written
                if self.fd < 0:
                    return
                rest = self._under_way[written:]
                self._waiting.extendleft(reversed(rest))
                self._waiting_bytes += sum(map(len, rest))
                self._under_way = []
                if error is not None:
                    self._report(error)
                elif self._waiting:
                    self._has_work.set()
                if ended - began > SLOW_SECONDS or error is not None:
                    calm_since = ended
                elif ended - calm_since >= CALM_SECONDS and not self._waiting:
                    self._is_slow = self._in_trouble = False
                    self._settle()
                    self._notify(f"{self.path}: the disk responds again, and all waiting rows are in the log")
                    return

    def _take_under_way(self) -> None:
        """Move the next waiting lines to `_under_way`. The caller holds `lock`."""
        size = 0
        while self._waiting and size < DRAIN_BYTES:
            line = self._waiting.popleft()
            self._waiting_bytes -= len(line)
            if self._gap_rows:
                line = _with_gap(line, self._gap_rows)
                self._gap_rows = 0
            self._under_way.append(line)
            size += len(line)

    def _write_lines(self, fd: int) -> tuple[int, OSError | None]:
        """Write `_under_way` without holding `lock`. Returns how many lines are complete in the file, and the error."""
        lines = self._under_way
        data, written = (b"\n" if self._is_torn and lines else b"") + b"".join(lines), 0
        start = len(data) - sum(map(len, lines))
        error = None
        try:
            while written < len(data):
                written += os.write(fd, data[written:])
        except OSError as met:
            error = met
        self._is_torn = self._is_torn and not written
        whole, end = 0, start
        while whole < len(lines) and end + len(lines[whole]) <= written:
            end += len(lines[whole])
            whole += 1
        if error is not None and written > end:
            self._cut_back(written - end)
        return whole, error

    def _write(self, line: bytes, written: int = 0) -> None:
        """Write the rest of a line of which `written` bytes are written. If that fails, remove the partial line."""
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
        """Remove a partial line, so that every line of the file stays strict JSON."""
        try:
            os.ftruncate(self.fd, os.fstat(self.fd).st_size - written)
        except OSError:
            self._is_torn = True

    def _keep(self, line: bytes) -> None:
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        while self._waiting_bytes > BUFFER_BYTES and len(self._waiting) > 1:
            self._waiting_bytes -= len(self._waiting.popleft())
            self._gap_rows += 1
            self.rows_dropped += 1

    def _retry(self) -> None:
        if not self._waiting or time.monotonic() < self._next_retry:
            return
        self._next_retry = time.monotonic() + RETRY_SECONDS
        if not self._is_there() and not self._find():  # rows in a deleted file are lost when it is closed
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
            self._notify(f"{self.path} can be written again, and all waiting rows are in it{dropped}")

    def verify(self) -> None:
        """Check whether the file is still at its path; otherwise follow the move or recreate the file. Called about
        every VERIFY_SECONDS by a caller that holds `lock`.

        A deleted file can be written and read while its descriptor is open, so nothing is lost until it is closed.
        """
        self.next_verify = time.time() + VERIFY_SECONDS
        self._clock_lead = _clock_lead()
        if not self._is_slow and not self._is_there():
            self._find()
            self._settle()

    def _settle(self) -> None:
        waits = self._waiting or self._under_way or self._is_slow
        self.is_plain = not (waits or self._is_torn or self._gap_rows or self._fsync_each)

    def _is_there(self) -> bool:
        """Whether the path still refers to the open file. Another file may have that path by now."""
        try:
            held = os.fstat(self.fd)
            if os.name == "nt":  # Windows does not delete or rename open files
                return held.st_nlink > 0
            return os.path.samestat(os.stat(self.path), held)
        except OSError:
            return False

    def _find(self) -> bool:
        """Find the run's directory and recreate the file if it is not there. Returns False if that fails."""
        try:
            found = self._home.find()
            if found == "here" and not self._is_there():
                return self._reopen()
        except OSError as error:
            self._report(error)
            return False
        if found == "lost" and not self._is_lost:
            self._notify(
                f"{self.path} was moved, and this system cannot find its new place. "
                f"Rows are still written to the moved file; other files of the run wait. Move the directory back"
            )
        self._is_lost = found == "lost"
        self._opened_as = self.path
        return True

    def _reopen(self) -> bool:
        """Recreate the file with its previous content. Raises OSError if that fails; the old descriptor then stays
        open and a later check tries again.
        """
        self._home.reclaim()
        path = self.path
        self._home.make(path.parent)
        fd, lost = _open(path), 0
        was_there = os.fstat(fd).st_size > 0
        try:
            _copy(self.fd, fd)
        except _Unreadable:
            lost, self.rows_written = self.rows_written, 0
        except OSError:  # for example a full disk: the old descriptor still works
            os.close(fd)
            raise
        old, self.fd, self._is_named = self.fd, fd, False
        self.sync()  # rows that were synced before must stay synced
        os.close(old)
        self._in_trouble = bool(self._waiting)
        self._gap_rows += lost
        self.rows_dropped += lost
        kept = f"{lost} earlier rows are gone" if lost else "no row is lost"
        done = "it is created again" if self._opened_as == path else f"it is created again as {path}"
        if was_there:
            done = "another file has its name, and the rows missing there are added to it"
        self._notify(f"{self._opened_as} was deleted while the run was being recorded; {done} ({kept})")
        self._opened_as = path
        self._next_retry = 0.0
        self._retry()
        return True

    def _report(self, error: OSError) -> None:
        if not self._in_trouble:
            self._in_trouble = True
            self._notify(
                f"cannot write {self.path}: {error.strerror or error}. Rows are kept in memory (up to "
                f"{BUFFER_BYTES // 2**20} MiB) and written as soon as possible; free the disk or restore "
                f"the directory"
            )

    def _rescue(self) -> Path | None:
        """Write the rows that have no file in the run's directory to a temporary file."""
        rows = len(self._waiting) + (0 if _has_name(self.fd) else self.rows_written)
        if self._gap_rows and self._waiting:
            self._waiting[0] = _with_gap(self._waiting[0], self._gap_rows)
        if rows == 0:
            return None
        try:
            handle, name = tempfile.mkstemp(prefix="rlvitals-rescue-", suffix=".jsonl")
            with os.fdopen(handle, "wb") as file:
                if not _has_name(self.fd):
                    for piece in _pieces(self.fd):
                        file.write(piece)
                file.write(b"".join(self._waiting))
        except (OSError, _Unreadable) as error:
            reason = getattr(error, "strerror", None) or error or "a deleted file does not give them back"
            self._notify(f"{rows} rows could not be written anywhere and are lost: {reason}")
            return None
        self._notify(
            f"{rows} rows could not be written to {self.path}; they are in {name}. "
            f"Restore them with: cat {name} >> {self.path}"
        )
        return Path(name)


def repair_tail(path: Path, notify: Callable[[str], None]) -> None:
    """Make a log end with a complete line before lines are appended.

    A last line without newline comes from an unfinished write. It is completed if it is a valid row, else removed.
    """
    try:
        with os.fdopen(open_descriptor(path, os.O_RDWR), "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            tail = next(lines_from_end(file))
            file.seek(size)
            if not tail:
                return
            try:
                decode(tail)
            except BadLine:
                file.truncate(size - len(tail))
                notify(f"{path}: the last {len(tail)} bytes were half a row, left by a crash; they are removed")
            else:
                file.write(b"\n")
    except FileNotFoundError:
        return


class _Unreadable(Exception):
    """A deleted file cannot be read, as on a network file system."""


def _copy(old: int, new: int) -> None:
    """Append to `new` the bytes of `old` that it lacks. On an error `new` keeps its old size. Raises _Unreadable if
    `old` cannot be read, and OSError if `new` cannot be written.
    """
    size_before = os.fstat(new).st_size
    try:
        for piece in _pieces(old, _held(new, size_before, old)):
            write_all(new, piece)
    except (_Unreadable, OSError):
        os.ftruncate(new, size_before)
        raise


def _held(new: int, size: int, old: int) -> int:
    """How many bytes of `old` the new file already holds: up to the line of `old` that equals the last line of `new`.
    A user may have edited the log or restored a copy.
    """
    if size == 0:
        return 0
    with os.fdopen(os.dup(new), "rb") as file:
        lines = lines_from_end(file)
        torn, last = next(lines), next(lines, None)
    if torn:
        os.write(new, b"\n")  # end a partial line that another program wrote
    position = found = 0
    try:
        with os.fdopen(os.dup(old), "rb") as file:
            file.seek(0)
            for line in file:
                position += len(line)
                if line[:-1] == last:
                    found = position
    except OSError as error:
        raise _Unreadable from error
    return found


def _pieces(file: int, position: int = 0) -> Iterator[bytes]:
    """The content of an open file from a position on."""
    while True:
        try:
            os.lseek(file, position, os.SEEK_SET)
            piece = os.read(file, COPY_BYTES)
        except OSError as error:
            raise _Unreadable from error
        if not piece:
            return
        position += len(piece)
        yield piece


def _has_name(file: int) -> bool:
    """Whether an open file still has a directory entry. Without one it is lost when it is closed."""
    try:
        return os.fstat(file).st_nlink > 0
    except OSError:
        return False


def _clock_lead() -> float:
    """The wall clock minus the monotonic clock, in seconds."""
    return time.time() - time.monotonic()


def _open(path: Path) -> int:
    return open_descriptor(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)


def _with_gap(line: bytes, rows: int) -> bytes:
    return line[:-2] + b',"_gap":' + encode({"rows": rows}).rstrip() + b"}\n"
