"""The browser's cost of scrolling through 3,000 metrics, and the time from a click to a chart of 100,000 steps.

    python benchmarks/dashboard_scrolling.py [--metrics 3000] [--steps 100000]

Uses a real Chromium (`apt-get install chromium`, `pip install playwright`) on a real server. Scripting time is the
browser's own count (`ScriptDuration`) between two frames; a frame is one step of the wheel, 120 pixels.
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

import numpy as np

FRAMES = 300
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def write(path: Path, rows) -> None:
    logs = path / "logs"
    logs.mkdir(parents=True)
    with (logs / "training_metrics.jsonl").open("w") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")


def wide(metrics: int, rows: int = 300):
    noise = np.random.default_rng(0)
    names = [f"group{number // 50}/metric{number}" for number in range(metrics)]
    for step in range(1, rows + 1):
        values = noise.normal(size=metrics).round(4).tolist()
        yield {"step": step, "timestamp": float(step), **dict(zip(names, values, strict=True))}


def long(steps: int):
    values = np.random.default_rng(1).normal(size=steps).cumsum().round(4)
    values[steps // 3] += 5000
    for step, value in enumerate(values.tolist(), 1):
        yield {"step": step, "timestamp": float(step), "walk": value}


def scroll(page, session) -> list[float]:
    """Milliseconds of scripting in each frame."""

    def counted() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(item["value"] for item in metrics if item["name"] == "ScriptDuration") * 1000

    frames = []
    before = counted()
    for _ in range(FRAMES):
        page.evaluate("""() => new Promise(done => {
            document.querySelector('main').scrollBy(0, 120);
            requestAnimationFrame(() => requestAnimationFrame(done));
        })""")
        now = counted()
        frames.append(now - before)
        before = now
    return frames


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--metrics", type=int, default=3000)
    parser.add_argument("--steps", type=int, default=100_000)
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "wide", wide(arguments.metrics))
        write(Path(folder) / "long", long(arguments.steps))
        starter = "import sys; from rlvitals.cli.main import run; sys.argv = ['rlvitals', *sys.argv[1:]]; run()"
        command = [sys.executable, "-c", starter, "serve", folder, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
            home = server.stdout.readline().split()[-1]
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            measure(page, home, arguments)
            browser.close()
            server.terminate()


def measure(page, home: str, arguments) -> None:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    page.goto(f"{home}#metrics?run=wide")
    page.wait_for_selector(".panel canvas", timeout=60_000)
    page.wait_for_timeout(1500)
    frames = scroll(page, session)
    median, p95, worst = np.percentile(frames, (50, 95, 100))
    print(f"scrolling {arguments.metrics:,} metrics, {FRAMES} frames: scripting a frame")
    print(f"  median {median:.1f} ms, p95 {p95:.1f} ms, worst {worst:.1f} ms")
    for name in ("first time", "again"):
        page.goto(f"{home}#vitals?run=long")
        page.reload()
        page.wait_for_selector(".tile")
        page.wait_for_timeout(800)
        began = time.perf_counter()
        page.locator(".sparklink").first.click()
        page.wait_for_selector(".large .panel canvas")
        print(f"click to chart of {arguments.steps:,} steps, {name}: {(time.perf_counter() - began) * 1000:.0f} ms")


if __name__ == "__main__":
    main()
