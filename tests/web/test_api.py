"""The answers of the addresses, compared with the runs they describe."""

from __future__ import annotations

import io
import json
import logging
import math
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from serving import Client, serving

import rlvitals
from conftest import SHARED
from rlvitals.cli.main import main
from rlvitals.errors import RunUnreadable
from rlvitals.records import Group, Rollout, Turn
from rlvitals.views.diagnosis import Diagnosis
from rlvitals.web.folder import Turns


def write_run(path, rows=300, seed=0, **options):
    noise = np.random.default_rng(seed)
    settings = {"algorithm": "grpo", "total_steps": 1000, "hardware": False, "display": "none", "monitor": False}
    with rlvitals.start(path, config={"lr": 1e-6, "seed": seed}, **settings | options) as run:
        for step in range(1, rows + 1):
            reward = 0.3 + 0.5 * step / rows + noise.normal(0, 0.02)
            run.log({"reward": reward, "kl": 0.001 * step, "grad_norm": 1.0, "entropy": 0.5}, step=step)
            if step % 100 == 0:
                run.log_eval({"accuracy": step / rows}, step=step)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "grpo" / "one")
    write_run(folder / "grpo" / "two", seed=1)
    return folder


@pytest.fixture(scope="module")
def client(folder):
    with serving(folder) as served:
        yield served


def test_every_run_below_the_folder_is_a_line(client, folder):
    facts = client.api("runs").facts
    assert facts["folder"] == folder.name
    lines = {line["run"]: line for line in facts["runs"]}
    assert lines.keys() == {"grpo/one", "grpo/two"}
    view = rlvitals.open_run(folder / "grpo" / "one")
    line = lines["grpo/one"]
    assert (line["rows"], line["last_step"], line["total_steps"]) == (view.rows, view.last_step, 1000)
    assert (line["algorithm"], line["status"], line["metrics"]) == ("grpo", "finished", len(view.metrics))


def test_the_folder_may_be_a_run_itself(folder):
    with serving(folder / "grpo" / "one") as client:
        assert [line["run"] for line in client.api("runs").facts["runs"]] == ["."]
        assert client.api("run", run=".").facts["name"] == "one"


def test_a_run_s_vitals_are_those_of_the_run(client, folder):
    facts = client.api("run", run="grpo/one").facts
    view = rlvitals.open_run(folder / "grpo" / "one")
    assert facts["config"]["lr"] == 1e-6
    assert facts["rows"] == 300
    tiles = {tile["name"]: tile for tile in facts["tiles"]}
    assert tiles["reward"]["value"] == view.series("reward").values[-1]
    assert facts["now"]["step"] == 300


def test_metrics_of_both_streams_are_listed_with_their_last_values(client, folder):
    facts = client.api("metrics", run="grpo/one").facts
    listed = {(line["stream"], line["name"]): line for line in facts["metrics"]}
    assert listed.keys() == {("train", name) for name in ("reward", "kl", "grad_norm", "entropy")} | {
        ("eval", "accuracy")
    }
    assert listed["train", "kl"]["last"] == pytest.approx(0.3)
    assert listed["eval", "accuracy"]["points"] == 3


def test_a_series_is_the_run_s_own(client, folder):
    line = client.api("series", run="grpo/one", name="reward").facts["lines"][0]
    steps, values = rlvitals.open_run(folder / "grpo" / "one").series("reward")
    assert (line["x"], line["y"]) == (steps.tolist(), values.tolist())
    assert line["total"] == line["shown"] == 300


def test_a_thinned_series_shows_the_extremes_and_says_how_many_points_there_are(client, folder):
    line = client.api("series", run="grpo/one", name="reward", points=20).facts["lines"][0]
    values = rlvitals.open_run(folder / "grpo" / "one").series("reward").values
    assert (line["total"], line["shown"]) == (300, 20)
    assert (min(line["low"]), max(line["high"])) == (values.min(), values.max())


