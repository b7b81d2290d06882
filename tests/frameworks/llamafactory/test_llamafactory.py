"""LLaMA-Factory's own `run_exp`: SFT and DPO of a tiny model from a YAML file, as a user starts it."""

from __future__ import annotations

import json
import sys
import types
from importlib.machinery import ModuleSpec
from importlib.metadata import version

import pytest
import yaml

import rlvitals
from rlvitals.adapters import llamafactory

# LLaMA-Factory imports torchaudio for audio data. Its builds need CUDA's libraries; these tests use no audio.
sys.modules["torchaudio"] = types.ModuleType("torchaudio")
sys.modules["torchaudio"].__spec__ = ModuleSpec("torchaudio", None)

COLUMNS = {"messages": "conversations"}


@pytest.fixture
def settings(tiny_model, tmp_path):
    """The settings of a LLaMA-Factory YAML file."""
    talk = [{"from": "human", "value": "the cat "}, {"from": "gpt", "value": "sat on the mat ."}]
    pair = {
        "conversations": talk[:1],
        "chosen": {"from": "gpt", "value": "sat on the mat ."},
        "rejected": {"from": "gpt", "value": "no no no !"},
    }
    (tmp_path / "talks.json").write_text(json.dumps([{"conversations": talk}] * 48))
    (tmp_path / "pairs.json").write_text(json.dumps([pair] * 48))
    sharegpt = {"formatting": "sharegpt", "columns": COLUMNS}
    info = {
        "talks": {"file_name": "talks.json", **sharegpt},
        "pairs": {
            "file_name": "pairs.json",
            "ranking": True,
            "formatting": "sharegpt",
            "columns": {**COLUMNS, "chosen": "chosen", "rejected": "rejected"},
        },
    }
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    return {
        "model_name_or_path": str(tiny_model), "do_train": True, "finetuning_type": "full", "template": "default",
        "dataset_dir": str(tmp_path), "dataset": "talks", "stage": "sft", "cutoff_len": 64, "use_cpu": True,
        "output_dir": str(tmp_path / "out"), "max_steps": 6, "logging_steps": 1, "per_device_train_batch_size": 4,
        "learning_rate": 1e-3, "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "bf16": False,
    }  # fmt: skip


def test_sft_from_a_yaml_file(settings, tmp_path, monkeypatch, shown):
    """`python -m rlvitals.adapters.llamafactory train.yaml`, with a section of rlvitals settings."""
    file = tmp_path / "train.yaml"
    file.write_text(yaml.safe_dump({**settings, "rlvitals": {"name": "from-yaml", "hardware": False}}))
    monkeypatch.setattr(sys, "argv", ["train", str(file)])
    llamafactory.run_exp()
    folder = tmp_path / "out"
    run = rlvitals.open_run(folder)
    assert list(run.series("loss")[0]) == [1, 2, 3, 4, 5, 6]
    assert (run.name, run.framework, run.status) == ("from-yaml", "llamafactory", "finished")
    shown("LLaMA-Factory sft", version("llamafactory"), "training, 6 steps", folder, acts="stop, save, rate, revert")


def test_dpo(settings, tmp_path, shown):
    llamafactory.run_exp({**settings, "stage": "dpo", "dataset": "pairs", "pref_loss": "sigmoid"})
    folder = tmp_path / "out"
    run = rlvitals.open_run(folder)
    assert list(run.series("rewards/margins")[0]) == [1, 2, 3, 4, 5, 6]
    shown("LLaMA-Factory dpo", version("llamafactory"), "training, 6 steps", folder, acts="stop, save, rate, revert")


def test_a_critical_finding_stops_it(settings, tmp_path, ask_for):
    llamafactory.run_exp({**settings, "max_steps": 30}, actions="act", rules=[ask_for("stop", "loss > 0")])
    assert rlvitals.open_run(tmp_path / "out").last_step < 30
