"""Whether two series may be overlaid, and how one is converted to the other.

A per-token k3 and a per-sequence k1 are both "the KL" and differ by orders of magnitude. A percentage and a fraction
differ by a known factor. Views call this module before they compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlvitals.catalog import slices
from rlvitals.catalog.lookup import Match

Relation = Literal["same", "convert", "caution", "different"]
"""same: overlay them. convert: overlay them after both are converted to the concept's sign and scale. caution: one
concept, but measured differently. different: not the same quantity."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdict, and the reason as a text."""

    verdict: Relation
    reason: str = ""


def compare(left: Match | None, right: Match | None, *, same_name: bool = False) -> Comparison:
    """Compare two meanings. `same_name` means that both were logged under one name, which is the only evidence for
    unknown metrics.
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
    if left.labels != right.labels:
        one, other = (slices.text(match.labels) or "all of it" for match in (left, right))
        return Comparison("caution", f"{one} and {other} are different slices")
    if left.alias == right.alias or left.caveat == right.caveat:
        return Comparison("same")
    caveats = [(match, match.caveat) for match in (left, right) if match.caveat is not None]
    hard = [(match, caveat) for match, caveat in caveats if not caveat.is_convertible]
    reason = "; ".join(f"{_who(match)}: {caveat.note or caveat.kind}" for match, caveat in hard or caveats)
    return Comparison("caution" if hard else "convert", reason)


def to_concept(match: Match | None, value: float) -> float:
    """A logged value in the concept's own sign, scale and sense if its caveat is convertible; otherwise unchanged."""
    caveat = match.caveat if match else None
    return caveat.to_concept(value) if caveat is not None and caveat.is_convertible else value


def _who(match: Match) -> str:
    return f"{match.alias.name} of {match.alias.framework}" if match.alias else match.metric.id
