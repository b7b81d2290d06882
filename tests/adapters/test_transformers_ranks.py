"""The callback in two real torchrun processes: one records rows, both record rollouts and carry out requests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_trainers

import rlvitals
from conftest import torchrun
from rlvitals.errors import MissingDependency

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("torchrun"), pytest.mark.filterwarnings("ignore")]

RANK = """
import json, os, sys, time
sys.path.insert(0, sys.argv[1])
import datasets
import tiny_trainers
from transformers import TrainerCallback
from rlvitals.adapters.transformers import VitalsCallback

datasets.disable_progress_bars()
folder, rank = sys.argv[2], int(os.environ["RANK"])
cut = {"rule": "asked_for", "kind": "instability", "when": "epoch > 0.6", "severity": "critical", "warm_up": 1,
       "hold": "1 of 1", "action_critical": "reduce_lr", "title": "on purpose"}
back = {**cut, "action_critical": "revert"}
evaluated = {"eval_strategy": "steps", "eval_steps": 2}
jobs = {name: (name, {"max_steps": 4, **(evaluated if name == "kto" else {})}, {}) for name in tiny_trainers.NAMES}
jobs |= {
    "spread": ("grpo", {"per_device_train_batch_size": 2, "max_steps": 2}, {}),
    "too_high": ("kto", {"learning_rate": 1.0, "max_steps": 60}, {}),
    "cut": ("trainer", {"lr_scheduler_type": "constant"}, {"rules": [cut]}),
    "back": ("trainer", {"save_strategy": "steps", "save_steps": 1}, {"rules": [back]}),
    "again": ("grpo", {"max_steps": 2}, {}),
    "again once more": ("grpo", {"max_steps": 3}, {}),
}
class Late(TrainerCallback):  # the main process comes last to where the run is opened
    def on_train_begin(self, *given, **named):
        if rank == 0:
            time.sleep(1.5)
for job, (name, settings, more) in jobs.items():
    seen = []
    def judged(completions, seen=seen, **_):
        said = tiny_trainers.brevity(completions)
        seen.append(list(zip(completions, said)))
        return said
    if name in ("grpo", "rloo", "online_dpo"):
        settings = {**settings, "rewards": judged}
    callback = VitalsCallback(hardware=False, actions="act", **more)
    callbacks = [Late(), callback] if job.startswith("again") else [callback]
    trainer = tiny_trainers.make(name, f"{folder}/{job.split()[0]}", callbacks, **settings)
    trainer.train()
    told = {
        "history": trainer.state.log_history,
        "steps": trainer.state.global_step,
        "rate": trainer.optimizer.param_groups[0]["lr"],
        "weights": sum(tensor.double().abs().sum().item() for tensor in trainer.model.state_dict().values()),
        "records": callback._started_with is not None,
        "seen": seen,
    }
    with open(f"{folder}/{job}-{rank}.json", "w") as out:
        json.dump(told, out)
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """The results that both ranks write after each training; `jobs.folder` holds the runs."""
    folder = tmp_path_factory.mktemp("ranks")
    script = folder / "rank.py"
    script.write_text(RANK)
    command = torchrun(str(script), str(Path(__file__).parent), str(folder))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]

    def results(job):
        return [json.loads((folder / f"{job}-{rank}.json").read_text()) for rank in (0, 1)]

    results.folder = folder
    return results


