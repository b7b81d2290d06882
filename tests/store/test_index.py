"""Columns from the index equal those of a parse from scratch, whatever happened to the log and to the index."""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from damage import as_stranger
from rlvitals.store import chunks, index
from rlvitals.store.chunks import is_present
from rlvitals.store.index import CHUNK_ROWS, SMALLEST_INDEXED, Columns, open_columns
from rlvitals.store.reader import Problems, read_rows
from rlvitals.values import mean, total


def plain(step: int, **more) -> bytes:
    return json.dumps({"step": step, "timestamp": 1e9 + step, "attempt": 1, "loss": step / 7, **more}).encode()


def rich(step: int) -> bytes:
    """Rows of every sort, in an order that repeats nowhere near a chunk's length."""
    match step % 11:
        case 0:
            return plain(step, phase=f"text {step}", note="é\u2028")
        case 1:
            return plain(step, _nonfinite="kl=nan grad%20norm=-inf")
        case 2:
            value, tokens = mean([step, 1.0]), total([step])
            return plain(step, reward=value.number, _m={"reward": value.to_list(), "tokens": tokens.to_list()})
        case 3:
            return plain(step, kl=0.5, ok=True, nothing=None, list=[1])
        case 4:
            return json.dumps({"step": float(step), "loss": 1}).encode()
        case 5 if step % 3 == 0:
            return b"not a row %d" % step
        case 6 if step % 5 == 0:
            return plain(step, _gap={"rows": 2})
    return plain(step)


def write_log(path: Path, lines: list[bytes], end: bytes = b"\n") -> None:
    path.write_bytes(b"\n".join(lines) + end)


def assert_from_scratch(columns: Columns, log: Path) -> None:
    """Every cell, text, moment and problem equals the result of reading the log row by row."""
    problems = Problems()
    rows = list(read_rows(log, problems))
    assert len(columns) == len(rows)
    assert columns.steps.tolist() == [row.step for row in rows]
    assert columns.attempts.tolist() == [row.attempt for row in rows]
    np.testing.assert_array_equal(columns.timestamps, np.array([row.timestamp for row in rows], dtype=float))
    assert set(columns.names) == {name for row in rows for name in row.numbers}
    for name in columns.names:
        assert_column(columns.column(name), [row.numbers.get(name) for row in rows])
    assert set(columns.text_names) == {name for row in rows for name in row.texts}
    for name in columns.text_names:
        assert columns.texts(name) == {at: row.texts[name] for at, row in enumerate(rows) if name in row.texts}
    for name in {name for row in rows for name in row.values} | set(columns.names):
        values = [row.values.get(name) for row in rows]
        moments = columns.moments(name)
        if not any(values):
            assert moments is None
            continue
        for part in ("count", "mean", "m2", "min", "max"):
            assert_column(moments[part], [value and getattr(value, part) for value in values])
        kinds = {value.kind for value in values if value}
        assert columns.kind(name) in kinds
    assert columns.problems == problems


def assert_column(found: np.ndarray, expected: list[float | None]) -> None:
    assert is_present(found).tolist() == [number is not None for number in expected]
    there = [number for number in expected if number is not None]
    np.testing.assert_array_equal(found[is_present(found)], np.array(there, dtype=float))


def index_files(directory: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(directory.iterdir())}


@pytest.fixture
def log(tmp_path) -> Path:
    return tmp_path / "training_metrics.jsonl"


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "index"


@pytest.fixture
def small_chunks(monkeypatch) -> None:
    """Chunks of 50 rows, so that a short log has many; other tests use the real size."""
    monkeypatch.setattr(index, "CHUNK_ROWS", 50)
    monkeypatch.setattr(index, "SMALLEST_INDEXED", 5)


# ---- Sizes and contents. ----


def test_a_log_that_is_not_there_or_empty_has_no_columns(log, folder):
    assert len(open_columns(log, folder)) == 0
    log.write_bytes(b"")
    columns = open_columns(log, folder)
    assert (len(columns), columns.names, columns.problems) == (0, [], Problems())
    assert columns.steps.tolist() == []
    assert not folder.exists()


