"""The program dependence graph of Python code: which statements control others, and which provide values to others.

A vertex is a statement or a parameter (`statements.py`). A control edge leads from a condition, a loop or a definition
to each statement in its body; its label is the side (`body`, `else`...). A data edge leads from a statement that sets
or changes a name to each statement that may read that value, over all paths through a function (reaching definitions).
For a value from another function, there is an edge from every statement that sets the name.

A vertex's label is the statement's text, with names that the program sets itself replaced by $0, $1... in order of
appearance. A data edge's label is the number of the name that receives the value. Renaming variables, parameters and
the program's own functions therefore changes nothing, and `a - b` and `b - a` differ in their edges. Other names
(builtins, attributes, keyword arguments) and literals are compared as written.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from rlvitals.textscore.names import Mention, Role
from rlvitals.textscore.statements import Listing, Statement
from rlvitals.textscore.syntax import Program

DEEPEST = 200
"""Levels of the syntax tree that are accepted. Python itself accepts 100 levels of indentation and 200 of brackets."""

SETTING = frozenset({Role.SET, Role.DECLARE})

Name = tuple[int, bytes]
"""A scope and a name in it."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A directed graph: labels of the vertices, and for each pair of them the labels of its edges, sorted."""

    labels: tuple[str, ...]
    edges: dict[tuple[int, int], tuple[str, ...]]

    @property
    def size(self) -> int:
        """Vertices and edges together, as RUBY measures a graph."""
        return len(self.labels) + sum(len(labels) for labels in self.edges.values())


LARGEST = 200
"""Statements of a program that are accepted: the time to match two graphs grows with the third power."""


def dependence_graph(program: Program) -> Graph | str:
    """The graph of a program that parses, or the reason why there is none."""
    if program.language.name != "python":
        return f"no dependence graphs for {program.language.name}"
    if _depth(program) > DEEPEST:
        return "nested too deeply for a dependence graph"
    if sum(kind.endswith(("_statement", "_definition")) for kind in program.kinds) > LARGEST:
        return f"more than {LARGEST} statements, too many for a dependence graph"
    return _Dependence(Listing(program)).graph()


def _depth(program: Program) -> int:
    depths = [0] * len(program.parents)
    for node in range(1, len(depths)):
        depths[node] = depths[program.parents[node]] + 1
    return max(depths)


