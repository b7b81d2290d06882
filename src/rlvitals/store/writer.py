"""Appends lines to one file so that none is lost while the process lives, and none that returned is lost when it dies.

Owns the descriptor, the bounded buffer for a disk that will not take lines, and the marks of what had to be dropped.
One `os.write` per line on an O_APPEND descriptor: when `append` returns, the operating system has the line, and a
SIGKILL cannot take it back. There is no thread here while the disk answers; `tend` is called now and then by whoever
has one. A disk that takes longer than SLOW_SECONDS for a write has a thread: lines then wait in memory until it has
written them, and the caller does not wait. It continues until the disk has been quick for CALM_SECONDS, so that whoever
logs waits for one slow write in that time and not for each.
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
from rlvitals.store.files import lines_from_end, open_descriptor, sync_folder
from rlvitals.store.home import Home
from rlvitals.store.lines import BadLine, decode

BUFFER_BYTES = 64 * 2**20
"""How much is kept in memory while the disk refuses; the oldest lines are dropped beyond it."""

SLOW_SECONDS = 1.0
"""A write, or a look at the file, that takes longer makes the lines after it wait in memory."""

CALM_SECONDS = 30.0
"""How long a slow disk must have been quick before callers write themselves again."""

CATCH_UP_SECONDS = 60.0
"""How long the end of a run waits for a slow disk; what is left then is rescued elsewhere."""

DRAIN_BYTES = 2**20
"""Lines that a slow disk is given in one write."""

RETRY_SECONDS = 1.0
VERIFY_SECONDS = 1.0
COPY_BYTES = 2**20


class LogWriter:
    """One append-only file of lines. Safe from several threads; `append` never raises.

    `place` gives the file's path; it changes when the run's directory is renamed, which `home` finds out. `notify` gets
    a sentence when trouble starts and ends.

    The public attributes are for `Run.log`, which writes and counts the common line itself, holding `lock`.
    """

    def __init__(
        self,
        place: Callable[[], Path],
        *,
        home: Home,
        notify: Callable[[str], None],
        fsync_each: bool = False,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self._place, self._home = place, home
        self.rows_dropped = 0
        self._notify = notify
        self._fsync_each = fsync_each
        self._buffer_bytes = buffer_bytes
        self.lock = threading.RLock()  # not a Lock: a signal handler may come in the middle of an append
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
        """Whether a line may be written as it is: nothing waits, nothing is to be marked or repaired."""
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
        """Hand one line (with its newline) to the operating system, or keep it until the disk takes it again."""
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
                    written = 0  # the slow path meets it again and reports it
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
        """Write the rest of a line, so many bytes of which the system has; for a caller that holds `lock`."""
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
        """What is due after a write that began then: see whether it took too long, and now and then whether the file is
        still there. For a caller that holds `lock`.
        """
        now = time.time()
        if now - began > SLOW_SECONDS:
            self._go_aside(self._seconds_since(began))
        elif now >= self.next_verify:
            looked = time.monotonic()
            self.verify()
            self._go_aside(time.monotonic() - looked)

    def _seconds_since(self, began: float) -> float:
        """How long ago a time of the wall clock was, without what somebody set the clock ahead by meanwhile. Rows need
        the wall clock anyway; a second clock would be asked for each of them.
        """
        lead = _clock_lead()
        jump, self._clock_lead = lead - self._clock_lead, lead
        return time.time() - began - jump

    def tend(self) -> None:
        """Try what is waiting again and look whether the file is still there. For a background thread, every few
        seconds.
        """
        if self._is_slow or (self.fd >= 0 and self._is_there() and self.is_plain):
            return  # the thread does it, or there is nothing to do; the disk is not waited for while `lock` is held
        with self.lock:
            if self._is_slow:
                return
            self.verify()
            self._next_retry = 0.0
            self._retry()
            self._settle()

    def sync(self) -> None:
        """Ask the disk itself (fsync) for the rows, and the first time for the file's name; errors are reported, not
        raised. The lock is not held while the disk works.
        """
        try:
            os.fsync(self.fd)
            if not self._is_named:
                sync_folder(self.path.parent)
                self._is_named = True
        except OSError as error:
            if not self._fsync_failed:
                self._fsync_failed = True
                self._notify(f"the disk of {self.path} does not confirm what was written: {error.strerror or error}")

    def catch_up(self, seconds: float | None = None) -> bool:
        """Wait until a slow disk has every line; False where it has not after so long (CATCH_UP_SECONDS). A second call
        after one that failed does not wait.
        """
        until = time.monotonic() + (CATCH_UP_SECONDS if seconds is None else seconds)
        while self._is_slow and not self.is_settled:
            self._has_work.set()
            if time.monotonic() >= until or self._has_given_up:
                self._has_given_up = True
                with self.lock:
                    if not self._under_way:  # the thread waits for this lock: a signal came while it was held
                        self._next_retry = 0.0
                        self._retry()
                return self.is_settled
            time.sleep(0.01)
        return True

    def close(self) -> Path | None:
        """Write what is left and close. Lines the disk still refuses go to a rescue file, whose path is returned."""
        has_caught_up = self.catch_up()
        with self.lock:
            if self.fd < 0:
                return None
            if has_caught_up:
                self._is_slow = False
                self.tend()
            else:  # the thread may be stuck in a write that nobody can end: its lines are rescued too
                self._waiting.extendleft(reversed(self._under_way))
            rescue = self._rescue() if self._waiting or not _has_name(self.fd) else None
            if has_caught_up:
                os.close(self.fd)  # a stuck write keeps its descriptor: the number must not become another file's
            self.fd = -1
            self._has_work.set()
            return rescue

    def _go_aside(self, seconds: float) -> None:
        """Leave the writing to a thread, where the disk has taken that long; for a caller that holds `lock`. A run that
        asks the disk for each row itself waits for it.
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
            f"{self.path}: a write took {seconds:.1f} s (a slow disk, or a machine with too much to do). Rows now wait "
            f"in memory (up to {self._buffer_bytes // 2**20} MiB) and a thread writes them; training does not wait"
        )

    def _drain(self) -> None:
        """Write what waits until the disk has been quick for a while. The only one who writes meanwhile."""
        calm_since = time.monotonic()
        while True:
            self._has_work.wait(RETRY_SECONDS)
            self._has_work.clear()
            began = time.monotonic()
            is_there = self._is_there()
            with self.lock:
                if self.fd < 0 or not self._is_slow:
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
                    self._notify(f"{self.path}: the disk answers again, and all waiting rows are in the log")
                    return

    def _take_under_way(self) -> None:
        """Take the next lines out of those that wait; for a caller that holds `lock`."""
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
        """Write the lines under way without holding `lock`: how many are whole in the file, and what came between."""
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
        if not self._is_there() and not self._find():  # what is written into a deleted file is gone at the end
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
        """See whether the file is still under its name, follow it or make it again; for a caller that holds `lock`,
        every second or so.

        A deleted file takes writes, and gives them back, as long as its descriptor is open: nothing is lost until then.
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
        """Whether the file's name leads to the file that is open: another run's file may have it by now."""
        try:
            held = os.fstat(self.fd)
            if os.name == "nt":  # where an open file is neither deleted nor renamed
                return held.st_nlink > 0
            return os.path.samestat(os.stat(self.path), held)
        except OSError:
            return False

    def _find(self) -> bool:
        """Find the file's directory, and make the file again where it is not in it; False while that cannot be."""
        try:
            found = self._home.find()
            if found == "here" and not self._is_there():
                return self._reopen()
        except OSError as error:
            self._report(error)
            return False
        if found == "lost" and not self._is_lost:
            self._notify(
                f"{self.path} is not there any more, and where it was moved to cannot be found out on this system. "
                f"Rows still go into the moved file; other files of the run wait. Move the directory back"
            )
        self._is_lost = found == "lost"
        self._opened_as = self.path
        return True

    def _reopen(self) -> bool:
        """Make the file again with all it held. Raises OSError where it cannot be made: then it is waited for, unless
        the file has a name elsewhere.
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
        except OSError:  # the new disk is full: the old descriptor goes on taking rows
            os.close(fd)
            raise
        old, self.fd, self._is_named = self.fd, fd, False
        self.sync()  # the rows may have been on the disk before
        os.close(old)
        self._in_trouble = bool(self._waiting)
        self._gap_rows += lost
        self.rows_dropped += lost
        kept = f"{lost} earlier rows are gone" if lost else "no row is lost"
        done = "it is made again" if self._opened_as == path else f"it is made again as {path}"
        if was_there:
            done = "another file has its name, and the rows that one lacks are added to it"
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
                f"{self._buffer_bytes // 2**20} MiB) and written as soon as it can be; free the disk or restore "
                f"the directory"
            )

    def _rescue(self) -> Path | None:
        """Put the rows that have no file in the run's directory into one elsewhere."""
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
            tail = next(lines_from_end(file))
            file.seek(size)
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


