"""Texts that come from a log and go to a terminal."""

from __future__ import annotations

LONGEST_SHOWN = 100_000
"""Characters of one text: laying out megabytes takes a terminal minutes."""


def visible(text: str) -> str:
    r"""The same text with control characters made visible: names in a log may be anybody's.

    >>> visible("loss\x1b[2J"), visible("loss")
    ('loss\\x1b[2J', 'loss')
    """
    if len(text) > LONGEST_SHOWN:
        text = f"{text[:LONGEST_SHOWN]}... ({len(text):,} characters)"
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
