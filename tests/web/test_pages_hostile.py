"""Runs that try to inject code into the page, and addresses that try to leave the folder."""

from __future__ import annotations

import json

import pytest
from browsing import SCREENS, browsing
from page_runs import start
from serving import serving

from rlvitals.records import Group, Rollout, ToolCall, Turn

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pages")]

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'`{{alert(3)}}"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    name = "a<b onclick=alert(4)>&amp; #1?run=..%2f"
    run = start(folder / name, name=MARKUP, config={MARKUP: MARKUP, "link": "javascript:alert(5)"})
    for step in range(1, 41):
        if step == 20:
            text = f"{MARKUP} [x](javascript:alert(6))"
            call = ToolCall(MARKUP, {MARKUP: MARKUP}, text, error=MARKUP)
            turn = Turn(text, (call,), observation=text, outcome=MARKUP)
            parts = {MARKUP: 1.0}
            rollout = Rollout(
                (turn,), reward=1.0, outcome=MARKUP, stop=MARKUP, reward_parts=parts, rubric={MARKUP: text}
            )
            run.log_groups([Group(text, (rollout,), answer=text, kept=False, reason=MARKUP)], step=step)
        with run.phase(MARKUP):
            pass
        names = {MARKUP: float(step), f"reward/{MARKUP}": 1.0, "../../etc/passwd": 2.0, "x" * 5000: 1.0, "": 0.5}
        run.log({"loss": float("nan") if step > 30 else 1.0, **names}, step=step)
    run.log_eval({MARKUP: 0.5, "accuracy": 0.5, "samples": [{MARKUP: MARKUP}]}, step=40)
    run.finish()
    return folder


def test_nothing_of_a_run_becomes_markup_on_any_screen(hostile, browser):
    name = next(hostile.iterdir()).name
    with serving(hostile) as client, browsing(browser, client.port) as screen:
        for screen_name in SCREENS:
            extra = {"with": [name]} if screen_name == "compare" else {}
            page = screen.go(screen_name, run=name, explain=MARKUP, **extra)
            screen.settled()
            assert page.locator("#content img, #drawer img, script:not([src])").count() == 0
            assert page.locator("[onerror], [onclick], [srcdoc], a[href^=javascript]").count() == 0
            screen.allow("status of 40")
            assert screen.unforgiven == []
        page = screen.open("rollouts", run=name)
        assert MARKUP in page.locator(".transcript").inner_text()


def test_one_name_that_cannot_be_asked_for_leaves_the_others_alone(hostile, browser):
    name = next(hostile.iterdir()).name
    with serving(hostile) as client, browsing(browser, client.port) as screen:
        page = screen.open("metrics", run=name, filter="^(loss|x+)$")
        page.wait_for_selector(".panel .empty:has-text('more than 4096 characters')")
        page.wait_for_selector("[data-metric=loss] canvas")
        screen.allow("status of 40")


def test_a_path_out_of_the_folder_is_a_sentence(screen):
    for run in ("../", "..", "/etc", "healthy/../../x", "%2e%2e", "nothing-here", "a\x00b", "\\..\\"):
        page = screen.open("vitals", run=run)
        assert page.locator(".notice").inner_text(), run
        assert "root:" not in page.content(), run
    screen.allow("status of 40")


def test_an_address_full_of_nonsense_still_gives_a_page(screen):
    for nonsense in (
        "#metrics?run=healthy&from=zzz&to=-1e400&smooth=9e9&log=maybe&x=%00&filter=%5B&one=%3Cb%3E",
        "#__proto__?run=healthy",
        "#rollouts?run=agent&step=1e99&group=-3&rollout=0&page=-1",
        "#health?run=failing&finding=x&severity=%3C",
        "#vitals?%E0%A4%A",
        "#%3Cscript%3E",
    ):
        screen.page.goto("about:blank")  # changing only the hash would not reload the page
        screen.page.goto(screen.home + nonsense)
        screen.ready()
        assert screen.page.locator("#content").inner_text().strip()
    screen.allow("status of 40")


def test_a_filter_that_could_take_for_ever_comes_back(tmp_path, browser):
    with start(tmp_path / "run", monitor=False) as run:
        run.log({"a" * 34 + "!": 1.0, "aaa": 2.0}, step=1)
    with serving(tmp_path) as client, browsing(browser, client.port) as screen:
        page = screen.open("metrics", run="run", filter="^(a+)+$")
        screen.until("() => document.querySelectorAll('.panel').length === 1")
        assert page.locator(".panel").get_attribute("data-metric") == "aaa"
        page.get_by_role("searchbox").fill("(a)\\1")
        page.wait_for_selector(".problem:has-text('refers back to a group, which this filter does not know')")
        page.get_by_role("searchbox").fill("!")
        screen.until("() => document.querySelector('.panel')?.dataset.metric.endsWith('!')")
        assert page.locator(".problem").inner_text() == ""


def test_more_keys_than_are_listed_are_still_a_page(tmp_path, browser):
    logs = tmp_path / "many" / "logs"
    logs.mkdir(parents=True)
    row = {"step": 1, "timestamp": 1.0, **{f"key/{number}": number for number in range(60_000)}}
    (logs / "training_metrics.jsonl").write_text(json.dumps(row) + "\n")
    with serving(tmp_path) as client, browsing(browser, client.port) as screen:
        page = screen.open("metrics", run="many")
        page.wait_for_selector(".panel canvas")
        assert page.locator(".panel").count() < 60
        assert "40,000 more" in page.locator(".controls.sticky").inner_text()
