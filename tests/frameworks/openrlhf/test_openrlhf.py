"""OpenRLHF's own TensorboardLogger and its Experience batches, as its trainer fills them. The trainers need CUDA."""

from __future__ import annotations

from importlib.metadata import version
from types import SimpleNamespace

import pytest
import torch
import transformers
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils import logging_utils

import rlvitals
from rlvitals.adapters import openrlhf as adapter


@pytest.fixture
def logger(tmp_path):
    adapter.install()
    wandb = SimpleNamespace(key=None, org=None, group=None, project="p", run_name="ppo_1115")
    args = SimpleNamespace(
        logger=SimpleNamespace(wandb=wandb, tensorboard_dir=str(tmp_path / "tensorboard"), logging_steps=1),
        ckpt=SimpleNamespace(output_dir=str(tmp_path), load_enable=False),
        algo=SimpleNamespace(advantage=SimpleNamespace(estimator="group_norm"), kl=SimpleNamespace(init_coef=0.001)),
        rollout=SimpleNamespace(n_samples_per_prompt=2, max_new_tokens=4),
    )
    return logging_utils.TensorboardLogger(args)


@pytest.fixture
def batch(tiny_model):
    """Two answers to one prompt: the second is cut, and a tool speaks within the first."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)
    prompt = tokenizer("the cat ")["input_ids"]
    answers = [tokenizer("sat on")["input_ids"], tokenizer("no no")["input_ids"]]
    sequences = torch.tensor([prompt + answer for answer in answers])
    own = [[0] * (len(prompt) - 1) + [1, 0, 1], [0] * (len(prompt) - 1) + [1, 1, 1]]
    made = Experience(
        sequences=sequences,
        action_mask=torch.tensor(own).bool(),
        advantages=torch.tensor(own) * torch.tensor([[0.7], [-0.7]]),
        rewards=torch.tensor([1.0, 0.0]),
        truncated=torch.tensor([False, True]),
        prompts=["the cat ", "the cat "],
    )
    return [made], tokenizer


def test_its_logger_and_its_experiences_are_recorded(logger, batch, tmp_path, shown):
    for step in range(1, 9):
        adapter._followed[id(logger)].take(*batch)
        logger.log_train(step, {"policy_loss": 0.1, "reward": step / 10, "kl": 0.01, "generated_samples": ["x", 0.5]})
        if step % 4 == 0:
            logger.log_eval(step, {"eval_gsm8k_pass1": step / 20})
    logger.close()
    folder = tmp_path / "ppo_1115"
    run = rlvitals.open_run(folder)
    assert list(run.series("train/reward")[1]) == [step / 10 for step in range(1, 9)]
    assert list(run.series("eval/eval_gsm8k_pass1")[0]) == [4, 8]
    (group,) = run.rollouts(3)
    first, second = group.rollouts
    assert group.prompt == "the cat "
    assert [(turn.text, turn.observation) for turn in first.turns] == [("sat", " "), ("on", "")]
    assert [turn.text for turn in second.turns] == ["no no"]
    assert (first.reward, first.stop, second.reward, second.stop) == (1.0, "", 0.0, "length")
    assert (first.advantage, second.advantage) == (pytest.approx(0.7), pytest.approx(-0.7))
    assert list((tmp_path / "tensorboard" / "ppo_1115").glob("events*"))  # its own logging goes on
    assert (run.status, run.algorithm) == ("finished", "grpo")
    shown("OpenRLHF", version("openrlhf"), "its TensorboardLogger and Experience, 8 steps; no training", folder)
