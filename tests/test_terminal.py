"""Output to the terminal: everything printed is harmless, and nothing is printed in another way."""

from __future__ import annotations

import ast
import io
import logging
import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

import rlvitals
from conftest import REPO
from rlvitals import terminal
from rlvitals.cli.output import printable
from rlvitals.codec import parse_json, to_json
from rlvitals.health.notify import banner
from rlvitals.records import Finding
from rlvitals.render.screen import Screen

SOURCE = REPO / "src" / "rlvitals"
ATTACK = "\x1b]0;pwn\x07[red][/]\x9b2J\u202e\r\nFORGED\udcff"
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=60)


def is_harmless(text: str) -> bool:
    return all(letter.isprintable() or letter == "\n" for letter in text)


@given(ANY_TEXT)
def test_every_message_is_printable_and_indents_its_further_lines(text):
    stream = io.StringIO()
    terminal.say(f"rlvitals: {text}", stream)
    said = stream.getvalue()
    assert is_harmless(said)
    assert said.startswith("rlvitals: ")
    assert all(line.startswith("  ") for line in said.removesuffix("\n").split("\n")[1:])


@given(ANY_TEXT)
def test_json_for_a_terminal_is_harmless_and_holds_the_same_values(text):
    strict = text.encode("utf-8", "replace").decode()
    shown = terminal.escaped_json(to_json({strict: [strict]}).decode())
    assert is_harmless(shown)
    assert parse_json(shown.encode()) == {strict: [strict]}


@given(ANY_TEXT, st.sampled_from(["ascii", "latin-1", "utf-8"]))
def test_no_letter_ends_a_program_whatever_the_stream_can_hold(text, encoding):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    terminal.put(text, stream)
    assert is_harmless(raw.getvalue().decode(encoding))


def test_a_very_long_name_is_cut_in_the_middle():
    shown = printable({"k" * 10**6: ["begin" + "v" * 10**6 + "end"]})
    ((key, (value,)),) = shown.items()
    assert len(key) == len(value) == terminal.LONGEST_FIELD
    assert value.startswith("beginv")
    assert value.endswith("vend")
    assert len(terminal.message("x\n" * 10**5).split("\n")) == terminal.MOST_LINES + 1


def test_keys_are_made_visible_like_values():
    assert printable({"a\x1b": {"b\n": ("c\r",)}}) == {"a\\x1b": {"b\\n": ["c\\r"]}}


@pytest.mark.parametrize("wrap", [str, Text], ids=["str", "Text"])
def test_a_screen_obeys_neither_markup_nor_sequences_wherever_they_stand(wrap):
    table = Table(title=wrap(ATTACK))
    table.add_column(wrap(ATTACK), min_width=90)
    table.add_row(wrap(ATTACK))
    stream = io.StringIO()
    screen = Screen(file=stream, width=400, force_terminal=False)
    screen.print(table, ATTACK, "[/]", ":warning:")
    shown = stream.getvalue()
    assert is_harmless(shown)
    assert shown.count("[red][/]") == 4
    assert ":warning:" in shown


def test_a_banner_shows_what_it_is_about():
    shown = banner(Finding("r", "k", "critical", 1, 1, f"loss{ATTACK}", advice=(ATTACK,)), "utf-8")
    assert is_harmless(shown)
    assert len(shown.split("\n")) == 4
    assert "\\x1b]0;pwn\\x07[red][/]" in shown


def test_warnings_while_training_are_harmless(tmp_path, caplog):
    with rlvitals.start(tmp_path / "run", display="none", hardware=False) as run:
        run.log({f"loss{ATTACK}": object(), "kl": 0.1}, step=1)
    told = [record.getMessage() for record in caplog.records if "pwn" in record.getMessage()]
    assert told
    assert all(map(is_harmless, told))
    assert not [line for text in told for line in text.split("\n") if line.startswith("FORGED")]


def test_a_traceback_in_the_log_is_harmless():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    terminal.logger.addHandler(handler)
    try:
        raise ValueError(ATTACK)
    except ValueError:
        terminal.logger.exception("%s failed", ATTACK)
    finally:
        terminal.logger.removeHandler(handler)
    assert "ValueError: \\x1b]0;pwn" in stream.getvalue()
    assert is_harmless(stream.getvalue())


