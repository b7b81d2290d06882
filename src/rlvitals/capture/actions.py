"""`rlvitals.Actions`: carries out what the doctor asks for, in any training loop, on all ranks alike.

    actions = rlvitals.Actions(run, optimizer, scheduler, save=save_checkpoint, load=load_checkpoint)
    ...
    if actions.carry_out():  # once a step
        break

What is asked for, and what follows from an answer, is decided in `health.actions`. Here are the collectives that make
every rank do the same, and the controls of a loop with a torch optimizer. torch is never imported: who uses it has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rlvitals.guard import Once, guarded, words_of
from rlvitals.health.actions import Controls, Declined, RequestOutcome, perform
from rlvitals.records import Request
from rlvitals.terminal import logger

T = TypeVar("T")

_GROUP_RATES = ("lr", "initial_lr", "max_lr", "min_lr")
"""What a group keeps for its scheduler: OneCycleLR and CyclicLR keep their limits there."""

_SCHEDULER_RATES = ("base_lrs", "max_lrs", "eta_min", "min_lrs", "min_lr", "max_lr", "_last_lr")
"""What schedulers keep on their own: rates, or lists of one for each group."""


class Asking(Protocol):
    """A run, or a Ray worker's end of one."""

    def request(self, *, everywhere: bool) -> Request | None: ...


class Actions:
    """Carries out the requests of one run and answers each. Nothing here raises into training.

    Example:
        ```python
        from types import SimpleNamespace

        import rlvitals

        optimizer = SimpleNamespace(param_groups=[{"lr": 0.03}])  # in a real loop: torch's
        with rlvitals.start("out/kto", actions="act", display="none") as run:
            actions = rlvitals.Actions(run, optimizer)
            for step in range(1, 101):
                run.log({"loss": 0.5 / step, "grad_norm": float("nan") if step > 20 else 1.0}, step=step)
                if actions.carry_out():  # the doctor asks for the end of the training
                    break
        print(run.last_step < 30)  # True
        ```
    """

    def __init__(
        self,
        run: Asking | None,
        optimizer: Any = None,
        scheduler: Any = None,
        *,
        save: Callable[[], object] | None = None,
        load: Callable[[Path], object] | None = None,
        controls: Controls | None = None,
    ) -> None:
        """Whatever is not given is declined, with that as the reason.

        Args:
            run: The recorder; None on ranks that have none.
            optimizer: Has torch's `param_groups`; its learning rates are lowered.
            scheduler: The learning rate's schedule, which is scaled with it.
            save: Writes `checkpoint-STEP` into the run's directory and returns its path.
            load: Gets a checkpoint's path and puts the weights and the optimizer's state back. The learning rate and
                the schedule in use stay, and the rate is halved.
            controls: Replaces the four above, for a trainer that is not a loop.
        """
        self.controls: Controls = controls or LoopControls(optimizer, scheduler, save, load)
        self._run = run
        self._is_on: bool | None = None
        self._saving: Request | None = None
        self._warn_once = Once()

    def carry_out(self) -> bool:
        """Do what the doctor asks for, if it asks for anything; True: end the training now. Every rank of a
        torch.distributed job calls it at the same place; rank 0 decides and answers.
        """
        with guarded(lambda error: self._warn_once(f"requests are not carried out: {words_of(error)}")):
            return self._carry_out()
        return False

    def saved(self, name: str) -> None:
        """The trainer has saved a checkpoint, by itself or because its controls were asked to."""
        request, self._saving = self._saving, None
        if request is not None:
            request.done(f"saved {name}")

    def _carry_out(self) -> bool:
        if self._is_on is None:  # agreed once, so that a run that only advises costs no collective
            settings = getattr(self._run, "settings", None)
            self._is_on = shared(self._run is not None and getattr(settings, "actions", "act") != "advise")
        if not self._is_on:
            return False
        if self._saving is not None:
            self._saving.declined("the trainer has not saved")
            self._saving = None
        request: Request | None = None
        with guarded(lambda error: self._warn_once(f"the doctor cannot be asked for requests: {words_of(error)}")):
            request = None if self._run is None or _rank() else self._run.request(everywhere=False)
        request = shared_request(request)
        if request is None or request.action in ("none", "warn"):
            return False
        outcome = perform(request, self.controls)
        if request.action == "revert":
            outcome = _agreed(outcome)
        if outcome.must_stop:
            with guarded(lambda error: self._warn_once(f"the trainer could not be stopped: {words_of(error)}")):
                self.controls.stop()
        if outcome.answer is None:
            self._saving = request
        elif request.answer is not None:  # on the rank that records
            logger.warning("%s: %s", request.reason, outcome.text)
            request.answer(request, outcome.answer, outcome.text)
        return outcome.must_stop


