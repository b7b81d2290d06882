"""A Python program as a list of statements: the names each one mentions, its parent, and which may run before it.

The whole program, functions and class bodies are scopes with their own names. A function's parameters are statements
too, the first of its body. A condition (`if`, `elif`, `while`, `case`, `except`) is a separate statement. `else` and
`finally` are not; they only set the side of the statements in them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rlvitals.textscore.names import Mention, Mentions, Role
from rlvitals.textscore.syntax import Program

OUTER = frozenset({"global_statement", "nonlocal_statement"})
DEFINITIONS = frozenset({"function_definition", "class_definition"})
LEAVING = frozenset({"return_statement", "raise_statement"})
LOOPS = frozenset({"for_statement", "while_statement"})
PARTS = frozenset({"block", "elif_clause", "else_clause", "except_clause", "finally_clause", "case_clause"})
"""Kinds of node that contain other statements and are not part of a statement's own text."""

START = -1
"""Marks the beginning of a scope among the statements that may run before."""


@dataclass(slots=True)
class Statement:
    """A statement; numbers are indices in the list of all statements."""

    scope: int
    tokens: list[int]
    """Its own text, without the statements in it."""

    mentions: list[Mention] = field(default_factory=list)
    under: tuple[int, str] | None = None
    """The statement that controls it, and the side."""

    after: set[int] = field(default_factory=set)
    """Statements of its scope that may run just before it."""

    parameter: int | None = None


@dataclass(slots=True)
class Scope:
    """A function, a class body or the whole program."""

    around: int | None
    is_class: bool = False
    outer: dict[bytes, bool] = field(default_factory=dict)
    """Names declared `global` (True) or `nonlocal` (False)."""


@dataclass(slots=True)
class _Loop:
    head: int
    left_by: set[int] = field(default_factory=set)


Side = tuple[int, str] | None


