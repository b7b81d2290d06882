"""The workflow files: valid YAML, every file and make target they name exists, and actions are pinned to a commit.

They run only on GitHub, so a mistake in them could stay unnoticed until a release. These tests compare them with the
repository.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import REPO

WORKFLOWS = sorted((REPO / ".github" / "workflows").glob("*.yml"))
ACTIONS = sorted((REPO / ".github" / "actions").glob("*/action.yml"))
PATH = re.compile(r"(?<![\w./@])((?:\.ci|src|tests|docs|benchmarks|examples)/[\w./-]+)")
TARGET = re.compile(r"\bmake (\w[\w-]*)")
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")


def read(path: Path) -> dict[str, Any]:
    """A workflow. YAML 1.1 reads its key `on` as a boolean."""
    text: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {("on" if key is True else key): value for key, value in text.items()}


def steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow.get("jobs", {"": workflow.get("runs", {})}).values():
        yield from job["steps"]


def named(text: str) -> tuple[set[str], set[str]]:
    """The files and the make targets in the commands of a workflow."""
    return set(PATH.findall(text)), set(TARGET.findall(text))


def test_the_files_and_targets_of_a_command_are_found():
    assert named("make docs && bash .ci/run x && python tests/a/b.py --c dist/d") == (
        {".ci/run", "tests/a/b.py"},
        {"docs"},
    )


@pytest.mark.parametrize("path", [*WORKFLOWS, *ACTIONS], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_a_workflow_names_exists(path):
    targets = set(re.findall(r"^([a-z][\w-]*):", (REPO / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    workflow = read(path)
    assert list(steps(workflow))
    for step in steps(workflow):
        assert ("run" in step) != ("uses" in step)
        if "uses" in step:
            assert PINNED.fullmatch(step["uses"]), f"{step['uses']} can be changed by others: pin it to a commit"
        files, made = named(step.get("run", ""))
        assert made <= targets
        assert not [file for file in files if not (REPO / file).exists()]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_unless_a_job_needs_more(path):
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())


def test_every_supported_python_is_tried():
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = [entry.rpartition(" ")[2] for entry in project["classifiers"] if re.search(r"Python :: 3\.\d", entry)]
    matrix = read(REPO / ".github" / "workflows" / "tests.yml")["jobs"]["versions"]["strategy"]["matrix"]
    assert matrix["python"] == supported


def test_a_release_is_published_from_a_tag_of_its_version():
    (files,) = (
        step["run"]
        for step in steps(read(REPO / ".github" / "workflows" / "publish.yml"))
        if "GITHUB_REF_NAME" in step.get("run", "")
    )
    assert "src/rlvitals/version.py" in files
