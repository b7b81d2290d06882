"""Rollout files that the packages themselves write, read by the formats of `importers/dumps`."""

from __future__ import annotations

import json
import zipfile

import inspect_ai
import pytest
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageAssistant
from inspect_ai.scorer import match
from inspect_ai.solver import solver
from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.episode import PolicySpan, TrainRunInfo, TrainWorkInfo, WireEpisode
from verifiers.v1.graph import MessageNode
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import AgentInfo, TraceTask, WireTrace
from verifiers.v1.types import AssistantMessage, ToolCall, ToolMessage, UserMessage

from rlvitals.importers.dumps.registry import is_dump
from rlvitals.importers.rollouts import read_rollouts


@solver
def answering():
    """Answers right in the first epoch and wrong in the second, without a model."""

    async def solve(state, generate):
        said = "4" if state.epoch == 1 else "5"
        state.messages.append(ChatMessageAssistant(content=said))
        state.output.completion = said
        return state

    return solve


@pytest.mark.parametrize("form", ["eval", "json"])
def test_inspects_own_log_is_read(tmp_path, form):
    question = "What is 2 + 2? " * 20  # long enough that Inspect stores it once and refers to it
    task = inspect_ai.Task(
        dataset=[Sample(input=question, target="4", id="sum")], solver=answering(), scorer=match(), epochs=2
    )
    inspect_ai.eval(task, model="mockllm/model", log_dir=str(tmp_path), log_format=form, display="none")
    (file,) = tmp_path.glob(f"*.{form}")
    if form == "eval":
        assert {member.compress_type for member in zipfile.ZipFile(file).infolist()} == {93}  # zstd
    assert is_dump(tmp_path)  # recognised by Inspect's file name
    (group,) = read_rollouts(file).groups
    assert (group.id, group.prompt, group.answer) == ("sum", question, "4")
    told = sorted(
        (rollout.meta["epoch"], rollout.turns[0].text, rollout.reward, rollout.outcome) for rollout in group.rollouts
    )
    assert told == [(1, "4", 1.0, "correct"), (2, "5", 0.0, "wrong")]


def test_verifiers_own_episode_is_read(tmp_path):
    """prime-rl's file monitor writes `Episode.to_record` as one line of its stream."""
    task = TraceTask(type="T", data=WireTaskData(prompt="2+2?", answer="4"), key="sum")
    calls = [ToolCall(id="c", name="add", arguments='{"a": 2}')]
    nodes = [
        MessageNode(message=UserMessage(content="2+2?"), token_ids=[1, 2], mask=[False, False]),
        MessageNode(
            parent=0, sampled=True, message=AssistantMessage(reasoning_content="hm", tool_calls=calls),
            token_ids=[9, 3, 4], mask=[False, True, True], logprobs=[-0.5, -0.25], trainer_logprobs=[-0.75, -0.125],
        ),
        MessageNode(parent=1, message=ToolMessage(tool_call_id="c", content="4"), token_ids=[5], mask=[False]),
        MessageNode(
            parent=2, sampled=True, message=AssistantMessage(content="4."), token_ids=[6], mask=[True], logprobs=[-1.0],
            trainer_logprobs=[-1.5],
        ),
    ]  # fmt: skip
    trace = WireTrace(task=task, agent=AgentInfo(config=WireAgentConfig(), name="solver"), nodes=nodes)
    trace.record_reward("exact", 1.0, 0.5)
    trace.record_reward("style", 0.25)
    trace.stop("done")
    episode = WireEpisode(task=task, ok=True, traces=[trace])
    episode.record_run(TrainRunInfo(id="r", work=TrainWorkInfo(step=3, policy=PolicySpan(start=2, end=3))))
    stream = tmp_path / "monitors" / "file" / "traces" / "stream.jsonl"
    stream.parent.mkdir(parents=True)
    stream.write_text(json.dumps(episode.to_record()) + "\n")
    (group,) = read_rollouts(tmp_path).groups
    (rollout,) = group.rollouts
    assert (group.step, group.id, group.answer, group.prompt) == (3, "sum", "4", "2+2?")
    branch = trace.branches[-1]
    assert (rollout.reward, rollout.policy_version, rollout.stop) == (trace.reward, 2, "done")
    assert list(rollout.trace.ids) == branch.token_ids[2:]
    assert list(rollout.trace.trained) == branch.sampled_mask[2:]
    for ours, theirs in (
        (rollout.trace.engine_logprobs, branch.logprobs),
        (rollout.trace.logprobs, branch.trainer_logprobs),
    ):
        told = [
            (mine, other)
            for mine, other, sampled in zip(ours, theirs[2:], branch.sampled_mask[2:], strict=True)
            if sampled
        ]
        assert all(mine == other for mine, other in told)
        assert len(told) == 3
    first, second = rollout.turns
    assert (first.calls[0].name, first.calls[0].arguments, first.calls[0].result, second.text) == (
        "add",
        {"a": 2},
        "4",
        "4.",
    )
