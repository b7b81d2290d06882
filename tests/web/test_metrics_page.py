"""`/metrics` of a real server: read by the official parser and a real Prometheus, access, and what is left out."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import serving

import rlvitals
from conftest import REPO, free_port, until
from rlvitals.records import STATUSES
from rlvitals.render.prometheus import CONTENT_TYPE, FOLDER_FAMILIES, RUN_FAMILIES
from rlvitals.store.layout import RunDir
from rlvitals.web import metrics as page

QUIET = {"display": "none", "hardware": False, "algorithm": "grpo", "framework": "trl"}
FLEETS = REPO / "docs" / "fleets"
PROMTOOL = shutil.which("promtool")
PROMETHEUS = shutil.which("prometheus")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (Debian: apt install prometheus)"
)


def record(folder, steps=range(12), finish=True, **more):
    run = rlvitals.start(folder, **{**QUIET, "monitor": False, **more})
    for step in steps:
        run.log({"reward": step / 10, "kl": 0.01, "loss": 0.1, "perf.tokens_per_s": 900.0 + step}, step=step)
    if finish:
        run.finish()
    return run


def samples_of(text):
    """{(name, labels): value} from the official client's parser; a duplicate series is an error."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} comes twice"
            found[key] = sample.value
    return found


def value(samples, name, **labels):
    return samples[name, frozenset(labels.items())]


def test_the_official_parser_reads_what_was_recorded(tmp_path):
    folder = tmp_path / "out"
    live = record(folder / "team" / "live", finish=False, total_steps=50)
    record(folder / "done")
    with serving(folder) as client:
        answer = client.get("/metrics")
        assert (answer.status, answer.headers["content-type"]) == (200, CONTENT_TYPE)
        samples = samples_of(answer.body.decode())
        own = {"project": "out", "run": "team/live"}
        assert value(samples, "rlvitals_run_step", **own) == 11
        assert value(samples, "rlvitals_run_planned_steps", **own) == 50
        assert value(samples, "rlvitals_run_rows_total", **own) == 12
        assert value(samples, "rlvitals_run_verdict", **own) == -1  # it was not monitored
        assert value(samples, "rlvitals_run_tokens_per_second", **own) == 911
        assert value(samples, "rlvitals_run_vital_sign", sign="reward.total.mean", **own) == 1.1
        assert time.time() - 60 < value(samples, "rlvitals_run_last_row_timestamp_seconds", **own) <= time.time()
        by_status = {status: value(samples, "rlvitals_run_status", status=status, **own) for status in STATUSES}
        assert by_status == {"running": 1, "finished": 0, "failed": 0, "interrupted": 0}
        assert value(samples, "rlvitals_run_status", project="out", run="done", status="finished") == 1
        assert value(samples, "rlvitals_runs", project="out") == 2
        time.sleep(page.GOOD_SECONDS)
        live.log({"reward": 5.0}, step=12)
        samples = samples_of(client.get("/metrics").body.decode())
        assert value(samples, "rlvitals_run_rows_total", **own) == 13
        assert value(samples, "rlvitals_run_vital_sign", sign="reward.total.mean", **own) == 5.0
        live.finish()
        time.sleep(page.GOOD_SECONDS)
        samples = samples_of(client.get("/metrics").body.decode())
        assert value(samples, "rlvitals_run_status", status="finished", **own) == 1
        assert client.get("/metrics", method="HEAD").status == 200


def test_a_server_with_a_token_asks_scrapers_for_it(tmp_path):
    record(tmp_path / "out" / "run")
    token = "0123456789abcdef-scrape"
    with serving(tmp_path / "out", token=token) as client:
        assert client.get("/metrics").status == 401
        assert client.get("/metrics", authorization="Bearer wrong-wrong-wrong").status == 401
        assert client.get("/metrics", authorization=f"Bearer {token}").status == 200
        assert client.get("/metrics", host="evil.example", authorization=f"Bearer {token}").status == 403
        refused = client.get("/metrics", origin="http://evil.example", authorization=f"Bearer {token}")
        assert refused.status == 403
        assert b"rlvitals_run" not in refused.body


def test_what_is_not_shown_is_counted(tmp_path):
    for number in range(5):
        record(tmp_path / "out" / f"run-{number}")
    old = RunDir(tmp_path / "out" / "run-0")
    for path in (old.heartbeat, old.train_log, old.info):
        os.utime(path, (time.time() - 25 * 3600,) * 2)
    (tmp_path / "out" / "run-1" / "run.json").write_text("{damaged")
    with serving(tmp_path / "out") as client:
        samples = samples_of(client.get("/metrics").body.decode())
        shown = {dict(labels)["run"] for name, labels in samples if name == "rlvitals_run_step"}
        assert shown == {"run-2", "run-3", "run-4"}
        left_out = {
            reason: value(samples, "rlvitals_runs_left_out", project="out", reason=reason) for reason in page.LEFT_OUT
        }
        assert left_out == {"limit": 0, "age": 1, "unreadable": 1}
        assert 0 < value(samples, "rlvitals_exposition_duration_seconds", project="out") < 60
        samples = samples_of(client.get("/metrics?runs=2&hours=100").body.decode())
        assert value(samples, "rlvitals_runs_left_out", project="out", reason="limit") == 3
        assert value(samples, "rlvitals_runs", project="out") == 5
        for wrong in ("runs=0", "runs=x", f"runs={page.MOST_RUNS + 1}", "hours=1.5", "hours=-1"):
            assert client.get(f"/metrics?{wrong}").status == 400


