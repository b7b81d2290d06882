"""RLAIF: `rlvitals train rlaif`. A student writes small Python functions, a teacher scores them, the student learns.

Each step: a batch of tasks, several answers to each, the teacher's scores, each answer's reward against the others of
its task (group-relative), one optimiser step on -A log p + kl_coef * KL(student, untrained student) over the answers'
tokens. The reference is a copy that is never trained; prompts are in no loss; an answer without a judgement takes no
part. Everything drawn at random depends on the seed and the step alone, so that a resumed run draws what the unbroken
one would have drawn.
"""

from __future__ import annotations

import copy
import logging
import random
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

import rlvitals
from rlvitals import values
from rlvitals.adapters.torch_distributed import reduce
from rlvitals.capture.start import refuse_existing
from rlvitals.compute import advantage, optim
from rlvitals.errors import ConfigError
from rlvitals.store.layout import RunDir, kept_folder
from rlvitals.train import checkpoint, losses, models, rlaif_book, rlaif_tasks, sampling, sharded
from rlvitals.train.functions import Task
from rlvitals.train.recipe import Outcome
from rlvitals.train.rlaif_setup import Settings, check, find_checkpoint, is_chat, learning_rate, open_teacher
from rlvitals.train.teachers.base import Judgement, Question, Teacher
from rlvitals.train.teachers.cache import CachedTeacher

logger = logging.getLogger("rlvitals")

JUDGEMENTS = "judgements.jsonl"


def train(settings: Settings) -> Outcome:
    """Train, evaluate, save; what is wrong with settings, data or teacher is said before anything is trained."""
    check(settings)
    tasks, held_out = rlaif_tasks.split_tasks(
        settings.dataset, settings.eval_dataset, share=settings.eval_share, count=settings.tasks,
        eval_count=settings.eval_tasks, seed=settings.seed,
    )  # fmt: skip
    resumed = find_checkpoint(settings)
    if resumed is None:
        refuse_existing(RunDir(Path(settings.output_dir)))
    teacher = open_teacher(settings)
    try:
        teacher.check()
        with models.quietly():
            trainer = Trainer(settings, tasks, held_out, teacher, resumed)
            return trainer.train()
    finally:
        teacher.close()


class Batch(NamedTuple):
    """Answers to some tasks, with what the student's tokens were."""

    rows: sampling.Answered
    mask: Tensor
    """[answers, tokens]: 1 on the answers' tokens."""
    finished: Tensor
    questions: list[Question]
    groups: list[int]