@pytest.mark.parametrize(
    "rows", [1, SMALLEST_INDEXED - 1, SMALLEST_INDEXED, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 1]
)
def test_a_log_of_any_length_reads_the_same_from_the_index(log, folder, rows):
    write_log(log, [plain(step) for step in range(rows)])
    assert_from_scratch(open_columns(log, folder), log)
    assert folder.exists() == (rows >= SMALLEST_INDEXED)
    assert_from_scratch(open_columns(log, folder), log)


def test_a_long_log_of_rows_of_every_sort_reads_the_same_from_the_index(log, folder):
    write_log(log, [rich(step) for step in range(2 * CHUNK_ROWS + 700)])
    assert_from_scratch(open_columns(log, folder), log)
    assert len(index_files(folder)) == 3
    before = index_files(folder)
    assert_from_scratch(open_columns(log, folder), log)
    assert index_files(folder) == before, "an index that is up to date is not written again"


@pytest.mark.slow
def test_a_log_grows_past_the_end_of_chunks_of_the_real_size(log, folder):
    """The last chunk is rewritten as it fills; bad lines shift its end."""
    lines = [rich(step) for step in range(2 * CHUNK_ROWS + 900)]
    for end in (300, 5000, CHUNK_ROWS, CHUNK_ROWS + 5, CHUNK_ROWS + 2000, 2 * CHUNK_ROWS + 500, len(lines)):
        write_log(log, lines[:end])
        assert_from_scratch(open_columns(log, folder), log)
    assert_from_scratch(open_columns(log, folder), log)


def test_a_log_grows_by_any_amounts(log, folder, small_chunks):
    chance = random.Random(3)
    lines = [rich(step) for step in range(1500)]
    end = 0
    while end < len(lines):
        end += chance.choice([1, 2, 4, 5, 6, 30, 49, 50, 51, 120])
        write_log(log, lines[:end])
        assert_from_scratch(open_columns(log, folder), log)
    assert len(index_files(folder)) >= 20


def test_few_rows_beyond_the_index_are_read_without_writing_it(log, folder):
    write_log(log, [plain(step) for step in range(400)])
    open_columns(log, folder)
    before = index_files(folder)
    write_log(log, [plain(step) for step in range(400 + SMALLEST_INDEXED - 1)])
    assert_from_scratch(open_columns(log, folder), log)
    assert index_files(folder) == before


def test_reading_without_writing_leaves_no_index(log, folder):
    write_log(log, [plain(step) for step in range(1000)])
    assert_from_scratch(open_columns(log, folder, write=False), log)
    assert not folder.exists()


def test_a_torn_last_line_is_not_taken_into_the_index(log, folder, small_chunks):
    data = b"\n".join([plain(step) for step in range(60)]) + b"\n"
    for torn in (b'{"step":60,"lo', b'{"step":60,"timestamp":5,"attempt":1,"loss":1}', b"\xff"):
        log.write_bytes(data + torn)
        assert_from_scratch(open_columns(log, folder), log)
        assert_from_scratch(open_columns(log, folder), log)
        log.write_bytes(data + torn + b"\n" + plain(61) + b"\n")
        assert_from_scratch(open_columns(log, folder), log)


def test_a_cell_that_was_not_logged_is_distinguished_from_nan(log, folder):
    lines = [plain(step) for step in range(600)]
    lines[3] = plain(3, _nonfinite="kl=nan")
    lines[4] = plain(4, kl=0.0)
    lines[5] = plain(5, _nonfinite="kl=inf")
    write_log(log, lines)
    for columns in (open_columns(log, folder), open_columns(log, folder)):
        kl = columns.column("kl")
        assert np.flatnonzero(is_present(kl)).tolist() == [3, 4, 5]
        assert math.isnan(kl[3])
        assert kl[4:6].tolist() == [0.0, math.inf]
        assert not is_present(columns.column("never logged")).any()
        assert len(columns.column("never logged")) == 600


def test_a_nan_that_was_computed_is_never_taken_for_a_missing_cell():
    with np.errstate(invalid="ignore"):
        computed = np.array([np.nan, -np.nan, np.float64(np.inf) - np.inf, np.sqrt(np.float64(-1)), math.nan])
    assert is_present(computed).all()


