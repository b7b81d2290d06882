"""JSON in and out: strict both ways, with orjson and without."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvitals.codec import encode, encode_with_json, parse_json, parse_with_json, to_json

ENCODERS = pytest.mark.parametrize("encoder", [encode, encode_with_json], ids=["orjson", "json"])
PARSERS = pytest.mark.parametrize("parser", [parse_json, parse_with_json], ids=["orjson", "json"])

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
)
TREES = st.recursive(CELLS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))
ROWS = st.dictionaries(TEXTS, TREES, max_size=6)


def strictly(text: bytes):
    """The value that a strict reader outside rlvitals gets."""

    def refuse(name: str):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text.decode("utf-8"), parse_constant=refuse)


def outcome(parser, text: bytes):
    """The result of parsing. Any error other than a ValueError is raised and fails the test."""
    try:
        return parser(text)
    except ValueError:
        return "refused"


@pytest.mark.slow
@ENCODERS
@given(row=ROWS)
def test_a_row_is_one_line_that_reads_back_as_it_was(encoder, row):
    line = encoder(row)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert strictly(line) == row


@pytest.mark.slow
@PARSERS
@given(row=ROWS)
def test_what_the_json_module_writes_is_parsed_to_the_same(parser, row):
    assert parser(json.dumps(row).encode()) == row


@ENCODERS
@pytest.mark.parametrize("value", [{1, 2}, object(), b"bytes", 1j, "\ud800"])
def test_what_json_cannot_hold_raises(encoder, value):
    with pytest.raises((TypeError, ValueError)):
        encoder({"x": value})


@ENCODERS
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_json_does_not_have_is_never_written_as_a_number(encoder, number):
    try:
        line = encoder({"x": number})
    except (TypeError, ValueError):
        return
    assert strictly(line) == {"x": None}


NOT_JSON = [
    b"",
    b" ",
    b"nul",
    b"NaN",
    b"[Infinity]",
    b'{"a":-Infinity}',
    b"[1,]",
    b"01",
    b"1.",
    b".5",
    b"+1",
    b"0x10",
    b"1 2",
    b"{} x",
    b'{"a":1',
    b"{'a':1}",
    b'{"a" 1}',
    b'{1:"a"}',
    b'"a\tb"',
    b'"\x00"',
    b'"\\x41"',
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b"\xef\xbb\xbf{}",
    b"\x00" * 64,
    b"[" * 100_000,
    b'{"a":' * 100_000,
]


@PARSERS
def test_what_is_not_json_is_a_value_error(parser):
    assert [text[:20] for text in NOT_JSON if outcome(parser, text) != "refused"] == []


@PARSERS
@given(text=st.binary(max_size=40))
def test_random_bytes_parse_or_raise_a_value_error(parser, text):
    parsed = outcome(parser, text)
    assert parsed == "refused" or parsed == strictly(text)


@pytest.mark.parametrize(
    "text",
    [b"1e999", b"[-1e999]", b"1" + b"0" * 400, b'"\\ud800"', b'{"\\udc00":1}', b"18446744073709551616"],
    ids=["1e999", "-1e999", "int of 401 digits", "half a surrogate", "half a surrogate as key", "2**64"],
)
def test_both_parsers_agree_about_numbers_and_texts_beyond_the_range(text):
    """A log must read the same on a machine without orjson."""
    assert outcome(parse_with_json, text) == outcome(parse_json, text)


@given(tree=TREES)
def test_indented_text_reads_back_as_the_tree_it_was(tree):
    assert strictly(to_json(tree)) == tree


def test_indented_text_keeps_the_order_of_keys_and_ends_in_a_newline():
    text = to_json({"b": 1, "a": {"d": 2, "c": 3}})
    assert text.endswith(b"}\n")
    assert list(strictly(text)) == ["b", "a"]
    assert list(strictly(text)["a"]) == ["d", "c"]


def test_non_finite_numbers_become_texts_in_indented_json():
    assert strictly(to_json({"a": math.nan, "b": [math.inf, -math.inf], "c": 1.5})) == {
        "a": "nan",
        "b": ["inf", "-inf"],
        "c": 1.5,
    }


def test_odd_objects_become_their_text_in_indented_json():
    tree = strictly(to_json({"path": Path("a"), 3: (1, 2), "set": {7}, "array": np.float64(0.5), "big": 10**30}))
    assert tree == {"path": "a", "3": [1, 2], "set": [7], "array": 0.5, "big": 10**30}


def test_a_text_that_is_not_unicode_does_not_stop_indented_json():
    """Command lines and directory names may contain invalid UTF-8; Python represents it as lone surrogates."""
    tree = strictly(to_json({"command": "train \udcff.py", "\udcff": 1}))
    assert tree["command"].startswith("train ")
    assert len(tree) == 2


# A child process that cannot import orjson reads the log and prints the result.
_READ_WITHOUT_ORJSON = """
    import json, sys
    from pathlib import Path
    sys.modules["orjson"] = None
    from rlvitals import codec
    from rlvitals.store.index import open_columns
    from rlvitals.store.reader import Problems, read_rows
    assert codec.orjson is None
    log, index = map(Path, sys.argv[1:])
    problems = Problems()
    rows = [[row.step, row.timestamp, row.attempt, row.numbers, row.texts] for row in read_rows(log, problems)]
    columns = open_columns(log, index)
    print(json.dumps([rows, problems.bad_lines, len(columns), columns.problems.bad_lines, columns.steps.tolist()]))
