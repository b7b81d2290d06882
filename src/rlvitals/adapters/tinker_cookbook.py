"""tinker-cookbook: one more logger in the list that `ml_log.setup_logging` creates, and its rollouts.

    from rlvitals.adapters import tinker_cookbook

    tinker_cookbook.install()                    # before the recipe's main; settings of rlvitals.start may follow

    python -m rlvitals.adapters.tinker_cookbook -m tinker_cookbook.recipes.math_rl.train ...      # no changes needed

Written against tinker-cookbook 0.5.8. Its loops log through one `MultiplexLogger`; `install` appends a logger to it.
It also wraps the function that creates the rollout summaries (`rollout_json_export`, on by default), which receives the
tokens too. The run is in the recipe's `log_path`. The loops read nothing from a logger, so the doctor only advises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from rlvitals.adapters.framework import TRACED, follow, launch, open_run, record, setting, warn_once, whole_or_none
from rlvitals.capture.run import Run
from rlvitals.guard import value_or, words_of

_logger: list[VitalsLogger] = []
"""The newest logger. The summaries do not name the logger they belong to."""


class VitalsLogger:
    """Records one run of tinker-cookbook's loops."""

    store = None
    """None, because the JSON logger stores the recipe's files."""

    def __init__(self, log_dir: str, config: Any = None, **settings: Any) -> None:
        plain: Any = import_module("tinker_cookbook.utils.ml_log").dump_config(config) if config is not None else {}
        self._model = setting(plain, "model_name")
        defaults = {
            "output_dir": log_dir,
            # A loop resumes whenever its folder holds a checkpoint.
            "resume": True,
            "total_steps": whole_or_none(setting(plain, "max_steps")),
            "algorithm": "grpo" if setting(plain, "loss_fn") in ("importance_sampling", "ppo", "cispo") else None,
        }
        self.run: Run = open_run("tinker", plain if isinstance(plain, Mapping) else {}, defaults, settings)

    def log_hparams(self, config: Any) -> None:
        """Does nothing: the settings were recorded when the run started."""

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        record(self.run, metrics, step)

    def log_groups(self, split: str, iteration: int, groups: Sequence[Any]) -> None:
        """Record the trajectory groups of one step as rollouts."""
        decode = self._decoder()
        self.run.log_groups(
            [_group(each, split, decode, is_traced=index == 0) for index, each in enumerate(groups)], iteration
        )

    def log_long_text(self, key: str, text: str) -> None:
        """Not recorded: only numbers are."""

    def sync(self) -> None:
        self.run.flush()

    def get_logger_url(self) -> None:
        return None

    def close(self) -> None:
        self.run.finish()

    def _decoder(self) -> Any:
        """Decode with the tokenizer that the loop itself loads. Without one, tokens are written as numbers."""
        get = import_module("tinker_cookbook.tokenizer_utils").get_tokenizer
        found = value_or(None, get, self._model, handle=lambda error: warn_once(f"no tokenizer: {words_of(error)}"))
        return (lambda tokens: str(list(tokens))) if found is None else found.decode


def install(**settings: Any) -> None:
    """Record what is logged from now on. `settings` are those of `rlvitals.start`."""

    def begin(logger: Any, log_dir: str, *_: Any, config: Any = None, **__: Any) -> None:
        _logger[:] = [VitalsLogger(log_dir, config, **settings)]
        logger.loggers.append(_logger[0])

    def rollouts(_: Any, *, split: str, iteration: int, groups_P: Sequence[Any]) -> None:  # noqa: N803 - their name
        if _logger:
            _logger[0].log_groups(split, iteration, groups_P)

    follow(import_module("tinker_cookbook.utils.ml_log"), "setup_logging", begin)
    follow(import_module("tinker_cookbook.rl.rollout_logging"), "serialize_rollout_summaries_from_groups", rollouts)


def _group(summary: Any, split: str, decode: Any, *, is_traced: bool) -> dict[str, Any]:
    group = summary.trajectory_group
    first = group.trajectories_G[0].transitions if group.trajectories_G else []
    rollouts: list[dict[str, Any]] = [
        _rollout(trajectory, reward, metrics, decode, is_traced=is_traced and index < TRACED)
        for index, (trajectory, reward, metrics) in enumerate(
            zip(group.trajectories_G, group.get_total_rewards(), group.metrics_G, strict=True)
        )
    ]
    errors = [
        {"completion": "", "error": f"{each.error_type}: {each.error_message}"}
        for each in getattr(group, "rollout_errors", ())
    ]
    return {
        "prompt": decode(_ints(first[0].ob)) if first else "",
        "rollouts": [*rollouts, *errors],
        "meta": {"split": split, "tags": list(summary.tags)},
    }


def _rollout(
    trajectory: Any, reward: float, metrics: Mapping[str, Any], decode: Any, *, is_traced: bool
) -> dict[str, Any]:
    steps = trajectory.transitions
    seen = [_ints(step.ob) for step in steps[1:]] + [_ints(trajectory.final_ob)]
    turns = []
    for step, after in zip(steps, seen, strict=True):
        read = len(_ints(step.ob)) + len(step.ac.tokens)  # the next observation begins with these tokens
        turns.append(
            {
                "text": decode(step.ac.tokens),
                "observation": decode(after[read:]) if len(after) > read else "",
                "reward": step.reward,
                "trainable_tokens": len(step.ac.tokens),
            }
        )
    rollout = {
        "turns": turns,
        "reward": reward,
        "stop": str(trajectory.stop_reason or steps[-1].ac.stop_reason) if steps else "",
        "meta": {**metrics, **(steps[-1].logs if steps else {})},
    }
    if is_traced and all(step.ac.maybe_logprobs is not None for step in steps):
        tokens = [(turn, token) for turn, step in enumerate(steps) for token in step.ac.tokens]
        rollout["trace"] = {
            "ids": [token for _, token in tokens],
            "turns": [turn for turn, _ in tokens],
            "texts": [decode([token]) for _, token in tokens],
            "trained": [True] * len(tokens),
            "engine_logprobs": [value for step in steps for value in step.ac.maybe_logprobs],
        }
    return rollout


def _ints(observation: Any) -> list[int]:
    """The tokens of a ModelInput. Images have none."""
    return [int(token) for chunk in observation.chunks for token in getattr(chunk, "tokens", ())]


if __name__ == "__main__":
    launch(install)
