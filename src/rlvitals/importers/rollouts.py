"""Rollouts other trainers wrote: TRL's completions, verl's rollout data, lists of messages in OpenAI's form.

- TRL (`log_completions=True`): `completions/completions_00010.parquet`, and the same table as W&B stores it
  (`*.table.json`). A column of numbers is a part of the reward; the parts' weights are not in the file.
- verl (`trainer.rollout_data_dir`): `10.jsonl` with `input`, `output`, `gts`, `score`, `step` and what the reward
  function added.
- JSON or JSONL of conversations: `messages`, or `prompt` and `completion`, with a reward or without; our own lines too.

The rows of one step and one prompt are a group.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from rlvitals.errors import MissingDependency, NotALog
from rlvitals.importers.base import Notes, open_foreign
from rlvitals.importers.jsonl import parse_lenient
from rlvitals.records import Group
from rlvitals.store.messages import are_messages
from rlvitals.store.rollout_forms import group_of, prompt_text

_CHATML = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|(?=<\|im_start\|>)|\Z)", re.DOTALL)
_TOOL_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_NOT_REWARDS = frozenset({"step", "prompt", "completion", "advantage", "advantages", "image", "images"})
_OUTCOMES = {"true": "correct", "1": "correct", "false": "wrong", "0": "wrong"}
"""verl's `acc`; a numpy truth value comes as its text."""
_PATTERNS = ("completions_*.parquet", "*.table.json", "*.jsonl", "*.parquet", "*.json")


@dataclass(frozen=True, slots=True)
class RolloutDump:
    """What was read."""

    groups: list[Group]
    format: str
    """"trl", "verl", "messages" or "rlvitals"."""
    notes: list[str]


def read_rollouts(path: str | Path) -> RolloutDump:
    """The rollouts of a file, or of a folder of them. Raises NotALog where there are none."""
    place, notes = Path(path), Notes()
    groups: dict[tuple[int, str], Group] = {}
    form = ""
    for file in _files(place):
        for row in _rows(file, notes):
            kind, given, step = _told(row, file)
            form = form or kind
            group = group_of(given, notes.say) if kind else None
            if group is None:
                notes.count("1 row holds no rollout and was skipped", "{} rows hold no rollout and were skipped")
                continue
            known = groups.get((step, group.key))
            rollouts = (*known.rollouts, *group.rollouts) if known else group.rollouts
            groups[step, group.key] = replace(known or group, step=step, rollouts=rollouts)
    if not groups:
        raise NotALog(place, "no row of it is a rollout: a prompt and a completion, or messages")
    if form == "trl" and any(len(rollout.reward_parts) > 1 for g in groups.values() for rollout in g.rollouts):
        notes.say("the table does not hold the weights of its rewards: a rollout's reward is their plain sum")
    return RolloutDump(sorted(groups.values(), key=lambda group: group.step), form, notes.texts())


def _files(place: Path) -> list[Path]:
    if os.path.exists(place) and not os.path.isdir(place):
        return [place]
    folders = [place, place / "completions", place / "rollouts"]
    for folder in folders:
        for pattern in _PATTERNS:
            if found := sorted(folder.glob(pattern), key=lambda file: (_step_of(file), file.name)):
                return found
    raise NotALog(place, "there is nothing there" if not os.path.exists(place) else "the folder holds no rollouts")


def _rows(file: Path, notes: Notes) -> Iterator[Any]:
    if file.suffix == ".parquet":
        yield from _parquet(file)
        return
    with open_foreign(file) as opened:
        text = opened.read().decode("utf-8-sig", "replace")
    if file.suffix == ".json":
        yield from _document(file, text)
        return
    for line in text.splitlines():
        if line.strip():
            try:
                yield parse_lenient(line)
            except ValueError:
                notes.count("1 line is no JSON and was skipped", "{} lines are no JSON and were skipped")


def _parquet(file: Path) -> Iterable[dict[str, Any]]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependency("reading Parquet files", "parquet") from error
    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(file).to_pylist()
    except (OSError, ValueError) as error:
        raise NotALog(file, f"it is no Parquet file ({error})") from error
    return rows


def _document(file: Path, text: str) -> Iterator[Any]:
    try:
        whole = parse_lenient(text)
    except ValueError as error:
        raise NotALog(file, "it is no JSON") from error
    if isinstance(whole, Mapping) and isinstance(whole.get("columns"), list) and isinstance(whole.get("data"), list):
        yield from (dict(zip(whole["columns"], row, strict=False)) for row in whole["data"])
    elif isinstance(whole, list) and not are_messages(whole):
        yield from whole
    else:
        yield whole


def _told(row: Any, file: Path) -> tuple[str, Mapping[str, Any], int]:
    """The form of a row, as a group of one (or one of our own groups whole), and its step. No form: no rollout."""
    if are_messages(row):
        row = {"messages": row}
    if not isinstance(row, Mapping):
        return "", {}, 0
    said = row.get("step")
    step = int(said) if _is_number(said) or (isinstance(said, str) and said.isdecimal()) else _step_of(file)
    if isinstance(row.get("rollouts"), list):
        return "rlvitals", row, step
    if "input" in row and "output" in row:
        return "verl", _verl(row), step
    if "completion" in row and ("advantage" in row or file.suffix == ".parquet"):
        return "trl", _trl(row), step
    is_one = bool({"messages", "completion", "turns"} & row.keys())
    return "messages" if is_one else "", {key: value for key, value in row.items() if key != "step"}, step


def _trl(row: Mapping[str, Any]) -> dict[str, Any]:
    parts = {key: float(value) for key, value in row.items() if key not in _NOT_REWARDS and _is_number(value)}
    reward = parts.pop("reward", None)
    known = [part for part in parts.values() if not math.isnan(part)]
    rollout = {
        "completion": row["completion"],
        "reward": reward if reward is not None else (sum(known) if known else None),
        "reward_parts": parts,
        "advantage": row.get("advantage"),
        **{key: value for key, value in row.items() if key not in {*_NOT_REWARDS, *parts, "reward"}},
    }
    return {"prompt": prompt_text(row.get("prompt")), "rollouts": [rollout]}


def _verl(row: Mapping[str, Any]) -> dict[str, Any]:
    outcome = _OUTCOMES.get(str(row.get("acc")).removesuffix(".0").lower(), "")
    rest = {key: value for key, value in row.items() if key not in {"input", "output", "gts", "score", "step"}}
    output = str(row["output"])
    said: dict[str, Any] = {"messages": chat_messages(output)} if "<|im_" in output else {"completion": output}
    rollout = {**said, "reward": row.get("score"), "outcome": outcome, "meta": rest}
    return {"prompt": str(row["input"]), "answer": row.get("gts"), "rollouts": [rollout]}


def chat_messages(text: str) -> list[dict[str, Any]]:
    r"""The messages of a text in the ChatML form, which begins in the middle of the model's first.

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


def _call(raw: str) -> dict[str, Any] | None:
    try:
        call = parse_lenient(raw)
    except ValueError:
        return {"name": "", "arguments": raw}
    return call if isinstance(call, dict) else None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not (isinstance(value, float) and math.isinf(value))


def _step_of(file: Path) -> int:
    digits = re.findall(r"\d+", file.name)
    return int(digits[0]) if digits else 0