def test_zooming_in_brings_the_points_back(client):
    line = client.api("series", run="grpo/one", name="reward", points=20, **{"from": 100, "to": 119}).facts["lines"][0]
    assert line["steps"] == list(range(100, 120))
    assert line["low"] == line["high"] == line["y"]


def test_time_is_an_axis_and_one_the_run_lacks_is_reported_as_missing(client, folder):
    line = client.api("series", run="grpo/one", name="reward", x="time").facts["lines"][0]
    assert line["x"] == sorted(line["x"])
    assert line["steps"] == list(range(1, 301))
    answer = client.api("series", run="grpo/one", name="reward", x="tokens")
    assert answer.status == 400
    assert "tokens" in answer.facts["error"]


def test_a_metric_nobody_logged_is_not_found(client):
    answer = client.api("series", run="grpo/one", name="rewrad")
    assert answer.status == 404
    assert "reward" in answer.facts["error"]
    assert client.api("series", run="grpo/one").status == 400
    assert client.api("series", name="reward").status == 400


def test_explaining_gives_what_the_command_gives(client, capsys):
    assert main(["explain", "kl", "--framework", "trl_grpo", "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    facts = client.api("explain", name="kl").facts
    assert facts["title"]
    assert facts.keys() == expected.keys()
    assert client.api("explain", name="no such thing at all").status == 404


def test_runs_are_compared_and_laid_over_each_other(client, folder):
    compared = client.api("compare", run=["grpo/one", "grpo/two"]).facts
    assert [line["run"] for line in compared["runs"]] == ["grpo/one", "grpo/two"]
    assert "seed" in compared["config_differences"]
    assert str(folder) not in json.dumps(compared["only_in_one"])
    drawn = client.api("overlay", run=["grpo/one", "grpo/two"], name="reward").facts
    assert [line["run"] for line in drawn["lines"]] == ["grpo/one", "grpo/two"]
    assert client.api("compare", run=["grpo/one"]).status == 400


def test_runs_that_differ_by_their_seed_alone_have_a_band(client, folder):
    band = client.api("overlay", run=["grpo/one", "grpo/two"], name="reward").facts["bands"][0]
    one, two = (rlvitals.open_run(folder / "grpo" / name).series("reward").values for name in ("one", "two"))
    assert band["runs"] == ["grpo/one", "grpo/two"]
    assert (band["low"][0], band["high"][0]) == (min(one[0], two[0]), max(one[0], two[0]))
    assert band["mean"][-1] == pytest.approx((one[-1] + two[-1]) / 2)


def test_overlaying_names_the_runs_without_the_metric(tmp_path):
    write_run(tmp_path / "one", rows=5)
    with rlvitals.start(tmp_path / "other", monitor=False, hardware=False, display="none") as run:
        run.log({"mine": 1.0}, step=1)
    with serving(tmp_path) as client:
        facts = client.api("overlay", run=["one", "other"], name="grad_norm").facts
    assert facts["missing"] == ["other"]
    assert len(facts["lines"]) == 1


def test_evaluations_are_those_of_the_command(client, folder, capsys):
    assert main(["evals", str(folder / "grpo" / "one"), "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)["runs"][0]
    facts = client.api("evaluations", run="grpo/one").facts
    assert facts["evaluations"] == expected["evaluations"]
    assert facts["metrics"] == ["accuracy"]


def test_a_missing_address_is_a_sentence(client):
    assert client.get("/api/nonsense").status == 404
    assert client.get("/api/nonsense").facts["error"]


def test_a_run_still_written_unreadably_is_a_503_with_the_reason(tmp_path):
    write_run(tmp_path / "run", rows=3)
    (tmp_path / "run" / "run.json").write_text('{"schema": 99, "written_by": "9.0"}')
    with serving(tmp_path) as client:
        answer = client.api("run", run="run")
        assert answer.status == 503
        assert "9.0" in answer.facts["error"]
        live = client.api("live", run="run")
        assert (live.status, live.facts) == (503, answer.facts)
        assert client.api("runs").facts["runs"][0]["status"] == "unreadable"


def test_a_row_logged_since_is_in_the_next_answer(tmp_path):
    with serving(tmp_path) as client:
        run = rlvitals.start(tmp_path / "run", monitor=False, hardware=False, display="none")
        for step in range(1, 4):
            run.log({"loss": float(step)}, step=step)
            assert client.api("series", run="run", name="loss").facts["lines"][0]["y"][-1] == step
            assert client.api("run", run="run").facts["now"]["step"] == step
            assert client.api("runs").facts["runs"][0]["rows"] == step
        assert client.api("run", run="run").facts["status"] == "running"
        run.finish()
        assert client.api("run", run="run").facts["status"] == "finished"


def test_numbers_that_are_none_are_null(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False, hardware=False, display="none") as run:
        for step, value in enumerate([1.0, math.nan, math.inf, 4.0], start=1):
            run.log({"loss": value}, step=step)
    with serving(tmp_path) as client:
        line = client.api("series", run="run", name="loss").facts["lines"][0]
    assert line["y"] == [1.0, None, None, 4.0]
    assert line["nonfinite"] == 2


def test_what_an_abandoned_attempt_logged_is_a_ghost(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False, hardware=False, display="none") as run:
        for step in range(1, 11):
            run.log({"loss": float(step)}, step=step)
    with rlvitals.start(tmp_path / "run", resume=5, monitor=False, hardware=False, display="none") as run:
        run.log({"loss": 60.0}, step=6)
    with serving(tmp_path) as client:
        line = client.api("series", run="run", name="loss").facts["lines"][0]
    assert line["y"] == [1.0, 2.0, 3.0, 4.0, 5.0, 60.0]
    assert line["ghosts"] == [{"x": [6, 7, 8, 9, 10], "y": [6.0, 7.0, 8.0, 9.0, 10.0]}]


def test_rollouts_are_listed_by_step_and_group_and_found_by_text(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False, hardware=False, display="none") as run:
        groups = [
            Group(
                prompt=f"Who wrote {place}?",
                rollouts=(
                    Rollout(turns=(Turn(text="I think Ann."),), reward=1.0, outcome="correct"),
                    Rollout(turns=(Turn(text="Nobody."),), reward=0.0, outcome="wrong"),
                ),
            )
            for place in range(60)
        ]
        run.log_groups(groups, step=1)
        run.log({"reward": 0.5}, step=1)
    with serving(tmp_path) as client:
        assert client.api("rollouts", run="run").facts["steps"][0]["groups"] == 60
        page = client.api("rollouts", run="run", step=1, page=1).facts
        assert (page["total"], [group["number"] for group in page["groups"]]) == (60, list(range(51, 61)))
        assert page["groups"][0]["mean"] == 0.5
        whole = client.api("rollouts", run="run", step=1, group=3).facts["groups"][0]
        assert whole["rollouts"][0]["turns"][0]["text"] == "I think Ann."
        hits = client.api("rollouts", run="run", search="nobody").facts
        assert len(hits["hits"]) == 50
        assert hits["more"]
        assert {hit["outcome"] for hit in hits["hits"]} == {"wrong"}
        nowhere = client.api("rollouts", run="run", step=9)
        assert nowhere.status == 404
        assert nowhere.facts["error"] == "there are no rollouts at step 9; the nearest are at 1"
        assert client.api("rollouts", run="run", search="x", page=10**6).status == 400


def test_a_run_without_rollouts_says_so(client):
    answer = client.api("rollouts", run="grpo/one")
    assert answer.status == 404
    assert "log_groups" in answer.facts["error"]


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "logs").is_dir(), reason="needs the collected logs")
@pytest.mark.parametrize(
    "name", ["verl_agent_collapse_step30.log", "ppo_trl_v2_100.json", "dpo_zephyr_reference_114.csv"]
)
def test_an_imported_log_is_judged_as_check_judges_it(tmp_path, name):
    assert main(["import", str(SHARED / "logs" / name), "--to", str(tmp_path / "run")]) == 0
    with serving(tmp_path) as client:
        facts = client.judged("findings", "run")
        assert client.api("runs").facts["runs"][0]["verdict"] == facts["verdict"]
    report = rlvitals.check(tmp_path / "run")
    assert (facts["verdict"], facts["reason"]) == (report.verdict, report.reason)
    grave = [found for found in facts["findings"] if found["severity"] != "info"]
    assert sorted((found["step"], found["rule"]) for found in grave) == sorted(
        (found.step, found.rule) for found in report.findings
    )


def test_findings_tell_what_the_names_were_taken_for_as_check_does(tmp_path):
    with rlvitals.start(tmp_path / "run", hardware=False, display="none", algorithm="grpo") as run:
        for step in range(30):
            run.log({"loss": 0.1, "avg_return": 0.01 * step, "kl": 0.01}, step=step)
    with serving(tmp_path) as client:
        names = client.api("findings", run="run").facts["names"]
    checked = rlvitals.check(tmp_path / "run").to_dict()["names"]
    assert names == checked
    assert {"avg_return": "reward", "kl": "kl"}.items() <= {one["name"]: one["signal"] for one in names}.items()


def test_findings_come_with_what_was_asked_done_and_seen(tmp_path):
    with rlvitals.start(tmp_path / "run", algorithm="grpo", hardware=False, display="none", actions="act") as run:
        for step in range(1, 120):
            run.log({"reward": 0.5, "kl": 0.01 if step < 60 else 0.01 * 1.5 ** (step - 60), "loss": 0.1}, step=step)
            if (request := run.request()) is not None:
                request.done("halved")
    with serving(tmp_path) as client:
        facts = client.api("findings", run="run").facts
        assert facts["verdict"] == client.api("runs").facts["runs"][0]["verdict"] == "act"
        about_kl = next(found for found in facts["findings"] if "kl" in found["metrics"])
        answers = [request for found in facts["findings"] for request in found["requests"]]
        assert {(request["answer"], request["answer_text"]) for request in answers} == {("done", "halved")}
        assert about_kl["causes"]
        assert about_kl["advice"]
        trace = about_kl["trace"][0]
        assert trace["name"] == "kl"
        assert about_kl["onset_step"] in range(trace["steps"][0], trace["steps"][-1] + 1)
        marks = client.api("series", run="run", name="kl").facts["findings"]
        assert about_kl["rule"] in {mark["rule"] for mark in marks}


def test_the_command_serves_until_it_is_stopped(folder):
    command = [sys.executable, "-m", "rlvitals.cli.main", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().split()[-1]
        client = Client(int(url.rpartition(":")[2].strip("/")))
        assert client.api("run", run="grpo/one").status == 200  # as soon as the address is printed
        with client.listen("grpo/one") as events:
            next(events)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) in (0, 130, -signal.SIGINT)
        assert "Traceback" not in process.stderr.read()


def test_a_port_that_is_taken_is_reported_with_the_way_out(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = ["-m", "rlvitals.cli.main", "serve", str(tmp_path), "--port", str(taken.getsockname()[1])]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 64
    assert "--port 0" in done.stderr


def test_a_folder_beyond_this_machine_is_served_with_a_fresh_token(tmp_path):
    command = [sys.executable, "-m", "rlvitals.cli.main", "serve", str(tmp_path), "--port", "0", "--host", "0.0.0.0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        address, _, token = process.stdout.readline().split()[-1].partition("/?token=")
        client = Client(int(address.rpartition(":")[2]))
        assert client.get("/api/runs").status == 401
        assert client.get("/api/runs", authorization=f"Bearer {token}").status == 200
        process.terminate()


def test_a_hundred_questions_at_once_get_the_same_answer(client):
    """A page sends its requests at once: one of them opens the run, and all get the same answer."""
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda place: client.api("series", run="grpo/two", name="reward").body, range(100)))
    assert len(set(answers)) == 1
    assert b'"total":300' in answers[0]


def test_a_log_that_takes_long_to_judge_is_shown_at_once_and_its_verdict_when_it_is_there(tmp_path, monkeypatch):
    write_run(tmp_path / "run", rows=50)
    is_done = threading.Event()

    def diagnose(view, pause):
        assert is_done.wait(30)
        return Diagnosis("watch", "slowly", [])

    monkeypatch.setattr("rlvitals.web.folder.diagnose", diagnose)
    monkeypatch.setattr("rlvitals.web.folder.PATIENCE", 0.01)
    with serving(tmp_path) as client:
        for address in ("run", "findings"):
            facts = client.api(address, run="run").facts
            assert (facts["verdict"], facts["judging"]) == ("cannot judge", True)
            assert "50 rows are being judged" in facts["reason"]
        assert client.api("run", run="run").facts["tiles"]
        is_done.set()
        for address in ("run", "findings"):
            assert client.judged(address, "run")["verdict"] == "watch"
        assert client.api("runs").facts["runs"][0]["verdict"] == "watch"


def test_a_doctor_that_fails_is_reported_to_whoever_asks(tmp_path, monkeypatch):
    write_run(tmp_path / "run", rows=50)

    def diagnose(view, pause):
        raise RunUnreadable("the log has gone")

    monkeypatch.setattr("rlvitals.web.folder.diagnose", diagnose)
    with serving(tmp_path) as client:
        for _ in range(2):
            answer = client.api("run", run="run")
            assert (answer.status, answer.facts["error"]) == (503, "the log has gone")


def test_a_growing_log_that_takes_long_to_judge_is_not_judged_at_every_row(tmp_path, monkeypatch):
    write_run(tmp_path / "run", rows=50)
    log = tmp_path / "run" / "logs" / "training_metrics.jsonl"
    judged = []

    def diagnose(view, pause):
        judged.append(view.rows)
        time.sleep(0.3)
        return Diagnosis("watch", "slowly", [])

    monkeypatch.setattr("rlvitals.web.folder.diagnose", diagnose)
    with serving(tmp_path) as client:
        for step in range(51, 56):
            assert client.api("run", run="run").facts["rows"] == step - 1
            with log.open("a") as file:
                file.write(json.dumps({"step": step, "timestamp": 1.0, "attempt": 1, "reward": 0.5}) + "\n")
    assert judged == [50]


def test_answers_are_worked_out_before_more_rows_are_judged():
    turns = Turns()
    judged = []

    def judge():
        for number in range(4):
            turns.let_pass()
            judged.append(number)

    with turns.answering():
        judging = threading.Thread(target=judge)
        judging.start()
        judging.join(0.1)
        assert judged == []
        with turns.waiting():  # an answer that waits for the judging does not block it
            judging.join(10)
        assert judged == [0, 1, 2, 3]


def test_judging_goes_on_where_answers_never_end(monkeypatch):
    monkeypatch.setattr("rlvitals.web.folder.ANSWERS_FIRST", 0.01)
    turns = Turns()
    with turns.answering():
        began = time.monotonic()
        turns.let_pass()
        assert 0.01 <= time.monotonic() - began < 5


class ClosingHandler(logging.StreamHandler):
    """Closes its stream when it is closed, like the handlers of absl, which tensorboard imports."""

    def close(self):
        self.stream.close()
        super().close()


def test_a_server_leaves_the_log_handlers_of_its_process_open(tmp_path):
    handler = ClosingHandler(io.StringIO())
    with serving(tmp_path):
        assert not handler.stream.closed
