"""Runs a student's function against tests, in a separate process with limits.

There are three protections. An allow-list over the syntax tree decides what is run at all (`refusal`). The code sees
only the builtins named here. The process (`worker`) has limited processor time and memory, cannot write files and,
where Linux allows it, has no network. **This is not a sandbox for hostile code.** For that, run the whole training in a
container or a virtual machine.

A process runs many answers. One that was ended by a limit is replaced.

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
"""Characters of an answer."""

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
"""Without `format`, which can read attributes that are not in the syntax tree."""

NODES = (
    ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign,
    ast.If, ast.For, ast.While, ast.Break, ast.Continue, ast.Pass, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare,
    ast.Call, ast.keyword, ast.Name, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.Subscript, ast.Slice,
    ast.IfExp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.Starred,
    ast.JoinedStr, ast.FormattedValue, ast.Attribute, ast.NamedExpr,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip

PROTECTIONS = {
    "memory": "a memory limit",
    "files": "no files to write",
    "network": "no network",
    "read_only": "a read-only file system",
}

ENDS_ITSELF = hasattr(signal, "setitimer")
START_SECONDS = 60.0
PATIENCE = 10.0
"""Seconds to wait for an answer, in addition to 20 times the limit of processor time."""
KILLED = (-9, -15)
"""Exit statuses after SIGKILL and SIGTERM: neither the time limit nor the answer's code causes them."""


def parse(code: str) -> ast.Module | None:
    """The syntax tree, or None if the code is not Python or too long."""
    if len(code) > MAX_LENGTH:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the student's code
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def refusal(tree: ast.Module | None) -> str | None:
    """Why this code is not run, or None if it may be run.

    Allowed are functions, expressions, loops, conditions and assignments to plain names. Imports, classes, exception
    handling, names with two underscores and attributes other than `METHODS` are not.
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
    """Which tests passed."""

    passed: tuple[bool, ...]
    problem: str = ""
    """Why the code was not run, the first exception, or the limit that ended it."""

    @property
    def share(self) -> float:
        """The share of tests passed."""
        return sum(self.passed) / len(self.passed)


class CannotRun(RuntimeError):
    """The code could not be run, for a reason that has nothing to do with the answer."""


class Runner:
    """Owns one worker process. Only one thread may use it."""

    def __init__(self, *, seconds: float = 1.0, memory_mib: int = 512) -> None:
        self._seconds, self._memory = seconds, memory_mib
        self._worker: subprocess.Popen[str] | None = None
        self.protections: dict[str, bool] = {}
        """Which protections this platform has. Known once a process has started."""

    def test(self, code: str, tests: Sequence[tuple[str, str]]) -> RunnerResult:
        """Run the code, if it is allowed, against (call, expected literal) pairs."""
        failed = (False,) * len(tests)
        if why := refusal(parse(code)):
            return RunnerResult(failed, f"not run: {why}")
        ended = RunnerResult(failed, f"ended by a limit ({self._seconds:g} s, {self._memory} MiB)")
        with contextlib.ExitStack() as unless_answered:
            # A late answer would be read as the answer to the next question.
            unless_answered.callback(self.close)
            worker = self._running()
            question = json.dumps({"code": code, "tests": list(tests)}) + "\n"
            # The process ends itself after its seconds of processor time. This longer wait is for one that gets none.
            answer = _exchange(worker, question, 20 * self._seconds + PATIENCE)
            if answer is None and ENDS_ITSELF:
                raise CannotRun("the process for the student's code got no processor time")
            if answer == "" and worker.wait() in KILLED:
                raise CannotRun("the process for the student's code was killed by another process")
            if not answer:
                return ended
            unless_answered.pop_all()
        found = json.loads(answer)
        return RunnerResult(tuple(found["passed"]), found["problem"])

    def described(self) -> str:
        """The protections of this platform in one sentence."""
        self._running()
        present = [words for name, words in PROTECTIONS.items() if self.protections.get(name)]
        missing = [words for name, words in PROTECTIONS.items() if not self.protections.get(name)]
        return (
            f"answers run in a process with {', '.join([f'{self._seconds:g} s of processor time', *present])}"
            + (f"; not available here: {', '.join(missing)}" if missing else "")
            + ". This is not a sandbox for hostile code."
        )

    def close(self) -> None:
        """End the process."""
        worker, self._worker = self._worker, None
        if worker is not None:
            with contextlib.suppress(OSError), worker:  # closes the pipes and waits for the end
                worker.kill()

    def _running(self) -> subprocess.Popen[str]:
        """The process; a new one if there is none."""
        if self._worker is not None and self._worker.poll() is None:
            return self._worker
        self.close()
        command = [
            sys.executable, "-I", "-S", str(Path(__file__).with_name("worker.py")),
            str(self._seconds), str(self._memory), ",".join(sorted(BUILTINS)),
        ]  # fmt: skip
        # The environment may hold keys, so only these variables are passed on.
        kept = {name: os.environ[name] for name in ("SYSTEMROOT", "PATH") if name in os.environ}
        try:
            self._worker = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                encoding="utf-8", env=kept, cwd=os.path.abspath(os.sep),
            )  # fmt: skip
        except OSError as error:
            raise CannotRun(f"no process can be started for the student's code: {error}") from error
        protections = _exchange(self._worker, "", START_SECONDS)
        if not protections:
            self.close()
            raise CannotRun("the process for the student's code does not start")
        self.protections = json.loads(protections)
        return self._worker


def _exchange(worker: subprocess.Popen[str], question: str, seconds: float) -> str | None:
    """Write a line to the process and read one: "" if the process has ended, None if it does not answer in time."""
    answers: queue.SimpleQueue[str] = queue.SimpleQueue()

    def write_and_read() -> None:
        answer = ""
        with contextlib.suppress(OSError, ValueError):  # the process has ended, or its pipes are closed
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(question)
            worker.stdin.flush()
            answer = worker.stdout.readline()
        answers.put(answer)

    # In a thread, because a process that hangs would block the writing of a long line as well.
    threading.Thread(target=write_and_read, name="rlvitals-runner", daemon=True).start()
    with contextlib.suppress(queue.Empty):
        return answers.get(timeout=seconds)
    return None
