"""The data flow of a program, as CodeBLEU counts it.

Every name or literal in a flow gives one item: the names that its value comes from. A name that is read comes from its
own earlier setting. A name that is set is computed from the other side of the assignment. Names are replaced by numbers
in order of appearance, so renaming a variable changes nothing.

The relation is the published one (GraphCodeBERT's, which CodeBLEU uses), unchanged, so values can be compared with
published ones. The first occurrence of a name counts as its setting, attributes and indices on the left of an
assignment count as set too, and `x += y` comes from `y`. RUBY uses a stricter analysis of dependence: `dependence.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import Any

from rlvitals.textscore.syntax import Program

READ, SET = "comes from", "computed from"

Item = tuple[int, str, tuple[int, ...]]
"""A name, the relation, and the names that its value comes from; names are numbers."""

Work = Generator[Any, None, None]
"""A visit of a part of the program. The visits that it yields are completed before it continues."""


class Merged:
    """The places where a name may have been set, depending on the branch taken."""

    __slots__ = ("origins",)

    def __init__(self, origins: list[int | Merged]) -> None:
        self.origins = origins


class BranchScope:
    """The token that set each name last. A branch has its own scope on top of the one that contains it."""

    __slots__ = ("below", "own")

    def __init__(self, below: BranchScope | None = None) -> None:
        self.below = below
        self.own: dict[bytes, int | Merged] = {}

    def find(self, name: bytes) -> int | Merged | None:
        """The token that set the name, in this scope or one below."""
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
    """Run the visits, innermost first, without Python's own stack, because programs may be nested deeply."""
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
            continue  # it neither receives nor provides a value
        origins = tuple([numbers.setdefault(name, len(numbers)) for name in sources])
        yield numbers.setdefault(program.tokens[token], len(numbers)), relation, origins


class _Tracing:
    """One walk through a program in execution order."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.flow = flow = program.language.flow
        self.sources: dict[int, tuple[str, list[bytes]]] = {}
        self.used: set[int] = set()
        self.held = [
            kind == "identifier" or kind.encode() != text
            for kind, text in zip(program.token_kinds, program.tokens, strict=True)
        ]  # keywords and operators have no value: their kind is equal to their text
        self.handlers: dict[str, Callable[[int, BranchScope, bool], Work]] = {
            **dict.fromkeys(flow.declarations, self._declaration),
            **dict.fromkeys(flow.assignments, self._assignment),
            **dict.fromkeys(flow.updates, self._update),
            **dict.fromkeys(flow.branches, self._branch),
            **dict.fromkeys(flow.loops, self._loop),
            **dict.fromkeys(flow.walks, self._walk),
        }

    def visit(self, node: int, scope: BranchScope, settled: bool) -> Work:
        """Visit a node and its descendants. `settled` is true in the second round of a loop: inner loops run once."""
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
                one.origins = []  # all origins are marked now

    def _add(self, token: int, relation: str, names: list[bytes]) -> None:
        """Add an item. An item that occurs again, in the second round of a loop, keeps each name once."""
        before = self.sources.get(token)
        if before is not None:
            names = list(dict.fromkeys(before[1] + names))
        self.sources[token] = (relation, names)

    def _values(self, node: int) -> list[int]:
        return [token for token in self.program.span(node) if self.held[token]]

    def _give(self, target: int, value: int, relation: str, scope: BranchScope, *, whole: bool) -> None:
        """Set the names of `target` from those of `value`; with `whole`, repeated names are kept."""
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
        """Pairs of target and value: part by part if both sides have equally many parts, else the two whole sides."""
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
