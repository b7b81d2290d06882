"""Generated mailboxes with questions and answers: large ones, and mini ones for tiny models. A seed determines them.

A large mailbox consists of projects. A project has a few messages in one inbox: its leader, budget, cost code and
kick-off, a deadline that a later message changes, its supplier, the leader's telephone, the supplier's warehouse. There
are eight questions about it, two of which need two look-ups. About as many irrelevant messages mention the project.
Other inboxes in the same file have other projects. One project in five is held out.

A mini mailbox has 40 short messages in a closed vocabulary: who leads which project, who is in which room, on which day
a project meets, which number a person has. Every seed has other facts, so nothing can be memorised: a model must
search, read and answer. Half of the questions need two look-ups (`room of lead of falcon`): the first message names the
person that the second one is about.

>>> made = list(emails(200, seed=1))
>>> len(made), len({email.message_id for email in made})
(200, 200)
>>> world = mini(seed=0)
>>> len(world.mailbox), len(world.questions) > 40
(40, True)
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple

from rlvitals.errors import ConfigError
from rlvitals.train.mailbox.episode import NO_SUCH_EMAIL, NOTHING_FOUND
from rlvitals.train.mailbox.mail import Email, Question
from rlvitals.train.mailbox.store import Mailbox
from rlvitals.train.mailbox.tools import Style, write_call

Split = Literal["train", "held_out"]


class World(NamedTuple):
    """A mailbox and questions about it."""

    mailbox: Mailbox
    questions: Sequence[Question]


def solution(question: Question, *, sources: bool = True, style: Style = "tags") -> list[str]:
    """The messages that answer a question: a search and a read for each source message, then the answer. They are the
    examples of a warm-up.

    >>> asked = Question("1", "Where?", "Here", ("m7",), "me@x.y", searches=(("falcon", "room"),))
    >>> solution(asked)
    ['<search>falcon room</search>', '<read>m7</read>', '<answer>Here | m7</answer>']
    """
    calls: list[tuple[str, dict[str, object]]] = []
    for keywords, message_id in zip(question.searches, question.message_ids, strict=True):
        calls += [("search_emails", {"keywords": keywords}), ("read_email", {"message_id": message_id})]
    cited = question.message_ids if sources else ()
    calls.append(("return_final_answer", {"answer": question.answer, "source_message_ids": cited}))
    return [write_call(name, arguments, style) for name, arguments in calls]


_Asked = tuple[str, str, str, list[tuple[str, tuple[str, ...]]]]
"""A question's family, text and answer, and its look-ups: the id of each source message, and keywords that find it."""


def _question(number: str, asked: _Asked, inbox: str, date: str) -> Question:
    family, question, answer, look_ups = asked
    ids, searches = zip(*look_ups, strict=True)
    return Question(number, question, answer, ids, inbox, date, family, searches)


# Large mailboxes

INBOXES = 4
HELD_OUT_EVERY = 5
FIRST_DAY, SPAN, QUERY_DATE = datetime(2024, 1, 1), timedelta(days=700), "2026-01-15"
DOMAIN = "acme.test"
CHATTER = 10
"""Number of irrelevant messages for each project."""

_WORDS = {
    "colour": """
        Amber Azure Bronze Cobalt Copper Coral Crimson Ebony Emerald Golden Indigo Ivory Jade Lilac Maroon Ochre Olive
        Pearl Ruby Russet Saffron Scarlet Silver Teal Umber Velvet Violet White""",
    "thing": """
        Anchor Badger Beacon Bridge Canyon Cedar Comet Falcon Fjord Forge Garnet Glacier Harbor Heron Island Lantern
        Magnet Meadow Meteor Orchard Otter Pioneer Quarry Raven River Summit Tiger Willow""",
    "first name": """
        Aisha Anders Bianca Carlos Chen Dana Dmitri Elena Farid Greta Hana Igor Jonas Keiko Lena Marco Nadia Omar Priya
        Quinn Rosa Samir Tara Uma Viktor Wendy Yusuf Zoe""",
    "last name": """
        Abbott Becker Castillo Dubois Eriksen Fontaine Garcia Haddad Ivanov Jansen Kowalski Lindqvist Moreau Nakamura
        Okafor Petrov Quigley Reyes Schmidt Tanaka Ueda Vargas Weber Xu Yilmaz Zhang""",
    "firm": "Alder Birch Cypress Dogwood Elm Fir Ginkgo Hazel Juniper Larch Myrtle Rowan Spruce Yew",
    "trade": "Castings Components Fabrication Instruments Logistics Metals Optics Plastics Supplies Tooling",
    "city": """
        Antwerp Bilbao Cork Dresden Eindhoven Florence Gdansk Helsinki Innsbruck Jena Krakow Lyon Malmo Nantes Oslo
        Porto Riga Seville Turin Utrecht Vienna Warsaw Zagreb""",
}
PARTS = ("housings", "sensors", "cables", "valves", "lenses", "bearings")
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
TALK = (
    ("Lunch on {day}?", "Anybody up for the noodle place on {day}? My treat if {project} stays calm until then."),
    ("{project}: status", "Nothing new on {project} this week. Everyone is busy with the audit; more next {day}."),
    ("Re: {project}", "Thanks, I will have a look at the {project} slides on {day} and come back to you."),
    ("Parking on {day}", "The garage is closed on {day}. Please use the street behind the building."),
    ("Notes of the {project} call", "We talked about {project} and agreed to talk again on {day}. No decisions."),
    ("Newsletter", "What moved us this {day}: a new coffee machine, two birthdays, and a lost umbrella."),
)


