"""The stages before PPO: the model is warmed up on demonstrations, the reward model learns from preferences, and the
critic learns the values of the warmed-up model's answers.

The results are kept in the run's folder (`warm_start/`, `reward_model/`, `critic/`). The first is PPO's reference, and
a resume needs all of them unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlvitals.store.layout import kept_folder
from rlvitals.train import models, sharded
from rlvitals.train.functions import corpus
from rlvitals.train.judge_guard import JudgeGuard
from rlvitals.train.ppo import reward_model
from rlvitals.train.ppo.actor_critic import ActorCritic, AnswerReturns, learn_values, returns_of
from rlvitals.train.ppo.data import Data, Grader, Preference, PromptExample, sampled_preferences
from rlvitals.train.ppo.experience import Reward
from rlvitals.train.ppo.settings import PPOSettings, reward_function
from rlvitals.train.sampling import Answered, Sampling, answers_to
from rlvitals.train.seeds import seeded
from rlvitals.train.supervised import Tokenized, TrainingCourse, warm_up
from rlvitals.train.tiny import build as build_tiny

if TYPE_CHECKING:
    from rlvitals.capture.run import Run

TINY_WIDTH = 96
TINY_WARM_UP = 450
TINY_VALUE_WARM_UP = 200
SAMPLED_PROMPTS = 1024
"""Most prompts that the warmed-up model answers to train the reward model or the critic."""
ANSWERS_A_PROMPT = 3


class Texts:
    """Converts between texts and tokens."""

    def __init__(self, tokenizer: Any, settings: PPOSettings) -> None:
        self.tokenizer = tokenizer
        self.pad_id, self.eos_id = int(tokenizer.pad_token_id), int(tokenizer.eos_token_id)
        self.sampling = Sampling(settings.max_new_tokens, self.eos_id, self.pad_id, settings.temperature)
        self._is_chat = models.is_chat(tokenizer, settings.chat, is_tiny=settings.is_tiny)

    def prompt(self, text: str) -> list[int]:
        """A prompt's tokens, in the model's chat template if chat is enabled."""
        if self._is_chat:
            return models.chat_ids(self.tokenizer, [{"role": "user", "content": text}])
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def answer(self, text: str) -> list[int]:
        """An answer's tokens and the end token."""
        return [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.eos_id]

    def decode(self, answers: Tensor) -> list[str]:
        texts: list[str] = self.tokenizer.batch_decode(answers, skip_special_tokens=True)
        return texts


