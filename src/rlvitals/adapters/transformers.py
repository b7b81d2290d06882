"""The callback that records and monitors every trainer of transformers and TRL.

    from rlvitals.adapters.transformers import VitalsCallback

    trainer = KTOTrainer(..., callbacks=[VitalsCallback()])              # the run is in the trainer's output_dir
    trainer = GRPOTrainer(..., callbacks=[VitalsCallback("out/grpo", actions="act", display="auto")])

It accepts the settings of `rlvitals.start`. The main process records; with `actions="act"` every process carries out
the doctor's requests. The completions of TRL's trainers are recorded too, see `trl_rollouts`. Nothing here raises into
training, except at its start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlvitals.adapters.transformers_settings import algorithm_of, event_of, is_of_the_summary, names_of, settings_of
from rlvitals.adapters.trl_rollouts import TrlRollouts, checked, trainer_of
from rlvitals.capture.actions import Actions, keeping_rates, learning_rate, scale_learning_rate
from rlvitals.capture.start import check_place, folder_of_rank_0, free_folder, keep_given, newest_folder, start
from rlvitals.config import resolve
from rlvitals.errors import ConfigError, needs
from rlvitals.guard import Once, guarded, words_of
from rlvitals.health.actions import REVERT_FACTOR, CannotGoBack, Declined
from rlvitals.store.cards import read_config
from rlvitals.store.files import read_json
from rlvitals.store.layout import RunDir, kept_folder
from rlvitals.terminal import logger

with needs("VitalsCallback", package="transformers"):
    from transformers import TrainerCallback

if TYPE_CHECKING:
    from rlvitals.capture.phases import Phase
    from rlvitals.capture.run import Run
    from rlvitals.records import Status

NAME: Final = "rlvitals"
"""The name for `report_to`, after `register`."""

_EARLY_EVENTS = 1000
"""How many evaluations before training are kept until the run starts."""

ROLLOUT_MEGABYTES: Final = 1024
"""Default limit for the size of a training's recorded completions, in megabytes."""

_SAMPLING = frozenset({"grpo", "rloo", "online_dpo"})
"""Algorithms whose trainers sample completions. A warning is logged if these cannot be recorded."""

_EVERY_RANK = ("strict", "fsync", "rollout_megabytes")
"""Settings that apply on the other processes, which record only rollouts."""

WEIGHTS, WEIGHTS_INDEX, OPTIMIZER = "model.safetensors", "model.safetensors.index.json", "optimizer.pt"


def register(output_dir: str | os.PathLike[str] | None = None, **settings: Any) -> None:
    """Make `report_to="rlvitals"` add a callback with these settings to every trainer created from now on.

    The name is added to transformers' public table of integrations; nothing else needs to change.
    """
    integrations: Any = import_module("transformers.integrations")  # it exports names that are missing from its types

    class Registered(VitalsCallback):
        """The callback class that a trainer creates without arguments."""

        def __init__(self) -> None:
            super().__init__(output_dir, **settings)

    VitalsCallback(output_dir, **settings)  # raises on wrong settings
    integrations.INTEGRATION_TO_CALLBACK[NAME] = Registered


def _safely(event: Callable[..., Any]) -> Callable[..., Any]:
    """Log a failing event once, and let training continue."""

    @wraps(event)
    def safe(self: VitalsCallback, *given: Any, **more: Any) -> Any:
        with guarded(lambda error: self.warn_once(f"{event.__name__} failed: {words_of(error)}", event.__name__)):
            return event(self, *given, **more)
        return None

    return safe


