"""Progress bars for training loops: `for batch in run.progress(loader, epoch=3, epochs=10)`.

Owns when and where bars are drawn, and the numbers beside them; `render.progress` formats them. On a terminal the open
bars are one block of lines above the cursor, redrawn about ten times a second. Other output, such as a traceback,
therefore starts on its own line. Without a terminal, a plain line is printed from time to time. A bar that fails is
turned off and never affects the training.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, Self, TextIO, TypeVar

from rlvitals.codec import NONFINITE, read_nonfinite
from rlvitals.guard import guarded, value_or
from rlvitals.render.progress import bar_line, field_line, field_text, plain_line
from rlvitals.render.steps import printable
from rlvitals.store.process import renew_after_fork
from rlvitals.terminal import put, visible

T = TypeVar("T")

REDRAW_SECONDS = 0.1

PLAIN_PARTS = 10
PLAIN_SECONDS = 2.0
"""Without a terminal, a line is printed for every tenth of the loop, with at least this many seconds between lines."""

PLAIN_SECONDS_UNKNOWN = 30.0
"""Seconds between lines if the length is unknown."""

LIVE = {"loss": "train.loss", "reward": "reward.total.mean", "lr": "optim.lr"}
"""The values of a run's rows that are shown, as concepts of the catalogue. Trainers name them differently."""


