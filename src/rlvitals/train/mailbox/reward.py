"""What an episode is worth. Two systems, each a table of numbers and a pure function over the rubric.

`document` is that of the GRPO e-mail agent (definitions in docs/mailbox.md): a bad form is worse than a wrong answer,
which is worse than none, which is worse than a right one. It is not bounded below: penalties for repeated searches add
up. `plain` is 1 for a right answer and 0 for anything else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.train.mailbox.rubric import MIN_SEARCHES, Rubric

DOCUMENT: Mapping[str, float] = {
    "parse_error": -2.0,
    "bad_tool_name": -1.9,
    "bad_tool_args": -1.8,
    "wrong": -1.0,
    "gave_up": -1.0,  # "I don't know" with turns left
    "search_not_made": -0.5,  # for each of three different searches that it had not made then
    "effort_some": 0.2,  # out of turns after three different searches
    "effort_much": 0.3,  # or after five
    "retry": 0.1,  # out of turns: for each new search after one that found nothing
    "found": 0.1,
    "read": 0.1,
    "no_invalid_read": 0.1,
    "sources": 0.1,
    "correct": 1.0,
    "correct_sources": 0.3,
    "few_sources": 0.1,  # divided by the number of sources cited
    "few_turns": 0.1,  # times the share of turns left over
    "perfect": 2.0,  # exactly that, and nothing else
    "repeated_search": -0.15,
    "repeated_empty_search": -0.15,
}
SEARCHES_FOR_MUCH = 5
PERFECT_TURNS = 3


def plain_parts(rubric: Rubric, max_turns: int) -> dict[str, float]:
    """1 for a right answer."""
    return {"correct": float(rubric.answer_correct)}


def document_parts(rubric: Rubric, max_turns: int) -> dict[str, float]:
    """The reward of the document's system, part by part; the parts that are 0 are left out."""
    if rubric.answer_correct and not _has_bad_form(rubric):
        parts = {"perfect": DOCUMENT["perfect"]} if _is_perfect(rubric) else _correct(rubric, max_turns)
    else:
        parts = _ending(rubric, max_turns) | _partial(rubric) | _penalties(rubric)
    return {name: part for name, part in parts.items() if part}


def _has_bad_form(rubric: Rubric) -> bool:
    return rubric.cant_parse_tool_call or rubric.bad_tool_call_name or rubric.bad_tool_call_args


def _ending(rubric: Rubric, max_turns: int) -> dict[str, float]:
    """How it ended, where that is not with a right answer. The first case that fits."""
    if rubric.cant_parse_tool_call:
        return {"parse_error": DOCUMENT["parse_error"]}
    if rubric.bad_tool_call_name:
        return {"bad_tool_name": DOCUMENT["bad_tool_name"]}
    if rubric.bad_tool_call_args:
        return {"bad_tool_args": DOCUMENT["bad_tool_args"]}
    if rubric.attempted_answer:
        return {"wrong": DOCUMENT["wrong"]}
    if rubric.returned_i_dont_know and rubric.num_turns < max_turns:
        missing = max(0, MIN_SEARCHES - rubric.num_unique_searches)
        return {"gave_up": DOCUMENT["gave_up"], "search_not_made": DOCUMENT["search_not_made"] * missing}
    if rubric.ran_out_of_turns:
        effort = 0.0
        if rubric.num_unique_searches >= MIN_SEARCHES:
            much = rubric.num_unique_searches >= SEARCHES_FOR_MUCH
            effort = DOCUMENT["effort_much" if much else "effort_some"]
        return {"effort": effort, "retry": DOCUMENT["retry"] * rubric.num_retry_after_zero}
    return {}


def _partial(rubric: Rubric) -> dict[str, float]:
    """What was done well although it did not end well."""
    return {
        "found": DOCUMENT["found"] * rubric.ever_found_right_email,
        "read": DOCUMENT["read"] * rubric.ever_read_right_email,
        "no_invalid_read": DOCUMENT["no_invalid_read"] * (not rubric.ever_tried_to_read_invalid_email),
        "sources": DOCUMENT["sources"] * rubric.sources_correct,
    }


def _penalties(rubric: Rubric) -> dict[str, float]:
    return {
        "repeated_search": DOCUMENT["repeated_search"] * rubric.num_repeated_searches,
        "repeated_empty_search": DOCUMENT["repeated_empty_search"] * rubric.repeated_zero_result_search,
    }


def _is_perfect(rubric: Rubric) -> bool:
    return (
        rubric.num_turns == PERFECT_TURNS
        and rubric.ever_found_right_email
        and rubric.ever_read_right_email
        and rubric.sources_correct
        and not rubric.num_repeated_searches
        and not rubric.num_zero_result_searches
    )


def _correct(rubric: Rubric, max_turns: int) -> dict[str, float]:
    return {
        "correct": DOCUMENT["correct"],
        "correct_sources": DOCUMENT["correct_sources"] * rubric.sources_correct,
        "few_sources": DOCUMENT["few_sources"] / rubric.num_sources if rubric.num_sources else 0.0,
        "few_turns": DOCUMENT["few_turns"] * (1 - rubric.num_turns / max_turns),
    } | _penalties(rubric)


PARTS: Mapping[str, Callable[[Rubric, int], dict[str, float]]] = {"document": document_parts, "plain": plain_parts}
"""The reward systems there are."""


def reward_parts(rubric: Rubric, max_turns: int, system: str = "document") -> dict[str, float]:
    """An episode's reward in its parts; they add up to it."""
    if system not in PARTS:
        raise ConfigError(f"no reward is called {system!r}.{did_you_mean(system, PARTS)} Known: {', '.join(PARTS)}")
    return PARTS[system](rubric, max_turns)


def reward(rubric: Rubric, max_turns: int, system: str = "document") -> float:
    """An episode's reward.

    >>> reward(Rubric(cant_parse_tool_call=True, num_turns=1), max_turns=10)
    -1.9
    >>> reward(Rubric(answer_correct=True, attempted_answer=True, num_turns=5), max_turns=10, system="plain")
    1.0
    """
    return math.fsum(reward_parts(rubric, max_turns, system).values())
