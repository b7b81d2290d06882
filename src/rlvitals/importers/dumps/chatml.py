"""Splits conversations that were written as one text with ChatML markers."""

from __future__ import annotations

import re
from typing import Any

from rlvitals.importers.dumps.base import parsed

_CHATML = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|(?=<\|im_start\|>)|\Z)", re.DOTALL)
_TOOL_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


def chat_messages(text: str) -> list[dict[str, Any]]:
    r"""The messages of a ChatML text. It usually starts inside the model's first message.

    >>> chat_messages('Look.<tool_call>{"name": "find"}</tool_call><|im_end|>\n<|im_start|>tool\nAnn<|im_end|>')[1]
    {'role': 'tool', 'content': 'Ann'}
    """
    begin = text if text.startswith("<|im_start|>") else f"<|im_start|>assistant\n{text}"
    messages = []
    for role, content in _CHATML.findall(begin):
        message: dict[str, Any] = {"role": role, "content": content.strip()}
        calls = [{"function": call} for raw in _TOOL_CALL.findall(content) if (call := _call(raw)) is not None]
        if role == "assistant" and calls:
            message |= {"content": _TOOL_CALL.sub("", content).strip(), "tool_calls": calls}
        elif role == "user" and "<tool_response>" in content:
            message["role"] = "tool"
        messages.append(message)
    return messages


def completion_fields(text: str) -> dict[str, Any]:
    """A model's text as part of a rollout, split into messages if it has ChatML markers."""
    return {"messages": chat_messages(text)} if "<|im_" in text else {"completion": text}


def _call(raw: str) -> dict[str, Any] | None:
    try:
        call = parsed(raw.encode("utf-8", "replace"))
    except ValueError:
        return {"name": "", "arguments": raw}
    return call if isinstance(call, dict) else None
