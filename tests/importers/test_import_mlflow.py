"""Runs of a real MLflow server, logged and imported with the real client."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from brought import Proxy, command, folders, imported, points, rows

import rlvitals
from conftest import free_port
from rlvitals.cli.main import main
from rlvitals.importers.trackers.mlflow import _mark
from rlvitals.splits import held_out_name
from rlvitals.store.marks import FolderMarks
from rlvitals.views.run import open_run

mlflow = pytest.importorskip("mlflow")
from mlflow.entities import Metric, Param, RunTag  # noqa: E402 - where it is installed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"),
]

START = 1_763_190_000_000
LONG = 26_000
"""The points of one metric, more than MLflow returns in one page."""
SECRET = "hf_abcdefghijklmnopqrstuvwxyz012345"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture(scope="module")
def environment(folder):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    quick = {"MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1", "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0"}
    return {**kept, **quick, "HOME": str(folder), "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}


@pytest.fixture(scope="module")
def store(folder):
    """A database with an experiment of four runs, and its own client."""
    uri = f"sqlite:///{folder}/mlflow.db"
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("team/grpo", artifact_location=str(folder / "artifacts"))

    def begin(name, **tags):
        moment = START + ["long", "mixed", "../../evil/run", "again"].index(name)
        return client.create_run(experiment, start_time=moment, run_name=name, tags=tags).info.run_id

    def log(run, metrics):
        for place in range(0, len(metrics), 1000):
            client.log_batch(run, metrics=metrics[place : place + 1000])

    long = begin("long", **{"mlflow.note.content": "the long one", "team": "rl", "starred": "true"})
    log(long, [Metric("loss", i / 7, START + 10 * i, i) for i in range(LONG)])
    odd = {3: math.nan, 4: math.inf, 5: -math.inf}
    mixed = begin("mixed")
    for i in range(20):  # log_metrics gives one time to a row; evaluations come later
        moment = START + 1000 * i
        both = [Metric("reward", odd.get(i, i / 3), moment, i), Metric("kl", -i / 9, moment, i)]
        later = [Metric("eval/accuracy", i / 20, moment + 500, i)] if i % 5 == 0 else []
        log(mixed, both + later + [Metric("system/cpu", i / 2, moment + 100, i)])
    client.log_batch(mixed, params=[Param("lr", "1e-5"), Param("hf_token", SECRET), Param("name", "a b")])
    client.set_terminated(mixed, "FAILED", START + 60_000)
    hostile = begin("../../evil/run")
    log(hostile, [Metric("loss", i, START + i, 0) for i in range(5)])  # logged without a step
    client.set_terminated(hostile)
    again = begin("again")
    for i, step in enumerate([0, 10, 20, 30, 10, 20]):  # restarted from a checkpoint
        log(again, [Metric("loss", i, START + i, step), Metric("lr", i / 2, START + i, step)])
    client.set_terminated(again)
    return uri, client, {"long": long, "mixed": mixed, "hostile": hostile, "again": again}


@pytest.fixture(scope="module")
def server(folder, store, environment):
    port = free_port()
    words = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store[0], "--host", "127.0.0.1"]
    words += ["--port", str(port), "--workers", "1", "--artifacts-destination", str(folder / "artifacts")]
    given = {**environment, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with open(folder / "server.log", "wb") as log_file:
        process = subprocess.Popen(
            words, env=given, stdout=log_file, stderr=log_file, cwd=folder, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=5):
                    break
            except OSError:
                assert process.poll() is None, (folder / "server.log").read_text()
                assert time.monotonic() < until
                time.sleep(0.5)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def test_an_experiment_comes_with_every_point_and_goes_on(store, server, environment, tmp_path, capsys):
    _, client, ids = store
    proxy = Proxy(server)
    proxy.faults["metrics/get-history"] = [503, 429]  # MLflow's own client retries
    address = f"mlflow:{proxy.url}#team/grpo"
    done = imported(environment, address, "--to", tmp_path / "runs", "--json")
    assert done.returncode == 0, done.stderr
    facts = {one["name"]: one for one in json.loads(done.stdout)["runs"]}
    assert {name: (one["result"], one["rows"], one["eval_rows"], one["samples"]) for name, one in facts.items()} == {
        "long": ("new", LONG, 0, 0), "mixed": ("new", 20, 4, 20), "../../evil/run": ("new", 5, 0, 0),
        "again": ("new", 6, 0, 0),
    }  # fmt: skip
    assert proxy.count("metrics/get-history") == 2 + 2 + 4 + 1 + 2  # two faults, and two pages of the long metric
    found = folders(tmp_path / "runs")
    assert os.listdir(tmp_path) == ["runs"]
    assert found["../../evil/run"].parent == tmp_path / "runs"

    assert points(found["long"], "loss") == [(i, (START + 10 * i) / 1000, repr(i / 7)) for i in range(LONG)]
    odd = {3: "nan", 4: "inf", 5: "-inf"}
    moments = [(START + 1000 * i) / 1000 for i in range(20)]
    assert points(found["mixed"], "reward") == [(i, moments[i], odd.get(i, repr(i / 3))) for i in range(20)]
    assert points(found["mixed"], "kl") == [(i, moments[i], repr(-i / 9)) for i in range(20)]
    assert points(found["mixed"], "eval/accuracy", "eval") == [
        (i, moments[i] + 0.5, repr(i / 20)) for i in (0, 5, 10, 15)
    ]
    assert [row.numbers for row in rows(found["mixed"], "system")] == [{"system/cpu": i / 2} for i in range(20)]
    view = open_run(found["mixed"])
    assert (view.info.status, view.info.ended) == ("failed", (START + 60_000) / 1000)
    assert {name: view.config[name] for name in ("lr", "hf_token", "name")} == {
        "lr": 1e-5,
        "hf_token": "***",
        "name": "a b",
    }
    assert FolderMarks(tmp_path / "runs").read()["runs"][found["long"].name] == {
        "tags": ["team=rl", "starred"], "note": "the long one",
    }  # fmt: skip
    assert open_run(found["long"]).info.status == "interrupted"  # running in MLflow, but nothing writes it here
    assert points(found["../../evil/run"], "loss") == [(i + 1, (START + i) / 1000, repr(float(i))) for i in range(5)]
    assert "numbered from 1" in facts["../../evil/run"]["notes"][0]
    assert [(row.step, row.attempt) for row in rows(found["again"])] == [
        (0, 1), (10, 1), (20, 1), (30, 1), (10, 2), (20, 2),
    ]  # fmt: skip

    proxy.seen.clear()
    again = imported(environment, address, "--to", tmp_path / "runs")
    assert "4 unchanged" in again.stdout
    assert proxy.count("metrics/get-history") == 0
    client.log_batch(ids["long"], metrics=[Metric("loss", 0.5, START + 10 * LONG, LONG)])
    proxy.seen.clear()
    more = imported(environment, address, "--to", tmp_path / "runs", "--json")
    facts = {one["name"]: one for one in json.loads(more.stdout)["runs"]}
    assert (facts["long"]["result"], facts["long"]["rows"], facts["mixed"]["result"]) == (
        "continued",
        LONG + 1,
        "unchanged",
    )
    assert facts["long"]["added"] == 1
    assert proxy.count("metrics/get-history") == 2  # the pages of the one metric of the one run that changed
    assert points(found["long"], "loss")[-2:] == [
        (LONG - 1, (START + 10 * (LONG - 1)) / 1000, repr((LONG - 1) / 7)), (LONG, (START + 10 * LONG) / 1000, "0.5"),
    ]  # fmt: skip
    for path in (tmp_path / "runs").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    proxy.close()


def test_a_project_that_is_killed_goes_on_without_doubles(store, server, environment, tmp_path):
    proxy = Proxy(server)
    proxy.hold = ("metrics/get-history", 4)  # in the middle of the second run
    address = f"mlflow:{proxy.url}#team/grpo"
    child = subprocess.Popen(
        command(address, "--to", tmp_path / "runs"),
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert proxy.holding.wait(150)
    os.kill(child.pid, signal.SIGKILL)
    child.wait(30)
    proxy.hold = None
    proxy.released.set()
    started = folders(tmp_path / "runs")
    assert set(started) == {"long", "mixed"}
    assert rows(started["mixed"]) == []
    proxy.seen.clear()
    done = imported(environment, address, "--to", tmp_path / "runs", "--json")
    assert done.returncode == 0, done.stderr
    results = {one["name"]: (one["result"], one["rows"]) for one in json.loads(done.stdout)["runs"]}
    assert results["long"][0] == "unchanged"
    assert results["mixed"] == ("continued", 20)
    assert proxy.count(f"get-history.*{store[2]['long']}") == 0
    assert len(list((tmp_path / "runs").glob("*/run.json"))) == 4
    assert len(points(started["mixed"], "reward")) == 20
    proxy.close()


def test_one_run_by_name_or_id_and_what_is_not_there(store, tmp_path, capsys, monkeypatch):
    uri, _, ids = store
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert main(["import", "mlflow:team/grpo/mixed", "--to", str(tmp_path / "a"), "--name", "mine"]) == 0
    assert main(["import", f"mlflow:{ids['mixed']}", "--to", str(tmp_path / "b")]) == 0
    assert open_run(tmp_path / "a").info.name == "mine"
    assert [row.numbers for row in rows(tmp_path / "a")][10:] == [row.numbers for row in rows(tmp_path / "b")][10:]
    assert main(["import", "mlflow:team/grpo/../../evil/run", "--to", str(tmp_path / "c")]) == 0
    capsys.readouterr()
    assert main(["import", "mlflow:team/grpo/again", "--to", str(tmp_path / "a")]) == 64
    assert "holds another run, imported from mlflow:team/grpo/mixed" in capsys.readouterr().err
    assert main(["import", "mlflow:team/none", "--to", str(tmp_path / "d")]) == 64
    assert "there is no such experiment or run (experiments: Default, team/grpo)" in capsys.readouterr().err
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/none.db")  # as MLflow's default in most folders
    assert main(["check", "mlflow:team/grpo/mixed"]) == 64
    assert "none.db'. Write mlflow:EXPERIMENT" in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert main(["check", "mlflow:team/grpo/mixed", "--json"]) in (0, 1, 2, 3)
    assert json.loads(capsys.readouterr().out)["rows"] == 20


def test_a_refused_login_says_what_to_set(server, environment, tmp_path):
    proxy = Proxy(server)
    proxy.faults["."] = [401] * 20
    done = imported(environment, f"mlflow:{proxy.url}#team/grpo", "--to", tmp_path / "runs")
    proxy.close()
    assert done.returncode == 64
    assert "MLFLOW_TRACKING_USERNAME" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_run_that_was_resumed_here_is_not_overwritten(store, tmp_path, capsys):
    uri, client, _ = store
    experiment = client.get_experiment_by_name("team/grpo").experiment_id
    run = client.create_run(experiment, run_name="resumed").info.run_id
    client.log_metric(run, "loss", 1.0, step=1)
    address = f"mlflow:{uri}#{run}"
    assert main(["import", address, "--to", str(tmp_path / "run")]) == 0
    with rlvitals.start(tmp_path / "run", resume=True, display="none") as recorded:
        recorded.log({"loss": 0.5}, step=2)
    client.log_metric(run, "loss", 0.7, step=2)
    assert main(["import", address, "--to", str(tmp_path / "run")]) == 64
    assert "was changed after it was imported" in capsys.readouterr().err
    assert [row.numbers["loss"] for row in rows(tmp_path / "run")] == [1.0, 0.5]
    client.delete_run(run)


def test_what_rlvitals_forwarded_comes_back(folder, tmp_path, capsys):
    root = tmp_path / "run"
    with rlvitals.start(root, name="kto 7b", config={"lr": 1e-5, "api_key": SECRET}, display="none") as run:
        for step in range(1, 8):
            run.log({"loss": math.nan if step == 3 else 1 / step, "rewards/margins": step / 10}, step=step)
        run.log_eval({"loss": 0.25, "accuracy": 0.5}, step=5)
    with rlvitals.start(root, resume=4, display="none") as run:
        for step in range(5, 10):
            run.log({"loss": -1 / step, "rewards/margins": step / 20}, step=step)
    settings = tmp_path / "settings.yaml"
    uri = f"sqlite:///{folder}/forwarded.db"
    settings.write_text(f"tracker_kwargs:\n  mlflow:\n    tracking_uri: {uri}\n    experiment_name: back\n")
    assert main(["sync", str(root), "--to", "mlflow", "--config", str(settings)]) == 0
    assert main(["import", f"mlflow:{uri}#back", "--to", str(tmp_path / "back")]) == 0
    back = folders(tmp_path / "back")
    assert list(back) == ["kto 7b"]  # two MLflow runs are one run
    ours, theirs = rows(root), rows(back["kto 7b"])
    assert [(row.step, row.attempt, repr(row.numbers)) for row in theirs] == [
        (row.step, row.attempt, repr(row.numbers)) for row in ours
    ]
    assert [row.timestamp for row in theirs] == pytest.approx([row.timestamp for row in ours], abs=0.001)
    assert [(row.step, row.numbers) for row in rows(back["kto 7b"], "eval")] == [
        (row.step, {held_out_name(name): value for name, value in row.numbers.items()}) for row in rows(root, "eval")
    ]
    one, other = open_run(root), open_run(back["kto 7b"])
    assert one.series("loss").values.tolist()[4:] == other.series("loss").values.tolist()[4:]
    assert [(each.number, each.from_step) for each in other.attempts] == [(1, None), (2, 4)]
    assert other.config["lr"] == 1e-5


def test_a_tag_that_was_added_is_a_change(store):
    _, client, ids = store
    before = _mark(client.get_run(ids["again"]))
    assert _mark(client.get_run(ids["again"])) == before
    client.log_batch(ids["again"], tags=[RunTag("reviewed", "true")])
    assert _mark(client.get_run(ids["again"])) != before
