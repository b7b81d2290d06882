"""What the trainers with their own loop share: the accelerator, the run, the optimizer, checkpoints, requests.

A trainer inherits from `Loop`, calls `prepare` with its model, and says in three methods what its checkpoints hold.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch

import rlvitals
from rlvitals.capture.run import Run
from rlvitals.capture.start import refuse_existing
from rlvitals.compute import merge
from rlvitals.errors import RunExists
from rlvitals.store.layout import RunDir, kept_folder
from rlvitals.terminal import put
from rlvitals.train import checkpoint, models, sharded
from rlvitals.train.recipe import Outcome
from rlvitals.train.settings import WAYS_OUT, LoopSettings

S = TypeVar("S", bound=LoopSettings)
T = TypeVar("T")


def open_accelerator(settings: LoopSettings, *, is_bf16: bool | None = None) -> Any:
    """The accelerator that the launcher and the settings ask for, with every random state set from the seed."""
    from accelerate.utils import set_seed

    made = sharded.accelerator(is_bf16=models.wants_bf16(settings.bf16) if is_bf16 is None else is_bf16)
    set_seed(settings.seed)
    return made


def open_run(settings: LoopSettings, origin: Path | None, *, config: dict[str, Any] | None = None, **given: Any) -> Run:
    """Start recording, or continue from the checkpoint `origin`. `given` are further arguments of `rlvitals.start`."""
    try:
        return rlvitals.start(
            settings.output_dir,
            config={**asdict(settings), **(config or {})},
            total_steps=settings.max_steps,
            resume=(origin or True) if settings.resume_from else False,
            **settings.recording,
            **given,
        )
    except RunExists:
        refuse_existing(RunDir(Path(settings.output_dir)), WAYS_OUT)  # in the words of the command line
        raise


class Loop(Generic[S]):
    """One training: the model, the optimizer, and the step it has reached."""

    model: Any
    """As accelerate has wrapped it."""
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
        self._waiting: list[dict[str, Any]] = []  # rows between two that are logged

    def prepare(self, model: Any, groups: list[dict[str, Any]], share: Callable[[int], float]) -> None:
        """Make the optimizer of these parameter groups (`params`, `lr`) and the scheduler; `share` is that of the
        learning rate by step.
        """
        optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)

    @property
    def inner(self) -> Any:
        """The model without what accelerate puts around it."""
        return self.accelerator.unwrap_model(self.model)

    @property
    def language_model(self) -> Any:
        """What a checkpoint holds as its model."""
        return self.inner

    # What a trainer's checkpoints hold besides.

    def state(self) -> dict[str, Any]:
        """The trainer's own part of a checkpoint."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""

    def restore_weights(self, state: dict[str, Any]) -> None:
        """Put weights back that are in `state` and not in the language model."""

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
                extra=self.state(),
                keep_last=self.settings.keep_last,
            )

    def resume(self, origin: Path | None) -> None:
        """Go on from a checkpoint, or begin. Later checkpoints and what a killed save left are removed."""
        if origin is not None:
            kept = checkpoint.load(
                origin, model=self.language_model, optimizer=self.optimizer, scheduler=self.scheduler
            )
            self.restore_weights(kept)
            self.restore(kept)
            self.step = int(kept["step"])
        if self.is_main:
            checkpoint.tidy(self.folder, after=self.step)

    def revert(self, place: Path) -> None:
        """Put the weights of an earlier checkpoint back and train on from there."""
        self.restore_weights(checkpoint.go_back(place, model=self.language_model, optimizer=self.optimizer))

    @cached_property
    def _actions(self) -> rlvitals.Actions:
        return rlvitals.Actions(self.run, self.optimizer, self.scheduler, save=self.save, load=self.revert)

    def is_asked_to_stop(self) -> bool:
        """Carry out what the doctor asks for; True: stop now. Asked before a save, which removes old checkpoints."""
        return self._actions.carry_out()

    # Around the steps.

    def is_due(self, every: int) -> bool:
        """Whether something that is done every so many steps is done in this one; never where that is 0."""
        return every > 0 and self.step % every == 0

    @property
    def is_last(self) -> bool:
        return self.step == self.settings.max_steps

    def record(self, row: dict[str, Any]) -> None:
        """Log the row of all ranks, merged with those since the last one that was due."""
        self._waiting.append(row)
        if self.is_due(self.settings.logging_steps) or self.is_last:
            if self.is_main:
                self.run.log(merge(self._waiting), step=self.step)
            self._waiting = []

    def gather(self, things: list[T]) -> list[T]:
        """The things of all ranks."""
        if self.ranks == 1:
            return things
        from accelerate.utils import gather_object

        gathered: list[T] = gather_object(things)
        return gathered

    def say(self, text: str) -> None:
        if not self.is_quiet:
            put(text, sys.stderr)

    def end(self, status: Literal["finished", "stopped"], verdict: str) -> Outcome:
        """Write `final_model` and say how it went."""
        checkpoint.save_model(self.folder / "final_model", self.language_model, self.tokenizer)
        return Outcome(str(self.folder), self.step, status, verdict)
