"""The Metrics screen in a real browser: overlaid runs, panels with their own settings, files, boards."""

from __future__ import annotations

import csv
import json
import math
from xml.etree import ElementTree

import pytest
from browsing import COLOURS, axe_violations, browsing
from page_runs import start
from serving import serving

import rlvitals
from rlvitals.records import Group, Rollout

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pages")]

STROKES = "all => all.map(one => one.firstChild.getAttribute('stroke'))"
"""The colours of the lines beside the names of runs."""

STEPS = 40
LONG = 25_000
PHONE = {"width": 390, "height": 844}
RUNS = {"one": (1e-6, 1), "two": (1e-6, 2), "three": (5e-6, 1), "four": (5e-6, 2)}
"""Learning rate and seed of each."""


def signed(step: int) -> float:
    """From -1,000 through zero to 1,000, five decades on each side."""
    if step == STEPS / 2:
        return 0.0
    away = 10 ** (abs(step - STEPS / 2) / (STEPS / 2) * 5 - 2)
    return math.copysign(away, step - STEPS / 2)


def reward(step: int, rate: float, seed: int) -> float:
    return step * rate * 1e5 + seed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("panels")
    for name, (rate, seed) in RUNS.items():
        settings = {"learning_rate": rate, "seed": seed}
        with start(folder / name, algorithm="grpo", framework="trl_grpo", monitor=False, config=settings) as run:
            for step in range(1, STEPS + 1):
                row = {"reward": reward(step, rate, seed), "kl": 0.1 + step / 100, "signed": signed(step)}
                row |= {"steady": 1.0, "devices": 8.0, "spiky": 1e6 if step == 7 else step / 10}
                run.log(row, step=step)
                if step % 10 == 0:
                    run.log_eval({"eval_reward": step / 50}, step=step)
    with start(folder / "rloo", algorithm="rloo", framework="trl_rloo", monitor=False) as run:
        for step in range(1, STEPS + 1):
            run.log({"reward": step / 40, "kl": 5.0 + step}, step=step)
    with start(folder / "rolled", monitor=False) as run:
        for step in range(1, 6):
            rewards = [Rollout(reward=float(number * step)) for number in range(5)]
            run.log_groups([Group("p", tuple(rewards))], step=step)
            run.log_distribution({"entropies": list(range(step * 10 + 1))}, step=step)
            if step % 2:
                run.log_image("samples/<i>grid</i>", [[step * 40] * 6] * 4, step=step, caption=f"<b>{step}</b>")
            run.log({"loss": 1 / step, "note": "<b>odd</b>"}, step=step)
    with start(folder / "long", monitor=False) as run:
        for step in range(1, LONG + 1):
            run.log({"wave": math.sin(step) / 3}, step=step)
        run.log({"-2+3": -1.0}, step=1)
    return folder


@pytest.fixture
def served(folder):
    with serving(folder, edit=True) as client:
        yield client.port


def panel(page, name: str):
    return page.locator(f'.panel[data-metric="{name}"]')


def words(page, name: str) -> str:
    """The text that describes a panel to screen readers."""
    plot = panel(page, name).locator(".plot[aria-label]")
    plot.wait_for()
    return plot.get_attribute("aria-label")


def saved(page, button: str) -> str:
    with page.expect_download() as waiting:
        page.get_by_role("button", name=button).click()
    return waiting.value.path().read_bytes()


def open_menu(page, name: str):
    panel(page, name).get_by_role("button", name=f"{name}: scale").click()
    return page.locator("dialog")


