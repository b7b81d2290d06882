"""A built wheel, installed into an empty environment: it is complete, and plug-ins are found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from conftest import REPO

pytestmark = pytest.mark.slow
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def run(*command: object, **options) -> str:
    # Without variables that a launcher or an editable install may have set.
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, env=environment, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, REPO)
    return next(folder.glob("rlvitals-*.whl"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """The Python of an environment that holds only the wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    found = folder / "bin" / "python"
    install(found, "--constraint", REPO / "constraints.txt", wheel)
    return found


def install(python: Path, *what: object) -> None:
    """With the pip outside the environment. Modules are compiled only when they are imported."""
    run(*PIP, "--python", python, "install", "--quiet", "--no-compile", *what)


def test_the_wheel_holds_the_data_files(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"rlvitals/py.typed", "rlvitals/catalog/data/catalog.json", "rlvitals/catalog/data/reward.yaml"} <= names
    assert "rlvitals/agents/skill.md" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "docs/"))]


def test_the_installed_package_records_reads_and_explains(python, tmp_path):
    command = python.parent / "rlvitals"
    code = "import rlvitals\nwith rlvitals.start('run') as run:\n    run.log({'loss': 0.5}, step=1)"
    run(python, "-c", code, cwd=tmp_path)
    assert json.loads(run(command, "show", "run", "--json", cwd=tmp_path))["step"] == 1
    assert json.loads(run(command, "explain", "critic/score/mean", "--json", cwd=tmp_path))["id"] == "reward.total.mean"
    run(command, "export", "run", "--to", "csv", cwd=tmp_path)
    assert (tmp_path / "run.csv").read_text().startswith("step,timestamp,attempt,loss\n1,")


def test_the_base_install_brings_no_heavy_package(python):
    listed = {entry["name"].lower() for entry in json.loads(run(*PIP, "--python", python, "list", "--format", "json"))}
    assert not listed & {"torch", "pandas", "pyarrow", "matplotlib", "wandb", "tensorboard"}


def test_a_plug_in_adds_its_metrics(python, tmp_path):
    plugin = tmp_path / "plugin"
    (plugin / "mailmetrics").mkdir(parents=True)
    (plugin / "mailmetrics" / "__init__.py").write_text(
        "CATALOG = {'family': 'mail', 'metrics': [{'id': 'mail.opened', 'title': 'Mails opened',"
        " 'what': 'Mails an agent opened in one episode.', 'unit': 'mails', 'names': {'trl': 'mails/opened'}}]}\n"
    )
    (plugin / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "mailmetrics"\nversion = "1.0"\n'
        '[project.entry-points."rlvitals.catalog"]\nmail = "mailmetrics:CATALOG"\n'
        '[project.entry-points."rlvitals.sinks"]\nmailbox = "mailmetrics:CATALOG"\n'
    )
    built = tmp_path / "built"
    run(*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", built, plugin)
    install(python, "--no-deps", next(built.glob("*.whl")))
    command = python.parent / "rlvitals"
    assert json.loads(run(command, "explain", "mails/opened", "--json"))["id"] == "mail.opened"
    listing = run(python, "-c", "from rlvitals import plugins; print(plugins.names('sinks'))")
    assert listing.strip() == "['mailbox']"
