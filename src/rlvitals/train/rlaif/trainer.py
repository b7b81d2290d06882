"""RLAIF: `rlvitals train rlaif`. A student writes small Python functions, a teacher scores them, the student learns.

In each step the student writes several answers to each task of a batch, and the teacher scores them. An answer's
advantage A is its reward relative to the other answers to the same task. One optimiser step follows, on
-A log p + kl_coef * KL(student, untrained student) over the answers' tokens. The reference is a copy that is never
trained. Prompts and answers without a judgement are not in the loss. All random numbers depend on the seed and the
step, so that a resumed run draws the same numbers as an uninterrupted one.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlvitals.adapters.torch_distributed import reduce
from rlvitals.capture.run import Run
from rlvitals.compute import advantage, merge, optim, policy
from rlvitals.errors import ConfigError
from rlvitals.store.layout import kept_folder
from rlvitals.train import checkpoint, losses, models, sampling, sharded
from rlvitals.train.functions import FunctionTask
from rlvitals.train.loop import Loop, open_accelerator, open_run
from rlvitals.train.recipe import TrainingOutcome
from rlvitals.train.rlaif import metrics
from rlvitals.train.rlaif.settings import RLAIFSettings, check, open_gold, open_teacher
from rlvitals.train.rlaif.tasks import Split, code_of, prompt_ids, split_tasks, warmed_up
from rlvitals.train.schedule import rate_by_size
from rlvitals.train.teachers.base import AnswerToJudge, Judgement, Teacher
from rlvitals.train.teachers.cache import CachedTeacher


def train(settings: RLAIFSettings) -> TrainingOutcome:
    """Train, evaluate and save. Errors in the settings, the data or the teacher are raised before training."""
    check(settings)
    tasks = split_tasks(settings)
    origin = checkpoint.origin(settings.output_dir, settings.resume_from)
    teacher, gold = open_teacher(settings), open_gold(settings)
    with closing(teacher), nullcontext() if gold is None else closing(gold), models.quietly():
        teacher.check()
        accelerator = open_accelerator(settings)
        student = load_student(settings, accelerator)
        with start_run(settings, student, origin) as run:
            trainer = RlaifTrainer(settings, tasks, teacher, student, run=run, accelerator=accelerator, gold=gold)
            return trainer.learn(origin)


def load_student(settings: RLAIFSettings, accelerator: Any) -> models.Loaded:
    """The student before training. A tiny one is kept in the run's folder as the reference for a resume."""
    if not settings.is_tiny:
        return models.load(settings.model, settings.model_size)
    build = partial(
        warmed_up, settings.seed, steps=settings.warm_up_steps, batch_size=settings.warm_up_batch_size,
        learning_rate=settings.warm_up_learning_rate, device=accelerator.device,
    )  # fmt: skip
    return models.keep(
        kept_folder(settings.output_dir) / models.TINY_FOLDER, build, rebuild=settings.resume_from is None
    )


def start_run(settings: RLAIFSettings, student: models.Loaded, origin: Path | None) -> Run:
    """Start recording. The configuration contains the learning rate that is used."""
    own = {"learning_rate": learning_rate(settings, student.model), "num_generations": settings.group_size}
    return open_run(settings, origin, config=own, algorithm="rlaif", framework="rlvitals", names="rlaif")


def learning_rate(settings: RLAIFSettings, model: Any) -> float:
    """The given learning rate, or one that fits the model's size."""
    return settings.learning_rate or rate_by_size(models.parameters(model), tiny=7e-4)


class AnswerBatch(NamedTuple):
    """Answers to some tasks, with the student's tokens."""

    rows: sampling.Answered
    mask: Tensor
    """[answers, tokens]: 1 on the answers' tokens."""
    finished: Tensor
    questions: list[AnswerToJudge]
    groups: list[int]


