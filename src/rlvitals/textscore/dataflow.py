"""Where the values of a program come from, as CodeBLEU counts it.

Every name or literal that takes part in a flow gives one item: which names its value comes from. A name that is read
comes from itself, as it was set before; one that is set is computed from what stands on the other side. Names are
replaced by the order in which they appear, so that renaming a variable changes nothing.

The relation is the published one (GraphCodeBERT's, which CodeBLEU uses), kept as it is so that values compare with
published ones: the first time a name is seen counts as where it is set, attributes and indices on the left of an
assignment count as set too, and `x += y` comes from `y`. What RUBY uses to see which statement depends on which is
stricter: `dependence.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import Any

from rlvitals.textscore.syntax import Program

READ, SET = "comes from", "computed from"

Item = tuple[int, str, tuple[int, ...]]
"""A name, how it gets its value, and the names it gets it from; names are numbers."""

Work = Generator[Any, None, None]
"""A visit of a part of the program; what it yields is visited before it continues."""


class Merged:
    """A name was set in one of several places, depending on the branch taken."""

    __slots__ = ("origins",)

    def __init__(self, origins: list[int | Merged]) -> None:
        self.origins = origins


class BranchScope:
    """Which token set each name last. A branch has its own scope above the one it began in."""

    __slots__ = ("below", "own")

    def __init__(self, below: BranchScope | None = None) -> None:
        self.below = below
        self.own: dict[bytes, int | Merged] = {}

    def find(self, name: bytes) -> int | Merged | None:
        """What set the name, in this scope or one below."""
        scope: BranchScope | None = self
        while scope is not None:
            if name in scope.own:
                return scope.own[name]
            scope = scope.below
        return None


def flow_items(program: Program) -> Counter[Item]:
    """The program's data flow: each item and how often it occurs."""
    tracing = _Tracing(program)
    _run(tracing.visit(0, BranchScope(), False))
    return Counter(_numbered(program, tracing))


def _run(work: Work) -> None:
    """Do the visits, innermost first, without using Python's own stack: programs nest as deep as they like."""
    stack = [work]
    while stack:
        deeper = next(stack[-1], None)
        if deeper is None:
            stack.pop()
        else:
            stack.append(deeper)


def _numbered(program: Program, tracing: _Tracing) -> Iterable[Item]:
    numbers: dict[bytes, int] = {}
    for token in sorted(tracing.sources):
        relation, sources = tracing.sources[token]
        if not sources and token not in tracing.used:
            continue  # it gets nothing and gives nothing
        origins = tuple([numbers.setdefault(name, len(numbers)) for name in sources])
        yield numbers.setdefault(program.tokens[token], len(numbers)), relation, origins


