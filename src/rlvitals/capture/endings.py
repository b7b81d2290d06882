"""How a recording ends when nobody calls `finish`: SIGTERM, an exit with a status, the end of the interpreter, a fork.

Keeps the runs this process has open. Handlers already installed are called as well: a trainer that saves a checkpoint
on SIGTERM still does.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any, Protocol

from rlvitals.capture import exits
from rlvitals.masking import mask_text


class Recording(Protocol):
    """What an open run must be able to do when the process ends."""

    def interrupt(self) -> None:
        """Make everything durable and mark the run interrupted; more rows may still come."""

    def close_at_exit(self, error: BaseException | None) -> None:
        """The interpreter ends: finish, as failed where an exception or an exit with a status ended it."""

    def detach(self) -> None:
        """The process is a forked child: never write."""


_open_runs: list[Recording] = []
_hooks_installed = False
_earlier_handlers: list[Any] = []
"""What was installed before us, newest last. More than one where somebody put a handler above ours and another run was
started after."""
_depth = 0


def watch(run: Recording) -> None:
    """Take care of this run's end until `unwatch`."""
    global _hooks_installed  # noqa: PLW0603 - process-wide hooks are installed once
    _open_runs.append(run)
    if not _hooks_installed:
        _hooks_installed = True
        atexit.register(_at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_after_fork)
    _install_sigterm()
    exits.watch()


def open_runs() -> list[Recording]:
    """The runs this process records."""
    return list(_open_runs)


def unwatch(run: Recording) -> None:
    """The run has ended in an orderly way."""
    with contextlib.suppress(ValueError):
        _open_runs.remove(run)
    if not _open_runs:
        _restore_sigterm()
        exits.unwatch()


def described(error: BaseException | str | None, settings: Mapping[str, Any]) -> str | None:
    """What ended a run, as its card keeps it: without the secrets of these settings."""
    if not error:
        return None
    return mask_text(error if isinstance(error, str) else f"{type(error).__name__}: {error}", settings)[:2000]


def _install_sigterm() -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may; such a process keeps its own handling
    current = signal.getsignal(signal.SIGTERM)
    if current is _on_sigterm or current is signal.SIG_IGN or current is None:
        return
    _earlier_handlers.append(current)
    signal.signal(signal.SIGTERM, _on_sigterm)


def _restore_sigterm() -> None:
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, _earlier_handlers.pop())


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    global _depth  # noqa: PLW0603
    if _depth == 0:
        for run in list(_open_runs):
            run.interrupt()
    # A handler above ours may call ours as the one before it: then it is the turn of what was before that.
    earlier = _earlier_handlers[-1 - _depth] if _depth < len(_earlier_handlers) else signal.SIG_DFL
    if callable(earlier):
        _depth += 1
        try:
            earlier(number, frame)
        finally:
            _depth -= 1
        return
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _at_exit() -> None:
    # Set by the interpreter when an exception went uncaught; in a notebook, for any cell that ever failed.
    error = None if "IPython" in sys.modules else getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    error = error or exits.last_exit()
    for run in list(_open_runs):
        run.close_at_exit(error)


def _after_fork() -> None:
    for run in _open_runs:
        run.detach()
    _open_runs.clear()
    exits.unwatch()
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, _earlier_handlers[-1])
