"""The package matches `docs/design/architecture.md`, which lists every room, its imports and its modules."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from conftest import REPO
from rlvitals.cli.main import MODULES, VERBS
from rlvitals.health.rules import FUNCTIONS
from rlvitals.importers.registry import shipped
from rlvitals.plugins import NOTIFY_SERVICES, TRACKERS

SOURCE = REPO / "src" / "rlvitals"
PLAN = REPO / "docs" / "design" / "architecture.md"

MOST_BLANKET_HANDLERS = 25
"""Handlers of Exception or BaseException. Use `rlvitals.guard` instead of adding one."""

ONLY_FOR_TYPES = "TYPE_CHECKING"


@cache
def modules() -> dict[str, Path]:
    """Every module by its dotted name; a package is its `__init__`."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = ("rlvitals", *path.relative_to(SOURCE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


class Facts(NamedTuple):
    """The facts kept from a module's syntax tree; the trees of all modules would be a million objects."""

    imports: frozenset[str]
    """The modules of rlvitals that it imports: at its top, inside functions, and for types."""
    blanket_handlers: list[int]
    """Their line numbers."""
    types: list[str]
    """The classes at its top that other modules may import."""
    aliases: list[str]
    """The names of other types at its top: of unions, literals and the like."""


@cache
def facts_of(module: str) -> Facts:
    found, handlers = set(), []
    tree = ast.parse(modules()[module].read_text())
    types = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    named = [
        node.targets[0].id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    ]
    aliases = [name for name in named if re.fullmatch("[A-Z][A-Za-z]*[a-z][A-Za-z]*", name)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules() else node.module for name in names}
        elif is_blanket(node):
            handlers.append(node.lineno)
    return Facts(frozenset(found & modules().keys()) - {module}, handlers, types, aliases)


def imports_of(module: str) -> frozenset[str]:
    return facts_of(module).imports


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "rlvitals"


