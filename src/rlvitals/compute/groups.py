"""Groups of rollouts: which are trained on, the advantage of each rollout and turn, and the statistics of a step.

>>> from rlvitals.records import Group, Rollout
>>> mixed, alone = Group(rollouts=(Rollout(reward=1.0), Rollout(reward=0.0))), Group(rollouts=(Rollout(reward=1.0),))
>>> done = advantages([mixed, alone])
>>> [(group.mean, group.std, group.kept, group.reason) for group in done]
[(0.5, 0.5, True, ''), (1.0, 0.0, False, 'reward std 0.000 < 0.05')]
>>> [round(rollout.advantage, 3) for rollout in done[0].rollouts]
[1.0, -1.0]
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlvitals.compute import diversity, failures
from rlvitals.compute.advantage import group_relative
from rlvitals.compute.credit import Rules, outcome_of, read_rules, turn_advantage
from rlvitals.compute.names import FamilyNames, Name, naming
from rlvitals.compute.packing import Packed, StatisticSheet, reading
from rlvitals.compute.rollout import group_moments, show_discard_bias, show_discarded
from rlvitals.errors import ConfigError
from rlvitals.records import TURN_LIMIT, Group, Rollout, Turn

MIN_GROUP_STD = 0.05
"""Groups with a smaller reward deviation are filtered: they add more noise than signal. The GRPO agent's value."""

GRPO_AGENT = {
    "group.kept_count": Name("train/groups_kept"),
    "group.dropped_count": Name("train/groups_filtered"),
    "agent.early_exit.count": Name("train/num_early_exit"),
}
"""The names that the GRPO agent's document uses in a training row. Its other names are for evaluations."""


def advantages(
    groups: Iterable[Group],
    *,
    min_group_std: float = MIN_GROUP_STD,
    scale: str = "std",
    turns: bool = True,
    rules: Rules | Mapping[str, Any] | str | os.PathLike[str] | None = None,
) -> list[Group]:
    """The groups with their mean, population standard deviation, whether they are kept, and all advantages.

    A group is filtered if its standard deviation is below `min_group_std` (strictly), if it has no rewards, or if a
    reward is not a number. Advantages are computed for filtered groups too, for inspection. A rollout without a reward
    has no advantage and does not count in its group.

    With `turns`, each turn gets its own advantage: the rollout's advantage, corrected by the turn's outcome (see
    `credit`). For a turn with its own reward and no outcome, the reward is added to the rollout's advantage instead.
    """
    read = read_rules(rules)
    return [_advantaged(group, min_group_std, scale, read if turns else None) for group in groups]


def _advantaged(group: Group, min_std: float, scale: str, rules: Rules | None) -> Group:
    rewards = [rollout.reward for rollout in group.rollouts if rollout.reward is not None]
    if not rewards:
        return replace(group, mean=None, std=None, kept=False, reason="no rewards")
    places = [0] * len(rewards)
    moments = group_moments(rewards, places)
    mean, std = float(moments.mean[0]), float(moments.spread[0])
    found = iter(group_relative(rewards, places, scale=scale).tolist())
    kept = std >= min_std
    reason = "" if kept else f"reward std {std:.3f} < {min_std:g}" if math.isfinite(std) else "a reward is not a number"
    decided = replace(group, mean=mean, std=std, kept=kept, reason=reason)
    rollouts = [
        _credited(rollout, decided, None if rollout.reward is None else next(found), rules)
        for rollout in group.rollouts
    ]
    return replace(decided, rollouts=tuple(rollouts))


def _credited(rollout: Rollout, group: Group, advantage: float | None, rules: Rules | None) -> Rollout:
    if advantage is None or rules is None:
        turns = [replace(turn, advantage=advantage) for turn in rollout.turns]
    else:
        turns = [_turn(turn, rollout, group, advantage, rules) for turn in rollout.turns]
    return replace(rollout, advantage=advantage, turns=tuple(turns))


def _turn(turn: Turn, rollout: Rollout, group: Group, advantage: float, rules: Rules) -> Turn:
    if turn.reward is not None and not turn.outcome:
        return replace(turn, advantage=advantage + turn.reward)
    outcome = outcome_of(turn, rollout, group, rules)
    try:
        return replace(turn, outcome=outcome, advantage=turn_advantage(advantage, outcome, rules))
    except ConfigError:  # an environment's own outcome without a rule: no correction
        return replace(turn, advantage=advantage)


