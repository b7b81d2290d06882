"""Runs of Trackio, logged with the real package and imported from its storage and from a real Trackio server."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from brought import Proxy, command, folders, imported, rows

import rlvitals
from rlvitals.cli.main import main
from rlvitals.importers.trackers import base
from rlvitals.splits import held_out_name
from rlvitals.store.layout import RunDir
from rlvitals.store.rollouts import read_groups, rollout_files
from rlvitals.views.run import open_run

pytest.importorskip("trackio", reason="trackio is not installed: pip install 'rlvitals[trackio]'")

pytestmark = pytest.mark.slow

LONG = 12_000
"""The rows of a run, more than one answer of Trackio may have."""
SECRET = "hf_abcdefghijklmnopqrstuvwxyz012345"

LOGGING = """
import math, pandas, sys, trackio
run = trackio.init(project="kto", name="../evil run",
                   config={"lr": 1e-5, "model": {"layers": 2}, "hf_token": "SECRET"},
                   auto_log_gpu=False, auto_log_cpu=False, embed=False)
for i in range(12):
    loss = {3: math.nan, 4: math.inf, 5: -math.inf}.get(i, 1 / (1 + i))
    row = {"loss": loss, "train/global_step": 10 * i, "nested": {"reward": i / 8}, "sample": f"text {i}", "step": i}
    if i == 11:  # as TRL logs it
        table = [{"step": "110", "prompt": "2+2?", "completion": f"answer {n}", "reward": n / 4} for n in range(4)]
        row["completions"] = trackio.Table(dataframe=pandas.DataFrame(table))
    trackio.log(row)
    if i % 5 == 0:
        trackio.log({"eval/accuracy": i / 20})
trackio.log_system({"gpu/0/utilization": 55.5})
trackio.finish()
from trackio.sqlite_storage import SQLiteStorage
n = LONG
for begin in range(0, n, 4000):
    some = range(begin, begin + 4000)
    SQLiteStorage.bulk_log(project="kto", run="long", run_id="long-1",
        metrics_list=[{"loss": i / 7, "kl": -i / 3} for i in some], steps=list(some),
        timestamps=[f"2026-01-01T00:{i // 60 % 60:02}:{i % 60:02}+00:00" for i in some],
        log_ids=[f"l{i}" for i in some])
