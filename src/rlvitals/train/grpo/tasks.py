"""An agent's questions with their mailboxes, for training and held out. They depend only on the seed and the step.

`mini` has a new small mailbox for every training question. `generated` is one large mailbox with held-out projects. A
file contains the user's mail (mbox, the Enron CSV, or a mailbox that `Mailbox.build` wrote); the user also provides
the questions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rlvitals.errors import ConfigError
from rlvitals.train.grpo.settings import GRPOSettings
from rlvitals.train.mailbox.episode import Episode, SimpleEpisode
from rlvitals.train.mailbox.graders import OFFLINE, Grader, ModelGrader, token_recall
from rlvitals.train.mailbox.mail import Question, read_enron_csv, read_mbox, read_questions
from rlvitals.train.mailbox.store import Mailbox
from rlvitals.train.mailbox.worlds import FAMILIES, generate, is_held_out, mini
from rlvitals.train.seeds import batch_places
from rlvitals.train.teachers.endpoint import JudgeClient

QUESTIONS_A_WORLD = 5
"""Number of held-out questions that share a mini mailbox."""


class QuestionTask(NamedTuple):
    """One question and the mailbox that contains its answer."""

    question: Question
    mailbox: Mailbox

    def episode(self, settings: GRPOSettings, grader: Grader = token_recall) -> Episode:
        """A new attempt at the question."""
        kind, turns = (SimpleEpisode, 1) if settings.mode == "simple" else (Episode, settings.max_turns)
        return kind(self.question, self.mailbox, max_turns=turns, grader=grader, style=settings.style)


class MiniTasks:
    """Questions about mini mailboxes: each training question has its own. `held_out` are used only for evaluations."""

    def __init__(self, seed: int, held_out: int, families: tuple[str, ...]) -> None:
        if unknown := set(families) - FAMILIES:
            raise ConfigError(
                f"families: the mini mailbox has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(FAMILIES))}"
            )
        self._seed, self._families = seed, families
        self.held_out: list[QuestionTask] = []
        for number in range(held_out):
            if len(self.held_out) < held_out:
                box, questions = mini(number, split="held_out", families=families)
                self.held_out += [QuestionTask(question, box) for question in questions[:QUESTIONS_A_WORLD]]
        del self.held_out[held_out:]

    def batch(self, step: int, count: int, attempt: int) -> list[QuestionTask]:
        """The questions of a step (from 1). `attempt` counts the requests for more questions in the same step."""
        rng = random.Random(f"tasks {self._seed} {step} {attempt}")  # noqa: S311
        worlds = [mini(rng.getrandbits(40), families=self._families) for _ in range(count)]
        return [QuestionTask(world.questions[0], world.mailbox) for world in worlds]


class ListedTasks:
    """Questions about one mailbox, in shuffled order. All are used once before any repeats."""

    def __init__(self, mailbox: Mailbox, training: Sequence[Question], held_out: Sequence[Question], seed: int) -> None:
        if not training or not held_out:
            raise ConfigError(
                f"GRPO needs questions to train on and to hold out; there are {len(training)} and {len(held_out)}"
            )
        self._mailbox, self._training, self._seed = mailbox, training, seed
        self.held_out = [QuestionTask(question, mailbox) for question in held_out]

    def batch(self, step: int, count: int, attempt: int) -> list[QuestionTask]:
        """As that of `MiniTasks`."""
        places = batch_places(step, count, len(self._training), self._seed, *([attempt] if attempt else []))
        return [QuestionTask(self._training[place], self._mailbox) for place in places]


Tasks = MiniTasks | ListedTasks


def tasks_of(settings: GRPOSettings) -> Tasks:
    """The questions that the settings select."""
    seed, held_out = settings.seed, settings.held_out
    if settings.mailbox == "mini":
        return MiniTasks(seed, held_out, settings.families)
    rng = random.Random(f"questions {seed}")  # noqa: S311
    if settings.mailbox == "generated":
        mailbox, made = generate(settings.messages, seed=seed)
        asked = [question for question in made if not settings.families or question.family in settings.families]
        kept_aside = [question for question in asked if is_held_out(question)]
        training = [question for question in asked if not is_held_out(question)]
        return ListedTasks(mailbox, training, rng.sample(kept_aside, len(kept_aside))[:held_out], seed)
    if settings.questions is None:
        raise ConfigError("your own mailbox needs questions: a JSONL file, see docs/mailbox.md")
    asked = read_questions(settings.questions)
    asked = rng.sample(asked, len(asked))
    return ListedTasks(_own_mailbox(settings.mailbox), asked[held_out:], asked[:held_out], seed)


def _own_mailbox(name: str) -> Mailbox:
    suffix = Path(name).suffix.lower()
    if suffix == ".csv":
        return Mailbox.build(read_enron_csv(name))
    return Mailbox.build(read_mbox(name)) if suffix in (".mbox", ".mbx") else Mailbox.open(name)


def grader_of(settings: GRPOSettings) -> Grader:
    """The grader that decides whether an answer is right."""
    if settings.grader != "judge":
        return OFFLINE[settings.grader]
    return ModelGrader(
        JudgeClient(settings.judge_url or "", settings.judge_model or "", key_variable=settings.judge_key)
    )
