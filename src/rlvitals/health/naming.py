"""Which signals a logged name may feed, why, and how sure that is.

The user's `mapping` comes first, then the catalogue's entries for the framework's names, then the words of the name
together with its values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlvitals import catalog
from rlvitals.catalog import Caveat, Cut, Match, Reader, Recognition, Sureness
from rlvitals.catalog.recognition import LEVELS
from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.health.origins import CAUSES
from rlvitals.splits import is_held_out

NOTHING = "none"
"""The mapping target of a name that must not be read."""

TRUST: dict[Sureness, float] = {"given": 1.0, "known": 1.0, "high": 1.0, "fair": 0.9, "guess": 0.7}
"""The factor on a finding's confidence, by how sure it is what the series means."""

COMPONENT = "reward.component.mean"
PASS_AT_K = "eval.pass_at_k"  # noqa: S105
MOST_RANKS = 60
"""The rank of the smallest k of pass@k."""

_AT_K = re.compile(r"(?:pass|best)(?:@|_at_|_k/|_at_k/)?(\d+)", re.IGNORECASE)

_NEGATIVE = Caveat("sign", "the log holds its negative", -1.0)
_GIVEN, _PATTERN, _WORDS, _PER_LEVEL = -1, 100, 110, 20
"""Ranks: a mapped name, then the catalogue's (a concept's place in the signal's list), then patterns, then words."""

