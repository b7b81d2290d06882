"""torchtune: a metric logger that a recipe's configuration names as a component.

    metric_logger:
      _component_: rlvitals.adapters.torchtune.VitalsLogger
      output_dir: ${output_dir}                  # where the run is; further settings of rlvitals.start may follow

    tune run lora_dpo_single_device --config mine.yaml                  # mine.yaml has the lines above

Written against torchtune 0.6.1 (`MetricLoggerInterface`). A recipe creates its logger on rank 0 and passes it metrics
and the configuration. It reads nothing from the logger, so the doctor only advises.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from rlvitals.adapters.framework import algorithm_named, open_run, record, setting
from rlvitals.capture.run import Run

_ALGORITHMS = ("dpo", "ppo", "grpo")


class VitalsLogger:
    """Records one run of a recipe. The run starts with the configuration, or with the first row if none comes."""

    def __init__(self, output_dir: str | os.PathLike[str] = "torchtune", **settings: Any) -> None:
        self.run: Run | None = None
        self._folder, self._settings = output_dir, settings

    def log_config(self, config: Any) -> None:
        """Open the run with the recipe's configuration. Errors raise here, before any training."""
        plain: Any = import_module("omegaconf").OmegaConf.to_container(config, resolve=True)
        # The algorithm is inferred from the loss, such as torchtune.rlhf.loss.DPOLoss.
        loss = str(setting(plain, "loss._component_")).rpartition(".")[2].lower()
        self._open(
            plain,
            algorithm=next((algorithm_named(word) for word in _ALGORITHMS if word in loss), None),
            resume=True if setting(plain, "resume_from_checkpoint") else None,
        )

    def log(self, name: str, data: Any, step: int) -> None:
        self.log_dict({name: data}, step)

    def log_dict(self, payload: Mapping[str, Any], step: int) -> None:
        record(self._open({}), payload, step)

    def close(self) -> None:
        if self.run is not None:
            self.run.finish()

    def _open(self, config: Any, **defaults: Any) -> Run:
        if self.run is None:
            self.run = open_run("torchtune", config, {"output_dir": self._folder, **defaults}, self._settings)
        return self.run
