"""One line, one row: which values are read, which are left out of a good row, and which lines are not rows."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlvitals.codec import encode, read_nonfinite, write_nonfinite
from rlvitals.records import Row
from rlvitals.store.index import open_columns
from rlvitals.store.lines import BadLine, decode, encode_row, stored_metrics, stored_row
from rlvitals.values import last, mean, total

HEAD = {"step": 3, "timestamp": 1763190000.1, "attempt": 1}


def line(**cells) -> bytes:
    return json.dumps({**HEAD, **cells}).encode()


def test_an_ordinary_line_is_a_row_of_numbers():
    row = decode(b'{"step":10,"timestamp":1763190000.1,"attempt":2,"loss":0.62,"rewards/margins":-1,"ok":true}')
    assert (row.step, row.timestamp, row.attempt, row.gap) == (10, 1763190000.1, 2, 0)
    assert row.numbers == {"loss": 0.62, "rewards/margins": -1.0, "ok": 1.0}
    assert all(type(number) is float for number in row.numbers.values())
    assert row.texts == {}
    assert row.values == {}


def test_texts_are_kept_apart_from_numbers():
    row = decode(line(phase="warm-up", loss=1, empty=""))
    assert row.texts == {"phase": "warm-up", "empty": ""}
    assert row.numbers == {"loss": 1.0}


def test_values_no_row_has_are_left_out_of_a_good_row():
    assert decode(line(a=None, b=[1, 2], c={"d": 1}, loss=0.5)).numbers == {"loss": 0.5}


@pytest.mark.parametrize(
    ("given", "step"), [(0, 0), (-7, -7), (3.0, 3), (1e3, 1000), (2**53, 2**53), (-(2**53), -(2**53))]
)
def test_a_step_is_any_whole_number(given, step):
    row = decode(json.dumps({"step": given}).encode())
    assert row.step == step
    assert type(row.step) is int


@pytest.mark.parametrize("step", [None, "3", True, 1.5, [3], {}, 2**53 + 2, -(2**53) - 2, 1e300, 10**30])
def test_a_line_without_a_whole_step_is_no_row(step):
    with pytest.raises(BadLine, match="step"):
        decode(json.dumps({"step": step, "loss": 1}).encode())


def test_a_line_without_any_step_is_no_row():
    with pytest.raises(BadLine, match="step"):
        decode(b'{"loss":1}')


@pytest.mark.parametrize("attempt", [0, -1, "1", None, True, 1.5, 2**31, [1]])
def test_a_line_with_a_wrong_attempt_is_no_row(attempt):
    with pytest.raises(BadLine, match="attempt"):
        decode(line(attempt=attempt))


def test_a_line_without_attempt_or_time_is_the_first_attempts():
    """Older recorders wrote neither."""
    row = decode(b'{"step":1,"loss":2}')
    assert row.attempt == 1
    assert math.isnan(row.timestamp)


@pytest.mark.parametrize("stamp", ["2025-11-15T07:00:00+00:00", "2025-11-15T07:00:00Z", "2025-11-15T08:00:00+01:00"])
def test_a_time_written_as_text_is_read(stamp):
    assert decode(line(timestamp=stamp)).timestamp == datetime(2025, 11, 15, 7, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("stamp", ["yesterday", "", "2025-13-45", None, True, [1], {"a": 1}])
def test_a_time_that_is_none_is_unknown_and_the_row_is_kept(stamp):
    row = decode(line(timestamp=stamp, loss=1))
    assert math.isnan(row.timestamp)
    assert row.numbers == {"loss": 1.0}


@pytest.mark.parametrize(
    "bad", [b"", b"{", b"null", b"[]", b'"step"', b"3", b"{}x", b"NaN", b"\xff", b"\x00", b'{"step":1', b"[" * 10**5]
)
def test_what_is_no_json_object_is_no_row(bad):
    with pytest.raises(BadLine):
        decode(bad)


def test_the_last_of_two_equal_keys_counts():
    row = decode(b'{"step":1,"step":2,"loss":1,"loss":2,"attempt":1,"attempt":3}')
    assert (row.step, row.attempt, row.numbers) == (2, 3, {"loss": 2.0})


def test_whole_numbers_beyond_64_bits_are_read_as_near_as_a_float_is():
    assert decode(line(tokens=2**64 - 1, more=2**70, less=-(2**70))).numbers == {
        "tokens": float(2**64 - 1),
        "more": float(2**70),
        "less": -float(2**70),
    }


def test_white_space_around_a_line_does_no_harm():
    assert decode(b' {"step" : 1 , "loss" : 2 }\r').numbers == {"loss": 2.0}


def test_non_finite_numbers_come_back():
    row = decode(line(lr=0.1, _nonfinite="loss=nan kl=inf grad%20norm=-inf"))
    assert math.isnan(row.numbers.pop("loss"))
    assert row.numbers == {"lr": 0.1, "kl": math.inf, "grad norm": -math.inf}


@pytest.mark.parametrize(
    "words", [5, None, ["loss=nan"], {"loss": "nan"}, "", "loss", "=nan", "loss=NaN", "loss=1", " "]
)
def test_damaged_words_for_non_finite_numbers_are_left_out(words):
    assert decode(line(lr=0.1, _nonfinite=words)).numbers == {"lr": 0.1}


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(st.dictionaries(NAMES, st.sampled_from([math.nan, math.inf, -math.inf]), max_size=4))
@example({"a b": math.nan, "a=b": math.inf, "=": -math.inf, "a\nb": math.nan, " ": math.inf})
@example({"50%20": math.nan, "%": math.inf, "a%2520b": math.inf})
def test_non_finite_numbers_of_any_name_survive_being_written(numbers):
    found = read_nonfinite(write_nonfinite(numbers))
    assert {name: repr(number) for name, number in found.items()} == {
        name: repr(number) for name, number in numbers.items()
    }


def test_mergeable_values_come_back_with_their_kind():
    stored = {"loss": mean([1.0, 3.0]), "tokens": total([4.0]), "lr": last(0.1, 7)}
    row = decode(line(loss=2.0, _m={name: value.to_list() for name, value in stored.items()}))
    assert row.values == stored


@pytest.mark.parametrize(
    "moments",
    [
        5,
        None,
        [],
        "x",
        {"bad": 5},
        {"bad": None},
        {"bad": "12345"},
        {"bad": []},
        {"bad": [1, 2, 3, 4]},
        {"bad": [1, 2, 3, 4, "5"]},
        {"bad": [-1, 2, 3, 4, 5]},
        {"bad": [1, 2, 3, 4, 5, "median"]},
        {"bad": [1, 2, 3, 4, 5, []]},
        {"bad": {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}},
        {"bad": [[1], 2, 3, 4, 5]},
    ],
)
def test_damaged_moments_are_left_out_one_by_one(moments):
    if isinstance(moments, dict):
        moments = {**moments, "good": [1, 2.0, 0, 2.0, 2.0]}
    row = decode(line(loss=2.0, _m=moments))
    assert row.numbers == {"loss": 2.0}
    assert list(row.values) == (["good"] if isinstance(moments, dict) else [])


def test_a_gap_is_counted_in_rows():
    assert decode(line(_gap={"rows": 12})).gap == 12


@pytest.mark.parametrize(
    "gap", [5, None, [], {}, {"rows": "3"}, {"rows": 1.5}, {"rows": True}, {"rows": None}, {"rows": -4}]
)
def test_a_damaged_gap_counts_nothing(gap):
    assert decode(line(loss=1, _gap=gap)).gap == 0


@pytest.mark.parametrize("stamp", ["0001-01-01T00:00:00", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_time_at_the_end_of_the_calendar_does_not_lose_the_row(stamp):
    assert decode(line(timestamp=stamp, loss=1)).numbers == {"loss": 1.0}


@pytest.mark.parametrize("stamp", ["1e300", "-1e300", "99999999999999", "[1]", '"never"', "null"])
def test_a_time_that_no_calendar_has_is_no_time(stamp, tmp_path):
    line = f'{{"step":1,"timestamp":{stamp},"attempt":1,"loss":0.5}}'.encode()
    assert math.isnan(decode(line).timestamp)
    (tmp_path / "log.jsonl").write_bytes(line + b"\n")
    assert np.isnan(open_columns(tmp_path / "log.jsonl", tmp_path / "index").timestamps).all()


def test_moments_nested_as_deeply_as_a_parser_takes_are_left_out():
    nest = b"[" * 1000 + b"]" * 1000
    row = decode(b'{"step":1,"timestamp":1.0,"attempt":1,"loss":0.5,"_m":{"loss":[1,1,1,1,' + nest + b"]}}")
    assert (row.numbers, row.values) == ({"loss": 0.5}, {})


def test_a_row_that_is_encoded_is_read_back_whole():
    row = Row(
        step=7,
        timestamp=1763190000.123,
        attempt=2,
        numbers={"loss": 0.5, "kl": math.inf, "grad norm%": math.nan, "epoch": 3.0},
        texts={"note": "a=b"},
        values={"reward": mean([1.0, 2.0])},
        gap=4,
    )
    read = decode(encode(stored_row(row)))
    assert repr(read) == repr(replace(row, numbers=read.numbers))  # NaN does not equal itself
    assert {name: str(number) for name, number in read.numbers.items()} == {
        "loss": "0.5", "kl": "inf", "grad norm%": "nan", "epoch": "3.0",
    }  # fmt: skip
    assert decode(encode_row(7, 1763190000.12399, 2, stored_metrics({"kl": -math.inf}))) == Row(
        7, 1763190000.123, 2, {"kl": -math.inf}
    )


def test_a_time_that_is_on_record_is_not_cut_again():
    """Truncating to milliseconds twice would lose a millisecond if a product rounds down."""
    times = [thousandth / 1000 for thousandth in range(1, 2000)]  # times that count from the start of the log
    assert [decode(encode(stored_row(Row(1, time, 1, {})))).timestamp for time in times] == times
