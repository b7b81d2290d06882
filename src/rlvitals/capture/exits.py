"""The status a process exits with. The interpreter does not expose it to exit handlers, so it is recorded here.

While runs are open, `sys.exit`, `exit` and `quit` record their argument before they raise SystemExit as usual. The
program's outermost frame shows whether that exit ended the program or was caught: a frame that was unwound by an
exception did not execute its return instruction. Two exits are not recorded, so their status is unknown: an explicit
`raise SystemExit(1)`, and a `sys.exit` that was imported by name before the run was started (`from sys import exit`).
"""

from __future__ import annotations

import builtins
import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

INTERRUPTED = (130, 143)
"""What shells, and programs that end on SIGINT or SIGTERM, exit with by convention."""

_noted: SystemExit | None = None
_main_frame: FrameType | None = None
_replaced: list[tuple[Any, str, Any, Any]] = []
"""What was put where: its owner, its name, what was there, and what is there now."""


def status_of(error: SystemExit) -> int:
    """The status a process exits with.

    >>> [status_of(SystemExit(code)) for code in (None, 0, False, 3, "no such file", "")]
    [0, 0, 0, 3, 1, 1]
    """
    if error.code is None:
        return 0
    return int(error.code) if isinstance(error.code, int) else 1


def watch() -> None:
    """Note exits from now on."""
    global _noted, _main_frame
    if _replaced:
        return
    _noted, _main_frame = None, _outermost_frame()
    _replace(sys, "exit")
    quitter = type(getattr(builtins, "exit", None))
    if quitter.__module__ == "_sitebuiltins":
        _replace(quitter, "__call__")


def unwatch() -> None:
    """Put everything back, unless somebody has put something of their own there since."""
    global _main_frame  # noqa: PLW0603
    _main_frame = None
    for owner, name, before, ours in _replaced:
        if getattr(owner, name) is ours:
            setattr(owner, name, before)
    _replaced.clear()


def last_exit() -> SystemExit | None:
    """The exit that ended the program; None where it ran to its end, or ended in a way that nobody noted.

    For the interpreter's end: only then has the outermost frame been left.
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
            if threading.current_thread() is threading.main_thread():  # in any other it ends the thread alone
                # Not the exception itself: its traceback would keep the whole program's variables.
                _noted = SystemExit(error.code if error.code is None or isinstance(error.code, int) else _text(error))
            raise

    return note_and_leave


def _text(error: SystemExit) -> str:
    try:
        return str(error.code)
    except Exception:  # noqa: BLE001 - somebody's own object
        return type(error.code).__name__


def _outermost_frame() -> FrameType | None:
    """Where the main thread began: the script, or what runs it."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _has_returned(frame: FrameType) -> bool:
    from opcode import opname

    code = frame.f_code.co_code
    return not 0 <= frame.f_lasti < len(code) or opname[code[frame.f_lasti]].startswith("RETURN")
