"""The gallery: rlvitals reports for each run what the page shows, and the linked rule raises the finding."""

from __future__ import annotations

import re
import sys

import pytest
from path_pages import same

import rlvitals
from conftest import REPO

sys.path.append(str(REPO / "docs" / "images"))

import gallery

pytestmark = pytest.mark.slow

PAGE = gallery.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("failure", gallery.FAILURES, ids=lambda failure: failure.name)
def test_a_failure_is_named_as_the_page_shows(failure, tmp_path):
    failure.make(tmp_path / failure.name)
    text = gallery.shown_text(rlvitals.check(tmp_path / failure.name), failure.rule)
    shown = gallery.block_of(failure.name).search(PAGE)[2]
    assert same(shown, text, "numbers vary" if failure.is_trained else ""), text


def test_every_section_has_a_picture_and_links_its_rule():
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    assert len(sections) == len(gallery.FAILURES) == 12
    for section, failure in zip(sections, gallery.FAILURES, strict=True):
        assert f"(images/gallery-{failure.name}.png)" in section
        assert (gallery.FOLDER / f"gallery-{failure.name}.png").exists()
        assert re.search(rf"Rule: \[{failure.rule}\]\(rules/\w+\.md#{failure.rule}\)", section)
