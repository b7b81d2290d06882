"""Finds the meanings of a logged name: exactly, by pattern or by prefix, within a framework where one is known.

One `Catalog` holds all entries (shipped, from plug-ins, from the user) and the maps by name. A name with several
meanings gives several matches, the likeliest first.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from operator import itemgetter
from typing import Literal, NamedTuple

from rlvitals.catalog import slices
from rlvitals.catalog.entries import Algorithm, Alias, Caveat, Family, Framework, Metric, MetricGroup
from rlvitals.catalog.recognition import NameForm, Vocabulary
from rlvitals.catalog.slices import PLACEHOLDER
from rlvitals.catalog.source import CatalogData
from rlvitals.errors import CatalogError, ConfigError, UnknownMetric, did_you_mean
from rlvitals.records import RESERVED, SAMPLED
from rlvitals.splits import without_held_out_prefix

How = Literal["id", "name", "pattern", "prefix"]


@dataclass(frozen=True, slots=True)
class Match:
    """One meaning of a name."""

    metric: Metric
    alias: Alias | None
    """The framework's name that matched; None when the name is the concept's id."""
    how: How
    in_framework: bool = True
    """False when a framework was given and this meaning is another framework's."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The labels of a slice: its environment, data source, agent, task or tool."""
    stem: str = ""
    """The name of a slice with keys in the places of the labels; all slices of the series share it."""

    @property
    def caveat(self) -> Caveat | None:
        """How the logged number differs from the concept, where it does."""
        return self.alias.caveat if self.alias is not None else None


MOST_RECOGNISED = 5_000
"""The most names that are read; in a log with a million keys the rest would add nothing."""


MOST_RECOGNITIONS = 256
"""The most sets of names whose framework and algorithm are cached."""

MOST_REMEMBERED = 65_536
"""The most look-ups whose results are cached; when there are more, the cache is cleared."""


class _Found(NamedTuple):
    """A name of the catalogue that matches a logged name."""

    metric: Metric
    alias: Alias
    how: How
    labels: Mapping[str, str]
    stem: str


class Recognised(NamedTuple):
    """The framework and algorithm that a set of metric names points to; None where it points to none."""

    framework: str | None
    algorithm: str | None


RECOGNISED_ROWS = 3
"""The first rows of a run, whose names show its framework and algorithm. The monitor cannot wait for more."""


class Recogniser:
    """Recognises the framework and the algorithm of a run from all names of its first rows."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._names: dict[str, None] = {}
        self._rows = 0
        self.found = Recognised(None, None)

    def take(self, names: Iterable[str]) -> Recognised:
        """Take the names of the next row; names of a row after the first RECOGNISED_ROWS are ignored."""
        self._rows += 1
        if self._rows <= RECOGNISED_ROWS:
            known = len(self._names)
            # Samples of the machine, which the monitor reads with the next row, point to no framework.
            named = (name for name in names if name not in RESERVED and not name.startswith(SAMPLED))
            self._names.update((name, None) for name in named)
            if len(self._names) > known:
                found = self._catalog.recognise(self._names)
                self.found = found if any(found) else self.found
        return self.found


_QUALIFIER = re.compile(r"^(.*?) \(([^()]*)\)$")
_REDUCER = re.compile(r"@(mean|max|min|sum|std|p50|p99)$")
_ID_AT_K = re.compile(r"(?P<id>.+_k)/\d+(/(low|high))?")
"""A concept's id with its k, as `compute.rollout` writes it: `eval.pass_at_k/8`, and the ends of its interval."""
_NAME_AT_K = re.compile(r"(?P<word>[a-z]+[@^])\d+")
_ALIAS_AT_K = re.compile(r"(?:.*/)?(?P<word>[a-z]+[@^])\{k\}(?:/.*)?")
"""A plain `pass@8`, and the frameworks' longer names that contain it: `passrate/pass@{k}`."""
_GENERIC = {"train", "eval", "val", "rollout", "test", "rewards", "env", "time", "timing", "inference", "all"}
_ANYBODYS = frozenset({
    "loss", "reward", "mean_reward", "accuracy", "margin", "kl", "entropy", "lr", "epoch", "step", "score",
})  # fmt: skip
"""Names that any hand-written loop logs: they alone do not identify a framework."""

