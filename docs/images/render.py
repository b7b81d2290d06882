"""Draws the pictures of the README and the docs from real output: `make demo`, then `python docs/images/render.py`."""

from __future__ import annotations

import asyncio
import io
import re
import shutil
from pathlib import Path

from PIL import Image
from rich.console import Console, RenderableType

import rlvitals
from rlvitals import catalog
from rlvitals.render.check import ReportView
from rlvitals.render.explanation import render_explanation
from rlvitals.render.report_html import page
from rlvitals.render.run_plots import Picture
from rlvitals.render.run_plots import draw as render_plot
from rlvitals.render.tables import render_run
from rlvitals.views.compare import compare_runs
from rlvitals.views.plots import comparison, overview
from rlvitals.views.report import gather
from rlvitals.views.summary import summarise

FOLDER = Path(__file__).parent


def draw(name: str, command: str, view: RenderableType) -> None:
    """Print one view to a recording console and save it as SVG."""
    console = Console(record=True, width=104, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(f"[dim]$[/dim] {command}")
    console.print(view)
    save_svg(name, console.export_svg(title="rlvitals"))


def save_svg(name: str, svg: str) -> None:
    """Rich names a font on somebody else's server; a picture in a repository should not call out."""
    (FOLDER / f"{name}.svg").write_text(re.sub(r",\s*url\([^)]*\) format\([^)]*\)", "", svg), encoding="utf-8")


def draw_plot(name: str, picture: Picture) -> None:
    """Draw one figure, small enough for a repository."""
    image = Image.open(io.BytesIO(render_plot(picture))).convert("RGB")
    save_png(name, image.resize((1240, image.height * 1240 // image.width), Image.Resampling.LANCZOS))


def save_png(name: str, image: Image.Image) -> None:
    """Few colours are enough, and make a small file."""
    image.quantize(128, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(FOLDER / f"{name}.png", optimize=True)


def draw_report(name: str, path: str) -> None:
    """The top of a report as a browser shows it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1100, "height": 1500})
        tab.set_content(page(gather(path)))
        image = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
        browser.close()
    save_png(name, image)


async def draw_watch(name: str, path: str, size: tuple[int, int]) -> None:
    """The terminal view after it has read a run to its end."""
    from rlvitals.tui.app import WatchApp
    from rlvitals.tui.watched import Watched

    app = WatchApp(Watched(Path(path)), interval=0.1)
    async with app.run_test(size=size) as pilot:
        while not app.watched.ending:
            await pilot.pause(0.1)
        await pilot.press("j", "j")
        await pilot.pause(0.3)
        save_svg(name, app.export_screenshot())


async def draw_choices(name: str, folder: str, size: tuple[int, int]) -> None:
    """The list of a folder's runs and logs."""
    from rlvitals.tui.run_list import ChoosingApp
    from rlvitals.views.folder_list import FolderList

    listed = FolderList(Path(folder))
    count = len(listed.lines(wait=True))
    app = ChoosingApp(listed)
    async with app.run_test(size=size) as pilot:
        while len(app.query_one("#choices").lines) < count:  # type: ignore[attr-defined]
            await pilot.pause(0.1)
        await pilot.press("j", "j")
        await pilot.pause(0.3)
        save_svg(name, app.export_screenshot())


def main() -> None:
    titles = {framework.id: framework.title for framework in catalog.frameworks()}
    metric = catalog.explain("frac_reward_zero_std", "trl_grpo")
    draw("explain", "rlvitals explain frac_reward_zero_std --framework trl_grpo", render_explanation(metric, titles))
    draw("show", "rlvitals show out/demo", render_run(summarise(rlvitals.open_run("out/demo"))))
    draw("check", "rlvitals check out/demo-failing", ReportView(rlvitals.check("out/demo-failing").to_dict()))
    runs = [rlvitals.open_run("out/demo"), rlvitals.open_run("out/demo-failing")]
    draw_plot("plot", overview(runs[1]))
    draw_plot("comparison", comparison(runs, compare_runs(runs)))
    draw_report("report", "out/demo-failing")
    asyncio.run(draw_watch("watch", "out/demo-failing", (100, 26)))
    asyncio.run(draw_choices("watch-list", "out", (110, 20)))


if __name__ == "__main__":
    main()
