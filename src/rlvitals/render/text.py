"""Texts that come from a log and go to a terminal."""

from __future__ import annotations


def visible(text: str) -> str:
    r"""The same text with control characters made visible: names in a log may be anybody's.

    >>> visible("loss\x1b[2J"), visible("loss")
    ('loss\\x1b[2J', 'loss')
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
