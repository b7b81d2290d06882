"""prime-rl's two runs read as one."""

from __future__ import annotations

import json
import time

import pytest

import rlvitals
from rlvitals.cli.main import main
from rlvitals.errors import RunNotFound
from rlvitals.tui.watched import Watched, status_line
from rlvitals.views.folder_list import FolderList
from rlvitals.views.logs import open_any
from rlvitals.web.folder import Folder


def begin(folder, framework="prime_rl", **config):
    return rlvitals.start(folder, algorithm="grpo", framework=framework, display="none", hardware=False, config=config)


def record(folder, rows, rollouts=(), framework="prime_rl", **config):
    with begin(folder, framework, **config) as run:
        for step, row in rows.items():
            run.log(row, step=step)
        if rollouts:
            run.log_groups([{"id": "sum", "prompt": "2 + 2", "rollouts": list(rollouts)}], step=3)
    return run


@pytest.fixture
def training(tmp_path):
    """The orchestrator is one step ahead; both log the time of a step; the trainer's gradient becomes zero."""
    folder = tmp_path / "rlvitals"
    steps = range(60)
    rewards = {step: {"reward/all/mean": 0.3 + 0.002 * step, "time/step": 2.0} for step in range(61)}
    losses = {step: {"optim/grad_norm": 0.5 if step < 30 else 0.0, "time/step": 1.0} for step in steps}
    record(folder / "orchestrator", rewards, [{"completion": "5", "reward": 0.0}], group_size=8)
    record(folder / "trainer", losses, lr=1e-6)
    return folder


def test_rows_of_a_step_are_one_row_and_one_verdict(training):
    view = open_any(training)
    assert (view.framework, view.algorithm, view.rows) == ("prime_rl", "grpo", 61)
    assert set(view.metrics) == {"reward/all/mean", "time/step", "optim/grad_norm"}
    assert list(view.series("time/step").values) == [2.0] * 61  # the orchestrator's
    steps, norms = view.series("optim/grad_norm")
    assert (list(steps), list(norms[:31])) == (list(range(60)), [0.5] * 30 + [0.0])
    assert view.config == {"orchestrator": {"group_size": 8}, "trainer": {"lr": 1e-6}}
    report = rlvitals.check(training)
    assert (report.verdict, report.rows) == ("act", 61)
    assert {"reward/all/mean", "optim/grad_norm"} <= {taken.name for taken in report.names}
    assert "logged by several processes, and read from the orchestrator's run: time/step" in report.notes


def test_every_list_says_alike_when_a_running_training_was_written_and_for_how_long(tmp_path, capsys):
    folder = tmp_path / "rlvitals"
    runs = [begin(folder / name) for name in ("orchestrator", "trainer")]
    for name, run in zip(("orchestrator", "trainer"), runs, strict=True):
        run.log({f"{name}/loss": 0.5}, step=1)
        card = folder / name / "run.json"
        known = json.loads(card.read_text())
        card.write_text(json.dumps(known | {"created": known["created"] - 1000, "updated": known["updated"] - 1000}))
    try:
        main(["runs", str(tmp_path), "--json"])
        (told,) = json.loads(capsys.readouterr().out)
        (listed,) = FolderList(tmp_path).lines(wait=True)
    finally:
        for run in runs:
            run.finish()
    assert (told["status"], listed.facts["status"]) == ("running", "running")
    assert told["seconds"] >= 1000
    assert (listed.facts["updated"], listed.facts["seconds"]) == (told["updated"], told["seconds"])


def test_a_folder_above_lists_it_once(training, capsys):
    main(["check", str(training.parent), "--json"])
    facts = json.loads(capsys.readouterr().out)
    sources = [report["source"] for report in facts["reports"]] if "reports" in facts else [facts["source"]]
    assert sources == [str(training)]


def test_two_runs_of_other_names_or_frameworks_stay_two(tmp_path):
    rows = {step: {"loss": 1.0} for step in range(1, 4)}
    for name in ("orchestrator", "trainer"):
        record(tmp_path / name, rows, framework="verl")
    assert len(rlvitals.check(tmp_path)) == 2


def test_lists_pages_and_check_give_one_answer(training, capsys):
    report = rlvitals.check(training)
    root = training.parent
    served = Folder(root)
    served.runs()
    served.logs.wait()
    (line,) = served.runs()["runs"]
    facts = (line["run"], line["framework"], line["rows"], line["last_step"], line["status"], line["metrics"])
    assert facts == ("rlvitals", "prime_rl", 61, 60, "finished", 3)
    assert (line["verdict"], line["reason"]) == (report.verdict, report.reason)
    assert line["status_note"] == "prime_rl run of 2 processes"
    page = served.view("rlvitals")
    assert set(page.metrics) == {"reward/all/mean", "time/step", "optim/grad_norm"}
    assert page.rollout_log.steps == [3]
    assert page.rollouts(3)[0].rollouts[0].reward == 0.0

    main(["runs", str(root), "--json"])
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["path"], run["rows"], run["status"]) == (str(training), 61, "finished")
    assert (run["verdict"], run["reason"]) == (report.verdict, report.reason)

    (listed,) = FolderList(root).lines(wait=True)
    assert (listed.name, listed.facts["verdict"], listed.facts["rows"]) == ("rlvitals", report.verdict, 61)
    assert main(["rollouts", str(training), "--json"]) == 0
    (step,) = json.loads(capsys.readouterr().out)["steps"]
    assert (step["step"], step["rollouts"], step["mean"]) == (3, 1, 0.0)


