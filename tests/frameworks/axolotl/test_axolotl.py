"""Axolotl's own `axolotl train`: SFT and DPO of a tiny model with our plug-in named in the YAML file."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest
import yaml

import rlvitals


@pytest.fixture
def train(tiny_model, tmp_path):
    """Write the YAML file of a training and run Axolotl's command on it; returns the folder of its run."""
    from axolotl.cli.train import do_cli

    def run(rows, **settings):
        data, file = tmp_path / "data.jsonl", tmp_path / "train.yaml"
        data.write_text("\n".join(json.dumps(row) for row in rows * 48))
        given = {
            "base_model": str(tiny_model), "plugins": ["rlvitals.adapters.axolotl.VitalsPlugin"],
            "output_dir": str(tmp_path / "out"), "dataset_prepared_path": str(tmp_path / "prepared"),
            "sequence_len": 64, "micro_batch_size": 4, "gradient_accumulation_steps": 1, "max_steps": 6,
            "num_epochs": 1, "logging_steps": 1, "learning_rate": 1e-3, "optimizer": "adamw_torch",
            "lr_scheduler": "constant",
            "save_strategy": "no", "bf16": False, "fp16": False, "tf32": False, "val_set_size": 0,
            "special_tokens": {"pad_token": "<pad>"}, "dataset_num_proc": 1, "device": "cpu",
            **settings,
        }  # fmt: skip
        for name in ("datasets",):
            given[name] = [{**entry, "path": str(data)} for entry in given[name]]
        file.write_text(yaml.safe_dump(given))
        do_cli(config=str(file))
        return tmp_path / "out"

    return run


TALK = {"messages": [{"role": "user", "content": "the cat "}, {"role": "assistant", "content": "sat on the mat ."}]}
CHAT = [{"type": "chat_template", "ds_type": "json"}]


def test_sft(train, shown):
    folder = train([TALK], datasets=CHAT, rlvitals={"name": "from-yaml"})
    run = rlvitals.open_run(folder)
    assert list(run.series("loss")[0]) == [1, 2, 3, 4, 5, 6]
    assert (run.name, run.framework, run.status) == ("from-yaml", "axolotl", "finished")
    shown("Axolotl sft", version("axolotl"), "training, 6 steps", folder, acts="stop, save, rate, revert")


def test_dpo(train, shown):
    row = {
        "messages": [{"role": "user", "content": "the cat "}],
        "chosen": {"role": "assistant", "content": "sat on the mat ."},
        "rejected": {"role": "assistant", "content": "no no no !"},
    }
    folder = train([row], rl="dpo", datasets=[{"type": "chat_template.default", "ds_type": "json", "split": "train"}])
    run = rlvitals.open_run(folder)
    assert list(run.series("rewards/margins")[0]) == [1, 2, 3, 4, 5, 6]
    assert run.algorithm == "dpo"
    shown("Axolotl dpo", version("axolotl"), "training, 6 steps", folder, acts="stop, save, rate, revert")


def test_a_critical_finding_stops_it(train, ask_for):
    rules = [ask_for("stop", "loss > 0")]
    folder = train([TALK], datasets=CHAT, max_steps=12, rlvitals={"actions": "act", "rules": rules})
    assert rlvitals.open_run(folder).last_step < 12
