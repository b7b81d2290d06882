"""Run the tests of other projects' packages, each in a virtual environment of its own, and print what ran.

    python tests/frameworks/run.py [NAME ...] [--fresh]

`NAME/requirements.txt` pins what is installed, one pip command a line (options are allowed: `--no-deps verl==0.9.1`);
`NAME/test_NAME.py` holds the tests. A test tells what it showed by the fixture `shown`; the table of docs/frameworks.md
is printed from that.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / ".venv-frameworks"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    known = sorted(folder.name for folder in HERE.iterdir() if (folder / "requirements.txt").is_file())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)} (default: all)")
    parser.add_argument("--fresh", action="store_true", help="make the environments anew")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(known):
        parser.error(f"there is no {', '.join(sorted(unknown))} here; there are {', '.join(known)}")
    failed = [name for name in arguments.names or known if not tried(name, fresh=arguments.fresh)]
    print_table(arguments.names or known)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return bool(failed)


def tried(name: str, *, fresh: bool) -> bool:
    """Install one framework and run its tests."""
    print(f"\n== {name}", flush=True)
    python = environment(name, fresh=fresh)
    if python is None:
        return False
    result = ENVIRONMENTS / f"{name}.json"
    result.unlink(missing_ok=True)
    # The suite's own settings and conftest are about other tests. Nothing of this folder goes on sys.path: its folders
    # have the frameworks' names.
    alone = ["-c", os.devnull, "--rootdir", ROOT, "--confcutdir", HERE, "--import-mode", "importlib"]
    command = [python, "-m", "pytest", HERE / name, "-q", "-rs", "-p", "no:cacheprovider", *alone]
    variables = {**os.environ, "RLVITALS_SHOWN": str(result), "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # thousands of modules would be compiled at every run
    return subprocess.run([str(part) for part in command], cwd=ROOT, env=variables, check=False).returncode == 0


def environment(name: str, *, fresh: bool) -> Path | None:
    """The Python of one framework's environment, made where it is not there or its pins have changed."""
    wanted = (HERE / name / "requirements.txt").read_text(encoding="utf-8")
    folder = ENVIRONMENTS / name
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    if not fresh and stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    steps = [[sys.executable, "-m", "venv", "--clear", str(folder)]]
    lines = [line.partition(" #")[0].strip() for line in wanted.splitlines()]
    install = installer(python)
    steps += [[*install, *shlex.split(line)] for line in lines if line and not line.startswith("#")]
    steps.append([*install, "pytest", "--editable", str(ROOT)])
    for step in steps:
        if subprocess.run(step, cwd=ROOT, check=False).returncode:
            print(f"{name} could not be installed: {shlex.join(step)}")
            return None
    stamp.write_text(wanted, encoding="utf-8")
    return python


def installer(python: Path) -> list[str]:
    """The command that installs: pip, or uv where there is one, which needs a tenth of the time."""
    uv = shutil.which("uv")
    if uv:
        return [uv, "pip", "install", "--quiet", "--python", str(python)]
    return [str(python), "-m", "pip", "install", "--quiet", "--no-compile"]


def print_table(names: list[str]) -> None:
    print("\n| framework | version | what ran | rows | rollouts | names resolved | can act |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        file = ENVIRONMENTS / f"{name}.json"
        for row in json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []:
            cells = [row.get(key, "") for key in ("framework", "version", "ran", "rows", "rollouts", "names", "acts")]
            print(f"| {' | '.join(str(cell) for cell in cells)} |")


if __name__ == "__main__":
    sys.exit(main())