class Progress(Generic[T]):
    """An iterable with a progress bar. Created by `run.progress`. Use it as a context manager if the loop may end early
    and the bar should close at once.

    `set` shows further numbers; `score` counts the rewards of an evaluation.
    """

    def __init__(
        self,
        iterable: Iterable[T],
        *,
        epoch: int | None = None,
        epochs: int | None = None,
        evaluating: bool = False,
        total: int | None = None,
        total_steps: int | None = None,
        ascii: bool | None = None,
        width: int | None = None,
        unit: str = "batch",
        disable: bool = False,
        stream: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`total` defaults to the iterable's length, if it has one. `width` is the width of the line in columns; by
        default the bar has a fixed size. The default of `ascii` depends on the terminal. With `disable`, nothing is
        drawn.
        """
        self._iterable = iterable
        self._title = _title(epoch, epochs, evaluating)
        self._is_evaluating = evaluating
        self._total = value_or(None, len, iterable) if total is None else total  # a loader's len() may raise
        self._total_steps = total_steps
        self._width, self._unit, self._now = width, unit, now
        self._fields: dict[str, str] = {}
        self._rewards = (0, 0.0)
        self._sources: dict[str, str] = {}
        self._known_names: tuple[str, ...] = ()
        self._done = 0
        self._began: float | None = None
        self._drawn_at = self._line_at = now()
        self._parts_printed = 0
        self.is_closed = False
        stream = sys.stderr if stream is None else stream
        self._screen = None if disable or stream is None else _screen_of(stream)
        self._ascii = (self._screen is not None and self._screen.needs_ascii) if ascii is None else ascii

    def __iter__(self) -> Iterator[T]:
        done, due = 0, 1
        self._open()
        is_counting = self._is_evaluating
        try:
            for item in self._iterable:
                yield item
                # Most iterations only count; the clock is read about ten times a second.
                done += 1
                if is_counting:
                    self._count(item)
                if done >= due:
                    due = self._advance(done)
        finally:
            self._done = done
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def set(self, **fields: Any) -> None:
        """Show these numbers (or short texts) beside the bar: `bar.set(processed=160, avg_reward=0.72)`."""
        for name, value in fields.items():
            item = getattr(value, "item", None)
            self._fields[name] = field_text(name, item() if callable(item) else value)
        self._draw_if_due()

    def score(self, rewards: Any) -> None:
        """Add the rewards of one batch. `processed` and `avg_reward` cover all samples so far, with equal weight."""
        values = rewards.tolist() if hasattr(rewards, "tolist") else rewards
        numbers = [float(value) for value in values] if isinstance(values, Iterable) else [float(values)]
        count, total = self._rewards[0] + len(numbers), self._rewards[1] + sum(numbers)
        self._rewards = (count, total)
        if count:
            self.set(processed=count, avg_reward=total / count)

    def see(self, step: int, row: Mapping[str, Any]) -> None:
        """Show the loss, reward and learning rate of a logged row. Never raises."""
        if self._screen is None or self.is_closed or self._is_evaluating:
            return
        with guarded(self._turn_off):
            if NONFINITE in row:
                row = {**row, **read_nonfinite(row[NONFINITE])}
            if (names := tuple(row)) != self._known_names:
                self._known_names, self._sources = names, _sources(names)
            for field, name in self._sources.items():
                if isinstance(value := row[name], int | float):
                    self._fields[field] = field_text(field, float(value))
            self._fields["step"] = f"{step}/{self._total_steps}" if self._total_steps else str(step)
            self._draw_if_due()

    def close(self) -> None:
        """Draw the bar a last time and close it. A second call does nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._screen is None or self._began is None:
            return
        with guarded(self._turn_off):
            if self._screen.is_terminal:
                self._screen.finish(self)
            else:
                self._screen.put(self._plain())

    def _turn_off(self, _: Exception) -> None:
        self._screen = None

    def lines(self, room: int) -> list[str]:
        """The bar in its current state, for a terminal with `room` columns."""
        bar = bar_line(
            self._title,
            self._done,
            self._total,
            self._elapsed(),
            size=16 if self._is_evaluating else 20,
            width=self._width,
            room=room,
            ascii=self._ascii,
            unit=self._unit,
        )
        fields = field_line(self._printable(), room=room, ascii=self._ascii)
        return [visible(line) for line in (bar, fields) if line]

    def _open(self) -> None:
        self._began = self._now()
        self.is_closed = False
        if self._screen is not None and self._screen.is_terminal:
            with guarded(self._turn_off):
                self._screen.add(self)

    def _advance(self, done: int) -> int:
        """Store the count; returns the count at which to check the clock again."""
        self._done = done
        self._draw_if_due()
        elapsed = self._elapsed()
        # At most double the count: otherwise the bar of a loop that slows down would freeze.
        return done + max(1, min(int(done / elapsed * REDRAW_SECONDS) if elapsed > 0 else 1, done))

    def _draw_if_due(self) -> None:
        if self._screen is None or self.is_closed or self._began is None:
            return
        now = self._now()
        with guarded(self._turn_off):
            if self._screen.is_terminal:
                if now - self._drawn_at >= REDRAW_SECONDS:
                    self._drawn_at = now
                    self._screen.draw()
            elif self._is_line_due(now):
                self._line_at = now
                self._screen.put(self._plain())

    def _is_line_due(self, now: float) -> bool:
        if not self._total:
            return now - self._line_at >= PLAIN_SECONDS_UNKNOWN
        part = self._done * PLAIN_PARTS // self._total
        if part <= self._parts_printed or self._done >= self._total or now - self._line_at < PLAIN_SECONDS:
            return False
        self._parts_printed = part
        return True

    def _plain(self) -> str:
        return plain_line(
            self._title, self._done, self._total, self._elapsed(), fields=self._printable(), unit=self._unit
        )

    def _printable(self) -> dict[str, str]:
        encoding = self._screen.encoding if self._screen is not None else "ascii"
        # In the order of the guide, not of arrival: loss, reward, lr, other fields, step.
        ranks = {**{name: place for place, name in enumerate(LIVE)}, "step": len(LIVE) + 1}
        names = sorted(self._fields, key=lambda name: ranks.get(name, len(LIVE)))
        return {printable(name, encoding): printable(self._fields[name], encoding) for name in names}

    def _elapsed(self) -> float:
        return 0.0 if self._began is None else self._now() - self._began

    def _count(self, item: Any) -> None:
        if self._rewards[0] == 0 and (size := _batch_size(item)):
            processed = self._fields.get("processed", "0")
            self._fields["processed"] = str(int(processed) + size) if processed.isdecimal() else processed


class _Screen:
    """One stream and its open bars, the outer ones first."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"
        self.is_terminal = stream.isatty()
        self._can_move = os.environ.get("TERM") != "dumb" and not _is_old_windows()
        self.needs_ascii = not self._can_move or not _can_hold("█", self.encoding)
        self._lock = threading.RLock()
        renew_after_fork(self, "_lock")
        self._bars: list[Progress[Any]] = []
        self._drawn = 0
        """Number of lines in the block; if the cursor cannot move, number of columns in the single line."""

    @property
    def is_free(self) -> bool:
        return not self._bars

    def add(self, bar: Progress[Any]) -> None:
        with self._lock:
            self._bars.append(bar)
            self.draw()

    def finish(self, bar: Progress[Any]) -> None:
        """Leave the bar's last state on the screen, above the bars that are still open."""
        with self._lock:
            if bar in self._bars:
                self._bars.remove(bar)
            self._move(self._erased() + "".join(f"{line}\n" for line in bar.lines(self._room())))
            self.draw()

    def draw(self) -> None:
        with self._lock:
            if not self._bars:
                return
            if not self._can_move:
                line = "".join(self._bars[-1].lines(self._room()))[: self._room()]
                self._move("\r" + line.ljust(self._drawn))
                self._drawn = len(line)
                return
            lines = [line for bar in self._bars for line in bar.lines(self._room())]
            back = f"\x1b[{self._drawn}A" if self._drawn else ""
            self._move(back + "".join(f"\r{line}\x1b[K\n" for line in lines) + "\x1b[J")
            self._drawn = len(lines)

    @contextmanager
    def aside(self) -> Generator[None]:
        """Remove the bars while something else is printed."""
        with self._lock:
            if self._bars:
                self._move(self._erased())
            try:
                yield
            finally:
                self.draw()

    def put(self, line: str) -> None:
        """Print a line to a stream that is not a terminal."""
        put(visible(line), self._stream)

    def _move(self, text: str) -> None:
        """Write lines that are already escaped, together with cursor movements."""
        self._stream.write(text)
        self._stream.flush()

    def _erased(self) -> str:
        drawn, self._drawn = self._drawn, 0
        if not self._can_move:
            return "\r" + " " * drawn + "\r"
        return f"\x1b[{drawn}A\r\x1b[J" if drawn else ""

    def _room(self) -> int:
        """Columns for a line, read each time because terminals are resized. The last column stays free: some terminals
        would begin a new line.
        """
        try:
            return (os.get_terminal_size(self._stream.fileno()).columns or 80) - 1
        except (OSError, ValueError, AttributeError):
            return 79


_screens: dict[TextIO, _Screen] = {}
"""The screens with open bars, and the last one used."""


def _screen_of(stream: TextIO) -> _Screen | None:
    with guarded():  # a closed or incompatible stream gets no bar
        if stream not in _screens:
            for other in [other for other, screen in _screens.items() if screen.is_free]:
                del _screens[other]
            _screens[stream] = _Screen(stream)
        return _screens[stream]
    return None


@contextmanager
def bars_aside(stream: TextIO) -> Generator[None]:
    """Remove the bars of a stream, if any, while something else is printed there."""
    screen = _screens.get(stream)
    if screen is None or not screen.is_terminal:
        yield
        return
    with screen.aside():
        yield


def _title(epoch: int | None, epochs: int | None, evaluating: bool) -> str:
    if evaluating:
        return "Evaluating"
    if epoch is None:
        return "Training"
    return f"Epoch {epoch}/{epochs}" if epochs else f"Epoch {epoch}"


def _batch_size(item: Any) -> int:
    """The number of samples in a batch. For a mapping it is the length of the first column; for a single item, 1."""
    if isinstance(item, Mapping):
        item = next(iter(item.values()), None)
    if isinstance(item, str | bytes):
        return 1
    try:
        return len(item)
    except TypeError:
        return 1


def _sources(names: tuple[str, ...]) -> dict[str, str]:
    """The metric of a row that each field shows."""
    from rlvitals import catalog  # the import takes tens of milliseconds

    columns = catalog.reader(names=names).columns(names)
    found = {field: columns[concept] for field, concept in LIVE.items() if concept in columns}
    return {field: field if field in names else name for field, name in found.items()}


def _can_hold(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _is_old_windows() -> bool:
    """Whether this is a Windows console older than Windows Terminal: no cursor movement, no block characters."""
    return os.name == "nt" and not any(name in os.environ for name in ("WT_SESSION", "ANSICON", "TERM", "ConEmuANSI"))
