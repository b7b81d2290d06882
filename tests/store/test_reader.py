"""The reader on hostile logs, checked against an oracle that shares no code with it (the json module and the spec)."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvitals.records import Row
from rlvitals.store import reader
from rlvitals.store.reader import Problems, last_row, last_rows, read_blocks, read_rows, read_tail

# ---- The oracle: a second implementation of the row format. ----


def strict_json(line: bytes):
    """Strict JSON. Numbers beyond a float's range and half surrogates are refused; long whole numbers are floats."""

    def refuse(token: str):
        raise ValueError(token)

    def number(token: str) -> float:
        found = float(token)
        return refuse(token) if math.isinf(found) else found

    def whole(token: str) -> float:
        found = int(token)
        return found if -(2**63) <= found < 2**64 else number(token)

    tree = json.loads(line.decode("utf-8"), parse_constant=refuse, parse_float=number, parse_int=whole)
    json.dumps(tree, ensure_ascii=False).encode("utf-8")
    return tree


def is_number(cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def expected_row(line: bytes):
    """(step, timestamp, attempt, numbers, texts, moments, gap) as comparable text, or None for a bad line."""
    try:
        raw = strict_json(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict):
        return None
    step, attempt, stamp = raw.get("step"), raw.get("attempt", 1), raw.get("timestamp")
    if not is_number(step) or step != math.floor(step) or abs(step) > 2**53:
        return None
    if not isinstance(attempt, int) or isinstance(attempt, bool) or not 1 <= attempt < 2**31:
        return None
    numbers, texts = {}, {}
    for key, cell in raw.items():
        if key in ("step", "timestamp", "attempt", "_m", "_nonfinite", "_gap"):
            continue
        if isinstance(cell, str):
            texts[key] = cell
        elif isinstance(cell, int | float):
            numbers[key] = float(cell)
    if isinstance(raw.get("_nonfinite"), str):
        for word in raw["_nonfinite"].split(" "):
            for ending, special in (("=nan", math.nan), ("=inf", math.inf), ("=-inf", -math.inf)):
                if word.endswith(ending) and word != ending:
                    numbers[word[: -len(ending)].replace("%20", " ")] = special
    moments = raw["_m"] if isinstance(raw.get("_m"), dict) else {}
    gap = raw["_gap"].get("rows") if isinstance(raw.get("_gap"), dict) else 0
    return (
        int(step),
        repr(expected_time(stamp)),
        attempt,
        {name: repr(cell) for name, cell in numbers.items()},
        texts,
        {name: expected_moments(cell) for name, cell in moments.items() if expected_moments(cell) is not None},
        gap if isinstance(gap, int) and not isinstance(gap, bool) and 0 < gap <= 2**53 else 0,
    )


YEAR_3000 = datetime(3000, 1, 1, tzinfo=UTC).timestamp()


def expected_time(stamp) -> float:
    if is_number(stamp):
        return float(stamp) if abs(stamp) <= YEAR_3000 else math.nan
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except (TypeError, ValueError, OverflowError):
        return math.nan


def expected_moments(cell):
    if not isinstance(cell, list) or not 5 <= len(cell) <= 7 or not all(map(is_number, cell[:5])) or cell[0] < 0:
        return None
    kind, order = [*cell[5:], *["mean", 0][len(cell) - 5 :]]
    kinds = ["mean", "sum", "min", "max", "std", "sample_std", "var", "count", "last"]
    if kind not in kinds or not is_number(order):
        return None
    return ([float(number) for number in cell[:5]], kind, float(order))


def expected_reading(data: bytes):
    """Good rows in order, the numbers of bad lines, and the bytes of a torn last line."""
    *lines, tail = data.split(b"\n")
    found = [expected_row(line) for line in lines]
    rows = [row for row in found if row is not None]
    bad = [number for number, row in enumerate(found, start=1) if row is None]
    whole_tail = expected_row(tail) if tail else None
    if whole_tail is not None:
        rows.append(whole_tail)
    return rows, bad, 0 if whole_tail is not None else len(tail)


def comparable(row: Row):
    """A row in the oracle's terms."""
    moments = {
        name: ([value.count, value.mean, value.m2, value.min, value.max], value.kind, value.order)
        for name, value in row.values.items()
    }
    numbers = {name: repr(number) for name, number in row.numbers.items()}
    return (row.step, repr(row.timestamp), row.attempt, numbers, row.texts, moments, row.gap)


def assert_reads_as_expected(path: Path) -> None:
    rows, bad, torn = expected_reading(path.read_bytes())
    problems = Problems()
    assert [comparable(row) for row in read_rows(path, problems)] == rows
    assert problems.bad_lines == len(bad)
    assert [number for number, _ in problems.examples] == bad[:5]
    assert problems.torn_bytes == torn
    assert problems.gap_rows == sum(row[-1] for row in rows)
    assert [comparable(row) for row in last_rows(path, 3)] == rows[-3:]


# ---- Fuzzing. ----

NAMES = st.sampled_from(
    ["step", "timestamp", "attempt", "_m", "_nonfinite", "_gap", "rows", "loss", "kl", "a b", "", "é", "_x", "\u2028"]
)
NUMBERS = st.one_of(
    st.integers(-3, 100),
    st.integers(-(2**80), 2**80),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([2**53, 2**53 + 2, 2**31, -0.0, 5e-324, 1e300]),
)
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    st.sampled_from(["loss=nan", "kl=inf loss=-inf", "a%20b=nan", "2025-11-15T10:00:00+00:00", "nan", "mean", "last"]),
)
TREES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=7),
        st.lists(NUMBERS, min_size=5, max_size=7),
        st.dictionaries(NAMES, inner, max_size=5),
    ),
    max_leaves=12,
)
SENSIBLE = st.fixed_dictionaries(
    {"step": st.integers(-5, 10**6)},
    optional={
        "timestamp": st.floats(1e9, 2e9),
        "attempt": st.integers(1, 4),
        "loss": NUMBERS,
        "phase": TEXTS,
        "_nonfinite": st.sampled_from(["kl=nan", "kl=inf loss=nan"]),
        "_m": st.dictionaries(NAMES, st.lists(st.floats(0, 10), min_size=5, max_size=5), max_size=2),
        "_gap": st.fixed_dictionaries({"rows": st.integers(0, 50)}),
    },
)


