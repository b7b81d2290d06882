"""Install the wheel and the sdist in clean environments, use them, and print a table.

    python tests/release/check_release.py [--pythons 3.11] [--extras base web] [--resolutions highest] [--write]

Each environment holds one artefact with one extra, resolved by uv to the lowest or the newest versions that
pyproject.toml allows. In it a small program uses the feature that the extra is for. `--write` puts the table into
docs/stability.md. uv also uses pip's setting for links (`PIP_FIND_LINKS`).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv-release"
PAGE = ROOT / "docs" / "stability.md"
HEAD = "| extra | artefact | Python | lowest versions | newest versions |"
RESOLUTIONS = ("lowest-direct", "highest")
SECONDS = 900

RECORD = """
import rlvitals
with rlvitals.start("run", algorithm="grpo", total_steps=40, display="none") as run:
    for step in range(1, 41):
        run.log({"loss": 1 / step, "reward": 0.3 + 0.01 * step, "entropy": 1.0}, step=step)
"""
"""Records the run that the programs below use."""

BASE = """
import json, subprocess, sys
from pathlib import Path
command = str(Path(sys.executable).parent / "rlvitals")
def asked(*words):
    return json.loads(subprocess.run([command, *words, "--json"], check=True, capture_output=True, text=True).stdout)
assert asked("check", "run")["verdict"] == "healthy"
assert asked("show", "run")["step"] == 40
assert asked("explain", "critic/score/mean")["id"] == "reward.total.mean"
subprocess.run([command, "export", "run", "--to", "csv"], check=True)
assert Path("run.csv").read_text().count("\\n") == 41
subprocess.run([command, "report", "run", "--output", "run.html"], check=True)
assert "<html" in Path("run.html").read_text()
"""

FORWARD = """
import os, subprocess, sys
from pathlib import Path
here = Path.cwd()
os.environ |= {{"HF_HUB_OFFLINE": "1", "TRACKIO_DIR": str(here / "trackio"), "SWANLAB_ROOT": str(here / "home")}}
Path("settings.yaml").write_text('tracker_kwargs: {settings}')
command = str(Path(sys.executable).parent / "rlvitals")
subprocess.run([command, "sync", "run", "--to", "{tracker}", "--config", "settings.yaml"], check=True)
assert any(path.stat().st_size > 100 for path in Path(".").glob("{files}") if path.is_file()), "{tracker} wrote nothing"
"""

USES = {
    "base": BASE,
    "frames": 'import rlvitals; assert rlvitals.open_run("run").frame().shape[0] == 40',
    "parquet": """
import subprocess, sys
from pathlib import Path
command = str(Path(sys.executable).parent / "rlvitals")
subprocess.run([command, "export", "run", "--to", "parquet"], check=True)
subprocess.run([command, "check", "run.parquet"], check=True)
""",
    "tensorboard": FORWARD.format(tracker="tensorboard", settings="{}", files="run/logs/**/events*"),
    "wandb": FORWARD.format(tracker="wandb", settings="{mode: offline}", files="run/logs/wandb/**/*.wandb"),
    "swanlab": FORWARD.format(tracker="swanlab", settings="{mode: offline}", files="run/logs/**/*"),
    "mlflow": FORWARD.format(tracker="mlflow", settings="{}", files="run/logs/mlflow.db"),
    "trackio": FORWARD.format(tracker="trackio", settings="{}", files="trackio/*.db"),
    "otel": """
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
import subprocess, sys
from pathlib import Path
received = []
class Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        received.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        pass
server = HTTPServer(("127.0.0.1", 0), Collector)
threading.Thread(target=server.serve_forever, daemon=True).start()
Path("settings.yaml").write_text(f'tracker_kwargs: {{endpoint: "http://127.0.0.1:{server.server_port}"}}')
command = str(Path(sys.executable).parent / "rlvitals")
subprocess.run([command, "sync", "run", "--to", "otel", "--config", "settings.yaml"], check=True)
assert received
""",
    "plots": """
import subprocess, sys
from pathlib import Path
subprocess.run([str(Path(sys.executable).parent / "rlvitals"), "plot", "run", "--output", "run.png"], check=True)
assert Path("run.png").read_bytes().startswith(b"\\x89PNG")
""",
    "hardware": """
import psutil, pynvml
from rlvitals.capture import hardware
assert psutil.virtual_memory().total > 0
""",
    "ray": """
import ray
from rlvitals.adapters import ray as adapter
assert adapter.join
""",
    "remote": """
import fsspec, rlvitals
from pathlib import Path
store = fsspec.filesystem("memory")
for path in Path("run").rglob("*"):
    if path.is_file():
        store.pipe("/bucket/" + path.as_posix(), path.read_bytes())
assert len(rlvitals.open_run("memory://bucket/run").series("loss")[0]) == 40
""",
    "text": """
from rlvitals.textscore import bleu, codebleu, rouge_l, ruby
for score in (bleu, rouge_l):
    assert float(score("a cat sat on the mat", "a cat sat on the mat")) > 0.99
