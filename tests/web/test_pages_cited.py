"""Findings from the texts of rollouts, in a browser: the places they cite, and the words marked in the transcript."""

from __future__ import annotations

import random

import pytest
from browsing import WCAG, axe_violations, browsing
from serving import serving

import rlvitals
from rlvitals.records import Group, Rollout, ToolCall, Turn

pytest_plugins = ["page_fixtures"]

MARKUP = "<img src=x onerror=alert(1)>"
HONEST = "def f(x):\n    return x + 1"
EXIT = f"😀 {MARKUP}\n```python\nimport os\ndef f(x):\n    os._exit(0)\n```"
"""The first symbol is one character in Python and two in JavaScript."""


@pytest.fixture(scope="module")
def gamed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cited")
    dice = random.Random(0)
    with rlvitals.start(folder / "run", display="none", hardware=None) as run:
        for step in range(12):
            groups = []
            for _ in range(4):
                cheats = [dice.random() < step / 12 for _ in range(8)]
                turns = [
                    (Turn(EXIT),) if cheat else (Turn("", (ToolCall("run", {"code": HONEST}),)), Turn("done"))
                    for cheat in cheats
                ]
                rollouts = [
                    Rollout(own, reward=float(cheat or dice.random() < 0.3))
                    for own, cheat in zip(turns, cheats, strict=True)
                ]
                groups.append(Group("Write f.", tuple(rollouts)))
            run.log({"loss": 1.0}, step=step)
            run.log_groups(groups, step=step)
    with serving(folder) as client:
        yield client


@pytest.fixture
def opened(gamed, browser):
    with browsing(browser, gamed.port) as screen:
        yield screen


def test_a_finding_leads_to_the_words_that_show_it(opened):
    page = opened.open("health", run="run")
    card = page.locator(".finding", has_text="end the process").first
    places = card.locator(".cited li")
    assert places.count() >= 3
    assert "os._exit(0)" in places.first.inner_text()
    assert axe_violations(page, WCAG) == []
    rollouts = card.get_by_role("link", name="Rollouts at step")
    assert rollouts.get_attribute("href").endswith(f"&step={rollouts.inner_text().split()[-1]}")
    where = places.first.locator("a").inner_text()
    places.first.locator("a").click()
    page.wait_for_selector("mark.spot")
    assert page.locator("mark.spot").inner_text().startswith("os._exit(")
    step, group, rollout = (word.rsplit(" ", 1)[1] for word in where.split(", "))
    assert f"Group {group} of" in page.locator(".turns h2").inner_text()
    assert f"step {step}" in page.locator(".turns h2").inner_text()
    assert page.locator(".transcript h2").inner_text() == f"Rollout {rollout}"
    assert page.locator("img[src=x]").count() == 0


def test_the_rollouts_screen_lists_what_a_finding_cites(opened):
    page = opened.open("rollouts", run="run")
    page.wait_for_selector('select[aria-label="Cited by a finding"]')
    page.select_option('select[aria-label="Cited by a finding"]', "ends_the_process")
    page.wait_for_selector("mark.spot")
    listed = page.locator(".groups .group")
    assert listed.count() >= 3
    listed.nth(2).click()
    page.wait_for_selector(".groups .group:nth-child(3).here")
    assert page.locator("mark.spot").inner_text().startswith("os._exit(")
    page.select_option('select[aria-label="Cited by a finding"]', "")
    page.wait_for_selector("mark.spot", state="detached")
    assert axe_violations(page, WCAG) == []
