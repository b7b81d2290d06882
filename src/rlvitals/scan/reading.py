"""A group of rollouts in the form that scanners read: the model's texts, part by part, and facts about the prompt.

The model did not write tool results and messages of the environment, so these are not scanned.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from rlvitals.codec import leaves
from rlvitals.records import Group, Rollout

LONGEST_PART = 100_000
"""Characters of a part that are scanned. A longer text is usually a loop, which its beginning shows."""

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
"""Maximum length of a message that is parsed as a program."""


class TextPart(NamedTuple):
    """One text of a rollout, and its position."""

    turn: int
    """Counted from 1."""
    name: str
    """`text`, or `call 2` for the texts in the arguments of the second call."""
    text: str


class Span(NamedTuple):
    """A range of characters in a part."""

    turn: int
    part: str
    start: int
    end: int


class Code(NamedTuple):
    """A passage of program code in a part."""

    part: TextPart
    start: int
    text: str

    def span(self, start: int, end: int) -> Span:
        """Convert a range of the code to a span of its part."""
        return Span(self.part.turn, self.part.name, self.start + start, self.start + end)


class Reading:
    """One rollout as scanners read it."""

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
        """Its words in lower case."""
        return lower_words(self.whole)

    @property
    def last(self) -> TextPart | None:
        """The last message."""
        return next((part for part in reversed(self.parts) if part.name == TEXT), None)

    @cached_property
    def code(self) -> list[Code]:
        """Program code: fenced blocks and files, arguments of calls, and messages that contain only code. Code in
        reasoning blocks is left out.
        """
        found: list[Code] = []
        for part in self.parts:
            if part.name != TEXT:
                found.append(Code(part, 0, part.text))
                continue
            thoughts = [match.span(2) for match in _THOUGHT.finditer(part.text)]
            blocks = [*_FENCE.finditer(part.text), *_FILE.finditer(part.text)]
            # A fenced block in the reasoning is a draft; the answer follows the reasoning.
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
    """The rollouts of one prompt, and the facts about the prompt that several scanners use."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.readings = [Reading(rollout, self) for rollout in group.rollouts]

    @cached_property
    def prompt(self) -> str:
        """The prompt in lower case."""
        return self.group.prompt[:LONGEST_PART].lower()

    @cached_property
    def prompt_words(self) -> list[str]:
        return _WORD.findall(self.prompt)

    @cached_property
    def tests(self) -> list[tuple[str, str]]:
        """Calls and results that the prompt shows, such as `assert f(3) == 9`: arguments and value, without spaces."""
        return [
            (squeezed(match[1]), squeezed(match[2].split(",  ")[0].rstrip(".;`'\" ") or match[2]))
            for match in _PAIR.finditer(self.group.prompt[:LONGEST_PART])
        ]

    @cached_property
    def outputs(self) -> list[str]:
        """Results that the prompt shows, one per line: from its tests, and below headings such as `Output`."""
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
    """Whether a short text is Python code with an effect, such as a bare `exit()`."""
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
    """A piece of code without spaces and with one kind of quotes.

    >>> squeezed("[1, 'a b']")
    '[1,"ab"]'
    """
    return "".join(text.split()).replace("'", '"')


def lower_words(text: str) -> list[str]:
    """The words of a text in lower case."""
    return _WORD.findall(text.lower())


def _parts(rollout: Rollout) -> Iterator[TextPart]:
    for number, turn in enumerate(rollout.turns, 1):
        if turn.text:
            yield TextPart(number, TEXT, turn.text[:LONGEST_PART])
        for place, call in enumerate(turn.calls, 1):
            text = "\n".join(str(leaf) for leaf in leaves(call.arguments) if leaf is not None)
            if text:
                yield TextPart(number, f"call {place}", text[:LONGEST_PART])
