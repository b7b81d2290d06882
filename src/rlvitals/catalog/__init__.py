"""What every metric means: entries, names in each framework, look-up, explanation, comparability.

>>> explain("actor/ppo_kl", framework="verl").id
'policy.kl_old.k1'
>>> [group.title for group in groups() if group.id == "rlaif.loss"]
['Loss analysis']

Your own metrics take the same form as ours, from Python or from a YAML file:

>>> entry = {"id": "mail.read", "title": "Mails read", "what": "Mails an agent opened.", "unit": "mails"}
>>> register({"metrics": [entry]})
>>> explain("mail.read").title
'Mails read'
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rlvitals import plugins
from rlvitals.catalog import explanation as _explanation
from rlvitals.catalog.comparability import Comparison, compare, to_concept
from rlvitals.catalog.entries import Alias, Band, Caveat, Family, Framework, Group, Metric, Symptom
from rlvitals.catalog.explanation import Explanation
from rlvitals.catalog.lookup import Catalog, Match, Recognised
from rlvitals.catalog.source import parse
from rlvitals.codec import parse_json
from rlvitals.errors import CatalogError
from rlvitals.yaml_reader import read_yaml

__all__ = [
    "Alias",
    "Band",
    "Catalog",
    "Caveat",
    "Comparison",
    "Explanation",
    "Family",
    "Framework",
    "Group",
    "Match",
    "Metric",
    "Recognised",
    "Symptom",
    "compare",
    "explain",
    "families",
    "find",
    "frameworks",
    "groups",
    "matches",
    "metrics",
    "recognise",
    "register",
    "to_concept",
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


def explain(name: str, framework: str | None = None) -> Explanation:
    """Everything the catalogue can say of a name. Raises UnknownMetric with the nearest names."""
    return _explanation.explain(_catalog(), name, framework)


def find(name: str, framework: str | None = None) -> list[Match]:
    """Every meaning of a name, the likeliest first."""
    if framework is not None and framework not in _catalog().frameworks:
        framework = None  # a run may name a framework this catalogue has never heard of
    return _catalog().find(name, framework)


def matches(name: str, framework: str | None = None) -> list[Match]:
    """Every meaning of a name, the likeliest first; none for a name nobody knows."""
    if framework is not None and framework not in _catalog().frameworks:
        framework = None
    return _catalog().matches(name, framework)


def recognise(names: Iterable[str]) -> Recognised:
    """The framework and algorithm a run's metric names point to."""
    return _catalog().recognise(names)


def metrics() -> list[Metric]:
    """Every concept."""
    return list(_catalog().metrics.values())


def families() -> list[Family]:
    """The chapters of the catalogue."""
    return list(_catalog().families.values())


def frameworks() -> list[Framework]:
    """Everyone whose names it knows: frameworks, their trainers, documents."""
    return list(_catalog().frameworks.values())


def groups() -> list[Group]:
    """Metrics that belong together."""
    return list(_catalog().groups.values())


def register(source: Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | os.PathLike[str]) -> None:
    """Add metrics of your own: a mapping in the catalogue's form, a list of them, or the path of a YAML or JSON
    file.
    """
    _add(_catalog(), source, os.fspath(source) if isinstance(source, str | os.PathLike) else "register()")


def _add(catalog: Catalog, source: Any, where: str) -> None:
    if isinstance(source, str | os.PathLike):
        source = read_yaml(source, CatalogError)  # JSON is YAML
    for document in source if isinstance(source, list | tuple) else [source]:
        if not isinstance(document, Mapping):
            raise CatalogError(
                f"{where}: expected a mapping with 'metrics', 'frameworks' or 'groups', found {type(document).__name__}"
            )
        catalog.add(parse(document, where), where)
