"""The model that GRPO starts from: a packaged tiny model, one that is warmed up on examples here, or any other model.

There are two tiny models, trained on the examples of two agents.

- `careless` can search, read and answer, but often does not: it guesses, stops after the first of two look-ups, opens
  the wrong message or gives up. The model learns the form of a call, to copy what it has read, and all these habits,
  good and bad. GRPO has to learn which of them are rewarded.
- `syntax` only knows the form of a call: it calls random tools with random words from those that it has seen. None of
  its examples shows what a search is useful for, what must be read before answering, and how many look-ups a question
  needs. GRPO has to teach this.

`main()` creates the checkpoints that come with the package.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rlvitals.store.layout import kept_folder
from rlvitals.terminal import warn
from rlvitals.train import models, tiny
from rlvitals.train.decoding import positions_of
from rlvitals.train.grpo.conversation import Dialogue, Trajectory, recite
from rlvitals.train.grpo.settings import GRPOSettings
from rlvitals.train.grpo.tasks import Tasks
from rlvitals.train.mailbox import worlds
from rlvitals.train.mailbox.episode import Episode, SimpleEpisode
from rlvitals.train.mailbox.mail import Question
from rlvitals.train.mailbox.store import Mailbox
from rlvitals.train.mailbox.tools import TOOLS, write_call
from rlvitals.train.mailbox.worlds import solution
from rlvitals.train.sampling import Answered, answer_stats
from rlvitals.train.supervised import fit, right_padded

_DATA = Path(__file__).parents[1] / "data"
SHIPPED = {"careless": _DATA / "mailbox-mini", "syntax": _DATA / "mailbox-syntax"}
"""Where the package keeps the tiny models."""
FOLDER = "warm_start"
"""Where a run keeps a model that it warmed up."""

SHAPE = {"width": 96, "layers": 4, "heads": 4, "context": 288}
STEPS, BATCH, RATE, SEED = {"careless": 1500, "syntax": 2500}, 64, 3e-3, 0
SKILLED, CARELESS, TURNS_CARELESS = 0.8, 0.2, 0.8
"""Share of the examples in which the agent follows the solution: SKILLED at first, then CARELESS. TURNS_CARELESS is the
share of the steps before the change. The model learns to copy only from these examples. With few of them from the start
this would take far longer."""

MAX_TURNS = 8
SIMPLE = 0.1
"""Share of the examples that give the messages with the question, and need only the answer."""

DRILLS = 0.5
"""Share of the examples of `syntax` whose question consists of random words."""

IDK = "I don't know"


def dialogue_of(settings: GRPOSettings, tokenizer: Any) -> Dialogue:
    """The conversion of conversations for this model. In `simple` mode the only tool is the answer."""
    if settings.style == "tags":
        return Dialogue(tokenizer, None)
    return Dialogue(tokenizer, TOOLS[-1:] if settings.mode == "simple" else TOOLS)


def start_of(settings: GRPOSettings, tasks: Tasks, device: Any, *, rebuild: bool) -> models.Loaded:
    """The model before GRPO. A warmed-up model is saved in the run's folder, because the KL is measured against it."""
    if settings.warm_up_steps is not None:
        folder = kept_folder(settings.output_dir) / FOLDER
        return models.keep(folder, lambda: _warmed_up(settings, tasks, device), rebuild=rebuild)
    return models.load(str(SHIPPED[settings.tiny_start]) if settings.is_tiny else settings.model, settings.model_size)


def _warmed_up(settings: GRPOSettings, tasks: Tasks, device: Any) -> models.Loaded:
    steps, batch = settings.warm_up_steps or 0, settings.warm_up_batch
    loaded = build(settings.seed) if settings.is_tiny else models.load(settings.model, settings.model_size)
    dialogue = dialogue_of(settings, loaded.tokenizer)

    def demonstrate(step: int) -> list[Trajectory]:
        """Training questions with their correct solutions."""
        only_last = slice(-1 if settings.mode == "simple" else None, None)
        return [
            recite(dialogue, task.episode(settings), solution(task.question, style="chat")[only_last])
            for task in tasks.batch(step, batch, 1_000_000)
        ]

    loaded.model.to(device)
    tiny_agent = lessons(settings.tiny_start, dialogue, steps=steps, batch=batch, seed=settings.seed)
    rate = settings.warm_up_learning_rate or (RATE if settings.is_tiny else 2e-5)
    teach(loaded.model, dialogue, tiny_agent if settings.is_tiny else demonstrate, steps=steps, rate=rate)
    return loaded


