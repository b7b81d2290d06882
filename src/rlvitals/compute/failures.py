"""Where rollouts fail, and which tools fail: an infrastructure failure must not be read as a failure of the policy.

>>> from rlvitals.records import Group, Rollout
>>> origin(Rollout(error="sandbox: container was killed (OOM)")), origin(Rollout(stop="turn_limit")), origin(Rollout())
('sandbox', 'policy', None)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from rlvitals.compute.packing import StatisticSheet
from rlvitals.records import TURN_LIMIT, Rollout, ToolCall

ORIGINS = ("policy", "tool", "sandbox", "timeout", "context", "verifier", "other")

_BY_STOP = (
    ("timeout", r"timed?.?out|deadline|time.?limit"),
    ("context", r"context|overlong|prompt.?too.?long|model.?len"),
    ("policy", r"bad.?arguments|unknown.?tool|malformed|invalid.?(call|json|format)|no.?answer"),
)
_BY_ERROR = (
    *_BY_STOP,
    ("verifier", r"verif|judge|grader|rubric|scor(e|ing)|reward"),
    ("sandbox", r"sandbox|container|docker|\boom\b|out.?of.?memory|killed"),
    ("tool", r"tool|\bapi\b|http|connection|server|service"),
)
"""Patterns that map stop reasons and errors to an origin. The first match decides: a sandbox that timed out counts as a
time-out. A stop reason alone is not an error: good rollouts end with `tool_calls` or `scored`."""

_TOOL_NAME = re.compile(r"[\w.:-]{1,64}")

MAX_TOOLS = 32
"""Tools with their own metrics, the most called ones. A model that invents tool names must not create metrics."""


def origin(rollout: Rollout) -> str | None:
    """The origin (one of `ORIGINS`) of a rollout's failure; None if it did not fail, even if its answer is wrong.

    `meta["failure_origin"]` decides if it is present. Otherwise the words of the error and the stop reason decide. A
    turn limit counts as a failure of the policy.
    """
    recorded = rollout.meta.get("failure_origin")
    if recorded in ORIGINS:
        return str(recorded)
    if rollout.error:
        return _by_words(rollout.error, _BY_ERROR) or _by_words(rollout.stop, _BY_STOP) or "other"
    return "policy" if rollout.stop in TURN_LIMIT else _by_words(rollout.stop, _BY_STOP)


def add(sheet: StatisticSheet, rollouts: Sequence[Rollout]) -> None:
    """Add the share of rollouts that failed for each origin, and the calls and failures of each tool."""
    found = [origin(rollout) for rollout in rollouts]
    for name in ORIGINS:
        sheet.moments([one == name for one in found], mean=f"agent.failures.{name}")
    _add_tools(sheet, rollouts)


def _add_tools(sheet: StatisticSheet, rollouts: Sequence[Rollout]) -> None:
    called = [call for rollout in rollouts for turn in rollout.turns for call in turn.calls if _is_tool(call)]
    for tool, _ in Counter(call.name for call in called).most_common(MAX_TOOLS):
        failed = [bool(call.error) for call in called if call.name == tool]
        row = sheet.moments(failed, mean=f"agent.tool.failure_fraction/tool={tool}")
        sheet.show(row, "count", f"agent.tool.calls.total/tool={tool}")


def _is_tool(call: ToolCall) -> bool:
    """Whether the tool exists, inferred from the call's name and error."""
    return call.error != "unknown_tool" and _TOOL_NAME.fullmatch(call.name) is not None


def _by_words(text: str, words: Iterable[tuple[str, str]]) -> str | None:
    return next((name for name, pattern in words if re.search(pattern, text, re.IGNORECASE)), None)
