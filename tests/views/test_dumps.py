"""Dumps of frameworks, read like a run's rollouts: in a table, live, and joined to a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import rlvitals
from rlvitals.cli.main import main
from rlvitals.errors import NotALog
from rlvitals.importers.dumps.files import DumpFiles
from rlvitals.views.diagnosis import diagnose, is_on_record
from rlvitals.views.discovery import find_places, linked_dumps
from rlvitals.views.dumps import DumpView
from rlvitals.views.feeds import News, open_feed
from rlvitals.views.places import open_rollouts
from rlvitals.views.rollouts import DumpedRollouts


def row(step, prompt, text, score, **more):
    return json.dumps({"input": prompt, "output": text, "gts": "x", "score": score, "step": step, **more}) + "\n"


def dump_step(folder, step, texts=("bad", "good"), prompts=("p", "q")):
    """Write a step like verl: the rollouts of all prompts at once."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row(step, prompt, f"{text} {step}", number) for prompt in prompts for number, text in enumerate(texts)]
    (folder / f"{step}.jsonl").write_text("".join(rows))


@pytest.fixture
def verl(tmp_path):
    for step in (1, 2, 10):
        dump_step(tmp_path / "rollout_data", step)
    dump_step(tmp_path / "validation_data", 10, texts=("held out",), prompts=("v",))
    return tmp_path


def texts(groups):
    return [[rollout.turns[0].text for rollout in group.rollouts] for group in groups]


def test_a_folder_is_asked_like_a_run(verl):
    log = open_rollouts(verl)
    assert log.steps == [1, 2, 10]
    assert texts(log.at(2)) == [["bad 2", "good 2"], ["bad 2", "good 2"]]
    assert [(line["groups"], line["rollouts"], line["mean"]) for line in log.overview()] == [(2, 4, 0.5)] * 3
    worst = log.find(worst=True, limit=3)
    assert [(hit.step, hit.group, hit.rollout, hit.reward) for hit in worst] == [
        (1, 1, 1, 0),
        (1, 2, 1, 0),
        (2, 1, 1, 0),
    ]
    (hit,) = log.find(text="GOOD 10", limit=1)
    assert (hit.step, hit.group, hit.rollout, hit.prompt) == (10, 1, 2, "p")
    assert log.at(hit.step)[hit.group - 1].rollouts[hit.rollout - 1].turns[0].text == "good 10"
    assert log.find(text="held out") == []
    assert log.find(text="good", step=2)[1].group == 2


def test_validation_is_asked_apart(verl, capsys):
    log = open_rollouts(verl, "validation")
    assert (log.steps, texts(log.at(10))) == ([10], [["held out 10"]])
    assert open_rollouts(verl / "validation_data").steps == [10]  # opened directly, it counts
    assert main(["rollouts", str(verl), "--validation", "--json"]) == 0
    assert [line["step"] for line in json.loads(capsys.readouterr().out)["steps"]] == [10]
    assert main(["rollouts", str(verl), "--step", "10", "--diff", "2"]) == 0
    with pytest.raises(NotALog, match="no rollouts of validation"):
        open_rollouts(verl / "rollout_data", "validation")


def test_what_comes_later_is_seen_by_the_next_question(verl):
    log = DumpedRollouts(verl)
    assert log.steps == [1, 2, 10]
    before = log.state
    dump_step(verl / "rollout_data", 11)
    assert log.state != before
    assert (log.steps, log.last_step) == ([1, 2, 10, 11], 11)
    dump_step(verl / "rollout_data", 2, texts=("again",), prompts=("a much longer prompt than before " * 9,))
    assert texts(log.at(2)) == [["again 2"]]  # a resumed training rewrote the step
    assert [line["rollouts"] for line in log.overview()] == [4, 1, 4, 4]
    assert len(log.find(step=2)) == 1
    (verl / "rollout_data" / "1.jsonl").unlink()
    assert log.steps == [2, 10, 11]


