"""SkyRL's own `RayPPOTrainer.train()` with our callback: its loop, data, advantages, metrics, callbacks, checkpoints.

Its workers and inference engines need GPUs. A tiny model on the CPU replaces them, behind the interfaces that the
trainer calls.
"""

from __future__ import annotations

import asyncio
import json
import typing
from importlib.metadata import version

import pytest
import typing_extensions

# Before Python 3.12, pydantic refuses the standard library's TypedDict in SkyRL's models.
typing.TypedDict = typing_extensions.TypedDict

import torch
import transformers
from skyrl.backends.skyrl_train.distributed.dispatch import WorkerOutput
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.dataset import PromptDataset
from skyrl.train.generators.base import GeneratorInterface
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.tracking import Tracking

import rlvitals
from rlvitals.adapters.skyrl import VitalsCallback, recorded, split_options

PROMPTS = ["the cat ", "the dog ", "a bird ", "my fish "]


class Policy:
    """A model that generates and that the calls of SkyRL's WorkerDispatch train."""

    def __init__(self, folder):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def logprobs(self, batch):
        logits = self.model(batch["sequences"], attention_mask=batch["attention_mask"]).logits[:, :-1].log_softmax(-1)
        chosen = logits.gather(-1, batch["sequences"][:, 1:, None]).squeeze(-1)
        return chosen[:, -batch.metadata["response_length"] :]

    def forward(self, model, batch):
        with torch.no_grad():
            rows = self.logprobs(batch).tolist()
        return WorkerOutput(loss_fn_outputs=[{"logprobs": row} for row in rows], metrics={})

    forward_from_staged = forward

    def stage_data(self, model, batch, boundaries):
        return [batch[start:end] for start, end in boundaries]

    def forward_backward_from_staged(self, model, batch):
        ratio = (self.logprobs(batch) - batch["action_log_probs"]).exp()
        loss = -(ratio * batch["advantages"] * batch["loss_mask"]).sum()
        loss.backward()
        return WorkerOutput(loss_fn_outputs=[], metrics={"policy_loss": loss.item(), "loss_metrics/clip_ratio": 0.0})

    def optim_step(self, model):
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).item()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def get_lcm_dp_size(self):
        return 1

    def save_checkpoint(self, model, folder, tokenizer):
        self.model.save_pretrained(folder)

    def init_weight_sync_state(self, client):
        pass

    def empty_cache(self, model=None):
        pass

    def get_node_ids(self):
        return []

    async def save_weights_for_sampler(self):
        pass


class Generator(GeneratorInterface):
    """Samples from the policy and rewards short answers."""

    def __init__(self, policy, tokenizer):
        self.policy, self.tokenizer = policy, tokenizer

    async def generate(self, input_batch):
        prompts = [self.tokenizer(turns[-1]["content"])["input_ids"] for turns in input_batch["prompts"]]
        answers = []
        for ids in prompts:
            out = self.policy.model.generate(torch.tensor([ids]), do_sample=True, max_new_tokens=6)
            answers.append(out[0, len(ids) :].tolist())
        return {
            "prompt_token_ids": prompts,
            "response_ids": answers,
            "rewards": [-float(len(set(answer))) for answer in answers],
            "loss_masks": [[1] * len(answer) for answer in answers],
            "stop_reasons": ["stop"] * len(answers),
            "rollout_metrics": {},
            "rollout_logprobs": None,
        }


