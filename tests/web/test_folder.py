"""The views that a folder keeps open."""

from __future__ import annotations

import pytest

import rlvitals
from rlvitals.web import folder
from rlvitals.web.folder import Folder


@pytest.fixture
def served(tmp_path):
    for name in ("first", "second", "third"):
        with rlvitals.start(tmp_path / name, monitor=False, hardware=False, display="none") as run:
            for step in range(1, 401):
                run.log({"loss": 1.0 / step}, step=step)
    return Folder(tmp_path)


def test_views_are_let_go_when_all_together_hold_too_much(served, monkeypatch):
    first, second = served.view("first"), served.view("second")
    for view in (first, second):
        view.series("loss")
    monkeypatch.setattr(folder, "MOST_BYTES", first.held_bytes + second.held_bytes)
    assert served.view("first") is first  # now the second is the least recently used one
    served.view("third").series("loss")
    assert served.view("first") is first
    assert served.view("second") is not second


def test_a_run_larger_than_all_that_may_be_held_is_opened_once(served, monkeypatch):
    monkeypatch.setattr(folder, "MOST_BYTES", 1)
    view = served.view("first")
    view.series("loss")
    assert view.held_bytes > 1
    assert served.view("first") is view
    assert served.view("second") is not None
    assert served.view("first") is not view


def test_no_more_views_are_kept_than_may_be(served, monkeypatch):
    monkeypatch.setattr(folder, "MOST_OPEN", 2)
    views = [served.view(name) for name in ("first", "second", "third")]
    assert [served.view(name) is view for name, view in zip(("third", "second"), views[:0:-1], strict=True)] == [
        True,
        True,
    ]
    assert served.view("first") is not views[0]


def test_a_table_reads_no_link_that_leaves_the_folder(tmp_path):
    with rlvitals.start(tmp_path / "served" / "run", monitor=False, hardware=False, display="none") as run:
        run.log({"loss": 1.0}, step=1)
    (tmp_path / "outside.jsonl").write_text('{"step": 1, "timestamp": 1.0, "attempt": 1, "secret": 42.0}\n')
    ranks = tmp_path / "served" / "run" / "logs" / "ranks"
    ranks.mkdir()
    served = Folder(tmp_path / "served")
    assert served.table(["loss.last", "secret.last"])["runs"][0]["cells"] == [1.0, None]
    (ranks / "rank-1.jsonl").symlink_to(tmp_path / "outside.jsonl")
    assert served.table(["loss.last", "secret.last"])["runs"][0]["cells"] == [None, None]