def test_a_stream_is_read_on_and_a_torn_line_waits(tmp_path):
    stream = tmp_path / "monitors" / "file" / "traces" / "stream.jsonl"
    stream.parent.mkdir(parents=True)
    log = DumpedRollouts(tmp_path)

    def episode(step, text, kind="train"):
        node = [{"message": {"role": "user", "content": "p"}}, {"parent": 0, "sampled": True, "message": {
            "role": "assistant", "content": text}}]  # fmt: skip
        work = {"type": kind, "step": step}
        trace = {"nodes": node, "rewards": {"r": {"score": 1.0}}}
        return json.dumps({"task": {}, "run": {"work": work}, "traces": [trace]}).encode() + b"\n"

    stream.write_bytes(episode(1, "one"))
    assert texts(log.at(1)) == [["one"]]
    read = []
    real = DumpFiles.read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DumpFiles, "read", lambda *given: read.append(given[2]) or real(*given))
        second = episode(1, "two")
        with stream.open("ab") as file:
            file.write(second[:40])
            file.flush()
            assert texts(log.at(1)) == [["one"]]
            assert log.problems == ["monitors/file/traces/stream.jsonl: the last line is not whole and was left out"]
            file.write(second[40:])
        assert texts(log.at(1)) == [["one", "two"]]
    assert log.problems == []
    assert set(read) == {len(episode(1, "one"))}  # from where the last read ended
    with stream.open("ab") as file:
        file.write(episode(1, "three", "eval"))
    assert texts(log.at(1)) == [["one", "two"]]
    assert log.overview()[0]["rollouts"] == 2
    assert texts(DumpedRollouts(tmp_path, "validation").at(1)) == [["three"]]


def test_nothing_is_written_into_a_foreign_folder(verl):
    names = sorted(path.relative_to(verl) for path in verl.rglob("*"))
    assert open_rollouts(verl).find(text="good")
    DumpView(verl)
    assert sorted(path.relative_to(verl) for path in verl.rglob("*")) == names