class _Unreadable(Exception):
    """A deleted file does not give its bytes back: a network disk."""


def _copy(old: int, new: int) -> None:
    """Append to a file what it lacks of another, or nothing. Raises _Unreadable, and OSError where the new one
    fails.
    """
    begun = os.fstat(new).st_size
    try:
        for piece in _pieces(old, _held(new, begun, old)):
            rest = piece
            while rest:
                rest = rest[os.write(new, rest) :]
    except (_Unreadable, OSError):
        os.ftruncate(new, begun)
        raise


def _held(new: int, size: int, old: int) -> int:
    """How many bytes of a log a file in its place has: up to the last line they share. Somebody may have edited it, or
    put a copy back.
    """
    if size == 0:
        return 0
    with os.fdopen(os.dup(new), "rb") as file:
        lines = lines_from_end(file)
        torn, last = next(lines), next(lines, None)
    if torn:
        os.write(new, b"\n")  # half a line of somebody's: ours begin on their own line
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
    """What a descriptor's file holds from a place on."""
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
    """Whether an open file is in some directory; where not, it is gone when it is closed."""
    try:
        return os.fstat(file).st_nlink > 0
    except OSError:
        return False


def _clock_lead() -> float:
    """How far the wall clock is ahead of the one that nobody sets."""
    return time.time() - time.monotonic()


def _open(path: Path) -> int:
    return open_descriptor(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)


def _with_gap(line: bytes, rows: int) -> bytes:
    return line[:-2] + b',"_gap":' + encode({"rows": rows}).rstrip() + b"}\n"
