"""The shipped files: unchanged vendor files, no markup from texts, small modules, correct types."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess

import pytest
from browsing import LISTED, STATIC, node_module
from serving import serving

from expression_table import ENDLESS, EXPRESSIONS, NAMES, REFUSED
from rlvitals.errors import ConfigError
from rlvitals.render.numbers import number
from rlvitals.views.expressions import Expression

OURS = sorted(path for path in STATIC.rglob("*.js") if "vendor" not in path.parts)


def test_the_vendors_files_are_those_that_were_checked():
    vendor = STATIC / "vendor" / "uplot"
    listed = dict(re.findall(r"^([0-9a-f]{64})  (\S+)$", (vendor / "README.md").read_text(), re.MULTILINE)[::-1])
    found = {
        hashlib.sha256(path.read_bytes()).hexdigest(): path.name
        for path in vendor.iterdir()
        if path.name != "README.md"
    }
    assert found == listed
    assert "MIT" in (vendor / "LICENSE").read_text()


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_a_module_is_small_and_makes_no_markup_from_text(path):
    text = path.read_text()
    assert text.count("\n") <= 300
    assert text.startswith("/**"), "a module says first what it owns"
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", " eval(", "new Function", "http://"):
        assert word not in text.replace('"http://www.w3.org/2000/svg"', "").replace("innerHTML is never used", "")


def test_every_module_and_style_is_there_and_used():
    page = (STATIC / "index.html").read_text()
    for style in (STATIC / "styles").iterdir():
        assert f'"static/styles/{style.name}"' in page
    assert not re.search(r"\son\w+=|style=|<script(?! type=\"module\" src=)", page)
    named = {
        name for path in OURS for name in re.findall(r'(?:from|import\() ?"\.{1,2}/([\w/]+)\.js"', path.read_text())
    }
    assert {path.stem for path in OURS} == {name.split("/")[-1] for name in named - {"vendor/uplot/uPlot.esm"}} | {
        "app"
    }


def test_every_screen_has_an_entry_a_module_and_a_key_of_its_own():
    assert {name for name, _, _ in LISTED} == {path.stem for path in (STATIC / "screens").iterdir()}
    assert len({key for _, key, _ in LISTED}) == len({title for _, _, title in LISTED}) == len(LISTED)
    loaded = re.findall(r'name: "(\w+)",.* import\("./screens/(\w+)\.js"\)', (STATIC / "screens.js").read_text())
    assert loaded == [(name, name) for name, _, _ in LISTED]


FIRST_PAGE_BYTES = 69_270
"""Limit for the scripts loaded before the list of runs is shown, without the list of screens, which a new screen makes
longer. Filters, groups, pickers and marks load later.
"""


def test_the_scripts_of_the_first_page_do_not_grow():
    def reach(path, found):
        found.add(path)
        for name in re.findall(r'^import .* from "(\..*)";$', path.read_text(), re.MULTILINE):
            if (other := (path.parent / name).resolve()) not in found:
                reach(other, found)
        return found

    loaded = reach(STATIC / "app.js", set()) | reach(STATIC / "screens" / "runs.js", set())
    assert len(loaded) >= 12
    assert sum(path.stat().st_size for path in loaded - {STATIC / "screens.js"}) <= FIRST_PAGE_BYTES


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_no_answer_is_of_any_type(path):
    """The only exception is the parameter of event handlers, which depends on the event's name."""
    allowed = 1 if path.name == "dom.js" else 0
    assert len(re.findall(r"\{[^{}\n]*\bany\b[^{}\n]*\}", path.read_text())) == allowed


def test_types_are_sent_to_no_browser(tmp_path):
    with serving(tmp_path) as client:
        for path in ("/static/contract.d.ts", "/static/../contract.d.ts", "/contract.d.ts", "/static/page.d.ts"):
            assert client.get(path).status == 404


@pytest.mark.slow
def test_the_types_hold():
    compiler = node_module("typescript") / "bin" / "tsc"
    checked = subprocess.run(
        ["node", compiler, "-p", STATIC / "jsconfig.json"], check=False, capture_output=True, text=True
    )
    assert checked.stdout == ""
    assert checked.returncode == 0


@pytest.mark.slow
def test_numbers_are_written_as_in_the_terminal(tmp_path):
    values = [0.61999, 5e-7, 1.23456e-5, 12345678, 3.0, -1e300, 1234.5678, 99999.94, 123456.7, 1e15, 0.0001, -2.5e-10]
    (tmp_path / "numbers.mjs").write_text((STATIC / "numbers.js").read_text())
    script = f"import {{number}} from './numbers.mjs'; console.log(JSON.stringify({values}.map(number)))"
    command = ["node", "--input-type=module", "-e", script]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    assert json.loads(output) == [number(value) for value in values]


@pytest.mark.slow
def test_the_filter_s_expressions_are_those_of_the_terminal(tmp_path):
    """One table for both: what is found, what is refused and why, and expressions on which RegExp never ends."""
    (tmp_path / "expressions.mjs").write_text((STATIC / "expressions.js").read_text())
    asked = [(text, name) for text in [*EXPRESSIONS, *REFUSED] for name in NAMES]
    asked += [(text, name) for text, name, _ in ENDLESS]
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    script = """
        import {readFileSync} from "node:fs";
        import {Expression} from "./expressions.mjs";
        const results = JSON.parse(readFileSync("asked.json", "utf8")).map(([text, name]) => {
          try {
            return new Expression(text).isFoundIn(name);
          } catch (error) {
            return error.message;
          }
        });
        console.log(JSON.stringify(results));
    """
    command = ["node", "--input-type=module", "-e", script]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path, timeout=60).stdout
    assert json.loads(output) == [found_by_the_terminal(text, name) for text, name in asked]


def found_by_the_terminal(text: str, name: str) -> bool | str:
    try:
        return Expression(text).is_found_in(name)
    except ConfigError as error:
        return str(error)
