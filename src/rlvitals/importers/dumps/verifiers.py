"""verifiers and prime-rl: episodes with their traces, and verifiers' earlier `results.jsonl`.

Read in PrimeIntellect-ai/verifiers at a60a606e (`verifiers/v1/trace.py`, `episode.py`, `legacy/utils/save_utils.py`)
and PrimeIntellect-ai/prime-rl at 559b4477 (`src/prime_rl/monitors/file.py`). A trace is a graph of messages, each
with the tokens it adds. Its last branch is read, like in verifiers' own `Trace.messages`. prime-rl wrote the same
episodes to `rollouts/step_N/{train,eval}/{all,effective}/traces.jsonl`. Since its pull request 3444 it writes them to
one stream in `monitors/file/traces`; the annotations next to that stream are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from rlvitals.importers.base import Notes
from rlvitals.importers.dumps.base import LineForm, RowContents, Split, held_out, inner, is_usable, whole
from rlvitals.store.rollout_forms import prompt_text

_STEP = re.compile(r"step_(\d+)")
_COLUMNS = {
    "logprobs": "engine_logprobs",
    "trainer_logprobs": "logprobs",
    "reference_logprobs": "reference_logprobs",
    "advantages": "advantages",
    "entropies": "entropies",
}
"""Columns of a node's sampled tokens, and our names."""


class Episodes(LineForm):
    """One line per episode: verifiers' `traces.jsonl`, prime-rl's files per step and its stream."""

    name = "verifiers"
    writes = "verifiers' and prime-rl's traces"
    places = (
        "monitors/file/traces/stream.jsonl", "monitors/file/traces/stream/*.jsonl", "traces/stream.jsonl",
        "rollouts/step_*/*/*/traces.jsonl", "traces.jsonl",
    )  # fmt: skip
    grows = True

    def recognises(self, path: Path, row: Any) -> bool:
        return isinstance(row, Mapping) and isinstance(row.get("traces"), list) and "task" in row

    def contents(self, row: Mapping[str, Any], path: Path, notes: Notes) -> RowContents | None:
        traces = row.get("traces")
        if not isinstance(traces, list):
            return None
        work, task = inner(inner(row, "run"), "work"), inner(row, "task")
        named_split = self.split_of(path)
        split: Split = named_split or ("train" if work.get("type") == "train" else "validation")
        at = _STEP.search(path.as_posix())
        version = inner(work, "policy").get("start")
        rollouts = [rollout for trace in traces if isinstance(trace, Mapping) for rollout in [_rollout(trace, version)]]
        if not rollouts:  # the episode failed before the first message
            rollouts = [{"completion": "", "outcome": "error", "error": _error(row)}]
        group = {
            "id": task.get("key") or task.get("hash") or "",
            "answer": inner(task, "data").get("answer"),
            "rollouts": rollouts,
            "meta": {key: value for key in ("env", "group") if (value := row.get(key))},
        }
        if not any(trace.get("nodes") for trace in traces if isinstance(trace, Mapping)):
            group["prompt"] = prompt_text(inner(task, "data").get("prompt"))
        return RowContents(int(at[1]) if at else whole(work.get("step"), 0), group, split)

    def split_of(self, path: Path) -> Split | None:
        parts = path.parts
        if "rollouts" in parts and _STEP.search(path.as_posix()):
            return held_out([path.parent.parent.name])
        return None

    def is_left_out(self, path: Path) -> bool:
        """Whether it repeats episodes: prime-rl writes each trained episode to both `effective` and `all`."""
        return path.parent.name == "effective" and (path.parent.parent / "all" / path.name).is_file()


def _rollout(trace: Mapping[str, Any], version: Any) -> dict[str, Any]:
    nodes = _branch(trace.get("nodes"))
    rewards = {
        str(name): float(reward["score"]) * float(reward.get("weight", 1.0))
        for name, reward in inner(trace, "rewards").items()
        if isinstance(reward, Mapping) and is_usable(reward.get("score")) and is_usable(reward.get("weight", 1.0))
    }
    span = inner(inner(trace, "timing"), "agent")
    started, ended = span.get("start"), span.get("end")
    agent = inner(trace, "agent")
    failed = bool(trace.get("errors"))
    return {
        "messages": [_message(node) for node in nodes],
        "reward": sum(rewards.values()) if rewards else None,
        "reward_parts": rewards,
        "outcome": "error" if failed else "",
        "error": _error(trace) if failed else "",
        "stop": trace.get("stop_condition") or "",
        "seconds": ended - started if is_usable(started) and is_usable(ended) and ended > started else None,
        "policy_version": version,
        "trace": _tokens(nodes),
        "meta": {"metrics": trace.get("metrics"), "agent": agent.get("name"), "trainable": agent.get("trainable")},
    }


