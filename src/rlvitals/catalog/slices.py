"""Slices: one metric measured for one environment, data source, agent, task or tool of a run.

The name of a slice is the metric's name followed by labels. Any metric can be logged in this form:

>>> cut("reward/env=math")
Cut(name='reward', labels={'env': 'math'}, stem='reward/{env}')
>>> cut("reward/source=openai/gsm8k,agent=solver").labels
{'source': 'openai/gsm8k', 'agent': 'solver'}
>>> cut("reward/mean") is None
True

Frameworks put the label in other places, which the catalogue's names mark with a placeholder: `val-core/{source*}/...`.
This module owns both notations, and the mean that replaces the whole where only slices are logged (`Round`). `reader`
finds the slices of a run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

KEYS = ("env", "source", "agent", "task", "tool")
"""The keys of labels: what a run can be divided by."""

WHOLE = frozenset({"all", "agg"})
"""The words that frameworks write in place of a label for all slices together."""

LONGEST_LABEL = 120
"""A longer text is not a label."""

PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
"""In a name of the catalogue: a part that depends on the run."""

_OTHER_SPELLINGS = {
    "ds": "source", "dataset": "source", "data_source": "source", "benchmark": "source", "domain": "source",
    "tag": "env", "env_name": "env", "agent_name": "agent",
}  # fmt: skip
_KEY = rf"(?:{'|'.join(KEYS)})="
_LABELLED = re.compile(rf"(?P<name>.+?)/(?P<labels>{_KEY}.+)", re.DOTALL)
_BETWEEN = re.compile(rf"[/,](?={_KEY})")


class Cut(NamedTuple):
    """The parts of a logged name."""

    name: str
    """The name without its labels."""
    labels: Mapping[str, str]
    stem: str
    """The name with the keys in the places of the labels. The slices of one series share it."""


@dataclass(frozen=True, slots=True)
class Sliced:
    """The slices of one series of a run."""

    stem: str
    concept: str | None
    """None where the catalogue does not know the metric."""
    names: Mapping[str, str]
    """By label text, such as `env=math`: the logged name."""
    whole: str | None
    """The logged name of the same metric over all slices, where there is one."""

    @property
    def keys(self) -> tuple[str, ...]:
        """What it is divided by."""
        return tuple(key for key in KEYS if f"{{{key}}}" in self.stem)


def cut(name: str) -> Cut | None:
    """The labels at the end of a name; None where there are none. A value may contain `/`, like names of data sets."""
    found = _LABELLED.fullmatch(name) if "=" in name else None
    if found is None:
        return None
    labels: dict[str, str] = {}
    for pair in _BETWEEN.split(found["labels"]):
        key, _, value = pair.partition("=")
        if not 0 < len(value.strip()) <= LONGEST_LABEL or key in labels:
            return None
        labels[key] = value
    plain = found["name"]
    # Keys in one order: `reward/env=a/agent=b` and `reward/agent=b/env=a` are one series.
    labels = {key: labels[key] for key in KEYS if key in labels}
    return Cut(plain, labels, "/".join([plain, *(f"{{{key}}}" for key in labels)]))


def text(labels: Mapping[str, str]) -> str:
    """Labels as they are written and shown.

    >>> text({"env": "math", "agent": "solver"})
    'env=math,agent=solver'
    """
    return ",".join(f"{key}={value}" for key, value in labels.items())


def form(spelled: str) -> re.Pattern[str]:
    """The expression for a form of names: `env/{env}/*` has a group for its key, and a group `rest` for the star.

    >>> form("{domain}/*").fullmatch("math/critic/score/mean").groupdict()
    {'source': 'math', 'rest': 'critic/score/mean'}
    """
    pieces = re.split(r"\{([^{}]+)\}|(\*)", spelled)
    made = ""
    for plain, placeholder, star in zip(pieces[::3], [*pieces[1::3], None], [*pieces[2::3], None], strict=True):
        made += re.escape(plain)
        if placeholder:
            made += f"(?P<{label_key(placeholder)}>[^/]+)"
        elif star:
            made += "(?P<rest>.+)"
    return re.compile(made)


def label_key(placeholder: str) -> str | None:
    """The key of the label that a placeholder of the catalogue stands for; None for other placeholders. The text after
    a bar is the word for all slices.

    >>> label_key("env|agg"), label_key("ds"), label_key("source*"), label_key("k")
    ('env', 'source', 'source', None)
    """
    word = placeholder.partition("|")[0].rstrip("*")
    word = _OTHER_SPELLINGS.get(word, word)
    return word if word in KEYS else None


class Round:
    """The newest value of each slice of a metric that is not logged over all of them. Their mean replaces the whole
    when every slice has a new value, or when one has a second new value before the others: an evaluation may log each
    source in a separate row, and a batch need not contain every environment. All slices have the same weight, because
    their numbers of samples are unknown.

    >>> newest = Round()
    >>> newest.take("reward/env=math", 0.2)
    >>> newest.take("reward/env=code", 0.6)
    >>> newest.mean()
    0.4
    """

    __slots__ = ("_fresh", "_has_repeated", "latest")

    def __init__(self) -> None:
        self.latest: dict[str, float] = {}
        """By logged name."""
        self._fresh: set[str] = set()
        self._has_repeated = False

    def take(self, key: str, value: float) -> None:
        """Take a new value of a slice."""
        self._has_repeated = self._has_repeated or key in self._fresh
        self._fresh.add(key)
        self.latest[key] = value

    def mean(self) -> float | None:
        """The mean after a row, if that row completes the round; else None."""
        if not self._has_repeated and len(self._fresh) < len(self.latest):
            return None
        self._fresh.clear()
        self._has_repeated = False
        return sum(self.latest.values()) / len(self.latest)

    def reopen(self) -> None:
        """Start over for a slice that joins: the values before it count as part of this round."""
        self._fresh.update(self.latest)
        self._has_repeated = False

    def clear(self) -> None:
        """Forget all values."""
        self.latest.clear()
        self._fresh.clear()
        self._has_repeated = False