_OF_EPISODES = re.compile(r"(^|/)(ep_(rew|len)_mean|mean_ep_length|total_timesteps|episodic_(return|length))$")
"""Names of loops that play episodes in an environment (stable-baselines3, CleanRL), which are no framework of the
catalogue. Otherwise their `eval/mean_reward` and `eval/mean_ep_length` would be read as the scores of two data sets."""

_MEASURED = re.compile(
    r"time/(.+/(total|execute|onload|offload)|rollout|ref_log_probs_values_reward|old_log_probs_values|adv)"
    r"|memory/.+/(start|end)/.+|system/(tps|samples)|Performance/.+|System/.+"
)
"""Names that `run.phase`, `run.timer`, `run.count` and the samples of the machine add to any framework's run, so they
point to no framework."""
_SPECIAL = {
    "metric_infix": ".+",
    "statistic": r"(?:mean|avg|median|min|max|sum|std|stddev|count|tp?\d+|p\d+)",
}
"""Placeholders that do not stand for one segment: one for several segments (ROLL's `actor_train/train_step`), and one
for the name of a reducer.
"""


class Catalog:
    """All entries, and the maps to find them by name."""

    def __init__(self) -> None:
        self.families: dict[str, Family] = {}
        self.metrics: dict[str, Metric] = {}
        self.frameworks: dict[str, Framework] = {}
        self.groups: dict[str, MetricGroup] = {}
        self.algorithms: dict[str, Algorithm] = {}
        self._words: dict[str, tuple[str, ...]] = {}
        self._forms: list[NameForm] = []
        self._neutral: set[str] = set()
        self._ignorable: set[str] = set()
        self._answers: dict[tuple[str, str | None, str | None], tuple[Match, ...]] = {}
        self._recognitions: dict[tuple[str, ...], Recognised] = {}

    def add(self, data: CatalogData, where: str = "the catalogue") -> None:
        """Add a source's entries. A metric replaces one with the same id and family; an id of another family is an
        error.
        """
        for metric in data.metrics:
            present = self.metrics.get(metric.id)
            if present is not None and present.family != metric.family:
                raise CatalogError(
                    f"{where}: the id {metric.id!r} is taken by the family {present.family!r}; choose another id"
                )
            self.metrics[metric.id] = metric
        for family in data.families:
            self.families.setdefault(family.id, family)
        self.frameworks.update({framework.id: framework for framework in data.frameworks})
        self.groups.update({group.id: group for group in data.groups})
        self.algorithms.update({algorithm.id: algorithm for algorithm in data.algorithms})
        for role, words in data.words.items():
            self._words[role] = (*self._words.get(role, ()), *words)
        for form in data.forms:
            self._check_form(form, where)
        self._forms = [*data.forms, *self._forms]  # the newest form counts
        self._neutral.update(data.neutral)
        self._ignorable.update(data.ignorable)
        for name, derived in vars(type(self)).items():
            if isinstance(derived, cached_property):
                self.__dict__.pop(name, None)
        self._recognitions = {}
        self._answers = {}  # a new dict: a look-up in another thread may still write to the old one

    def _check_form(self, form: NameForm, where: str) -> None:
        """Raise CatalogError for an unknown concept or role."""
        roles = {role.strip("()") for role_list in form.said for role in role_list.split()}
        for kind, word, known in (
            ("concept", form.concept, self.metrics.keys()),
            *(("role", role, self._words.keys()) for role in sorted(roles)),
        ):
            if word not in known:
                raise CatalogError(
                    f"{where}: the form of {form.concept!r}: no {kind} is called {word!r}.{did_you_mean(word, known)}"
                )

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words and forms of unregistered names."""
        return Vocabulary(self._words, self._forms, self._neutral, self._ignorable)

    def find(self, name: str, framework: str | None = None) -> list[Match]:
        """Every meaning of a name, the likeliest first. Raises UnknownMetric with the nearest names."""
        found = self.matches(name, framework)
        if not found:
            raise UnknownMetric(name, self.nearest(name))
        return found

    def matches(self, name: str, framework: str | None = None, algorithm: str | None = None) -> list[Match]:
        """The same, but empty for an unknown name. It is fast, because it does not search for the nearest names
        (50 ms), and cached, because views look up the same names repeatedly. With the id of an algorithm, names of its
        trainers come first where the framework leaves the trainer open.
        """
        answers = self._answers
        found = answers.get((name, framework, algorithm))
        if found is None:
            found = tuple(self._matches(name, framework, algorithm))
            if len(answers) >= MOST_REMEMBERED:
                answers.clear()
            answers[name, framework, algorithm] = found
        return list(found)

    def algorithm(self, name: str | None) -> Algorithm | None:
        """An algorithm by any of its spellings, with what it inherits from its parents."""
        return self._by_spelling.get(_spelling(name)) if name else None

    @property
    def known_algorithms(self) -> list[Algorithm]:
        """Every algorithm, with what it inherits from its parents."""
        return [self._by_spelling[_spelling(name)] for name in self.algorithms]

    def lineage(self, algorithm: str) -> list[str]:
        """An algorithm's id, its parent's, and so on."""
        found: list[str] = []
        while algorithm in self.algorithms and algorithm not in found:
            found.append(algorithm)
            algorithm = self.algorithms[algorithm].parent
        return found

    def trainer(self, framework: str | None, algorithm: str | None) -> str | None:
        """The trainer whose names a run logs, or its framework: TRL's `kl` has another meaning in each of its trainers.
        The given algorithm counts more than a trainer that was recognised from names.
        """
        entry = self.frameworks.get(framework or "")
        if entry is None:
            return None
        umbrella = entry.parent or entry.id
        for ancestor in self.lineage(algorithm or ""):
            fitting = [other.id for other in self._trainers.get(ancestor, ()) if other.parent == umbrella]
            if fitting:
                return entry.id if entry.id in fitting else fitting[0]
        return entry.id

    def _matches(self, name: str, framework: str | None, algorithm: str | None) -> list[Match]:
        scope = self.scope(framework) if framework else None
        name = _unspaced(name)
        if cut := slices.cut(name):
            return [_labelled(match, cut) for match in self._matches(cut.name, framework, algorithm)]
        concept = self._concept(name)
        if concept is not None:
            return [Match(concept, None, "id")]
        found = self._search(name, scope)
        if not found:
            for shorter in _without_prefix(name):
                concept = self._concept(shorter)
                if concept is not None:
                    return [Match(concept, None, "prefix")]
                prefix = name.removesuffix(shorter)
                found = [
                    one._replace(how="prefix", stem=one.stem and prefix + one.stem)
                    for one in self._search(shorter, scope)
                ]
                if found:
                    break
        if scope is not None and all(one.how == "pattern" and one.alias.framework not in scope for one in found):
            found = self._search_slices(name, scope) or found  # the framework's own set before another one's pattern
        matches = [
            Match(metric, alias, how, scope is None or alias.framework in scope, labels, stem)
            for metric, alias, how, labels, stem in found
        ]
        return self._ranked(matches, framework, algorithm)

    def nearest(self, name: str) -> list[str]:
        """Known names that are similar to this one."""
        folded = {known.casefold(): known for known in [*self.metrics, *self._by_name]}
        return [folded[word] for word in difflib.get_close_matches(name.casefold(), folded, n=5, cutoff=0.5)]

    def recognise(self, names: Iterable[str]) -> Recognised:
        """The framework that has most of the names, and its algorithm. In a tie, their common parent, or none. Cached:
        the runs of a folder mostly log the same names.
        """
        given = tuple(islice(names, MOST_RECOGNISED))
        found = self._recognitions.get(given)
        if found is None:
            found = self._recognise(given)
            if len(self._recognitions) >= MOST_RECOGNITIONS:
                self._recognitions.clear()
            self._recognitions[given] = found
        return found

    def _recognise(self, given: Sequence[str]) -> Recognised:
        known: Counter[str] = Counter()
        counted = 0
        if any(_OF_EPISODES.search(name) for name in given):
            return Recognised(None, None)
        telling: set[str] = set()
        for name in [name for name in given if not _MEASURED.fullmatch(name)] or given:
            owners = self._owners(name)
            counted += bool(owners)
            known.update(owners)
            if name.casefold() not in _ANYBODYS:
                telling |= owners
        most = max(known.values(), default=0)
        if most < 2 or most < 0.5 * counted:
            return Recognised(None, None)
        if not any(known[framework] == most for framework in telling):
            return Recognised(None, None)
        best = [framework for framework, count in known.items() if count == most]
        # Documents and heirs repeat a framework's names; the original framework is meant.
        originals = [name for name in best if name in self._originals] or best
        originals = [name for name in originals if self.frameworks[name].like not in originals]
        if len(originals) == 1:
            return Recognised(originals[0], self.frameworks[originals[0]].algorithm or None)
        parents = {self.frameworks[name].parent or name for name in originals}
        return Recognised(parents.pop() if len(parents) == 1 else None, None)

    def _owners(self, name: str) -> set[str]:
        """The frameworks that log exactly this name, including heirs. Umbrella names such as `trl` and frameworks that
        are never guessed are not among them.
        """
        name = _unspaced(name)
        if cut := slices.cut(name):
            name = cut.name
        for candidate in (name, *_without_prefix(name)):
            found = {one.alias.framework for one in self._search(candidate, None, strict=True)}
            direct = frozenset(found - self._never_guessed)
            if direct:
                if direct not in self._owners_by_direct:
                    self._owners_by_direct[direct] = self._with_heirs(direct)
                return self._owners_by_direct[direct]
        return set()

    def _with_heirs(self, direct: frozenset[str]) -> set[str]:
        children = {child for child, entry in self.frameworks.items() if entry.parent in direct}
        owners = (direct | children) - {entry.parent for entry in self.frameworks.values()}
        heirs = {
            heir
            for heir, entry in self.frameworks.items()
            if any(source in owners or source in direct for source in entry.inherits)
        }
        return {owner for owner in owners | heirs if owner in self.frameworks} - self._never_guessed

    def check_framework(self, framework: str) -> None:
        """Raise ConfigError for an unknown framework."""
        if framework not in self.frameworks:
            known = ", ".join(sorted(self.frameworks))
            raise ConfigError(
                f"unknown framework {framework!r}.{did_you_mean(framework, self.frameworks)} Known: {known}"
            )

    def scope(self, framework: str) -> set[str]:
        """The frameworks whose names count for a framework: itself, its children, its parent, and those it inherits
        from.
        """
        found = self._scopes.get(framework)
        if found is None:
            self.check_framework(framework)
            found = self._scopes[framework] = self._gathered_scope(framework)
        return found

    def _gathered_scope(self, framework: str) -> set[str]:
        scope, waiting = set(), [framework]
        while waiting:
            current = waiting.pop()
            if current in scope:
                continue
            scope.add(current)
            entry = self.frameworks.get(current)
            waiting.extend(entry.inherits if entry else ())
            waiting.extend(
                name for name, other in self.frameworks.items() if other.parent == current and framework != name
            )
        parent = self.frameworks[framework].parent
        return scope | {parent} if parent else scope

    def _concept(self, name: str) -> Metric | None:
        """The concept with this id; the name may also have a k."""
        at_k = _ID_AT_K.fullmatch(name)
        return self.metrics.get(name) or (self.metrics.get(at_k["id"]) if at_k else None)

    def _search(self, name: str, scope: set[str] | None, *, strict: bool = False) -> list[_Found]:
        plain = _REDUCER.sub("", name)
        exact = self._by_name.get(plain) or ([] if strict else self._by_folded.get(_folded(plain), []))
        if exact:
            return [_Found(metric, alias, "name", {}, "") for metric, alias in exact]
        qualified = _QUALIFIER.match(plain)
        if qualified and not strict:
            found = self._search(qualified[1], scope)
            return [one for one in found if one.alias.when == qualified[2]] or found
        at_k = None if strict else _NAME_AT_K.fullmatch(plain)
        if at_k:
            return [_Found(metric, alias, "pattern", {}, "") for metric, alias in self._at_k.get(at_k["word"], [])]
        fitting = self._patterns.fitting(plain, scope)
        if scope is not None:
            fitting = [pattern for pattern in fitting if pattern.alias.framework in scope] or fitting
        most = max((pattern.literal for pattern in fitting), default=0)
        return [
            _Found(pattern.metric, pattern.alias, "pattern", labels, stem and stem + name[len(plain) :])
            for pattern in fitting
            if pattern.literal == most
            for labels, stem in [pattern.labels(plain)]
        ]

    def _search_slices(self, name: str, scope: set[str]) -> list[_Found]:
        """The meanings of a name from a set that the framework logs once for each slice."""
        for framework in scope & self._slice_forms.keys():
            for form, plain in self._slice_forms[framework]:
                if (fitting := form.fullmatch(name)) is None:
                    continue
                key = next(group for group in form.groupindex if group != "rest")
                whole = plain.replace("*", fitting["rest"])
                found = [one for one in self._search(whole, scope) if one.alias.framework in scope and not one.labels]
                if found and len(fitting[key]) <= slices.LONGEST_LABEL:
                    stem = f"{name[: fitting.start(key)]}{{{key}}}{name[fitting.end(key) :]}"
                    return [one._replace(how="pattern", labels={key: fitting[key]}, stem=stem) for one in found]
        return []

    def _ranked(self, matches: list[Match], framework: str | None, algorithm: str | None) -> list[Match]:
        """Sort matches, the best first: in the given framework, its own name before an inherited one, of a trainer for
        the algorithm, unconditional, without a caveat; then by the number of frameworks that use it.
        """
        if len(matches) < 2:
            return matches
        places = self._places
        ancestors = (self._trainers.get(ancestor) for ancestor in self.lineage(algorithm or ""))
        own = {trainer.id for trainer in next(filter(None, ancestors), ())}
        users = Counter(
            match.metric.id for match in matches if match.alias and match.alias.framework in self._originals
        )

        def rank(match: Match) -> tuple[object, ...]:
            alias = match.alias
            return (
                not match.in_framework,
                framework is not None and alias is not None and alias.framework != framework,
                bool(own) and alias is not None and alias.framework not in own,
                bool(alias and alias.when),
                bool(match.caveat and not match.caveat.is_convertible),
                -users[match.metric.id],
                match.metric.tier != "core",
                places.get(alias.framework, len(places)) if alias else 0,
            )

        return sorted(matches, key=rank)

    @cached_property
    def _by_spelling(self) -> dict[str, Algorithm]:
        found: dict[str, Algorithm] = {}
        for algorithm in self.algorithms.values():
            lineage = [self.algorithms[ancestor] for ancestor in self.lineage(algorithm.id)]
            whole = replace(
                algorithm,
                kind=next((entry.kind for entry in lineage if entry.kind), ""),
                vitals=next((entry.vitals for entry in lineage if entry.vitals), ()),
                estimators=next((entry.estimators for entry in lineage if entry.estimators), {}),
            )
            found |= {_spelling(name): whole for name in (algorithm.id, *algorithm.aliases)}
        return found

    @cached_property
    def _trainers(self) -> dict[str, list[Framework]]:
        """By algorithm, the trainers that frameworks have for it."""
        found: dict[str, list[Framework]] = {}
        for framework in self.frameworks.values():
            if framework.parent and framework.algorithm:
                found.setdefault(framework.algorithm, []).append(framework)
        return found

    @cached_property
    def _slice_forms(self) -> dict[str, list[tuple[re.Pattern[str], str]]]:
        return {
            name: [(slices.form(spelled), plain) for spelled, plain in entry.slices.items()]
            for name, entry in self.frameworks.items()
            if entry.slices
        }

    @cached_property
    def _scopes(self) -> dict[str, set[str]]:
        return {}

    @cached_property
    def _owners_by_direct(self) -> dict[frozenset[str], set[str]]:
        """A cache with one entry for each set of frameworks that share a name, so the catalogue's size bounds it."""
        return {}

    @cached_property
    def _places(self) -> dict[str, int]:
        return {framework: place for place, framework in enumerate(self.frameworks)}

    @cached_property
    def _never_guessed(self) -> set[str]:
        return {name for name, entry in self.frameworks.items() if not entry.is_guessed}

    @cached_property
    def _originals(self) -> set[str]:
        """Frameworks that inherit no names: neither heirs of another one nor documents about it."""
        return {name for name, entry in self.frameworks.items() if not entry.inherits}

    @cached_property
    def _by_name(self) -> dict[str, list[tuple[Metric, Alias]]]:
        found: dict[str, list[tuple[Metric, Alias]]] = {}
        for metric in self.metrics.values():
            for alias in metric.names:
                found.setdefault(alias.name, []).append((metric, alias))
        return found

    @cached_property
    def _by_folded(self) -> dict[str, list[tuple[Metric, Alias]]]:
        found: dict[str, list[tuple[Metric, Alias]]] = {}
        for name, entries in self._by_name.items():
            found.setdefault(_folded(name), []).extend(entries)
        return found

    @cached_property
    def _at_k(self) -> dict[str, list[tuple[Metric, Alias]]]:
        found: dict[str, list[tuple[Metric, Alias]]] = {}
        for name, entries in self._by_name.items():
            if match := _ALIAS_AT_K.fullmatch(name):
                found.setdefault(match["word"], []).extend(entries)
        return found

    @cached_property
    def _patterns(self) -> _Patterns:
        return _Patterns(
            _Pattern(metric, alias) for metric in self.metrics.values() for alias in metric.names if "{" in alias.name
        )