def test_runs_lie_over_each_other_and_groups_are_means_with_bands(browser, served, folder):
    with browsing(browser, served, accept_downloads=True) as screen:
        page = screen.open("metrics", run="one")
        page.get_by_role("button", name="Overlay other runs").click()
        for name in ("two", "three", "rloo"):
            page.locator("dialog label", has_text=name).get_by_role("checkbox").check()
        assert not axe_violations(page)
        page.keyboard.press("Escape")
        assert page.url.endswith("also=two&also=three&also=rloo")
        screen.until("() => document.querySelector('[data-metric=reward] .plot').ariaLabel?.includes('three:')")
        drawn = words(page, "reward")
        assert "one: 40 points from 1.1 to 5, last 5" in drawn
        assert "one, evaluation: 4 points" in drawn
        assert "three: 40 points from 1.5 to 21, last 21" in drawn
        colours = page.locator(".over .swatch").evaluate_all(
            "all => all.map(one => one.firstChild.getAttribute('stroke'))"
        )
        assert len(set(colours)) == 4

        # RLOO's kl is a different estimate from GRPO's: it is not overlaid, and the reason is shown.
        assert "rloo" not in words(page, "kl")
        panel(page, "kl").get_by_role("button", name="1 run not drawn").click()
        assert "measure one idea in ways that do not compare" in page.locator("dialog").inner_text()
        page.keyboard.press("Escape")

        page.locator('[data-run="two"]').get_by_role("button", name="two in front").click()
        page.wait_for_url("**front=two**")
        page.locator('[data-run="three"] button').first.click()
        page.wait_for_url("**hide=three**")
        screen.until("() => !document.querySelector('[data-metric=reward] .plot').ariaLabel?.includes('three')")
        assert words(page, "reward").endswith("two, evaluation: 4 points from 0.2 to 0.8, last 0.8")  # drawn last
        assert not axe_violations(page)
        address = page.url
        page.reload()
        screen.ready()
        assert page.url == address
        assert "three" not in words(page, "reward")
        again = page.locator(".over .swatch").evaluate_all(
            "all => all.map(one => one.firstChild.getAttribute('stroke'))"
        )
        assert again == colours

        page = screen.open("compare", run="one", **{"with": ["two", "three", "rloo"]})  # the same run, the same colour
        there = page.locator(".controls .run .swatch").evaluate_all(
            "all => all.map(one => one.firstChild.getAttribute('stroke'))"
        )
        assert there == colours

        page = screen.open("metrics", run="one", also=["two", "three", "four"], by="learning_rate")
        screen.until("() => document.querySelectorAll('.over .run').length === 2")
        assert screen.texts(".over .run button:first-child") == [
            " learning_rate=1e-06 · 2 runs",
            " learning_rate=5e-06 · 2 runs",
        ]
        mean = (reward(STEPS, 1e-6, 1) + reward(STEPS, 1e-6, 2)) / 2
        assert f"learning_rate=1e-06: mean of 2 runs: 300 points from 1.6 to {mean:g}, last {mean:g}" in words(
            page, "reward"
        )
        page.get_by_label("Group runs by").select_option("")
        screen.until("() => document.querySelectorAll('.over .run').length === 4")