for score in (codebleu, ruby):
    assert float(score("def f(x):\\n    return x + 1\\n", "def f(x):\\n    return x + 1\\n", lang="python")) > 0.99
""",
    "bertscore": "import torch, transformers; from rlvitals.textscore import bertscore; assert callable(bertscore)",
    "bertscore-offline": """
from rlvitals.textscore import bertscore
assert float(bertscore("a cat sat on the mat", "a cat sat on the mat")) > 0.99
""",
    "train": """
import subprocess, sys
from pathlib import Path
command = str(Path(sys.executable).parent / "rlvitals")
subprocess.run([command, "train", "kto", "--output-dir", "kto", "--max-steps", "3", "--warm-up-steps", "5"], check=True)
import rlvitals
assert len(rlvitals.open_run("kto").series("loss")[0]) == 3
""",
    "web": """
import subprocess, sys, urllib.request
from pathlib import Path
command = [str(Path(sys.executable).parent / "rlvitals"), "serve", ".", "--port", "0"]
server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
try:
    address = next(word for line in server.stdout for word in line.split() if word.startswith("http"))
    assert b"<html" in urllib.request.urlopen(address).read()
    assert b"run" in urllib.request.urlopen(address.rstrip("/") + "/api/runs").read()
finally:
    server.terminate()
    server.wait()
""",
    "watch": """
import asyncio
from pathlib import Path
from rlvitals.tui.app import WatchApp
from rlvitals.tui.watched import Watched
async def looked():
    app = WatchApp(Watched(Path("run")), interval=0.1)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert app.screen.children
asyncio.run(looked())
""",
    "agents": """
import asyncio, sys
from pathlib import Path
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
async def asked():
    command = StdioServerParameters(command=str(Path(sys.executable).parent / "rlvitals"), args=["mcp", "."])
    async with Client(stdio_client(command)) as client:
        assert (await client.list_tools()).tools
asyncio.run(asked())
""",
    "all": BASE,
}
"""For each extra, a program that uses its feature, in a folder with a recorded run."""


@dataclass(frozen=True)
class Trial:
    """One environment: what is installed, and with which versions of the dependencies."""

    artefact: Path
    extra: str
    python: str
    resolution: str

    @property
    def wanted(self) -> str:
        return str(self.artefact) if self.extra == "base" else f"{self.artefact}[{self.extra}]"


def main() -> int:
    known = extras()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pythons", nargs="*", default=["3.11", "3.12", "3.13"])
    parser.add_argument("--extras", nargs="*", default=known, choices=known)
    parser.add_argument("--resolutions", nargs="*", default=RESOLUTIONS, choices=RESOLUTIONS)
    parser.add_argument("--write", action="store_true", help=f"put the rows into the table of docs/{PAGE.name}")
    arguments = parser.parse_args()
    if missing := set(known) - set(USES):
        parser.error(f"no program uses the extra {', '.join(sorted(missing))}: add one to USES")
    uv = tools()
    with tempfile.TemporaryDirectory() as temporary:
        wheel, sdist = built(Path(temporary) / "dist")
        if faults := list(examined(wheel, sdist)):
            print("\n".join(faults))
            return 1
        pythons = {version: found for version in arguments.pythons if (found := interpreter(version))}
        for version in set(arguments.pythons) - set(pythons):
            print(f"Python {version}: no interpreter found, not tried")
        results: dict[tuple[str, str, str], dict[str, str]] = {}
        for version, python in pythons.items():
            for extra in arguments.extras:
                for artefact in (wheel, sdist) if extra == "base" else (wheel,):
                    for resolution in arguments.resolutions:
                        trial = Trial(artefact, extra, python, resolution)
                        outcome = tried(trial, uv, Path(temporary) / "environment")
                        kind = "sdist" if artefact is sdist else "wheel"
                        results.setdefault((extra, kind, version), {})[resolution] = outcome
                        print(f"{extra:18} {kind:6} {version:5} {resolution:14} {outcome}", flush=True)
    lines = list(table(results))
    print("\n".join(["", *lines]))
    if arguments.write:
        write(lines)
    failed = any(outcome.startswith("failed") for row in results.values() for outcome in row.values())
    return int(failed)


def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def extras() -> list[str]:
    return ["base", *project()["optional-dependencies"]]


def requirements(extra: str) -> list[str]:
    """The requirements of the base install or of an extra, including those of the extras that it names."""
    if extra == "base":
        return list(project()["dependencies"])
    found = []
    for asked in project()["optional-dependencies"][extra]:
        included = re.fullmatch(r"rlvitals\[(.*)\]", asked)
        found += [each for name in included[1].split(",") for each in requirements(name)] if included else [asked]
    return found


def tools() -> Path:
    """The path of uv. uv (which can resolve to the lowest versions), build and twine have their own environment."""
    uv = TOOLS / "bin" / "uv"
    if not all((TOOLS / "bin" / name).is_file() for name in ("uv", "twine")):
        subprocess.run([sys.executable, "-m", "venv", TOOLS], check=True)
        subprocess.run(
            [TOOLS / "bin" / "python", "-m", "pip", "install", "--quiet", "uv", "build", "twine"], check=True
        )
    return uv


def built(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist, as `python -m build` makes them for a release: the wheel from the sdist."""
    command = [TOOLS / "bin" / "python", "-m", "build", "--outdir", folder, ROOT]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def examined(wheel: Path, sdist: Path) -> Iterator[str]:
    """Problems of the artefacts that show before installation: metadata, the readme, extra or missing files."""
    checked = subprocess.run(
        [TOOLS / "bin" / "twine", "check", "--strict", wheel, sdist], capture_output=True, text=True, check=False
    )
    if checked.returncode != 0:
        yield checked.stdout + checked.stderr
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    allowed = {*tracked.splitlines(), "PKG-INFO"}
    with tarfile.open(sdist) as archive:
        packed = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    yield from (f"the sdist holds {name}, which is not in the repository" for name in sorted(packed - allowed))
    allowed = {name.removeprefix("src/") for name in allowed if name.startswith("src/")}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if not name.partition("/")[0].endswith(".dist-info")}
    yield from (f"the wheel holds {name}, which is not in the repository" for name in sorted(packed - allowed))
    yield from (f"the wheel lacks {name}" for name in sorted(allowed - packed))