class _Patterns:
    """All names with placeholders, by the text before the first placeholder: a name is compared only with the few
    patterns that have the same start.
    """

    def __init__(self, patterns: Iterable[_Pattern]) -> None:
        self._by_head: dict[str, list[tuple[int, _Pattern]]] = {}
        for place, pattern in enumerate(patterns):
            self._by_head.setdefault(pattern.head, []).append((place, pattern))
        self._lengths = sorted({len(head) for head in self._by_head})

    def fitting(self, name: str, scope: set[str] | None) -> list[_Pattern]:
        """The patterns that match a name, in the catalogue's order."""
        found = [
            (place, pattern)
            for length in self._lengths
            if length <= len(name)
            for place, pattern in self._by_head.get(name[:length], ())
            if pattern.fits(name, scope)
        ]
        return [pattern for _, pattern in sorted(found, key=itemgetter(0))]


class _Pattern:
    """A name with placeholders. `{x}` stands for one segment or a part of one."""

    def __init__(self, metric: Metric, alias: Alias) -> None:
        self.metric = metric
        self.alias = alias
        self.head = PLACEHOLDER.split(alias.name, maxsplit=1)[0]
        self.literal = len(PLACEHOLDER.sub("", alias.name))
        """The number of fixed characters: the pattern with the most wins."""
        fixed = {part for part in alias.name.split("/") if "{" not in part}
        self.is_loose = fixed <= _GENERIC and (alias.name.count("/") < 2 or alias.name.endswith("{statistic}"))
        """Whether it is so general that it only counts for its own framework (`train/{extra_log_key}`)."""
        self._regex: re.Pattern[str] | None = None

    def fits(self, name: str, scope: set[str] | None) -> bool:
        if name == self.alias.name:
            return True
        if self.is_loose and (scope is None or self.alias.framework not in scope):
            return False
        return self._expression().fullmatch(name) is not None

    def labels(self, name: str) -> tuple[dict[str, str], str]:
        """The labels of a name that matches, and the name with keys in their places; both empty for a name over all
        slices.
        """
        expression = self._expression()
        found = expression.fullmatch(name) if expression.groupindex else None
        if found is None:
            return {}, ""
        labels: dict[str, str] = {}
        stem, end = "", 0
        for key in expression.groupindex:
            value = found[key]
            if value in slices.WHOLE or len(value) > slices.LONGEST_LABEL:
                continue
            labels[key] = value
            stem += f"{name[end : found.start(key)]}{{{key}}}"
            end = found.end(key)
        return labels, stem + name[end:] if labels else ""

    def _expression(self) -> re.Pattern[str]:
        """The compiled expression. It is compiled at first use, because most patterns are never used."""
        if self._regex is None:
            pieces = PLACEHOLDER.split(self.alias.name)
            self._regex = re.compile(
                "".join(re.escape(piece) if place % 2 == 0 else _group(piece) for place, piece in enumerate(pieces))
            )
        return self._regex


