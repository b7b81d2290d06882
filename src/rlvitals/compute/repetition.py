"""How much a text repeats itself: repeated n-grams, loops, and the compression ratio."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

LOOPING_RATIO = 10.0
"""Text with a higher compression ratio counts as looping; prose has a ratio of two to four."""

COMPRESSED_TAIL = 10_000
"""Characters at the end of a text that are compressed: a loop usually continues to the end of the response."""


def ngram_repetition(tokens: Sequence[object], n: int = 4) -> float | None:
    """Share of n-grams that occurred before: 1 - distinct / all. None for fewer than n tokens.

    >>> ngram_repetition([1, 2, 1, 2, 1], n=2)
    0.5
    """
    grams = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else None


def longest_repeat(tokens: Sequence[object], max_period: int = 64) -> int:
    """Tokens in the longest stretch that repeats a piece of at most `max_period` tokens two or more times in a row.

    >>> longest_repeat([7, 1, 2, 1, 2, 1, 9]), longest_repeat([1, 2, 3])
    (5, 0)
    """
    longest = 0
    for period in range(1, min(max_period, len(tokens) // 2) + 1):
        run = 0
        for place in range(period, len(tokens)):
            run = run + 1 if tokens[place] == tokens[place - period] else 0
            if run >= period:
                longest = max(longest, run + period)
    return longest


def compression_ratio(text: str) -> float | None:
    """Size of the end of a text in bytes, divided by its compressed size. None for an empty text.

    >>> compression_ratio("again " * 1000) > LOOPING_RATIO
    True
    """
    tail = text[-COMPRESSED_TAIL:].encode()
    return len(tail) / len(zlib.compress(tail)) if tail else None
