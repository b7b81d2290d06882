"""Packed logs and archives: whole, torn, nested, hostile."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import sqlite3
import sys
import tarfile
import tempfile
import zipfile
from functools import partial

import pytest

import rlvitals
from followed import with_growth
from rlvitals.errors import MissingDependency
from rlvitals.importers import LogTail, NotALog, find_log, packed, read_log
from rlvitals.importers.wandb import ONLY_LAST

ROWS = [{"step": step, "loss": 1 / step, "reward": 0.5} for step in range(1, 21)]
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """A separate folder for unpacked files; checks that nothing is left in it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == []


def zipped(**files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def tarred(mode="w:gz", **files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def write(path, data):
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("ending", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress), ("", gzip.compress)]
)
def test_a_packed_log_is_read_as_if_it_were_unpacked(tmp_path, ending, pack):
    path = write(tmp_path / f"train.jsonl.{ending}".rstrip("."), pack(JSONL))
    log = read_log(path)
    assert (log.format, log.rows, log.path, log.notes) == ("jsonl", ROWS, path, [])
    assert find_log(tmp_path) == path or ending == ""
    assert rlvitals.check(path).source == str(path)


def test_a_log_packed_with_zstd_is_read_or_the_package_is_named(tmp_path, monkeypatch):
    arrow = pytest.importorskip("pyarrow", reason="needs a package that writes zstd")
    with arrow.CompressedOutputStream(str(tmp_path / "train.jsonl.zst"), "zstd") as out:
        out.write(JSONL)
    assert read_log(tmp_path).rows == ROWS
    data = (tmp_path / "train.jsonl.zst").read_bytes()
    torn = write(tmp_path / "torn.zst", data[: len(data) // 2])
    with pytest.raises(NotALog, match=r"unpacked, it is empty"):
        read_log(torn)
    for name in ("pyarrow", "zstandard", "compression.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependency, match="pip install zstandard"):
        read_log(tmp_path / "train.jsonl.zst")


def test_what_is_inside_keeps_its_name(tmp_path):
    path = write(tmp_path / "wandb-summary.json.gz", gzip.compress(b'{"_step": 7, "loss": 0.5}'))
    assert read_log(path).notes == [ONLY_LAST]


def test_a_database_in_a_packed_file_may_be_chosen_from(tmp_path):
    with sqlite3.connect(tmp_path / "project.db") as database:
        database.execute("CREATE TABLE metrics (id, run_name, timestamp, step, metrics)")
        for run in ("a", "b"):
            database.execute("INSERT INTO metrics VALUES (1, ?, '', 7, ?)", (run, json.dumps({f"loss_{run}": 0.5})))
    database.close()
    path = write(tmp_path / "project.db.gz", gzip.compress((tmp_path / "project.db").read_bytes()))
    assert read_log(f"{path}#b").rows == [{"step": 7, "loss_b": 0.5}]


@pytest.mark.parametrize("pack", [zipped, tarred, lambda **files: tarred("w", **files)], ids=["zip", "tar.gz", "tar"])
def test_the_log_in_an_archive_is_found_as_in_a_folder(tmp_path, pack):
    state = json.dumps({"log_history": ROWS, "max_steps": 99}).encode()
    files = {"run/README.md": b"x", "run/checkpoint-20/trainer_state.json": state, "run/model.safetensors": b"\x00" * 9}
    path = write(tmp_path / "run.zip", pack(**files))
    log = read_log(path)
    assert (log.format, len(log.rows), log.config) == ("trainer_state", 20, {"max_steps": 99})
    assert log.notes == ["1 file of the archive was left out"]


def test_of_several_logs_in_an_archive_one_is_named_after_a_mark(tmp_path):
    path = write(tmp_path / "logs.zip", zipped(**{"a.jsonl": JSONL, "b.jsonl": JSONL[: len(JSONL) // 2]}))
    with pytest.raises(NotALog) as caught:
        read_log(path)
    assert f"Name one of them: rlvitals check {path}#a.jsonl; rlvitals check {path}#b.jsonl" in str(caught.value)
    assert len(read_log(f"{path}#a.jsonl").rows) == 20
    with pytest.raises(NotALog, match="there is nothing there"):
        read_log(f"{path}#c.jsonl")
    with pytest.raises(NotALog, match="is not in the archive"):
        read_log(f"{path}#../../../etc/passwd")


@pytest.mark.parametrize("pack", [gzip.compress, partial(bz2.compress, compresslevel=1), lzma.compress])
def test_a_packed_log_that_is_cut_gives_the_rows_before_the_cut(tmp_path, pack):
    chance = random.Random(0)
    lines = [json.dumps({"step": n, "loss": chance.random(), "kl": chance.random()}) for n in range(6000)]
    data = pack("\n".join(lines).encode())
    log = read_log(write(tmp_path / "log.gz", data[: len(data) * 3 // 4]))
    assert 1500 < len(log.rows) < 6000
    assert log.rows == [json.loads(line) for line in lines[: len(log.rows)]]
    assert "the packed file is cut or damaged, what follows is missing" in log.notes[0]
    with pytest.raises(NotALog, match=r"unpacked, it is empty \(the packed file is cut or damaged"):
        read_log(write(tmp_path / "log.gz", data[:12]))


def test_a_log_that_is_packed_while_it_is_written_is_followed(tmp_path):
    path, rows, tail = tmp_path / "train.jsonl.gz", [], LogTail(tmp_path / "train.jsonl.gz")
    for row in ROWS[:5]:
        with gzip.open(path, "at") as file:  # a new gzip stream each time
            file.write(json.dumps(row) + "\n")
        rows = with_growth(rows, tail.poll())
    assert rows == ROWS[:5]
    assert tail.format == "jsonl"


def test_what_unpacks_to_too_much_is_refused_before_the_disk_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(packed, "MOST_BYTES", 2**20)
    data = b'{"step": 1, "loss": 1.0}\n' * 60_000
    for path in (
        write(tmp_path / "bomb.gz", gzip.compress(data)),
        write(tmp_path / "bomb.zip", zipped(**{"a.jsonl": data[:600_000], "b.jsonl": data[:600_000]})),
        write(tmp_path / "twice.gz", gzip.compress(gzip.compress(data))),
    ):
        with pytest.raises(NotALog, match=r"it unpacks to more than 1 MiB.* Unpack it yourself") as caught:
            read_log(path)
        assert caught.value.path == path


def test_names_that_lead_out_of_an_archive_are_left_out(tmp_path):
    outside = tmp_path / "outside.jsonl"
    hostile = {"../outside.jsonl": JSONL, f"{outside}": JSONL, "C:\\outside.jsonl": JSONL, "in/train.jsonl": JSONL}
    for pack in (zipped, tarred):
        log = read_log(write(tmp_path / "x.archive", pack(**hostile)))
        assert len(log.rows) == 20
        assert "3 files of the archive were left out" in log.notes
    assert not outside.exists()


def test_links_and_devices_in_an_archive_are_not_made(tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        link = tarfile.TarInfo("train.jsonl")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        pipe = tarfile.TarInfo("train.log")
        pipe.type = tarfile.FIFOTYPE
        archive.addfile(pipe)
    with pytest.raises(NotALog, match="unpacked, the folder is empty"):
        read_log(write(tmp_path / "x.tar", out.getvalue()))


def test_what_is_packed_and_no_log_says_what_it_is(tmp_path):
    path = write(tmp_path / "notes.gz", gzip.compress(b"Dear diary\n"))
    with pytest.raises(NotALog, match=r"unpacked, .*no line holds a training step's numbers") as caught:
        read_log(path)
    assert str(tmp_path / "temporary") not in str(caught.value)
    for data in (b"PK\x03\x04 no archive", b"BZh no archive", b"\x1f\x8b no archive", b"x" * 257 + b"ustar"):
        with pytest.raises(NotALog, match="unpacked"):
            read_log(write(tmp_path / "x", data))
