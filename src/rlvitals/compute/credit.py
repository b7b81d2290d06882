"""Turn-level credit of a tool-using agent: a rollout's advantage, corrected by what one turn achieved.

The table is that of the GRPO e-mail agent: a shift, then a floor for good turns or a ceiling for bad ones, so that a
good turn of a bad rollout is still encouraged. Turn advantages are therefore not zero-mean within a group.
"""

from __future__ import annotations

from typing import NamedTuple

from rlvitals.errors import ConfigError, did_you_mean


class Correction(NamedTuple):
    """What an outcome does to the advantage: shift it, then raise it to the floor or lower it to the ceiling."""

    shift: float = 0.0
    floor: float | None = None
    ceiling: float | None = None


OUTCOMES = {
    "no_tool": Correction(),
    "unjudged": Correction(),
    "bad_arguments": Correction(-1.5, ceiling=-2.0),
    "unknown_tool": Correction(-1.2, ceiling=-1.5),
    "search_hit": Correction(0.8, floor=0.3),
    "search_miss": Correction(-0.2),
    "search_empty": Correction(-0.15),
    "read_hit": Correction(0.8, floor=0.3),
    "read_miss": Correction(-0.25),
    "answer_correct": Correction(1.5, floor=1.0),
    "answer_wrong": Correction(-1.5, ceiling=-0.8),
}
"""What a turn can turn out to be; an answer of "I don't know" is a wrong one."""


def turn_advantage(advantage: float, outcome: str) -> float:
    """The advantage of one turn, from its rollout's advantage and its outcome (`advantage.turn` in the catalogue).

    >>> turn_advantage(-1.0, "search_hit"), turn_advantage(-1.0, "answer_wrong"), turn_advantage(0.25, "no_tool")
    (0.3, -2.5, 0.25)
    """
    if outcome not in OUTCOMES:
        raise ConfigError(f"unknown outcome {outcome!r}.{did_you_mean(outcome, OUTCOMES)} Known: {', '.join(OUTCOMES)}")
    correction = OUTCOMES[outcome]
    corrected = advantage + correction.shift
    if correction.floor is not None:
        corrected = max(corrected, correction.floor)
    if correction.ceiling is not None:
        corrected = min(corrected, correction.ceiling)
    return corrected
