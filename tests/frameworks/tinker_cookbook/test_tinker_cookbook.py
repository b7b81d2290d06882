"""tinker-cookbook's real RL loop, `tinker_cookbook.rl.train.main`, with our logger.

The service that samples and trains is remote. A stand-in for its client replaces it: a policy of one table without
context, which learns by the gradient of the importance-sampling loss. Everything else is the cookbook's own code.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from types import SimpleNamespace

import chz
import pytest
import tinker
import torch
from tinker_cookbook.rl import train
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder, StepResult
from tinker_cookbook.tokenizer_utils import register_tokenizer

import rlvitals
from rlvitals.adapters import tinker_cookbook

GOOD = 7
VOCABULARY = 12


class Letters:
    """A tokenizer with one letter per token."""

    eos_token_id = 0

    def decode(self, tokens, **_):
        return "".join(chr(ord("a") + int(token)) for token in tokens)

    def encode(self, text, **_):
        return [ord(letter) - ord("a") for letter in text]


class Later:
    def __init__(self, result):
        self.result = result

    async def result_async(self):
        return self.result


class Service:
    """The stand-in: training client and sampling client in one."""

    def __init__(self, **_):
        torch.manual_seed(0)
        self.table = torch.zeros(VOCABULARY, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.table], lr=0.3)

    async def create_lora_training_client_async(self, *_, **__):
        return self

    async def save_weights_and_get_sampling_client_async(self):
        return self

    async def sample_async(self, prompt, num_samples, sampling_params, **_):
        logprobs = self.table.detach().log_softmax(-1)
        tokens = torch.multinomial(logprobs.exp(), 2, replacement=True).tolist()
        sequence = SimpleNamespace(
            stop_reason="stop", tokens=tokens, logprobs=[float(logprobs[token]) for token in tokens]
        )
        return SimpleNamespace(sequences=[sequence])

    async def forward_backward_async(self, data, loss_fn, loss_fn_config=None):
        outputs = []
        for datum in data:
            inputs = {name: torch.tensor(value.data) for name, value in datum.loss_fn_inputs.items()}
            logprobs = self.table.log_softmax(-1)[inputs["target_tokens"].long()]
            ratios = (logprobs - inputs["logprobs"]).exp()
            (-(ratios * inputs["advantages"]).sum()).backward()
            outputs.append({"logprobs": tinker.TensorData.from_torch(logprobs.detach())})
        return Later(SimpleNamespace(loss_fn_outputs=outputs, metrics={}))

    async def optim_step_async(self, _):
        self.optimizer.step()
        self.optimizer.zero_grad()
        return Later(SimpleNamespace(metrics={}))

    async def save_state_async(self, name, **_):
        return Later(SimpleNamespace(path=f"tinker://{name}"))

    save_weights_for_sampler_async = save_state_async


class Guess(Env):
    """The answer has two letters; each GOOD letter is rewarded with 0.5."""

    async def initial_observation(self):
        return tinker.ModelInput.from_ints([1, 2, 3]), [0]

    async def step(self, action, *, extra=None):
        reward = sum(token == GOOD for token in action) / 2
        return StepResult(
            reward=reward, episode_done=True, next_observation=tinker.ModelInput.from_ints([1, 2, 3, *action]),
            next_stop_condition=[0], metrics={"correct": float(reward == 1)}, logs={"said": str(action)},
        )  # fmt: skip


class Guesses(EnvGroupBuilder):
    async def make_envs(self):
        return [Guess() for _ in range(8)]

    def logging_tags(self):
        return ["guess"]


class Data(RLDataset):
    def get_batch(self, index):
        return [Guesses(), Guesses()]

    def __len__(self):
        return 25


@chz.chz
class Builder(RLDatasetBuilder):
    async def __call__(self):
        return Data(), None


@pytest.fixture
def trained(tmp_path, monkeypatch):
    register_tokenizer("tiny/letters", Letters)
    monkeypatch.setattr(tinker, "ServiceClient", Service)
    tinker_cookbook.install(hardware=False)
    config = train.Config(
        learning_rate=0.3, dataset_builder=Builder(), model_name="tiny/letters", recipe_name="tiny", max_tokens=2,
        log_path=str(tmp_path), eval_every=0, save_every=0, num_groups_to_log=1,
    )  # fmt: skip
    asyncio.run(train.main(config))
    return tmp_path


def test_the_loop_is_recorded_with_its_rollouts(trained, shown):
    run = rlvitals.open_run(trained)
    assert run.info.framework == "tinker"
    steps, rewards = run.series("env/all/reward/total")
    assert list(steps) == list(range(25))
    assert rewards[0] < 0.3
    assert rewards[-5:].mean() > 0.8  # the policy learns
    own = (trained / "metrics.jsonl").read_text().splitlines()
    assert len(own) == 25  # the cookbook's own file is written as before
    first, second = run.rollouts(3)
    assert (len(first.rollouts), len(second.rollouts), first.meta["tags"], first.prompt) == (8, 8, ["guess"], "bcd")
    one = first.rollouts[0]
    (turn,) = one.turns
    assert len(turn.text) == 2
    assert turn.reward == one.reward == turn.text.count("h") / 2
    assert one.trace.texts == tuple(turn.text)
    assert all(value < 0 for value in one.trace.engine_logprobs)
    shown("tinker-cookbook", version("tinker-cookbook"), "rl.train.main; the remote service is the test's", run.path)
