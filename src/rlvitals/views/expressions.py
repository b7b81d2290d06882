r"""Regular expressions for filters, in time proportional to the expression times the text.

Python's `re` and a browser's RegExp try one alternative after the other: `^(a+)+$` on 34 letters does not return. This
module follows all alternatives at once. Features that do not allow this (look-around, back-references) are refused. The
page has the same implementation in `web/static/expressions.js`, and one table of tests is used for both.

Supported: literals, `.`, `[...]`, `\d \w \s` and their opposites, `\b`, `^`, `$`, groups, `|`, `*`, `+`, `?`, `{2,3}`.
Upper and lower case are not distinguished.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from rlvitals.errors import ConfigError

MOST_PARTS = 500
"""Maximum instructions of one expression. `{2,3}` counts as often as it repeats."""

DEEPEST = 50
"""Maximum depth of nested groups."""

LONGEST_TEXT = 1000
"""Maximum number of characters of a text that are searched."""

_CLASSES: dict[str, Callable[[str], bool]] = {
    "d": lambda character: "0" <= character <= "9",
    "w": lambda character: character == "_" or character.isalnum(),
    "s": str.isspace,
}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
_TIMES = re.compile(r"\{(\d{1,4})(?:(,)(\d{1,4})?)?\}")
_FOUND, _SPLIT, _JUMP, _PLACE, _SET = range(5)


class Expression:
    """A compiled expression. Raises ConfigError if it is invalid, unsupported or too large."""

    def __init__(self, text: str) -> None:
        self._program: list[tuple[int, Any, Any]] = []
        self._emit(_Parser(text).whole())
        self._add(_FOUND)

    def is_found_in(self, text: str) -> bool:
        """Whether it matches anywhere in a text."""
        text = text[:LONGEST_TEXT]
        states: set[int] = set()
        for place in range(len(text) + 1):
            if self._enter(states, 0, text, place):
                return True
            after: set[int] = set()
            for state in states if place < len(text) else ():
                kind, fits, _ = self._program[state]
                if kind == _SET and fits(text[place]) and self._enter(after, state + 1, text, place + 1):
                    return True
            states = after
        return False

    def _enter(self, states: set[int], state: int, text: str, place: int) -> bool:
        """Add a state and all states it leads to without reading a character. Returns whether the end is reached."""
        waiting = [state]
        while waiting:
            state = waiting.pop()
            if state in states:
                continue
            states.add(state)
            kind, one, other = self._program[state]
            if kind == _FOUND:
                return True
            if kind == _SPLIT:
                waiting += (one, other)
            elif kind == _JUMP:
                waiting.append(one)
            elif kind == _PLACE and one(text, place):
                waiting.append(state + 1)
        return False

    def _add(self, kind: int, one: Any = None, other: Any = None) -> int:
        if len(self._program) >= MOST_PARTS:
            raise ConfigError(f"it has more than {MOST_PARTS} parts")
        self._program.append((kind, one, other))
        return len(self._program) - 1

    def _emit(self, node: Any) -> None:
        if isinstance(node, _Repeat):
            for _ in range(node.least):
                self._emit(node.part)
            if node.most is None:
                start = self._add(_SPLIT)
                self._emit(node.part)
                self._add(_JUMP, start)
                self._program[start] = (_SPLIT, start + 1, len(self._program))
            for _ in range(node.least, node.most or 0):
                start = self._add(_SPLIT)
                self._emit(node.part)
                self._program[start] = (_SPLIT, start + 1, len(self._program))
        elif isinstance(node, _Choice):
            ends = []
            for part in node.parts[:-1]:
                start = self._add(_SPLIT)
                self._emit(part)
                ends.append(self._add(_JUMP))
                self._program[start] = (_SPLIT, start + 1, len(self._program))
            self._emit(node.parts[-1])
            for end in ends:
                self._program[end] = (_JUMP, len(self._program), None)
        elif isinstance(node, list):
            for part in node:
                self._emit(part)
        else:
            self._add(*node)


class _Repeat(NamedTuple):
    part: Any
    least: int
    most: int | None


class _Choice(NamedTuple):
    parts: list[Any]


class _Parser:
    """Parses an expression into lists (sequences), choices, repeats and (kind, test) pairs."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def whole(self) -> Any:
        node = self._choice()
        if self._at < len(self._text):
            _refuse("a ')' closes nothing")
        return node

    @property
    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        taken = self._next
        if not taken:
            _refuse("it ends too early")
        self._at += 1
        return taken

    def _choice(self) -> Any:
        parts = [self._sequence()]
        while self._next == "|":
            self._at += 1
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else _Choice(parts)

    def _sequence(self) -> list[Any]:
        parts: list[Any] = []
        while self._next and self._next not in "|)":
            parts.append(self._repeated(self._part()))
        return parts

    def _repeated(self, part: Any) -> Any:
        times = _TIMES.match(self._text, self._at)
        if times:
            self._at = times.end()
            least = int(times[1])
            most = None if times[2] and not times[3] else int(times[3] or times[1])
        elif self._next and self._next in "*+?":
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[self._take()]
        else:
            return part
        if most is not None and most < least:
            _refuse("a range of repeats runs backwards")
        if self._next == "?":  # a lazy repeat matches the same texts
            self._at += 1
        if (self._next and self._next in "*+?") or _TIMES.match(self._text, self._at):
            _refuse("a repeat is repeated")
        return _Repeat(part, least, most)

    def _part(self) -> Any:
        taken = self._take()
        if taken in "*+?":
            _refuse(f"{taken!r} repeats nothing")
        if taken == "(":
            return self._group()
        if taken == "[":
            return _SET, self._set()
        if taken == ".":
            return _SET, lambda character: character != "\n"
        if taken == "^":
            return _PLACE, lambda text, place: place == 0
        if taken == "$":
            return _PLACE, lambda text, place: place == len(text)
        if taken == "\\":
            return self._escape()
        return _SET, _same(taken)

    def _group(self) -> Any:
        if self._next == "?":
            if not self._text.startswith("?:", self._at):
                _refuse("it looks ahead or behind or names a group, which this filter does not know")
            self._at += 2
        self._depth += 1
        if self._depth > DEEPEST:
            _refuse(f"more than {DEEPEST} groups are within each other")
        node = self._choice()
        if self._next != ")":
            _refuse("a '(' is not closed")
        self._at += 1
        self._depth -= 1
        return node

    def _escape(self) -> Any:
        taken = self._take()
        if taken in "bB":
            return _PLACE, lambda text, place: _is_edge(text, place) == (taken == "b")
        if taken.isdigit():
            _refuse("it refers back to a group, which this filter does not know")
        return _SET, self._class(taken) or _same(_escaped(taken))

    @staticmethod
    def _class(letter: str) -> Callable[[str], bool] | None:
        known = _CLASSES.get(letter.lower())
        if known is None or letter == letter.lower():
            return known
        return lambda character: not known(character)

    def _set(self) -> Callable[[str], bool]:
        is_other = self._next == "^"
        self._at += is_other
        tests: list[Callable[[str], bool]] = []
        while self._next != "]" or not tests:
            tests.append(self._member())
        self._at += 1
        return lambda character: any(test(character) for test in tests) != is_other

    def _member(self) -> Callable[[str], bool]:
        low = self._take()
        if low == "\\":
            letter = self._take()
            if (known := self._class(letter)) is not None:
                return known
            low = "\b" if letter == "b" else _escaped(letter)
        if self._next != "-" or self._text[self._at + 1 : self._at + 2] in ("]", ""):
            return _same(low)
        self._at += 1
        high = self._take()
        if high == "\\":
            high = _escaped(self._take())
        if high < low:
            _refuse("a range of characters runs backwards")
        return lambda character: low <= character.lower() <= high or low <= character.upper() <= high


def _same(wanted: str) -> Callable[[str], bool]:
    lowered = wanted.lower()
    return lambda character: character.lower() == lowered


def _escaped(letter: str) -> str:
    if letter in _CONTROLS:
        return _CONTROLS[letter]
    if letter.isascii() and letter.isalnum():
        _refuse(f"this filter does not know '\\{letter}'")
    return letter


def _is_edge(text: str, place: int) -> bool:
    is_word = _CLASSES["w"]
    before = place > 0 and is_word(text[place - 1])
    return before != (place < len(text) and is_word(text[place]))


def _refuse(reason: str) -> NoReturn:
    raise ConfigError(reason)
