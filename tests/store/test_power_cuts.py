"""Nothing that was once on the disk is lost in a power cut, whichever two file operations it falls between.

The operations of each verb are recorded. In every state that the disk may be left in (see `power_cuts`) the run must be
readable, hold everything that was promised by then and nothing that was never written, and be resumable. Rows that were
logged without a sync may be lost.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import struct
import subprocess
import sys
from hashlib import sha256
from itertools import count
from pathlib import Path

import pytest

import rlvitals
from health_lines import finding_line
from power_cuts import CutState, recorded
from rlvitals.capture.start import refuse_existing
from rlvitals.cli.main import main
from rlvitals.codec import encode
from rlvitals.importers.into_run import write_run
from rlvitals.importers.registry import read_log
from rlvitals.records import Finding
from rlvitals.sinks.follower import Forwarder
from rlvitals.store.archive import logs_of
from rlvitals.store.cards import read_attempts, read_info
from rlvitals.store.epochs import EpochStore
from rlvitals.store.evaluations import drop_evaluations, read_evaluations
from rlvitals.store.files import bring_back, replace_folder
from rlvitals.store.findings import append_event, read_events
from rlvitals.store.imports import ImportLogs, read_import
from rlvitals.store.inbox import Inbox
from rlvitals.store.layout import RunDir
from rlvitals.store.reader import read_rows
from rlvitals.store.rollouts import read_groups, rollout_files

pytestmark = pytest.mark.slow

ALL = "RLVITALS_ALL_POWER_CUTS" in os.environ
MOST = None if ALL else 60
"""States checked for each verb. With the environment variable, all states are checked."""
MOST_RESUMED = 300 if ALL else 3
"""Of those, how many are also shown, judged, resumed and logged to, which takes longer."""

QUIET = {"monitor": False, "hardware": False}


def facts(folder):
    """Everything a run holds, piece by piece, as its readers find it."""
    run_dir = RunDir(folder)
    found = set()
    for log in logs_of(run_dir):
        if log.parent != run_dir.rollouts:
            found |= {(log.name, row.attempt, row.step, *sorted(row.numbers.items())) for row in read_rows(log)}
    for file in rollout_files(run_dir):
        found |= {("group", group.id, len(group.rollouts)) for group in read_groups(file.path)}
    found |= {("event", event.step, event.finding and event.finding.title) for event in read_events(run_dir)}
    found |= {("evaluation", step, json.dumps(whole)) for step, whole in read_evaluations(run_dir)[0].items()}
    found |= {("attempt", attempt.number, attempt.from_step) for attempt in read_attempts(run_dir)}
    epochs = EpochStore(run_dir.epochs.folder)
    epochs.load()
    found |= {("epoch", epoch.number, *sorted(epoch.metrics.items())) for epoch in epochs.history}
    if run_dir.info.exists():
        found.add(("run", read_info(run_dir).id))
    return found


def step_of(row):
    return row[2]


@pytest.fixture
def disk(tmp_path):
    """The folder whose operations are recorded."""
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


@pytest.fixture
def outlived(tmp_path):
    """Check the states that a recording may have ended in: `look` is called with a real folder for each."""
    numbers = count()

    def check(recording, look, *, most=MOST):
        states = recording.states(most=most)
        assert len(states) > 1
        for state in states:
            folder = state.put_in(tmp_path / f"cut-{next(numbers)}")
            try:
                look(folder, state)
            except Exception as error:
                names = {name: data if data is None else len(data) for name, data in sorted(state.state.items())}
                last = [str(done)[:120] for done in recording.done[max(0, state.after - 4) : state.after]]
                raise AssertionError(f"cut after {state.after}, {last}: {names}") from error
            shutil.rmtree(folder)
        return states

    return check


def die(folder):
    """Make the locks those of a dead process, as after a power cut. Here the test process holds them."""
    for lock in folder.rglob("*.lock"):
        with contextlib.suppress(ValueError):
            lock.write_text(json.dumps({**json.loads(lock.read_bytes()), "started": "long ago"}))
        os.utime(lock, (1.0, 1.0))


def goes_on(folder, promised, capsys):
    """`show` and `check` read the run, and it can be resumed."""
    die(folder)
    if RunDir(folder).holds_run:
        assert rlvitals.open_run(folder).problems is not None
        for verb in ("show", "check"):
            assert main([verb, str(folder)]) < 64, capsys.readouterr().err
    with rlvitals.start(folder, resume=True, **QUIET) as run:
        run.log({"loss": -1.0}, step=10_000)
    capsys.readouterr()
    there = facts(folder)
    assert promised <= there
    assert any(fact[0] == "training_metrics.jsonl" and fact[2] == 10_000 for fact in there)


@pytest.fixture
def run_outlived(outlived, capsys):
    """Each state of a run holds everything promised and nothing that was never written, and can be resumed."""

    def check(recording, known, root="run", *, strangers=()):
        def look(folder, state):
            there = facts(folder / root)
            assert state.promised <= there, state.promised - there
            assert there <= known, there - known
            for one, other in strangers:
                assert not (one & there and other & there), "of two runs"

        outlived(recording, look)
        outlived(recording, lambda folder, state: goes_on(folder / root, state.promised, capsys), most=MOST_RESUMED)

    return check


def log_some(run, steps):
    for step in steps:
        run.log({"loss": step / 8}, step=step)


def make_run(folder, **settings):
    """A run with some of everything that a run holds."""
    with rlvitals.start(folder, **QUIET, **settings) as run:
        log_some(run, range(5))
        for step in (2, 4):
            run.log_eval({"accuracy": step / 10, "answers": [1, 2]}, step=step)
            run.log_groups([{"id": f"g{step}", "prompt": "p", "rollouts": [{"reward": 1.0}, {"reward": 0.0}]}], step)
        append_event(RunDir(folder), finding_line(FINDING, 1.0, 1))
        with rlvitals.MetricsTracker(folder / "metrics", plots=False, display="none") as epochs:
            epochs.log_epoch(1, loss=0.5, reward=0.25)
    return facts(folder)


FINDING = Finding("kl_high", "kl", "warning", 3, 2, "KL is high", 0.9, {}, (), (), "none", ("kl",))


# Recording


@pytest.mark.parametrize("fsync", ["never", "finish", 3600.0, "always"])
def test_rows_that_were_on_the_disk_outlive_a_cut_while_more_are_logged(disk, run_outlived, fsync):
    before = make_run(disk / "run")
    with recorded(disk) as recording:
        recording.promise(*before)
        with rlvitals.start(disk / "run", resume=True, fsync=fsync, **QUIET) as run:
            log_some(run, (5, 6))
    run_outlived(recording, before | facts(disk / "run"))


def test_a_row_whose_log_has_returned_outlives_a_cut_where_the_disk_is_always_asked(disk, run_outlived):
    with recorded(disk) as recording:  # noqa: SIM117 - the recording sees the end of the run
        with rlvitals.start(disk / "above" / "run", fsync="always", **QUIET) as run:
            recording.promise(("attempt", 1, None), ("run", run.id))
            for step in range(3):
                run.log({"loss": step / 8}, step=step)
                recording.promise(("training_metrics.jsonl", 1, step, ("loss", step / 8)))
            run.log_eval({"accuracy": 0.5, "answers": [1]}, step=2)
            recording.promise(
                ("eval_metrics.jsonl", 1, 2, ("accuracy", 0.5)),
                *[fact for fact in facts(disk / "above" / "run") if fact[0] == "evaluation"],
            )
            for step in (1, 2):
                run.log_groups([{"id": f"g{step}", "prompt": "p", "rollouts": [{"reward": 1.0}]}], step)
                recording.promise(("group", f"g{step}", 1))
            assert run._append_finding(finding_line(FINDING, 1.0, 1))
            recording.promise(("event", 3, "KL is high"))
            with rlvitals.MetricsTracker(disk / "above/run/metrics", plots=False, display="none") as epochs:
                epochs.log_epoch(1, loss=0.5)
                recording.promise(("epoch", 1, ("loss", 0.5)))
    run_outlived(recording, facts(disk / "above/run"), "above/run")


@pytest.mark.parametrize("fsync", ["finish", 3600.0])
def test_a_finished_run_outlives_a_cut(disk, run_outlived, outlived, fsync, monkeypatch):
    monkeypatch.setattr("rlvitals.store.rollouts.MAX_OPEN", 2)
    with recorded(disk) as recording:
        with rlvitals.start(disk / "above" / "run", fsync=fsync, **QUIET) as run:
            log_some(run, range(3))
            run.log_eval({"accuracy": 0.5}, step=2)
            for step in range(5):  # more files than are kept open
                run.log_groups([{"id": f"g{step}", "prompt": "p", "rollouts": [{"reward": 1.0}]}], step)
        promised = {fact for fact in facts(disk / "above/run") if fact[0] != "evaluation"}
        recording.promise(*promised)
    run_outlived(recording, facts(disk / "above/run"), "above/run")

    def look(folder, state):
        assert not state.promised or read_info(RunDir(folder / "above/run")).status == "finished"

    outlived(recording, look)


def test_overwriting_leaves_no_row_of_the_old_run_in_the_new_one(disk, run_outlived):
    old = make_run(disk / "run")
    main(["compact", str(disk / "run")])
    with recorded(disk) as recording:
        with rlvitals.start(disk / "run", overwrite=True, **QUIET) as run:
            run.log({"loss": 7.0}, step=70)
        new = facts(disk / "run")
        recording.promise(*new)
    assert not {fact for fact in new & old if fact[0] != "attempt"}
    rows = {fact for fact in old if fact[0] != "attempt"} - new
    run_outlived(recording, old | new, strangers=[(rows, {("run", run.id)})])


# Packing, restoring, pruning


def test_packing_loses_nothing(disk, run_outlived):
    before = make_run(disk / "run")
    with recorded(disk) as recording:
        recording.promise(*before)
        assert main(["compact", str(disk / "run")]) == 0
    assert not list((disk / "run").rglob("training_metrics.jsonl"))
    run_outlived(recording, before)


def test_bringing_logs_back_loses_nothing(disk, run_outlived):
    before = make_run(disk / "run")
    main(["compact", str(disk / "run")])
    with recorded(disk) as recording:
        recording.promise(*before)
        assert main(["compact", str(disk / "run"), "--undo"]) == 0
    assert not list((disk / "run").rglob("*.archive"))
    run_outlived(recording, before)


def test_resuming_a_packed_run_loses_nothing(disk, run_outlived):
    before = make_run(disk / "run")
    main(["compact", str(disk / "run")])
    with recorded(disk) as recording:
        recording.promise(*before)
        with rlvitals.start(disk / "run", resume=True, **QUIET) as run:
            log_some(run, [5])
    run_outlived(recording, before | facts(disk / "run"))


def test_pruning_loses_nothing_that_it_keeps(disk, run_outlived):
    before = make_run(disk / "run")
    shutil.copytree(disk / "run", disk.parent / "pruned")
    words = ["--rollouts-keep-last", "1", "--evals-keep-last", "1"]
    main(["prune", str(disk.parent / "pruned"), *words])
    kept = facts(disk.parent / "pruned")
    assert kept < before
    with recorded(disk) as recording:
        recording.promise(*kept)
        assert main(["prune", str(disk / "run"), *words]) == 0
    run_outlived(recording, before)


def test_an_evaluation_goes_only_when_a_newer_one_is_on_the_disk(disk, outlived):
    make_run(disk / "run")
    with recorded(disk) as recording, rlvitals.start(disk / "run", resume=True, **QUIET) as run:
        run.log_eval({"accuracy": 0.9}, step=9)
        drop_evaluations(RunDir(disk / "run"), keep_last=1)
    assert list(read_evaluations(RunDir(disk / "run"))[0]) == [9]

    def look(folder, state):
        assert {2, 4} <= read_evaluations(RunDir(folder / "run"))[0].keys() or 9 in read_evaluations(
            RunDir(folder / "run")
        )[0]

    outlived(recording, look)


# What other components add


@pytest.mark.parametrize("is_restart", [False, True])
def test_an_import_continues_after_a_cut_without_a_lost_or_doubled_row(disk, outlived, is_restart):
    lines = [encode({"step": step, "loss": step / 8}) for step in range(6)]

    def bring(run_dir):
        record = read_import(run_dir) or {"is_open": True, "pages": 0}
        logs = ImportLogs(run_dir, record, is_restart=is_restart)
        for page in range(0 if is_restart else record["pages"], 3):
            for line in lines[2 * page : 2 * page + 2]:
                logs.add("train", line)
            logs.add_rollouts(page, b"group %d\n" % page)
            logs.commit({"is_open": True, "pages": page + 1})
        logs.close({"is_open": False, "pages": 3})

    with recorded(disk) as recording:
        bring(RunDir(disk / "run"))

    def look(folder, state):
        run_dir = RunDir(folder / "run")
        bring(run_dir)
        assert run_dir.train_log.read_bytes() == b"".join(lines)
        assert [run_dir.rollout_file(page).read_bytes() for page in range(3)] == [
            b"group 0\n",
            b"group 1\n",
            b"group 2\n",
        ]

    outlived(recording, look)


def test_what_a_push_has_confirmed_outlives_a_cut(disk, outlived):
    whole = {"logs/system.jsonl": b"".join(b"line %d\n" % number for number in range(3)), "run.json": b"{}" * 50}

    def push(**message):
        data = base64.b64encode(message.pop("data")).decode()
        inbox.take({"run": "above/run", "id": "a", "data": data, **message})

    with recorded(disk) as recording:
        inbox = Inbox(disk)
        for offset in (0, 7, 14):
            piece = whole["logs/system.jsonl"][offset : offset + 7]
            push(what="append", file="logs/system.jsonl", offset=offset, data=piece)
            recording.promise(("logs/system.jsonl", offset + 7))
        push(what="put", file="run.json", data=whole["run.json"], sha256=sha256(whole["run.json"]).hexdigest())
        recording.promise(("run.json", 100))

    def look(folder, state):
        assert not state.promised or Inbox(folder).take({"run": "above/run", "id": "a", "what": "state"})["files"]
        for file, size in state.promised:
            assert (folder / "above/run" / file).read_bytes()[:size] == whole[file][:size]

    outlived(recording, look)


def test_a_log_that_was_created_again_holds_what_was_on_the_disk(disk, outlived):
    with rlvitals.start(disk / "run", fsync="always", **QUIET) as run:
        log_some(run, range(3))
        before = facts(disk / "run")
        with recorded(disk) as recording:
            RunDir(disk / "run").train_log.unlink()
            run._writers["train"].tend()
            recording.promise(*before)

    def look(folder, state):
        assert state.promised <= facts(folder / "run")

    outlived(recording, look)


def test_epochs_outlive_a_cut_and_so_does_a_history_of_somebody_else_s(disk, outlived):
    folder = disk / "metrics"
    folder.mkdir()
    foreign = [{"epoch": number, "timestamp": 1.0, "loss": 1 / number} for number in range(1, 5)]
    (folder / "training_metrics.json").write_text(json.dumps(foreign))
    with recorded(disk) as recording:
        recording.promise(*[(row["epoch"], row["loss"]) for row in foreign])
        with rlvitals.MetricsTracker(
            folder, plots=False, display="none", keep_last_epochs=2, early_stopping=False
        ) as epochs:
            epochs.log_epoch(5, loss=0.125)

    def look(cut, state):
        store = EpochStore(cut / "metrics")
        store.load()
        there = {(epoch.number, epoch.metrics.get("loss")) for epoch in store.history}
        assert state.promised <= there <= state.promised | {(5, 0.125)}
        with rlvitals.MetricsTracker(cut / "metrics", plots=False, display="none") as again:
            again.log_epoch(6, loss=0.5)
            assert {row["epoch"] for row in again.history} >= {1, 2, 3, 4, 6}

    outlived(recording, look)


def test_findings_outlive_a_cut_where_the_disk_is_asked(disk, outlived):
    run_dir = RunDir(disk)
    run_dir.logs.mkdir()
    with recorded(disk) as recording:
        for step in range(3):
            append_event(run_dir, finding_line(FINDING, float(step), 1), sync=True)
            recording.promise(float(step))

    def look(folder, state):
        assert state.promised <= {event.timestamp for event in read_events(RunDir(folder))} <= {0.0, 1.0, 2.0}

    outlived(recording, look)


def forward(folder, tracker, **settings):
    """Send a tracker everything that it does not have."""
    feed = Forwarder(RunDir(folder), tracker, settings)
    while not feed.is_over:
        feed.advance()
    feed.let_go()


@pytest.mark.parametrize("tracker", ["csv", "json"])
def test_a_tracker_has_every_row_once_after_a_cut(disk, outlived, tracker, monkeypatch):
    monkeypatch.setattr("rlvitals.sinks.follower.BATCH_ROWS", 3)  # several commits, and a new column after the first
    make_run(disk / "run")
    with rlvitals.start(disk / "run", resume=True, **QUIET) as run:
        run.log({"a new column": 1.0}, step=5)
    with recorded(disk) as recording:
        forward(disk / "run", tracker)
    whole = (disk / "run/logs" / f"metrics.{tracker}").read_bytes()
    assert whole.count(b"\n") >= 7

    def look(folder, state):
        die(folder)
        forward(folder / "run", tracker)
        assert (folder / "run/logs" / f"metrics.{tracker}").read_bytes() == whole

    outlived(recording, look, most=None if ALL else 30)


def test_a_file_that_stands_where_a_tracker_writes_is_kept_through_a_cut(disk, outlived):
    make_run(disk / "run")
    (disk / "table.csv").write_text("somebody's own\n")
    with recorded(disk) as recording:
        forward(disk / "run", "csv", path=str(disk / "table.csv"))

    def look(folder, state):
        kept = [path.read_text() for path in folder.glob("table.csv*")]
        assert "somebody's own\n" in kept

    outlived(recording, look)


def test_an_import_that_has_returned_outlives_a_cut(disk, outlived, tmp_path):
    source = tmp_path / "log.jsonl"
    source.write_text("".join(f'{{"step": {step}, "loss": {step / 4}}}\n' for step in range(6)))
    run_dir = RunDir(disk / "runs" / "imported")
    with recorded(disk) as recording:
        write_run(read_log(source), run_dir, name="n", version="0", refuse=refuse_existing)
        recording.promise(*facts(run_dir.root))
    whole = facts(run_dir.root)
    assert len(whole) >= 7

    def look(folder, state):
        root = folder / "runs" / "imported"
        there = facts(root) if root.is_dir() else set()
        assert state.promised <= there <= whole
        if (root / "run.json").exists():
            assert there >= {fact for fact in whole if fact[0] == "training_metrics.jsonl"}, "said to be finished"

    outlived(recording, look)


@pytest.mark.parametrize("to", ["csv", "json"])
def test_an_exported_file_is_the_old_one_or_the_new_one(disk, outlived, to):
    make_run(disk / "run")
    target = disk / f"table.{to}"
    target.write_text("old")
    with recorded(disk) as recording:
        assert main(["export", str(disk / "run"), "--to", to, "--output", str(target)]) == 0
    new = target.read_bytes()
    assert new != b"old"

    def look(folder, state):
        assert (folder / target.name).read_bytes() in (b"old", new)

    outlived(recording, look)


def test_a_damaged_index_is_never_read_as_rows(disk, outlived):
    with rlvitals.start(disk / "run", **QUIET) as run:
        log_some(run, range(1500))
    with recorded(disk) as recording:
        losses = rlvitals.open_run(disk / "run").series("loss").values.tolist()
    assert len(losses) == 1500
    assert list((disk / "run/index").iterdir())

    def look(folder, state):
        assert rlvitals.open_run(folder / "run").series("loss").values.tolist() == losses

    outlived(recording, look)


def test_a_checkpoint_goes_only_when_a_newer_one_is_on_the_disk(disk, outlived):
    """With `keep_last=1` one checkpoint exists at any time, also while it is replaced by one of the same step."""
    folder = disk / "out"
    (folder / "checkpoint-1").mkdir(parents=True)
    (folder / "checkpoint-1" / "weights").write_bytes(b"1" * 100)
    with recorded(disk) as recording:
        for step in (2, 2):
            draft = folder / ".unfinished-checkpoint"
            draft.mkdir()
            (draft / "weights").write_bytes(b"2" * 100)
            replace_folder(draft, folder / f"checkpoint-{step}")
            shutil.rmtree(folder / "checkpoint-1", ignore_errors=True)

    def look(cut, state):
        for before in (cut / "out").glob(".checkpoint-*.before"):
            bring_back(cut / "out" / before.name.removeprefix(".").removesuffix(".before"))
        held = [path.read_bytes() for path in (cut / "out").glob("checkpoint-*/weights")]
        assert b"1" * 100 in held or b"2" * 100 in held

    outlived(recording, look)


# The model itself, and a real disk


def test_the_model_finds_what_an_unsynced_replacement_loses(disk):
    """A recording with the mistakes that the tests above must find."""
    (disk / "log").write_bytes(b"rows")
    with recorded(disk) as recording:
        draft = disk / "draft"
        draft.write_bytes(b"packed")
        draft.rename(disk / "archive")
        (disk / "log").unlink()
        os.mkdir(disk / "folder")
        with open(disk / "folder" / "row", "ab") as file:
            file.write(b"row")
            file.flush()
            os.fsync(file.fileno())
        recording.promise("the end")
    states = [cut.state for cut in recording.states()]
    assert {"archive": b"", "folder": None, "folder/row": b"row"} in states  # renamed before its bytes were there
    assert {"archive": bytes(6), "folder": None} in states
    assert {"archive": b"pac", "folder": None, "folder/row": b"row"} in states
    assert {} in states  # the log is deleted, and the rename is not there
    assert {"log": b"rows"} in states
    final = [cut.state for cut in recording.states() if cut.promised]
    assert {"log": b"rows"} in final  # no folder was synced
    assert all(state.get("folder/row") in (None, b"row") for state in final)


def test_the_recording_sees_what_python_s_own_functions_do(disk):
    with recorded(disk) as recording:
        (disk / "a").mkdir()
        (disk / "a" / "text").write_text("one\ntwo\n")
        with open(disk / "a" / "text", "r+b") as file:
            file.seek(4)
            file.write(b"2")
            file.truncate(6)
        os.link(disk / "a" / "text", disk / "linked")
        descriptor = os.open(disk / "linked", os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, b"end")
        os.close(descriptor)
        shutil.copytree(disk / "a", disk / "b", copy_function=lambda old, new: Path(new).write_bytes(b"copy"))
        shutil.rmtree(disk / "b")
        os.truncate(disk / "linked", 8)
    assert recording.now.state() == {"a": None, "a/text": b"one\n2wen", "linked": b"one\n2wen"}
    assert recording.now.state() == CutState({}, frozenset(), 0).state | {
        str(path.relative_to(disk)): path.read_bytes() if path.is_file() else None for path in disk.rglob("*")
    }


SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN."""