class _Dependence:
    """Finds the scope of each name of a program, the statements that set it, and the statements that read it."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.statements = listing.statements
        self.tokens = listing.program.tokens
        self.bound: list[set[bytes]] = [set() for _ in listing.scopes]
        self._bind()
        self.changeable = {
            self._home(statement.scope, mention.name)
            for statement in self.statements
            for mention in statement.mentions
            if mention.role is Role.SET
        }
        self.writers: dict[Name, list[int]] = defaultdict(list)
        """Every statement that writes a name."""

        self.visitors: dict[Name, list[int]] = defaultdict(list)
        """Writers of a name that are in another scope."""

        self._find_writers()

    def graph(self) -> Graph:
        edges: dict[tuple[int, int], list[str]] = defaultdict(list)
        reaching = self._reaching()
        parameters = {token for one in self.statements if one.parameter is not None for token in one.tokens}
        labels = []
        for number, statement in enumerate(self.statements):
            numbers = self._number_names(statement)
            labels.append(self._label(statement, numbers, parameters))
            if statement.under is not None:
                edges[statement.under[0], number].append(statement.under[1])
            for source, name in self._sources(statement, reaching[number]):
                edges[source, number].append(f"reads ${numbers[name]}")
        return Graph(tuple(labels), {pair: tuple(sorted(set(found))) for pair, found in edges.items()})

    def _bind(self) -> None:
        for statement in self.statements:
            outer = self.listing.scopes[statement.scope].outer
            for mention in statement.mentions:
                if mention.role in SETTING:
                    scope = statement.scope if mention.name not in outer else 0
                    if not outer.get(mention.name, True):
                        continue  # nonlocal: the enclosing scope binds it
                    self.bound[scope].add(mention.name)

    def _home(self, scope: int, name: bytes) -> Name | None:
        """The scope that a name belongs to; None if the program does not set the name."""
        scopes = self.listing.scopes
        declared = scopes[scope].outer.get(name)
        if declared is None and name in self.bound[scope]:
            return scope, name
        if declared:
            return (0, name) if name in self.bound[0] else None
        around = scopes[scope].around
        while around is not None:
            if name in self.bound[around] and not scopes[around].is_class:
                return around, name
            around = scopes[around].around
        return None

    def _find_writers(self) -> None:
        for number, statement in enumerate(self.statements):
            for name in self._written(statement):
                self.writers[name].append(number)
                if name[0] != statement.scope:
                    self.visitors[name].append(number)

    def _written(self, statement: Statement) -> list[Name]:
        found = [self._home(statement.scope, one.name) for one in statement.mentions if self._writes(statement, one)]
        return [name for name in dict.fromkeys(found) if name is not None]

    def _writes(self, statement: Statement, mention: Mention) -> bool:
        if mention.role is Role.CHANGE:  # a call on a module or a class is not a change
            return self._home(statement.scope, mention.name) in self.changeable
        return mention.role in SETTING

    def _reaching(self) -> list[dict[bytes, list[int]]]:
        """For each statement and each name it reads, the statements of its scope that may have set the value."""
        writes = [(number, name) for number, one in enumerate(self.statements) for name in self._written(one)]
        local = [(number, name) for number, name in writes if name[0] == self.statements[number].scope]
        masks: dict[Name, int] = defaultdict(int)
        given = [0] * len(self.statements)
        for bit, (number, name) in enumerate(local):
            masks[name] |= 1 << bit
            given[number] |= 1 << bit
        taken = [self._taken(statement, masks) for statement in self.statements]
        entering = self._settle(given, taken)
        found: list[dict[bytes, list[int]]] = []
        for statement, bits in zip(self.statements, entering, strict=True):
            names = {mention.name for mention in statement.mentions if mention.role is Role.READ}
            found.append({name: _picked(bits & masks[statement.scope, name], local) for name in names})
        return found

    def _taken(self, statement: Statement, masks: dict[Name, int]) -> int:
        """The values that end at a statement, because it sets or drops their names."""
        bits = 0
        for mention in statement.mentions:
            if mention.role in SETTING or mention.role is Role.DROP:
                bits |= masks.get((statement.scope, mention.name), 0)
        return bits

    def _settle(self, given: list[int], taken: list[int]) -> list[int]:
        """Propagate the values from statement to statement until nothing changes."""
        entering, leaving = [0] * len(given), given[:]
        changed = True
        while changed:
            changed = False
            for number, statement in enumerate(self.statements):
                bits = 0
                for before in statement.after:
                    bits |= leaving[before]
                if bits != entering[number]:
                    entering[number] = bits
                    leaving[number] = given[number] | (bits & ~taken[number])
                    changed = True
        return entering

    def _sources(self, statement: Statement, reaching: dict[bytes, list[int]]) -> list[tuple[int, Name]]:
        found, fresh = [], set[bytes]()
        for mention in statement.mentions:
            if mention.role in SETTING:
                fresh.add(mention.name)  # a walrus: later reads get the value set in this statement
            name = self._home(statement.scope, mention.name)
            if mention.role is not Role.READ or name is None or mention.name in fresh:
                continue
            is_local = name[0] == statement.scope
            sources = reaching[mention.name] + self.visitors[name] if is_local else self.writers[name]
            found += [(source, name) for source in sources]
        return found

    def _number_names(self, statement: Statement) -> dict[Name | tuple[int, bytes], int]:
        """The numbers of the names in a statement, in the order in which they are written."""
        numbers: dict[Name, int] = {}
        for mention in sorted(statement.mentions, key=lambda mention: mention.token):
            key = self._key(statement, mention)
            if key is not None:
                numbers.setdefault(key, len(numbers))
        return numbers

    def _key(self, statement: Statement, mention: Mention) -> Name | None:
        if mention.role is Role.OWN:
            return -mention.owner, mention.name
        return self._home(statement.scope, mention.name)

    def _label(self, statement: Statement, numbers: dict[Name, int], parameters: set[int]) -> str:
        if statement.parameter is not None:
            return f"parameter {statement.parameter}"
        keys = {mention.token: self._key(statement, mention) for mention in statement.mentions}
        words = []
        for token in statement.tokens:
            key = keys.get(token)
            if token in parameters:
                words.append("parameter")
            elif key is not None:
                words.append(f"${numbers[key]}")
            else:
                words.append(self.tokens[token].decode("utf-8", "replace"))
        return " ".join(words)


def _picked(bits: int, writes: list[tuple[int, Name]]) -> list[int]:
    found = []
    while bits:
        low = bits & -bits
        found.append(writes[low.bit_length() - 1][0])
        bits ^= low
    return found
