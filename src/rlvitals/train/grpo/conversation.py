"""Conversations with tools as tokens. Many are sampled turn by turn in one batch, with the cache kept between turns.

The model's messages are kept as they were sampled, token by token. The chat template renders only what follows them.
Rendering a message again from its parsed calls could give other tokens than those that were sampled.

Each turn reads only the new tokens: the end of the model's last message and the results of the tools. Conversations
that have ended are removed from the batch. The cache has unused columns where one message was shorter than another.
The attention mask excludes these columns, and positions count only real tokens.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from rlvitals.errors import ConfigError
from rlvitals.guard import value_or
from rlvitals.records import Group
from rlvitals.train.decoding import reading
from rlvitals.train.mailbox.episode import Episode, Observation, group
from rlvitals.train.sampling import BatchSampler, Sampling, evaluating, left_padded

_MARK = "the message ends here"

_TOOLS_PROMPT = (
    "{system}\n\nYou may call these functions, described as JSON:\n<tools>\n{tools}\n</tools>\n\n"
    "A call is one JSON object with the function's name and arguments inside these tags:\n"
    '<tool_call>\n{{"name": "search_emails", "arguments": {{"keywords": ["budget"]}}}}\n</tool_call>'
)
"""Used if the chat template does not support tools: the format that most models of this kind were trained on."""


class Dialogue:
    """Converts conversations to a model's tokens. `tools` is None for a model that was trained on short tags."""

    def __init__(self, tokenizer: Any, tools: list[dict[str, Any]] | None) -> None:
        if not tokenizer.chat_template:
            raise ConfigError("the model's tokenizer has no chat template, and an agent's conversation needs one")
        self.tokenizer, self._tools = tokenizer, tools
        self.eos_id: int = tokenizer.eos_token_id
        self.pad_id: int = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        asked = [{"role": "user", "content": "?"}]
        self._needs_tools_prompt = tools is not None and self._text(asked) == self._text(asked, tools=tools)
        self._after = lru_cache(maxsize=10_000)(self._text_after)

    def begin(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The tokens up to the model's first message."""
        if self._tools is None:
            return self.ids_of(self._text(messages))
        if not self._needs_tools_prompt:
            return self.ids_of(self._text(messages, tools=self._tools))
        schemas = "\n".join(json.dumps(tool) for tool in self._tools)
        first, *rest = messages
        system = {"role": "system", "content": _TOOLS_PROMPT.format(system=first["content"], tools=schemas)}
        return self.ids_of(self._text([system, *rest]))

    def go_on(self, observations: Sequence[Observation], *, has_ended: bool) -> list[int]:
        """The tokens between a message of the model and its next one: the results of its calls. `has_ended`: the model
        ended its message itself. If it was cut off, the end token is added.
        """
        after = self._after(tuple(observations))
        return self.ids_of(after.removeprefix(self.tokenizer.eos_token) if has_ended else after)

    def message(self, ids: Sequence[int]) -> str | dict[str, Any]:
        """The model's message, in the form that `Episode.step` takes."""
        text: str = self.tokenizer.decode([token for token in ids if token not in (self.eos_id, self.pad_id)])
        return text if self._tools is None else as_message(text, self.tokenizer)

    def ids_of(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _text_after(self, observations: Sequence[Observation]) -> str:
        shown = [seen.message() for seen in observations]
        if self._needs_tools_prompt:
            results = "\n".join(f"<tool_response>\n{seen.content}\n</tool_response>" for seen in observations)
            shown = [{"role": "user", "content": results}]
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}, *shown]
        _, found, after = self._text(messages).rpartition(_MARK)
        if not found:
            raise ConfigError(
                "the model's chat template leaves assistant messages out; an agent cannot be trained on it"
            )
        return after

    def _text(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, **more
            )
        except TemplateError as error:
            raise ConfigError(f"the model's chat template cannot hold a conversation with tools: {error}") from error
        return text


def as_message(text: str, tokenizer: Any = None) -> str | dict[str, Any]:
    """A message with its tool calls, parsed by the model's own tokenizer or from the usual formats. This function
    parses a bare JSON object with a name and `arguments` or `parameters`, and `[TOOL_CALLS]` with a list. `read_calls`
    parses `<tool_call>`.

    >>> as_message('{"name": "read_email", "parameters": {"message_id": "m7"}}')["tool_calls"]
    [{'function': {'name': 'read_email', 'arguments': {'message_id': 'm7'}}}]
    """
    if getattr(tokenizer, "response_schema", None):  # third-party code: if it raises, try the usual formats
        read = value_or(None, tokenizer.parse_response, text)
        if isinstance(read, dict) and read.get("tool_calls"):
            return read
    bare = re.sub(r"<\|[^|>]{1,40}\|>|\[TOOL_CALLS\]", " ", text).strip()
    if "<tool_call>" in text or not bare.startswith(("{", "[")):
        return text
    try:
        given = json.loads(bare)
    except (ValueError, RecursionError):
        return text
    calls = given if isinstance(given, list) else [given]
    if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        return text
    functions = [{"name": call["name"], "arguments": call.get("arguments", call.get("parameters"))} for call in calls]
    return {"role": "assistant", "content": "", "tool_calls": [{"function": function} for function in functions]}


class AssistantTurn(NamedTuple):
    """One message of the model, by its place in the trajectory's tokens."""

    start: int
    end: int
    """One past its last token. The results of its calls follow."""
    seconds: float


