"""Levanter's tracker: a choice of `trainer.tracker` beside `wandb` and `tensorboard`.

    python -m rlvitals.adapters.levanter -m levanter.main.train_lm --config_path mine.yaml

    trainer:                                     # mine.yaml
      tracker:
        type: rlvitals
        output_dir: out/run                      # further settings of rlvitals.start: settings: {...}

    from rlvitals.adapters import levanter       # or in your own program, before the configuration is read
    levanter.register()

Written against levanter 1.2.dev1644. Process 0 records. Nothing is read from a tracker, so the doctor only advises.
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
"""By their folder: Levanter makes its tracker twice, for the program and for the trainer."""


class VitalsTracker:
    """One run, fed by Levanter's trainer. It begins with the settings, or with the first row where none come."""

    name = NAME

    def __init__(self, output_dir: str, **settings: Any) -> None:
        self._folder, self._settings = output_dir, settings
        self._step: int | None = None
        self._names: set[str] = set()
        self._is_main = import_module("jax").process_index() == 0

    def log_hyperparameters(self, hparams: Mapping[str, Any]) -> None:
        """Open the run with Levanter's configuration. What is wrong here raises: nothing was trained yet."""
        self._open(hparams, total_steps=whole_or_none(setting(hparams, "trainer.num_train_steps")))

    def log(self, metrics: Mapping[str, Any], *, step: int | None, commit: bool | None = None) -> None:
        run = self._open({})
        if step != self._step:
            self._step, self._names = step, set()
        # At its end the trainer runs its hooks once more, for the step that it has logged.
        new = {name: value for name, value in metrics.items() if name not in self._names}
        self._names |= set(new)
        if run is not None and new:
            record(run, new, step)

    def log_summary(self, metrics: Mapping[str, Any]) -> None:
        """Numbers without a step."""

    def log_artifact(self, artifact_path: Any, *, name: str | None = None, type: str | None = None) -> None:
        """Not a number."""

    @property
    def run(self) -> Run | None:
        """The recorder, in the process that records, once it has begun."""
        return _runs.get(self._folder)

    def finish(self) -> None:
        if self._folder in _runs:
            _runs.pop(self._folder).finish()

    def _open(self, config: Mapping[str, Any], **defaults: Any) -> Run | None:
        if self._folder not in _runs and self._is_main:
            # Levanter goes on wherever it finds a checkpoint.
            known = {"output_dir": self._folder, "resume": True, **defaults}
            _runs[self._folder] = open_run("levanter", config, known, self._settings)
        return self.run


def register() -> Any:
    """Make `type: rlvitals` known to Levanter, and return the class of its configuration. Again does nothing."""
    module: Any = import_module("levanter.tracker.tracker")
    if NAME in module.TrackerConfig.get_known_choices():
        return module.TrackerConfig.get_choice_class(NAME)
    tracker = type("VitalsTracker", (VitalsTracker, module.Tracker), {})

    @module.TrackerConfig.register_subclass(NAME)
    @dataclass
    class VitalsTrackerConfig(module.TrackerConfig):  # type: ignore[misc]
        """Where the run is, and the settings of `rlvitals.start`."""

        output_dir: str = "runs"
        settings: dict[str, Any] = field(default_factory=dict)

        def init(self, run_id: str | None) -> Any:
            return tracker(self.output_dir, **{"name": run_id, **self.settings})

    return VitalsTrackerConfig


if __name__ == "__main__":
    launch(register)
