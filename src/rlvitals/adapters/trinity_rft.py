"""Trinity-RFT: a monitor class that its configuration names by import path.

    monitor:
      monitor_type: rlvitals.adapters.trinity_rft.VitalsMonitor
      monitor_args: {output_dir: /data/out/run}  # optional: settings of rlvitals.start

Written against trinity-rft 0.6.0. Explorer and trainer are Ray actors, each with its own monitor. Both send to one
recorder (`rlvitals.adapters.ray`), so rewards and losses are in one run, in the job's checkpoint folder. The examples
that the trainer logs as a table are recorded as rollouts. The loops read nothing from a monitor, so the doctor only
advises.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rlvitals.adapters.framework import algorithm_named, record, safely, setting, settings_for, whole_or_none
from rlvitals.adapters.ray import RunClient, join

PATHS = {
    "num_generations": "algorithm.repeat_times",
    "learning_rate": "algorithm.optimizer.lr",
    "max_completion_length": "model.max_response_tokens",
}


class VitalsMonitor:
    """The monitor of one role, explorer or trainer, which sends to the shared run."""

    def __init__(self, project: str, group: str, name: str, role: str, config: Any = None) -> None:
        self._is_last = role == setting(config, "trainer.name") or setting(config, "mode") in ("explore", "bench")
        self._run: RunClient | None = None
        folder = setting(config, "checkpoint_job_dir") or os.path.join("checkpoints", project, name)
        defaults = {
            "output_dir": os.path.join(str(folder), "rlvitals"),
            "name": name,
            "algorithm": algorithm_named(setting(config, "algorithm.algorithm_type")),
            "total_steps": whole_or_none(setting(config, "buffer.total_steps")),
            "resume": True if setting(config, "continue_from_checkpoint") else None,
        }
        given = setting(config, "monitor.monitor_args") or {}
        self._run = join(**settings_for("trinity_rft", config, defaults, given, paths=PATHS))

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        return {}

    def log(self, data: Mapping[str, Any], step: int, commit: bool = False) -> None:
        if self._run is not None:
            record(self._run, data, step)

    def log_table(self, table_name: str, experiences_table: Any, step: int) -> None:
        """Record the trainer's examples as rollouts, one per row."""
        with safely("examples could not be recorded"):
            rows = experiences_table.to_dict("records")
            if self._run is not None and rows:
                self._run.log_groups([_example(row) for row in rows], step)

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            with safely("the run could not be closed"):
                if self._is_last:
                    run.finish()
                else:
                    run.flush(timeout=10)


def _example(row: Mapping[str, Any]) -> dict[str, Any]:
    rest = dict(row)
    prompt, response, reward = (rest.pop(key, None) for key in ("prompt", "response", "reward"))
    return {"prompt": prompt or "", "rollouts": [{"completion": response or "", "reward": reward, "meta": rest}]}
