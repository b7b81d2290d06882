"""ROLL is not published as a package, so these tests repeat its calls: those that `roll/pipeline/base_pipeline.py` and
the rlvr and agentic pipelines make on a tracker (alibaba/ROLL at 1bc12057 and 005acba9), with the registry of
`roll/utils/tracking.py` (e25f5fa5).
"""

from __future__ import annotations

import copy
import json
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import rlvitals
from rlvitals.adapters import roll
from rlvitals.errors import ConfigError, RunExists


class BaseTracker:
    """The base class of ROLL's trackers, with an extra method as a later version may have."""

    def log(self, values, step, **kwargs):
        pass

    def finish(self):
        pass

    def log_something_new(self, values):
        return "nothing"


@pytest.fixture
def tracking(monkeypatch):
    """ROLL's tracker module, as a program sees it after `roll.register()`."""
    module = types.ModuleType("roll.utils.tracking")
    module.tracker_registry, module.BaseTracker = {}, BaseTracker
    utils = types.ModuleType("roll.utils")
    utils.tracking = module
    for name, there in {"roll": types.ModuleType("roll"), "roll.utils": utils, "roll.utils.tracking": module}.items():
        monkeypatch.setitem(sys.modules, name, there)
    roll.register()
    return module


def configuration(folder, **more):
    return {
        "exp_name": "rlvr-8b",
        "output_dir": str(folder),
        "track_with": "rlvitals",
        "tracker_kwargs": {},
        "max_steps": 40,
        "resume_from_checkpoint": False,
        "adv_estimator": "gae",
        "num_return_sequences_in_group": 8,
        "actor_train": {"training_args": {"learning_rate": 1e-6}},
        "rewards": {"math": {"judge_api_key": "abcdef0123456789"}},
        **more,
    }


class Pipeline:
    """ROLL's calls on its tracker, in ROLL's order."""

    def __init__(self, tracking, config, history=(), **kwargs):
        kind = tracking.tracker_registry[config["track_with"]]
        self.tracker = kind(copy.deepcopy(config), **kwargs)
        self.history = [dict(metrics) for metrics in history]
        if config["resume_from_checkpoint"]:
            with ThreadPoolExecutor(1) as executor:
                executor.submit(self.send_history).result()

    def send_history(self):
        for metrics in self.history:
            self.tracker.log(values=metrics, step=metrics["system/step"])

    def train(self, steps, seed=0):
        """Run steps; returns the history that a checkpoint after the last step holds."""
        rng = np.random.default_rng(seed)
        for step in steps:
            metrics = {
                "actor/pg_loss@sum": float(rng.normal()),
                "critic/score/mean": step / 40,
                "time/step_train": float(rng.random()),
                "system/step": step,
            }
            self.history.append(metrics)
            saved = json.loads(json.dumps(self.history))  # do_checkpoint comes before the last times are known
            if step % 10 == 0:
                metrics |= {"val_correct/all/mean": 0.5}
            metrics["time/step_total"] = float(rng.random())
            self.tracker.log(values=metrics, step=step)
        return saved


