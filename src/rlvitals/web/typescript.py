"""Writes `contract.d.ts`, the types of `rlvitals.contract` for the page's scripts:
`python -m rlvitals.web.typescript [--check]`.

The file is for the type checker and for editors, and is not sent to browsers. A test fails if it is out of date.
"""

from __future__ import annotations

import sys
import types
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from rlvitals import contract
from rlvitals.catalog.build import write_generated
from rlvitals.web.api import ANSWERS

WRITTEN = Path(__file__).parent / "contract.d.ts"
HEAD = "// Written by `python -m rlvitals.web.typescript` from rlvitals/contract.py: change that file, not this one.\n"
_SIMPLE = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null", Any: "unknown"}


class Declarations:
    """The interfaces that the types need, each once, in the order of first use."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def name(self, kind: type[Any]) -> str:
        """The name of a record's interface. Declares it if needed."""
        name = kind.__name__
        if name not in self.texts:
            self.texts[name] = ""  # reserves its place before the interfaces it needs
            missing: frozenset[str] = getattr(kind, "__optional_keys__", frozenset())
            lines = [
                f"  {key}{'?' if key in missing else ''}: {self.text(hint)};"
                for key, hint in get_type_hints(kind).items()
            ]
            doc = " ".join((kind.__doc__ or "").split())
            comment = f"/** {doc} */\n" if doc and not doc.startswith("dict(") else ""
            self.texts[name] = f"{comment}export interface {name} {{\n" + "\n".join(lines) + "\n}\n"
        return name

    def text(self, hint: Any) -> str:
        """A Python type in TypeScript.

        >>> Declarations().text(dict[str, list[float | None]])
        'Record<string, (number | null)[]>'
        """
        origin, arguments = get_origin(hint), get_args(hint)
        if hint in _SIMPLE:
            return _SIMPLE[hint]
        if is_typeddict(hint) or is_dataclass(hint):
            return self.name(hint)
        if origin is Annotated:
            return self.text(arguments[0])
        if origin in (Union, types.UnionType):
            return " | ".join(dict.fromkeys(map(self.text, arguments)))
        if origin is Literal:
            return " | ".join(f'"{word}"' for word in arguments)
        if origin is dict:
            return f"Record<string, {self.text(arguments[1])}>"
        if origin is tuple and ... not in arguments:
            return f"[{', '.join(map(self.text, arguments))}]"
        if origin in (list, tuple):
            item = self.text(arguments[0])
            return f"({item})[]" if " | " in item and not item.endswith((">", "]")) else f"{item}[]"
        raise TypeError(f"{hint} has no form in the page's contract")


def declarations() -> str:
    """The whole file."""
    made = Declarations()
    answers = {address: made.text(get_type_hints(answer)["return"]) for address, answer in ANSWERS.items()}
    made.name(contract.Events)
    made.name(contract.Failure)
    listed = "\n".join(f"  {address}: {text};" for address, text in answers.items())
    answered = f"/** What each address under `/api` answers. */\nexport interface Answers {{\n{listed}\n}}\n"
    return "\n".join([HEAD, answered, *made.texts.values()])


def main(arguments: list[str]) -> int:
    """Write the file, or with --check only compare; returns the exit code."""
    return write_generated(WRITTEN, declarations().encode(), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
