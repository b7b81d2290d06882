"""Converts rollouts from the accepted input forms to records, and records to plain data.

A group is a `Group`, a mapping of its fields, or a list of message lists. A rollout is a `Rollout`, a mapping, a list
of messages in OpenAI's form (see `messages`) or a text. Unreadable parts are left out and noted instead of raised, so
that the rest of the group is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, replace
from typing import Any, TypeVar

from rlvitals.records import Group, Rollout, TokenTrace, ToolCall, Turn
from rlvitals.store.messages import are_messages, conversation, parsed_arguments, text_of

R = TypeVar("R", TokenTrace, Turn, Rollout, Group)

Note = Callable[[str], None]
"""Receives a sentence about something that was left out."""

_ALIASES = {
    "score": "reward",
    "stop_reason": "stop",
    "finish_reason": "stop",
    "time": "seconds",
    "group_id": "id",
    "query_id": "id",
    "tool_calls": "calls",
    "question": "prompt",
}
"""Alternative names for our fields, used if ours is missing."""


def groups_of(given: Any, note: Note) -> list[Group]:
    """The groups of a step from one group or several, in any accepted form."""
    if isinstance(given, Group | Mapping) or are_messages(given):
        given = [given]
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        note(f"rollouts are dropped: {type(given).__name__} is not a list of groups")
        return []
    return [group for item in given if (group := group_of(item, note)) is not None]


def group_of(given: Any, note: Note) -> Group | None:
    """A group from any accepted form; None, with a note, if the value is not a group."""
    if isinstance(given, Group):
        return given
    if _is_list(given):
        given = {"rollouts": [given] if are_messages(given) else given}
    if not isinstance(given, Mapping):
        note(f"a group is dropped: {_kind(given)} is not a group of rollouts")
        return None
    raw = _renamed(given)
    listed = raw.pop("rollouts", None)
    if listed is None:  # a single rollout is its own group
        own = {item.name for item in fields(Group)} - {"rollouts", "meta"}
        listed = [{key: value for key, value in raw.items() if key not in own}]
        raw = {key: value for key, value in raw.items() if key in own}
    if not _is_list(listed):
        note(f"a group is dropped: its rollouts are {_kind(listed)}, not a list")
        return None
    found = [pair for item in listed if (pair := _rollout(item, note)) is not None]
    if "prompt" not in raw:
        raw["prompt"] = next((prompt for _, prompt in found if prompt), "")
    return replace(_filled(Group, raw, note), rollouts=tuple(rollout for rollout, _ in found))


TRACE_DIGITS = 5
"""Decimals kept of numbers per token. Log-probs of two runs of the same model differ by more than that."""


def rounded(group: Group) -> Group:
    """The group as it is written: numbers per token are rounded to `TRACE_DIGITS`, which halves their size."""
    if all(rollout.trace is None for rollout in group.rollouts):
        return group
    return replace(group, rollouts=tuple(_with_rounded_trace(rollout) for rollout in group.rollouts))


def _with_rounded_trace(rollout: Rollout) -> Rollout:
    if rollout.trace is None:
        return rollout
    columns = {
        item.name: tuple(round(number, TRACE_DIGITS) for number in getattr(rollout.trace, item.name))
        for item in fields(TokenTrace)
        if str(item.type) == "tuple[float, ...]"
    }
    return replace(rollout, trace=replace(rollout.trace, **columns))


def plain(record: Any) -> Any:
    """A record as plain data. Fields with their default value are left out; numbers that JSON cannot hold become texts.

    >>> plain(Rollout(turns=(Turn(text="hi", advantage=0.5),), reward=float("nan")))
    {'turns': [{'text': 'hi', 'advantage': 0.5}], 'reward': 'nan'}
    """
    kind = type(record)
    if kind is str or kind is int or kind is bool or record is None:
        return record
    if kind is float:
        return record if record - record == 0 else str(record)
    if kind is tuple or kind is list:
        return [plain(item) for item in record]
    if kind in _FIELDS:
        stored = {}
        for name, default in _FIELDS[kind]:
            value = getattr(record, name)
            if value is not default and value != default:
                stored[name] = plain(value)
        return stored
    if isinstance(record, Mapping):
        return {str(key): plain(value) for key, value in record.items()}
    if isinstance(record, set | frozenset) or _is_list(record):
        return [plain(item) for item in record]
    return plain(record.tolist()) if hasattr(record, "tolist") else str(record)


def is_rollout(given: Any) -> bool:
    """Whether a value can be read as a rollout: a record, a mapping, a text or a list of messages."""
    return isinstance(given, Rollout | Mapping | str) or are_messages(given)


def _rollout(given: Any, note: Note) -> tuple[Rollout, str] | None:
    """A rollout, and the prompt at the start of its messages."""
    if isinstance(given, Rollout):
        return given, ""
    if isinstance(given, str):
        given = {"completion": given}
    elif are_messages(given):
        given = {"messages": given}
    if not isinstance(given, Mapping):
        note(f"a rollout is dropped: {_kind(given)} is not a rollout")
        return None
    raw = _renamed(given)
    messages, completion = raw.pop("messages", None), raw.pop("completion", None)
    if messages is not None and not are_messages(messages):
        if messages != []:
            note(f"rollout.messages is dropped: {_short(messages)} is not a list of messages")
        messages = None
    prompt = raw.pop("prompt", "")
    if "turns" in raw:
        listed = raw.pop("turns")
        turns = [turn for item in listed if (turn := _turn(item, note)) is not None] if _is_list(listed) else []
        if not _is_list(listed) and listed is not None:
            raw["num_turns"] = listed
    elif messages is not None or are_messages(completion):
        found_prompt, turns = conversation(messages if messages is not None else completion)
        prompt = prompt or found_prompt
    else:
        turns = [] if completion is None else [Turn(text=text_of(completion))]
    trace = _trace(raw.pop("trace", None), note)
    return replace(_filled(Rollout, raw, note), turns=tuple(turns), trace=trace), prompt_text(prompt)


def _trace(given: Any, note: Note) -> TokenTrace | None:
    """The token trace of a rollout. Lists whose length differs from that of most lists are left out."""
    if given is None or isinstance(given, TokenTrace):
        return given
    if not isinstance(given, Mapping):
        note(f"rollout.trace is dropped: {_kind(given)} is not a mapping of lists")
        return None
    trace = _filled(TokenTrace, given, note)
    lengths = Counter(len(column) for item in fields(TokenTrace) if (column := getattr(trace, item.name)))
    if len(lengths) > 1:
        usual = lengths.most_common(1)[0][0]
        odd = [item.name for item in fields(TokenTrace) if len(getattr(trace, item.name)) not in (0, usual)]
        note(f"rollout.trace.{odd[0]} is dropped: it does not have one value per token")
        trace = replace(trace, **dict.fromkeys(odd, ()))
    return trace if lengths else None


def prompt_text(prompt: Any) -> str:
    """A prompt as text: a text, or the messages before the model's first."""
    return conversation(prompt)[0] if are_messages(prompt) else text_of(prompt)


