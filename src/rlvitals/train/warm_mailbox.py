"""The tiny model that GRPO starts from on the mini mailbox: `python -m rlvitals.train.warm_mailbox [FOLDER]`.

It is taught by examples of an agent that knows how to search, read and answer, and mostly does not bother: it
guesses, stops after the first of two look-ups, opens the wrong message, gives up. The model learns the form of a
call, to copy what it has read, and all these habits, good and bad. Which of them pay is what GRPO is to find out.

Without FOLDER it writes the checkpoint that comes with the package.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from rlvitals.terminal import warn
from rlvitals.train import models, tiny
from rlvitals.train.agent_dialogue import Dialogue
from rlvitals.train.agent_tasks import SimpleEpisode
from rlvitals.train.mailbox import mini
from rlvitals.train.mailbox.calls import write_call
from rlvitals.train.mailbox.episode import Episode
from rlvitals.train.mailbox.records import Question
from rlvitals.train.sampling import Answered, answer_stats, positions_of
from rlvitals.train.supervised import right_padded

SHIPPED = Path(__file__).parent / "data" / "mailbox-mini"
"""Where the package keeps it."""

SHAPE = {"width": 96, "layers": 4, "heads": 4, "context": 288}
STEPS, BATCH, RATE, SEED = 1500, 64, 3e-3, 0
SKILLED, CARELESS, TURNS_CARELESS = 0.8, 0.2, 0.8
"""Share of the examples in which the agent does what it knows is right, at first and later, and when it changes. To
copy is learnt from those alone, and would take far longer if they were few from the beginning."""

MAX_TURNS = 8
SIMPLE = 0.1
"""Share of the examples in which the messages are read out with the question, and answered at once."""


def build(seed: int = SEED) -> models.Loaded:
    """The model before it has learnt anything."""
    texts = [*mini.corpus(), "tool: "]
    return models.Loaded(*tiny.build(texts, seed=seed, **SHAPE))


class Example:
    """One conversation as tokens, and which of them the agent wrote."""

    def __init__(self, dialogue: Dialogue, episode: Episode, messages: Sequence[str]) -> None:
        self.ids = dialogue.begin(episode.messages())
        self.own = [0] * len(self.ids)
        for text in messages:
            written = [*dialogue.tokenizer(text, add_special_tokens=False)["input_ids"], dialogue.eos_id]
            self.ids += written
            self.own += [1] * len(written)
            seen = episode.step(text)
            if episode.is_over:
                break
            read = dialogue.go_on(seen, has_ended=True)
            self.ids += read
            self.own += [0] * len(read)


def examples(dialogue: Dialogue, count: int, *, seed: int, skill: float) -> list[Example]:
    """Conversations of the agent that knows how and does not always care, each of a mailbox and question of its own."""
    rng = random.Random(f"examples {seed}")  # noqa: S311
    found: list[Example] = []
    while len(found) < count:
        world = mini.mini(rng.getrandbits(40))
        for question in world.questions[:8]:
            is_simple = rng.random() < SIMPLE
            kind, turns = (SimpleEpisode, 1) if is_simple else (Episode, MAX_TURNS)
            episode = kind(question, world.mailbox, max_turns=turns, style="tags")
            said = _answered_at_once(question, rng, skill) if is_simple else _plan(question, rng, skill)
            found.append(Example(dialogue, episode, said))
        world.mailbox.close()
    return found[:count]


def _answered_at_once(question: Question, rng: random.Random, skill: float) -> list[str]:
    """As `_plan`, where everything has been read out."""
    return (
        mini.solution(question)[-1:]
        if rng.random() < 0.5 + skill / 2
        else [_answer(rng.choice(_kind_of(question)), [])]
    )


def _plan(question: Question, rng: random.Random, skill: float) -> list[str]:
    """What the agent says, message by message."""
    right = mini.solution(question)
    if rng.random() < skill:
        return right
    habit = rng.choice(_HABITS)
    return habit(question, right, rng)


def _guess(question: Question, right: list[str], rng: random.Random) -> list[str]:
    """Answer after a look-up too few, with anything of the right kind."""
    told = right[: rng.choice([0, 1, 1, 1, len(right) - 2, len(right) - 2])]
    return [*told, _answer(rng.choice(_kind_of(question)), [])]


def _stop_half_way(question: Question, right: list[str], rng: random.Random) -> list[str]:
    """Of two look-ups make one and take what it says for the answer."""
    if len(question.message_ids) == 1:
        return _guess(question, right, rng)
    return [*right[:2], _answer(question.searches[1][0], [question.message_ids[0]])]


def _give_up(question: Question, right: list[str], rng: random.Random) -> list[str]:
    return [*right[: rng.choice([0, 1, 2])], _answer("I don't know", [])]


def _search_badly(question: Question, right: list[str], rng: random.Random) -> list[str]:
    """Search for something else first; half of the time do it properly afterwards."""
    words = (rng.choice(mini.PROJECTS + mini.PEOPLE), rng.choice(list(mini.RELATIONS)))
    bad = write_call("search_emails", {"keywords": words})
    return [bad, *right] if rng.random() < 0.5 else [bad, bad, _answer("I don't know", [])]


def _read_another(question: Question, right: list[str], rng: random.Random) -> list[str]:
    """Open a message that no search gave, and then the right one or none."""
    other = write_call("read_email", {"message_id": f"m{rng.randint(1, mini.SIZE)}"})
    after = right[1:] if rng.random() < 0.5 else [_answer(rng.choice(_kind_of(question)), [])]
    return [right[0], other, *after]


def _forget_sources(question: Question, right: list[str], rng: random.Random) -> list[str]:
    return mini.solution(question, sources=False)


_HABITS = (
    *(4 * [_guess]), *(4 * [_stop_half_way]), _give_up, _search_badly, _read_another, _forget_sources
)  # fmt: skip


def _answer(answer: str, sources: list[str]) -> str:
    return write_call("return_final_answer", {"answer": answer, "source_message_ids": sources})


def _kind_of(question: Question) -> list[str]:
    return list(mini.RELATIONS[question.family.partition("_")[0]][1])


def lessons(dialogue: Dialogue, *, steps: int, batch: int, seed: int) -> Callable[[int], list[Example]]:
    """The examples of each step (from 1), always new ones."""

    def deal(step: int) -> list[Example]:
        skill = SKILLED if step <= TURNS_CARELESS * steps else CARELESS
        return examples(dialogue, batch, seed=seed * 1_000_003 + step, skill=skill)

    return deal


def teach(
    model: Any, dialogue: Dialogue, deal: Callable[[int], list[Example]], *, steps: int, rate: float,
    on_step: Callable[[int, float], None] | None = None,
) -> float:  # fmt: skip
    """Next-token training on the agent's own tokens; returns the last loss."""
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=steps, pct_start=0.1)
    model.train()
    loss = float("nan")
    for step in range(1, steps + 1):
        now = example_loss(model, deal(step), dialogue, device)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(now)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        loss = float(now.detach())
        if on_step is not None:
            on_step(step, loss)
    model.train(False)
    return loss


def example_loss(model: Any, batch: Sequence[Example], dialogue: Dialogue, device: Any) -> torch.Tensor:
    """Mean negative log-prob of what the agent wrote."""
    ids, mask = right_padded([example.ids for example in batch], dialogue.pad_id, device)
    own, _ = right_padded([example.own for example in batch], 0, device)
    stats = answer_stats(model, Answered(ids, mask, positions_of(mask), ids.shape[1] - 1))
    weights = own[:, 1:].float()
    return -(stats.logprobs * weights).sum() / weights.sum()


def main(arguments: list[str]) -> None:
    """Make the checkpoint and write it down in half precision."""
    folder = Path(arguments[0]) if arguments else SHIPPED
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer = build()
    model.to(device)
    warn(f"{models.parameters(model):,} parameters, {len(tokenizer)} tokens")

    def tell(step: int, loss: float) -> None:
        if step % 50 == 0:
            warn(f"step {step}/{STEPS}: loss {loss:.4f}")

    dialogue = Dialogue(tokenizer, None)
    teach(model, dialogue, lessons(dialogue, steps=STEPS, batch=BATCH, seed=SEED), steps=STEPS, rate=RATE, on_step=tell)
    shutil.rmtree(folder, ignore_errors=True)
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
