"""One attempt of an agent at one question: its messages go in, the results of its tool calls come out.

    episode = Episode(question, mailbox, max_turns=10)
    messages = episode.messages()                      # system and user; pass tools.TOOLS to the chat template
    while not episode.is_over:
        reply = generate(messages)                     # a text, or an OpenAI-style message with tool_calls
        messages += [reply, *(seen.message() for seen in episode.step(reply))]
    episode.outcome, episode.rubric, episode.turns
    group([episode, ...])                              # the record for `run.log_groups`; all of the same question

No message raises an exception. An episode always ends with an outcome. It only reaches the inbox of its question.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from rlvitals import records
from rlvitals.errors import ConfigError
from rlvitals.train.judge_guard import JudgeGuard
from rlvitals.train.mailbox.graders import Grade, Grader, is_idk, token_recall
from rlvitals.train.mailbox.mail import Question
from rlvitals.train.mailbox.reward import MIN_SEARCHES, Outcome, Rubric, reward_parts
from rlvitals.train.mailbox.store import Mailbox
from rlvitals.train.mailbox.tools import BadCall, RequestedCall, Style, Toolbox, ToolResult, UnreadableCall, read_calls

GUARD = JudgeGuard("the grader")
"""Shared by all episodes, so that a failing grader is reported once."""

MAX_CALLS = 8
"""Limit of the calls in one message that are executed."""

NOTHING_FOUND, NO_SUCH_EMAIL = "nothing", "no such email"
"""Results of tools in the style `tags`."""

DISTRACTORS = 3
"""Number of other messages in the prompt of a `SimpleEpisode`."""

FLAGS: Mapping[Outcome, str] = {
    "parse_error": "cant_parse_tool_call",
    "bad_tool_name": "bad_tool_call_name",
    "bad_tool_args": "bad_tool_call_args",
    "out_of_turns": "ran_out_of_turns",
    "idk": "returned_i_dont_know",
}
"""The flag of the rubric that an outcome sets."""

FAULTS = frozenset({"parse_error", "bad_tool_name", "bad_tool_args", "cut_off"})
"""Outcomes whose reason is an error."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of one tool call as the model sees it."""

    tool: str
    content: str
    call_id: str = ""

    def message(self) -> dict[str, Any]:
        """The message for a chat template."""
        named = {"tool_call_id": self.call_id} if self.call_id else {}
        return {"role": "tool", "name": self.tool, "content": self.content} | named


class _Done(NamedTuple):
    """An executed call: its record, what the model sees of it (None at the end), and its outcome for credit rules."""

    record: records.ToolCall
    shown: Observation | None
    outcome: str


