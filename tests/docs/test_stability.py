"""The page on stability names every dependency, and all files of a release have the same version."""

from __future__ import annotations

import re
import tomllib

from conftest import REPO
from rlvitals.version import __version__

PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_dependency_has_its_reason():
    section = (
        (REPO / "docs/stability.md").read_text(encoding="utf-8").partition("## Dependencies")[2].partition("\n## ")[0]
    )
    rows = "\n".join(line for line in section.splitlines() if line.startswith("|"))
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *(each for packages in extras.values() for each in packages)]
    packages = {re.split(r"[<>=\[ ]", each)[0] for each in asked} - {"rlvitals"}
    named = {word for row in rows.splitlines() for word in re.findall(r"[\w-]+", row)}
    assert sorted((packages | set(extras)) - named) == []


def test_the_files_of_a_release_agree_on_its_version():
    assert f"\nversion: {__version__}\n" in (REPO / "CITATION.cff").read_text(encoding="utf-8")
    newest = re.search(r"^## (\d\S*)", (REPO / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert newest == __version__
