"""The marks of a folder: what is kept, what is refused, and that no writer loses the marks of another."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rlvitals.errors import ConfigError, RunUnreadable
from rlvitals.store import marks as module
from rlvitals.store.marks import FILE, FolderMarks


def test_marks_are_kept_merged_and_taken_away(tmp_path):
    marks = FolderMarks(tmp_path)
    assert marks.read() == {"runs": {}, "boards": {}}
    marks.mark("a", {"name": " long  run\n", "tags": ["good", "good", " seed 1 ", ""], "note": "one\ntwo"})
    marks.mark("a", {"archived": True})
    marks.mark("b/c", {"deleted": True})
    marks.keep_board("mine", {"panels": ["loss", "kl"]})
    expected = {
        "runs": {
            "a": {"name": "long run", "tags": ["good", "seed 1"], "note": "one\ntwo", "archived": True},
            "b/c": {"deleted": True},
        },
        "boards": {"mine": {"panels": ["loss", "kl"]}},
    }
    assert FolderMarks(tmp_path).read() == json.loads((tmp_path / FILE).read_text()) == expected
    marks.mark("a", {"name": "", "tags": [], "note": "", "archived": False})
    marks.keep_board("mine", None)
    marks.forget("b/c")
    assert FolderMarks(tmp_path).read() == {"runs": {}, "boards": {}}
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": "red"}, "no such mark: 'colour'"),
        ({"name": 5}, "'name'"),
        ({"tags": "good"}, "'tags'"),
        ({"tags": ["good", 1]}, r"'tags\[1\]'"),
        ({"archived": "yes"}, "'archived'"),
        ({"name": "x" * 201}, "200 characters"),
        ({"name": "a\x1b[2J"}, "control characters"),
        ({"name": "a\u202eb"}, "control characters"),
        ({"tags": ["x" * 61]}, "60 characters"),
        ({"tags": [str(number) for number in range(21)]}, "20 tags"),
        ({"note": "x" * 10_001}, "too long"),
    ],
)
def test_what_is_no_mark_is_refused_and_nothing_is_written(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        FolderMarks(tmp_path).mark("a", changes)
    assert not (tmp_path / FILE).exists()


def test_numbers_and_sizes_are_limited(tmp_path, monkeypatch):
    marks = FolderMarks(tmp_path)
    with pytest.raises(ConfigError, match="needs a name"):
        marks.keep_board(" ", {})
    with pytest.raises(ConfigError, match="32,768 bytes"):
        marks.keep_board("big", {"x": "y" * 40_000})
    monkeypatch.setattr(module, "MOST_RUNS", 2)
    monkeypatch.setattr(module, "MOST_BOARDS", 1)
    marks.mark("a", {"archived": True})
    marks.mark("b", {"archived": True})
    marks.mark("b", {"note": "still the second"})
    with pytest.raises(ConfigError, match="the maximum"):
        marks.mark("c", {"archived": True})
    marks.keep_board("one", {})
    with pytest.raises(ConfigError, match="the maximum"):
        marks.keep_board("two", {})
    monkeypatch.setattr(module, "MOST_BYTES", 200)
    with pytest.raises(ConfigError, match="would take more"):
        marks.mark("a", {"note": "x" * 300})


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"runs": 5}', "\0\0", "[" * 300])
def test_a_damaged_file_is_reported_and_never_overwritten(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(RunUnreadable, match="backup"):
        FolderMarks(tmp_path).read()
    with pytest.raises(RunUnreadable):
        FolderMarks(tmp_path).mark("a", {"archived": True})
    assert (tmp_path / FILE).read_text() == text


def test_wrong_parts_of_the_file_are_skipped(tmp_path):
    content = {"runs": {"a": {"name": 5, "tags": ["x", 7], "note": "n"}, "b": 3}, "boards": {"one": [], "two": {}}}
    (tmp_path / FILE).write_text(json.dumps(content))
    assert FolderMarks(tmp_path).read() == {"runs": {"a": {"tags": ["x"], "note": "n"}}, "boards": {"two": {}}}


def test_a_link_is_not_followed(tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text('{"boards": {"password": {"value": "hunter2"}}}')
    served = tmp_path / "served"
    served.mkdir()
    (served / FILE).symlink_to(secret)
    with pytest.raises(RunUnreadable) as raised:
        FolderMarks(served).read()
    assert "hunter2" not in str(raised.value)


WRITER = """
import sys
from pathlib import Path
from rlvitals.store.marks import FolderMarks
for number in range(15):
    FolderMarks(Path(sys.argv[1])).mark(f"{sys.argv[2]}-{number}", {"tags": [sys.argv[2]]})
"""


def test_two_servers_lose_nothing_of_each_other(tmp_path):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, name]) for name in ("one", "two")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert len(FolderMarks(tmp_path).read()["runs"]) == 30
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_the_lock_of_a_server_that_died_is_taken_over(tmp_path):
    dies = "import os, sys; from rlvitals.store.marks import *; from rlvitals.store import marks as m\n"
    dies += "from pathlib import Path; m.replace_file = lambda *a: os._exit(9)\n"
    dies += "FolderMarks(Path(sys.argv[1])).mark('a', {'archived': True})"
    assert subprocess.run([sys.executable, "-c", dies, tmp_path], check=False).returncode == 9
    assert (tmp_path / ".rlvitals-marks.lock").exists()
    FolderMarks(tmp_path).mark("b", {"archived": True})
    assert FolderMarks(tmp_path).read()["runs"] == {"b": {"archived": True}}
