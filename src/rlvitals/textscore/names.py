"""The names that a piece of Python code reads, sets, changes or drops, and the names that exist only inside it.

A comprehension's targets and a lambda's parameters exist only inside it. `a.x = 1`, `a[0] = 1` and a call whose result
is not used (`a.append(1)`) change the object of `a`, but do not set the name `a`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from rlvitals.textscore.syntax import Program


class Role(Enum):
    """How a piece of code uses a name."""

    READ = "read"
    SET = "set"
    DECLARE = "declare"
    """Set by `import`, `def` or `class`: a later call on it does not count as a change."""

    CHANGE = "change"
    DROP = "drop"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class Mention:
    """A name at one place: the token, the name, its role, and the comprehension or lambda that owns it (0 if none)."""

    token: int
    name: bytes
    role: Role
    owner: int = 0


Owners = Mapping[bytes, int]
"""Names that belong to enclosing comprehensions and lambdas, and the number of their owner."""

COMPREHENSIONS = frozenset(
    {"list_comprehension", "set_comprehension", "dictionary_comprehension", "generator_expression"}
)
CONTAINERS = frozenset({"attribute", "subscript"})  # targets that change an object in place


class Mentions:
    """Collects the mentions of names, in execution order."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.found: list[Mention] = []
        self._owners = 0
        self._handlers: dict[str, Callable[[int, Owners], None]] = {
            "identifier": self._identifier,
            "attribute": self._attribute,
            "keyword_argument": self._keyword_argument,
            "assignment": self._assignment,
            "augmented_assignment": self._augmented,
            "named_expression": self._walrus,
            "as_pattern": self._as_pattern,
            "lambda": self._lambda,
            "import_statement": self._import,
            "import_from_statement": self._import,
            "future_import_statement": self._import,
            "delete_statement": self._delete,
            "expression_statement": self._expression,
            "case_pattern": self._pattern,
            **dict.fromkeys(COMPREHENSIONS, self._comprehension),
        }

    def read(self, node: int | None, owners: Owners | None = None) -> None:
        """Add the names that an expression reads, and those that it sets on the way."""
        if node is None:
            return
        handler = self._handlers.get(self.program.kinds[node])
        if handler is not None:
            handler(node, owners or {})
        else:
            self._read_all(self.program.children(node), owners or {})

    def set(self, node: int | None, owners: Owners | None = None) -> None:
        """Add the names that an assignment to this target sets, changes and reads."""
        if node is None:
            return
        kind = self.program.kinds[node]
        if kind == "identifier":
            self._mention(node, Role.SET)
        elif kind in CONTAINERS:
            self.read(node, owners)
            self._change(node)
        else:
            for child in self.program.children(node):
                self.set(child, owners)

    def declare(self, node: int | None) -> None:
        """Add the name of a function, a class or an import."""
        if node is not None:
            self._mention(node, Role.DECLARE)

    def _mention(self, node: int, role: Role, owner: int = 0) -> None:
        token = self.program.first_tokens[node]
        if token < self.program.last_tokens[node]:
            self.found.append(Mention(token, self.program.tokens[token], role, owner))

    def _read_all(self, nodes: Iterable[int], owners: Owners) -> None:
        for node in nodes:
            self.read(node, owners)

    def _identifier(self, node: int, owners: Owners) -> None:
        owner = owners.get(self.program.text(node), 0)
        self._mention(node, Role.OWN if owner else Role.READ, owner)

    def _attribute(self, node: int, owners: Owners) -> None:
        self.read(self.program.child(node, "object"), owners)

    def _keyword_argument(self, node: int, owners: Owners) -> None:
        self.read(self.program.child(node, "value"), owners)

    def _assignment(self, node: int, owners: Owners) -> None:
        self.read(self.program.child(node, "type"), owners)
        value = self.program.child(node, "right")
        if value is not None:  # `x: int` sets nothing
            self.read(value, owners)
            self.set(self.program.child(node, "left"), owners)

    def _augmented(self, node: int, owners: Owners) -> None:
        target = self.program.child(node, "left")
        self.read(target, owners)
        self.read(self.program.child(node, "right"), owners)
        if target is not None and self.program.kinds[target] in CONTAINERS:
            self._change(target)
        else:
            self.set(target, owners)

    def _walrus(self, node: int, owners: Owners) -> None:
        self.read(self.program.child(node, "value"), owners)
        self.set(self.program.child(node, "name"), owners)

    def _as_pattern(self, node: int, owners: Owners) -> None:
        children = list(self.program.children(node))
        self.read(children[0], owners)
        self.set(children[-1], owners)

    def _lambda(self, node: int, owners: Owners) -> None:
        parameters = self.program.child(node, "parameters")
        names = {} if parameters is None else self._own_names([parameters])
        if parameters is not None:
            for parameter in self.program.children(parameters):
                self.read(self.program.child(parameter, "value"), owners)
        self.read(self.program.child(node, "body"), {**owners, **names})

    def _comprehension(self, node: int, owners: Owners) -> None:
        clauses = [child for child in self.program.children(node) if self.program.kinds[child] == "for_in_clause"]
        targets = [target for clause in clauses if (target := self.program.child(clause, "left")) is not None]
        inner = {**owners, **self._own_names(targets)}
        for place, clause in enumerate(clauses):  # the first collection is evaluated outside
            self.read(self.program.child(clause, "right"), inner if place else owners)
        self._read_all([child for child in self.program.children(node) if child not in clauses], inner)

    def _own_names(self, targets: list[int]) -> dict[bytes, int]:
        """Add the names set in these nodes as own names, with a new owner."""
        self._owners += 1
        names = {}
        for target in targets:
            for node in range(target, self.program.ends[target]):
                if self.program.kinds[node] == "identifier" and self.program.fields[node] != "value":
                    names[self.program.text(node)] = self._owners
                    self._mention(node, Role.OWN, self._owners)
        return names

    def _import(self, node: int, owners: Owners) -> None:
        for child in self.program.children(node):
            if self.program.fields[child] == "name":
                alias = self.program.child(child, "alias")
                # `import a.b` sets `a`: the first part of the dotted name
                self.declare(alias if alias is not None else child + 1)

    def _delete(self, node: int, owners: Owners) -> None:
        before = len(self.found)
        self._read_all(self.program.children(node), owners)
        for target in self._parts(node):
            kind = self.program.kinds[target]
            if kind == "identifier":
                self._mention(target, Role.DROP)
            elif kind in CONTAINERS and len(self.found) > before:
                self._change(target)

    def _parts(self, node: int) -> Iterable[int]:
        for child in self.program.children(node):
            if self.program.kinds[child] == "expression_list":
                yield from self.program.children(child)
            else:
                yield child

    def _expression(self, node: int, owners: Owners) -> None:
        self._read_all(self.program.children(node), owners)
        call = node + 1
        if self.program.ends[node] > call and self.program.kinds[call] == "await":
            call += 2
        if call < self.program.ends[node] and self.program.kinds[call] == "call":
            function = self.program.child(call, "function")
            if function is not None and self.program.kinds[function] == "attribute":
                self._change(function)

    def _change(self, node: int) -> None:
        """Add a change of the name at the beginning of `a.b[0].c`."""
        while self.program.kinds[node] in {"attribute", "subscript", "call"}:
            node += 1
        if self.program.kinds[node] == "identifier":
            self._mention(node, Role.CHANGE)

    def _pattern(self, node: int, owners: Owners) -> None:
        """Add the names of a `case` pattern: single names are set, dotted names and classes are read."""
        for child in self.program.children(node):
            kind = self.program.kinds[child]
            if kind == "identifier":
                self.set(child, owners)
            elif kind == "dotted_name":
                names = [part for part in self.program.children(child) if self.program.named[part]]
                is_class = self.program.kinds[node] == "class_pattern"
                (self.read if is_class or len(names) > 1 else self.set)(names[0], owners)
            elif kind == "keyword_pattern":
                parts = list(self.program.children(child))
                self._value_pattern(parts[-1], owners)
            else:
                self._pattern(child, owners)

    def _value_pattern(self, node: int, owners: Owners) -> None:
        if self.program.kinds[node] == "dotted_name":
            names = [part for part in self.program.children(node) if self.program.named[part]]
            (self.read if len(names) > 1 else self.set)(names[0], owners)
        else:
            self._pattern(node, owners)
