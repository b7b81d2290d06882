"""The text file for the node exporter, written during a real run and read by the real node exporter."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import textwrap
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rows import facts, rows

import rlvitals
from conftest import free_port, until
from health_lines import finding_line
from rlvitals.errors import ConfigError, SinkError
from rlvitals.records import Finding
from rlvitals.sinks.base import RunFacts
from rlvitals.sinks.follower import follow
from rlvitals.sinks.prometheus import PrometheusSink
from rlvitals.store.cursors import read_cursor
from rlvitals.store.layout import RunDir

QUIET = {"display": "none", "hardware": False, "algorithm": "grpo", "framework": "trl"}
NODE_EXPORTER = shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")
NAN = Finding("nonfinite", "nonfinite", "critical", 9, 9, "the loss is NaN")


def record(folder, steps=range(12), **more):
    run = rlvitals.start(folder, **{**QUIET, "monitor": False, **more})
    for step in steps:
        run.log({"reward": step / 10, "kl": 0.01, "loss": 0.1}, step=step)
    return run


def values(text):
    """Values by name and labels, without the labels of the run."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            more = tuple(value for key, value in sample.labels.items() if key not in ("project", "run"))
            found[sample.name, *more] = sample.value
    return found


def run_facts_of(folder):
    return RunFacts(root=folder, id="x", name=folder.name, algorithm="grpo", config={})


def test_a_run_writes_its_file_and_its_end(tmp_path):
    """Through `start`: the follower is a separate process."""
    file = tmp_path / "textfile" / "grpo.prom"
    run = record(tmp_path / "out" / "grpo", track_with="prometheus", tracker_kwargs={"path": str(file)})
    assert until(lambda: file.exists() and values(file.read_text()).get(("rlvitals_run_step",)) == 11)
    metrics = values(file.read_text())
    assert metrics["rlvitals_run_status", "running"] == 1
    assert metrics["rlvitals_run_rows_total",] == 12
    assert metrics["rlvitals_run_vital_sign", "reward.total.mean"] == 1.1
    assert 'project="out",run="grpo"' in file.read_text()
    run.finish()
    assert values(file.read_text())["rlvitals_run_status", "finished"] == 1
    assert read_cursor(RunDir(tmp_path / "out" / "grpo"), "prometheus").state == "done"
    assert [path.name for path in file.parent.iterdir()] == ["grpo.prom"]  # no draft is left


def test_a_killed_trainer_is_reported_by_the_follower(tmp_path, child_environment):
    script = """
    import os, signal, sys
    import rlvitals
    run = rlvitals.start(sys.argv[1], algorithm="grpo", display="none", hardware=False,
                         track_with="prometheus", tracker_kwargs={"path": sys.argv[2]})
    for step in range(20):
        run.log({"reward": step / 10, "kl": 0.01}, step=step)
    print("logged", flush=True)
    sys.stdin.readline()
    """
    folder, file = tmp_path / "out" / "run", tmp_path / "textfile" / "x.prom"
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), folder, file], env=child_environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert child.stdout.readline() == "logged\n"
    assert until(lambda: file.exists() and values(file.read_text())["rlvitals_run_step",] == 19)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert until(lambda: values(file.read_text())["rlvitals_run_status", "interrupted"] == 1)
    assert until(lambda: values(file.read_text())["rlvitals_run_findings_total", "critical"] == 1), (
        "the clock's finding"
    )
    metrics = values(file.read_text())
    assert metrics["rlvitals_run_verdict",] == 2
    assert metrics["rlvitals_run_open_findings", "critical"] == 1  # the lost process is reported once, not twice


