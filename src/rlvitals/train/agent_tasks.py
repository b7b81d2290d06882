"""What an agent is asked: questions with their mailbox, for training and held out, from the seed and the step alone.

`mini` has a new small mailbox for every question of training; `generated` one large mailbox with held-out projects; a
file is one's own mail (mbox, the Enron CSV, or a mailbox that `Mailbox.build` wrote), with questions of one's own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rlvitals.errors import ConfigError
from rlvitals.train.mailbox import generate, load, mini
from rlvitals.train.mailbox.episode import Episode, Style
from rlvitals.train.mailbox.grade import OFFLINE, Grader, Judge
from rlvitals.train.mailbox.records import Question
from rlvitals.train.mailbox.store import Mailbox
from rlvitals.train.seeds import batch_places

if TYPE_CHECKING:
    from rlvitals.train.grpo_settings import Settings

HELD_OUT_WORLDS = 5
"""Questions that share a mini mailbox when they are held out."""

FAMILIES = frozenset({*mini.RELATIONS, "room_of_lead", "phone_of_lead"})
"""Of the mini mailbox."""

DISTRACTORS = 3
"""In the simple mode: messages that are read out beside those the answer rests on."""


@dataclass(frozen=True, slots=True)
class Task:
    """One question and where its answer is to be found."""

    question: Question
    mailbox: Mailbox


class Tasks(Protocol):
    """Where questions come from."""

    @property
    def held_out(self) -> Sequence[Task]:
        """The questions that are only evaluated on."""
        ...

    def batch(self, step: int, count: int, attempt: int) -> list[Task]:
        """The questions of a step (from 1); `attempt` counts the times that more were asked for in it."""
        ...


class MiniTasks:
    """A mailbox of its own for every question."""

    def __init__(self, seed: int, held_out: int, families: tuple[str, ...]) -> None:
        self._seed, self._families = seed, families or None
        if unknown := set(families) - FAMILIES:
            raise ConfigError(
                f"families: the mini mailbox has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(FAMILIES))}"
            )
        worlds = (mini.mini(number, split="held_out", families=self._families) for number in range(held_out))
        self.held_out: list[Task] = []
        for world in worlds:
            if len(self.held_out) >= held_out:
                world.mailbox.close()
                break
            self.held_out += [Task(question, world.mailbox) for question in world.questions[:HELD_OUT_WORLDS]]
        del self.held_out[held_out:]
        self._open: list[Mailbox] = []

    def batch(self, step: int, count: int, attempt: int) -> list[Task]:
        while self._open and not attempt:  # those of the step before
            self._open.pop().close()
        rng = random.Random(f"tasks {self._seed} {step} {attempt}")  # noqa: S311
        worlds = [mini.mini(rng.getrandbits(40), families=self._families) for _ in range(count)]
        self._open += [world.mailbox for world in worlds]
        return [Task(world.questions[0], world.mailbox) for world in worlds]


class ListedTasks:
    """Questions about one mailbox, in shuffled decks."""

    def __init__(self, mailbox: Mailbox, training: Sequence[Question], held_out: Sequence[Question], seed: int) -> None:
        if not training or not held_out:
            raise ConfigError(
                f"GRPO needs questions to train on and to hold out; there are {len(training)} and {len(held_out)}"
            )
        self._mailbox, self._training, self._seed = mailbox, training, seed
        self.held_out = [Task(question, mailbox) for question in held_out]

    def batch(self, step: int, count: int, attempt: int) -> list[Task]:
        places = batch_places(step, count, len(self._training), self._seed, *([attempt] if attempt else []))
        return [Task(self._training[place], self._mailbox) for place in places]


def tasks_of(settings: Settings) -> Tasks:
    """The questions that the settings ask for."""
    if settings.mailbox == "mini":
        return MiniTasks(settings.seed, settings.held_out, settings.families)
    if settings.mailbox == "generated":
        mailbox, asked = generate.generate(settings.messages, seed=settings.seed)
        asked = [question for question in asked if not settings.families or question.family in settings.families]
        held_out = [question for question in asked if generate.is_held_out(question)]
        training = [question for question in asked if not generate.is_held_out(question)]
        return ListedTasks(mailbox, training, _shuffled(held_out, settings.seed)[: settings.held_out], settings.seed)
    if settings.questions is None:
        raise ConfigError("a mailbox of one's own needs questions: a JSONL file, see docs/mailbox.md")
    asked = _shuffled(load.read_questions(settings.questions), settings.seed)
    return ListedTasks(
        _own_mailbox(settings.mailbox), asked[settings.held_out :], asked[: settings.held_out], settings.seed
    )


def _own_mailbox(name: str) -> Mailbox:
    suffix = Path(name).suffix.lower()
    if suffix == ".csv":
        return Mailbox.build(load.read_enron_csv(name))
    if suffix in (".mbox", ".mbx"):
        return Mailbox.build(load.read_mbox(name))
    return Mailbox.open(name)


def _shuffled(questions: list[Question], seed: int) -> list[Question]:
    return random.Random(f"questions {seed}").sample(questions, len(questions))  # noqa: S311


def grader_of(settings: Settings) -> Grader:
    """Who says whether an answer is right."""
    if settings.grader != "judge":
        return OFFLINE[settings.grader]
    from rlvitals.train.teachers.client import JudgeClient

    return Judge(JudgeClient(settings.judge_url or "", settings.judge_model or "", key_variable=settings.judge_key))


class SimpleEpisode(Episode):
    """A question whose messages are read out with it, among others, and that is answered in one message."""

    def messages(self) -> list[dict[str, object]]:
        begun = super().messages()
        texts = [str(seen) for seen in self._read_out()]
        if self._style == "tags":
            return [*begun, *({"role": "tool", "content": text} for text in texts)]
        begun[-1] = {"role": "user", "content": "\n\n".join([*texts, self.question.question])}
        return begun

    def _read_out(self) -> list[str]:
        rng = random.Random(f"read out {self.question.id}")  # noqa: S311
        wanted = list(self.question.message_ids)
        words = [self.question.searches[0][0]] if self.question.searches else []
        near = self._toolbox.call("search_emails", {"keywords": words}).message_ids if words else ()
        chosen = [*wanted, *[other for other in near if other not in wanted][:DISTRACTORS]]
        rng.shuffle(chosen)
        bodies = []
        for message_id in chosen:
            found = self._toolbox.call("read_email", {"message_id": message_id}).content
            body = str(found.get("body", ""))
            bodies.append(f"{message_id} {body}" if self._style == "tags" else f"[{message_id}]\n{body}")
        return bodies


def episode_of(task: Task, settings: Settings, grader: Grader, style: Style) -> Episode:
    """One attempt at a task."""
    kind, turns = (SimpleEpisode, 1) if settings.mode == "simple" else (Episode, settings.max_turns)
    return kind(task.question, task.mailbox, max_turns=turns, grader=grader, style=style)