def test_show_and_export_take_the_folder_of_both(training, tmp_path, capsys):
    assert main(["show", str(training), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["rows"], shown["status"], shown["framework"]) == (61, "finished", "prime_rl")
    assert {metric["name"] for metric in shown["metrics"]} == {"reward/all/mean", "time/step", "optim/grad_norm"}
    assert main(["export", str(training), "--to", "csv", "--output", str(tmp_path / "rows.csv")]) == 0
    header, first, *_ = (tmp_path / "rows.csv").read_text().splitlines()
    row = dict(zip(header.split(","), first.split(","), strict=True))
    assert (float(row["reward/all/mean"]), float(row["optim/grad_norm"])) == (0.3, 0.5)


@pytest.mark.parametrize("above", [False, True])
def test_watch_follows_both_processes_as_one(training, above, capsys):
    report = rlvitals.check(training)
    main(["watch", str(training.parent if above else training), "--json"])
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (row,) = [event for event in events if event["type"] == "row"]
    assert (row["source"], row["step"], row["rows"]) == (str(training), 60, 61)
    assert row["values"]["reward/all/mean"] == pytest.approx(0.42)
    assert row["values"]["optim/grad_norm"] == 0.0
    assert {event["title"] for event in events if event["type"] == "finding"} == {
        finding.title for finding in report.findings
    }
    assert (events[-1]["verdict"], events[-1]["why"]) == (report.verdict, "the run is finished")


def test_a_step_is_watched_when_every_process_has_logged_it(tmp_path):
    folder = tmp_path / "rlvitals"
    with begin(folder / "orchestrator") as orchestrator, begin(folder / "trainer") as trainer:
        for step in range(4):
            orchestrator.log({"reward/all/mean": 0.1 * step}, step=step)
        trainer.log({"optim/grad_norm": 0.5}, step=0)
        trainer.log({"optim/grad_norm": 0.4}, step=1)
        watched = Watched(folder)
        watched.poll()
        assert (watched.rows, watched.judge.last_step, status_line(watched)) == (2, 1, "running")
        trainer.log({"optim/grad_norm": 0.3}, step=2)
        for _ in range(200):
            if watched.poll():
                break
            time.sleep(0.01)
        assert (watched.rows, watched.latest["optim/grad_norm"], watched.latest["reward/all/mean"]) == (3, 0.3, 0.2)
    for _ in range(200):
        watched.poll()
        if watched.rows == 4:
            break
        time.sleep(0.01)
    assert watched.ending == "the run is finished"
    assert watched.rows == 4  # includes the step that only the orchestrator has logged


def test_the_page_of_a_training_gets_its_rows_and_its_end(tmp_path):
    folder = tmp_path / "rlvitals"
    with begin(folder / "orchestrator") as orchestrator, begin(folder / "trainer") as trainer:
        orchestrator.log({"reward/all/mean": 0.1}, step=0)
        trainer.log({"optim/grad_norm": 0.5}, step=0)
        served = Folder(tmp_path)
        served.runs()
        served.logs.wait()
        assert [line["status"] for line in served.runs()["runs"]] == ["running"]
        tail = served.tail("rlvitals", "")
        assert (tail.look().rows, tail.status()["status"]) == (0, "running")
        trainer.log({"optim/grad_norm": 0.5}, step=1)
        assert tail.look().rows == 1
    assert tail.status()["status"] == "finished"


def test_an_evaluation_stands_at_its_step(tmp_path):
    folder = tmp_path / "rlvitals"
    rewards = {step: {"reward/all/mean": 0.5} for step in range(6)}
    with begin(folder / "orchestrator") as run:
        for step, row in rewards.items():
            run.log(row, step=step)
            if step == 2:
                run.log_eval({"accuracy": 0.7}, step=step)
    record(folder / "trainer", {step: {"optim/grad_norm": 1.0} for step in range(6)})
    assert [row["step"] for row in open_any(folder).log.rows] == [0, 1, 2, 2, 3, 4, 5]


def test_a_link_that_leaves_the_folder_is_not_served(training, tmp_path):
    root = tmp_path / "served"
    root.mkdir()
    (root / "rlvitals").mkdir()
    for part in ("orchestrator", "trainer"):
        (root / "rlvitals" / part).symlink_to(training / part)
    served = Folder(root)
    served.runs()
    served.logs.wait()
    assert served.runs()["runs"] == []
    training.rename(root / "inside")
    outside = tmp_path / "secret.jsonl"
    outside.write_text("{}")
    (root / "inside" / "orchestrator" / "logs" / "rollouts" / "step_9.jsonl").symlink_to(outside)
    served = Folder(root)
    served.runs()
    served.logs.wait()
    assert served.runs()["runs"] == []
    with pytest.raises(RunNotFound):
        served.served("inside")
