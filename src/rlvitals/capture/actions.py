"""`rlvitals.Actions`: carries out the monitor's requests in any training loop, in the same way on all ranks.

    actions = rlvitals.Actions(run, optimizer, scheduler, save=save_checkpoint, load=load_checkpoint)
    ...
    if actions.carry_out():  # once a step
        break

`health.actions` decides on requests and handles answers. This module has the collectives that make every rank do the
same, and the controls of a loop with a torch optimizer. It does not import torch; a loop that uses torch has done so.
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
from rlvitals.values import is_number

T = TypeVar("T")

_GROUP_RATES = ("lr", "initial_lr", "max_lr", "min_lr")
"""The rates in a parameter group. OneCycleLR and CyclicLR store their limits there."""

_SCHEDULER_RATES = ("base_lrs", "max_lrs", "eta_min", "min_lrs", "min_lr", "max_lr", "_last_lr")
"""The attributes in which schedulers store rates: a number, or a list with one per group."""


class Asking(Protocol):
    """A run, or a Ray worker's handle to one."""

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
                if actions.carry_out():  # True if training should stop
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
        """A request that needs an argument that was not given is declined; the answer names the argument.

        Args:
            run: The recorder; None on ranks without one.
            optimizer: An object with torch's `param_groups`, whose learning rates are lowered.
            scheduler: The learning rate scheduler; its rates are lowered as well.
            save: Writes `checkpoint-STEP` into the run's directory and returns its path.
            load: Takes the path of a checkpoint and restores the weights and the optimizer's state. The current
                learning rate and schedule are kept, and the rate is halved.
            controls: Replaces the four arguments above, for a trainer that is not a loop.
        """
        self.controls: Controls = controls or LoopControls(optimizer, scheduler, save, load)
        self._run = run
        self._is_on: bool | None = None
        self._saving: Request | None = None
        self._warn_once = Once()

    def carry_out(self) -> bool:
        """Carry out the open request, if there is one. Returns True if the training must end now. Every rank of a
        torch.distributed job calls this at the same place; rank 0 decides and answers.
        """
        with guarded(lambda error: self._warn_once(f"requests are not carried out: {words_of(error)}")):
            return self._carry_out()
        return False

    def saved(self, name: str) -> None:
        """Answer an open save request. Call this whenever the trainer has saved a checkpoint."""
        request, self._saving = self._saving, None
        if request is not None:
            request.done(f"saved {name}")

    def _carry_out(self) -> bool:
        if self._is_on is None:  # agreed once: a run with actions="advise" needs no collective per step
            settings = getattr(self._run, "settings", None)
            self._is_on = shared(self._run is not None and getattr(settings, "actions", "act") != "advise")
        if not self._is_on:
            return False
        if self._saving is not None:
            self._saving.declined("the trainer has not saved")
            self._saving = None
        request: Request | None = None
        with guarded(lambda error: self._warn_once(f"the doctor's requests cannot be read: {words_of(error)}")):
            request = None if self._run is None or process_rank() else self._run.request(everywhere=False)
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
    """The controls of a user's loop. The loop must end when `Actions.carry_out` returns True."""

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
    """Keep the schedule and the optimizer's settings while a checkpoint is loaded in this block. The checkpoint may
    hold a learning rate from before it was lowered.
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
    """The first group's current rate. Raises Declined if it has none, as with Adafactor's relative steps."""
    groups = getattr(optimizer, "param_groups", None)
    if not groups:
        raise Declined("the optimizer has no parameter groups to set a learning rate in")
    rate = groups[0].get("lr")
    if rate is None:
        raise Declined("the optimizer chooses its own learning rate")
    return float(rate)


def scale_learning_rate(optimizer: Any, scheduler: Any, factor: float) -> tuple[float, float]:
    """Multiply the current rate and the rates that the scheduler uses; returns the first group's rate before and after.

    Most schedulers multiply base rates by a factor (every schedule of transformers is a LambdaLR), some continue from
    the group's current rate, and some store several rates. Their state is part of a checkpoint, so a run that resumes
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
    _scale(scheduler, factor)  # first, because it may raise Declined
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
        elif is_number(kept):
            setattr(scheduler, key, kept * factor)


def _times(rate: Any, factor: float) -> Any:
    """The scaled rate. A tensor is changed in place, because a compiled or fused optimizer reads that tensor."""
    return rate.mul_(factor) if callable(getattr(rate, "mul_", None)) else rate * factor


def shared(held: T) -> T:
    """Rank 0's object on every rank. Every rank of a torch.distributed job calls this at the same place."""
    distributed = _distributed()
    if distributed is None:
        return held
    box: list[Any] = [held]
    distributed.broadcast_object_list(box, src=0)
    found: T = box[0]
    return found


def shared_request(request: Request | None) -> Request | None:
    """Rank 0's request on every rank; only rank 0 can answer it."""
    found = shared(None if request is None or process_rank() else replace(request, answer=None))
    return found if process_rank() else request


def _agreed(outcome: RequestOutcome) -> RequestOutcome:
    """The common outcome of a revert: if it failed on one rank, it failed on all."""
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


def process_rank() -> int:
    """The rank of this process among those of torch.distributed; 0 without them."""
    distributed = _distributed()
    return 0 if distributed is None else int(distributed.get_rank())


def _distributed() -> Any:
    """torch.distributed if several ranks use it, else None."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed if distributed.get_world_size() > 1 else None