def test_hostile_names_stay_inside_their_quotes(tmp_path):
    name = 'a"} 1\nrlvitals_run_verdict{run="b\\'
    record(tmp_path / "out" / 'odd" run\n\\x', name=name)
    with serving(tmp_path / "out") as client:
        text = client.get("/metrics").body.decode()
    samples = samples_of(text)
    verdicts = [dict(labels) for metric, labels in samples if metric == "rlvitals_run_verdict"]
    assert verdicts == [{"project": "out", "run": 'odd" run\n\\x'}]
    [info] = [dict(labels) for metric, labels in samples if metric == "rlvitals_run_info"]
    assert info["name"] == name


def test_the_number_of_series_does_not_grow_with_the_names_a_run_logs(tmp_path):
    run = record(tmp_path / "out" / "run", finish=False)
    with serving(tmp_path / "out") as client:
        before = len(samples_of(client.get("/metrics").body.decode()))
        for step in range(20):
            run.log({f"my/metric_{step}_{number}": 1.0 for number in range(200)}, step=100 + step)
        time.sleep(page.GOOD_SECONDS)
        after = samples_of(client.get("/metrics").body.decode())
    run.finish()
    assert len(after) == before


def test_every_name_is_in_the_table_of_the_page():
    documented = re.findall(
        r"^\| `(rlvitals_\w+)` \| (\w+) \|", (REPO / "docs" / "fleets.md").read_text(), re.MULTILINE
    )
    known = [(family.name, family.type) for family in RUN_FAMILIES]
    assert documented == [*known, *((name, kind) for name, (kind, _) in FOLDER_FAMILIES.items())]


@needs_promtool
def test_promtool_has_nothing_to_say(tmp_path):
    record(tmp_path / "out" / "run", monitor=True)
    with serving(tmp_path / "out") as client:
        text = client.get("/metrics").body
    checked = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


@needs_promtool
def test_the_alert_rules_pass_their_tests():
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        checked = subprocess.run([PROMTOOL, *command], cwd=FLEETS, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    rules = (FLEETS / "alerts.yml").read_text()
    tested = set(re.findall(r"alertname: (\w+)\n\s+exp_alerts", (FLEETS / "alerts_test.yml").read_text()))
    assert set(re.findall(r"alert: (\w+)", rules)) == tested  # a test makes each one fire


@pytest.mark.slow
@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (Debian: apt install prometheus)")
def test_a_real_prometheus_scrapes_it_with_the_token(tmp_path):
    """It finds every series, loads the rules, and answers every query of the Grafana board."""
    folder = tmp_path / "out"
    live = record(folder / "live", finish=False, total_steps=50)
    record(folder / "done")
    token = "0123456789abcdef-scrape"
    (tmp_path / "token").write_text(token)
    shutil.copy(FLEETS / "alerts.yml", tmp_path)
    with serving(folder, token=token) as client:
        (tmp_path / "prometheus.yml").write_text(
            f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [alerts.yml]
scrape_configs:
  - job_name: rlvitals
    authorization: {{credentials_file: {tmp_path / "token"}}}
    static_configs: [{{targets: ["localhost:{client.port}"]}}]
"""
        )
        port = free_port()
        with prometheus(tmp_path, port) as ask:
            found = until(lambda: ask("rlvitals_run_rows_total"), 60)
            assert {one["metric"]["run"]: one["value"][1] for one in found} == {"live": "12", "done": "12"}
            assert ask('up{job="rlvitals"}')[0]["value"][1] == "1"
            assert len(ask("rlvitals_run_vital_sign")) >= 6
            board = json.loads((FLEETS / "grafana.json").read_text())
            queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
            assert len(queries) >= 15
            for query in queries:  # a rate needs two scrapes
                assert until(lambda query=query: ask(with_variables(query)), 20), query
            names = {one["metric"]["__name__"] for one in ask('{__name__=~"rlvitals_.*"}')}
            known = {family.name for family in RUN_FAMILIES} | FOLDER_FAMILIES.keys()
            assert names == known
    live.finish()


def with_variables(query):
    """The query with the board's variables filled in, as Grafana does."""
    return query.replace("$project", ".*").replace("$run", ".*").replace("$sign", "reward.total.mean")


class prometheus:  # noqa: N801 - used as a context
    """The real server with a configuration in a folder."""

    def __init__(self, folder, port):
        self._port = port
        self._command = [
            PROMETHEUS, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        ]  # fmt: skip

    def __enter__(self):
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self.ask

    def ask(self, query):
        url = f"http://127.0.0.1:{self._port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # not ready yet
                return []
            raise AssertionError(f"{query}: {error.read().decode()}") from error
        except OSError:
            return []

    def __exit__(self, *error):
        self._process.terminate()
        self._process.wait(30)
