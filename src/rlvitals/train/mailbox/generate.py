"""Mailboxes of any size from a seed: mail about projects, with questions, answers and the messages they rest on.

Everything comes project by project. A project is a handful of messages in one inbox (who leads it, its budget, its
kick-off, a deadline that a later message moves, its supplier, the leader's telephone, the supplier's warehouse),
eight questions about them, two of which take two look-ups, and small talk around it that names the project and answers
nothing. The other inboxes of the file have projects of their own. One project in five is held out.

>>> made = list(emails(200, seed=1))
>>> len(made), len({email.message_id for email in made})
(200, 200)
>>> asked = questions(200, seed=1)
>>> sorted({question.family for question in asked})[:3]
['budget', 'city_of_supplier', 'code']
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import count, islice
from pathlib import Path
from typing import Literal

from rlvitals.errors import ConfigError
from rlvitals.train.mailbox.records import Email, Question
from rlvitals.train.mailbox.store import Mailbox

Split = Literal["train", "held_out"]

INBOXES = 4
HELD_OUT_EVERY = 5
FIRST_DAY, DAYS, QUERY_DATE = datetime(2024, 1, 1), 700, "2026-01-15"
DOMAIN = "acme.test"
CHATTER = 10
"""Messages around each project's own that answer nothing."""

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


@dataclass(frozen=True, slots=True)
class _Team:
    """Who and what one project's mail is about."""

    number: int
    name: str
    lead: str
    supplier: str
    inbox: str
    colleagues: tuple[str, ...]
    rng: random.Random

    def email(self, place: int, subject: str, body: str, when: datetime) -> Email:
        """One message of the inbox: sent to it, copied to it openly or not, or sent by it."""
        sender, first, second = self.rng.sample(self.colleagues, 3)
        to, cc, bcc = [first], [second], list[str]()
        {0: cc, 1: cc, 2: bcc}.get(self.rng.randrange(10), to).append(self.inbox)
        if self.rng.random() < 0.1:
            sender, to = self.inbox, [first]
        message_id = f"<{self.number:06d}.{place:02d}.{self.rng.randrange(16**6):06x}@{DOMAIN}>"
        text = f"Hello,\n\n{body}\n\nBest regards,\n{sender.partition('@')[0].replace('.', ' ').title()}\n"
        return Email(message_id, subject, sender, f"{when:%Y-%m-%d %H:%M:%S}", text, tuple(to), tuple(cc), tuple(bcc))


def emails(messages: int, *, seed: int = 0, inboxes: int = INBOXES) -> Iterator[Email]:
    """So many messages, project by project."""
    for made, _ in _projects(messages, seed, inboxes):
        yield from made


def questions(
    messages: int, *, seed: int = 0, inboxes: int = INBOXES, split: Split | None = None, limit: int | None = None
) -> list[Question]:
    """The questions about these messages, of both splits or one; at most `limit`."""
    asked = (question for _, made in _projects(messages, seed, inboxes) for question in made)
    wanted = (question for question in asked if split is None or is_held_out(question) == (split == "held_out"))
    return list(islice(wanted, limit))


def is_held_out(question: Question) -> bool:
    """Whether training must never see it. The number of a question's project is in its id."""
    return int(question.id.split("-")[2]) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1


def generate(
    messages: int, *, seed: int = 0, inboxes: int = INBOXES, path: str | os.PathLike[str] | None = None
) -> tuple[Mailbox, list[Question]]:
    """A mailbox of so many messages, in memory or in a file, and all questions about it.

    A file that is there already is used, if it is this mailbox.
    """
    asked = questions(messages, seed=seed, inboxes=inboxes)
    if path is None or not Path(path).exists():
        return Mailbox.build(emails(messages, seed=seed, inboxes=inboxes), path), asked
    mailbox = Mailbox.open(path)
    first = next(emails(messages, seed=seed, inboxes=inboxes))
    if len(mailbox) != messages or mailbox.read(first.sender, first.message_id) is None:
        mailbox.close()
        raise ConfigError(f"{path} holds another mailbox than the one asked for; name another file, or remove it")
    return mailbox, asked


def _projects(messages: int, seed: int, inboxes: int) -> Iterator[tuple[list[Email], list[Question]]]:
    if messages < 1 or inboxes < 1:
        raise ConfigError(f"a mailbox has at least one message and one inbox, not {messages} and {inboxes}")
    left = messages
    for number in count():
        team = _team(number, seed, inboxes)
        facts, asked = _facts(team, seed)
        if len(facts) > left:  # no room for a whole project: the rest is small talk
            facts, asked = [], []
        made = (facts + _chatter(team, len(facts)))[:left]
        yield made, asked
        left -= len(made)
        if not left:
            return


def _team(number: int, seed: int, inboxes: int) -> _Team:
    rng = random.Random(f"mailbox {seed} {number}")  # noqa: S311
    words = _shuffled(seed)
    firsts = rng.sample(words["first name"], 6)
    return _Team(
        number,
        _name(number, words["colour"], words["thing"]),
        _name(number, words["first name"], words["last name"]),
        _name(number, words["firm"], words["trade"]),
        f"owner{number % inboxes + 1}@{DOMAIN}",
        tuple(f"{first}.{rng.choice(words['last name'])}@{DOMAIN}".lower() for first in firsts),
        rng,
    )