"""


def read_without_orjson(log: Path, index: Path, environment: dict[str, str]):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(_READ_WITHOUT_ORJSON), str(log), str(index)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_log_reads_the_same_where_orjson_is_not_installed(tmp_path, child_environment):
    lines = [
        json.dumps({"step": step, "timestamp": 1.5 * step, "attempt": 1, "loss": 1 / (step + 1)}) for step in range(300)
    ]
    lines[17] = '{"step":17,"timestamp":1,"attempt":1,"phase":"warm-up \\u00fc","ok":true}'
    lines[18] = '{"step":18,"loss":NaN}'
    lines[19] = '{"step":19,"timestamp":1,"attempt":1,"loss":3,"_nonfinite":"kl=inf"}'
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows, bad, count, bad_in_columns, steps = read_without_orjson(log, tmp_path / "index", child_environment)
    assert [row[0] for row in rows] == steps == [step for step in range(300) if step != 18]
    assert (bad, count, bad_in_columns) == (1, 299, 1)
    assert rows[17][4] == {"phase": "warm-up ü"}
    assert rows[17][3] == {"ok": 1.0}
    assert rows[18][3] == {"loss": 3.0, "kl": math.inf}


@pytest.mark.parametrize(
    "hostile",
    [
        '{"step":5,"timestamp":1,"attempt":1,"loss":1' + "0" * 400 + "}",
        '{"step":5,"timestamp":1' + "0" * 400 + ',"attempt":1,"loss":1}',
        '{"step":5,"timestamp":1,"attempt":1,"phase":"\\ud800"}',
        '{"step":5,"timestamp":1,"attempt":1,"\\ud800":"x"}',
        '{"step":5,"timestamp":1,"attempt":1,"loss":1e999}',
    ],
    ids=["number of 401 digits", "timestamp of 401 digits", "half a surrogate", "half a surrogate as key", "1e999"],
)
def test_a_hostile_line_does_not_stop_a_reader_without_orjson(hostile, tmp_path, child_environment):
    lines = [f'{{"step":{step},"timestamp":1,"attempt":1,"loss":0.5}}' for step in range(300)]
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join([*lines, hostile]) + "\n", encoding="utf-8")
    rows, bad, count, bad_in_columns, _ = read_without_orjson(log, tmp_path / "index", child_environment)
    assert [row[0] for row in rows[:300]] == list(range(300))
    assert len(rows) + bad == 301
    assert (count, bad_in_columns) == (len(rows), bad)
