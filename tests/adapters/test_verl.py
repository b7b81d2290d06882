"""A stand-in with the interface of verl 0.9.1's Tracking. tests/frameworks/verl tests the real class."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import types

import numpy as np
import pytest

import rlvitals
from rlvitals.adapters import verl as adapter
from rlvitals.errors import RunExists


class PublishedTracking:
    """The interface of `verl.utils.tracking.Tracking`: a list of names, a mapping of loggers, three methods."""

    def __init__(self, project_name, experiment_name, default_backend="console", config=None):
        names = [default_backend] if isinstance(default_backend, str) else default_backend
        assert set(names) <= set(self.supported_backend), f"{names} is not supported"
        self.logger = {}
        self.ended = []

    def log(self, data, step, backend=None):
        for name, logger in self.logger.items():
            if backend is None or name in backend:
                logger.log(data=data, step=step)

    def finish(self, exit_code=0):
        self.ended.append(exit_code)

    def __del__(self):
        self.finish()


@pytest.fixture
def tracking(monkeypatch):
    """The class Tracking, with the rlvitals back end registered."""
    kind = type("Tracking", (PublishedTracking,), {"supported_backend": ["wandb", "console"]})
    kind.__init__, kind.finish = PublishedTracking.__init__, PublishedTracking.finish
    publish(kind, monkeypatch)
    adapter.register()
    return kind


def publish(kind, monkeypatch):
    """Make `from verl.utils.tracking import Tracking` return this class."""
    module = types.ModuleType("verl.utils.tracking")
    module.Tracking = kind
    names = {"verl": types.ModuleType("verl"), "verl.utils": types.ModuleType("verl.utils"), module.__name__: module}
    for name, there in names.items():
        monkeypatch.setitem(sys.modules, name, there)


def configuration(folder, **rlvitals_section):
    return {
        "trainer": {"default_local_dir": str(folder), "resume_mode": "auto", "total_training_steps": 12},
        "algorithm": {"adv_estimator": "grpo"},
        "data": {"max_response_length": 1024},
        "actor_rollout_ref": {
            "rollout": {"n": 8, "val_kwargs": {"n": 1}},
            "actor": {"optim": {"lr": 1e-6}, "use_kl_loss": True, "kl_loss_coef": 0.001},
        },
        "reward": {"api_key": "abcdef0123456789", "template": "${question}"},
        "rlvitals": rlvitals_section,
    }


def train(tracking, first=1, last=12):
    """Make a PPO trainer's calls: a validation before training, one row per step, later validations in these rows."""
    if first == 1:
        tracking.log(data={"val-core/gsm8k/reward/mean@1": 0.25}, step=0)
    for step in range(first, last + 1):
        row = {"critic/score/mean": step / 12, "actor/pg_loss": np.float32(0.5), "training/global_step": step}
        if step % 5 == 0:
            row["val-core/gsm8k/reward/mean@1"] = step / 10
        tracking.log(data=row, step=step)


def rows_of(folder, log="training"):
    return [json.loads(line) for line in (folder / "logs" / f"{log}_metrics.jsonl").read_text().splitlines()]


def test_a_trainers_steps_and_validations_are_recorded(tracking, tmp_path):
    config = configuration(tmp_path)
    one = tracking("project", "experiment", ["rlvitals"], config)
    train(one)
    one.finish(exit_code=0)
    rows = rows_of(tmp_path)
    assert [(row["step"], row["critic/score/mean"]) for row in rows] == [(step, step / 12) for step in range(1, 13)]
    assert not any(name.startswith("val-core") for row in rows for name in row)
    assert [row["step"] for row in rows_of(tmp_path, "eval")] == [0, 5, 10]
    run = rlvitals.open_run(tmp_path)
    assert list(run.series("val-core/gsm8k/reward/mean@1")[1]) == [0.25, 0.5, 1.0]
    assert run.status == "finished"


