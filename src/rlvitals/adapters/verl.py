"""verl's Tracking: a back end with `log(data, step)` and `finish()`, beside `console` and `wandb` in `trainer.logger`.

    export VERL_USE_EXTERNAL_MODULES=rlvitals.adapters.verl                 # verl imports it in each of its processes
    python -m verl.trainer.main_ppo ... trainer.logger='["console","rlvitals"]' +rlvitals.output_dir=out/grpo

Written against verl 0.9.1. Its `Tracking` has a fixed list of back ends and no registry, so importing this module from
verl adds a name to that list and one step to the end of `Tracking.__init__` and `finish`; a Tracking that does not ask
for `rlvitals` is untouched. In a program of your own nothing needs to be added: `tracking.logger` is a plain mapping,

    tracking.logger["rlvitals"] = VitalsBackend("project", "experiment", config)

The driver alone has a Tracking (for PPO and GRPO a Ray actor called the task runner, for SFT one rank); metrics of all
workers arrive there reduced. The trainer of `trainer.use_v1`, verl's default, lives in the same process: it is stopped
by its own limit of steps, and saves a checkpoint when it is asked to.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Mapping
from functools import wraps
from importlib import import_module
from typing import Any

from rlvitals.adapters.framework import (
    TrainerControls,
    algorithm_named,
    follow,
    open_run,
    record,
    setting,
    whole_or_none,
)
from rlvitals.capture.actions import Actions
from rlvitals.importers.settings import settings_of

NAME = "rlvitals"
TRAINERS = "verl.trainer.ppo.v1.trainer_base"
"""The module of the trainers that act."""


class VitalsBackend:
    """One run, fed by verl's Tracking. `run` is the recorder, for what a logger cannot do (`rlvitals.Actions`).

    The configuration's section `rlvitals` (on the command line `+rlvitals.output_dir=...`) holds the settings of
    `rlvitals.start`; `settings` win over it.
    """

    def __init__(self, project_name: str, experiment_name: str, config: Any = None, **settings: Any) -> None:
        trainer = dict(config) if isinstance(config, Mapping) else {}
        section = trainer.pop("rlvitals", None) or {}
        known = settings_of(trainer)
        folder = setting(trainer, "trainer.default_local_dir")
        defaults = {
            "output_dir": folder or os.path.join("checkpoints", str(project_name), str(experiment_name)),
            "name": str(experiment_name),
            "algorithm": algorithm_named(setting(trainer, "algorithm.adv_estimator")),
            "total_steps": whole_or_none(known.get("max_steps")),
            # verl itself goes on wherever it finds a checkpoint, unless told otherwise.
            "resume": setting(trainer, "trainer.resume_mode") != "disable",
        }
        dumps = setting(trainer, "trainer.rollout_data_dir")
        # Where its rollouts are shown from; verl takes a relative path from the folder that it was started in.
        shown = {"rollouts_from": os.path.abspath(str(dumps))} if dumps else {}
        self.run = open_run("verl", {**known, **trainer, **shown}, defaults, {**section, **settings})
        self.run.ends_by_steps = True  # a Tracking that nobody finished may be alive when its process exits
        self._actions: Actions | None = None

    def log(self, data: Mapping[str, Any], step: int | None = None) -> None:
        """One step; verl's `val-core/...` and `val-aux/...` become an evaluation. Then what the doctor asks for."""
        record(self.run, data, step)
        if self._actions is not None:
            self._actions.carry_out()

    def act_on(self, trainer: Any) -> None:
        """Carry out the doctor's requests on the trainer whose rows these are."""
        if self._actions is None:
            self._actions = Actions(self.run, controls=controls_of(trainer))

    def finish(self, exit_code: int = 0) -> None:
        self.run.finish("failed" if exit_code else "finished", f"exit code {exit_code}" if exit_code else None)

    def forget(self) -> None:
        """Nobody finished the Tracking and it is gone: whether by an exception, only the planned steps can tell."""
        self.run.finish_by_steps()


def controls_of(trainer: Any) -> TrainerControls:
    """What the doctor can make a trainer of verl's do."""

    def stop() -> None:
        trainer.total_training_steps = trainer.global_steps  # which its loop compares before every step

    def save() -> str:
        trainer._save_checkpoint()
        return f"global_step_{trainer.global_steps}"

    return TrainerControls(
        stop,
        save,
        "verl keeps the learning rate in its workers, which take no other",
        "verl loads a checkpoint at its start only: continue with trainer.resume_mode=resume_path",
    )


def _act_after_step(result: Any, trainer: Any, *given: Any, **named: Any) -> None:
    backend = trainer.logger.logger.get(NAME)
    if backend is not None:
        backend.act_on(trainer)


def register() -> None:
    """Make `trainer.logger=["rlvitals"]` known to verl. A second call does nothing."""
    Tracking: Any = import_module("verl.utils.tracking").Tracking  # noqa: N806 - a class
    if NAME in Tracking.supported_backend:
        return
    Tracking.supported_backend.append(NAME)
    begin: Any = Tracking.__init__
    end: Any = getattr(Tracking, "finish", None)

    @wraps(begin)
    def __init__(  # noqa: N807 - it takes that one's place
        self: Any, project_name: str, experiment_name: str, default_backend: Any = "console", config: Any = None
    ) -> None:
        begin(self, project_name, experiment_name, default_backend, config)
        if NAME in ([default_backend] if isinstance(default_backend, str) else default_backend):
            backend = VitalsBackend(project_name, experiment_name, config)
            self.logger[NAME] = backend
            if TRAINERS in sys.modules:
                follow(sys.modules[TRAINERS].PPOTrainer, "step", _act_after_step)
            if end is None:  # verl before 0.9: its Tracking ends by being forgotten
                weakref.finalize(self, backend.forget)

    def finish(self: Any, exit_code: int | None = None) -> None:
        try:
            end(self, exit_code or 0)
        finally:
            backend = getattr(self, "logger", {}).get(NAME)
            if backend is not None and exit_code is None:  # by Tracking.__del__
                backend.forget()
            elif backend is not None:
                backend.finish(exit_code)

    Tracking.__init__ = __init__
    if end is not None:
        Tracking.finish = wraps(end)(finish)


if "verl" in sys.modules:  # verl imports us: the way in that VERL_USE_EXTERNAL_MODULES opens
    register()
