"""Fits every answer into a budget of tokens, with a cursor to ask for more. Nothing else limits the length of an
answer.

Tokenizers differ, so the count is an upper bound: five letters in a row count as three tokens, and every digit, every
sign and every byte of other scripts counts as one. That is more than random letters need, and more than twice as much
as prose needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlvitals.agents.quoting import NOTE, LabelGuessed, new_label, quoted
from rlvitals.terminal import cut_middle
from rlvitals.web.answers import as_json

MOST_TOKENS = 4_000

ENVELOPE = 220
"""Tokens reserved for the parts around an answer: the note about data, the cursor, and the note about cuts."""

HEAD_SHARE = 0.6
"""The share of the budget that the facts before a list may use."""

LEAST_SIZE = 2
"""Minimum points of a curve."""

LEVELS = ((2_000, 1_000), (600, 40), (200, 20), (80, 8), (30, 3), (12, 1))
"""Maximum characters of a text and entries of a list, from the usual limits to limits that always fit."""

_RUNS = re.compile(r"[A-Za-z]+|[^\x00-\x7f]+|\s+|.", re.DOTALL)


def tokens_at_most(text: str) -> int:
    """An upper bound on the number of tokens with common tokenizers.

    >>> tokens_at_most("the reward fell"), tokens_at_most("0.125"), tokens_at_most("報酬")
    (11, 5, 6)
    """
    return sum(_cost(found[0]) for found in _RUNS.finditer(text))


def _cost(run: str) -> int:
    if not run.isascii():
        return len(run.encode("utf-8", "replace"))
    return -(-3 * len(run) // 5) if run[0].isalpha() else 1


@dataclass(frozen=True, slots=True)
class Draft:
    """An answer before it is fitted into the budget: facts, and a list that is shown as far as there is room."""

    head: Mapping[str, Any]
    key: str = ""
    """The name of the list; empty if there is none."""
    items: Sequence[Any] = ()
    """The entries from the cursor on."""
    start: int = 0
    """The index of the first item in the whole list."""
    left: int | None = 0
    """The number of entries after these items; None if there are some and their number is not known."""


@dataclass(slots=True)
class _Shortener:
    """Cuts long texts and lists, and records whether it did."""

    longest: int
    most: int
    has_cut: bool = field(default=False)

    def __call__(self, value: Any) -> Any:
        if isinstance(value, str):
            if len(value) <= self.longest:
                return value
            self.has_cut = True
            return type(value)(cut_middle(value, self.longest))
        if isinstance(value, Mapping):
            self.has_cut |= len(value) > self.most
            return {self(key): self(item) for key, item in list(value.items())[: self.most]}
        if isinstance(value, list | tuple):
            self.has_cut |= len(value) > self.most
            return [self(item) for item in value[: self.most]]
        return value


def fit(draft: Draft) -> dict[str, Any]:
    """The answer: as many entries as fit, with foreign texts marked, and `more` if there are further entries."""
    while True:
        try:
            return _fitted(draft, new_label())
        except LabelGuessed:
            continue


def fit_size(make: Callable[[int], Draft], size: int) -> dict[str, Any]:
    """The answer in the largest size up to `size` (and at least LEAST_SIZE) in which nothing has to be left out."""
    while True:
        draft = make(size)
        answer = fit(draft)
        if size <= LEAST_SIZE or ("cut" not in answer and answer["more"] is None):
            return answer
        cost = tokens_of({**draft.head, draft.key: draft.items})
        size = max(LEAST_SIZE, min(size - 1, int(0.97 * size * (MOST_TOKENS - ENVELOPE) / cost)))


def _fitted(draft: Draft, label: str) -> dict[str, Any]:
    room = MOST_TOKENS - ENVELOPE
    head: Any = {}
    shown: list[Any] = []
    for longest, most in LEVELS:
        shorten = _Shortener(longest, most)
        head = quoted({key: shorten(value) for key, value in draft.head.items()}, label)
        cost = tokens_of(head)
        shown = []
        if cost > room * (HEAD_SHARE if draft.items else 1):
            continue
        left = room - cost
        for item in draft.items:
            has_cut = shorten.has_cut
            made = quoted(shorten(item), label)
            left -= tokens_of(made) + 1
            if left < 0:
                shorten.has_cut = has_cut
                break
            shown.append(made)
        if shown or not draft.items:
            break
    if draft.items and not shown:  # the cursor must advance, or a client that follows it would never finish
        shown = ["(too large to show)"]
    facts: dict[str, Any] = {**head, **({draft.key: shown} if draft.key else {})}
    if shorten.has_cut:
        facts["cut"] = "Long texts or lists are cut ('…')."
    after = len(draft.items) - len(shown)
    has_more = bool(after) or draft.left != 0
    place = {"cursor": str(draft.start + len(shown)), "left": None if draft.left is None else after + draft.left}
    facts["more"] = place if has_more else None
    is_marked = f"<data {label}>".encode() in as_json(facts)
    return {"note": NOTE.format(label=label), **facts} if is_marked else facts


def tokens_of(facts: Any) -> int:
    """The number of tokens of data in the form in which it is sent."""
    return tokens_at_most(as_json({"": facts}).decode()) - _AROUND


_AROUND = tokens_at_most(as_json({"": 0}).decode()) - 1
