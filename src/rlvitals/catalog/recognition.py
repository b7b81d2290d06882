"""Recognises a series with an unregistered name by the words of its name and by its values, and rates how sure that is.

A name is cut into words (`rollout/ep_rew_mean`, `avgReturn`, `clipfrac`, `平均奖励`, `Средняя награда`), each word
has a role (`words.yaml`), and the roles together make a concept or none: `kl_coef` is a `kl` and a `setting`, no KL.
The values then support or contradict it. These are pure functions of a name and a few values; none runs for every row.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

from rlvitals.splits import is_held_out, without_held_out_prefix

Sureness = Literal["given", "known", "high", "fair", "guess"]
"""From surest to least sure: given by the user, known to the catalogue, recognised here (sure, probable, a guess)."""

LEVELS: tuple[Sureness, ...] = ("given", "known", "high", "fair", "guess")

LONGEST_NAME = 160
"""Longer names are not read: they are texts."""

ENOUGH_VALUES = 12
"""The number of values from which their course can also support or contradict a concept."""


@dataclass(frozen=True, slots=True)
class NameForm:
    """The form of names of one concept, and what its values look like."""

    concept: str
    said: tuple[str, ...]
    """Roles of the words, in any order; one in brackets may be missing."""
    values: str = ""
    """One of `LOOKS`: what the values look like."""
    sureness: Sureness = "high"
    """How sure the concept is from the words alone."""
    guess: bool = False
    """Whether a name with an unknown word is also read as this concept, as a guess."""
    held_out: bool = False
    """Whether it is measured on held-out data."""


@dataclass(frozen=True, slots=True)
class Recognition:
    """What a name was read as."""

    concept: str
    sureness: Sureness
    why: str
    """The words and values that support it, as a phrase."""
    is_negated: bool = False
    """Whether the log holds the concept's negative."""


class NameWords(NamedTuple):
    """A name cut into words."""

    own: frozenset[str]
    """Roles of the words of its last part."""
    above: frozenset[str]
    """Roles of the words before that: `losses/` in `losses/entropy`."""
    unknown: tuple[str, ...]
    """Words without a role in its last part."""
    unknown_above: int
    """The number of words without a role before that."""


