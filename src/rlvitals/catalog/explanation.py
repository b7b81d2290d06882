"""`explain`: everything the catalogue has about one name, as one object that can be converted to JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from rlvitals.catalog.entries import Metric
from rlvitals.catalog.lookup import Catalog, Match


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(Metric):
    """The explanation of a name: the catalogue's entry for its likeliest meaning, and facts about the name itself."""

    name: str
    matched: str
    """How the name was found: as id, name or pattern, or after a logger's prefix (`prefix`)."""
    labels: dict[str, str]
    """The labels of a slice, such as its environment."""
    sources: tuple[dict[str, Any], ...]
    """The frameworks that use exactly this name for it: framework, definition, trap, caveat, when."""
    aliases: dict[str, list[str]]
    """Its names in every framework."""
    other_meanings: tuple[dict[str, Any], ...]
    """The other concepts with this name, and the frameworks that use it so."""

    @property
    def is_ambiguous(self) -> bool:
        """Whether the name means something else elsewhere."""
        return bool(self.other_meanings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        data = asdict(self) | {"is_ambiguous": self.is_ambiguous}
        return {key: value for key, value in data.items() if key != "names"}  # they are in `aliases`


def explain(catalog: Catalog, name: str, framework: str | None = None) -> Explanation:
    """Explain a name, within a framework where one is given. Raises UnknownMetric with the nearest names."""
    matches = catalog.find(name, framework)
    metric = matches[0].metric
    own = [match for match in matches if match.metric.id == metric.id]
    if framework is not None and any(match.in_framework for match in own):
        own = [match for match in own if match.in_framework]
    aliases: dict[str, list[str]] = {}
    for alias in metric.names:
        aliases.setdefault(alias.framework, []).append(f"{alias.name} ({alias.when})" if alias.when else alias.name)
    others: dict[str, list[Match]] = {}
    for match in matches:
        is_foreign = framework is not None and matches[0].in_framework and not match.in_framework
        if match.metric.id != metric.id and not is_foreign:
            others.setdefault(match.metric.id, []).append(match)
    return Explanation(
        **{field.name: getattr(metric, field.name) for field in fields(metric)},
        name=name,
        matched=matches[0].how,
        labels=dict(matches[0].labels),
        sources=tuple(_source(match) for match in own if match.alias is not None),
        aliases=aliases,
        other_meanings=tuple(
            {
                "id": other,
                "title": group[0].metric.title,
                "what": group[0].metric.what,
                "sources": [_source(match) for match in group],
            }
            for other, group in others.items()
        ),
    )


def _source(match: Match) -> dict[str, Any]:
    alias = match.alias
    if alias is None:
        return {}
    found: dict[str, Any] = {"framework": alias.framework, "name": alias.name}
    for key in ("when", "definition", "trap"):
        if value := getattr(alias, key):
            found[key] = value
    if alias.caveat is not None:
        found["caveat"] = {key: value for key, value in asdict(alias.caveat).items() if value not in (None, "")}
    return found
