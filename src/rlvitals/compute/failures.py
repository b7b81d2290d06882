"""Where rollouts fail, and which tools do: a failure of the machinery must not be read as one of the policy.

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
"""The words of stop reasons and of errors that tell an origin. The first that fits decides: a sandbox that timed out is
counted as a time-out. A stop reason is no error by itself: `tool_calls` and `scored` are how good rollouts end."""

_TOOL_NAME = re.compile(r"[\w.:-]{1,64}")

MAX_TOOLS = 32
"""Tools with their own numbers, the most called ones: a model that invents tools must not invent metrics."""


def origin(rollout: Rollout) -> str | None:
    """Which of `ORIGINS` a rollout failed by; None where it did not fail, whatever its answer is worth.

    `meta["failure_origin"]` decides where it is given. Otherwise the words of its error and stop reason do, and a turn
    limit is the policy's own doing.
    """
    told = rollout.meta.get("failure_origin")
    if told in ORIGINS:
        return str(told)
    if rollout.error:
        return _by_words(rollout.error, _BY_ERROR) or _by_words(rollout.stop, _BY_STOP) or "other"
    return "policy" if rollout.stop in TURN_LIMIT else _by_words(rollout.stop, _BY_STOP)


def add(sheet: StatisticSheet, rollouts: Sequence[Rollout]) -> None:
    """Add the share of rollouts that failed by each origin, and of each tool how often it is called and fails."""
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
    """Whether it is a tool that exists, as far as its name and its error say."""
    return call.error != "unknown_tool" and _TOOL_NAME.fullmatch(call.name) is not None


def _by_words(text: str, words: Iterable[tuple[str, str]]) -> str | None:
    return next((name for name, pattern in words if re.search(pattern, text, re.IGNORECASE)), None)
