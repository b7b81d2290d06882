"""Accessibility by axe-core on every screen in both themes and on a phone; widths that never overflow."""

from __future__ import annotations

import pytest
from browsing import SCREENS, axe_violations, browsing

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pages")]

VIEWS = {"runs": {}} | {name: {"run": "agent"} for name in SCREENS}
VIEWS |= {
    "vitals": {"run": "failing"},
    "metrics": {"run": "failing", "explain": "kl", "one": "entropy"},
    "health": {"run": "failing"},
    "compare": {"run": "healthy", "with": ["failing"]},
}
PHONE = {"width": 390, "height": 844}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(browser, port, theme):
    with browsing(browser, port, color_scheme=theme) as screen:
        found = {name: _violations(screen, name, query) for name, query in VIEWS.items()}
    assert {name: told for name, told in found.items() if told} == {}


def test_axe_finds_nothing_in_the_dialogs(browser, port):
    with browsing(browser, port) as screen:
        page = screen.open("metrics", run="healthy")
        page.keyboard.press("?")
        help_told = axe_violations(page)
        page.keyboard.press("Escape")
        page.keyboard.press("Control+k")
        page.wait_for_selector("[role=option]")
        assert (help_told, axe_violations(page)) == ([], [])


def _violations(screen, name, query):
    page = screen.open(name, **query) if query else screen.open()
    screen.settled()
    return axe_violations(page)


@pytest.mark.parametrize("viewport", [PHONE, {"width": 1280, "height": 900}], ids=["phone", "desk"])
def test_no_screen_is_wider_than_the_window(browser, port, viewport):
    with browsing(browser, port, viewport=viewport) as screen:
        for name, query in VIEWS.items():
            page = screen.open(name, **query) if query else screen.open()
            screen.settled()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
            assert page.evaluate(
                "document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth"
            ), name
