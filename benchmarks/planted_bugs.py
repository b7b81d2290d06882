"""Which small bugs do the tests of a module find? Plants them one at a time in a copy of the source tree.

    python benchmarks/planted_bugs.py src/rlvitals/views/compare.py --tests tests/views/test_compare.py
    python benchmarks/planted_bugs.py src/rlvitals/health/monitor.py --tests tests/health -- -m "not slow"

A bug is one changed comparison, operator, constant or condition, or one removed statement. A bug that no test notices
is printed with the original code and the planted one; a person decides whether it is equivalent or needs a test. The
working tree is only read: the copy is in a temporary directory and comes first on the PYTHONPATH. The same seed chooses
the same places as long as the file does not change.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).parent.parent
LEFT_BEHIND = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "node_modules", "out", "dist"
)
NOT_FOUND, FOUND, HUNG = "not found", "found", "found (timed out)"

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Bug:
    """A piece of source and its replacement."""

    line: int
    start: int
    end: int
    was: str
    planted: str


class Source:
    """A module's text and the bugs that could be planted in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._raw = text.encode()
        self._lines = [0]
        for line in self._raw.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._tree = ast.parse(text)
        stored = Counter(node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name) and _is_stored(node))
        self._stored_twice = {name for name, times in stored.items() if times > 1}

    def bugs(self) -> Iterator[Bug]:
        for node in _executed(self._tree):
            if isinstance(node, ast.If):
                yield self._bug(node.test, "False")
                yield from (
                    self._bug(child, "pass") for child in node.body if isinstance(child, ast.Return | ast.Raise)
                )
            elif self._is_removable(node):
                yield self._bug(node, "pass")
            for planted in _changed(node):
                yield self._bug(node, planted if isinstance(planted, str) else f"({ast.unparse(planted)})")

    def _bug(self, node: ast.expr | ast.stmt, planted: str) -> Bug:
        start = self._lines[node.lineno - 1] + node.col_offset
        end = self._lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        return Bug(node.lineno, start, end, self._raw[start:end].decode(), planted)

    def _is_removable(self, node: ast.AST) -> bool:
        """Whether a statement can be removed without an undefined name, which any call would notice."""
        if isinstance(node, ast.Assign):
            return all(not isinstance(name, ast.Name) or name.id in self._stored_twice for name in node.targets)
        return isinstance(node, ast.Expr | ast.AugAssign | ast.Delete | ast.Continue | ast.Break)

    def with_bug(self, bug: Bug) -> str:
        return (self._raw[: bug.start] + bug.planted.encode() + self._raw[bug.end :]).decode()


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _executed(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """The nodes that a test can notice: no annotations, docstrings, imports, texts, or code for type checkers."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return
    if isinstance(node, ast.Assign) and any(
        isinstance(name, ast.Name) and name.id == "__all__" for name in node.targets
    ):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.expr | ast.stmt):
        yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _executed(child)


def _changed(node: ast.expr | ast.stmt) -> Iterator[ast.AST | str]:
    """Every small bug that can be planted in one node."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            for other in COMPARISONS[type(operator)]:
                changed = deepcopy(node)
                changed.ops[place] = other()
                yield changed
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        yield from (ast.BoolOp(node.op, [*node.values[:n], *node.values[n + 1 :]]) for n in range(len(node.values)))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif isinstance(node.value, int):
            yield ast.Constant(node.value + 1 if node.value < 10 else node.value * 2)
        elif isinstance(node.value, float):
            yield ast.Constant(node.value * 3 or 1.0)
    elif isinstance(node, ast.Slice) and node.step is None and node.lower is not None and node.upper is None:
        yield f"({ast.unparse(node.lower)}) + 1:"


def choose(source: Source, places: int, seed: int, lines: set[int]) -> list[Bug]:
    """One bug per line, for randomly drawn lines, in the order of the file."""
    by_line: dict[int, list[Bug]] = defaultdict(list)
    for bug in source.bugs():
        by_line[bug.line].append(bug)
    chance = random.Random(seed)
    drawn = sorted(chance.sample(sorted(by_line), min(places, len(by_line))))
    chosen = [chance.choice(by_line[line]) for line in drawn]
    if not lines:
        return chosen
    return [bug for line in sorted(lines) for bug in by_line[line]]


class Copy:
    """The checkout in a temporary directory, where bugs are planted and tests run."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / REPO.name
        shutil.copytree(REPO, self.root, ignore=LEFT_BEHIND)
        beside = REPO.parent / "shared"
        if beside.exists():
            (folder / "shared").symlink_to(beside)
        drafts = folder / "drafts"
        drafts.mkdir()
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(self.root / "src"),
            "OMP_NUM_THREADS": "1",
            "CI": "1",  # the same examples of hypothesis for every bug, and without a bug
            "PYTEST_DEBUG_TEMPROOT": str(drafts),  # no other process cleans up there and makes a test fail
        }
        found = subprocess.run(
            [sys.executable, "-c", "import rlvitals; print(rlvitals.__file__)"],
            cwd=self.root, env=self._environment, check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip
        if not Path(found).is_relative_to(self.root):
            sys.exit(f"The tests would import {found}, which is not the copy in {self.root}.")

    def plant(self, module: Path, text: str) -> None:
        place = self.root / module
        place.write_text(text, encoding="utf-8")
        for compiled in place.parent.glob(f"__pycache__/{place.stem}.*.pyc"):
            compiled.unlink()  # a bug of the same length, planted within the same second, would not be noticed

    def test(self, arguments: list[str], seconds: float) -> tuple[str, str]:
        """Run tests; returns whether they found the bug, and the end of their output."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments]
        child = subprocess.Popen(
            command, cwd=self.root, env=self._environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            output, _ = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return HUNG, ""
        return (NOT_FOUND if child.returncode == 0 else FOUND), output[-3000:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="+", type=Path, help="the files bugs are planted in")
    parser.add_argument("--tests", nargs="+", required=True, help="the test files or folders that should find them")
    parser.add_argument("--places", type=int, default=12, help="bugs for each file (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="another seed draws other places")
    parser.add_argument("--lines", default="", help="plant every bug of these lines instead, such as 24,312")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for the tests of one bug")
    given, pytest_options = _split(sys.argv[1:])
    options = parser.parse_args(given)
    lines = {int(line) for line in options.lines.split(",") if line}
    in_memory = "/dev/shm" if "TMPDIR" not in os.environ and os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="planted-", dir=in_memory) as folder:  # a disk is waited for at each sync
        copy = Copy(Path(folder))
        for module in options.modules:
            path = module.resolve().relative_to(REPO.resolve())
            source = Source((REPO / path).read_text(encoding="utf-8"))
            bugs = choose(source, options.places, options.seed, lines)
            _try(copy, path, source, bugs, tests=[*options.tests, str(path), *pytest_options], limit=options.limit)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Our own arguments, and pytest's after `--`."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:cut], arguments[cut + 1 :]


def _try(copy: Copy, module: Path, source: Source, bugs: list[Bug], *, tests: list[str], limit: float) -> None:
    began = time.monotonic()
    result, output = copy.test(tests, limit)
    if result != NOT_FOUND:
        sys.exit(f"The tests fail without a bug ({result}):\n{output}")
    print(f"\n{module}: {time.monotonic() - began:.0f} s a bug at most, {len(bugs)} planted", flush=True)
    survivors = []
    for bug in bugs:
        copy.plant(module, source.with_bug(bug))
        result, _ = copy.test(tests, limit)
        if result == NOT_FOUND:
            survivors.append(bug)
        print(f"  line {bug.line}: {result}", flush=True)
    copy.plant(module, source.text)
    print(f"{module}: {len(bugs) - len(survivors)} of {len(bugs)} found")
    if survivors:
        print("| line | was | planted |\n|---|---|---|")
    for bug in survivors:
        print(f"| {bug.line} | `{_line(bug.was)}` | `{_line(bug.planted)}` |", flush=True)


def _line(code: str) -> str:
    return " ".join(code.split())[:160]


if __name__ == "__main__":
    main()
