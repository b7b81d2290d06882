"""The reference: every public name has a sentence, described parameters and an example with correct output."""

from __future__ import annotations

import contextlib
import doctest
import inspect
import io
import re

import pytest
from griffe import Docstring, DocstringSectionKind

import rlvitals
from conftest import REPO
from rlvitals import config
from rlvitals.capture.run import Run

NAMES = {**{name: getattr(rlvitals, name) for name in rlvitals.__all__}, "Run": Run}
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PRINTED = re.compile(r"^\s*print\(.*\)  # (.+)$", re.MULTILINE)


def told_of(public):
    """The docstring of a name; for a class, together with that of its constructor."""
    own = inspect.getdoc(public) or ""
    return f"{own}\n\n{inspect.getdoc(public.__init__) or ''}" if inspect.isclass(public) else own


def described(text):
    """The parameters that a docstring describes."""
    sections = Docstring(text).parse("google", warnings=False)
    return {
        parameter.name.lstrip("*"): parameter.description
        for section in sections
        if section.kind is DocstringSectionKind.parameters
        for parameter in section.value
    }


def settings():
    """The settings of a run, each described below its name in `config.Settings`."""
    text = inspect.getsource(config.Settings)
    return set(re.findall(r'^    (\w+): [^\n]+\n    """\w', text, re.MULTILINE))


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_begins_with_a_sentence(name):
    first = (inspect.getdoc(NAMES[name]) or "").partition("\n\n")[0]
    assert re.match(r"[A-Z]", first)
    assert first.rstrip().endswith("."), first


@pytest.mark.parametrize("name", [name for name, public in NAMES.items() if callable(public) and public is not Run])
def test_every_parameter_is_described(name):
    public = NAMES[name]
    known = described(told_of(public))
    if name == "start":
        assert "`rlvitals.config.Settings`" in told_of(public)
        known |= dict.fromkeys(settings(), "in Settings")
    missing = [parameter for parameter in inspect.signature(public).parameters if not known.get(parameter)]
    assert not missing


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_prints_what_it_says(name, tmp_path, monkeypatch, shipped_catalogue):
    text = inspect.getdoc(NAMES[name]) or ""
    blocks = BLOCK.findall(text)
    if not blocks:
        assert doctest.DocTestParser().get_examples(text), f"{name} has no example"  # run by --doctest-modules
        return
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        wanted = PRINTED.findall(block)
        assert wanted, f"the example of {name} shows no result"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(inspect.cleandoc(block), name, "exec"), {})
        assert printed.getvalue().splitlines() == wanted


def test_no_cell_of_the_overview_holds_a_signature():
    overview = (REPO / "docs" / "api.md").read_text(encoding="utf-8")
    cells = [cell for line in overview.splitlines() if line.startswith("| `rlvitals.") for cell in line.split("|")]
    assert len(cells) > 40
    assert not [cell for cell in cells if cell.count("=") > 1]
