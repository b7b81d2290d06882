"""Evaluations: the file's fields, the row's names, the control, and when training should stop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import rlvitals
from conftest import until
from rlvitals import catalog
from rlvitals.errors import ConfigError
from rlvitals.sinks.base import metric_name
from rlvitals.store.evaluations import Control
from rlvitals.store.layout import RunDir
from rlvitals.train.evaluation import (
    FIELDS,
    Beat,
    Evaluations,
    Sample,
    against,
    best_rewards,
    pass_rates,
    prompts_row,
    statistics,
    tracker_row,
)
from rlvitals.train.mailbox.reward import Rubric

DOCUMENT = {
    "step": 10, "accuracy": 0.85, "correct_answers": 85, "total_samples": 100, "attempted_answer": 95,
    "avg_reward": 0.723, "median_reward": 0.850, "std_reward": 0.312, "min_reward": -1.200, "max_reward": 1.500,
    "found_correct_email": 87, "read_correct_email": 82, "total_repeated_searches": 15, "total_unique_searches": 230,
    "total_searches": 245, "avg_turns_correct": 3.45, "avg_turns_idk": 4.20, "avg_search_attempts": 2.45,
    "num_idk": 5, "eval_time": 234.5, "beat_rate": 0.78,
}  # fmt: skip
"""The file that the document shows."""


def right(turns=3, searches=2, repeated=0):
    return Rubric(answer_correct=True, attempted_answer=True, num_turns=turns, ever_found_right_email=True,
                  ever_read_right_email=True, num_total_searches=searches, num_repeated_searches=repeated,
                  num_unique_searches=searches - repeated)  # fmt: skip


def wrong(turns=5):
    return Rubric(attempted_answer=True, num_turns=turns, ever_found_right_email=True, num_total_searches=1,
                  num_unique_searches=1)  # fmt: skip


def idk(turns=4):
    return Rubric(returned_i_dont_know=True, num_turns=turns)


SAMPLES = [
    Sample("a", 2.0, right(3)),
    Sample("a", 1.2, right(6, searches=5, repeated=2)),
    Sample("b", -0.8, wrong()),
    Sample("c", -1.5, idk()),
]


def some(correct, total=10, reward=0.0):
    """An evaluation with this many correct answers."""
    return [Sample(str(place), 1.0 if place < correct else reward, right() if place < correct else wrong())
            for place in range(total)]  # fmt: skip


def quiet(run, **settings):
    return Evaluations(run, say=lambda line: None, **settings)


# The statistics


def test_an_evaluation_says_which_prompts_were_lost_and_won_and_what_any_answer_solves():
    def answers(**correct):
        return [
            Sample(query, 0.0, right() if is_right else wrong())
            for query, marks in correct.items()
            for is_right in marks
        ]

    first = answers(a=[1, 1], b=[0, 0], c=[1, 0])
    second = answers(a=[0, 0], b=[1, 1], c=[1, 0])
    assert pass_rates(first) == {"a": 1.0, "b": 0.0, "c": 0.5}
    # pass@2 is 1, 0 and 1 of the three; the mean accuracy is a half.
    assert prompts_row(first, None) == pytest.approx({"eval.pass_at_k/2": 2 / 3, "eval.pass_gap_at_k/2": 1 / 6})
    row = prompts_row(second, pass_rates(first))
    assert (row["eval.prompts_lost_fraction"], row["eval.prompts_won_fraction"]) == pytest.approx((1 / 3, 1 / 3))
    assert prompts_row(some(5), None) == {}  # one answer each, and nothing before


def test_the_file_has_exactly_the_documents_fields_in_its_order():
    assert list(DOCUMENT) == list(FIELDS)
    assert list(statistics(SAMPLES, step=10, seconds=1.5)) == list(FIELDS)


def test_the_statistics_by_hand():
    stats = statistics(SAMPLES, step=10, seconds=1.5, beat=Beat(2, 1, 1, 0))
    rewards = [2.0, 1.2, -0.8, -1.5]
    wanted = {
        "step": 10, "accuracy": 2 / 4, "correct_answers": 2, "total_samples": 4, "attempted_answer": 3,
        "avg_reward": np.mean(rewards), "median_reward": (1.2 - 0.8) / 2, "std_reward": np.std(rewards),
        "min_reward": -1.5, "max_reward": 2.0, "found_correct_email": 3, "read_correct_email": 2,
        "total_repeated_searches": 2, "total_unique_searches": 2 + 3 + 1, "total_searches": 2 + 5 + 1,
        "avg_turns_correct": (3 + 6) / 2, "avg_turns_idk": 4.0, "avg_search_attempts": 8 / 4, "num_idk": 1,
        "eval_time": 1.5, "beat_rate": 0.5,
    }  # fmt: skip
    assert stats == pytest.approx(wanted)
    counts = [name for name, value in DOCUMENT.items() if isinstance(value, int)]
    assert all(type(stats[name]) is int for name in counts)


def test_averages_over_nothing_are_null_and_counts_are_zero():
    nothing = statistics([], step=0, seconds=0.1)
    assert {name for name, value in nothing.items() if value is None} == {
        "accuracy", "avg_reward", "median_reward", "std_reward", "min_reward", "max_reward", "avg_turns_correct",
        "avg_turns_idk", "avg_search_attempts", "beat_rate",
    }  # fmt: skip
    assert (nothing["total_samples"], nothing["num_idk"], nothing["total_searches"]) == (0, 0, 0)
    failed = statistics([Sample("a", -0.9, wrong())], step=3, seconds=0.1)
    assert (failed["accuracy"], failed["avg_turns_correct"], failed["avg_turns_idk"]) == (0.0, None, None)


def test_the_row_names_fractions_as_fractions_and_leaves_out_what_is_null():
    row = tracker_row(statistics(SAMPLES, step=10, seconds=1.5), Beat(2, 1, 1, 0))
    assert not row.keys() & {"attempted_answer", "found_correct_email", "read_correct_email", "beat_rate", "step"}
    assert (row["attempted_answer_fraction"], row["found_email_fraction"], row["read_email_fraction"]) == (
        0.75,
        0.75,
        0.5,
    )
    assert (row["wins"], row["ties"], row["losses"]) == (2, 1, 1)
    assert None not in row.values()
    names = {metric_name("eval", name) for name in row}
    assert all(name.startswith("eval/") for name in names)
    documented = {"total_repeated_searches", "total_unique_searches", "total_searches", "avg_turns_correct",
                  "avg_turns_idk", "avg_search_attempts", "num_idk"}  # fmt: skip
    assert {f"eval/{name}" for name in documented} <= names


def test_the_catalogue_knows_what_a_tracker_is_given():
    row = tracker_row(DOCUMENT)
    reader = catalog.reader()
    concepts = {name: [match.metric.id for match in reader.matches(metric_name("eval", name))] for name in row}
    assert all(concepts.values())
    assert concepts["attempted_answer_fraction"] == ["agent.attempted_fraction"]
    assert concepts["found_email_fraction"] == ["agent.found_source_fraction"]
    assert concepts["read_email_fraction"] == ["agent.read_source_fraction"]


# The control


def test_a_querys_best_episode_is_compared_and_ties_are_no_wins():
    control = Control(0, {"a": 1.9, "b": -0.8, "c": 0.0})
    assert best_rewards(SAMPLES) == {"a": 2.0, "b": -0.8, "c": -1.5}
    assert against(SAMPLES, control) == Beat(wins=1, ties=1, losses=1, unmatched=0)
    assert against(SAMPLES, control).rate == pytest.approx(1 / 3)
    assert against(SAMPLES, Control(0, {"z": 1.0})) == Beat(0, 0, 0, unmatched=3)


def test_an_unchanged_policy_beats_nothing(tmp_path):
    with rlvitals.start(tmp_path / "run") as run:
        evaluations = quiet(run)
        first = evaluations.record(some(4), step=0, seconds=1.0)
        again = evaluations.record(some(4), step=10, seconds=1.0)
    assert (first.stats["beat_rate"], first.beat) == (None, None)
    assert (again.stats["beat_rate"], again.beat) == (0.0, Beat(0, 10, 0, 0))


def test_numbers_as_query_ids_are_found_again_after_a_restart(tmp_path):
    before = [Sample(7, -1.0, wrong()), Sample(8, 1.0, right())]  # type: ignore[arg-type]
    after = [Sample(7, 1.0, right()), Sample(8, 1.0, right())]  # type: ignore[arg-type]
    with rlvitals.start(tmp_path / "run") as run:
        quiet(run).record(before, step=0, seconds=1.0)
        run.log({"loss": 1.0}, step=5)
    with rlvitals.start(tmp_path / "run", resume=True) as run:
        judged = quiet(run).record(after, step=10, seconds=1.0)
    assert judged.beat == Beat(1, 1, 0, 0)
    assert judged.stats["beat_rate"] == 0.5


@pytest.mark.slow
def test_a_killed_and_resumed_run_keeps_its_first_control(tmp_path):
    """The next process reads the control that the killed one recorded, and does not record another."""
    root = tmp_path / "run"
    code = f"""