_PART = re.compile(
    r"^(train/)?(rewards?|scores?|reward_components?|reward_parts?|gdpo)( / |[/.])(?P<part>.+?)(( / |/)mean|_mean)?$",
    re.IGNORECASE,
)
_NOT_A_PART = re.compile(
    r"(^|[/_. ])(std|var|variance|min|max|margins?|chosen|rejected|accuracies|count|weight|advantage|norm)s?($|[/_. ])",
    re.IGNORECASE,
)
_PART_WORDS = re.compile(r"^(train/)?(rewards?|scores?)[_/. ]+|[_/. ]+(mean|avg|average|rewards?)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SignalSource:
    """The concepts and names that a signal is read from, best first."""

    name: str
    concepts: tuple[str, ...] = ()
    patterns: tuple[re.Pattern[str], ...] = ()
    """Logged names, for a signal that is not a concept of the catalogue."""
    key: str = ""
    """One logged name or concept, for a signal that a user's rule asks for."""
    takes_highest: bool = False
    """Whether equally good names all feed it, with the row's highest value; else the first in the alphabet does."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a logged name was read as."""

    signal: str
    name: str
    concept: str
    """Empty for a signal that is not a concept of the catalogue."""
    sureness: Sureness
    why: str


class Claim(NamedTuple):
    """A name's claim to feed a signal."""

    rank: int
    """The lowest wins."""
    taken: Taken
    caveat: Caveat | None = None
    """How a logged value is converted to the signal's."""
    match: Match | None = None
    """The catalogue's entry, where the claim is based on one."""
    slice: Cut | None = None
    """The labels of a name that is a slice."""
    is_total: bool = False
    """Whether the log counts since the start; the signal then gets the increases."""

    @property
    def place(self) -> tuple[int, int, str]:
        """Its place among the claims to a signal, the lowest first: by source, then by number of labels, then in
        alphabetical order. Slices of one series share a place.
        """
        return self.rank, len(self.slice.labels) if self.slice else 0, self.series

    @property
    def series(self) -> str:
        """The logged name, or what the slices of one series have in common."""
        return self.slice.stem if self.slice else self.taken.name

    @property
    def is_by_words(self) -> bool:
        """Whether the first values may still contradict it."""
        return self.rank >= _WORDS


FAILURES = frozenset(CAUSES)
"""Signals that count failures of one origin."""

_SPEAKING = frozenset({"agent.error.count", "agent.stop_condition", "agent.env_metric", COMPONENT})
"""Concepts that count anything: the last part of the logged name gives the type, such as that of an error."""

_SINCE_START = "since the start"
"""Text in a caveat that marks a logged number that only grows."""

_ELSEWHERE = frozenset({"rm.accuracy", "sft.token_accuracy"})
"""The meaning of a plain `accuracy` in the logs of reward models and of supervised training. In a run that rewards
samples it is the share of right answers."""


class Naming:
    """Reads the names of one run."""

    def __init__(self, sources: Iterable[SignalSource], mapping: Mapping[str, str] | None = None) -> None:
        self._sources = {source.name: source for source in sources}
        self._by_concept: dict[str, list[tuple[str, int]]] = {}
        for source in self._sources.values():
            for rank, concept in enumerate(source.concepts):
                self._by_concept.setdefault(concept, []).append((source.name, rank))
        self.mapping = dict(mapping or {})
        """The meanings of names that the user gave."""
        self._given = {name: self._claims_given(name, target) for name, target in self.mapping.items()}
        self._reserved = {
            claim.taken.signal for claims in self._given.values() for claim in claims if claim.rank == _GIVEN
        }
        self._first_values: dict[str, tuple[float, ...]] = {}

    def claims(self, key: str, values: Sequence[float], reader: Reader, *, pairs: bool) -> list[Claim]:
        """The signals a name can feed. `values` are the first values of a name that is known only by its words."""
        if key in self._given:
            return self._given[key]
        found = self._claims_known(key, values, reader)
        cut = reader.cut(key)
        plain = cut.name if cut else key
        if found is None:
            found = self._claims_by_pattern(key, plain)
            if not found or found[0].taken.signal in FAILURES:  # its words may give it a second meaning
                found = [*found, *self._claims_by_words(key, plain, values, pairs=pairs)]
        if (match := reader.meaning(key)) is not None and match.metric.id in _SPEAKING and not _PART.match(key):
            is_total = match.caveat is not None and _SINCE_START in match.caveat.note
            by_name = [claim._replace(is_total=is_total) for claim in self._claims_by_pattern(key, key)]
            found = [*(claim for claim in found if claim.taken.signal not in FAILURES), *by_name]
        return [claim._replace(slice=cut) for claim in found if claim.taken.signal not in self._reserved]

    def verifier(self, key: str, reader: Reader) -> list[Claim]:
        """The claim of a part of the reward that is also a slice, where each verifier has its own data. It is judged as
        the reward of its slice and never read as the reward of the whole run.
        """
        match, cut = reader.meaning(key), reader.cut(key)
        if match is None or cut is None or match.metric.id != COMPONENT or key in self.mapping:
            return []
        return [Claim(0, Taken("reward", key, COMPONENT, "known", "the catalogue knows it"), match=match, slice=cut)]

    def settle(self, key: str, values: Sequence[float]) -> None:
        """Remember a name's first values: they are used whenever the name is read again."""
        self._first_values[key] = tuple(values)

    def part(self, key: str) -> str | None:
        """The name of the reward part that a key denotes; None if it is not named as a part."""
        if self.mapping.get(key) == COMPONENT:
            return part_name(key)
        found = _PART.match(key) if key not in self.mapping else None
        return found["part"] if found and not _NOT_A_PART.search(found["part"]) else None

    def may_be_part(self, key: str) -> bool:
        """Whether a name without another meaning may be a part of the reward, if it adds up with others: it contains a
        word for a reward, a bonus or a function, or no known word.
        """
        if key in self.mapping or is_held_out(key) or _NOT_A_PART.search(key):
            return False
        vocabulary = catalog.vocabulary()
        return vocabulary.names_a_part(key) or vocabulary.is_meaningless(key)

    def _claims_given(self, name: str, target: str) -> list[Claim]:
        """The claims of a name that the user has mapped. Raises ConfigError for an unknown concept."""
        why = "your mapping"
        if target in self._sources:
            return [Claim(_GIVEN, Taken(target, name, target, "given", why))]
        known = {metric.id for metric in catalog.metrics()}
        if target in known:
            return [
                Claim(rank or _GIVEN, Taken(signal, name, target, "given", why))
                for signal, rank in self._by_concept.get(target, [])
            ]
        if target == NOTHING:
            return []
        signals = sorted(source.name for source in self._sources.values() if not source.key)
        near = did_you_mean(target, [*signals, *known]) or f" Signals: {', '.join(signals)}"
        raise ConfigError(
            f"{name!r} is mapped to {target!r}, which is not a concept of the catalogue or a signal of the rules.{near}"
        )

    def _claims_known(self, key: str, values: Sequence[float], reader: Reader) -> list[Claim] | None:
        """The claims from the catalogue; None where it does not know the name, or the run means something else."""
        match = reader.meaning(key)
        if match is None:
            return None
        concept, caveat = match.metric.id, match.caveat
        # Without its prefix a held-out name means the training metric, and the other way round.
        by_prefix = match.how == "prefix" and (is_held_out(key) or match.metric.family == "eval")
        by_prefix = by_prefix and not (concept == PASS_AT_K and is_held_out(key))  # no training metric has this name
        if by_prefix or (caveat is not None and caveat.is_other_quantity):
            return None
        if concept == COMPONENT and _PART.match(key):
            return []
        convert = caveat if caveat is not None and caveat.is_convertible else None
        if reader.framework is None and convert is None:
            weighed = catalog.vocabulary().weigh(Recognition(concept, "known", ""), values[:1])
            convert = _NEGATIVE if weighed is not None and weighed.is_negated else None
        claims = [
            Claim(rank, Taken(name, key, concept, "known", "the catalogue knows it"), convert, match)
            for name, rank in self._by_concept.get(concept, [])
        ]
        if concept == PASS_AT_K:
            claims = _by_k(key, claims)
        is_own = reader.framework is not None and match.in_framework
        may_be_else = match.how == "pattern" or concept in _ELSEWHERE
        return claims if claims or is_own or not may_be_else else None

    def _claims_by_pattern(self, key: str, plain: str) -> list[Claim]:
        folded = plain.casefold()
        return [
            Claim(_PATTERN + rank, Taken(source.name, key, "", "high", "it is a usual name of it"))
            for source in self._sources.values()
            for rank, pattern in enumerate(source.patterns)
            if pattern.fullmatch(folded)
        ][:1]

    def _claims_by_words(self, key: str, plain: str, values: Sequence[float], *, pairs: bool) -> list[Claim]:
        found = catalog.vocabulary().recognise(plain, self._first_values.get(key, values), pairs=pairs)
        if found is None:
            return []
        behind = _WORDS + _PER_LEVEL * (LEVELS.index(found.sureness) - LEVELS.index("high"))
        convert = _NEGATIVE if found.is_negated else None
        return [
            Claim(behind + rank, Taken(name, key, found.concept, found.sureness, found.why), convert)
            for name, rank in self._by_concept.get(found.concept, [])
        ]


def _by_k(key: str, claims: list[Claim]) -> list[Claim]:
    """The claims of a pass@k: k = 1 can feed `pass_one`, other k can feed `pass_many`, the largest k first. The ends of
    its interval and values from training batches feed neither.
    """
    found = _AT_K.findall(key.rpartition("/low")[0] or key.rpartition("/high")[0] or key)
    k = int(found[-1]) if found else 0
    is_end = key.endswith(("/low", "/high"))
    ranks = {"pass_many": max(1, MOST_RANKS - int(4 * math.log2(k)) if k > 1 else MOST_RANKS), "pass_one": 1}
    wrong = {"pass_many"} if k == 1 else {"pass_one"}
    if is_end or not is_held_out(key.replace("eval.", "eval/", 1)):
        wrong = {"pass_many", "pass_one"}
    return [
        claim._replace(rank=ranks.get(claim.taken.signal, claim.rank))
        for claim in claims
        if claim.taken.signal not in wrong
    ]


def part_name(key: str) -> str:
    """The name of a reward part whose logged name is not below `rewards/`.

    >>> part_name("reward_ndcg"), part_name("cold_bonus_mean"), part_name("func_0/mean")
    ('ndcg', 'cold_bonus', 'func_0')
    """
    return _PART_WORDS.sub("", key) or key


def check_names(mapping: Mapping[str, str], logged: Iterable[str]) -> None:
    """Raise ConfigError for a mapped name that a log does not have."""
    known = list(logged)
    for name in mapping:
        if name not in known:
            raise ConfigError(
                f"the log has no metric called {name!r}, which you map to {mapping[name]!r}."
                f"{did_you_mean(name, known)} It has: {', '.join(sorted(known)[:40])}"
                f"{' and more' if len(known) > 40 else ''}"
            )
