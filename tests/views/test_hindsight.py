"""Hindsight: GPU hours after the onset by hand, the checkpoint to revert to, the nearest good run."""

from __future__ import annotations

import inspect
import json
import math
import os
import shutil
import subprocess
import sys

import pytest

import rlvitals
from rlvitals.cli.main import main
from rlvitals.records import HealthEvent
from rlvitals.render.report_html import page
from rlvitals.render.report_markdown import markdown
from rlvitals.store.findings import append_event, event_line
from rlvitals.store.layout import RunDir
from rlvitals.views.hindsight import Neighbours, checkpoints_of, hindsight
from rlvitals.views.logs import open_any
from rlvitals.views.report import gather
from rlvitals.views.run_clock import clock_of, gpus_of
from rlvitals.web.answers import Query
from rlvitals.web.api import ANSWERS
from rlvitals.web.folder import Folder

BEGAN = 1_700_000_000.0
STEPS = 110
ONSET, RAISED = 40, 49
"""A gradient that is zero from step 40 on is critical at its tenth zero."""


def row(step, *, dies=True):
    wave = math.sin(step * 12.9898)
    return {
        "loss": 0.02 + 0.005 * wave,
        "grad_norm": 0.0 if dies and step >= 40 else 0.6 + 0.06 * wave,
        "reward": 0.3 + 0.003 * step + 0.01 * wave,
        "kl": 0.002 + 0.0001 * step,
        "entropy": 0.9 - 0.001 * step,
        "completions/mean_length": 220 + 0.2 * step,
        "reward_std": 0.3 + 0.02 * wave,
    }


def record(path, steps=range(1, STEPS + 1), *, dies=True, beside=None, **given):
    settings = {"algorithm": "grpo", "framework": "trl", "display": "none", "hardware": False} | given
    with rlvitals.start(path, **settings) as run:
        for step in steps:
            run.log(row(step, dies=dies), step=step)
            if beside is not None:
                beside(run, step)
    return path


def retime(run, moment, *, started, ended):
    """Give every row the time `moment(attempt, step)`, and change the times of the attempts and of the run card."""

    def rewrite(path, change):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(change(line)) + "\n" for line in lines))

    rewrite(
        run / "logs" / "training_metrics.jsonl",
        lambda line: line | {"timestamp": moment(line.get("attempt", 1), line["step"])},
    )
    rewrite(run / "attempts.jsonl", lambda line: line | {"started": started[line["number"] - 1]})
    card = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(card | {"created": started[0], "updated": ended, "ended": ended}))
    shutil.rmtree(run / "index", ignore_errors=True)


def look_back(run):
    return rlvitals.check(run).hindsight


def test_the_hours_of_one_attempt_go_to_its_end_and_a_hang_counts(tmp_path):
    run = record(tmp_path / "run", config={"world_size": 4})
    # One row per minute; two hours without rows before step 101; ten minutes from the last row to the end.
    retime(
        run, lambda _, step: BEGAN + 60 * step + 7200 * (step > 100), started=[BEGAN], ended=BEGAN + 6600 + 7200 + 600
    )
    found = look_back(run)
    assert (found["onset"]["step"], found["onset"]["said_step"]) == (ONSET, RAISED)
    # 70 minutes of rows, the two hours and the ten minutes: 3 h 20 min, 13 1/3 hours of four GPUs.
    assert found["cost"]["hours"] == pytest.approx(200 / 60)
    assert found["cost"]["gpu_hours"] == pytest.approx(800 / 60)
    assert found["cost"]["hours_after_said"] == pytest.approx(191 / 60)
    assert found["cost"]["gpus_from"] == "from the setting world_size"
    assert "13.3 GPU hours (3 h 20 min on 4 GPUs" in found["told"][0]
    assert "12.7 GPU hours of it after step 49" in found["told"][0]


def test_the_time_between_attempts_is_nobodys_and_overtaken_steps_count(tmp_path):
    run = record(tmp_path / "run", range(1, 91), config={"lr": 1})
    record(run, range(76, STEPS + 1), resume=75)
    second = BEGAN + 10 * 3600

    def moment(attempt, step):
        return BEGAN + 60 * step if attempt == 1 else second + 120 + 60 * (step - 75)

    retime(run, moment, started=[BEGAN, second], ended=second + 120 + 60 * 35 + 240)
    found = look_back(run)
    assert found["onset"]["step"] == ONSET
    # Steps 41 to 90 of the first attempt, 15 of which were discarded. Then 2 minutes until the first step began, 35
    # steps and 4 minutes. The 8.5 hours between them cost nothing.
    assert found["cost"]["hours"] == pytest.approx((50 + 2 + 35 + 4) / 60)
    assert found["cost"]["gpu_hours"] is None
    assert found["cost"]["gpus"] is None
    assert found["told"][0].endswith("The number of GPUs is not known.")
    assert "1 h 31 min of the run's own time" in found["told"][0]


