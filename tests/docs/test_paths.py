"""The pages of docs/paths run as written, and their commands print what the pages show."""

from __future__ import annotations

import pytest
from path_pages import BLOCK, Page, same

from conftest import REPO

pytestmark = pytest.mark.slow

PATHS = sorted((REPO / "docs" / "paths").glob("*.md"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_path_runs_as_written(path, tmp_path):
    for block, real in Page(path, tmp_path).run():
        note = block["note"] or ""
        assert same(block["text"], real, note), f"{path.name} shows\n{block['text']}\nand this was printed\n{real}"


def test_every_path_shows_what_its_commands_print():
    assert len(PATHS) == 10
    for path in PATHS:
        languages = [block["language"] for block in BLOCK.finditer(path.read_text(encoding="utf-8"))]
        assert languages.count("bash") >= 2, path.name
        assert "text" in languages, path.name
