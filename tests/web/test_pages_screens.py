"""Every screen in a real browser, compared with the runs it shows."""

from __future__ import annotations

import re
from itertools import groupby
from urllib.parse import parse_qs

import pytest
from browsing import SCREENS
from page_runs import LONG, SPIKE

import rlvitals
from rlvitals.render.numbers import number

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pages")]


def test_the_list_of_runs_tells_verdicts_and_opens_a_run(screen):
    page = screen.open()
    rows = {text.split("\n")[0]: text for text in screen.texts(".runs tbody td.col-run")}
    assert set(rows) == {"healthy", "failing", "agent", "long", "resumed", "imported"}
    failing = page.locator("tr", has_text="failing")
    assert "Act" in failing.inner_text()
    listed = page.evaluate("() => fetch('/api/runs').then(answer => answer.json())")["runs"]
    seconds, unit = failing.locator(".col-duration").inner_text().split()
    assert float(seconds) == pytest.approx(next(run["seconds"] for run in listed if run["run"] == "failing"), rel=0.1)
    assert unit == "s"
    page.get_by_role("searchbox").fill("act finished")
    screen.until("() => document.querySelectorAll('.runs tbody tr.entry').length === 1")
    assert "filter=act" in page.url
    page.get_by_role("link", name="failing").click()
    page.wait_for_selector(".verdict")
    assert "#vitals?run=failing" in page.url


def test_vitals_tell_the_verdict_its_reason_the_signs_and_where_the_run_is(screen, runs):
    page = screen.open("vitals", run="failing")
    view = rlvitals.open_run(runs / "failing")
    assert "Act" in page.locator("h1").inner_text()
    assert "since step" in page.locator(".verdict .reason").inner_text()
    tiles = page.locator(".tile")
    assert 8 <= tiles.count() <= 12
    reward = page.locator('[data-tile="reward"]')
    assert float(reward.locator("[data-value]").inner_text()) == pytest.approx(
        view.series("reward").values[-1], rel=1e-3
    )
    curve = reward.locator("svg path.curve").get_attribute("d")
    drawn = [float(point.split()[1]) for point in re.split("[ML]", curve)[1:]]
    facts = page.evaluate("() => fetch('/api/run?run=failing').then(answer => answer.json())")
    values = [value for _, value in next(tile["spark"] for tile in facts["tiles"] if tile["name"] == "reward")]
    assert drawn[values.index(max(values))] == min(drawn)  # y grows downwards
    assert drawn[values.index(min(values))] == max(drawn)
    worrying = page.locator(".tile.act")
    assert worrying.count() >= 1
    assert page.locator(".tile.act .why").count() == worrying.count()
    assert page.locator(".tile.healthy, .tile.unsure").count() == 0  # only a finding colours a tile
    assert "typical" in page.locator(".tiles").inner_text()
    assert page.locator(".tile .spark .band").count() >= 1
    assert page.locator("[data-now=step]").inner_text() == f"{view.last_step} of 500"
    page.locator(".stepbar button.act").last.click()
    page.wait_for_selector(".finding.act.chosen")
    stretches = [list(cells) for _, cells in groupby(facts["step_bar"], lambda cell: cell["severity"])]
    critical = [cells for cells in stretches if cells[0]["severity"] == "critical"]
    assert "#health" in page.url
    assert page.url.endswith(f"finding={critical[-1][0]['findings'][0]}")


def test_a_tile_opens_its_chart(screen):
    page = screen.open("vitals", run="healthy")
    page.locator('[data-tile="kl"] a').click()
    page.wait_for_selector(".large .panel canvas")
    assert page.locator(".large .panel").get_attribute("data-metric") == "kl"


def test_every_metric_has_a_panel_and_the_filter_is_a_regular_expression(screen, runs):
    page = screen.open("metrics", run="healthy")
    names = set(rlvitals.open_run(runs / "healthy").metrics)
    screen.until("count => document.querySelector('.controls span').textContent.startsWith(String(count))", len(names))
    page.get_by_role("searchbox").fill("^(kl|reward_s.d)$")
    screen.until("() => document.querySelectorAll('.panel').length === 2")
    assert {panel.get_attribute("data-metric") for panel in page.locator(".panel").all()} == {"kl", "reward_std"}
    page.get_by_role("searchbox").fill("kl(")
    page.wait_for_selector(".problem:has-text('not a regular expression')")