@dataclass(slots=True, eq=False)
class Trajectory:
    """One conversation as tokens."""

    episode: Episode
    prompt: int
    """Number of tokens in the prompt."""
    ids: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    """1 on the tokens the model wrote."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probs of these tokens under the distribution sampled from; 0 elsewhere."""
    turns: list[AssistantTurn] = field(default_factory=list)
    was_cut: bool = False
    """Whether one of its messages reached the token limit."""

    @staticmethod
    def begin(dialogue: Dialogue, episode: Episode) -> Trajectory:
        """A conversation that contains only the prompt."""
        prompt = dialogue.begin(episode.messages())
        row = Trajectory(episode, len(prompt))
        row.read(prompt)
        return row

    def read(self, ids: Sequence[int]) -> None:
        """Append tokens that the model did not write."""
        self.ids += ids
        self.own += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def write(self, ids: Sequence[int], logprobs: Sequence[float], seconds: float = 0.0) -> None:
        """Append a message of the model."""
        self.turns.append(AssistantTurn(len(self.ids), len(self.ids) + len(ids), seconds))
        self.ids += ids
        self.own += [1] * len(ids)
        self.logprobs += logprobs

    def turn_lengths(self) -> list[int]:
        """The number of tokens of each turn, including the results of its calls."""
        return [end - start for start, end in pairwise([*(turn.start for turn in self.turns), len(self.ids)])]


def converse(
    model: Any, dialogue: Dialogue, episodes: Sequence[Episode], how: Sampling, *,
    max_context: int, generator: torch.Generator | None = None,
) -> list[Trajectory]:  # fmt: skip
    """Sample all these conversations to their end. One without room for another message within `max_context` tokens is
    cut off. `generator` must be on the model's device.
    """
    trajectories = [Trajectory.begin(dialogue, episode) for episode in episodes]
    for row in trajectories:
        if row.prompt + how.max_new_tokens > max_context:
            row.episode.cut_off(f"the question alone leaves no room within {max_context} tokens")
    rows = [row for row in trajectories if not row.episode.is_over]
    news = {place: list(row.ids) for place, row in enumerate(rows)}  # the tokens to read next
    columns = max((len(new) for new in news.values()), default=0) + 2 * how.max_new_tokens
    device = next(model.parameters()).device
    with torch.no_grad(), evaluating(model), reading(model, len(rows), columns) as cache:
        sampler = BatchSampler(cache, how, generator)
        while rows:
            began = time.perf_counter()
            sampled = sampler.write(*left_padded([*news.values()], how.pad_id, device))
            lengths, ids, logprobs = (
                each.tolist() for each in (sampled.mask.sum(dim=1), sampled.tokens, sampled.logprobs)
            )
            seconds = (time.perf_counter() - began) / len(rows)
            news = {}
            for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
                row.write(ids[place][:length], logprobs[place][:length], seconds)
                if (new := _pass_on(row, dialogue, how.max_new_tokens, max_context)) is not None:
                    news[place] = new
            if news and len(news) < len(rows):
                sampler.keep(torch.tensor([*news], device=device))
            rows = [rows[place] for place in news]
    return trajectories


def _pass_on(row: Trajectory, dialogue: Dialogue, max_new_tokens: int, max_context: int) -> list[int] | None:
    """Pass the last message to the episode. Returns the tokens to read next, or None if the conversation is over."""
    turn = row.turns[-1]
    ids = row.ids[turn.start :]
    has_ended = ids[-1] == dialogue.eos_id
    row.was_cut |= not has_ended
    seen = row.episode.step(dialogue.message(ids), prompt_tokens=turn.start, completion_tokens=len(ids))
    if row.episode.is_over:
        return None
    new = dialogue.go_on(seen, has_ended=has_ended)
    if len(row.ids) + len(new) + max_new_tokens > max_context:
        row.episode.cut_off(f"no room for another message within {max_context} tokens")
        return None
    row.read(new)
    return new


def recite(dialogue: Dialogue, episode: Episode, messages: Iterable[str]) -> Trajectory:
    """The conversation in which the model writes these messages. The next message is requested after the results of the
    previous one.
    """
    row = Trajectory.begin(dialogue, episode)
    for text in messages:
        ids = [*dialogue.ids_of(text), dialogue.eos_id]
        row.write(ids, [0.0] * len(ids))
        seen = episode.step(text)
        if episode.is_over:
            break
        row.read(dialogue.go_on(seen, has_ended=True))
    return row


def group_record(rows: Sequence[Trajectory], reward: str, *, seed: int, policy_version: int) -> Group:
    """The record of the conversations about one question, with tokens and times. `reward` names the reward system."""
    made = group([row.episode for row in rows], reward)
    rollouts = [
        replace(
            rollout,
            turns=tuple(
                replace(turn, tokens=length, seconds=sampled.seconds)
                for turn, sampled, length in zip(rollout.turns, row.turns, row.turn_lengths(), strict=True)
            ),
            tokens=len(row.ids),
            trainable_tokens=sum(row.own),
            seconds=sum(sampled.seconds for sampled in row.turns),
            seed=seed,
            policy_version=policy_version,
        )
        for rollout, row in zip(made.rollouts, rows, strict=True)
    ]
    return replace(made, rollouts=tuple(rollouts))
