"""Using only the keyboard: every screen, the list of keys, search, dialogs, focus."""

from __future__ import annotations

import pytest
from browsing import LISTED

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pages")]


def test_a_question_mark_lists_the_keys_of_the_screen(screen):
    page = screen.open("metrics", run="healthy")
    page.keyboard.press("?")
    listed = page.locator("dialog").inner_text()
    for words in ("Everywhere", "This screen", "light or dark", "log scale", "next panel", "Ctrl"):
        assert words in listed
    drawn = [key.strip() for key in page.locator("dialog kbd").all_inner_texts()]
    assert all(drawn)
    assert {"Ctrl", "k", "+", "-", "←", "Esc", "?", "/", "1"} <= set(drawn)
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")


def test_digits_go_to_every_screen_and_r_to_all_runs(screen):
    page = screen.open("vitals", run="healthy")
    for name, key, title in LISTED[1:]:
        page.keyboard.press(key)
        page.wait_for_selector(f"#content.screen-{name}[aria-busy=false]")
        assert page.locator("nav a[aria-current]").inner_text() == title
    page.keyboard.press("r")
    page.wait_for_selector(".runs")
    screen.forgive("status of 404")  # the run has no rollouts


def test_ctrl_k_finds_a_metric_a_run_and_a_text_in_rollouts(screen):
    page = screen.open("vitals", run="healthy")
    page.keyboard.press("Control+k")
    page.keyboard.type("entropy")
    page.wait_for_selector("[role=option]:has-text('entropy'):not(:has-text('rollouts'))")  # the metric, not the search
    page.keyboard.press("Enter")
    page.wait_for_selector(".large .panel[data-metric=entropy]")
    page.keyboard.press("Control+k")
    page.keyboard.type("agent")
    page.wait_for_selector("[role=option]:has-text('run')")
    page.keyboard.press("Enter")
    page.wait_for_url("**run=agent**")
    page.wait_for_selector(".tile")
    page.keyboard.press("Control+k")
    page.keyboard.type("found river page 4")
    page.wait_for_selector("[role=option]:has-text('search in all rollouts')")
    page.keyboard.press("Enter")
    page.wait_for_selector(".transcript mark")


def test_panels_are_walked_enlarged_explained_and_zoomed_by_keys(screen):
    page = screen.open("metrics", run="healthy")
    page.wait_for_selector(".panel canvas")
    page.keyboard.press("j")
    page.keyboard.press("j")
    name = page.evaluate("document.activeElement.dataset.metric")
    assert name
    page.keyboard.press("e")
    page.wait_for_selector("#drawer h2")
    page.keyboard.press("Escape")
    screen.until("name => document.activeElement.dataset.metric === name", name)  # the focus returns to the opener
    page.keyboard.press("k")
    screen.until("name => (document.activeElement.dataset.metric ?? name) !== name", name)
    page.keyboard.press("Enter")
    page.wait_for_selector(".large .panel canvas")
    page.keyboard.press("Escape")
    screen.until("() => !document.querySelector('.large .panel')")
    page.wait_for_selector(".panel .plot[data-from]")  # the range that is zoomed
    page.keyboard.press("+")
    page.wait_for_url("**from=**")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("-")
    page.keyboard.press("0")
    screen.until("() => !location.hash.includes('from=')")
    page.keyboard.press("y")
    page.wait_for_url("**log=1**")
    page.keyboard.press("s")
    page.wait_for_url("**smooth=0.10**")
    page.keyboard.press("x")
    page.wait_for_url("**x=epoch**")
    screen.until("() => document.querySelector('.panel .empty')")
    screen.forgive("status of 400")


def test_keys_belong_to_a_field_while_it_is_typed_in(screen):
    page = screen.open("metrics", run="healthy")
    page.keyboard.press("/")
    page.keyboard.type("r1")
    page.wait_for_url("**filter=r1**")
    assert page.locator(".screen-metrics").count() == 1


def test_findings_are_walked_by_keys(screen):
    page = screen.open("health", run="failing")
    first, second = page.locator(".finding").evaluate_all("all => all.slice(0, 2).map(card => card.id)")
    for key, chosen in (("j", first), ("j", second), ("k", first)):
        page.keyboard.press(key)
        page.wait_for_selector(f"#{chosen}.chosen")
        assert chosen.replace("-", "=") in page.url


def test_tab_reaches_everything_and_shows_where_it_is(screen):
    page = screen.open("vitals", run="failing")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        focus = page.evaluate("""() => {
            const at = document.activeElement;
            const style = getComputedStyle(at);
            const isSeen = style.outlineStyle !== 'none' && style.outlineWidth !== '0px';
            return [at.tagName, at.textContent.slice(0, 20), isSeen];
        }""")
        if focus[0] == "BODY":
            break
        assert focus[2], f"no focus to be seen on {focus}"
        reached.add(focus[0])
    assert {"A", "BUTTON", "SUMMARY"} <= reached


def test_the_theme_is_the_systems_until_t_changes_it(browser, port):
    from browsing import browsing

    with browsing(browser, port, color_scheme="dark") as screen:
        page = screen.open("vitals", run="healthy")
        paper = "() => getComputedStyle(document.body).backgroundColor"
        dark = page.evaluate(paper)
        page.keyboard.press("t")
        screen.until(f"dark => ({paper})() !== dark", dark)
        light = page.evaluate(paper)
        page.reload()
        screen.ready()
        assert page.evaluate(paper) == light
