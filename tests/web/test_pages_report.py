"""The report's page in a real browser: axe-core, both themes, a phone; it runs no script and sends no request."""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager

import pytest
from browsing import COLOURS, WCAG, axe_violations

from rlvitals.render.check_html import page as check_page
from rlvitals.render.report_html import page as report_page
from rlvitals.views.check import check
from rlvitals.views.report import gather

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pages")]

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def reports(runs, tmp_path_factory):
    """Report files of a healthy run, a failing one, an agent's run, and a failing one compared with the healthy one."""
    folder = tmp_path_factory.mktemp("reports")
    pages = {name: report_page(gather(runs / name)) for name in ("healthy", "failing", "agent", "resumed")}
    pages["compared"] = report_page(gather(runs / "failing", [runs / "healthy"]))
    pages["checked"] = check_page(check(runs / "failing").to_dict())
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def windows(browser, reports):
    """Each file opened once, with everything unfolded: without scripts its only state is its size and theme."""
    with ExitStack() as opened:
        yield [opened.enter_context(window(browser, report)) for report in reports]


@contextmanager
def window(browser, report):
    """Any request or error of the file fails the test."""
    context = browser.new_context()
    page = context.new_page()
    asked, complaints = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto(report.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")

    @contextmanager
    def look(viewport, theme="light"):
        page.set_viewport_size(viewport)
        page.emulate_media(color_scheme=theme)
        yield page
        assert (asked, complaints) == ([report.as_uri()], [])

    look.name = report.stem
    yield look
    context.close()


@pytest.mark.parametrize(("viewport", "theme"), [(PHONE, "light"), (DESK, "light"), (DESK, "dark")])
def test_axe_finds_nothing_on_a_report(windows, viewport, theme):
    """In the dark theme only colours are checked, and no colour depends on the width."""
    found = {}
    for look in windows:
        with look(viewport, theme) as page:
            found[look.name] = axe_violations(page, COLOURS if theme == "dark" else WCAG)
    assert {name: violations for name, violations in found.items() if violations} == {}


def test_the_dark_theme_of_a_report_changes_colours_alone(reports):
    """For this reason the rules that do not read colours are checked in one theme."""
    for report in reports:
        _, *after = report.read_text(encoding="utf-8").split("@media (prefers-color-scheme: dark) {")
        rules = [rule for text in after for rule in re.match(r"((?:[^{}]*\{[^{}]*\})*)\s*\}", text)[1].split("}")]
        declared = [line for rule in rules for line in rule.rpartition("{")[2].split(";") if line.strip()]
        properties = {line.split(":")[0].strip() for line in declared}
        allowed = {"color-scheme", "stroke", "fill", "stroke-dasharray"}  # dashes come with the colour of a line
        assert {name for name in properties if not name.startswith("--")} <= allowed, report.stem
        assert len(properties) > 8, report.stem


@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_no_report_is_wider_than_the_window_and_no_chart_than_its_place(windows, viewport):
    for look in windows:
        with look(viewport) as page:
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), look.name
            assert page.evaluate(CUT_CHARTS) == 0, look.name


def test_letters_in_charts_can_be_read_on_a_phone(windows):
    for look in windows:
        with look(PHONE) as page:
            heights = page.evaluate(
                """() => [...document.querySelectorAll("svg text")].map(one => one.getBoundingClientRect().height)"""
            )
            assert min(heights, default=10) > 9, look.name


def test_no_label_of_a_chart_lies_on_another_or_outside(windows):
    for look in windows:
        with look(DESK) as page:
            assert page.evaluate(OVERLAPPING) == [], look.name


CUT_CHARTS = """() => {
  const charts = [...document.querySelectorAll("figure")];
  return charts.filter(chart => chart.scrollWidth > chart.clientWidth).length;
}"""

OVERLAPPING = """() => {
  const found = [];
  for (const chart of document.querySelectorAll("figure svg")) {
    const frame = chart.getBoundingClientRect();
    const labels = [...chart.querySelectorAll("text:not(.lost)")];
    const boxes = labels.map(label => [label.textContent, label.getBoundingClientRect()]);
    boxes.forEach(([text, box], place) => {
      if (box.left < frame.left - 1 || box.right > frame.right + 1) found.push(`${text} is cut off`);
      for (const [other, next] of boxes.slice(place + 1)) {
        const beside = box.right <= next.left || next.right <= box.left;
        const above = box.bottom - 4 <= next.top || next.bottom - 4 <= box.top;
        if (!beside && !above) found.push(`${text} on ${other}`);
      }
    });
  }
  return found;
}"""