def test_a_column_with_nothing_but_missing_cells_in_a_whole_chunk_is_missing_there(log, folder, small_chunks):
    write_log(log, [plain(step, **({"late": 1.0} if step >= 170 else {})) for step in range(200)])
    open_columns(log, folder)
    assert_from_scratch(open_columns(log, folder), log)


def test_a_chunk_of_nothing_but_bad_lines_hides_no_row(log, folder, small_chunks):
    lines = [plain(step) for step in range(60)] + [b"oops"] * 170 + [plain(step) for step in range(60, 260)]
    for end in (60, 200, 230, 231, 280, len(lines)):
        write_log(log, lines[:end])
        assert_from_scratch(open_columns(log, folder), log)
        assert_from_scratch(open_columns(log, folder), log)


def test_metrics_come_in_the_order_they_first_appeared(log, folder):
    lines = [plain(0, zeta=1, alpha=2), plain(1, phase="x", beta=3, aaa=4), plain(2, omega=5)]
    write_log(log, [*lines, *(plain(step) for step in range(3, 400))])
    expected = ["loss", "zeta", "alpha", "beta", "aaa", "omega"]
    assert open_columns(log, folder).names == expected
    assert open_columns(log, folder).names == expected


@pytest.mark.parametrize(
    "hostile",
    [
        b'{"step":9,"timestamp":1,"attempt":1,"_m":1,"loss":1}',
        b'{"step":9,"timestamp":1,"attempt":1,"_nonfinite":1}',
        b'{"step":9,"timestamp":1,"attempt":1,"_gap":1}',
        b'{"step":9,"timestamp":1,"attempt":1,"_gap":{"rows":18446744073709551615}}',
        b'{"step":9,"timestamp":1,"attempt":1,"loss":123456789012345678901234567890}',
        b'{"step":9,"timestamp":18446744073709551615,"attempt":1,"loss":18446744073709551615}',
        b'{"step":9007199254740993,"timestamp":1,"attempt":1,"loss":1}',
        b'{"step":9,"timestamp":1,"attempt":2147483648,"loss":1}',
        b'{"step":9,"timestamp":1,"attempt":1,"loss":1,"loss":2,"step":10,"timestamp":2}',
        b'{"step":9,"timestamp":1,"attempt":1,"phase":"\\u0000\\u001f","":3}',
        b'{"step":9,"timestamp":true,"attempt":1,"loss":1}',
        b'{"step":9,"timestamp":1,"attempt":1,"loss":"a text here","_nonfinite":"loss=nan"}',
    ],
)
def test_a_hostile_row_is_the_same_in_columns_and_breaks_nothing(log, folder, hostile):
    # Twice, because the sum of two numbers may overflow.
    write_log(log, [*(plain(step) for step in range(300)), hostile, hostile])
    assert_from_scratch(open_columns(log, folder), log)
    assert_from_scratch(open_columns(log, folder), log)


# ---- Any log, growing at any byte. ----

NUMBERS = st.one_of(st.integers(-5, 5), st.floats(allow_nan=False, allow_infinity=False))
OTHERS = st.one_of(st.booleans(), st.none(), st.sampled_from(["text", "", "kl=nan"]), st.just([1, 2.0, 0.5, 1.0, 3.0]))
HEADS = st.sampled_from(
    [{"step": 1, "timestamp": 2.5, "attempt": 1}, {"step": 3, "timestamp": 4, "attempt": 2}, {"step": 5}, {"loss": 1}]
)
NAMES = st.sampled_from(["loss", "kl", "lr", "phase", "_nonfinite", "_gap", "_m"])
ROWS = st.builds(
    lambda head, cells: json.dumps({**head, **cells}).encode(),
    HEADS,
    st.one_of(
        st.dictionaries(NAMES, NUMBERS, max_size=3),
        st.dictionaries(NAMES, st.one_of(NUMBERS, OTHERS), max_size=4),
        st.sampled_from([{"_m": {"loss": [1, 2.0, 0.5, 1.0, 3.0]}, "loss": 2.0}, {"_gap": {"rows": 3}}]),
    ),
)
# The length is drawn first: lists without a given length are mostly too short to fill several chunks.
LINES = st.integers(0, 30).flatmap(
    lambda count: st.lists(st.one_of(ROWS, ROWS, ROWS, st.binary(max_size=6)), min_size=count, max_size=count)
)


