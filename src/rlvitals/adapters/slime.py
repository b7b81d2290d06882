"""slime and miles: one run for the rollout manager and the trainers of a Ray job, including rollouts.

    ray job submit --runtime-env-json '{"worker_process_setup_hook": "rlvitals.adapters.slime.install"}' --
        python3 train.py ... --save /data/out
        --custom-rollout-log-function-path rlvitals.adapters.slime.log_rollouts

Several processes log rows: the rollout manager and one process of the trainer. Ray's set-up hook runs in each and wraps
the function through which all of them log. slime's own option passes the samples. All processes share one recorder
(`rlvitals.adapters.ray`). Neither framework reads anything from a logger, so the doctor only advises.
Written against THUDM/slime at 624b824a8 and radixark/miles at 31f1ca961.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from itertools import groupby
from typing import Any

from rlvitals.adapters.framework import (
    TRACED,
    algorithm_named,
    follow,
    product,
    record,
    safely,
    setting,
    settings_for,
    whole_or_none,
)
from rlvitals.adapters.ray import RunClient, join
from rlvitals.guard import guarded

_LOGS = {"slime": "slime.observability.logging_utils", "miles": "miles.utils.tracking_utils.tracking"}
"""The module that defines `log(args, metrics, step_key)` in each framework."""

PATHS = {
    "num_generations": "n_samples_per_prompt",
    "max_completion_length": "rollout_max_response_len",
    "learning_rate": "lr",
    "beta": "kl_loss_coef",
    "temperature": "rollout_temperature",
    "max_grad_norm": "clip_grad",
    "train_batch_size": "global_batch_size",
    "per_device_train_batch_size": "micro_batch_size",
}

_client: dict[int, RunClient] = {}
"""The client of this process, by process id, because Ray forks; at most one."""

_settings: dict[str, Any] = {}


def install(**settings: Any) -> None:
    """Wrap the function through which slime or miles logs. Ray calls this in every worker. `settings` are those of
    `rlvitals.start`. A worker that can import neither is not changed.
    """
    _settings.update(settings)
    for framework, module in _LOGS.items():
        # An exception here would prevent every worker from starting.
        with guarded():
            follow(import_module(module), "log", _row_of(framework))
            follow(import_module(module), "finish_tracking", lambda *_: finish())


def finish() -> None:
    """Close the run for all processes. The rollout manager calls it at the end of the training."""
    while _client:
        _client.popitem()[1].finish()


def log_rollouts(rollout_id: int, args: Any, samples: Iterable[Any], *_: Any, **__: Any) -> bool:
    """For `--custom-rollout-log-function-path`: record the samples. Returns False to keep the usual logging."""
    with safely("rollouts could not be recorded"):
        framework = type(next(iter(samples), None)).__module__.partition(".")[0]
        _run(framework if framework in _LOGS else "slime", args).log_groups(
            groups_of(list(samples), args), rollout_id * _updates(args)
        )
    return False


def groups_of(samples: list[Any], args: Any = None) -> list[dict[str, Any]]:
    """Samples as groups. Samples of one prompt are adjacent and have the same `group_index`."""
    indexed = list(enumerate(samples))
    return [
        {
            "prompt": members[0][1].prompt,
            "answer": str(members[0][1].label or ""),
            "rollouts": [_rollout(sample, args, is_traced=index < TRACED) for index, sample in members],
        }
        for _, found in groupby(indexed, key=lambda pair: pair[1].group_index)
        if (members := list(found))
    ]


def _rollout(sample: Any, args: Any, *, is_traced: bool) -> dict[str, Any]:
    reward, parts = sample.reward, {}
    if isinstance(reward, Mapping):
        parts = {str(name): value for name, value in reward.items() if isinstance(value, int | float)}
        reward = parts.get(str(setting(args, "reward_key") or "score"))
    length = sample.response_length
    rollout = {
        "completion": sample.response,
        "reward": reward,
        "reward_parts": parts,
        "stop": {"completed": "answered", "truncated": "length"}.get(sample.status.value, sample.status.value),
        "tokens": len(sample.tokens) or None,
        "trainable_tokens": sum(sample.loss_mask) if sample.loss_mask is not None else length,
        "meta": {**sample.metadata, **({"removed": True} if sample.remove_sample else {})},
    }
    if is_traced and length:
        mask = sample.loss_mask if sample.loss_mask is not None else [1] * length
        rollout["trace"] = {
            "ids": sample.tokens[-length:],
            "trained": [bool(value) for value in mask],
            "engine_logprobs": sample.rollout_log_probs or (),
        }
    return rollout


def _row_of(framework: str) -> Any:
    def row(_: None, args: Any, metrics: Mapping[str, Any], step_key: str) -> None:
        step = metrics.get(step_key)
        if step is not None and step_key != "train/step" and not setting(args, "wandb_always_use_train_step"):
            step *= _updates(args)  # all rows count in updates, so that rollouts and their training share a step
        record(_run(framework, args), {name: metrics[name] for name in metrics if name != step_key}, step)

    return row


def _updates(args: Any) -> int:
    """How many optimizer steps are made on one batch of rollouts."""
    samples = (setting(args, "rollout_batch_size") or 0) * (setting(args, "n_samples_per_prompt") or 0)
    return max(int(samples // (setting(args, "global_batch_size") or samples or 1)), 1)


def _gpus(args: Any) -> dict[str, int]:
    """How many GPUs a training uses, counted as in `_get_placement_group_layout` of both frameworks."""
    actor = product(args, "actor_num_nodes", "actor_num_gpus_per_node")
    engines = setting(args, "rollout_num_gpus") or 0
    if setting(args, "debug_train_only") or setting(args, "rollout_external"):
        count = actor
    elif setting(args, "debug_rollout_only"):
        count = engines
    elif setting(args, "colocate"):
        count = max(actor, engines)
    else:
        count = actor + engines + (setting(args, "eval_num_gpus") or 0)  # the last setting exists only in miles
    return {"num_gpus": count} if count else {}


def _run(framework: str, args: Any) -> RunClient:
    pid = os.getpid()
    if pid not in _client:
        defaults = {
            "output_dir": os.environ.get("RLVITALS_OUTPUT_DIR") or setting(args, "save") or framework,
            "algorithm": algorithm_named(setting(args, "advantage_estimator")),
            "total_steps": whole_or_none((setting(args, "num_rollout") or 0) * _updates(args)),
            "resume": True if setting(args, "load") and setting(args, "load") == setting(args, "save") else None,
        }
        _client[pid] = join(**settings_for(framework, args, defaults, _settings, paths=PATHS, known=_gpus(args)))
    return _client[pid]