class Trainer:
    """One run: the student, its reference, the teacher, and the loop."""

    def __init__(
        self,
        settings: Settings,
        tasks: Sequence[Task],
        held_out: Sequence[Task],
        teacher: Teacher,
        resumed: Path | None,
    ) -> None:
        has_bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        self.accelerator = sharded.accelerator(is_bf16=has_bf16 if settings.bf16 is None else settings.bf16)
        self.rank, self.ranks = self.accelerator.process_index, self.accelerator.num_processes
        self.settings, self.tasks, self.held_out = settings, tasks, held_out
        self.folder = kept_folder(settings.output_dir)
        self.resumed = resumed
        self.steps_per_epoch = max(1, len(tasks) // (settings.prompts_per_step * self.ranks))
        self.book = rlaif_book.Book()
        self.baseline: float | None = None
        self.last_eval: tuple[int, float | None] = (-1, None)

        loaded = self._load_student()
        self.tokenizer, self.is_chat = loaded.tokenizer, is_chat(settings, loaded.tokenizer)
        self.reference = sharded.to_read(copy.deepcopy(loaded.model), self.accelerator)
        if settings.gradient_checkpointing:
            loaded.model.gradient_checkpointing_enable()
        rate = learning_rate(settings, loaded.model)
        optimizer = torch.optim.AdamW(loaded.model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
        rise = max(1, settings.lr_warmup_steps)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / rise))
        self.model, self.optimizer = self.accelerator.prepare(loaded.model, optimizer)
        own = "" if self.rank == 0 else f"-rank-{self.rank}"
        self.teacher = CachedTeacher(teacher, self.folder / JUDGEMENTS.replace(".", f"{own}."))
        self.step = self._resume(resumed) if resumed else 0
        self.run = rlvitals.start(
            self.folder, algorithm="rlaif", framework="rlvitals",
            config={**asdict(settings), "learning_rate": rate, "num_generations": settings.group_size},
            total_steps=settings.max_steps, track_with=list(settings.track_with) or None, names="rlaif",
            actions=settings.actions, rules=settings.rules, display=settings.display,
            resume=str(resumed) if resumed else False, rank=self.rank,
        )  # fmt: skip

    # The loop

    def train(self) -> Outcome:
        with self.run:
            if self.baseline is None:
                self.evaluate()
                self.baseline = self.last_eval[1]
            actions = rlvitals.Actions(self.run, self.optimizer, self.scheduler, save=self.save, load=self._revert)
            silent = 0
            while self.step < self.settings.max_steps:
                self.step += 1
                silent = 0 if self.train_step() else silent + 1
                self.log()
                if _is_due(self.step, self.settings.eval_steps):
                    self.evaluate()
                must_stop = actions.carry_out()  # before a save removes the checkpoint that it may go back to
                if _is_due(self.step, self.settings.save_steps):
                    self.save()
                if silent >= self.settings.teacher_patience:
                    raise ConfigError(
                        f"the teacher has judged nothing for {silent} steps; see Teacher/FailureRate. The last "
                        f"checkpoint is {checkpoint.newest(self.folder)}"
                    )
                if must_stop:
                    return self._finish("stopped")
            return self._finish("finished")

    def train_step(self) -> bool:
        """Answer, judge, learn; False where nothing was judged and so nothing learnt."""
        began = replace(self.teacher.bill)
        self.teacher.step = self.step
        with self._phase("generate") as phase:
            with sharded.whole(self.model, self.accelerator):
                batch = self.answer(self._tasks_of_step(), self.settings.group_size, self._generator(self.step))
            if phase is not None:
                phase.tokens(int(batch.mask.sum()))
        with self._phase("compute_rewards"):
            start = time.perf_counter()
            judgements = self.teacher.judge(batch.questions)
            stats = self._agreement(batch, judgements)
            seconds = time.perf_counter() - start
        stats |= rlaif_book.judged_stats(judgements, batch.groups, batch.mask, ~batch.finished)
        stats |= rlaif_book.bill_stats(self.teacher.bill.minus(began), seconds)
        with self._phase("train_step"):
            learnt = self.learn(batch, judgements)
        self.book.add(reduce({**stats, **learnt}))
        if self.rank == 0:
            self.run.count(tokens=int(batch.rows.mask.sum()) * self.ranks, samples=len(batch.groups) * self.ranks)
        return bool(learnt)

    def answer(self, tasks: Sequence[Task], count: int, generator: torch.Generator) -> Batch:
        """`count` answers to each task, sampled by the student as it is, whole."""
        device, pad = self.accelerator.device, self.tokenizer.pad_token_id
        prompts = [rlaif_tasks.prompt_ids(task, self.tokenizer, is_chat=self.is_chat) for task in tasks]
        ids, mask = sampling.left_padded([prompt for prompt in prompts for _ in range(count)], pad, device)
        with self.accelerator.autocast():
            told = sampling.sample(
                self.accelerator.unwrap_model(self.model), ids, mask, max_new_tokens=self.settings.max_new_tokens,
                temperature=self.settings.temperature, eos_id=self.tokenizer.eos_token_id, pad_id=pad,
                generator=generator,
            )  # fmt: skip
        texts = self.tokenizer.batch_decode(
            [row[kept.bool()] for row, kept in zip(told.tokens, told.mask, strict=True)], skip_special_tokens=True
        )
        asked = [task for task in tasks for _ in range(count)]
        questions = [Question(task, rlaif_tasks.code_of(text)) for task, text in zip(asked, texts, strict=True)]
        groups = [place for place in range(len(tasks)) for _ in range(count)]
        rows = sampling.answered(ids, mask, told.tokens, told.mask)
        return Batch(rows, told.mask, told.finished, questions, groups)

    def learn(self, batch: Batch, judgements: Sequence[Judgement]) -> dict[str, Any]:
        """One optimiser step on what was judged; returns its numbers, or nothing where nothing was."""
        device = self.accelerator.device
        judged = torch.tensor([judgement.scores is not None for judgement in judgements], device=device)
        mask = batch.mask * judged[:, None]
        tokens = self.accelerator.reduce(mask.sum(), reduction="sum")  # of all ranks: no mean of means
        if not int(tokens):
            return {}
        advantages = torch.zeros(len(judgements), device=device)
        advantages[judged] = _advantages(judgements, batch.groups).to(device)
        parts = []
        size = self.settings.micro_batch_size or len(judgements)
        for start in range(0, len(judgements), size):
            take = slice(start, start + size)
            parts.append(self._backward(_part(batch.rows, take), mask[take], advantages[take], tokens))
        (norm,) = sharded.update(self.optimizer, self.settings.max_grad_norm)
        rate = optim.stats(optimizer=self.optimizer, grad_norm=norm)
        self.scheduler.step()
        return {**rlvitals.compute.merge(parts), **rate}

    def _backward(self, rows: sampling.Answered, mask: Tensor, advantages: Tensor, tokens: Tensor) -> dict[str, Any]:
        with self.accelerator.autocast():
            with torch.no_grad():
                reference = sampling.answer_stats(self.reference, rows, temperature=self.settings.temperature)
            own = sampling.answer_stats(self.model, rows, temperature=self.settings.temperature)
        of_tokens = losses.reinforce_losses(
            own.logprobs, ref_logprobs=reference.logprobs, advantages=advantages, kl_coef=self.settings.kl_coef
        )
        # Ranks' gradients are averaged: times their number, the sum over all tokens is divided by all tokens.
        loss = losses.summed(of_tokens, mask) / tokens * self.ranks
        with self._phase("backward") as phase:
            self.accelerator.backward(loss)
            if phase is not None:
                phase.tokens(int(rows.mask.sum()))
        return rlaif_book.policy_stats(
            logprobs=own.logprobs.detach(), ref_logprobs=reference.logprobs, advantages=advantages, mask=mask,
            entropy=own.entropy.detach(), kl_coef=self.settings.kl_coef,
        )  # fmt: skip

    @torch.no_grad()
    def evaluate(self) -> None:
        """The held-out tasks, one answer each at the training's temperature; always with the same draws."""
        share, size = self.held_out[self.rank :: self.ranks], self.settings.prompts_per_step * self.settings.group_size
        generator = self._generator(-1)
        stats: dict[str, Any] = {}
        with self._phase("evaluate"), sharded.whole(self.model, self.accelerator):
            for start in range(0, len(share), size):
                batch = self.answer(share[start : start + size], 1, generator)
                judgements = self.teacher.judge(batch.questions)
                part = rlaif_book.judged_stats(judgements, batch.groups, batch.mask, ~batch.finished)
                correct = [judgement.scores["correctness"] == 1.0 for judgement in judgements if judgement.scores]
                part["solved"] = values.mean(map(float, correct))
                stats = rlvitals.compute.merge([stats, part])
        merged = reduce(stats)
        told = {new: merged[old] for old, new in EVAL_NAMES.items() if old in merged}
        reward = getattr(told.get("reward"), "number", None)
        self.last_eval = (self.step, reward)
        if reward is not None and self.baseline is not None:
            told["baseline_gain"] = reward - self.baseline
        if self.rank == 0:
            self.run.log_eval(told, step=self.step)

    # What is recorded and kept

    def log(self) -> None:
        """A row, where it is due; the epoch's own numbers stand in that of its last step."""
        epoch = (self.step - 1) // self.steps_per_epoch
        row: dict[str, Any] = {}
        if self.step % self.steps_per_epoch == 0:
            row = self.book.close_epoch()
        is_due = _is_due(self.step, self.settings.logging_steps) or self.step == self.settings.max_steps
        if row or is_due:
            row = {**self.book.row(), "epoch": epoch, **row}
            if self.rank == 0:
                self.run.log(row, step=self.step)

    def save(self) -> Path:
        with self._phase("do_checkpoint"):
            return checkpoint.save(
                self.folder, self.step, model=self.accelerator.unwrap_model(self.model), tokenizer=self.tokenizer,
                optimizer=self.optimizer, scheduler=self.scheduler, keep_last=self.settings.keep_last,
                extra={"book": self.book.state(), "baseline": self.baseline},
            )  # fmt: skip

    def _resume(self, path: Path) -> int:
        state = checkpoint.load(
            path, model=self.accelerator.unwrap_model(self.model), optimizer=self.optimizer, scheduler=self.scheduler
        )
        self.book.restore(state["book"])
        self.baseline = state["baseline"]
        if self.rank == 0:
            checkpoint.tidy(self.folder, after=state["step"])
        self.teacher.forget_after(state["step"])
        return int(state["step"])

    def _load_student(self) -> models.Loaded:
        s = self.settings
        if not models.is_tiny(s.model, s.model_size):
            return models.load(s.model, s.model_size)
        build = lambda: rlaif_tasks.warmed_up(  # noqa: E731
            s.seed, steps=s.warm_up_steps, batch_size=s.warm_up_batch_size, learning_rate=s.warm_up_learning_rate,
            device=self.accelerator.device,
        )  # fmt: skip
        return models.keep(self.folder / models.TINY_FOLDER, build, anew=self.resumed is None)

    def _finish(self, status: Literal["finished", "stopped"]) -> Outcome:
        if self.last_eval[0] != self.step:
            self.evaluate()
        student = self.accelerator.unwrap_model(self.model)
        checkpoint.save_model(self.folder / "final_model", student, self.tokenizer)
        return Outcome(str(self.folder), self.step, status, self._verdict(status))

    def _verdict(self, status: str) -> str:
        ended = f"stopped by the doctor at step {self.step}" if status == "stopped" else f"{self.step} steps"
        after = self.last_eval[1]
        if after is None or self.baseline is None:
            return f"{ended}; the held-out tasks could not be judged. {self.folder}"
        last = self.book.epoch_rewards[-3:]
        is_settled = len(last) == 3 and float(np.std(last)) < 0.02 and last[-1] >= 0.65
        return (
            f"{ended}: held-out reward {self.baseline:.3f} -> {after:.3f} ({after - self.baseline:+.3f} over the "
            f"untrained student){', settled' if is_settled else ''}. {self.folder}"
        )

    # Small things

    def _agreement(self, batch: Batch, judgements: Sequence[Judgement]) -> dict[str, Any]:
        """The same answers judged a second time, past the cache."""
        if not _is_due(self.step, self.settings.agreement_steps):
            return {}
        few = slice(0, self.settings.agreement_samples)
        return rlaif_book.agreement_stats(judgements[few], self.teacher.judge_again(batch.questions[few]))

    def _revert(self, place: Path) -> None:
        checkpoint.go_back(place, model=self.accelerator.unwrap_model(self.model), optimizer=self.optimizer)

    def _tasks_of_step(self) -> list[Task]:
        """The tasks of this rank: every epoch goes through all of them in an order of its own."""
        epoch, place = divmod(self.step - 1, self.steps_per_epoch)
        order = list(range(len(self.tasks)))
        random.Random(f"{self.settings.seed} epoch {epoch}").shuffle(order)  # noqa: S311
        size = self.settings.prompts_per_step
        start = (place * self.ranks + self.rank) * size
        return [self.tasks[number] for number in order[start : start + size]]

    def _generator(self, step: int) -> torch.Generator:
        seed = (self.settings.seed * 1_000_003 + step + 1) * 1009 + self.rank
        return torch.Generator(device=self.accelerator.device).manual_seed(seed)

    def _phase(self, name: str) -> AbstractContextManager[Any]:
        return self.run.phase(name) if self.rank == 0 else nullcontext()


EVAL_NAMES = {
    "Train/AvgReward": "reward", "Train/RewardStd": "reward_std", "solved": "accuracy",
    "rewards/Correctness/mean": "correctness", "rewards/CodeQuality/mean": "code_quality",
    "rewards/Efficiency/mean": "efficiency", "rewards/Documentation/mean": "documentation",
    "Teacher/FailureRate": "teacher_failure_rate", "length.truncated_fraction": "truncated_fraction",
    "length.response.mean": "response_length",
}  # fmt: skip
"""What an evaluation calls its numbers."""


def _advantages(judgements: Sequence[Judgement], groups: Sequence[int]) -> Tensor:
    """Of the judged answers alone, each against the judged answers to the same task."""
    told = [(j.reward, group) for j, group in zip(judgements, groups, strict=True) if j.scores is not None]
    rewards = np.array([reward for reward, _ in told])
    return torch.as_tensor(advantage.group_relative(rewards, [group for _, group in told]), dtype=torch.float32)


def _part(rows: sampling.Answered, take: slice) -> sampling.Answered:
    return sampling.Answered(rows.ids[take], rows.mask[take], rows.positions[take], rows.width)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
