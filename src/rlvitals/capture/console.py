"""The output of a recording process: lines for rows on the console, and progress bars.

Owns which steps are printed, on which stream, and the pace from which the ETA is computed; `render.steps` formats a
step. A display that fails is turned off and never affects the training. If no rows are shown, nothing is imported;
rich is imported only for the rich display.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from rlvitals.codec import NONFINITE, read_nonfinite
from rlvitals.config import Settings
from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.guard import guarded, words_of
from rlvitals.plugins import CONSOLE_TRACKER
from rlvitals.records import RESERVED, RunInfo, Status
from rlvitals.terminal import escaped_json, put

if TYPE_CHECKING:
    from rlvitals.capture.progress import Progress
    from rlvitals.render.steps import Line

T = TypeVar("T")

ALARMS = "alarms"
"""No rows; findings are still printed (see `notices`)."""

DISPLAYS = (ALARMS, "none", "auto", "rich", "plain", "json")
"""`auto` is rich on a terminal and plain elsewhere."""

SILENT = ("none", "json")
"""Displays that print no findings."""

PIPED_WIDTH = 120
"""Columns if the stream is not a terminal."""

PACE_ROWS = 100
"""Number of recent rows for the ETA. Slow first steps drop out, and single slow steps are smoothed."""

STYLES = {"title": "bold", "step": "cyan", "first": "bold", "bad": "bold red", "note": "dim"}


def check(display: str, layout: str = "line") -> None:
    """Raise ConfigError for an unknown display or layout. Called at the start, before anything is written."""
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
        """Whether rows are shown anywhere."""

    def step(self, step: int, row: Mapping[str, Any], now: float) -> None:
        """Show a durable row."""
        if self._console.is_on:
            self._console.step(step, row, now)
        for bar in self._bars:
            bar.see(step, row)

    def progress(self, iterable: Iterable[T], look: Mapping[str, Any]) -> Progress[T]:
        """A bar that shows values of the rows from now on."""
        from rlvitals.capture.progress import Progress

        bar = Progress(iterable, **{"total_steps": self._total_steps, "disable": self._rank > 0, **look})
        self._bars = [*(bar for bar in self._bars if not bar.is_closed), bar]
        self.is_on = True
        return bar

    def finish(self, status: Status, error: str | None) -> None:
        """Print how the run ended."""
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
    """The console for a run's settings. Only rank 0 prints, on stderr. If `track_with` names the tracker "console", it
    prints on stdout, as JSON unless the settings name another display of rows.
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
    """Prints a run's steps. Each attempt has its own console, and so its own pace."""

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
        """`every` defaults to the layout's value, `stream` to stderr. Raises only ConfigError, for an unknown display
        or layout.
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
        self._waiting: tuple[int, dict[str, Any]] | None = None
        facts = {"algorithm": algorithm, "framework": framework}
        with guarded(self._turn_off):  # a closed or incompatible stream, a broken catalogue plug-in
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
        """Show a row as it was written, if its step is due. Never raises."""
        if not self.is_on:
            return
        with guarded(self._turn_off):
            self._step = step
            self._pace.note(step, now)
            metrics = _metrics(row)
            if self._is_due(step) and self._show(step, metrics):
                self._printed, self._reached, self._waiting = step, step // self._every, None
            elif self._text.shows(_numbers(metrics)):
                self._waiting = (step, metrics)

    def finish(
        self, status: str = "finished", error: BaseException | str | None = None, now: float | None = None
    ) -> None:
        """Show the last row if it was not shown, and how the run ended. Later steps are ignored. Never raises."""
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
        """Whether a step is printed: multiples of `every`, or the first logged step after each; all further rows of a
        printed step; and the last planned step.
        """
        if self._reached is None:
            self._reached = (step - 1) // self._every
        return step % self._every == 0 or step // self._every > self._reached or step in (self._printed, self._total)

    def _show(self, step: int, metrics: dict[str, Any]) -> bool:
        if self._is_json:
            from rlvitals.render.steps import json_line

            put(escaped_json(json_line(step, metrics, self._encoding)), self._stream)
            return True
        lines = self._text.lines(step, _numbers(metrics), self._pace.eta(step, self._total), self._width())
        self._put_all(lines)
        return bool(lines)

    def _close(self, step: int, status: str, error: BaseException | str | None, now: float) -> None:
        from rlvitals.render.steps import closing

        message = words_of(error) if isinstance(error, BaseException) else error
        line = closing(
            status, step, self._total, now - self._started, error=message, encoding=self._encoding, width=self._width()
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
        """Columns, read each time because terminals are resized."""
        if self._is_terminal:
            try:
                return os.get_terminal_size(self._stream.fileno()).columns or PIPED_WIDTH
            except (OSError, ValueError, AttributeError):
                pass
        columns = os.environ.get("COLUMNS", "")
        return int(columns) if columns.isdecimal() and int(columns) else PIPED_WIDTH


class Pace:
    """Seconds per step, from the rows of this attempt only: an earlier attempt may have run at another speed.

    >>> pace = Pace()
    >>> for step, now in ((50, 1000.0), (51, 1002.0), (52, 1004.0)):
    ...     pace.note(step, now)
    >>> pace.eta(52, 145)
    186.0
    """

    def __init__(self) -> None:
        self._rows: deque[tuple[int, float]] = deque(maxlen=PACE_ROWS)

    def note(self, step: int, now: float) -> None:
        """Count a logged row. Rows of an earlier step and further rows of the same step are ignored."""
        if not self._rows or step > self._rows[-1][0]:
            self._rows.append((step, now))

    def eta(self, step: int, total: int | None) -> float | None:
        """Seconds from `step` to the last step; None if unknown or if no step is left."""
        if total is None or step >= total or len(self._rows) < 2:
            return None
        (first, since), (last, until) = self._rows[0], self._rows[-1]
        seconds = (until - since) / (last - first) * (total - step)
        return seconds if 0 < seconds < float("inf") else None  # the clock may be set back


def _metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a written row, including non-finite values."""
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
    """Print a text on stderr, above any progress bars. A missing or closed stderr is ignored."""
    stream = sys.stderr
    with suppress(OSError, ValueError, AttributeError), apart_from_bars(stream) if stream.isatty() else nullcontext():
        put(text, stream)


@contextmanager
def apart_from_bars(stream: TextIO) -> Generator[None]:
    """Remove the bars on this terminal, ours and tqdm's, while something is printed, like `tqdm.write`."""
    with ExitStack() as aside:
        tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
        if tqdm is not None:
            aside.enter_context(tqdm.external_write_mode(file=stream))
        bars = sys.modules.get("rlvitals.capture.progress")
        if bars is not None:
            aside.enter_context(bars.bars_aside(stream))
        yield
