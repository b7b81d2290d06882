"""ART's real Model, Trajectory and TrajectoryGroup: the log of its loop is recorded, including trajectories."""

from __future__ import annotations

import asyncio
import json
from importlib.metadata import version

import art
import pytest
from openai.types.chat.chat_completion import Choice

import rlvitals
from rlvitals.adapters import art as vitals

TOKENS = [("4", -0.25), ("2", -1.5)]


@pytest.fixture(autouse=True)
def _closed():
    yield
    vitals.finish()


def choice(text, logprobs=None):
    tokens = [{"token": token, "logprob": logprob, "top_logprobs": []} for token, logprob in logprobs or ()]
    return Choice.model_validate(
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": text},
            "logprobs": {"content": tokens} if tokens else None,
        }
    )


def group(question, *answers):
    return art.TrajectoryGroup(
        [
            art.Trajectory(
                messages_and_choices=[{"role": "user", "content": question}, choice(text, logprobs)],
                reward=reward,
                metrics={"correct": reward > 0, "duration": 1.5},
                metadata={"source": "sums"},
            )
            for text, reward, logprobs in answers
        ],
        exceptions=[TimeoutError("the tool took too long")],
        metadata={"scenario_id": "one"},
    )


def test_a_models_log_is_recorded_with_its_trajectories(tmp_path, shown):
    vitals.install(hardware=False)
    vitals.install(hardware=False)  # a second call does nothing
    model = art.Model(name="agent", project="sums", base_path=str(tmp_path))

    async def loop():
        for step in range(5):
            groups = [group("6 * 7?", ("42", 1.0, TOKENS), ("41", 0.0, None))]
            await model.log(groups, split="train", step=step, metrics={"loss/train": 1 / (step + 1)})
        await model.log([group("7 * 6?", ("42", 1.0, None))], split="val", step=4)

    asyncio.run(loop())
    own = [json.loads(line) for line in (tmp_path / "sums/models/agent/history.jsonl").read_text().splitlines()]
    vitals.finish()
    run = rlvitals.open_run(tmp_path / "sums" / "models" / "agent")
    logged = {name for line in own for name in line} - {"step", "recorded_at", "training_step", "time/wall_clock_sec"}
    assert logged == set(run.metrics)  # the same names as in ART's own file
    steps, rewards = run.series("train/reward")
    assert (list(steps), list(rewards)) == ([0, 1, 2, 3, 4], [0.5] * 5)
    assert list(run.series("loss/train")[1]) == [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]
    assert list(run.series("val/reward")[0]) == [4]
    (first,) = run.rollouts(0)
    assert (first.prompt, first.meta["scenario_id"], first.meta["split"]) == ("6 * 7?", "one", "train")
    right, wrong, broken = first.rollouts
    assert (right.turns[0].text, right.reward, right.seconds, right.meta["source"]) == ("42", 1.0, 1.5, "sums")
    assert (right.trace.texts, right.trace.engine_logprobs) == (("4", "2"), (-0.25, -1.5))
    assert wrong.reward == 0.0
    assert "too long" in broken.error
    shown("ART", version("openpipe-art"), "its Model.log and trajectories; no training", run.path, acts="your loop")


def test_nothing_raises_into_the_loop(tmp_path, monkeypatch):
    vitals.install(hardware=False)
    model = art.Model(name="agent", project="sums", base_path=str(tmp_path))
    broken = group("6 * 7?", ("42", 1.0, None))
    monkeypatch.setattr(vitals, "_group", lambda *_: 1 / 0)
    asyncio.run(model.log([broken], split="train", step=0))
    vitals.finish()
    assert list(rlvitals.open_run(tmp_path / "sums/models/agent").series("train/reward")[1]) == [1.0]