def cycles() -> list[list[str]]:
    """Groups of modules that import each other, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for other in imports_of(module):
            if other not in order:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], order[other])
        if lowest[module] == order[module]:
            place = stack.index(module)
            group = stack[place:]
            del stack[place:]
            if len(group) > 1:
                found.append(sorted(group))

    for module in sorted(modules()):
        if module not in order:
            visit(module)
    return found


def test_no_modules_import_each_other_not_inside_functions_and_not_for_types_either():
    assert cycles() == []


def is_blanket(node: ast.AST) -> bool:
    """Whether it handles or suppresses every exception."""
    if isinstance(node, ast.ExceptHandler):
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        return node.type is None or any(isinstance(kind, ast.Name) and kind.id in EVERYTHING for kind in kinds)
    is_suppress = isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "suppress"
    return is_suppress and any(isinstance(kind, ast.Name) and kind.id in EVERYTHING for kind in node.args)


EVERYTHING = ("Exception", "BaseException")


def test_blanket_handlers_are_few():
    found = [f"{name}:{line}" for name in sorted(modules()) for line in facts_of(name).blanket_handlers]
    assert len(found) <= MOST_BLANKET_HANDLERS, found


SAME_FOR_EVERY_FRAMEWORK = {"VitalsCallback", "VitalsLogger", "VitalsMonitor", "VitalsTracker"}
"""Adapters use the same class names for every framework: a user changes only the module to switch frameworks."""


def test_no_two_types_have_one_name():
    places: dict[str, list[str]] = {}
    for module in sorted(modules()):
        for name in facts_of(module).types:
            places.setdefault(name, []).append(module)
    shared = {name: found for name, found in places.items() if len(found) > 1 and name not in SAME_FOR_EVERY_FRAMEWORK}
    assert shared == {}
    assert all(room_of(module) == "adapters" for name in SAME_FOR_EVERY_FRAMEWORK for module in places[name])


SHARED_WORDS = {"rlvitals.records", "rlvitals.values", "rlvitals.contract", "rlvitals.catalog.entries"}
"""The modules whose types are used everywhere."""


def test_no_alias_has_the_name_of_a_class_beside_it_or_of_one_that_is_used_everywhere():
    classes = [(name, module) for module in modules() for name in facts_of(module).types]
    aliases = [(name, module) for module in modules() for name in facts_of(module).aliases]
    places = {name: [module for known, module in classes if known == name] for name, _ in classes}
    found = [
        (name, module, other)
        for name, module in aliases
        for other in places.get(name, [])
        if {module, other} & SHARED_WORDS or module.rpartition(".")[0] == other.rpartition(".")[0]
    ]
    assert found == []


def test_no_two_modules_of_a_room_differ_by_an_s():
    names = set(modules())
    assert [name for name in sorted(names) if f"{name}s" in names] == []


@cache
def plan() -> dict[str, tuple[set[str], set[str]]]:
    """By room: the rooms it imports and its modules, as the document lists them."""
    rooms = {}
    for section in re.split(r"^### ", PLAN.read_text(), flags=re.MULTILINE)[1:]:
        heading = re.match(r"`([\w/.]+?)/?`", section)
        told = re.search(r"^Imports: (.*)$", section, re.MULTILINE)
        if heading is None or told is None:
            continue
        listed = re.findall(r"^- ((?:`[\w./]+`(?:, )?)+)", section, re.MULTILINE)
        names = {name for line in listed for name in re.findall(r"`([\w./]+)`", line)}
        rooms[heading[1]] = (set(re.findall(r"`(\w+)`", told[1])), names)
    for name, imported in re.findall(r"^\| `(\w+)\.py` \|(.*?)\|", PLAN.read_text(), re.MULTILINE):
        rooms[name] = (set(re.findall(r"`(\w+)`", imported)), set())
    return rooms


def rooms() -> list[str]:
    return sorted({room_of(module) for module in modules()} - {"rlvitals"})


@cache
def built() -> dict[str, tuple[set[str], set[str]]]:
    """The same, from the source."""
    rooms: dict[str, tuple[set[str], set[str]]] = {}
    for module in modules():
        room = room_of(module)
        if room == "rlvitals":
            continue
        imported, names = rooms.setdefault(room, (set(), set()))
        imported |= {room_of(other) for other in imports_of(module)} - {room, "rlvitals"}
        inner = "/".join(module.split(".")[2:])
        if inner and modules()[module].name != "__init__.py":
            names.add(inner)
    return rooms


@cache
def registered() -> frozenset[str]:
    """The modules that a list in the code names: verbs, trackers, services for notifications, importers, rules."""
    named = [*TRACKERS.values(), *NOTIFY_SERVICES.values()]
    verbs = {f"rlvitals.cli.{MODULES.get(verb, verb)}" for verb in VERBS}
    classes = {each.__module__ for each in (*shipped(), *FUNCTIONS.values())}
    return frozenset({each.module for each in named} | verbs | classes)


def test_the_plan_names_every_room():
    assert plan().keys() == built().keys()


@pytest.mark.parametrize("room", rooms())
def test_the_plan_of_a_room_is_true(room):
    imported, names = plan().get(room, (set(), set()))
    assert imported == built()[room][0], f"what {room} imports, in {PLAN.name}, is not what it imports"
    there = built()[room][1]
    listed = {name for name in there if f"rlvitals.{room}.{name.replace('/', '.')}" in registered()}
    assert there - listed <= names <= there, f"name each module of {room} in {PLAN.name}, and no other"


def test_rooms_import_in_one_direction():
    """A room imports only rooms that do not import it, directly or through others."""
    graph = {room: imported for room, (imported, _) in built().items()}

    def reach(room: str, seen: set[str]) -> set[str]:
        for other in graph.get(room, set()) - seen:
            seen.add(other)
            reach(other, seen)
        return seen

    assert [room for room in graph if room in reach(room, set())] == []
