"""Levanter's real Trainer on the CPU, with the tracker chosen by name as in its configuration."""

from __future__ import annotations

from importlib.metadata import version

import draccus
import haliax as hax
import jax
import jmp
import numpy as np
import optax
import pytest
from levanter.checkpoint import CheckpointerConfig
from levanter.distributed import RayConfig
from levanter.tracker import TrackerConfig
from levanter.trainer import Trainer, TrainerConfig, initialize

import rlvitals
from rlvitals.adapters import levanter

BATCH, FEATURES = hax.Axis("batch", 8), hax.Axis("feature", 3)


def batches():
    rng = np.random.default_rng(0)
    while True:
        inputs = hax.named(rng.normal(size=(8, 3)).astype(np.float32), (BATCH, FEATURES))
        yield inputs, inputs.sum(FEATURES)


def loss(model, batch, key=None):
    inputs, targets = batch
    error = (model(inputs) - targets) ** 2
    return error.mean()


def test_a_training_is_recorded(tmp_path, monkeypatch, shown):
    monkeypatch.chdir(tmp_path)
    levanter.register()
    assert levanter.register() is levanter.register()
    chosen = draccus.decode(
        TrackerConfig, {"type": "rlvitals", "output_dir": str(tmp_path / "run"), "settings": {"hardware": False}}
    )
    config = TrainerConfig(
        tracker=chosen, id="tiny", num_train_steps=20, train_batch_size=8, require_accelerator=False,
        mp=jmp.get_policy("f32"), log_jaxprs=False, log_xla_hlo=False, load_checkpoint=False,
        ray=RayConfig(auto_start_cluster=False), log_dir=tmp_path / "logs",
        checkpointer=CheckpointerConfig(base_path=str(tmp_path / "checkpoints")),
    )  # fmt: skip
    initialize(config)
    key = jax.random.PRNGKey(0)
    with Trainer(config, optax.sgd(0.1), loss) as trainer:
        state = trainer.initial_state(key, model_init=lambda: hax.nn.Linear.init(FEATURES, (), key=key))
        trainer.train(state, batches())
        trainer.tracker.finish()
    run = rlvitals.open_run(tmp_path / "run")
    steps, losses = run.series("train/loss")
    assert len(steps) == 20
    assert losses[-1] < losses[0] / 10
    assert (run.status, run.info.framework, run.info.name) == ("finished", "levanter", "tiny")
    shown("Levanter", version("levanter"), "Trainer.train on a CPU", run.path)


def test_the_tracker_is_one_of_levanters():
    kind = levanter.register()
    assert issubclass(kind, TrackerConfig)
    with pytest.raises(TypeError, match="abstract"):
        TrackerConfig()
