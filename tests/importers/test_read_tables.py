"""CSV and TSV: empty cells, padding and real NaN, exports of several tools, faults."""

from __future__ import annotations

import math

import pytest

from rlvitals.importers import NotALog, importer_for, read_log
from rlvitals.views.raw_logs import RawLogs


def read(tmp_path, text):
    path = tmp_path / "log.csv"
    path.write_text(text, encoding="utf-8")
    return read_log(path)


def nans(log, name):
    return [row["step"] for row in log.rows if name in row and math.isnan(row[name])]


def test_empty_cells_are_absent_and_a_nan_beside_them_is_real(tmp_path):
    log = read(tmp_path, "step,loss,eval_loss\n1,0.5,\n2,nan,\n2,,nan\n3,0.4,\n")
    assert [sorted(row) for row in log.rows] == [
        ["loss", "step"],
        ["loss", "step"],
        ["eval_loss", "step"],
        ["loss", "step"],
    ]
    assert (nans(log, "loss"), nans(log, "eval_loss")) == ([2], [2])


def test_nan_in_rows_of_the_other_kind_is_padding(tmp_path):
    log = read(tmp_path, "step,loss,kl,eval_loss,eval_acc\n1,0.5,0.1,nan,nan\n1,nan,nan,0.6,0.5\n2,0.4,0.1,nan,nan\n")
    assert [sorted(row) for row in log.rows] == [
        ["kl", "loss", "step"],
        ["eval_acc", "eval_loss", "step"],
        ["kl", "loss", "step"],
    ]
    assert log.notes == ["6 nan are padding and were left out"]


def test_a_gradient_that_is_nan_beside_numbers_is_real(tmp_path):
    log = read(tmp_path, "step,loss,grad_norm,eval_loss\n1,0.5,nan,nan\n2,0.4,nan,nan\n3,0.3,1.0,0.5\n")
    assert nans(log, "grad_norm") == [1, 2]
    assert nans(log, "eval_loss") == []


def test_a_training_that_breaks_for_good_is_nan_from_there_on(tmp_path):
    rows = [
        f"{n},{0.5 if n < 6 else 'nan'},{-20.0 if n < 6 else 'nan'},{-30.0 if n < 6 else 'nan'},1e-6" for n in range(12)
    ]
    log = read(tmp_path, "step,loss,logps/chosen,logps/rejected,learning_rate\n" + "\n".join(rows))
    assert nans(log, "loss") == nans(log, "logps/chosen") == list(range(6, 12))


def test_columns_logged_every_second_row_are_padded_between(tmp_path):
    rows = [f"{n},0.5,{'nan,nan,nan' if n % 2 else '1.0,64.0,60.0'}" for n in range(20)]
    log = read(tmp_path, "step,loss,reward,completions/mean_length,completions/min_length\n" + "\n".join(rows))
    assert nans(log, "reward") == nans(log, "completions/mean_length") == []
    assert sum("reward" in row for row in log.rows) == 10


def test_a_loss_that_is_nan_where_an_evaluation_shares_its_row_is_real(tmp_path):
    log = read(tmp_path, "step,loss,eval_loss\n1,0.5,0.6\n2,nan,0.7\n3,0.4,0.8\n")
    assert nans(log, "loss") == [2]


def test_a_row_of_nothing_but_nan_is_what_was_logged(tmp_path):
    log = read(tmp_path, "epoch,train_loss,val_loss\n1,0.5,0.6\n2,nan,nan\n3,nan,nan\n")
    assert [row["step"] for row in log.rows] == [1, 2, 3]
    assert nans(log, "train_loss") == nans(log, "val_loss") == [2, 3]


def test_rows_of_nothing_but_nan_again_and_again_are_padding(tmp_path):
    log = read(tmp_path, "step,loss\n" + "\n".join(f"{n},{'nan' if n % 2 else 0.5}" for n in range(12)))
    assert [row["step"] for row in log.rows] == [0, 2, 4, 6, 8, 10]


def test_a_column_that_is_nan_throughout_is_real(tmp_path):
    log = read(tmp_path, "step,loss,logits/chosen\n1,0.5,nan\n2,0.4,nan\n")
    assert nans(log, "logits/chosen") == [1, 2]


def test_pandas_row_numbers_and_notebook_words_are_nothing(tmp_path):
    log = read(tmp_path, ",Step,Training Loss,Validation Loss\n0,10,0.5,No log\n1,20,0.4,0.45\n")
    assert log.rows == [{"step": 10, "Training Loss": 0.5}, {"step": 20, "Training Loss": 0.4, "Validation Loss": 0.45}]


@pytest.mark.parametrize("delimiter", ["\t", ";"])
def test_other_delimiters(tmp_path, delimiter):
    log = read(tmp_path, "step,loss\n1,0.5\n2,0.4\n".replace(",", delimiter))
    assert log.rows == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.4}]


