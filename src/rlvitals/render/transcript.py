"""Rollouts as text: one-line summaries of groups and rollouts, and transcripts with long texts and tool calls cut.

Texts come from a model: control characters are made visible, line by line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from rlvitals.records import Group, Rollout, ToolCall, Turn
from rlvitals.render.numbers import number
from rlvitals.render.turn_table import signed
from rlvitals.terminal import plural, visible

FOLDED = 160
"""The most characters shown of a text, unless the full text is requested."""


def group_heading(place: int, group: Group) -> str:
    """One line: number, id, mean and standard deviation of the rewards, number of rollouts, kept or filtered."""
    name = f" {visible(group.id)}" if group.id else ""
    return f"Group {place}{name}: {moments(group)}, {plural(len(group.rollouts), 'rollout')}, {decision(group)}"


def moments(group: Group) -> str:
    """Mean and population standard deviation of the rewards.

    >>> moments(Group(mean=0.5, std=0.25)), moments(Group())
    ('reward 0.500 ± 0.250', 'no rewards')
    """
    return "no rewards" if group.mean is None or group.std is None else f"reward {group.mean:.3f} ± {group.std:.3f}"


def decision(group: Group) -> str:
    """Whether a group was kept, or why it was filtered; `not judged` if neither was recorded."""
    if group.kept is None:
        return "not judged"
    return "kept" if group.kept else f"filtered ({visible(group.reason) or 'low variance'})"


def rollout_heading(place: int, rollout: Rollout) -> str:
    """One line: reward, advantage, outcome, why it ended, its length, and its error.

    >>> rollout_heading(2, Rollout(reward=1.0, outcome="correct", stop="answered", tokens=1200, trainable_tokens=300))
    '  Rollout 2: reward +1.000, correct, ended: answered, 0 turns, 1,200 tokens (300 trainable)'
    """
    parts = [f"reward {signed(rollout.reward)}"]
    if rollout.advantage is not None:
        parts.append(f"advantage {signed(rollout.advantage)}")
    parts += [word for word in (rollout.outcome, rollout.stop and f"ended: {rollout.stop}") if word]
    parts.append(plural(len(rollout.turns), "turn"))
    if (tokens := rollout.total_tokens) is not None:
        own = rollout.total_trainable
        parts.append(f"{number(tokens)} tokens" + (f" ({number(own)} trainable)" if own is not None else ""))
    if rollout.seconds is not None:
        parts.append(f"{rollout.seconds:.1f} s")
    if rollout.policy_version is not None:
        parts.append(f"policy {rollout.policy_version}")
    if rollout.error:
        parts.append(f"error: {rollout.error}")
    return visible(f"  Rollout {place}: {', '.join(parts)}")


def transcript(rollout: Rollout, *, full: bool = False, numbers: bool = True) -> str:
    """A rollout turn by turn. Texts, arguments and results are cut to one line each, unless `full` is set. Without
    `numbers`, rewards, advantages, token counts and the rubric are left out.
    """
    lines = list(_facts(rollout)) if numbers else []
    for place, turn in enumerate(rollout.turns, 1):
        lines += _turn(place, turn, full, numbers)
    return "\n".join(lines)


def folded(text: str, *, full: bool = False, indent: str = "      ") -> str:
    r"""A text cut to one line, with the number of characters left out, or with `full` the whole text, indented.

    >>> folded("a" * 200, indent="")[-20:], folded("two\nlines", indent="")
    ('aaa [+40 characters]', 'two lines')
    """
    if full:
        return "\n".join(indent + visible(line) for line in text.split("\n"))
    line = visible(" ".join(text.split()))
    left = len(line) - FOLDED
    return indent + (line if left <= 0 else f"{line[:FOLDED].rstrip()} [+{number(left)} characters]")


def _facts(rollout: Rollout) -> Iterator[str]:
    if rollout.reward_parts:
        parts = ", ".join(f"{name} {signed(part)}" for name, part in rollout.reward_parts.items())
        yield visible(f"    reward parts: {parts}")
    if rollout.rubric:
        yield visible(f"    rubric: {', '.join(f'{name} {value}' for name, value in rollout.rubric.items())}")


def _turn(place: int, turn: Turn, full: bool, numbers: bool) -> Iterator[str]:
    parts = [f"turn {place}"]
    if numbers and turn.advantage is not None:
        parts.append(f"advantage {signed(turn.advantage)}")
    if numbers and turn.reward is not None:
        parts.append(f"reward {signed(turn.reward)}")
    if turn.outcome:
        parts.append(turn.outcome)
    if numbers and turn.tokens is not None:
        parts.append(f"{number(turn.tokens)} tokens")
    yield visible(f"    {', '.join(parts)}")
    if turn.text:
        yield folded(turn.text, full=full)
    for call in turn.calls:
        yield from _call(call, full)
    if turn.observation:
        yield "      < " + folded(turn.observation, full=full, indent="        ").lstrip()


def _call(call: ToolCall, full: bool) -> Iterator[str]:
    arguments = call.arguments if isinstance(call.arguments, str) else _json(call.arguments)
    failed = f"  failed: {call.error}" if call.error else ""
    shown = folded(f"{call.name}({arguments})", full=full, indent="        ").lstrip()
    yield f"      > {shown}{visible(failed)}"
    if call.result is not None:
        yield "      < " + folded(call.result, full=full, indent="        ").lstrip()


def _json(arguments: object) -> str:
    return "" if arguments is None else json.dumps(arguments, ensure_ascii=False, default=str)
