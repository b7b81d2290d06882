"""Turn-level credit of a tool-using agent: a rollout's advantage, corrected by the outcome of one turn.

The table comes from the GRPO e-mail agent: a shift, then a floor for good turns or a ceiling for bad ones. A good turn
of a bad rollout is therefore still encouraged, and turn advantages are not zero-mean within a group.

`Rules` are data: which tools search, read and answer, and how each outcome of a turn changes its advantage. The
default is for agents that search, read and answer. `read_rules` accepts your own mapping or YAML file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.records import Group, Rollout, ToolCall, Turn
from rlvitals.yaml_reader import read_yaml


class Correction(NamedTuple):
    """How an outcome changes the advantage: shift it, then raise it to the floor or lower it to the ceiling."""

    shift: float = 0.0
    floor: float | None = None
    ceiling: float | None = None


OUTCOMES = {
    "no_tool": Correction(),
    "unjudged": Correction(),
    "bad_arguments": Correction(-1.5, ceiling=-2.0),
    "unknown_tool": Correction(-1.2, ceiling=-1.5),
    "search_hit": Correction(0.8, floor=0.3),
    "search_miss": Correction(-0.2),
    "search_empty": Correction(-0.15),
    "read_hit": Correction(0.8, floor=0.3),
    "read_miss": Correction(-0.25),
    "answer_correct": Correction(1.5, floor=1.0),
    "answer_wrong": Correction(-1.5, ceiling=-0.8),
}
"""The outcomes of a turn and their corrections. An answer of "I don't know" counts as wrong."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How turns are credited. The defaults are those of the GRPO e-mail agent."""

    outcomes: Mapping[str, Correction]
    search: frozenset[str] = frozenset({"search_emails", "search", "search_documents"})
    """Tools that search for documents; a hit is a result that names a source of the group."""
    read: frozenset[str] = frozenset({"read_email", "read", "read_document"})
    """Tools that open a document; a hit is an argument that is a source of the group."""
    answer: frozenset[str] = frozenset({"return_final_answer", "answer", "final_answer"})
    """Tools that end a rollout; the answer is correct if the rollout's outcome is `correct`."""


SEARCH_AGENT = Rules(OUTCOMES)
"""The default."""

EMPTY_RESULTS = frozenset({"", "[]", "{}", "null", "none", '""'})
"""Results of a search that found nothing."""


def turn_advantage(advantage: float, outcome: str, rules: Rules = SEARCH_AGENT) -> float:
    """The advantage of one turn, from its rollout's advantage and its outcome (`advantage.turn` in the catalogue).

    >>> turn_advantage(-1.0, "search_hit"), turn_advantage(-1.0, "answer_wrong"), turn_advantage(0.25, "no_tool")
    (0.3, -2.5, 0.25)
    """
    known = rules.outcomes
    if outcome not in known:
        raise ConfigError(f"unknown outcome {outcome!r}.{did_you_mean(outcome, known)} Known: {', '.join(known)}")
    correction = known[outcome]
    corrected = advantage + correction.shift
    if correction.floor is not None:
        corrected = max(corrected, correction.floor)
    if correction.ceiling is not None:
        corrected = min(corrected, correction.ceiling)
    return corrected


def outcome_of(turn: Turn, rollout: Rollout, group: Group, rules: Rules = SEARCH_AGENT) -> str:
    """The outcome of a turn: the environment's if it set one, otherwise inferred from the turn's first call.

    >>> found = Turn(calls=(ToolCall("search_emails", {"keywords": ["budget"]}, '[{"message_id": "m7"}]'),))
    >>> outcome_of(found, Rollout(), Group(sources=("m7",))), outcome_of(found, Rollout(), Group(sources=("m70",)))
    ('search_hit', 'search_miss')
    """
    if turn.outcome:
        return turn.outcome
    if not turn.calls:
        return "no_tool"
    call = turn.calls[0]
    if call.error == "bad_arguments" or isinstance(call.arguments, str):
        return "bad_arguments"
    if call.name in rules.search:
        return _searched(call, group.sources)
    if call.name in rules.read:
        asked = call.arguments.values() if isinstance(call.arguments, Mapping) else ()
        hit = any(str(value) in group.sources for value in asked)
        return ("read_hit" if hit else "read_miss") if group.sources else "unjudged"
    if call.name in rules.answer:
        return {"": "unjudged", "correct": "answer_correct"}.get(rollout.outcome, "answer_wrong")
    return "unknown_tool" if call.error == "unknown_tool" else "unjudged"


def read_rules(given: Rules | Mapping[str, Any] | str | os.PathLike[str] | None = None) -> Rules:
    """Read rules from a mapping or a YAML file. `outcomes` change or extend the default outcomes; each kind given in
    `tools` replaces the default tools of that kind.

    >>> rules = read_rules({"tools": {"search": ["grep"]}, "outcomes": {"search_hit": {"shift": 1.0}}})
    >>> rules.search, turn_advantage(-1.0, "search_hit", rules), turn_advantage(-1.0, "read_hit", rules)
    (frozenset({'grep'}), 0.0, 0.3)
    """
    if given is None or isinstance(given, Rules):
        return given or SEARCH_AGENT
    raw = given if isinstance(given, Mapping) else read_yaml(given, ConfigError)
    _only(raw, ("outcomes", "tools"), "credit rules")
    tools = raw.get("tools") or {}
    _only(tools, ("search", "read", "answer"), "tools")
    named = {kind: frozenset(map(str, [names] if isinstance(names, str) else names)) for kind, names in tools.items()}
    own = {str(outcome): _correction(str(outcome), parts) for outcome, parts in (raw.get("outcomes") or {}).items()}
    return Rules({**OUTCOMES, **own}, **named)


def _searched(call: ToolCall, sources: tuple[str, ...]) -> str:
    result = (call.result or "").strip()
    if result.lower() in EMPTY_RESULTS:
        return "search_empty"
    if not sources:
        return "unjudged"
    named = any(re.search(rf"(?<!\w){re.escape(source)}(?!\w)", result) for source in sources)
    return "search_hit" if named else "search_miss"


def _correction(outcome: str, parts: Any) -> Correction:
    _only(parts, Correction._fields, f"outcome {outcome!r}")
    try:
        numbers: dict[str, Any] = {name: None if part is None else float(part) for name, part in parts.items()}
        return Correction(**numbers)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"outcome {outcome!r}: {parts!r} are not numbers") from error


def _only(given: Any, known: tuple[str, ...], what: str) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{what} must be a mapping, not {given!r}")
    for key in given:
        if key not in known:
            raise ConfigError(f"{what}: unknown {key!r}.{did_you_mean(str(key), known)} Known: {', '.join(known)}")
