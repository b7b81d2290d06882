"""The screens of a run with several environments, in a real browser."""

from __future__ import annotations

import pytest
from browsing import axe_violations, browsing
from page_runs import start
from serving import serving

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pages")]

ENVS = ("math", "code", "<b>odd</b>")
SOURCES = ("gsm8k", "openai/humaneval")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slices")
    for run_name, name in (("ours", "reward/env={}"), ("theirs", "env/{}/reward/total")):
        run = start(folder / run_name, algorithm="grpo", framework="trl_grpo")
        for step in range(1, 31):
            rewards = {name.format(env): place + step / 100 for place, env in enumerate(ENVS)}
            run.log({"loss": 1 / step, "reward": 1 + step / 100, **rewards}, step=step)
            if step % 10 == 0:
                run.log_eval({f"eval/accuracy/source={source}": step / 60 for source in SOURCES}, step=step)
        run.finish()
    return folder


@pytest.fixture
def sliced(browser, folder):
    with serving(folder) as client, browsing(browser, client.port) as opened:
        yield opened


def test_slices_share_a_panel_a_fold_and_a_curve(sliced):
    page = sliced.open("metrics", run="ours")
    panel = page.locator('.panel[data-metric="reward/{env}"]')
    panel.locator("canvas").wait_for()
    assert panel.locator("h3").inner_text() == "reward/{env}"
    assert panel.locator(".what").inner_text() == "Mean reward by env"
    assert panel.locator(".legend button").all_inner_texts() == list(ENVS)
    assert panel.locator(".count").inner_text() == "90 points"
    panel.locator(".legend button").first.click()
    panel.locator(".count", has_text="60 points").wait_for()
    assert panel.locator('[aria-pressed="false"]').inner_text() == "math"
    assert page.locator('.panel[data-metric^="reward/env="]').count() == 0  # no separate panel for each
    page.get_by_role("button", name="Metrics of Rewards").click()
    page.locator(".tree .leaf", has_text="code").click()
    page.wait_for_selector('.large .panel[data-metric="reward/env=code"] canvas')
    assert not axe_violations(page)

    page = sliced.open("vitals", run="ours")
    fold = page.locator('[data-tile="reward"] .slices')
    assert not fold.locator("table").is_visible()
    fold.locator("summary").click()
    assert [text.split() for text in fold.locator("tr").all_inner_texts()] == [
        ["math", "0.3"],
        ["code", "1.3"],
        ["<b>odd</b>", "2.3"],
    ]

    page = sliced.open("evaluations", run="ours")
    figure = page.locator("figure", has_text="Evaluation score by source")
    figure.locator("canvas").wait_for()
    assert figure.locator(".legend span:not(.swatch)").all_inner_texts() == [f" {source}" for source in SOURCES]

    page = sliced.open("compare", run="ours", **{"with": "theirs", "metric": "reward/env=code"})
    figure = page.locator("figure")
    figure.locator("canvas").wait_for()
    assert figure.count() == 1
    assert "60 points" in figure.inner_text()  # the env/code/reward/total of the other run is overlaid
