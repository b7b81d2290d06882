"""PPO from human preferences: `rlvitals train ppo`. Read it from top to bottom.

A language model is warmed up on demonstrations, and a reward model learns from pairs which answers are preferred. PPO
(Schulman et al. 2017, as used by Ziegler et al. 2019 and Ouyang et al. 2022) trains the language model to get higher
scores from the reward model while it stays close to the reference. The reward model approximates the true score. The
true score on held-out prompts is measured separately and never trained on.

All random numbers depend on the seed and the step, so that a run that was killed and resumed continues as if it had not
been interrupted. The formulas are in `rlvitals.compute`.
"""

from __future__ import annotations

import math
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import rlvitals
from rlvitals import values
from rlvitals.adapters.torch_distributed import reduce
from rlvitals.capture.run import Run
from rlvitals.compute import advantage, goodput, merge, optim, policy, rollout
from rlvitals.errors import ConfigError
from rlvitals.train import checkpoint, losses, models, sharded
from rlvitals.train.loop import Loop, open_accelerator, open_run
from rlvitals.train.ppo import experience
from rlvitals.train.ppo.actor_critic import ActorCritic, parameter_groups
from rlvitals.train.ppo.data import Data, Grader, data_of
from rlvitals.train.ppo.evaluation import EpochSums, computable, text_scores
from rlvitals.train.ppo.experience import Experience
from rlvitals.train.ppo.settings import PPOSettings, check
from rlvitals.train.ppo.stages import Stages
from rlvitals.train.recipe import TrainingOutcome
from rlvitals.train.sampling import answer_stats
from rlvitals.train.schedule import rate_by_size, shares_of_rate
from rlvitals.train.seeds import batch_places, seeded

PATIENCE = 5
"""Training fails after this many consecutive steps without a score, because then the reward itself is broken."""

SHOWN_ANSWERS = 8
"""How many answers an evaluation's own file shows."""


def train(settings: PPOSettings) -> TrainingOutcome:
    """Train and return the outcome. Settings that cannot work raise an error before anything is written."""
    check(settings)
    data = data_of(settings)
    origin = checkpoint.origin(settings.output_dir, settings.resume_from)
    accelerator = open_accelerator(settings)
    run = open_run(settings, origin, algorithm="ppo", framework="roll", display_every=settings.steps_per_epoch)
    with run, models.quietly(), closing(Grader()) as grader:
        return PpoTrainer(settings, data, grader, run, accelerator).learn(origin)


