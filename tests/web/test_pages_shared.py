"""A shared site in a browser: every screen from files, on desktop and phone, in both themes; with a hostile run."""

from __future__ import annotations

import functools
import http.server
import threading
from contextlib import contextmanager

import pytest
from browsing import COLOURS, SCREENS, axe_violations, browsing

import rlvitals
from rlvitals.cli.main import main
from rlvitals.records import Group, Rollout, Turn

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pages")]

VIEWS = {"runs": {}} | {name: {"run": "agent"} for name in SCREENS}
VIEWS |= {
    "vitals": {"run": "failing"},
    "metrics": {"run": "failing", "explain": "kl", "one": "entropy"},
    "health": {"run": "failing"},
    "compare": {"run": "healthy", "with": ["failing"]},
}
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


class _Files(http.server.SimpleHTTPRequestHandler):
    """`python -m http.server` without its log."""

    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {".js": "text/javascript"}

    def log_message(self, *message) -> None: ...


@contextmanager
def plain_server(folder):
    handler = functools.partial(_Files, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture(scope="module")
def site(runs, tmp_path_factory):
    """Some runs of the page tests and a hostile one, shared."""
    folder = tmp_path_factory.mktemp("shared")
    run = rlvitals.start(
        folder / "h<b>x", display="none", hardware=False, monitor=False, config={HOSTILE: HOSTILE}, name=HOSTILE
    )
    run.log({HOSTILE: 1.0, "loss": 1.0, "said": HOSTILE}, step=1)
    run.log_groups([Group(HOSTILE, (Rollout((Turn(HOSTILE),), reward=1.0, outcome=HOSTILE),), id=HOSTILE)], step=1)
    run.log_image(HOSTILE, [[0, 255], [255, 0]], step=1, caption=HOSTILE)
    run.log_distribution({"spread": [1.0, 2.0, 3.0]}, step=1)
    run.finish()
    shared = [*(runs / name for name in ("healthy", "failing", "agent", "long")), folder / "h<b>x"]
    assert main(["share", *map(str, shared), "--to", str(folder / "site"), "--title", HOSTILE]) == 0
    with plain_server(folder / "site") as port:
        yield port


def test_every_screen_opens_from_files(browser, site):
    """The screens are those of the server, which test_pages_access.py checks with axe-core at desktop width and in the
    dark theme. Here all are checked on a phone, and the list of runs also at desktop width and in the dark theme.
    """
    phone, desk = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
    for viewport, views in ((phone, VIEWS), (desk, {"runs": {}})):
        with browsing(browser, site, viewport=viewport) as screen:
            for name, query in views.items():
                page = screen.go(name, **query)
                screen.settled()
                assert page.locator("#content .notice").count() == 0, (name, screen.texts("#content .notice"))
                assert page.locator("#content").inner_text().strip()
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
                # axe-core mistakes tabs that a phone has scrolled out of view for skip links.
                violations = [line for line in axe_violations(page) if not line.startswith('skip-link: <a href="#')]
                assert violations == [], name
                if name == "runs":
                    page.emulate_media(color_scheme="dark")
                    screen.settled()
                    assert axe_violations(page, COLOURS) == [], name
                    page.emulate_media(color_scheme="light")


def test_what_files_cannot_answer_is_reported(browser, site):
    with browsing(browser, site) as screen:
        page = screen.open("rollouts", run="agent", search="River is number 3 at step 2")
        assert page.locator(".groups button.group").count() == 1
        assert "What is the river?" in page.locator(".turns").inner_text()
        page = screen.open("rollouts", run="agent", search="nowhere to be found")
        assert "No rollouts match" in page.locator(".groups").inner_text()
        page = screen.open("compare", run="healthy", **{"with": ["failing", "agent"]})
        assert "compares two runs, or all" in page.locator("#content .notice").inner_text()
        page.get_by_role("button", name="shared copy").click()
        assert "Zooming in does not load more points" in page.locator("dialog").inner_text()
        assert axe_violations(page) == []
        page.keyboard.press("Escape")
        page = screen.open("health", run="nowhere")
        assert page.locator("#content .notice").count() == 1


def test_images_distributions_and_what_only_others_log_come_from_files(browser, site):
    with browsing(browser, site) as screen:
        page = screen.open("metrics", run="h<b>x", images="last", spread="bands")
        page.wait_for_selector("img.picture[src^='data:image/png;base64,']")
        assert page.evaluate("async () => (await document.querySelector('img.picture').decode(), true)")
        page.locator("figure", has_text="spread").locator("canvas").wait_for()
        page = screen.open("metrics", run="long", also=["healthy"])
        page.locator('.panel[data-metric="entropy"] canvas').first.wait_for()
        assert "only healthy" in page.locator('.panel[data-metric="entropy"] .what').inner_text()
        assert not screen.complaints


def test_curves_zoom_and_keep_their_extremes(browser, site):
    with browsing(browser, site) as screen:
        page = screen.open("metrics", run="long", one="wave")
        screen.settled()
        top = page.evaluate("""async () => {
          const {answer} = await import("./static/shared.js");
          const fixed = [["run", "long"], ["name", "wave"], ["x", "step"]];
          const ask = (more) => answer("series", new URLSearchParams([...fixed, ...more]));
          const whole = (await ask([])).lines[0];
          const part = (await ask([["from", "3000"], ["to", "3500"]])).lines[0];
          const both = (await ask([["name", "steady"]])).lines.map((line) => line.name);
          return [Math.max(...whole.high), whole.x.length, Math.max(...part.high), part.x[0], both];
        }""")
        assert top[0] == 50.0, "the one spike of 5,000 points"
        assert 200 < top[1] <= 400
        assert (top[2], 3000 <= top[3] < 3020, top[4]) == (50.0, True, ["wave", "steady"])


def test_nothing_in_a_run_becomes_markup(browser, site):
    with browsing(browser, site) as screen:
        for name in ["runs", *SCREENS]:
            page = screen.go(name, **({} if name == "runs" else {"run": "h<b>x"}))
            screen.settled()
            assert page.locator("#content img, #content script, #content b, #bar b").count() == 0, name
        page = screen.open("rollouts", run="h<b>x")
        assert HOSTILE in page.locator("#content").inner_text()