class Episode:
    """One agent's attempt at one question."""

    def __init__(
        self, question: Question, mailbox: Mailbox, *, max_turns: int = 10, grader: Grader = token_recall,
        style: Style = "chat",
    ) -> None:  # fmt: skip
        self.question, self.max_turns = question, max_turns
        self.rubric = Rubric()
        self.outcome: Outcome | None = None
        """None until the end."""
        self.reason = ""
        """The grader's reason, or the error that ended the episode."""
        self.turns: list[records.Turn] = []
        """The messages and calls. A turn has the outcome of its first call, by that call's own result, in the terms of
        `compute.credit`."""
        self.answer: str | None = None
        self.sources: tuple[str, ...] = ()
        self.grade: Grade | None = None
        """None if there was nothing to grade, or if the grader failed."""
        self._toolbox, self._grader, self._style = Toolbox(mailbox, question.inbox), grader, style
        self._wanted = set(question.message_ids)
        self._searches: dict[Any, int] = {}  # a search's key -> how many messages it found
        self._found: set[str] = set()
        self._read: set[str] = set()

    @property
    def is_over(self) -> bool:
        return self.outcome is not None

    @property
    def is_judged(self) -> bool:
        """Whether its reward is known. It is not if the grader failed."""
        return self.outcome != "answered" or self.grade is not None

    def messages(self) -> list[dict[str, Any]]:
        """The first messages. In the style `chat` they name the owner of the mail; the chat template adds the tools."""
        asked = {"role": "user", "content": self.question.question}
        if self._style == "tags":
            return [asked]
        today = f" Today is {self.question.query_date}." if self.question.query_date else ""
        instruction = (
            f"You answer questions about the e-mails of {self.question.inbox}.{today} Search them with search_emails, "
            f"open what looks right with read_email, and end with return_final_answer: a short answer, and the ids of "
            f'the messages it rests on. If you cannot find it, answer "I don\'t know". Every message of yours must be '
            f"a tool call, and you have {self.max_turns} of them."
        )
        return [{"role": "system", "content": instruction}, asked]

    def step(
        self, message: str | Mapping[str, Any], *, prompt_tokens: int = 0, completion_tokens: int = 0
    ) -> list[Observation]:
        """Execute the calls of one assistant message and return their results. After the end it does nothing."""
        if self.is_over:
            return []
        self.rubric.num_turns += 1
        self.rubric.prompt_tokens += prompt_tokens
        self.rubric.completion_tokens += completion_tokens
        done: list[_Done] = []
        try:
            for call in read_calls(message):
                done.append(self._carry_out(call) if len(done) < MAX_CALLS else self._skip(call))
                if self.is_over:
                    break
        except UnreadableCall as error:
            self._end("parse_error", str(error))
        content = message.get("content") if isinstance(message, Mapping) else message
        self.turns.append(
            records.Turn(
                content if isinstance(content, str) else "",
                tuple(each.record for each in done),
                outcome=done[0].outcome if done else "no_tool",
                trainable_tokens=completion_tokens or None,
            )
        )
        if not self.is_over and self.rubric.num_turns >= self.max_turns:
            self._end("out_of_turns", f"no answer within {self.max_turns} turns")
        return [each.shown for each in done if each.shown is not None]

    def cut_off(self, reason: str) -> None:
        """End it from outside, for example because no context is left."""
        if not self.is_over:
            self._end("cut_off", reason)

    def reward(self, system: str = "document") -> dict[str, float]:
        """The parts of its reward, which add up to it. Empty if the grader failed, see `is_judged`."""
        return reward_parts(self.rubric, self.max_turns, system) if self.is_judged else {}

    def rollout(self, system: str = "document") -> records.Rollout:
        """Its record, with the reward of a reward system, or without a reward if the grader failed."""
        parts, ended = self.reward(system), self.outcome or ""
        outcome = ("correct" if self.rubric.answer_correct else "wrong") if ended == "answered" else ended
        return records.Rollout(
            turns=tuple(self.turns),
            reward=math.fsum(parts.values()) if self.is_judged else None,
            outcome=outcome if self.is_judged else "",
            stop=ended,
            error=self.reason if ended in FAULTS or not self.is_judged else "",
            rubric=asdict(self.rubric),
            reward_parts=parts,
        )

    def _end(self, outcome: Outcome, reason: str = "") -> None:
        self.outcome, self.reason = outcome, reason
        if outcome in FLAGS:
            setattr(self.rubric, FLAGS[outcome], True)

    def _carry_out(self, call: RequestedCall) -> _Done:
        try:
            result = self._toolbox.call(call.name, call.arguments)
        except BadCall as error:
            self._end(error.outcome, str(error))
            return _Done(records.ToolCall(call.name, call.arguments, error=error.name), None, error.name)
        given = {name: value for name, value in result.arguments.items() if value is not None}
        if call.name == "return_final_answer":
            return _Done(records.ToolCall(call.name, given), None, self._take_answer(result))
        outcome = self._take_search(result) if call.name == "search_emails" else self._take_read(result)
        shown = Observation(call.name, self._shown(result), call.id)
        return _Done(records.ToolCall(call.name, given, shown.content, error=result.failure), shown, outcome)

    def _skip(self, call: RequestedCall) -> _Done:
        why = "too many calls in one message"
        shown = Observation(call.name, self._shown(ToolResult({}, {"error": why})), call.id)
        return _Done(records.ToolCall(call.name, call.arguments, error=why), shown, "unjudged")

    def _take_search(self, result: ToolResult) -> str:
        rubric, found = self.rubric, len(result.message_ids)
        key = _search_key(result.arguments)
        before = self._searches.get(key)
        rubric.num_total_searches += 1
        if before is not None:
            rubric.num_repeated_searches += 1
            rubric.repeated_zero_result_search |= before == 0
        else:
            rubric.num_unique_searches += 1
            rubric.num_retry_after_zero += rubric.num_zero_result_searches > 0
        rubric.num_zero_result_searches += found == 0
        self._searches[key] = found
        hits = self._wanted.intersection(result.message_ids)
        self._found |= hits
        rubric.ever_found_right_email = bool(self._wanted) and self._found == self._wanted
        if not self._wanted:
            return "unjudged"
        return "search_hit" if hits else "search_miss" if found else "search_empty"

    def _take_read(self, result: ToolResult) -> str:
        self.rubric.ever_tried_to_read_invalid_email |= not result.message_ids
        hits = self._wanted.intersection(result.message_ids)
        self._read |= hits
        self.rubric.ever_read_right_email = bool(self._wanted) and self._read == self._wanted
        self.rubric.share_read = len(self._read) / max(1, len(self._wanted))
        return "read_hit" if hits else "read_miss"

    def _take_answer(self, result: ToolResult) -> str:
        rubric, answer = self.rubric, result.arguments["answer"]
        self.answer, self.sources = answer, tuple(dict.fromkeys(result.message_ids))
        rubric.num_sources = len(self.sources)
        rubric.sources_correct = bool(self._wanted) and self._wanted.issubset(self.sources)
        if is_idk(answer):
            has_turns = rubric.num_turns < self.max_turns
            rubric.gave_up_too_early = has_turns and rubric.num_unique_searches < MIN_SEARCHES
            self._end("idk")
            return "answer_wrong"
        rubric.attempted_answer = True
        self.grade = GUARD.judge_one(lambda: self._grader(self.question, answer, self.sources), missing=self._ungraded)
        if self.grade is None:
            return "unjudged"
        rubric.answer_correct = self.grade.is_correct
        self._end("answered", self.grade.reason)
        return "answer_correct" if self.grade.is_correct else "answer_wrong"

    def _ungraded(self, reason: str) -> Grade | None:
        self._end("answered", f"not graded: {reason}")
        return None

    def _shown(self, result: ToolResult) -> str:
        if self._style == "chat":
            return json.dumps(result.content, ensure_ascii=False)
        if isinstance(result.content, list):
            return "\n".join(f"{hit['message_id']} {hit['snippet']}" for hit in result.content) or NOTHING_FOUND
        return str(result.content.get("body", NO_SUCH_EMAIL))


