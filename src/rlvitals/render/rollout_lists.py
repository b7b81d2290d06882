"""Lists of rollouts: the steps with rollouts, a step's groups, the rollouts of a query, two steps compared."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group as Parts
from rich.console import RenderableType
from rich.text import Text

from rlvitals.records import Group, Rollout
from rlvitals.render.numbers import number
from rlvitals.render.screen import ruled_table
from rlvitals.render.transcript import decision, group_heading, transcript
from rlvitals.render.turn_table import signed
from rlvitals.terminal import visible

PROMPT_SHOWN = 60


def render_steps(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """One line per step."""
    if not rows:
        return Text("no rollouts were recorded")
    table = ruled_table("step", "groups", "kept", "filtered", "rollouts", "early", "mean reward", right=range(7))
    for row in rows:
        counts = [number(row[name]) for name in ("step", "groups", "kept", "filtered", "rollouts", "early")]
        table.add_row(*counts, signed(row["mean"]))
    return table


def render_groups(step: int, groups: Iterable[tuple[int, Group, Mapping[str, int]]]) -> RenderableType:
    """A step's groups: mean and standard deviation of the rewards, outcomes, whether they are trained on."""
    table = ruled_table("group", "mean", "std", "rollouts", "early", "outcomes", "trained on", "prompt", right=range(5))
    for place, group, outcomes in groups:
        table.add_row(
            str(place),
            signed(group.mean),
            f"± {group.std:.3f}" if group.std is not None else "---",
            str(len(group.rollouts)),
            str(len(group.early_rollouts)),
            Text(_counted(outcomes)),
            Text(decision(group)),
            Text(_prompt(group)),
        )
    return Parts(Text(f"Step {step}", style="bold"), table)


def render_hits(hits: Sequence[Any]) -> RenderableType:
    """The rollouts that match a query, one line each."""
    if not hits:
        return Text("no rollout is like that")
    table = ruled_table("step", "group", "rollout", "reward", "turns", "outcome", "ended", "prompt", right=range(5))
    for hit in hits:
        places = [number(hit.step), str(hit.group), str(hit.rollout), signed(hit.reward), str(hit.turns)]
        table.add_row(*places, *(Text(visible(word)) for word in (hit.outcome, hit.stop)), Text(_short(hit.prompt)))
    return table


def render_changes(
    before: int, after: int, changes: Iterable[Any], outcomes: Callable[[Group], Mapping[str, int]]
) -> RenderableType:
    """The prompts of two steps: mean reward and outcomes at each step."""
    table = ruled_table(f"step {before}", f"step {after}", "change", "then", "now", "prompt", right=range(3))
    for change in changes:
        old, new = change.before, change.after
        means = (old.mean if old else None, new.mean if new else None)
        moved = None if means[0] is None or means[1] is None else means[1] - means[0]
        results = [Text(_counted(outcomes(group)) if group else "not tried") for group in (old, new)]
        table.add_row(*map(signed, means), signed(moved), *results, Text(_prompt(new or old)))
    return table


def text_changes(before: int, old: Group, after: int, new: Group, *, full: bool = False) -> str:
    """A diff of the best rollouts of one prompt at two steps: `-` marks removed lines, `+` new lines."""
    transcripts = (_best_transcript(old, full), _best_transcript(new, full))
    lines = difflib.unified_diff(transcripts[0], transcripts[1], f"step {before}", f"step {after}", n=1, lineterm="")
    heads = [f"Step {step}, {group_heading(1, group)}".replace("Group 1", "the prompt's group", 1)
             for step, group in ((before, old), (after, new))]  # fmt: skip
    return "\n".join([*heads, *(list(lines) or ["the best rollouts are the same"])])


def _best_transcript(group: Group, full: bool) -> list[str]:
    if not group.rollouts:
        return []
    best = max(group.rollouts, key=_rank)
    return transcript(best, full=full, numbers=False).split("\n")


def _rank(rollout: Rollout) -> float:
    return -math.inf if rollout.reward is None or math.isnan(rollout.reward) else rollout.reward


def _counted(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{visible(outcome)} {count}" for outcome, count in outcomes.items())


def _prompt(group: Group) -> str:
    name = f"{group.id}: " if group.id else ""
    return _short(name + group.prompt)


def _short(text: str) -> str:
    line = visible(" ".join(text.split()))
    return line if len(line) <= PROMPT_SHOWN else f"{line[: PROMPT_SHOWN - 3]}..."
