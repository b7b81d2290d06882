"""AReaL: a logger that wraps its StatsLogger, with `commit(epoch, step, global_step, data)` and `close()`.

    from rlvitals.adapters import areal

    with PPOTrainer(config, train_dataset=...) as trainer:
        areal.follow(trainer, actions="act")
        trainer.train(...)

Written against AReaL 1.0.4, whose trainers (PPO, SFT, DPO, reward model) each keep a StatsLogger in `stats_logger`.
Only the process that logs there records a run: the controller, or rank 0. The training loop reads
`config.total_train_steps` before every step; the adapter stops a training by lowering it. The adapter cannot save or
load checkpoints or change the learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvitals.adapters.framework import StepLimitControls, open_run, record, setting, whole_or_none
from rlvitals.capture.actions import Actions, process_rank

PATHS = {
    "num_generations": "gconfig.n_samples",
    "max_completion_length": "gconfig.max_new_tokens",
    "learning_rate": "actor.optimizer.lr",
    "beta": "actor.kl_ctl",
}

ALGORITHMS = {"PPOTrainer": "ppo", "SFTTrainer": "sft", "DPOTrainer": "dpo", "RWTrainer": "reward_model"}


def follow(trainer: Any, **settings: Any) -> VitalsLogger | None:
    """Record what a trainer logs from now on. Takes the settings of `VitalsLogger`; returns None unless rank 0."""
    if process_rank() != 0:
        return None
    settings.setdefault("algorithm", _algorithm(trainer))
    logger = trainer.stats_logger = VitalsLogger(trainer.stats_logger, **settings)
    return logger


class VitalsLogger:
    """Records what AReaL's trainer commits as one run and passes it on to AReaL's own logger.

    `settings` are those of `rlvitals.start`, and `output_dir`, whose default is the folder of the trial's logs.
    """

    def __init__(self, theirs: Any, **settings: Any) -> None:
        self._theirs = theirs
        config = theirs.exp_config
        dumps = Path(theirs.get_log_path(theirs.config)) / "rollout"
        defaults = {
            "output_dir": dumps.parent,
            "name": "_".join(str(setting(config, name)) for name in ("experiment_name", "trial_name")),
            "total_steps": whole_or_none(theirs.ft_spec.total_train_steps),
            "resume": True if str(setting(config, "recover.mode") or "disabled") != "disabled" else None,
        }
        known = {"rollouts_from": str(dumps)}
        self.run = open_run("areal", config, defaults, settings, paths=PATHS, known=known)
        self.last_step = -1
        controls = StepLimitControls(
            self._stop,
            "AReaL saves by its own schedule (saver.freq_steps)",
            "AReaL's engines have no way to another learning rate",
            "AReaL loads a checkpoint at its start only: continue with recover.mode=on",
        )
        self._actions = Actions(self.run, controls=controls)

    def commit(self, epoch: int, step: int, global_step: int, data: Any) -> None:
        """Record one step. AReaL may pass a step's statistics in several parts; they become one row."""
        self._theirs.commit(epoch, step, global_step, data)
        self.last_step = global_step
        row: dict[str, Any] = {}
        for part in data if isinstance(data, list) else [data]:
            if isinstance(part, Mapping):
                row.update({name: value for name, value in part.items() if not str(name).endswith("__count")})
        record(self.run, row, global_step)
        self._actions.carry_out()

    def close(self) -> None:
        self._theirs.close()
        self.run.finish()

    def _stop(self) -> None:
        self._theirs.exp_config.total_train_steps = self.last_step + 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)


def _algorithm(trainer: Any) -> str | None:
    return next((ALGORITHMS[kind.__name__] for kind in type(trainer).__mro__ if kind.__name__ in ALGORITHMS), None)
