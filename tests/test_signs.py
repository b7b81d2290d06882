"""The dashboard's script has its own table of symbols; it must be the package's."""

from __future__ import annotations

import re

from conftest import REPO
from rlvitals.records import SEVERITIES
from rlvitals.signs import COLOURS, PLAIN_SYMBOLS, STYLES, SYMBOLS

PIECES = REPO / "src" / "rlvitals" / "web" / "static" / "pieces.js"


def test_the_pages_show_the_same_symbols():
    listed = re.findall(r'^  "?([a-z ]+)"?: \["(.+?)", "', PIECES.read_text(encoding="utf-8"), re.MULTILINE)
    shown = {word: symbol for word, symbol in listed if word in SYMBOLS}
    assert {"act", "watch", "healthy", *SEVERITIES} <= shown.keys()
    assert shown == {word: SYMBOLS[word] for word in shown}


def test_every_verdict_and_severity_has_a_symbol_a_style_and_a_colour():
    words = {"act", "watch", "healthy", "cannot judge", *SEVERITIES}
    assert words <= SYMBOLS.keys() & STYLES.keys() & COLOURS.keys()
    assert all(symbol.isascii() for symbol in PLAIN_SYMBOLS.values())