def pack(groups: Sequence[Group], *, names: str = "grpo_agent") -> Packed:
    """The group and turn statistics of a step, over all rollouts, including filtered groups. `stats` returns them as
    mergeable values to log: `train/groups_kept`, `train/groups_filtered`, `train/num_early_exit` and more.
    """
    sheet = StatisticSheet(FamilyNames(GRPO_AGENT) if names == "grpo_agent" else naming(names, "rollout"))
    rollouts = [(rollout, group) for group in groups for rollout in group.rollouts]
    kept = [group.kept for group in groups if group.kept is not None]  # None: not decided
    sheet.moments(kept, sum="group.kept_count", mean="group.filter_pass_rate")
    sheet.moments([not one for one in kept], sum="group.dropped_count")
    sheet.moments([1.0] * len(groups), sum="group.total_count")
    # One reward has no spread, even if other rollouts of its group have no reward.
    spreads = [group.std for group in groups if group.std is not None and _count_rewards(group) > 1]
    sheet.moments(spreads, mean="group.reward_std.mean")
    sheet.moments([std == 0 for std in spreads], mean="group.zero_std_fraction")
    sheet.moments([group.mean for group in groups if group.mean is not None], mean="group.reward_mean.mean")
    early = [rollout.ended_early(group.max_turns) for rollout, group in rollouts]
    sheet.moments(early, sum="agent.early_exit.count")
    sheet.moments(
        [rollout.stop in TURN_LIMIT for rollout, _ in rollouts if rollout.stop], mean="agent.turn_limit_fraction"
    )
    rewards = [rollout.reward for rollout, _ in rollouts if rollout.reward is not None]
    sheet.moments(
        rewards, mean="reward.total.mean", max="reward.total.max", min="reward.total.min",
        sample_std="reward.total.std",
    )  # fmt: skip
    _show_discards(sheet, [group for group in groups if group.kept is not None])
    _show_turns(sheet, [rollout for rollout, _ in rollouts])
    failures.add(sheet, [rollout for rollout, _ in rollouts])
    diversity.add(sheet, groups)
    return sheet.pack()


stats = reading(pack)
"""The statistics as mergeable values; the arguments are those of `pack`."""


def _count_rewards(group: Group) -> int:
    return sum(rollout.reward is not None for rollout in group.rollouts)


def _show_discards(sheet: StatisticSheet, decided: Sequence[Group]) -> None:
    """Compare rollouts of filtered groups with those that are trained on; unknown lengths and times are ignored."""
    trained = [group.kept for group in decided for _ in group.rollouts]
    show_discarded(sheet, trained)
    for what, numbers in (
        ("length", [rollout.total_trainable for group in decided for rollout in group.rollouts]),
        ("time", [rollout.seconds for group in decided for rollout in group.rollouts]),
    ):
        known = [(number, kept) for number, kept in zip(numbers, trained, strict=True) if number is not None]
        show_discard_bias(sheet, what, [number for number, _ in known], [kept for _, kept in known])


def _show_turns(sheet: StatisticSheet, rollouts: Sequence[Rollout]) -> None:
    turns = [len(rollout.turns) for rollout in rollouts]
    sheet.moments(turns, mean="agent.turns.mean", max="agent.turns.max", min="agent.turns.min")
    calls = [[call for turn in rollout.turns for call in turn.calls] for rollout in rollouts]
    sheet.moments([len(of_one) for of_one in calls], mean="agent.tool_calls.mean")
    sheet.moments([bool(call.error) for of_one in calls for call in of_one], mean="agent.tool_failure_fraction")
    known = [rollout.outcome == "correct" for rollout in rollouts if rollout.outcome]
    sheet.moments(known, mean="reward.accuracy")
    correct = [len(rollout.turns) for rollout in rollouts if rollout.outcome == "correct"]
    sheet.moments(correct, mean="agent.turns.correct.mean")
    sheet.moments([bool(rollout.error) for rollout in rollouts], mean="agent.error_fraction")
    own = [tokens for rollout in rollouts if (tokens := rollout.total_trainable) is not None]
    sheet.moments(own, mean="agent.model_tokens.mean")
    sheet.moments([r.seconds for r in rollouts if r.seconds is not None], mean="agent.trajectory_time.mean")
    credited = [turn.advantage for r in rollouts for turn in r.turns if turn.advantage is not None]
    sheet.moments(credited, mean="advantage.turn")
