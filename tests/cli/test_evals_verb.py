"""`rlvitals evals`: trends of one run, several runs and checkpoints, recorded by rlvitals or by other tools."""

from __future__ import annotations

import json

import pytest

import rlvitals
from rlvitals.cli.main import main
from rlvitals.train.evaluation import FIELDS, Evaluations, Sample
from rlvitals.train.mailbox.reward import Rubric


def samples(correct, total=4):
    rubric = {True: Rubric(answer_correct=True, attempted_answer=True, num_turns=3, ever_found_right_email=True,
                           num_total_searches=1, num_unique_searches=1), False: Rubric(num_turns=2)}  # fmt: skip
    return [Sample(str(place), float(place < correct), rubric[place < correct]) for place in range(total)]


def record(root, trend, *, keep=None, name=None):
    with rlvitals.start(root, name=name) as run:
        evaluations = Evaluations(run, keep_last_evals=keep, patience=None, say=lambda line: None)
        for step, correct in trend.items():
            if step:
                run.log({"loss": 1.0}, step=step)
            evaluations.record(samples(correct), step=step, seconds=0.5)
    return root


def facts_of(capsys, *words):
    assert main(["evals", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_one_run_shows_its_trend_and_what_became_of_it(tmp_path, capsys):
    root = record(tmp_path / "run", {0: 1, 10: 3, 20: 2})
    assert main(["evals", str(root)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Step    0: Acc= 25.0%, Found=1/4, Read=0/4, Repeats=0",
        "Step   10: Acc= 75.0%, Found=3/4, Read=0/4, Repeats=0",
        "Step   20: Acc= 50.0%, Found=2/4, Read=0/4, Repeats=0",
        "",
        "Accuracy: 25.0% at step 0, best 75.0% at step 10, last 50.0% at step 20",
        "Against the control at step 20: 1 wins, 3 ties, 0 losses",
    ]


def test_json_has_every_field_and_wins_ties_and_losses(tmp_path, capsys):
    root = record(tmp_path / "run", {0: 1, 10: 3})
    (run,) = facts_of(capsys, root)["runs"]
    control, later = run["evaluations"]
    assert list(control) == list(FIELDS)
    assert list(later) == [*FIELDS, "wins", "ties", "losses"]
    assert (later["wins"], later["ties"], later["losses"], later["beat_rate"]) == (2, 2, 0, 0.5)
    assert run["best"] == run["last"] == {"step": 10, "accuracy": 0.75}
    assert run["first"] == {"step": 0, "accuracy": 0.25}


def test_evaluations_whose_files_are_gone_are_taken_from_the_log(tmp_path, capsys):
    kept = record(tmp_path / "kept", {0: 1, 10: 3, 20: 2, 30: 4})
    dropped = record(tmp_path / "dropped", {0: 1, 10: 3, 20: 2, 30: 4}, keep=1)
    assert len(list((dropped / "eval_logs").glob("eval_step_*"))) == 2
    whole, rest = facts_of(capsys, kept, dropped)["runs"]
    for full, partial in zip(whole["evaluations"], rest["evaluations"], strict=True):
        assert {name: partial.get(name) for name in full} == full
        assert all(type(partial[name]) is type(full[name]) for name in FIELDS if full[name] is not None)


def test_runs_stand_side_by_side_by_step(tmp_path, capsys):
    first = record(tmp_path / "a", {0: 1, 10: 3}, name="low-lr")
    second = record(tmp_path / "b", {0: 1, 20: 4}, name="high-lr")
    assert main(["evals", str(first), str(second)]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    assert ["step", "A", "B"] in rows
    assert ["0", "25.0%", "25.0%"] in rows
    assert ["10", "75.0%", "-"] in rows
    assert ["20", "-", "100.0%"] in rows
    assert "A  low-lr" in out
    assert "B  best accuracy 100.0% at step 20" in out
    assert main(["evals", str(first), str(second), "--metric", "total_searches"]) == 0
    assert ["20", "-", "4"] in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_an_unknown_metric_is_named_with_what_there_is(tmp_path, capsys):
    root = record(tmp_path / "a", {0: 1})
    assert main(["evals", str(root), "--metric", "acuracy"]) == 1
    assert "accuracy" in capsys.readouterr().err


def test_checkpoints_of_a_run_can_be_compared(tmp_path, capsys):
    root = record(tmp_path / "run", {0: 1, 10: 3, 20: 2})
    for step in (10, 20):
        (root / f"checkpoint-{step}").mkdir()
    facts = facts_of(capsys, root / "checkpoint-10", root / "checkpoint-20")
    assert [[stats["step"] for stats in run["evaluations"]] for run in facts["runs"]] == [[10], [20]]
    assert [run["name"].split()[-1] for run in facts["runs"]] == ["checkpoint-10", "checkpoint-20"]
    assert main(["evals", str(root / "checkpoint-10"), str(root / "checkpoint-20")]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    for row in (
        ["step", "10", "20"],
        ["accuracy", "75.0%", "50.0%"],
        ["found_correct_email", "3", "2"],
        ["wins", "2", "1"],
    ):
        assert row in rows
    assert main(["evals", str(root / "checkpoint-15")]) == 64
    assert "no evaluation of step 15; it has those of 0, 10, 20" in capsys.readouterr().err


def test_what_a_resumed_run_overtook_is_not_shown(tmp_path, capsys):
    root = record(tmp_path / "run", {0: 1, 10: 2, 20: 4})
    with rlvitals.start(root, resume=10) as run:
        run.log({"loss": 1.0}, step=11)
        assert [stats["step"] for stats in facts_of(capsys, root)["runs"][0]["evaluations"]] == [0, 10]
        Evaluations(run, say=lambda line: None).record(samples(3), step=20, seconds=0.5)
    (run,) = facts_of(capsys, root)["runs"]
    assert [(stats["step"], stats["correct_answers"]) for stats in run["evaluations"]] == [(0, 1), (10, 2), (20, 3)]


def test_a_folder_another_trainer_wrote_is_read_too(tmp_path, capsys):
    folder = tmp_path / "outputs" / "eval_logs"
    folder.mkdir(parents=True)
    stats = {"step": 10, "accuracy": 0.85, "found_correct_email": 87, "read_correct_email": 82, "total_samples": 100,
             "total_repeated_searches": 15}  # fmt: skip
    (folder / "eval_step_0010.json").write_text(json.dumps(stats))
    (folder / "eval_step_12000.json").write_text(json.dumps(stats | {"step": 12000}))
    (folder / "eval_step_0020.json").write_text("{torn")
    (folder / "eval_step_x.json").write_text("{}")
    for path in (folder, folder.parent):
        assert main(["evals", str(path)]) == 0
        out = capsys.readouterr().out
        assert out.startswith("Step   10: Acc= 85.0%, Found=87/100, Read=82/100, Repeats=15\nStep 12000: Acc= 85.0%")
        assert "eval_step_0020.json cannot be read" in out


def test_evaluations_of_other_kinds_are_a_table_of_their_numbers(tmp_path, capsys):
    with rlvitals.start(tmp_path / "kto") as run:
        run.log_eval({"eval_loss": 0.61, "notes": "x"}, step=50)
        run.log_eval({"eval_loss": 0.52}, step=100)
    assert main(["evals", str(tmp_path / "kto")]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["step", "eval_loss"]
    assert ["100", "0.52"] in rows


def test_a_run_without_evaluations_is_reported_and_is_no_success(tmp_path, capsys):
    with rlvitals.start(tmp_path / "run") as run:
        run.log({"loss": 1.0}, step=1)
    assert main(["evals", str(tmp_path / "run")]) == 1
    assert "no evaluations in" in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_wrong_usage(tmp_path, capsys):
    (tmp_path / "grpo").mkdir()
    assert main(["evals", str(tmp_path / "grpo")]) == 64
    shown = capsys.readouterr().err
    assert "no run and no eval_logs" in shown
    assert "Did you mean" not in shown  # the folder itself
    assert main(["evals", str(tmp_path / "grop")]) == 64
    assert "Did you mean 'grpo'" in capsys.readouterr().err


@pytest.mark.parametrize("accuracy", [None, "nan"])
def test_an_evaluation_without_an_accuracy_has_a_dash(tmp_path, capsys, accuracy):
    folder = tmp_path / "eval_logs"
    folder.mkdir()
    (folder / "eval_step_0001.json").write_text(json.dumps({"step": 1, "accuracy": accuracy, "found_correct_email": 0}))
    assert main(["evals", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("Step    1: Acc=    -%, Found=0/-, Read=-/-, Repeats=-")
