"""Lightning: a callback that records every `self.log` of a training and carries out the doctor's requests.

    from rlvitals.adapters.lightning import VitalsCallback

    trainer = Trainer(..., callbacks=[VitalsCallback("out/run", actions="act")])

The callback adds a `VitalsLogger` to the trainer's existing loggers. To record rows only, pass the logger:
`Trainer(logger=VitalsLogger("out/run"))`. Written against Lightning 2.6.6, imported under either of its names.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from rlvitals.adapters.framework import open_run, plain_config, record, safely, whole_or_none
from rlvitals.capture.actions import Actions, scale_learning_rate
from rlvitals.capture.run import Run
from rlvitals.errors import MissingDependency
from rlvitals.health.actions import CannotGoBack, Declined
from rlvitals.splits import is_held_out

_NAMES = ("lightning.pytorch", "pytorch_lightning")


def _lightning() -> Any:
    """Lightning, under the name that the program imported it by; None if it is not installed."""
    for name in sorted(_NAMES, key=lambda name: name not in sys.modules):
        try:
            return import_module(name)
        except ImportError:
            continue
    return None


_pl = _lightning()
_Logger: Any = _pl.loggers.Logger if _pl else object
_Callback: Any = _pl.Callback if _pl else object


class VitalsLogger(_Logger):  # type: ignore[misc]
    """Records one run of Lightning's trainer. The run starts with the first row, in the process that logs."""

    def __init__(self, output_dir: str | os.PathLike[str] = "lightning_logs/rlvitals", **settings: Any) -> None:
        """`settings` are those of `rlvitals.start`."""
        if _pl is None:
            raise MissingDependency("VitalsLogger", package="lightning")
        super().__init__()
        self.run: Run | None = None
        self._folder, self._settings = os.fspath(output_dir), settings
        self._config: dict[str, Any] = {}
        self._is_second = False

    @property
    def name(self) -> str:
        """Empty, like `version`, so that Lightning saves its checkpoints in the run's directory."""
        return ""

    @property
    def version(self) -> str:
        return ""

    @property
    def save_dir(self) -> str:
        return self._folder

    @property
    def experiment(self) -> Run:
        return self.open()

    def open(self, **defaults: Any) -> Run:
        """Return the run, starting it if needed. Errors raise here, before any training."""
        if self.run is None:
            if self._is_second:  # trainer.test after trainer.fit belongs to the same run
                defaults["resume"] = True
            given = {key: value for key, value in self._settings.items() if key != "resume" or not self._is_second}
            self.run = open_run("lightning", self._config, {"output_dir": self._folder, **defaults}, given)
            self._is_second = True
        return self.run

    def log_hyperparams(self, params: Any = None, *_: Any, **__: Any) -> None:
        if isinstance(params, Mapping | Namespace):
            self._config |= plain_config(params)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if not _is_main():
            return
        others = {name: value for name, value in metrics.items() if name != "epoch"}
        if others and all(is_held_out(name) for name in others):
            metrics = others  # Lightning adds the epoch to every row; alone it would become a training row
        record(self.open(), metrics, step)

    def finalize(self, status: str) -> None:
        self.close("finished" if status == "success" else "failed")

    def close(self, status: Any, error: BaseException | None = None) -> None:
        run, self.run = self.run, None
        if run is not None:
            run.finish(status, error)


class VitalsCallback(_Callback):  # type: ignore[misc]
    """Adds the logger and carries out the doctor's requests: stop, save, cut the rate. Use one for each trainer."""

    def __init__(self, output_dir: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        """`output_dir` defaults to the folder `rlvitals` in the trainer's `default_root_dir`."""
        if _pl is None:
            raise MissingDependency("VitalsCallback", package="lightning")
        super().__init__()
        self.logger: VitalsLogger | None = None
        self._folder, self._settings = output_dir, settings
        self._actions = Actions(None)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self.logger is None or self.logger not in trainer.loggers:
            folder = self._folder or os.path.join(trainer.default_root_dir, "rlvitals")
            self.logger = self.logger or VitalsLogger(folder, **self._settings)
            trainer.loggers = [*trainer.loggers, self.logger]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        run: Run | None = None
        if self.logger is not None and trainer.is_global_zero:
            self.logger.close("interrupted")
            planned = whole_or_none(trainer.max_steps)
            resumed_at = trainer.global_step or None  # above 0 if Lightning resumes from a checkpoint
            run = self.logger.open(total_steps=planned, resume=resumed_at)
        self._actions = Actions(run, controls=_Controls(trainer, self.logger.save_dir if self.logger else "."))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Carry out requests: the previous step's row has been logged by now, and every rank calls this."""
        self._actions.carry_out()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        with safely("the run could not be closed"):
            if self.logger is not None:
                self.logger.close("interrupted" if isinstance(exception, KeyboardInterrupt) else "failed", exception)


class _Controls:
    """The actions that Lightning's trainer supports."""

    def __init__(self, trainer: Any, folder: str) -> None:
        self._trainer, self._folder = trainer, folder

    def stop(self) -> None:
        self._trainer.should_stop = True

    def save(self) -> str:
        name = f"checkpoint-{self._trainer.global_step}"
        self._trainer.save_checkpoint(os.path.join(self._folder, name, "lightning.ckpt"))
        return name

    def scale_rate(self, factor: float) -> tuple[float, float]:
        if not self._trainer.optimizers:
            raise Declined("the trainer has no optimizer")
        schedulers = {id(each.scheduler.optimizer): each.scheduler for each in self._trainer.lr_scheduler_configs}
        rates = [scale_learning_rate(each, schedulers.get(id(each)), factor) for each in self._trainer.optimizers]
        return rates[0]

    def revert(self, checkpoint: Path) -> None:
        raise CannotGoBack(
            f"Lightning only loads a checkpoint at the start of a fit. Resume with "
            f"trainer.fit(..., ckpt_path={str(checkpoint / 'lightning.ckpt')!r})"
        )


def _is_main() -> bool:
    return not getattr(_pl.utilities.rank_zero_only, "rank", 0)
