"""The task that the trainers share: write a small Python function of one line.

There are twelve families of functions, each with one argument and one constant (`add 7 to x`, `keep the items of values
below 4`). Each has a reference answer, tests, correct answers in better and worse style, and typical wrong answers. The
held-out tasks combine families with constants that do not occur together in training, so a model that has memorised the
training tasks fails on them.

>>> task = tasks(1, seed=0)[0]
>>> task.reference.startswith(f"def {task.entry_point}(")
True
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

CONSTANTS = range(2, 26)
NUMBER_NAMES = ("x", "n", "value", "number")
LIST_NAMES = ("items", "values", "data", "numbers")
HELD_OUT_EVERY = 5  # one constant in five, different ones in each family


@dataclass(frozen=True, slots=True)
class FunctionFamily:
    """One kind of function: templates over `{a}` (the argument), `{k}` (the constant), `{j}` (one next to it)."""

    name: str
    takes: Literal["int", "list"]
    gives: Literal["int", "bool", "list"]
    wordings: tuple[str, str]
    """The task in two wordings; docstrings use the first."""
    best: str
    worse: tuple[str, ...]
    """Correct expressions that are longer or slower."""
    wrong: tuple[str, ...]


FAMILIES = (
    FunctionFamily(
        "add", "int", "int", ("add {k} to {a}", "give {a} plus {k}"),
        "{a} + {k}", ("sum([{a}, {k}])",),
        ("{a} - {k}", "{a} + {j}", "{a} * {k}", "{a}"),
    ),
    FunctionFamily(
        "subtract", "int", "int", ("subtract {k} from {a}", "give {a} minus {k}"),
        "{a} - {k}", ("sum([{a}, -{k}])",),
        ("{a} + {k}", "{k} - {a}", "{a} - {j}", "{a}"),
    ),
    FunctionFamily(
        "multiply", "int", "int", ("multiply {a} by {k}", "give {a} times {k}"),
        "{a} * {k}", ("sum([{a} for i in range({k})])",),
        ("{a} + {k}", "{a} * {j}", "{a} // {k}", "{a}"),
    ),
    FunctionFamily(
        "remainder", "int", "int", ("divide {a} by {k} and give the remainder", "give {a} modulo {k}"),
        "{a} % {k}", ("{a} - {a} // {k} * {k}",),
        ("{a} // {k}", "{a} % {j}", "{k} % {a}", "{a}"),
    ),
    FunctionFamily(
        "divides", "int", "bool", ("tell whether {k} divides {a}", "test if {a} is a multiple of {k}"),
        "{a} % {k} == 0", ("True if {a} % {k} == 0 else False",),
        ("{a} % {k} == 1", "{a} % {j} == 0", "{a} % {k}", "{a} // {k} == 0"),
    ),
    FunctionFamily(
        "above", "int", "bool", ("tell whether {a} is above {k}", "test if {a} is greater than {k}"),
        "{a} > {k}", ("True if {a} > {k} else False",),
        ("{a} < {k}", "{a} >= {k}", "{a} > {j}", "{a} == {k}"),
    ),
    FunctionFamily(
        "limit", "int", "int", ("limit {a} to at most {k}", "give {a} but never more than {k}"),
        "min({a}, {k})", ("sorted([{a}, {k}])[0]",),
        ("max({a}, {k})", "min({a}, {j})", "{k}", "{a}"),
    ),
    FunctionFamily(
        "distance", "int", "int", ("give the distance of {a} from {k}", "say how far {a} is from {k}"),
        "abs({a} - {k})", ("max([{a} - {k}, {k} - {a}])",),
        ("{a} - {k}", "abs({a} + {k})", "abs({a} - {j})", "abs({a})"),
    ),
    FunctionFamily(
        "first", "list", "list", ("give the first {k} items of {a}", "take {k} items from the start of {a}"),
        "{a}[:{k}]", ("[{a}[i] for i in range(min({k}, len({a})))]",),
        ("{a}[{k}:]", "{a}[:{j}]", "{a}[-{k}:]", "{a}[{k}]"),
    ),
    FunctionFamily(
        "last", "list", "list", ("give the last {k} items of {a}", "take {k} items from the end of {a}"),
        "{a}[-{k}:]", ("list(reversed(list(reversed({a}))[:{k}]))",),
        ("{a}[:{k}]", "{a}[-{j}:]", "{a}[:-{k}]", "{a}[-{k}]"),
    ),
    FunctionFamily(
        "count", "list", "int", ("count the items of {a} equal to {k}", "say how often {k} is in {a}"),
        "{a}.count({k})", ("len([i for i in {a} if i == {k}])",),
        ("{a}.index({k})", "{a}.count({j})", "len({a})", "sum({a})"),
    ),
    FunctionFamily(
        "below", "list", "list", ("keep the items of {a} below {k}", "give what is less than {k} in {a}"),
        "[i for i in {a} if i < {k}]", ("list(filter(lambda i: i < {k}, {a}))",),
        ("[i for i in {a} if i > {k}]", "[i for i in {a} if i < {j}]",
         "[i for i in {a} if i <= {k}]", "{a}[:{k}]"),
    ),
)  # fmt: skip
BY_NAME = {family.name: family for family in FAMILIES}


@dataclass(frozen=True, slots=True)
class FunctionTask:
    """One function to write, and how an answer is tested."""

    family: str
    prompt: str
    reference: str
    entry_point: str
    tests: tuple[tuple[str, str], ...]
    """(call expression, expected literal)"""
    argument: str
    constant: int


def tasks(
    count: int, *, seed: int, split: Literal["train", "held_out"] = "train", families: Collection[str] | None = None
) -> list[FunctionTask]:
    """`count` tasks of a split in random order, of all or the given families. No task repeats before all were used."""
    every = [task for task in every_task(families) if is_held_out(task) == (split == "held_out")]
    rng = random.Random(f"{split} {seed}")  # noqa: S311
    drawn: list[FunctionTask] = []
    while len(drawn) < count:
        drawn += rng.sample(every, min(len(every), count - len(drawn)))
    return drawn


def answers(task: FunctionTask, rng: random.Random) -> list[tuple[str, bool]]:
    """Plausible answers to a task, in random order, and whether each is correct.

    Correct answers come with and without annotations and a docstring: direct, roundabout, and with a needless variable.
    Wrong answers vary in annotations and docstrings too, so that these do not reveal which answers are correct.
    """
    family = BY_NAME[task.family]
    beside = task.constant + rng.choice((-1, 1))
    written = [(expression, True) for expression in (family.best, *family.worse)]
    written += [(expression, False) for expression in family.wrong]
    found = []
    for template, right in written:
        expression = template.format(a=task.argument, k=task.constant, j=beside)
        hinted, documented = rng.random() < 0.5, rng.random() < 0.5
        found.append((function(task, expression, hinted=hinted, documented=documented), right))
    direct = family.best.format(a=task.argument, k=task.constant)
    found += [(function(task, direct, hinted=h, documented=d), True) for h in (False, True) for d in (False, True)]
    found.append((function(task, direct, detour=True), True))
    found = sorted(set(found))  # the same style may be drawn twice
    rng.shuffle(found)
    return found


def function(
    task: FunctionTask, expression: str, *, hinted: bool = False, documented: bool = False, detour: bool = False
) -> str:
    """The text of an answer that returns this expression."""
    family = BY_NAME[task.family]
    argument = f"{task.argument}: {family.takes}" if hinted else task.argument
    gives = f" -> {family.gives}" if hinted else ""
    wording = family.wordings[0].format(a=task.argument, k=task.constant)
    docstring = f'"{wording[0].upper()}{wording[1:]}."; ' if documented else ""
    body = f"result = {expression}; return result" if detour else f"return {expression}"
    return f"def {task.entry_point}({argument}){gives}: {docstring}{body}"


def corpus() -> list[str]:
    """Texts that together contain every token a prompt or an answer can have, for building a tokenizer."""
    rng = random.Random(0)  # noqa: S311
    texts = [" ".join(str(number) for number in range(CONSTANTS.start - 2, CONSTANTS.stop + 2))]
    for task in every_task():
        if task.constant == CONSTANTS.start:
            texts.append(task.prompt)
            texts += [answer for answer, _ in answers(task, rng)]
            texts += [function(task, "0", hinted=True, documented=True, detour=True)]
    return texts


def every_task(families: Collection[str] | None = None) -> list[FunctionTask]:
    """All tasks of both splits, in a fixed order."""
    return [task for task in _every() if families is None or task.family in families]


@cache
def _every() -> tuple[FunctionTask, ...]:
    return tuple(
        _task(family, constant, argument, wording)
        for family in FAMILIES
        for constant in CONSTANTS
        for argument in (NUMBER_NAMES if family.takes == "int" else LIST_NAMES)
        for wording in family.wordings
    )


def is_held_out(task: FunctionTask) -> bool:
    """Whether a task is reserved for evaluation."""
    return (task.constant + FAMILIES.index(BY_NAME[task.family])) % HELD_OUT_EVERY == 0


def _task(family: FunctionFamily, constant: int, argument: str, wording: str) -> FunctionTask:
    asked = wording.format(a=argument, k=constant)
    prompt = f"Write {family.name}({argument}) in Python: {asked}.\n"
    best = family.best.format(a=argument, k=constant)
    tests = _tests(family, constant, argument, best)
    task = FunctionTask(family.name, prompt, "", family.name, tests, argument, constant)
    return replace(task, reference=function(task, best, hinted=True, documented=True))


def _tests(family: FunctionFamily, constant: int, argument: str, best: str) -> tuple[tuple[str, str], ...]:
    """Calls with inputs below, at and above the constant, and the results of the best expression. Only expressions of
    this file are evaluated, never an answer.
    """
    k = constant
    inputs: tuple[object, ...]
    if family.takes == "int":
        inputs = (0, 1, k - 1, k, k + 1, 3 * k - 1, -k)
    else:
        inputs = ([k], [k + 1, k, k - 1, 2, k, 1, k], list(range(k + 4)), [3, 1])
    return tuple((f"{family.name}({each!r})", repr(eval(best, {argument: each}))) for each in inputs)  # noqa: S307