def test_a_mark_dos_line_ends_and_quoted_cells_over_lines(tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes(b'\xef\xbb\xbfstep,note,loss\r\n1,"two\r\nlines, one cell",0.5\r\n2,"x",0.4\r\n')
    log = read_log(path)
    assert log.rows == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.4}]
    assert log.notes == ["left out, because they hold no numbers: note"]


@pytest.mark.parametrize(
    ("notes", "steps"),
    [({2: '5" pipe'}, [1, 2, 3, 4, 5]), ({2: '"torn'}, [1, 3, 4, 5]), ({2: '"torn', 4: '"torn'}, [1, 3, 5])],
)
def test_a_quote_that_is_not_closed_costs_no_other_row(tmp_path, notes, steps):
    lines = [f"{step},{notes.get(step, 'x')},{1 / step}\n" for step in range(1, 6)]
    assert [row["step"] for row in read(tmp_path, "step,note,loss\n" + "".join(lines)).rows] == steps


def test_short_and_torn_lines_are_skipped_and_counted(tmp_path):
    log = read(tmp_path, "step,loss,kl\n1,0.5,0.1\n2,0.4\n3,0.3,0.1\n4,0.")
    assert [row["step"] for row in log.rows] == [1, 3]
    assert log.notes == ["2 lines have too few or too many cells and were skipped"]


def test_a_first_row_that_was_written_twice_is_no_restart_and_the_first_time_column_counts(tmp_path):
    log = read(tmp_path, "step,timestamp,date,loss\n1,1.7e9,1.6e9,0.5\n1,1.7e9,1.6e9,0.5\n2,1.7e9,1.6e9,0.4\n")
    assert [(row["step"], row["timestamp"]) for row in log.rows] == [(1, 1.7e9), (1, 1.7e9), (2, 1.7e9)]
    assert log.notes == []


def test_a_header_that_comes_again_is_a_restart_that_appended(tmp_path):
    log = read(tmp_path, "step,loss\n1,0.5\n2,0.4\nstep,loss\n1,0.5\n")
    assert [row["step"] for row in log.rows] == [1, 2, 1]
    assert log.notes == ["steps start again at row 3: a restart inside the file"]


def test_prose_with_commas_is_no_table(tmp_path):
    path = tmp_path / "log"
    path.write_text("Loading the model, please wait\nDone, at last\nstep 1: loss=0.5, kl=0.1\n")
    assert importer_for(path).name == "console"
    assert read_log(path).rows == [{"step": 1, "loss": 0.5, "kl": 0.1}]


# Tables of any shape

EXPECTED = [{"step": n, "reward": n / 10, "kl": 0.25} for n in range(1, 6)]


def rows_of(template, numbers=range(1, 6)):
    return "".join(template.format(n=n) + "\n" for n in numbers)


@pytest.mark.parametrize(
    "text",
    [
        "step;reward;kl\n" + rows_of("{n};0,{n};0,25"),
        "step\treward\tkl\n" + rows_of("{n}\t0,{n}\t0,25"),
        "step|reward|kl\n" + rows_of("{n}|0.{n}|0.25"),
        "step reward kl\n" + rows_of("{n} 0.{n} 0.25"),
        "# step reward kl\n" + rows_of("{n} 0.{n} 0.25"),
        "# made by me, yesterday\n# seed 3\nstep,reward,kl\n" + rows_of("{n},0.{n},0.25"),
        "Experiment: a, b\nlearning rate: 1e-5\n\nstep,reward,kl\n" + rows_of("{n},0.{n},0.25"),
        "#step,reward,kl\n" + rows_of("{n},0.{n},0.25"),
        ",step,reward,kl\n" + rows_of("7,{n},0.{n},0.25"),
        "step,reward,kl\n" + rows_of('"{n}"," 0.{n}",25%'),
        "step,reward,kl\n" + rows_of('{n},0.{n} ± 0.02,"0.25 [0.1, 0.3]"'),
        "step,metric,value\n" + rows_of("{n},reward,0.{n}") + rows_of("{n},kl,0.25"),
        "tag,step,value\n" + rows_of("reward,{n},0.{n}\nkl,{n},0.25"),
        '"Step","my - run - reward","my - run - reward__MIN","my - run - reward__MAX","my - run - kl"\n'
        + rows_of('"{n}","0.{n}","0","1","0.25"'),
    ],
)
def test_a_table_is_read_however_it_is_written(tmp_path, text):
    assert read(tmp_path, text).rows == EXPECTED