def test_a_panel_has_a_title_an_evaluation_and_files_of_its_own(browser, served, folder):
    with browsing(browser, served, accept_downloads=True) as screen:
        page = screen.open("metrics", run="one")
        assert screen.texts("h2.group")[0] == "Essentials"
        assert panel(page, "reward").locator("h3").inner_text() == "reward"
        assert panel(page, "reward").locator(".what").inner_text() == "Mean reward"
        assert panel(page, "reward").locator(".legend button").all_inner_texts() == ["reward", "eval_reward"]
        assert panel(page, "eval_reward").count() == 0
        fold = page.get_by_role("button", name="2 constant metrics")
        assert panel(page, "steady").count() == 0
        fold.click()
        panel(page, "steady").locator("canvas").wait_for()
        page.get_by_role("button", name="2 constant metrics").click()

        # A log scale of signed values is symlog: every value is drawn, and equal ratios are equally far apart.
        menu = open_menu(page, "signed")
        menu.get_by_label("scale").select_option("log")
        page.wait_for_selector('[data-metric="signed"] .count:has-text("symlog")')
        drawing = ElementTree.fromstring(saved(page, "SVG"))
        assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
        texts = [one.text for one in drawing.iter("{http://www.w3.org/2000/svg}text")]
        assert "symlog, linear within ±0.01" in texts
        path = next(drawing.iter("{http://www.w3.org/2000/svg}path")).get("d")
        heights = [float(point.split()[1]) for point in path.replace("M", "L").split("L") if point]
        assert len(heights) == STEPS
        zero = heights[STEPS // 2 - 1]
        expected = [math.asinh(signed(step) / 0.01) for step in range(1, STEPS + 1)]
        unit = (zero - heights[-1]) / expected[-1]
        assert heights == pytest.approx([zero - unit * at for at in expected], abs=0.05)

        table = list(csv.DictReader(saved(page, "CSV").decode().splitlines()))
        logged = rlvitals.open_run(folder / "one").series("signed")
        assert [(int(row["step"]), float(row["value"])) for row in table] == list(zip(*map(list, logged), strict=True))
        assert saved(page, "PNG").startswith(b"\x89PNG")
        page.keyboard.press("Escape")

        menu = open_menu(page, "spiky")
        menu.get_by_label("clip outliers").check()
        page.wait_for_selector('[data-metric="spiky"] .count:has-text("outliers clipped")')
        menu.get_by_label("Highest y").fill("3")
        menu.get_by_label("Highest y").press("Enter")
        page.wait_for_selector('[data-metric="spiky"] .count:has-text("manual y range")')
        assert not axe_violations(page)
        menu.get_by_role("button", name="Pin").click()
        page.keyboard.press("Escape")
        menu = open_menu(page, "kl")
        menu.get_by_role("button", name="Pin").click()
        menu.get_by_role("button", name="Earlier").click()
        page.keyboard.press("Escape")
        assert "pin=kl&pin=spiky" in page.url
        assert screen.texts("h2.group")[0] == "Pinned"
        page.get_by_role("button", name="Save as a board").click()
        page.get_by_label("Name of the board").fill("mine")
        page.keyboard.press("Enter")
        page.wait_for_url("**board=mine**")
        kept = json.loads((folder / ".rlvitals-marks.json").read_text())["boards"]["mine"]
        assert kept == {"pin": ["kl", "spiky"], "panel": ["log;signed", "clip,y::3;spiky"]}

        page = screen.open("metrics", run="two")
        page.get_by_label("Board", exact=True).select_option("mine")
        screen.until("() => document.querySelectorAll('.panel').length === 2")
        assert [one.get_attribute("data-metric") for one in page.locator(".panel").all()] == ["kl", "spiky"]
        page.wait_for_selector('[data-metric="spiky"] .count:has-text("manual y range")')

        # Smoothing by a time constant: the kernel is exp(-distance / 5 steps).
        page = screen.open("metrics", run="one", filter="^signed$", smooth="5x", panel="symlog;signed")
        values = rlvitals.open_run(folder / "one").series("signed").values
        weights = [math.exp(-(STEPS - step) / 5) for step in range(1, STEPS + 1)]
        last = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
        panel(page, "signed").locator("canvas").wait_for()
        panel(page, "signed").locator(".u-over").hover(position={"x": 1e3 and 245, "y": 20})
        assert page.get_by_label("Smooth by").input_value() == "x"
        readout = panel(page, "signed").locator(".readout").inner_text()
        assert readout.startswith("step 40 · ")
        assert float(readout.removeprefix("step 40 · ").replace(",", "")) == pytest.approx(last, rel=1e-3)


def test_a_csv_holds_every_point_of_a_long_series(browser, served, folder):
    with browsing(browser, served, accept_downloads=True) as screen:
        page = screen.open("metrics", run="long")
        open_menu(page, "wave")
        table = list(csv.DictReader(saved(page, "CSV").decode().splitlines()))
        logged = rlvitals.open_run(folder / "long").series("wave")
        assert [(int(row["step"]), float(row["value"])) for row in table] == list(zip(*map(list, logged), strict=True))
        page.keyboard.press("Escape")
        open_menu(page, "-2+3")
        rows = saved(page, "CSV").decode().splitlines()
        assert rows[1:] == ["long,'-2+3,train,1,-1"], "a name is no formula, and a negative number is a number"


def test_what_only_the_runs_over_it_log_is_shown_with_which_do(browser, served):
    with browsing(browser, served) as screen:
        page = screen.open("metrics", run="rloo", also=["one", "rolled"])
        assert panel(page, "signed").locator(".what").inner_text() == "only one"
        assert "one: 40 points" in words(page, "signed")
        assert "only rolled" in panel(page, "loss").locator(".what").inner_text()
        assert "2 runs not drawn" in panel(page, "loss").locator(".count").inner_text()
        assert "only" not in panel(page, "kl").locator(".what").inner_text()
        names = set(page.locator(".panel").evaluate_all("all => all.map(one => one.dataset.metric)"))
        assert {"reward", "kl", "signed", "spiky", "loss"} <= names
        page.get_by_role("button", name="Remove rolled").click()
        panel(page, "loss").wait_for(state="detached")
        panel(page, "signed").wait_for()
        page.get_by_role("button", name="Remove one").click()
        panel(page, "signed").wait_for(state="detached")
        panel(page, "kl").wait_for()


def test_images_have_a_slider_over_the_steps(browser, served):
    with browsing(browser, served) as screen:
        page = screen.open("metrics", run="rolled")
        page.get_by_text("Images", exact=True).click()
        picture = page.locator("img.picture")
        page.wait_for_selector('img.picture[alt="samples/<i>grid</i> at step 5: <b>5</b>"]')
        assert shade(page) == 200
        slider = page.get_by_label("Step of the images")
        slider.focus()
        slider.press("ArrowLeft")
        page.wait_for_selector('img.picture[alt*="at step 3"]')
        assert shade(page) == 120
        assert "images=3" in page.url
        caption = page.locator(".pictures figcaption").inner_text()
        assert caption.split("\n")[-1].strip() == "step 3 · 6 \u00d7 4 · <b>3</b>"
        assert picture.get_attribute("src").startswith("data:image/png;base64,")
        screen.settled()
        assert not axe_violations(page)
        page = screen.open("metrics", run="rolled", images="2")  # there is none at step 2, so that of step 1
        page.wait_for_selector('img.picture[alt*="at step 1"]')
        assert shade(page) == 40
        page.get_by_text("Images", exact=True).click()
        screen.until("() => !location.href.includes('images=')")
        page = screen.open("metrics", run="one")
        panel(page, "kl").locator("canvas").wait_for()
        assert page.get_by_text("Images", exact=True).count() == 0


def shade(page) -> int:
    """The first pixel of the image as decoded by the browser."""
    return page.evaluate(
        """async () => {
          const picture = document.querySelector('img.picture');
          await picture.decode();
          const context = document.createElement('canvas').getContext('2d');
          context.drawImage(picture, 0, 0);
          return context.getImageData(0, 0, 1, 1).data[0];
        }"""
    )


def test_a_phone_in_the_dark_shows_the_same_and_distributions(browser, served):
    with browsing(browser, served, viewport=PHONE, color_scheme="dark") as screen:
        page = screen.open("metrics", run="rolled")
        page.get_by_text("Distributions and texts").click()
        figure = page.locator("figure", has_text="Reward of each rollout")
        figure.locator("canvas").wait_for()
        drawn = figure.locator(".plot").get_attribute("aria-label")
        assert "highest: 5 points from 4 to 20, last 20" in drawn
        assert "median, 25 to 75 %: 5 points from 2 to 10, last 10" in drawn
        assert page.locator("td", has_text="<b>odd</b>").count() == 5
        page.get_by_label("Distributions as").select_option("histogram")
        page.wait_for_selector('canvas[aria-label^="Histogram of entropies"]')
        assert "step 5: 0 to 50, median 25" in page.locator('[aria-label*="entropies"]').get_attribute("aria-label")
        screen.settled()
        assert not axe_violations(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page = screen.open("metrics", run="one", also=["two", "three", "four"], by="seed", pin="kl", log="1")
        panel(page, "kl").locator("canvas").wait_for()
        screen.settled()
        assert not axe_violations(page, COLOURS)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        panel(page, "kl").get_by_role("button", name="kl: scale").click()
        screen.settled()
        assert not axe_violations(page)
        page.get_by_role("button", name="Full screen").click()
        page.wait_for_selector(".large.full canvas")
        assert page.locator(".large.full").bounding_box()["height"] == PHONE["height"]
        page.keyboard.press("Escape")
        screen.until("() => !document.querySelector('.large.full')")
