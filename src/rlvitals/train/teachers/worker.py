"""The other side of `runner`: a process that runs admitted code against its tests. Started as a script, imports nothing
of rlvitals.

It gives up what it can before it reads the first line: memory and files are limited, and where Linux lets it, it has a
network of its own without any interface and a file system that cannot be written. Then, a JSON line in, a JSON line
out, until its input ends. The time limit is processor time and ends the process; whoever asked starts another one.
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
    """Give up what can be given up; returns what worked."""
    held = {"memory": False, "files": False, "network": False, "read_only": False}
    try:
        import resource
    except ImportError:
        return held  # no POSIX: the parent's clock is all there is
    size = memory_mib * 2**20
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        held["memory"] = sys.platform.startswith("linux")  # macOS takes the limit and does not keep it
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
    """A network without interfaces, and all mounts read-only; whether each worked."""
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
    """Define the function, call it, compare; an exception fails the test it was raised in."""
    space: dict[str, Any] = {"__builtins__": allowed}
    _, problem = attempt(lambda: exec(compile(job["code"], "<answer>", "exec"), space))  # noqa: S102 - what it is for
    if problem:
        return {"passed": [False] * len(job["tests"]), "problem": problem}
    tested = [attempt(passes, call, expected, space) for call, expected in job["tests"]]
    return {"passed": [bool(ok) for ok, _ in tested], "problem": next(filter(None, (why for _, why in tested)), "")}


def passes(call: str, expected: str, space: dict[str, Any]) -> bool:
    """Whether a call gives what is expected, the type included."""
    value, wanted = eval(call, space), ast.literal_eval(expected)  # noqa: S307
    return type(value) is type(wanted) and bool(value == wanted)


def attempt(function: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """What a function returns, and what it raised: the kind of the error and a bit of its text."""
    try:
        return function(*arguments), ""
    except Exception as error:  # noqa: BLE001 - a student's code raises anything
        return None, f"{type(error).__name__}: {error}"[:200]


def main() -> None:
    """Limits, then answers, a line each."""
    seconds, memory_mib = float(sys.argv[1]), int(sys.argv[2])
    allowed = {name: getattr(builtins, name) for name in sys.argv[3].split(",")}
    asked, answers = sys.stdin, os.fdopen(os.dup(sys.stdout.fileno()), "w")
    held = limit(memory_mib)
    answers.write(json.dumps(held) + "\n")
    answers.flush()
    clock = getattr(signal, "setitimer", lambda *_: None)  # SIGVTALRM is left as it is: it ends the process
    for line in asked:
        clock(getattr(signal, "ITIMER_VIRTUAL", 0), seconds)
        answer = json.dumps(run(json.loads(line), allowed))
        clock(getattr(signal, "ITIMER_VIRTUAL", 0), 0)
        answers.write(answer + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