class PpoTrainer(Loop[PPOSettings]):
    """One training run: the models, the optimizer, and the current state."""

    def __init__(self, settings: PPOSettings, data: Data, grader: Grader, run: Run, accelerator: Any) -> None:
        super().__init__(settings, run, accelerator)
        self.data, self.grader = data, grader
        self.scored_texts = computable(settings.text_scores) if self.is_main else []
        stages = Stages(settings, data, grader, run, accelerator)
        start = stages.start()
        self.tokenizer, self.sampling = start.tokenizer, stages.texts.sampling
        self.prompts = [stages.texts.prompt(example.prompt) for example in data.examples]
        self.held_out_prompts = [stages.texts.prompt(example.prompt) for example in data.held_out]
        self.reward = stages.reward()
        self.stage_results = stages.results
        self.reference = sharded.to_read(models.load(str(stages.warm_start), None).model, accelerator)
        if settings.gradient_checkpointing:
            start.model.gradient_checkpointing_enable()
        inner = ActorCritic(start.model, is_separate=settings.critic == "separate")
        if settings.critic == "separate":
            inner.begin_values(stages.critic())
        rate = settings.learning_rate or rate_by_size(models.parameters(start.model), tiny=3e-4)
        value_rate = settings.value_learning_rate or rate * (10 if settings.critic == "shared" else 3)
        self.prepare(inner, parameter_groups(inner, rate, value_rate), shares_of_rate(settings))
        self.unscored_steps = 0
        self.kl_coef = settings.kl_coef
        self.epochs = EpochSums()
        self.first_score = self.last_score = math.nan

    def learn(self, origin: Path | None) -> TrainingOutcome:
        """PPO from the beginning, or from a checkpoint."""
        settings, why_stopped = self.settings, ""
        self.resume(origin)
        if origin is None:
            if self.is_main and self.stage_results:
                self.run.log(self.stage_results, step=0)
            self.evaluate(with_texts=False)
            self.first_score = self.last_score
        epochs = -(-settings.max_steps // settings.steps_per_epoch)
        tracker = rlvitals.MetricsTracker(
            self.folder / "metrics",
            total_epochs=epochs,
            early_stopping=settings.early_stopping or False,
            plots=settings.plots,
            display=settings.display,
            rank=self.rank,
        )
        while self.step < settings.max_steps and not why_stopped:
            epoch = self.step // settings.steps_per_epoch + 1
            last = min(epoch * settings.steps_per_epoch, settings.max_steps)
            steps = range(self.step + 1, last + 1)
            with self.run.progress(steps, epoch=epoch, epochs=epochs, unit="step", disable=self.is_quiet) as bar:
                for self.step in bar:
                    self.record(self.take_step())
                    if self.step == last:
                        scores = self.evaluate(with_texts=True)
                        known = {} if math.isnan(self.last_score) else {"true_score": self.last_score}
                        self.epochs.report(tracker, epoch, {**scores, **known})
                    elif self.is_due(settings.eval_steps):
                        self.evaluate(with_texts=False)
                    must_stop = self.is_asked_to_stop()
                    if self.is_due(settings.save_steps) or self.is_last:
                        self.save()
                    if must_stop:
                        why_stopped = "the doctor asked for it"
                    elif self._everywhere(settings.early_stopping > 0 and tracker.should_stop):
                        why_stopped = f"the reward has not risen for {settings.early_stopping} epochs"
                    if why_stopped:
                        break
        if self.is_main:
            tracker.close()
        how = f"stopped at step {self.step} of {settings.max_steps}, {why_stopped}" if why_stopped else "finished"
        return self.end(
            "stopped" if why_stopped else "finished",
            f"PPO {how}: the true score on held-out prompts went from {self.first_score:.3f} to {self.last_score:.3f} "
            f"in {self.step} steps; see {self.folder}",
        )

    def take_step(self) -> dict[str, Any]:
        """Collect a batch and train on it. Returns the row of all ranks."""
        settings, began = self.settings, time.perf_counter()
        places = batch_places(self.step, settings.batch_size * self.ranks, len(self.prompts), settings.seed)
        batch = self.collect(places[self.rank :: self.ranks])
        with self.run.phase("train_step") as phase:
            phase.tokens(int(batch.rows.mask.sum()) * settings.ppo_epochs)
            row = self._learn_from(batch)
        row |= experience.stats(batch, settings)
        row |= goodput.stats(trained_tokens=float(batch.mask.sum()), seconds=time.perf_counter() - began)
        row["critic/kl_coef"] = self.kl_coef
        row["tokens"] = values.total([float(batch.rows.mask.sum())])
        reduced: dict[str, Any] = reduce(row)
        self.run.count(tokens=reduced.pop("tokens").number, samples=settings.batch_size * self.ranks)
        if settings.kl_target is not None and "objective/kl" in reduced:
            self.kl_coef = losses.adapted_kl_coef(
                self.kl_coef, reduced["objective/kl"].number, target=settings.kl_target,
                answers=settings.batch_size * self.ranks, horizon=settings.kl_horizon,
            )  # fmt: skip
        rate = float(self.optimizer.param_groups[0]["lr"])
        self.epochs.add(reduced, settings.value_coef, seconds=time.perf_counter() - began, learning_rate=rate)
        self.scheduler.step()
        return reduced

    def collect(self, places: list[int]) -> Experience:
        """Sample an answer to each of these prompts and compute its score and advantages."""
        run, settings, model, accelerator = self.run, self.settings, self.model, self.accelerator
        device, temperature = accelerator.device, settings.temperature
        prompts = [self.prompts[place] for place in places]
        with torch.no_grad():
            with run.timer("rollout"), run.phase("generate") as phase:
                generator = seeded(device, settings.seed, self.step, accelerator.process_index, "sample")
                with sharded.whole(model, accelerator):
                    rows, sampled = model("answers_to", prompts, self.sampling, generator)
                phase.tokens(int(sampled.mask.sum()))
            with run.timer("ref_log_probs_values_reward"):
                with run.phase("compute_log_probs"), accelerator.autocast():
                    reference = answer_stats(self.reference, rows, temperature=temperature).logprobs
                with run.phase("compute_rewards"), accelerator.autocast():
                    scores = self.reward(rows, places).float()
            mask = sampled.mask.float() * (~scores.isnan())[:, None]
            with run.timer("old_log_probs_values"):
                with run.phase("compute_log_probs"):
                    old, _, hidden = model("read_policy", rows, temperature)
                with run.phase("compute_values"):
                    predicted = model("read_values", rows, hidden) * mask
            with run.timer("adv"):
                penalties = self.kl_coef * policy.kl_k1(old, reference)
                rewards = experience.token_rewards(settings, scores.nan_to_num(), sampled.finished, penalties, mask)
                estimate = advantage.gae(rewards, predicted, mask, gamma=settings.gamma, lam=settings.gae_lambda)
                advantages = estimate.advantages
                if settings.whiten:
                    advantages = experience.whitened(accelerator, advantages, mask)
        return Experience(
            rows=rows,
            mask=mask,
            sampled_logprobs=sampled.logprobs,
            old_logprobs=old.float(),
            ref_logprobs=reference.float(),
            values=predicted,
            scores=scores,
            token_rewards=rewards,
            advantages=advantages.float(),
            returns=estimate.returns.float(),
            weights=torch.where(sampled.finished, 1.0, settings.truncated_weight),
            finished=sampled.finished,
        )

    def _learn_from(self, batch: Experience) -> dict[str, Any]:
        """Update the policy with the answers that have a score. If no rank has one, the policy does not change."""
        scored = int(self.accelerator.reduce(batch.is_scored.sum(), "sum"))
        self.unscored_steps = 0 if scored else self.unscored_steps + 1
        if self.unscored_steps >= PATIENCE:
            raise ConfigError(
                f"the reward {self.settings.reward!r} has scored nothing for {self.unscored_steps} steps; the first "
                f"failure is in the warnings. The last checkpoint is {checkpoint.newest(self.folder)}"
            )
        if not scored:
            return {}
        return self.improve(batch) | {"objective/kl": values.mean(experience.kl_of_answers(batch).tolist())}

    def improve(self, batch: Experience) -> dict[str, Any]:
        """Train on a batch for ppo_epochs epochs, with one update per minibatch. Returns the values to log."""
        settings, accelerator = self.settings, self.accelerator
        packs: list[Any] = []
        norms: list[list[Tensor]] = []
        for epoch in range(settings.ppo_epochs):
            for places in self.minibatches(len(batch.mask), settings.minibatch_size, epoch):
                minibatch = batch.take(places)
                # Gradients are averaged over ranks: dividing by the mean count per rank weighs all tokens equally.
                tokens = accelerator.reduce(minibatch.mask.sum(), "sum") / accelerator.num_processes
                parts = minibatch.parts(settings.microbatch_size or settings.minibatch_size)
                norms.append(self.update(parts, partial(self.loss, tokens=tokens, packs=packs)))
        of_policy, of_values = torch.stack([torch.stack(pair) for pair in norms]).unbind(dim=1)
        rates = optim.stats(
            optimizer=self.optimizer, grad_norm=of_policy, names="roll", critic_grad_norm=of_values,
            critic_optimizer=SimpleNamespace(param_groups=self.optimizer.param_groups[1:]),
        )  # fmt: skip
        return {**merge(pack.values() for pack in packs), **rates}

    def loss(self, batch: Experience, *, tokens: Tensor, packs: list[Any]) -> Tensor:
        """The clipped policy loss plus the weighted value loss over some rows. Adds their statistics to `packs`."""
        s = self.settings
        low, high, value_clip = s.clip_range, s.clip_range_high or s.clip_range, s.value_clip or None
        read = self.model("read", batch.rows, s.temperature)
        of_policy = losses.policy_losses(
            read.logprobs, old_logprobs=batch.old_logprobs, advantages=batch.advantages, clip_low=low, clip_high=high,
            dual_clip=s.dual_clip, row_weights=batch.weights, ref_logprobs=batch.ref_logprobs, kl_coef=s.kl_loss_coef,
            entropy=read.entropy, entropy_coef=s.entropy_coef,
        )  # fmt: skip
        of_values, _ = advantage.value_losses(read.values, batch.returns, batch.values, value_clip)
        packs += [
            policy.pack(
                logprobs=read.logprobs, old_logprobs=batch.old_logprobs, ref_logprobs=batch.ref_logprobs,
                rollout_logprobs=batch.sampled_logprobs, advantages=batch.advantages, mask=batch.mask,
                entropy=read.entropy, scores=batch.scores, sample_weights=batch.weights, clip_low=low, clip_high=high,
                dual_clip=s.dual_clip, kl_coef=s.kl_loss_coef, entropy_coef=s.entropy_coef, names="roll",
            ),
            advantage.pack(
                advantages=batch.advantages, returns=batch.returns, values=read.values, old_values=batch.values,
                token_rewards=batch.token_rewards, mask=batch.mask, value_clip=value_clip, names="roll",
            ),
        ]  # fmt: skip
        return losses.summed(of_policy + s.value_coef * of_values, batch.mask) / tokens

    @torch.no_grad()
    def evaluate(self, *, with_texts: bool) -> dict[str, float]:
        """Answer the held-out prompts and log the true score of the answers. Each rank takes its share. `with_texts`
        adds the scores that compare answers with references; they are returned.
        """
        settings, accelerator = self.settings, self.accelerator
        own = range(self.rank, len(self.data.held_out), self.ranks)
        chunks = [own[start : start + settings.batch_size] for start in range(0, len(own), settings.batch_size)]
        generator = seeded(accelerator.device, settings.seed, "evaluation", self.rank)
        answers: list[tuple[str, str]] = []
        grades: list[float | None] = []
        progress = self.run.progress(chunks, evaluating=True, disable=self.is_quiet)
        with sharded.whole(self.model, accelerator), progress as bar:
            for chunk in bar:
                examples = [self.data.held_out[place] for place in chunk]
                prompts = [self.held_out_prompts[place] for place in chunk]
                _, sampled = self.model("answers_to", prompts, self.sampling, generator)
                texts = self.tokenizer.batch_decode(sampled.tokens, skip_special_tokens=True)
                new = list(map(self.grader.grade, examples, texts))
                bar.score([grade for grade in new if grade is not None])
                answers += [(text, example.reference) for example, text in zip(examples, texts, strict=True)]
                grades += new
        known = [grade for grade in grades if grade is not None]
        stats: dict[str, Any] = reduce({
            **rollout.stats(scores=known, stage="eval", names="roll"),
            "eval/right": values.mean([grade == 1.0 for grade in known]),
            "reward.unscorable_fraction": values.mean([float(grade is None) for grade in grades]),
        })  # fmt: skip
        score = stats.get("val/score/mean")
        self.last_score = math.nan if score is None else float(score)
        answers = self.gather(answers)
        if not self.is_main:
            return {}
        texts, references = map(list, zip(*answers, strict=True))
        scores = text_scores(self.scored_texts, texts, references) if with_texts else {}
        shown = [{"answer": answer, "reference": reference} for answer, reference in answers[:SHOWN_ANSWERS]]
        self.run.log_eval({**stats, **scores, "examples": shown}, step=self.step)
        return scores

    # What a checkpoint holds.

    @property
    def language_model(self) -> Any:
        return self.inner.policy

    def state(self) -> dict[str, Any]:
        return {
            "critic": self.inner.critic_state(),
            "kl_coef": self.kl_coef,
            "epoch": self.epochs.sums,
            "first_score": self.first_score,
            "last_score": self.last_score,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.kl_coef, self.epochs = state["kl_coef"], EpochSums(state["epoch"])
        self.first_score, self.last_score = state["first_score"], state["last_score"]

    def restore_weights(self, state: dict[str, Any]) -> None:
        sharded.put_weights(self.inner, state["critic"])

    def _everywhere(self, wish: bool) -> bool:
        """The main process's decision on all ranks, because they must stop at the same step."""
        return self.gather([wish and self.is_main])[0]