def _turn(given: Any, note: Note) -> Turn | None:
    if isinstance(given, Turn):
        return given
    if isinstance(given, str):
        return Turn(text=given)
    if not isinstance(given, Mapping):
        note(f"a turn is dropped: {_kind(given)} is not a turn")
        return None
    raw = _renamed(given)
    listed = raw.pop("calls", None) or ()
    if "content" in raw and "text" not in raw:
        raw["text"] = raw.pop("content")
    calls = [call for item in listed if (call := _call(item, note)) is not None] if _is_list(listed) else []
    return replace(_filled(Turn, raw, note), calls=tuple(calls))


def _call(given: Any, note: Note) -> ToolCall | None:
    if isinstance(given, ToolCall):
        return given
    if isinstance(given, Mapping) and isinstance(function := given.get("function", given), Mapping):
        name, result = function.get("name"), given.get("result")
        if isinstance(name, str):
            arguments = parsed_arguments(function.get("arguments"))
            return ToolCall(name, arguments, None if result is None else text_of(result), str(given.get("error") or ""))
    note(f"a tool call is dropped: {_kind(given)} is not a tool call")
    return None


def _filled(record: type[R], raw: Mapping[str, Any], note: Note) -> R:
    """A record from a mapping. Keys without a field are stored in `meta`, if the record has one."""
    known: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in _READERS[record]:
            if not key.startswith("_"):  # keys with an underscore are rlvitals' own keys of a stored line
                rest[key] = plain(value)
        elif value is not None:
            try:
                known[key] = _READERS[record][key](value)
            except (TypeError, ValueError, OverflowError):
                note(f"{record.__name__.lower()}.{key} is dropped: {_short(value)} is not a valid value")
    if rest and "meta" in _READERS[record]:
        known["meta"] = {**rest, **known.get("meta", {})}
    return record(**known)


def _renamed(given: Mapping[Any, Any]) -> dict[str, Any]:
    renamed = {}
    for key, value in given.items():
        ours = _ALIASES.get(str(key), str(key))
        renamed[str(key) if ours in given and ours != key else ours] = value
    return renamed


def _number(value: Any) -> float:
    return float(value.item() if hasattr(value, "item") else value)


def _whole(value: Any) -> int:
    number = _number(value)
    if number != int(number):
        raise ValueError(value)
    return int(number)


def _flag(value: Any) -> bool:
    if isinstance(value, str):
        raise TypeError(value)
    return bool(value)


def _mapping(value: Any, read: Callable[[Any], Any] = plain) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(value)
    return {str(key): read(item) for key, item in value.items()}


def _parts(value: Any) -> dict[str, float]:
    return {key: _number(item) for key, item in _mapping(value, lambda item: item).items() if item is not None}


def _listed(value: Any) -> Iterable[Any]:
    """A list, an array or a tensor as plain items."""
    items: Iterable[Any] = value.tolist() if hasattr(value, "tolist") else value
    return items


def _texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(str(item) for item in value)


_BY_TYPE: dict[str, Callable[[Any], Any]] = {
    "str": text_of,
    "int": _whole,
    "int | None": _whole,
    "float": _number,
    "float | None": _number,
    "bool | None": _flag,
    "dict[str, Any]": _mapping,
    "dict[str, float]": _parts,
    "tuple[str, ...]": _texts,
    "tuple[int, ...]": lambda value: tuple(_whole(item) for item in _listed(value)),
    "tuple[float, ...]": lambda value: tuple(_number(item) for item in _listed(value)),
    "tuple[bool, ...]": lambda value: tuple(_flag(item) for item in _listed(value)),
}
_NESTED = {"tuple[Turn, ...]", "tuple[ToolCall, ...]", "tuple[Rollout, ...]", "TokenTrace | None"}
_READERS: dict[type[Any], dict[str, Callable[[Any], Any]]] = {
    record: {item.name: _BY_TYPE[str(item.type)] for item in fields(record) if str(item.type) not in _NESTED}
    for record in (TokenTrace, Turn, Rollout, Group)
}
_READERS[Group]["prompt"] = prompt_text


def _default(item: Field[Any]) -> Any:
    return item.default_factory() if item.default_factory is not MISSING else item.default


_RECORDS = (ToolCall, TokenTrace, Turn, Rollout, Group)
_FIELDS = {record: tuple((item.name, _default(item)) for item in fields(record)) for record in _RECORDS}


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
