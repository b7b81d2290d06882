"""verl: a back end of its Tracking, selected in `trainer.logger` like `console` and `wandb`.

    export VERL_USE_EXTERNAL_MODULES=rlvitals.adapters.verl                 # verl imports it in each of its processes
    python -m verl.trainer.main_ppo ... trainer.logger='["console","rlvitals"]' +rlvitals.output_dir=out/grpo

Written against verl 0.9.1. Its `Tracking` has a fixed list of back ends and no registry. When verl imports this module,
it adds a name to that list and wraps `Tracking.__init__` and `finish`. A Tracking that does not list `rlvitals` is not
changed. In your own program no registration is needed, because `tracking.logger` is a plain mapping:

    tracking.logger["rlvitals"] = VitalsBackend("project", "experiment", config)

Only the driver has a Tracking (for PPO and GRPO a Ray actor called the task runner, for SFT one rank). It receives the
metrics of all workers already reduced. The trainer of `trainer.use_v1`, verl's default, runs in the same process. The
adapter stops it by lowering its limit of steps, and can make it save a checkpoint.
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
    StepLimitControls,
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
"""The module of the trainers that support actions."""


class VitalsBackend:
    """Records one run of verl's Tracking. Pass `run` to `rlvitals.Actions` to carry out requests yourself.

    The configuration's section `rlvitals` (on the command line `+rlvitals.output_dir=...`) holds the settings of
    `rlvitals.start`; `settings` override it.
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
            # verl itself resumes whenever it finds a checkpoint, unless resume_mode is "disable".
            "resume": setting(trainer, "trainer.resume_mode") != "disable",
        }
        dumps = setting(trainer, "trainer.rollout_data_dir")
        # The views read rollouts from here; verl resolves a relative path against its working directory.
        shown = {"rollouts_from": os.path.abspath(str(dumps))} if dumps else {}
        self.run = open_run("verl", {**known, **trainer, **shown}, defaults, {**section, **settings})
        self.run.ends_by_steps = True  # a Tracking without finish() may still exist when its process exits
        self._actions: Actions | None = None

    def log(self, data: Mapping[str, Any], step: int | None = None) -> None:
        """Record one step, with `val-core/...` and `val-aux/...` as an evaluation, then carry out requests."""
        record(self.run, data, step)
        if self._actions is not None:
            self._actions.carry_out()

    def act_on(self, trainer: Any) -> None:
        """Carry out the doctor's requests on this trainer from now on."""
        if self._actions is None:
            self._actions = Actions(self.run, controls=controls_of(trainer))

    def finish(self, exit_code: int = 0) -> None:
        self.run.finish("failed" if exit_code else "finished", f"exit code {exit_code}" if exit_code else None)

    def forget(self) -> None:
        """Close the run of a Tracking that was deleted without finish(). The planned steps decide whether it failed."""
        self.run.finish_by_steps()


def controls_of(trainer: Any) -> StepLimitControls:
    """The actions that verl's trainer supports."""

    def stop() -> None:
        trainer.total_training_steps = trainer.global_steps  # its loop compares the two before every step

    def save() -> str:
        trainer._save_checkpoint()
        return f"global_step_{trainer.global_steps}"

    return StepLimitControls(
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
    """Register `trainer.logger=["rlvitals"]` with verl. A second call does nothing."""
    Tracking: Any = import_module("verl.utils.tracking").Tracking  # noqa: N806 - a class
    if NAME in Tracking.supported_backend:
        return
    Tracking.supported_backend.append(NAME)
    begin: Any = Tracking.__init__
    end: Any = getattr(Tracking, "finish", None)

    @wraps(begin)
    def __init__(  # noqa: N807 - it replaces verl's
        self: Any, project_name: str, experiment_name: str, default_backend: Any = "console", config: Any = None
    ) -> None:
        begin(self, project_name, experiment_name, default_backend, config)
        if NAME in ([default_backend] if isinstance(default_backend, str) else default_backend):
            backend = VitalsBackend(project_name, experiment_name, config)
            self.logger[NAME] = backend
            if TRAINERS in sys.modules:
                follow(sys.modules[TRAINERS].PPOTrainer, "step", _act_after_step)
            if end is None:  # before verl 0.9, a Tracking ends when it is garbage-collected
                weakref.finalize(self, backend.forget)

    def finish(self: Any, exit_code: int | None = None) -> None:
        try:
            end(self, exit_code or 0)
        finally:
            backend = getattr(self, "logger", {}).get(NAME)
            if backend is not None and exit_code is None:  # called by Tracking.__del__
                backend.forget()
            elif backend is not None:
                backend.finish(exit_code)

    Tracking.__init__ = __init__
    if end is not None:
        Tracking.finish = wraps(end)(finish)


if "verl" in sys.modules:  # verl imports this module through VERL_USE_EXTERNAL_MODULES
    register()
