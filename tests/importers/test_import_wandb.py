"""Runs that the real wandb client logged to a server, imported with the public API of the same client."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys

import pytest
from brought import command, folders, imported, rows
from wandb_server import KEY, WandbServer

import rlvitals
from rlvitals.store.distributions import read_distributions
from rlvitals.store.layout import RunDir
from rlvitals.store.marks import FolderMarks
from rlvitals.store.rollouts import read_groups, rollout_files
from rlvitals.views.run import open_run

pytest.importorskip("wandb")
pytest.importorskip("pyarrow")

pytestmark = pytest.mark.slow

LOGGING = """
import math, wandb
settings = wandb.Settings(x_disable_stats=True, console="off", x_disable_meta=True)

def begin(**given):
    return wandb.init(entity="team", project="grpo", settings=settings, **given)

run = begin(id="small", name="kto 7b", tags=["rl", "try"], notes="the first one",
            config={"lr": 1e-5, "model": {"layers": 2}, "hf_token": "hf_abcdefghijklmnopqrstuvwxyz012345"})
for i in range(20):
    loss = math.nan if i == 3 else math.inf if i == 4 else -math.inf if i == 5 else 1 / (1 + i)
    run.log({"loss": loss, "train/global_step": 10 * i, "nested": {"reward": i / 8}, "sample": f"text {i}",
             "lengths": wandb.Histogram([1.0, 2.0, 3.0 + i])})
    if i % 5 == 0:
        run.log({"eval/accuracy": i / 20, "epoch": i / 5})
run.finish()
run = begin(id="hostile", name="../../../evil")
run.log({"loss": 0.5}, step=7)
run.finish()
run = begin(id="long", name="long")
for i in range(2500):
    run.log({"loss": i / 7, "kl": -i / 3})