class Stages:
    """The stages of one run; `results` holds the results to log."""

    def __init__(self, settings: PPOSettings, data: Data, grader: Grader, run: Run, accelerator: Any) -> None:
        self._settings, self._data, self._grader = settings, data, grader
        self._run, self._accelerator, self._is_new_run = run, accelerator, not settings.resume_from
        folder = kept_folder(settings.output_dir)
        self.warm_start, self._judge, self._critic = folder / "warm_start", folder / "reward_model", folder / "critic"
        self.results: dict[str, float] = {}
        self.texts: Texts

    def start(self) -> models.Loaded:
        """The model that PPO starts from, on the CPU."""
        loaded = models.keep(self.warm_start, self._warmed_up, rebuild=self._is_new_run)
        self.texts = Texts(loaded.tokenizer, self._settings)
        self._add_results(loaded.model, {"sft.loss": "warm_up_loss"})
        return loaded

    def reward(self) -> Reward:
        """The function that scores answers: the reward model, the true grade, or the user's function."""
        if self._settings.reward != "model":
            return self._reward_of_texts
        if self._settings.reward_model is None:
            models.write_once(self._judge, self._trained_reward_model, rebuild=self._is_new_run)
        model = sharded.to_read(self._build(self._settings.reward_model or self._judge), self._accelerator)
        self._add_results(model, {"rm.accuracy": "held_out_accuracy", "rm.margin": "held_out_margin"})
        return _reward_by(model)

    def critic(self) -> Any:
        """The initial critic, in the format of a reward model; see `ActorCritic.begin_values`."""
        models.write_once(self._critic, self._trained_critic, rebuild=self._is_new_run)
        return self._build(self._critic)

    @cached_property
    def _reward_of_texts(self) -> Reward:
        """Shared by the critic and PPO, so that its guard does not log the same failure twice."""
        wanted = self._settings.reward
        guard, score = JudgeGuard(f"the reward {wanted!r}"), None if wanted == "grade" else reward_function(wanted)

        def ask(asked: Sequence[tuple[PromptExample, str]]) -> list[float]:
            examples, texts = [example for example, _ in asked], [text for _, text in asked]
            found: Sequence[float | None] = (
                list(map(self._grader.grade, examples, texts))
                if score is None
                else score([each.prompt for each in examples], texts, [each.reference for each in examples])
            )
            return [math.nan if number is None else float(number) for number in found]

        def of_texts(rows: Answered, places: list[int]) -> Tensor:
            answers = self.texts.decode(rows.ids[:, -rows.width :])
            asked = [(self._data.examples[place], text) for place, text in zip(places, answers, strict=True)]
            return torch.tensor(guard.judge(ask, asked, missing=lambda _: math.nan), device=rows.ids.device)

        return of_texts

    def _warmed_up(self) -> models.Loaded:
        settings, data = self._settings, self._data
        loaded = self._tiny() if settings.is_tiny else models.load(settings.model, settings.model_size)
        if steps := self._steps(settings.warm_up_steps, TINY_WARM_UP):
            texts = Texts(loaded.tokenizer, settings)
            loaded.model.to(self._accelerator.device)
            pairs = Tokenized(data.demonstrations, lambda pair: (texts.prompt(pair[0]), texts.answer(pair[1])))
            rate = settings.warm_up_learning_rate or (3e-3 if settings.is_tiny else 1e-5)
            with self._course("warm-up", steps, settings.warm_up_batch, rate) as course:
                loaded.model.config.warm_up_loss = warm_up(loaded.model, pairs, course, texts.pad_id)
            loaded.model.to("cpu")
        return loaded

    def _tiny(self) -> models.Loaded:
        """A tiny model whose tokenizer covers all texts of the data."""
        data, settings = self._data, self._settings
        pairs = (*data.preferences, *data.held_out_preferences)
        texts = [text for example in (*data.examples, *data.held_out) for text in (example.prompt, example.reference)]
        texts += [text for pair in pairs for text in (pair.prompt, pair.chosen, pair.rejected)]
        pieces = texts if settings.dataset else corpus()
        context = 2 * max(map(len, texts)) + settings.max_new_tokens
        return models.Loaded(*build_tiny(pieces, width=TINY_WIDTH, context=context, seed=settings.seed))

    def _trained_reward_model(self) -> models.Loaded:
        settings, pad_id = self._settings, self.texts.pad_id
        model = self._build(self.warm_start).to(self._accelerator.device)
        preferences = list(self._data.preferences)
        unseen = [*self._data.held_out_preferences]
        batch, steps = settings.reward_model_batch, settings.reward_model_steps
        if settings.dataset is None:
            prompts = min(SAMPLED_PROMPTS, steps * batch)  # more would not be used
            preferences += self._compared(self._data.examples[:prompts])
            unseen += self._compared(self._data.held_out)
        rate = settings.reward_model_learning_rate or (1e-3 if settings.is_tiny else 1e-5)
        with self._course("reward model", steps, batch, rate) as course:
            encoded = Tokenized(preferences, self._encode)
            reward_model.learn(model, encoded, course, pad_id, settings.reward_model_noise)
        pairs = list(map(self._encode, unseen))
        chosen, rejected = reward_model.scores_of_pairs(model, pairs, batch_size=batch, pad_id=pad_id)
        model.config.held_out_accuracy = reward_model.accuracy(chosen, rejected)
        model.config.held_out_margin = float((chosen - rejected).mean())
        reward_model.calibrate(model, torch.cat([chosen, rejected]))
        return models.Loaded(model, self.texts.tokenizer)

    def _trained_critic(self) -> models.Loaded:
        """The critic, trained unsharded on the main process."""
        settings, device = self._settings, self._accelerator.device
        is_judge = settings.reward == "model" and settings.reward_model is None
        model = self._build(self._judge if is_judge else self.warm_start)
        if not is_judge:
            torch.nn.init.zeros_(model.score.weight)  # every state has the initial value 0
        if steps := self._steps(settings.value_warm_up_steps, TINY_VALUE_WARM_UP):
            policy = models.load(str(self.warm_start), None).model.to(device)
            inner = ActorCritic(policy, is_separate=True).to(device)
            inner.begin_values(model)
            if settings.reward == "model":
                reward = _reward_by(self._build(settings.reward_model or self._judge).to(device))
            else:
                reward = self._reward_of_texts
            answers = self._first_answers(policy, reward, steps)
            rate = settings.value_learning_rate or (1e-3 if settings.is_tiny else 1e-5)
            with self._course("critic", steps, 1, rate) as course:
                learn_values(inner, answers, course)
            inner.put_values(model)
        return models.Loaded(model, self.texts.tokenizer)

    def _first_answers(self, policy: Any, reward: Reward, most: int) -> list[AnswerReturns]:
        """At most `most` batches of the initial policy's answers, with their returns."""
        settings, found = self._settings, []
        generator = seeded(self._accelerator.device, settings.seed, "first answers")
        places = list(range(min(SAMPLED_PROMPTS, len(self._data.examples)))) * ANSWERS_A_PROMPT
        for start in range(0, min(len(places), most * settings.batch_size), settings.batch_size):
            chunk = places[start : start + settings.batch_size]
            prompts = [self.texts.prompt(self._data.examples[place].prompt) for place in chunk]
            rows, sampled = answers_to(policy, prompts, self.texts.sampling, generator)
            found.append(returns_of(rows, sampled, reward(rows, chunk).float(), settings))
        return found

    def _compared(self, examples: list[PromptExample]) -> list[Preference]:
        """Preferences over the warmed-up model's own answers: the mistakes that the reward model must score."""
        settings, device, answers = self._settings, self._accelerator.device, list[str]()
        model = models.load(str(self.warm_start), None).model.to(device)
        generator = seeded(device, settings.seed, "compared", len(examples))
        for start in range(0, len(examples), settings.batch_size):
            prompts = [self.texts.prompt(example.prompt) for example in examples[start : start + settings.batch_size]]
            each_several_times = [prompt for prompt in prompts for _ in range(ANSWERS_A_PROMPT)]
            _, sampled = answers_to(model, each_several_times, self.texts.sampling, generator)
            answers += self.texts.decode(sampled.tokens)
        groups = [answers[place : place + ANSWERS_A_PROMPT] for place in range(0, len(answers), ANSWERS_A_PROMPT)]
        return sampled_preferences(examples, groups, self._grader)

    def _steps(self, given: int | None, of_tiny: int) -> int:
        """The number of steps of a stage. By default only a tiny model makes any."""
        return given if given is not None else of_tiny if self._settings.is_tiny else 0

    def _build(self, folder: Path | str) -> Any:
        return reward_model.build(str(folder), self.texts.pad_id)

    def _encode(self, pair: Preference) -> reward_model.Preferred:
        texts = self.texts
        return texts.prompt(pair.prompt), texts.answer(pair.chosen), texts.answer(pair.rejected)

    def _add_results(self, model: Any, names: dict[str, str]) -> None:
        """Read the results of a stage from the model's config, where a resume finds them too."""
        found = {name: getattr(model.config, key, None) for name, key in names.items()}
        self.results |= {name: value for name, value in found.items() if value is not None}

    @contextmanager
    def _course(self, what: str, steps: int, batch_size: int, learning_rate: float) -> Iterator[TrainingCourse]:
        """The course of a stage, with a progress bar."""
        is_quiet = self._settings.is_quiet or not self._accelerator.is_main_process
        with self._run.progress(range(steps), unit="step", disable=is_quiet) as bar:
            waiting = iter(bar)
            next(waiting, None)

            def advance(step: int, loss: float) -> None:
                bar.set(loss=loss)
                next(waiting, None)

            yield TrainingCourse(steps, batch_size, learning_rate, seeded("cpu", self._settings.seed, what), advance)


def _reward_by(model: Any) -> Reward:
    return lambda rows, places: reward_model.scores(model, rows)
