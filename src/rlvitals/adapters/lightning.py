"""Lightning's callback, which records every `self.log` of a training and carries out what the doctor asks for.

    from rlvitals.adapters.lightning import VitalsCallback

    trainer = Trainer(..., callbacks=[VitalsCallback("out/run", actions="act")])

The callback adds a `VitalsLogger` to the trainer's loggers, beside those that are there. To record rows only, pass the
logger: `Trainer(logger=VitalsLogger("out/run"))`. Written against Lightning 2.6.6, under either of its names.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from rlvitals.adapters.framework import open_run, plain_config, record, warn_once, whole_or_none
from rlvitals.capture.actions import Actions, scale_learning_rate
from rlvitals.capture.run import Run
from rlvitals.errors import MissingDependency
from rlvitals.guard import guarded, words_of
from rlvitals.health.actions import CannotGoBack, Declined
from rlvitals.splits import is_held_out

_NAMES = ("lightning.pytorch", "pytorch_lightning")


def _lightning() -> Any:
    """Lightning under the name that the program has imported it by; None where it is not installed."""
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
    """One run, fed by Lightning's trainer. The run begins with the first row, in the process that logs."""

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
        """Empty, as is `version`: Lightning's checkpoints are then in the run's directory."""
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
        """The run, begun where it is not. What is wrong here raises: nothing was trained yet."""
        if self.run is None:
            if self._is_second:  # trainer.test after trainer.fit: the same run, not a new one
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
            metrics = others  # Lightning says the epoch with every row; here it would look like a row of training
        record(self.open(), metrics, step)

    def finalize(self, status: str) -> None:
        self.close("finished" if status == "success" else "failed")

    def close(self, status: Any, error: BaseException | None = None) -> None:
        run, self.run = self.run, None
        if run is not None:
            run.finish(status, error)


class VitalsCallback(_Callback):  # type: ignore[misc]
    """Adds the logger, and carries out the doctor's requests: stop, save, cut the rate. One for each trainer."""

    def __init__(self, output_dir: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        """The run is in the trainer's `default_root_dir` where no folder is given."""
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
            begun_at = trainer.global_step or None  # Lightning continues from a checkpoint
            run = self.logger.open(total_steps=planned, resume=begun_at)
        self._actions = Actions(run, controls=_Controls(trainer, self.logger.save_dir if self.logger else "."))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """The row of the step before has been logged by now. Every rank comes here alike."""
        self._actions.carry_out()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        with guarded(lambda error: warn_once(f"the run could not be closed: {words_of(error)}")):
            if self.logger is not None:
                self.logger.close("interrupted" if isinstance(exception, KeyboardInterrupt) else "failed", exception)


class _Controls:
    """What Lightning's trainer lets a callback do."""

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
            f"Lightning loads a checkpoint at the start of a fit alone. Go on with "
            f"trainer.fit(..., ckpt_path={str(checkpoint / 'lightning.ckpt')!r})"
        )


def _is_main() -> bool:
    return not getattr(_pl.utilities.rank_zero_only, "rank", 0)
