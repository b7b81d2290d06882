"""Compacting a log loses no byte, every reader still reads it, and damage is reported."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlvitals
from rlvitals.cli.main import main
from rlvitals.errors import RunUnreadable
from rlvitals.store import archive
from rlvitals.store.archive import ArchiveFile, compact, expand, open_log
from rlvitals.store.layout import archive_of
from rlvitals.store.packing import pack, unpack

NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(),
    st.sampled_from([0, -0.0, 1e16, 5e-7, 1e-320, 2**63, 0.1]),
)
ROWS = st.dictionaries(
    st.text(max_size=8), st.one_of(NUMBERS, st.text(max_size=8), st.lists(NUMBERS, max_size=4)), max_size=6
)


@pytest.mark.slow
@given(rows=st.lists(ROWS, max_size=20), ascii_only=st.booleans())
def test_any_json_lines_come_back_byte_by_byte(rows, ascii_only):
    data = b"".join(json.dumps(row, ensure_ascii=ascii_only).encode("utf-8", "replace") + b"\n" for row in rows)
    assert unpack(pack(data)) == data


@given(data=st.binary(max_size=400))
def test_any_bytes_come_back(data):
    assert unpack(pack(data)) == data


@pytest.mark.parametrize(
    "line",
    [
        *(
            b"",
            b"\n\n",
            b"1.50",
            b"1.500",
            b"0.010",
            b"-1.500",
            b"00.500",
            b"1e5",
            b"-0",
            b"01",
            b'{"a":1.0e5}',
            b'"12 \\" 3.5"',
        ),
        *(b"\x01\x02", b"1" * 400, b"1e999", b"[[1],2.5]", b"NaN"),
    ],
)
def test_odd_lines_come_back(line):
    assert unpack(pack(line)) == line
    assert unpack(pack(b'{"step":1}\n' + line + b"\n")) == b'{"step":1}\n' + line + b"\n"


@pytest.fixture
def run_path(tmp_path):
    """A run with everything a log can hold, over two attempts."""
    rng = np.random.default_rng(0)
    path = tmp_path / "run"
    with rlvitals.start(path) as run:
        for step in range(1500):
            run.log(
                {f"actor/metric_{number}/mean": value for number, value in enumerate(rng.normal(size=20).tolist())},
                step=step,
            )
        run.log({"kl": float("nan"), "note": "text", "loss": rlvitals.values.mean([1.0, 2.5])}, step=1500)
        run.log_eval({"accuracy": 0.5}, step=1500)
    with rlvitals.start(path, resume=1400) as run:
        run.log({"actor/metric_0/mean": 9.0}, step=1401)
    with (path / "logs" / "training_metrics.jsonl").open("ab") as file:
        file.write(b'garbage\n{"step":1402,"torn')
    return path


def outputs(path, capsys):
    """What the verbs print about a run."""
    answers = []
    for words in (["show", str(path), "--json"], ["export", str(path), "--to", "csv", "--output", "-"]):
        assert main(words) == 0
        answers.append(capsys.readouterr().out)
    return answers


def test_every_verb_reads_a_compacted_run_and_undo_brings_the_log_back(run_path, capsys):
    log = run_path / "logs" / "training_metrics.jsonl"
    original, before = log.read_bytes(), outputs(run_path, capsys)
    assert main(["compact", str(run_path), "--json"]) == 0
    sizes = json.loads(capsys.readouterr().out)
    assert not log.exists()
    assert not (run_path / "index").exists()
    assert archive_of(log).stat().st_size < sizes["bytes_after"] <= sizes["bytes_before"] / 3
    assert outputs(run_path, capsys) == before
    assert outputs(run_path, capsys) == before  # now from a warm index
    view = rlvitals.open_run(run_path)
    assert view.series("actor/metric_0/mean").values[-1] == 9.0
    assert view.rows == 1402
    assert main(["compact", str(run_path), "--undo"]) == 0
    assert "2 logs are back" in capsys.readouterr().out
    assert log.read_bytes() == original
    assert not archive_of(log).exists()
    assert outputs(run_path, capsys) == before


def test_random_doubles_take_at_most_eight_bytes_a_value(tmp_path):
    rng = np.random.default_rng(1)
    with rlvitals.start(tmp_path / "run") as run:
        for step in range(2000):
            run.log({f"metric/{number}": value for number, value in enumerate(rng.normal(size=60).tolist())}, step=step)
    log = tmp_path / "run" / "logs" / "training_metrics.jsonl"
    _, after = compact(log)
    assert after / (2000 * 60) <= 8.0


def test_compacting_twice_changes_nothing(run_path):
    assert main(["compact", str(run_path)]) == 0
    packed = {path: path.read_bytes() for path in (run_path / "logs").rglob("*.archive")}
    assert main(["compact", str(run_path)]) == 0
    assert {path: path.read_bytes() for path in (run_path / "logs").rglob("*.archive")} == packed


@pytest.fixture
def measured_run(tmp_path):
    """A run with phases and samples, of two ranks."""
    with rlvitals.start(tmp_path / "run", hardware=False) as run, rlvitals.start(run.dir, rank=3) as other:
        for step in range(20):
            for rank in (run, other):
                with rank.phase("train_step"), rank.phase("generate"):
                    pass
                sample = {"System/CPU_Percent": 100 / (step + 3), "System/GPU_Utilization": 37.0}
                rank._measurements._take_sample(sample)
                rank.log({"loss": 1 / (step + 1)}, step=step)
    return tmp_path / "run"


def measurements(path):
    view = rlvitals.open_run(path)
    systems = [{name: column.tolist() for name, column in view.system(rank).items()} for rank in (0, 3)]
    return systems, [view.phases(rank) for rank in (0, 3)], view.last_sample


def test_phases_and_samples_are_packed_read_and_brought_back(measured_run, capsys):
    before = {path.name: path.read_bytes() for path in (measured_run / "logs").rglob("*.jsonl")}
    health = {"findings.jsonl"}  # few lines, and other programs append to it
    assert {"phases.jsonl", "system.jsonl", "rank-3-phases.jsonl", "rank-3-system.jsonl"} < before.keys()
    read = measurements(measured_run)
    assert len(read[1][1]) == 40
    assert main(["compact", str(measured_run)]) == 0
    packed = {path.name for path in (measured_run / "logs").rglob("*") if path.is_file()}
    assert packed == {f"{name}.archive" for name in before.keys() - health} | health
    assert measurements(measured_run) == read
    assert main(["compact", str(measured_run)]) == 0
    assert main(["compact", str(measured_run), "--undo"]) == 0
    assert {path.name: path.read_bytes() for path in (measured_run / "logs").rglob("*.jsonl")} == before
    assert measurements(measured_run) == read
    capsys.readouterr()


def test_resuming_and_overwriting_deal_with_packed_measurements(measured_run):
    spans = rlvitals.open_run(measured_run).phases()
    main(["compact", str(measured_run)])
    with rlvitals.start(measured_run, resume=True, hardware=False) as run, run.phase("adv"):
        pass
    assert rlvitals.open_run(measured_run).phases()[:-1] == spans
    main(["compact", str(measured_run)])
    with rlvitals.start(measured_run, overwrite=True, hardware=False):
        pass
    assert rlvitals.open_run(measured_run).phases() == []
    assert list((measured_run / "logs").rglob("*.archive")) == []


def test_a_run_being_recorded_is_not_compacted(tmp_path, capsys):
    with rlvitals.start(tmp_path / "run") as run:
        run.log({"loss": 1.0})
        assert main(["compact", str(tmp_path / "run")]) == 64
    assert "is being recorded" in capsys.readouterr().err
    assert (tmp_path / "run" / "logs" / "training_metrics.jsonl").exists()


def test_resuming_a_compacted_run_brings_its_log_back_first(tmp_path):
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 1.0}, step=1)
    assert main(["compact", str(tmp_path)]) == 0
    with rlvitals.start(tmp_path, resume=True) as run:
        run.log({"loss": 2.0})
    assert rlvitals.open_run(tmp_path).series("loss").values.tolist() == [1.0, 2.0]
    assert not list((tmp_path / "logs").glob("*.archive"))


def test_a_compacted_run_is_still_a_run_without_its_card(tmp_path):
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 1.0}, step=1)
    compact(tmp_path / "logs" / "training_metrics.jsonl")
    (tmp_path / "run.json").unlink()
    assert rlvitals.open_run(tmp_path).rows == 1


def test_an_archive_is_read_from_any_place_like_the_log(run_path, monkeypatch):
    monkeypatch.setattr(archive, "BLOCK_BYTES", 50_000)
    log = run_path / "logs" / "training_metrics.jsonl"
    original = log.read_bytes()
    compact(log)
    rng = np.random.default_rng(2)
    with open_log(log) as file:
        for start in rng.integers(0, len(original), 50).tolist():
            file.seek(start)
            assert file.read(1000) == original[start : start + 1000]
        file.seek(-10, io.SEEK_END)
        assert file.read() == original[-10:]
    assert expand(log) == len(original)
    assert log.read_bytes() == original


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_archive_is_reported_and_never_read_as_something_else(run_path, damage):
    log = run_path / "logs" / "training_metrics.jsonl"
    compact(log)
    data = bytearray(archive_of(log).read_bytes())
    if damage == "flip":
        data[len(data) // 3] ^= 0xFF
    archive_of(log).write_bytes({"cut": data[: len(data) // 2], "flip": data, "empty": b""}[damage])
    with pytest.raises(RunUnreadable, match="damaged"), ArchiveFile(archive_of(log)) as file:
        file.read()


def test_a_full_disk_while_compacting_keeps_the_log(run_path, monkeypatch, capsys):
    log = run_path / "logs" / "training_metrics.jsonl"
    original = log.read_bytes()

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "replace_file", full)
    assert main(["compact", str(run_path)]) == 64
    assert "No space left on device; nothing is lost" in capsys.readouterr().err
    assert log.read_bytes() == original


def test_an_archive_that_the_disk_has_spoiled_does_not_replace_the_log(run_path, monkeypatch):
    log = run_path / "logs" / "training_metrics.jsonl"
    original, replace_file = log.read_bytes(), archive.replace_file

    def spoiled(path, data):
        pieces = list(data)
        replace_file(path, [pieces[0], bytes(len(pieces[1])), *pieces[2:]])

    monkeypatch.setattr(archive, "replace_file", spoiled)
    with pytest.raises(RunUnreadable):
        archive.compact(log)
    assert log.read_bytes() == original