import sys, time
sys.path.insert(0, {os.path.dirname(__file__)!r})
import rlvitals
from test_evaluation import quiet, some
run = rlvitals.start({str(root)!r})
evaluations = quiet(run)
evaluations.record(some(2), step=0, seconds=1.0)
run.log({{"loss": 1.0}}, step=10)
evaluations.record(some(6), step=10, seconds=1.0)
print("there", flush=True)
time.sleep(60)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    with process:
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGKILL)
    with rlvitals.start(root, resume=10) as run:
        evaluations = quiet(run, patience=2)
        assert evaluations.control == Control(0, {str(place): 1.0 if place < 2 else 0.0 for place in range(10)})
        judged = evaluations.record(some(5), step=20, seconds=1.0)
        assert judged.beat == Beat(3, 7, 0, 0)
        assert (judged.best_accuracy, judged.without_improvement) == (0.6, 1)


def test_a_damaged_control_is_reported_and_nothing_is_compared(tmp_path, caplog):
    root = tmp_path / "run"
    with rlvitals.start(root) as run:
        quiet(run).record(some(2), step=0, seconds=1.0)
        run.log({"loss": 1.0}, step=1)
    RunDir(root).eval_control.write_text('{"step": 0, "rewards": [1]}')
    with rlvitals.start(root, resume=True) as run:
        judged = quiet(run).record(some(2), step=2, seconds=1.0)
    assert (judged.beat, judged.stats["beat_rate"]) == (None, None)
    assert any("beat_rate will be null" in text and "control.json" in text for text in caplog.messages)