def test_a_pipelines_steps_are_recorded_under_the_names_of_its_dashboards(tracking, tmp_path):
    pipeline = Pipeline(tracking, configuration(tmp_path))
    pipeline.train(range(12))
    pipeline.tracker.finish()
    run = rlvitals.open_run(tmp_path / "rlvr-8b")
    steps, scores = run.series("critic/score/mean")
    assert list(steps) == list(range(12))
    assert list(scores) == [step / 40 for step in range(12)]
    assert list(run.series("actor/pg_loss")[0]) == list(range(12))
    assert list(run.series("val_correct/all/mean")[0]) == [0, 10]
    assert run.status == "finished"
    evaluations = (tmp_path / "rlvr-8b" / "logs" / "eval_metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in evaluations] == [0, 10]


def test_what_the_configuration_says_is_used_and_its_secrets_are_not_kept(tracking, tmp_path):
    pipeline = Pipeline(tracking, configuration(tmp_path, prompt="${name}"))
    pipeline.tracker.finish()
    card = json.loads((tmp_path / "rlvr-8b" / "run.json").read_text())
    assert (card["name"], card["algorithm"], card["framework"]) == ("rlvr-8b", "ppo", "roll")
    assert card["total_steps"] == 40
    text = (tmp_path / "rlvr-8b" / "config.json").read_text()
    assert "abcdef0123456789" not in text
    kept = json.loads(text)
    assert (kept["num_generations"], kept["learning_rate"], kept["prompt"]) == (8, 1e-6, "${name}")
    assert "track_with" not in kept["rlvitals"]  # it names ROLL's tracker, not one that rlvitals forwards to


def test_tracker_kwargs_are_the_settings_of_start(tracking, tmp_path):
    pipeline = Pipeline(
        tracking, configuration(tmp_path), output_dir=str(tmp_path / "here"), name="mine", hardware=False
    )
    assert (pipeline.tracker.run.dir, pipeline.tracker.run.name) == (str(tmp_path / "here"), "mine")
    pipeline.tracker.finish()
    with pytest.raises(ConfigError, match="algorithm"):
        Pipeline(tracking, configuration(tmp_path), output_dir=str(tmp_path / "there"), algoritm="ppo")


def test_values_of_every_kind_are_taken_or_left_out_and_none_raises(tracking, tmp_path):
    class Broken:
        def __float__(self):
            raise RuntimeError("broken")

    tracker = Pipeline(tracking, configuration(tmp_path)).tracker
    values = {
        "a": np.float32(0.5), "b": {"c@mean": 2, "d": None}, "text": "x", "image": np.zeros((2, 2)), "table": object(),
        "broken": Broken(), 7: 1.0, "nan": float("nan"),
    }  # fmt: skip
    for step in (3, 3, None, np.int64(9), "x"):
        tracker.log(values, step, commit=True)
    for nothing in ({}, None, [1, 2], 0.5):
        tracker.log(nothing, 10)
    tracker.log_traces("train", [{"messages": []}], step=10)
    assert tracker.log_something_new({}) == "nothing"
    assert {"image", "table", "broken"} <= set(tracker.run.left_out)
    tracker.finish()
    tracker.log({"a": 1.0}, 11)  # after the end
    rows = [json.loads(line) for line in (tmp_path / "rlvr-8b/logs/training_metrics.jsonl").read_text().splitlines()]
    taken = [row for row in rows if "a" in row]
    assert [row["step"] for row in taken] == [3, 3, 4, 9, 10]
    assert [taken[0][name] for name in ("a", "b/c", "7", "_nonfinite")] == [0.5, 2, 1.0, "nan=nan"]


def test_a_tensor_is_a_number(tracking, tmp_path):
    torch = pytest.importorskip("torch")
    tracker = Pipeline(tracking, configuration(tmp_path)).tracker
    tracker.log({"loss": torch.tensor(0.25, requires_grad=True), "many": torch.zeros(3)}, 1)
    tracker.finish()
    assert list(rlvitals.open_run(tmp_path / "rlvr-8b").series("loss")[1]) == [0.25]


def test_the_history_a_resumed_pipeline_sends_again_is_recorded_once(tracking, tmp_path):
    first = Pipeline(tracking, configuration(tmp_path))
    saved = first.train(range(8))
    first.train(range(8, 12))  # lost: the checkpoint is of step 7
    first.tracker.run.finish("failed")
    second = Pipeline(tracking, configuration(tmp_path, resume_from_checkpoint=True), history=saved)
    second.train(range(8, 15), seed=1)
    second.tracker.finish()
    rows = [json.loads(line) for line in (tmp_path / "rlvr-8b/logs/training_metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["attempt"] == 1] == list(range(12))
    assert [row["step"] for row in rows if row["attempt"] == 2] == list(range(8, 15))
    steps, _ = rlvitals.open_run(tmp_path / "rlvr-8b").series("critic/score/mean")
    assert list(steps) == list(range(15))


def test_a_folder_that_holds_a_run_is_not_written_to_by_accident(tracking, tmp_path):
    Pipeline(tracking, configuration(tmp_path)).tracker.finish()
    with pytest.raises(RunExists, match="resume"):
        Pipeline(tracking, configuration(tmp_path))
    again = Pipeline(tracking, configuration(tmp_path, resume_from_checkpoint="ckpt/checkpoint-3"), overwrite=True)
    assert again.tracker.run.attempt == 1
    again.tracker.finish()


@pytest.mark.parametrize("form", ["{row}", 'metrics_tag: {{"step": {step}, "metrics": {row}}}'])
def test_what_roll_prints_can_be_checked_without_a_tracker(tmp_path, form):
    log = tmp_path / "driver.log"
    with log.open("w") as file:
        for step in range(20):
            metrics = {"critic/score/mean": step / 20, "critic/rewards/mean": step / 20, "actor/grad_norm": 0.5}
            metrics |= {"actor/kl_loss": 0.01, "critic/entropy/mean": 0.5, "tokens/response_length/mean": 300.0}
            row = json.dumps(metrics | {"system/step": step})
            message = form.format(row=row, step=step)
            file.write(f"[2026-11-15 18:00:{step:02d}] [tracking.py (150)] [INFO] [DRIVER 0 / 1][PID 100] {message}\n")
            file.write(f"[2026-11-15 18:00:{step:02d}] [INFO] [DRIVER 0 / 1][PID 100] pipeline step {step} finished\n")
    report = rlvitals.check(log).to_dict()
    assert (report["verdict"], report["framework"], report["first_step"], report["last_step"]) == (
        "healthy",
        "roll",
        0,
        19,
    )