@lru_cache(maxsize=8)
def _shuffled(seed: int) -> dict[str, list[str]]:
    """The words in another order for every seed, so that no name stands for the same project in two mailboxes."""
    rng = random.Random(f"words {seed}")  # noqa: S311
    return {kind: rng.sample(text.split(), len(text.split())) for kind, text in _WORDS.items()}


def _name(number: int, firsts: list[str], seconds: list[str]) -> str:
    """Two words that no other number has; where all pairs are used up, with letters between them.

    >>> [_name(number, ["Amber", "Teal"], ["Otter", "Fjord"]) for number in (0, 1, 3, 4)]
    ['Amber Otter', 'Teal Fjord', 'Amber Fjord', 'Amber B Otter']
    """
    around, place = divmod(number, len(firsts) * len(seconds))
    row, column = divmod(place, len(seconds))
    letters = f"{_letters(around)} " if around else ""
    return f"{firsts[(row + column) % len(firsts)]} {letters}{seconds[column]}"


def _letters(number: int) -> str:
    """A, B, ... Z, BA, BB, ..."""
    more, last = divmod(number, 26)
    return (_letters(more) if more else "") + chr(ord("A") + last)


def _facts(team: _Team, seed: int) -> tuple[list[Email], list[Question]]:
    """A project's own messages, and what can be asked about them."""
    rng, name = team.rng, team.name
    room = f"{rng.choice('ABCDEFGH')}-{rng.randrange(100, 400)}"
    budget, code = f"${rng.randrange(11, 990)},{rng.randrange(10) * 100:03d}", f"{rng.randrange(1000, 10000)}"
    phone, city, part = f"555-{rng.randrange(1000, 10000)}", rng.choice(_shuffled(seed)["city"]), rng.choice(PARTS)
    early, late = rng.sample(range(1, 29), 2)
    month, moved = rng.sample(MONTHS, 2)
    first = _moment(rng)
    told = [
        (f"{name}: who leads", f"From now on project {name} is led by {team.lead}.", _moment(rng)),
        (f"{name} budget", f"The budget of {name} is approved: {budget}. Please do not go beyond it.", _moment(rng)),
        (f"{name} cost code", f"Please book your hours for {name} under the cost code {code}.", _moment(rng)),
        (f"{name} kick-off", f"We start {name} with a kick-off meeting in room {room}.", _moment(rng)),
        (f"{name} deadline", f"The deadline of {name} is {early} {month}.", first),
        (
            f"{name} deadline moved",
            f"We have more time: the deadline of {name} is now {late} {moved}.",
            first + timedelta(days=rng.randrange(2, 20), hours=rng.randrange(24)),
        ),
        (f"{name} supplier", f"{team.supplier} will deliver the {part} for {name}.", _moment(rng)),
        ("New number", f"{team.lead} can be reached under the telephone number {phone} now.", _moment(rng)),
        ("Delivery notes", f"The warehouse of {team.supplier} is in {city}. Returns go there as well.", _moment(rng)),
    ]
    made = [team.email(place, *each) for place, each in enumerate(told)]
    ids = [email.message_id for email in made]
    asked = [
        ("lead", f"Who leads project {name}?", team.lead, [(0, (name, "led"))]),
        ("budget", f"What is the budget of {name}?", budget, [(1, (name, "budget"))]),
        ("code", f"Which cost code do I book hours for {name} under?", code, [(2, (name, "cost code"))]),
        ("room", f"In which room is the kick-off of {name}?", room, [(3, (name, "kick-off"))]),
        ("deadline", f"What is the current deadline of {name}?", f"{late} {moved}", [(5, (name, "deadline"))]),
        ("supplier", f"Who delivers the {part} for {name}?", team.supplier, [(6, (name, part))]),
        (
            "phone_of_lead",
            f"What is the telephone number of the person who leads {name}?",
            phone,
            [(0, (name, "led")), (7, (team.lead, "telephone"))],
        ),
        (
            "city_of_supplier",
            f"In which city is the warehouse of the firm that delivers the {part} for {name}?",
            city,
            [(6, (name, part)), (8, (team.supplier, "warehouse"))],
        ),
    ]
    return made, [
        Question(
            f"mail-{seed}-{team.number}-{family}",
            question,
            answer,
            tuple(ids[place] for place, _ in hops),
            team.inbox,
            QUERY_DATE,
            family,
            tuple(keywords for _, keywords in hops),
        )
        for family, question, answer, hops in asked
    ]


def _chatter(team: _Team, place: int) -> list[Email]:
    """Small talk that names the project and answers nothing."""
    made = []
    for more in range(CHATTER):
        subject, body = team.rng.choice(TALK)
        words = {"project": team.name, "day": team.rng.choice(("Monday", "Tuesday", "Thursday", "Friday"))}
        when = _moment(team.rng)
        made.append(team.email(place + more, subject.format(**words), body.format(**words), when))
    return made


def _moment(rng: random.Random) -> datetime:
    return FIRST_DAY + timedelta(minutes=rng.randrange(DAYS * 24 * 60))
