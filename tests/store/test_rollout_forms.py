"""Any value passed as rollouts is read or reported without an exception, and what is stored reads back the same."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlvitals.records import Group, Rollout, ToolCall, Turn
from rlvitals.render.step_summary import group_details
from rlvitals.store.layout import RunDir
from rlvitals.store.lineage import Lineage
from rlvitals.store.messages import conversation
from rlvitals.store.rollout_forms import group_of
from rlvitals.store.rollouts import decode_group, group_line
from rlvitals.views.rollouts import RunRollouts

WORDS = (
    "prompt rollouts turns messages completion role content tool_calls calls function name arguments reward score stop "
    "kept id sources meta rubric reward_parts tokens step max_turns tool_call_id text result error"
)
KEYS = st.sampled_from(WORDS.split())
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["assistant", "tool", "nan"])
)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=15
)


@settings(max_examples=60)
@given(ANYTHING)
def test_anything_is_read_or_noted(thing):
    notes = []
    group = group_of(thing, notes.append)
    assert group is not None or notes
    if group is not None:
        line = group_line(group, 3, 2, 1.5)
        json.loads(line, parse_constant=pytest.fail)
        assert line.count(b"\n") == 1
        assert decode_group(line) is not None


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, ANYTHING, max_size=5))
def test_whatever_stands_in_a_file_can_be_looked_at(tmp_path, line):
    run_dir = RunDir(tmp_path)
    run_dir.rollouts.mkdir(parents=True, exist_ok=True)
    run_dir.rollout_file(3).write_text(json.dumps({**line, "step": 3}) + "\n")
    log = RunRollouts(run_dir, Lineage({}))
    groups = log.at(3)
    assert len(groups) <= 1
    log.overview()
    for text in ("a", "ż"):
        assert log.find(text=text) is not None
    group_details(groups)


REALS = st.floats(allow_nan=False, width=32)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.none() | REALS
COUNTS = st.none() | st.integers(0, 10**9)
CALLS = st.builds(
    ToolCall, TEXTS, st.none() | st.dictionaries(TEXTS, st.integers(0, 9) | TEXTS, max_size=2), st.none() | TEXTS, TEXTS
)
TURNS = st.builds(
    Turn, text=TEXTS, calls=st.lists(CALLS, max_size=2).map(tuple), observation=TEXTS, outcome=TEXTS, tokens=COUNTS,
    trainable_tokens=COUNTS, seconds=NUMBERS, reward=NUMBERS, advantage=NUMBERS,
)  # fmt: skip
ROLLOUTS = st.builds(
    Rollout, turns=st.lists(TURNS, max_size=3).map(tuple), reward=NUMBERS, advantage=NUMBERS, outcome=TEXTS, stop=TEXTS,
    error=TEXTS, reward_parts=st.dictionaries(TEXTS, REALS, max_size=2), tokens=COUNTS, seed=COUNTS,
)  # fmt: skip
GROUPS = st.builds(
    Group, prompt=TEXTS, rollouts=st.lists(ROLLOUTS, max_size=3).map(tuple), id=TEXTS, answer=TEXTS,
    sources=st.lists(TEXTS, max_size=2).map(tuple), max_turns=COUNTS, mean=NUMBERS, std=NUMBERS,
    kept=st.none() | st.booleans(), reason=TEXTS, step=st.just(3), attempt=st.just(2), timestamp=st.just(1.5),
)  # fmt: skip


@settings(max_examples=40)
@given(GROUPS)
def test_a_stored_group_reads_back_the_same(group):
    assert decode_group(group_line(group, 3, 2, 1.5)) == group


def test_a_tools_message_without_an_id_belongs_to_the_first_call_without_a_result():
    _, (turn,) = conversation(
        [
            {"role": "assistant", "tool_calls": [{"function": {"name": "a"}}, {"function": {"name": "b"}}]},
            {"role": "tool", "content": "of a"},
            {"role": "tool", "content": "of b"},
            {"role": "tool", "content": "of none"},
        ]
    )
    assert [(call.name, call.result) for call in turn.calls] == [("a", "of a"), ("b", "of b")]
    assert turn.observation == "of none"


def test_an_old_function_call_is_a_call():
    _, (turn,) = conversation([{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}])
    assert turn.calls == (ToolCall("f", {}),)


def test_our_own_word_wins_over_another_for_the_same_field():
    group = group_of({"rollouts": [{"completion": "x", "reward": 1.0, "score": 2.0}]}, pytest.fail)
    assert (group.rollouts[0].reward, group.rollouts[0].meta) == (1.0, {"score": 2.0})