@pytest.mark.parametrize("display", ["plain", "json", "rich"])
def test_what_a_run_prints_while_it_trains_is_harmless(tmp_path, display, capsys):
    from rlvitals.capture.console import Console

    class Terminal(io.StringIO):
        def isatty(self):
            return display == "rich"

    stream = Terminal()
    console = Console(display, stream=stream, total_steps=2)
    text = ATTACK.replace("\udcff", "")
    for step in (1, 2):
        console.step(step, {f"loss{text}": 0.5, "kl": 0.1, f"note{text}": text}, float(step))
    console.finish("failed", ATTACK)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    assert "0.5" in shown
    assert is_harmless(shown)
    assert not [line for line in shown.split("\n") if line.startswith("FORGED")]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_status_line_is_only_for_a_terminal_and_is_harmless(is_terminal, monkeypatch):
    class Stream(io.StringIO):
        def isatty(self):
            return is_terminal

    stream = Stream()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "20")
    terminal.show_status(f"{ATTACK} {'long ' * 20}")
    terminal.clear_status()
    if not is_terminal:
        assert stream.getvalue() == ""
        return
    before, shown, cleared = stream.getvalue().split("\r\x1b[K")
    assert (before, cleared) == ("", "")
    assert 30 < len(shown) < 40
    assert shown.startswith("\\x1b]0;pwn")
    assert is_harmless(shown)


def test_a_bars_numbers_and_unit_move_no_cursor():
    from rlvitals.capture.progress import Progress

    stream = io.StringIO()
    with Progress([1, 2], unit=f"batch{ATTACK}", stream=stream) as bar:
        for _ in bar:
            bar.set(**{f"mine{ATTACK}": ATTACK})
    assert "pwn" in stream.getvalue()
    assert is_harmless(stream.getvalue())
    assert not [line for line in stream.getvalue().split("\n") if line.startswith("FORGED")]


# Nothing is printed in another way

DEVELOPERS = {"catalog/build.py", "catalog/pages.py", "health/build.py", "health/pages.py", "web/typescript.py"}
"""Build scripts of the project."""
OWN_MOVES = {"terminal.py", "capture/progress.py", "render/screen.py"}


def modules():
    return [
        path for path in sorted(SOURCE.rglob("*.py")) if str(path.relative_to(SOURCE)) not in DEVELOPERS | OWN_MOVES
    ]


def prints(tree: ast.AST) -> list[int]:
    """Lines that write to a standard stream or make a console directly."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        writes = re.fullmatch(r"(.*\b)?(sys\.(stdout|stderr)|_?stream)(\.buffer)?\.(write|writelines)", called)
        if (
            called in ("print", "rich.print", "warnings.warn")
            or writes
            or called in ("RichConsole", "Text.from_markup")
        ):
            found.append(node.lineno)
    return found


def test_no_module_prints_past_the_door():
    texts = {path: path.read_text() for path in modules()}
    assert len(texts) > 100
    found = {str(path.relative_to(SOURCE)): prints(ast.parse(text)) for path, text in texts.items()}
    assert {path: lines for path, lines in found.items() if lines} == {}
    makes_console = [
        path
        for path, text in texts.items()
        if "from rich.console import" in text and re.search(r"\bConsole\(", text) and path.name != "console.py"
    ]
    assert makes_console == [], "use rlvitals.render.screen.Screen"


def test_the_guard_sees_what_it_forbids():
    code = "print(1)\nsys.stderr.write('x')\nself._stream.write('x')\nsys.stdout.buffer.write(b'')\nput('x')"
    assert prints(ast.parse(code)) == [1, 2, 3, 4]


def imported_by(name: str, seen: set[str]) -> set[str]:
    """The modules of rlvitals that are imported with a module, those of its packages included."""
    if name in seen or (imported := imported_at_its_top(name)) is None:
        return seen
    seen.add(name)
    for other in imported:
        imported_by(other, seen)
    return seen


@cache
def imported_at_its_top(name: str) -> list[str] | None:
    """Names that may be modules of rlvitals, in the order of their import; None if `name` is not a module."""
    path = SOURCE.parent / Path(*name.split("."))
    file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    if not file.exists():
        return None
    found = []
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rlvitals"):
            found += [*(f"{node.module}.{alias.name}" for alias in node.names), str(node.module)]
    return found


ENTRIES = ["capture.start", "capture.epochs", "follow", "cli.main", "web.server", "train.kto", "adapters.transformers"]


@pytest.mark.parametrize("entry", ENTRIES)
def test_whoever_logs_has_the_filter(entry):
    assert "rlvitals.terminal" in imported_by(f"rlvitals.{entry}", set())


def test_what_the_parser_of_flags_prints_is_harmless(capsys):
    from rlvitals.cli.flags import Parser

    parser = Parser(prog=f"rlvitals{ATTACK}", description=ATTACK)
    parser.print_usage()
    with pytest.raises(SystemExit):
        parser.parse_args([f"--{ATTACK}"])
    shown = capsys.readouterr()
    assert "pwn" in shown.out
    assert "unrecognized arguments" in shown.err
    assert is_harmless(shown.out + shown.err)
