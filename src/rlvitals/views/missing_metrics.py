"""What a monitor cannot detect because a metric is missing, and the name under which to log it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlvitals import catalog
from rlvitals.errors import RlvitalsError
from rlvitals.health.case import Case
from rlvitals.health.monitor import Monitor

_NAMES_SHOWN = 2

_TOPICS = ("agent", "value", "pref", "moe", "distill", "staleness")
"""Topics that not every training has. A metric of such a topic counts as missing only if the run logs another one of
it.
"""

_OF_ONE_ALGORITHM = {"kl_ref.kto": "kto"}


@dataclass(frozen=True, slots=True)
class Unjudged:
    """A metric that is not logged, and the rules that need it."""

    metric: str
    """The signal's short name."""
    title: str
    names: tuple[str, ...]
    """Names under which to log it: those of the run's framework if it has any."""
    is_in_framework: bool
    """Whether the framework has a name for it."""
    kinds: tuple[str, ...]
    """The kinds of problems that cannot be detected without it."""
    rules: tuple[str, ...]


def unjudged(monitor: Monitor) -> list[Unjudged]:
    """Missing metrics: first those with a name in the run's framework, each sorted by the number of rules that need
    them.
    """
    rules: dict[str, dict[str, str]] = {}
    for missing in monitor.cannot_judge:
        if missing.kind == "data":
            continue  # these rules check logged values only, so a missing metric is no problem
        for metric in missing.metrics:
            rules.setdefault(metric, {})[missing.rule] = missing.kind
    sources = {source.name: source for source in monitor.rulebook.sources}
    found: dict[tuple[str, tuple[str, ...]], Unjudged] = {}
    for metric, waiting in sorted(rules.items(), key=lambda item: -len(item[1])):
        source = sources.get(metric)
        concepts = source.concepts if source else ()
        concerning = [concept for concept in concepts if _concerns(concept, monitor.case)]
        if concepts and not concerning:
            continue
        title, names, own = _what_to_log(metric, concerning, monitor.case.reader)
        key = (title, names or (own,))  # signals that read the same metric first are one line
        before = found.get(key) or Unjudged(metric, *key, bool(names), (), ())
        kinds = tuple(dict.fromkeys((*before.kinds, *waiting.values())))
        found[key] = replace(before, kinds=kinds, rules=tuple(dict.fromkeys((*before.rules, *waiting))))
    return sorted(found.values(), key=lambda missing: not missing.is_in_framework)


def _concerns(concept: str, case: Case) -> bool:
    """Whether a run of this kind could log the concept."""
    if concept in _OF_ONE_ALGORITHM:
        return case.algorithm == _OF_ONE_ALGORITHM[concept]
    topic = concept.partition(".")[0]
    return topic not in _TOPICS or any(taken.concept.startswith(f"{topic}.") for taken in case.taken)


def _what_to_log(metric: str, wanted: list[str], reader: catalog.Reader) -> tuple[str, tuple[str, ...], str]:
    """A metric's title, its names in the run's framework, and the catalogue's own name."""
    concepts = [found for concept in wanted if (found := _concept(concept)) is not None]
    if not concepts:
        return metric.replace("_", " "), (), metric
    names = [name for concept in concepts for name in reader.names_for(concept)]
    return concepts[0].title, tuple(dict.fromkeys(names))[:_NAMES_SHOWN], concepts[0].id


def _concept(identity: str) -> catalog.Metric | None:
    try:
        return catalog.find(identity)[0].metric
    except RlvitalsError:
        return None