run.finish()
"""


@pytest.fixture(scope="module")
def server():
    served = WandbServer()
    yield served
    served.close()


@pytest.fixture(scope="module")
def environment(server, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    return {
        **kept, "HOME": str(home), "WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY, "WANDB_SILENT": "true",
        "WANDB_DIR": str(home), "WANDB_CACHE_DIR": str(home / "cache"), "WANDB_ERROR_REPORTING": "false",
    }  # fmt: skip


@pytest.fixture(scope="module")
def logged(server, environment):
    done = subprocess.run(
        [sys.executable, "-c", LOGGING], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {key[2]: len(run["lines"]) for key, run in server.runs.items()} == {"small": 24, "hostile": 1, "long": 2500}
    return server


def test_a_project_comes_with_every_value_and_goes_on(logged, environment, tmp_path):
    logged.runs["team", "grpo", "long"]["exported"] = 1500  # as W&B does: older steps in Parquet, newer ones live
    done = imported(environment, "wandb:team/grpo", "--to", tmp_path / "runs", "--json")
    assert done.returncode == 0, done.stderr
    facts = {one["id"]: one for one in json.loads(done.stdout)["runs"]}
    assert {name: (one["result"], one["rows"], one["eval_rows"]) for name, one in facts.items()} == {
        "small": ("new", 20, 4), "hostile": ("new", 1, 0), "long": ("new", 2500, 0),
    }  # fmt: skip
    found = folders(tmp_path / "runs")
    assert sorted(found) == ["../../../evil", "kto 7b", "long"]
    assert sorted(os.listdir(tmp_path)) == ["runs"]  # the hostile name created nothing outside
    assert [path.name for path in (tmp_path / "runs").iterdir() if path.name.startswith("evil")] == ["evil-hostile"]

    trained = rows(found["kto 7b"])
    assert [row.step for row in trained] == [10 * i for i in range(20)]
    losses = [math.nan if i == 3 else math.inf if i == 4 else -math.inf if i == 5 else 1 / (1 + i) for i in range(20)]
    assert [repr(row.numbers["loss"]) for row in trained] == [repr(loss) for loss in losses]
    assert [row.numbers["nested/reward"] for row in trained] == [i / 8 for i in range(20)]
    assert [row.texts for row in trained] == [{"sample": f"text {i}"} for i in range(20)]
    written = [line for line in logged.runs["team", "grpo", "small"]["lines"] if "loss" in line]
    assert [row.timestamp for row in trained] == [line["_timestamp"] for line in written]
    assert [int(row.numbers["wandb/step"]) for row in trained[1:]] == [line["_step"] for line in written[1:]]
    evaluated = rows(found["kto 7b"], "eval")
    assert [(row.numbers["eval/accuracy"], row.numbers["epoch"]) for row in evaluated] == [
        (i / 20, i / 5) for i in (0, 5, 10, 15)
    ]
    view = open_run(found["kto 7b"])
    assert view.info.name == "kto 7b"
    assert view.info.status == "finished"
    assert view.config["lr"] == 1e-5
    assert view.config["model"] == {"layers": 2}
    assert view.config["hf_token"] == "***"
    assert view.config["rlvitals"]["tracker"]["note"] == "the first one"
    assert view.config["rlvitals"]["tracker"]["summary"]["nested"] == {"reward": 19 / 8}
    marks = FolderMarks(tmp_path / "runs").read()["runs"]["kto_7b-small"]
    assert marks == {"tags": ["rl", "try"], "note": "the first one"}
    assert len(list(read_distributions(RunDir(found["kto 7b"]).log("distributions")))) == 20

    long = rows(found["long"])
    assert [(row.step, row.numbers) for row in long] == [(i, {"loss": i / 7, "kl": -i / 3}) for i in range(2500)]

    logged.asked.clear()
    again = imported(environment, "wandb:team/grpo", "--to", tmp_path / "runs")
    assert again.returncode == 0, again.stderr
    assert "3 unchanged; 2,525 rows, 0 new" in again.stdout
    assert not {"HistoryPage", "RunParquetHistory"} & set(logged.asked)  # nothing was fetched but the list

    run = logged.runs["team", "grpo", "long"]
    run["lines"] += [{"_step": i, "_timestamp": 1.8e9 + i, "loss": i / 7, "kl": -i / 3} for i in range(2500, 2503)]
    run["state"], run["heartbeatAt"] = "running", "2026-01-02T00:00:00Z"
    logged.variables.clear()
    more = imported(environment, "wandb:team/grpo", "--to", tmp_path / "runs", "--json")
    facts = {one["id"]: one for one in json.loads(more.stdout)["runs"]}
    assert (facts["long"]["result"], facts["long"]["rows"], facts["long"]["added"]) == ("continued", 2503, 3)
    assert facts["small"]["result"] == "unchanged"
    assert [asked["minStep"] for asked in logged.variables if "minStep" in asked] == [2500]
    assert [(row.step, row.numbers) for row in rows(found["long"])] == [
        (i, {"loss": i / 7, "kl": -i / 3}) for i in range(2503)
    ]
    secrets = (KEY, "hf_abcdefghijklmnopqrstuvwxyz012345")
    for path in [*(tmp_path / "runs").rglob("*")]:
        assert not path.is_file() or not any(secret.encode() in path.read_bytes() for secret in secrets), path
    assert not any(secret in done.stdout + done.stderr + more.stdout + more.stderr for secret in secrets)
    del run["lines"][2500:]
    run["state"] = "finished"


def test_an_import_that_is_killed_goes_on_without_doubles(logged, environment, tmp_path):
    logged.runs["team", "grpo", "long"]["exported"] = 0
    logged.hold_at = 2400
    logged.holding.clear()
    logged.released.clear()
    words = command("wandb:team/grpo/long", "--to", tmp_path / "run")
    child = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert logged.holding.wait(120)
    os.kill(child.pid, signal.SIGKILL)
    child.wait(30)
    logged.hold_at = None
    logged.released.set()
    assert 0 < len(rows(tmp_path / "run")) < 2500
    with open(RunDir(tmp_path / "run").train_log, "ab") as file:  # rows that a kill may leave of an uncommitted page
        file.write(b'{"step":2000,"attempt":1,"loss":1}\n{"step":20')
    logged.variables.clear()
    logged.faults += [429, 503, 502]  # the client waits and retries
    done = imported(environment, "wandb:team/grpo/long", "--to", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    assert min(asked["minStep"] for asked in logged.variables if "minStep" in asked) == 2000
    assert [(row.step, row.numbers) for row in rows(tmp_path / "run")] == [
        (i, {"loss": i / 7, "kl": -i / 3}) for i in range(2500)
    ]
    assert open_run(tmp_path / "run").info.status == "finished"


def test_a_missing_login_and_a_refused_one_say_how_to_log_in(logged, environment, tmp_path):
    without = {name: value for name, value in environment.items() if name != "WANDB_API_KEY"}
    done = imported(without, "wandb:team/grpo/small", "--to", tmp_path / "run")
    assert done.returncode == 64
    assert "there is no login for W&B. Log in with 'wandb login', or set WANDB_API_KEY" in done.stderr
    logged.refuses_login = True
    try:
        done = imported(environment, "wandb:team/grpo/small", "--to", tmp_path / "run")
    finally:
        logged.refuses_login = False
    assert done.returncode == 64
    assert "wandb login" in done.stderr
    assert KEY not in done.stderr
    assert not (tmp_path / "run").exists()


def test_tables_of_completions_are_rollouts(server, environment, tmp_path):
    """As TRL logs them: a table for each logging step and a row for each completion. The step is text."""
    columns = ["step", "prompt", "completion", "accuracy_reward", "advantage"]
    run = server.run("team", "tables", "trl1")
    run["state"] = "finished"
    for step in (10, 20):
        data = [
            [str(step), prompt, f"answer {n} at {step}", n / 4, n - 1.5]
            for prompt in ("2+2?", "3+3?")
            for n in range(4)
        ]
        path = f"media/table/completions_{step}.table.json"
        server.files[path] = json.dumps({"columns": columns, "data": data}).encode()
        table = {"_type": "table-file", "path": path, "size": len(server.files[path]), "ncols": 5, "nrows": 8}
        run["lines"].append({"_step": step, "_timestamp": 1.76e9 + step, "reward": 0.5, "completions": table})
    hostile = {"_type": "table-file", "path": "../../../../etc/passwd", "size": 9}
    run["lines"].append({"_step": 30, "_timestamp": 1.77e9, "reward": 0.5, "completions": hostile})
    done = imported(environment, "wandb:team/tables/trl1", "--to", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    [facts] = json.loads(done.stdout)["runs"]
    assert (facts["rows"], facts["notes"]) == (3, ["1 tables of completions could not be read"])
    groups = [group for file in rollout_files(RunDir(tmp_path / "run")) for group in read_groups(file.path)]
    assert [(group.step, group.prompt, len(group.rollouts)) for group in groups] == [
        (10, "2+2?", 4), (10, "3+3?", 4), (20, "2+2?", 4), (20, "3+3?", 4),
    ]  # fmt: skip
    assert [rollout.reward for rollout in groups[3].rollouts] == [0.0, 0.25, 0.5, 0.75]
    assert groups[3].rollouts[2].turns[0].text == "answer 2 at 20"


def test_check_takes_a_run_by_its_address(logged, environment):
    words = [sys.executable, "-m", "rlvitals.cli.main", "check", "wandb:team/grpo/long", "--json"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode in (0, 1, 2, 3), done.stderr
    assert json.loads(done.stdout)["rows"] == 2500


def test_what_rlvitals_forwarded_online_comes_back(server, environment, tmp_path):
    root = tmp_path / "run"
    with rlvitals.start(root, name="kto 7b", config={"lr": 1e-5}, display="none", hardware=False) as run:
        for step in range(1, 8):
            row = {"loss": math.nan if step == 3 else 1 / step, "train/global_step": step * 8, "said": f"{step}!"}
            run.log(row, step=step)
        run.log_eval({"loss": 0.25, "accuracy": 0.5}, step=5)
    with rlvitals.start(root, resume=4, display="none", hardware=False) as run:
        for step in range(5, 10):
            run.log({"loss": -1 / step}, step=step)
    settings = tmp_path / "settings.yaml"
    settings.write_text("tracker_kwargs:\n  wandb:\n    mode: online\n    entity: team\n    project: back\n")
    words = [sys.executable, "-m", "rlvitals.cli.main", "sync", str(root), "--to", "wandb", "--config", str(settings)]
    sent = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert sent.returncode == 0, sent.stdout + sent.stderr
    done = imported(environment, "wandb:team/back", "--to", tmp_path / "back", "--json")
    assert done.returncode == 0, done.stderr
    back = folders(tmp_path / "back")
    assert list(back) == ["kto 7b"]  # two W&B runs are one run
    assert [(row.step, row.attempt, repr(sorted(row.numbers.items())), row.texts) for row in rows(back["kto 7b"])] == [
        (row.step, row.attempt, repr(sorted(row.numbers.items())), row.texts) for row in rows(root)
    ]
    assert [row.timestamp for row in rows(back["kto 7b"])] == [row.timestamp for row in rows(root)]
    assert [(row.step, row.numbers) for row in rows(back["kto 7b"], "eval")] == [
        (5, {"eval/loss": 0.25, "eval/accuracy": 0.5})
    ]
    assert [(each.number, each.from_step) for each in open_run(back["kto 7b"]).attempts] == [(1, None), (2, 4)]
