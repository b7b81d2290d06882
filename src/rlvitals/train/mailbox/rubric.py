"""What happened in one episode, as facts: who computes a reward or a statistic reads them here and nowhere else."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Outcome = Literal["answered", "idk", "out_of_turns", "parse_error", "bad_tool_name", "bad_tool_args", "cut_off"]
"""How an episode ended: an answer right or wrong, "I don't know", the turn limit, a message without a tool call that
can be read, an unknown tool, arguments that a tool does not take, or the caller's decision (no context left)."""

MIN_SEARCHES = 3
"""Who gives up after fewer different searches gave up too early."""


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

    def to_dict(self) -> dict[str, Any]:
        """As a rollout's record holds it."""
        return asdict(self)
