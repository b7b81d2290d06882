"""The base of trainers with their own loop: the accelerator, the run, the optimizer, checkpoints, requests.

A trainer inherits from `Loop`, calls `prepare` with its model, and defines its part of checkpoints in three methods.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

import rlvitals
from rlvitals.capture.run import Run
from rlvitals.compute import merge
from rlvitals.store.layout import kept_folder
from rlvitals.terminal import put
from rlvitals.train import checkpoint, models, sharded
from rlvitals.train.recipe import TrainingOutcome
from rlvitals.train.schedule import adamw
from rlvitals.train.seeds import seeded
from rlvitals.train.settings import LoopSettings
from rlvitals.values import Derived, Value

S = TypeVar("S", bound=LoopSettings)
T = TypeVar("T")


def open_accelerator(settings: LoopSettings, *, is_bf16: bool | None = None) -> Any:
    """The accelerator for the launcher and the settings. Sets every random state from the seed."""
    from accelerate.utils import set_seed

    made = sharded.accelerator(is_bf16=models.wants_bf16(settings.bf16) if is_bf16 is None else is_bf16)
    set_seed(settings.seed)
    return made


def open_run(settings: LoopSettings, origin: Path | None, *, config: dict[str, Any] | None = None, **given: Any) -> Run:
    """Start recording, or continue from the checkpoint `origin`. `given` are further arguments of `rlvitals.start`."""
    return rlvitals.start(
        settings.output_dir,
        config={**asdict(settings), **(config or {})},
        total_steps=settings.max_steps,
        resume=(origin or True) if settings.resume_from else False,
        **settings.recording,
        **given,
    )


class MergedRow:
    """The values of the steps since the last logged row, merged. Checkpoints hold them, so that a resumed run logs the
    same rows as an uninterrupted one.
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        """Continue from `state()`, or start empty."""
        state = state or {}
        self._values: dict[str, Any] = {name: Value.from_list(stored) for name, stored in state.get("row", {}).items()}
        self._derived = {name: tuple(map(Value.from_list, parts)) for name, parts in state.get("derived", {}).items()}
        """Parts of derived numbers from a checkpoint. It has no formula, so they wait for a row that has one."""

    def add(self, row: Mapping[str, Any]) -> None:
        known = {
            name: Derived(self._derived.pop(name), value.formula)
            for name, value in row.items()
            if isinstance(value, Derived) and name in self._derived
        }
        self._values = merge([self._values, known, row])

    def take(self) -> dict[str, Any]:
        """The merged row. The next one starts empty."""
        row = self._values
        self._values, self._derived = {}, {}
        return row

    def state(self) -> dict[str, Any]:
        derived = {name: value.parts for name, value in self._values.items() if isinstance(value, Derived)}
        return {
            "row": {name: value.to_list() for name, value in self._values.items() if name not in derived},
            "derived": {
                name: [part.to_list() for part in parts] for name, parts in {**self._derived, **derived}.items()
            },
        }