"""

SERVER = """
import sys, trackio
url = trackio.show(open_browser=False, block_thread=False)
sys.stdout.write(f"url {url[1] if isinstance(url, tuple) else url}\\n")
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    home = tmp_path_factory.mktemp("trackio")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRACKIO_", "HF_"))}
    return {**kept, "HOME": str(home), "TRACKIO_DIR": str(home / "trackio"), "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def logged(environment):
    script = LOGGING.replace("SECRET", SECRET).replace("LONG", str(LONG))
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return environment


def check_values(found: dict[str, Path]) -> None:
    trained = rows(found["../evil run"])
    losses = [{3: math.nan, 4: math.inf, 5: -math.inf}.get(i, 1 / (1 + i)) for i in range(12)]
    assert [repr(row.numbers["loss"]) for row in trained] == [repr(loss) for loss in losses]
    assert [row.numbers["nested/reward"] for row in trained] == [i / 8 for i in range(12)]
    assert [row.texts["sample"] for row in trained] == [f"text {i}" for i in range(12)]
    assert [row.numbers["train/global_step"] for row in trained] == [10 * i for i in range(12)]
    groups = [group for file in rollout_files(RunDir(found["../evil run"])) for group in read_groups(file.path)]
    assert [(group.step, group.prompt) for group in groups] == [(110, "2+2?")]
    assert [(rollout.reward, rollout.turns[0].text) for rollout in groups[0].rollouts] == [
        (n / 4, f"answer {n}") for n in range(4)
    ]
    assert [row.numbers["eval/accuracy"] for row in rows(found["../evil run"], "eval")] == [0.0, 0.25, 0.5]
    assert [row.numbers for row in rows(found["../evil run"], "system")] == [{"gpu/0/utilization": 55.5}]
    assert [(row.step, row.numbers) for row in rows(found["long"])] == [
        (i, {"loss": i / 7, "kl": -i / 3}) for i in range(LONG)
    ]
    view = open_run(found["../evil run"])
    assert (view.config["lr"], view.config["model"], view.config["hf_token"]) == (1e-5, {"layers": 2}, "***")


def test_a_project_of_this_machine_comes_whole_and_goes_on(logged, tmp_path):
    done = imported(logged, "trackio:kto", "--to", tmp_path / "runs", "--json")
    assert done.returncode == 0, done.stderr
    facts = {one["name"]: one for one in json.loads(done.stdout)["runs"]}
    assert {name: (one["rows"], one["eval_rows"], one["samples"]) for name, one in facts.items()} == {
        "../evil run": (12, 3, 1), "long": (LONG, 0, 0),
    }  # fmt: skip
    assert os.listdir(tmp_path) == ["runs"]
    found = folders(tmp_path / "runs")
    check_values(found)
    more = f"""
from trackio.sqlite_storage import SQLiteStorage
SQLiteStorage.bulk_log(project="kto", run="long", run_id="long-1", metrics_list=[{{"loss": 0.5}}], steps=[{LONG}],
    timestamps=["2026-01-02T00:00:00+00:00"], log_ids=["more"])
"""
    subprocess.run([sys.executable, "-c", more], env=logged, check=True, timeout=100)
    again = imported(logged, "trackio:kto", "--to", tmp_path / "runs", "--json")
    facts = {one["name"]: one for one in json.loads(again.stdout)["runs"]}
    assert (facts["long"]["result"], facts["long"]["added"], facts["long"]["rows"]) == ("continued", 1, LONG + 1)
    assert facts["../evil run"]["result"] == "unchanged"
    steps = [row.step for row in rows(found["long"])]
    assert steps == list(range(LONG + 1))
    with contextlib.closing(sqlite3.connect(f"{logged['TRACKIO_DIR']}/kto.db")) as database, database:
        database.execute("DELETE FROM metrics WHERE log_id = 'more'")
    for path in (tmp_path / "runs").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    absent = imported(logged, "trackio:none", "--to", tmp_path / "none")
    assert absent.returncode == 64
    assert "there is no Trackio project 'none' on this machine (projects: kto)" in absent.stderr


@pytest.fixture
def server(logged):
    child = subprocess.Popen(
        [sys.executable, "-c", SERVER], env=logged, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        yield next(line.split()[1] for line in child.stdout if line.startswith("url "))
    finally:
        child.kill()
        child.communicate()


def test_a_server_that_fails_and_an_import_that_is_killed(logged, server, tmp_path):
    proxy = Proxy(server)
    page = "query_project.*FROM metrics WHERE run_id = 'long-1'"
    proxy.hold = (page, 2)
    words = command(f"trackio:{proxy.url}#kto", "--to", tmp_path / "runs")
    child = subprocess.Popen(words, env=logged, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert proxy.holding.wait(150)
    os.kill(child.pid, signal.SIGKILL)
    child.wait(30)
    proxy.hold = None
    proxy.released.set()
    held = rows(folders(tmp_path / "runs")["long"])
    assert len(held) == base.PAGE_ROWS
    proxy.faults[page] = [503]  # Trackio's client does not retry; rlvitals does
    proxy.seen.clear()
    done = imported(logged, *words[4:], "--json")
    assert done.returncode == 0, done.stderr
    assert proxy.count(page) == 1 + 2
    check_values(folders(tmp_path / "runs"))
    proxy.close()


def test_what_rlvitals_forwarded_comes_back(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    root = tmp_path / "run"
    with rlvitals.start(root, name="kto 7b", config={"lr": 1e-5, "api_key": SECRET}, display="none") as run:
        for step in range(1, 8):
            run.log(
                {"loss": math.nan if step == 3 else 1 / step, "rewards/margins": step / 10, "said": f"{step}!"},
                step=step,
            )
        run.log({"pass@8": 0.5, "time": 3.0}, step=7)
        run.log_eval({"loss": 0.25, "accuracy": 0.5}, step=5)
    with rlvitals.start(root, resume=4, display="none") as run:
        for step in range(5, 10):
            run.log({"loss": -1 / step, "rewards/margins": step / 20}, step=step)
    settings = tmp_path / "settings.yaml"
    settings.write_text("tracker_kwargs:\n  trackio:\n    project: back\n")
    assert main(["sync", str(root), "--to", "trackio", "--config", str(settings)]) == 0
    assert main(["import", "trackio:back", "--to", str(tmp_path / "back")]) == 0
    back = folders(tmp_path / "back")
    assert list(back) == ["kto 7b"]
    ours, theirs = rows(root), rows(back["kto 7b"])
    assert [(row.step, row.attempt, repr(row.numbers), row.texts) for row in theirs] == [
        (row.step, row.attempt, repr(row.numbers), row.texts) for row in ours
    ]
    assert [row.timestamp for row in theirs] == pytest.approx([row.timestamp for row in ours], abs=1e-5)
    assert [(row.step, row.numbers) for row in rows(back["kto 7b"], "eval")] == [
        (row.step, {held_out_name(name): value for name, value in row.numbers.items()}) for row in rows(root, "eval")
    ]
    assert [(each.number, each.from_step) for each in open_run(back["kto 7b"]).attempts] == [(1, None), (2, 4)]
    assert main(["import", "trackio:back", "--to", str(tmp_path / "back")]) == 0
    assert len(rows(back["kto 7b"])) == len(ours)
