"""What a run shows where it is recorded: the console's lines (which steps, on which stream, in which display), and its
progress bars.

Owns the cadence, the pace (and so the ETA) and the stream; how a step looks is in `render.steps`. A display is a
courtesy: whatever goes wrong with it turns it off and costs the training nothing. Nothing is imported where no rows
are shown, and rich for `rich` alone.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from rlvitals.config import Settings
from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.guard import guarded, words_of
from rlvitals.plugins import CONSOLE_TRACKER
from rlvitals.records import RunInfo, Status
from rlvitals.store.lines import NONFINITE, RESERVED, read_nonfinite
from rlvitals.terminal import escaped_json, put

if TYPE_CHECKING:
    from rlvitals.capture.progress import Progress
    from rlvitals.render.steps import Line

T = TypeVar("T")

ALARMS = "alarms"
"""No rows; findings are still printed (see `notices`)."""

DISPLAYS = (ALARMS, "none", "auto", "rich", "plain", "json")
"""auto: rich on a terminal, plain elsewhere."""

SILENT = ("none", "json")
"""Displays in which nothing but rows is printed."""

PIPED_WIDTH = 120
"""Columns where the stream is not a terminal."""

PACE_ROWS = 100
"""The ETA follows the pace of so many rows back: slow first steps are forgotten, single ones smoothed."""

STYLES = {"title": "bold", "step": "cyan", "first": "bold", "bad": "bold red", "note": "dim"}


def check(display: str, layout: str = "line") -> None:
    """Raise ConfigError for an unknown display or layout. For the start, before anything is written."""
    if display not in DISPLAYS:
        raise ConfigError(
            f"unknown display {display!r}.{did_you_mean(display, DISPLAYS)} Displays: {', '.join(DISPLAYS)}"
        )
    if layout != "line":
        from rlvitals.render.steps import LAYOUTS

        if layout not in LAYOUTS:
            raise ConfigError(
                f"unknown display layout {layout!r}.{did_you_mean(layout, LAYOUTS)} Layouts: {', '.join(LAYOUTS)}"
            )


class Display:
    """The console and the bars of one recording process."""

    def __init__(self, settings: Settings, info: RunInfo, *, rank: int) -> None:
        self._total_steps = info.total_steps
        self._rank = rank
        self._bars: list[Progress[Any]] = []
        self._console = open_console(
            settings.display,
            settings.display_layout,
            settings.display_every,
            total_steps=info.total_steps,
            algorithm=info.algorithm,
            framework=info.framework,
            track_with=settings.track_with,
            rank=rank,
        )
        self.is_on = self._console.is_on
        """Whether anybody looks at rows."""

    def step(self, step: int, row: Mapping[str, Any], now: float) -> None:
        """A row is durable."""
        if self._console.is_on:
            self._console.step(step, row, now)
        for bar in self._bars:
            bar.see(step, row)

    def progress(self, iterable: Iterable[T], look: Mapping[str, Any]) -> Progress[T]:
        """A bar that sees the rows from now on."""
        from rlvitals.capture.progress import Progress

        bar = Progress(iterable, **{"total_steps": self._total_steps, "disable": self._rank > 0, **look})
        self._bars = [*(bar for bar in self._bars if not bar.is_closed), bar]
        self.is_on = True
        return bar

    def finish(self, status: Status, error: str | None) -> None:
        """The run has ended."""
        self._console.finish(status, error)


def open_console(
    display: str,
    layout: str = "line",
    every: int | None = None,
    *,
    total_steps: int | None = None,
    algorithm: str | None = None,
    framework: str | None = None,
    track_with: Sequence[str] = (),
    rank: int = 0,
) -> Console:
    """The console of a run's settings: rank 0's alone, on stderr; on stdout where the tracker of that name is asked
    for, in its JSON form unless another display is named.
    """
    is_tracker = CONSOLE_TRACKER in track_with
    if is_tracker and display in (ALARMS, "none"):
        display = "json"
    return Console(
        display if rank == 0 else "none",
        layout,
        every,
        total_steps,
        sys.stdout if is_tracker else sys.stderr,
        algorithm=algorithm,
        framework=framework,
    )


class Console:
    """Prints a run's steps. Made again for every attempt, so that a resume's pace is its own."""

    def __init__(
        self,
        display: str = "none",
        layout: str = "line",
        every: int | None = None,
        total_steps: int | None = None,
        stream: TextIO | None = None,
        *,
        algorithm: str | None = None,
        framework: str | None = None,
        started: float | None = None,
    ) -> None:
        """`every` is the layout's own where it is not given, `stream` is stderr. Raises ConfigError on an unknown name,
        and nothing else.
        """
        check(display, layout)
        self.is_on = display not in (ALARMS, "none")
        """False: calling `step` does nothing."""
        if not self.is_on:
            return
        self._started = time.time() if started is None else started
        self._total = total_steps
        self._pace = Pace()
        self._step: int | None = None
        self._printed: int | None = None
        self._reached: int | None = None
        self._waiting: tuple[int, dict[str, Any], float] | None = None
        facts = {"algorithm": algorithm, "framework": framework}
        with guarded(self._turn_off):  # a closed or a strange stream, somebody's broken catalogue plug-in
            self._open(display, layout, every, stream or sys.stderr, facts)

    def _open(
        self, display: str, layout: str, every: int | None, stream: TextIO, run: Mapping[str, str | None]
    ) -> None:
        from rlvitals.render.steps import LAYOUTS, step_text

        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._is_terminal = stream.isatty()
        self._is_json = display == "json"
        is_rich = display in ("auto", "rich") and self._is_terminal
        self._every = every or LAYOUTS[layout].every
        self._text = step_text(LAYOUTS[layout], as_table=is_rich, **run, total=self._total, encoding=self._encoding)
        self._put: Callable[[Line], None] = _rich_writer(stream) if is_rich else self._put_plain

    def step(self, step: int, row: Mapping[str, Any], now: float) -> None:
        """Show a row as it was written, if it is its turn. Never raises."""
        if not self.is_on:
            return
        with guarded(self._turn_off):
            self._step = step
            self._pace.note(step, now)
            metrics = _metrics(row)
            if self._is_due(step) and self._show(step, metrics, now):
                self._printed, self._reached, self._waiting = step, step // self._every, None
            elif self._text.shows(_numbers(metrics)):
                self._waiting = (step, metrics, now)

    def finish(
        self, status: str = "finished", error: BaseException | str | None = None, now: float | None = None
    ) -> None:
        """Show the last row if it was not its turn, and how the run ended. Never raises; no step comes after."""
        if not self.is_on:
            return
        with guarded():
            if self._waiting is not None:
                self._show(*self._waiting)
            if self._step is not None and not self._is_json:
                self._close(self._step, status, error, time.time() if now is None else now)
        self.is_on = False

    def _turn_off(self, _: Exception) -> None:
        self.is_on = False

    def _is_due(self, step: int) -> bool:
        """Every multiple, and where a trainer logs at other steps, the first one after each; all rows of a step that
        is shown; and the last step.
        """
        if self._reached is None:
            self._reached = (step - 1) // self._every
        return step % self._every == 0 or step // self._every > self._reached or step in (self._printed, self._total)

    def _show(self, step: int, metrics: dict[str, Any], now: float) -> bool:
        if self._is_json:
            from rlvitals.render.steps import json_line

            put(escaped_json(json_line(step, metrics, self._encoding)), self._stream)
            return True
        lines = self._text.lines(step, _numbers(metrics), self._pace.eta(step, self._total), self._width())
        self._put_all(lines)
        return bool(lines)

    def _close(self, step: int, status: str, error: BaseException | str | None, now: float) -> None:
        from rlvitals.render.steps import closing

        said = words_of(error) if isinstance(error, BaseException) else error
        line = closing(
            status, step, self._total, now - self._started, error=said, encoding=self._encoding, width=self._width()
        )
        self._put_all([line])

    def _put_all(self, lines: list[Line]) -> None:
        with apart_from_bars(self._stream) if self._is_terminal else nullcontext():
            for line in lines:
                self._put(line)

    def _put_plain(self, line: Line) -> None:
        from rlvitals.render.steps import plain

        put(plain(line), self._stream)

    def _width(self) -> int:
        """Asked each time: terminals are resized."""
        if self._is_terminal:
            try:
                return os.get_terminal_size(self._stream.fileno()).columns or PIPED_WIDTH
            except (OSError, ValueError, AttributeError):
                pass
        columns = os.environ.get("COLUMNS", "")
        return int(columns) if columns.isdecimal() and int(columns) else PIPED_WIDTH


class Pace:
    """Seconds per step, from the rows of this attempt alone: what an earlier one took says nothing of this one.

    >>> pace = Pace()
    >>> for step, now in ((50, 1000.0), (51, 1002.0), (52, 1004.0)):
    ...     pace.note(step, now)
    >>> pace.eta(52, 145)
    186.0
    """

    def __init__(self) -> None:
        self._rows: deque[tuple[int, float]] = deque(maxlen=PACE_ROWS)

    def note(self, step: int, now: float) -> None:
        """A row was logged. Late ones and further ones of a step do not count."""
        if not self._rows or step > self._rows[-1][0]:
            self._rows.append((step, now))

    def eta(self, step: int, total: int | None) -> float | None:
        """Seconds from `step` to the last one; None where it is unknown, or nothing is left."""
        if total is None or step >= total or len(self._rows) < 2:
            return None
        (first, since), (last, until) = self._rows[0], self._rows[-1]
        seconds = (until - since) / (last - first) * (total - step)
        return seconds if 0 < seconds < float("inf") else None  # a clock that was set back


def _metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    """A written row's metrics, with the non-finite ones back among them."""
    metrics = {name: value for name, value in row.items() if name not in RESERVED and not name.startswith("_")}
    if NONFINITE in row:
        metrics.update(read_nonfinite(row[NONFINITE]))
    return metrics


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if isinstance(value, int | float)}


def _rich_writer(stream: TextIO) -> Callable[[Line], None]:
    from rich.text import Text

    from rlvitals.render.screen import Screen

    console = Screen(file=stream, soft_wrap=True, force_jupyter=False)

    def put(line: Line) -> None:
        text = Text.assemble(*((piece.text, STYLES.get(piece.role, "")) for piece in line))
        text.rstrip()
        console.print(text)

    return put


def print_apart(text: str) -> None:
    """A text on stderr, above the bars that may be there. Without stderr, or with a closed one, nothing happens."""
    stream = sys.stderr
    with suppress(OSError, ValueError, AttributeError), apart_from_bars(stream) if stream.isatty() else nullcontext():
        put(text, stream)


@contextmanager
def apart_from_bars(stream: TextIO) -> Generator[None]:
    """Bars on the same terminal, ours and tqdm's, step aside while we print, as for `tqdm.write`."""
    with ExitStack() as aside:
        tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
        if tqdm is not None:
            aside.enter_context(tqdm.external_write_mode(file=stream))
        bars = sys.modules.get("rlvitals.capture.progress")
        if bars is not None:
            aside.enter_context(bars.bars_aside(stream))
        yield
