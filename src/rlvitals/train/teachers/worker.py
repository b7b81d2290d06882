"""The process that `runner` starts as a script to run allowed code against its tests. It imports nothing of rlvitals.

Before it reads the first line, it limits its memory and files. Where Linux allows it, it moves to a network without
interfaces and makes its file system read-only. It answers each JSON line with a JSON line, until its input ends. The
time limit is processor time; it ends the process, and `runner` starts another one.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

NEW_NAMESPACES = 0x10000000 | 0x40000000 | 0x00020000  # user, network, mount
MOUNT_SETATTR = 442
RECURSIVE = 0x8000
READ_ONLY = 1
AT_FDCWD = -100


def limit(memory_mib: int) -> dict[str, bool]:
    """Limit this process as far as the platform allows. Returns which limits apply."""
    held = {"memory": False, "files": False, "network": False, "read_only": False}
    try:
        import resource
    except ImportError:
        return held  # no POSIX: only the parent's time limit applies
    size = memory_mib * 2**20
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        held["memory"] = sys.platform.startswith("linux")  # macOS accepts the limit but does not enforce it
    if sys.platform.startswith("linux"):
        held["network"], held["read_only"] = isolate()
    with contextlib.suppress(OSError, ValueError):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        held["files"] = True
    return held


def isolate() -> tuple[bool, bool]:
    """Move to a network without interfaces, and make all mounts read-only. Returns whether each worked."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NAMESPACES):
        return False, False
    attributes = (ctypes.c_uint64 * 4)(READ_ONLY, 0, 0, 0)
    failed = libc.syscall(
        ctypes.c_long(MOUNT_SETATTR), ctypes.c_int(AT_FDCWD), ctypes.c_char_p(b"/"), ctypes.c_uint(RECURSIVE),
        ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes)),
    )  # fmt: skip
    return True, not failed


def run(job: Mapping[str, Any], allowed: Mapping[str, Any]) -> dict[str, Any]:
    """Define the function, call it and compare the results. An exception fails the test that raised it."""
    space: dict[str, Any] = {"__builtins__": allowed}
    _, problem = attempt(lambda: exec(compile(job["code"], "<answer>", "exec"), space))  # noqa: S102 - the purpose of this process
    if problem:
        return {"passed": [False] * len(job["tests"]), "problem": problem}
    tested = [attempt(passes, call, expected, space) for call, expected in job["tests"]]
    return {"passed": [bool(ok) for ok, _ in tested], "problem": next(filter(None, (why for _, why in tested)), "")}


def passes(call: str, expected: str, space: dict[str, Any]) -> bool:
    """Whether a call returns the expected value, of the same type."""
    value, wanted = eval(call, space), ast.literal_eval(expected)  # noqa: S307
    return type(value) is type(wanted) and bool(value == wanted)


def attempt(function: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """The result of a function, and the error that it raised: its type and the beginning of its text."""
    try:
        return function(*arguments), ""
    except Exception as error:  # noqa: BLE001 - a student's code may raise anything
        return None, f"{type(error).__name__}: {error}"[:200]


def main() -> None:
    """Print the limits, then the answers, each on one line."""
    seconds, memory_mib = float(sys.argv[1]), int(sys.argv[2])
    allowed = {name: getattr(builtins, name) for name in sys.argv[3].split(",")}
    asked, answers = sys.stdin, os.fdopen(os.dup(sys.stdout.fileno()), "w")
    held = limit(memory_mib)
    answers.write(json.dumps(held) + "\n")
    answers.flush()
    clock = getattr(signal, "setitimer", lambda *_: None)  # SIGVTALRM's default action ends the process
    for line in asked:
        clock(getattr(signal, "ITIMER_VIRTUAL", 0), seconds)
        answer = json.dumps(run(json.loads(line), allowed))
        clock(getattr(signal, "ITIMER_VIRTUAL", 0), 0)
        answers.write(answer + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
