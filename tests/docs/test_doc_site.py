"""The documentation site: every link has a target, pages load nothing from other hosts, and the search finds rules when
the pages are opened from a folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

import rlvitals
from conftest import REPO
from rlvitals import catalog, documentation
from rlvitals.health import rulebook

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]  # built once


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built as by `make docs`. MkDocs is strict, so a link or an anchor without a target fails the build."""
    pytest.importorskip("material", reason="needs mkdocs-material: pip install --group docs")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder], cwd=REPO, text=True, capture_output=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr[-3000:]
    return folder


def test_no_page_fetches_anything_from_elsewhere(site):
    fetched = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=["']?(https?:[^"' >]+)""")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    found = {(page.name, address) for page in pages for address in fetched.findall(page.read_text(encoding="utf-8"))}
    assert not found


@pytest.mark.usefixtures("shipped_catalogue")
def test_every_rule_and_every_metric_has_an_address_of_its_own(site):
    def anchors(folder):
        pages = (page.read_text(encoding="utf-8") for page in (site / folder).glob("*.html"))
        return {anchor for page in pages for anchor in re.findall(r'\bid="([^"]+)"', page)}

    assert set(rulebook.shipped().rules) <= anchors("rules")
    assert {metric.id for metric in catalog.metrics()} <= anchors("metrics")


def test_the_reference_has_every_public_name(site):
    page = (site / "reference.html").read_text(encoding="utf-8")
    modules = {"catalog", "values"}  # described in the overview
    missing = [name for name in rlvitals.__all__ if f'id="rlvitals.{name}"' not in page and name not in modules]
    assert not missing


def test_every_rule_and_every_metric_has_a_permanent_address(site, monkeypatch):
    monkeypatch.setenv(documentation.VARIABLE, "https://docs.example")
    presets = (entry for entries in rulebook.presets().values() for entry in entries if isinstance(entry, dict))
    rules = {*rulebook.shipped().rules, *(entry["rule"] for entry in presets if "*" not in entry.get("rule", "*"))}
    addresses = [documentation.rule_address(rule) for rule in rules]
    addresses += [documentation.metric_address(metric) for metric in catalog.shipped_ids()]
    assert len(addresses) > 600
    for address in addresses:
        page = site / address.removeprefix("https://docs.example/")
        file, anchor = re.search(r"url=\.\./([^#]+)#([^\"]+)", page.read_text(encoding="utf-8")).groups()
        assert f'id="{anchor}"' in (site / file).read_text(encoding="utf-8")


def test_a_notebook_is_a_page_with_what_it_shows(site):
    page = (site / "notebooks" / "quick_start.html").read_text(encoding="utf-8")
    assert "✔ Healthy" in page
    assert "✖ Act" in page
    assert "step 300 of 300 · out/good<" in page  # without the folder in which the build ran it
    assert page.count("<svg width") >= 8  # the curves of both cards
    assert "out/coder" in (site / "notebooks" / "rollouts.html").read_text(encoding="utf-8")
    assert (site / "notebooks" / "quick_start.ipynb").is_file()
    assert 'href="notebooks/quick_start.html"' in (site / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def opened():
    """One browser for all tests that open pages. These tests come last in the file, because nothing else in this
    process can run an event loop while the browser is open.
    """
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if path is None:
        pytest.skip("needs a browser: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(site, opened):
    """A new, empty tab."""
    with opened.new_context() as fresh:
        yield fresh.new_page()


@pytest.mark.parametrize("name", ["rule/kl_explosion", "rule/kto_margin_negative", "metric/reward.total.mean"])
def test_a_permanent_address_leads_to_the_heading(site, page, name):
    anchor = name.partition("/")[2]
    page.goto((site / f"{name}.html").as_uri())
    page.wait_for_url(f"**#{anchor}", timeout=30_000)
    place = page.locator(f'[id="{anchor}"]').bounding_box()
    assert place is not None
    assert 0 <= place["y"] < 700  # scrolled to it


def test_the_search_works_from_a_folder(site, page):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.locator(".md-search__input").click()
    page.keyboard.type("says_the_same")
    first = "document.querySelector('.md-search-result__link')"  # there are results from the first letter on
    page.wait_for_function(f"() => {first}?.href.includes('rules/texts.html')", timeout=30_000)
    assert not [address for address in asked if not address.startswith(("file:", "blob:", "data:", "about:"))]
