"""How different a policy's answers are: within a group, where differences create the advantage, and between groups,
where answers should differ because the prompts do.

>>> from rlvitals.records import Group, Rollout, Turn
>>> tried = [Rollout(turns=(Turn(text),)) for text in ("It is 4", "it is  4", "It is 5", "It is 4")]
>>> distinct_answers(Group(rollouts=tuple(tried)))
0.5
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

from rlvitals.compute.packing import StatisticSheet
from rlvitals.records import Group, Rollout

GRAM = 3
"""Words in a piece; texts are compared by the pieces they share."""

MOST_WORDS = 512
"""Words of a text that are compared. They are the last ones, because the answer is at the end."""

MOST_ROLLOUTS = 16
"""Rollouts of a group that are compared with each other; the number of pairs grows with the square."""

MOST_GROUPS = 32
"""Groups whose texts are compared."""


def distinct_answers(group: Group) -> float | None:
    """The number of distinct answers of a group divided by the number of answers; None for fewer than two."""
    answers = [answer for rollout in group.rollouts if (answer := answer_of(rollout))]
    return len(set(answers)) / len(answers) if len(answers) > 1 else None


def answer_of(rollout: Rollout) -> str:
    """The answer of a rollout, with case and spacing normalized: `meta["answer"]` if present, else the arguments of the
    last turn's last call, else the last turn's text.

    >>> answer_of(Rollout(meta={"answer": "  Paris "})), answer_of(Rollout())
    ('paris', '')
    """
    answer: Any = rollout.meta.get("answer")
    if answer is None and rollout.turns:
        last = rollout.turns[-1]
        answer = last.calls[-1].arguments if last.calls else last.text
    if not isinstance(answer, str):
        answer = json.dumps(answer, sort_keys=True, default=str) if answer is not None else ""
    return " ".join(answer.casefold().split())


def similarity(one: frozenset[tuple[str, ...]], other: frozenset[tuple[str, ...]]) -> float:
    """The share of two texts' pieces that are in both: 1 for the same pieces, 0 for nothing in common.

    >>> similarity(pieces("a b c d"), pieces("a b c e"))
    0.3333333333333333
    """
    both = len(one & other)
    return both / (len(one) + len(other) - both) if one or other else 1.0


def pieces(text: str) -> frozenset[tuple[str, ...]]:
    """All runs of three consecutive words at the end of a text; a shorter text is one piece."""
    words = text.casefold().split()[-MOST_WORDS:]
    return (
        frozenset(tuple(words[at : at + GRAM]) for at in range(max(len(words) - GRAM + 1, 1))) if words else frozenset()
    )


def self_similarity(texts: Sequence[str]) -> float | None:
    """The mean similarity of the texts of one group, pair by pair; None for fewer than two."""
    return _mean_of_pairs([pieces(text) for text in texts[:MOST_ROLLOUTS]])


def add(sheet: StatisticSheet, groups: Sequence[Group]) -> None:
    """Add how different the answers within each group are, and how much of their similarity is due to the prompt."""
    distinct = [share for group in groups if (share := distinct_answers(group)) is not None]
    sheet.moments(distinct, mean="group.distinct_answers.mean")
    within: list[float] = []
    firsts: list[frozenset[tuple[str, ...]]] = []
    for group in groups[:MOST_GROUPS]:
        texts = [pieces(text) for rollout in group.rollouts[:MOST_ROLLOUTS] if (text := _text(rollout))]
        if (alike := _mean_of_pairs(texts)) is not None:
            within.append(alike)
            firsts.append(texts[0])
    sheet.moments(within, mean="group.self_similarity.mean")
    if len(firsts) > 1:
        across = [similarity(one, other) for one, other in pairwise([*firsts, firsts[0]])]
        mean = sum(across) / len(across)
        sheet.moments([alike - mean for alike in within], mean="group.prompt_contrast.mean")


def _text(rollout: Rollout) -> str:
    return " ".join(turn.text for turn in rollout.turns if turn.text)


def _mean_of_pairs(texts: Sequence[frozenset[tuple[str, ...]]]) -> float | None:
    pairs = [similarity(one, other) for one, other in combinations(texts, 2)]
    return sum(pairs) / len(pairs) if pairs else None