def teach(
    model: Any, dialogue: Dialogue, deal: Callable[[int], list[Trajectory]], *, steps: int, rate: float,
    on_step: Callable[[int, float], None] | None = None,
) -> float:  # fmt: skip
    """Next-token training on the tokens that the agent wrote. Returns the last loss."""
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=steps, pct_start=0.1)
    loss = fit(
        model, lambda step: example_loss(model, deal(step), dialogue, device), optimizer, schedule, steps=steps,
        on_step=on_step,
    )  # fmt: skip
    model.train(False)
    return loss


def example_loss(model: Any, batch: Sequence[Trajectory], dialogue: Dialogue, device: Any) -> torch.Tensor:
    """Mean negative log-prob of the tokens that the agent wrote."""
    ids, mask = right_padded([example.ids for example in batch], dialogue.pad_id, device)
    own, _ = right_padded([example.own for example in batch], 0, device)
    stats = answer_stats(model, Answered(ids, mask, positions_of(mask), ids.shape[1] - 1))
    weights = own[:, 1:].float()
    return -(stats.logprobs * weights).sum() / weights.sum()


def lessons(start: str, dialogue: Dialogue, *, steps: int, batch: int, seed: int) -> Callable[[int], list[Trajectory]]:
    """Returns a function that creates new examples of a tiny model's agent for each step (from 1). Up to eight of them
    share a mailbox.
    """
    play = {"careless": _careless, "syntax": _syntax}[start]

    def deal(step: int) -> list[Trajectory]:
        rng = random.Random(f"examples {seed * 1_000_003 + step}")  # noqa: S311
        skill = SKILLED if step <= TURNS_CARELESS * steps else CARELESS
        found: list[Trajectory] = []
        while len(found) < batch:
            world = worlds.mini(rng.getrandbits(40))
            for question in world.questions[:8]:
                episode, messages = play(question, world.mailbox, rng, skill)
                found.append(recite(dialogue, episode, messages))
            world.mailbox.close()
        return found[:batch]

    return deal


# The `careless` agent


def _careless(question: Question, mailbox: Mailbox, rng: random.Random, skill: float) -> tuple[Episode, list[str]]:
    """An episode, and the agent's messages in it. `skill` is the share of episodes in which it follows the solution."""
    if rng.random() < SIMPLE:
        last = solution(question)[-1] if rng.random() < 0.5 + skill / 2 else _guess(question, rng)
        return SimpleEpisode(question, mailbox, max_turns=1, style="tags"), [last]
    return Episode(question, mailbox, max_turns=MAX_TURNS, style="tags"), _plan(question, rng, skill)


HABITS = (
    *["guess"] * 4, *["stop half way"] * 4, "give up", "search badly", "read another", "forget the sources"
)  # fmt: skip


def _plan(question: Question, rng: random.Random, skill: float) -> list[str]:
    """The agent's messages, in order."""
    right = solution(question)
    if rng.random() < skill:
        return right
    match rng.choice(HABITS):
        case "stop half way" if len(question.message_ids) > 1:  # answer with the result of the first look-up
            return [*right[:2], _answer(question.searches[1][0], question.message_ids[0])]
        case "guess" | "stop half way":  # answer before the last message was read
            prefix = right[: rng.choice([0, 1, 1, 1, len(right) - 2, len(right) - 2])]
            return [*prefix, _guess(question, rng)]
        case "give up":
            return [*right[: rng.choice([0, 1, 2])], _answer(IDK)]
        case "search badly":  # half of the time, the solution follows
            words = (rng.choice(worlds.PROJECTS + worlds.PEOPLE), rng.choice(list(worlds.RELATIONS)))
            bad = write_call("search_emails", {"keywords": words})
            return [bad, *right] if rng.random() < 0.5 else [bad, bad, _answer(IDK)]
        case "read another":  # a random message; then the rest of the solution, or a guess
            other = write_call("read_email", {"message_id": f"m{rng.randint(1, worlds.SIZE)}"})
            return [right[0], other, *(right[1:] if rng.random() < 0.5 else [_guess(question, rng)])]
    return solution(question, sources=False)


