"""The terminal view, driven with its keys by textual's pilot: on a live run and on foreign logs, small and large."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import subprocess
import sys
import time

import pytest

import rlvitals
from judged_logs import dying_rows, healthy_rows, write_jsonl
from rlvitals.cli.main import main
from rlvitals.compute import groups
from rlvitals.records import Finding, Group, Rollout, ToolCall, Turn
from rlvitals.render.charts import ChartSeries
from rlvitals.render.numbers import number
from rlvitals.store.marks import FolderMarks
from rlvitals.tui.drawing import chart_lines, step_bar
from rlvitals.tui.plain_lines import follow, line
from rlvitals.tui.watched import MOST_METRICS, Watched
from rlvitals.views.diagnosis import diagnose
from rlvitals.views.folder_list import FolderList
from rlvitals.views.vitals import tiles

pytestmark = pytest.mark.slow

textual = pytest.importorskip("textual")

from rlvitals.tui.app import KEYS, WatchApp  # noqa: E402
from rlvitals.tui.panes import ChartsPane, FindingsPane  # noqa: E402
from rlvitals.tui.rollouts import RolloutsPane  # noqa: E402
from rlvitals.tui.run_list import ChoosingApp  # noqa: E402

SMALL, LARGE = (80, 24), (200, 60)


def drive(path, size, script):
    """Run the app on a path with a script for the pilot."""

    async def go():
        app = WatchApp(Watched(path), interval=0.02)
        async with app.run_test(size=size) as pilot:
            await script(app, pilot)

    asyncio.run(go())


async def settled(app, pilot, condition, tries=400):
    """Wait until the app shows what it should."""
    for _ in range(tries):
        await pilot.pause(0.02)
        if condition():
            return
    raise AssertionError(f"it never came; the screen says:\n{screen(app)}")


def screen(app):
    """The text on the screen, line by line."""
    width, height = app.size
    strips = app.screen._compositor.render_strips()
    lines = ["".join(segment.text for segment in strip) for strip in strips]
    assert len(lines) == height
    assert all(len(line) <= width for line in lines)
    return "\n".join(lines)


def log_row(run, row):
    run.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])


def shows(app, *words):
    return lambda: all(word in screen(app) for word in words)


@pytest.fixture
def polls(monkeypatch):
    """For each poll of the watched run or log: whether it found something new."""
    found = []
    poll = Watched.poll

    def noted(self):
        found.append(poll(self))
        return found[-1]

    monkeypatch.setattr(Watched, "poll", noted)
    return found


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_live_runs_rows_findings_and_end_are_on_the_screen_as_they_come(tmp_path, size):
    rows = dying_rows()
    run = rlvitals.start(tmp_path / "run", algorithm="grpo", total_steps=70, display="none")

    async def script(app, pilot):
        await settled(app, pilot, shows(app, "CANNOT JUDGE"))
        for row in rows[:20]:
            log_row(run, row)
        await settled(app, pilot, shows(app, "HEALTHY", "step 20/70", "Mean reward", number(rows[19]["reward"])))
        for row in rows[20:]:
            log_row(run, row)
        await settled(app, pilot, shows(app, "ACT", "step 70/70", "3 Health (1)"))
        await pilot.press("3")
        await settled(app, pilot, shows(app, "exactly zero", "since step 41", "do: check that parameters", "grad_norm"))
        run.finish()
        await settled(app, pilot, shows(app, "the run is finished"))

    try:
        drive(tmp_path / "run", size, script)
    finally:
        run.finish()


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_foreign_log_is_followed_from_before_its_first_line(tmp_path, size, polls):
    log = tmp_path / "train.jsonl"
    rows = healthy_rows(40)

    async def script(app, pilot):
        await settled(app, pilot, shows(app, "no rows yet"))
        with log.open("w") as file:
            for row in rows[:10]:
                file.write(json.dumps(row) + "\n")
            file.flush()
            await settled(app, pilot, shows(app, "10 rows", number(rows[9]["reward"])))
            file.write(json.dumps(rows[10])[:20])  # a torn line waits
            file.flush()
            before = len(polls)
            await settled(app, pilot, lambda: len(polls) >= before + 3)  # one poll may have been in progress
            await pilot.pause()
            assert "10 rows" in screen(app)
            file.write(json.dumps(rows[10])[20:] + "\n")
            file.flush()
            await settled(app, pilot, shows(app, "11 rows", number(rows[10]["reward"])))

    drive(log, size, script)


@pytest.mark.slow
def test_charts_fill_the_screen_and_keys_walk_through_them(tmp_path):
    noise = random.Random(3)
    rows = [
        {"step": step, **{f"mine/{n}": noise.random() for n in range(300)}, "loss": 1 / step} for step in range(1, 30)
    ]
    log = write_jsonl(tmp_path / "log.jsonl", rows)

    async def script(app, pilot):
        await settled(app, pilot, shows(app, "29 rows"))
        await pilot.press("2")
        await settled(app, pilot, shows(app, "loss"))
        pane = app.query_one(ChartsPane)
        assert pane.count == 301
        first = screen(app)
        for _ in range(15):
            await pilot.press("j")
        await pilot.pause()
        assert pane.selected == 15
        assert screen(app) != first
        assert pane.metric.split("/")[-1] in screen(app)
        await pilot.press("k")
        assert pane.selected == 14
        await pilot.press("slash", *"e/29[01]$", "enter")
        await settled(app, pilot, lambda: pane.count == 2)
        assert "mine/290" in screen(app)
        await pilot.press("escape", "slash", *"loss", "enter", "enter")
        await settled(app, pilot, lambda: pane.is_single)
        assert "0.03448" in screen(app)
        await pilot.press("escape")
        assert not pane.is_single
        assert pane.count == 301

    drive(log, SMALL, script)


@pytest.mark.slow
def test_log_scale_theme_help_and_explain_answer_to_the_dashboards_keys(tmp_path):
    log = write_jsonl(tmp_path / "log.jsonl", healthy_rows())

    async def script(app, pilot):
        await settled(app, pilot, shows(app, "60 rows"))
        assert screen(app).rstrip().endswith("y log  t theme  j/k move  q quit")
        app.pane.filter = "reward or the norm of the gradient"
        await pilot.press("2", "1")  # a full line leaves keys out, but no part of one
        await settled(app, pilot, lambda: screen(app).rstrip().endswith("gradient'  ? help  / filter  q quit"))
        app.pane.filter = ""
        theme = app.theme
        await pilot.press("t")
        assert app.theme != theme
        await pilot.press("question_mark")
        await settled(app, pilot, shows(app, "Keys", "log scale"))
        assert "╭" in screen(app)  # a sheet has a border
        await pilot.press("escape", "e")
        await settled(app, pilot, shows(app, "reward.total.mean"))
        await pilot.press("escape", "2", "y")
        await settled(app, pilot, lambda: app.query_one(ChartsPane).is_log)
        await pilot.press("tab")
        await settled(app, pilot, shows(app, "nothing was found in 60 rows"))
        await pilot.press("q")

    drive(log, SMALL, script)
    assert {key for keys in KEYS.values() for key, _ in keys} >= {"?", "/", "e", "y", "t", "j k", "q"}


def test_keys_are_commands_until_a_filter_is_asked_for(tmp_path):
    log = write_jsonl(tmp_path / "log.jsonl", healthy_rows())

    async def script(app, pilot):
        await settled(app, pilot, shows(app, "60 rows"))
        await pilot.press("2")
        await settled(app, pilot, shows(app, "grad_norm"))
        await pilot.press("slash", "t", "q", "question_mark")
        await settled(app, pilot, shows(app, "no metric matches the filter"))
        assert app.is_running
        await pilot.press("escape")
        await settled(app, pilot, shows(app, "grad_norm"))

    drive(log, SMALL, script)


@pytest.mark.slow
def test_rollouts_are_walked_by_step_group_and_rollout(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False, display="none") as run:
        for step in (10, 20):
            good = Rollout(
                reward=1.0, outcome="correct", turns=(Turn(f"Look at {step}.", (ToolCall("search", {"q": 1}),)),)
            )
            bad = Rollout(reward=-float(step), outcome="wrong", turns=(Turn("Hm, no."),) * 3)
            asked = [Group(prompt=f"question {n} of {step}", rollouts=(good, bad)) for n in (1, 2)]
            run.log_groups(groups.advantages(asked), step=step)
            run.log({"reward": 0.5}, step=step)

    async def script(app, pilot):
        await settled(app, pilot, shows(app, "2 rows"))
        await pilot.press("4")
        await settled(app, pilot, shows(app, "step 20 (2 of 2)", "question 1 of 20", "Look at 20."))
        await pilot.press("j")
        await settled(app, pilot, shows(app, "Rollout 2: reward -20.000", "Hm, no."))
        await pilot.press("right_square_bracket")
        await settled(app, pilot, shows(app, "group 2 of 2", "question 2 of 20"))
        await pilot.press("comma")
        await settled(app, pilot, shows(app, "step 10 (1 of 2)", "question 1 of 10"))
        await pilot.press("w")
        await settled(app, pilot, shows(app, "lowest rewards first", "-20.000"))
        await pilot.press("enter")
        await settled(app, pilot, shows(app, "step 20 (2 of 2)", "Rollout 2: reward -20.000"))
        await pilot.press("slash", *"Look at 10", "enter")
        await settled(app, pilot, shows(app, "2 rollouts, with 'Look at 10'"))
        assert isinstance(app.pane, RolloutsPane)

    drive(tmp_path / "run", SMALL, script)


@pytest.mark.slow
def test_a_dump_of_rollouts_is_watched_with_its_rollouts(tmp_path):
    for step in (1, 2):
        rows = [{"input": "the prompt", "output": f"answer {n} of {step}", "score": n, "step": step} for n in (0, 1)]
        (tmp_path / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    async def script(app, pilot):
        await settled(app, pilot, shows(app, "2 rows"))
        await pilot.press("4")
        await settled(app, pilot, shows(app, "step 2 (2 of 2)", "the prompt", "answer 0 of 2"))

    drive(tmp_path, SMALL, script)


def test_a_resumed_run_is_judged_again_from_its_living_rows(tmp_path):
    rows = dying_rows()
    with rlvitals.start(tmp_path / "run", display="none") as run:
        for row in rows:
            log_row(run, row)
    watched = Watched(tmp_path / "run")
    watched.poll()
    assert watched.diagnosis.verdict == "act"
    with rlvitals.start(tmp_path / "run", resume=40, display="none") as run:
        for row in healthy_rows(60)[40:]:
            log_row(run, row)
    watched.poll()
    assert (watched.diagnosis.verdict, watched.judge.last_step, watched.judge.points) == ("healthy", 60, 60)
    assert watched.latest["grad_norm"] > 0


def test_a_run_that_starts_between_two_looks_is_watched_as_a_run(tmp_path):
    watched = Watched(tmp_path / "run")
    assert not watched.poll()
    with rlvitals.start(tmp_path / "run", algorithm="grpo", total_steps=500, display="none") as run:
        run.log({"loss": 1.0, "reward": 0.5}, step=1)
        watched.poll()
        run.log_eval({"accuracy": 0.5}, step=1)
        assert not watched.ending
    watched.poll()
    assert (watched.rows, watched.algorithm, watched.total_steps) == (1, "grpo", 500)
    assert (watched.ending, "accuracy" in watched.names) == ("the run is finished", True)


def test_a_sign_of_slices_shows_the_mean_that_the_dashboard_shows(tmp_path):
    with rlvitals.start(tmp_path / "run", algorithm="grpo", display="none") as run:
        for step in range(1, 13):
            row = {"loss": 1.0 / step, "reward/env=math": 0.1 * step}
            run.log(row | ({"reward/env=code": 0.5} if step % 3 == 0 and step < 12 else {}), step=step)
    watched = Watched(tmp_path / "run")
    watched.poll()
    view = rlvitals.open_run(tmp_path / "run")
    shown = {tile["name"]: tile["value"] for tile in tiles(view, diagnose(view))}
    assert {tile.name: tile.value for tile in watched.tiles()} == pytest.approx(shown)
    assert shown["reward/env=math"] == pytest.approx((1.1 + 0.5) / 2)  # one more value of math began another round


def test_what_was_found_in_epochs_before_a_resume_stays_on_the_screen(tmp_path):
    found = Finding("epoch_worse", "data", "warning", 10, 8, "the epoch is worse")
    with rlvitals.start(tmp_path / "run", display="none") as run:
        for row in healthy_rows(40):
            log_row(run, row)
        run.take_findings([found], {found.rule})
    watched = Watched(tmp_path / "run")
    watched.poll()
    assert [(one.rule, one.recovered_step) for one in watched.findings] == [("epoch_worse", None)]
    with rlvitals.start(tmp_path / "run", resume=30, display="none") as run:
        for row in healthy_rows(40)[30:]:
            log_row(run, row)
    watched.poll()
    assert [one.rule for one in watched.findings] == [one.rule for one in rlvitals.check(tmp_path / "run").findings]
    assert [one.rule for one in watched.findings] == ["epoch_worse"]


def test_only_a_log_that_is_being_written_can_stall(tmp_path):
    log = tmp_path / "log.jsonl"
    rows = [row | {"timestamp": 1.6e9 + 60 * row["step"]} for row in healthy_rows(40)]  # a minute a step, in 2020
    log.write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]))
    os.utime(log, (1.6e9, 1.6e9))
    watched = Watched(log)
    assert watched.poll()
    assert not watched.poll()
    assert (watched.findings, watched.diagnosis.verdict) == ([], rlvitals.check(log).verdict)
    with log.open("a") as file:
        file.write(json.dumps(rows[-1]) + "\n")
    assert watched.poll()
    assert [found.rule for found in watched.findings] == ["stall"]


@pytest.mark.slow
def test_a_hostile_log_is_text_on_the_screen(tmp_path):
    evil = "\x1b[2J[red]x[/red]{0}\n\t"
    rows = [row | {f"{evil}{n}": n for n in range(4)} for row in dying_rows()]
    with rlvitals.start(tmp_path / "run", name=evil, display="none") as run:
        for row in rows:
            log_row(run, row)
        turn = Turn(evil, (ToolCall(evil, evil, evil, evil),), evil, evil)
        run.log_groups(
            [Group(prompt=evil, id=evil, rollouts=(Rollout(reward=1.0, outcome=evil, turns=(turn,)),))], step=70
        )

    async def script(app, pilot):
        await settled(app, pilot, shows(app, "70 rows"))
        for key in "1234":
            await pilot.press(key)
            await pilot.pause(0.05)
            assert "\x1b" not in screen(app)
        await settled(app, pilot, shows(app, "[red]x[/red]"))
        await pilot.press("2", "slash", *"red", "enter", "e")
        await settled(app, pilot, shows(app, "in no catalogue"))

    drive(tmp_path / "run", SMALL, script)


def test_a_log_with_too_many_names_keeps_some_and_says_so(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"step": n, **{f"m{n}_{k}": 1.0 for k in range(2000)}}) + "\n" for n in range(4)))
    watched = Watched(log)
    watched.poll()
    assert len(watched.names) == MOST_METRICS
    assert watched.left_out == 8000 - MOST_METRICS


def test_a_series_keeps_its_extremes_however_long_it_is(tmp_path):
    rows = [{"step": step, "loss": 1.0} for step in range(1, 3001)]
    rows[1234]["loss"] = 77.0
    rows[2345]["loss"] = float("nan")
    watched = Watched(write_jsonl(tmp_path / "log.jsonl", rows))
    watched.poll()
    series = watched.series("loss")
    assert series.range == (1.0, 77.0)
    assert len(series.rows) <= 240


def test_the_tiles_have_the_dashboards_numbers(tmp_path):
    from rlvitals.views.diagnosis import diagnose
    from rlvitals.views.vitals import now, tiles

    with rlvitals.start(tmp_path / "run", algorithm="grpo", total_steps=100, display="none") as run:
        for row in dying_rows():
            log_row(run, row | {"perf.tokens_per_s": 900.0 + row["step"]})
        live = Watched(tmp_path / "run")
        live.poll()
        assert live.seconds_left == pytest.approx(now(rlvitals.open_run(tmp_path / "run"))["eta_s"])
        run.log_eval({"accuracy": 0.5}, step=70)
    view = rlvitals.open_run(tmp_path / "run")
    watched = Watched(tmp_path / "run")
    watched.poll()
    shown = {tile["name"]: tile for tile in tiles(view, diagnose(view))}
    for tile in watched.tiles():
        there = shown[tile.name]
        assert (tile.title, tile.value, tile.status) == (there["title"], there["value"], there["status"])
        assert tile.change == there["change"]
    assert [tile.name for tile in watched.tiles()] == list(shown)
    assert "accuracy" in shown
    assert watched.tokens_per_second == now(view)["tokens_per_s"]


def test_the_last_row_of_a_run_that_has_ended_waits_for_no_other_of_its_step(tmp_path):
    with rlvitals.start(tmp_path, display="none") as run:
        for step in range(5):  # loss and reward in two rows
            run.log({"loss": 1 / (1 + step)}, step=step)
            run.flush()
            run.log({"reward": step / 10}, step=step)
        run.log({"loss": 0.01}, step=5)
    watched = Watched(tmp_path)
    watched.poll()
    assert watched.latest["loss"] == 0.01


def test_the_wall_of_a_chart_is_bold_where_the_typical_range_is():
    series = ChartSeries([1, 2], [1, 2], [0.0, 8.0], [0.0, 8.0])
    lines = chart_lines(series, (30, 10), band=(6.0, None))
    assert len(lines) == 10
    bold = [any(span.style == "bold" for span in line.spans) for line in lines[:8]]
    assert bold == [True, True, True, *[False] * 5]


def test_a_log_scale_has_equal_factors_in_equal_heights():
    values = [1.0, 10.0, 100.0, -5.0]
    lines = chart_lines(ChartSeries([1, 2, 3, 4], [1, 2, 3, 4], values, values), (40, 11), log=True)
    assert (lines[0].plain.split()[0], lines[8].plain.split()[0]) == ("100", "1")
    tens = [place for place, line in enumerate(lines[:9]) if line.plain.partition("│")[2][10:13].strip()]
    assert tens == [4]  # 10 is halfway between 1 and 100


def test_a_log_scale_without_anything_above_zero_says_so():
    (first, *_) = chart_lines(ChartSeries([1], [1], [-1.0], [-1.0]), (40, 6), log=True)
    assert first.plain == "no value above 0 for a log scale"
    (first, *_) = chart_lines(ChartSeries([1], [1], [None], [None]), (40, 6))
    assert first.plain == "no finite value yet"


def test_the_bar_of_steps_says_where_and_how_grave():
    found = {"onset_step": 51, "step": 60, "severity": "critical", "recovered_step": 60}
    assert step_bar([found], 1, 101, 11).plain == "─────✖─────"
    assert step_bar([found | {"recovered_step": None}], 1, 101, 11).plain == "─────✖✖✖✖✖✖"
    assert step_bar([], None, None, 11).plain == ""


def test_without_a_terminal_it_is_plain_lines_to_the_runs_end(tmp_path, child_environment):
    with rlvitals.start(tmp_path / "run", algorithm="grpo", display="none") as run:
        for row in dying_rows():
            log_row(run, row)
    done = subprocess.run(
        [sys.executable, "-m", "rlvitals.cli.main", "watch", str(tmp_path / "run")],
        capture_output=True, text=True, check=True, env=child_environment, timeout=60,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[0].startswith("critical since step 41: the gradient has been exactly zero")
    assert lines[1].startswith("step 70 | act | reward ")
    assert lines[-1].startswith("the run is finished; act: 1 critical finding")
    assert "\x1b" not in done.stdout


def test_json_lines_hold_the_same_numbers(tmp_path, capsys):
    rows = dying_rows()
    log = write_jsonl(tmp_path / "log.jsonl", rows)
    assert main(["watch", str(log), "--json", "--until-idle", "0.05", "--interval", "0.01"]) == 0
    events = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    row = next(event for event in events if event["type"] == "row")
    assert (row["step"], row["rows"], row["values"]["reward"]) == (70, 70, rows[-1]["reward"])
    assert [event["kind"] for event in events if event["type"] == "finding"] == ["dead_gradient"]
    assert events[-1]["type"] == "end"


def test_plain_lines_come_as_rows_come_and_end_when_nothing_does(tmp_path):
    log = tmp_path / "log.jsonl"
    watched = Watched(log)
    lines = []

    def say(event):
        lines.append(line(event))
        if "no rows yet" in lines[-1]:
            write_jsonl(log, healthy_rows(12))

    follow(watched, say, interval=0.01, until_idle=0.3)
    assert lines[0].endswith("log.jsonl: no rows yet")
    assert lines[1].startswith("step 12 | healthy")
    assert lines[-1].startswith("no row came for")


def test_the_lines_end_with_the_verdict_of_check_on_a_log_whose_last_line_is_not_ended(tmp_path, capsys):
    log = write_jsonl(tmp_path / "log.jsonl", healthy_rows(8))
    log.write_text(log.read_text().rstrip("\n"))
    assert main(["check", str(log), "--follow", "--json", "--until-idle", "0.05", "--interval", "0.01"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert main(["watch", str(log), "--json", "--until-idle", "0.05", "--interval", "0.01"]) == 0
    *_, row, end = (json.loads(text) for text in capsys.readouterr().out.splitlines())
    assert (row["rows"], end["verdict"], end["reason"]) == (report["rows"], report["verdict"], report["reason"])


def test_a_run_that_cannot_be_read_is_reported_and_does_not_end_the_view(tmp_path):
    with rlvitals.start(tmp_path / "run", display="none") as run:
        for row in healthy_rows(10):
            log_row(run, row)
    card = tmp_path / "run" / "run.json"
    good = card.read_text()
    card.write_text('{"schema": 999}')
    watched = Watched(tmp_path / "run")
    assert watched.poll()
    assert watched.problem
    card.write_text(good)
    assert watched.poll()
    assert (watched.problem, watched.judge.points) == ("", 10)


def test_without_textual_the_terminal_names_what_to_install(tmp_path, capsys, monkeypatch):
    log = write_jsonl(tmp_path / "log.jsonl", healthy_rows(10))
    monkeypatch.setitem(sys.modules, "rlvitals.tui.app", None)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert main(["watch", str(log)]) == 64
    printed = capsys.readouterr().err
    assert "pip install 'rlvitals[watch]'" in printed
    assert "--plain" in printed


def test_wrong_usage_is_one_line(tmp_path, capsys):
    log = write_jsonl(tmp_path / "a.jsonl", healthy_rows(10))
    assert main(["watch", str(log), "--interval", "0"]) == 64
    assert "--interval" in capsys.readouterr().err


@pytest.fixture
def several(tmp_path):
    """A folder with a failing run, a running one, and a log of another tool."""
    with rlvitals.start(tmp_path / "bad", algorithm="grpo", display="none", hardware=False) as run:
        for row in dying_rows():
            log_row(run, row)
    going = rlvitals.start(tmp_path / "deep" / "going", algorithm="grpo", display="none", hardware=False)
    for row in healthy_rows(30):
        log_row(going, row)
    log = write_jsonl(tmp_path / "train_log.jsonl", dying_rows())
    os.utime(log, (time.time() - 3600, time.time() - 3600))  # otherwise it counts as being written
    (tmp_path / "notes.txt").write_text("nothing of interest")
    yield tmp_path
    going.finish()


def test_a_folder_of_runs_is_a_list_with_verdicts_of_which_one_is_chosen(several):
    async def go(size, keys):
        app = ChoosingApp(FolderList(several))
        async with app.run_test(size=size) as pilot:
            await settled(app, pilot, shows(app, "bad", "going", "train_log.jsonl", "3 runs and logs", "2 act"))
            rows = [
                line for line in screen(app).splitlines() if any(name in line for name in ("bad ", "going", "train_"))
            ]
            assert all(row.startswith(" ") for row in rows)  # as far from the edge as the lines above and below
            assert "going" in rows[0]  # runs that are being written come first
            assert "healthy" in rows[0]
            assert "running" in rows[0]
            assert all("act" in row for row in rows[1:])
            await pilot.press(*keys)
            await settled(app, pilot, lambda: app.return_value is not None or not app.is_running)
        return app.return_value

    going, bad, log = several / "deep" / "going", several / "bad", several / "train_log.jsonl"
    assert asyncio.run(go(LARGE, ["enter"])) == going
    assert asyncio.run(go(SMALL, ["down", "up", "up", "enter"])) == going
    assert asyncio.run(go(SMALL, ["j", "enter"])) == bad
    assert asyncio.run(go(SMALL, ["j", "j", "j", "enter"])) == log
    assert asyncio.run(go(SMALL, ["slash", *"bad", "enter", "enter"])) == bad


def test_the_list_is_left_and_come_back_to(several, monkeypatch, capsys):
    """The loop of the command: open a run, return to the list, and quit the list."""
    shown = []

    class Chosen:
        def __init__(self, listed, selected=None):
            self.selected = selected

        def run(self):
            shown.append(("list", self.selected))
            return several / "bad" if len(shown) == 1 else None

    async def look(app):
        async with app.run_test(size=SMALL) as pilot:
            await settled(app, pilot, shows(app, "ACT", "l list"))
            await pilot.press("l")
        shown.append(("watch", app.watched.path))
        return app.return_value

    monkeypatch.setattr("rlvitals.tui.run_list.ChoosingApp", Chosen)
    monkeypatch.setattr(WatchApp, "run", lambda app: asyncio.run(look(app)))
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert main(["watch", str(several)]) == 0
    assert shown == [("list", None), ("watch", several / "bad"), ("list", several / "bad")]


def test_a_run_that_was_named_has_no_list_to_go_back_to(tmp_path):
    async def go(app, pilot):
        await settled(app, pilot, shows(app, "step 70"))
        assert "l list" not in screen(app)
        await pilot.press("l")
        await pilot.pause(0.1)
        assert app.is_running

    drive(write_jsonl(tmp_path / "log.jsonl", dying_rows()), SMALL, go)


def test_in_a_pipe_the_list_is_lines(several, capsys):
    assert main(["watch", str(several)]) == 0
    captured = capsys.readouterr()
    lines = [text.split(" | ") for text in captured.out.splitlines()]
    assert len(lines) == 3
    assert lines[0][:4] == ["healthy", str(several / "deep" / "going"), "running", "step 30"]
    assert {(line[0], line[1]) for line in lines[1:]} == {
        ("act", str(several / "bad")), ("act", str(several / "train_log.jsonl")),
    }  # fmt: skip
    assert "name one of them to follow it" in captured.err
    assert main(["watch", str(several), "--json"]) == 0
    events = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [(event["type"], event["verdict"]) for event in events] == [
        ("run", "healthy"),
        ("run", "act"),
        ("run", "act"),
    ]
    FolderMarks(several).mark("bad", {"archived": True})
    assert main(["watch", str(several)]) == 0
    assert "bad" not in capsys.readouterr().out.replace("train_log", "")


def test_a_list_shows_foreign_names_as_text(tmp_path):
    for name in ("a\x1b[31mred", "b"):
        with rlvitals.start(tmp_path / name, display="none", hardware=False, monitor=False) as run:
            run.log({"loss": 1.0}, step=1)

    async def go():
        app = ChoosingApp(FolderList(tmp_path))
        async with app.run_test(size=SMALL) as pilot:
            await settled(app, pilot, shows(app, "red", "2 runs"))
            assert "\x1b" not in screen(app)

    asyncio.run(go())


def test_findings_details_can_be_scrolled_where_they_do_not_fit(tmp_path):
    log = write_jsonl(tmp_path / "log.jsonl", dying_rows())

    async def script(app, pilot):
        await settled(app, pilot, shows(app, "70 rows"))
        await pilot.press("3")
        await settled(app, pilot, shows(app, "more lines"))
        await pilot.press("J", "J")
        await settled(app, pilot, lambda: "more lines" not in screen(app))
        assert app.query_one(FindingsPane).scrolled_away > 0
        assert math.isfinite(app.query_one(FindingsPane).scrolled_away)

    drive(log, SMALL, script)


def test_a_text_that_forgot_to_be_made_visible_is_harmless_on_the_screen(tmp_path):
    from rich.text import Text
    from textual.widgets import Static

    log = write_jsonl(tmp_path / "log.jsonl", healthy_rows(3))

    async def script(app, pilot):
        app._draw_edges = lambda: None
        await settled(app, pilot, shows(app, "3 rows"))
        app.query_one("#foot", Static).update(Text("raw \x1b]0;pwn\x9b7H\u202e[red]"))
        await settled(app, pilot, shows(app, "raw ]0;pwn7H[red]"))
        assert screen(app).replace("\n", "").isprintable()

    drive(log, SMALL, script)