def _group(placeholder: str) -> str:
    """The expression for a placeholder: a group named by its key if it is a label."""
    expression = ".+" if placeholder.endswith("*") else _SPECIAL.get(placeholder, "[^/]+")
    key = slices.label_key(placeholder)
    return f"(?P<{key}>{expression})" if key else expression


def _labelled(match: Match, cut: slices.Cut) -> Match:
    """Add the labels of a name to the meaning of the name without them."""
    keys = cut.stem.removeprefix(cut.name)
    return replace(match, labels={**match.labels, **cut.labels}, stem=(match.stem or cut.name) + keys)


_SEPARATORS = str.maketrans(" -/", "___")


def _unspaced(name: str) -> str:
    """A name as it was logged: tables in notebooks have spaces around the slash."""
    return name.replace(" / ", "/")


def _folded(name: str) -> str:
    return name.casefold().translate(_SEPARATORS)


def _spelling(name: str) -> str:
    return _folded(name).replace("_", "")


def _without_prefix(name: str) -> list[str]:
    """The name without prefixes of loggers and exports (Hugging Face integrations, OpenRLHF, Weights & Biases)."""
    bare = name.removeprefix("data/").removeprefix("metrics/")
    shorter = (name.removeprefix("train/"), name.removeprefix("train_"), bare, without_held_out_prefix(name))
    return [candidate for candidate in dict.fromkeys(shorter) if candidate and candidate != name]
