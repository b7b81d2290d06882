"""Run the tests of other projects' packages, each in its own virtual environment, and print a table of the results.

    python tests/frameworks/run.py [NAME ...] [--fresh] [--delete] [--write]

`NAME/requirements.txt` pins the installed packages, one pip command per line (options are allowed:
`--no-deps verl==0.9.1`). `NAME/test_NAME.py` holds the tests. A test reports its results with the fixture `shown`. The
table of docs/frameworks.md is printed from these results; `--write` also updates that page. `--delete` removes each
environment after its tests.
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
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / ".venv-frameworks"
PAGE = ROOT / "docs" / "frameworks.md"
HEAD = "| framework | version | what ran | rows | rollouts | names resolved | can act |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    known = sorted(folder.name for folder in HERE.iterdir() if (folder / "requirements.txt").is_file())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)} (default: all)")
    parser.add_argument("--fresh", action="store_true", help="make the environments anew")
    parser.add_argument("--delete", action="store_true", help="remove each environment after its tests")
    parser.add_argument("--write", action="store_true", help=f"put the rows into the table of docs/{PAGE.name}")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(known):
        parser.error(f"there is no {', '.join(sorted(unknown))} here; there are {', '.join(known)}")
    names = arguments.names or known
    failed = []
    for name in names:
        if not tried(name, fresh=arguments.fresh):
            failed.append(name)
        if arguments.delete:
            shutil.rmtree(ENVIRONMENTS / name, ignore_errors=True)
    rows = [row for name in names for row in shown_by(name)]
    print("\n".join(["", HEAD, "|---|---|---|---|---|---|---|", *map(line, rows)]))
    for row in rows:
        if row["unknown"]:
            print(f"not in the catalogue, {row['framework']}: {', '.join(row['unknown'])}")
    if arguments.write:
        write({row["framework"]: line(row) for row in rows})
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
    # The suite's own settings and conftest are for other tests. This folder must not be on sys.path, because its
    # subfolders have the frameworks' names.
    alone = ["-c", os.devnull, "--rootdir", ROOT, "--confcutdir", HERE, "--import-mode", "importlib"]
    command = [python, "-m", "pytest", HERE / name, "-q", "-rs", "-p", "no:cacheprovider", *alone]
    variables = {**os.environ, "RLVITALS_SHOWN": str(result), "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise every run would compile thousands of modules
    return subprocess.run([str(part) for part in command], cwd=ROOT, env=variables, check=False).returncode == 0


def environment(name: str, *, fresh: bool) -> Path | None:
    """The Python of one framework's environment, which is created if it is missing or its pins have changed."""
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
    """The install command: uv if there is one, because it needs a tenth of the time, otherwise pip."""
    uv = shutil.which("uv")
    if uv:
        return [uv, "pip", "install", "--quiet", "--python", str(python)]
    return [str(python), "-m", "pip", "install", "--quiet", "--no-compile"]


def shown_by(name: str) -> list[dict[str, Any]]:
    """The rows that the last run of a framework's tests wrote."""
    file = ENVIRONMENTS / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []


def line(row: dict[str, Any]) -> str:
    cells = [row[key] for key in ("framework", "version", "ran", "rows", "rollouts", "names", "acts")]
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def write(rows: dict[str, str]) -> None:
    """Replace these frameworks' rows in the table of the page; new rows are appended."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(f"{HEAD}\n")
    table, _, after = rest.partition("\n\n")
    rule, *old = table.splitlines()
    known = [row.split(" | ", 1)[0].removeprefix("| ") for row in old]
    kept = [rows.get(name, row) for name, row in zip(known, old, strict=True)]
    new = [row for name, row in rows.items() if name not in known]
    PAGE.write_text("\n".join([f"{before}{HEAD}", rule, *kept, *new]) + f"\n\n{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