def emails(messages: int, *, seed: int = 0, inboxes: int = INBOXES) -> Iterator[Email]:
    """The given number of messages, project by project."""
    for made, _ in _projects(messages, seed, inboxes):
        yield from made


def questions(messages: int, *, seed: int = 0, inboxes: int = INBOXES, split: Split | None = None) -> list[Question]:
    """The questions about these messages, of one split or both."""
    asked = (question for _, made in _projects(messages, seed, inboxes) for question in made)
    return [question for question in asked if split is None or is_held_out(question) == (split == "held_out")]


def is_held_out(question: Question) -> bool:
    """Whether it must not be trained on. Its id contains the number of its project."""
    return int(question.id.split("-")[2]) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1


def generate(
    messages: int, *, seed: int = 0, inboxes: int = INBOXES, path: str | os.PathLike[str] | None = None
) -> World:
    """A mailbox with the given number of messages, in memory or in a file, and all questions about it. An existing file
    is used if it contains this mailbox.
    """
    asked = questions(messages, seed=seed, inboxes=inboxes)
    if path is None or not Path(path).exists():
        return World(Mailbox.build(emails(messages, seed=seed, inboxes=inboxes), path), asked)
    mailbox = Mailbox.open(path)
    first = next(emails(messages, seed=seed, inboxes=inboxes))
    if len(mailbox) != messages or mailbox.read(first.sender, first.message_id) is None:
        mailbox.close()
        raise ConfigError(f"{path} contains another mailbox than the requested one; use another file, or delete it")
    return World(mailbox, asked)


def _projects(messages: int, seed: int, inboxes: int) -> Iterator[tuple[list[Email], list[Question]]]:
    if messages < 1 or inboxes < 1:
        raise ConfigError(f"a mailbox needs at least one message and one inbox, not {messages} and {inboxes}")
    left = messages
    for number in count():
        project = _Project(number, seed, inboxes)
        facts, asked = project.facts()
        if len(facts) > left:  # no room for a whole project
            facts, asked = [], []
        made = (facts + project.chatter(len(facts)))[:left]
        yield made, asked
        left -= len(made)
        if not left:
            return


@lru_cache(maxsize=8)
def _shuffled(seed: int) -> dict[str, list[str]]:
    """The words in another order for every seed, so that the projects of two mailboxes have different names."""
    rng = random.Random(f"words {seed}")  # noqa: S311
    return {kind: rng.sample(text.split(), len(text.split())) for kind, text in _WORDS.items()}


def _name(number: int, firsts: list[str], seconds: list[str]) -> str:
    """Two words that no other number has. After all pairs are used, letters are added: B, C, ... Z, BA, ...

    >>> [_name(number, ["Amber", "Teal"], ["Otter", "Fjord"]) for number in (0, 1, 3, 4)]
    ['Amber Otter', 'Teal Fjord', 'Amber Fjord', 'Amber B Otter']
    """
    around, place = divmod(number, len(firsts) * len(seconds))
    row, column = divmod(place, len(seconds))
    letters = ""
    while around:
        around, last = divmod(around, 26)
        letters = chr(ord("A") + last) + letters
    return " ".join(filter(None, (firsts[(row + column) % len(firsts)], letters, seconds[column])))