def test_a_finding_is_exported_without_a_new_row(tmp_path):
    folder, file = tmp_path / "out" / "run", tmp_path / "x.prom"
    run = record(folder)
    settings = {"prometheus": {"path": str(file)}}
    follow(RunDir(folder), settings, once=True)
    assert values(file.read_text())["rlvitals_run_verdict",] == -1
    with open(RunDir(folder).findings, "ab") as log:
        log.write(finding_line(NAN))
    follow(RunDir(folder), settings, once=True)
    metrics = values(file.read_text())
    assert (metrics["rlvitals_run_verdict",], metrics["rlvitals_run_open_findings", "critical"]) == (2, 1)
    run.finish()


def test_a_folder_gets_a_file_for_each_run(tmp_path):
    for name in ("one", "two words"):
        record(tmp_path / "out" / name).finish()
        sink = PrometheusSink(run_facts_of(tmp_path / "out" / name), {"path": str(tmp_path / "t")}, {})
        sink.commit()
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == [
        "rlvitals-out-one.prom", "rlvitals-out-two_words.prom",
    ]  # fmt: skip


def test_the_file_of_a_finished_run_can_be_removed(tmp_path):
    folder, file = tmp_path / "out" / "run", tmp_path / "x.prom"
    run = record(folder)
    settings = {"path": str(file), "remove_at_end": True}
    sink = PrometheusSink(run_facts_of(folder), settings, {})
    sink.commit()
    sink.close()  # the run continues: another attempt may start
    assert file.exists()
    run.finish()
    PrometheusSink(run_facts_of(folder), settings, {}).close()
    assert not file.exists()
    run = record(tmp_path / "out" / "failed")
    run.finish("failed")
    PrometheusSink(run_facts_of(tmp_path / "out" / "failed"), settings, {}).close()
    assert values(file.read_text())["rlvitals_run_status", "failed"] == 1


def test_what_cannot_be_written_is_reported_and_tried_again(tmp_path):
    folder = tmp_path / "out" / "run"
    record(folder).finish()
    (tmp_path / "taken").write_text("a file where a folder should be")
    settings = {"prometheus": {"path": str(tmp_path / "taken" / "x.prom")}}
    assert not follow(RunDir(folder), settings, linger=0.2)
    cursor = read_cursor(RunDir(folder), "prometheus")
    assert cursor.state == "failing"
    assert "x.prom" in cursor.error
    (tmp_path / "taken").unlink()
    assert follow(RunDir(folder), settings, once=True)
    assert (tmp_path / "taken" / "x.prom").exists()


def test_settings_are_checked_at_the_start(tmp_path):
    with pytest.raises(ConfigError, match="paht"):
        rlvitals.start(tmp_path / "run", track_with="prometheus", tracker_kwargs={"paht": "x"}, **QUIET)
    with pytest.raises(SinkError, match="needs path"):
        PrometheusSink(facts(tmp_path), {}, {}).write(rows([1]))


@pytest.mark.slow
@pytest.mark.skipif(NODE_EXPORTER is None, reason="the node exporter is not installed (prometheus-node-exporter)")
def test_the_real_node_exporter_reads_the_files_of_several_runs(tmp_path):
    folder = tmp_path / "textfile"
    for name in ("one", "two"):
        run = record(tmp_path / "out" / name, track_with="prometheus", tracker_kwargs={"path": str(folder)})
        run.finish()
    port = free_port()
    command = [
        NODE_EXPORTER, f"--web.listen-address=127.0.0.1:{port}", "--collector.disable-defaults",
        "--collector.textfile", f"--collector.textfile.directory={folder}",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as exporter:
        try:
            text = until(lambda: ask(port))
        finally:
            exporter.terminate()
    assert "node_textfile_scrape_error 0" in text
    found = {
        (sample.name, sample.labels.get("run")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in ("rlvitals_run_rows_total", "rlvitals_run_step")
    }
    assert found == {
        ("rlvitals_run_rows_total", "one"): 12, ("rlvitals_run_rows_total", "two"): 12,
        ("rlvitals_run_step", "one"): 11, ("rlvitals_run_step", "two"): 11,
    }  # fmt: skip


def ask(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return answer.read().decode()
    except OSError:
        return ""
