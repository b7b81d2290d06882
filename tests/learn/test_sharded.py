"""Every trainer on two processes, with replicated and with sharded weights. A rank is killed with `kill -9`, and the
resumed training ends with the same weights as an uninterrupted one. RLAIF starts from a pretrained student, some of
whose answers are better than others.
"""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlvitals.train import models
from rlvitals.train.rlaif.tasks import warmed_up
from train.test_sharded import GRPO, HERE, PPO, RLAIF, assert_same_curve, curve, flags, goes_on_sharded, launch, train

KTO = {"examples": 120, "batch_size": 4, "warm_up_steps": 10, "display": "none"}
STEPS = {"max_steps": 4, "save_steps": 2, "eval_steps": 2}
TRAINERS = {"kto": KTO, "ppo": PPO, "grpo": GRPO, "rlaif": {**RLAIF, "chat": False}}


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    """A pretrained model with answers of different quality: those of an untrained model all get the same reward."""
    folder = tmp_path_factory.mktemp("student") / "model"
    models.write(folder, warmed_up(0, steps=250, batch_size=16, learning_rate=6e-3))
    return folder


def weights_in(folder):
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_rank_that_was_killed_is_resumed_on_the_curve_of_a_training_that_was_not(
    tmp_path, trainer, student, monkeypatch
):
    given = {**TRAINERS[trainer], **STEPS} | ({"model": student} if trainer == "rlaif" else {})
    unbroken = train(trainer, {**given, "output_dir": tmp_path / "unbroken"}, is_sharded=False)
    whole, wanted, half = curve(unbroken), weights_in(unbroken / "final_model"), weights_in(unbroken / "checkpoint-2")
    assert any((weight - half[name]).abs().max() > 1e-4 for name, weight in wanted.items())  # the weights change
    monkeypatch.setenv("DIES_AT", "3")
    for is_sharded in (False, True):
        folder = tmp_path / ("shards" if is_sharded else "copies")
        died = launch(
            str(HERE / "dying_rank.py"),
            "train",
            trainer,
            *flags({**given, "output_dir": folder}),
            is_sharded=is_sharded,
        )
        assert "Signal 9" in died.stderr, died.stderr[-3000:]
        assert not (folder / "final_model").exists()
        train(trainer, {**given, "output_dir": folder, "resume_from": folder / "checkpoint-2"}, is_sharded=is_sharded)
        assert_same_curve(curve(folder), [row for row in whole if row["step"] <= 2])
        assert_same_curve(curve(folder, attempt=2), [row for row in whole if row["step"] > 2])
        torch.testing.assert_close(weights_in(folder / "final_model"), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_student_that_learns_goes_on_sharded_from_a_checkpoint_of_copies(tmp_path, student):
    given = {**RLAIF, **STEPS, "model": student, "chat": False}
    rows = goes_on_sharded("rlaif", given, tmp_path)
    assert any(row["optim.grad_norm"] > 0.1 for row in rows if row["step"] > 2)
