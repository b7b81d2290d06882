"""NeMo-RL: `train_data_step10.jsonl` and `val_data_step10.jsonl` in its log folder.

Read in NVIDIA-NeMo/RL at 7ea279ab (`nemo_rl/utils/logger.py`, `nemo_rl/algorithms/grpo.py`). Each value of a line is
a list with one item, because a line is a batch of one. In training, `content` has the texts of the messages without
their roles: first the prompt, then the model and the environment in turn. Tokens include the prompt and are padded to
the longest sample of the batch; `input_lengths` is the length without padding. Each log-prob has its token's index.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvitals.importers.base import Notes
from rlvitals.importers.dumps.base import LineForm, RowContents, Split, numbers, step_in, whole
from rlvitals.store.messages import are_messages, text_of

_NAME = re.compile(r"(train|val)_data_step\d+\.jsonl")
_READ = frozenset(
    {
        "content", "rewards", "input_lengths", "token_ids", "token_loss_mask", "advantages", "generation_logprobs",
        "prev_logprobs", "sample_loss_mask", "idx",
    }
)  # fmt: skip


class NemoRl(LineForm):
    """One line per sample."""

    name = "nemo_rl"
    writes = "NeMo-RL's train_data_step{n}.jsonl and val_data_step{n}.jsonl"
    places = ("train_data_step*.jsonl", "val_data_step*.jsonl")

    def recognises(self, path: Path, row: Any) -> bool:
        return _NAME.fullmatch(path.name) is not None and isinstance(row, Mapping) and "content" in row

    def split_of(self, path: Path) -> Split | None:
        return "validation" if path.name.startswith("val_") else "train"

    def contents(self, row: Mapping[str, Any], path: Path, notes: Notes) -> RowContents | None:
        one = {key: value[0] if isinstance(value, list) and value else value for key, value in row.items()}
        content = one.get("content")
        if are_messages(content):
            prompt, conversation = None, {"messages": content}
        elif isinstance(content, list) and content:
            roles = ["assistant" if place % 2 == 0 else "user" for place in range(len(content) - 1)]
            turns = [{"role": role, "content": text_of(part)} for role, part in zip(roles, content[1:], strict=True)]
            prompt, conversation = text_of(content[0]), {"messages": turns} if turns else {"completion": ""}
        else:
            return None
        tokens = _tokens(one)
        rollout = {
            **conversation,
            "reward": one.get("rewards"),
            "advantage": _advantage(tokens),
            "tokens": one.get("input_lengths"),
            "trainable_tokens": sum(tokens["trained"]) if tokens else None,
            "trace": tokens,
            "meta": {key: value for key, value in one.items() if key not in _READ},
        }
        group: dict[str, Any] = {"rollouts": [rollout]}
        if prompt is not None:
            group["prompt"] = prompt
        if one.get("sample_loss_mask") == 0:
            rollout["outcome"] = "masked"
        return RowContents(step_in(path.name), group, self.split_of(path) or "train")


def _tokens(one: Mapping[str, Any]) -> dict[str, Any] | None:
    """The tokens from the first trained one to the last that is not padding."""
    ids, mask = one.get("token_ids"), numbers(one.get("token_loss_mask"))
    if not isinstance(ids, list) or mask is None or len(mask) != len(ids) or 1.0 not in mask:
        return None
    window = slice(mask.index(1.0), min(whole(one.get("input_lengths"), len(ids)), len(ids)))
    columns = {
        "logprobs": numbers(one.get("prev_logprobs")),
        "engine_logprobs": numbers(one.get("generation_logprobs")),
        "advantages": numbers(one.get("advantages")),
    }
    known = {name: values[window] for name, values in columns.items() if values is not None and len(values) == len(ids)}
    return {"ids": ids[window], "trained": [part != 0 for part in mask[window]], **known}


def _advantage(tokens: Mapping[str, Any] | None) -> float | None:
    """The advantage of the trained tokens; None if they differ."""
    if tokens is None or "advantages" not in tokens:
        return None
    found = {value for value, trained in zip(tokens["advantages"], tokens["trained"], strict=True) if trained}
    return found.pop() if len(found) == 1 else None