def test_a_group_of_the_tree_shows_its_metrics_alone(screen):
    page = screen.open("metrics", run="healthy")
    page.locator(".tree .whole", has_text="Rewards").click()
    screen.until("() => [...document.querySelectorAll('h2.group')].every(h => h.textContent === 'Rewards')")
    assert "group=Rewards" in page.url


def test_thinning_says_how_many_points_and_zooming_brings_them_back(screen):
    page = screen.open("metrics", run="long", filter="^wave$")
    count = page.locator('[data-metric="wave"] .count')
    screen.until("() => document.querySelector('.panel .count').textContent.includes(' of 5,000 points')")
    assert int(count.inner_text().split()[0]) <= 800
    assert "to 50," not in page.locator(".panel .plot").get_attribute("aria-label")  # a mean hides the spike ...
    assert highest_pixel_row(page) < 0.2  # ... its range does not
    box = page.locator(".panel .u-over").bounding_box()
    left, right = ((at / LONG) * box["width"] + box["x"] for at in (SPIKE - 150, SPIKE + 150))
    page.mouse.move(left, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(right, box["y"] + 60, steps=5)
    page.mouse.up()
    screen.until("() => /^[0-9]+ points$/.test(document.querySelector('.panel .count').textContent)")
    assert "from=30" in page.url
    assert "to 50," in page.locator(".panel .plot").get_attribute("aria-label")
    page.locator(".panel .u-over").dblclick()
    screen.until("() => document.querySelector('.panel .count').textContent.includes(' of 5,000 points')")
    assert "from=" not in page.url


def highest_pixel_row(page) -> float:
    """The distance of the highest pixel of the line's colour from the top, as a share of the plot."""
    return page.evaluate("""() => {
        const canvas = document.querySelector('.panel canvas');
        const {width, height} = canvas;
        const data = canvas.getContext('2d').getImageData(0, 0, width, height).data;
        for (let at = 0; at < data.length; at += 4) {
            if (data[at + 2] > data[at] + 60 && data[at + 3] > 60) return at / 4 / width / height;
        }
        return 1;
    }""")


def test_one_zoom_is_all_panels_zoom(screen):
    page = screen.open("metrics", run="long", constant="1", **{"from": 100, "to": 200})
    screen.until("() => document.querySelectorAll('.panel .plot[data-from]').length === 3")
    assert {plot.get_attribute("data-from") for plot in page.locator(".panel .plot").all()} == {"100"}
    assert screen.texts(".panel .count") == ["101 points"] * 3
    held = []  # the answer for one range comes after that for the next one
    page.route(
        "**/api/series*", lambda route: held.append(route) if "from=300" in route.request.url else route.continue_()
    )
    with page.expect_request("**/api/series*from=300*"):
        screen.go("metrics", run="long", constant="1", **{"from": 300, "to": 350})
    screen.go("metrics", run="long", constant="1", **{"from": 400, "to": 499})
    screen.until("() => [...document.querySelectorAll('.panel .count')].every(one => one.innerText === '100 points')")
    with page.expect_response("**/api/series*from=300*"):
        held[0].continue_()
    screen.settled()
    assert screen.texts(".panel .count") == ["100 points"] * 3


def test_other_axes_smoothing_and_the_log_scale_are_in_the_address(screen):
    page = screen.open("metrics", run="long", filter="wave")
    page.get_by_label("x-axis").select_option("tokens")
    screen.until("() => Number(document.querySelector('.plot').dataset.to) > 4e6")
    page.get_by_label("log").check()
    page.wait_for_selector(".count:has-text('log')")
    page.get_by_label("Smoothing").fill("0.9")
    page.wait_for_url("**smooth=0.9**")
    address = page.url
    assert "x=tokens" in address
    assert "log=1" in address
    page.reload()
    screen.ready()
    assert page.url == address
    assert page.get_by_label("x-axis").input_value() == "tokens"
    assert page.get_by_label("log").is_checked()
    page.get_by_label("x-axis").select_option("epoch")
    page.wait_for_selector(".panel .empty:has-text('no epoch axis')")
    screen.forgive("status of 400")


def test_ghosts_of_an_abandoned_attempt_are_drawn(screen):
    page = screen.open("metrics", run="resumed", filter="^loss$")
    page.wait_for_selector(".panel canvas")
    answer = page.evaluate("() => fetch('/api/series?run=resumed&name=loss').then(answer => answer.json())")
    assert answer["lines"][0]["ghosts"]
    with_ghosts = ink(page)
    page.route("**/api/series*", lambda route: route.fulfill(json=_without_ghosts(answer)))
    page.reload()
    page.wait_for_selector(".panel canvas")
    assert with_ghosts > ink(page)


def _without_ghosts(answer):
    return answer | {"lines": [line | {"ghosts": []} for line in answer["lines"]]}


def ink(page) -> int:
    """Pixels that are not empty."""
    page.wait_for_timeout(300)
    return page.evaluate("""() => {
        const canvas = document.querySelector('.panel canvas');
        const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        let count = 0;
        for (let at = 3; at < data.length; at += 4) count += data[at] > 0;
        return count;
    }""")


def test_the_drawer_explains_a_metric(screen):
    page = screen.open("metrics", run="healthy", filter="^kl$")
    page.locator(".panel .explain").click()
    drawer = page.locator("#drawer")
    drawer.wait_for()
    text = drawer.inner_text()
    for word in ("Formula", "Typical range", "When it is off", "Other names", "kl_ref.k3"):
        assert word in text
    assert "explain=kl" in page.url
    page.keyboard.press("Escape")
    drawer.wait_for(state="hidden")
    screen.until("() => document.activeElement.dataset.explains === 'kl'")  # the focus returns


def test_health_shows_each_finding_with_evidence_advice_and_what_was_done(screen, runs):
    page = screen.open("health", run="failing")
    found = rlvitals.open_run(runs / "failing").findings
    cards = page.locator(".finding")
    assert cards.count() == len({finding.rule for finding in found})  # each rule once, with its most severe finding
    severities = cards.evaluate_all("all => all.map(card => card.className)")
    assert severities == sorted(severities, key=lambda style: ["act" in style, "watch" in style], reverse=True)
    worst = next(finding for finding in found if finding.severity == "critical")
    first = cards.nth(0).inner_text()
    for text in (worst.title, *worst.causes, *worst.advice, worst.rule, "Evidence", "Requested actions"):
        assert text in first
    page.wait_for_selector(".finding .traces canvas")
    page.set_viewport_size({"width": 1280, "height": 300})
    for place in ("0", "root.scrollHeight / 2", "0", "root.scrollHeight / 2"):
        page.evaluate(f"() => {{ const root = document.querySelector('#content'); root.scrollTop = {place}; }}")
        screen.settled()
    drawn = cards.nth(0).locator(".traces figcaption .mono").all_inner_texts()
    assert len(drawn) == len(set(drawn))  # a curve that comes into view again is not drawn again
    page.set_viewport_size({"width": 1280, "height": 900})
    page.locator("details.taken summary").click()
    read = page.locator("details.taken").inner_text()
    assert all(name in read for name in ("reward", "kl", "the catalogue knows it"))
    page.get_by_role("button", name="✖ critical").click()
    screen.until("() => document.querySelectorAll('.finding').length && !document.querySelector('.finding.watch')")
    window = asked_by(page.locator(".finding .jump").first)
    assert float(window["from"][0]) <= worst.onset_step < worst.step < float(window["to"][0])
    page.locator(".finding .jump").first.click()
    page.wait_for_selector(".panel canvas")
    shown = {panel.get_attribute("data-metric") for panel in page.locator(".panel").all()}
    assert shown == set(worst.metrics)
    assert "from=" in page.url
    answer = page.evaluate("() => fetch('/api/findings?run=failing').then(answer => answer.json())")
    for finding in answer["findings"]:
        finding["metrics"] = ["loss", "acc (x|y)"]
    page.route("**/api/findings*", lambda route: route.fulfill(json=answer))
    page = screen.open("health", run="failing")
    assert asked_by(page.locator(".finding .jump").first)["filter"] == [r"^loss$|^acc \(x\|y\)$"]


def asked_by(link) -> dict[str, list[str]]:
    """The parameters of the address that a link leads to."""
    return parse_qs(link.get_attribute("href").split("?", 1)[1])


def test_health_shows_what_continuing_has_cost_and_links_to_the_nearest_healthy_run(screen, runs):
    hindsight = rlvitals.check(runs / "failing").hindsight
    page = screen.open("health", run="failing")
    page.wait_for_selector(".hindsight li")
    assert screen.texts(".hindsight li") == hindsight["told"]
    assert hindsight["nearest"]["name"] == "healthy"
    part = page.locator(".part", has_text="If it had been stopped")
    part.locator("summary").click()
    rows = part.locator("tbody tr")
    assert rows.locator("th").all_inner_texts() == list(hindsight["nearest"]["differences"])
    learning_rate = rows.filter(has_text="learning_rate").locator("td").all_inner_texts()
    assert list(map(float, learning_rate)) == hindsight["nearest"]["differences"]["learning_rate"]
    page.get_by_role("link", name="Compare with healthy").click()
    page.wait_for_selector("h1:has-text('Compare')")
    assert "run=failing" in page.url
    assert "with=healthy" in page.url


def test_health_of_a_run_without_findings_says_so(screen):
    page = screen.open("health", run="healthy")
    assert "No findings." in page.locator("#content").inner_text()
    page.wait_for_load_state("networkidle")
    assert page.locator(".hindsight").count() == 0


def test_rollouts_show_groups_turns_and_the_transcript(screen):
    page = screen.open("rollouts", run="agent")
    assert page.get_by_label("Step", exact=True).input_value() == "3"
    groups = screen.texts(".groups .group")
    assert len(groups) == 2
    assert "✔ kept" in groups[0]
    assert "✂ filtered" in groups[1]
    assert "reward std 0.000" in groups[1]
    table = page.locator(".heat")
    assert table.locator("tbody tr").count() == 4
    cells = table.locator("tbody tr").first.locator("td").all_inner_texts()
    assert cells[0] == "1"
    assert cells[2].startswith("\N{MINUS SIGN}")  # the lowest reward of its group
    assert cells[3] == cells[2]  # each turn has its rollout's advantage
    transcript = page.locator(".transcript").inner_text()
    for text in ("The capital is number 1 at step 3.", '{"query":"capital 1"}', "found capital page 1", "format"):
        assert text in transcript


def test_rollouts_are_walked_by_keys_and_found_by_text(screen):
    page = screen.open("rollouts", run="agent")
    page.keyboard.press("j")
    page.wait_for_selector(".transcript h2:has-text('Rollout 2')")
    page.keyboard.press("]")
    page.wait_for_selector(".turns h2:has-text('Group 2')")
    page.keyboard.press(",")
    page.wait_for_selector(".turns h2:has-text('at step 2')")
    page.keyboard.press("/")
    page.keyboard.type("river is number 3 at step 1")
    page.keyboard.press("Enter")
    page.wait_for_selector(".transcript mark")
    assert page.locator(".transcript mark").inner_text() == "river is number 3 at step 1"
    assert "group 2, rollout 3" in page.locator(".groups .here").inner_text()
    page.locator(".chip", has_text="lowest").click()
    screen.until("() => document.querySelectorAll('.groups .group').length >= 1")
    assert "worst=1" in page.url


def test_a_run_without_rollouts_says_how_they_are_recorded(screen):
    page = screen.open("rollouts", run="healthy")
    assert "run.log_groups" in page.locator(".notice").inner_text()
    screen.forgive("status of 404")


def test_compare_shows_what_differs_and_curves_over_each_other(screen, runs):
    page = screen.open("compare", run="healthy", **{"with": ["failing"]})
    settings = page.get_by_role("region", name="Settings that differ").inner_text()
    assert "learning_rate" in settings
    assert "0.003" in settings
    assert "0.1" in settings
    page.wait_for_selector(".figure canvas")
    label = page.locator(".figure .plot[aria-label]").first.get_attribute("aria-label")  # waits until it is drawn
    assert "healthy" in label
    assert "failing" in label
    assert "The values differ from step 1 on." in page.locator("#content").inner_text()
    rows = {row.locator("th").inner_text(): row for row in page.locator(".compared tbody tr").all()}
    assert len(rows) >= 8
    best_and_final = rows["reward"].locator("td.num").all_inner_texts()
    for place, name in enumerate(("healthy", "failing")):
        rewards = rlvitals.open_run(runs / name).series("reward")
        best = int(rewards.values.argmax())
        assert best_and_final[2 * place] == f"{number(rewards.values[best])} @{rewards.steps[best]}"
        assert best_and_final[2 * place + 1] == number(rewards.values[-1])
    page.get_by_role("button", name="Remove failing").click()
    page.wait_for_selector(".notice")
    page.get_by_label("Add a run").fill("long")
    page.wait_for_url("**with=long**")
    page.wait_for_selector("text=Only in one run")


def test_performance_shows_phases_shares_speeds_and_memory(screen):
    page = screen.open("performance", run="agent")
    assert page.locator(".waterfall .bar").count() == 9
    assert "in train_step" in page.locator(".waterfall .bar.inner").first.get_attribute("title")
    shares = page.locator("table.shares").first.inner_text()
    for phase in ("generate", "train_step", "model_update"):
        assert phase in shares
    lanes = page.locator(".waterfall .bar:first-child").evaluate_all("bars => bars.map(bar => bar.style.left)")
    assert lanes == ["0%"] * 3  # each step begins at the left
    table = page.get_by_role("region", name="Speeds")
    assert "p99" in table.inner_text()
    speeds = page.evaluate("() => fetch('/api/performance?run=agent').then(answer => answer.json())")["throughput"]
    for row, speed in zip(table.locator("tbody tr").all(), speeds.values(), strict=True):
        columns = [speed[column] for column in ("last", "p1", "p50", "p99", "points")]
        assert [cell.split()[0] for cell in row.locator("td").all_inner_texts()] == [number(value) for value in columns]
    memory = page.locator("figure", has_text="device cuda:0").inner_text()
    for text in ("before", "1 of 2 GiB", "loaded", "5 of 6 GiB", "executed", "6 of 8 GiB", "unloaded", "peak", "7.5"):
        assert text in memory


def test_evaluations_show_a_table_and_curves(screen):
    page = screen.open("evaluations", run="agent")
    assert "best 0.75 at step 3" in page.locator(".head").inner_text()
    assert page.locator(".evals tbody tr").count() == 3
    assert "★ best" in page.locator(".evals tr.best").inner_text()
    page.wait_for_selector(".figure canvas")
    assert "accuracy: 3 points from 0.25 to 0.75" in page.locator(".figure .plot").first.get_attribute("aria-label")
    page = screen.open("evaluations", run="imported")
    table = page.get_by_role("region", name="Epochs")
    row = dict(
        zip(
            table.locator("thead th").all_inner_texts(),
            table.locator("tbody th, tbody td").all_inner_texts(),
            strict=True,
        )
    )
    assert (row["Epoch"], row["Steps"], row["Rows"], row["Epoch/AvgLoss"]) == ("1", "1 to 2", "2", "0.65")


def test_an_imported_log_opens_on_every_screen(screen):
    for name in SCREENS:
        page = screen.go(name, run="imported")
        assert page.locator("#content").inner_text().strip()
    screen.forgive("status of 404")  # it has no rollouts


def test_back_and_forward_walk_through_views(screen):
    page = screen.open("vitals", run="healthy")
    page.get_by_role("link", name="Health").click()
    page.wait_for_selector(".notice")
    page.get_by_role("link", name="Metrics").click()
    page.wait_for_selector(".panel")
    page.go_back()
    page.wait_for_selector(".notice")
    page.go_back()
    page.wait_for_selector(".tile")
    page.go_forward()
    page.wait_for_selector(".notice")
    screen.go("vitals", run="healthy")
    screen.go("vitals", run="failing")  # another run on the same screen
    page.wait_for_selector(".verdict.act")
    page.go_back()
    page.wait_for_selector(".verdict.healthy")
    page.go_forward()
    page.wait_for_selector(".verdict.act")


def test_a_folder_with_one_run_opens_with_it(browser, runs):
    from browsing import browsing
    from serving import serving

    with serving(runs / "healthy") as client, browsing(browser, client.port) as screen:
        page = screen.open()
        page.wait_for_selector(".verdict")
        assert "run=." in page.url
