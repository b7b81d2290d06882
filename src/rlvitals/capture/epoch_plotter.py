"""Draws the epochs' plots beside the training: in a thread of its own, the newest state alone, one picture at a time.

A trainer that logs faster than pictures are drawn skips some; `wait` leaves the last state drawn. Without matplotlib
nothing is drawn, and that is said once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from rlvitals.errors import MissingDependency
from rlvitals.store.process import renew_after_fork

if TYPE_CHECKING:
    from rlvitals.render.epoch_plots import Epochs

logger = logging.getLogger("rlvitals")


class Plotter:
    """Turns epochs into pictures and hands them to `save(name, picture)`. Never raises."""

    def __init__(self, save: Callable[[str, bytes], None]) -> None:
        self._save = save
        self._lock = threading.Lock()
        self._drawing = threading.Lock()
        renew_after_fork(self, "_lock", "_drawing")
        self._next: Epochs | None = None
        self._thread: threading.Thread | None = None
        self._said: set[str] = set()
        self.is_off = False
        """True once matplotlib has turned out to be missing."""

    def draw(self, epochs: Epochs) -> None:
        """Ask for pictures of these epochs. Returns at once."""
        if self.is_off or not epochs:
            return
        with self._lock:
            self._next = epochs
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="rlvitals-plots", daemon=True)
                with suppress(RuntimeError):  # the interpreter is ending: `wait` draws it
                    self._thread.start()

    def wait(self) -> None:
        """Return when everything asked for is drawn."""
        self._work()

    def _work(self) -> None:
        while True:
            with self._drawing:  # one at a time: a caller that waits here finds the thread's picture done
                with self._lock:
                    epochs, self._next = self._next, None
                    if epochs is None:
                        self._thread = None
                        return
                self._draw(epochs)

    def _draw(self, epochs: Epochs) -> None:
        try:
            from rlvitals.render.epoch_plots import pictures

            for name, picture in pictures(epochs).items():
                self._save(name, picture)
        except MissingDependency as error:
            self.is_off = True
            self._say_once("matplotlib", f"no plots: {error}")
        except OSError as error:
            self._say_once("disk", f"the plots cannot be written: {error.strerror or error}; the next ones are tried")
        except Exception as error:  # noqa: BLE001 - a picture must not hurt the training
            self._say_once(f"{type(error)}", f"the plots cannot be drawn: {type(error).__name__}: {error}")

    def _say_once(self, about: str, sentence: str) -> None:
        if about not in self._said:
            self._said.add(about)
            logger.warning(sentence)
