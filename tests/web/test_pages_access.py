"""Accessibility by axe-core on every screen in both themes and on a phone; widths that never overflow."""

from __future__ import annotations

import re

import pytest
from browsing import COLOURS, SCREENS, STATIC, axe_violations, browsing

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


def test_axe_finds_nothing(browser, port):
    """In the dark theme only colours are checked: nothing else changes with the theme, see below."""
    found = {}
    with browsing(browser, port) as screen:
        for name, query in VIEWS.items():
            page = opened(screen, name, query)
            found[name] = axe_violations(page)
            assert is_as_wide_as_the_window(page), name
            page.emulate_media(color_scheme="dark")
            screen.settled()
            found[f"{name} in the dark"] = axe_violations(page, COLOURS)
            page.emulate_media(color_scheme="light")
    assert {name: violations for name, violations in found.items() if violations} == {}


def test_the_dark_theme_changes_colours_alone():
    text = re.sub(r"/\*.*?\*/", "", (STATIC / "styles" / "colours.css").read_text(), flags=re.DOTALL)
    named = re.findall(r"([\w-]+)\s*:[^;{}]+;", text)
    assert len(named) > 40
    assert {name for name in named if not name.startswith("--")} <= {"color-scheme"}
    dark = [
        re.findall(r"[\w-]+\s*:[^;]+", block) for block in re.findall(r"\{([^{}]*color-scheme: dark;[^{}]*)\}", text)
    ]
    assert len(dark) == 2
    assert dark[0] == dark[1], "what the system chooses and what the user chooses is the same dark"
    others = [path for path in STATIC.rglob("*.css") if path.name != "colours.css"]
    themed = ("prefers-color-scheme", "data-theme")
    assert not [path.name for path in others if any(word in path.read_text() for word in themed)]


def test_axe_finds_nothing_in_the_dialogs(browser, port):
    with browsing(browser, port) as screen:
        page = screen.open("metrics", run="healthy")
        page.keyboard.press("?")
        in_help = axe_violations(page)
        page.keyboard.press("Escape")
        page.keyboard.press("Control+k")
        page.wait_for_selector("[role=option]")
        assert (in_help, axe_violations(page)) == ([], [])


def test_no_screen_is_wider_than_a_phone(browser, port):
    with browsing(browser, port, viewport=PHONE) as screen:
        for name, query in VIEWS.items():
            assert is_as_wide_as_the_window(opened(screen, name, query)), name


def opened(screen, name, query):
    page = screen.go(name, **query)
    screen.settled()
    return page


def is_as_wide_as_the_window(page):
    return page.evaluate(
        """() => document.documentElement.scrollWidth <= innerWidth
            && document.querySelector("main").scrollWidth <= document.querySelector("main").clientWidth"""
    )