class Vocabulary:
    """All words and forms, and the look-up tables derived from them."""

    def __init__(
        self,
        words: Mapping[str, Sequence[str]],
        forms: Iterable[NameForm],
        neutral: Iterable[str] = (),
        ignorable: Iterable[str] = (),
    ) -> None:
        self._neutral = frozenset(neutral)
        self._ignorable = frozenset(ignorable)
        self._roles: dict[str, set[str]] = {}
        self._stems: dict[str, set[str]] = {}
        self._phrases: dict[tuple[str, ...], set[str]] = {}
        for role, spelled in words.items():
            for word in map(_folded, spelled):
                if " " in word:
                    self._phrases.setdefault(tuple(word.split()), set()).add(role)
                elif word.endswith("*"):
                    self._stems.setdefault(word[:-1], set()).add(role)
                else:
                    self._roles.setdefault(word, set()).add(role)
        self._looks: dict[str, str] = {}
        self._longest_phrase = max(map(len, self._phrases), default=1)
        self._forms: dict[tuple[bool, frozenset[str]], NameForm] = {}
        for form in forms:
            self._looks.setdefault(form.concept, form.values)
            for roles in (roles for role_list in form.said for roles in _variants(role_list)):
                self._forms.setdefault((form.held_out, roles), form)

    def recognise(self, name: str, values: Sequence[float] = (), *, pairs: bool = False) -> Recognition | None:
        """Recognise a series by its name and its first values; None if there is no evidence.

        `pairs` means that the log is of preference pairs, where a plain `accuracy` is that of the pairs.
        """
        held_out = is_held_out(name)
        words = self.cut(without_held_out_prefix(name) if held_out else name)
        if "held_out" in words.own | words.above:
            held_out = True
            words = words._replace(own=words.own - {"held_out"}, above=words.above - {"held_out"})
        form = self._form(words, held_out=held_out)
        own = words.own - self._neutral
        if form is None or (words.unknown and not (form.guess and own)):
            return None
        concept = "pref.accuracy" if pairs and form.concept == "reward.accuracy" else form.concept
        if concept == "pref.accuracy" and not pairs and "reward" in words.own:
            return None  # a reward for being accurate
        sureness = form.sureness
        if words.unknown:
            sureness = "guess"
        elif "running" in words.own or (words.unknown_above and not held_out):
            sureness = _less_sure("fair" if words.unknown_above <= 2 else "guess", sureness)
        known = " + ".join(sorted(own or words.above - self._neutral))
        why = f"its words say {known}"
        if words.unknown:
            why += f", and {', '.join(words.unknown[:3])} may mean anything"
        recognition = Recognition(concept, sureness, why)
        return _weighed(recognition, form.values, values)

    def weigh(self, recognition: Recognition, values: Sequence[float]) -> Recognition | None:
        """Check a recognition of a name against values; None where they contradict it."""
        return _weighed(recognition, self._looks.get(recognition.concept, ""), values)

    def cut(self, name: str) -> NameWords:
        """The words of a name by their roles. The own part is the last one that is more than a statistic.

        >>> from rlvitals.catalog import vocabulary
        >>> sorted(vocabulary().cut("losses/clipfrac").own), sorted(vocabulary().cut("losses/clipfrac").above)
        (['clip', 'share'], ['losses'])
        """
        if len(name) > LONGEST_NAME:
            return NameWords(frozenset(), frozenset(), (), 0)
        own: set[str] = set()
        above: set[str] = set()
        unknown: list[str] = []
        unknown_above = 0
        is_above = False
        for segment in reversed(_segments(name)):
            roles, others = self._read(segment)
            if is_above:
                above |= roles
                unknown_above += len(others)
                continue
            own |= roles
            unknown += others
            is_above = bool(others) or not roles <= STATISTICS | self._neutral
        return NameWords(frozenset(own), frozenset(above), tuple(unknown), unknown_above)

    def names_a_part(self, name: str) -> bool:
        """Whether a name may denote one part of the reward: it has a word for a reward, a bonus or a function."""
        words = self.cut(name)
        roles = (words.own | words.above) - self._neutral
        return bool(roles & PARTS) and roles <= PARTS | {"success", "accuracy", "format", "length", "response"}

    def is_meaningless(self, name: str) -> bool:
        """Whether no word of a name has a role that shows its meaning."""
        words = self.cut(name)
        return bool(words.unknown) and words.own | words.above <= self._neutral

    def _form(self, words: NameWords, *, held_out: bool) -> NameForm | None:
        own, above = words.own - self._neutral, words.above - self._neutral
        for roles in dict.fromkeys((own | above, own | (above - self._ignorable))):
            if form := self._forms.get((held_out, roles)):
                return form
        return None

    def _read(self, segment: list[str]) -> tuple[set[str], list[str]]:
        """The roles of one part's words, and those without one."""
        roles: set[str] = set()
        unknown: list[str] = []
        place = 0
        while place < len(segment):
            length = next(
                (n for n in range(self._longest_phrase, 1, -1) if tuple(segment[place : place + n]) in self._phrases), 1
            )
            if length > 1:
                roles |= self._phrases[tuple(segment[place : place + length])]
            elif found := self._word(segment[place]):
                roles |= found
            else:
                unknown.append(segment[place])
            place += length
        return roles, unknown

    def _word(self, word: str) -> set[str] | None:
        """The roles of a word: as written, in the singular, by its stem, or of the words it is composed of."""
        if word.isdigit():
            return {"digits"}
        for spelled in (word, word.removesuffix("s"), word.removesuffix("es"), f"{word.removesuffix('ies')}y"):
            if spelled in self._roles:
                return self._roles[spelled]
        for length in range(len(word), 2, -1):
            if word[:length] in self._stems:
                return self._stems[word[:length]]
        return self._glued(word)

    def _glued(self, word: str) -> set[str] | None:
        """The roles of a word composed of several words without a space: `clipfrac`, `策略损失`."""
        is_letters = word.isascii()
        best: list[list[str] | None] = [[]] + [None] * len(word)
        for end in range(1, len(word) + 1):
            for start in range(end):
                piece, before = word[start:end], best[start]
                if before is None or piece not in self._roles or (is_letters and len(piece) < 2):
                    continue
                if best[end] is None or len(before) + 1 < len(best[end] or ()):
                    best[end] = [*before, piece]
        pieces = best[-1]
        if not pieces or len(pieces) > 5 or (is_letters and max(map(len, pieces)) < 4):
            return None
        return {role for piece in pieces for role in self._roles[piece]}


STATISTICS = frozenset({"mean", "std", "var", "min", "max", "quantile", "sum", "total", "running", "digits"})
"""Roles in a part of a name that only gives the statistic of the part before it."""

PARTS = frozenset({"reward", "score", "part"})
"""Roles in the name of a part of the reward."""

_RATE = re.compile(r"\s*/\s*(s|sec|secs|second|seconds)\b(?=\W*$)", re.IGNORECASE)
_HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W\d_]+|\d+")
_SCRIPTS = re.compile(
    r"[\u0400-\u04ff]+|[\u3040-\u30ff]+|[\u4e00-\u9fff]+|[\uac00-\ud7af]+|[^\u0400-\u04ff\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]+"
)


