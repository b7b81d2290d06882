"""A small parser for mappings that programs print: Python's repr, JSON, and numpy and torch values inside them.

Nothing is evaluated. Anything that is not a literal (`<Enum: 1>`, `PosixPath('x')`) becomes None.
"""

from __future__ import annotations

import re
from typing import Any

from rlvitals.importers.cells import number_in

MAX_DEPTH = 24

_SPACE = re.compile(r"\s*")
_STRING = re.compile(r"""[rbuf]?(?:'((?:[^'\\\n]|\\.)*)'|"((?:[^"\\\n]|\\.)*)")""", re.DOTALL)
_PLAIN_ATOM = re.compile(r"[^,:{}\[\]()'\"\s<]+")
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_CLOSING = {"[": "]", "(": ")"}


class Malformed(ValueError):
    """The text is not a mapping; `at` is the position of the error."""

    at = 0


class Incomplete(Malformed):
    """The text ends inside the mapping; `whole` holds the complete pairs before the end."""

    whole: dict[Any, Any]


def parse_mapping(text: str, at: int = 0) -> tuple[dict[Any, Any], int]:
    """The mapping that begins at `text[at]`, and its end position.

    >>> parse_mapping("{'loss': nan, 'kl': np.float64(0.5), 'parts': {'a': '1'}} and so on")[0]
    {'loss': nan, 'kl': 0.5, 'parts': {'a': '1'}}
    """
    scanner = _Scanner(text, at)
    try:
        value = scanner.value(0)
        if not isinstance(value, dict):
            raise Malformed("not a mapping")
    except Malformed as error:
        error.at = scanner.at
        if isinstance(error, Incomplete):
            error.whole = scanner.outermost
        raise
    return value, scanner.at


class _Scanner:
    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at
        self.outermost: dict[Any, Any] = {}
        """The complete pairs of the outermost mapping: each was followed by a comma."""

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise Malformed("nested too deeply")
        first = self._peek()
        if first == "{":
            return self._mapping(depth)
        if first in "[(":
            return self._sequence(depth, _CLOSING[first])
        if first in "'\"" or _STRING.match(self.text, self.at):
            return self._string()
        return self._atom()

    def _mapping(self, depth: int) -> dict[Any, Any] | None:
        self.at += 1
        found: dict[Any, Any] = {} if depth else self.outermost
        while True:
            if self._peek() == "}":
                self.at += 1
                return found
            key = self.value(depth + 1)
            if self._peek() != ":":
                raise Malformed("a set or text, not a mapping")
            self.at += 1
            value = self.value(depth + 1)
            self._comma("}")  # required before the value counts, because a cut number may still parse as a number
            found[key if isinstance(key, str | int | float) else str(key)] = value

    def _sequence(self, depth: int, closing: str) -> list[Any]:
        self.at += 1
        found = []
        while self._peek() != closing:
            found.append(self.value(depth + 1))
            self._comma(closing)
        self.at += 1
        return found

    def _comma(self, closing: str) -> None:
        mark = self._peek()
        if mark == ",":
            self.at += 1
        elif mark != closing:
            raise Malformed(f"{mark!r} where a comma was expected")

    def _string(self) -> str:
        parts = []
        while match := _STRING.match(self.text, self.at):
            parts.append(_unescaped(match[1] if match[1] is not None else match[2]))
            self.at = match.end()
            self._skip_space()
        if not parts:
            raise Incomplete("a text without an end")
        return "".join(parts)

    def _atom(self) -> Any:
        start = self.at
        plain = _PLAIN_ATOM.match(self.text, start)
        if plain is None and self.text[start] not in "<":
            raise Malformed(f"{self.text[start]!r} where a value was expected")
        self.at = plain.end() if plain else start
        following = self.text[self.at : self.at + 1]
        if following in ("(", "<"):
            self._skip_call()
        word = self.text[start : self.at]
        if self.at == len(self.text):
            raise Incomplete("a value without an end")
        if word in _WORDS:
            return _WORDS[word]
        return number_in(word)

    def _skip_call(self) -> None:
        """Skip the brackets of `np.float64(...)` or `<Enum: 1>` and their content."""
        open_brackets = 0
        while self.at < len(self.text):
            mark = self.text[self.at]
            if mark in "'\"" and (match := _STRING.match(self.text, self.at)):
                self.at = match.end()
                continue
            open_brackets += (mark in "([{<") - (mark in ")]}>")
            self.at += 1
            if open_brackets <= 0:
                return
        raise Incomplete("a value without an end")

    def _peek(self) -> str:
        self._skip_space()
        if self.at >= len(self.text):
            raise Incomplete("the text ends inside")
        return self.text[self.at]

    def _skip_space(self) -> None:
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text) if "\\" in text else text
