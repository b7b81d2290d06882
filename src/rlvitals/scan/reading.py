"""A group of rollouts as scanners read it: what the model itself wrote, part by part, and what is known of the prompt.

Results of tools and words of the environment are not the model's and are not scanned.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

from rlvitals.records import Group, Rollout

LONGEST_PART = 100_000
"""Characters of a part that are read; a text beyond this is a loop, which its beginning shows."""

TEXT = "text"

_WORD = re.compile(r"\w+", re.UNICODE)
_FENCE = re.compile(r"```[\w+-]*[^\S\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
_FILE = re.compile(r"<file\b[^>]*>\n?(.*?)(?:</file>|\Z)", re.DOTALL)
_LOOKS_LIKE_CODE = re.compile(r"^\s*(?:def |class |import |from \w+ import |async def |@\w+|#!)", re.MULTILINE)
_THOUGHT = re.compile(r"<(think|thinking|thought|reasoning|scratchpad)>(.*?)(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_PAIR = re.compile(
    r"\w+\(((?:[^()\n]|\([^()\n]*\))*)\)\s*(?:==|->|=>|→|returns|should (?:return|be|equal))\s*([^\n#]+)"
)
_OUTPUTS = re.compile(
    r"^[^\S\n]*(?:#+\s*|\*\*)?(?:sample |example "
    r"|expected )?outputs?(?: ?#?\d+)?(?:\*\*)?\s*:?[^\S\n]*\n+(?P<lines>.*?)"
    r"(?=\n[^\S\n]*\n|\n[^\S\n]*(?:#+\s*|\*\*)?(?:sample |example )?(?:in|out)puts?\b|\n[^\S\n]*(?:note"
    r"|explanation|constraints)\b|\Z)",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
MOST_EXPECTED = 400
LONGEST_PROGRAM = 2_000
"""Characters of a message that is tried as a program."""


class Part(NamedTuple):
    """One text of a rollout, and where it is."""

    turn: int
    """From 1."""
    name: str
    """`text`, or `call 2` for the texts in its second call's arguments."""
    text: str


class Span(NamedTuple):
    """A stretch of a part."""

    turn: int
    part: str
    start: int
    end: int


class Code(NamedTuple):
    """A stretch of program code in a part."""

    part: Part
    start: int
    text: str

    def span(self, start: int, end: int) -> Span:
        """A stretch of the code as one of its part."""
        return Span(self.part.turn, self.part.name, self.start + start, self.start + end)


class Reading:
    """One rollout."""

    def __init__(self, rollout: Rollout, page: GroupReading) -> None:
        self.rollout, self.page = rollout, page
        self.parts = list(_parts(rollout))

    @property
    def group(self) -> Group:
        return self.page.group

    @cached_property
    def whole(self) -> str:
        """Everything the model wrote."""
        return "\n".join(part.text for part in self.parts)

    @cached_property
    def words(self) -> list[str]:
        """The words of it, in small letters."""
        return _WORD.findall(self.whole.lower())

    @property
    def last(self) -> Part | None:
        """The last message."""
        return next((part for part in reversed(self.parts) if part.name == TEXT), None)

    @cached_property
    def code(self) -> list[Code]:
        """Program code: fenced blocks and files, arguments of calls, and messages that are nothing else. What a model
        thinks of a program is not one.
        """
        found: list[Code] = []
        for part in self.parts:
            if part.name != TEXT:
                found.append(Code(part, 0, part.text))
                continue
            thoughts = [match.span(2) for match in _THOUGHT.finditer(part.text)]
            blocks = [*_FENCE.finditer(part.text), *_FILE.finditer(part.text)]
            # A fenced block within thoughts is a draft; the answer follows them.
            blocks = [block for block in blocks if not any(a <= block.start() < b for a, b in thoughts)]
            if blocks:
                found += [Code(part, block.start(1), block[1]) for block in blocks]
            else:
                start = max((b for _, b in thoughts), default=0)
                rest = part.text[start:]
                if _LOOKS_LIKE_CODE.search(part.text) or _is_program(rest):
                    found.append(Code(part, start, rest))
        return found


class GroupReading:
    """The rollouts of one prompt, and what scanners ask of the prompt more than once."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.readings = [Reading(rollout, self) for rollout in group.rollouts]

    @cached_property
    def prompt(self) -> str:
        """The prompt in small letters."""
        return self.group.prompt[:LONGEST_PART].lower()

    @cached_property
    def prompt_words(self) -> list[str]:
        return _WORD.findall(self.prompt)

    @cached_property
    def tests(self) -> list[tuple[str, str]]:
        """Calls and results that the prompt shows, such as of `assert f(3) == 9`: arguments and value as written."""
        return [
            (_squeezed(match[1]), _squeezed(match[2].split(",  ")[0].rstrip(".;`'\" ") or match[2]))
            for match in _PAIR.finditer(self.group.prompt[:LONGEST_PART])
        ]

    @cached_property
    def outputs(self) -> list[str]:
        """Results that the prompt shows, a line each: of its tests, and below headings such as `Output`."""
        prompt = self.group.prompt[:LONGEST_PART]
        found = [result for _, result in self.tests]
        for match in _OUTPUTS.finditer(prompt):
            found += [line.strip().strip("`") for line in match["lines"].splitlines() if line.strip(" `")]
        return found[:MOST_EXPECTED]

    @cached_property
    def statement(self) -> str:
        """The prompt without the results it shows."""
        return _OUTPUTS.sub("", self.group.prompt[:LONGEST_PART])


def _is_program(text: str) -> bool:
    """Whether a short text is Python that does something, as a bare `exit()` is."""
    if len(text) > LONGEST_PROGRAM or not ("(" in text or "=" in text or "raise" in text):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    acts = (ast.Call, ast.Assign, ast.Raise)
    return any(isinstance(node, acts) for node in ast.walk(tree))


def squeezed(text: str) -> str:
    """A piece of code without blanks, with one kind of quotes.

    >>> squeezed("[1, 'a b']")
    '[1,"ab"]'
    """
    return _squeezed(text)


def words_of(text: str) -> list[str]:
    """The words of a text in small letters."""
    return _WORD.findall(text.lower())


def _squeezed(text: str) -> str:
    return "".join(text.split()).replace("'", '"')


def _parts(rollout: Rollout) -> Iterator[Part]:
    for number, turn in enumerate(rollout.turns, 1):
        if turn.text:
            yield Part(number, TEXT, turn.text[:LONGEST_PART])
        for place, call in enumerate(turn.calls, 1):
            text = "\n".join(_leaves(call.arguments))
            if text:
                yield Part(number, f"call {place}", text[:LONGEST_PART])


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif value is not None:
        yield str(value)
