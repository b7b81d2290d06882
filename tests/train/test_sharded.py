"""Weights that are sharded over processes (FSDP2): the same training, the same files, the same resume.

The tests use two processes on a CPU, see `fsdp_on_cpu.py`. They compare the curves of the same training with sharded
weights and with a copy on each process (data parallel). These differ only in the order in which float32 numbers are
summed: rounding is 6e-8 of a number, and a few steps of Adam increase that to at most 1e-5.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from conftest import torchrun
from rlvitals.errors import ConfigError
from rlvitals.train import checkpoint, ppo, recipe, sharded

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",  # as accelerate's launcher sets it
}
MEASURED = ("time/", "memory/", "system/", "perf", "Performance/", "Teacher/Seconds", "agent.trajectory_time",
            "discard.time", "timestamp", "attempt", "mismatch")  # fmt: skip
"""Measured values and attempts; and the mismatch of sampler and trainer, which is only rounding."""


def flags(given):
    words = []
    for name, value in given.items():
        text = ",".join(value) if isinstance(value, tuple) else str(value).lower() if value in (True, False) else value
        words += [f"--{name.replace('_', '-')}", str(text)]
    return words


def launch(*words, is_sharded):
    program = [str(HERE / "fsdp_on_cpu.py")] if is_sharded else ["-m", "rlvitals.cli.main"]
    if words[0].endswith(".py"):
        program = []
    return subprocess.run(
        torchrun(*program, *words),
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", **(FSDP if is_sharded else {})},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


def train(trainer, given, *, is_sharded):
    done = launch("train", trainer, *flags(given), is_sharded=is_sharded)
    assert done.returncode == 0, done.stderr[-3000:]
    return Path(given["output_dir"])


def curve(folder, attempt=1, after=0):
    lines = (folder / "logs" / "training_metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        {name: value for name, value in row.items() if not name.startswith(MEASURED) and isinstance(value, int | float)}
        for row in rows
        if row["attempt"] == attempt and row["step"] > after
    ]


def assert_same_curve(one, other):
    assert [row["step"] for row in one] == [row["step"] for row in other]
    assert one
    for row, wanted in zip(one, other, strict=True):
        assert row == pytest.approx(wanted, rel=1e-4, abs=1e-6, nan_ok=True)


def assert_same_checkpoint(one, other):
    models_of = [AutoModelForCausalLM.from_pretrained(place).state_dict() for place in (one, other)]
    torch.testing.assert_close(*models_of, rtol=1e-4, atol=1e-6)
    states = [torch.load(place / checkpoint.STATE_FILE, weights_only=True)["optimizer"] for place in (one, other)]
    torch.testing.assert_close(*(state["state"] for state in states), rtol=1e-3, atol=1e-7)
    assert states[0]["param_groups"] == states[1]["param_groups"]


def test_gathering_clipping_sampling_and_going_back_are_those_of_a_whole_model(tmp_path):
    done = launch(str(HERE / "sharded_ranks.py"), str(tmp_path), is_sharded=True)
    assert done.returncode == 0, done.stderr[-3000:]
    AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-2")


# PPO, with a separate critic, several updates per step and micro-batches; 9 held-out prompts do not divide by 2.

PPO = {
    "families": ("add",), "held_out": 9, "warm_up_steps": 2, "warm_up_batch": 8, "reward_model_steps": 2,
    "reward_model_batch": 8, "value_warm_up_steps": 2, "max_steps": 2, "batch_size": 8, "minibatch_size": 4,
    "microbatch_size": 2,
    "max_new_tokens": 12, "steps_per_epoch": 1, "eval_steps": 1, "save_steps": 1, "critic": "separate",
    "gradient_checkpointing": True, "display": "none", "plots": False, "text_scores": ("bleu",),
}  # fmt: skip


@pytest.fixture(scope="module")
def ppo_runs(tmp_path_factory):
    """The same training, with a copy of the weights on each process and with the weights sharded."""
    folder = tmp_path_factory.mktemp("ppo")
    for name, is_sharded in (("copies", False), ("shards", True)):
        train("ppo", {**PPO, "output_dir": folder / name}, is_sharded=is_sharded)
    return folder


def test_ppo_learns_the_same_sharded(ppo_runs):
    assert_same_curve(curve(ppo_runs / "shards"), curve(ppo_runs / "copies"))
    for step in (1, 2):
        assert_same_checkpoint(*(ppo_runs / name / f"checkpoint-{step}" for name in ("shards", "copies")))
    final = AutoModelForCausalLM.from_pretrained(ppo_runs / "shards" / "final_model").state_dict()
    last = AutoModelForCausalLM.from_pretrained(ppo_runs / "shards" / "checkpoint-2").state_dict()
    assert all(torch.equal(weight, last[name]) for name, weight in final.items())


def test_ppo_resumed_sharded_goes_on_as_if_it_had_never_stopped(ppo_runs, tmp_path):
    shutil.copytree(ppo_runs / "shards", tmp_path / "run")
    train("ppo", {**PPO, "output_dir": tmp_path / "run", "resume_from": "checkpoint-1"}, is_sharded=True)
    assert_same_curve(curve(tmp_path / "run", attempt=2), curve(tmp_path / "run", after=1))
    assert_same_checkpoint(tmp_path / "run" / "checkpoint-2", ppo_runs / "shards" / "checkpoint-2")


def test_one_process_goes_on_from_a_checkpoint_that_two_have_sharded(ppo_runs, tmp_path):
    for name in ("shards", "copies"):
        shutil.copytree(ppo_runs / name, tmp_path / name)
        given = {**PPO, "output_dir": str(tmp_path / name), "resume_from": "checkpoint-1"}
        assert ppo.train(recipe.load("ppo", ppo.Settings, given=given)).steps == 2
    assert_same_curve(*(curve(tmp_path / name, attempt=2) for name in ("shards", "copies")))


# RLAIF and GRPO: a training with copies writes a checkpoint; a sharded one resumes from it and ends the same.

RLAIF = {
    "tasks": 16, "eval_tasks": 5, "prompts_per_step": 2, "group_size": 4, "micro_batch_size": 4, "max_new_tokens": 64,
    "max_steps": 2, "eval_steps": 1, "save_steps": 1, "agreement_steps": 0, "display": "none",
}  # fmt: skip
GRPO = {
    "groups_per_step": 3, "rollouts_per_group": 2, "held_out": 3, "max_steps": 2, "eval_steps": 1, "save_steps": 1,
    "minibatch_size": 4, "microbatch_size": 2, "display": "none",
}  # fmt: skip


def goes_on_sharded(trainer, given, folder):
    copies = train(trainer, {**given, "output_dir": folder / "copies"}, is_sharded=False)
    shutil.copytree(copies, folder / "shards")
    half, last = given["save_steps"], f"checkpoint-{given['max_steps']}"
    train(trainer, {**given, "output_dir": folder / "shards", "resume_from": f"checkpoint-{half}"}, is_sharded=True)
    assert_same_curve(curve(folder / "shards", attempt=2), curve(copies, after=half))
    assert_same_checkpoint(folder / "shards" / last, copies / last)
    AutoModelForCausalLM.from_pretrained(folder / "shards" / "final_model")
    return curve(copies)


def test_rlaif_goes_on_sharded_from_a_checkpoint_of_copies(tmp_path):
    """All answers of an untrained student get the same score, so nothing is learnt from them. tests/learn does this
    with a trained student.
    """
    goes_on_sharded("rlaif", {**RLAIF, "warm_up_steps": 2, "warm_up_batch_size": 4}, tmp_path)


def test_grpo_goes_on_sharded_from_a_checkpoint_of_copies(tmp_path):
    rows = goes_on_sharded("grpo", GRPO, tmp_path)
    assert all(row["grad_norm"] > 0.1 for row in rows)


def test_what_cannot_be_sharded_is_reported_at_once(tmp_path):
    given = {**GRPO, "output_dir": tmp_path / "run", "groups_per_step": 1}
    done = launch("train", "grpo", *flags(given), is_sharded=True)
    assert "groups_per_step must be at least 2, one for each process" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_weight_the_model_does_not_have_is_named():
    with pytest.raises(ConfigError, match="no weight 'bias_'"):
        sharded.put_weights(torch.nn.Linear(2, 2), {"bias_": torch.zeros(2)})
