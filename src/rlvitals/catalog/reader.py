"""Reads a run's names for views, rules and trackers: the meaning of a name, the vital signs, the band that applies, and
the names that are slices of one metric.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from rlvitals.catalog import explanation, slices
from rlvitals.catalog.entries import Algorithm, Band, Metric, Stage
from rlvitals.catalog.explanation import Explanation
from rlvitals.catalog.lookup import Catalog, Match
from rlvitals.catalog.slices import Cut, Sliced
from rlvitals.splits import held_out_name, is_held_out

MOST_LOOKED_AT = 20_000
"""The most names in which vital signs are searched for; a run with more has logged something other than metrics."""

FEWEST_SIGNS, MOST_SIGNS = 8, 12
"""If there are fewer vital signs, other metrics are added; more are too many to look at."""

FURTHER = ("vitals.agent", "vitals.value", "vitals.sync")
"""Groups that come after an algorithm's own signs."""

EXPERTS, EXPERT_SIGNS = "vitals.experts", 3
"""A mixture of experts is trained with the same algorithms, so a few places among their signs are for its router."""

BACKGROUND = frozenset({"progress", "time", "memory", "system", "engine", "throughput"})
"""Families about the machine, not about the training."""

STAGE_ENDS: tuple[tuple[float, Stage], ...] = (
    (10 / 145, "start"),
    (50 / 145, "early"),
    (100 / 145, "mid"),
    (1.0, "late"),
)
"""The share of the planned steps up to which each stage lasts, as in the KTO guide's table of 145 steps."""


def stage_at(step: int | None, total: int | None) -> Stage:
    """The stage of a run; "any" where that is not known.

    >>> stage_at(5, 145), stage_at(80, 145), stage_at(145, 145), stage_at(80, None)
    ('start', 'mid', 'end', 'any')
    """
    if not total or step is None:
        return "any"
    share = step / total
    return "end" if share >= 1.0 else next(stage for end, stage in STAGE_ENDS if share <= end)


