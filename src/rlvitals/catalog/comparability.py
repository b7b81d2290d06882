"""Whether two series may be laid over each other, and how one is turned into the other.

A per-token k3 and a per-sequence k1 are both "the KL" and differ by orders of magnitude; a percentage and a fraction
differ by a factor that can be taken out. Views ask here before they compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlvitals.catalog.entries import Caveat
from rlvitals.catalog.lookup import Match

Verdict = Literal["same", "convert", "caution", "different"]
"""same: lay them over each other. convert: after turning both into the concept's own sign and scale. caution: one
concept, but counted differently. different: not the same quantity."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdict, and the reason in a person's words."""

    verdict: Verdict
    reason: str = ""


def compare(left: Match | None, right: Match | None, *, same_name: bool = False) -> Comparison:
    """Judge two meanings. `same_name`: both were logged under one name, which is all there is to go by for unknown
    metrics.
    """
    if left is None or right is None:
        return Comparison(
            "same" if same_name else "different", "" if same_name else "the catalogue does not know them both"
        )
    if left.metric.id != right.metric.id:
        if left.metric.quantity == right.metric.quantity:
            return Comparison(
                "different",
                f"{left.metric.title} and {right.metric.title} measure one idea in ways that do not compare",
            )
        return Comparison("different", f"{left.metric.id} and {right.metric.id} are different concepts")
    if _is_same_source(left, right):
        return Comparison("same")
    caveats = [(match, match.alias.caveat) for match in (left, right) if match.alias and match.alias.caveat]
    if not caveats:
        return Comparison("same")
    if caveats and len(caveats) == 2 and caveats[0][1] == caveats[1][1]:
        return Comparison("same")
    hard = [f"{_who(match)}: {caveat.note or caveat.kind}" for match, caveat in caveats if not caveat.is_convertible]
    if hard:
        return Comparison("caution", "; ".join(hard))
    return Comparison("convert", "; ".join(f"{_who(match)}: {caveat.note or caveat.kind}" for match, caveat in caveats))


def to_concept(match: Match | None, value: float) -> float:
    """A logged value in the concept's own sign, scale and sense, where a caveat allows it; as it is otherwise."""
    caveat: Caveat | None = match.alias.caveat if match and match.alias else None
    return caveat.to_concept(value) if caveat is not None and caveat.is_convertible else value


def _is_same_source(left: Match, right: Match) -> bool:
    if left.alias is None or right.alias is None:
        return left.alias is right.alias
    return (left.alias.framework, left.alias.name, left.alias.when) == (
        right.alias.framework,
        right.alias.name,
        right.alias.when,
    )


def _who(match: Match) -> str:
    return f"{match.alias.name} of {match.alias.framework}" if match.alias else match.metric.id
