"""Episodes as records: the rollouts of one question, as `run.log_groups` and `compute.groups` take them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlvitals.errors import ConfigError
from rlvitals.records import Group, Rollout
from rlvitals.train.mailbox.episode import Episode

FAULTS = frozenset({"parse_error", "bad_tool_name", "bad_tool_args", "cut_off"})
"""Outcomes whose reason is an error."""


def rollout(episode: Episode, system: str = "document") -> Rollout:
    """One episode, with its reward by one of the reward systems; without one where it could not be graded."""
    parts = episode.reward(system)
    ended = episode.outcome or ""
    outcome = ("correct" if episode.rubric.answer_correct else "wrong") if ended == "answered" else ended
    if not episode.is_judged:
        outcome = ""
    return Rollout(
        turns=tuple(episode.turns),
        reward=math.fsum(parts.values()) if episode.is_judged else None,
        outcome=outcome,
        stop=ended,
        error=episode.reason if ended in FAULTS or not episode.is_judged else "",
        rubric=episode.rubric.to_dict(),
        reward_parts=parts,
    )


def group(episodes: Sequence[Episode], system: str = "document") -> Group:
    """Episodes of one question."""
    if len({episode.question.id for episode in episodes}) != 1:
        raise ConfigError("a group is made of the episodes of one question")
    asked = episodes[0].question
    return Group(
        prompt=asked.question,
        rollouts=tuple(rollout(episode, system) for episode in episodes),
        id=asked.id,
        answer=asked.answer,
        sources=asked.message_ids,
        max_turns=episodes[0].max_turns,
    )
