"""Pages, messages, help texts, rules, metrics, docstrings and comments follow the word list of CONTRIBUTING.md."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache

import pytest

from conftest import REPO

WRITTEN = [
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs/**/*.md"),
    *(f"src/**/*.{ending}" for ending in ("py", "yaml", "js", "html", "md")),
]
ROW = re.compile(r"^\| ((?:`[^`|]+`(?:, )?)+) \| [^|]+ \|$", re.MULTILINE)


def avoided(contributing: str) -> list[str]:
    """The phrases in the first column of the word list."""
    section = contributing.partition("\n## Words\n")[2].partition("\n## ")[0]
    return [phrase for row in ROW.findall(section) for phrase in re.findall(r"`([^`]+)`", row)]


@cache
def pattern(phrases: tuple[str, ...]) -> re.Pattern[str]:
    """Finds any of the phrases, also across the end of a line."""
    joined = "|".join(r"[\s#]+".join(map(re.escape, phrase.split())) for phrase in phrases)
    return re.compile(rf"\b(?:{joined})\b", re.IGNORECASE)


def found_in(name: str, text: str, phrases: list[str]) -> Iterator[str]:
    """Each place where a text uses a phrase to avoid; code and quoted names do not count."""
    flat = " ".join(text.lower().split()).replace(" # ", " ")
    if not any(phrase in flat for phrase in phrases):  # true for most files; the pattern takes ten times as long
        return
    words = pattern(tuple(phrases))
    if name.endswith(".py"):
        # Names in code may be any words: only comments and strings are read.
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        pieces = [
            (token.start[0], token.string) for token in tokens if token.type in (tokenize.COMMENT, tokenize.STRING)
        ]
    elif name.endswith(".md"):
        pieces = [(1, re.sub(r"^\| `.*$", "", text, flags=re.MULTILINE) if name == "CONTRIBUTING.md" else text)]
    else:
        pieces = [(1, text)]
    for first, piece in pieces:
        quoted = re.sub(r"`[^`\n]*`|\{[^{}\n]*\}", lambda match: " " * len(match[0]), piece)
        for match in words.finditer(quoted):
            yield f"{name}:{first + quoted.count(chr(10), 0, match.start())}: {' '.join(match[0].split())}"


def test_texts_keep_to_the_word_list():
    phrases = avoided((REPO / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert len(phrases) > 20
    paths = sorted(path for glob in WRITTEN for path in REPO.glob(glob) if "vendor" not in path.parts)
    found = [
        place
        for path in paths
        for place in found_in(path.relative_to(REPO).as_posix(), path.read_text(encoding="utf-8"), phrases)
    ]
    assert not found, "use other words (CONTRIBUTING.md, Words):\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("page.md", "The first two are told\nby the names.", 1),
        ("page.md", "The parameter `anew` is fine.", 0),
        ("code.py", "anew = 1  # read anew\n", 1),
        ("code.py", 'def f():\n    """Mended,\n    and judged anew."""\n', 2),
        ("rules.yaml", 'title: "the gravest finding"', 1),
    ],
)
def test_the_check_finds_what_it_should(name, text, count):
    phrases = avoided((REPO / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert len(list(found_in(name, text, phrases))) == count


UNCLEAR = re.compile(r"(?:^|_)(?:told|said|unsaid|gravest|anew|passed_over|heard|foretold|spoken|begun)(?:_|$)")
"""Words in names that do not say what a value is."""
PUBLIC = {
    "evidence_told", "gpu_hours_after_said", "hours_after_said", "left_unsaid", "passed_over", "said", "said_at",
    "said_step", "told", "told_by",
}  # fmt: skip
"""Names that users, saved files or YAML depend on. They are allowed only in the files of `PUBLIC_IN`."""
PUBLIC_IN = {
    "catalog/lookup.py", "catalog/recognition.py", "cli/export.py", "contract.py", "health/monitor.py",
    "health/rules/tokens.py", "notify/courier.py", "store/outbox.py", "views/backtest.py", "views/check.py",
    "views/dataset.py", "views/epochs.py",
}  # fmt: skip


def unclear_names(text: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each name in code that does not describe its value."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and UNCLEAR.search(token.string.lower()):
            yield token.start[0], token.string


def test_names_say_what_is_in_them():
    source = REPO / "src/rlvitals"
    found = []
    for path in sorted(source.rglob("*.py")):
        place = path.relative_to(source).as_posix()
        for line, name in unclear_names(path.read_text(encoding="utf-8")):
            if not (place in PUBLIC_IN and name in PUBLIC):
                found.append(f"{place}:{line}: {name}")
    assert not found, "use a name that says what the value is (CONTRIBUTING.md, House style):\n" + "\n".join(found)


def test_unclear_names_are_found_in_code_alone():
    text = 'told = 1\ndef _is_said(): ...\nretold = "said"  # told\nself.gravest_first\n'
    assert list(unclear_names(text)) == [(1, "told"), (2, "_is_said"), (4, "gravest_first")]
