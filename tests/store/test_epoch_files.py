"""The record of epochs and the files made from it: one row per epoch, whatever happens."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import fill
from rlvitals.store.epochs import FIXED, EpochStore, Word, decode


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "metrics"


def opened(folder, **settings) -> EpochStore:
    store = EpochStore(folder, **settings)
    store.load()
    return store


def append(store, epoch, **metrics) -> None:
    store.append(Word(epoch, 1000.0 + epoch, store.attempt, metrics))


def table(folder) -> pd.DataFrame:
    return pd.read_csv(folder / "training_metrics.csv")


def history(folder) -> list[dict]:
    def refuse(name):
        raise AssertionError(f"{name} is not strict JSON")

    return json.loads((folder / "training_metrics.json").read_text(), parse_constant=refuse)


def test_late_scores_go_into_the_one_row_of_their_epoch(folder):
    store = opened(folder)
    append(store, 1, loss=2.0, reward=0.1)
    append(store, 2, loss=1.5, reward=0.2)
    append(store, 1, bertscore=0.5)
    store.save()
    frame = table(folder)
    assert list(frame["epoch"]) == [1, 2]
    assert list(frame["loss"]) == [2.0, 1.5]
    assert frame["bertscore"].tolist()[0] == 0.5
    assert math.isnan(frame["bertscore"][1])
    assert [row["bertscore"] for row in history(folder)] == [0.5, None]
    assert len((folder / "epochs.jsonl").read_bytes().splitlines()) == 3


def test_the_last_word_on_a_value_wins_also_after_a_reload(folder):
    store = opened(folder)
    append(store, 1, loss=2.0, reward=0.1)
    append(store, 1, loss=1.0)
    assert store.epochs[1].metrics == {"loss": 1.0, "reward": 0.1}
    assert opened(folder).epochs[1].metrics == {"loss": 1.0, "reward": 0.1}


def test_columns_are_the_documents_and_then_in_order_of_appearance(folder):
    store = opened(folder)
    append(store, 1, zebra=1.0, loss=2.0)
    append(store, 2, apple=1.0, eval_loss=0.3)
    store.save()
    assert list(table(folder).columns) == [*FIXED, "zebra", "apple", "eval_loss"]
    assert list(history(folder)[0]) == [*FIXED, "zebra", "apple", "eval_loss"]
    again = opened(folder)
    append(again, 3, loss=1.0)
    again.save()
    assert list(table(folder).columns) == [*FIXED, "zebra", "apple", "eval_loss"]


def test_numbers_that_are_none_survive_in_strict_json_and_pandas(folder):
    store = opened(folder)
    append(store, 1, loss=math.nan, reward=math.inf, kl_divergence=-math.inf, entropy=2.0)
    store.save()
    line = json.loads((folder / "epochs.jsonl").read_text())
    assert line["_nonfinite"] == "loss=nan reward=inf kl_divergence=-inf"
    row = history(folder)[0]
    assert (row["loss"], row["reward"], row["entropy"]) == (None, None, 2.0)
    assert row["_nonfinite"] == "loss=nan reward=inf kl_divergence=-inf"
    frame = table(folder)
    assert math.isnan(frame["loss"][0])
    assert (frame["reward"][0], frame["kl_divergence"][0]) == (math.inf, -math.inf)
    assert math.isnan(opened(folder).epochs[1].metrics["loss"])


def test_names_and_texts_with_commas_quotes_and_line_ends_stay_one_cell(folder):
    store = opened(folder)
    append(store, 1, loss=1.0, **{'reward, "shaped"': 0.5, "note": 'first,\n"second"'})
    append(store, 2, loss=0.5)
    store.save()
    frame = table(folder)
    assert frame['reward, "shaped"'][0] == 0.5
    assert frame["note"][0] == 'first,\n"second"'
    assert list(frame["epoch"]) == [1, 2]


def test_a_torn_line_is_left_out_and_does_not_swallow_the_next(folder):
    append(opened(folder), 1, loss=2.0)
    with open(folder / "epochs.jsonl", "ab") as file:
        file.write(b'{"epoch":2,"timestamp":5.0,"lo')
    store = opened(folder)
    assert list(store.epochs) == [1]
    append(store, 2, loss=1.0)
    assert {number: epoch.metrics for number, epoch in opened(folder).epochs.items()} == {
        1: {"loss": 2.0},
        2: {"loss": 1.0},
    }


@pytest.mark.parametrize(
    "line", [b"", b"nonsense", b"[1]", b'{"loss":1}', b'{"epoch":1.5}', b'{"epoch":true}', b'{"epoch":"1"}', b"\xff"]
)
def test_a_line_that_is_no_epoch_is_skipped(line):
    assert decode(line) is None


def test_two_processes_in_turn_lose_nothing_of_each_other(folder):
    trainer, evaluator = opened(folder), opened(folder)
    append(trainer, 1, loss=2.0)
    trainer.save()
    evaluator.read()
    append(evaluator, 1, bertscore=0.5)
    evaluator.save()
    append(trainer, 2, loss=1.0)
    trainer.save()
    frame = table(folder)
    assert list(frame["loss"]) == [2.0, 1.0]
    assert frame["bertscore"][0] == 0.5


@pytest.mark.slow
def test_processes_that_write_at_once_keep_every_word(folder, child_environment):
    code = (
        "import sys; from pathlib import Path; from rlvitals.store.epochs import EpochStore, Word\n"
        "store = EpochStore(Path(sys.argv[1])); store.load()\n"
        "for epoch in range(1, 61):\n"
        "    store.append(Word(epoch, 1.0, 1, {sys.argv[2]: float(epoch)})); store.save()\n"
    )
    names = ("loss", "bleu", "ruby")
    children = [subprocess.Popen([sys.executable, "-c", code, folder, name], env=child_environment) for name in names]
    assert [child.wait() for child in children] == [0, 0, 0]
    store = opened(folder)
    assert len((folder / "epochs.jsonl").read_bytes().splitlines()) == 180
    store.save()
    for name in names:
        assert list(table(folder)[name]) == [float(epoch) for epoch in range(1, 61)]


def test_an_epoch_that_is_trained_again_loses_the_scores_of_the_old_weights(folder):
    first = opened(folder)
    append(first, 1, loss=2.0, reward=0.1)
    append(first, 1, bertscore=0.5)
    resumed = opened(folder)
    append(resumed, 1, loss=1.9, reward=0.2)
    assert resumed.epochs[1].metrics == {"loss": 1.9, "reward": 0.2}
    assert opened(folder).epochs[1].metrics == {"loss": 1.9, "reward": 0.2}


def test_a_correction_by_a_later_tracker_keeps_the_rest(folder):
    first = opened(folder)
    append(first, 1, loss=2.0, reward=0.1)
    append(first, 1, bertscore=0.5)
    later = opened(folder)
    append(later, 1, loss=1.9)
    append(later, 1, bleu=0.3)
    assert later.epochs[1].metrics == {"loss": 1.9, "reward": 0.1, "bertscore": 0.5, "bleu": 0.3}


def test_a_history_another_tracker_left_is_taken_over(folder):
    folder.mkdir()
    old = [{"epoch": 1, "timestamp": "2025-01-01T10:00:00", "loss": 2.0, "reward": 0.1}, {"epoch": 2, "loss": 1.5}]
    (folder / "training_metrics.json").write_text(json.dumps(old))
    store = opened(folder)
    assert not store.is_stale  # reading changes nothing
    append(store, 3, loss=1.0)
    store.save()
    assert list(table(folder)["loss"]) == [2.0, 1.5, 1.0]
    assert list(opened(folder).epochs) == [1, 2, 3]


def test_a_deleted_folder_is_made_again_with_every_epoch(folder):
    store = opened(folder)
    append(store, 1, loss=2.0)
    store.save()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    append(store, 2, loss=1.0)
    store.save()
    assert list(table(folder)["loss"]) == [2.0, 1.0]
    assert list(opened(folder).epochs) == [1, 2]


def test_a_full_disk_costs_no_epoch(small_disk):
    folder = small_disk / "metrics"
    store = opened(folder)
    append(store, 1, loss=2.0)
    store.save()
    filler = fill(small_disk)
    for epoch in range(2, 120):  # the page that is already started holds a few more
        try:
            append(store, epoch, loss=1.0, reward=0.123456789)
        except OSError:
            break
    else:
        pytest.fail("the disk took it all")
    assert store.epochs[epoch].metrics["loss"] == 1.0
    with pytest.raises(OSError, match="No space left"):
        store.save()
    assert list(table(folder)["epoch"]) == [1]  # the old file, whole
    assert not list(folder.glob(".*.tmp"))
    filler.unlink()
    store.save()
    assert list(table(folder)["epoch"]) == list(range(1, epoch + 1))
    assert list(opened(folder).epochs) == list(range(1, epoch + 1))


def test_a_reader_never_sees_half_a_file(folder):
    store = opened(folder)
    append(store, 1, loss=2.0)
    store.save()
    is_done = threading.Event()
    problems = []

    def read():
        while not is_done.is_set():
            try:
                for epochs in (list(table(folder)["epoch"]), [row["epoch"] for row in history(folder)]):
                    assert epochs == list(range(1, len(epochs) + 1)) != []
            except Exception as error:
                problems.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for epoch in range(2, 100):
        append(store, epoch, loss=1.0)
        store.save()
    is_done.set()
    reader.join()
    assert problems == []


def test_only_the_last_epochs_are_kept_in_the_files(folder):
    store = opened(folder)
    for epoch in range(1, 8):
        append(store, epoch, loss=float(epoch))
    store.save(keep_last=3)
    assert list(table(folder)["epoch"]) == [5, 6, 7]
    assert [row["epoch"] for row in history(folder)] == [5, 6, 7]
    assert len(opened(folder).epochs) == 7


def test_old_drafts_of_a_killed_process_are_swept(folder):
    folder.mkdir()
    old, new = folder / ".training_metrics.csv.aa.tmp", folder / ".training_metrics.csv.bb.tmp"
    old.write_text("half")
    new.write_text("half")
    os.utime(old, (time.time() - 3600,) * 2)
    opened(folder)
    assert [path.name for path in folder.iterdir()] == [new.name]


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 6),
            st.dictionaries(
                st.sampled_from(["loss", "reward", "bleu", "my/own", "a,b"]),
                st.one_of(st.floats(), st.integers(-(2**53), 2**53)),
                min_size=1,
            ),
            st.booleans(),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_after_any_sequence_pandas_reads_one_row_an_epoch(tmp_path_factory, words):
    folder = tmp_path_factory.mktemp("epochs") / "metrics"
    store = opened(folder)
    for epoch, metrics, is_reopened in words:
        if is_reopened:
            store = opened(folder)
        append(store, epoch, **metrics)
        store.save()
    frame = table(folder)
    assert list(frame["epoch"]) == sorted({epoch for epoch, _, _ in words})
    last_epoch, last_metrics, _ = words[-1]
    row = frame[frame["epoch"] == last_epoch].iloc[0]
    for name, value in last_metrics.items():
        assert row[name] == pytest.approx(float(value), nan_ok=True)
    assert len(history(folder)) == len(frame)
