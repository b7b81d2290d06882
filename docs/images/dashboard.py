"""Takes the pictures of docs/dashboard.md in both themes: `python docs/images/dashboard.py RUNS [PICTURE ...]`.

RUNS is a folder with the runs `grpo` (`rlvitals train grpo`) and `sweep/lrRATE-seedSEED`: `examples/numpy_grpo.py` with
--steps 150, rates 0.001, 0.003, 0.01 and 0.1, seeds 0, 1 and 2. The picture `runs` is of a folder with the sweep alone.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from render import save_png
from rlvitals.web.folder import Folder
from rlvitals.web.server import Server, listen

SIZE = (1280, 800)
SWEEP = [f"sweep/lr{rate}-seed{seed}" for rate in ("0.001", "0.003", "0.01", "0.1") for seed in (0, 1, 2)]
COLUMNS = ["verdict", "reward.last", "reward.best", "kl.last", "learning_rate", "seed", "duration"]
SCREENS = {
    "runs": (f"#runs?{urlencode({'column': COLUMNS, 'group': 'seeds'}, doseq=True)}", "tr.bundle"),
    "vitals": (f"#vitals?{urlencode({'run': SWEEP[-2]})}", ".tiles canvas, .tiles svg"),
    "metrics": (f"#metrics?{urlencode({'run': SWEEP[-1], 'explain': 'kl'})}", ".panel canvas"),
    "overlay": (
        f"#metrics?{urlencode({'run': SWEEP[0], 'also': SWEEP[1:], 'by': 'learning_rate'}, doseq=True)}&smooth=5x",
        ".panel canvas",
    ),
    "distributions": ("#metrics?run=grpo&spread=bands", ".distributed canvas"),
    "health": (f"#health?{urlencode({'run': SWEEP[-2]})}", ".finding canvas"),
    "rollouts": ("#rollouts?run=grpo&group=2", ".heat"),
    "tokens": ("#rollouts?run=grpo&step=1&group=3&rollout=1&tokens=probability", ".tokens"),
    "compare": (f"#compare?{urlencode({'run': SWEEP[0], 'with': SWEEP[1:]}, doseq=True)}", ".sweep .way"),
    "performance": ("#performance?run=grpo", ".waterfall"),
    "evaluations": ("#evaluations?run=grpo", "canvas"),
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


def take(page: Page, home: str, ending: str, names: Sequence[str]) -> None:
    """The pictures named, or every one, in the page's theme."""
    for name in names or SCREENS:
        place, wanted = SCREENS[name]
        page.goto("about:blank")
        page.goto(home + place)
        page.wait_for_selector(wanted)
        if name == "compare":
            page.locator(".sweep").evaluate("sweep => sweep.closest('section').scrollIntoView()")
        page.wait_for_timeout(SETTLING_MS)
        save_png(f"dashboard-{name}{ending}", Image.open(io.BytesIO(page.screenshot())).convert("RGB"))


def main() -> None:
    with serving(Path(sys.argv[1])) as home, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for theme, ending in (("light", ""), ("dark", "-dark")):
            context = browser.new_context(viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme=theme)
            take(context.new_page(), home, ending, sys.argv[2:])
        browser.close()


if __name__ == "__main__":
    main()
