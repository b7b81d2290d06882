"""Reads YAML files safely, with numbers as people write them (`5e-7` is a number, as in OmegaConf)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from rlvitals.errors import ConfigError, RlvitalsError

# YAML 1.1 requires a dot and a sign in the exponent; without this, `learning_rate: 5e-7` is a text.
_FLOAT = re.compile(
    r"^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)"
    r"|\.[0-9_]+(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)


MOST_NESTED = 100
MOST_VALUES = 100_000
"""Maximum number of values that aliases may expand to. A rule file or a trainer's settings have some hundred in all."""


def read_yaml(path: str | os.PathLike[str], error: type[RlvitalsError]) -> Any:
    """Parse a file. Problems are raised as `error`, with the line number if there is one."""
    return read_yaml_with_lines(path, error)[0]


def parse_yaml(text: str) -> Any:
    """Parse a text such as `5e-7`, `[a, b]` or `null`. Raises ConfigError if it is not YAML."""
    return _parse(text, repr(text), ConfigError)[0]


def read_yaml_with_lines(
    path: str | os.PathLike[str], error: type[RlvitalsError]
) -> tuple[Any, dict[tuple[Any, ...], int]]:
    """Parse a file and return the line on which each value begins, by its path of keys and indices."""
    name = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as problem:
        raise error(f"cannot read {name!r}: {problem.strerror or problem}") from problem
    except UnicodeDecodeError as problem:
        raise error(f"{name!r} is not valid YAML: {problem}") from problem
    return _parse(text, repr(name), error)


def _parse(text: str, name: str, error: type[RlvitalsError]) -> tuple[Any, dict[tuple[Any, ...], int]]:
    """A document's value and the lines of its parts. The size of the node tree is checked before values are built."""
    import yaml

    try:
        _refuse_depth(yaml.parse(text, Loader=_loader()), name, error)
        loader = _loader()(text)
        try:
            root = loader.get_single_node()
            if root is None:
                return None, {}
            _refuse_bombs(root, name, error)
            lines = _lines(root)  # before merge keys (<<) are written into the nodes
            return loader.construct_document(root), lines
        finally:
            loader.dispose()
    except yaml.YAMLError as problem:
        for mark in (getattr(problem, "context_mark", None), getattr(problem, "problem_mark", None)):
            with suppress(AttributeError):
                mark.buffer = None  # type: ignore[union-attr]  # a line of settings in a message may hold a secret
        raise error(f"{name} is not valid YAML: {problem}") from problem
    except ValueError as problem:  # an invalid date, a number with thousands of digits
        raise error(f"{name} holds a value that cannot be read: {problem}") from problem


def _refuse_depth(events: Iterable[Any], name: str, error: type[RlvitalsError]) -> None:
    """Raise on deeply nested brackets: the parser's C code is recursive and would crash the process."""
    import yaml

    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_NESTED:
            raise error(f"{name}, line {event.start_mark.line + 1}: more than {MOST_NESTED} values within each other")


def _refuse_bombs(root: Any, name: str, error: type[RlvitalsError]) -> None:
    """Raise on a document that is small in the file and huge, or endless, in memory: nested aliases."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: Any) -> int:
        known = sizes.get(id(node))
        if known is not None:
            return known
        if id(node) in open_nodes:
            raise error(f"{name}, line {node.start_mark.line + 1}: an alias refers to the value it stands in")
        open_nodes.add(id(node))
        inner = node.value if isinstance(node.value, list) else ()
        total = 1 + sum(size(part) for item in inner for part in (item if isinstance(item, tuple) else (item,)))
        if total - len(sizes) > MOST_VALUES:
            raise error(
                f"{name}, line {node.start_mark.line + 1}: its aliases (*name) stand for more than {MOST_VALUES:,} "
                f"values. Write the values down, or refer to something smaller."
            )
        open_nodes.discard(id(node))
        sizes[id(node)] = total
        return total

    size(root)


def _lines(root: Any) -> dict[tuple[Any, ...], int]:
    import yaml

    lines: dict[tuple[Any, ...], int] = {}

    def walk(node: Any, place: tuple[Any, ...]) -> None:
        lines[place] = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                walk(value, (*place, key.value if isinstance(key.value, str) else str(key.value)))
        elif isinstance(node, yaml.SequenceNode):
            for number, value in enumerate(node.value):
                walk(value, (*place, number))

    walk(root, ())
    return lines


@cache
def _loader() -> Any:
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("Loader", (base,), {})
    loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
    return loader
