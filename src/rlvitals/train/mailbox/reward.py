"""What happened in an episode, as facts (`Rubric`), and what it is worth.

Two reward systems, each a pure function over the rubric. `document` is that of the GRPO e-mail agent (definitions in
docs/mailbox.md): a bad form is worse than a wrong answer, which is worse than none, which is worse than a right one. It
is not bounded below: penalties for repeated searches add up. `plain` is 1 for a right answer and 0 for anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from rlvitals.errors import ConfigError, did_you_mean

Outcome = Literal["answered", "idk", "out_of_turns", "parse_error", "bad_tool_name", "bad_tool_args", "cut_off"]
"""How an episode ended: an answer right or wrong, "I don't know", the turn limit, a message without a tool call that
can be read, an unknown tool, arguments that a tool does not take, or the caller's decision (no context left)."""

MIN_SEARCHES = 3
"""Who gives up after fewer different searches gave up too early."""
SEARCHES_FOR_MUCH = 5
PERFECT_TURNS = 3

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


@dataclass(slots=True)
class Rubric:
    """Filled in while an episode runs. Flags are about the whole episode, counts over it."""

    answer_correct: bool = False
    sources_correct: bool = False
    """Every source message of the question is cited."""
    num_turns: int = 0
    """Assistant messages; never more than the limit."""
    attempted_answer: bool = False
    """It committed to an answer; "I don't know" is none."""
    ever_found_right_email: bool = False
    """Every source message was listed by a search."""
    ever_read_right_email: bool = False
    """Every source message was opened."""
    share_read: float = 0.0
    """Share of the source messages that was opened."""
    cant_parse_tool_call: bool = False
    bad_tool_call_name: bool = False
    bad_tool_call_args: bool = False
    ran_out_of_turns: bool = False
    """The limit ended it; an answer or "I don't know" on the last turn is no running out."""
    returned_i_dont_know: bool = False
    num_sources: int = 0
    """Different messages cited."""
    ever_tried_to_read_invalid_email: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    num_repeated_searches: int = 0
    """Searches equal to an earlier one of the episode in all arguments."""
    num_zero_result_searches: int = 0
    repeated_zero_result_search: bool = False
    num_unique_searches: int = 0
    num_total_searches: int = 0
    """Always unique and repeated ones together."""
    num_retry_after_zero: int = 0
    """New searches after one that had found nothing."""
    gave_up_too_early: bool = False
    """ "I don't know" with turns left and fewer than three different searches."""


def document_parts(rubric: Rubric, max_turns: int) -> dict[str, float]:
    """The reward of the document's system, part by part; the parts that are 0 are left out."""
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
    """How it ended, where that is not with a right answer. The first case that fits."""
    endings = {
        "parse_error": rubric.cant_parse_tool_call,
        "bad_tool_name": rubric.bad_tool_call_name,
        "bad_tool_args": rubric.bad_tool_call_args,
        "wrong": rubric.attempted_answer,
    }
    for name, is_so in endings.items():
        if is_so:
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
    """1 for a right answer, less for a wrong one than for none, and something for each source message that was read,
    whatever the answer: where it takes several look-ups, each of them is worth more than to stop. Turns are worth
    nothing, used or saved.
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
"""The reward systems there are."""


def reward_parts(rubric: Rubric, max_turns: int, system: str = "document") -> dict[str, float]:
    """An episode's reward in its parts; they add up to it.

    >>> reward_parts(Rubric(cant_parse_tool_call=True, num_turns=1), max_turns=10)
    {'parse_error': -2.0, 'no_invalid_read': 0.1}
    """
    if system not in PARTS:
        raise ConfigError(f"no reward is called {system!r}.{did_you_mean(system, PARTS)} Known: {', '.join(PARTS)}")
    return PARTS[system](rubric, max_turns)