class Reader:
    """Reads the names of one run, as its framework and algorithm mean them."""

    def __init__(self, catalog: Catalog, framework: str | None = None, algorithm: str | None = None) -> None:
        self._catalog = catalog
        self.algorithm: Algorithm | None = catalog.algorithm(algorithm)
        self._algorithm = self.algorithm.id if self.algorithm else None
        self.framework = catalog.trainer(framework, self._algorithm)
        """The trainer whose names the run logs, or its framework; None where neither is known."""

    def matches(self, name: str) -> list[Match]:
        """Every meaning of a name, the likeliest first; none for an unknown name."""
        return self._catalog.matches(name, self.framework, self._algorithm)

    def meaning(self, name: str, *, evaluated: bool = False) -> Match | None:
        """The meaning of a logged name in this run; None for an unknown name. `evaluated` means that only evaluations
        log it.
        """
        found = next(iter(self.matches(name)), None)
        if evaluated and (found is None or found.metric.family != "eval"):
            return next(iter(self.matches(held_out_name(name))), found)
        return found

    def cut(self, name: str) -> Cut | None:
        """The labels of a name that is a slice; None for any other."""
        found = self.meaning(name)
        if found is None:
            return slices.cut(name)
        return Cut(name, found.labels, found.stem) if found.labels else None

    def slices(self, names: Sequence[str]) -> list[Sliced]:
        """The slices among a run's logged names, grouped by series, in the order they were logged."""
        groups: dict[str, dict[str, str]] = {}
        for name in names[:MOST_LOOKED_AT]:
            if cut := self.cut(name):
                groups.setdefault(cut.stem, {}).setdefault(slices.text(cut.labels), name)
        if not groups:
            return []
        wholes: dict[tuple[str, bool], str] = {}
        for name in names[:MOST_LOOKED_AT]:
            found = self.meaning(name)
            if found is not None and not found.labels:
                wholes.setdefault((found.metric.id, is_held_out(name)), name)
        logged = set(names)
        return [self._sliced(stem, members, logged, wholes) for stem, members in groups.items()]

    def _sliced(
        self, stem: str, members: dict[str, str], logged: set[str], wholes: Mapping[tuple[str, bool], str]
    ) -> Sliced:
        first = next(iter(members.values()))
        found = self.meaning(first)
        concept = found.metric.id if found else None
        whole = next((name for name in _spelled_for_all(stem, first, self.cut(first)) if name in logged), None)
        if whole is None and concept is not None:
            whole = wholes.get((concept, is_held_out(first)))
        return Sliced(stem, concept, members, whole)

    def explain(self, name: str) -> Explanation:
        """Everything the catalogue has about a name. Raises UnknownMetric with the nearest names."""
        return explanation.explain(self._catalog, name, self.framework)

    def named(self, name: str, *, evaluated: bool = False) -> Metric | None:
        """The concept whose title, unit and band apply to a logged number. None where they would mislead: the number is
        another quantity or its opposite, or only other frameworks use the name, and for different things.
        """
        found = self.meaning(name, evaluated=evaluated)
        if found is None or (found.caveat is not None and found.caveat.is_misleading):
            return None
        return found.metric if found.in_framework or self._is_unambiguous(name) else None

    def title(self, name: str, *, evaluated: bool = False) -> str:
        """The title to show: that of its concept, or the name itself where there is none or it covers many series."""
        metric = self.named(name, evaluated=evaluated)
        return name if metric is None or metric.is_collective else metric.title

    def _is_unambiguous(self, name: str) -> bool:
        return len({match.metric.id for match in self.matches(name)}) == 1

    def names_for(self, metric: Metric) -> list[str]:
        """The names of a concept in the run's framework."""
        scope = self._catalog.scope(self.framework) if self.framework else set()
        own = (alias for alias in metric.names if alias.framework in scope and "{" not in alias.name)
        return list(dict.fromkeys(a.name for a in own if not (a.caveat and a.caveat.is_other_quantity)))

    def band(
        self, name: str, *, stage: Stage = "any", parameters: float | None = None, evaluated: bool = False
    ) -> Band | None:
        """The typical range of a logged number at a stage of training, for a model with this many parameters. None
        where the catalogue has none that is known to apply.
        """
        metric, found = self.named(name, evaluated=evaluated), self.meaning(name, evaluated=evaluated)
        if metric is None or found is None or (is_held_out(name) and found.how == "prefix"):
            return None
        if found.caveat is not None and found.caveat.kind != "estimator":
            return None
        estimator = self.algorithm.estimators.get(metric.id, "") if self.algorithm else ""
        fitting = {
            (band.algorithm, band.stage): band
            for band in reversed(metric.bands)
            if band.is_typical
            and band.estimator in ("", estimator)
            # An algorithm's own band is for the estimator that it uses.
            and (found.caveat is None or band.algorithm != "any")
            and (band.min_parameters is None or (parameters is not None and parameters >= band.min_parameters))
        }
        wanted = ((algorithm, at) for algorithm in (self._algorithm or "any", "any") for at in (stage, "any"))
        return next((fitting[key] for key in wanted if key in fitting), None)

    def vital_signs(self, names: Sequence[str]) -> list[str]:
        """Which of a run's logged names to look at, the most telling first, at most MOST_SIGNS.

        First come the algorithm's own signs. For an unknown algorithm, they are those of the one that most of the names
        belong to. For a mixture of experts, EXPERT_SIGNS of its router are among them. Then come those of an agent, a
        critic and an engine. If there are fewer than FEWEST_SIGNS, core metrics of the catalogue are added, then
        unknown names.
        """
        logged = self._by_concept(names)
        chosen = [logged[concept] for concept in self._signs(logged) if concept in logged]
        if len(chosen) < FEWEST_SIGNS:
            core = [name for concept, name in logged.items() if self._is_telling(concept)]
            unknown = (name for name in names if self.meaning(name) is None)
            chosen = list(dict.fromkeys([*chosen, *core, *islice(unknown, FEWEST_SIGNS)]))[:FEWEST_SIGNS]
        return (chosen or list(names[:FEWEST_SIGNS]))[:MOST_SIGNS]

    def ordered(self, names: Sequence[str]) -> list[str]:
        """All names: the vital signs first, then the others in the order they were logged."""
        return list(dict.fromkeys([*self.vital_signs(names), *names]))

    def columns(self, names: Sequence[str]) -> dict[str, str]:
        """By concept, the name whose values may be shown in a column with its title: in its framework's spelling, from
        training, and in the concept's own sign and scale.
        """
        return self._by_concept([name for name in names if self._fits_a_column(name)])

    def _fits_a_column(self, name: str) -> bool:
        found = self.meaning(name)
        if found is None or (found.caveat and (found.caveat.is_misleading or found.caveat.is_convertible)):
            return False
        spelling = found.alias.name if found.alias else found.metric.id
        return spelling.removeprefix("train/") == name.removeprefix("train/")

    def _by_concept(self, names: Sequence[str]) -> dict[str, str]:
        """The name that is read for each concept: training before evaluation, the whole before a slice, the framework's
        own before another's.
        """
        best: dict[str, tuple[tuple[bool, int, bool], str]] = {}
        for name in names[:MOST_LOOKED_AT]:
            found = self.meaning(name)
            if found is None or (found.caveat is not None and found.caveat.is_other_quantity):
                continue
            rank = (is_held_out(name) and found.how == "prefix", len(found.labels), not found.in_framework)
            if found.metric.id not in best or rank < best[found.metric.id][0]:
                best[found.metric.id] = (rank, name)
        return {concept: name for concept, (_, name) in best.items()}

    def _signs(self, logged: Iterable[str]) -> list[str]:
        known = set(logged)
        if self.algorithm is not None and self.algorithm.vitals:
            own = self._concepts(self.algorithm.vitals)
        else:
            lists = dict.fromkeys(algorithm.vitals for algorithm in self._catalog.known_algorithms)
            own = max(map(self._concepts, lists), key=lambda signs: len(known.intersection(signs)), default=[])
        own = [concept for concept in own if concept in known]
        routers = [concept for concept in self._concepts([EXPERTS]) if concept in known][:EXPERT_SIGNS]
        first = own[: MOST_SIGNS - len(routers)]
        return list(dict.fromkeys([*first, *routers, *own, *self._concepts([*FURTHER, EXPERTS])]))

    def _concepts(self, vitals: Iterable[str]) -> list[str]:
        groups = self._catalog.groups
        found = (concept for sign in vitals for concept in (groups[sign].metrics if sign in groups else (sign,)))
        return list(dict.fromkeys(found))

    def _is_telling(self, concept: str) -> bool:
        metric = self._catalog.metrics[concept]
        return metric.tier == "core" and metric.family not in BACKGROUND


def _spelled_for_all(stem: str, name: str, cut: Cut | None) -> Iterator[str]:
    """Possible names of the series over all slices: without the labels, or with a framework's word for all slices in
    place of one label.
    """
    if plain := slices.cut(name):
        yield plain.name
    labels = cut.labels if cut else {}
    for key in labels:
        for word in sorted(slices.WHOLE):
            values = {**labels, key: word}
            spelled = stem
            for other, value in values.items():
                spelled = spelled.replace(f"{{{other}}}", value, 1)
            yield spelled