def test_what_the_configuration_says_is_used_and_its_secrets_are_not_kept(tracking, tmp_path):
    config = configuration(tmp_path / "unused", output_dir=str(tmp_path / "here"), hardware=False)
    tracking("project", "experiment", "rlvitals", config).finish(exit_code=0)
    card = json.loads((tmp_path / "here" / "run.json").read_text())
    assert (card["name"], card["algorithm"], card["framework"]) == ("experiment", "grpo", "verl")
    assert card["total_steps"] == 12
    text = (tmp_path / "here" / "config.json").read_text()
    assert "abcdef0123456789" not in text
    kept = json.loads(text)
    assert (kept["num_generations"], kept["max_completion_length"], kept["beta"]) == (8, 1024, 0.001)
    assert kept["reward"]["template"] == "${question}"


def test_the_folder_of_verls_rollouts_is_kept_as_a_whole_path(tracking, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = configuration(tmp_path / "run")
    config["trainer"]["rollout_data_dir"] = "rollouts"
    tracking("project", "experiment", "rlvitals", config).finish(exit_code=0)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["rollouts_from"] == str(tmp_path / "rollouts")


def test_a_tracking_that_does_not_ask_for_it_is_untouched(tracking, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = tracking("project", "experiment", "console", configuration(tmp_path / "run"))
    one.log(data={"loss": 1.0}, step=1)
    one.finish(exit_code=0)
    assert list(tmp_path.iterdir()) == []


def test_registering_twice_records_once(tracking, tmp_path):
    adapter.register()
    one = tracking("project", "experiment", ["rlvitals"], configuration(tmp_path))
    one.log(data={"loss": 1.0}, step=1)
    one.finish(exit_code=0)
    assert len(rows_of(tmp_path)) == 1
    assert tracking.supported_backend.count("rlvitals") == 1


def test_a_row_for_another_back_end_is_not_ours(tracking, tmp_path):
    one = tracking("project", "experiment", ["rlvitals"], configuration(tmp_path))
    one.log(data={"loss": 1.0}, step=1, backend=["wandb"])
    one.log(data={"loss": 2.0}, step=2, backend=["rlvitals"])
    one.finish(exit_code=0)
    assert [row["loss"] for row in rows_of(tmp_path)] == [2.0]


@pytest.mark.parametrize(("last", "status"), [(12, "finished"), (7, "interrupted")])
def test_a_tracking_that_is_forgotten_ends_its_run(tracking, tmp_path, last, status):
    one = tracking("project", "experiment", ["rlvitals"], configuration(tmp_path))
    train(one, last=last)
    del one
    gc.collect()
    assert rlvitals.open_run(tmp_path).status == status


@pytest.mark.parametrize(
    ("last", "end", "status"),
    [
        (12, "", "finished"),
        (7, "", "interrupted"),
        (7, "raise RuntimeError('luck')", "failed"),
        (7, "sys.exit(3)", "failed"),
    ],
)
def test_a_back_end_that_is_alive_when_its_process_exits(tmp_path, last, end, status):
    program = f"""
import sys
from rlvitals.adapters.verl import VitalsBackend

config = {{"trainer": {{"default_local_dir": {str(tmp_path)!r}, "total_training_steps": 12}}}}
backend = VitalsBackend("project", "experiment", config)
for step in range(1, {last} + 1):
    backend.log({{"critic/score/mean": step / 12}}, step)
{end}
"""
    subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert rlvitals.open_run(tmp_path).status == status


def test_a_tracking_of_verl_before_0_9_has_no_finish_and_ends_its_run(tmp_path, monkeypatch):
    kind = type("Tracking", (), {name: vars(PublishedTracking)[name] for name in ("__init__", "log")})
    kind.supported_backend = ["console"]
    publish(kind, monkeypatch)
    adapter.register()
    one = kind("project", "experiment", ["console", "rlvitals"], configuration(tmp_path))
    train(one)
    del one
    gc.collect()
    assert rlvitals.open_run(tmp_path).status == "finished"


class PublishedTrainer:
    """The used part of `verl.trainer.ppo.v1.trainer_base.PPOTrainer`: `step`, the loop around it, a checkpoint."""

    def __init__(self, logger, planned):
        self.logger, self.total_training_steps, self.global_steps = logger, planned, 1
        self.saved = []

    def step(self, metrics, timing_raw):
        metrics["critic/score/mean"] = 0.5

    def fit(self):
        while self.global_steps <= self.total_training_steps:
            metrics = {"training/global_step": self.global_steps}
            self.step(metrics, {})
            self.logger.log(data=metrics, step=self.global_steps)
            self.global_steps += 1

    def _save_checkpoint(self):
        self.saved.append(self.global_steps)


def test_the_doctor_stops_the_trainer_and_has_it_save(tracking, tmp_path, monkeypatch):
    module = types.ModuleType(adapter.TRAINERS)
    module.PPOTrainer = type("PPOTrainer", (PublishedTrainer,), {"step": PublishedTrainer.step})
    monkeypatch.setitem(sys.modules, adapter.TRAINERS, module)
    rules = [
        {
            "rule": f"asked_{action}", "kind": "instability", "when": f"training/global_step >= {step}",
            "severity": "critical", "warm_up": 1, "hold": "1 of 1", "action_critical": action, "title": "on purpose",
            "certain": action == "stop",
        }
        for action, step in (("checkpoint", 3), ("stop", 6))
    ]  # fmt: skip
    config = configuration(tmp_path, actions="act", rules=rules)
    tracker = tracking("project", "experiment", ["rlvitals"], config)
    trainer = module.PPOTrainer(tracker, 12)
    trainer.fit()
    tracker.finish(exit_code=0)
    assert (trainer.saved, trainer.global_steps) == ([3], 7)  # the sixth step was the last one
    answers = [json.loads(line) for line in (tmp_path / "logs" / "findings.jsonl").read_text().splitlines()]
    assert [line["text"] for line in answers if line["type"] == "answer"] == ["saved global_step_3", "training stops"]
    assert rlvitals.open_run(tmp_path).status == "finished"


def test_a_failed_training_is_a_failed_run(tracking, tmp_path):
    one = tracking("project", "experiment", ["rlvitals"], configuration(tmp_path))
    train(one)
    one.finish(exit_code=1)
    one.finish(exit_code=0)  # the first exit code counts
    assert rlvitals.open_run(tmp_path).status == "failed"


def test_verl_resumes_and_the_run_goes_on(tracking, tmp_path):
    first = tracking("project", "experiment", ["rlvitals"], configuration(tmp_path))
    train(first, last=9)
    first.finish(exit_code=1)
    second = tracking("project", "experiment", ["rlvitals"], configuration(tmp_path))
    train(second, first=6)  # from the checkpoint of step 5
    second.finish(exit_code=0)
    assert [(row["attempt"], row["step"]) for row in rows_of(tmp_path)] == [
        *((1, step) for step in range(1, 10)), *((2, step) for step in range(6, 13))
    ]  # fmt: skip
    assert list(rlvitals.open_run(tmp_path).series("critic/score/mean")[0]) == list(range(1, 13))


def test_without_verls_resuming_a_recorded_folder_is_refused(tracking, tmp_path):
    config = configuration(tmp_path)
    config["trainer"]["resume_mode"] = "disable"
    tracking("project", "experiment", ["rlvitals"], config).finish(exit_code=0)
    with pytest.raises(RunExists, match="overwrite"):
        tracking("project", "experiment", ["rlvitals"], config)
    config["rlvitals"] = {"overwrite": True}
    tracking("project", "experiment", ["rlvitals"], config).finish(exit_code=0)
    gc.collect()


def test_values_of_every_kind_are_taken_or_left_out_and_none_raises(tmp_path):
    backend = adapter.VitalsBackend("project", "experiment", None, output_dir=tmp_path / "run")
    values = {
        "loss": np.float64(0.5),
        "nested": {"kl": 0.1},
        "none": None,
        "text": "x",
        "image": np.zeros((2, 2)),
        "table": {1},
    }
    for step in (3, 3, None, np.int64(9)):
        backend.log(data=values, step=step)
    for nothing in ({}, None, "x"):
        backend.log(data=nothing, step=10)
    assert {"image", "table"} <= set(backend.run.left_out)
    backend.finish()
    taken = [row for row in rows_of(tmp_path / "run") if "loss" in row]
    assert [(row["step"], row["nested/kl"]) for row in taken] == [(3, 0.1), (3, 0.1), (4, 0.1), (9, 0.1)]


def test_one_process_records_whatever_rank_its_launcher_gave_it(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")  # SFT logs from the last pipeline stage
    backend = adapter.VitalsBackend("project", "experiment", configuration(tmp_path))
    backend.log({"train/loss": 0.5}, 1)
    backend.finish()
    assert len(rows_of(tmp_path)) == 1