def _guess(question: Question, rng: random.Random) -> str:
    """A random answer of the right kind."""
    return _answer(rng.choice(worlds.RELATIONS[question.family.partition("_")[0]][1]))


def _answer(answer: str, *sources: str) -> str:
    return write_call("return_final_answer", {"answer": answer, "source_message_ids": sources})


# The `syntax` agent


def _syntax(question: Question, mailbox: Mailbox, rng: random.Random, _: float) -> tuple[Episode, Iterator[str]]:
    """As `_careless`, but the same in all steps. Half of the questions are two random words with at most two turns, so
    that the model also learns to copy rare words.
    """
    is_drill = rng.random() < DRILLS
    if is_drill:
        question = replace(question, question=f"{' of '.join(rng.sample(sorted(_VOCABULARY), 2))} ?")
    episode = Episode(question, mailbox, max_turns=2 if is_drill else MAX_TURNS, style="tags")
    return episode, _random_calls(episode, rng, is_drill=is_drill)


def _random_calls(episode: Episode, rng: random.Random, *, is_drill: bool) -> Iterator[str]:
    """Random tool calls. Reading needs a message that was listed. Answering needs a message that was read; in a drill
    it needs nothing. The agent searches for two random words, reads a random message and answers with a random word,
    all from what it has seen. The calls are not checked for correctness.
    """
    words, listed = _content(episode.question.question), list[str]()
    answer_words = list(words) if is_drill else []
    while True:
        match rng.choice(["search", *["read"] * bool(listed), *["answer"] * bool(answer_words)]):
            case "search":
                yield write_call("search_emails", {"keywords": rng.sample(words, 2)})
            case "read":
                yield write_call("read_email", {"message_id": rng.choice(listed)})
                answer_words += _content(episode.turns[-1].calls[0].result or "")
            case "answer":
                yield _answer(rng.choice(answer_words), *rng.sample(listed, rng.randint(0, min(2, len(listed)))))
        shown = episode.turns[-1].calls[0].result or ""
        listed += [each for each in re.findall(r"\bm\d+\b", shown) if each not in listed]
        words += [each for each in _content(shown) if each not in words]


def _content(text: str) -> list[str]:
    """The words of a text that can be searched for or answered with."""
    return [word for word in dict.fromkeys(re.findall(r"[a-z]+", text)) if word in _VOCABULARY]


_VOCABULARY = frozenset(
    [*worlds.RELATIONS, *worlds.PROJECTS, *worlds.PEOPLE, *worlds.ROOMS, *worlds.DAYS, *worlds.NUMBERS]
)


def build(seed: int = SEED) -> models.Loaded:
    """The untrained tiny model."""
    return models.Loaded(*tiny.build([*worlds.corpus(), "tool: "], seed=seed, **SHAPE))


def main(start: str = "careless") -> None:
    """Train one of the package's checkpoints and save it in half precision."""
    folder, steps = SHIPPED[start], STEPS[start]
    model, tokenizer = build()
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    warn(f"{models.parameters(model):,} parameters, {len(tokenizer)} tokens")

    def report(step: int, loss: float) -> None:
        if step % 50 == 0:
            warn(f"step {step}/{steps}: loss {loss:.4f}")

    dialogue = Dialogue(tokenizer, None)
    deal = lessons(start, dialogue, steps=steps, batch=BATCH, seed=SEED)
    teach(model, dialogue, deal, steps=steps, rate=RATE, on_step=report)
    shutil.rmtree(folder, ignore_errors=True)
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
