"""OpenRLHF's logger: a class with `log_train(global_step, logs)`, `log_eval(global_step, logs)` and `close()`.

    ray job submit --runtime-env-json '{"worker_process_setup_hook": "rlvitals.adapters.openrlhf.install"}' --
        python -m openrlhf.cli.train_ppo_ray ... --logger.tensorboard_dir out/tensorboard

Written against OpenRLHF 0.11.2. Its trainer makes a WandbLogger and a TensorboardLogger, each where asked for, in a
Ray actor of its own, which code of the driver does not reach; Ray's set-up hook does. `install` gives both classes one
companion: whichever is made first is followed, so one of the two must be asked for. That actor is the only process that
logs. Where you have the trainer in your hands nothing needs to be installed:

    trainer.tensorboard_logger = VitalsLogger(args, output_dir="out/ppo")

The SFT, DPO and reward-model trainers have no logger class; follow their TensorBoard files (docs/frameworks.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from typing import Any

from rlvitals.adapters.framework import (
    algorithm_named,
    known_settings,
    open_run,
    plain_config,
    record,
    setting,
    warn_once,
)
from rlvitals.errors import RlvitalsError
from rlvitals.guard import guarded, words_of

PATHS = {
    "num_generations": "rollout.n_samples_per_prompt",
    "max_completion_length": "rollout.max_new_tokens",
    "learning_rate": "actor.adam.lr",
    "beta": "algo.kl.init_coef",
}

SAMPLES = "generated_samples"
"""A prompt with its answer, and its reward: for a table, not for a row of metrics."""


class VitalsLogger:
    """One run, fed by OpenRLHF's PPO trainer. `run` is the recorder, for `rlvitals.Actions`."""

    def __init__(self, args: Any = None, **settings: Any) -> None:
        name = str(setting(args, "logger.wandb.run_name") or "openrlhf")
        folder = os.path.join(str(setting(args, "ckpt.output_dir") or "ckpt"), name)
        defaults = {
            "output_dir": os.environ.get("RLVITALS_OUTPUT_DIR") or folder,
            "name": name,
            "algorithm": algorithm_named(setting(args, "algo.advantage.estimator")),
            "resume": True if setting(args, "ckpt.load_enable") else None,
        }
        config = {**known_settings(args, PATHS), **plain_config(args)}
        self.run = open_run("openrlhf", config, defaults, settings)

    def log_train(self, global_step: int | None, logs_dict: Mapping[str, Any]) -> None:
        """One step, under the names of OpenRLHF's dashboards: `train/reward`."""
        record(self.run, _named("train", logs_dict), global_step)

    def log_eval(self, global_step: int | None, logs_dict: Mapping[str, Any]) -> None:
        record(self.run, _named("eval", logs_dict), global_step)

    def close(self) -> None:
        self.run.finish()


def install(**settings: Any) -> None:
    """Let OpenRLHF's loggers record a run too: what Ray calls in every worker. `settings` are those of `VitalsLogger`.

    A worker that cannot import OpenRLHF has no logger to follow, and is left alone.
    """
    # An exception here would keep every worker from starting.
    with guarded(lambda error: warn_once(f"OpenRLHF's loggers are not here: {words_of(error)}")):
        loggers: Any = import_module("openrlhf.utils.logging_utils")
        for kind in (loggers.WandbLogger, loggers.TensorboardLogger):
            _follow(kind, settings)


_followed: dict[int, VitalsLogger] = {}
"""The recorder beside a logger of OpenRLHF, by the logger's id; one at most."""


def _follow(kind: Any, settings: Mapping[str, Any]) -> None:
    if getattr(kind.__init__, "is_followed", False):
        return

    def begin(logger: Any, args: Any) -> None:
        if not _followed:
            _followed[id(logger)] = VitalsLogger(args, **settings)

    _add(kind, "__init__", begin)
    _add(kind, "log_train", lambda logger, *given, **named: _followed[id(logger)].log_train(*given, **named))
    _add(kind, "log_eval", lambda logger, *given, **named: _followed[id(logger)].log_eval(*given, **named))
    _add(kind, "close", lambda logger: _followed.pop(id(logger)).close())


def _add(kind: Any, method: str, ours: Callable[..., None]) -> None:
    """Do ours after a method of theirs; except for their beginning, only beside a logger that is followed."""
    theirs = getattr(kind, method)

    @wraps(theirs)
    def both(logger: Any, *given: Any, **named: Any) -> Any:
        result = theirs(logger, *given, **named)
        if method == "__init__" or id(logger) in _followed:
            # What is wrong at the start, or what strict=True asks for, is raised.
            with guarded(
                lambda error: warn_once(f"{method} of OpenRLHF could not be followed: {words_of(error)}"),
                but=(RlvitalsError,),
            ):
                ours(logger, *given, **named)
        return result

    both.is_followed = True  # type: ignore[attr-defined]
    setattr(kind, method, both)


def _named(prefix: str, logs: Any) -> Any:
    if not isinstance(logs, Mapping):
        return logs
    return {f"{prefix}/{name}": value for name, value in logs.items() if name != SAMPLES}