class _Project:
    """One project's messages and questions. They depend only on its number and the seed."""

    def __init__(self, number: int, seed: int, inboxes: int) -> None:
        self.number, self.seed, self.inbox = number, seed, f"owner{number % inboxes + 1}@{DOMAIN}"
        words, self.rng = _shuffled(seed), random.Random(f"mailbox {seed} {number}")  # noqa: S311
        self.name = _name(number, words["colour"], words["thing"])
        self.lead = _name(number, words["first name"], words["last name"])
        self.supplier = _name(number, words["firm"], words["trade"])
        firsts = self.rng.sample(words["first name"], 6)
        self.colleagues = [f"{first}.{self.rng.choice(words['last name'])}@{DOMAIN}".lower() for first in firsts]

    def moment(self) -> datetime:
        return FIRST_DAY + timedelta(minutes=self.rng.randrange(SPAN // timedelta(minutes=1)))

    def email(self, place: int, subject: str, body: str, when: datetime) -> Email:
        """One message of the inbox, which is its recipient (to, cc or bcc) or its sender."""
        sender, first, second = self.rng.sample(self.colleagues, 3)
        to, cc, bcc = [first], [second], list[str]()
        {0: cc, 1: cc, 2: bcc}.get(self.rng.randrange(10), to).append(self.inbox)
        if self.rng.random() < 0.1:
            sender, to = self.inbox, [first]
        message_id = f"<{self.number:06d}.{place:02d}.{self.rng.randrange(16**6):06x}@{DOMAIN}>"
        text = f"Hello,\n\n{body}\n\nBest regards,\n{sender.partition('@')[0].replace('.', ' ').title()}\n"
        return Email(message_id, subject, sender, f"{when:%Y-%m-%d %H:%M:%S}", text, tuple(to), tuple(cc), tuple(bcc))

    def facts(self) -> tuple[list[Email], list[Question]]:
        """The project's own messages, and the questions about them."""
        rng, name = self.rng, self.name
        room = f"{rng.choice('ABCDEFGH')}-{rng.randrange(100, 400)}"
        budget, code = f"${rng.randrange(11, 990)},{rng.randrange(10) * 100:03d}", f"{rng.randrange(1000, 10000)}"
        phone = f"555-{rng.randrange(1000, 10000)}"
        city, part = rng.choice(_shuffled(self.seed)["city"]), rng.choice(PARTS)
        early, late = rng.sample(range(1, 29), 2)
        month, moved = rng.sample(MONTHS, 2)
        when = self.moment
        first = when()
        drafts = [
            (f"{name}: who leads", f"From now on project {name} is led by {self.lead}.", when()),
            (f"{name} budget", f"The budget of {name} is approved: {budget}. Please do not go beyond it.", when()),
            (f"{name} cost code", f"Please book your hours for {name} under the cost code {code}.", when()),
            (f"{name} kick-off", f"We start {name} with a kick-off meeting in room {room}.", when()),
            (f"{name} deadline", f"The deadline of {name} is {early} {month}.", first),
            (f"{name} deadline moved", f"We have more time: the deadline of {name} is now {late} {moved}.",
             first + timedelta(days=rng.randrange(2, 20), hours=rng.randrange(24))),
            (f"{name} supplier", f"{self.supplier} will deliver the {part} for {name}.", when()),
            ("New number", f"{self.lead} can be reached under the telephone number {phone} now.", when()),
            ("Delivery notes", f"The warehouse of {self.supplier} is in {city}. Returns go there as well.", when()),
        ]  # fmt: skip
        made = [self.email(place, *each) for place, each in enumerate(drafts)]
        ids = [email.message_id for email in made]
        asked: list[_Asked] = [
            ("lead", f"Who leads project {name}?", self.lead, [(ids[0], (name, "led"))]),
            ("budget", f"What is the budget of {name}?", budget, [(ids[1], (name, "budget"))]),
            ("code", f"Which cost code do I book hours for {name} under?", code, [(ids[2], (name, "cost code"))]),
            ("room", f"In which room is the kick-off of {name}?", room, [(ids[3], (name, "kick-off"))]),
            ("deadline", f"What is the current deadline of {name}?", f"{late} {moved}", [(ids[5], (name, "deadline"))]),
            ("supplier", f"Who delivers the {part} for {name}?", self.supplier, [(ids[6], (name, part))]),
            ("phone_of_lead", f"What is the telephone number of the person who leads {name}?", phone,
             [(ids[0], (name, "led")), (ids[7], (self.lead, "telephone"))]),
            ("city_of_supplier", f"In which city is the warehouse of the firm that delivers the {part} for {name}?",
             city, [(ids[6], (name, part)), (ids[8], (self.supplier, "warehouse"))]),
        ]  # fmt: skip
        return made, [
            _question(f"mail-{self.seed}-{self.number}-{one[0]}", one, self.inbox, QUERY_DATE) for one in asked
        ]

    def chatter(self, place: int) -> list[Email]:
        """Irrelevant messages that mention the project."""
        made = []
        for more in range(CHATTER):
            subject, body = self.rng.choice(TALK)
            words = {"project": self.name, "day": self.rng.choice(("Monday", "Tuesday", "Thursday", "Friday"))}
            made.append(self.email(place + more, subject.format(**words), body.format(**words), self.moment()))
        return made


# Mini mailboxes

INBOX = "me@mini.test"
PROJECTS = [
    "amber", "cedar", "delta", "ember", "falcon", "fjord", "harbor", "ivory", "jasper", "lotus", "maple", "nova",
]  # fmt: skip
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
"""Relation -> its subjects, its values, and the number of messages about it: 40 together."""
SIZE = sum(count for _, _, count in RELATIONS.values())
FAMILIES = frozenset({*RELATIONS, "room_of_lead", "phone_of_lead"})


def mini(seed: int, *, split: Split = "train", families: tuple[str, ...] | None = None) -> World:
    """The mini mailbox of a seed, with its questions in random order. The two splits have different mailboxes.

    `families` selects questions among `FAMILIES`; `room_of_lead` and `phone_of_lead` need two look-ups.
    """
    rng = random.Random(f"mini {split} {seed}")  # noqa: S311
    facts = []
    for relation, (subjects, values, number) in RELATIONS.items():
        chosen = rng.sample(subjects, number)
        # Values are unique if there are enough of them, so that a question about their owner has one answer.
        drawn = rng.sample(values, number) if len(values) >= number else rng.choices(values, k=number)
        facts += [(relation, of, value) for of, value in zip(chosen, drawn, strict=True)]
    rng.shuffle(facts)
    made, known = [], {}
    for place, (relation, of, value) in enumerate(facts, start=1):
        known[relation, of] = (f"m{place}", value)
        sender, when = f"{rng.choice(PEOPLE)}@mini.test", f"2025-01-{1 + place % 28:02d} 09:{place:02d}:00"
        body = f"{relation} of {of} is {value}"
        made.append(Email(f"m{place}", f"{of} {relation}", sender, when, body, to=(INBOX,)))
    asked = [
        _question(f"mini-{split}-{seed}-{place}", one, INBOX, "2025-02-01")
        for place, one in enumerate(_mini_questions(known))
        if not families or one[0] in families
    ]
    rng.shuffle(asked)
    return World(Mailbox.build(made, snippet_words=0), tuple(asked))


def _mini_questions(known: dict[tuple[str, str], tuple[str, str]]) -> Iterator[_Asked]:
    """The questions about these facts: (relation, subject) -> (message id, value)."""
    for (relation, of), (message_id, value) in known.items():
        look_up = (message_id, (of, relation))
        yield relation, f"{relation} of {of} ?", value, [look_up]
        for second in ("room", "phone") if relation == "lead" else ():
            if (second, value) in known:
                other_id, answer = known[second, value]
                asked = f"{second} of lead of {of} ?"
                yield f"{second}_of_lead", asked, answer, [look_up, (other_id, (value, second))]


def corpus() -> list[str]:
    """Texts with every token of the questions, observations and calls, for building a tokenizer."""
    names = (*RELATIONS, *PROJECTS, *PEOPLE, *ROOMS, *DAYS, *NUMBERS, *(f"m{place}" for place in range(1, SIZE + 1)))
    calls = [
        write_call("search_emails", {"keywords": names}),
        write_call("read_email", {"message_id": "m1"}),
        write_call("return_final_answer", {"answer": "I don't know", "source_message_ids": ["m1", "m2"]}),
    ]
    return [*calls, "lead of falcon is ann", "room of lead of falcon ?", f"{NOTHING_FOUND}\n{NO_SUCH_EMAIL}"]
