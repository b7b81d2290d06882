"""The report's page in a real browser: axe-core, both themes, a phone; nothing runs, nothing is asked for."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from browsing import axe_violations

from rlvitals.render.check_html import page as check_page
from rlvitals.render.report_html import page as report_page
from rlvitals.views.check import check
from rlvitals.views.report import gather

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pages")]

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def reports(runs, tmp_path_factory):
    """The files people send: of a healthy run, a failing one, an agent's, and a failing one beside the healthy one."""
    folder = tmp_path_factory.mktemp("reports")
    pages = {name: report_page(gather(runs / name)) for name in ("healthy", "failing", "agent", "resumed")}
    pages["compared"] = report_page(gather(runs / "failing", [runs / "healthy"]))
    pages["checked"] = check_page(check(runs / "failing").to_dict())
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return sorted(folder.iterdir())


@contextmanager
def opened(browser, report, **how):
    """The file in a fresh window, everything unfolded; what it asks for or complains of fails the test."""
    context = browser.new_context(**how)
    page = context.new_page()
    asked, complaints = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.goto(report.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    yield page
    context.close()
    assert (asked, complaints) == ([report.as_uri()], [])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_axe_finds_nothing_on_a_report(browser, reports, theme, viewport):
    found = {}
    for report in reports:
        with opened(browser, report, viewport=viewport, color_scheme=theme) as page:
            found[report.stem] = axe_violations(page)
    assert {name: told for name, told in found.items() if told} == {}


@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_no_report_is_wider_than_the_window_and_no_chart_than_its_place(browser, reports, viewport):
    for report in reports:
        with opened(browser, report, viewport=viewport) as page:
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), report.stem
            assert page.evaluate(CUT_CHARTS) == 0, report.stem


def test_letters_in_charts_can_be_read_on_a_phone(browser, reports):
    for report in reports:
        with opened(browser, report, viewport=PHONE) as page:
            heights = page.evaluate(
                """() => [...document.querySelectorAll("svg text")].map(one => one.getBoundingClientRect().height)"""
            )
            assert min(heights, default=10) > 9, report.stem


def test_no_label_of_a_chart_lies_on_another_or_outside(browser, reports):
    for report in reports:
        with opened(browser, report, viewport=DESK) as page:
            assert page.evaluate(OVERLAPPING) == [], report.stem


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
