"""A real `Trainer.fit` of Lightning with the callback."""

from __future__ import annotations

import lightning
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

import rlvitals
from rlvitals.adapters.lightning import VitalsCallback, VitalsLogger


class Tiny(lightning.LightningModule):
    """A linear regression."""

    def __init__(self, lr=0.1, width=3):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, 1)

    def training_step(self, batch):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        self.log("loss", loss)
        self.log("done", float(self.global_step))
        if self.global_step == 17 and getattr(self, "breaks", False):
            raise RuntimeError("out of luck")
        return loss

    def validation_step(self, batch):
        inputs, targets = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.layer(inputs), targets))

    test_step = validation_step

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)]


@pytest.fixture
def data():
    torch.manual_seed(0)
    inputs = torch.randn(64, 3)
    points = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    return torch.utils.data.DataLoader(points, batch_size=8)


def trainer(folder, *callbacks, **more):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    given = {"max_steps": 30, "log_every_n_steps": 1, "enable_checkpointing": False, "logger": False}
    return lightning.Trainer(**quiet, **given | more, callbacks=list(callbacks), default_root_dir=folder)


def test_a_fit_is_recorded_beside_lightnings_own_logger(tmp_path, data, shown):
    own = CSVLogger(tmp_path / "csv")
    fit = trainer(tmp_path, VitalsCallback(tmp_path / "run", hardware=False), logger=own)
    fit.fit(Tiny(), data, data)
    run = rlvitals.open_run(tmp_path / "run")
    steps, losses = run.series("loss")
    assert list(steps) == list(range(30))
    assert losses[-1] < losses[0] / 5
    assert len(run.series("val_loss")[0]) == 3  # after each full epoch of 8 steps
    assert (run.status, run.info.framework, run.info.total_steps) == ("finished", "lightning", 30)
    assert run.config["width"] == 3
    assert (tmp_path / "csv" / "lightning_logs" / "version_0" / "metrics.csv").is_file()
    shown("Lightning", lightning.__version__, "Trainer.fit", tmp_path / "run", acts="stop, save, rate", users=["done"])


def test_a_test_after_the_fit_belongs_to_the_same_run(tmp_path, data):
    fit = trainer(tmp_path, VitalsCallback(tmp_path / "run", hardware=False))
    model = Tiny()
    fit.fit(model, data)
    fit.test(model, data, verbose=False)
    run = rlvitals.open_run(tmp_path / "run")
    assert list(run.series("val_loss")[0]) == [30]
    assert list(run.series("loss")[0]) == list(range(30))
    assert run.status == "finished"


def test_the_trainer_stops_saves_and_cuts_the_rate(tmp_path, data, ask_for, answers):
    rules = [ask_for("checkpoint", "done >= 3"), ask_for("reduce_lr", "done >= 6"), ask_for("stop", "done >= 12")]
    fit = trainer(tmp_path, VitalsCallback(tmp_path / "run", actions="act", rules=rules, hardware=False))
    fit.fit(Tiny(lr=0.02), data)
    done = answers(tmp_path / "run")
    assert [(action, answer) for action, answer, _ in done] == [
        ("checkpoint", "done"), ("reduce_lr", "done"), ("stop", "done"),
    ]  # fmt: skip
    assert done[1][2] == "learning rate 0.02 -> 0.01"
    assert fit.optimizers[0].param_groups[0]["lr"] == 0.01  # the schedule has not restored the old rate
    assert fit.global_step < 20
    saved = tmp_path / "run" / done[0][2].removeprefix("saved ") / "lightning.ckpt"
    assert "state_dict" in torch.load(saved, weights_only=False)


def test_the_run_of_a_fit_that_raises_has_failed(tmp_path, data):
    model = Tiny()
    model.breaks = True
    with pytest.raises(RuntimeError, match="out of luck"):
        trainer(tmp_path, VitalsCallback(tmp_path / "run", hardware=False)).fit(model, data)
    run = rlvitals.open_run(tmp_path / "run")
    assert run.status == "failed"
    assert "out of luck" in run.info.error


def test_the_logger_alone_records_and_keeps_lightnings_checkpoints(tmp_path, data):
    fit = trainer(tmp_path, logger=VitalsLogger(tmp_path / "run", hardware=False), enable_checkpointing=True)
    fit.fit(Tiny(), data)
    assert len(rlvitals.open_run(tmp_path / "run").series("loss")[0]) == 30
    assert list((tmp_path / "run" / "checkpoints").glob("*.ckpt"))
