"""A real browser on a real server, for the tests of the pages."""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest

REPO = Path(__file__).parents[2]
STATIC = REPO / "src" / "rlvitals" / "web" / "static"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--disable-site-isolation-trials", "--in-process-gpu", "--renderer-process-limit=1",
]  # fmt: skip
WAIT_MS = 15_000

LISTED = re.findall(r'name: "(\w+)", key: "(.)", title: "([^"]+)"', (STATIC / "screens.js").read_text())
"""Name, key and title of every screen, the list of runs first."""

SCREENS = [name for name, _, _ in LISTED[1:]]
"""The screens of a run."""


BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
"""The first is the headless build of Chromium: the same engine in half the processor time."""


def chromium() -> str:
    """The browser, or a skip that explains how to get one."""
    found = os.environ.get("RLVITALS_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), "")
    if not found:
        pytest.skip("the tests of the pages need a browser: apt-get install chromium, or its path in RLVITALS_CHROMIUM")
    return found


def node_module(name: str) -> Path:
    """A tool from npm that only the tests use, or a skip that explains how to get it."""
    folder = Path(os.environ.get("RLVITALS_NODE_MODULES", REPO / ".venv" / "node" / "node_modules")) / name
    if not folder.is_dir():
        pytest.skip(f"needs {name}: npm install --prefix .venv/node with the versions in tests/web/package.json")
    return folder


COLOURS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
"""The rules of axe-core that read colours, for a theme that changes only colours."""

WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def axe_violations(page, rules=WCAG) -> list[str]:
    """The violations that axe-core reports for a page: one line for each of the first elements of a rule."""
    if not page.evaluate("'axe' in window"):
        page.evaluate((node_module("axe-core") / "axe.min.js").read_text())
    # For rules that pass it reports only one element: naming all of them takes a fifth of the time.
    answer = page.evaluate("rules => axe.run({runOnly: rules, resultTypes: ['violations']})", rules)
    return [f"{one['id']}: {node['html'][:160]}" for one in answer["violations"] for node in one["nodes"][:3]]


class Screen:
    """One page of the browser, and the errors on it."""

    def __init__(self, page, port: int) -> None:
        self.page = page
        self.home = f"http://localhost:{port}/"
        self.complaints: list[str] = []
        self.forgiven: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        page.on("dialog", lambda dialog: (self.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", self._asked)
        page.on("response", self._answered)

    def _answered(self, response) -> None:
        """Record the address of a refused request, which the console does not name."""
        if response.status >= 400:
            self.complaints.append(f"a status of {response.status} for {response.url}")

    def _asked(self, request) -> None:
        if not request.url.startswith((self.home, "data:")):
            self.complaints.append(f"a request left this machine: {request.url}")

    def open(self, screen: str = "", **query):
        """Go to a screen and wait until it is shown."""
        if self.page.url.startswith(self.home):
            self.page.goto("about:blank")  # changing only the hash would not reload the page
        self.page.goto(self.home + (_place(screen, query) if screen else ""))
        self.ready()
        return self.page

    def go(self, screen: str, **query):
        """Like `open`, but stay on an open page, as a link does: a third of the work."""
        if not self.page.url.startswith(self.home):
            return self.open(screen, **query)
        self.page.evaluate("place => { location.hash = place; }", _place(screen, query))
        self.page.wait_for_selector(f"#content.screen-{screen}[aria-busy=false]")
        return self.page

    def ready(self) -> None:
        self.page.wait_for_selector("#content[aria-busy=false]")

    def settled(self) -> None:
        """Wait until nothing has changed for a while and no animation runs."""
        self.page.evaluate(
            """() => new Promise(done => {
              let last = performance.now();
              const watch = new MutationObserver(() => { last = performance.now(); });
              watch.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
              const look = () => {
                const moves = document.getAnimations().some(one => one.playState === "running");
                if (moves || performance.now() - last < 150) return void setTimeout(look, 20);
                watch.disconnect();
                done(null);
              };
              look();
            })"""
        )

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def forgive(self, words: str) -> None:
        """Ignore an expected error: browsers report a failed request to the console themselves."""
        assert any(words in complaint for complaint in self.complaints)
        self.allow(words)  # more of them may still come

    def allow(self, words: str) -> None:
        """The same for an error that may or may not occur."""
        self.forgiven.append(words)

    @property
    def unforgiven(self) -> list[str]:
        return [complaint for complaint in self.complaints if not any(words in complaint for words in self.forgiven)]

    def until(self, script: str, argument=None):
        """Wait until a function in the page returns a true value."""
        for _ in range(WAIT_MS // 50):
            if found := self.page.evaluate(script, argument):
                return found
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never true: {script}")


def _place(screen: str, query: dict) -> str:
    return f"#{screen}?{urlencode(query, doseq=True)}" if query else f"#{screen}"


@contextmanager
def browsing(browser, port: int, **how):
    """A new tab; an error of the page fails the test. Tabs with the same options share the browser's cache, which saves
    half of the work of opening a page. The data that a page stored is deleted with its tab.
    """
    context = _shared_context(browser, {"viewport": {"width": 1280, "height": 900}} | how)
    screen = Screen(context.new_page(), port)
    try:
        yield screen
    finally:
        context.new_cdp_session(screen.page).send(
            "Storage.clearDataForOrigin", {"origin": screen.home.rstrip("/"), "storageTypes": "all"}
        )
        context.clear_cookies()
        context.set_offline(False)
        screen.page.close()
    assert screen.unforgiven == [], screen.unforgiven


def _shared_context(browser, how):
    wanted = json.dumps(how, sort_keys=True)
    known = vars(browser).setdefault("_contexts_by_look", {})
    if wanted not in known:
        known[wanted] = browser.new_context(**how)
        known[wanted].new_page()  # stays open and keeps the renderer process alive
    return known[wanted]