@pytest.mark.slow
@settings(max_examples=150)
@given(
    lines=LINES,
    cuts=st.lists(st.floats(0, 1), max_size=5),
)
def test_any_log_growing_at_any_byte_reads_the_same_from_the_index(tmp_path_factory, lines, cuts):
    place = tmp_path_factory.mktemp("growing")
    log, folder = place / "log.jsonl", place / "index"
    data = b"".join(line + b"\n" for line in lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "CHUNK_ROWS", 4)
        patch.setattr(index, "SMALLEST_INDEXED", 1)
        for end in (*sorted(int(cut * len(data)) for cut in cuts), len(data), len(data)):
            log.write_bytes(data[:end])
            assert_from_scratch(open_columns(log, folder), log)
    shutil.rmtree(place)


# ---- The index is damaged, foreign, or gone. ----


@pytest.fixture
def indexed(log, folder, small_chunks) -> Path:
    """A log of four chunks, the last one half full, with its index; returns the index's folder."""
    write_log(log, [rich(step) for step in range(180)])
    open_columns(log, folder)
    assert len(index_files(folder)) == 4
    return folder


def test_an_index_that_was_deleted_is_made_again(log, indexed):
    shutil.rmtree(indexed)
    assert_from_scratch(open_columns(log, indexed), log)
    assert len(index_files(indexed)) == 4


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_one_file_of_an_index_that_was_deleted_is_made_again(log, indexed, number):
    sorted(indexed.iterdir())[number].unlink()
    assert_from_scratch(open_columns(log, indexed), log)
    assert_from_scratch(open_columns(log, indexed), log)
    assert len(index_files(indexed)) == 4


def test_an_index_that_is_deleted_while_a_view_is_open_takes_nothing_from_it(log, indexed):
    """The index may be deleted at any moment."""
    columns = open_columns(log, indexed)
    shutil.rmtree(indexed)
    assert_from_scratch(columns, log)


def test_a_view_that_is_open_stays_true_while_another_reader_brings_the_index_up_to_date(log, indexed):
    columns = open_columns(log, indexed)
    before = log.read_bytes()
    log.write_bytes(before + b"".join(plain(step, brand_new=1.0) + b"\n" for step in range(180, 195)))
    assert_from_scratch(open_columns(log, indexed), log)
    log.write_bytes(before)  # the log that the first view was opened on
    assert_from_scratch(columns, log)


def test_an_index_file_cut_short_anywhere_is_not_believed(log, indexed):
    victim = sorted(indexed.iterdir())[1]
    whole = victim.read_bytes()
    for size in (0, 1, 9, 10, 17, 18, 19, 200, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        victim.write_bytes(whole[:size])
        assert_from_scratch(open_columns(log, indexed, write=False), log)
    assert_from_scratch(open_columns(log, indexed), log)
    put_right = index_files(indexed)
    assert_from_scratch(open_columns(log, indexed), log)
    assert index_files(indexed) == put_right, "and once it is put right, it is believed again"


def test_bytes_after_the_end_of_an_index_file_are_not_believed(log, indexed):
    victim = sorted(indexed.iterdir())[0]
    victim.write_bytes(victim.read_bytes() + b"\0" * 8)
    assert_from_scratch(open_columns(log, indexed), log)


@pytest.mark.parametrize("part", ["first bytes", "first quarter", "second half"])
def test_a_damaged_byte_in_an_index_file_is_noticed(log, indexed, part):
    """A disk may return a wrong bit, which must not be read as data."""
    victim = sorted(indexed.iterdir())[1]
    whole = victim.read_bytes()
    size = len(whole)
    start, end = {"first bytes": (0, 24), "first quarter": (0, size // 4), "second half": (size // 2, size)}[part]
    chance = random.Random(7)
    for _ in range(60):
        at = chance.randrange(start, end)
        victim.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << chance.randrange(8)]) + whole[at + 1 :])
        assert_from_scratch(open_columns(log, indexed, write=False), log)


