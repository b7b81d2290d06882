"""Draws the pictures of the README and the docs from real output: `make demo`, then `python docs/images/render.py`."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console, RenderableType

import rlvitals
from rlvitals import catalog
from rlvitals.render.check import ReportView
from rlvitals.render.explanation import render_explanation
from rlvitals.render.run_plots import Picture
from rlvitals.render.run_plots import draw as render_plot
from rlvitals.render.tables import render_run
from rlvitals.views.compare import compare_runs
from rlvitals.views.plots import comparison, overview
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


def draw_plot(name: str, picture: Picture) -> None:
    """Draw one figure, small enough for a repository."""
    from PIL import Image

    image = Image.open(io.BytesIO(render_plot(picture))).convert("RGB")
    image = image.resize((1240, image.height * 1240 // image.width), Image.Resampling.LANCZOS)
    image.quantize(128, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(FOLDER / f"{name}.png", optimize=True)


def main() -> None:
    titles = {framework.id: framework.title for framework in catalog.frameworks()}
    metric = catalog.explain("frac_reward_zero_std", "trl_grpo")
    draw("explain", "rlvitals explain frac_reward_zero_std --framework trl_grpo", render_explanation(metric, titles))
    draw("show", "rlvitals show out/demo", render_run(summarise(rlvitals.open_run("out/demo"))))
    draw("check", "rlvitals check out/demo-failing", ReportView(rlvitals.check("out/demo-failing").to_dict()))
    runs = [rlvitals.open_run("out/demo"), rlvitals.open_run("out/demo-failing")]
    draw_plot("plot", overview(runs[1]))
    draw_plot("comparison", comparison(runs, compare_runs(runs)))


if __name__ == "__main__":
    main()