@pytest.fixture
def make(tiny_model, tmp_path):
    data = tmp_path / "data.json"
    rows = [{"prompt": [{"role": "user", "content": prompt}], "env_class": "none"} for prompt in PROMPTS * 8]
    data.write_text("\n".join(map(json.dumps, rows)))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)

    def trainer(*options):
        config = SkyRLTrainConfig.from_cli_overrides(
            [
                f"trainer.policy.model.path={tiny_model}",
                f"trainer.ckpt_path={tmp_path}/out",
                f"trainer.export_path={tmp_path}/export",
                "trainer.placement.colocate_all=false",
                "trainer.train_batch_size=4",
                "trainer.policy_mini_batch_size=4",
                "trainer.micro_train_batch_size_per_gpu=4",
                "trainer.epochs=1",
                "trainer.max_prompt_length=64",
                "trainer.eval_interval=-1",
                "trainer.ckpt_interval=-1",
                "trainer.hf_save_interval=-1",
                "trainer.resume_mode=none",
                "trainer.logger=console",
                "trainer.algorithm.use_kl_loss=false",
                "generator.n_samples_per_prompt=4",
                "generator.inference_engine.enable_ray_prometheus_stats=false",
                "data.dataloader.num_workers=0",
                *options,
            ]
        )
        policy = Policy(tiny_model)
        made = RayPPOTrainer(
            config,
            Tracking("project", "experiment", "console", config),
            tokenizer,
            PromptDataset([str(data)], tokenizer, 64, num_workers=1),
            None,
            Generator(policy, tokenizer),
        )
        made.dispatch = policy
        return made

    return trainer


def test_grpo_on_a_cpu(make, tmp_path, shown):
    trainer = make()
    trainer.add_callback(VitalsCallback())
    asyncio.run(trainer.train())
    run = rlvitals.open_run(tmp_path / "out")
    steps, rewards = run.series("reward/avg_raw_reward")
    assert list(steps) == list(range(1, 9))
    for step, mean in zip(steps, rewards, strict=True):
        groups = run.rollouts(int(step))
        assert all(len(group.rollouts) % 4 == 0 for group in groups)  # a batch may draw a prompt twice
        assert {group.prompt for group in groups} <= set(PROMPTS)
        assert mean == pytest.approx(sum(each.reward for group in groups for each in group.rollouts) / 16)
    assert (run.framework, run.algorithm, run.status) == ("skyrl", "grpo", "finished")
    told = ("num_generations", "temperature", "train_batch_size", "max_grad_norm", "num_gpus")
    assert [run.config[name] for name in told] == [4, 1.0, 4, 1.0, 2]  # one GPU for the policy, one for the engine
    ran = "training, 8 steps; workers and engine are the test's"
    shown("SkyRL", version("skyrl"), ran, tmp_path / "out", acts="stop, save")


def test_a_critical_finding_stops_it(make, tmp_path, ask_for):
    trainer = make()
    trainer.add_callback(VitalsCallback(actions="act", rules=[ask_for("stop", "reward/avg_raw_reward < 0")]))
    asyncio.run(trainer.train())
    assert rlvitals.open_run(tmp_path / "out").last_step < 8


def test_a_checkpoint_is_saved_where_the_doctor_asks_for_one(make, tmp_path, ask_for, answers):
    trainer = make()
    trainer.add_callback(VitalsCallback(actions="act", rules=[ask_for("checkpoint", "reward/avg_raw_reward < 0")]))
    asyncio.run(trainer.train())
    saved = list((tmp_path / "out").glob("global_step_*"))
    assert len(saved) == 1
    assert [text for _, _, text in answers(tmp_path / "out")] == [f"saved {saved[0].name}"]


def test_a_training_that_raises_is_a_failed_run(make, tmp_path):
    class Experiment:
        """The used part of SkyRL's BasePPOExp."""

        def get_trainer(self):
            return make()

        def run(self):
            trainer = self.get_trainer()
            trainer.dispatch.optim_step = None
            asyncio.run(trainer.train())

    with pytest.raises(TypeError):
        recorded(Experiment)().run()
    assert rlvitals.open_run(tmp_path / "out").status == "failed"


def test_skyrl_parses_what_is_left_of_the_options():
    settings, theirs = split_options(["trainer.epochs=2", "rlvitals.actions=act"])
    assert settings == {"actions": "act"}
    assert SkyRLTrainConfig.from_cli_overrides(theirs).trainer.epochs == 2
