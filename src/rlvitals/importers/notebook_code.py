"""Reads from a notebook's code which trainings it starts: the trainer's class and its literal settings.

The code is parsed and never run. A setting is known only if it is a literal, or plain arithmetic on literals.
"""

from __future__ import annotations

import ast
import contextlib
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from rlvitals.importers.settings import SETTINGS, settings_in

MAX_SOURCE = 1_000_000
LARGEST = 1e15

KNOWN = frozenset(
    {
        *SETTINGS, "logging_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "temperature",
        "epsilon", "max_grad_norm", "warmup_ratio", "desirable_weight", "undesirable_weight",
    }
)  # fmt: skip
"""Settings that are kept."""

_ALGORITHMS = {
    "OnlineDPO": "online_dpo", "GRPO": "grpo", "RLOO": "rloo", "DPO": "dpo", "KTO": "kto", "ORPO": "orpo",
    "CPO": "cpo", "BCO": "bco", "PPO": "ppo", "GKD": "gkd", "Reward": "reward_model", "SFT": "sft",
}  # fmt: skip
_CLASS = re.compile(rf"({'|'.join(_ALGORITHMS)})(?:v2)?(Trainer|Config)$")
_PLAIN_TRAINERS = ("Trainer", "Seq2SeqTrainer", "UnslothTrainer")
_PLAIN_ARGUMENTS = "TrainingArguments"
_MAGIC = re.compile(r"^(\s*)(?:[%!?]|.*\?\s*$|\w+\s*=\s*[%!])")
_Number = int | float

_OPERATIONS: dict[type[ast.operator], Callable[[_Number, _Number], _Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True, slots=True)
class CodedTrainer:
    """A trainer that the code creates."""

    algorithm: str | None = None
    """The catalogue's name; None if the class does not imply an algorithm."""
    settings: dict[str, _Number] = field(default_factory=dict)


class CodeReader(ast.NodeVisitor):
    """Reads cells in order and remembers their assignments."""

    def __init__(self) -> None:
        self.latest: CodedTrainer | None = None
        """The trainer created last."""
        self._started: list[CodedTrainer] = []
        self._numbers: dict[str, _Number] = {}
        self._mappings: dict[str, dict[str, _Number]] = {}
        self._arguments: dict[str, dict[str, _Number]] = {}
        self._trainers: dict[str, CodedTrainer] = {}
        self._classes: dict[str, str | None] = {}
        """Trainer classes defined in the notebook, and their algorithm."""
        self._last_arguments: dict[str, _Number] = {}

    def read(self, source: str) -> list[CodedTrainer]:
        """The trainings that a cell starts with `.train()` or `.step()`, in order. A cell that is not Python is
        skipped.
        """
        self._started = []
        parsed = _parsed(source) if len(source) <= MAX_SOURCE else None
        if parsed is None and len(source) <= MAX_SOURCE:
            parsed = _parsed(self._without_magics(source))
        if parsed is not None:
            with contextlib.suppress(RecursionError):
                self.visit(parsed)
        return self._started

    def _without_magics(self, source: str) -> str:
        """Replaces lines that are not Python. A script started with settings also counts as a trainer."""
        lines = source.splitlines()
        for position, line in enumerate(lines):
            magic = _MAGIC.match(line)
            if magic:
                lines[position] = f"{magic[1]}pass"
                flags = {name: value for name, value in settings_in(line).items() if name in KNOWN}
                if flags:
                    self.latest = CodedTrainer(None, flags)
        return "\n".join(lines)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            self._bind(_dotted(target), node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        if node.value is not None:
            self._bind(_dotted(node.target), node.value)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for base in node.bases:
            name = _dotted(base).rpartition(".")[2]
            if self._is_trainer(name):
                self._classes[node.name] = self._algorithm(name)
        for statement in node.body:  # class CFG: max_steps = 100
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                self._bind(f"{node.name}.{statement.targets[0].id}", statement.value)
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                self._bind(f"{node.name}.{_dotted(statement.target)}", statement.value)
            elif isinstance(statement, ast.FunctionDef):
                self.visit(statement)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        name = _dotted(node.func)
        owner, _, method = name.rpartition(".")
        if method in ("train", "step") and owner in self._trainers:
            self._started.append(self._trainers[owner])
        elif self._is_arguments(method):
            self._last_arguments = self._settings(node)
        elif self._is_trainer(method):
            self.latest = self._trainer(node, method)

    def _bind(self, name: str, value: ast.expr) -> None:
        if not name:
            return
        for known in (self._numbers, self._mappings, self._arguments, self._trainers):
            known.pop(name, None)
        if isinstance(value, ast.Call):
            called = _dotted(value.func).rpartition(".")[2]
            if self._is_arguments(called):
                self._arguments[name] = self._settings(value)
            elif self._is_trainer(called):
                self._trainers[name] = self._trainer(value, called)
            elif called == "dict":
                self._mappings[name] = self._settings(value)
        elif isinstance(value, ast.Dict):
            self._mappings[name] = self._mapping(value)
            self._numbers.update({f"{name}[{key}]": number for key, number in self._mappings[name].items()})
        elif (number := self._number(value)) is not None:
            self._numbers[name] = number

    def _is_arguments(self, name: str) -> bool:
        match = _CLASS.search(name)
        return name.endswith(_PLAIN_ARGUMENTS) or (match is not None and match[2] == "Config")

    def _is_trainer(self, name: str) -> bool:
        match = _CLASS.search(name)
        return name in _PLAIN_TRAINERS or name in self._classes or (match is not None and match[2] == "Trainer")

    def _algorithm(self, name: str) -> str | None:
        match = _CLASS.search(name)
        if match is not None:
            return _ALGORITHMS[match[1]]
        return self._classes.get(name)

    def _trainer(self, node: ast.Call, name: str) -> CodedTrainer:
        settings = self._last_arguments  # arguments created inside the call are the last ones
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            settings = self._arguments.get(_dotted(argument), settings)
        return CodedTrainer(self._algorithm(name), settings | self._settings(node))

    def _settings(self, node: ast.Call) -> dict[str, _Number]:
        found: dict[str, _Number] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                given = keyword.value
                found |= self._mapping(given) if isinstance(given, ast.Dict) else self._mappings.get(_dotted(given), {})
            elif keyword.arg in KNOWN and (number := self._number(keyword.value)) is not None:
                found[keyword.arg] = number
        return found

    def _mapping(self, node: ast.Dict) -> dict[str, _Number]:
        found: dict[str, _Number] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            number = self._number(value)
            if isinstance(key, ast.Constant) and isinstance(key.value, str) and number is not None:
                found[key.value] = number
        return found

    def _number(self, node: ast.expr) -> _Number | None:
        """The number that an expression evaluates to; None if it is not known."""
        found: _Number | None = None
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            found = node.value  # type: ignore[assignment]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._number(node.operand)
            found = None if inner is None else -inner
        elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            one, other = self._number(node.left), self._number(node.right)
            if one is not None and other is not None and (other or not isinstance(node.op, ast.Div | ast.FloorDiv)):
                found = _OPERATIONS[type(node.op)](one, other)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            found = self._numbers.get(f"{_dotted(node.value)}[{node.slice.value!s}]")
        elif isinstance(node, ast.Name | ast.Attribute):
            found = self._numbers.get(_dotted(node))
        return found if found is not None and abs(found) <= LARGEST else None


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _dotted(node: ast.expr) -> str:
    """`a.b.c` as a text; empty if the expression has other parts than names."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""
