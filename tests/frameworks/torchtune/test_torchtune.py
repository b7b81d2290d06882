"""torchtune's own LoRA DPO recipe, run by its own command on a tiny model."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torchtune.models.llama2 import llama2

import rlvitals
from rlvitals.adapters.torchtune import VitalsLogger

SIZES = {
    "vocab_size": 16, "num_layers": 2, "num_heads": 2, "num_kv_heads": 2, "embed_dim": 16, "max_seq_len": 32,
}  # fmt: skip


def configuration(folder):
    return {
        "output_dir": str(folder / "out"),
        "model": {
            "_component_": "torchtune.models.llama2.lora_llama2", **SIZES, "lora_attn_modules": ["q_proj", "v_proj"],
            "apply_lora_to_mlp": True, "lora_rank": 4, "lora_alpha": 8, "lora_dropout": 0.0,
        },
        "tokenizer": {"_component_": "tiny_pairs.Tokenizer"},
        "dataset": {"_component_": "tiny_pairs.Pairs"},
        "checkpointer": {
            "_component_": "torchtune.training.FullModelTorchTuneCheckpointer", "checkpoint_dir": str(folder / "model"),
            "checkpoint_files": ["tiny.pt"], "output_dir": "${output_dir}", "model_type": "LLAMA2",
        },
        "optimizer": {"_component_": "torch.optim.AdamW", "lr": 0.02},
        "loss": {"_component_": "torchtune.rlhf.loss.DPOLoss", "beta": 1.0},
        "metric_logger": {
            "_component_": "rlvitals.adapters.torchtune.VitalsLogger", "output_dir": "${output_dir}/run",
            "hardware": False,
        },
        "seed": 0, "shuffle": False, "batch_size": 4, "epochs": 2, "max_steps_per_epoch": None,
        "gradient_accumulation_steps": 1, "compile": False, "resume_from_checkpoint": False, "device": "cpu",
        "dtype": "fp32", "enable_activation_checkpointing": False, "log_every_n_steps": 1,
    }  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a finished recipe."""
    folder = tmp_path_factory.mktemp("recipe")
    torch.manual_seed(0)
    (folder / "model").mkdir()
    torch.save(llama2(**SIZES).state_dict(), folder / "model" / "tiny.pt")
    OmegaConf.save(configuration(folder), folder / "mine.yaml")
    tune = Path(sys.executable).parent / "tune"
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [tune, "run", "lora_dpo_single_device", "--config", folder / "mine.yaml"]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_a_recipe_is_recorded(trained, shown):
    run = rlvitals.open_run(trained / "out" / "run")
    steps, losses = run.series("loss")
    assert list(steps) == list(range(1, 33))  # two epochs of 64 pairs, 4 at a time
    assert losses[0] == pytest.approx(0.6931, abs=1e-4)  # ln 2: the adapters begin at zero
    assert losses[-1] < 0.66
    assert run.series("rewards/margins")[1][-1] > 0
    assert (run.status, run.info.framework, run.info.algorithm) == ("finished", "torchtune", "dpo")
    assert run.config["optimizer"]["lr"] == 0.02
    shown("torchtune", version("torchtune"), "tune run lora_dpo_single_device, a tiny model", run.path)


def test_a_logger_without_a_configuration_takes_single_numbers(tmp_path):
    logger = VitalsLogger(tmp_path, hardware=False)
    logger.log("loss", torch.tensor(0.5), 1)
    logger.log_dict({"loss": 0.25, "image": torch.zeros(3)}, 2)
    logger.close()
    assert list(rlvitals.open_run(tmp_path).series("loss")[1]) == [0.5, 0.25]