class RlaifTrainer(Loop[RLAIFSettings]):
    """One run: the student, its reference, the teacher, and the current state."""

    def __init__(
        self,
        settings: RLAIFSettings,
        tasks: Split,
        teacher: Teacher,
        student: models.Loaded,
        *,
        run: Run,
        accelerator: Any,
        gold: Teacher | None = None,
    ) -> None:
        super().__init__(settings, run, accelerator)
        self.tasks, self.held_out = tasks
        self.steps_per_epoch = max(1, len(self.tasks) // (settings.prompts_per_step * self.ranks))
        self.epochs = metrics.EpochTags()
        self.baseline: float | None = None
        self.last_eval: tuple[int, float | None] = (-1, None)
        self.tokenizer = tokenizer = student.tokenizer
        self.sampling = sampling.Sampling(
            settings.max_new_tokens, tokenizer.eos_token_id, tokenizer.pad_token_id, settings.temperature
        )
        self.is_chat = models.is_chat(student.tokenizer, settings.chat, is_tiny=settings.is_tiny)
        self.reference = sharded.to_read(copy.deepcopy(student.model), accelerator)
        if settings.gradient_checkpointing:
            student.model.gradient_checkpointing_enable()
        rate, rise = learning_rate(settings, student.model), max(1, settings.lr_warmup_steps)
        groups = [{"params": student.model.parameters(), "lr": rate}]
        self.prepare(student.model, groups, lambda step: min(1.0, (step + 1) / rise))
        own = "" if self.rank == 0 else f"-rank-{self.rank}"
        self.teacher = CachedTeacher(teacher, self.folder / f"judgements{own}.jsonl")
        self.gold = None if gold is None else CachedTeacher(gold)

    def learn(self, origin: Path | None) -> TrainingOutcome:
        """RLAIF from the beginning, or from a checkpoint."""
        settings, unjudged_steps = self.settings, 0
        self.resume(origin)
        if origin is None and settings.resume_from:
            self.teacher.forget_after(0)  # killed before its first checkpoint: restart at step 0
        if self.baseline is None:
            self.evaluate()
            self.baseline = self.last_eval[1]
        while self.step < settings.max_steps:
            self.step += 1
            row = self.take_step()
            unjudged_steps = 0 if "Train/Loss" in row else unjudged_steps + 1
            self.log(row)
            if self.is_due(settings.eval_steps):
                self.evaluate()
            must_stop = self.is_asked_to_stop()
            if self.is_due(settings.save_steps):
                self.save()
            if unjudged_steps >= settings.teacher_patience:
                raise ConfigError(
                    f"the teacher has judged nothing for {unjudged_steps} steps; see Teacher/FailureRate. The last "
                    f"checkpoint is {checkpoint.newest(self.folder)}"
                )
            if must_stop:
                return self._finish("stopped")
        return self._finish("finished")

    def take_step(self) -> dict[str, Any]:
        """Sample answers, judge them and train on them. Returns the row of all ranks."""
        self.teacher.step = self.step
        with self.run.phase("generate") as phase:
            with sharded.whole(self.model, self.accelerator):
                batch = self.answer(self.tasks_of_step(), self.settings.group_size, self.generator(self.step))
            phase.tokens(int(batch.mask.sum()))
        with self.run.phase("compute_rewards"):
            start = time.perf_counter()
            judgements = self.teacher.judge(batch.questions)
            again: list[Judgement] = []
            if self.is_due(self.settings.agreement_steps):
                again = self.teacher.judge_again(batch.questions[: self.settings.agreement_samples])
            seconds = time.perf_counter() - start
        stats = metrics.agreement_stats(judgements, again)
        stats |= metrics.judged_stats(judgements, batch.groups, batch.mask, ~batch.finished)
        stats |= metrics.cost_stats([*judgements, *again], seconds)
        with self.run.phase("train_step"):
            stats |= self.improve(batch, judgements)
        row: dict[str, Any] = reduce(stats)
        if self.is_main:
            self.run.count(tokens=int(batch.rows.mask.sum()) * self.ranks, samples=len(batch.groups) * self.ranks)
        return row

    def tasks_of_step(self) -> list[FunctionTask]:
        """The tasks of this rank. Every epoch has its own order; tasks that do not fill a last step are left out."""
        epoch, place = divmod(self.step - 1, self.steps_per_epoch)
        order = list(range(len(self.tasks)))
        random.Random(f"{self.settings.seed} epoch {epoch}").shuffle(order)  # noqa: S311
        size = self.settings.prompts_per_step
        start = (place * self.ranks + self.rank) * size
        return [self.tasks[number] for number in order[start : start + size]]

    def generator(self, step: int) -> torch.Generator:
        seed = (self.settings.seed * 1_000_003 + step + 1) * 1009 + self.rank
        return torch.Generator(device=self.accelerator.device).manual_seed(seed)

    def answer(self, tasks: Sequence[FunctionTask], count: int, generator: torch.Generator) -> AnswerBatch:
        """`count` answers to each task, sampled by the current student. Its weights must not be sharded."""
        asked = [task for task in tasks for _ in range(count)]
        prompts = [prompt_ids(task, self.tokenizer, is_chat=self.is_chat) for task in asked]
        with self.accelerator.autocast():
            rows, sampled = sampling.answers_to(self.inner, prompts, self.sampling, generator)
        texts = self.tokenizer.batch_decode(sampled.tokens, skip_special_tokens=True)
        questions = [AnswerToJudge(task, code_of(text)) for task, text in zip(asked, texts, strict=True)]
        groups = [place for place in range(len(tasks)) for _ in range(count)]
        return AnswerBatch(rows, sampled.mask, sampled.finished, questions, groups)

    def improve(self, batch: AnswerBatch, judgements: Sequence[Judgement]) -> dict[str, Any]:
        """Take one optimiser step on the judged answers. Returns its metrics; empty if nothing was judged."""
        device = self.accelerator.device
        judged = [place for place, judgement in enumerate(judgements) if judgement.scores is not None]
        mask = torch.zeros_like(batch.mask)
        mask[judged] = batch.mask[judged]
        tokens = self.accelerator.reduce(mask.sum(), reduction="sum")  # of all ranks, not a mean of means
        if not int(tokens):
            return {}
        advantages = torch.zeros(len(judgements), device=device)
        rewards = np.array([judgements[place].reward for place in judged])
        relative = advantage.group_relative(rewards, [batch.groups[place] for place in judged])
        advantages[judged] = torch.as_tensor(relative, dtype=torch.float32, device=device)
        size = self.settings.micro_batch_size or len(judgements)
        parts = []
        for start in range(0, len(judgements), size):
            take = slice(start, start + size)
            parts.append(self._backward(batch.rows.take(take), mask[take], advantages[take], tokens))
        (norm,) = sharded.update(self.optimizer, self.settings.max_grad_norm)
        rate = optim.stats(optimizer=self.optimizer, grad_norm=norm)
        self.scheduler.step()
        return {**merge(parts), **rate}

    def _backward(self, rows: sampling.Answered, mask: Tensor, advantages: Tensor, tokens: Tensor) -> dict[str, Any]:
        with self.accelerator.autocast():
            with torch.no_grad():
                reference = sampling.answer_stats(self.reference, rows, temperature=self.settings.temperature)
            own = sampling.answer_stats(self.model, rows, temperature=self.settings.temperature)
        of_tokens = losses.reinforce_losses(
            own.logprobs, ref_logprobs=reference.logprobs, advantages=advantages, kl_coef=self.settings.kl_coef
        )
        # Gradients are averaged over ranks, so the loss is multiplied by their number.
        loss = losses.summed(of_tokens, mask) / tokens * self.ranks
        with self.run.phase("backward") as phase:
            self.accelerator.backward(loss)
            phase.tokens(int(rows.mask.sum()))
        return policy.stats(
            logprobs=own.logprobs.detach(), ref_logprobs=reference.logprobs, advantages=advantages, mask=mask,
            entropy=own.entropy.detach(), kl_coef=self.settings.kl_coef, names="rlaif",
        )  # fmt: skip

    @torch.no_grad()
    def evaluate(self) -> None:
        """Evaluate one answer to each held-out task at the training temperature, always with the same seed."""
        share, size = self.held_out[self.rank :: self.ranks], self.settings.prompts_per_step * self.settings.group_size
        generator = self.generator(-1)
        stats: dict[str, Any] = {}
        with self.run.phase("evaluate"), sharded.whole(self.model, self.accelerator):
            for start in range(0, len(share), size):
                batch = self.answer(share[start : start + size], 1, generator)
                judgements = self.teacher.judge(batch.questions)
                part = metrics.judged_stats(judgements, batch.groups, batch.mask, ~batch.finished)
                if self.gold is not None:
                    part |= metrics.gold_stats(judgements, self.gold.judge(batch.questions))
                elif self.settings.teacher == "offline":  # a model's verdict is not an accuracy
                    part |= metrics.solved_stats(judgements)
                stats = merge([stats, part])
        merged = reduce(stats)
        row = {new: merged[old] for old, new in metrics.EVAL_NAMES.items() if old in merged}
        reward = getattr(row.get("reward"), "number", None)
        self.last_eval = (self.step, reward)
        if reward is not None and self.baseline is not None:
            row["baseline_gain"] = reward - self.baseline
        if self.is_main:
            self.run.log_eval(row, step=self.step)

    def log(self, row: dict[str, Any]) -> None:
        """Log a row if one is due. The epoch's metrics are in the row of its last step."""
        self.epochs.add(row)
        of_epoch = self.epochs.close() if self.is_due(self.steps_per_epoch) else {}
        epoch = (self.step - 1) // self.steps_per_epoch
        self.record(row, {"epoch": epoch, **of_epoch}, is_due=bool(of_epoch))

    def state(self) -> dict[str, Any]:
        return {"book": self.epochs.state(), "baseline": self.baseline}

    def restore(self, state: dict[str, Any]) -> None:
        self.epochs = metrics.EpochTags(state["book"])
        self.baseline = state["baseline"]
        self.teacher.forget_after(state["step"])

    def _finish(self, status: Literal["finished", "stopped"]) -> TrainingOutcome:
        if self.last_eval[0] != self.step:
            self.evaluate()
        ended = f"stopped by the doctor at step {self.step}" if status == "stopped" else f"{self.step} steps"
        after = self.last_eval[1]
        if after is None or self.baseline is None:
            return self.end(status, f"{ended}; the held-out tasks could not be judged. {self.folder}")
        last = self.epochs.rewards[-3:]
        is_settled = len(last) == 3 and float(np.std(last)) < 0.02 and last[-1] >= 0.65
        return self.end(
            status,
            f"{ended}: held-out reward {self.baseline:.3f} -> {after:.3f} ({after - self.baseline:+.3f} over the "
            f"untrained student){', settled' if is_settled else ''}. {self.folder}",
        )