def test_a_run_that_overwrites_another_has_no_control_of_the_old_one(tmp_path):
    root = tmp_path / "run"
    with rlvitals.start(root) as run:
        quiet(run).record(some(2), step=0, seconds=1.0)
    with rlvitals.start(root, overwrite=True) as run:
        assert not RunDir(root).eval_control.exists()
        assert quiet(run).record(some(2), step=5, seconds=1.0).beat is None


# Files, rows, and what is printed


def test_an_evaluation_is_a_file_a_row_and_a_few_lines(tmp_path):
    root, lines = tmp_path / "run", []
    with rlvitals.start(root) as run:
        evaluations = Evaluations(run, target_accuracy=0.8, say=lines.append)
        evaluations.record(some(2), step=0, seconds=1.0)
        lines.clear()
        evaluations.record(SAMPLES, step=10, seconds=1.5)
    whole = json.loads((root / "eval_logs/eval_step_0010.json").read_text())
    assert list(whole) == list(FIELDS)
    assert whole == statistics(SAMPLES, step=10, seconds=1.5)  # without the queries of the control
    assert lines == [
        "Detailed Rubric Statistics:",
        "   Attempted answers: 3/4 (75.0%)",
        "   Found correct email: 3/4 (75.0%)",
        "   Read correct email: 2/4 (50.0%)",
        "   Repeated searches: 2 (total: 8, unique: 6)",
        "   Avg turns (correct): 4.50 turns",
        "   Avg turns (I don't know): 4.00 turns (count: 1)",
        "   Avg search attempts: 2.00",
        "   Against the control: 0 wins, 0 ties, 0 losses, 3 without a control",
        f"Eval stats saved to: {root / 'eval_logs' / 'eval_step_0010.json'}",
    ]
    row = json.loads((root / "logs/eval_metrics.jsonl").read_text().splitlines()[-1])
    assert (row["step"], row["accuracy"], row["best_accuracy"]) == (10, 0.5, 0.5)
    assert row["progress_to_target"] == pytest.approx(0.5 / 0.8)
    assert row["eval/eval_time"] == 1.5
    assert (row["wins"], row["ties"], row["losses"]) == (0, 0, 0)


