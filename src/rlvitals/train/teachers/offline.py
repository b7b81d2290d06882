"""The offline teacher: deterministic, on any machine and without cost.

| criterion | measured |
|---|---|
| correctness | the share of the task's tests that pass, in a process with limits (`runner`) |
| quality | in the syntax tree: annotations, nothing unnecessary (`quality`) |
| efficiency | steps in the syntax tree: the reference's divided by the answer's; times the share of tests passed |
| documentation | a docstring, at least three words, the arguments' names, the task's numbers |

An answer that is not Python, or not the requested function, scores 0 on every criterion. If the tests cannot be run, or
the syntax tree is too deep to read (which raises), there is no judgement.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from rlvitals.terminal import logger
from rlvitals.train.functions import FunctionTask
from rlvitals.train.teachers.base import WEIGHTS, AnswerToJudge, Judgement
from rlvitals.train.teachers.runner import CannotRun, Runner, parse

ITEMS = 10
"""The assumed number of items of a loop. Any number ranks a loop above a step, and nested loops above one loop."""

READS_ALL = frozenset({
    "sum", "sorted", "list", "tuple", "set", "reversed", "filter", "map", "any", "all", "max", "min", "count", "index",
})  # fmt: skip
"""Builtins and methods that read all of their argument."""

FAULT = 0.25
"""What each unnecessary part costs in quality."""


class OfflineTeacher:
    """Judges by running and reading the code. Owns the process that runs it."""

    identity = "offline 1"

    def __init__(self, *, seconds: float = 1.0, memory_mib: int = 512) -> None:
        self._runner = Runner(seconds=seconds, memory_mib=memory_mib)

    def check(self) -> None:
        logger.info("the offline teacher: %s", self._runner.described())

    def judge(self, questions: Sequence[AnswerToJudge]) -> list[Judgement]:
        return [self._judge(question) for question in questions]

    def close(self) -> None:
        self._runner.close()

    def _judge(self, question: AnswerToJudge) -> Judgement:
        tree = parse(question.answer)
        function = find_function(tree, question.task.entry_point)
        if function is None:
            why = "this is not Python" if tree is None else f"there is no function {question.task.entry_point}"
            return Judgement(dict.fromkeys(WEIGHTS, 0.0), why)
        try:
            tested = self._runner.test(question.answer, question.task.tests)
        except CannotRun as error:
            return Judgement(None, str(error))
        scores = {
            "correctness": tested.share,
            "quality": quality(function),
            "efficiency": tested.share * efficiency(function, question.task),
            "documentation": documentation(function, question.task),
        }
        return Judgement(scores, tested.problem)


def find_function(tree: ast.Module | None, name: str) -> ast.FunctionDef | None:
    """The function of that name at a module's top level."""
    body = [] if tree is None else tree.body
    return next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == name), None)


def quality(function: ast.FunctionDef) -> float:
    """Half for annotations, and a quarter less for each unnecessary part.

    >>> quality(ast.parse("def f(x: int) -> bool: return x > 1").body[0])
    1.0
    >>> quality(ast.parse("def f(x): return True if x > 1 else False").body[0])
    0.25
    """
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    places = [*(argument.annotation for argument in arguments), function.returns]
    annotated = sum(place is not None for place in places) / len(places)
    faults = sum(map(_is_needless, ast.walk(function))) + _needless_variable(function)
    read = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    faults += sum(argument.arg not in read for argument in arguments)
    return max(0.0, 0.5 + 0.5 * annotated - FAULT * faults)


def _is_needless(node: ast.AST) -> bool:
    """Whether an expression could be written more simply."""
    match node:
        case ast.IfExp(body=ast.Constant(value=bool()), orelse=ast.Constant(value=bool())):
            return True  # True if x else False
        case ast.Compare(comparators=[ast.Constant(value=bool())]):
            return True  # x == True
        case ast.Call(func=ast.Name(id="filter" | "map"), args=[ast.Lambda(), *_]):
            return True  # should be a comprehension
        case ast.Call(func=ast.Name(id="len" | "sum" | "max" | "min" | "sorted"), args=[ast.ListComp() | ast.List()]):
            return True  # creates a list only to read it once
    return False


def _needless_variable(function: ast.FunctionDef) -> bool:
    match function.body[-2:]:
        case [ast.Assign(targets=[ast.Name(id=given)]), ast.Return(value=ast.Name(id=returned))]:
            return given == returned
    return False


def efficiency(function: ast.FunctionDef, task: FunctionTask) -> float:
    """The reference's cost divided by this function's, at most 1."""
    reference = find_function(parse(task.reference), task.entry_point)
    return 1.0 if reference is None else min(1.0, _total(reference.body) / _total(function.body))


def _total(body: Sequence[ast.AST]) -> float:
    return max(1.0, sum(map(cost, body)))


def cost(node: ast.AST) -> float:
    """Approximate number of steps: one for each operation, call and assignment, times `ITEMS` for each loop around it.

    >>> [cost(ast.parse(text)) for text in ("x + 1", "sum([x, 1])", "[i + 1 for i in x]", "x[:3]")]
    [1.0, 5.0, 20.0, 10.0]
    """
    below = float(sum(map(cost, ast.iter_child_nodes(node))))
    match node:
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            return float((1 + below) * ITEMS ** len(node.generators))
        case ast.For() | ast.While() | ast.Call(func=ast.Name(id="filter" | "map"), args=[_, _, *_]):
            return (1 + below) * ITEMS
        case ast.Call(func=ast.Name(id=name), args=[only]) if name in READS_ALL:
            return 1 + below + _length(only)
        case ast.Call(func=ast.Attribute(attr=name)) if name in READS_ALL:
            return 1 + below + ITEMS
        case ast.Subscript(slice=ast.Slice()):
            return below + ITEMS
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return below + len(items)
        case (
            ast.BinOp() | ast.BoolOp() | ast.Compare() | ast.IfExp() | ast.Call() | ast.Subscript()
            | ast.Assign() | ast.AugAssign() | ast.AnnAssign() | ast.NamedExpr()
        ):  # fmt: skip
            return 1 + below
    return below


def _length(items: ast.AST) -> float:
    return len(items.elts) if isinstance(items, ast.List | ast.Tuple | ast.Set) else ITEMS


def documentation(function: ast.FunctionDef, task: FunctionTask) -> float:
    """0 without a docstring; 0.4 for one, and 0.2 each for three words, the arguments' names and the task's numbers."""
    text = ast.get_docstring(function)
    if not text or not text.strip():
        return 0.0
    words = re.findall(r"\w+", text)
    numbers = re.findall(r"\b\d+\b", task.prompt)
    names = [argument.arg for argument in function.args.args]
    met = (len(words) >= 3, all(name in words for name in names), all(number in words for number in numbers))
    return 0.4 + 0.2 * sum(met)
