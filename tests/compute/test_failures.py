"""The origin of rollout failures, found from recorded fields with the vocabulary of several environments."""

from __future__ import annotations

import pytest

from rlvitals import catalog
from rlvitals.compute import failures, groups, merge
from rlvitals.records import Group, Rollout, ToolCall, Turn


@pytest.mark.parametrize(
    ("rollout", "origin"),
    [
        (Rollout(stop="answered", outcome="wrong", reward=0.0), None),
        (Rollout(stop="tool_calls"), None),
        (Rollout(stop="scored"), None),
        (Rollout(stop="length"), None),  # truncation has its own metric
        (Rollout(stop="max_turns"), "policy"),
        (Rollout(stop="bad_arguments"), "policy"),
        (Rollout(error="malformed tool call: no closing brace"), "policy"),
        (Rollout(error="ToolError: HTTP 502 from the search service"), "tool"),
        (Rollout(error="SandboxCreationError: no node is free"), "sandbox"),
        (Rollout(error="process killed (oom)"), "sandbox"),
        (Rollout(error="asyncio.TimeoutError in sandbox"), "timeout"),
        (Rollout(stop="timed_out"), "timeout"),
        (Rollout(stop="context_length_exceeded"), "context"),
        (Rollout(error="prompt too long for the model"), "context"),
        (Rollout(error="reward function raised ValueError"), "verifier"),
        (Rollout(error="judge returned no JSON"), "verifier"),
        (Rollout(error="KeyError: 'x'"), "other"),
        (Rollout(error="KeyError: 'x'", stop="context_length_exceeded"), "context"),
        (Rollout(error="tool", meta={"failure_origin": "sandbox"}), "sandbox"),
        (Rollout(error="tool", meta={"failure_origin": "the moon"}), "tool"),
    ],
)
def test_the_origin_follows_from_what_was_recorded(rollout, origin):
    assert failures.origin(rollout) == origin


def called(*calls):
    return Rollout(turns=(Turn(calls=tuple(ToolCall(name, error=error) for name, error in calls)),))


def test_a_steps_row_has_a_share_for_each_origin_and_numbers_for_each_tool():
    rollouts = (
        called(("search", ""), ("search", "503"), ("read", "")),
        called(("search", ""), ("made_up", "unknown_tool"), ("rm -rf /", "x")),
        Rollout(error="sandbox lost"),
        Rollout(stop="turn_limit"),
    )
    found = groups.stats([Group(rollouts=rollouts)])
    shares = {name: found[f"agent.failures.{name}"].number for name in failures.ORIGINS}
    assert shares == {name: 0.25 if name in ("policy", "sandbox") else 0.0 for name in failures.ORIGINS}
    tools = {name: value.number for name, value in found.items() if "/tool=" in name}
    assert tools == pytest.approx(
        {
            "agent.tool.failure_fraction/tool=search": 1 / 3, "agent.tool.calls.total/tool=search": 3,
            "agent.tool.failure_fraction/tool=read": 0.0, "agent.tool.calls.total/tool=read": 1,
        }
    )  # fmt: skip
    assert {catalog.find(name)[0].metric.id for name in tools} == {
        "agent.tool.failure_fraction", "agent.tool.calls.total"
    }  # fmt: skip


def test_tools_of_ranks_are_added_also_where_one_rank_called_none():
    one, other = (groups.stats([Group(rollouts=(rollout,))]) for rollout in (called(("search", "x")), called()))
    merged = merge([one, other, one])
    assert merged["agent.tool.calls.total/tool=search"].number == 2
    assert merged["agent.tool.failure_fraction/tool=search"].number == 1.0


def test_a_model_that_invents_tools_does_not_invent_metrics_without_end():
    many = called(*((f"tool_{number}", "") for number in range(200) for _ in range(1 + (number == 150))))
    tools = [name for name in groups.stats([Group(rollouts=(many,))]) if name.startswith("agent.tool.calls")]
    assert len(tools) == failures.MAX_TOOLS
    assert "agent.tool.calls.total/tool=tool_150" in tools
