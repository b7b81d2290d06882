"""Those who look at a run where it is recorded: the console's lines and the progress bars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from rlvitals.capture.console import open_console
from rlvitals.config import Settings
from rlvitals.records import RunInfo, Status

if TYPE_CHECKING:
    from rlvitals.capture.progress import Progress

T = TypeVar("T")


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
