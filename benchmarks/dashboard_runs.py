"""The cost of a list of running runs: for the server per answer, for the browser per frame.

    python benchmarks/dashboard_runs.py [--runs 200] [--rows 2000]

Every run is being written: this process holds its lock and adds a row to each log before each answer. The table has
five columns of metrics and a setting. Scripting time is the browser's own count (`ScriptDuration`) between two frames,
while the list is scrolled by 120 pixels per frame and follows the runs.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np

import rlvitals
from rlvitals.store.layout import RunDir
from rlvitals.store.lock import RunLock

FRAMES = 300
ROUNDS = 7
COLUMNS = ["reward.last", "reward.best", "kl.last", "loss@1000", "entropy.last", "learning_rate"]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


class Trainings:
    """Runs that are all being written."""

    def __init__(self, folder: Path, runs: int, rows: int) -> None:
        first = folder / "first"
        run = rlvitals.start(first, monitor=False, hardware=False, display="none", config={"learning_rate": 1e-6})
        run.log({"reward": 0.0}, step=0)
        run.finish()
        self.logs: list[Path] = []
        self.step = rows
        for number in range(runs):
            place = folder / f"run{number:03d}"
            shutil.copytree(first, place)
            card = json.loads((place / "run.json").read_text()) | {
                "name": place.name,
                "status": "running",
                "ended": None,
            }
            (place / "run.json").write_text(json.dumps(card))
            (place / "config.json").write_text(json.dumps({"learning_rate": 10.0 ** -(4 + number % 4), "seed": number}))
            log = place / "logs" / "training_metrics.jsonl"
            log.write_text("".join(map(self.line, range(1, rows + 1))))
            RunLock(RunDir(place)).acquire()
            self.logs.append(log)
        shutil.rmtree(first)

    def line(self, step: int) -> str:
        reward = math.tanh(step / 500) + 0.1 * math.sin(step)
        row = {"step": step, "timestamp": time.time(), "attempt": 1, "reward": reward, "kl": 1e-4 * step}
        return json.dumps(row | {"loss": 1.0 / step, "entropy": 2.0 - step * 1e-4}) + "\n"

    def advance(self) -> None:
        """Add one row to each run."""
        self.step += 1
        line = self.line(self.step)
        for log in self.logs:
            with log.open("a") as file:
                file.write(line)


def ask(home: str) -> tuple[float, int, dict]:
    """Request the list; returns milliseconds, bytes and the answer."""
    query = "&".join(f"column={column}" for column in COLUMNS)
    began = time.perf_counter()
    with urllib.request.urlopen(f"{home}api/table?{query}") as answer:
        body = answer.read()
    return (time.perf_counter() - began) * 1000, len(body), json.loads(body)


def measure_server(home: str, trainings: Trainings) -> None:
    began = time.perf_counter()
    answers = 0
    while True:
        answers += 1
        took, size, answer = ask(home)
        if answers == 1:
            print(f"first answer: {took:.0f} ms, {answer['pending']} of {len(answer['runs'])} runs still to be read")
        if not answer["pending"]:
            break
    print(f"every run read: {(time.perf_counter() - began) * 1000:.0f} ms, {answers} answers")
    times = []
    for _ in range(ROUNDS):
        trainings.advance()
        took, size, answer = ask(home)
        assert all(run["last_step"] == trainings.step for run in answer["runs"])
        times.append(took)
    print(f"an answer when every run has a new row: median {np.median(times):.0f} ms, {size:,} bytes")


def measure_page(page, home: str, trainings: Trainings) -> None:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def counted() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(item["value"] for item in metrics if item["name"] == "ScriptDuration") * 1000

    query = "&".join(f"column={column}" for column in ["verdict", "status", "step", *COLUMNS])
    page.goto(f"{home}#runs?{query}")
    page.wait_for_selector("tr.entry")
    page.wait_for_timeout(1500)
    frames = []
    before = counted()
    for frame in range(FRAMES):
        if frame % 60 == 0:
            trainings.advance()
        page.evaluate(
            """by => new Promise(done => {
                document.querySelector('main').scrollBy(0, by);
                requestAnimationFrame(() => requestAnimationFrame(done));
            })""",
            120 if frame % 150 < 75 else -120,
        )
        now = counted()
        frames.append(now - before)
        before = now
    median, p95, worst = np.percentile(frames, (50, 95, 100))
    print(f"scrolling {len(trainings.logs)} running runs, {FRAMES} frames: scripting a frame")
    print(f"  median {median:.1f} ms, p95 {p95:.1f} ms, worst {worst:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rows", type=int, default=2000)
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        trainings = Trainings(Path(folder), arguments.runs, arguments.rows)
        starter = "import sys; from rlvitals.cli.main import run; sys.argv = ['rlvitals', *sys.argv[1:]]; run()"
        command = [sys.executable, "-c", starter, "serve", folder, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
            home = server.stdout.readline().split()[-1]
            measure_server(home, trainings)
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            measure_page(browser.new_page(viewport={"width": 1400, "height": 900}), home, trainings)
            browser.close()
            server.terminate()


if __name__ == "__main__":
    main()
