"""Rows of dumps with each part in turn replaced by an odd value. Unreadable values are skipped and never raise."""

from __future__ import annotations

import copy
import json
import pickle
import zipfile

import pytest

from rlvitals.errors import NotALog
from rlvitals.importers.rollouts import read_rollouts
from rlvitals.store.rollout_forms import plain
from rlvitals.views.places import open_rollouts
from rlvitals.web.answers import as_json

ODD = [
    None,
    5,
    -1,
    1e308,
    "x",
    "9" * 5000,
    "\ud800",
    [],
    {},
    [[]],
    [{}],
    {"a": []},
    True,
    float("nan"),
    float("inf"),
    10**30,
]

MESSAGES = [
    {"role": "user", "content": "p"},
    {"role": "assistant", "content": "a", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "r"},
]
NODE = {
    "parent": 0, "sampled": True, "token_ids": [3], "mask": [True], "logprobs": [-1.0], "advantages": [0.5],
    "message": {"role": "assistant", "content": "a", "reasoning_content": "h", "tool_calls": []},
}  # fmt: skip
EPISODE = {
    "task": {"key": "k", "data": {"answer": "4", "prompt": "p"}}, "errors": [{"type": "E", "message": "m"}],
    "run": {"work": {"type": "train", "step": 1, "policy": {"start": 1}}}, "env": {"id": "e"},
    "traces": [{
        "nodes": [{"message": {"role": "user", "content": "p"}}, NODE], "rewards": {"r": {"score": 1.0, "weight": 2.0}},
        "errors": [{"type": "E", "message": "m"}], "timing": {"agent": {"start": 1.0, "end": 2.0}},
        "metrics": {"m": 1.0}, "agent": {"name": "n"}, "stop_condition": "s",
    }],
}  # fmt: skip
LINES = {
    "traces.jsonl": EPISODE,
    "1.jsonl": {"input": "p", "output": "a<|im_end|>", "gts": "g", "score": 1.0, "step": 1, "acc": True},
    "train_data_step1.jsonl": {
        "content": [["p", "a"]], "rewards": [1.0], "input_lengths": [2], "token_ids": [[1, 2]],
        "advantages": [[1.0, 1.0]], "token_loss_mask": [[0, 1]], "prev_logprobs": [[0.0, -1.0]],
        "generation_logprobs": [[0.0, -1.0]],
    },
    "global_step_1_evals/s.jsonl": {"input_prompt": "p", "output_response": "a", "score": [1.0], "env_extras": {}},
    "iteration_1/train_rollout_summaries.jsonl": {
        "split": "train", "iteration": 1, "group_idx": 0, "traj_idx": 0, "tags": ["t"], "total_reward": 1.0,
        "steps": [{"ac_len": 1, "reward": 1.0, "logs": {"a": "b"}}],
    },
    "trajectories.jsonl": {"benchmark": "b", "turns": MESSAGES, "reward": 1.0, "metrics": {"correct": 1.0}},
    "results.jsonl": {
        "example_id": 1, "prompt": MESSAGES[:1], "completion": MESSAGES[1:], "reward": 1.0, "metrics": {"m": 1.0},
        "error": {"error_chain_repr": "e"}, "timing": {"total_ms": 5.0},
    },
    "rollout_dump_data.step_1.jsonl": {
        "global_step": [1], "prompt": ["p"], "responses": ["a"], "scores": [1.0], "messages": [json.dumps(MESSAGES)],
    },
    "chats.jsonl": {"messages": MESSAGES, "reward": 1.0, "step": 2},
}  # fmt: skip
SAMPLE = {
    "id": 1, "epoch": 1, "input": "p", "target": ["4"], "messages": MESSAGES, "attachments": {"h": "t"},
    "output": {"stop_reason": "s", "choices": [{"message": {"content": "a"}}]}, "error": {"message": "m"},
    "scores": {"m": {"value": "C", "explanation": "e"}}, "model_usage": {"m": {"total_tokens": 1}}, "metadata": {},
}  # fmt: skip
SLIME = {
    "rollout_id": 1,
    "samples": [{
        "prompt": MESSAGES[:1], "tokens": [1, 2], "response": "a", "response_length": 1, "reward": {"score": 1.0},
        "loss_mask": [1], "weight_versions": ["1"], "rollout_log_probs": [-1.0], "status": "completed",
        "metadata": {"a": 1},
    }],
}  # fmt: skip


def replaced(value, path=()):
    """The path to every part of a value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from replaced(item, (*path, key))


def spoilt(value):
    """The value with each of its parts in turn replaced by each odd value."""
    for path in replaced(value):
        for odd in ODD:
            changed = [copy.deepcopy(value)]
            *way, last = (0, *path)
            parent = changed
            for key in way:
                parent = parent[key]
            parent[last] = odd
            yield changed[0]


@pytest.mark.parametrize("name", LINES)
def test_no_row_raises(tmp_path, name):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    rows = list(spoilt(LINES[name]))
    if name.startswith("rollout_dump"):  # a file of ROLL is one row
        for row in rows:
            file.write_text(json.dumps(row))
            read_or_refuse(file)
        return
    file.write_text("".join(json.dumps(row) + "\n" for row in [LINES[name], *rows]))
    assert read_rollouts(file).groups
    log = open_rollouts(tmp_path)
    assert log.overview()
    assert log.find(worst=True, limit=5)
    assert log.find(text="nowhere to be found") == []
    for step in log.steps:
        assert as_json({"groups": [plain(group) for group in log.at(step)]})  # the data for a page


def read_or_refuse(path):
    try:
        assert read_rollouts(path).groups
    except NotALog:
        return


def test_no_sample_of_inspects_raises(tmp_path):
    file = tmp_path / "a.eval"
    with zipfile.ZipFile(file, "w") as archive:
        for number, sample in enumerate(spoilt(SAMPLE)):
            archive.writestr(f"samples/{number}.json", json.dumps(sample))
    assert len(read_rollouts(file).groups) > 1


def test_no_sample_of_slimes_raises(tmp_path):
    file = tmp_path / "1.pt"
    for saved in spoilt(SLIME):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(saved, 2))
        read_or_refuse(file)
