"""Reading files from the end, and making and replacing folders."""

from __future__ import annotations

import errno
import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvitals.importers import tail
from rlvitals.importers.tail import LogTail
from rlvitals.store import files, reader
from rlvitals.store.files import bring_back, lines_from_end, make_folder, replace_folder, sync_folder


@given(data=st.binary(max_size=60).map(lambda data: data.replace(b"a", b"\n")), step=st.integers(1, 9))
def test_lines_from_the_end_are_the_lines_from_the_beginning_turned_round(data, step):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_STEP_BYTES", step)
        assert list(lines_from_end(io.BytesIO(data))) == data.split(b"\n")[::-1]


@pytest.fixture
def log_in_crumbs(tmp_path, monkeypatch):
    """A long line between two short ones, read a few bytes at a time. Copying the bytes read so far at every read takes
    time that grows with the square of the length: minutes here, an hour for a real line of a gigabyte.
    """
    for module, name in ((files, "_STEP_BYTES"), (reader, "BLOCK_BYTES"), (tail, "READ_BYTES")):
        monkeypatch.setattr(module, name, 4)
    path = tmp_path / "log.jsonl"
    note = "x" * 1_500_000
    rows = [f'{{"step":{step},"timestamp":1.0,"attempt":1,"loss":{step}.0{more}}}\n' for step, more in
            ((1, ""), (2, f',"note":"{note}"'), (3, ""))]  # fmt: skip
    path.write_text("".join(rows))
    return path


@pytest.mark.parametrize(
    "read",
    [
        lambda path: [row.step for row in reader.last_rows(path, 3)],
        lambda path: [row.step for row in reader.read_rows(path)],
        lambda path: [row["step"] for row in LogTail(path).poll().rows],
    ],
    ids=["from the end", "from the beginning", "followed"],
)
def test_a_line_that_comes_in_many_pieces_is_put_together_once(log_in_crumbs, read):
    assert read(log_in_crumbs) == [1, 2, 3]


def test_folders_are_made_with_those_above_unless_that_is_not_wanted(tmp_path):
    make_folder(tmp_path / "a" / "b" / "c")
    make_folder(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    with pytest.raises(FileNotFoundError):
        make_folder(tmp_path / "gone" / "sinks", above=False)
    assert not (tmp_path / "gone").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"(?i)exists|not a directory"):
        make_folder(tmp_path / "file" / "below")


@pytest.mark.parametrize(("code", "is_raised"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_disk_that_cannot_sync_a_folder_is_no_disk_that_fails_at_it(tmp_path, monkeypatch, code, is_raised):
    def fail(descriptor):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    if is_raised:
        with pytest.raises(OSError, match=os.strerror(code)):
            sync_folder(tmp_path)
    else:
        sync_folder(tmp_path)


def checkpoint(folder, text):
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "weights").write_text(text)
    return folder


def test_a_folder_is_replaced_whole(tmp_path):
    place = checkpoint(tmp_path / "checkpoint-5", "old")
    replace_folder(checkpoint(tmp_path / "draft", "new"), place)
    assert (place / "deep" / "weights").read_text() == "new"
    assert os.listdir(tmp_path) == ["checkpoint-5"]
    replace_folder(checkpoint(tmp_path / "draft", "first"), tmp_path / "checkpoint-6")
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-5", "checkpoint-6"]


def test_a_replacement_that_was_cut_short_gives_the_old_folder_back(tmp_path, monkeypatch):
    place, draft = checkpoint(tmp_path / "checkpoint-5", "old"), checkpoint(tmp_path / "draft", "new")
    real = type(place).rename

    def killed(self, target):
        if self == draft:
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(type(place), "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        replace_folder(draft, place)
    assert not place.exists()
    bring_back(place)
    assert (place / "deep" / "weights").read_text() == "old"
    bring_back(place)  # a second call changes nothing
    assert (place / "deep" / "weights").read_text() == "old"
