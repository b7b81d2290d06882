"""Draws the terminal pictures of the README from real output: `python docs/images/render.py RUN`."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console, RenderableType

import rlvitals
from rlvitals import catalog
from rlvitals.render.explanation import render_explanation
from rlvitals.render.tables import render_run
from rlvitals.views.summary import summarise

FOLDER = Path(__file__).parent


def draw(name: str, command: str, view: RenderableType) -> None:
    """Print one view to a recording console and save it as SVG."""
    console = Console(record=True, width=104, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(f"[dim]$[/dim] {command}")
    console.print(view)
    # Rich names a font on somebody else's server; a picture in a repository should not call out.
    svg = re.sub(r",\s*url\([^)]*\) format\([^)]*\)", "", console.export_svg(title="rlvitals"))
    (FOLDER / f"{name}.svg").write_text(svg, encoding="utf-8")


def main() -> None:
    titles = {framework.id: framework.title for framework in catalog.frameworks()}
    metric = catalog.explain("frac_reward_zero_std", "trl_grpo")
    draw("explain", "rlvitals explain frac_reward_zero_std --framework trl_grpo", render_explanation(metric, titles))
    draw("show", f"rlvitals show {sys.argv[1]}", render_run(summarise(rlvitals.open_run(sys.argv[1]))))


if __name__ == "__main__":
    main()
