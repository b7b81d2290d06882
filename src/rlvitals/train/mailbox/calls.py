"""Tool calls in what a model wrote: OpenAI-style messages, `<tool_call>` texts of chat templates, and short tags.

The short tags are for models that are too small for JSON:

    <search>falcon budget</search>      search_emails(keywords=["falcon", "budget"])
    <read>m7</read>                     read_email(message_id="m7")
    <answer>blue | m7 m9</answer>       return_final_answer(answer="blue", source_message_ids=["m7", "m9"])
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

MAX_TEXT = 100_000
"""Characters of a message that are looked at; what is longer is no tool call."""

_OPENING = re.compile(r"<([A-Za-z_]\w{0,40})>")


class UnreadableCall(ValueError):
    """A message has no tool call, or none that can be read."""


class ToolCall(NamedTuple):
    """What a model wants to be done. Nothing of it is checked yet."""

    name: str
    arguments: Any
    """A mapping, a JSON text, or whatever the model made of it."""
    id: str = ""


def read_calls(message: Any) -> list[ToolCall]:
    """The calls of an assistant's message (a text, or a mapping with `content` and `tool_calls`), at least one.

    Raises UnreadableCall where there is none.
    """
    if isinstance(message, str):
        return read_text(message)
    if not isinstance(message, Mapping):
        raise UnreadableCall(f"a message is a text or a mapping, not {type(message).__name__}")
    listed = message.get("tool_calls")
    if listed:
        if not isinstance(listed, list | tuple):
            raise UnreadableCall("tool_calls is no list")
        return [_openai_call(each) for each in listed]
    content = message.get("content")
    if not isinstance(content, str):
        raise UnreadableCall("the message has no tool call and no text")
    return read_text(content)


def read_text(text: str) -> list[ToolCall]:
    """The calls in a text.

    >>> read_text("<search>falcon budget</search>")
    [ToolCall(name='search_emails', arguments={'keywords': ['falcon', 'budget']}, id='')]
    >>> read_text('<tool_call>{"name": "read_email", "arguments": {"message_id": "m7"}}</tool_call>')
    [ToolCall(name='read_email', arguments={'message_id': 'm7'}, id='')]
    """
    if len(text) > MAX_TEXT:
        raise UnreadableCall(f"the message has more than {MAX_TEXT} characters")
    calls = [_tagged(tag, inside) for tag, inside in _tags(text) if tag != "think"]
    if not calls:
        raise UnreadableCall("the message has no tool call")
    return calls


def _tags(text: str) -> Iterator[tuple[str, str]]:
    """The tags of a text that are closed again, and what is in them; what is inside of one is not looked at.

    One pass, however many tags stay open: a single regular expression would take hours over a text made for it.
    """
    place, never_closed = 0, set[str]()
    while opening := _OPENING.search(text, place):
        tag, place = opening[1], opening.end()
        if tag in never_closed:
            continue
        end = text.find(f"</{tag}>", place)
        if end < 0:
            never_closed.add(tag)
        else:
            yield tag, text[place:end]
            place = end + len(tag) + 3


def write_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as short tags; what `read_text` reads."""
    if name == "search_emails":
        return f"<search>{' '.join(arguments['keywords'])}</search>"
    if name == "read_email":
        return f"<read>{arguments['message_id']}</read>"
    sources = " ".join(arguments.get("source_message_ids", ()))
    return f"<answer>{arguments['answer']}{f' | {sources}' if sources else ''}</answer>"


def _openai_call(given: Any) -> ToolCall:
    function = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UnreadableCall("a tool call has no function with a name")
    number = given.get("id")
    return ToolCall(function["name"], function.get("arguments"), number if isinstance(number, str) else "")


def _tagged(tag: str, inside: str) -> ToolCall:
    if tag == "tool_call":
        try:
            return _openai_call(json.loads(inside))
        except (ValueError, RecursionError) as error:
            if isinstance(error, UnreadableCall):
                raise
            raise UnreadableCall(f"a <tool_call> holds no JSON: {error}") from None
    if tag == "search":
        return ToolCall("search_emails", {"keywords": inside.split()})
    if tag == "read":
        return ToolCall("read_email", {"message_id": inside.strip()})
    if tag == "answer":
        answer, _, sources = inside.partition("|")
        return ToolCall("return_final_answer", {"answer": answer.strip(), "source_message_ids": sources.split()})
    return ToolCall(tag, {})