class Loop(Generic[S]):
    """One training: the model, the optimizer, and the step it has reached."""

    model: Any
    """The model as wrapped by accelerate."""
    optimizer: Any
    scheduler: Any
    tokenizer: Any

    def __init__(self, settings: S, run: Run, accelerator: Any) -> None:
        self.settings, self.run, self.accelerator = settings, run, accelerator
        self.rank, self.ranks = accelerator.process_index, accelerator.num_processes
        self.is_main: bool = accelerator.is_main_process
        self.is_quiet = settings.is_quiet or not self.is_main
        self.folder = kept_folder(settings.output_dir)
        self.step = 0
        self._pending = MergedRow()

    def prepare(self, model: Any, groups: list[dict[str, Any]], share: Callable[[int], float]) -> None:
        """Create the optimizer of these parameter groups (`params`, `lr`) and the scheduler. `share` gives the share of
        the learning rate at each step.
        """
        optimizer, self.scheduler = adamw(groups, share)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)

    @property
    def inner(self) -> Any:
        """The model without accelerate's wrapper."""
        return self.accelerator.unwrap_model(self.model)

    @property
    def language_model(self) -> Any:
        """The model that is saved in checkpoints."""
        return self.inner

    # The trainer's own part of checkpoints.

    def state(self) -> dict[str, Any]:
        """The trainer's own part of a checkpoint."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""

    def restore_weights(self, state: dict[str, Any]) -> None:
        """Restore weights that are in `state` and not in the language model."""

    # Checkpoints and requests; every rank calls these.

    def save(self) -> Path:
        """Write checkpoint-STEP."""
        with self.run.phase("do_checkpoint"):
            return checkpoint.save(
                self.folder,
                self.step,
                model=self.language_model,
                tokenizer=self.tokenizer,
                optimizer=self.optimizer,
                scheduler=self.scheduler,
                extra={**self.state(), "pending": self._pending.state()},
                keep_last=self.settings.keep_last,
            )

    def resume(self, origin: Path | None) -> None:
        """Continue from a checkpoint, or start. Removes later checkpoints and the remains of a killed save."""
        if origin is not None:
            kept = checkpoint.load(
                origin, model=self.language_model, optimizer=self.optimizer, scheduler=self.scheduler
            )
            self.restore_weights(kept)
            self.restore(kept)
            self._pending = MergedRow(kept.get("pending") or kept.get("book"))  # `book`: RLAIF's older checkpoints
            self.step = int(kept["step"])
        if self.is_main:
            checkpoint.tidy(self.folder, after=self.step)

    def revert(self, place: Path) -> None:
        """Restore the weights of an earlier checkpoint and continue training from there."""
        self.restore_weights(checkpoint.revert(place, model=self.language_model, optimizer=self.optimizer))

    @cached_property
    def _actions(self) -> rlvitals.Actions:
        return rlvitals.Actions(self.run, self.optimizer, self.scheduler, save=self.save, load=self.revert)

    def is_asked_to_stop(self) -> bool:
        """Carry out the doctor's request; True means stop. Call it before a save, which removes old checkpoints."""
        return self._actions.carry_out()

    # Updates; every rank makes the same number of them.

    def minibatches(self, rows: int, size: int, epoch: int) -> tuple[Tensor, ...]:
        """The rows of the step's batch in random order, `size` at a time."""
        shuffled = seeded("cpu", self.settings.seed, self.step, self.rank, "minibatches", epoch)
        return torch.split(torch.randperm(rows, generator=shuffled), size)

    def update(self, parts: Sequence[T], loss_of: Callable[[T], Tensor]) -> list[Tensor]:
        """Make one optimizer step on the sum of the parts' losses. Returns the norm of each group's gradient."""
        for number, part in enumerate(parts, 1):
            # Ranks exchange their gradients once, with the last part.
            with nullcontext() if number == len(parts) else self.accelerator.no_sync(self.model):
                self.accelerator.backward(loss_of(part))
        with self.run.phase("model_update"):
            return sharded.update(self.optimizer, self.settings.max_grad_norm)

    # Helpers for steps.

    def is_due(self, every: int) -> bool:
        """Whether something with the period `every` is due at this step; never if it is 0."""
        return every > 0 and self.step % every == 0

    @property
    def is_last(self) -> bool:
        return self.step == self.settings.max_steps

    def record(self, row: dict[str, Any], further: Mapping[str, Any] | None = None, *, is_due: bool = False) -> None:
        """Log the row of all ranks if one is due, merged with the rows since the last logged one. `further` is logged
        with it as it is.
        """
        self._pending.add(row)
        if is_due or self.is_due(self.settings.logging_steps) or self.is_last:
            merged = {**self._pending.take(), **(further or {})}
            if self.is_main:
                self.run.log(merged, step=self.step)

    def gather(self, things: list[T]) -> list[T]:
        """Gather the items of all ranks."""
        from accelerate.utils import gather_object

        gathered: list[T] = gather_object(things)
        return gathered

    def say(self, text: str) -> None:
        if not self.is_quiet:
            put(text, sys.stderr)

    def end(self, status: Literal["finished", "stopped"], verdict: str) -> TrainingOutcome:
        """Write `final_model` and return the outcome."""
        checkpoint.save_model(self.folder / "final_model", self.language_model, self.tokenizer)
        return TrainingOutcome(str(self.folder), self.step, status, verdict)