@pytest.fixture
def disk_with_a_switch(tmp_path):
    """A real ext4 disk whose power can be cut, with or without writing its journal."""
    folder, image = tmp_path / "mounted", tmp_path / "image"
    folder.mkdir()
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        pytest.skip("making a disk needs root and mkfs.ext4")
    with open(image, "wb") as file:
        file.truncate(16 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    mount = ["mount", "-o", "loop", image, folder]
    mounted = subprocess.run(mount, check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no image can be mounted here: {mounted.stderr.decode().strip()}")

    def cut(*, with_journal):
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, SHUTDOWN, struct.pack("I", 1 if with_journal else 2))
        finally:
            os.close(handle)
        subprocess.run(["umount", folder], check=True)
        subprocess.run(mount, check=True)

    yield folder, cut
    subprocess.run(["umount", folder], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="a loop disk of ext4")
@pytest.mark.parametrize("with_journal", [True, False])
def test_a_real_disk_keeps_a_run_whose_power_is_cut_after_packing_and_after_undo(
    disk_with_a_switch, with_journal, capsys
):
    disk, cut = disk_with_a_switch
    before = make_run(disk / "run")
    os.sync()
    assert main(["compact", str(disk / "run")]) == 0
    cut(with_journal=with_journal)
    assert facts(disk / "run") == before
    assert main(["compact", str(disk / "run")]) == 0
    os.sync()
    assert main(["compact", str(disk / "run"), "--undo"]) == 0
    cut(with_journal=with_journal)
    assert facts(disk / "run") == before
    goes_on(disk / "run", before, capsys)


@pytest.mark.skipif(sys.platform != "linux", reason="a loop disk of ext4")
def test_a_real_disk_keeps_every_row_that_it_was_asked_for(disk_with_a_switch):
    disk, cut = disk_with_a_switch
    os.sync()
    script = f"""
import os, rlvitals
run = rlvitals.start({str(disk / "run")!r}, fsync="always", monitor=False, hardware=False)
for step in range(20):
    run.log({{"loss": step / 8}}, step=step)
run.log_groups([{{"id": "g", "prompt": "p", "rollouts": [{{"reward": 1.0}}]}}], 3)
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    cut(with_journal=False)
    there = facts(disk / "run")
    assert {fact[2] for fact in there if fact[0] == "training_metrics.jsonl"} == set(range(20))
    assert ("group", "g", 1) in there
