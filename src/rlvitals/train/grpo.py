"""GRPO for agents with tools: `rlvitals train grpo`. Read it from top to bottom.

In each step several questions are put to the model, each several times: a group. It searches, reads and answers over
many turns; a rollout's advantage is its reward among those of its group (Shao et al. 2024), for all of its turns or
corrected by what each of them achieved. The loss is PPO's with clip bounds of their own below and above (Yu et al.
2025) and a KL to the start, over the tokens that the model wrote: what the tools gave back is read and not learnt.

Everything random is drawn from the seed and the step, so that a training that was killed and resumed goes on as if
nothing had happened. Formulas are `rlvitals.compute`'s.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch

import rlvitals
from rlvitals.adapters.torch_distributed import reduce
from rlvitals.capture.run import Run
from rlvitals.compute import groups as grouping
from rlvitals.compute import merge, optim, rollout
from rlvitals.compute.names import naming
from rlvitals.errors import ConfigError
from rlvitals.render import step_summary
from rlvitals.store.layout import kept_folder
from rlvitals.terminal import put
from rlvitals.train import acting, checkpoint, models, sharded
from rlvitals.train.agent_rollouts import Sampling, Trajectory, converse, group_record
from rlvitals.train.agent_tasks import Task, Tasks, episode_of, grader_of, tasks_of
from rlvitals.train.evaluation import Evaluations, Sample
from rlvitals.train.grpo_batch import Played, batch_of
from rlvitals.train.grpo_settings import Settings, check
from rlvitals.train.grpo_start import dialogue_of, start_of, style_of
from rlvitals.train.grpo_update import Updates
from rlvitals.train.ppo_rollout import seeded
from rlvitals.train.recipe import Outcome

__all__ = ["Settings", "train"]

DOCUMENTS = {
    "group.kept_count": "train/groups_kept",
    "group.dropped_count": "train/groups_filtered",
    "agent.early_exit.count": "train/num_early_exit",
}
"""The names these have in the document, whatever the rest is called."""


def train(settings: Settings) -> Outcome:
    """Train, and say how it went. What cannot work is an error before anything is written."""
    check(settings)
    tasks = tasks_of(settings)
    origin = checkpoint.origin(settings.output_dir, settings.resume_from)
    from accelerate.utils import set_seed

    has_bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    is_bf16 = has_bf16 and not settings.is_tiny if settings.bf16 is None else settings.bf16
    accelerator = sharded.accelerator(is_bf16=is_bf16)
    if accelerator.is_fsdp2 and settings.groups_per_step < accelerator.num_processes:
        # A rank that has read nothing before the update would exchange weights in another order than the rest.
        raise ConfigError(f"groups_per_step must be at least {accelerator.num_processes}, one for each process")
    set_seed(settings.seed)
    run = rlvitals.start(
        settings.output_dir,
        algorithm="grpo",
        framework=None if settings.names == "canonical" else settings.names,
        config=asdict(settings),
        total_steps=settings.max_steps,
        resume=(origin or True) if settings.resume_from else False,
        track_with=list(settings.track_with),
        rules=settings.rules,
        actions=settings.actions,
        display=settings.display,
    )
    with run, models.quietly():
        return Trainer(settings, tasks, run, accelerator, is_anew=not settings.resume_from).learn(origin)


class Trainer:
    """One training: the model, the optimizer, and where it stands."""

    def __init__(self, settings: Settings, tasks: Tasks, run: Run, accelerator: Any, *, is_anew: bool) -> None:
        self.settings, self.tasks, self.run, self.accelerator = settings, tasks, run, accelerator
        self.folder = kept_folder(settings.output_dir)
        self.is_quiet = settings.display in ("none", "json") or not accelerator.is_main_process
        self.is_verbose = step_summary.is_verbose(settings.verbose or None)
        start = start_of(settings, tasks, accelerator.device, is_anew=is_anew)
        self.tokenizer, self.style, self.grader = start.tokenizer, style_of(settings), grader_of(settings)
        self.dialogue = dialogue_of(settings, start.tokenizer)
        reference = None
        if settings.kl_coef and settings.mode != "rollout":
            reference = sharded.to_read(start_of(settings, tasks, accelerator.device, is_anew=False).model, accelerator)
        if settings.gradient_checkpointing:
            start.model.gradient_checkpointing_enable()
        rate = settings.learning_rate or _learning_rate(models.parameters(start.model))
        optimizer = torch.optim.AdamW(start.model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self._share_of_rate)
        self.model, self.optimizer = accelerator.prepare(start.model, optimizer)
        self.sampling = Sampling(
            max_new_tokens=settings.max_new_tokens or (24 if settings.is_tiny else 256),
            temperature=settings.temperature,
            max_context=settings.max_context or min(_can_read(start.model), 8192),
        )
        self.evaluations = Evaluations(
            run,
            target_accuracy=settings.target_accuracy,
            patience=settings.early_stopping or None,
            keep_last_evals=settings.keep_last_evals,
            say=self._say,
        )
        self.updates = Updates(
            settings,
            run,
            accelerator,
            model=self.model,
            reference=reference,
            optimizer=self.optimizer,
            horizon=self.sampling.max_context,
        )
        self.step = 0
        self.first_accuracy = self.last_accuracy = float("nan")

    @property
    def inner(self) -> Any:
        """The model without what accelerate puts around it."""
        return self.accelerator.unwrap_model(self.model)

    def learn(self, origin: Path | None) -> Outcome:
        """GRPO from the beginning, or from a checkpoint."""
        settings, why = self.settings, ""
        is_training = settings.mode != "rollout"
        if origin is not None:
            self._go_on(origin)
        else:
            if self.accelerator.is_main_process:
                checkpoint.tidy(self.folder, after=0)
            if is_training:
                why = self._evaluate()
                self.first_accuracy = self.last_accuracy
        waiting: list[dict[str, Any]] = []  # rows between two that are logged
        while self.step < settings.max_steps and not why:
            self.step += 1
            is_last = self.step == settings.max_steps
            waiting.append(self._one_step())
            if self.step % settings.logging_steps == 0 or is_last:
                if self.accelerator.is_main_process:
                    self.run.log(merge(waiting), step=self.step)
                waiting = []
            if is_training and (self.step % settings.eval_steps == 0 or is_last):
                why = self._evaluate()
            if is_training and (self.step % settings.save_steps == 0 or is_last):
                self.save()
            must_stop = acting.carry_out(
                self.run, optimizer=self.optimizer, scheduler=self.scheduler, save=self.save, revert=self._revert
            )
            if must_stop:
                why = "the doctor asked for it"
        return self._end(why)

    def save(self) -> Path:
        """Write checkpoint-STEP."""
        with self.run.phase("do_checkpoint"):
            return checkpoint.save(
                self.folder,
                self.step,
                model=self.inner,
                tokenizer=self.tokenizer,
                optimizer=self.optimizer,
                scheduler=self.scheduler,
                extra={"first_accuracy": self.first_accuracy, "last_accuracy": self.last_accuracy},
                keep_last=self.settings.keep_last,
            )

    # One step.

    def _one_step(self) -> dict[str, Any]:
        """Collect groups, learn from them; returns the row of all ranks."""
        settings, began = self.settings, time.perf_counter()
        self._open()
        with self.run.timer("rollout"):
            played = self._collect()
        rollout_seconds = time.perf_counter() - began
        self.run.log_groups(played.groups, step=self.step)
        everyone = self._from_all_ranks(played.groups)
        row = self._describe(played)
        if self.is_verbose:
            self._say(f"{step_summary.banner(2)}\n{step_summary.group_details(everyone)}")
        began = time.perf_counter()
        if settings.mode != "rollout":
            row |= self._learn_from(played)
        reduced: dict[str, Any] = reduce(row, step=self.step)
        self.run.count(tokens=_number(reduced.pop("tokens")), samples=sum(len(group.rollouts) for group in everyone))
        norm, loss = reduced.get(self._name("optim.grad_norm")), reduced.get(self._name("train.loss"))
        facts = step_summary.step_facts(
            everyone,
            self.step,
            total_steps=settings.max_steps,
            grad_norm=None if norm is None else _number(norm),
            max_grad_norm=settings.max_grad_norm,
            tokens_trained=int(_number(reduced.pop("tokens_trained", 0.0))),
            loss=None if loss is None else _number(loss),
            rollout_seconds=rollout_seconds,
            training_seconds=time.perf_counter() - began,
        )
        self._say(step_summary.verbose(facts) if self.is_verbose else step_summary.closing(facts))
        return reduced

    def _collect(self) -> Played:
        """Play this rank's share of the step's questions, and others for those whose attempts were all alike."""
        settings, world = self.settings, self.accelerator.num_processes
        missing = settings.groups_per_step
        found = Played([], [])
        for attempt in range(1 + settings.dynamic_sampling):
            tasks = self.tasks.batch(self.step, missing, attempt)[self.accelerator.process_index :: world]
            generator = seeded(
                self.accelerator.device, settings.seed, self.step, self.accelerator.process_index, attempt
            )
            played = self._play(tasks, self.sampling, settings.rollouts_per_group, generator)
            found = Played(found.groups + played.groups, found.trajectories + played.trajectories)
            alike = torch.tensor(sum(not group.kept for group in played.groups), device=self.accelerator.device)
            missing = int(self.accelerator.reduce(alike, "sum"))
            if not missing:
                break
        return found

    def _play(self, tasks: list[Task], how: Sampling, rollouts: int, generator: torch.Generator) -> Played:
        """Hold the conversations about these questions, all at once, and weigh them within their groups."""
        settings = self.settings
        episodes = [episode_of(task, settings, self.grader, self.style) for task in tasks for _ in range(rollouts)]
        at_once = settings.rollout_batch or max(1, len(episodes))
        rows: list[Trajectory] = []
        with (
            self.run.phase("generate") as phase,
            self.accelerator.autocast(),
            sharded.whole(self.model, self.accelerator),
        ):
            for start in range(0, len(episodes), at_once):
                rows += converse(self.inner, self.dialogue, episodes[start : start + at_once], how, generator)
            phase.tokens(sum(sum(row.own) for row in rows))
        together = [rows[start : start + rollouts] for start in range(0, len(rows), rollouts)]
        weights = max(0, self.step - 1)  # the step whose update made them
        groups = [
            group_record(of_one, settings.reward, seed=settings.seed, policy_version=weights) for of_one in together
        ]
        credited = grouping.advantages(
            groups,
            min_group_std=settings.min_group_std,
            scale=settings.scale,
            turns=settings.advantages == "turn",
            rules=settings.credit_rules,
        )
        return Played(credited, together)

    def _describe(self, played: Played) -> dict[str, Any]:
        """What was collected, as mergeable values: filtered groups count as well."""
        settings = self.settings
        row: dict[str, Any] = grouping.stats(played.groups, names=settings.names)
        own = grouping.stats(played.groups, names="grpo_agent")
        for metric, name in DOCUMENTS.items():
            row.pop(self._name(metric, "rollout"), None)
            row[name] = own[name]
        rows = [row for of_one in played.trajectories for row in of_one]
        rollouts = [each for group in played.groups for each in group.rollouts]
        row["reward.unscorable_fraction"] = rlvitals.values.mean([float(each.reward is None) for each in rollouts])
        rollouts = [each for each in rollouts if each.reward is not None]
        parts = sorted({part for each in rollouts for part in each.reward_parts})
        row |= rollout.stats(
            response_lengths=[float(sum(each.own)) for each in rows],
            prompt_lengths=[float(each.prompt) for each in rows],
            truncated=[each.was_cut for each in rows],
            components={part: [each.reward_parts.get(part, 0.0) for each in rollouts] for part in parts},
            names=settings.names,
        )
        row["tokens"] = rlvitals.values.total([float(sum(len(each.ids) for each in rows))])
        return row

    def _learn_from(self, played: Played) -> dict[str, Any]:
        """Update the policy with the kept groups. Where none of them has anything to teach, on no rank, it stays."""
        kept, rate = played.kept(), optim.stats(optimizer=self.optimizer, names=self.settings.names)
        most = int(self.accelerator.gather(torch.tensor([len(kept)], device=self.accelerator.device)).max())
        if not most:
            return dict(rate)
        batch = batch_of(kept, self.dialogue.pad_id, self.accelerator.device, rows=most)
        if self.is_verbose:
            self._say(f"{step_summary.banner(3)}\n{int(batch.own.sum()):,} tokens of {len(kept)} rollouts")
        row = self.updates.improve(batch, self.step)
        self.scheduler.step()
        return {**row, **rate}

    # Around the steps.

    def _evaluate(self) -> str:
        """Answer the held-out questions and record how that went; says why training should stop, if it should."""
        settings, accelerator, began = self.settings, self.accelerator, time.perf_counter()
        own = list(self.tasks.held_out[accelerator.process_index :: accelerator.num_processes])
        generator = seeded(accelerator.device, settings.seed, "evaluation", accelerator.process_index)
        how = self.sampling._replace(temperature=settings.eval_temperature)
        played = self._play(own, how, settings.eval_rollouts, generator)
        samples = self._from_all_ranks(
            [
                Sample(row.episode.question.id, sum(row.episode.reward(settings.reward).values()), row.episode.rubric)
                for rows in played.trajectories
                for row in rows
                if row.episode.is_judged
            ]
        )
        missing = sum(self._from_all_ranks([not row.episode.is_judged for rows in played.trajectories for row in rows]))
        right = sum(sample.rubric.answer_correct for sample in samples)
        self.last_accuracy = right / len(samples) if samples else float("nan")
        why = ""
        if accelerator.is_main_process:
            without = f", {missing} answers could not be graded" if missing else ""
            self._say(f"Evaluation at step {self.step}: accuracy {self.last_accuracy:.3f}{without}")
            why = self.evaluations.record(samples, step=self.step, seconds=time.perf_counter() - began).stop
        reasons: list[str] = self._from_all_ranks([why])
        return reasons[0] if self.step else ""

    def _go_on(self, origin: Path) -> None:
        """Take up a checkpoint."""
        kept = checkpoint.load(origin, model=self.inner, optimizer=self.optimizer, scheduler=self.scheduler)
        self.step, self.first_accuracy, self.last_accuracy = kept["step"], kept["first_accuracy"], kept["last_accuracy"]
        if self.accelerator.is_main_process:
            checkpoint.tidy(self.folder, after=self.step)

    def _revert(self, place: Path) -> Path | None:
        """Put the weights of an earlier checkpoint back and train on from there."""
        if not (place / checkpoint.STATE_FILE).is_file():
            return None
        checkpoint.go_back(place, model=self.inner, optimizer=self.optimizer)
        return place

    def _end(self, why: str) -> Outcome:
        settings = self.settings
        how = f"stopped at step {self.step} of {settings.max_steps} ({why})" if why else "finished"
        status: Literal["finished", "stopped"] = "stopped" if why else "finished"
        if settings.mode == "rollout":
            return Outcome(
                str(self.folder),
                self.step,
                status,
                f"rollouts of {self.step} steps are in {self.folder / 'logs/rollouts'}",
            )
        checkpoint.save_model(self.folder / "final_model", self.inner, self.tokenizer)
        verdict = (
            f"GRPO {how}: accuracy on held-out questions went from {self.first_accuracy:.3f} to "
            f"{self.last_accuracy:.3f} in {self.step} steps; see {self.folder}"
        )
        return Outcome(str(self.folder), self.step, status, verdict)

    def _open(self) -> None:
        """Say what the step is about to do."""
        settings = self.settings
        rollouts = settings.groups_per_step * settings.rollouts_per_group
        facts = step_summary.StepFacts(self.step, settings.max_steps, settings.groups_per_step, rollouts=rollouts)
        lines = step_summary.opening(facts)
        self._say("\n".join([lines[0], step_summary.banner(1), lines[1]] if self.is_verbose else lines))

    def _say(self, text: str) -> None:
        if not self.is_quiet:
            put(text, sys.stderr)

    def _name(self, metric: str, family: str = "policy") -> str:
        return naming(self.settings.names, family).name(metric).text

    def _share_of_rate(self, step: int) -> float:
        """What of the learning rate a step (from 0) has."""
        settings = self.settings
        rise = min(1.0, (step + 1) / (settings.warmup_steps + 1))
        left = max(0.0, 1.0 - step / settings.max_steps)
        return rise * (0.1 + 0.9 * left) if settings.lr_schedule == "linear" else rise

    def _from_all_ranks(self, things: list[Any]) -> list[Any]:
        if self.accelerator.num_processes == 1:
            return things
        from accelerate.utils import gather_object

        gathered: list[Any] = gather_object(things)
        return gathered


def _number(value: Any) -> float:
    return float(getattr(value, "number", value) or 0.0)


def _learning_rate(parameters: int) -> float:
    if parameters < 10_000_000:
        return 5e-4
    return 1e-6 if parameters >= 1_000_000_000 else 5e-6


def _can_read(model: Any) -> int:
    return int(getattr(model.config, "max_position_embeddings", None) or 8192)
