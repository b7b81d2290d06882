"""A mini mailbox for tiny models: some 40 short messages in a closed vocabulary, another one for every seed.

Who leads which project, who sits in which room, which day a project meets and which number a person has are drawn anew
for each mailbox, so nothing can be learnt by heart: a model must search, read, and answer. Half of the questions need
two look-ups (`room of lead of falcon`): the first message names the person the second one is about.

>>> world = mini(seed=0)
>>> len(world.mailbox), len(world.questions) > 40
(40, True)
"""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

from rlvitals.train.mailbox.calls import write_call
from rlvitals.train.mailbox.episode import NO_SUCH_EMAIL, NOTHING_FOUND
from rlvitals.train.mailbox.records import Email, Question
from rlvitals.train.mailbox.store import Mailbox

Split = Literal["train", "held_out"]

INBOX = "me@mini.test"
PROJECTS = [
    "amber",
    "cedar",
    "delta",
    "ember",
    "falcon",
    "fjord",
    "harbor",
    "ivory",
    "jasper",
    "lotus",
    "maple",
    "nova",
]
PEOPLE = ["ann", "bob", "cara", "dan", "eve", "finn", "gina", "hugo", "iris", "jack", "kate", "liam"]
ROOMS = ["attic", "barn", "cellar", "deck", "foyer", "garden", "hall", "cabin", "loft", "lounge", "office", "studio"]
DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]

RELATIONS = {
    "lead": (PROJECTS, PEOPLE, 12),
    "room": (PEOPLE, ROOMS, 12),
    "day": (PROJECTS, DAYS, 8),
    "phone": (PEOPLE, NUMBERS, 8),
}
"""Relation -> what it is of, what it is, how many messages tell of it. Together 40."""
SIZE = sum(count for _, _, count in RELATIONS.values())


class World(NamedTuple):
    """A mailbox and questions about it, in a random order."""

    mailbox: Mailbox
    questions: tuple[Question, ...]


def mini(seed: int, *, split: Split = "train", families: tuple[str, ...] | None = None) -> World:
    """The mini mailbox of a seed. The two splits share no mailbox.

    `families` chooses questions: `lead`, `room`, `day`, `phone`, and with two look-ups `room_of_lead`, `phone_of_lead`.
    """
    rng = random.Random(f"mini {split} {seed}")  # noqa: S311
    facts = [
        (relation, of, value)
        for relation, (things, given, count) in RELATIONS.items()
        for of, value in zip(rng.sample(things, count), _drawn(rng, given, count), strict=True)
    ]
    rng.shuffle(facts)
    emails, told = [], {}
    for place, (relation, of, value) in enumerate(facts, start=1):
        told[relation, of] = (f"m{place}", value)
        sender = f"{rng.choice(PEOPLE)}@mini.test"
        when = f"2025-01-{1 + place % 28:02d} 09:{place:02d}:00"
        emails.append(
            Email(f"m{place}", f"{of} {relation}", sender, when, f"{relation} of {of} is {value}", to=(INBOX,))
        )
    questions = [
        question for question in _questions(told, f"mini-{split}-{seed}") if not families or question.family in families
    ]
    rng.shuffle(questions)
    return World(Mailbox.build(emails, snippet_words=0), tuple(questions))


def solution(question: Question, *, sources: bool = True) -> list[str]:
    """The messages of an agent that knows how: search, read, search, read, answer. For a warm-up by example."""
    said = []
    for keywords, message_id in zip(question.searches, question.message_ids, strict=True):
        said.append(write_call("search_emails", {"keywords": keywords}))
        said.append(write_call("read_email", {"message_id": message_id}))
    cited = question.message_ids if sources else ()
    return [*said, write_call("return_final_answer", {"answer": question.answer, "source_message_ids": cited})]


def corpus() -> list[str]:
    """Texts that hold every piece a question, an observation or a call can have, for a tokenizer to be built from."""
    names = (*RELATIONS, *PROJECTS, *PEOPLE, *ROOMS, *DAYS, *NUMBERS, *(f"m{place}" for place in range(1, SIZE + 1)))
    calls = [
        write_call("search_emails", {"keywords": names}),
        write_call("read_email", {"message_id": "m1"}),
        write_call("return_final_answer", {"answer": "I don't know", "source_message_ids": ["m1", "m2"]}),
    ]
    return [*calls, "lead of falcon is ann", "room of lead of falcon ?", f"{NOTHING_FOUND}\n{NO_SUCH_EMAIL}"]


def _drawn(rng: random.Random, given: list[str], count: int) -> list[str]:
    """Each value once where there are enough of them, so that a question about its owner has one answer."""
    return rng.sample(given, count) if len(given) >= count else rng.choices(given, k=count)


def _questions(told: dict[tuple[str, str], tuple[str, str]], name: str) -> list[Question]:
    found: list[tuple[str, str, str, tuple[str, ...], tuple[tuple[str, ...], ...]]] = []
    for (relation, of), (message_id, value) in told.items():
        found.append((relation, f"{relation} of {of} ?", value, (message_id,), ((of, relation),)))
        if relation != "lead":
            continue
        for second in ("room", "phone"):
            if (second, value) in told:
                other_id, answer = told[second, value]
                hops = ((of, "lead"), (value, second))
                asked = f"{second} of lead of {of} ?"
                found.append((f"{second}_of_lead", asked, answer, (message_id, other_id), hops))
    return [
        Question(f"{name}-{place}", asked, answer, message_ids, INBOX, "2025-02-01", family, searches)
        for place, (family, asked, answer, message_ids, searches) in enumerate(found)
    ]