def test_a_block_of_zeros_in_an_index_file_is_no_data(log, indexed):
    """A disk that lost power may return zeros for bytes that it had accepted."""
    victim = sorted(indexed.iterdir())[1]
    whole = victim.read_bytes()
    victim.write_bytes(whole[: len(whole) - 400] + b"\0" * 400)
    assert_from_scratch(open_columns(log, indexed), log)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b"\0" * 4096,
        b"RLVINDEX1\n",
        b"RLVINDEX1\n" + (2**63).to_bytes(8, "little"),
        b"RLVINDEX1\n" + (2).to_bytes(8, "little") + b"{}",
        b"RLVINDEX1\n" + (2).to_bytes(8, "little") + b"[]",
        b"RLVINDEX1\n" + (4).to_bytes(8, "little") + b"null",
        b"RLVINDEX1\n" + (3).to_bytes(8, "little") + b"{}x",
        b"RLVINDEX2\n" + (2).to_bytes(8, "little") + b"{}",
        b"PAR1" + bytes(range(256)),
    ],
)
def test_a_foreign_file_in_place_of_an_index_file_is_not_believed(log, indexed, content):
    for victim in sorted(indexed.iterdir()):
        victim.write_bytes(content)
    assert_from_scratch(open_columns(log, indexed), log)
    assert_from_scratch(open_columns(log, indexed), log)


def test_the_index_of_another_run_is_not_believed(tmp_path, log, indexed):
    """A copied run directory, with a log of the same name and the same shape."""
    other = tmp_path / "other" / log.name
    other.parent.mkdir()
    lines = log.read_bytes().replace(b'"loss": 1.', b'"loss": 9.')
    other.write_bytes(lines)
    shutil.copytree(indexed, other.parent / "index")
    assert_from_scratch(open_columns(other, other.parent / "index"), other)


def test_chunks_of_an_index_in_the_wrong_places_are_not_believed(log, indexed):
    first, second, *_ = sorted(indexed.iterdir())
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    assert_from_scratch(open_columns(log, indexed, write=False), log)
    second.write_bytes(one)
    assert_from_scratch(open_columns(log, indexed), log)


# ---- The log was changed under the index. ----


def constant_tail(step: int, loss: float) -> bytes:
    """Rows of equal length that all end alike, as with a constant learning rate."""
    cells = {"loss": loss, "lr": 1e-6, "clip": 0.2, "beta": 0.1, "temperature": 1.0, "batch": 256, "accumulation": 8}
    return json.dumps({"step": step, "timestamp": 1763190000.5, "attempt": 1, **cells}).encode()


@pytest.mark.parametrize("edited", [0, 10, 49, 50, 120, 198, 199])
def test_a_log_in_which_one_number_was_edited_is_read_as_it_is(log, folder, small_chunks, edited):
    write_log(log, [constant_tail(1000 + step, 0.25) for step in range(200)])
    assert_from_scratch(open_columns(log, folder), log)
    data = log.read_bytes().split(b"\n")
    data[edited] = data[edited].replace(b"0.25", b"0.75")
    log.write_bytes(b"\n".join(data))
    columns = open_columns(log, folder)
    assert columns.column("loss")[edited] == 0.75
    assert_from_scratch(columns, log)


def test_a_log_replaced_by_another_of_the_same_size_is_read_as_it_is(log, folder, small_chunks):
    write_log(log, [constant_tail(1000 + step, 0.25) for step in range(200)])
    open_columns(log, folder)
    other = log.with_name("other")
    write_log(other, [constant_tail(5000 + step, 0.75) for step in range(200)])
    assert other.stat().st_size == log.stat().st_size
    other.replace(log)
    assert_from_scratch(open_columns(log, folder), log)


def test_a_log_replaced_by_a_longer_one_is_read_as_it_is(log, folder, small_chunks):
    write_log(log, [plain(step) for step in range(120)])
    open_columns(log, folder)
    write_log(log, [plain(step, kl=2.0) for step in range(500)])
    assert_from_scratch(open_columns(log, folder), log)
    assert_from_scratch(open_columns(log, folder), log)


