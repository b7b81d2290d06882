"""A run as a small card in a notebook. It uses the notebook's colours, light or dark; the verdict has a symbol and a
coloured edge. Every text of the run is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlvitals.records import Finding
from rlvitals.render.numbers import number
from rlvitals.render.svg import Frame, escaped
from rlvitals.signs import COLOURS, titled

SHOWN_FINDINGS = 3
SHOWN_VALUES = 8


class CardSign(NamedTuple):
    """One metric of the card."""

    name: str
    value: float | None
    course: Sequence[tuple[float, float]] = ()
    """A few (x, y) points of the metric, for the sparkline."""
    change: str = ""
    """How it has changed, in words."""


def run_card(
    name: str,
    about: Sequence[str],
    verdict: tuple[str, str] | None,
    signs: Sequence[CardSign],
    findings: Sequence[Finding],
) -> str:
    """The whole card. `verdict` is the verdict and its reason; None if the run was not judged."""
    edge = COLOURS[verdict[0] if verdict else "cannot judge"]
    words = f"{titled(verdict[0])}: {escaped(verdict[1])}" if verdict else ""
    rows = "".join(
        f'<tr><td style="text-align:left">{escaped(sign.name)}</td><td>{number(sign.value)}</td>'
        f'<td>{_spark(sign.course)}</td><td style="text-align:left;opacity:.75">{escaped(sign.change)}</td></tr>'
        for sign in signs[:SHOWN_VALUES]
    )
    cards = "".join(finding._repr_html_() for finding in findings[-SHOWN_FINDINGS:])
    left = len(findings) - SHOWN_FINDINGS
    more = f"<div>and {left} earlier findings</div>" if left > 0 else ""
    return (
        f'<div style="border-left:4px solid {edge};padding-left:10px"><b>{escaped(name)}</b> {words}'
        f'<div style="opacity:.75">{escaped(" · ".join(about))}</div><table>{rows}</table>{more}{cards}</div>'
    )


def _spark(course: Sequence[tuple[float, float]]) -> str:
    if len(course) < 2:
        return ""
    xs, ys = zip(*course, strict=True)
    frame = Frame(98, 40, 2, (min(xs), max(xs)), (min(ys), max(ys)), top=2)
    style = 'style="fill:none;stroke:currentColor;stroke-width:1.3"'
    line = frame.line(course, "").replace(' class=""', f" {style}")
    return f'<svg width="92" height="20" viewBox="0 0 92 20" aria-hidden="true">{line}</svg>'
