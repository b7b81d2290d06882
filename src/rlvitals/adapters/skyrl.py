"""SkyRL: a callback of its trainers, and an entry point that adds it.

    python -m skyrl.train.entrypoints.main_base ... trainer.override_entrypoint=rlvitals.adapters.skyrl

Written against SkyRL 0.3.0, which calls the `main` of the module named there in place of its own. Options
that begin with `rlvitals.` are the settings of `VitalsCallback`. With your own entry point or trainer:

    trainer.add_callback(VitalsCallback("out/grpo", actions="act"))

The driver of the training loop is the only process that logs. A callback can request a checkpoint through SkyRL's
control. It stops a training by lowering the limit of steps. It cannot cut the learning rate, because the scheduler in
the workers sets the rate again after every update.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvitals.adapters.framework import (
    StepLimitControls,
    algorithm_named,
    groups_by_prompt,
    open_run,
    product,
    record,
    safely,
    setting,
    turns_of_tokens,
    whole_or_none,
)
from rlvitals.capture.actions import Actions
from rlvitals.errors import ConfigError
from rlvitals.records import Group, Rollout
from rlvitals.yaml_reader import parse_yaml

if TYPE_CHECKING:
    from rlvitals.capture.run import Run
    from rlvitals.records import Status

PREFIX = "rlvitals."
TRAINED = "trajectories/train"
"""SkyRL's key for trajectories that are trained on, as opposed to those of an evaluation."""

PATHS = {
    "num_generations": "generator.n_samples_per_prompt",
    "max_completion_length": "generator.sampling_params.max_generate_length",
    "learning_rate": "trainer.policy.optimizer_config.lr",
    "beta": "trainer.algorithm.kl_loss_coef",
    "max_turns": "generator.max_turns",
    "temperature": "generator.sampling_params.temperature",
    "max_grad_norm": "trainer.policy.optimizer_config.max_grad_norm",
    "num_iterations": "trainer.update_epochs_per_batch",
    "epsilon_high": "trainer.algorithm.eps_clip_high",
    "train_batch_size": "trainer.train_batch_size",
    "per_device_train_batch_size": "trainer.micro_train_batch_size_per_gpu",
}


class VitalsCallback:
    """Records one trainer's run and its rollouts, and carries out the doctor's requests.

    SkyRL calls the methods by the names of its events, so its base class is not needed.
    """

    def __init__(self, output_dir: str | Path | None = None, **settings: Any) -> None:
        """`output_dir` is SkyRL's `trainer.ckpt_path` by default; `settings` are those of `rlvitals.start`."""
        self.run: Run | None = None
        self._given = settings if output_dir is None else {"output_dir": output_dir, **settings}
        self._actions = Actions(None)

    def on_train_start(self, trainer: Any, callback_input: Any, control: Any) -> None:
        """Open the run. Errors raise here, before any training."""
        config = trainer.cfg
        resumes = str(setting(config, "trainer.resume_mode") or "none").lower() not in ("none", "resumemode.none")
        defaults = {
            "output_dir": setting(config, "trainer.ckpt_path") or "ckpt",
            "name": str(setting(config, "trainer.run_name") or "skyrl"),
            "algorithm": algorithm_named(setting(config, "trainer.algorithm.advantage_estimator")),
            "total_steps": whole_or_none(callback_input.total_steps),
            "resume": int(callback_input.global_step) or (True if resumes else None),
        }
        self.run = open_run("skyrl", config, defaults, self._given, paths=PATHS, known=_gpus(config))
        self._actions = Actions(self.run, controls=controls_of(trainer, control))
        trainer.trajectory_logger = Beside(getattr(trainer, "trajectory_logger", None), self)

    def record_rollouts(self, output: Mapping[str, Any], tokenizer: Any, step: int | None) -> None:
        """Record the rollouts of a step, without advantages: SkyRL computes them later and keeps only scaled ones."""
        if self.run is not None:
            self.run.log_groups(groups_of(output, tokenizer), step)

    def on_log(self, trainer: Any, callback_input: Any, control: Any) -> None:
        """Record one step and the evaluation in its row, then carry out the doctor's request."""
        if self.run is not None:
            record(self.run, callback_input.logs, callback_input.global_step)
            self._actions.carry_out()

    def on_save(self, trainer: Any, callback_input: Any, control: Any) -> None:
        with safely("on_save of SkyRL could not be recorded"):
            self._actions.saved(Path(str(callback_input.ckpt_path)).name)

    def on_train_end(self, trainer: Any, callback_input: Any, control: Any) -> None:
        self.finish()

    def finish(self, status: Status | None = None, error: BaseException | None = None) -> None:
        """Close the run, if one is open. SkyRL does not notify callbacks when a training ends in an exception."""
        run, self.run = self.run, None
        if run is not None:
            run.finish(status, error)

    def _nothing(self, trainer: Any, callback_input: Any, control: Any) -> None:
        pass

    on_epoch_start = on_epoch_end = on_step_start = on_step_end = on_eval_start = on_eval_end = _nothing


