"""Takes the pictures of docs/dashboard.md in both themes: `python docs/images/dashboard.py RUNS`.

RUNS is a folder with the runs `kto` and `kto-failing` (out/demo and out/demo-failing of `make demo`), `grpo` and
`grpo-failing` (`rlvitals train grpo`, the second with --learning-rate 0.02), and `ppo` (`rlvitals train ppo`, on a
GPU).
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from render import save_png
from rlvitals.web.folder import Folder
from rlvitals.web.server import Server, listen

SIZE = (1280, 800)
SCREENS = {
    "runs": ("", "main td a"),
    "vitals": ("#vitals?run=kto-failing", ".tiles canvas, .tiles svg"),
    "metrics": ("#metrics?run=kto-failing&explain=rewards%2Fmargins", ".panel canvas"),
    "health": ("#health?run=grpo-failing", ".finding canvas"),
    "rollouts": ("#rollouts?run=grpo&group=2", ".heat"),
    "tokens": ("#rollouts?run=grpo&step=1&group=3&rollout=1&tokens=probability", ".tokens"),
    "compare": ("#compare?run=kto&with=kto-failing", "canvas"),
    "performance": ("#performance?run=ppo", ".waterfall"),
    "evaluations": ("#evaluations?run=ppo", "canvas"),
}
"""Picture -> where it is taken, and what must be there first."""

SETTLING_MS = 1500
"""Curves come in after the page; a picture is no test."""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a dashboard over a folder."""
    listening = listen("127.0.0.1", 0)
    server = Server(Folder(folder), "127.0.0.1")
    thread = Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://localhost:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()


def take(page: Page, home: str, ending: str) -> None:
    """Every screen in the page's theme."""
    for name, (place, wanted) in SCREENS.items():
        page.goto("about:blank")
        page.goto(home + place)
        page.wait_for_selector(wanted)
        page.wait_for_timeout(SETTLING_MS)
        save_png(f"dashboard-{name}{ending}", Image.open(io.BytesIO(page.screenshot())).convert("RGB"))


def main() -> None:
    with serving(Path(sys.argv[1])) as home, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for theme, ending in (("light", ""), ("dark", "-dark")):
            context = browser.new_context(viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme=theme)
            take(context.new_page(), home, ending)
        browser.close()


if __name__ == "__main__":
    main()
