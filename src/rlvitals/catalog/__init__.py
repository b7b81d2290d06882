"""What every metric means: entries, names in each framework, look-up, explanation, comparability.

Examples:
    >>> explain("actor/ppo_kl", framework="verl").id
    'policy.kl_old.k1'
    >>> [group.title for group in groups() if group.id == "rlaif.loss"]
    ['Loss analysis']

    Your own metrics have the same form as the shipped ones, in Python or in a YAML file:

    >>> entry = {"id": "mail.read", "title": "Mails read", "what": "Mails an agent opened.", "unit": "mails"}
    >>> register({"metrics": [entry]})
    >>> explain("mail.read").title
    'Mails read'
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from rlvitals import plugins
from rlvitals.catalog import explanation as _explanation
from rlvitals.catalog.comparability import Comparison, compare, to_concept
from rlvitals.catalog.entries import (
    OTHER_QUANTITIES,
    Algorithm,
    Alias,
    Band,
    Caveat,
    Family,
    Framework,
    Limits,
    Metric,
    MetricGroup,
    Stage,
    Symptom,
)
from rlvitals.catalog.explanation import Explanation
from rlvitals.catalog.lookup import RECOGNISED_ROWS, Catalog, Match, Recognised, Recogniser
from rlvitals.catalog.reader import BACKGROUND, Reader, stage_at
from rlvitals.catalog.recognition import Recognition, Sureness, Vocabulary
from rlvitals.catalog.slices import Cut, Sliced
from rlvitals.catalog.source import parse
from rlvitals.codec import parse_json
from rlvitals.errors import CatalogError
from rlvitals.yaml_reader import read_yaml

__all__ = [
    "BACKGROUND",
    "OTHER_QUANTITIES",
    "RECOGNISED_ROWS",
    "Algorithm",
    "Alias",
    "Band",
    "Catalog",
    "Caveat",
    "Comparison",
    "Cut",
    "Explanation",
    "Family",
    "Framework",
    "Limits",
    "Match",
    "Metric",
    "MetricGroup",
    "Reader",
    "Recognised",
    "Recogniser",
    "Recognition",
    "Sliced",
    "Stage",
    "Sureness",
    "Symptom",
    "Vocabulary",
    "algorithm",
    "algorithms",
    "compare",
    "explain",
    "families",
    "find",
    "frameworks",
    "groups",
    "metrics",
    "reader",
    "recognise",
    "recognise_rows",
    "recogniser",
    "register",
    "stage_at",
    "to_concept",
    "vocabulary",
]

_COMPILED = Path(__file__).parent / "data" / "catalog.json"


@cache
def _catalog() -> Catalog:
    """The shipped entries and the plug-ins', loaded at first use."""
    catalog = Catalog()
    for part in parse_json(_COMPILED.read_bytes()):
        catalog.add(parse(part["document"], part["where"]), part["where"])
    for where, source in plugins.load("catalog"):
        _add(catalog, source, where)
    return catalog


@cache
def shipped_ids() -> frozenset[str]:
    """The ids of the metrics that ship, without plug-ins and registered ones."""
    parts = parse_json(_COMPILED.read_bytes())
    return frozenset(entry["id"] for part in parts for entry in part["document"].get("metrics", ()))


def reader(framework: str | None = None, algorithm: str | None = None, names: Iterable[str] = ()) -> Reader:
    """A reader of one run's names: their meanings, the vital signs, the band that applies.

    A framework or algorithm that is not given is recognised from `names`, if there are any. One that the catalogue does
    not have counts as unknown.
    """
    if names and not (framework and algorithm):
        found = recognise(names)
        framework, algorithm = framework or found.framework, algorithm or found.algorithm
    return Reader(_catalog(), framework, algorithm)


def algorithm(name: str | None) -> Algorithm | None:
    """An algorithm by any of its spellings, or by its name in a framework's settings.

    >>> algorithm("GRPOConfig").id, algorithm("Dr-GRPO").kind, algorithm("my own")
    ('grpo', 'online', None)
    """
    return _catalog().algorithm(name)


def explain(name: str, framework: str | None = None) -> Explanation:
    """Everything the catalogue has about a name. Raises UnknownMetric with the nearest names.

    Args:
        name: A metric's name in any framework, or a concept's id.
        framework: The framework that logs the name, where several use it for different things.

    Example:
        ```python
        import rlvitals

        explanation = rlvitals.explain("rewards/margins")
        print(explanation.id, explanation.direction)  # pref.reward.margin up
        ```
    """
    return _explanation.explain(_catalog(), name, framework)


def find(name: str, framework: str | None = None) -> list[Match]:
    """Every meaning of a name, the likeliest first. Raises UnknownMetric with the nearest names."""
    return _catalog().find(name, framework if framework in _catalog().frameworks else None)


def recognise(names: Iterable[str]) -> Recognised:
    """The framework and algorithm a run's metric names point to."""
    return _catalog().recognise(names)


def recogniser() -> Recogniser:
    """Recognises a run row by row, as the monitor does."""
    return Recogniser(_catalog())


def recognise_rows(rows: Iterable[Iterable[str]]) -> Recognised:
    """The framework and algorithm of a run with these rows, as the monitor reads them. Only the first ones are read."""
    reading = recogniser()
    for row in islice(rows, RECOGNISED_ROWS):
        reading.take(row)
    return reading.found


def vocabulary() -> Vocabulary:
    """The vocabulary that recognises an unregistered name by its words and values.

    >>> vocabulary().recognise("avg_return").concept, vocabulary().recognise("kl_coef")
    ('reward.total.mean', None)
    """
    return _catalog().vocabulary


def metrics() -> list[Metric]:
    """Every concept."""
    return list(_catalog().metrics.values())


def families() -> list[Family]:
    """The families of metrics: the chapters of the catalogue."""
    return list(_catalog().families.values())


def frameworks() -> list[Framework]:
    """All sources of names: frameworks, their trainers, documents."""
    return list(_catalog().frameworks.values())


def algorithms() -> list[Algorithm]:
    """Every algorithm; a variant has what it inherits from its parent."""
    return _catalog().known_algorithms


def groups() -> list[MetricGroup]:
    """The groups of metrics that belong together."""
    return list(_catalog().groups.values())


def register(source: Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | os.PathLike[str]) -> None:
    """Add your own metrics: a mapping in the catalogue's form, a list of them, or the path of a YAML or JSON file."""
    _add(_catalog(), source, os.fspath(source) if isinstance(source, str | os.PathLike) else "register()")


def _add(catalog: Catalog, source: Any, where: str) -> None:
    if isinstance(source, str | os.PathLike):
        source = read_yaml(source, CatalogError)  # JSON is YAML
    for document in source if isinstance(source, list | tuple) else [source]:
        catalog.add(parse(document, where), where)