class VitalsCallback(TrainerCallback):  # type: ignore[misc]
    """Records one trainer's run and carries out the doctor's requests. Use one for each trainer."""

    def __init__(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        *,
        resume_learning_rate: float | None = None,
        resume: bool | int | str | None = None,
        overwrite: bool = False,
        config: Mapping[str, Any] | None = None,
        rollouts: bool | int = True,
        rollout_tokens: int = 4,
        **settings: Any,
    ) -> None:
        """`output_dir` defaults to the trainer's own; `settings` are those of `rlvitals.start`.

        `config` is recorded with the trainer's arguments. `resume_learning_rate` is the learning rate of a resumed
        training; without it transformers takes the rate from the checkpoint and ignores its arguments. `resume` is for
        jobs that may be killed before their first checkpoint (True: continue the run in the directory). It is not
        needed if the trainer itself resumes.

        `rollouts` applies to TRL's GRPO, RLOO and online DPO: True records the completions of every step, 10 those of
        every tenth, False none. `rollout_tokens` is how many completions of a step are recorded with their tokens.
        """
        super().__init__()
        self.run: Run | None = None
        """The run, on the main process during training; else None."""
        if config is not None and not isinstance(config, Mapping):
            raise ConfigError(f"config must be a mapping, recorded beside the trainer's own arguments, not {config!r}")
        self._rollout_settings = checked(rollouts, rollout_tokens)
        self._rollouts: TrlRollouts | None = None
        section = (config or {}).get("rlvitals")
        if not isinstance(section, Mapping) or "rollout_megabytes" not in section:
            settings.setdefault("rollout_megabytes", ROLLOUT_MEGABYTES)
        self._settings = resolve(config, settings)  # wrong settings raise here, on every process
        self._given = keep_given(settings)
        self._config = dict(config or {})
        self._folder = None if output_dir is None else kept_folder(output_dir)
        self._resume, self._overwrite, self._resume_rate = resume, overwrite, resume_learning_rate
        self.warn_once = Once(lambda sentence: logger.warning("VitalsCallback: %s", sentence))
        self._phase: Phase | None = None
        self._measures_memory = True
        self._early: list[tuple[dict[str, Any], int]] = []
        self._evaluated: tuple[int, dict[str, Any]] = (-1, {})
        self._started_with: dict[str, Any] | None = None
        self._begin()

    def _begin(self) -> None:
        """Reset the state of one training."""
        self._tokens = 0.0
        self._saved = ""
        self._is_log_due = self._is_asking_due = False
        self._actions = Actions(None)

    # Start and end.

    def on_init_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Check the directory when the trainer is built: errors raise before anything is prepared or trained."""
        if state.is_world_process_zero:
            check_place(self._folder or args.output_dir)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any = None, train_dataloader: Any = None, **rest: Any
    ) -> None:
        """Open the run. Errors raise here, before any training."""
        self._begin()
        self._tokens = float(state.num_input_tokens_seen or 0)
        self._measures_memory = bool(getattr(args, "skip_memory_metrics", True))  # else the trainer resets the peaks
        if state.global_step > 0 and self._resume_rate is not None:
            self._set_rate(self._resume_rate, rest.get("optimizer"), rest.get("lr_scheduler"))
        folder = self._folder or kept_folder(args.output_dir)
        if not state.is_world_process_zero:
            self.finish()
            self._attach_rollouts(args, folder)
            return
        is_second_try = self.run is not None and bool(getattr(args, "auto_find_batch_size", False))
        place = Path(self.run.dir) if is_second_try and self.run is not None else self._place(args, state, folder)
        self.finish("failed" if is_second_try else "interrupted", "training was begun again without an end")
        given = {
            "output_dir": place,
            "algorithm": algorithm_of(args),
            "framework": names_of(args),
            "total_steps": state.max_steps or None,
            "name": _name_of(args, folder),
            **self._given,
            "config": {**settings_of(args, model, train_dataloader), **self._config},
            "rank": 0,
        }
        resume = 0 if is_second_try else self._resume
        if state.global_step:  # above 0 if the trainer resumes
            saved = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            resume = str(saved) if saved.is_dir() else int(state.global_step)
        is_new = resume is None or resume is False
        self.run = start(resume=resume, overwrite=self._overwrite and is_new, **given)
        self.run.look_for_checkpoints_in(kept_folder(args.output_dir))
        self._started_with = given
        self._actions = Actions(self.run)
        early, self._early = self._early, []
        for logs, step in early:
            self._record_evaluation(self.run, logs, step)
        self._attach_rollouts(args, folder)

    def _place(self, args: Any, state: Any, folder: Path) -> Path:
        """The folder of this training. A training that resumes continues the run of its checkpoint. A new one
        keeps an existing run and uses a numbered folder beside it, unless `overwrite` or `resume` is set. So a restart
        neither deletes the old run nor fails.
        """
        if state.global_step:
            own = kept_folder(args.output_dir)
            return newest_folder(folder, lambda run_dir: _output_of(run_dir) == own)
        if self._overwrite or self._resume not in (None, False):
            return folder
        place = free_folder(folder)
        if place != folder:
            logger.warning(
                "%s holds a run already; this training is recorded in %s (resume_from_checkpoint continues with a run, "
                "VitalsCallback(overwrite=True) removes it)",
                folder,
                place,
            )
        return place

    @_safely
    def _attach_rollouts(self, args: Any, folder: Path) -> None:
        """Record the completions of a trainer that samples them. Every process records its own share."""
        if self._rollout_settings.every is None:
            return
        trainer, run = trainer_of(self), self.run
        rank = 0 if run is not None else int(args.process_index)
        given = {name: getattr(self._settings, name) for name in _EVERY_RANK}

        def open_run() -> Run:  # called on the background thread, because other processes wait here for the main one
            return run if run is not None else start(folder_of_rank_0(folder), rank=rank, hardware=False, **given)

        rollouts = TrlRollouts(trainer, self._rollout_settings, open_run, self.warn_once, rank=rank)
        if rollouts.is_possible:
            self._rollouts = rollouts
            rollouts.attach()
        elif algorithm_of(args) in _SAMPLING:
            who = (
                "its trainer was not found" if trainer is None else f"{type(trainer).__name__} is not built as expected"
            )
            self.warn_once(f"no rollouts are recorded: {who}. Metrics are.", "rollouts")

    @_safely
    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self.finish()

    def finish(self, status: Status | None = None, error: BaseException | str | None = None) -> None:
        """Close the run, if one is open. Callbacks are not notified of a training that ends in an exception: its run is
        closed by this method, or when the process ends.
        """
        self._leave()
        rollouts, self._rollouts = self._rollouts, None
        if rollouts is not None:
            with guarded(lambda error: self.warn_once(f"rollouts were not finished: {words_of(error)}")):
                rollouts.finish()
        run, self.run = self.run, None
        if run is not None:
            run.finish(status, error if status != "finished" else None)

    # Steps and the phases between them.

    @_safely
    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._is_log_due = False
        self._enter("train_step")

    def on_substep_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._count_batch(args, state)

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> Any:
        self._leave()
        self._count_batch(args, state)
        if self._rollouts is not None:
            self._end_rollouts_step()
        self._is_log_due = bool(control.should_log)
        if self._is_asking_due and not self._is_log_due:
            self._ask(args, control, **rest)
        if not self._is_log_due:
            self._enter_what_follows(control)
        return control

    @_safely
    def _end_rollouts_step(self) -> None:
        if self._rollouts is not None:
            self._rollouts.step_ended()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._is_log_due = bool(control.should_log)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> Any:
        """Record the event. All processes log at the same steps, so they receive the doctor's requests here."""
        logs = dict(logs or {})
        event = event_of(logs)
        self._record(event, logs, state)
        if event == "train" and self._is_log_due:
            self._is_log_due = False
            self._ask(args, control, **rest)
            self._enter_what_follows(control)
        return control

    @_safely
    def on_prediction_step(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if self._phase is None and self.run is not None:
            self._enter("evaluate")

    @_safely
    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **rest: Any) -> None:
        self._is_asking_due = True
        self._leave()
        if "eval_runtime" in (metrics or {}):  # else one of several data sets: others may follow
            self._enter_what_follows(control)

    @_safely
    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **rest: Any) -> None:
        self._leave()

    @_safely
    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._leave()
        self._saved = f"checkpoint-{state.global_step}"
        self._actions.saved(self._saved)

    def _enter_what_follows(self, control: Any) -> None:
        """Enter the next phase: a trainer logs after a step, then evaluates, then saves."""
        if control.should_evaluate:
            self._enter("evaluate")
        elif control.should_save:
            self._enter("do_checkpoint")

    @_safely
    def _enter(self, name: str) -> None:
        self._leave()
        if self.run is not None:
            self._phase = self.run.phase(name, memory=self._measures_memory)
            self._phase.__enter__()

    @_safely
    def _leave(self) -> None:
        phase, self._phase = self._phase, None
        if phase is not None:
            phase.__exit__(None, None, None)

    # Rows.

    @_safely
    def _record(self, event: str, logs: dict[str, Any], state: Any) -> None:
        if not state.is_world_process_zero:
            return
        step = int(state.global_step)
        if event == "eval":
            self._take_evaluation(logs, step)
        elif self.run is not None:
            (self._record_summary if event == "summary" else self._record_step)(self.run, logs, step)

    def _record_step(self, run: Run, logs: dict[str, Any], step: int) -> None:
        total = logs.get("num_tokens", logs.get("num_input_tokens_seen"))
        if isinstance(total, int | float):
            # Some trainers count from 0 again after a resume.
            run.count(tokens=total - self._tokens if total >= self._tokens else total)
            self._tokens = float(total)
        run.log({**logs, **self._checkpoint()}, step=step)

    def _record_summary(self, run: Run, logs: dict[str, Any], step: int) -> None:
        """Record the last event with the evaluations: it describes the whole training, not a step."""
        summary = {name: value for name, value in logs.items() if is_of_the_summary(name)}
        rest = {name: value for name, value in logs.items() if name not in summary}
        if rest:
            self._record_step(run, rest, step)
        run.log_eval({**summary, **self._checkpoint()}, step=step, whole={})

    def _checkpoint(self) -> dict[str, str]:
        """The checkpoint saved since the last row."""
        saved, self._saved = self._saved, ""
        return {"checkpoint": saved} if saved else {}

    def _take_evaluation(self, logs: dict[str, Any], step: int) -> None:
        if self.run is not None:
            self._record_evaluation(self.run, logs, step)
        elif self._started_with is None:
            self._early = [*self._early, (logs, step)][-_EARLY_EVENTS:]
        else:  # trainer.evaluate() after trainer.train() becomes a separate, short attempt
            with start(resume=step, **self._started_with) as run:
                self._record_evaluation(run, logs, step)

    def _record_evaluation(self, run: Run, logs: dict[str, Any], step: int) -> None:
        """Record one event. Several data sets are evaluated one by one; one file holds the results of all."""
        earlier = self._evaluated[1] if self._evaluated[0] == step else {}
        self._evaluated = (step, earlier | logs)
        run.log_eval(logs, step=step, whole=self._evaluated[1])

    @_safely
    def _count_batch(self, args: Any, state: Any) -> None:
        if self.run is not None:
            size = state.train_batch_size or args.train_batch_size
            self.run.count(samples=size * max(args.world_size, 1))

    # Requests.

    def _ask(self, args: Any, control: Any, *, model: Any = None, **rest: Any) -> None:
        """Carry out the doctor's requests, on every process."""
        self._is_asking_due = False
        if self._settings.actions != "advise":
            optimizer, scheduler = rest.get("optimizer"), rest.get("lr_scheduler")
            self._actions.controls = TransformersControls(args, control, model, optimizer, scheduler)
            self._actions.carry_out()

    @_safely
    def _set_rate(self, rate: float, optimizer: Any, scheduler: Any) -> None:
        """Replace the checkpoint's learning rate and keep its schedule."""
        base = max(float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups)
        try:
            scale_learning_rate(optimizer, scheduler, rate / base)
        except (Declined, ZeroDivisionError) as problem:
            self.warn_once(f"the checkpoint's learning rate is kept: {problem}")


