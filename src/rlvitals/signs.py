"""The symbol and the colours of verdicts, severities and the states of metrics: the same wherever they are shown.

The dashboard's own are in `web/static/pieces.js` and `web/static/styles/colours.css`.
"""

from __future__ import annotations

SYMBOLS = {
    "act": "✖", "critical": "✖", "watch": "!", "warning": "!", "healthy": "✔", "cannot judge": "?", "info": "·",
    "ok": "",
}  # fmt: skip
PLAIN_SYMBOLS = SYMBOLS | {"act": "x", "critical": "x", "healthy": "+", "info": "-"}
"""For terminals that print only ASCII."""

STYLES = {
    "act": "bold red", "critical": "bold red", "watch": "bold yellow", "warning": "bold yellow",
    "healthy": "bold green", "cannot judge": "bold magenta", "info": "cyan", "ok": "",
}  # fmt: skip
"""Styles of rich, for terminals."""

COLOURS = {
    "act": "#c62828", "critical": "#c62828", "watch": "#b8860b", "warning": "#b8860b", "healthy": "#2e7d32",
    "info": "#4682b4", "cannot judge": "#888888",
}  # fmt: skip
"""For pages of others, which have no style sheet of ours: notebooks and messages. Readable on white and on black."""


def signed(word: str) -> str:
    """The word after its symbol.

    >>> signed("critical"), signed("ok")
    ('✖ critical', 'ok')
    """
    return f"{SYMBOLS[word]} {word}".lstrip()


def titled(verdict: str) -> str:
    """The verdict as a title.

    >>> titled("cannot judge")
    '? Cannot judge'
    """
    return f"{SYMBOLS[verdict]} {verdict.capitalize()}"
