"""PPO from human preferences: `rlvitals train ppo`. Read it from top to bottom.

A language model is warmed up on demonstrations, a reward model learns from pairs which answers are preferred, and PPO
(Schulman et al. 2017, as used by Ziegler et al. 2019 and Ouyang et al. 2022) trains the first to please the second
without leaving the reference far behind. What the reward model stands for, the true score on held-out prompts, is
measured beside it and never trained on.

Everything random is drawn from the seed and the step, so that a training that was killed and resumed goes on as if
nothing had happened. Formulas are `rlvitals.compute`'s.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import rlvitals
from rlvitals.adapters.torch_distributed import reduce
from rlvitals.capture.run import Run
from rlvitals.compute import merge
from rlvitals.errors import ConfigError
from rlvitals.store.layout import kept_folder
from rlvitals.train import checkpoint, losses, models, ppo_data, ppo_rollout, sharded
from rlvitals.train.actor_critic import ActorCritic, parameter_groups
from rlvitals.train.ppo_report import Epochs, computable, evaluate
from rlvitals.train.ppo_rollout import Rollout, batch_places, collect
from rlvitals.train.ppo_settings import Settings, check
from rlvitals.train.ppo_stages import Stages
from rlvitals.train.ppo_update import Updates
from rlvitals.train.recipe import Outcome

PATIENCE = 5
"""Steps in a row of which nothing could be scored; then the reward is broken, and not the answers."""


def train(settings: Settings) -> Outcome:
    """Train, and say how it went. What cannot work is an error before anything is written."""
    check(settings)
    data = (
        ppo_data.made(settings.seed, families=settings.families, held_out=settings.held_out)
        if settings.dataset is None
        else ppo_data.read(settings.dataset, settings.preferences, held_out=settings.held_out)
    )
    origin = checkpoint.origin(settings.output_dir, settings.resume_from)
    from accelerate.utils import set_seed

    has_bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    accelerator = sharded.accelerator(is_bf16=has_bf16 if settings.bf16 is None else settings.bf16)
    set_seed(settings.seed)
    run = rlvitals.start(
        settings.output_dir,
        algorithm="ppo",
        framework="roll",
        config=asdict(settings),
        total_steps=settings.max_steps,
        resume=(origin or True) if settings.resume_from else False,
        track_with=list(settings.track_with),
        rules=settings.rules,
        actions=settings.actions,
        display=settings.display,
        display_every=settings.steps_per_epoch,
    )
    with run, models.quietly():
        trainer = Trainer(settings, data, run, accelerator, is_anew=not settings.resume_from)
        try:
            return trainer.learn(origin)
        finally:
            trainer.grader.close()


class Trainer:
    """One training: the models, the optimizer, and where it stands."""

    def __init__(self, settings: Settings, data: ppo_data.Data, run: Run, accelerator: Any, *, is_anew: bool) -> None:
        self.settings, self.data, self.run, self.accelerator = settings, data, run, accelerator
        self.folder = kept_folder(settings.output_dir)
        self.is_quiet = settings.display in ("none", "json") or not accelerator.is_main_process
        self.text_scores = computable(settings.text_scores) if accelerator.is_main_process else []
        self.grader = ppo_data.Grader()
        self.stages = Stages(settings, data, self.grader, run, accelerator, is_anew=is_anew)
        start = self.stages.start()
        self.texts, self.tokenizer, self.pad_id = self.stages.texts, start.tokenizer, self.stages.texts.pad_id
        self.prompts = [self.texts.prompt(example.prompt) for example in data.examples]
        self.held_out_prompts = [self.texts.prompt(example.prompt) for example in data.held_out]
        self.reward = self.stages.reward()
        self.reference = sharded.to_read(models.load(str(self.folder / "warm_start"), None).model, accelerator)
        if settings.gradient_checkpointing:
            start.model.gradient_checkpointing_enable()
        inner = ActorCritic(start.model, is_separate=settings.critic == "separate")
        rate = settings.learning_rate or _learning_rate(models.parameters(start.model))
        value_rate = settings.value_learning_rate or rate * (10 if settings.critic == "shared" else 1)
        optimizer = torch.optim.AdamW(parameter_groups(inner, rate, value_rate), betas=(0.9, 0.95), weight_decay=0.0)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self._share_of_rate)
        self.model, self.optimizer = accelerator.prepare(inner, optimizer)
        self.updates = Updates(settings, run, accelerator, model=self.model, optimizer=self.optimizer)
        self.sampling = self.texts.sampling(settings)
        self.step = 0
        self.silent = 0
        self.kl_coef = settings.kl_coef
        self.epochs = Epochs()
        self.first_score = self.last_score = float("nan")

    @property
    def inner(self) -> ActorCritic:
        """The model without what accelerate puts around it."""
        found: ActorCritic = self.accelerator.unwrap_model(self.model)
        return found

    def learn(self, origin: Path | None) -> Outcome:
        """PPO from the beginning, or from a checkpoint."""
        settings, why_stopped = self.settings, ""
        if origin is None:
            self._begin()
        else:
            self._go_on(origin)
        tracker = rlvitals.MetricsTracker(
            self.folder / "metrics",
            total_epochs=-(-settings.max_steps // settings.steps_per_epoch),
            early_stopping=settings.early_stopping or False,
            plots=settings.plots,
            display=settings.display,
            rank=self.accelerator.process_index,
        )
        actions = rlvitals.Actions(self.run, self.optimizer, self.scheduler, save=self.save, load=self._revert)
        waiting: list[dict[str, Any]] = []  # rows between two that are logged
        while self.step < settings.max_steps and not why_stopped:
            epoch = self.step // settings.steps_per_epoch + 1
            last = min(epoch * settings.steps_per_epoch, settings.max_steps)
            with self._bar(range(self.step + 1, last + 1), epoch) as bar:
                for self.step in bar:
                    row = self._one_step()
                    waiting.append(row)
                    if self.step % settings.logging_steps == 0 or self.step == settings.max_steps:
                        if self.accelerator.is_main_process:
                            self.run.log(merge(waiting), step=self.step)
                        waiting = []
                    self._look(tracker, epoch, is_last=self.step == last)
                    must_stop = actions.carry_out()  # before a save removes the checkpoint that it may go back to
                    if self.step % settings.save_steps == 0 or self.step == settings.max_steps:
                        self.save()
                    if must_stop:
                        why_stopped = "the doctor asked for it"
                    elif self._everywhere(settings.early_stopping > 0 and tracker.should_stop):
                        why_stopped = f"the reward has not risen for {settings.early_stopping} epochs"
                    if why_stopped:
                        break
        return self._end(tracker, why_stopped)

    def save(self) -> Path:
        """Write checkpoint-STEP."""
        with self.run.phase("do_checkpoint"):
            return checkpoint.save(
                self.folder,
                self.step,
                model=self.inner.policy,
                tokenizer=self.tokenizer,
                optimizer=self.optimizer,
                scheduler=self.scheduler,
                extra={
                    "critic": self.inner.critic_state(),
                    "kl_coef": self.kl_coef,
                    "epoch": self.epochs.sums,
                    "first_score": self.first_score,
                    "last_score": self.last_score,
                },
                keep_last=self.settings.keep_last,
            )

    # One step.

    def _one_step(self) -> dict[str, Any]:
        """Sample a batch, learn from it; returns the row of all ranks."""
        settings, began = self.settings, time.perf_counter()
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        places = batch_places(self.step, settings.batch_size * world, len(self.prompts), settings.seed)
        batch = collect(self, self.prompts, places[rank::world], self.step)
        with self.run.phase("train_step") as phase:
            phase.tokens(int(batch.ids_mask.sum()) * settings.ppo_epochs)
            row = self._learn_from(batch)
        row |= ppo_rollout.stats(batch, settings)
        row["critic/kl_coef"] = self.kl_coef
        row["tokens"] = rlvitals.values.total([float(batch.ids_mask.sum())])
        reduced: dict[str, Any] = reduce(row)
        self.run.count(tokens=reduced.pop("tokens").number, samples=settings.batch_size * world)
        if settings.kl_target is not None and "objective/kl" in reduced:
            self.kl_coef = losses.adapted_kl_coef(
                self.kl_coef, reduced["objective/kl"].number, target=settings.kl_target,
                answers=settings.batch_size * world, horizon=settings.kl_horizon,
            )  # fmt: skip
        rate = float(self.optimizer.param_groups[0]["lr"])
        self.epochs.add(reduced, settings.value_coef, seconds=time.perf_counter() - began, learning_rate=rate)
        self.scheduler.step()
        return reduced

    def _learn_from(self, batch: Rollout) -> dict[str, Any]:
        """Update the policy with the answers that have a score. Where there is none, on no rank, it stays."""
        scored = int(self.accelerator.reduce(batch.is_scored.sum(), "sum"))
        self.silent = 0 if scored else self.silent + 1
        if self.silent >= PATIENCE:
            raise ConfigError(
                f"the reward {self.settings.reward!r} has scored nothing for {self.silent} steps; the first failure is "
                f"in the warnings. The last checkpoint is {checkpoint.newest(self.folder)}"
            )
        if not scored:
            return {}
        row = self.updates.improve(batch, self.step)
        distances = ppo_rollout.kl_of_answers(batch)
        return row | ({"objective/kl": rlvitals.values.mean(distances.tolist())} if len(distances) else {})

    def _share_of_rate(self, step: int) -> float:
        """What of the learning rate a step (from 0) has."""
        settings = self.settings
        rise = min(1.0, (step + 1) / (settings.warmup_steps + 1))
        left = max(0.0, 1.0 - step / settings.max_steps)
        return rise * (0.1 + 0.9 * left) if settings.lr_schedule == "linear" else rise

    # Around the steps.

    def _begin(self) -> None:
        """Say what the earlier stages came to, and how good the policy is before PPO."""
        checkpoint.tidy(self.folder, after=0)
        if self.accelerator.is_main_process and self.stages.told:
            self.run.log(self.stages.told, step=0)
        found, _ = evaluate(self, self.grader, 0, with_texts=False)
        self.first_score = self.last_score = found.score

    def _go_on(self, origin: Path) -> None:
        """Take up a checkpoint."""
        kept = checkpoint.load(origin, model=self.inner.policy, optimizer=self.optimizer, scheduler=self.scheduler)
        self.inner.load_critic_state(kept["critic"])
        self.step, self.kl_coef, self.epochs = kept["step"], kept["kl_coef"], Epochs(kept["epoch"])
        self.first_score, self.last_score = kept["first_score"], kept["last_score"]
        if self.accelerator.is_main_process:
            checkpoint.tidy(self.folder, after=self.step)

    def _revert(self, place: Path) -> None:
        """Put the weights of an earlier checkpoint back and train on from there."""
        kept = checkpoint.go_back(place, model=self.inner.policy, optimizer=self.optimizer)
        self.inner.load_critic_state(kept["critic"])

    def _look(self, tracker: rlvitals.MetricsTracker, epoch: int, *, is_last: bool) -> None:
        """Evaluate where it is time to; close the epoch with its last step."""
        every = self.settings.eval_steps
        if is_last or (every and self.step % every == 0):
            found, scores = evaluate(self, self.grader, self.step, with_texts=is_last)
            self.last_score = found.score
            if is_last:
                self.epochs.tell(tracker, epoch, {**scores, **_known(true_score=found.score)})

    def _end(self, tracker: rlvitals.MetricsTracker, why_stopped: str) -> Outcome:
        checkpoint.save_model(self.folder / "final_model", self.inner.policy, self.tokenizer)
        if self.accelerator.is_main_process:
            tracker.close()
        how = f"stopped at step {self.step} of {self.settings.max_steps}, {why_stopped}" if why_stopped else "finished"
        verdict = (
            f"PPO {how}: the true score on held-out prompts went from {self.first_score:.3f} to {self.last_score:.3f} "
            f"in {self.step} steps; see {self.folder}"
        )
        return Outcome(str(self.folder), self.step, "stopped" if why_stopped else "finished", verdict)

    def _everywhere(self, wish: bool) -> bool:
        """The main process's word: the ranks must stop at the same step."""
        if self.accelerator.num_processes == 1:
            return wish
        word = torch.tensor(float(wish and self.accelerator.is_main_process), device=self.accelerator.device)
        return bool(self.accelerator.reduce(word, "sum") > 0)

    def _bar(self, steps: range, epoch: int | None = None) -> Any:
        epochs = None if epoch is None else -(-self.settings.max_steps // self.settings.steps_per_epoch)
        return self.run.progress(steps, epoch=epoch, epochs=epochs, unit="step", disable=self.is_quiet)


def _known(**numbers: float) -> dict[str, float]:
    return {name: number for name, number in numbers.items() if not math.isnan(number)}


def _learning_rate(parameters: int) -> float:
    if parameters < 10_000_000:
        return 3e-4
    return 1e-6 if parameters >= 1_000_000_000 else 5e-6