def test_of_an_export_of_several_runs_the_first_is_read_and_the_others_are_named(tmp_path):
    header = "Step,a - reward,a - reward__MIN,b - reward,b - reward__MIN,c - reward\n"
    log = read(tmp_path, header + rows_of("{n},0.{n},0,9,9,9"))
    assert [(row["step"], row["reward"]) for row in log.rows] == [(n, n / 10) for n in range(1, 6)]
    assert log.notes == [
        "the export holds 3 runs: a was read, these were not: b, c. To read another, export it alone or move its "
        "columns to the front"
    ]


def test_a_second_table_below_the_first(tmp_path):
    text = "step,loss\n" + rows_of("{n},0.{n}") + "\nEvaluation\nstep,loss,accuracy\n" + rows_of("{n},0.5,True", [2, 4])
    log = read(tmp_path, text)
    assert [row["step"] for row in log.rows] == [1, 2, 3, 4, 5, 2, 4]
    assert log.rows[-1] == {"step": 4, "eval/loss": 0.5, "eval/accuracy": 1}


def test_rows_of_samples_are_averaged(tmp_path):
    log = read(tmp_path, "step,sample,reward\n" + "".join(f"{n},{k},{n + k}\n" for n in range(3) for k in (0, 1, 2, 3)))
    assert log.rows == [{"step": n, "sample": 1.5, "reward": n + 1.5} for n in range(3)]
    assert log.notes == ["several rows a step are samples of it: their means are read"]
    twice = read(tmp_path, "step,loss,eval_loss\n" + "".join(f"{n},0.5,\n{n},,0.6\n" for n in range(4)))
    assert len(twice.rows) == 8  # different metrics of a step, logged separately


def test_rows_of_evaluations_among_others_are_held_out(tmp_path):
    log = read(tmp_path, "step,split,loss\n" + rows_of("{n},train,0.{n}\n{n},val,0.7"))
    assert [sorted(row) for row in log.rows] == [["loss", "step"], ["eval/loss", "step"]] * 5


def test_a_table_without_numbers_says_its_columns(tmp_path):
    with pytest.raises(NotALog, match="a table with the columns note, step and no metrics in them"):
        read(tmp_path, "step,note\n1,hello\n2,world\n")
    with pytest.raises(NotALog, match="a table with the columns answer, id, prompt and no metrics in them"):
        read(tmp_path, "id,prompt,answer\n1,what?,that\n2,who?,they\n")


INDEX = "file\trepo\talgorithm\tsteps\tonset\nb.log\tx\tgrpo\t400\t9\na.log\ty\tppo\t90\t5\nc.log\ty\tkto\t262\t3\n"
PLAN = "group\tseed\ttokens\nppo01\t4000\t12\nppo02\t4010\t9\n"


@pytest.mark.parametrize("text", [INDEX, PLAN], ids=["an index of runs", "a plan"])
def test_a_table_without_a_series_of_a_training_is_no_log_and_not_listed(tmp_path, text):
    (tmp_path / "training_runs.tsv").write_text(text)
    with pytest.raises(NotALog, match="and no metrics in them"):
        read_log(tmp_path / "training_runs.tsv")
    (tmp_path / "train.csv").write_text("step,mine\n1,0.5\n2,0.6\n3,0.7\n")
    logs = RawLogs(tmp_path, is_taken=lambda place: False)
    logs.lines()
    logs.wait()
    assert [place.name for place in logs.lines()] == ["train.csv"]


def test_texts_beside_rising_steps_are_a_log(tmp_path):
    rows = "".join(f"{step}\ta{step}\tb\tc\t0.{step}\n" for step in (10, 20, 30, 20, 30, 40, 50, 60))
    (tmp_path / "custom.tsv").write_text(f"step\tnote\thost\tuser\tmine\n{rows}")
    log = read_log(tmp_path / "custom.tsv")
    assert [row["mine"] for row in log.rows if row["step"] == 60] == [0.60]


def test_units_in_the_names_of_columns(tmp_path):
    assert read(tmp_path, "step,time [s],loss (mean)\n1,0.5,0.4\n").rows == [
        {"step": 1, "time [s]": 0.5, "loss (mean)": 0.4}
    ]


@pytest.mark.parametrize("level", ["[INFO] ", "INFO ", "- INFO - "])
def test_a_console_log_whose_times_have_commas_is_none(tmp_path, level):
    path = tmp_path / "log"
    path.write_text(rows_of("2025-01-01 12:00:00,12{n} " + level + "step {n} reward 0.{n}"))
    assert importer_for(path).name == "console"
    assert [row["reward"] for row in read_log(path).rows] == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_a_console_log_that_begins_with_commas_is_none(tmp_path):
    path = tmp_path / "log"
    path.write_text("name,kind\nloading, please wait\n" + rows_of("step {n}, loss 0.{n}, reward 0.5") * 3)
    assert importer_for(path).name == "console"
