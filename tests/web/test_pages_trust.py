"""What a page must get right in the first ten minutes: a dead run, a change, a count, a log beside the runs."""

from __future__ import annotations

import json
import re

import pytest
from browsing import COLOURS, axe_violations, browsing
from serving import serving

import rlvitals
from rlvitals.store.asks import Ask, put
from rlvitals.store.layout import RunDir

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pages")]

PHONE = {"width": 390, "height": 800}
STEPS = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A killed run with a gradient that was zero for a while, a remark and evaluations; and a log of another tool."""
    folder = tmp_path_factory.mktemp("trust")
    how = {"algorithm": "grpo", "total_steps": 200, "actions": "asked", "display": "none", "hardware": False}
    with rlvitals.start(folder / "run", **how) as run:
        for step in range(1, STEPS + 1):
            row = {
                "reward": 0.3 + 0.002 * step,
                "loss": 0.0,
                "kl": 1.87 * step / STEPS,
                "grad_norm": 1 + 0.1 * (step % 3),
            }
            if 30 <= step < 60:
                row["grad_norm"] = 0.0
            run.log(row, step=step)
            if step == 70:
                put(RunDir(folder / "run"), Ask("checkpoint", "Ada", attempt=1, why="<b>before</b> lunch"))
                run.request().declined("no room")
            if step % 40 == 0:
                scores = {"eval_runtime": 3.0, "eval_loss": 0.5, "eval_reward": 0.3 + step / 400}
                run.log_eval(scores, step=step)
    card = json.loads((folder / "run" / "run.json").read_text())
    (folder / "run" / "run.json").write_text(json.dumps(card | {"status": "running", "ended": None}))  # as if killed
    rows = [{"step": step, "loss": 1 / step, "reward": 0.01 * step} for step in range(1, 41)]
    (folder / "train_log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_stopped_run_its_changes_counts_and_the_log_beside_it(browser, folder):
    with serving(folder) as client:
        client.api("runs")
        with browsing(browser, client.port) as screen:
            page = screen.open("vitals", run="run")
            verdict = page.locator(".verdict")
            assert "act" in verdict.get_attribute("class").split()
            assert "stopped at step 120 of 200: the process is gone; resume from" in verdict.inner_text()
            assert page.locator(".healthy").count() == 0
            kl = page.locator("[data-tile=kl]").inner_text()
            assert re.search(r"▲ 0\.1013 → 1\.784 since step 1.*; \+0\.187 over the last 24 steps", kl), kl

            page = screen.open("health", run="run")
            asked = page.locator(".asked li").inner_text()
            assert asked == "checkpoint requested at step 70, asked by Ada: <b>before</b> lunch: declined, no room"
            reason = page.locator(".reason").inner_text()
            report = rlvitals.check(folder / "run")
            assert reason == report.reason
            rules = {finding.rule for finding in report.findings}
            assert f"all {len(rules) + len({one.rule for one in report.normal})}" in screen.texts(".chip")[0]
            assert len(screen.texts(".cards > .finding")) == len(rules)
            # The timeline spans the run and explains its symbols; remarks are one line that unfolds.
            assert screen.texts(".timeline .ends span") == ["step 1", "120"]
            over = next(finding for finding in report.findings if finding.recovered_step is not None)
            lane = page.locator(".timeline .lane", has=page.get_by_title(over.rule, exact=True))
            bar, track = (lane.locator(part).first.bounding_box() for part in (".span", ".track"))
            end = (bar["x"] + bar["width"] - track["x"]) / track["width"]
            assert end == pytest.approx((over.recovered_step - 1) / (STEPS - 1), abs=0.01)
            assert "critical, at the step it was reported" in page.locator(".timeline .legend").inner_text()
            assert axe_violations(page) == []  # before scrolling: axe-core reports links out of view as skip links
            remarks = page.locator("details.remarks")
            assert remarks.get_attribute("open") is None
            assert not remarks.locator(".finding").first.is_visible()
            remarks.locator("summary").click()
            assert remarks.locator(".finding").first.is_visible()
            assert page.get_by_text("Rollouts at step").count() == 0  # the run has none

            page = screen.open("evaluations", run="run")
            assert screen.texts(".evals thead tr:last-child th")[:3] == ["Step", "eval_reward", "eval_loss"]

            page = screen.open("metrics", run="run")
            page.keyboard.press("/")
            assert page.evaluate("document.activeElement.tagName") == "INPUT"
            page.keyboard.press("Escape")
            assert page.evaluate("document.activeElement.tagName") == "BODY"

            client.api("runs")
            page = screen.open("runs", filter="train_log")
            screen.until("() => document.querySelector('.runs')?.innerText.includes('train_log.jsonl')")
            page.get_by_role("link", name="train_log.jsonl").click()
            page.wait_for_selector("[data-tile=reward]")
        with browsing(browser, client.port, viewport=PHONE, color_scheme="dark") as screen:
            page = screen.open("health", run="run")
            assert page.locator("#bar .where").is_visible()
            assert page.locator("#bar .where").inner_text() == "run"
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
            assert axe_violations(page, COLOURS) == []