KILLED = f"""
import math, os, signal, sys, time
import rlvitals

{inspect.getsource(row)}

run = rlvitals.start(sys.argv[1], algorithm="grpo", total_steps=200, display="none", hardware=False)
for step in range(1, 61):
    run.log(row(step, dies=sys.argv[2] == "dies"), step=step)
    if step in (20, 30, 50):
        os.mkdir(f"{{sys.argv[1]}}/checkpoint-{{step}}")
    time.sleep(0.005)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(path, how):
    subprocess.run([sys.executable, "-c", KILLED, path, how], check=False)
    return path


def test_a_killed_run_that_was_healthy_has_no_onset_and_goes_on_from_its_newest_checkpoint(tmp_path):
    found = look_back(killed(tmp_path / "run", "lives"))
    assert found["onset"] is None
    assert found["cost"]["hours"] is None
    assert found["told"][0].startswith("No critical finding before the run stopped")
    assert found["told"][1].startswith("Resume from checkpoint-")
    assert (found["checkpoint"]["step"], found["checkpoint"]["metric"]) == (50, None)


def test_a_killed_run_that_had_failed_is_counted_to_its_last_sign_of_life(tmp_path):
    run = killed(tmp_path / "run", "dies")
    found = look_back(run)
    lines = [json.loads(line) for line in (run / "logs" / "training_metrics.jsonl").read_text().splitlines()]
    times = {line["step"]: line["timestamp"] for line in lines}
    end = max(times[60], (run / "heartbeat").stat().st_mtime)
    assert found["onset"]["step"] == ONSET
    assert found["cost"]["hours"] == pytest.approx((end - times[ONSET]) / 3600, abs=1e-9)
    assert found["cost"]["hours"] > 0
    assert found["checkpoint"]["step"] == 30
    # In a copy the files have the time of copying, which gives no information about the run.
    copy = tmp_path / "copy"
    shutil.copytree(run, copy, copy_function=shutil.copy)
    for name in ("heartbeat", "run.json"):
        os.utime(copy / name, (times[60] + 1e6, times[60] + 1e6))
    assert look_back(copy)["cost"]["hours"] == pytest.approx((times[60] - times[ONSET]) / 3600, abs=1e-9)


def test_a_run_that_raised_is_reported_and_a_healthy_one_is_not(tmp_path):
    with pytest.raises(ZeroDivisionError):
        record(tmp_path / "failed", range(1, 31), dies=False, beside=lambda run, step: 1 / (30 - step))
    assert look_back(tmp_path / "failed")["told"][0].startswith("No critical finding before the run failed")
    assert look_back(record(tmp_path / "healthy", dies=False)) is None


def foreign(path, **columns):
    rows = [
        row(step) | {"step": step} | {name: value(step) for name, value in columns.items()}
        for step in range(1, STEPS + 1)
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def test_a_log_without_timestamps_cannot_tell(tmp_path):
    found = look_back(foreign(tmp_path / "log.jsonl"))
    assert found["cost"]["hours"] is None
    assert found["cost"]["measured_by"] == ""
    assert found["told"][0] == (
        "How long the run continued after step 40 is unknown: the log has neither timestamps nor step times."
    )
    assert found["told"][1] == "No checkpoint older than step 40 is known."


def test_a_log_with_step_times_is_measured_by_them(tmp_path):
    # 30 s per step up to 100, 90 s after that: 60 steps of 30 s and 10 of 90 s after step 40.
    found = look_back(foreign(tmp_path / "log.jsonl", step_time=lambda step: 30.0 if step <= 100 else 90.0))
    assert found["cost"]["measured_by"] == "step times"
    assert found["cost"]["hours"] == pytest.approx((60 * 30 + 10 * 90) / 3600)
    assert "Measured by the times of the steps" in found["told"][0]


def test_rows_of_several_steps_stand_for_all_of_them(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(
        "".join(json.dumps({"step": 10 * n, "step_time": 6.0, "reward": 0.1 * n}) + "\n" for n in range(1, 12))
    )
    assert clock_of(open_any(path)).seconds_since(50) == pytest.approx(60 * 6.0)


def test_a_long_silence_of_another_tools_log_is_left_out_and_reported(tmp_path):
    # One row per minute, and nine hours between steps 100 and 101: it is unknown whether a process was alive.
    path = foreign(tmp_path / "log.jsonl", timestamp=lambda step: BEGAN + 60 * step + 32_400 * (step > 100))
    found = look_back(path)
    assert found["cost"]["hours"] == pytest.approx((70 - 1) / 60)
    assert "9 h 1 min without a row are not counted" in found["told"][0]


def test_steps_a_little_slower_are_no_silence(tmp_path):
    """Of a row without a time nothing is known, and the rows around it count."""
    times = [None if step == 60 else BEGAN + 60 * step + 1500 * (step > 100) for step in range(STEPS + 1)]
    path = foreign(tmp_path / "log.jsonl", timestamp=times.__getitem__)
    assert look_back(path)["cost"]["hours"] == pytest.approx((70 * 60 + 1500) / 3600)


@pytest.mark.parametrize(
    ("config", "count", "source"),
    [
        (
            {"trainer": {"n_gpus_per_node": 8, "nnodes": 2}, "reward_model": {"n_gpus_per_node": 1}},
            16,
            "trainer.nnodes",
        ),
        ({"cluster": {"gpus_per_node": 8, "num_nodes": 3}}, 24, "cluster.num_nodes"),
        ({"cluster": {"n_gpus_per_node": 4, "n_nodes": 1}}, 4, "cluster.n_nodes"),
        ({"world_size": 1, "n_gpu": 2}, 2, "world_size and n_gpu"),
        ({"world_size": 2, "n_gpu": 0}, None, ""),
        ({"world_size": 2, "use_cpu": True}, None, ""),
        ({"num_gpus": "eight"}, None, ""),
        ({"lr": 1}, None, ""),
    ],
)
def test_the_number_of_gpus_by_settings(tmp_path, config, count, source):
    found = gpus_of(rlvitals.open_run(record(tmp_path / "run", range(1, 3), config=config)))
    assert found.count == count
    assert found.source.endswith(source)


def test_the_number_of_gpus_by_processes_ranks_and_samples(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setenv("RANK", "0")
    launched = rlvitals.open_run(record(tmp_path / "launched", range(1, 3)))
    monkeypatch.delenv("WORLD_SIZE")
    assert (gpus_of(launched).count, gpus_of(launched).source) == (6, "one for each of its 6 processes")

    def second(run, step):
        with rlvitals.start(tmp_path / "ranked", rank=1, display="none", hardware=False) as other:
            other.log({"loss": 1.0}, step=step)

    assert gpus_of(rlvitals.open_run(record(tmp_path / "ranked", [1], beside=second))).count == 2
    sampled = record(tmp_path / "sampled", range(1, 3))
    sample = {"step": 1, "timestamp": BEGAN, "attempt": 1, "System/GPU_Utilization": 50.0}
    cards = {f"System/GPU_Utilization/{card}": 50.0 for card in range(3)}
    (RunDir(sampled).log("system")).write_text(json.dumps(sample | cards) + "\n")
    assert gpus_of(rlvitals.open_run(sampled)).count == 3
    (RunDir(sampled).log("system")).write_text(json.dumps(sample) + "\n")
    shutil.rmtree(sampled / "index", ignore_errors=True)
    assert gpus_of(rlvitals.open_run(sampled)).count == 1


def test_the_checkpoint_is_older_than_the_onset_and_best_by_the_outcome(tmp_path):
    def fall(run, step):
        if 25 <= step < 40:  # the reward is worse before the gradient dies
            run.log({"reward": 0.1}, step=step)

    run = record(tmp_path / "run", beside=fall)
    for name in ("checkpoint-10", "global_step_20", "checkpoint-38", "checkpoint-60", "final_model", "checkpoint-x"):
        (run / name).mkdir()
    checkpoint = look_back(run)["checkpoint"]
    assert (checkpoint["step"], checkpoint["name"], checkpoint["metric"]) == (20, "global_step_20", "reward")
    steps, values = rlvitals.open_run(run).series("reward")
    assert checkpoint["value"] == pytest.approx(values[steps <= 20][-8:].mean())
    assert checkpoint["last_value"] == pytest.approx(values[-8:].mean())
    assert checkpoint["path"] == str(run / "global_step_20")
    assert "the best of 3 checkpoints before step 40: reward is 0.3" in look_back(run)["told"][1]


def test_the_held_out_score_chooses_before_the_reward(tmp_path):
    def evaluate(run, step):
        if step in (10, 20, 30):
            run.log_eval({"accuracy": {10: 0.5, 20: 0.7, 30: 0.6}[step]}, step=step)

    run = record(tmp_path / "run", beside=evaluate)
    for step in (10, 20, 30):
        (run / f"checkpoint-{step}").mkdir()
    checkpoint = look_back(run)["checkpoint"]
    assert (checkpoint["step"], checkpoint["value"], checkpoint["last_value"]) == (20, 0.7, 0.6)
    assert checkpoint["metric"] == rlvitals.open_run(run).held_out_outcome


def test_of_checkpoints_with_the_same_outcome_the_newest_is_taken(tmp_path):
    def evaluate(run, step):
        if step in (10, 30):
            run.log_eval({"accuracy": 0.5}, step=step)

    run = record(tmp_path / "run", beside=evaluate)
    for step in (10, 20, 30):
        (run / f"checkpoint-{step}").mkdir()
    assert look_back(run)["checkpoint"]["step"] == 30


def test_checkpoints_of_others_and_of_overtaken_attempts_are_not_taken(tmp_path):
    folder = tmp_path / "out"
    old = folder / "checkpoint-5"
    old.mkdir(parents=True)
    os.utime(old, (1e9, 1e9))  # of an earlier training
    run = record(folder / "rlvitals", range(1, 31), dies=False)
    for step in (10, 25):
        (folder / f"checkpoint-{step}").mkdir()
    later = max(path.stat().st_mtime for path in folder.glob("checkpoint-*")) + 5
    record(run, range(21, 61), resume=20, dies=False)
    attempts = [json.loads(line) for line in (run / "attempts.jsonl").read_text().splitlines()]
    attempts[1]["started"] = later
    (run / "attempts.jsonl").write_text("".join(json.dumps(attempt) + "\n" for attempt in attempts))
    (folder / "checkpoint-40").mkdir()
    os.utime(folder / "checkpoint-40", (later + 9, later + 9))
    assert sorted(checkpoints_of(rlvitals.open_run(run))) == [10, 40]


def test_a_checkpoint_that_is_only_on_record_is_named_as_such(tmp_path):
    run = record(tmp_path / "run", range(1, 21))
    record(run, range(21, STEPS + 1), resume="elsewhere/checkpoint-20")
    found = look_back(run)["checkpoint"]
    assert (found["step"], found["name"], found["path"]) == (20, "checkpoint-20", "")
    assert found["told"].endswith("It is on record, and not in the folder.")
    asked = {"request": 1, "checkpoint_step": 30, "checkpoint": "elsewhere/checkpoint-30"}
    append_event(RunDir(run), event_line(HealthEvent("request", 60, BEGAN, 2, facts=asked)))
    assert look_back(run)["checkpoint"]["name"] == "checkpoint-30"


def test_a_checkpoint_that_rows_name_counts_unless_another_is_still_there(tmp_path):
    def save(run, step):
        if step in (11, 21, 31):
            run.log({"checkpoint": f"checkpoint-{step - 1}"}, step=step)

    run = record(tmp_path / "run", beside=save)
    assert (look_back(run)["checkpoint"]["name"], look_back(run)["checkpoint"]["path"]) == ("checkpoint-30", "")
    (run / "checkpoint-10").mkdir()  # the trainer removed the others
    assert (look_back(run)["checkpoint"]["name"], bool(look_back(run)["checkpoint"]["path"])) == ("checkpoint-10", True)


def test_a_page_gets_checkpoints_within_its_folder_alone(tmp_path):
    outside, served = tmp_path / "outside", tmp_path / "served"
    (outside / "checkpoint-10").mkdir(parents=True)
    run = record(served / "run", config={"output_dir": str(outside), "save_path": "a\0b", "lr": 1})
    os.utime(outside / "checkpoint-10")
    assert look_back(run)["checkpoint"]["step"] == 10
    assert ask(served, "run")["checkpoint"] is None


SETTINGS = {"lr": 1e-6, "beta": 0.04, "batch": 64, "seed": 1, "output_dir": "out/x", "run_id": "abc"}


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """A failed run among others. One of its two nearest runs failed too."""
    folder = tmp_path_factory.mktemp("family")
    record(folder / "bad", config=SETTINGS)
    record(folder / "also-bad", config=SETTINGS | {"seed": 2})
    record(folder / "near", dies=False, config=SETTINGS | {"lr": 5e-7, "seed": 7, "output_dir": "out/y", "run_id": "d"})
    record(folder / "far", dies=False, config=SETTINGS | {"lr": 1, "beta": 0.0, "batch": 8})
    record(folder / "other", dies=False, config=SETTINGS, algorithm="ppo")
    record(folder / "bare", dies=False)
    (folder / "bad" / "checkpoint-20").mkdir()
    return folder


def test_the_nearest_healthy_run_with_what_differs_alone(family):
    nearest = look_back(family / "bad")["nearest"]
    assert (nearest["run"], nearest["name"], nearest["status"]) == (str(family / "near"), "near", "finished")
    assert nearest["differences"] == {"lr": [1e-6, 5e-7], "seed": [1, 7]}
    assert nearest["told"] == "The nearest healthy run is near: 2 settings differ."


def test_a_run_that_differs_by_its_seed_alone_says_so(family, tmp_path):
    shutil.copytree(family / "bad", tmp_path / "bad")
    record(tmp_path / "twin", dies=False, config=SETTINGS | {"seed": 3})
    assert look_back(tmp_path / "bad")["nearest"]["told"] == "The nearest healthy run is twin: only the seed differs."


def test_a_healthy_run_of_the_same_name_is_called_after_its_folder(tmp_path):
    record(tmp_path / "bad", name="kto-7b", config={"lr": 1e-6})
    record(tmp_path / "good", dies=False, name="kto-7b", config={"lr": 5e-7})
    nearest = look_back(tmp_path / "bad")["nearest"]
    assert (nearest["name"], nearest["told"]) == ("good", "The nearest healthy run is good: 1 setting differs.")


def test_without_a_healthy_run_it_says_so(tmp_path):
    record(tmp_path / "bad", config=SETTINGS)
    record(tmp_path / "worse", config=SETTINGS)
    found = look_back(tmp_path / "bad")
    assert found["nearest"] is None
    assert found["told"][2] == "No healthy run with recorded settings is in the folder."


def test_a_run_in_its_trainers_folder_looks_one_folder_up(tmp_path):
    record(tmp_path / "one" / "rlvitals", config=SETTINGS)
    record(tmp_path / "two" / "rlvitals", dies=False, config=SETTINGS | {"lr": 2})
    assert look_back(tmp_path / "one" / "rlvitals")["nearest"]["differences"] == {"lr": [1e-6, 2]}


def ask(folder, run):
    served, query = Folder(folder), Query([("run", run)])
    while (answer := ANSWERS["hindsight"](served, query))["judging"]:
        pass
    return answer["hindsight"]


def test_every_place_gives_the_same_answer(family, capsys):
    run = family / "bad"
    view = rlvitals.open_run(run)
    whole = hindsight(view, view.findings, Neighbours.of(run))
    assert look_back(run) == whole
    assert gather(run).check["hindsight"] == whole
    for verb in ("check", "show"):
        main([verb, str(run), "--json"])
        assert json.loads(capsys.readouterr().out)["hindsight"] == whole
        main([verb, str(run)])
        printed = " ".join(capsys.readouterr().out.split())
        assert all(sentence in printed for sentence in whole["told"])
        assert "lr 1e-06 5e-07" in printed
    main(["check", str(family), "--json"])
    reports = {report["source"]: report["hindsight"] for report in json.loads(capsys.readouterr().out)["reports"]}
    assert reports[str(run)] == whole
    assert reports[str(family / "near")] is None
    asked = ask(family, "bad")
    assert asked["nearest"]["run"] == "near"
    assert asked["checkpoint"]["path"] == "bad/checkpoint-20"
    asked["nearest"]["run"], asked["checkpoint"]["path"] = whole["nearest"]["run"], whole["checkpoint"]["path"]
    assert asked == whole
    html, text = page(gather(run)), markdown(gather(run))
    for sentence in whole["told"]:
        assert sentence.replace("'", "&#x27;") in html
    assert "<td>lr</td><td>1e-06</td><td>5e-07</td>" in html
    assert "### If it had been stopped" in text
    assert "| `lr` | 1e-06 | 5e-07 |" in text
    assert not math.isnan(whole["cost"]["hours"])


def test_the_page_of_check_has_it_too(family, tmp_path):
    main(["check", str(family / "bad"), "--html", str(tmp_path / "page.html")])
    html = (tmp_path / "page.html").read_text()
    assert "<h2>If it had been stopped</h2>" in html
    assert "The nearest healthy run is near: 2 settings differ." in html
    assert html.count("<table") == html.count("</table>") > 1
