"""Strict check of parsed JSON against a type of the page's contract: no key is missing and none is undeclared.

`store/fields.py`, in contrast, reads files, fills in defaults and ignores unknown keys.
"""

from __future__ import annotations

import math
import types
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict


def differences(kind: Any, value: Any, where: str = "") -> list[str]:
    """How a value differs from a type: one sentence for each place."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return []
    if origin is Annotated:
        return differences(arguments[0], value, where)
    if origin in (Union, types.UnionType):
        found = [differences(arm, value, where) for arm in arguments]
        return min(found, key=lambda texts: (bool(texts), -max((one.count(".") for one in texts), default=0)))
    if is_typeddict(kind) or is_dataclass(kind):
        return _of_record(kind, value, where)
    if origin is dict and isinstance(value, dict):
        return [text for key, item in value.items() for text in differences(arguments[1], item, f"{where}.{key}")]
    if origin in (list, tuple) and isinstance(value, list):
        kinds = arguments if origin is tuple and ... not in arguments else arguments[:1] * len(value)
        if len(kinds) == len(value):
            pairs = enumerate(zip(kinds, value, strict=True))
            return [text for place, (one, item) in pairs for text in differences(one, item, f"{where}.{place}")]
    return [] if _fits(kind, value) else [f"{where} is {value!r:.60}, not {kind}"]


def _of_record(kind: Any, value: Any, where: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{where} is {value!r:.60}, not {kind.__name__}"]
    hints = get_type_hints(kind)
    needed = kind.__required_keys__ if is_typeddict(kind) else {item.name for item in fields(kind)}
    found = [f"{where}.{key} is missing" for key in sorted(needed - value.keys())]
    found += [f"{where}.{key} is not declared" for key in sorted(value.keys() - hints.keys())]
    shared = [(key, item) for key, item in value.items() if key in hints]
    return found + [text for key, item in shared for text in differences(hints[key], item, f"{where}.{key}")]


def _fits(kind: Any, value: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is kind
