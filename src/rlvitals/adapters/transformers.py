"""The callback that records and watches every trainer of transformers and TRL.

    from rlvitals.adapters.transformers import VitalsCallback

    trainer = KTOTrainer(..., callbacks=[VitalsCallback()])              # the run is in the trainer's output_dir
    trainer = GRPOTrainer(..., callbacks=[VitalsCallback("out/grpo", actions="act", display="auto")])

It takes what `rlvitals.start` takes. The main process records; with `actions="act"` every process carries out what the
doctor asks for. Nothing here raises into training, except at its start.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlvitals.adapters.learning_rate import CannotCut, cut_learning_rate
from rlvitals.adapters.transformers_acting import Order, Reverts, carry_out, order_for, shared
from rlvitals.adapters.transformers_settings import (
    algorithm_of,
    event_of,
    is_of_the_summary,
    names_of,
    settings_of,
)
from rlvitals.capture.start import keep_given, start
from rlvitals.config import resolve
from rlvitals.errors import ConfigError, MissingDependency
from rlvitals.store.layout import kept_folder

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingDependency("VitalsCallback", package="transformers") from error

if TYPE_CHECKING:
    from rlvitals.capture.phases import Phase
    from rlvitals.capture.run import Run
    from rlvitals.records import Request, Status

logger = logging.getLogger("rlvitals")

NAME: Final = "rlvitals"
"""What `report_to` calls it, once it is registered."""

_EARLY_EVENTS = 1000
"""Evaluations before training that are kept for its start."""


def register(output_dir: str | os.PathLike[str] | None = None, **settings: Any) -> None:
    """Let `report_to="rlvitals"` add a callback with these settings to every trainer that is made from now on.

    The table of transformers' integrations is public and nothing else needs to know: the name is entered there.
    """
    integrations: Any = import_module("transformers.integrations")  # it exports names that its types do not tell of

    class Registered(VitalsCallback):
        """What a trainer makes without arguments."""

        def __init__(self) -> None:
            super().__init__(output_dir, **settings)

    VitalsCallback(output_dir, **settings)  # wrong settings are told here
    integrations.INTEGRATION_TO_CALLBACK[NAME] = Registered


def _safely(event: Callable[..., Any]) -> Callable[..., Any]:
    """An event that goes wrong is said once; training goes on."""

    @wraps(event)
    def guarded(self: VitalsCallback, *given: Any, **more: Any) -> Any:
        try:
            return event(self, *given, **more)
        except Exception as error:  # noqa: BLE001 - the promise: nothing of ours raises into training
            self.say_once(event.__name__, f"{event.__name__} failed: {type(error).__name__}: {error}")
            return None

    return guarded


class VitalsCallback(TrainerCallback):
    """Records one trainer's run and carries out the doctor's requests. One for each trainer."""

    def __init__(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        *,
        resume_learning_rate: float | None = None,
        resume: bool | int | str | None = None,
        overwrite: bool = False,
        config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        """`output_dir` is the trainer's own where it is not given; `settings` are those of `rlvitals.start`.

        `config` is recorded beside the trainer's arguments. `resume_learning_rate` is what a resumed training goes on
        with: transformers takes the rate from the checkpoint, whatever its arguments say. `resume` is for
        jobs that may be killed before their first checkpoint (True: take the directory over); a trainer that resumes
        needs nothing.
        """
        super().__init__()
        self.run: Run | None = None
        """The run, on the main process while it trains."""
        if config is not None and not isinstance(config, Mapping):
            raise ConfigError(f"config must be a mapping, recorded beside the trainer's own arguments, not {config!r}")
        self._settings = resolve(config, settings)  # what is wrong is an error here, on every process
        self._given = keep_given(settings)
        self._config = dict(config or {})
        self._folder = None if output_dir is None else kept_folder(output_dir)
        self._resume, self._overwrite, self._resume_rate = resume, overwrite, resume_learning_rate
        self._said: set[str] = set()
        self._phase: Phase | None = None
        self._measures_memory = True
        self._reverts = Reverts()
        self._early: list[tuple[dict[str, Any], int]] = []
        self._evaluated: tuple[int, dict[str, Any]] = (-1, {})
        self._started_with: dict[str, Any] | None = None
        self._begin()

    def _begin(self) -> None:
        """What is counted anew for every training."""
        self._tokens = 0.0
        self._saved = ""
        self._is_log_due = self._is_asking_due = False
        self._saving: Request | None = None

    # Start and end.

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any = None, train_dataloader: Any = None, **rest: Any
    ) -> None:
        """Open the run. What is wrong here raises: nothing was trained yet."""
        self._begin()
        self._tokens = float(state.num_input_tokens_seen or 0)
        self._measures_memory = bool(getattr(args, "skip_memory_metrics", True))  # else the peaks are the trainer's own
        if state.global_step > 0 and self._resume_rate is not None:
            self._set_rate(self._resume_rate, rest.get("optimizer"), rest.get("lr_scheduler"))
        if not state.is_world_process_zero:
            return
        is_second_try = self.run is not None and bool(getattr(args, "auto_find_batch_size", False))
        self.finish("failed" if is_second_try else "interrupted", "training was begun again without an end")
        folder = self._folder or Path(args.output_dir)
        given = {
            "output_dir": folder,
            "algorithm": algorithm_of(args),
            "framework": names_of(args),
            "total_steps": state.max_steps or None,
            "name": _name_of(args, folder),
            **self._given,
            "config": {**settings_of(args, model, train_dataloader), **self._config},
            "rank": 0,
        }
        resume = self._resumed_from(args, state)
        if resume is None:
            resume = 0 if is_second_try else self._resume
        is_new = resume is None or resume is False
        self.run = start(resume=resume, overwrite=self._overwrite and is_new, **given)
        self._started_with = given
        early, self._early = self._early, []
        for logs, step in early:
            self._record_evaluation(self.run, logs, step)

    def _resumed_from(self, args: Any, state: Any) -> bool | int | str | None:
        """Where the weights come from, for a trainer that resumes; None for one that does not."""
        if not state.global_step:
            return None
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        return str(folder) if folder.is_dir() else int(state.global_step)

    @_safely
    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self.finish()

    def finish(self, status: Status = "finished", error: BaseException | str | None = None) -> None:
        """Close the run, if one is open. A training that ends in an exception tells no callback: its run is closed when
        the process ends, or by this.
        """
        self._leave()
        run, self.run = self.run, None
        if run is not None:
            run.finish(status, error if status != "finished" else None)

    # Steps, and what happens between them.

    @_safely
    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._is_log_due = False
        self._enter("train_step")

    @_safely
    def on_substep_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._count_batch(args, state)

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> Any:
        self._end_step(args, state)
        self._is_log_due = bool(control.should_log)
        if self._is_asking_due and not self._is_log_due:
            self._ask(args, state, control, **rest)
        if not self._is_log_due:
            self._enter_what_follows(control)
        return control

    @_safely
    def _end_step(self, args: Any, state: Any) -> None:
        self._leave()
        self._count_batch(args, state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._is_log_due = bool(control.should_log)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> Any:
        """Record the event. Every process logs at the same steps, so here they learn what the doctor asks for."""
        logs = dict(logs or {})
        event = event_of(logs)
        self._record(event, logs, state)
        if event == "train" and self._is_log_due:
            self._is_log_due = False
            self._ask(args, state, control, **rest)
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
        if "eval_runtime" in (metrics or {}):  # of several data sets more may come before the checkpoint
            self._enter_what_follows(control)

    @_safely
    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **rest: Any) -> None:
        self._leave()

    @_safely
    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._leave()
        self._saved = f"checkpoint-{state.global_step}"
        asked, self._saving = self._saving, None
        if asked is not None:
            asked.done(f"saved {self._saved}")

    def _enter_what_follows(self, control: Any) -> None:
        """After a step, its log and its evaluation, in this order, a trainer evaluates and saves."""
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
        elif self.run is None:
            return
        elif event == "summary":
            self._record_summary(self.run, logs, step)
        else:
            self._record_step(self.run, logs, step)

    def _record_step(self, run: Run, logs: dict[str, Any], step: int) -> None:
        total = logs.get("num_tokens", logs.get("num_input_tokens_seen"))
        if isinstance(total, int | float):
            # The count of some trainers begins again at 0 after a resume.
            run.count(tokens=total - self._tokens if total >= self._tokens else total)
            self._tokens = float(total)
        run.log({**logs, **self._checkpoint()}, step=step)

    def _record_summary(self, run: Run, logs: dict[str, Any], step: int) -> None:
        """The last event is about the whole training: not a step of it, so it is kept with the evaluations."""
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
        else:  # trainer.evaluate() after trainer.train(): a short attempt of its own
            with start(resume=step, **self._started_with) as run:
                self._record_evaluation(run, logs, step)

    def _record_evaluation(self, run: Run, logs: dict[str, Any], step: int) -> None:
        """Several data sets are evaluated one by one, each with an event: one file holds them all."""
        earlier = self._evaluated[1] if self._evaluated[0] == step else {}
        self._evaluated = (step, earlier | logs)
        run.log_eval(logs, step=step, whole=self._evaluated[1])

    def _count_batch(self, args: Any, state: Any) -> None:
        if self.run is not None:
            size = state.train_batch_size or args.train_batch_size
            self.run.count(samples=size * max(args.world_size, 1))

    # Requests.

    def _ask(self, args: Any, state: Any, control: Any, *, model: Any = None, **rest: Any) -> None:
        """Carry out what the doctor asks for, on every process."""
        self._is_asking_due = False
        if self._settings.actions != "act":
            return
        request, order = self._decide(args, model) or (None, None)
        order = self._share(order)
        if order is None or order.action in ("none", "warn"):
            return
        optimizer, scheduler = rest.get("optimizer"), rest.get("lr_scheduler")
        is_done, said = carry_out(order, control, model=model, optimizer=optimizer, scheduler=scheduler)
        if request is not None:
            self._answer(request, order, is_done, said, int(state.global_step))

    @_safely
    def _decide(self, args: Any, model: Any) -> tuple[Request, Order] | None:
        request = self.run.request(everywhere=False) if self.run is not None else None
        if request is None:
            return None
        return request, order_for(request, args, model, self._reverts)

    @_safely
    def _share(self, order: Order | None) -> Order | None:
        return shared(order)

    @_safely
    def _answer(self, request: Request, order: Order, is_done: bool, said: str, step: int) -> None:
        if order.action == "checkpoint":
            self._saving = request  # answered when it is saved, which is next
            return
        logger.warning("step %d: %s: %s", step, request.reason, said)
        if not is_done:
            request.declined(said)
            return
        if order.action == "revert":
            self._reverts.note(request.finding.onset_step, step)
        request.done(said)

    @_safely
    def _set_rate(self, rate: float, optimizer: Any, scheduler: Any) -> None:
        """Go on with another learning rate than the checkpoint's, with the same schedule."""
        base = max(float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups)
        try:
            cut_learning_rate(optimizer, scheduler, rate / base)
        except (CannotCut, ZeroDivisionError) as problem:
            self.say_once("rate", f"the learning rate stays the checkpoint's: {problem}")

    def say_once(self, about: str, sentence: str) -> None:
        if about not in self._said:
            self._said.add(about)
            logger.warning("VitalsCallback: %s", sentence)


def _name_of(args: Any, folder: Path) -> str | None:
    """The run's name where its trainer was given one; by default transformers names a run after its folder."""
    name = getattr(args, "run_name", None)
    return name if name and name not in (args.output_dir, str(folder)) else None
