"""JSON lines and JSON documents: step names, nesting, faults, and a round trip of anything."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

import rlvitals
from rlvitals.importers import NotALog, importer_for, read_log


def write(path, *rows, end="\n"):
    path.write_text("".join(json.dumps(row) + end for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "name",
    ["step", "global_step", "_step", "training/global_step", "train/global_step", "progress/step", "iteration",
     "episode", "current_steps", "Step"],
)  # fmt: skip
def test_the_step_is_found_under_any_of_its_names(tmp_path, name):
    log = read_log(write(tmp_path / "log", *({name: step, "loss": 1.0} for step in (10, 20, 30))))
    assert [row["step"] for row in log.rows] == [10, 20, 30]


def test_rows_without_a_step_are_numbered_and_a_note_reports_it(tmp_path):
    log = read_log(write(tmp_path / "log", {"loss": 1.0}, {"loss": 0.5}))
    assert [row["step"] for row in log.rows] == [1, 2]
    assert log.notes == ["no row says its step: rows are numbered from 1"]


def test_two_names_of_the_step_in_one_file_are_one_axis(tmp_path):
    log = read_log(write(tmp_path / "log", {"step": 1, "loss": 1.0}, {"global_step": 2, "loss": 0.5}))
    assert [row["step"] for row in log.rows] == [1, 2]


def test_a_count_of_log_calls_is_not_taken_for_the_step(tmp_path):
    rows = [{"_step": 0, "train/global_step": 10, "loss": 1.0}, {"_step": 1, "gpu": 0.9},
            {"_step": 2, "train/global_step": 20, "loss": 0.9}]  # fmt: skip
    log = read_log(write(tmp_path / "log", *rows))
    assert [row["step"] for row in log.rows] == [10, 10, 20]


def test_verls_file_logger_is_read(tmp_path):
    path = write(
        tmp_path / "log", *({"step": n, "data": {"actor/entropy": 0.1, "critic/score/mean": n}} for n in (1, 2))
    )
    assert read_log(path).rows[1] == {"step": 2, "actor/entropy": 0.1, "critic/score/mean": 2}


def test_ms_swift_and_llama_factory_logs_give_steps_and_their_number(tmp_path):
    swift = read_log(write(tmp_path / "a", {"loss": 1.0, "global_step/max_steps": "10/145"}, {"loss": 0.9}))
    assert (swift.rows[0]["step"], swift.config) == (10, {"max_steps": 145})
    factory = read_log(
        write(tmp_path / "b", {"current_steps": 5, "total_steps": 60, "loss": 1.0, "elapsed_time": "0:01"})
    )
    assert (factory.rows[0]["step"], factory.config) == (5, {"max_steps": 60})


def test_steps_that_restart_in_each_epoch_are_counted_on(tmp_path):
    rows = [{"epoch": epoch, "step": step, "loss": 1.0} for epoch in range(3) for step in range(4)]
    log = read_log(write(tmp_path / "log", *rows))
    assert [row["step"] for row in log.rows] == list(range(12))
    assert log.notes == ["steps start over in each epoch: they are numbered on"]


def test_a_restart_is_distinguished_from_an_evaluation_that_comes_late(tmp_path):
    rows = [{"step": n, "loss": 1.0, "kl": 0.1} for n in range(5)]
    late = read_log(write(tmp_path / "late", *rows, {"step": 2, "eval/acc": 0.5}, {"step": 5, "loss": 1.0, "kl": 0.1}))
    assert late.notes == []
    again = read_log(write(tmp_path / "again", *rows, *rows[3:]))
    assert again.notes == ["steps start again at row 6: a restart inside the file"]
    # An evaluation that repeats a metric of the training, and a restart whose first row also has a new metric.
    mixed = {"step": 2, "eval/acc": 0.5, "eval/len": 9.0, "kl": 0.1}
    assert read_log(write(tmp_path / "mixed", *rows, mixed, {"step": 5, "loss": 1.0, "kl": 0.1})).notes == []
    wider = [row | {"entropy": 0.3} for row in rows[2:]]
    assert read_log(write(tmp_path / "wider", *rows, *wider)).notes == again.notes


def test_null_is_absent_and_nan_is_there(tmp_path):
    path = tmp_path / "log"
    path.write_text('{"step": 1, "loss": NaN, "kl": null, "x": Infinity, "y": -Infinity, "z": "nan"}\n')
    (row,) = read_log(path).rows
    assert repr(row) == "{'step': 1, 'loss': nan, 'x': inf, 'y': -inf, 'z': nan}"


def test_texts_are_left_out_and_named(tmp_path):
    log = read_log(write(tmp_path / "log", {"step": 1, "loss": 1.0, "prompt": "2+2?", "ids": ["a", "b"]}))
    assert log.rows == [{"step": 1, "loss": 1.0}]
    assert log.notes == ["left out, because they hold no numbers: ids, prompt"]


def test_a_first_line_of_settings_is_no_row(tmp_path):
    settings = {"model": "tiny", "learning_rate": 5e-6, "num_generations": 8, "output_dir": "out"}
    log = read_log(write(tmp_path / "log", settings, {"step": 1, "loss": 1.0}))
    assert (len(log.rows), log.config) == (1, {"learning_rate": 5e-6, "num_generations": 8})


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [(1764018271.5, 1764018271.5), (1764018271500, 1764018271.5), ("2025-11-24T21:04:31.500+00:00", 1764018271.5)],
)
def test_times_are_unix_seconds(tmp_path, stamp, seconds):
    (row,) = read_log(write(tmp_path / "log", {"step": 1, "timestamp": stamp, "loss": 1.0})).rows
    assert row["timestamp"] == seconds


def test_seconds_since_the_start_are_not_taken_for_a_time(tmp_path):
    (row,) = read_log(write(tmp_path / "log", {"step": 1, "timestamp": 12.5, "loss": 1.0})).rows
    assert row == {"step": 1, "loss": 1.0, "metric/timestamp": 12.5}


def test_torn_and_damaged_lines_are_skipped_and_counted(tmp_path):
    path = write(tmp_path / "log", *({"step": n, "loss": 1.0} for n in range(5)))
    path.write_text(path.read_text() + "garbage\n\n" + '{"step": 5, "lo')
    log = read_log(path)
    assert len(log.rows) == 5
    assert log.notes == ["2 lines are not JSON and were skipped"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_marks_at_the_beginning_and_dos_line_ends_are_no_trouble(tmp_path, encoding):
    path = tmp_path / "log"
    path.write_bytes('{"step": 1, "loss": 1.0}\r\n{"step": 2, "loss": 0.5}\r\n'.encode(encoding))
    assert [row["loss"] for row in read_log(path).rows] == [1.0, 0.5]


def test_the_extension_says_nothing(tmp_path):
    assert importer_for(write(tmp_path / "log.csv", {"step": 1, "loss": 1.0})).name == "jsonl"
    (tmp_path / "log.jsonl").write_text("step,loss\n1,0.5\n")
    assert importer_for(tmp_path / "log.jsonl").name == "csv"


def test_rlvitals_own_rows_are_read_with_their_nan(tmp_path):
    with rlvitals.start(tmp_path / "run") as run:
        run.log({"loss": math.nan, "kl": 0.5}, step=3)
    (row,) = read_log(tmp_path / "run" / "logs" / "training_metrics.jsonl").rows
    assert math.isnan(row["loss"])
    assert (row["step"], row["kl"]) == (3, 0.5)
    assert "timestamp" in row


NAMES = some.text(some.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda name: name.lower().replace(" ", "_") not in RESERVED and not name.startswith("_") and "/" not in name
)
RESERVED = {"step", "steps", "time", "date", "datetime", "timestamp", "data", "iter", "update", "episode", "episodes",
            "epoch", "iteration", "seed", "model"}  # fmt: skip
NUMBERS = some.floats() | some.integers(-(2**62), 2**62)


@given(some.lists(some.dictionaries(NAMES, NUMBERS, min_size=1, max_size=6), min_size=1, max_size=8))
def test_what_is_written_as_json_lines_reads_back_the_same(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    numbered = [{"step": step, **row} for step, row in enumerate(rows)]
    log = read_log(write(path, *numbered))
    assert [list(row) for row in log.rows] == [list(row) for row in numbered]
    assert repr(log.rows) == repr(numbered)


# Documents


def test_a_trainer_state_alternates_training_and_evaluation(tmp_path):
    history = [{"step": 10, "loss": 0.7, "epoch": 0.1}, {"step": 10, "eval_loss": math.nan, "epoch": 0.1}]
    (tmp_path / "checkpoint-10").mkdir()
    state = {"log_history": history, "max_steps": 40, "num_train_epochs": 1, "best_metric": None}
    (tmp_path / "checkpoint-10" / "trainer_state.json").write_text(json.dumps(state))
    log = read_log(tmp_path)
    assert log.format == "trainer_state"
    assert [set(row) for row in log.rows] == [{"step", "loss", "epoch"}, {"step", "eval_loss", "epoch"}]
    assert math.isnan(log.rows[1]["eval_loss"])
    assert log.config == {"max_steps": 40, "num_train_epochs": 1}


def test_of_several_checkpoints_the_last_one_counts(tmp_path):
    for step in (500, 1000):
        (tmp_path / f"checkpoint-{step}").mkdir()
        history = [{"step": n, "loss": 1.0} for n in range(100, step + 1, 100)]
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert len(read_log(tmp_path).rows) == 10


def test_columns_in_a_mapping_are_rows(tmp_path):
    (tmp_path / "log.json").write_text(json.dumps({"step": [1, 2, 3], "loss": [0.3, 0.2, 0.1], "name": "x"}, indent=1))
    assert read_log(tmp_path / "log.json").rows[2] == {"step": 3, "loss": 0.1}


def test_rows_inside_a_mapping_are_found_with_the_settings_beside_them(tmp_path):
    document = {"config": {"learning_rate": 1e-5, "beta": 0.1}, "history": [{"step": 1, "loss": 1.0}] * 2}
    (tmp_path / "log.json").write_text(json.dumps(document, indent=1))
    log = read_log(tmp_path / "log.json")
    assert (len(log.rows), log.config) == (2, {"learning_rate": 1e-5, "beta": 0.1})


@pytest.mark.parametrize("text", ['{"a": 1,\n "b": [1', "[[1, 2],\n [3, 4]]", '{"model": "x",\n "tokens": {"a": "b"}}'])
def test_a_document_without_rows_is_no_log(tmp_path, text):
    (tmp_path / "log.json").write_text(text)
    with pytest.raises(NotALog, match=r"What can be read: .*HF trainer_state.json; a JSON list of rows"):
        read_log(tmp_path / "log.json")


# Documents of any shape


def read_document(tmp_path, document, indent=1):
    path = tmp_path / "log.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document, indent=indent))
    return read_log(path)


STEPS = [{"step": n, "reward": n / 10, "kl": 0.1} for n in range(1, 6)]
EXPECTED = [(n, n / 10) for n in range(1, 6)]


@pytest.mark.parametrize(
    "document",
    [
        {"history": {"train": STEPS}, "config": {"learning_rate": 1e-6}},
        {"a": {"b": {"c": {"rows": STEPS}}}},
        {"metrics": {"step": [1, 2, 3, 4, 5], "reward": [0.1, 0.2, 0.3, 0.4, 0.5]}},
        {"metrics": {"reward": [0.1, 0.2, 0.3, 0.4, 0.5], "kl": [0.1] * 5}, "name": "x"},
        [{"step": n, "metrics": {"reward": n / 10}} for n in range(1, 6)],
        {"reward": [[n, n / 10] for n in range(1, 6)], "kl": [[n, 0.5] for n in range(1, 6)], "shape": [[1], [2]]},
        {"reward": [[1_764_000_000.5 + n, n, n / 10] for n in range(1, 6)]},
        {str(n): {"reward": n / 10} for n in range(1, 6)},
        {"base": {"reward": 0.0}, **{f"step_{n:03d}": {"reward": n / 10} for n in range(1, 6)}},
        {"by": {f"checkpoint-{n}": {"reward": n / 10} for n in (5, 4, 3, 2, 1)}},
        {"reward": {str(n): n / 10 for n in range(1, 6)}, "kl": {str(n): 0.1 for n in range(1, 6)}},
        [{"step": n, "name": "reward", "value": n / 10} for n in range(1, 6)],
        [{"episode": n, "reward": n / 10} for n in range(1, 6)],
        [{"reward": n / 10} for n in range(1, 6)],
        {"runs": [{"name": "a", "history": STEPS}]},
    ],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_rows_and_columns_are_found_wherever_they_are(tmp_path, document, indent):
    rows = read_document(tmp_path, document, indent).rows
    assert [(row["step"], row["reward"]) for row in rows] == EXPECTED


def test_parts_of_a_metric_are_columns_too(tmp_path):
    document = {"run": {"steps": [1, 2], "reward": [0.5, 0.6], "parts": {"format": [0.1, 0.2], "answer": [0.4, 0.4]}}}
    assert read_document(tmp_path, document).rows[1] == {
        "step": 2, "steps": 2, "reward": 0.6, "parts/format": 0.2, "parts/answer": 0.4,
    }  # fmt: skip


def test_of_several_tables_the_one_like_a_training_is_read_and_the_others_are_named(tmp_path):
    others = {"samples": [{"id": n, "length": n} for n in range(50)], "short": [{"step": 1, "loss": 1.0}, {"step": 2}]}
    log = read_document(tmp_path, {"training": STEPS, **others})
    assert [(row["step"], row["reward"]) for row in log.rows] == EXPECTED
    assert log.notes == [
        "the file holds several tables: training (5 rows) was read, these were not: samples (50 rows), short (2 rows). "
        "To read one of them, save it as its own file"
    ]


def test_evaluations_in_a_list_of_their_own_are_held_out_rows(tmp_path):
    log = read_document(tmp_path, {"train": STEPS, "eval": [{"step": 2, "reward": 0.7}, {"step": 4, "eval_acc": 0.5}]})
    assert [(row["step"], sorted(row)) for row in log.rows][2:5] == [
        (2, ["eval/reward", "step"]), (3, ["kl", "reward", "step"]), (4, ["kl", "reward", "step"]),
    ]  # fmt: skip
    assert log.rows[5] == {"step": 4, "eval_acc": 0.5}
    assert log.notes == ["eval (2 rows) is read as evaluations"]


def test_a_long_evaluation_is_not_taken_for_the_training(tmp_path):
    evaluations = [{"step": n, "reward": 0.7, "kl": 0.1, "accuracy": 0.5} for n in range(1, 30)]
    log = read_document(tmp_path, {"train": STEPS, "eval": evaluations})
    assert [(row["step"], row["reward"]) for row in log.rows if "reward" in row] == EXPECTED


def test_evaluations_without_steps_are_spread_over_the_training(tmp_path):
    log = read_document(tmp_path, {"loss": [5.0, 4.0, 3.0, 2.0], "eval_loss": [4.5, 2.5], "note": ["a", "b", "c"]})
    assert [(row["step"], row["eval_loss"]) for row in log.rows if "eval_loss" in row] == [(2, 4.5), (4, 2.5)]
    assert "eval_loss has no steps: its rows are spread evenly over the training" in log.notes
    assert "left out, because they are lists of another length: note" in log.notes


@pytest.mark.parametrize("split", ["eval", "Validation", "test"])
def test_a_row_that_says_it_is_an_evaluation_is_held_out(tmp_path, split):
    rows = [{"step": n, "split": name, "loss": 0.5} for n in (1, 2) for name in ("train", split)]
    log = read_log(write(tmp_path / "log", *rows))
    assert [sorted(row) for row in log.rows] == [["loss", "step"], ["eval/loss", "step"]] * 2


def test_documents_one_after_another_are_rows(tmp_path):
    text = "\n".join(json.dumps(row, indent=2) for row in STEPS)
    assert [(row["step"], row["reward"]) for row in read_document(tmp_path, text).rows] == EXPECTED
    torn = read_document(tmp_path, text[:-20]).rows
    assert [(row["step"], row["reward"]) for row in torn] == EXPECTED[:-1]


def test_a_console_log_that_begins_with_documents_is_none(tmp_path):
    path = tmp_path / "log"
    settings = json.dumps({"learning_rate": 1e-6, "model": "tiny"}, indent=1)
    path.write_text(f"{settings}\n{settings}\n" + "".join(f"step {n} reward 0.{n} loss 0.5\n" for n in range(1, 6)))
    assert importer_for(path).name == "console"
    assert [(row["step"], row["reward"]) for row in read_log(path).rows] == EXPECTED


def test_nan_and_infinity_in_a_document(tmp_path):
    log = read_document(tmp_path, '{"loss": [1.0, NaN, Infinity], "kl": [null, -Infinity, 0.5]}')
    assert repr(log.rows) == (
        "[{'step': 1, 'loss': 1.0}, {'step': 2, 'loss': nan, 'kl': -inf}, {'step': 3, 'loss': inf, 'kl': 0.5}]"
    )


@pytest.mark.parametrize(
    ("document", "seen"),
    [
        ({"model": "x", "tokens": {"a": "b"}}, "it is an object with model, tokens"),
        ([], "it is an empty list"),
        ([[1, 2], [3, 4]], "it is a list of 2 items: list"),
        ([{"a": "b"}, {"a": "c"}], "rows without metrics .it is an object with a"),
    ],
)
def test_a_document_without_rows_says_what_it_holds(tmp_path, document, seen):
    with pytest.raises(NotALog, match=seen):
        read_document(tmp_path, document)


def test_a_dataset_is_no_log(tmp_path):
    samples = [{"question_id": n, "prompt": "what?", "answer": "that"} for n in range(9)]
    with pytest.raises(NotALog, match=r"its objects hold texts \(answer, prompt\) and no metrics"):
        read_log(write(tmp_path / "a", *samples))
    with pytest.raises(NotALog, match="rows without metrics"):
        read_document(tmp_path, samples)


def test_the_steps_of_an_episode_are_its_length(tmp_path):
    rows = [{"episode": n, "steps": 37 * n % 50, "reward": 0.5} for n in range(1, 5)]
    assert [row["step"] for row in read_log(write(tmp_path / "log", *rows)).rows] == [1, 2, 3, 4]


def test_a_first_row_that_sounds_like_settings_is_a_row_where_the_second_is_like_it(tmp_path):
    rows = [{"step": n, "seed": 3, "model": "tiny", "reward": n / 10} for n in range(1, 4)]
    assert [row["step"] for row in read_log(write(tmp_path / "log", *rows)).rows] == [1, 2, 3]