def interpreter(version: str) -> str | None:
    """An interpreter of that version, from the path or from pyenv."""
    candidates = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    for candidate in filter(None, candidates):
        asked = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False)
        if asked.returncode == 0 and asked.stdout.startswith(f"Python {version}."):
            return str(candidate)
    return None


def tried(trial: Trial, uv: Path, folder: Path) -> str:
    """Install and use one artefact. Returns `passed:` with the versions, or `failed:` with the error's last line."""
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    variables |= {"UV_FIND_LINKS": os.environ.get("UV_FIND_LINKS", os.environ.get("PIP_FIND_LINKS", ""))}
    work = folder / "work"

    def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        words = [str(word) for word in command]
        given = {"capture_output": True, "text": True, "timeout": SECONDS}
        return subprocess.run(words, cwd=cwd, env=variables, check=False, **given)

    def steps() -> Iterator[tuple[str, subprocess.CompletedProcess[str]]]:
        yield "environment", run(uv, "venv", "--quiet", "--python", trial.python, folder)
        # uv uses the lowest versions only of packages that the command names, not of an artefact's requirements.
        # Versions without a wheel for this Python are skipped: users who install them have a compiler.
        install = (uv, "pip", "install", "--quiet", "--python", python)
        asked = [*requirements("base"), *(requirements(trial.extra) if trial.extra != "base" else [])]
        wheels = [word for name in names(asked) for word in ("--only-binary", name)]
        yield "install", run(*install, "--resolution", trial.resolution, *wheels, *asked)
        yield "install", run(*install, trial.wanted)
        work.mkdir()
        yield "record", run(python, "-W", "error::DeprecationWarning:rlvitals", "-c", RECORD, cwd=work)
        yield "use", run(python, "-c", USES[trial.extra], cwd=work)

    try:
        for name, done in steps():
            if done.returncode != 0:
                print(f"{done.stdout}\n{done.stderr}", file=sys.stderr)
                last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
                return f"failed: {name}: {last[:200]}"
    except subprocess.TimeoutExpired:
        return f"failed: not done after {SECONDS} s"
    listed = run(uv, "pip", "freeze", "--python", python).stdout.splitlines()
    return "passed: " + ", ".join(versions(trial.extra, listed))


def names(asked: list[str]) -> set[str]:
    """The packages that requirements name."""
    return {re.split(r"[<>=\[ ]", requirement)[0].lower() for requirement in asked}


def versions(extra: str, listed: list[str]) -> list[str]:
    """The installed versions of the packages that the extra (or the base install) names."""
    found = dict(line.lower().split("==") for line in listed if "==" in line)
    if extra == "all":
        return [f"{len(found)} packages"]
    return [f"{name} {found[name]}" for name in sorted(names(requirements(extra))) if name in found]


def table(results: dict[tuple[str, str, str], dict[str, str]]) -> Iterator[str]:
    """One row for every extra and Python; rows of several Pythons with the same outcome are merged."""
    yield HEAD
    yield "|---|---|---|---|---|"
    rows: dict[tuple[str, ...], list[str]] = {}
    for (extra, artefact, python), outcomes in results.items():
        cells = [outcomes.get(resolution, "not tried").removeprefix("passed: ") for resolution in RESOLUTIONS]
        rows.setdefault((extra, artefact, *cells), []).append(python)
    order = {extra: number for number, extra in enumerate(extras())}
    for (extra, artefact, *cells), pythons in sorted(rows.items(), key=lambda row: order[row[0][0]]):
        yield f"| {extra} | {artefact} | {', '.join(pythons)} | {' | '.join(cells)} |"


def write(lines: list[str]) -> None:
    """Replace the table of the page by these lines."""
    page = PAGE.read_text(encoding="utf-8").splitlines()
    start = page.index(HEAD)
    end = next((number for number in range(start, len(page)) if not page[number].startswith("|")), len(page))
    PAGE.write_text("\n".join([*page[:start], *lines, *page[end:]]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
