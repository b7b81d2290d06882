"""The arguments of tools, declared once: as a schema for the client, and as a check of the values it sends.

Models sometimes send a number as text, or a single name instead of a list. Both are accepted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.web.answers import LONGEST_NAME

ArgumentKind = Literal["text", "texts", "whole", "flag"]

_TYPES = {"text": "string", "whole": "integer", "flag": "boolean"}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument."""

    name: str
    kind: ArgumentKind
    about: str
    needed: bool = False
    choices: tuple[str, ...] = ()
    most: int = 0
    """The maximum number of entries of a list."""

    @property
    def schema(self) -> dict[str, Any]:
        """The argument as JSON Schema."""
        if self.kind == "texts":
            return {"type": "array", "items": {"type": "string"}, "maxItems": self.most, "description": self.about}
        chosen = {"enum": list(self.choices)} if self.choices else {}
        return {"type": _TYPES[self.kind], **chosen, "description": self.about}

    def read(self, value: Any) -> Any:
        """The value, converted to its type. Raises ConfigError."""
        if self.kind == "flag" and isinstance(value, bool):
            return value
        if self.kind == "whole" and (number := _whole(value)) is not None:
            return number
        if self.kind == "text" and isinstance(value, str | int) and not isinstance(value, bool):
            return self._chosen(str(value))
        if self.kind == "texts":
            listed = [value] if isinstance(value, str) else value
            if isinstance(listed, list) and all(isinstance(item, str) for item in listed):
                if len(listed) > self.most:
                    raise ConfigError(f"{self.name!r} takes at most {self.most}, not {len(listed)}")
                return [self._bounded(item) for item in listed]
        wanted = "a list of texts" if self.kind == "texts" else f"of type {_TYPES[self.kind]}"
        raise ConfigError(f"{self.name!r} is {wanted}, not {str(value)[:80]!r}")

    def _chosen(self, text: str) -> str:
        if self.choices and text not in self.choices:
            raise ConfigError(f"{self.name!r} is one of {', '.join(self.choices)}, not {text[:80]!r}")
        return self._bounded(text)

    def _bounded(self, text: str) -> str:
        if len(text) > LONGEST_NAME:
            raise ConfigError(f"{self.name!r} has more than {LONGEST_NAME} characters")
        return text


def schema_of(arguments: Sequence[Argument]) -> dict[str, Any]:
    """The arguments of a tool as JSON Schema."""
    needed = [argument.name for argument in arguments if argument.needed]
    return {
        "type": "object",
        "properties": {argument.name: argument.schema for argument in arguments},
        **({"required": needed} if needed else {}),
        "additionalProperties": False,
    }


def read(arguments: Sequence[Argument], given: Mapping[str, Any]) -> dict[str, Any]:
    """Check and convert the given values. A null counts as not given. Raises ConfigError with the reason."""
    known = {argument.name: argument for argument in arguments}
    for name in given:
        if name not in known:
            raise ConfigError(
                f"there is no argument {name!r}.{did_you_mean(name, known)} Arguments: {', '.join(known)}"
            )
    found = {name: known[name].read(value) for name, value in given.items() if value is not None}
    missing = [
        argument.name for argument in arguments if argument.needed and found.get(argument.name) in (None, "", [])
    ]
    if missing:
        raise ConfigError(f"the question needs {', '.join(map(repr, missing))}")
    return found


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number) if math.isfinite(number) and number == int(number) and abs(number) <= 2**53 else None