def _output_of(run_dir: RunDir) -> Path | None:
    """The output folder of the trainer that recorded this run."""
    folder = read_config(run_dir).get("output_dir")
    return kept_folder(folder) if isinstance(folder, str) and folder and "\0" not in folder else None


def _name_of(args: Any, folder: Path) -> str | None:
    """The run's name if the user set one. By default transformers names a run after its folder."""
    name = getattr(args, "run_name", None)
    return name if name and name not in (args.output_dir, str(folder)) else None


@dataclass(slots=True)
class TransformersControls:
    """The actions that a Hugging Face trainer supports. Every process has its own instance and does the same."""

    args: Any
    control: Any
    model: Any
    optimizer: Any
    scheduler: Any

    def stop(self) -> None:
        self.control.should_training_stop = True

    def save(self) -> None:
        self.control.should_save = True  # the trainer saves next; `on_save` reports the name

    def scale_rate(self, factor: float) -> tuple[float, float]:
        return scale_learning_rate(self.optimizer, self.scheduler, factor)

    def revert(self, checkpoint: Path) -> None:
        why = obstacle_to_reloading(self.args, self.model, checkpoint)
        if not why:
            problems: list[Exception] = []
            with guarded(problems.append):
                reload(checkpoint, self.model, self.optimizer)
                return
            why = words_of(problems[0])
        advice = f"Continue with trainer.train(resume_from_checkpoint={str(checkpoint)!r})"
        with suppress(Declined):
            rate = learning_rate(self.optimizer) * REVERT_FACTOR
            advice = f"{advice} and VitalsCallback(resume_learning_rate={rate:.4g})"
        raise CannotGoBack(f"{why}. {advice}")