@st.composite
def damaged(draw):
    """A valid line with a few bytes changed, deleted or inserted."""
    text = bytearray(json.dumps(draw(SENSIBLE)).encode())
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        text[at : at + draw(st.integers(0, 3))] = draw(
            st.one_of(st.binary(max_size=3), st.sampled_from([b"\n", b'"', b"\\", b"{", b"1e999", b"NaN", b"\xff"]))
        )
    return bytes(text)


DOUBLED = st.lists(st.tuples(NAMES, NUMBERS), min_size=2, max_size=6).map(
    lambda pairs: ("{" + ",".join(f"{json.dumps(name)}:{json.dumps(number)}" for name, number in pairs) + "}").encode()
)
LINES = st.one_of(
    SENSIBLE.map(lambda row: json.dumps(row, ensure_ascii=False).encode()),
    damaged(),
    st.dictionaries(NAMES, TREES, max_size=7).map(lambda row: json.dumps(row).encode()),
    TREES.map(lambda tree: json.dumps(tree).encode()),
    DOUBLED,
    st.binary(max_size=30),
)
LOGS = st.builds(
    lambda lines, end: b"\n".join(lines) + end, st.lists(LINES, max_size=12), st.sampled_from([b"", b"\n"])
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("reader") / "log.jsonl"


@pytest.mark.slow
@settings(max_examples=250)
@given(data=LOGS, block_bytes=st.sampled_from([1, 7, 64, 2**22]))
def test_any_log_reads_as_the_oracle_says_whatever_the_blocks(scratch, data, block_bytes):
    scratch.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "BLOCK_BYTES", block_bytes)
        assert_reads_as_expected(scratch)


@given(data=st.binary(max_size=400))
def test_random_bytes_are_read_without_a_crash(scratch, data):
    scratch.write_bytes(data)
    assert_reads_as_expected(scratch)


GOOD = [b'{"step":%d,"timestamp":1763190000.5,"attempt":1,"loss":%d}' % (step, step) for step in range(10)]

