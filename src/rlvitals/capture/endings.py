"""Ends recordings without a call of `finish`: on SIGTERM, an exit with a status, the end of the interpreter, a fork.

Keeps the list of runs that this process has open. Signal handlers that were installed earlier are called as well, so a
trainer that saves a checkpoint on SIGTERM still does.

The interpreter does not expose the status a process exits with to exit handlers, so it is recorded here. While runs are
open, `sys.exit`, `exit` and `quit` record their argument before they raise SystemExit as usual. The program's outermost
frame shows whether that exit ended the program or was caught: a frame that was unwound by an exception did not execute
its return instruction. Two exits are not recorded, so their status is unknown: an explicit `raise SystemExit(1)`, and a
`sys.exit` that was imported by name before the run was started (`from sys import exit`).
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Protocol

from rlvitals.guard import value_or, words_of
from rlvitals.masking import mask_text
from rlvitals.records import Status


class Recording(Protocol):
    """The methods that an open run needs when the process ends."""

    def interrupt(self) -> None:
        """Make everything durable and mark the run interrupted; more rows may still come."""

    def close_at_exit(self, error: BaseException | None) -> None:
        """Finish when the interpreter ends: as failed if an exception or an exit with a status ended it."""

    def detach(self) -> None:
        """Stop recording: the process is a forked child and must not write."""


_open_runs: list[Recording] = []
_hooks_installed = False
_earlier_handlers: list[Any] = []
"""The SIGTERM handlers that ours replaced, newest last. There are several if other code replaced our handler and
another run was started afterwards."""
_depth = 0


def watch(run: Recording) -> None:
    """End this run when the process ends, until `unwatch` is called."""
    global _hooks_installed  # noqa: PLW0603 - process-wide hooks are installed once
    _open_runs.append(run)
    if not _hooks_installed:
        _hooks_installed = True
        atexit.register(_at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_after_fork)
    _install_sigterm()
    _note_exits()


def open_runs() -> list[Recording]:
    """The runs this process records."""
    return list(_open_runs)


def unwatch(run: Recording) -> None:
    """Stop watching a run that has finished."""
    with contextlib.suppress(ValueError):
        _open_runs.remove(run)
    if not _open_runs:
        _restore_sigterm()
        _stop_noting_exits()


def described(error: BaseException | str | None, settings: Mapping[str, Any]) -> str | None:
    """The error that ended a run, as text for its card. Secrets of these settings are masked."""
    if not error:
        return None
    return mask_text(error if isinstance(error, str) else words_of(error), settings)[:2000]


def status_after(error: BaseException | str | None) -> Status:
    """The status of a run that ended with this error.

    >>> status_after(None), status_after("out of memory"), status_after(KeyboardInterrupt())
    ('finished', 'failed', 'interrupted')
    """
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return "finished" if error in (None, "") else "failed"


def _install_sigterm() -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may install handlers
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
    # A handler that replaced ours may call ours. Then the handler that ours replaced is called.
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
    # The interpreter sets these for an uncaught exception. A notebook also sets them for any cell that failed.
    error = None if "IPython" in sys.modules else getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    error = error or _last_exit()
    for run in list(_open_runs):
        run.close_at_exit(error)


def _after_fork() -> None:
    for run in _open_runs:
        run.detach()
    _open_runs.clear()
    _stop_noting_exits()
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, _earlier_handlers[-1])


INTERRUPTED = (130, 143)
"""The conventional exit statuses of programs that end on SIGINT or SIGTERM."""

_noted: SystemExit | None = None
_main_frame: FrameType | None = None
_replaced: list[tuple[Any, str, Any, Any]] = []
"""The replaced functions: owner, name, original and replacement."""


def status_of(error: SystemExit) -> int:
    """The exit status of the process.

    >>> [status_of(SystemExit(code)) for code in (None, 0, False, 3, "no such file", "")]
    [0, 0, 0, 3, 1, 1]
    """
    if error.code is None:
        return 0
    return int(error.code) if isinstance(error.code, int) else 1


def _note_exits() -> None:
    global _noted, _main_frame
    if _replaced:
        return
    _noted, _main_frame = None, _outermost_frame()
    _replace(sys, "exit")
    quitter = type(getattr(builtins, "exit", None))
    if quitter.__module__ == "_sitebuiltins":
        _replace(quitter, "__call__")


def _stop_noting_exits() -> None:
    """Restore the replaced functions, except those that other code has replaced since."""
    global _main_frame  # noqa: PLW0603
    _main_frame = None
    for owner, name, before, ours in _replaced:
        if getattr(owner, name) is ours:
            setattr(owner, name, before)
    _replaced.clear()


def _last_exit() -> SystemExit | None:
    """The exit that ended the program; None if it ran to its end or its exit was not recorded.

    Only valid at the end of the interpreter, because the outermost frame must have ended.
    """
    if _main_frame is None or _has_returned(_main_frame):
        return None
    return _noted


def _replace(owner: Any, name: str) -> None:
    before = getattr(owner, name)
    ours = _noting(before)
    setattr(owner, name, ours)
    _replaced.append((owner, name, before, ours))


def _noting(leave: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(leave)
    def note_and_leave(*arguments: Any) -> Any:
        global _noted  # noqa: PLW0603
        try:
            return leave(*arguments)
        except SystemExit as error:
            if threading.current_thread() is threading.main_thread():  # in other threads it ends only the thread
                # Not the exception itself: its traceback would keep the whole program's variables.
                _noted = SystemExit(
                    error.code
                    if error.code is None or isinstance(error.code, int)
                    else value_or(type(error.code).__name__, str, error.code)
                )
            raise

    return note_and_leave


def _outermost_frame() -> FrameType | None:
    """The first frame of the main thread: the script, or the program that runs it."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _has_returned(frame: FrameType) -> bool:
    from opcode import opname

    code = frame.f_code.co_code
    return not 0 <= frame.f_lasti < len(code) or opname[code[frame.f_lasti]].startswith("RETURN")
