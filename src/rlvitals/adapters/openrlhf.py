"""OpenRLHF: a logger with `log_train(global_step, logs)`, `log_eval(global_step, logs)` and `close()`.

    ray job submit --runtime-env-json '{"worker_process_setup_hook": "rlvitals.adapters.openrlhf.install"}' --
        python -m openrlhf.cli.train_ppo_ray ... --logger.tensorboard_dir out/tensorboard

Written against OpenRLHF 0.11.2. Its trainer creates a WandbLogger and a TensorboardLogger, if enabled, in a separate
Ray actor. Code in the driver does not run there; Ray's set-up hook does. `install` wraps both classes and records what
the logger that is created first receives, so one of the two must be enabled. That actor is the only process that logs.
It also turns rollouts into experiences, which are recorded too: `install` wraps `RemoteExperienceMaker`. If your
program has access to the trainer, nothing needs to be installed:

    trainer.tensorboard_logger = VitalsLogger(args, output_dir="out/ppo")

The SFT, DPO and reward-model trainers have no logger class; follow their TensorBoard files (docs/frameworks.md).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from rlvitals.adapters.framework import (
    algorithm_named,
    caller,
    follow,
    groups_by_prompt,
    mean_advantages,
    open_run,
    product,
    record,
    safely,
    setting,
    turns_of_tokens,
    whole_or_none,
)
from rlvitals.records import Group, Rollout, Turn

PATHS = {
    "num_generations": "rollout.n_samples_per_prompt",
    "max_completion_length": "rollout.max_new_tokens",
    "learning_rate": "actor.adam.lr",
    "beta": "algo.kl.init_coef",
    "temperature": "rollout.temperature",
    "max_grad_norm": "actor.max_norm",
    "num_iterations": "train.max_epochs",
    "epsilon_high": "actor.eps_clip",
    "warmup_ratio": "actor.lr_warmup_ratio",
    "train_batch_size": "train.batch_size",
    "rollout_batch_size": "rollout.batch_size",
    "per_device_train_batch_size": "train.micro_batch_size",
}

SAMPLES = "generated_samples"
"""Key of the step's first prompt with its answer and reward, which OpenRLHF logs for a table, not as a metric."""

MAKER = "openrlhf.trainer.ppo_utils.experience_maker"


class VitalsLogger:
    """Records one run of OpenRLHF's PPO trainer. Pass `run` to `rlvitals.Actions` to carry out requests."""

    def __init__(self, args: Any = None, **settings: Any) -> None:
        name = str(setting(args, "logger.wandb.run_name") or "openrlhf")
        folder = os.path.join(str(setting(args, "ckpt.output_dir") or "ckpt"), name)
        defaults = {
            "output_dir": os.environ.get("RLVITALS_OUTPUT_DIR") or folder,
            "name": name,
            "algorithm": algorithm_named(setting(args, "algo.advantage.estimator")),
            "resume": True if setting(args, "ckpt.load_enable") else None,
            "total_steps": _planned_steps(args),
        }
        known = {**_clip_high(args), **_gpus(args)}
        self.run = open_run("openrlhf", args, defaults, settings, paths=PATHS, known=known)
        self._made: tuple[Any, Any] | None = None

    def take(self, experiences: Any, tokenizer: Any) -> None:
        """Keep the experiences of a step until its row is logged."""
        self._made = (experiences, tokenizer)

    def log_train(self, global_step: int | None, logs_dict: Mapping[str, Any]) -> None:
        """Record one step under the names of OpenRLHF's dashboards, such as `train/reward`."""
        record(self.run, _named("train", logs_dict), global_step)
        made, self._made = self._made, None
        sample = logs_dict.get(SAMPLES) if isinstance(logs_dict, Mapping) else None
        with safely("rollouts could not be recorded"):
            if made is not None:
                self.run.log_groups(groups_of(*made), global_step)
            elif sample:
                text, reward = sample
                alone = Rollout(turns=(Turn(text=str(text)),), reward=float(reward))
                self.run.log_groups([Group(rollouts=(alone,))], global_step)

    def log_eval(self, global_step: int | None, logs_dict: Mapping[str, Any]) -> None:
        record(self.run, _named("eval", logs_dict), global_step)

    def close(self) -> None:
        self.run.finish()


def _clip_high(args: Any) -> dict[str, Any]:
    """The upper clip range, if it is set separately from the lower one."""
    both = setting(args, "actor.eps_clip_low_high")
    return {"epsilon_high": both[1]} if both else {}


