"""Files of rollouts that the packages write themselves, read by the forms of `importers/dumps`."""

from __future__ import annotations

import zipfile

import inspect_ai
import pytest
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageAssistant
from inspect_ai.scorer import match
from inspect_ai.solver import solver

from rlvitals.importers.rollouts import read_rollouts


@solver
def answering():
    """Right in the first epoch, wrong in the second; no model is asked."""

    async def solve(state, generate):
        said = "4" if state.epoch == 1 else "5"
        state.messages.append(ChatMessageAssistant(content=said))
        state.output.completion = said
        return state

    return solve


@pytest.mark.parametrize("form", ["eval", "json"])
def test_inspects_own_log_is_read(tmp_path, form):
    question = "What is 2 + 2? " * 20  # long enough to be stored once and referred to
    task = inspect_ai.Task(
        dataset=[Sample(input=question, target="4", id="sum")], solver=answering(), scorer=match(), epochs=2
    )
    inspect_ai.eval(task, model="mockllm/model", log_dir=str(tmp_path), log_format=form, display="none")
    (file,) = tmp_path.glob(f"*.{form}")
    if form == "eval":
        assert {member.compress_type for member in zipfile.ZipFile(file).infolist()} == {93}  # zstd
    (group,) = read_rollouts(file).groups
    assert (group.id, group.prompt, group.answer) == ("sum", question, "4")
    told = sorted(
        (rollout.meta["epoch"], rollout.turns[0].text, rollout.reward, rollout.outcome) for rollout in group.rollouts
    )
    assert told == [(1, "4", 1.0, "correct"), (2, "5", 0.0, "wrong")]