@pytest.mark.parametrize("rows", [0, 1, 49, 50, 51, 99, 100, 130, 199])
def test_a_log_cut_short_is_read_as_it_is_and_may_grow_again(log, folder, small_chunks, rows):
    lines = [plain(step) for step in range(200)]
    write_log(log, lines)
    open_columns(log, folder)
    log.write_bytes(b"".join(line + b"\n" for line in lines[:rows]))
    assert_from_scratch(open_columns(log, folder), log)
    log.write_bytes(b"".join(line + b"\n" for line in lines[:rows]) + lines[rows][:20])
    assert_from_scratch(open_columns(log, folder), log)
    write_log(log, [*lines[:rows], *(plain(step, kl=1.0) for step in range(rows, 260))])
    assert_from_scratch(open_columns(log, folder), log)
    assert_from_scratch(open_columns(log, folder), log)


def test_an_index_without_its_log_shows_nothing(log, indexed):
    log.unlink()
    assert len(open_columns(log, indexed)) == 0


def test_a_line_put_in_at_the_front_is_read(log, folder, small_chunks):
    write_log(log, [plain(step) for step in range(200)])
    open_columns(log, folder)
    log.write_bytes(plain(-1) + b"\n" + log.read_bytes())
    assert_from_scratch(open_columns(log, folder), log)


# ---- The index cannot be written. ----


def test_a_file_where_the_index_should_be_does_not_stop_reading(log, folder):
    folder.write_bytes(b"mine")
    write_log(log, [plain(step) for step in range(400)])
    assert_from_scratch(open_columns(log, folder), log)
    assert folder.read_bytes() == b"mine"


def test_a_folder_where_an_index_file_should_be_does_not_stop_reading(log, folder):
    (folder / f"{log.stem}-00000.columns" / "x").mkdir(parents=True)
    write_log(log, [plain(step) for step in range(400)])
    assert_from_scratch(open_columns(log, folder), log)
    assert [path.name for path in folder.iterdir()] == [f"{log.stem}-00000.columns"], "no draft is left behind"


def test_an_index_beside_no_run_does_not_stop_reading(log, tmp_path):
    write_log(log, [plain(step) for step in range(400)])
    assert_from_scratch(open_columns(log, tmp_path / "no" / "such" / "index"), log)


def test_an_index_of_someone_elses_does_not_stop_reading(small_chunks):
    """The folder becomes read-only while the index is half filled."""
    with tempfile.TemporaryDirectory() as place:  # not pytest's own folder, which other users cannot enter
        log, folder = Path(place, "log.jsonl"), Path(place, "index")
        folder.mkdir()
        write_log(log, [rich(step) for step in range(120)])
        open_columns(log, folder)
        indexed = sorted(path.name for path in folder.iterdir())
        Path(place).chmod(0o755)
        folder.chmod(0o555)
        write_log(log, [rich(step) for step in range(300)])
        with as_stranger():
            assert_from_scratch(open_columns(log, folder), log)
        assert sorted(path.name for path in folder.iterdir()) == indexed
        folder.chmod(0o700)


def test_a_disk_that_fills_up_between_two_index_files_does_not_stop_reading(log, indexed, monkeypatch):
    written = []

    def replace_file(path: Path, data: list[bytes], *, is_derived: bool) -> None:
        written.append(path)
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        path.write_bytes(b"".join(data))

    monkeypatch.setattr(chunks, "replace_file", replace_file)
    with open(log, "ab") as file:
        file.write(b"".join(rich(step) + b"\n" for step in range(180, 400)))
    assert_from_scratch(open_columns(log, indexed), log)
    assert len(written) == 2
    monkeypatch.undo()
    assert_from_scratch(open_columns(log, indexed), log)


# ---- Several readers at once. ----