def _branch(nodes: Any) -> list[Mapping[str, Any]]:
    """The messages from the root to the newest leaf."""
    if not isinstance(nodes, list):
        return []
    references = [node.get("parent") for node in nodes if isinstance(node, Mapping)]
    parents = {parent for parent in references if isinstance(parent, int)}
    leaves = [place for place in range(len(nodes)) if place not in parents]
    path: list[Mapping[str, Any]] = []
    place: Any = leaves[-1] if leaves else None
    while isinstance(place, int) and 0 <= place < len(nodes) and len(path) < len(nodes):
        node = nodes[place]
        if not isinstance(node, Mapping):
            break
        path.append(node)
        place = node.get("parent")
    return path[::-1]


def _message(node: Mapping[str, Any]) -> dict[str, Any]:
    message = dict(inner(node, "message"))
    thought, content = message.pop("reasoning_content", None), message.get("content")
    if isinstance(thought, str) and thought and (content is None or isinstance(content, str)):
        message["content"] = f"<think>{thought}</think>{content or ''}"
    return {"role": "user", **message}


def _tokens(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The tokens, starting with the model's first message."""
    first = next((place for place, node in enumerate(nodes) if node.get("sampled")), len(nodes))
    kept = [node for node in nodes[first:] if isinstance(node.get("token_ids"), list)]
    ids = [token for node in kept for token in node["token_ids"]]
    if not ids:
        return None
    turns, turn = [], -1
    for node in kept:
        turn += bool(node.get("sampled"))
        turns += [max(turn, 0)] * len(node["token_ids"])
    found: dict[str, Any] = {"ids": ids, "turns": turns, "trained": list(chain(*map(_mask, kept)))}
    for theirs, ours in _COLUMNS.items():
        if any(isinstance(node.get(theirs), list) and node[theirs] for node in kept):
            found[ours] = list(chain(*(_spread(node, theirs) for node in kept)))
    return found


def _mask(node: Mapping[str, Any]) -> list[bool]:
    mask, size = node.get("mask"), len(node["token_ids"])
    return [bool(item) for item in mask] if isinstance(mask, list) and len(mask) == size else [False] * size


def _spread(node: Mapping[str, Any], name: str) -> Iterator[float]:
    """One value per token; NaN for tokens that were not sampled."""
    given = node.get(name)
    values = iter(given if isinstance(given, list) else ())
    for is_sampled in _mask(node):
        value = next(values, None) if is_sampled else None
        yield float(value) if is_usable(value) else float("nan")


def _error(record: Mapping[str, Any]) -> str:
    errors = record.get("errors")
    last = errors[-1] if isinstance(errors, list) and errors else None
    return f"{last.get('type', 'error')}: {last.get('message', '')}" if isinstance(last, Mapping) else ""


class Results(LineForm):
    """verifiers' `results.jsonl`: one line per rollout of an evaluation."""

    name = "verifiers results"
    writes = "verifiers' results.jsonl"
    places = ("results.jsonl",)
    grows = True

    def recognises(self, path: Path, row: Any) -> bool:
        return isinstance(row, Mapping) and "example_id" in row and "completion" in row and "reward" in row

    def contents(self, row: Mapping[str, Any], path: Path, notes: Notes) -> RowContents | None:
        if "completion" not in row:
            return None
        metrics = {str(name): value for name, value in inner(row, "metrics").items() if is_usable(value)}
        timing, error = inner(row, "timing"), row.get("error")
        seconds = timing.get("total", timing.get("total_ms"))
        rollout = {
            "completion": row["completion"],
            "reward": row.get("reward"),
            "reward_parts": metrics,
            "outcome": "error" if error else "",
            "error": str(inner(row, "error").get("error_chain_repr") or error or ""),
            "stop": row.get("stop_condition") or ("length" if row.get("is_truncated") else ""),
            "seconds": seconds / 1000 if "total_ms" in timing and is_usable(seconds) else seconds,
            "meta": {key: row[key] for key in ("info", "token_usage") if row.get(key)},
        }
        group = {"prompt": row.get("prompt"), "answer": row.get("answer"), "rollouts": [rollout]}
        return RowContents(0, group, "validation")

    def split_of(self, path: Path) -> Split | None:
        return "validation"