def _segments(name: str) -> list[list[str]]:
    """The words of a name, one list for each part.

    >>> _segments("rollout/ep_rew_mean"), _segments("AvgReturn"), _segments("tok/s")
    ([['rollout'], ['ep', 'rew', 'mean']], [['avg', 'return']], [['tok', 'per', 'second']])
    """
    spelled = _HUMPS.sub("_", _RATE.sub(" per second", name))
    parts = ([piece for word in _WORD.findall(_folded(part)) for piece in _SCRIPTS.findall(word)]
             for part in re.split(r"[/:|]|\.(?!\d)", spelled))  # fmt: skip
    return [part for part in parts if part]


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _variants(role_list: str) -> list[frozenset[str]]:
    """The sets of roles that a form stands for. A form with `share` also accepts `ratio`.

    >>> [sorted(roles) for roles in _variants("clip share (policy)")]
    [['clip', 'policy', 'share'], ['clip', 'share'], ['clip', 'policy', 'ratio'], ['clip', 'ratio']]
    """
    found: list[frozenset[str]] = [frozenset()]
    for role in role_list.split():
        if role.startswith("("):
            found = [more for roles in found for more in (roles | {role.strip("()")}, roles)]
        else:
            found = [roles | {role} for roles in found]
    return found + [roles - {"share"} | {"ratio"} for roles in found if "share" in roles]


def _less_sure(one: Sureness, other: Sureness) -> Sureness:
    return max(one, other, key=LEVELS.index)


def _weighed(recognition: Recognition, look: str, values: Sequence[float]) -> Recognition | None:
    """A recognition by words, checked against the values; None where they contradict it."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return recognition
    if len(finite) >= ENOUGH_VALUES and _is_counter(finite):
        return None
    assessment = LOOKS[look](finite) if look else ""
    if assessment == CONTRADICTED:
        return None
    if assessment == NEGATED:
        return replace(recognition, is_negated=True, why=f"{recognition.why}; its values are the negative")
    if assessment and recognition.sureness != "high" and len(finite) >= ENOUGH_VALUES:
        surer: Sureness = "fair" if recognition.sureness == "guess" else "high"
        return replace(recognition, sureness=surer, why=f"{recognition.why}; its values are {assessment}")
    return recognition


CONTRADICTED, NEGATED = "contradicted", "negated"


def _is_counter(values: Sequence[float]) -> bool:
    """Whether it is a counter: whole numbers, each larger than the one before."""
    rises = all(later > earlier for earlier, later in pairwise(values))
    return rises and all(value == int(value) for value in values)


def _share(values: Sequence[float]) -> str:
    if min(values) < 0.0 or max(values) > 100.0:
        return CONTRADICTED
    return "shares" if max(values) <= 1.0 else ""


def _positive(values: Sequence[float]) -> str:
    return CONTRADICTED if min(values) < 0.0 else ""


def _rate(values: Sequence[float]) -> str:
    """A learning rate: never negative, far below 1."""
    if min(values) < 0.0 or max(values) > 1.0:
        return CONTRADICTED
    return "as small as a learning rate" if 0.0 < max(values) < 0.05 else ""


def _kl(values: Sequence[float]) -> str:
    """An estimate of a KL may be a little negative; a large negative number is a log-probability."""
    return CONTRADICTED if _median(values) < -1.0 else ""


def _logp(values: Sequence[float]) -> str:
    return CONTRADICTED if _median(values) > 0.01 else "negative, as log-probabilities are"


def _entropy(values: Sequence[float]) -> str:
    """An entropy that is logged as a term of the loss is negative."""
    return NEGATED if max(values) < 0.0 else ""


def _near_one(values: Sequence[float]) -> str:
    middle = _median(values)
    if len(values) >= ENOUGH_VALUES and not 0.2 <= middle <= 5.0:
        return CONTRADICTED
    return "close to 1" if 0.9 <= middle <= 1.1 else ""


def _length(values: Sequence[float]) -> str:
    is_share = len(values) >= ENOUGH_VALUES and 0.0 < max(values) <= 1.0
    return CONTRADICTED if min(values) < 0.0 or is_share else ""


def _explained(values: Sequence[float]) -> str:
    return CONTRADICTED if max(values) > 1.0 + 1e-6 else ""


def _time(values: Sequence[float]) -> str:
    """The time of a step; values that only grow are the time since the start."""
    grows = len(values) >= ENOUGH_VALUES and all(later > earlier for earlier, later in pairwise(values))
    return CONTRADICTED if min(values) < 0.0 or grows else ""


def _reward(values: Sequence[float]) -> str:
    """Anything may be a reward except a timestamp."""
    return CONTRADICTED if min(values) > 1e8 else ""


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


LOOKS: dict[str, Callable[[Sequence[float]], str]] = {
    "share": _share,
    "positive": _positive,
    "spread": _positive,
    "rate": _rate,
    "kl": _kl,
    "logp": _logp,
    "entropy": _entropy,
    "near_one": _near_one,
    "length": _length,
    "explained": _explained,
    "time": _time,
    "reward": _reward,
}
"""The checks of a concept's values. Each returns contradicted, negated, a phrase if they support it, or nothing."""