def _planned_steps(args: Any) -> int | None:
    """How many batches the trainer will train on, computed from the prompts that it loads before it creates loggers.
    None in asynchronous mode, which does not load them there, and with dynamic filtering, which drops prompts later.
    """
    trainer = caller(lambda owner: len(owner.prompts_dataloader) > 0)
    batch, episodes = whole_or_none(setting(args, "rollout.batch_size")), setting(args, "train.num_episodes")
    if trainer is None or batch is None or setting(args, "algo.dynamic_filtering_enable"):
        return None
    return whole_or_none(-(-len(trainer.prompts_dataloader) // batch) * (whole_or_none(episodes) or 0))


def _gpus(args: Any) -> dict[str, int]:
    """How many GPUs a training uses, counted as `openrlhf.cli.train_ppo_ray` places its models and engines."""

    def of(model: str) -> int:
        return product(args, f"{model}.num_nodes", f"{model}.num_gpus_per_node")

    is_shared = bool(setting(args, "train.colocate_all"))
    has_critic = bool(setting(args, "critic.model_name_or_path"))
    is_pair = has_critic and bool(setting(args, "train.colocate_critic_reward"))
    count = of("actor")
    if not is_shared or setting(args, "train.async_enable"):
        count += product(args, "vllm.num_engines", "vllm.tensor_parallel_size")
    if (setting(args, "algo.kl.init_coef") or 0) > 0 and not (is_shared or setting(args, "train.colocate_actor_ref")):
        count += of("ref")
    if has_critic and (is_pair or not is_shared):  # a critic colocated with the reward model has its own GPUs
        count += of("critic")
    if not (setting(args, "reward.remote_url") or is_pair or is_shared):
        count += of("reward")
    return {"num_gpus": count} if of("actor") else {}


def groups_of(experiences: Any, tokenizer: Any) -> list[Group]:
    """The rollouts of one step, from a list of OpenRLHF's batches. Their action masks begin at the second token."""

    def decode(tokens: list[int]) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=True))

    made = []
    for batch in experiences:
        advantages: list[float | None] = [None] * len(batch.sequences)
        if batch.advantages is not None:
            advantages = mean_advantages(batch.advantages, batch.action_mask)
        rewards = [None] * len(batch.sequences) if batch.rewards is None else batch.rewards.tolist()
        for number, (sequence, mask) in enumerate(zip(batch.sequences, batch.action_mask, strict=True)):
            ids, own = sequence.tolist()[1:], [bool(flag) for flag in mask.tolist()]
            first = own.index(True) if True in own else len(own)
            last = len(own) - own[::-1].index(True) if True in own else 0
            is_cut = batch.truncated is not None and bool(batch.truncated[number])
            rollout = Rollout(
                turns=turns_of_tokens(ids[first:last], own[first:last], decode),
                reward=rewards[number],
                advantage=advantages[number],
                stop="length" if is_cut else "",
                trainable_tokens=sum(own),
            )
            made.append((str(batch.prompts[number]) if number < len(batch.prompts) else "", rollout))
    return groups_by_prompt(made)


def install(**settings: Any) -> None:
    """Make OpenRLHF's loggers also record a run. Ray calls this in every worker. `settings`: as for `VitalsLogger`.

    A worker that cannot import OpenRLHF has no logger and is not changed.
    """
    # An exception here would prevent every worker from starting.
    with safely("OpenRLHF's loggers are not here"):
        loggers: Any = import_module("openrlhf.utils.logging_utils")
        for kind in (loggers.WandbLogger, loggers.TensorboardLogger):
            _follow(kind, settings)


_followed: dict[int, VitalsLogger] = {}
"""The VitalsLogger of an OpenRLHF logger, by the logger's id; at most one."""


def _follow(kind: Any, settings: Mapping[str, Any]) -> None:
    def begin(_: None, logger: Any, args: Any) -> None:
        if not _followed:
            _followed[id(logger)] = VitalsLogger(args, **settings)
            _follow_experiences()

    def forward_to(name: str) -> Callable[..., None]:
        def to_ours(_: None, logger: Any, *given: Any, **named: Any) -> None:
            if id(logger) in _followed:
                getattr(_followed[id(logger)], name)(*given, **named)

        return to_ours

    def close(_: None, logger: Any) -> None:
        if id(logger) in _followed:
            _followed.pop(id(logger)).close()

    follow(kind, "__init__", begin)
    follow(kind, "log_train", forward_to("log_train"))
    follow(kind, "log_eval", forward_to("log_eval"))
    follow(kind, "close", close)


def _follow_experiences() -> None:
    """Wrap the experience maker of this process. The trainer imports it before it creates its loggers."""

    def take(made: Any, maker: Any, *_: Any, **__: Any) -> None:
        for logger in _followed.values():
            logger.take(made, maker.tokenizer)

    maker = getattr(sys.modules.get(MAKER), "RemoteExperienceMaker", None)
    if hasattr(maker, "make_experience_batch"):
        follow(maker, "make_experience_batch", take)


def _named(prefix: str, logs: Any) -> Any:
    if not isinstance(logs, Mapping):
        return logs
    return {f"{prefix}/{name}": value for name, value in logs.items() if name != SAMPLES}