@dataclass(frozen=True, slots=True)
class LoopControls:
    """The controls of your own loop. The loop ends itself when `Actions.carry_out` returns True."""

    optimizer: Any
    scheduler: Any
    saves: Callable[[], object] | None
    loads: Callable[[Path], object] | None

    def stop(self) -> None:
        pass

    def save(self) -> str:
        if self.saves is None:
            raise Declined("rlvitals.Actions was given no `save`")
        saved = self.saves()
        return "a checkpoint" if saved is None else Path(str(saved)).name

    def scale_rate(self, factor: float) -> tuple[float, float]:
        if self.optimizer is None:
            raise Declined("rlvitals.Actions was given no `optimizer`")
        return scale_learning_rate(self.optimizer, self.scheduler, factor)

    def revert(self, checkpoint: Path) -> None:
        if self.loads is None:
            raise Declined("rlvitals.Actions was given no `load`")
        with keeping_rates(self.optimizer, self.scheduler):
            self.loads(checkpoint)


@contextmanager
def keeping_rates(optimizer: Any, scheduler: Any = None) -> Iterator[None]:
    """Whatever a checkpoint brings back in this block, the schedule and the optimizer's settings stay as they are: its
    learning rate is from before any cut.
    """
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        for group in getattr(optimizer, "param_groups", ())
    ]
    schedule = scheduler.state_dict() if hasattr(scheduler, "state_dict") else None
    yield
    for group, kept in zip(getattr(optimizer, "param_groups", ()), groups, strict=True):
        group.update(kept)
    if schedule is not None:
        scheduler.load_state_dict(schedule)


def learning_rate(optimizer: Any) -> float:
    """The first group's present rate. Declined where it has none (Adafactor's relative steps)."""
    groups = getattr(optimizer, "param_groups", None)
    if not groups:
        raise Declined("the optimizer has no parameter groups to set a learning rate in")
    rate = groups[0].get("lr")
    if rate is None:
        raise Declined("the optimizer chooses its own learning rate")
    return float(rate)


def scale_learning_rate(optimizer: Any, scheduler: Any, factor: float) -> tuple[float, float]:
    """Multiply the rate now and in what the scheduler will set; returns the first group's before and after.

    Most schedulers multiply base rates by a shape (every schedule of transformers is a LambdaLR), some continue from
    the group's present rate, and some keep several of each. Their state is part of a checkpoint, so that a run resumed
    from a later checkpoint keeps the change.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    >>> scale_learning_rate(optimizer, scheduler, 0.5)
    (1.0, 0.5)
    >>> optimizer.step(); scheduler.step(); scheduler.get_last_lr()
    [0.5]
    """
    before = learning_rate(optimizer)
    _scale(scheduler, factor)  # first: it may refuse
    for group in optimizer.param_groups:
        for key in _GROUP_RATES:
            if group.get(key) is not None:
                group[key] = _times(group[key], factor)
    return before, learning_rate(optimizer)


def _scale(scheduler: Any, factor: float) -> None:
    scheduler = getattr(scheduler, "scheduler", None) or scheduler  # accelerate wraps it
    if scheduler is None:
        return
    if not callable(getattr(scheduler, "state_dict", None)):
        raise Declined(
            f"a {type(scheduler).__name__} does not expose the rates that it computes the learning rate from"
        )
    for part in getattr(scheduler, "_schedulers", None) or ():  # SequentialLR, ChainedScheduler
        _scale(part, factor)
    for key in _SCHEDULER_RATES:
        kept = getattr(scheduler, key, None)
        if isinstance(kept, list | tuple):
            setattr(scheduler, key, [_times(rate, factor) for rate in kept])
        elif isinstance(kept, float | int) and not isinstance(kept, bool):
            setattr(scheduler, key, kept * factor)


def _times(rate: Any, factor: float) -> Any:
    """A rate that is a tensor is read where it is by a compiled or fused optimizer: it is changed in place."""
    return rate.mul_(factor) if callable(getattr(rate, "mul_", None)) else rate * factor


def shared(held: T) -> T:
    """Rank 0's object on every rank. Every rank of a torch.distributed job calls it at the same place."""
    distributed = _distributed()
    if distributed is None:
        return held
    box: list[Any] = [held]
    distributed.broadcast_object_list(box, src=0)
    found: T = box[0]
    return found


def shared_request(request: Request | None) -> Request | None:
    """Rank 0's request on every rank; the means to answer it stay on rank 0."""
    found = shared(None if request is None or _rank() else replace(request, answer=None))
    return found if _rank() else request


def _agreed(outcome: RequestOutcome) -> RequestOutcome:
    """A revert that failed on one rank has failed on all."""
    distributed = _distributed()
    if distributed is None:
        return outcome
    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, tuple(outcome))
    outcomes = [RequestOutcome(*each) for each in gathered]
    if len({each.answer for each in outcomes}) == 1:
        return outcomes[0]
    rank, failed = next((rank, each) for rank, each in enumerate(outcomes) if each.answer != "done")
    text = failed.text if failed.must_stop else f"training stops: rank {rank} did not revert: {failed.text}"
    return RequestOutcome("declined", text, must_stop=True)


def _rank() -> int:
    distributed = _distributed()
    return 0 if distributed is None else int(distributed.get_rank())


def _distributed() -> Any:
    """torch.distributed where several ranks use it; else None."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed if distributed.get_world_size() > 1 else None