class Listing:
    """All statements and scopes of a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.statements: list[Statement] = []
        self.scopes: list[Scope] = [Scope(None)]
        self._loops: list[_Loop] = []
        self._block(0, {START}, 0, None)

    def _add(self, node: int, before: set[int], scope: int, under: Side) -> int:
        statement = Statement(scope, self._own_tokens(node), under=under, after=before - {START})
        self.statements.append(statement)
        return len(self.statements) - 1

    def _own_tokens(self, node: int) -> list[int]:
        """The tokens of a statement without those of the blocks in it."""
        kinds, tokens = self.program.kinds, list[int]()
        for child in self.program.children(node):
            if kinds[child] in DEFINITIONS:
                tokens += self._own_tokens(child)
            elif kinds[child] not in PARTS:
                tokens += self.program.span(child)
        return tokens or list(self.program.span(node))[:1]

    def _block(self, node: int, before: set[int], scope: int, under: Side) -> set[int]:
        """List the statements of a block; returns those that may be the last to run in it."""
        for child in self.program.children(node):
            if self.program.named[child]:
                after = self._statement(child, before, scope, under)
                before = after if before else set()  # unreachable statements have no successors
        return before

    def _statement(self, node: int, before: set[int], scope: int, under: Side) -> set[int]:
        kind = self.program.kinds[node]
        number = self._add(node, before, scope, under)
        if kind == "if_statement":
            return self._if(node, number, scope)
        if kind in LOOPS:
            return self._loop(node, number, scope)
        if kind == "try_statement":
            return self._try(node, number, scope)
        if kind == "match_statement":
            return self._match(node, number, scope)
        if kind == "with_statement":
            self._mention(number, reads=[child for child in self._children(node) if not self._is_part(child)])
            return self._block_in(node, {number}, scope, (number, "body"))
        if kind == "decorated_definition" or kind in DEFINITIONS:
            return self._definition(node, number, scope)
        return self._simple(node, number, scope)

    def _simple(self, node: int, number: int, scope: int) -> set[int]:
        kind = self.program.kinds[node]
        if kind in OUTER:
            names = [child for child in self._children(node) if self.program.kinds[child] == "identifier"]
            self.scopes[scope].outer |= {self.program.text(name): kind == "global_statement" for name in names}
        elif kind == "type_alias_statement":
            self._mention(number, reads=[self.program.child(node, "right")], sets=[self.program.child(node, "left")])
        else:
            self._mention(number, reads=[node])
        if kind == "break_statement" and self._loops:
            self._loops[-1].left_by.add(number)
            return set()
        if kind == "continue_statement" and self._loops:
            self.statements[self._loops[-1].head].after.add(number)
            return set()
        return set() if kind in LEAVING else {number}

    def _children(self, node: int) -> list[int]:
        return list(self.program.children(node))

    def _is_part(self, node: int) -> bool:
        return self.program.kinds[node] in PARTS

    def _block_in(self, node: int, before: set[int], scope: int, under: Side) -> set[int]:
        block = next((child for child in self._children(node) if self.program.kinds[child] == "block"), None)
        return before if block is None else self._block(block, before, scope, under)

    def _mention(self, number: int, reads: list[int | None] | list[int], sets: list[int | None] | None = None) -> None:
        mentions = Mentions(self.program)
        for node in reads:
            mentions.read(node)
        for node in sets or []:
            mentions.set(node)
        self.statements[number].mentions += mentions.found

    def _if(self, node: int, number: int, scope: int) -> set[int]:
        self._mention(number, reads=[self.program.child(node, "condition")])
        over = self._block_in(node, {number}, scope, (number, "body"))
        last = number
        for part in self._children(node):
            if self.program.kinds[part] == "elif_clause":
                condition = self._add(part, {last}, scope, (last, "else"))
                self._mention(condition, reads=[self.program.child(part, "condition")])
                over |= self._block_in(part, {condition}, scope, (condition, "body"))
                last = condition
            elif self.program.kinds[part] == "else_clause":
                return over | self._block_in(part, {last}, scope, (last, "else"))
        return over | {last}

    def _loop(self, node: int, number: int, scope: int) -> set[int]:
        child = self.program.child
        self._mention(number, reads=[child(node, "condition"), child(node, "right")], sets=[child(node, "left")])
        self._loops.append(_Loop(number))
        self.statements[number].after |= self._block_in(node, {number}, scope, (number, "body"))
        loop = self._loops.pop()
        over = {number}
        other = child(node, "alternative")
        if other is not None:
            over = self._block_in(other, over, scope, (number, "else"))
        return over | loop.left_by

    def _try(self, node: int, number: int, scope: int) -> set[int]:
        over = self._block_in(node, {number}, scope, (number, "body"))
        inside = set(range(number, len(self.statements)))  # any of them may raise
        for part in self._children(node):
            kind = self.program.kinds[part]
            if kind == "except_clause":
                handler = self._add(part, inside, scope, (number, "except"))
                self._mention(handler, reads=[self.program.child(part, "value")])
                over |= self._block_in(part, {handler}, scope, (handler, "body"))
            elif kind == "else_clause":
                over = self._block_in(part, over, scope, (number, "else"))
            elif kind == "finally_clause":
                over = self._block_in(part, over | inside, scope, (number, "finally"))
        return over

    def _match(self, node: int, number: int, scope: int) -> set[int]:
        self._mention(number, reads=[child for child in self._children(node) if not self._is_part(child)])
        over, last = set[int](), number
        body = self.program.child(node, "body")
        for part in [] if body is None else self._children(body):
            if self.program.kinds[part] == "case_clause":
                case = self._add(part, {last}, scope, (number, "case"))
                self._mention(case, reads=[child for child in self._children(part) if not self._is_part(child)])
                over |= self._block_in(part, {case}, scope, (case, "body"))
                last = case
        return over | {last}

    def _definition(self, node: int, number: int, scope: int) -> set[int]:
        inner = next(one for one in [*self._children(node)[::-1], node] if self.program.kinds[one] in DEFINITIONS)
        mentions = Mentions(self.program)
        for child in self._children(node) if inner != node else []:
            if child != inner:
                mentions.read(child)
        for child in self._children(inner):
            name = self.program.fields[child]
            if name == "parameters":
                self._read_parameters(child, mentions)
            elif name not in {"name", "body"}:
                mentions.read(child)
        mentions.declare(self.program.child(inner, "name"))
        self.statements[number].mentions = mentions.found
        self._body(inner, number, scope)
        return {number}

    def _read_parameters(self, parameters: int, mentions: Mentions) -> None:
        """Add the names in defaults and annotations, which are read where the function is defined."""
        for parameter in self._children(parameters):
            mentions.read(self.program.child(parameter, "value"))
            mentions.read(self.program.child(parameter, "type"))

    def _body(self, node: int, number: int, scope: int) -> None:
        around, self._loops = self._loops, []  # `break` in a body cannot leave a loop outside it
        self.scopes.append(Scope(scope, is_class=self.program.kinds[node] == "class_definition"))
        inside, before = len(self.scopes) - 1, {START}
        parameters = self.program.child(node, "parameters")
        for place, name in enumerate([] if parameters is None else self._parameter_names(parameters)):
            token = self.program.first_tokens[name]
            parameter = self._add(name, before, inside, (number, "parameter"))
            self.statements[parameter].mentions.append(Mention(token, self.program.tokens[token], Role.SET))
            self.statements[parameter].parameter = place
            before = {parameter}
        self._block_in(node, before, inside, (number, "body"))
        self._loops = around

    def _parameter_names(self, parameters: int) -> list[int]:
        names = []
        for parameter in self._children(parameters):
            kinds = self.program.kinds[parameter : self.program.ends[parameter]]
            if "identifier" in kinds:  # the first identifier is the name; `*` and `/` alone have none
                names.append(parameter + kinds.index("identifier"))
        return names