def lines(folder, log):
    return [json.loads(line) for line in (folder / "logs" / f"{log}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("job", tiny_trainers.NAMES)
def test_the_main_process_records_what_the_trainer_logs_over_both(jobs, job):
    first, second = jobs(job)
    folder = jobs.folder / job
    steps = lines(folder, "training_metrics")
    own = [event for event in first["history"] if "loss" in event]
    assert len(steps) == len(own) == 4
    for row, event in zip(steps, own, strict=True):
        assert {name: row[name] for name in event} == event
    assert (first["records"], second["records"]) == (True, False)
    assert rlvitals.open_run(folder).ranks == [0]
    # Two processes with four samples each, over four steps.
    assert steps[-1]["system/samples"] == 2 * 4 * 4
    # The trainers merge their metrics over the processes, except these.
    others = [event for event in second["history"] if "loss" in event]
    for event, other in zip(own, others, strict=True):
        differing = {name for name in event if other[name] != event[name]}
        assert differing <= {"step_time", "val/contain_eos_token"}
    assert rlvitals.open_run(folder).status == "finished"


def recorded_rewards(folder, step):
    """Every recorded completion of a step and its reward, group by group."""
    groups = rlvitals.open_run(folder).rollouts(step)
    return [[(rollout.turns[0].text, rollout.reward) for rollout in group.rollouts] for group in groups]


@pytest.mark.parametrize("job", ["grpo", "rloo", "online_dpo"])
def test_each_process_records_its_own_rollouts_where_it_has_whole_groups(jobs, job):
    folder = jobs.folder / job
    names = sorted(path.name for path in (folder / "logs" / "rollouts").iterdir())
    assert names == sorted(f"step-{step:06d}{rank}.jsonl" for step in range(1, 5) for rank in ("", "-rank-1"))
    for step in range(1, 5):
        shown = [result["seen"][step - 1] for result in jobs(job)]
        if job == "online_dpo":
            shown = [[seen[place] for pair in range(4) for place in (pair, pair + 4)] for seen in shown]
        expected = [(text, pytest.approx(reward, rel=1e-6)) for seen in shown for text, reward in seen]
        recorded = recorded_rewards(folder, step)
        assert [one for group in recorded for one in group] == expected
        assert {len(group) for group in recorded} == {2 if job == "online_dpo" else 4}


def test_groups_that_are_spread_over_processes_are_recorded_whole_by_the_main_one(jobs):
    folder = jobs.folder / "spread"
    for step in (1, 2):
        first, second = (result["seen"][step - 1] for result in jobs("spread"))
        (group,) = recorded_rewards(folder, step)
        assert group == [(text, pytest.approx(reward, rel=1e-6)) for text, reward in [*first, *second]]
        (stored,) = rlvitals.open_run(folder).rollouts(step)
        # Only the process that sampled a completion knows its length and tokens.
        assert [rollout.trainable_tokens is None for rollout in stored.rollouts] == [False, False, True, True]
        assert [rollout.trace is None for rollout in stored.rollouts] == [False, False, True, True]
        assert sum(rollout.advantage for rollout in stored.rollouts) == pytest.approx(0, abs=1e-4)


def test_evaluations_of_both_processes_are_one_row(jobs):
    first, _ = jobs("kto")
    evaluations = [event for event in first["history"] if "eval_loss" in event]
    for row, event in zip(lines(jobs.folder / "kto", "eval_metrics"), evaluations, strict=False):
        assert {name: row[name] for name in event} == event
    assert len(evaluations) == 2


def test_both_processes_stop_at_the_same_step(jobs):
    first, second = jobs("too_high")
    assert first["steps"] == second["steps"] < 30
    found = lines(jobs.folder / "too_high", "findings")
    assert "lr_too_high" in {line["kind"] for line in found if line["type"] in ("raised", "escalated")}
    assert [line["answer"] for line in found if line["type"] == "answer"] == ["done"]


def test_both_processes_cut_the_learning_rate(jobs):
    first, second = jobs("cut")
    assert first["rate"] == second["rate"] == pytest.approx(5e-4)
    assert first["weights"] == second["weights"]


def test_several_processes_do_not_go_back_in_place(jobs):
    first, second = jobs("back")
    (answer,) = [line for line in lines(jobs.folder / "back", "findings") if line["type"] == "answer"]
    assert answer["answer"] == "declined"
    assert "several processes" in answer["text"]
    assert "resume_from_checkpoint" in answer["text"]
    assert first["steps"] == second["steps"] == answer["step"] < 6


def test_training_again_into_a_folder_with_a_finished_run_goes_on_beside_it_on_both_processes(jobs):
    for folder, job, steps in (("again", "again", 2), ("again-2", "again once more", 3)):
        place = jobs.folder / folder
        view = rlvitals.open_run(place)
        assert (view.status, view.rows, len(view.attempts)) == ("finished", steps, 1)
        names = sorted(path.name for path in (place / "logs" / "rollouts").iterdir())
        assert names == sorted(
            f"step-{step:06d}{rank}.jsonl" for step in range(1, steps + 1) for rank in ("", "-rank-1")
        )
        for step in range(1, steps + 1):
            shown = [one for result in jobs(job) for one in result["seen"][step - 1]]
            recorded = [one for group in recorded_rewards(place, step) for one in group]
            assert recorded == [(text, pytest.approx(reward, rel=1e-6)) for text, reward in shown]
    assert not (jobs.folder / "again-3").exists()


def test_without_transformers_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "rlvitals.adapters.transformers", raising=False)
    with pytest.raises(MissingDependency, match="pip install transformers"):
        __import__("rlvitals.adapters.transformers")
