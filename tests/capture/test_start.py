"""Starting a run: refusals, resuming, overwriting, and the recorded attempts."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

import rlvitals
from damage import as_stranger
from rlvitals.errors import ConfigError, RunError, RunExists, RunLocked, RunUnreadable
from rlvitals.store.lock import RunLock

LOG = Path("logs/training_metrics.jsonl")


def rows_of(folder):
    return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]


def attempts_of(folder):
    return [json.loads(line) for line in (folder / "attempts.jsonl").read_text().splitlines()]


def files_of(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def contents_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def record(folder, steps, **settings):
    """Record a finished run (or attempt) with a row for each step; the loss shows which attempt wrote a row."""
    with rlvitals.start(folder, **settings) as run:
        for step in steps:
            run.log({"loss": float(run.attempt)}, step=step)
    return run


# A fresh start


def test_a_first_start_writes_who_what_and_where(tmp_path):
    folder = tmp_path / "deep" / "out"
    run = record(folder, [0], name="kto-7b", algorithm="kto", framework="trl", total_steps=100)
    card = json.loads((folder / "run.json").read_text())
    assert (card["name"], card["algorithm"], card["framework"], card["total_steps"]) == ("kto-7b", "kto", "trl", 100)
    assert (card["schema"], card["attempt"], card["status"], card["pid"]) == (1, 1, "finished", os.getpid())
    assert card["id"] == run.id
    assert card["written_by"] == rlvitals.__version__
    assert card["packages"]["numpy"] == np.__version__
    (attempt,) = attempts_of(folder)
    assert (attempt["number"], attempt["from_step"], attempt["changed"]) == (1, None, {})


def test_the_name_is_the_directory_s_where_none_is_given(tmp_path, monkeypatch):
    assert record(tmp_path / "my-run", [0]).name == "my-run"
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert record(".", [0]).name == "here"


def test_runs_started_in_the_same_second_have_different_ids(tmp_path):
    assert len({record(tmp_path / str(number), [0]).id for number in range(5)}) == 5


def test_a_directory_with_other_files_in_it_is_no_run(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "checkpoint-50").mkdir()
    assert record(tmp_path, [0]).attempt == 1
    assert (tmp_path / "notes.txt").read_text() == "mine"


# A directory that holds a run


def test_a_directory_that_holds_a_run_is_refused_with_the_ways_out(tmp_path):
    record(tmp_path, [0, 1])
    before = contents_of(tmp_path)
    with pytest.raises(RunExists) as caught:
        rlvitals.start(tmp_path)
    for way_out in ("resume=True", "resume=STEP", "overwrite=True"):
        assert way_out in str(caught.value)
    assert contents_of(tmp_path) == before


def test_a_bare_log_without_a_card_counts_as_a_run(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / LOG).write_text('{"step":7,"loss":0.5}\n')
    with pytest.raises(RunExists):
        rlvitals.start(tmp_path)
    run = record(tmp_path, [8], resume=True)
    assert run.attempt == 2
    steps, losses = rlvitals.open_run(tmp_path).series("loss")
    assert (steps.tolist(), losses.tolist()) == ([7, 8], [0.5, 2.0])


def test_a_run_that_came_and_went_just_before_the_lock_is_not_resumed_unasked(tmp_path, monkeypatch):
    """Two jobs were started at once by mistake. The fast one has ended when the slow one gets the lock."""
    acquire = RunLock.acquire
    first = []

    def acquire_late(lock):
        if not first:
            first.append(lock)
            record(tmp_path, [0])
        acquire(lock)

    monkeypatch.setattr(RunLock, "acquire", acquire_late)
    with pytest.raises(RunExists):
        record(tmp_path, [0])
    assert len(attempts_of(tmp_path)) == 1
    assert not (tmp_path / "run.lock").exists()


def test_resume_and_overwrite_together_are_a_contradiction(tmp_path):
    record(tmp_path, [0])
    before = contents_of(tmp_path)
    with pytest.raises(ConfigError, match="resume and overwrite contradict"):
        rlvitals.start(tmp_path, resume=True, overwrite=True)
    assert contents_of(tmp_path) == before


# Resume


def test_resume_true_counts_on_and_abandons_only_what_is_logged_again(tmp_path):
    first = record(tmp_path, [0, 1, 2, 4, 3])  # the last row is a late one
    with rlvitals.start(tmp_path, resume=True) as run:
        run.log({"loss": 2.0})
    assert (run.attempt, run.id) == (2, first.id)
    assert rows_of(tmp_path)[-1]["step"] == 5
    view = rlvitals.open_run(tmp_path)
    assert view.series("loss").steps.tolist() == [0, 1, 2, 3, 4, 5]
    assert view.ghost_rows == 0


def test_resume_from_a_step_makes_a_ghost_of_the_abandoned_tail(tmp_path):
    record(tmp_path, range(10))
    with rlvitals.start(tmp_path, resume=5) as run:
        run.log({"loss": 2.0})
        run.log({"loss": 2.0})
    view = rlvitals.open_run(tmp_path)
    assert view.series("loss").steps.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert view.series("loss").values.tolist() == [1.0] * 6 + [2.0] * 2
    ghosts = view.series("loss", ghosts=True)
    assert (ghosts.steps.tolist(), ghosts.values.tolist()) == ([6, 7, 8, 9], [1.0] * 4)
    assert [attempt.from_step for attempt in view.attempts] == [None, 5]
    assert len(rows_of(tmp_path)) == 12  # nothing was removed


def test_resume_from_step_zero_is_not_taken_for_no_resume(tmp_path):
    record(tmp_path, range(3))
    with rlvitals.start(tmp_path, resume=0) as run:
        run.log({"loss": 2.0})
    assert run.attempt == 2
    assert attempts_of(tmp_path)[-1]["from_step"] == 0
    assert rlvitals.open_run(tmp_path).series("loss").steps.tolist() == [0, 1]


def test_a_resume_that_logs_nothing_abandons_nothing(tmp_path):
    record(tmp_path, range(10))
    record(tmp_path, [], resume=3)
    view = rlvitals.open_run(tmp_path)
    assert view.series("loss").steps.tolist() == list(range(10))
    assert view.ghost_rows == 0


def test_a_third_attempt_may_go_back_behind_the_second(tmp_path):
    record(tmp_path, range(6))
    record(tmp_path, range(4, 8), resume=3)
    record(tmp_path, range(3, 5), resume=2)
    view = rlvitals.open_run(tmp_path)
    assert view.series("loss").steps.tolist() == [0, 1, 2, 3, 4]
    assert view.series("loss").values.tolist() == [1.0, 1.0, 1.0, 3.0, 3.0]
    assert view.rows + view.ghost_rows == len(rows_of(tmp_path)) == 12


@pytest.mark.parametrize("number", [np.int64(50), np.int32(50)], ids=["int64", "int32"])
def test_resume_takes_a_numpy_whole_number(tmp_path, number):
    record(tmp_path, range(3))
    record(tmp_path, [], resume=number)
    assert attempts_of(tmp_path)[-1]["from_step"] == 50


@pytest.mark.parametrize("checkpoint", ["checkpoint-50", "checkpoint-50/", "global_step_50", "some/where/iter_0000050"])
def test_resume_reads_the_step_from_a_checkpoint_s_name(tmp_path, checkpoint):
    record(tmp_path, range(3))
    record(tmp_path, [], resume=checkpoint)
    attempt = attempts_of(tmp_path)[-1]
    assert (attempt["from_step"], attempt["from_checkpoint"]) == (50, checkpoint)


def test_resume_takes_a_path_object(tmp_path):
    record(tmp_path, range(3))
    record(tmp_path, [], resume=Path("checkpoint-2"))
    assert attempts_of(tmp_path)[-1]["from_step"] == 2


@pytest.mark.parametrize("place", ["inside the run", "elsewhere"])
def test_resume_trusts_the_trainer_state_more_than_the_name(tmp_path, place):
    folder = tmp_path / "out"
    record(folder, range(60))
    checkpoint = (folder if place == "inside the run" else tmp_path) / "checkpoint-50"
    checkpoint.mkdir()
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 47, "epoch": 1.5}))
    record(folder, [48], resume="checkpoint-50" if place == "inside the run" else checkpoint)
    assert attempts_of(folder)[-1]["from_step"] == 47
    assert rlvitals.open_run(folder).last_step == 48


@pytest.mark.parametrize("state", ["{", "[]", "{}", '{"global_step": null}', '{"global_step": "soon"}'])
def test_a_broken_trainer_state_leaves_the_name_to_decide(tmp_path, state):
    record(tmp_path, range(3))
    (tmp_path / "checkpoint-50").mkdir()
    (tmp_path / "checkpoint-50" / "trainer_state.json").write_text(state)
    record(tmp_path, [], resume="checkpoint-50")
    assert attempts_of(tmp_path)[-1]["from_step"] == 50


@pytest.mark.parametrize("resume", ["final_model", "latest", -1, 2.5], ids=repr)
def test_a_resume_that_names_no_step_is_refused_and_the_run_stays_free(tmp_path, resume):
    record(tmp_path, range(3))
    with pytest.raises(ConfigError, match=r"resume="):
        rlvitals.start(tmp_path, resume=resume)
    assert not list(tmp_path.glob("run.lock*"))
    assert len(attempts_of(tmp_path)) == 1
    assert record(tmp_path, [3], resume=True).attempt == 2


def test_resume_on_an_empty_directory_is_a_first_start(tmp_path):
    run = record(tmp_path / "new", [0], resume=True)
    assert run.attempt == 1
    assert rlvitals.open_run(tmp_path / "new").series("loss").steps.tolist() == [0]


def test_resume_from_a_step_on_an_empty_directory_counts_on_from_there(tmp_path):
    """The weights come from elsewhere, so the recording begins in the middle."""
    with rlvitals.start(tmp_path / "new", resume=50) as run:
        run.log({"loss": 1.0})
    assert run.attempt == 1
    assert rows_of(tmp_path / "new")[0]["step"] == 51


def test_a_resume_keeps_settings_that_are_not_given_again(tmp_path):
    record(tmp_path, [0], name="kto", algorithm="kto", framework="trl", total_steps=100)
    created = rlvitals.open_run(tmp_path).info.created
    record(tmp_path, [1], resume=True, total_steps=200)
    info = rlvitals.open_run(tmp_path).info
    assert (info.name, info.algorithm, info.framework, info.total_steps) == ("kto", "kto", "trl", 200)
    assert (info.created, info.attempt) == (created, 2)


def test_a_resumed_run_forgets_the_failure_before(tmp_path):
    rlvitals.start(tmp_path).finish("failed", "out of memory")
    record(tmp_path, [0], resume=True)
    info = rlvitals.open_run(tmp_path).info
    assert (info.status, info.error) == ("finished", None)


def test_attempts_are_numbered_on_even_where_their_list_is_lost(tmp_path):
    record(tmp_path, range(3))
    record(tmp_path, [3], resume=True)
    (tmp_path / "attempts.jsonl").unlink()
    assert record(tmp_path, [4], resume=True).attempt == 3


def test_a_run_of_a_newer_format_is_refused_and_left_as_it_is(tmp_path):
    record(tmp_path, range(3))
    card = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**card, "schema": 999, "written_by": "9.0"}))
    before = contents_of(tmp_path)
    with pytest.raises(RunUnreadable, match=r"format 999.*9\.0.*pip install --upgrade"):
        rlvitals.start(tmp_path, resume=True)
    after = contents_of(tmp_path)
    before.pop(tmp_path / "heartbeat"), after.pop(tmp_path / "heartbeat")
    assert after == before


# Overwrite


def test_overwrite_removes_our_files_and_keeps_the_user_s(tmp_path):
    old = record(tmp_path, range(300))
    with rlvitals.start(tmp_path, resume=True) as run:
        run.log_eval({"accuracy": 0.5}, step=7)
    _ = rlvitals.open_run(tmp_path).metrics
    assert list((tmp_path / "index").iterdir())
    ranks = tmp_path / "logs" / "ranks"
    ranks.mkdir()
    (ranks / "rank-1.jsonl").write_text('{"step":1,"attempt":1,"loss":1.0}\n')
    mine = {
        "notes.txt": "mine",
        "checkpoint-50/model.bin": "weights",
        "checkpoint-50/trainer_state.json": "{}",
        "final_model/config.json": "{}",
        "logs/mine.log": "mine",
        "eval_logs/mine.json": "{}",
    }
    for name, text in mine.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    new = record(tmp_path, [0], overwrite=True)
    assert new.id != old.id
    assert new.attempt == 1
    ours = {"run.json", "config.json", "attempts.jsonl", LOG.as_posix(), "logs/findings.jsonl"}
    assert files_of(tmp_path) - {"heartbeat"} == ours | mine.keys()
    assert {name: (tmp_path / name).read_text() for name in mine} == mine
    assert len(rows_of(tmp_path)) == 1
    assert [attempt["number"] for attempt in attempts_of(tmp_path)] == [1]
    assert rlvitals.open_run(tmp_path).series("loss").steps.tolist() == [0]


def test_overwrite_where_there_is_no_run_is_a_first_start(tmp_path):
    assert record(tmp_path / "new", [0], overwrite=True).attempt == 1


def test_overwrite_does_not_touch_a_run_that_is_being_recorded(tmp_path):
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 1.0})
        with pytest.raises(RunLocked):
            rlvitals.start(tmp_path, overwrite=True)
        run.log({"loss": 2.0})
    assert [row["loss"] for row in rows_of(tmp_path)] == [1.0, 2.0]


def test_an_overwritten_run_has_a_heartbeat_from_its_first_moment(tmp_path):
    """Without one, other hosts treat the lock as dead until the first heartbeat ten seconds later."""
    record(tmp_path, [0])
    with rlvitals.start(tmp_path, overwrite=True):
        assert (tmp_path / "heartbeat").exists()


# Settings


def test_an_unknown_setting_is_refused_with_the_nearest_one(tmp_path):
    with pytest.raises(ConfigError, match=r"no setting 'totel_steps'\. Did you mean 'total_steps'\?"):
        rlvitals.start(tmp_path / "out", totel_steps=100)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rlvitals": {"stict": True}}, "Did you mean 'strict'?"),
        ({"track_wiht": "wandb"}, "Did you mean 'track_with'?"),
        ({"exp_nam": "kto"}, "Did you mean 'exp_name'?"),
        ({"rlvitals": "strict"}, "must be a mapping"),
        ({"exp_name": 7}, "name must be a text"),
        ([1, 2], "config must be a mapping or the path of a YAML file"),
    ],
    ids=repr,
)
def test_a_mistake_in_the_configuration_is_named(tmp_path, config, words):
    with pytest.raises(ConfigError) as caught:
        rlvitals.start(tmp_path / "out", config=config)
    assert words in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("fsync", "sometimes"),
        ("fsync", -1),
        ("fsync", math.nan),
        ("total_steps", 0),
        ("total_steps", "many"),
        ("actions", "obey"),
        ("rank", -1),
        ("name", " "),
        ("tracker_kwargs", ["wandb"]),
        ("track_with", [3]),
    ],
)
def test_a_setting_of_the_wrong_kind_is_refused_by_name(tmp_path, setting, value):
    with pytest.raises(ConfigError, match=setting):
        rlvitals.start(tmp_path / "out", **{setting: value})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("trackers", ["no-such-tracker", ["no-such-tracker"]])
def test_an_unknown_tracker_is_refused_before_anything_is_made(tmp_path, trackers):
    with pytest.raises(ConfigError, match=r"unknown tracker 'no-such-tracker'"):
        rlvitals.start(tmp_path / "out", track_with=trackers)
    assert not (tmp_path / "out").exists()


def test_the_configuration_is_kept_for_the_record(tmp_path):
    record(tmp_path, [0], config={"optim": {"lr": 5e-7}, "seed": 1}, algorithm="kto")
    kept = rlvitals.open_run(tmp_path).config
    assert kept["optim"] == {"lr": 5e-7}
    assert kept["seed"] == 1
    assert kept["rlvitals"]["algorithm"] == "kto"


def test_arguments_of_argparse_are_a_configuration(tmp_path):
    record(tmp_path, [0], config=argparse.Namespace(lr=5e-7, exp_name="parsed"))
    view = rlvitals.open_run(tmp_path)
    assert (view.name, view.config["lr"]) == ("parsed", 5e-7)


def test_a_yaml_file_is_read_and_its_references_resolved(tmp_path, monkeypatch):
    monkeypatch.setenv("MODEL_HOME", "models")
    monkeypatch.delenv("NOT_SET_ANYWHERE", raising=False)
    path = tmp_path / "recipe.yaml"
    path.write_text(
        r"""
        exp_name: kto-${model.size}
        model: {size: 7b, base: "${oc.env:MODEL_HOME}/base", revision: "${oc.env:NOT_SET_ANYWHERE,main}"}
        lr: 0.0000005
        optim: {lr: "${lr}", betas: [0.9, "${optim.beta2}"], beta2: 0.99}
        prompt: 'a literal \${name}'
        rlvitals: {total_steps: 100, strict: true}
        """
    )
    run = record(tmp_path / "out", [0], config=path, total_steps=200)
    assert run.name == "kto-7b"
    assert run.settings.strict is True
    kept = rlvitals.open_run(tmp_path / "out").config
    assert kept["model"] == {"size": "7b", "base": "models/base", "revision": "main"}
    assert kept["optim"] == {"lr": 5e-7, "betas": [0.9, 0.99], "beta2": 0.99}
    assert kept["prompt"] == "a literal ${name}"
    assert kept["rlvitals"]["total_steps"] == 200  # the keyword takes precedence


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: ${b}\nb: ${a}\n", "refers to itself"),
        ("a: ${modle.size}\nmodel: {size: 7b}\n", "Did you mean 'model'?"),
        ("a: ${oc.env:NOT_SET_ANYWHERE}\n", "NOT_SET_ANYWHERE, which is not set"),
        ("a: [1, 2\n", "is not valid YAML"),
        ("- a\n- b\n", "must hold a mapping"),
    ],
)
def test_a_yaml_file_that_cannot_be_used_is_refused_with_the_reason(tmp_path, monkeypatch, text, words):
    monkeypatch.delenv("NOT_SET_ANYWHERE", raising=False)
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        rlvitals.start(tmp_path / "out", config=str(tmp_path / "recipe.yaml"))
    assert words in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_yaml_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.yaml.*No such file"):
        rlvitals.start(tmp_path / "out", config=tmp_path / "missing.yaml")


# What changed between attempts


def test_changed_settings_of_the_trainer_are_recorded_with_the_attempt(tmp_path):
    record(tmp_path, [0], config={"optim": {"lr": 5e-7, "eps": 1e-8}, "seed": 1})
    record(tmp_path, [1], config={"optim": {"lr": 1e-6, "eps": 1e-8}, "warmup": 10}, resume=True)
    assert [attempt["changed"] for attempt in attempts_of(tmp_path)] == [
        {},
        {"optim.lr": [5e-7, 1e-6], "seed": [1, None], "warmup": [None, 10]},
    ]
    assert rlvitals.open_run(tmp_path).config["optim"]["lr"] == 1e-6


def test_an_unchanged_configuration_changes_nothing_whatever_is_in_it(tmp_path):
    config = {
        "path": Path("models") / "base",
        "betas": (0.9, 0.99),
        "limit": math.inf,
        "tasks": {"mail"},
        "flags": {True: 1, None: 2, 3: 4},
        "password": "hidden",
    }
    record(tmp_path, [0], config=config)
    record(tmp_path, [1], config=config, resume=True)
    assert attempts_of(tmp_path)[1]["changed"] == {}


def test_a_resume_without_a_configuration_keeps_the_one_on_record(tmp_path):
    record(tmp_path, [0], config={"optim": {"lr": 5e-7}, "seed": 1})
    record(tmp_path, [1], resume=True)
    assert attempts_of(tmp_path)[1]["changed"] == {}
    kept = rlvitals.open_run(tmp_path).config
    assert (kept["optim"], kept["seed"]) == ({"lr": 5e-7}, 1)


def test_a_changed_secret_is_recorded_nowhere(tmp_path):
    record(tmp_path, [0], config={"wandb": {"api_key": "old-0123456789"}})
    record(tmp_path, [1], config={"wandb": {"api_key": "new-0123456789"}}, resume=True)
    assert not [path for path, data in contents_of(tmp_path).items() if b"0123456789" in data]


# A directory that cannot be written


def test_a_directory_below_a_file_is_refused_with_the_reason(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match=r"cannot write to .*Choose another output directory"):
        rlvitals.start(tmp_path / "file" / "out")
    with pytest.raises(RunError, match=r"cannot write to .*Choose another output directory"):
        rlvitals.start(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_file_where_our_folder_should_be_is_refused_as_a_run_error_and_the_run_stays_free(tmp_path):
    (tmp_path / "logs").write_text("mine")
    with pytest.raises(RunError, match="logs"):
        rlvitals.start(tmp_path)
    assert files_of(tmp_path) - {"heartbeat"} == {"logs"}


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no permissions of this kind")
def test_a_directory_without_permission_is_refused_with_the_reason():
    with tempfile.TemporaryDirectory() as folder:  # another user may not enter pytest's folder
        record(Path(folder, "ours"), [1])  # imports modules that another user may not read
        Path(folder).chmod(0o555)
        with as_stranger(), pytest.raises(RunError, match=r"cannot write to .*Permission denied"):
            rlvitals.start(Path(folder, "out"))
        Path(folder).chmod(0o700)


def test_a_read_only_disk_is_refused_and_its_run_can_still_be_read(small_disk):
    record(small_disk / "run", range(300))
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for folder in ("run", "new"):
        with pytest.raises(RunError, match=r"cannot write to .*Read-only file system"):
            rlvitals.start(small_disk / folder, resume=True)
    view = rlvitals.open_run(small_disk / "run")
    assert view.series("loss").steps.tolist() == list(range(300))
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    assert record(small_disk / "run", [300], resume=True).attempt == 2


def test_a_full_disk_is_refused_without_litter(small_disk):
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "filler").write_bytes(b"x" * 2**20)
    with pytest.raises(RunError, match=r"cannot write to .*No space left"):
        rlvitals.start(small_disk / "run")
    assert files_of(small_disk) == {"filler"}


def test_the_drafts_of_killed_processes_are_swept_away_at_the_next_start(tmp_path):
    record(tmp_path, [0])
    old, recent = tmp_path / ".run.json.0123abcd.tmp", tmp_path / "run.lock.draft.0123abcd"
    for draft in (old, recent):
        draft.write_text("{")
    os.utime(old, (0, 0))
    record(tmp_path, [1], resume=True)
    assert not old.exists()
    assert recent.exists()  # it may be in use


def test_resume_none_means_no_resume(tmp_path):
    with rlvitals.start(tmp_path / "run", resume=None) as run:
        assert run.attempt == 1
    with pytest.raises(RunExists):
        rlvitals.start(tmp_path / "run", resume=None)
