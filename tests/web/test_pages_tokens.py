"""The transcript token by token, in a browser: the switch, the colours and their legend, the numbers of a token."""

from __future__ import annotations

import pytest
from browsing import COLOURS, WCAG, axe_violations, browsing
from serving import serving

import rlvitals
from rlvitals.records import Group, Rollout, TokenTrace, Turn

pytest_plugins = ["page_fixtures"]

MARKUP = "<img src=x onerror=alert(1)>"
TEXTS = ("The", " answer", "\n", "\t", MARKUP, "<|im_end|>", "tool", "\x1b[31m")
TRACE = TokenTrace(
    ids=tuple(range(100, 108)), texts=TEXTS, turns=(0,) * 6 + (1,) * 2, trained=(True,) * 6 + (False,) * 2,
    logprobs=(-0.01, -0.3, -1.2, -3.0, -6.0, -0.2, 0.0, 0.0),
    engine_logprobs=(-0.01, -0.3, -0.9, -3.7, -6.0, -0.2, 0.0, 0.0),
    new_logprobs=(-0.01, -0.1, -1.2, -3.0, -6.0, -0.2, 0.0, 0.0), entropies=(0.0, 0.3, 0.7, 1.5, 2.5, 0.2, 0.0, 0.0),
    advantages=(1.0,) * 3 + (-2.0,) * 3 + (0.0,) * 2, versions=(3, 3, 3, 4, 4, 4, 4, 4),
)  # fmt: skip

LOOKS = {
    "probability": ["s0", "s1", "s2", "s3", "s4", "s1", "masked", "masked"],
    "entropy": ["s0", "s1", "s2", "s3", "s4", "s1", "masked", "masked"],
    "gap": ["s0", "s0", "n2", "p3", "s0", "s0", "masked", "masked"],
    "mask": ["s2"] * 6 + ["masked"] * 2,
    "advantage": ["p2"] * 3 + ["n3"] * 3 + ["masked"] * 2,
    "version": ["s1"] * 3 + ["s0"] * 5,
}


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traced")
    with rlvitals.start(folder / "run", display="none", monitor=False) as run:
        run.log({"loss": 1.0}, step=1)
        with_tokens = Rollout((Turn("The answer"), Turn("tool")), reward=1.0, trace=TRACE)
        run.log_groups([Group("What?", (with_tokens, Rollout((Turn("none"),), reward=0.0)))], step=1)
    with serving(folder) as client:
        yield client


@pytest.fixture
def opened(traced, browser):
    with browsing(browser, traced.port) as screen:
        yield screen


def looks(page):
    classes = page.locator(".tokens .token").evaluate_all("all => all.map(one => one.className)")
    return [next(word for word in name.split() if word not in ("token", "special", "here")) for name in classes]


def test_each_overlay_colours_the_tokens_and_names_its_scale(opened):
    page = opened.open("rollouts", run="run")
    assert "1 group, 2 rollouts, mean reward" in page.locator("#content").inner_text()
    assert page.locator(".tokens").count() == 0
    page.get_by_role("button", name="tokens", exact=True).click()
    page.wait_for_selector(".tokens .token")
    choices = [text for text in opened.texts(".overlays button") if text != "plain"]
    assert choices == [
        "probability", "entropy", "trainer against engine", "trained or masked", "advantage", "policy version"
    ]  # fmt: skip
    for title, (name, expected) in zip(choices, LOOKS.items(), strict=True):
        page.get_by_role("button", name=title, exact=True).click()
        opened.until(f"() => location.hash.includes('tokens={name}')")
        assert looks(page) == expected
        assert page.locator(".legend li").count() >= 2
        drawn = page.locator(".legend .token").evaluate_all("all => all.map(one => one.className.split(' ')[1])")
        assert set(expected) - {"masked"} <= set(drawn)
    assert opened.texts(".turn h3") == ["Turn 1", "Turn 2"]
    page.get_by_role("button", name="plain", exact=True).click()
    page.wait_for_selector(".text.model")


def test_nothing_is_hidden_and_nothing_becomes_markup(opened):
    page = opened.open("rollouts", run="run", tokens="mask")
    page.wait_for_selector(".tokens .token")
    texts = page.locator(".tokens .token").evaluate_all("all => all.map(one => one.textContent)")
    assert texts == ["The", " answer", "↵\n", "⇥\t", MARKUP, "<|im_end|>", "tool", "␛[31m"]
    assert page.locator(".tokens img").count() == 0
    assert "special" in page.locator(".tokens .token").nth(5).get_attribute("class")


def test_a_tokens_numbers_come_by_pointer_tap_and_arrow_keys(opened):
    page = opened.open("rollouts", run="run", tokens="gap")
    page.wait_for_selector(".tokens .token")
    about = page.locator(".about-token")
    page.locator(".tokens .token").nth(1).hover()
    text = " ".join(about.inner_text().split())
    for fact in (
        'token " answer"',
        "id 101",
        "log-prob -0.3",
        "ratio 1.221",
        "entropy 0.3",
        "trained",
        "policy version 3",
    ):
        assert fact in text
    page.locator(".tokens").first.focus()
    page.keyboard.press("ArrowRight")
    assert 'token "\\n"' in " ".join(about.inner_text().split())
    assert page.locator(".token.here").count() == 1
    page.locator(".tokens .token").nth(6).click()
    assert "masked" in about.inner_text()


def test_a_rollout_without_tokens_has_no_switch_and_the_group_comes_without_them(opened, traced):
    page = opened.open("rollouts", run="run", tokens="gap", rollout=2)
    page.wait_for_selector(".transcript h2:has-text('Rollout 2')")
    assert page.locator(".overlays").count() == 0
    (whole,) = traced.api("rollouts", run="run", step=1, group=1).facts["groups"]
    assert [(each.get("traced"), "trace" in each) for each in whole["rollouts"]] == [(8, False), (None, False)]
    (asked,) = traced.api("rollouts", run="run", step=1, group=1, tokens=1).facts["groups"]
    assert asked["rollouts"][0]["trace"]["ids"] == list(range(100, 108))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_can_be_read_by_everybody_also_on_a_phone(opened, theme):
    page = opened.page
    page.emulate_media(color_scheme=theme)
    opened.open("rollouts", run="run", tokens="gap")
    page.wait_for_selector(".tokens .token")
    page.locator(".tokens .token").nth(3).click()
    assert axe_violations(page, WCAG if theme == "light" else COLOURS) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