_READER = """
    import sys, time
    from pathlib import Path
    import numpy as np
    from rlvitals.store import chunks, index
    index.SMALLEST_INDEXED = 20
    index.CHUNK_ROWS = 400
    log, folder, last = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    deadline = time.monotonic() + 50
    rounds = seen = 0
    print("ready", flush=True)
    while seen < last:
        assert time.monotonic() < deadline, f"saw {seen} of {last} rows"
        columns = index.open_columns(log, folder)
        count = len(columns)
        assert count >= seen, "rows went away"
        seen = count
        steps = columns.steps
        np.testing.assert_array_equal(steps, np.arange(count))
        np.testing.assert_array_equal(columns.column("loss"), steps * 0.5)
        square = columns.column("square")
        np.testing.assert_array_equal(chunks.is_present(square), steps % 3 == 0)
        np.testing.assert_array_equal(square[steps % 3 == 0], steps[steps % 3 == 0].astype(float) ** 2)
        assert all(text == f"at {row}" for row, text in columns.texts("phase").items())
        assert len(columns.texts("phase")) == len(range(0, count, 7))
        rounds += 1
    print(rounds)
"""


def shared_row(step: int) -> bytes:
    row = {"step": step, "timestamp": 1.0, "attempt": 1, "loss": step * 0.5}
    if step % 3 == 0:
        row["square"] = step**2
    if step % 7 == 0:
        row["phase"] = f"at {step}"
    return json.dumps(row).encode() + b"\n"


@pytest.mark.slow
def test_several_processes_bring_the_index_up_to_date_at_once_while_the_log_grows(
    tmp_path, log, folder, child_environment
):
    rows = 4000
    log.write_bytes(b"".join(shared_row(step) for step in range(100)))
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(_READER), str(log), str(folder), str(rows)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    readers = [subprocess.Popen(command, env=child_environment, **pipes) for _ in range(4)]
    try:
        for reader in readers:
            assert reader.stdout.readline() == "ready\n", reader.stderr.read()
        with open(log, "ab", buffering=0) as file:
            for step in range(100, rows):
                file.write(shared_row(step))
                if step % 20 == 0:
                    time.sleep(0.002)  # slows the writer so that the readers see many states; nothing depends on it
        rounds = 0
        for reader in readers:
            out, errors = reader.communicate(timeout=60)
            assert reader.returncode == 0, errors
            rounds += int(out)
        assert rounds >= 8, "the readers met the log in more states than its last"
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()
    assert [path.name for path in folder.iterdir() if path.suffix == ".tmp"] == []
    assert_from_scratch(open_columns(log, folder), log)


def test_a_log_that_was_just_indexed_is_not_held_in_memory(log, folder):
    log.write_bytes(b"".join(shared_row(step) for step in range(1000)))
    columns = open_columns(log, folder)
    assert columns.held_bytes == 0
    assert_from_scratch(columns, log)
    assert columns.held_bytes > 0


def test_a_column_is_held_once_and_one_attempt_takes_no_memory(log, folder):
    log.write_bytes(b"".join(shared_row(step) for step in range(3 * CHUNK_ROWS)))
    columns = open_columns(log, folder)
    one = 8 * len(columns)
    columns.column("loss")
    assert columns.held_bytes == one
    assert (columns.attempts == 1).all()
    assert columns.held_bytes == one
    assert columns.steps[-1] == 3 * CHUNK_ROWS - 1
    assert columns.held_bytes == 2 * one


def test_the_columns_asked_for_last_are_kept_and_the_others_read_again(log, folder, monkeypatch):
    write_log(log, [plain(step, kl=step / 3, reward=-step) for step in range(1000)])
    monkeypatch.setattr(index, "MOST_BYTES", 2 * 8 * 1000)
    columns = open_columns(log, folder)
    loss, kl = columns.column("loss"), columns.column("kl")
    assert columns.column("loss") is loss
    columns.column("reward")
    assert columns.held_bytes == 2 * 8 * 1000
    assert columns.column("loss") is loss
    assert columns.column("kl") is not kl
    np.testing.assert_array_equal(columns.column("kl"), kl)
    monkeypatch.setattr(index, "MOST_BYTES", 1)
    for name in ("reward", "kl", "loss", "reward"):  # a column above the limit is kept, but only one
        columns.column(name)
        assert columns.held_bytes == 8 * 1000
