"""Runs a student's function against tests, in a separate process with limits.

Three walls, none of them meant for an attacker: an allow-list over the syntax tree decides what is run at all
(`refusal`); the code sees the builtins named here and nothing else; the process (`worker`) has limited time and memory,
no files to write and, where Linux allows it, no network. **This is not a sandbox for hostile code.** For that, run the
whole training in a container or a virtual machine.

A process is kept for many answers; one that was ended by a limit is replaced.

>>> refusal(parse("def f(x): return x + 1"))
>>> refusal(parse("import os"))
'Import is not allowed'
>>> refusal(parse("def f(x): return x.__class__"))
"the attribute '__class__' is not allowed"
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_LENGTH = 4000
"""Characters; a function of one line has some dozens."""

BUILTINS = frozenset({
    "abs", "all", "any", "bool", "dict", "divmod", "enumerate", "filter", "float", "int", "len", "list", "map", "max",
    "min", "pow", "range", "reversed", "round", "set", "sorted", "str", "sum", "tuple", "zip",
})  # fmt: skip

METHODS = frozenset({
    "append", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort", "copy", "clear",
    "get", "items", "keys", "values", "setdefault", "update", "add", "discard", "union", "intersection", "difference",
    "lower", "upper", "strip", "lstrip", "rstrip", "split", "join", "replace", "startswith", "endswith", "find",
    "isdigit", "isalpha", "title", "capitalize", "swapcase", "splitlines", "partition",
})  # fmt: skip
"""`format` is not among them: it reaches attributes that no syntax tree shows."""

NODES = (
    ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign,
    ast.If, ast.For, ast.While, ast.Break, ast.Continue, ast.Pass, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare,
    ast.Call, ast.keyword, ast.Name, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.Subscript, ast.Slice,
    ast.IfExp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.Starred,
    ast.JoinedStr, ast.FormattedValue, ast.Attribute, ast.NamedExpr,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip

WALLS = {
    "memory": "a memory limit",
    "files": "no files to write",
    "network": "no network",
    "read_only": "a read-only file system",
}

ENDS_ITSELF = hasattr(signal, "setitimer")
PATIENCE = 10.0
"""Seconds that a process may be silent beyond 20 times its own processor time, before it is given up."""
ENDED_BY_OTHERS = (-9, -15)
"""SIGKILL and SIGTERM: neither a time limit nor a crash of the answer's own."""


def parse(code: str) -> ast.Module | None:
    """The syntax tree, or None where the code is not Python (or too long to be looked at)."""
    if len(code) > MAX_LENGTH:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a student's strange escapes are not the user's business
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def refusal(tree: ast.Module | None) -> str | None:
    """Why this code is not run, or None where it may be: functions, expressions, loops, conditions and assignments to
    plain names; no import, no class, no exception handling, no names with two underscores, no attribute but `METHODS`.
    """
    if tree is None:
        return "this is not Python"
    for statement in tree.body:
        if not isinstance(statement, ast.FunctionDef):
            place = " outside of a function" if isinstance(statement, NODES) else ""
            return f"{type(statement).__name__} is not allowed{place}"
    for node in ast.walk(tree):
        if not isinstance(node, NODES):
            return f"{type(node).__name__} is not allowed"
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            return "a decorator is not allowed"
        if isinstance(node, ast.Attribute) and (node.attr not in METHODS or not isinstance(node.ctx, ast.Load)):
            return f"the attribute {node.attr!r} is not allowed"
        match node:
            case ast.FunctionDef(name=named) | ast.Name(id=named) | ast.arg(arg=named) | ast.keyword(arg=str(named)):
                if "__" in named:
                    return f"the name {named!r} is not allowed"
    return None


@dataclass(frozen=True, slots=True)
class RunnerResult:
    """What the tests said."""

    passed: tuple[bool, ...]
    problem: str = ""
    """Why it was not run, or the first exception, or the limit it hit."""

    @property
    def share(self) -> float:
        """The share of tests passed."""
        return sum(self.passed) / len(self.passed)


