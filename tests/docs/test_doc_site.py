"""The documentation as a site: every link leads somewhere, nothing is fetched from elsewhere, and the search finds
rules when the pages are opened from a folder.
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

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built as `make docs` does; MkDocs is strict, so a link or an anchor that leads nowhere fails it."""
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


def test_every_rule_and_every_metric_has_an_address_of_its_own(site):
    def anchors(folder):
        pages = (page.read_text(encoding="utf-8") for page in (site / folder).glob("*.html"))
        return {anchor for page in pages for anchor in re.findall(r'\bid="([^"]+)"', page)}

    assert set(rulebook.shipped().rules) <= anchors("rules")
    assert {metric.id for metric in catalog.metrics()} <= anchors("metrics")


def test_the_reference_has_every_public_name(site):
    page = (site / "reference.html").read_text(encoding="utf-8")
    modules = {"catalog", "values"}  # told in the overview
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


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser: apt-get install chromium")
def test_the_search_works_from_a_folder(site):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.locator(".md-search__input").click()
        page.keyboard.type("says_the_same")
        result = page.locator(".md-search-result__link").first
        result.wait_for(timeout=30_000)
        assert "rules/texts.html" in result.get_attribute("href")
        assert not [address for address in asked if not address.startswith(("file:", "blob:", "data:", "about:"))]
        browser.close()
