"""GRPO for agents with tools: `rlvitals train grpo`. Read it from top to bottom.

Each step asks the model several questions, each several times. The attempts at one question are a group. The model
searches, reads and answers over many turns. A rollout's advantage is its reward relative to its group (Shao et al.
2024). It is the same for all turns, or corrected by what each turn achieved. The loss is PPO's with separate lower and
upper clip bounds (Yu et al. 2025) and a KL to the initial model, over the tokens that the model wrote. Tool results
are read, but not trained on.

All random numbers depend on the seed and the step, so that a run that was killed and resumed continues as if it had not
been interrupted. The formulas are in `rlvitals.compute`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvitals import values
from rlvitals.adapters.torch_distributed import reduce
from rlvitals.capture.run import Run
from rlvitals.compute import goodput, merge, optim, policy, rollout
from rlvitals.compute import groups as grouping
from rlvitals.compute.names import naming
from rlvitals.compute.tokens import TokenStats
from rlvitals.errors import ConfigError
from rlvitals.records import Group
from rlvitals.render import step_summary
from rlvitals.train import checkpoint, losses, models, sharded
from rlvitals.train.evaluation import Evaluations, Sample
from rlvitals.train.grpo import traces
from rlvitals.train.grpo.conversation import Trajectory, converse, group_record
from rlvitals.train.grpo.settings import GRPOSettings, check
from rlvitals.train.grpo.tasks import QuestionTask, Tasks, grader_of, tasks_of
from rlvitals.train.grpo.update import Played, UpdateBatch, batch_of, stacked, token_weights
from rlvitals.train.grpo.warm_start import dialogue_of, start_of
from rlvitals.train.loop import Loop, open_accelerator, open_run
from rlvitals.train.recipe import TrainingOutcome
from rlvitals.train.sampling import Sampling, answer_stats
from rlvitals.train.schedule import rate_by_size, shares_of_rate
from rlvitals.train.seeds import seeded


def train(settings: GRPOSettings) -> TrainingOutcome:
    """Train and return the outcome. Settings that cannot work raise an error before anything is written."""
    check(settings)
    tasks = tasks_of(settings)
    origin = checkpoint.origin(settings.output_dir, settings.resume_from)
    accelerator = open_accelerator(settings, is_bf16=False if settings.is_tiny and settings.bf16 is None else None)
    if accelerator.is_fsdp2 and settings.groups_per_step < accelerator.num_processes:
        # A rank without a forward pass before the update would exchange weights in another order than the others.
        raise ConfigError(f"groups_per_step must be at least {accelerator.num_processes}, one for each process")
    framework = None if settings.names == "canonical" else settings.names
    with open_run(settings, origin, algorithm="grpo", framework=framework) as run, models.quietly():
        return GrpoTrainer(settings, tasks, run, accelerator).learn(origin)


class GrpoTrainer(Loop[GRPOSettings]):
    """One training run: the model, the optimizer, and the current step."""

    def __init__(self, settings: GRPOSettings, tasks: Tasks, run: Run, accelerator: Any) -> None:
        super().__init__(settings, run, accelerator)
        self.tasks, self.grader = tasks, grader_of(settings)
        self.is_verbose = step_summary.is_verbose(settings.verbose or None)
        model, self.tokenizer = start_of(settings, tasks, accelerator.device, rebuild=not settings.resume_from)
        self.dialogue = dialogue_of(settings, self.tokenizer)
        self.reference = None
        if settings.kl_coef and settings.is_training:
            initial = start_of(settings, tasks, accelerator.device, rebuild=False)
            self.reference = sharded.to_read(initial.model, accelerator)
        if settings.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        rate = settings.learning_rate or rate_by_size(models.parameters(model), tiny=5e-4)
        self.prepare(model, [{"params": model.parameters(), "lr": rate}], shares_of_rate(settings))
        can_read = int(getattr(model.config, "max_position_embeddings", None) or 8192)
        self.max_context = settings.max_context or min(can_read, 8192)
        longest = settings.max_new_tokens or (24 if settings.is_tiny else 256)
        self.sampling = Sampling(longest, self.dialogue.eos_id, self.dialogue.pad_id, settings.temperature)
        self.evaluations = Evaluations(
            run, target_accuracy=settings.target_accuracy, patience=settings.early_stopping or None,
            keep_last_evals=settings.keep_last_evals, say=self.say,
        )  # fmt: skip
        self.seen: dict[str, Tensor] = {}
        """What the last update computed for each token, by the fields of a trace."""
        self.first_accuracy = self.last_accuracy = float("nan")

    def learn(self, origin: Path | None) -> TrainingOutcome:
        """GRPO from the beginning, or from a checkpoint."""
        settings, why = self.settings, ""
        self.resume(origin)
        if settings.is_training and origin is None:
            why = self._evaluate()
            self.first_accuracy = self.last_accuracy
        while self.step < settings.max_steps and not why:
            self.step += 1
            self.record(self._one_step())
            if settings.is_training and (self.is_due(settings.eval_steps) or self.is_last):
                why = self._evaluate()
            if self.is_asked_to_stop():
                why = "the doctor asked for it"
            if settings.is_training and (self.is_due(settings.save_steps) or self.is_last):
                self.save()
        if not settings.is_training:
            where = f"rollouts of {self.step} steps are in {self.folder / 'logs/rollouts'}"
            return TrainingOutcome(str(self.folder), self.step, "stopped" if why else "finished", where)
        how = f"stopped at step {self.step} of {settings.max_steps} ({why})" if why else "finished"
        verdict = (
            f"GRPO {how}: accuracy on held-out questions went from {self.first_accuracy:.3f} to "
            f"{self.last_accuracy:.3f} in {self.step} steps; see {self.folder}"
        )
        return self.end("stopped" if why else "finished", verdict)

    def state(self) -> dict[str, Any]:
        return {"first_accuracy": self.first_accuracy, "last_accuracy": self.last_accuracy}

    def restore(self, state: dict[str, Any]) -> None:
        self.first_accuracy, self.last_accuracy = state["first_accuracy"], state["last_accuracy"]

    # One step.

    def _one_step(self) -> dict[str, Any]:
        """Collect groups and train on them. Returns the row of all ranks."""
        settings, started = self.settings, time.perf_counter()
        self._announce()
        with self.run.timer("rollout"):
            played = self._collect()
        rollout_seconds = time.perf_counter() - started
        everyone = self.gather(played.groups)
        row = self._describe(played)
        if self.is_verbose:
            self.say(f"{step_summary.banner(2)}\n{step_summary.group_details(everyone)}")
        began = time.perf_counter()
        groups = played.groups
        try:
            if settings.is_training:
                row |= self._learn_from(played)
                row |= _goodput(played, row, time.perf_counter() - started)
            groups = self._with_traces(played)
        finally:  # also if the update fails: its rollouts help to find the cause
            self.run.log_groups(groups, step=self.step)
        reduced: dict[str, Any] = reduce(row, step=self.step)
        self.run.count(tokens=_number(reduced.pop("tokens")) or 0.0, samples=sum(len(one.rollouts) for one in everyone))
        facts = step_summary.step_facts(
            everyone,
            self.step,
            total_steps=settings.max_steps,
            grad_norm=_number(reduced.get(self._name("optim.grad_norm"))),
            max_grad_norm=settings.max_grad_norm,
            tokens_trained=int(_number(reduced.pop("tokens_trained", None)) or 0),
            loss=_number(reduced.get(self._name("train.loss"))),
            rollout_seconds=rollout_seconds,
            training_seconds=time.perf_counter() - began,
        )
        self.say(step_summary.verbose(facts) if self.is_verbose else step_summary.closing(facts))
        return reduced

    def _announce(self) -> None:
        settings = self.settings
        rollouts = settings.groups_per_step * settings.rollouts_per_group
        facts = step_summary.StepFacts(self.step, settings.max_steps, settings.groups_per_step, rollouts=rollouts)
        lines = step_summary.opening(facts)
        if self.is_verbose:
            lines.insert(1, step_summary.banner(1))
        self.say("\n".join(lines))

    def _collect(self) -> Played:
        """Play this rank's share of the step's questions. dynamic_sampling adds others for filtered groups."""
        settings, device = self.settings, self.accelerator.device
        missing, found = settings.groups_per_step, Played([], [])
        for attempt in range(1 + settings.dynamic_sampling):
            tasks = self.tasks.batch(self.step, missing, attempt)[self.rank :: self.ranks]
            generator = seeded(device, settings.seed, self.step, self.rank, attempt)
            played = self._play(tasks, self.sampling, settings.rollouts_per_group, generator)
            found = Played(found.groups + played.groups, found.trajectories + played.trajectories)
            alike = torch.tensor(sum(not group.kept for group in played.groups), device=device)
            missing = int(self.accelerator.reduce(alike, "sum"))
            if not missing:
                break
        return found

    def _play(self, tasks: list[QuestionTask], how: Sampling, rollouts: int, generator: torch.Generator) -> Played:
        """Sample conversations about these questions, rollout_batch at once, and compute advantages in each group."""
        settings = self.settings
        episodes = [task.episode(settings, self.grader) for task in tasks for _ in range(rollouts)]
        at_once = settings.rollout_batch or max(1, len(episodes))
        rows: list[Trajectory] = []
        with (
            self.run.phase("generate") as phase,
            self.accelerator.autocast(),
            sharded.whole(self.model, self.accelerator),
        ):
            for start in range(0, len(episodes), at_once):
                some = episodes[start : start + at_once]
                rows += converse(
                    self.inner, self.dialogue, some, how, max_context=self.max_context, generator=generator
                )
            phase.tokens(sum(sum(row.own) for row in rows))
        together = [rows[start : start + rollouts] for start in range(0, len(rows), rollouts)]
        weights = max(0, self.step - 1)  # the step whose update produced the current weights
        groups = [
            group_record(of_one, settings.reward, seed=settings.seed, policy_version=weights) for of_one in together
        ]
        credited = grouping.advantages(
            groups, min_group_std=settings.min_group_std, scale=settings.scale, turns=settings.advantages == "turn",
            rules=settings.credit_rules,
        )  # fmt: skip
        return Played(credited, together)

    def _describe(self, played: Played) -> dict[str, Any]:
        """Statistics of the collected groups, including filtered ones, as mergeable values."""
        names = self.settings.names
        row: dict[str, Any] = grouping.stats(played.groups, names=names)
        for metric, name in grouping.GRPO_AGENT.items():  # these have the document's names, whatever `names` is
            row[name.text] = row.pop(self._name(metric, "rollout"))
        rows = [row for of_one in played.trajectories for row in of_one]
        rollouts = [each for group in played.groups for each in group.rollouts]
        row["reward.unscorable_fraction"] = values.mean([float(each.reward is None) for each in rollouts])
        rollouts = [each for each in rollouts if each.reward is not None]
        parts = sorted({part for each in rollouts for part in each.reward_parts})
        row |= rollout.stats(
            response_lengths=[float(sum(each.own)) for each in rows],
            prompt_lengths=[float(each.prompt) for each in rows],
            truncated=[each.was_cut for each in rows],
            components={part: [each.reward_parts.get(part, 0.0) for each in rollouts] for part in parts},
            names=names,
        )
        row["tokens"] = values.total([float(sum(len(each.ids) for each in rows))])
        return row

    def _learn_from(self, played: Played) -> dict[str, Any]:
        """Update the policy with the kept groups. If no rank has one, the policy does not change."""
        kept, rate = played.kept(), optim.stats(optimizer=self.optimizer, names=self.settings.names)
        most = int(self.accelerator.gather(torch.tensor([len(kept)], device=self.accelerator.device)).max())
        if not most:
            return dict(rate)
        batch = batch_of(kept, self.dialogue.pad_id, self.accelerator.device, rows=most)
        if self.is_verbose:
            self.say(f"{step_summary.banner(3)}\n{int(batch.own.sum()):,} tokens of {len(kept)} rollouts")
        row = self.improve(batch)
        self.scheduler.step()
        return {**row, **rate}

    def improve(self, batch: UpdateBatch) -> dict[str, Any]:
        """Train on a batch for grpo_epochs epochs, with one update per minibatch. Returns the values to log.

        Every rank must have the same number of rows.
        """
        settings, rows = self.settings, len(batch.own)
        size, epochs = settings.minibatch_size or rows, settings.grpo_epochs
        with self.run.phase("compute_log_probs"):
            if self.reference is not None:
                batch = replace(batch, ref_logprobs=self._logprobs(self.reference, batch))
            if epochs > 1 or size < rows:  # with a single update the old policy equals the current one
                batch = replace(batch, old_logprobs=self._logprobs(self.model, batch))
        packs: list[Any] = []
        norms: list[Tensor] = []
        logprobs, entropies = torch.zeros_like(batch.own), torch.zeros_like(batch.own)
        # Sums over the horizon are added over all parts of the step, so each is divided by the rows of the whole step.
        trained = self.accelerator.reduce((batch.own.sum(dim=1) > 0).float().sum(), "sum")
        visits = max(float(trained), 1.0) * epochs
        with self.run.phase("train_step") as phase:
            phase.tokens(int(batch.rows.mask.sum()) * epochs)
            for epoch in range(epochs):
                for places in self.minibatches(rows, size, epoch):
                    norm, seen = self._update(batch.take(places), packs, visits)
                    norms.append(norm)
                    if epoch == 0:
                        logprobs[places], entropies[places] = seen
        of_trace = {
            "logprobs": logprobs if batch.old_logprobs is None else batch.old_logprobs,
            "new_logprobs": logprobs if epochs == 1 else None,  # each epoch has a different policy
            "reference_logprobs": batch.ref_logprobs,
            "entropies": entropies,
            "advantages": batch.advantages,
        }
        self.seen = {name: numbers for name, numbers in of_trace.items() if numbers is not None}
        row = {**merge(pack.values() for pack in packs), "tokens_trained": values.total([float(batch.own.sum())])}
        return row | optim.stats(grad_norm=torch.stack(norms), names=settings.names)

    def _update(self, batch: UpdateBatch, packs: list[Any], visits: float) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Take one optimizer step and add its statistics to `packs`. `visits` is the number of rows that all updates of
        the step train on. Returns the norm of the gradient before clipping, and the tokens' log-probs and entropies.
        """
        settings, accelerator = self.settings, self.accelerator
        counts = torch.stack([batch.own.sum(), (batch.own.sum(dim=1) > 0).float().sum()])
        # Gradients are averaged over ranks: dividing by the mean count per rank weighs all tokens and rows equally.
        tokens, rows = (accelerator.reduce(counts, "sum") / accelerator.num_processes).clamp(min=1e-9).tolist()
        seen = []

        def loss_of(part: UpdateBatch) -> Tensor:
            weights = token_weights(part.own, settings.aggregation, tokens=tokens, rows=rows, horizon=self.max_context)
            loss, pack, now = self._loss(part, weights, visits)
            packs.append(pack)
            seen.append((now.logprobs.detach(), now.entropy.detach()))
            return loss

        (norm,) = self.update(batch.parts(settings.microbatch_size or len(batch.own)), loss_of)
        logprobs, entropies = (stacked(each, batch.own.shape[1]) for each in zip(*seen, strict=True))
        return norm, (logprobs, entropies)

    def _loss(self, batch: UpdateBatch, weights: Tensor, visits: float) -> tuple[Tensor, Any, TokenStats]:
        """GRPO's loss over some rows, the statistics of the update, and the output of the forward pass."""
        s = self.settings
        now = answer_stats(self.model, batch.rows, temperature=s.temperature)
        old = now.logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
        of_tokens = losses.policy_losses(
            now.logprobs, old_logprobs=old, advantages=batch.advantages, clip_low=s.clip_low, clip_high=s.clip_high,
            dual_clip=s.dual_clip, ref_logprobs=batch.ref_logprobs, kl_coef=s.kl_coef,
            entropy=now.entropy, entropy_coef=s.entropy_coef,
        )  # fmt: skip
        pack = policy.pack(
            logprobs=now.logprobs.detach(), old_logprobs=old, ref_logprobs=batch.ref_logprobs,
            rollout_logprobs=batch.sampled_logprobs, advantages=batch.advantages, mask=batch.own,
            entropy=now.entropy.detach(), clip_low=s.clip_low, clip_high=s.clip_high, dual_clip=s.dual_clip,
            aggregation=s.aggregation, horizon=self.max_context * visits,
            kl_coef=s.kl_coef or None, entropy_coef=s.entropy_coef, names=s.names,
        )  # fmt: skip
        return losses.summed(of_tokens, batch.own, weights), pack, now

    @torch.no_grad()
    def _logprobs(self, model: Any, batch: UpdateBatch) -> Tensor:
        """A model's log-probs of the tokens."""
        size = self.settings.microbatch_size or self.settings.minibatch_size or len(batch.own)
        parts = []
        for part in batch.parts(size):
            with self.accelerator.autocast():
                parts.append(answer_stats(model, part.rows, temperature=self.settings.temperature).logprobs)
        return stacked(parts, batch.own.shape[1])

    def _with_traces(self, played: Played) -> list[Group]:
        """The groups as they are recorded. Some rollouts include their tokens."""
        settings = self.settings
        if not settings.trace_rollouts:
            return played.groups
        rows = [row for of_one in played.trajectories for row in of_one if row.turns]
        if settings.is_training:
            rows = [row for _, row in played.kept()]
        chosen = traces.chosen(rows, -(-settings.trace_rollouts // self.ranks), self.step)
        trained = sum(self.gather([len(rows)])) if settings.is_training else 0
        return traces.with_traces(played, chosen, self.tokenizer, seen=self.seen, trained=trained)

    def _name(self, metric: str, family: str = "policy") -> str:
        return naming(self.settings.names, family).name(metric).text

    # Between steps.

    def _evaluate(self) -> str:
        """Answer the held-out questions and record the result. Returns why training should stop, or an empty text."""
        settings, began = self.settings, time.perf_counter()
        generator = seeded(self.accelerator.device, settings.seed, "evaluation", self.rank)
        how = self.sampling._replace(temperature=settings.eval_temperature)
        played = self._play(self.tasks.held_out[self.rank :: self.ranks], how, settings.eval_rollouts, generator)
        episodes = [row.episode for rows in played.trajectories for row in rows]
        samples = self.gather(
            [
                Sample(episode.question.id, sum(episode.reward(settings.reward).values()), episode.rubric)
                for episode in episodes
                if episode.is_judged
            ]
        )
        missing = sum(self.gather([not episode.is_judged for episode in episodes]))
        right = sum(sample.rubric.answer_correct for sample in samples)
        self.last_accuracy = right / len(samples) if samples else float("nan")
        why = ""
        if self.is_main:
            without = f", {missing} answers could not be graded" if missing else ""
            self.say(f"Evaluation at step {self.step}: accuracy {self.last_accuracy:.3f}{without}")
            why = self.evaluations.record(samples, step=self.step, seconds=time.perf_counter() - began).stop
        why = self.gather([why])[0]
        return why if self.step else ""


def _goodput(played: Played, row: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Goodput of the step on this rank: trained tokens for its seconds, and generated tokens without training."""
    written = [sum(sum(each.own) for each in rows) for rows in played.trajectories]
    filtered = sum(count for count, group in zip(written, played.groups, strict=True) if not group.kept)
    return goodput.stats(
        trained_tokens=_number(row.get("tokens_trained")) or 0.0, seconds=seconds,
        generated_tokens=float(sum(written)), wasted={"filtered": float(filtered)},
    )  # fmt: skip


def _number(value: Any) -> float | None:
    """The number of a mergeable value; None if there is no value or its number is undefined."""
    return None if value is None else value.number
