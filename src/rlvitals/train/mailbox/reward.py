"""The facts about an episode (`Rubric`), and its reward.

There are three reward systems, each a pure function of the rubric. docs/mailbox.md defines them. `document` is that of
the GRPO e-mail agent: a malformed call is worse than a wrong answer, which is worse than none. It has no lower bound,
because penalties for repeated searches add up. `progress` also rewards reading the source messages. `plain` is 1 for a
right answer and 0 otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from rlvitals.errors import ConfigError, did_you_mean

Outcome = Literal["answered", "idk", "out_of_turns", "parse_error", "bad_tool_name", "bad_tool_args", "cut_off"]
"""How an episode ended: an answer, "I don't know", the turn limit, a message without a readable tool call, an unknown
tool, arguments that do not match the tool's schema, or the caller's decision (no context left)."""

MIN_SEARCHES = 3
"""Giving up after fewer different searches is too early."""
SEARCHES_FOR_MUCH = 5
PERFECT_TURNS = 3

DOCUMENT: Mapping[str, float] = {
    "parse_error": -2.0,
    "bad_tool_name": -1.9,
    "bad_tool_args": -1.8,
    "wrong": -1.0,
    "gave_up": -1.0,  # "I don't know" with turns left
    "search_not_made": -0.5,  # for each different search below three
    "effort_some": 0.2,  # out of turns, after three different searches
    "effort_much": 0.3,  # the same after five
    "retry": 0.1,  # out of turns, for each new search after one without results
    "found": 0.1,
    "read": 0.1,
    "no_invalid_read": 0.1,
    "sources": 0.1,
    "correct": 1.0,
    "correct_sources": 0.3,
    "few_sources": 0.1,  # divided by the number of sources cited
    "few_turns": 0.1,  # times the share of turns that are left
    "perfect": 2.0,  # the only part of a perfect episode
    "repeated_search": -0.15,
    "repeated_empty_search": -0.15,
}


@dataclass(slots=True)
class Rubric:
    """The flags and counts of one episode."""

    answer_correct: bool = False
    sources_correct: bool = False
    """Whether every source message of the question is cited."""
    num_turns: int = 0
    """Assistant messages; never more than the limit."""
    attempted_answer: bool = False
    """Whether it gave an answer other than "I don't know"."""
    ever_found_right_email: bool = False
    """Whether searches listed every source message."""
    ever_read_right_email: bool = False
    """Whether every source message was read."""
    share_read: float = 0.0
    """Share of the source messages that was read."""
    cant_parse_tool_call: bool = False
    bad_tool_call_name: bool = False
    bad_tool_call_args: bool = False
    ran_out_of_turns: bool = False
    """Whether the limit ended it. An answer or "I don't know" on the last turn does not count."""
    returned_i_dont_know: bool = False
    num_sources: int = 0
    """Number of different messages cited."""
    ever_tried_to_read_invalid_email: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    num_repeated_searches: int = 0
    """Searches with the same arguments as an earlier one."""
    num_zero_result_searches: int = 0
    repeated_zero_result_search: bool = False
    num_unique_searches: int = 0
    num_total_searches: int = 0
    """Unique and repeated ones."""
    num_retry_after_zero: int = 0
    """New searches after one without results."""
    gave_up_too_early: bool = False
    """Whether it answered "I don't know" with turns left and fewer than three different searches."""


def document_parts(rubric: Rubric, max_turns: int) -> dict[str, float]:
    """The parts of the document's reward that are not 0."""
    penalties = {
        "repeated_search": DOCUMENT["repeated_search"] * rubric.num_repeated_searches,
        "repeated_empty_search": DOCUMENT["repeated_empty_search"] * rubric.repeated_zero_result_search,
    }
    has_bad_form = rubric.cant_parse_tool_call or rubric.bad_tool_call_name or rubric.bad_tool_call_args
    if not rubric.answer_correct or has_bad_form:
        partial = {
            "found": DOCUMENT["found"] * rubric.ever_found_right_email,
            "read": DOCUMENT["read"] * rubric.ever_read_right_email,
            "no_invalid_read": DOCUMENT["no_invalid_read"] * (not rubric.ever_tried_to_read_invalid_email),
            "sources": DOCUMENT["sources"] * rubric.sources_correct,
        }
        parts = _ending(rubric, max_turns) | partial | penalties
    elif _is_perfect(rubric):
        parts = {"perfect": DOCUMENT["perfect"]}
    else:
        parts = {
            "correct": DOCUMENT["correct"],
            "correct_sources": DOCUMENT["correct_sources"] * rubric.sources_correct,
            "few_sources": DOCUMENT["few_sources"] / rubric.num_sources if rubric.num_sources else 0.0,
            "few_turns": DOCUMENT["few_turns"] * (1 - rubric.num_turns / max_turns),
        } | penalties
    return {name: part for name, part in parts.items() if part}


