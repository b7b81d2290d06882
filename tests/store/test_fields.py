"""Reading records from files: whatever a file contains, a record holds values of its declared types or is refused."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvitals.codec import MOST_DEPTH, parse_shallow, parse_with_json
from rlvitals.records import Attempt, Count, Finding, RunInfo, Share, Time
from rlvitals.store.cursors import Cursor
from rlvitals.store.fields import LONGEST_TEXT, checked, damage_in, record_of
from rlvitals.store.findings import event_of
from rlvitals.store.process import ProcessId


@dataclass
class Sample:
    needed: int
    share: Share = 0.5
    when: Time | None = None
    word: Literal["a", "b"] = "a"
    counts: dict[str, Count] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    either: dict[str, float | str] = field(default_factory=dict)
    on: bool = False
    anything: Any = None


GOOD = {
    "needed": 3, "share": 1, "when": 5, "word": "b", "counts": {"x": 2.0}, "texts": ["t"], "either": {"n": 1, "t": "w"},
    "on": True, "anything": [1], "unknown": "passed over",
}  # fmt: skip


def test_what_is_right_is_taken_as_it_is_declared():
    wrong = []
    made = record_of(Sample, GOOD, wrong=wrong)
    assert made == Sample(3, 1.0, 5.0, "b", {"x": 2}, ("t",), {"n": 1.0, "t": "w"}, True, [1])
    assert [type(part) for part in (made.share, made.when, made.counts["x"])] == [float, float, int]
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "value", "noted"),
    [
        ("share", 1.5, "share"), ("share", True, "share"), ("share", "0.5", "share"), ("share", math.nan, "share"),
        ("when", 1e300, "when"), ("when", -1, "when"), ("when", math.inf, "when"), ("word", "c", "word"),
        ("word", ["a"], "word"), ("counts", {"x": -1}, "counts.x"), ("counts", {"x": 2**60}, "counts.x"),
        ("counts", [], "counts"), ("texts", [3], "texts[0]"), ("texts", "t", "texts"),
        ("either", {"n": []}, "either.n"), ("on", 1, "on"),
    ],
)  # fmt: skip
def test_what_is_wrong_gets_its_default_and_is_named(name, value, noted):
    wrong = []
    made = record_of(Sample, {"needed": 1, name: value}, wrong=wrong)
    assert made == Sample(1)
    assert wrong == [noted]


@pytest.mark.parametrize("value", [None, "3", 3.5, True, 2**54, 10**400, math.nan, [], {}])
def test_a_record_without_what_it_needs_is_refused(value):
    with pytest.raises(ValueError, match="'needed'"):
        record_of(Sample, {"needed": value})
    assert record_of(Sample, {"needed": value}, defaults={"needed": 7}).needed == 7


@pytest.mark.parametrize("raw", [None, [], "text", 3, [["needed", 1]]])
def test_what_is_no_object_is_refused(raw):
    with pytest.raises(ValueError, match="JSON object"):
        record_of(Sample, raw)


def test_a_huge_text_is_cut_and_named():
    wrong = []
    info = record_of(Attempt, {"number": 1, "started": 0, "host": "x" * 10_000_000}, wrong=wrong)
    assert (len(info.host), wrong) == (LONGEST_TEXT, ["host"])


def test_many_wrong_fields_are_one_sentence():
    assert damage_in("run.json", []) == []
    (sentence,) = damage_in("run.json", [f"field {place}" for place in range(20)])
    assert "'field 4' and 15 more have invalid values" in sentence


def is_declared(value, name):
    """Whether a value of RunInfo, Attempt, Finding or Cursor has the type that its readers rely on."""
    if isinstance(value, float):
        return math.isfinite(value) or name == "timestamp"
    return not isinstance(value, int) or isinstance(value, bool) or abs(value) <= 2**53


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner) |
    st.dictionaries(st.text(max_size=3), inner), max_leaves=6,
)  # fmt: skip


@given(data=st.data(), kind=st.sampled_from([RunInfo, Attempt, Finding, Cursor, ProcessId]))
def test_no_value_passes_that_is_not_declared(data, kind):
    names = [item.name for item in fields(kind)]
    raw = data.draw(st.dictionaries(st.sampled_from(names), ODD))
    try:
        made = record_of(kind, raw)
    except ValueError:
        return
    again = checked(kind, {name: getattr(made, name) for name in raw})
    for name in raw:
        value = getattr(made, name)
        assert is_declared(value, name)
        assert again.get(name, value) == value
        if value == raw[name]:
            assert type(value) is type(raw[name]) or isinstance(value, int | float | tuple)


@pytest.mark.parametrize("pid", [0, -1, 2**31, 2**70, True, "7", None])
def test_a_process_is_never_a_group_of_them(pid):
    assert ProcessId.from_dict({"host": "here", "pid": pid}) is None


@pytest.mark.parametrize("parse", [parse_shallow, parse_with_json])
def test_a_hundred_thousand_brackets_are_a_value_error(parse):
    for text in (b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000):
        with pytest.raises(ValueError, match=r"."):
            parse(text)


def test_what_is_handed_on_is_no_deeper_than_what_walks_through_it_bears():
    nested = b"[" * MOST_DEPTH + b"]" * MOST_DEPTH
    assert json.dumps(parse_shallow(nested)) == nested.decode()
    with pytest.raises(ValueError, match="nested"):
        parse_shallow(b"[" * 5 + nested + b"]" * 5)
    wide = json.dumps([[place] for place in range(1000)]).encode()
    assert len(parse_shallow(wide)) == 1000


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"{", b'{"type":"finding"}', b'{"type":"finding","step":1e300}', b'{"type":["finding"],"step":1}',
     b'{"type":"other","step":1}', b'{"type":"answer","step":99999999999999999999}'],
)  # fmt: skip
def test_a_line_that_is_no_event_is_none(line):
    assert event_of(line) is None


def test_the_facts_of_an_event_are_of_the_types_they_should_be():
    line = {"type": "answer", "step": 1, "attempt": -1, "timestamp": "now", "request": [1], "rule": 3, "text": "done"}
    event = event_of(json.dumps(line).encode())
    assert (event.attempt, math.isnan(event.timestamp), event.facts) == (1, True, {"text": "done"})
