"""Levanter: a tracker that `trainer.tracker` can select, like `wandb` and `tensorboard`.

    python -m rlvitals.adapters.levanter -m levanter.main.train_lm --config_path mine.yaml

    trainer:                                     # mine.yaml
      tracker:
        type: rlvitals
        output_dir: out/run                      # further settings of rlvitals.start: settings: {...}

    from rlvitals.adapters import levanter       # or in your own program, before the configuration is read
    levanter.register()

Written against levanter 1.2.dev1644. Process 0 records. Levanter reads nothing from a tracker, so the doctor only
advises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from rlvitals.adapters.framework import launch, open_run, record, setting, whole_or_none
from rlvitals.capture.run import Run

NAME = "rlvitals"

_runs: dict[str, Run] = {}
"""Open runs by folder. Levanter creates its tracker twice, for the program and for the trainer."""


class VitalsTracker:
    """Records one run of Levanter's trainer. The run starts with the settings, or with the first row if none come."""

    name = NAME

    def __init__(self, output_dir: str, **settings: Any) -> None:
        self._folder, self._settings = output_dir, settings
        self._step: int | None = None
        self._names: set[str] = set()
        self._is_main = import_module("jax").process_index() == 0

    def log_hyperparameters(self, hparams: Mapping[str, Any]) -> None:
        """Open the run with Levanter's configuration. Errors raise here, before any training."""
        self._open(hparams, total_steps=whole_or_none(setting(hparams, "trainer.num_train_steps")))

    def log(self, metrics: Mapping[str, Any], *, step: int | None, commit: bool | None = None) -> None:
        run = self._open({})
        if step != self._step:
            self._step, self._names = step, set()
        # At the end the trainer runs its hooks again for a step that it has already logged.
        new = {name: value for name, value in metrics.items() if name not in self._names}
        self._names |= set(new)
        if run is not None and new:
            record(run, new, step)

    def log_summary(self, metrics: Mapping[str, Any]) -> None:
        """Not recorded: a summary has no step."""

    def log_artifact(self, artifact_path: Any, *, name: str | None = None, type: str | None = None) -> None:
        """Not recorded: only numbers are."""

    @property
    def run(self) -> Run | None:
        """The run; None before it starts and in processes that do not record."""
        return _runs.get(self._folder)

    def finish(self) -> None:
        if self._folder in _runs:
            _runs.pop(self._folder).finish()

    def _open(self, config: Mapping[str, Any], **defaults: Any) -> Run | None:
        if self._folder not in _runs and self._is_main:
            # Levanter resumes whenever it finds a checkpoint.
            known = {"output_dir": self._folder, "resume": True, **defaults}
            _runs[self._folder] = open_run("levanter", config, known, self._settings)
        return self.run


def register() -> Any:
    """Register `type: rlvitals` with Levanter and return its configuration class. A second call changes nothing."""
    module: Any = import_module("levanter.tracker.tracker")
    if NAME in module.TrackerConfig.get_known_choices():
        return module.TrackerConfig.get_choice_class(NAME)
    tracker = type("VitalsTracker", (VitalsTracker, module.Tracker), {})

    @module.TrackerConfig.register_subclass(NAME)
    @dataclass
    class VitalsTrackerConfig(module.TrackerConfig):  # type: ignore[misc]
        """The directory of the run, and the settings of `rlvitals.start`."""

        output_dir: str = "runs"
        settings: dict[str, Any] = field(default_factory=dict)

        def init(self, run_id: str | None) -> Any:
            return tracker(self.output_dir, **{"name": run_id, **self.settings})

    return VitalsTrackerConfig


if __name__ == "__main__":
    launch(register)