def test_the_table_is_kept_in_the_users_cache(verl, tmp_path, monkeypatch):
    monkeypatch.delenv("RLVITALS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    kept = tmp_path / "home" / "rlvitals" / "dumps"
    assert open_rollouts(verl).steps == [1, 2, 10]
    (table,) = kept.iterdir()
    assert kept.stat().st_mode & 0o77 == 0  # other users have no access
    os.utime(table, (0, 0))
    assert open_rollouts(verl).steps == [1, 2, 10]
    assert table.stat().st_mtime > 0  # it was used, so it is kept
    os.utime(table, (0, 0))
    open_rollouts(verl, "validation")
    (other,) = kept.iterdir()
    assert other != table


def test_without_a_cache_the_table_is_made_in_memory(verl, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RLVITALS_CACHE", str(tmp_path / "file"))
    assert DumpFiles(verl, "train").table is None
    assert open_rollouts(verl).steps == [1, 2, 10]


def test_a_bad_file_does_not_hide_the_others(verl):
    (verl / "rollout_data" / "3.jsonl").write_text('{"loss": 1.0}\n')
    (verl / "rollout_data" / "4.pt").write_bytes(b"no archive")
    log = open_rollouts(verl)
    assert log.steps == [1, 2, 10]
    first, second = log.problems
    assert first.startswith("rollout_data/3.jsonl: no row of it is a rollout")
    assert second.startswith("rollout_data/4.pt: it cannot be read (File is not a zip file)")


def test_a_run_shows_the_dump_that_its_settings_name(tmp_path):
    for step in (1, 2, 3):
        dump_step(tmp_path / "dumps", step)
    config = {"trainer": {"rollout_data_dir": str(tmp_path / "dumps")}}
    with rlvitals.start(tmp_path / "run", config=config, monitor=False, display="none") as run:
        for step in (1, 2, 3):
            run.log({"loss": 1.0}, step=step)
        run.log_groups([{"prompt": "own", "rollouts": [{"completion": "recorded", "reward": -5.0}]}], step=2)
    log = rlvitals.open_run(tmp_path / "run").rollout_log
    assert log.steps == [1, 2, 3]
    assert texts(log.at(2)) == [["recorded"]]  # the run's own rollouts come first
    assert texts(log.at(3)) == [["bad 3", "good 3"]] * 2
    assert [line["rollouts"] for line in log.overview()] == [4, 1, 4]
    assert [(hit.step, hit.reward) for hit in log.find(worst=True, limit=2)] == [(2, -5.0), (1, 0.0)]
    assert [hit.step for hit in log.find(text="good", limit=10)] == [1, 1, 3, 3]
    assert [hit.step for hit in log.find(worst=True, limit=6)] == [2, 1, 1, 3, 3, 1]


def test_a_dump_in_the_runs_own_folder_needs_no_setting(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False, display="none") as run:
        run.log({"loss": 1.0}, step=1)
    assert rlvitals.open_run(tmp_path / "run").rollout_log.steps == []
    dump_step(tmp_path / "run" / "rollout_data", 1)
    assert rlvitals.open_run(tmp_path / "run").rollout_log.steps == [1]


def test_the_texts_of_a_dump_count_though_a_monitor_read_every_row_because_it_reads_no_dump(tmp_path):
    with rlvitals.start(tmp_path / "run", display="none") as run:
        for step in range(1, 11):
            run.log({"reward": 0.5}, step=step)
            dump_step(tmp_path / "run" / "rollout_data", step, texts=("return x", "os._exit(0) #"))
    view = rlvitals.open_run(tmp_path / "run")
    assert is_on_record(view)
    assert [found.rule for found in view.findings] == []
    diagnosis = diagnose(view)
    assert (diagnosis.verdict, {found.rule for found in diagnosis.findings}) == ("act", {"ends_the_process"})


@pytest.mark.parametrize("setting", ["/", "../../secret", "link", "a\0b", "nowhere", 7, "", "{}"])
def test_settings_lead_to_no_folder_outside(tmp_path, setting):
    dump_step(tmp_path / "secret", 1)
    run = tmp_path / "served" / "run"
    run.mkdir(parents=True)
    (tmp_path / "served" / "link").symlink_to(tmp_path / "secret")
    assert linked_dumps(run, {"rollouts_from": setting}, tmp_path / "served") == []
    inside = tmp_path / "served" / "inside"
    dump_step(inside, 1)
    assert linked_dumps(run, {"dump_details": "inside"}, tmp_path / "served") == [inside]
    assert linked_dumps(run, {"save_debug_rollout_data": f"{inside}/{{rollout_id}}.pt"}, tmp_path) == [inside]


def test_a_dump_alone_is_an_entry_with_its_mean_reward(verl):
    view = DumpView(verl)
    steps, values = view.series("reward")
    assert (steps.tolist(), values.tolist(), view.status) == ([1, 2, 10], [0.5] * 3, "running")
    assert view.metrics == ["reward"]
    assert DumpView(verl, "validation").name.endswith("(validation)")
    assert list(find_places(verl)) == [verl]


def test_a_log_beside_the_dump_gives_the_metrics(verl):
    logged = [{"step": step, "actor/kl": step / 10} for step in (1, 2, 10)]
    (verl / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in logged))
    view = DumpView(verl)
    assert (view.metrics, view.last_step) == (["actor/kl"], 10)
    assert view.rollouts(2) == view.rollout_log.at(2)
    assert len(view.rollouts()) == 2


def test_a_log_that_leads_out_of_the_dump_is_not_read(verl, tmp_path):
    outside = tmp_path.parent / f"{tmp_path.name}-secret.jsonl"
    outside.write_text('{"step": 1, "secret": 7}\n')
    (verl / "metrics.jsonl").symlink_to(outside)
    assert DumpView(verl).metrics == ["reward"]


def test_a_dump_is_followed_by_its_mean_reward(tmp_path):
    folder = tmp_path / "rollout_data"
    dump_step(folder, 1)
    feed = open_feed(folder)
    assert [(row["step"], row["reward"]) for row in feed.poll().rows] == [(1, 0.5)]
    assert feed.poll() == News()
    dump_step(folder, 2, texts=("bad", "good", "better"))
    assert [(row["step"], row["reward"]) for row in feed.poll().rows] == [(2, 1.0)]
    with (folder / "2.jsonl").open("a") as file:  # a known step gets another rollout
        file.write(row(2, "p", "best", 7))
    news = feed.poll()
    assert [(row["step"], row["reward"]) for row in news.before] == [(1, 0.5), (2, 13 / 7)]
    assert news.rows == []
    assert feed.source().format == "verl"


def test_a_dump_is_watched_and_judged(tmp_path, capsys):
    for step in range(1, 40):
        dump_step(tmp_path / "rollout_data", step, texts=("a", "b") if step < 20 else ("bad",))
    assert main(["watch", str(tmp_path / "rollout_data"), "--json", "--until-idle", "0.1", "--interval", "0.05"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["rows"] for event in events if event["type"] == "row"] == [39]
    assert "reward_collapse" in {event["kind"] for event in events if event["type"] == "finding"}
    assert events[-1]["verdict"] == "act"


def test_old_steps_of_a_dump_are_pruned_and_what_is_not_understood_stays(verl, capsys):
    dump_step(verl / "rollout_data", 20)
    with (verl / "rollout_data" / "2.jsonl").open("a") as file:
        file.write('{"another": "kind of row"}\n')
    (verl / "rollout_data" / "notes.txt").write_text("mine")
    words = ["prune", str(verl), "--rollouts-keep-last", "1", "--keep-every", "10"]
    assert main([*words, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == ["rollout_data/1.jsonl"]
    assert main(words) == 0
    left = sorted(path.relative_to(verl).as_posix() for path in verl.rglob("*") if path.is_file())
    assert left == [
        "rollout_data/10.jsonl", "rollout_data/2.jsonl", "rollout_data/20.jsonl", "rollout_data/notes.txt",
        "validation_data/10.jsonl",
    ]  # fmt: skip
    assert open_rollouts(verl).steps == [2, 10, 20]


def test_a_stream_with_a_new_step_is_not_pruned_and_validation_has_a_limit_of_its_own(tmp_path, monkeypatch):
    dump_step(tmp_path / "rollout_data", 1)
    for step in (5, 10):
        dump_step(tmp_path / "validation_data", step)
    with (tmp_path / "rollout_data" / "1.jsonl").open("a") as file:
        file.write(row(30, "p", "later", 1))
    dump_step(tmp_path / "rollout_data", 29)
    monkeypatch.chdir(tmp_path)
    assert main(["prune", ".", "--rollouts-keep-last", "1", "--evals-keep-last", "1"]) == 0
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.jsonl")) == [
        "rollout_data/1.jsonl",
        "validation_data/10.jsonl",
    ]


def test_the_newest_step_of_a_dump_is_never_pruned(verl, capsys):
    assert main(["prune", str(verl), "--rollouts-keep-last", "0"]) == 64
    assert "still be written" in capsys.readouterr().err
    assert len(list(verl.rglob("*.jsonl"))) == 4


MEMORY = """
import re, sys
from pathlib import Path
from rlvitals.views.places import open_rollouts
def most():  # in MiB; what getrusage says includes the process this one was forked from
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
log = open_rollouts(sys.argv[1])
log.steps, log.at(3)
before = most()
other = open_rollouts(sys.argv[2])
assert sum(line["rollouts"] for line in other.overview()) == 20_000
assert len(other.find(worst=True, limit=50)) == 50
assert other.find(text="nowhere to be found") == []
assert len(other.at(77)) == 25
print(most() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_folder_of_twenty_thousand_rollouts_is_not_held_in_memory(tmp_path):
    """40 MB of texts. Memory holds a table of 20,000 lines and one file at a time."""
    filler = "word " * 400
    dump_step(tmp_path / "small", 3)
    (tmp_path / "large").mkdir()
    for step in range(100):
        rows = [row(step, f"p{n // 8}", f"{n} {filler}", n) for n in range(200)]
        (tmp_path / "large" / f"{step}.jsonl").write_text("".join(rows))
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "small"), str(tmp_path / "large")]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown < 25  # reading everything takes 50