def _gpus(config: Any) -> dict[str, int]:
    """How many GPUs a training uses, counted as SkyRL's `build_models` places its workers and engines."""

    def of(place: str) -> int:
        placed = f"trainer.placement.{place}"
        return product(config, f"{placed}_num_nodes", f"{placed}_num_gpus_per_node")

    count = of("policy")
    if count and not setting(config, "trainer.placement.colocate_all"):
        algorithm = [setting(config, f"trainer.algorithm.{name}") for name in ("use_kl_loss", "use_kl_in_reward")]
        if any(algorithm) and not setting(config, "trainer.placement.colocate_policy_ref"):
            count += of("ref")
        count += of("critic") if setting(config, "trainer.critic.model.path") else 0
        engine = "generator.inference_engine"
        if setting(config, f"{engine}.run_engines_locally"):
            sizes = ("num_engines", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
            count += product(config, *(f"{engine}.{size}" for size in sizes))
    return {"num_gpus": count} if count else {}


class Beside:
    """Replaces SkyRL's `TrajectoryLogger`, which receives every step's trajectories, and calls the original."""

    def __init__(self, theirs: Any, callback: VitalsCallback) -> None:
        self._theirs, self._callback = theirs, callback

    def log(self, **shown: Any) -> None:
        if self._theirs is not None:
            self._theirs.log(**shown)
        with safely("trajectories of SkyRL could not be recorded"):
            if shown.get("wandb_key") == TRAINED:
                self._callback.record_rollouts(shown["generator_output"], shown["tokenizer"], shown["global_step"])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)


def controls_of(trainer: Any, control: Any) -> StepLimitControls:
    """The actions that SkyRL's trainer supports."""

    def stop() -> None:
        # The loop compares the two after every row, so this step is the last.
        trainer.cfg.trainer.max_training_steps = trainer.global_step

    def save() -> None:
        control.should_save = True  # saved after the next step; `on_save` reports the name

    return StepLimitControls(
        stop,
        save,
        "SkyRL's workers set the learning rate again after every update",
        "SkyRL loads a checkpoint at its start only: continue with trainer.resume_mode=from_path",
    )


def groups_of(output: Mapping[str, Any], tokenizer: Any) -> list[Group]:
    """The rollouts of one step, as SkyRL's generator returned them."""
    prompts = [tokenizer.decode(list(ids)) for ids in output["prompt_token_ids"]]
    return groups_by_prompt((prompt, _rollout(output, number, tokenizer)) for number, prompt in enumerate(prompts))


def _rollout(output: Mapping[str, Any], number: int, tokenizer: Any) -> Rollout:
    reward = output["rewards"][number]
    stops = output.get("stop_reasons")
    ids, mask = output["response_ids"][number], output["loss_masks"][number]
    return Rollout(
        turns=turns_of_tokens(ids, mask, lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=True))),
        reward=float(sum(reward)) if isinstance(reward, list) else float(reward),
        stop=str(stops[number]) if stops else "",
        tokens=len(output["prompt_token_ids"][number]) + len(ids),
        trainable_tokens=sum(map(bool, mask)),
    )


# The entry point.


def main() -> None:
    """Train as SkyRL's own `main` does, and record. SkyRL calls it if `trainer.override_entrypoint` is this module."""
    ray: Any = import_module("ray")
    base: Any = import_module("skyrl.train.entrypoints.main_base")
    settings, theirs = split_options(sys.argv[1:])
    config = base.SkyRLTrainConfig.from_cli_overrides(theirs)
    base.validate_cfg(config)
    base.initialize_ray(config)
    ray.get(ray.remote(num_cpus=1)(train).remote(config, settings))


def train(config: Any, settings: Mapping[str, Any]) -> None:
    """Run SkyRL's experiment with the callback, in the Ray task that holds the training loop."""
    recorded(import_module("skyrl.train.entrypoints.main_base").BasePPOExp, **settings)(config).run()


def recorded(experiment: Any, **settings: Any) -> Any:
    """A subclass of one of SkyRL's experiments whose trainer has the callback."""
    callback = VitalsCallback(**settings)

    class Recorded(experiment):  # type: ignore[misc]
        """Records what the experiment trains."""

        def get_trainer(self, *given: Any, **named: Any) -> Any:
            trainer = super().get_trainer(*given, **named)
            trainer.add_callback(callback)
            return trainer

        def run(self) -> None:
            try:
                super().run()
            except BaseException as error:
                callback.finish("failed", error)
                raise

    return Recorded


def split_options(options: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Separate the settings of rlvitals from SkyRL's options.

    >>> split_options(["trainer.epochs=2", "rlvitals.actions=act", "+rlvitals.hardware=false"])
    ({'actions': 'act', 'hardware': False}, ['trainer.epochs=2'])
    """
    ours: dict[str, Any] = {}
    theirs = []
    for option in options:
        name, has_value, value = option.lstrip("+").partition("=")
        if not name.startswith(PREFIX):
            theirs.append(option)
        elif not has_value:
            raise ConfigError(f"{option} has no value: write {name}=VALUE")
        else:
            ours[name.removeprefix(PREFIX)] = parse_yaml(value)
    return ours, theirs
