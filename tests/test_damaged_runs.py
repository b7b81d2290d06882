"""Damaged runs: whatever happens to a run's files, readers report it in a sentence and show the runs beside it.

`damage` makes them by seed. `benchmarks/damaged_runs.py` makes thousands of requests; this is a sample of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sqlite3
import struct
import tempfile
import zlib
from itertools import count
from pathlib import Path

import pytest

import damage
import rlvitals
from damage import Bench, as_stranger
from rlvitals.cli.main import main
from rlvitals.errors import RlvitalsError, RunUnreadable
from rlvitals.sinks.base import SinkError
from rlvitals.sinks.local_file import begin
from rlvitals.store import chunks
from rlvitals.store.archive import open_log
from rlvitals.store.layout import RunDir, archive_of
from rlvitals.views.run_tail import RunTail
from rlvitals.web.folder import Folder

pytestmark = pytest.mark.slow

SEEDS = range(1, 5)
"""Each requests every address, and runs a part of the verbs."""
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


@pytest.fixture(scope="module")
def bench():
    # not pytest's own folders, which other users cannot enter
    with damage.small_indices(), tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        made = Bench(Path(folder) / "bench")
        yield made
        made.clear()


@pytest.fixture
def bad(bench):
    """An undamaged run beside a good one, for the test to damage."""
    bench.clear()
    shutil.copytree(bench.good, bench.bad, symlinks=True)
    yield bench.bad
    bench.clear()


def listed(folder, capsys):
    """What `runs` prints: its lines by name, and its remarks."""
    capsys.readouterr()
    assert main(["runs", str(folder), "--json"]) == 0
    out, error = capsys.readouterr()
    return {Path(line["path"]).name: line for line in json.loads(out)}, error


def judged(folder, capsys):
    """What `check` reports for a folder: verdicts and their reasons, by name."""
    capsys.readouterr()
    assert main(["check", str(folder), "--json"]) in (0, 1, 2, 3)
    told = json.loads(capsys.readouterr().out)
    verdicts = {Path(one["source"]).name: one["verdict"] for one in told["reports"]}
    return verdicts, {Path(one["source"]).name: one["reason"] for one in told["reports"]}


def on_page(folder):
    """What `/api/runs` returns, by name."""
    return {line["run"]: line for line in Folder(folder).runs()["runs"]}


# Random damage, by seed


def test_a_run_that_is_not_damaged_is_no_trouble(bench, bad):
    assert bench.ask_questions() + bench.resume() == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_every_verb_and_every_address_bears_a_damaged_run(bench, seed):
    said = bench.put(seed)
    turn = count(seed)
    troubles = bench.ask_questions() + bench.ask_verbs(lambda words: next(turn) % len(SEEDS) == 0)
    bench.put(seed)
    assert (said, troubles + bench.resume()) == (said, [])


# A damaged run card


WRONG = {
    "status": ["running"], "created": "yesterday", "updated": 1e300, "attempt": -3, "total_steps": 10**18,
    "left_out": {"loss": 3}, "pid": -1, "name": {}, "error": ["boom"], "packages": "torch", "rows_dropped": "many",
}  # fmt: skip


@pytest.mark.parametrize("field", WRONG)
def test_a_field_of_a_wrong_type_is_named_and_the_run_is_shown(bench, bad, field, capsys):
    card = RunDir(bad).info
    card.write_text(json.dumps(json.loads(card.read_text()) | {field: WRONG[field]}))
    lines, remarks = listed(bench.runs, capsys)
    assert lines["good"]["rows"] == lines["bad"]["rows"] == damage.ROWS
    assert field in lines["bad"]["note"]
    assert lines["good"]["note"] == ""
    assert f"{bad}: run.json is damaged" in remarks
    assert main(["show", str(bad)]) == 0
    assert "run.json is damaged" in on_page(bench.runs)["bad"]["status_note"]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"id":' * 100_000, '"a text"', "", "\0" * 50, '{"schema":"x"}'])
def test_an_unreadable_card_makes_a_line_that_reports_it(bench, bad, text, capsys):
    RunDir(bad).info.write_text(text)
    lines, remarks = listed(bench.runs, capsys)
    assert lines["bad"]["status"] == on_page(bench.runs)["bad"]["status"] == "unreadable"
    assert "run.json is damaged" in remarks
    assert lines["good"]["status"] == "finished"
    verdicts, reasons = judged(bench.runs, capsys)
    assert verdicts["good"] in ("healthy", "watch", "act")
    assert verdicts["bad"] == "cannot judge"
    assert "run.json is damaged" in reasons["bad"]
    assert main(["show", str(bad)]) == 64


# Small files that hold something else


DEEP = "[" * 900 + "]" * 900
ODD_FILES = {
    "attempts.jsonl": [
        '{"number":"two","started":1}',
        '{"number":2,"started":1e300,"from_step":"x","changed":3}',
        "[]",
    ],
    "config.json": [f'{{"rlvitals":[1],"lr":{DEEP}}}', '{"rlvitals":{"track_with":3,"tracker_kwargs":[],"rules":7}}'],
    "sinks/csv.json": ['{"offsets":{"train":"x"},"rows":[],"state":3}', '{"offsets":5,"name":"../../x"}', "[1]", DEEP],
    "logs/findings.jsonl": [
        '{"type":"request","step":1,"request":[1],"rule":{}}\n{"type":"answer","step":2,"request":[]}',
        '{"type":"finding","step":1,"rule":"r","kind":"k","title":"t","severity":"info","evidence":[],"metrics":[[]]}',
        '{"type":"finding","step":1e300,"rule":"r"}\n{"type":"answer","step":1,"attempt":-1,"timestamp":1e300}',
    ],
    "eval_logs/eval_step_0100.json": [f'{{"accuracy":{DEEP}}}', "[]", '{"accuracy":"high","answers":{"a":[]}}'],
    "eval_logs/control.json": ['{"step":[]}', "7"],
    "logs/eval_metrics.jsonl": ['{"step":100,"attempt":1,"timestamp":1e300,"_nonfinite":"wins=nan losses=inf"}'],
    "logs/system.jsonl": ['{"step":0,"timestamp":1e300,"attempt":1,"System/CPU_Percent":"much"}'],
    "metrics/epochs.jsonl": ['{"epoch":1,"timestamp":1e300,"attempt":-1,"loss":[]}', '{"epoch":1e300}', DEEP],
    "run.lock": ['{"host":"x","pid":-1,"token":"t"}', '{"host":"x","pid":7,"token":"../../t","since":[]}'],
}


@pytest.mark.parametrize("name", ODD_FILES)
def test_a_small_file_that_holds_something_else_is_no_trouble(bench, bad, name):
    asked = {"show", "evals", *(["sync"] if name in ("config.json", "sinks/csv.json") else [])}
    for text in ODD_FILES[name]:
        (bad / name).write_text(text + "\n")
        troubles = bench.ask_questions() + bench.ask_verbs(lambda words: words[0] in asked)
        assert (text[:100], troubles + bench.resume()) == (text[:100], [])


def test_a_file_of_the_index_that_was_forged_is_not_believed(bad):
    log, path = RunDir(bad).train_log, bad / "index" / "training_metrics-00000.columns"
    _, size, _ = chunks._PREFIX.unpack(path.read_bytes()[: chunks._PREFIX.size])
    whole = path.read_bytes()
    header = json.loads(whole[chunks._PREFIX.size : chunks._PREFIX.size + size])
    odd = {"rows": -1, "columns": [1], "texts": {"note": {"x": 3}}, "log": ["a", 2, 3], "kinds": [], "checksums": [1]}
    for key, value in odd.items():
        text = json.dumps(header | {key: value}).encode()
        prefix = chunks._PREFIX.pack(b"RLVINDEX1\n", len(text), zlib.crc32(text))
        path.write_bytes(prefix + text + whole[chunks._PREFIX.size + size :])
        with pytest.raises(ValueError, match=r"index file|cut short|missing"):
            chunks.load(path, log)
        assert rlvitals.open_run(bad).rows == damage.ROWS


# Logs that cannot be read


UNREADABLE = {
    "a FIFO": damage._fifo, "a link loop": damage._loop, "a folder": damage._folder, "a socket": damage._socket,
    "an endless device": lambda path, chance: (path.unlink(), path.symlink_to("/dev/zero")),
    "a disk that fails": lambda path, chance: (path.unlink(), path.symlink_to("/proc/self/mem")),
}  # fmt: skip


@pytest.mark.parametrize("name", ["logs/training_metrics.jsonl", "logs/eval_metrics.jsonl", "run.json"])
@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_is_no_file_is_neither_waited_for_nor_a_traceback(bench, bad, kind, name, capsys):
    UNREADABLE[kind](bad / name, random.Random(1))
    with damage.alarm():
        lines, remarks = listed(bench.runs, capsys)
        verdicts, _ = judged(bench.runs, capsys)
        assert main(["show", str(bad)]) == 64
    assert lines["bad"]["status"] == "unreadable"
    assert lines["good"]["rows"] == damage.ROWS
    assert "bad" in remarks
    assert verdicts["good"] in ("healthy", "watch", "act")
    assert verdicts["bad"] == "cannot judge"


@pytest.mark.parametrize("name", ["index", "logs", "logs/ranks", "logs/rollouts", "eval_logs", "metrics", "sinks"])
def test_a_fifo_in_the_place_of_a_folder_keeps_nobody_waiting(bench, bad, name):
    damage._fifo(bad / name, random.Random(1))
    asked = {"show", "rollouts", "evals", "prune", "compact"}
    assert bench.ask_verbs(lambda words: words[0] in asked and "--epochs" not in words) == []


@pytest.mark.parametrize("name", ["index/training_metrics-00000.columns", "index/rollouts.sqlite"])
@pytest.mark.parametrize("kind", UNREADABLE)
def test_the_index_is_done_without_where_it_is_no_file(bad, kind, name):
    UNREADABLE[kind](bad / name, random.Random(1))
    with damage.alarm(), as_stranger():  # who may not replace it either
        view = rlvitals.open_run(bad)
        assert view.rows == damage.ROWS
        assert [line["step"] for line in view.rollout_log.overview()] == [100, 200]


@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.parametrize("words", [["check"], ["plot"], ["report"], ["rollouts"], ["show", "--epochs"]])
def test_a_foreign_log_that_is_not_a_file_is_reported(tmp_path, kind, words, capsys):
    log = tmp_path / "trainer.jsonl"
    log.write_text("")
    UNREADABLE[kind](log, random.Random(1))
    with damage.alarm():
        assert main([*words, str(log)]) == 64
    assert str(log) in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["a FIFO", "a link loop", "a folder", "a socket", "an endless device"])
def test_epochs_do_not_wait_for_what_is_no_file(bad, kind, caplog):
    record = bad / "metrics" / "epochs.jsonl"
    UNREADABLE[kind](record, random.Random(1))
    with damage.alarm():
        tracker = rlvitals.MetricsTracker(bad / "metrics", plots=False, display="none")
        tracker.log_epoch(9, loss=1.0)
        tracker.close()
    assert str(record) in caplog.text
    assert tracker.history[-1]["epoch"] == 9


def test_a_tracker_does_not_wait_for_a_fifo_under_its_file_s_name(tmp_path):
    os.mkfifo(tmp_path / "table.csv")
    with damage.alarm(), pytest.raises(SinkError, match="cannot write"):
        begin(tmp_path / "table.csv", b"step", is_ours=False)


@pytest.mark.skipif(not IS_ROOT, reason="another user's files need root")
@pytest.mark.parametrize("name", ["logs/training_metrics.jsonl", "run.json", "logs", "."])
def test_another_users_files_are_reported_as_unreadable(bench, bad, name, capsys):
    listed(bench.runs, capsys), judged(bench.runs, capsys), on_page(bench.runs)  # imports what others cannot read
    (bad / name).chmod(0)
    with as_stranger():
        lines, remarks = listed(bench.runs, capsys)
        verdicts, _ = judged(bench.runs, capsys)
        told = on_page(bench.runs)
        with pytest.raises(RlvitalsError):
            _ = rlvitals.open_run(bad).rows
    assert verdicts["good"]
    assert lines["good"]["rows"] == told["good"]["rows"]
    if name != ".":  # a user who cannot enter the folder cannot see that it is a run
        assert lines["bad"]["status"] == told["bad"]["status"] == "unreadable"
        assert "ask its owner" in remarks


@pytest.mark.parametrize("name", ["logs/system.jsonl", "logs/eval_metrics.jsonl", "logs/training_metrics.jsonl"])
def test_what_is_met_while_rows_are_read_does_not_hide_the_others(bench, bad, name, capsys):
    damage._fifo(bad / name, random.Random(1))
    with damage.alarm():
        verdicts, reasons = judged(bench.runs, capsys)
    assert verdicts["good"] in ("healthy", "watch", "act")
    assert verdicts["bad"] == "cannot judge"
    assert f"{bad / name} cannot be read: not a regular file" in reasons["bad"]


def test_new_facts_of_a_run_are_reported_beside_a_log_that_cannot_be_read(bad):
    damage._folder(RunDir(bad).train_log, random.Random(1))
    added = RunTail(bad, "0-0-0").look()
    assert (added.rows, added.step) == (3, None)  # the evaluations
    assert added.findings


@pytest.mark.parametrize(
    "blocks",
    [
        [[0, 1, 8, "x", 1]], [[0, 1, 8]], [7], 7, [[5, 9, 8, 1, 1]], [[0, -9, 8, 1, 1]], [[0, 9, 8, 2**70, 1]],
        [[0, 9, 8, 1, 1]],
    ],
)  # fmt: skip
def test_a_forged_archive_is_reported_as_damaged(tmp_path, blocks):
    log = tmp_path / "log.jsonl"
    footer = json.dumps({"blocks": blocks}).encode()
    archive_of(log).write_bytes(b"RLVARCH1" + b"x" * 8 + footer + struct.pack("<Q", len(footer)) + b"RLVARCH1")
    with pytest.raises(RunUnreadable, match="is damaged"), open_log(log) as file:
        file.read()


def test_a_damaged_archive_is_reported(bench, bad):
    assert main(["compact", str(bad)]) == 0
    archive = bad / "logs" / "training_metrics.jsonl.archive"
    whole = archive.read_bytes()
    for place in (10, len(whole) // 2, len(whole) - 20, len(whole) - 3):
        archive.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(RunUnreadable, match=r"archive is damaged: .*backup"):
            _ = rlvitals.open_run(bad).rows
    archive.write_bytes(whole)
    assert rlvitals.open_run(bad).rows == damage.ROWS


def test_a_damaged_table_of_rollouts_is_made_anew(bad):
    view = rlvitals.open_run(bad)
    hits, steps = view.rollout_log.find(worst=True), view.rollout_log.overview()
    table = bad / "index" / "rollouts.sqlite"
    whole = table.read_bytes()
    for page in range(0, len(whole), 4096):
        table.write_bytes(whole[:page] + b"\xff" * 4096 + whole[page + 4096 :])
        again = rlvitals.open_run(bad).rollout_log
        assert again.find(worst=True) == hits
        assert again.overview() == steps


def test_a_cell_of_a_wrong_type_in_the_table_of_rollouts_is_not_believed(bad):
    hits = rlvitals.open_run(bad).rollout_log.find(worst=True)
    with contextlib.closing(sqlite3.connect(bad / "index" / "rollouts.sqlite")) as base, base:
        base.execute("UPDATE rollouts SET turns = 'many', reward = x'00'")
    assert rlvitals.open_run(bad).rollout_log.find(worst=True) == hits


# Resuming a damaged run


@pytest.mark.parametrize("text", ['{"global_step":1e300}', '{"global_step":"x"}', "[]", "[" * 100_000, None])
def test_a_checkpoint_whose_state_is_damaged_gets_its_step_from_its_name(bad, text):
    state = bad / "checkpoint-100" / "trainer_state.json"
    damage._fifo(state, random.Random(1)) if text is None else state.write_text(text)
    with damage.alarm(), rlvitals.start(bad, resume="checkpoint-100", monitor=False, hardware=False) as run:
        assert run.attempt == 3
    assert rlvitals.open_run(bad).attempts[-1].from_step == 100


@pytest.mark.parametrize("name", ["run.json", "logs/training_metrics.jsonl", "attempts.jsonl", "run.lock", "heartbeat"])
@pytest.mark.parametrize("kind", ["a FIFO", "a folder", "a link loop", "a disk that fails"])
def test_a_resume_works_or_says_why_not(bench, bad, name, kind):
    UNREADABLE[kind](bad / name, random.Random(1))
    assert bench.resume() == []