def _ending(rubric: Rubric, max_turns: int) -> dict[str, float]:
    """The part for an end without a right answer: the first case that matches."""
    endings = {
        "parse_error": rubric.cant_parse_tool_call,
        "bad_tool_name": rubric.bad_tool_call_name,
        "bad_tool_args": rubric.bad_tool_call_args,
        "wrong": rubric.attempted_answer,
    }
    for name, has_happened in endings.items():
        if has_happened:
            return {name: DOCUMENT[name]}
    searches = rubric.num_unique_searches
    if rubric.returned_i_dont_know and rubric.num_turns < max_turns:
        missing = max(0, MIN_SEARCHES - searches)
        return {"gave_up": DOCUMENT["gave_up"], "search_not_made": DOCUMENT["search_not_made"] * missing}
    if rubric.ran_out_of_turns:
        effort = DOCUMENT["effort_much" if searches >= SEARCHES_FOR_MUCH else "effort_some"]
        retries = DOCUMENT["retry"] * rubric.num_retry_after_zero
        return {"effort": effort if searches >= MIN_SEARCHES else 0.0, "retry": retries}
    return {}


def _is_perfect(rubric: Rubric) -> bool:
    return (
        rubric.num_turns == PERFECT_TURNS
        and rubric.ever_found_right_email
        and rubric.ever_read_right_email
        and rubric.sources_correct
        and not rubric.num_repeated_searches
        and not rubric.num_zero_result_searches
    )


PROGRESS = {"correct": 1.0, "wrong": -0.25, "read": 0.5}
"""The numbers of the progress reward."""


def progress_parts(rubric: Rubric, max_turns: int) -> dict[str, float]:
    """The parts of the progress reward that are not 0. Every source message that was read adds to it, for any answer,
    so that further look-ups are worth more than stopping. The number of turns has no influence.
    """
    parts = {
        "correct": PROGRESS["correct"] * rubric.answer_correct,
        "wrong": PROGRESS["wrong"] * (rubric.attempted_answer and not rubric.answer_correct),
        "read": PROGRESS["read"] * rubric.share_read,
    }
    return {name: part for name, part in parts.items() if part}


PARTS: Mapping[str, Callable[[Rubric, int], dict[str, float]]] = {
    "document": document_parts,
    "progress": progress_parts,
    "plain": lambda rubric, _: {"correct": float(rubric.answer_correct)},
}
"""The reward systems."""


def reward_parts(rubric: Rubric, max_turns: int, system: str = "document") -> dict[str, float]:
    """The parts of an episode's reward, which add up to it.

    >>> reward_parts(Rubric(cant_parse_tool_call=True, num_turns=1), max_turns=10)
    {'parse_error': -2.0, 'no_invalid_read': 0.1}
    """
    if system not in PARTS:
        raise ConfigError(f"unknown reward {system!r}.{did_you_mean(system, PARTS)} Known: {', '.join(PARTS)}")
    return PARTS[system](rubric, max_turns)
