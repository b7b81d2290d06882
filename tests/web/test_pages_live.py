"""Pages that stay open while a run is being written."""

from __future__ import annotations

import threading

import pytest
from browsing import browsing
from page_runs import group, start
from serving import serving

from conftest import until
from rlvitals.compute import groups
from rlvitals.views import diagnosis
from rlvitals.web import live

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pages")]


@pytest.fixture
def training(tmp_path):
    run = start(tmp_path / "now", algorithm="grpo", total_steps=100)
    for step in range(1, 11):
        run.log({"reward": step / 10, "loss": 1.0}, step=step)
    yield run
    run.finish()


def test_a_new_row_comes_to_an_open_page(training, tmp_path, browser):
    with serving(tmp_path / "now") as client, browsing(browser, client.port) as screen:
        page = screen.open("vitals", run=".")
        assert page.locator("[data-now=step]").inner_text() == "10 of 100"
        page.wait_for_selector("#live:has-text('live')")
        training.log({"reward": 7.25, "loss": 0.5}, step=11)
        page.wait_for_selector("[data-now=step]:text('11 of 100')")
        assert page.locator('[data-tile="reward"] [data-value]').inner_text() == "7.25"
        training.log({"reward": float("nan"), "loss": 0.5}, step=12)
        page.wait_for_selector("[data-now=step]:text('12 of 100')")


def test_charts_grow_and_new_findings_appear(training, tmp_path, browser):
    with serving(tmp_path / "now") as client, browsing(browser, client.port) as screen:
        page = screen.open("metrics", run=".")
        screen.until("() => document.querySelector('[data-metric=loss] .count').textContent === '10 points'")
        for step in range(11, 21):
            training.log({"reward": 0.1, "loss": 1.0}, step=step)
        screen.until("() => document.querySelector('[data-metric=loss] .count').textContent === '20 points'")
        assert page.locator("[data-metric=reward] .readout").inner_text() == "0.1"
        page.keyboard.press("3")
        page.wait_for_selector(".screen-health[aria-busy=false]")
        before = page.locator(".finding").count()
        for step in range(21, 25):
            training.log({"reward": 0.1, "loss": float("nan")}, step=step)
        screen.until("before => document.querySelectorAll('.finding').length > before", before)


def test_a_new_metric_gets_a_panel(training, tmp_path, browser):
    with serving(tmp_path / "now") as client, browsing(browser, client.port) as screen:
        page = screen.open("metrics", run=".")
        page.wait_for_selector("[data-metric=loss]")
        training.log({"reward": 0.1, "brand_new": 3.0}, step=11)
        page.wait_for_selector("[data-metric=brand_new]")


def test_rollouts_of_a_new_step_are_shown(training, tmp_path, browser):
    training.log_groups(groups.advantages([group("lake", 10)]), step=10)
    with serving(tmp_path / "now") as client, browsing(browser, client.port) as screen:
        page = screen.open("rollouts", run=".")
        page.wait_for_selector(".turns h2:has-text('at step 10')")
        training.log_groups(groups.advantages([group("lake", 11)]), step=11)
        training.log({"reward": 0.1, "loss": 0.5}, step=11)
        page.wait_for_selector(".turns h2:has-text('at step 11')")


def test_a_page_out_of_view_takes_no_connection_and_misses_nothing(training, tmp_path, browser, monkeypatch):
    monkeypatch.setattr(live, "MOST_LISTENERS", 1)
    with serving(tmp_path / "now") as client, browsing(browser, client.port) as screen:
        page = screen.open("vitals", run=".")
        page.wait_for_selector("#live:has-text('live')")
        assert client.api("live", run=".").status == 503
        opened = []
        page.on("request", lambda request: opened.append(request.url) if "/api/live" in request.url else None)
        show(page, is_hidden=True)
        assert until(lambda: not any(connection.is_answering for connection in list(client.connections)))
        with client.listen(".") as events:  # its place is free
            assert next(events)[0] == "status"
            training.log({"reward": 7.25, "loss": 0.5}, step=11)
            assert next(events)[0] == "rows"
            assert page.locator("[data-now=step]").inner_text() == "10 of 100"
            assert opened == []
            show(page, is_hidden=False)
            page.wait_for_selector("#live:has-text('reconnecting since')")
        screen.forgive("status of 503")
        page.wait_for_selector("[data-now=step]:text('11 of 100')")  # it reconnected and continued from its last place
        assert page.locator('[data-tile="reward"] [data-value]').inner_text() == "7.25"


def show(page, *, is_hidden: bool) -> None:
    """Hide or show the page, as if another tab was opened or closed."""
    page.evaluate(
        """isHidden => {
            Object.defineProperty(document, "hidden", {value: isHidden, configurable: true});
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_hidden,
    )


def test_the_end_of_a_run_is_reported(tmp_path, browser):
    run = start(tmp_path / "now")
    run.log({"loss": 1.0}, step=1)
    with serving(tmp_path / "now") as client, browsing(browser, client.port) as screen:
        page = screen.open("vitals", run=".")
        page.wait_for_selector("#live:has-text('live')")
        run.finish()
        page.wait_for_selector("#live:has-text('finished')")


def test_a_server_that_is_gone_is_reported(tmp_path, browser, training):
    with serving(tmp_path / "now") as client, browsing(browser, client.port) as screen:
        page = screen.open("vitals", run=".")
        page.wait_for_selector("#live:has-text('live')")
        page.context.set_offline(True)
        page.keyboard.press("2")
        page.wait_for_selector(".notice:has-text('does not answer')")
        page.context.set_offline(False)
        screen.complaints.clear()
        page.keyboard.press("1")
        page.wait_for_selector(".tile")


def test_the_verdict_on_a_long_log_comes_to_the_open_page(tmp_path, browser, monkeypatch):
    with start(tmp_path / "log", monitor=False) as run:
        for step in range(1, 50):
            run.log({"loss": float("nan") if step > 40 else 1.0, "reward": 0.5}, step=step)
    is_done = threading.Event()

    def diagnose(view, pause):
        assert is_done.wait(60)
        return diagnosis.diagnose(view)

    monkeypatch.setattr("rlvitals.web.folder.diagnose", diagnose)
    monkeypatch.setattr("rlvitals.web.folder.PATIENCE", 0.05)
    with serving(tmp_path) as client, browsing(browser, client.port) as screen:
        for name, verdict in (("vitals", ".verdict"), ("health", ".head")):
            page = screen.open(name, run="log")
            assert ("being judged" in page.locator(verdict).inner_text()) == (not is_done.is_set())
            is_done.set()
            page.wait_for_selector(f"{verdict}:has-text('Act')")
