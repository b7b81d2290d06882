"""The time until 20 runs are overlaid on the Metrics screen, in a real browser.

20 runs of 10,000 steps with 10 metrics each. Measured: the server's answer for the panels in view (12 metrics of all
runs), the first time and again; and in the browser the time from adding the other 19 runs to an open one until every
panel in view shows all of them.

python benchmarks/dashboard_overlay.py [--runs 20] [--steps 10000]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

from dashboard import NAMES
from dashboard_scrolling import FLAGS, write

ROUNDS = 5


def rows(number: int, steps: int):
    """The rows of a run; the curves differ from run to run."""
    import numpy as np

    values = np.random.default_rng(number).normal(size=(steps, len(NAMES))) + np.linspace(0, number + 1, steps)[:, None]
    for step, row in enumerate(values.tolist(), 1):
        yield {"step": step, "timestamp": 1.79e9 + step, "attempt": 1, **dict(zip(NAMES, row, strict=True))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10_000)
    arguments = parser.parse_args()
    runs = [f"run-{number:02d}" for number in range(arguments.runs)]
    with tempfile.TemporaryDirectory() as folder:
        for number, run in enumerate(runs):
            write(Path(folder) / run, rows(number, arguments.steps))
        starter = "import sys; from rlvitals.cli.main import run; sys.argv = ['rlvitals', *sys.argv[1:]]; run()"
        command = [sys.executable, "-c", starter, "serve", folder, "--port", "0"]
        for attempt in ("no index yet", "with its index"):
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
                home = server.stdout.readline().split()[-1]
                try:
                    ask(home, runs, attempt)
                    if attempt != "no index yet":
                        browse(home, runs)
                finally:
                    server.terminate()


def ask(home: str, runs: list[str], attempt: str) -> None:
    question = urlencode({"run": runs, "name": NAMES, "points": 200}, doseq=True)
    fetch = build_opener(ProxyHandler({})).open
    for name in ("first answer", "again"):
        began = time.perf_counter()
        answer = fetch(f"{home}api/overlays?{question}").read()
        taken = time.perf_counter() - began
        lines = sum(len(one["lines"]) for one in json.loads(answer)["overlays"])
        print(f"server, {attempt}, {name}: {lines} lines, {len(answer) / 2**20:.1f} MiB, {taken * 1000:.0f} ms")


def browse(home: str, runs: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        for number in range(ROUNDS):
            page.goto("about:blank")
            page.goto(f"{home}#metrics?run={runs[0]}")
            page.wait_for_selector(".panel canvas")
            page.wait_for_timeout(800)
            taken = page.evaluate(
                LAID, [f"metrics?{urlencode({'run': runs[0], 'also': runs[1:]}, doseq=True)}", runs[-1]]
            )
            print(f"browser, round {number + 1}: {taken[1]} panels in view, {taken[0]:.0f} ms")
        browser.close()


LAID = """([address, last]) => new Promise(done => {
  const began = performance.now();
  history.pushState(null, '', '#' + address);
  dispatchEvent(new PopStateEvent('popstate'));
  const look = () => {
    const isSeen = one => one.getBoundingClientRect().top < innerHeight;
    const panels = [...document.querySelectorAll(".panel")].filter(isSeen);
    const isDone = panels.length && panels.every(one => one.querySelector('.plot')?.ariaLabel?.includes(last + ':'));
    if (!isDone) return void requestAnimationFrame(look);
    requestAnimationFrame(() => done([performance.now() - began, panels.length]));
  };
  look();
})"""
"""Opens the address as a click would, and waits until every panel in view has painted the last run."""


if __name__ == "__main__":
    main()
