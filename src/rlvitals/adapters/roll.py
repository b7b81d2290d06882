"""ROLL's tracker: a class with `log(values, step, **kwargs)` and `finish()`, by name in `tracker_registry`.

    from rlvitals.adapters import roll
    roll.register()                              # in the start script, before the pipeline is made

    track_with: rlvitals                         # in the YAML
    tracker_kwargs: {output_dir: out/rlvr}       # optional: the settings of rlvitals.start

Written against `roll/utils/tracking.py` and `roll/pipeline/base_pipeline.py` of alibaba/ROLL at e25f5fa5 and 1bc12057.
The pipeline makes its tracker in the driver, the only process that logs; metrics of all workers arrive there reduced.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from rlvitals.adapters.framework import (
    algorithm_named,
    known_settings,
    open_run,
    record,
    setting,
    warn_once,
    whole_or_none,
)  # fmt: skip
from rlvitals.adapters.plain import plain
from rlvitals.capture.intake import MAX_DEPTH
from rlvitals.errors import BadValue
from rlvitals.guard import guarded, words_of
from rlvitals.splits import is_held_out
from rlvitals.store.layout import RunDir
from rlvitals.store.reader import read_rows

NAME = "rlvitals"

PATHS = {
    "num_generations": "num_return_sequences_in_group",
    "learning_rate": "actor_train.training_args.learning_rate",
    "max_completion_length": "actor_infer.generating_args.max_new_tokens",
    "max_turns": "max_actions_per_traj",
}

LATE = frozenset({"time/step_log", "time/step_total"})
"""Logged with a row, but after a checkpoint has taken the row down: the agentic pipeline's."""


def register() -> None:
    """Make `track_with: rlvitals` known to ROLL. Calling it again does nothing."""
    tracking: Any = import_module("roll.utils.tracking")
    # ROLL's base class too: what a later version asks of a tracker, it answers with nothing.
    tracking.tracker_registry[NAME] = type("VitalsTracker", (VitalsTracker, tracking.BaseTracker), {})


class VitalsTracker:
    """One run, fed by ROLL's pipeline. `run` is the recorder, for what a logger cannot do (`rlvitals.Actions`)."""

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any) -> None:
        name = str(setting(config, "exp_name") or "roll")
        defaults = {
            "output_dir": os.path.join(str(setting(config, "output_dir") or "output"), name),
            "algorithm": algorithm_named(setting(config, "adv_estimator")),
            "total_steps": whole_or_none(setting(config, "max_steps")),
            "resume": True if setting(config, "resume_from_checkpoint") else None,
        }
        self.run = open_run("roll", {**known_settings(config, PATHS), **(config or {})}, defaults, settings)
        self._on_record = _rows_on_record(self.run.dir) if self.run.attempt > 1 else frozenset()

    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """One step of the pipeline. Names lose their reducer (`actor/pg_loss@sum`), as in ROLL's own trackers."""
        with guarded(lambda error: warn_once(f"a row of ROLL could not be read: {words_of(error)}"), but=(BadValue,)):
            named = _without_reducers(values)
            if not self._on_record or (step, _fingerprint(plain(named))) not in self._on_record:
                record(self.run, named, step)
            # A resumed pipeline first sends the whole history of its checkpoint again.

    def log_traces(self, name: str, records: list[dict[str, Any]], step: int | None = None) -> None:
        """Transcripts are not metrics; ROLL keeps them in its `rollout_dump_dir`."""

    def finish(self) -> None:
        self.run.finish()


def _without_reducers(values: Any, depth: int = 0) -> Any:
    if not isinstance(values, Mapping) or depth > MAX_DEPTH:
        return values
    return {
        str(name).rpartition("@")[0] or str(name): _without_reducers(value, depth + 1) for name, value in values.items()
    }


def _rows_on_record(folder: str) -> frozenset[tuple[int, int]]:
    return frozenset((row.step, _fingerprint(row.numbers)) for row in read_rows(RunDir(Path(folder)).train_log))


def _fingerprint(numbers: Mapping[str, Any]) -> int:
    """Two rows with the same numbers have the same; a step that is trained again differs in its times alone."""
    return hash(
        frozenset(
            (name, float(value))
            for name, value in numbers.items()
            if isinstance(value, int | float) and math.isfinite(value) and name not in LATE and not is_held_out(name)
        )
    )
