"""NeMo-RL: one more logger in the list to which its `Logger` passes every row.

    python -m rlvitals.adapters.nemo_rl examples/run_grpo.py --config ...       # the script is not changed

    from rlvitals.adapters import nemo_rl                                       # or in your own script,
    nemo_rl.install()                                                           # before `setup`

Written against NVIDIA-NeMo/RL at 7ea279abf. Only the driver has a `Logger`. The samples that it writes to
`train_data_step{n}.jsonl` and `val_data_step{n}.jsonl` are recorded as rollouts, with tokens, masks, log-probs and
advantages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import groupby
from typing import Any

from rlvitals.adapters.framework import TRACED, follow, launch, open_run, record, setting, whole_or_none
from rlvitals.capture.run import Run

PATHS = {
    "num_generations": "grpo.num_generations_per_prompt",
    "max_completion_length": "policy.generation.max_new_tokens",
    "learning_rate": "policy.optimizer.kwargs.lr",
    "beta": "loss_fn.reference_policy_kl_penalty",
}

_DATA = re.compile(r"(train|val)_data_step(\d+)\.jsonl")


class VitalsLogger:
    """Records one run of NeMo-RL's Logger. The run starts with the settings, or with the first row if none come."""

    def __init__(self, cfg: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self.run: Run | None = None
        self._folder, self._settings = setting(cfg, "log_dir") or "logs", settings

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Open the run with NeMo-RL's settings. Errors raise here, before any training."""
        algorithm = next((name for name in ("grpo", "ppo", "dpo", "distillation", "rm", "sft") if name in params), None)
        self._open(
            params,
            algorithm={"rm": "reward_model", "distillation": None}.get(algorithm or "", algorithm),
            total_steps=whole_or_none(setting(params, f"{algorithm}.max_num_steps")),
        )

    def log_metrics(
        self,
        metrics: Mapping[str, Any],
        step: int,
        prefix: str | None = "",
        step_metric: str | None = None,
        step_finished: bool = False,
    ) -> None:
        """Record one row under the names of NeMo-RL's dashboards: `train/loss`, `validation/accuracy`."""
        if step_metric is None:  # hardware metrics have their own step axis; the run samples the hardware itself
            record(self._open({}), {f"{prefix}/{name}" if prefix else name: metrics[name] for name in metrics}, step)

    def log_samples(self, samples: Mapping[str, Any], filename: str) -> None:
        """Record the samples that NeMo-RL saves for a step as rollouts."""
        found = _DATA.fullmatch(filename)
        if found is not None:
            self._open({}).log_groups(_groups(samples, found[1]), int(found[2]))

    def log_histogram(self, histogram: Sequence[Any], step: int, name: str) -> None:
        """Not recorded: only numbers are."""

    def log_plot(self, figure: Any, step: int, name: str) -> None:
        """Not recorded: only numbers are."""

    def finish(self) -> None:
        if self.run is not None:
            self.run.finish()

    def _open(self, config: Mapping[str, Any], **defaults: Any) -> Run:
        if self.run is None:
            defaults["output_dir"] = self._folder
            self.run = open_run("nemo_rl", config, defaults, self._settings, paths=PATHS)
        return self.run


def install(**settings: Any) -> None:
    """Add a VitalsLogger to every `Logger` created from now on. `settings` are those of `rlvitals.start`."""
    Logger: Any = import_module("nemo_rl.utils.logger").Logger  # noqa: N806 - a class

    def begin(_: None, logger: Any, cfg: Mapping[str, Any]) -> None:
        logger.loggers.append(VitalsLogger(cfg, **settings))

    def samples(_: None, logger: Any, to_log: Mapping[str, Any], filename: str) -> None:
        for each in logger.loggers:
            if isinstance(each, VitalsLogger):
                each.log_samples(to_log, filename)

    follow(Logger, "__init__", begin)
    follow(Logger, "log_batched_dict_as_jsonl", samples)


def _groups(samples: Mapping[str, Any], split: str) -> list[dict[str, Any]]:
    """Group the samples by prompt; answers to one prompt are adjacent."""
    rollouts = [_rollout(samples, index) for index in range(len(samples["rewards"]))]
    return [
        {"prompt": prompt, "rollouts": [each for _, each in group], "meta": {"split": split}}
        for prompt, group in groupby(rollouts, key=lambda pair: pair[0])
    ]


def _rollout(samples: Mapping[str, Any], index: int) -> tuple[str, dict[str, Any]]:
    """The prompt and one answer to it."""
    content = samples["content"][index]
    rollout: dict[str, Any] = {"reward": _plain(samples["rewards"][index])}
    if content and isinstance(content[0], Mapping):  # validation: messages with their roles
        first = [message["role"] for message in content].index("assistant") if len(content) > 1 else len(content)
        prompt = "\n".join(str(message["content"]) for message in content[:first])
        rollout["messages"] = [{"role": each["role"], "content": str(each["content"])} for each in content]
    else:  # training: only texts: the prompt, then the model and the environment alternately
        texts = [str(text) for text in content]
        prompt, answers = texts[0], texts[1:]
        rollout["turns"] = [
            {"text": text, "observation": observation}
            for text, observation in zip(answers[::2], [*answers[1::2], ""], strict=False)
        ]
    advantages = _plain(samples["advantages"][index]) if "advantages" in samples else None
    if "token_ids" in samples:
        trained = [bool(value) for value in _plain(samples["token_loss_mask"][index])]
        length = int(_plain(samples["input_lengths"][index]))
        begin = trained.index(True) if True in trained else length
        rollout |= {"tokens": length, "trainable_tokens": sum(trained[:length])}
        if isinstance(advantages, list):
            rollout["advantage"] = advantages[begin] if begin < length else None
        if index < TRACED:
            columns = {
                "ids": samples["token_ids"], "engine_logprobs": samples.get("generation_logprobs"),
                "logprobs": samples.get("prev_logprobs"), "advantages": samples.get("advantages"),
            }  # fmt: skip
            rollout["trace"] = {
                "trained": trained[begin:length],
                **{name: _plain(rows[index])[begin:length] for name, rows in columns.items() if rows is not None},
            }
    elif advantages is not None:
        rollout["advantage"] = advantages
    return prompt, rollout


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


if __name__ == "__main__":
    launch(install)