def test_what_is_printed_goes_to_standard_error(tmp_path, capsys):
    with rlvitals.start(tmp_path / "run") as run:
        Evaluations(run).record(SAMPLES, step=0, seconds=1.5)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Eval stats saved to: " in printed.err


def test_a_file_that_could_not_be_written_is_not_called_saved(tmp_path, caplog):
    lines = []
    with rlvitals.start(tmp_path / "run") as run:
        (tmp_path / "run" / "eval_logs").write_text("in the way")
        Evaluations(run, say=lines.append).record(SAMPLES, step=3, seconds=1.5)
    assert not any("saved" in line for line in lines)
    assert any("cannot write" in text for text in caplog.messages)
    assert "accuracy" in (tmp_path / "run/logs/eval_metrics.jsonl").read_text()


def test_only_the_newest_files_are_kept_and_that_of_the_control(tmp_path):
    root = tmp_path / "run"
    with rlvitals.start(root) as run:
        evaluations = quiet(run, keep_last_evals=2, patience=None)
        for step in range(0, 60, 10):
            evaluations.record(some(step // 10), step=step, seconds=1.0)
    names = sorted(path.name for path in (root / "eval_logs").glob("eval_*"))
    assert names == ["eval_step_0000.json", "eval_step_0040.json", "eval_step_0050.json"]
    assert len((root / "logs/eval_metrics.jsonl").read_text().splitlines()) == 6


@pytest.mark.parametrize("setting", [{"keep_last_evals": 0}, {"patience": 0}])
def test_settings_that_make_no_sense_are_refused(tmp_path, setting):
    with rlvitals.start(tmp_path / "run") as run, pytest.raises(ConfigError, match="must be 1"):
        quiet(run, **setting)


# When to stop


def test_training_stops_after_five_evaluations_without_a_better_accuracy(tmp_path):
    with rlvitals.start(tmp_path / "run") as run:
        evaluations = quiet(run)
        stops = [evaluations.record(some(correct), step=step, seconds=1.0).stop
                 for step, correct in enumerate([2, 5, 5, 4, 5, 3, 1])]  # fmt: skip
    assert stops[:6] == [""] * 6
    assert stops[6] == "no better accuracy in 5 evaluations; the best is 0.500 of step 1"


def test_a_better_accuracy_restarts_the_count_and_null_switches_it_off(tmp_path):
    with rlvitals.start(tmp_path / "run") as run:
        evaluations = quiet(run, patience=2)
        found = [evaluations.record(some(correct), step=step, seconds=1.0) for step, correct in enumerate([2, 1, 3, 3])]
        assert [judged.without_improvement for judged in found] == [0, 1, 0, 1]
        assert not any(judged.stop for judged in found)
    with rlvitals.start(tmp_path / "other") as run:
        evaluations = quiet(run, patience=None)
        assert not any(evaluations.record(some(1), step=step, seconds=1.0).stop for step in range(9))


def test_training_stops_when_the_target_is_reached(tmp_path):
    with rlvitals.start(tmp_path / "run") as run:
        evaluations = quiet(run, target_accuracy=0.6)
        assert evaluations.record(some(5), step=0, seconds=1.0).stop == ""
        assert evaluations.record(some(6), step=1, seconds=1.0).stop == "accuracy 0.600 has reached the target of 0.6"


def test_an_evaluation_of_nothing_counts_neither_way(tmp_path):
    with rlvitals.start(tmp_path / "run") as run:
        evaluations = quiet(run, patience=1)
        evaluations.record(some(5), step=0, seconds=1.0)
        judged = evaluations.record([], step=1, seconds=1.0)
    assert (judged.stop, judged.without_improvement, judged.stats["accuracy"]) == ("", 0, None)


# The tracker and the document's scripts


@pytest.mark.slow
def test_trackers_get_the_documents_names(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    root = tmp_path / "run"
    with rlvitals.start(root, track_with="tensorboard") as run:
        evaluations = quiet(run)
        evaluations.record(some(2), step=0, seconds=1.0)
        evaluations.record(some(5), step=10, seconds=1.0)
    folder = root / "logs" / "tensorboard"
    assert until(lambda: list(folder.rglob("events.*")))
    events = EventAccumulator(str(next(folder.rglob("events.*")).parent))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"eval/total_searches", "eval/num_idk", "eval/avg_turns_correct", "eval/attempted_answer_fraction",
            "eval/beat_rate", "eval/wins", "eval/ties", "eval/losses", "eval/best_accuracy"} <= tags  # fmt: skip
    assert [event.value for event in events.Scalars("eval/beat_rate")] == pytest.approx([0.3])


SCRIPT = """
import json
import glob
from pathlib import Path

def analyze_eval_logs(output_dir):
    eval_logs = sorted(glob.glob(f"{output_dir}/eval_logs/eval_step_*.json"))

    for log_file in eval_logs:
        with open(log_file) as f:
            data = json.load(f)

        print(f"Step {data['step']:4d}: "
              f"Acc={data['accuracy']*100:5.1f}%, "
              f"Found={data['found_correct_email']}/{data['total_samples']}, "
              f"Read={data['read_correct_email']}/{data['total_samples']}, "
              f"Repeats={data['total_repeated_searches']}")

analyze_eval_logs("outputs/grpo_masked")
"""
LOOP = """for f in outputs/grpo_masked/eval_logs/eval_step_*.json; do
    echo -n "$(basename $f): "
    jq -r '.accuracy' $f
done
"""


def two_evaluations(tmp_path):
    root = tmp_path / "outputs" / "grpo_masked"
    with rlvitals.start(root) as run:
        evaluations = quiet(run)
        evaluations.record(some(2), step=0, seconds=1.0)
        evaluations.record(some(5), step=10, seconds=1.0)
    return root


def test_the_documents_script_runs_unchanged_and_evals_prints_what_it_prints(tmp_path, capsys):
    from rlvitals.cli.main import main

    root = two_evaluations(tmp_path)
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == (
        "Step    0: Acc= 20.0%, Found=10/10, Read=2/10, Repeats=0\n"
        "Step   10: Acc= 50.0%, Found=10/10, Read=5/10, Repeats=0\n"
    )
    assert main(["evals", str(root)]) == 0
    assert capsys.readouterr().out.startswith(done.stdout)


@pytest.mark.skipif(not shutil.which("jq") or not shutil.which("bash"), reason="jq or bash is not installed")
def test_the_documents_loop_runs_unchanged(tmp_path):
    two_evaluations(tmp_path)
    done = subprocess.run(["bash", "-c", LOOP], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "eval_step_0000.json: 0.2\neval_step_0010.json: 0.5\n"
    everything = subprocess.run(
        ["bash", "-c", "cat outputs/grpo_masked/eval_logs/eval_step_*.json | jq ."],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert everything.stdout.count('"beat_rate"') == 2
