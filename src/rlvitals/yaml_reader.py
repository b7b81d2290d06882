"""Reads YAML files safely, with numbers as people write them (`5e-7` is a number, as in OmegaConf)."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from rlvitals.errors import ConfigError, RlvitalsError

# YAML 1.1 asks for a dot and a sign in the exponent; without this, `learning_rate: 5e-7` is a text.
_FLOAT = re.compile(
    r"^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)"
    r"|\.[0-9_]+(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)


def read_yaml(path: str | os.PathLike[str], error: type[RlvitalsError]) -> Any:
    """Parse a file; what is wrong with it is raised as `error`, with the line where there is one."""
    import yaml

    name = os.fspath(path)
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_loader())
    except OSError as problem:
        raise error(f"cannot read {name!r}: {problem.strerror or problem}") from problem
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise error(f"{name!r} is not valid YAML: {problem}") from problem


def parse_yaml(text: str) -> Any:
    """Parse a text such as `5e-7`, `[a, b]` or `null`; one that is no YAML is a ConfigError."""
    import yaml

    try:
        return yaml.load(text, Loader=_loader())
    except yaml.YAMLError as problem:
        raise ConfigError(f"{text!r} is not valid YAML: {problem}") from problem


def read_yaml_with_lines(
    path: str | os.PathLike[str], error: type[RlvitalsError]
) -> tuple[Any, dict[tuple[Any, ...], int]]:
    """Parse a file and say on which line each value begins, by its path of keys and indices."""
    import yaml

    data = read_yaml(path, error)
    lines: dict[tuple[Any, ...], int] = {}

    def walk(node: Any, place: tuple[Any, ...]) -> None:
        lines[place] = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                walk(value, (*place, key.value))
        elif isinstance(node, yaml.SequenceNode):
            for number, value in enumerate(node.value):
                walk(value, (*place, number))

    root = yaml.compose(Path(path).read_text(encoding="utf-8"), Loader=_loader())
    if root is not None:
        walk(root, ())
    return data, lines


@cache
def _loader() -> Any:
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("Loader", (base,), {})
    loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
    return loader