class _Tracing:
    """One walk through a program in the order it runs."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.flow = flow = program.language.flow
        self.sources: dict[int, tuple[str, list[bytes]]] = {}
        self.used: set[int] = set()
        self.held = [
            kind == "identifier" or kind.encode() != text
            for kind, text in zip(program.token_kinds, program.tokens, strict=True)
        ]  # keywords and operators hold no value: their kind is their own text
        self.handlers: dict[str, Callable[[int, BranchScope, bool], Work]] = {
            **dict.fromkeys(flow.declarations, self._declaration),
            **dict.fromkeys(flow.assignments, self._assignment),
            **dict.fromkeys(flow.updates, self._update),
            **dict.fromkeys(flow.branches, self._branch),
            **dict.fromkeys(flow.loops, self._loop),
            **dict.fromkeys(flow.walks, self._walk),
        }

    def visit(self, node: int, scope: BranchScope, settled: bool) -> Work:
        """Visit a node and what is below it; `settled` inside the second round of a loop, where one round is enough."""
        kinds, lasts = self.program.kinds, self.program.last_tokens
        pending = [node]
        while pending:
            node = pending.pop()
            handler = self.handlers.get(kinds[node])
            if handler is not None:
                yield handler(node, scope, settled)
            elif self.program.is_token(node):
                if lasts[node] > self.program.first_tokens[node]:
                    self._read(self.program.first_tokens[node], scope)
            else:
                children = list(self.program.children(node))
                first = self.flow.read_first
                if first and any(kinds[child] in first for child in children):
                    children.sort(key=lambda child: kinds[child] not in first)
                pending.extend(reversed(children))

    def _read(self, token: int, scope: BranchScope) -> None:
        if not self.held[token]:
            return
        name = self.program.tokens[token]
        origin = scope.find(name)
        if origin is not None:
            self._use(origin)
            self._add(token, READ, [name])
            return
        if self.program.token_kinds[token] == "identifier":
            scope.own[name] = token
        self._add(token, READ, [])

    def _use(self, origin: int | Merged) -> None:
        pending: list[int | Merged] = [origin]
        while pending:
            one = pending.pop()
            if isinstance(one, int):
                self.used.add(one)
            else:
                pending += one.origins
                one.origins = []  # all of them are marked now

    def _add(self, token: int, relation: str, names: list[bytes]) -> None:
        """Add an item; one that is met again, in the second round of a loop, holds each name once."""
        before = self.sources.get(token)
        if before is not None:
            names = list(dict.fromkeys(before[1] + names))
        self.sources[token] = (relation, names)

    def _values(self, node: int) -> list[int]:
        return [token for token in self.program.span(node) if self.held[token]]

    def _give(self, target: int, value: int, relation: str, scope: BranchScope, *, whole: bool) -> None:
        """Set the names of `target` from those of `value`; `whole` keeps a name as often as it is written."""
        sources, tokens = self._values(value), self.program.tokens
        names = [tokens[source] for source in sources]
        if not whole:
            names = list(dict.fromkeys(names))
        for token in self._values(target):
            if names or whole:
                self._add(token, relation, names)
                self.used.update(sources)
            scope.own[tokens[token]] = token

    def _sides(self, node: int, fields: tuple[str, str]) -> tuple[int | None, int | None]:
        return self.program.child(node, fields[0]), self.program.child(node, fields[1])

    def _declaration(self, node: int, scope: BranchScope, settled: bool) -> Work:
        target, value = self._sides(node, self.flow.declarations[self.program.kinds[node]])
        if target is None:
            yield from self._children(node, scope, settled)
        elif value is None:
            for token in self._values(target):
                self._add(token, READ, [])
                scope.own[self.program.tokens[token]] = token
        else:
            yield self.visit(value, scope, settled)
            self._give(target, value, READ, scope, whole=False)

    def _assignment(self, node: int, scope: BranchScope, settled: bool) -> Work:
        kind = self.program.kinds[node]
        target, value = self._sides(node, self.flow.assignments[kind])
        if target is not None and value is not None:  # `x: int` sets nothing
            unpacks = self.flow.unpacks and kind not in self.flow.read_first
            pairs = self._pairs(target, value) if unpacks else [(target, value)]
            for _, part in pairs:
                yield self.visit(part, scope, settled)
            for name, part in pairs:
                self._give(name, part, SET, scope, whole=self.flow.unpacks)

    def _pairs(self, target: int, value: int) -> list[tuple[int, int]]:
        """What goes where: part by part when both sides have as many, else the one as a whole into the other."""
        if self.program.is_token(value):
            return [(target, value)]
        kinds = self.program.kinds
        names = [child for child in self.program.children(target) if kinds[child] != ","]
        parts = [child for child in self.program.children(value) if kinds[child] != ","]
        if names and len(names) == len(parts):
            return list(zip(names, parts, strict=True))
        return [(target, value)]

    def _update(self, node: int, scope: BranchScope, settled: bool) -> Work:
        self._give(node, node, SET, scope, whole=False)
        yield from ()

    def _branch(self, node: int, scope: BranchScope, settled: bool) -> Work:
        branches = [BranchScope(scope)]
        is_other, can_skip = False, True
        for child in self.program.children(node):
            kind = self.program.kinds[child]
            is_other = is_other or kind in self.flow.alternatives
            can_skip = can_skip and "else" not in kind
            if is_other:
                branches.append(BranchScope(scope))
            yield self.visit(child, branches[-1], settled)
        self._join(scope, branches, can_skip)

    def _join(self, scope: BranchScope, branches: list[BranchScope], can_skip: bool) -> None:
        for name in dict.fromkeys(name for branch in branches for name in branch.own):
            before = scope.find(name)
            found = [branch.own.get(name, before) for branch in branches] + ([before] if can_skip else [])
            origins = list(dict.fromkeys(origin for origin in found if origin is not None))
            scope.own[name] = origins[0] if len(origins) == 1 else Merged(origins)

    def _loop(self, node: int, scope: BranchScope, settled: bool) -> Work:
        children = list(self.program.children(node))
        start = next((place for place, child in enumerate(children) if self._is_start(child)), -1)
        for child in children:
            yield self.visit(child, scope, settled)
        if not settled:
            for child in children[start + 1 :]:
                yield self.visit(child, scope, True)

    def _is_start(self, node: int) -> bool:
        return self.program.fields[node] in self.flow.starts

    def _walk(self, node: int, scope: BranchScope, settled: bool) -> Work:
        target, value = self._sides(node, self.flow.walks[self.program.kinds[node]])
        if target is None or value is None:
            yield from self._children(node, scope, settled)
            return
        pairs = self._pairs(target, value) if self.flow.unpacks else [(target, value)]
        inside = [child for child in self.program.children(node) if child > value]
        for again in (settled,) if settled else (False, True):
            for _, part in pairs:
                yield self.visit(part, scope, again)
            for name, part in pairs:
                self._give(name, part, SET, scope, whole=self.flow.unpacks)
            for child in inside:
                yield self.visit(child, scope, again)

    def _children(self, node: int, scope: BranchScope, settled: bool) -> Work:
        for child in self.program.children(node):
            yield self.visit(child, scope, settled)
