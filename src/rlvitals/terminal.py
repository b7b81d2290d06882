r"""All terminal output goes through this module: texts of runs, logs and paths are made harmless before printing.

Names, keys, texts and directories may come from anybody. A control character, an escape sequence, a mark that reverses
the writing direction or an incomplete character could move the cursor, change the window title, hide text or end the
program. They are printed in a visible form (`\x1b`), a text for one line stays on one line, and long texts are cut.
`say`, `put` and `put_json` write lines to stdout and stderr, `render.screen` handles rich's output, and the logger has
a filter.
`tests/test_terminal.py` checks that no other code prints.
"""

from __future__ import annotations

import logging
import re
import sys
from contextlib import suppress
from typing import TextIO

LONGEST_FIELD = 1000
"""The most characters of a name, a path or a message's line. A longer one is cut in the middle."""

MOST_LINES = 200
"""The most lines of one message."""

LONGEST_SHOWN = 100_000
"""The most characters of one text. A terminal needs minutes to lay out megabytes."""


def visible(text: str) -> str:
    r"""The same text with control characters and line breaks made visible, for output on one line.

    >>> visible("loss\x1b[2J"), visible("loss"), visible("a\nb")
    ('loss\\x1b[2J', 'loss', 'a\\nb')
    """
    if len(text) > LONGEST_SHOWN:
        text = cut_middle(text, LONGEST_SHOWN)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def visible_lines(text: str) -> str:
    r"""A text of several lines, each made visible.

    >>> visible_lines("one\rtwo\nthree\x07")
    'one\\rtwo\nthree\\x07'
    """
    return "\n".join(map(visible, text.split("\n")))


def cut_middle(text: str, longest: int = LONGEST_FIELD) -> str:
    """A text of at most `longest` characters. The middle is cut out, because names differ at both ends.

    >>> cut_middle("critic/rewards/mean", 11), cut_middle("loss")
    ('criti…/mean', 'loss')
    """
    if len(text) <= longest:
        return text
    tail = (longest - 1) // 2
    return f"{text[: longest - tail - 1]}…{text[-tail:] if tail else ''}"


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "row"), plural(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def sentence(text: str) -> str:
    """A text as a sentence.

    >>> sentence("the loss rises"), sentence("Is it so?")
    ('The loss rises.', 'Is it so?')
    """
    text = text.strip()
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def message(text: str) -> str:
    r"""A message for people. Later lines are indented, so that no line looks like a separate message.

    >>> message("cannot read 'x\nrlvitals: all is well'")
    "cannot read 'x\n  rlvitals: all is well'"
    """
    lines = [cut_middle(visible(line)) for line in text.split("\n")]
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"... {len(lines) - MOST_LINES} more lines"]
    return "\n  ".join(lines)


def escaped_json(text: str) -> str:
    r"""JSON in which every character that a terminal might interpret is written as \uXXXX: the same values, still
    strict JSON.

    >>> escaped_json('{"a": "' + chr(0x9B) + '2J"}')
    '{"a": "\\u009b2J"}'
    """
    return text if text.isprintable() else _NOT_LINE_BREAKS.sub(_escaped, text)


def say(text: str, stream: TextIO | None = None) -> None:
    """Print one message on its own line, on stdout or the given stream."""
    put(message(text), stream)


def warn(text: str) -> None:
    """Print one message on stderr."""
    put(message(text), sys.stderr)


def put(text: str, stream: TextIO | None = None) -> None:
    """Print the lines of a text, made harmless. Characters that the stream cannot encode are written as escapes."""
    _write(visible_lines(text) + "\n", sys.stdout if stream is None else stream)


def put_json(text: str) -> None:
    """Print JSON on stdout."""
    _write(escaped_json(text), sys.stdout)


def put_data(data: bytes) -> None:
    """Write a file's content to stdout: unchanged for a program, made harmless for a terminal."""
    stream = sys.stdout
    if stream.isatty():
        _write(visible_lines(data.decode("utf-8", "backslashreplace")), stream)
    else:
        stream.flush()
        stream.buffer.write(data)
        stream.buffer.flush()


def put_status(text: str, width: int) -> None:
    """Replace the line the cursor is on, on stderr; an empty text clears it."""
    _write(f"\r\x1b[K{cut_middle(visible(text), max(width, 1))}", sys.stderr)


def show_status(text: str) -> None:
    """Show a line of progress on stderr in place of the one before; nothing if stderr is not a terminal."""
    if sys.stderr.isatty():
        from shutil import get_terminal_size

        put_status(text, get_terminal_size().columns - 1)


def clear_status() -> None:
    """Clear the line of `show_status`."""
    if sys.stderr.isatty():
        put_status("", 0)


def survive_narrow_encodings() -> None:
    """Make stdout and stderr replace characters that they cannot encode by question marks, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _write(text: str, stream: TextIO) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text if text.isascii() else text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


_NOT_LINE_BREAKS = re.compile(r"[^\n\x20-\x7e]")


def _escaped(found: re.Match[str]) -> str:
    letter = found[0]
    if letter.isprintable():
        return letter
    code = ord(letter)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


class _Harmless(logging.Filter):
    """Makes a record harmless for every handler, because names in warnings may come from logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        with suppress(TypeError, ValueError):  # a format that does not match its values: logging itself reports it
            record.msg, record.args = message(record.getMessage()), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = visible_lines(logging.Formatter().formatException(record.exc_info))
        return True


logger = logging.getLogger("rlvitals")
"""The logger of rlvitals. The filter is on the logger itself, so it also applies to code that gets the logger by name.
"""
logger.addFilter(_Harmless())