HOSTILE = {
    "nothing": b"",
    "blanks": b" \t ",
    "zeros, as a crashed disk leaves them": b"\0" * 5000,
    "deep lists": b"[" * 10**6,
    "deep lists that close": b"[" * 10**5 + b"]" * 10**5,
    "deep objects in a row": b'{"step":1,"x":' + b'{"a":' * 10**5 + b"1" + b"}" * 10**5 + b"}",
    "lists as deep as is still read": b'{"step":1,"x":' + b"[" * 500 + b"]" * 500 + b"}",
    "a float beyond the range": b'{"step":1,"timestamp":1,"attempt":1,"loss":1e999}',
    "a float below the range": b'{"step":1,"timestamp":1,"attempt":1,"loss":1e-999}',
    "a whole number of 400 digits": b'{"step":1,"timestamp":1,"attempt":1,"loss":1' + b"0" * 400 + b"}",
    "a whole number of 10,000 digits": b'{"step":1,"timestamp":1,"attempt":1,"loss":' + b"9" * 10**4 + b"}",
    "a step of 30 digits": b'{"step":1' + b"0" * 30 + b"}",
    "a step of 400 digits": b'{"step":1' + b"0" * 400 + b"}",
    "a time of 300 digits": b'{"step":1,"timestamp":' + b"9" * 300 + b',"attempt":1,"loss":1}',
    "an attempt of 30 digits": b'{"step":1,"attempt":' + b"9" * 30 + b"}",
    "equal keys": b'{"step":1,"loss":1,"loss":2,"step":3,"loss":null,"loss":4}',
    "a good key then a bad one": b'{"step":1,"step":null,"loss":1}',
    "NaN as a word": b'{"step":1,"timestamp":1,"attempt":1,"loss":NaN}',
    "Infinity as a word": b'{"step":1,"timestamp":1,"attempt":1,"loss":-Infinity}',
    "two rows in one line": GOOD[1] + GOOD[2],
    "half a row before a row": GOOD[1][:20] + GOOD[2],
    "a comma too many": b'{"step":1,}',
    "single quotes": b"{'step':1}",
    "a comment": b'{"step":1} // one',
    "a byte order mark": b"\xef\xbb\xbf" + GOOD[1],
    "UTF-16": GOOD[1].decode().encode("utf-16"),
    "latin-1": '{"step":1,"phase":"é"}'.encode("latin-1"),
    "half a surrogate": b'{"step":1,"phase":"\\ud800"}',
    "half a surrogate as a name": b'{"step":1,"\\ud800":1}',
    "an escaped zero": b'{"step":1,"phase":"\\u0000","a\\u0000":1}',
    "a raw tab in a text": b'{"step":1,"phase":"a\tb"}',
    "a line separator that is no newline": '{"step":1,"phase":"a\u2028b\u0085c"}'.encode(),
    "carriage returns": b'\r{"step":1,"loss":1}\r',
    "form feeds": b'{"step":1}\x0c{"step":2}',
    "moments of every wrong sort": b'{"step":1,"_m":{"a":1,"b":null,"c":"12345","d":[],"e":[1,2,3,4,5,6],"f":{"0":1},'
    b'"g":[1,1e300,1,1,1],"h":[true,1,1,1,1],"i":{"a":1,"b":2,"c":3,"d":4,"e":5}}}',
    "our own keys as numbers": b'{"step":1,"timestamp":1,"attempt":1,"_m":1,"_nonfinite":2,"_gap":3}',
    "a name of a million letters": b'{"step":1,"' + b"x" * 10**6 + b'":1}',
    "ten thousand names": b'{"step":1,' + b",".join(b'"k%d":%d' % (at, at) for at in range(10**4)) + b"}",
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_good_rows_around_a_hostile_line_are_kept(hostile, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"\n".join([*GOOD[:5], hostile, *GOOD[5:]]) + b"\n")
    assert_reads_as_expected(log)
    rows = list(read_rows(log))
    assert [row.step for row in rows[:5]] == [0, 1, 2, 3, 4]
    assert [row.step for row in rows[-5:]] == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_last_line_without_newline_takes_no_row_with_it(hostile, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"\n".join([*GOOD, hostile]))
    assert_reads_as_expected(log)
    assert [row.step for row in read_rows(log)][:10] == list(range(10))


def test_a_log_torn_at_any_byte_keeps_every_whole_row(tmp_path):
    log = tmp_path / "log.jsonl"
    data = b"\n".join(GOOD[:3]) + b"\n"
    for end in range(len(data) + 1):
        log.write_bytes(data[:end])
        problems = Problems()
        steps = [row.step for row in read_rows(log, problems)]
        whole = data[:end].count(b"\n") + (1 if data[:end].endswith(b"}") else 0)
        assert steps == list(range(whole))
        assert problems.bad_lines == 0, "a torn last line is no bad line: it may still be being written"
        assert (problems.torn_bytes > 0) == (not data[:end].endswith((b"\n", b"}")) and end > 0)


# ---- The other functions of the reader. ----


def test_a_log_that_is_not_there_has_no_rows(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    for path in (tmp_path / "no-such.jsonl", tmp_path / "file" / "log.jsonl"):
        problems = Problems()
        assert list(read_rows(path, problems)) == []
        assert problems == Problems()
        assert list(read_blocks(path)) == []
        assert read_tail(path, 0) == b""
        assert last_row(path) is None


def test_blocks_give_the_offset_after_each_and_can_be_taken_up_again(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "BLOCK_BYTES", 100)
    log = tmp_path / "log.jsonl"
    data = b"\n".join(GOOD) + b"\nhalf"
    log.write_bytes(data)
    blocks = list(read_blocks(log))
    assert len(blocks) > 2
    assert [line for lines, _ in blocks for line in lines] == GOOD
    assert blocks[-1][1] == data.rindex(b"\n") + 1
    for position, (_, offset) in enumerate(blocks):
        assert data[offset - 1 : offset] == b"\n"
        rest = [line for lines, _ in blocks[position + 1 :] for line in lines]
        assert [line for lines, _ in read_blocks(log, offset) for line in lines] == rest
    assert read_tail(log, blocks[-1][1]) == b"half"


def test_the_last_rows_are_found_from_the_end_past_bad_and_torn_lines(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"\n".join([*GOOD[:6], b"oops", GOOD[6], b"", GOOD[7]]) + b"\n" + GOOD[8][:30])
    assert [row.step for row in last_rows(log, 3)] == [5, 6, 7]
    assert [row.step for row in last_rows(log, 100)] == list(range(8))
    assert last_rows(log, 0) == []
    assert last_row(log).step == 7


def test_a_whole_last_row_without_newline_is_the_last_row(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"\n".join(GOOD[:3]))
    assert last_row(log).step == 2


def test_the_last_rows_of_a_long_log_with_wide_rows_are_found(tmp_path):
    """Rows longer than one read from the end, and many short ones."""
    log = tmp_path / "log.jsonl"
    wide = [json.dumps({"step": step, "phase": "x" * 150_000, "loss": step}).encode() for step in range(5)]
    narrow = [b'{"step":%d}' % step for step in range(5, 20_000)]
    for lines in ([*wide, *narrow], [*narrow, *wide]):
        log.write_bytes(b"\n".join(lines) + b"\n")
        steps = [json.loads(line)["step"] for line in lines]
        for count in (1, 3, 7, 10_000):
            assert [row.step for row in last_rows(log, count)] == steps[-count:]


def test_only_the_first_few_bad_lines_are_listed_and_all_are_counted(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"oops\n" * 3 + GOOD[0] + b"\n" + b"[]\n" * 40)
    problems = Problems()
    assert len(list(read_rows(log, problems))) == 1
    assert problems.bad_lines == 43
    assert problems.examples == [
        (1, "not JSON"),
        (2, "not JSON"),
        (3, "not JSON"),
        (5, "not a JSON object"),
        (6, "not a JSON object"),
    ]


def test_problems_are_sentences_and_only_where_there_are_any(tmp_path):
    assert Problems().sentences == []
    log = tmp_path / "log.jsonl"
    log.write_bytes(b'{"step":1,"_gap":{"rows":12}}\noops\n{"step":2')
    problems = Problems()
    list(read_rows(log, problems))
    bad, torn, gap = problems.sentences
    assert "1 line skipped" in bad
    assert "line 2: not JSON" in bad
    assert "9 bytes" in torn
    assert "12 rows are missing" in gap


def test_a_whole_last_row_without_newline_still_reports_the_gap_before_it(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_bytes(GOOD[0] + b'\n{"step":1,"_gap":{"rows":12}}')
    problems = Problems()
    assert len(list(read_rows(log, problems))) == 2
    assert problems.gap_rows == 12