class SimpleEpisode(Episode):
    """A question that is answered in one message: the prompt contains the relevant messages, among others."""

    def messages(self) -> list[dict[str, Any]]:
        chosen = list(self.question.message_ids)
        if self.question.searches:
            near = self._toolbox.call("search_emails", {"keywords": [self.question.searches[0][0]]}).message_ids
            chosen += [other for other in near if other not in self._wanted][:DISTRACTORS]
        random.Random(f"read out {self.question.id}").shuffle(chosen)  # noqa: S311
        given = [
            (message_id, self._toolbox.call("read_email", {"message_id": message_id}).content.get("body", ""))
            for message_id in chosen
        ]
        prompt = super().messages()
        if self._style == "tags":
            return [*prompt, *({"role": "tool", "content": f"{message_id} {body}"} for message_id, body in given)]
        texts = [f"[{message_id}]\n{body}" for message_id, body in given]
        prompt[-1] = {"role": "user", "content": "\n\n".join([*texts, self.question.question])}
        return prompt


def group(episodes: Sequence[Episode], system: str = "document") -> records.Group:
    """The record of the episodes of one question, for `run.log_groups` and `compute.groups`."""
    if len({episode.question.id for episode in episodes}) != 1:
        raise ConfigError("all episodes of a group must be of one question")
    asked = episodes[0].question
    return records.Group(
        prompt=asked.question,
        rollouts=tuple(episode.rollout(system) for episode in episodes),
        id=asked.id,
        answer=asked.answer,
        sources=asked.message_ids,
        max_turns=episodes[0].max_turns,
    )


def _search_key(arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """Identifies a search by all its arguments, except the order and case of the words."""
    words = tuple(sorted({" ".join(word.casefold().split()) for word in arguments["keywords"]}))
    rest = (value for name, value in arguments.items() if name != "keywords")
    return (words, *(value.strip().casefold() if isinstance(value, str) else value for value in rest))