def obstacle_to_reloading(args: Any, model: Any, checkpoint: Path) -> str:
    """Why a checkpoint cannot be loaded into a running trainer, or "". Loading needs one process, one device, a plain
    model with all its weights in the checkpoint, and the optimizer's state.
    """
    if args.world_size > 1 or getattr(args, "n_gpu", 1) > 1:
        return "several processes or devices train the model"
    if getattr(args, "deepspeed", None) or getattr(args, "fsdp", None):
        return "the model is sharded"
    if any(os.environ.get(f"ACCELERATE_USE_{engine}", "").lower() in ("1", "true") for engine in ("DEEPSPEED", "FSDP")):
        return "the model is sharded"
    if hasattr(model, "peft_config"):
        return "the model has adapters"
    if getattr(model, "hf_quantizer", None) is not None or getattr(model, "is_quantized", False):
        return "the model is quantised"
    if not (checkpoint / OPTIMIZER).is_file():
        return f"{checkpoint.name} has no {OPTIMIZER}"
    try:
        saved = {name for file in weight_files(checkpoint) for name in names_in(file)}
    except (OSError, ValueError, KeyError) as error:
        return f"the weights of {checkpoint.name} cannot be read: {error}"
    own = model.state_dict()
    if saved - own.keys():
        return f"{checkpoint.name} holds other weights than the model has"
    stored = {own[name].data_ptr() for name in saved}
    if any(own[name].data_ptr() not in stored for name in own.keys() - saved):  # tied weights are saved once
        return f"{checkpoint.name} does not hold all of the model's weights"
    return ""


def weight_files(checkpoint: Path) -> list[Path]:
    """The files with a checkpoint's weights. Raises FileNotFoundError if there are none."""
    index = checkpoint / WEIGHTS_INDEX
    if index.is_file():
        return [checkpoint / name for name in sorted(set(read_json(index)["weight_map"].values()))]
    if not (checkpoint / WEIGHTS).is_file():
        raise FileNotFoundError(f"there is no {WEIGHTS}")
    return [checkpoint / WEIGHTS]


def names_in(file: Path) -> list[str]:
    """The names of the weights in a file, without loading the weights."""
    from safetensors import safe_open

    with safe_open(file, framework="pt") as weights:
        return list(weights.keys())


def reload(checkpoint: Path, model: Any, optimizer: Any) -> None:
    """Restore a checkpoint's weights and the optimizer's moments."""
    import torch
    from safetensors.torch import load_file

    # Read all files before changing anything.
    weights = {name: tensor for file in weight_files(checkpoint) for name, tensor in load_file(file).items()}
    moments = torch.load(checkpoint / OPTIMIZER, map_location="cpu", weights_only=True)
    with keeping_rates(optimizer):
        model.load_state_dict(weights, strict=False)  # tied weights are saved once
        optimizer.load_state_dict(moments)