class CannotRun(RuntimeError):
    """No process can be started, or it ends before it is asked anything: nothing is known about the answer."""


class Runner:
    """Owns one worker process. Not for several threads at once."""

    def __init__(self, *, seconds: float = 1.0, memory_mib: int = 512) -> None:
        self._seconds, self._memory = seconds, memory_mib
        self._worker: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.protections: dict[str, bool] = {}
        """Which walls stand on this platform; known once a process has started."""

    def test(self, code: str, tests: Sequence[tuple[str, str]]) -> RunnerResult:
        """Run the code, if it is admitted, against (call, expected literal) pairs."""
        failed = (False,) * len(tests)
        if why := refusal(parse(code)):
            return RunnerResult(failed, f"not run: {why}")
        ended = RunnerResult(failed, f"ended by a limit ({self._seconds:g} s, {self._memory} MiB)")
        with contextlib.ExitStack() as unless_answered:
            # What a process still says would be read as the answer to the next question.
            unless_answered.callback(self.close)
            worker = self._running()
            line = json.dumps({"code": code, "tests": list(tests)}) + "\n"
            # A thread: a process that does not read would hold a long line, and us with it.
            threading.Thread(target=_feed, args=(worker, line), name="rlvitals-runner-in", daemon=True).start()
            try:
                # The process ends itself after its seconds of processor time; this wait is for one that gets none.
                answer = self._lines.get(timeout=20 * self._seconds + PATIENCE)
            except queue.Empty:
                if ENDS_ITSELF:
                    raise CannotRun("the process for the student's code got no processor time") from None
                return ended
            if not answer:
                if worker.wait() in ENDED_BY_OTHERS:
                    raise CannotRun("the process for the student's code was killed by somebody else")
                return ended
            unless_answered.pop_all()
        found = json.loads(answer)
        return RunnerResult(tuple(found["passed"]), found["problem"])

    def described(self) -> str:
        """What protects this machine, and that it is not a sandbox, in one sentence."""
        self._running()
        standing = [words for wall, words in WALLS.items() if self.protections.get(wall)]
        missing = [words for wall, words in WALLS.items() if not self.protections.get(wall)]
        return (
            f"answers run in a process with {self._seconds:g} s"
            + "".join(f", {words}" for words in standing)
            + (f"; not to be had here: {', '.join(missing)}" if missing else "")
            + ". This is not a sandbox for hostile code."
        )

    def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()
            worker.wait()
            for stream in (worker.stdin, worker.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def _running(self) -> subprocess.Popen[str]:
        if self._worker is not None and self._worker.poll() is None:
            return self._worker
        self.close()
        command = [
            sys.executable, "-I", "-S", str(Path(__file__).with_name("worker.py")),
            str(self._seconds), str(self._memory), ",".join(sorted(BUILTINS)),
        ]  # fmt: skip
        # Nothing of the environment goes along: keys are in it.
        kept = {name: os.environ[name] for name in ("SYSTEMROOT", "PATH") if name in os.environ}
        try:
            worker = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                encoding="utf-8", env=kept, cwd=os.path.abspath(os.sep),
            )  # fmt: skip
        except OSError as error:
            raise CannotRun(f"no process can be started for the student's code: {error}") from error
        self._worker, self._lines = worker, queue.SimpleQueue()
        threading.Thread(target=_pump, args=(worker, self._lines), name="rlvitals-runner", daemon=True).start()
        held = ""
        with contextlib.suppress(queue.Empty):
            held = self._lines.get(timeout=60)
        if not held:
            self.close()
            raise CannotRun("the process for the student's code does not start")
        self.protections = json.loads(held)
        return worker


def _feed(worker: subprocess.Popen[str], line: str) -> None:
    assert worker.stdin is not None
    with contextlib.suppress(OSError, ValueError):  # it has ended: the queue tells
        worker.stdin.write(line)
        worker.stdin.flush()


def _pump(worker: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    """Hand on what the process says, and an empty text when it has ended."""
    assert worker.stdout is not None
    with contextlib.suppress(OSError, ValueError):
        for line in worker.stdout:
            lines.put(line)
    lines.put("")
