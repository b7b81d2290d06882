"""Notebooks: tables and texts in saved outputs, which of them are one training, and the facts in its code."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import rlvitals
from rlvitals.importers import NotALog, importer_for, read_log
from rlvitals.importers.notebook_tables import html_tables, text_tables


def code(source="", *outputs):
    return {"cell_type": "code", "source": source.splitlines(keepends=True), "outputs": list(outputs), "metadata": {}}


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def shown(kind="display_data", **forms):
    return {"output_type": kind, "data": {f"text/{form}": text for form, text in forms.items()}, "metadata": {}}


def table(names, rows, done=None, total=None, epochs="0.50/1"):
    """A table as transformers shows it, with the progress bar above."""
    head = "".join(f"      <th>{name}</th>\n" for name in names)
    body = "".join("    <tr>\n" + "".join(f"<td>{cell}</td>\n" for cell in row) + "</tr>" for row in rows)
    above = f"<div>\n <progress value='{done}' max='{total}' style='width:300px;'></progress>\n"
    above += f"[{done}/{total} 01:02 < 03:04, 0.5 it/s, Epoch {epochs}]\n</div>\n"
    inner = (
        f'<table border="1" class="dataframe">\n  <thead>\n <tr>{head}</tr></thead>\n<tbody>{body}</tbody></table><p>'
    )
    return inner if total is None else above + inner


def losses(steps, scale=1.0):
    return [[step, f"{scale / step:.6f}"] for step in steps]


def save(tmp_path, *cells, name="train.ipynb"):
    path = tmp_path / name
    path.write_text(json.dumps({"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


def read(tmp_path, *cells):
    return read_log(save(tmp_path, *cells))


def steps(log):
    return [row["step"] for row in log.rows]


# Tables


def test_a_trainers_table_is_read_under_the_names_the_trainer_logged(tmp_path):
    names = ["Step", "Training Loss", "reward", "completions / mean_length", "rewards / format / std"]
    html = table(names, [[1, "0.100000", "0.5", "120.0", ""], [2, "No log", "nan", "130.0", "0.25"]], done=2, total=250)
    log = read(tmp_path, code("", shown(html=html, plain="<IPython.core.display.HTML object>")))
    first, second = log.rows
    assert first == {"step": 1, "loss": 0.1, "reward": 0.5, "completions/mean_length": 120.0}
    assert math.isnan(second.pop("reward"))
    assert second == {"step": 2, "completions/mean_length": 130.0, "rewards/format/std": 0.25}
    assert (log.format, log.config) == ("notebook", {"max_steps": 250})


def test_the_capitalised_columns_of_an_evaluating_trainer_are_the_evaluations(tmp_path):
    names = ["Step", "Training Loss", "Validation Loss", "Rewards/chosen", "Log Odds Ratio"]
    log = read(tmp_path, code("", shown(html=table(names, [[50, "No log", "0.6", "0.1", "-0.5"]], 50, 100))))
    expected = {"step": 50, "eval_loss": 0.6, "eval_rewards/chosen": 0.1, "eval_log_odds_ratio": -0.5}
    assert log.rows == [expected]


def test_epochs_are_placed_at_the_steps_at_which_they_ended(tmp_path):
    names = ["Epoch", "Training Loss", "Validation Loss"]
    rows = [[1, "0.5", "0.6"], [2, "0.4", "0.5"]]
    log = read(tmp_path, code("", shown(html=table(names, rows, 200, 300, epochs="2/3"))))
    assert (steps(log), log.config["max_steps"]) == ([100, 200], 300)
    rows[0][0], rows[1][0] = 0, 1  # older versions truncate 0.99 and 1.99
    log = read(tmp_path, code("", shown(html=table(names, rows, 200, 300, epochs="1.99/3"))))
    assert steps(log) == [100, 200]


def test_rows_from_before_a_column_came_are_shorter(tmp_path):
    html = table(["Step", "Training Loss", "kl"], [[1, "0.5"], [2, "0.4", "0.1"]], 2, 9)
    assert read(tmp_path, code("", shown(html=html))).rows == [
        {"step": 1, "loss": 0.5},
        {"step": 2, "loss": 0.4, "kl": 0.1},
    ]


def frame(rows=40):
    pandas = pytest.importorskip("pandas")
    numbers = range(1, rows + 1)
    columns = {
        name: [step / 7 + place for step in numbers] for place, name in enumerate(("loss", "reward", "grad_norm"))
    }
    columns["eval_loss"] = [0.5 if step % 4 == 0 else math.nan for step in numbers]
    return pandas, pandas.DataFrame({"step": [10 * step for step in numbers], **columns})


@pytest.mark.parametrize("form", ["html", "plain"])
def test_a_frame_of_pandas_gives_the_rows_it_shows_and_says_what_is_missing(tmp_path, form):
    pandas, data = frame()
    with pandas.option_context("display.max_rows", 10):
        forms = {"html": data._repr_html_(), "plain": data.to_string(line_width=40, max_rows=10, show_dimensions=True)}
    assert "\\\n" in forms["plain"]  # more columns follow in a second block
    log = read(tmp_path, code("", shown("execute_result", **{form: forms[form]})))
    assert steps(log) == [10, 20, 30, 40, 50, 360, 370, 380, 390, 400]
    assert log.rows[0] == {"step": 10, "loss": 0.142857, "reward": 1.142857, "grad_norm": 2.142857}
    assert log.rows[3]["eval_loss"] == 0.5
    assert "the table of cell 1 shows only 10 of 40 rows: an ellipsis stands for the others" in log.notes


def test_columns_that_pandas_leaves_out_are_missing_and_rows_are_not(tmp_path):
    pandas, data = frame(9)
    with pandas.option_context("display.max_columns", 4):
        html = data._repr_html_()
    assert "<th>...</th>" in html
    log = read(tmp_path, code("", shown("execute_result", html=html)))
    assert (steps(log), set(log.rows[3])) == (list(range(10, 100, 10)), {"step", "loss", "grad_norm", "eval_loss"})


def test_a_table_without_a_head_begins_with_its_names():
    rows = "".join(f"<tr><td>{n}</td><td>0.{n}</td></tr>" for n in range(1, 4))
    (found,) = html_tables(f"<table><tr><td>Step</td><td>Training Loss</td></tr>{rows}</table>")
    assert (found.names, found.rows) == (["Step", "Training Loss"], [["1", "0.1"], ["2", "0.2"], ["3", "0.3"]])
    assert html_tables(f"<table>{rows}</table>") == []


@pytest.mark.parametrize("head", ["loss of step 3", "    losses", "   loss  loss", "   step      ", "12   34"])
def test_lines_over_numbers_that_do_not_name_them_are_no_table(head):
    assert text_tables(f"{head}\n0    1   0.5\n1    2   0.4\n2    3   0.3\n") == []


def test_a_printed_frame_without_row_numbers_is_a_table_too(tmp_path):
    _, data = frame(12)
    log = read(tmp_path, code("", stream("the history:\n" + data.to_string(index=False) + "\ndone\n")))
    assert steps(log) == list(range(10, 130, 10))
    assert log.rows[3] == {"step": 40, "loss": 0.571429, "reward": 1.571429, "grad_norm": 2.571429, "eval_loss": 0.5}


def test_a_printed_frame_is_one_training_with_the_rows_printed_around_it(tmp_path):
    _, data = frame(12)
    text = "".join(f"step {10 * n}: loss={n / 7}, kl=0.1\n" for n in range(1, 13))
    log = read(tmp_path, code("", stream(text + data.to_string(line_width=40) + "\n")))
    assert (steps(log), log.rows[3]["kl"], log.rows[3]["eval_loss"]) == (list(range(10, 130, 10)), 0.1, 0.5)
    assert log.notes == []


def test_the_html_and_the_text_of_one_output_are_one_thing(tmp_path):
    _, data = frame(10)
    log = read(tmp_path, code("", shown("execute_result", html=data._repr_html_(), plain=repr(data))))
    assert (len(log.rows), log.notes) == (10, [])


@pytest.mark.parametrize(
    "table_",
    [
        table(["", "query", "rewards (before)", "rewards (after)"], [[0, "What is it?", "0.1", "0.9"]] * 9),
        table(["", "step", "rewards"], [[n, n, "[1.0, 2.0]"] for n in range(9)]),  # rewards of samples, as texts
        table(["metric", "value"], [["reward", "0.5"], ["loss", "0.1"]]),
        "<table><tr><td>train/loss</td><td>▁▂█</td></tr></table>",
    ],
)
def test_tables_of_something_else_are_no_training(tmp_path, table_):
    with pytest.raises(NotALog, match="no saved output of the notebook shows a training's numbers by step"):
        read(tmp_path, code("", shown(html=table_)))


def test_broken_html_is_read_as_far_as_it_goes():
    (found,) = html_tables(
        "<TABLE><tr><th>Step<th>Training&nbsp;Loss<tr><td>1<td>0.5</tr><td>2</td><td><table><tr><td>9</td></tr></table>0.4"
        "<tr><td>3</td><td>0.3<![weird"
    )
    assert found.names == ["Step", "Training Loss"]
    assert found.rows[:2] == [["1", "0.5"], ["2", "0.4"]]


@settings(max_examples=60)
@given(some.data())
def test_torn_and_shuffled_outputs_never_raise(data):
    whole = (
        table(["Step", "Training Loss"], losses(range(1, 9)), 8, 10) + "\n   step  loss\n0     1   0.5\n1     2   0.4\n"
    )
    begin, end = sorted(data.draw(some.tuples(some.integers(0, len(whole)), some.integers(0, len(whole)))))
    torn = whole[:begin] + whole[end:] + data.draw(some.text("<>/ td\n.0\\", max_size=20)) + whole[begin:end]
    assert all(len(one.names) for one in html_tables(torn) + text_tables(torn))


# Texts


def printed(step, **more):
    row = {"loss": round(1 / step, 4), "grad_norm": 2.0, "reward": step / 10, "epoch": round(step / 100, 2), **more}
    return f"{row}\n"


def test_rows_printed_in_pieces_between_samples_are_joined(tmp_path):
    text = "".join(f"<answer>{step}</answer>\n{printed(step)}" for step in range(1, 13))
    pieces = [stream([text[:100], text[100:777]]), stream("a warning\n", "stderr"), stream([text[777:]])]
    log = read(tmp_path, code("", *pieces))
    assert [row["reward"] for row in log.rows] == [step / 10 for step in range(1, 13)]


def test_bars_on_standard_error_give_the_steps_of_rows_on_standard_output(tmp_path):
    outputs = []
    for step in range(5, 55, 5):
        outputs.append(stream(f"\r {step:3d}%|\x1b[32m█▊\x1b[0m  | {step}/100 [00:10<08:15, 10.1s/it]", "stderr"))
        outputs.append(stream(printed(step)))
    log = read(tmp_path, code("", *outputs))
    assert (steps(log), log.config) == (list(range(5, 55, 5)), {"max_steps": 100})


def test_where_only_the_last_bar_was_kept_rows_are_spread_up_to_it(tmp_path):
    text = "Map: 100% 5000/5000 [00:01<00:00, 9 examples/s]\n" + "".join(map(printed, range(1, 11)))
    log = read(tmp_path, code("!python train.py", stream(text + " 10% 104/1000 [06:01<3:07:57, 11.64s/it]Killed\n")))
    assert (steps(log), log.config["max_steps"]) == (list(range(10, 110, 10)), 1000)
    assert "rows say no step: 10 until step 104 are one every 10 steps" in log.notes


def test_the_end_of_a_training_gives_the_steps_of_its_rows(tmp_path):
    text = "".join(printed(n, epoch=n * 0.16) for n in range(1, 7)) + "{'train_runtime': 80.6, 'epoch': 0.96}\n"
    ended = "TrainOutput(global_step=12, training_loss=0.38, metrics={'train_runtime': 80.6, 'epoch': 0.96})"
    log = read(tmp_path, code("", stream(text), shown("execute_result", plain=ended)))
    assert steps(log) == [2, 4, 6, 8, 10, 12, 12]


def test_the_settings_in_the_code_give_the_steps_of_rows(tmp_path):
    source = "trainer = DPOTrainer(args=DPOConfig(logging_steps=25))\ntrainer.train()"
    log = read(tmp_path, code(source, stream("".join(map(printed, range(1, 9))))))
    assert steps(log) == list(range(25, 225, 25))


def test_numbers_that_hang_on_a_bar(tmp_path):
    bars = "".join(f"\rTrain: {n}%|█  | {n}/10 [00:01<00:09, 1it/s, loss=0.{n}, reward=0.5]" for n in range(1, 10))
    log = read(tmp_path, code("", stream(bars, "stderr")))
    assert [(row["step"], row["loss"]) for row in log.rows] == [(n, n / 10) for n in range(1, 10)]


def test_csv_and_json_that_were_printed(tmp_path):
    lines = "".join(f"{n},{1 / n},{n / 9}\n" for n in range(1, 10))
    assert steps(read(tmp_path, code("", stream("step,loss,reward\n" + lines)))) == list(range(1, 10))
    history = ",\n ".join(str({"loss": 1 / n, "reward": 0.5, "step": 5 * n}) for n in range(1, 10))
    log = read(tmp_path, code("trainer.state.log_history", shown("execute_result", plain=f"[{history}]")))
    assert steps(log) == list(range(5, 50, 5))


# One training or several


def test_a_table_and_the_rows_printed_beside_it_are_merged(tmp_path):
    """As Colab saves it: a table shortly before the end and one at the end, with texts in between."""
    text = "".join(printed(step) for step in range(10, 90, 10))
    before, after = text[: text.rindex("{")], text[text.rindex("{") :] + "{'train_runtime': 9.5, 'epoch': 0.8}\n"
    names = ["Step", "Training Loss"]
    log = read(
        tmp_path,
        code(
            "",
            shown(html=table(names, losses(range(10, 80, 10)), 78, 80)),
            stream(before),
            shown(html=table(names, losses(range(10, 90, 10)), 80, 80)),
            stream(after),
        ),
    )
    assert steps(log) == list(range(10, 90, 10))
    assert log.rows[2] == {"step": 30, "loss": 0.0333, "grad_norm": 2.0, "reward": 3.0, "epoch": 0.3}
    assert log.rows[-1]["train_runtime"] == 9.5
    assert log.notes == []


def test_a_training_that_was_resumed_in_a_later_cell_goes_on(tmp_path):
    names = ["Step", "Training Loss"]
    first, second = losses(range(10, 60, 10)), losses(range(60, 110, 10))
    cells = [
        code("", shown(html=table(names, first, 57, 100))),
        code(),
        code("", shown(html=table(names, second, 100, 100))),
    ]
    log = read(tmp_path, *cells)
    assert (steps(log), log.notes) == (list(range(10, 110, 10)), [])


@pytest.mark.parametrize("second", [range(120, 520, 40), range(200, 300, 10), range(50, 150, 10), range(110, 210, 2)])
def test_steps_that_do_not_go_on_as_before_are_of_another_training(tmp_path, second):
    names = ["Step", "Training Loss"]
    first = code("", shown(html=table(names, losses(range(10, 110, 10)), 100, 100)))
    log = read(tmp_path, first, code("", shown(html=table(names, losses(second, scale=2.0), 900, 900))))
    assert "the notebook holds 2 trainings" in log.notes[0]


GRPO = ["Step", "Training Loss", "reward", "kl"]


def several():
    sft = table(["Step", "Training Loss"], losses(range(1, 61)), 60, 60)
    trial = table(GRPO, [[n, "0.0", "0.1", "0.0"] for n in range(1, 4)], 3, 250)
    grpo = table(GRPO, [[n, "0.000100", f"{n / 20}", "0.01"] for n in range(1, 21)], 20, 20)
    return [
        code("sft = SFTTrainer(args=SFTConfig(learning_rate=2e-4))\nsft.train()", shown(html=sft)),
        code("trainer = GRPOTrainer(args=GRPOConfig(num_generations=8))\ntrainer.train()", shown(html=trial)),
        code("trainer.train()", shown("update_display_data", html=grpo)),
    ]


def test_of_several_trainings_the_longest_of_rl_is_read_and_the_others_are_named(tmp_path):
    log = read(tmp_path, *several())
    assert (len(log.rows), log.algorithm, log.framework) == (20, "grpo", "trl")
    assert log.config == {"num_generations": 8, "max_steps": 20}
    (note,) = log.notes
    assert note == (
        "the notebook holds 3 trainings. Number 3 was read (cell 3, 20 rows, grpo). The others are "
        "1: cell 1, 60 rows, sft; 2: cell 2, 3 rows, grpo. To read another, add its number to the path: train.ipynb#1"
    )


def test_another_training_is_read_by_its_number(tmp_path):
    path = save(tmp_path, *several())
    log = read_log(f"{path}#1")
    assert (log.path, len(log.rows), log.algorithm, log.config["learning_rate"]) == (path, 60, "sft", 2e-4)
    assert rlvitals.check(f"{path}#2").verdict == "cannot judge"
    with pytest.raises(
        NotALog, match=r"has no training 4. It holds 3: 1: cell 1, 60 rows, sft; 2: cell 2, 3 rows, grpo; 3: "
    ):
        read_log(f"{path}#4")
    with pytest.raises(NotALog, match="there is nothing there"):
        read_log(tmp_path / "other.ipynb#1")
    (tmp_path / "log.csv").write_text("step,loss\n1,0.5\n")
    with pytest.raises(NotALog, match=r"a csv file holds one run: '1' chooses none\. Leave out '#1'"):
        read_log(tmp_path / "log.csv#1")


def test_a_file_whose_name_ends_in_a_number_sign_is_itself(tmp_path):
    path = save(tmp_path, *several(), name="run#2")
    assert len(read_log(path).rows) == 20


def test_trainings_whose_losses_are_all_zero_are_not_taken_for_one(tmp_path):
    zero = table(["Step", "Training Loss"], [[n, "0.000000"] for n in range(1, 10)], 9, 9)
    log = read(tmp_path, code("", shown(html=zero)), code("", shown(html=zero)))
    assert "the notebook holds 2 trainings" in log.notes[0]


def test_a_table_of_zeros_that_was_shown_again_at_its_end_is_one(tmp_path):
    zeros = [[n, "0.000000"] for n in range(1, 10)]
    names = ["Step", "Training Loss"]
    early, late = table(names, zeros[:7], 8, 9), table(names, zeros, 9, 9)
    log = read(tmp_path, code("", shown(html=early), shown(html=late)))
    assert (len(log.rows), log.notes) == (9, [])


def test_a_frame_of_the_history_in_a_later_cell_adds_what_the_table_does_not_show(tmp_path):
    _, data = frame(12)
    losses_ = [[10 * n, f"{n / 7:.6f}"] for n in range(1, 13)]
    cells = [code("", shown(html=table(["Step", "Training Loss"], losses_, 120, 120)))]
    cells.append(code("pd.DataFrame(trainer.state.log_history)", shown("execute_result", html=data._repr_html_())))
    log = read(tmp_path, *cells)
    assert (len(log.rows), log.rows[0]["reward"], log.notes) == (12, 1.142857, [])


def test_steps_that_restart_in_each_epoch_are_counted_on(tmp_path):
    text = "".join(f"step {n}: loss={1 / (epoch * 5 + n + 1)}\n" for epoch in range(4) for n in range(5))
    log = read(tmp_path, code("", stream(text)))
    assert steps(log) == list(range(20))
    assert log.notes == ["the steps in cell 1 start over in each of 4 epochs: they are numbered on"]


def test_trainings_in_a_loop_are_several(tmp_path):
    runs = "".join(f"step {n}: loss={run / n}\n" for run in (1, 1.1, 1.2) for n in range(1, 9))
    log = read(tmp_path, code("", stream(runs)))
    assert (steps(log), log.notes[0][:34]) == (list(range(1, 9)), "the notebook holds 3 trainings. Nu")
    ended = "{'train_runtime': 9.5, 'train_loss': 0.4}\n"
    runs = "".join(map(printed, range(1, 9))) + ended + "".join(printed(n, reward=0.5) for n in range(2, 10)) + ended
    log = read(tmp_path, code("", stream(runs)))
    assert (len(log.rows), log.notes[0][:34]) == (9, "the notebook holds 2 trainings. Nu")


# Facts in the code


def facts(tmp_path, *sources, output=None):
    """The facts about the training that the last cell shows."""
    shows = output or shown(html=table(["Step", "Training Loss"], losses(range(1, 10)), 9, 9))
    log = read(tmp_path, *(code(source) for source in sources[:-1]), code(sources[-1], shows))
    return log.algorithm, {name: value for name, value in log.config.items() if name != "max_steps"}


def test_settings_are_literals_names_of_literals_and_plain_arithmetic(tmp_path):
    source = """
        %matplotlib inline
        !pip install trl
        longest = 1024
        class CFG:
            beta = 0.04
        shared = {"learning_rate": 5e-6, "output_dir": "out"}
        args = GRPOConfig(
            num_generations=4 * 2, max_prompt_length=256, max_completion_length=longest - 256, beta=CFG.beta,
            max_steps=-1, logging_steps=steps(), temperature=0.7, **shared,
        )
        trainer = GRPOTrainer(model=model, args=args)
    """
    algorithm, config = facts(tmp_path, textwrap.dedent(source), "trainer.train()")
    assert algorithm == "grpo"
    assert config == {
        "num_generations": 8, "max_prompt_length": 256, "max_completion_length": 768, "beta": 0.04, "temperature": 0.7,
        "learning_rate": 5e-6,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "algorithm"),
    [
        ("DPOTrainer(model, beta=0.1)", "dpo"),
        ("trl.KTOTrainer(model)", "kto"),
        ("class Mine(ORPOTrainer):\n    pass\nMine(model)", "orpo"),
        ("UnslothGRPOTrainer(model)", "grpo"),
        ("OnlineDPOTrainer(model)", "online_dpo"),
        ("PPOv2Trainer(config, model)", "ppo"),
        ("Trainer(model)", None),
        ("def f(:", None),
        ("trainer = " + "(" * 500 + "1" + ")" * 500, None),
        ("x = " + "+".join(["1"] * 5000), None),
    ],
)
def test_the_algorithm_is_that_of_the_trainers_class(tmp_path, source, algorithm):
    assert facts(tmp_path, source)[0] == algorithm


def test_settings_in_annotated_names_mappings_and_methods(tmp_path):
    source = """
        class Run:
            lr: float = 1e-5
            def go(self):
                self.trainer = DPOTrainer(args=TrainingArguments(learning_rate=Run.lr), beta=cfg["beta"], max_steps=n)
        other = DPOConfig(beta=0.9)
    """
    first = 'n: int\nn: int = 30\ncfg = dict(beta=0.5)\ncfg = {"beta": 0.2, 1: 2, **cfg}'
    algorithm, config = facts(tmp_path, first, textwrap.dedent(source))
    assert (algorithm, config) == ("dpo", {"learning_rate": 1e-5, "beta": 0.2})


def test_the_arguments_are_those_the_trainer_was_given(tmp_path):
    made = "args = DPOConfig(beta=0.2)\nother = DPOConfig(beta=0.9)\n"
    assert facts(tmp_path, made + "t = DPOTrainer(model, args=args)")[1] == {"beta": 0.2}
    assert facts(tmp_path, made + "t = DPOTrainer(model, args)")[1] == {"beta": 0.2}
    assert facts(tmp_path, made + "t = DPOTrainer(model)")[1] == {"beta": 0.9}
    assert facts(tmp_path, made + "t = DPOTrainer(args=DPOConfig(beta=0.3))")[1] == {"beta": 0.3}
    assert facts(tmp_path, made + "args = load()\nt = DPOTrainer(args=args)")[1] == {"beta": 0.9}


def test_the_trainer_is_the_one_that_was_started(tmp_path):
    made = "dpo = DPOTrainer(args=DPOConfig(beta=0.2))\nsft = SFTTrainer(args=SFTConfig(learning_rate=1e-4))"
    assert facts(tmp_path, made, "result = dpo.train()") == ("dpo", {"beta": 0.2})
    assert facts(tmp_path, made, "sft.train()") == ("sft", {"learning_rate": 1e-4})
    loop = "for batch in data:\n    stats = ppo.step(batch)\n"
    assert facts(tmp_path, f"ppo = PPOTrainer(PPOConfig(learning_rate=1e-5))\n{made}", loop)[0] == "ppo"


def test_a_training_of_rl_that_shows_only_its_loss_is_noted(tmp_path):
    made = "trainer = {}Trainer()\ntrainer.train()"
    html = table(["Step", "Training Loss"], losses(range(1, 10)), 9, 9)
    (note,) = read(tmp_path, code(made.format("GRPO"), shown(html=html))).notes
    assert note.startswith("the notebook shows only the loss of this GRPO training. Rewards, KL and the like are in")
    assert read(tmp_path, code(made.format("SFT"), shown(html=html))).notes == []
    telling = table(GRPO, [[n, "0.0", f"{n}", "0.0"] for n in range(1, 10)], 9, 9)
    assert read(tmp_path, code(made.format("GRPO"), shown(html=telling))).notes == []


def test_flags_of_a_script_that_a_cell_runs_are_settings(tmp_path):
    assert facts(tmp_path, "!python grpo.py --num_generations 8 --learning_rate=1e-6")[1] == {
        "num_generations": 8,
        "learning_rate": 1e-6,
    }


def test_nothing_is_run(tmp_path):
    mark = tmp_path / "ran"
    read(tmp_path, code(f"open({str(mark)!r}, 'w')\n!touch {mark}", stream("".join(map(printed, range(1, 9))))))
    assert not mark.exists()


def test_what_unsloth_says_before_its_table_is_known(tmp_path):
    banner = """
        ==((====))==  Unsloth - 2x faster free finetuning | Num GPUs used = 1
           \\\\   /|    Num examples = 7,473 | Num Epochs = 2 | Total steps = 1,250
        O^O/ \\_/ \\    Batch size per device = 8 | Gradient accumulation steps = 1
    """
    output = table(GRPO, [[n, "0.0", "0.1", "0.0"] for n in range(1, 10)])
    log = read(tmp_path, code("", stream(banner, "stderr"), shown(html=output)))
    assert log.config == {"max_steps": 1250, "num_train_epochs": 2}


# The format


def test_version_3_of_the_format(tmp_path):
    html = table(["Step", "Training Loss"], losses(range(1, 10)), 9, 9)
    outputs = [
        {"output_type": "pyout", "html": [html], "text": ["<IPython.core.display.HTML at 0x1>"], "prompt_number": 1}
    ]
    outputs.append({"output_type": "stream", "stream": "stdout", "text": ["saved\n"]})
    cells = [{"cell_type": "code", "input": ["t = KTOTrainer()\n", "t.train()"], "outputs": outputs}]
    path = tmp_path / "old.ipynb"
    path.write_text(json.dumps({"metadata": {}, "nbformat": 3, "worksheets": [{"cells": cells}]}))
    log = read_log(path)
    assert (len(log.rows), log.algorithm) == (9, "kto")


def test_images_widgets_and_odd_outputs_are_skipped(tmp_path):
    widget = shown(plain="  0%|          | 0/100 [00:00<?, ?it/s]")
    widget["data"]["application/vnd.jupyter.widget-view+json"] = {"model_id": "a"}
    image = {"output_type": "display_data", "data": {"image/png": "iVBOR" * 1000, "text/plain": "<Figure size 1x1>"}}
    odd = ["text", None, {}, {"output_type": "display_data"}, {"output_type": "display_data", "data": {"text/html": 5}}]
    odd.append({"output_type": "stream", "text": None})
    log = read(
        tmp_path, code("", widget, image, *odd, stream("".join(map(printed, range(1, 9))))), {"cell_type": "code"}
    )
    assert len(log.rows) == 8


def test_an_error_and_a_cut_output_are_noted(tmp_path):
    cut = stream("Buffered data was truncated after reaching the output size limit.")
    error = {"output_type": "error", "ename": "OutOfMemoryError", "evalue": "CUDA out of\nmemory", "traceback": []}
    log = read(tmp_path, code("", stream("".join(map(printed, range(1, 9)))), cut, error))
    assert log.notes == [
        "cell 1 ended with an error: OutOfMemoryError: CUDA out of memory",
        "the output of cell 1 was cut by the notebook service: rows are missing",
    ]


def test_a_notebook_is_recognised_by_its_content_too(tmp_path):
    path = save(tmp_path, *several(), name="notebook.json")
    assert importer_for(path).name == "notebook"
    path.write_text('{"metadata": {"run": 1}, "log_history": [{"step": 1, "loss": 0.5}]}')
    assert importer_for(path).name == "json"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "a pointer of Git LFS.*git lfs pull"),
        ('{"cells": [', "its JSON is damaged"),
        ('{"cells": {}, "nbformat": 4}', "it is not a notebook with cells"),
        ("[1, 2]", "it is not a notebook with cells"),
        (json.dumps({"cells": [code("x = 1")]}), r"saved without outputs \(1 cell, 0 outputs\): run it and save it"),
        (
            json.dumps({"cells": [code("", shown(html=table(["Step", "Training Loss"], [], 3, 177)))]}),
            "the trainer's table in it has no rows: it was saved at step 3 of 177",
        ),
        (
            json.dumps({"cells": [code("", shown(html=table(["prompt", "answer"], [["a", "b"]])))]}),
            r"\(1 cell, 1 output, tables with the columns answer, prompt\): pass the log",
        ),
    ],
)
def test_what_cannot_be_read_says_what_was_seen_and_what_to_do(tmp_path, content, why):
    path = tmp_path / "train.ipynb"
    path.write_text(content)
    with pytest.raises(NotALog, match=why):
        read_log(path)


def test_a_notebook_is_checked_and_imported(tmp_path):
    path = save(tmp_path, *several())
    report = rlvitals.check(path)
    assert (report.format, report.algorithm) == ("notebook", "grpo")
    done = subprocess.run(
        [sys.executable, "-m", "rlvitals.cli.main", "import", f"{path}#1", "--to", tmp_path / "run"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "60 rows from" in done.stdout, done.stderr
    assert rlvitals.open_run(tmp_path / "run").info.algorithm == "sft"
