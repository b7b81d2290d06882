"""OpenRLHF's PPO trainer, in its loop, with its experience maker and its TensorboardLogger.

Its model actors and its engine need CUDA, DeepSpeed and vLLM. One Ray actor replaces them: it samples and trains.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from types import ModuleType, SimpleNamespace

import pytest
import ray
import torch
import transformers
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils import logging_utils

import rlvitals
from rlvitals.adapters import openrlhf as adapter

PROMPTS = ["the cat ", "the dog ", "a bird ", "my fish "]


@pytest.fixture
def logger(tmp_path):
    adapter.install()
    wandb = SimpleNamespace(key=None, org=None, group=None, project="p", run_name="ppo_1115")
    args = SimpleNamespace(
        logger=SimpleNamespace(wandb=wandb, tensorboard_dir=str(tmp_path / "tensorboard"), logging_steps=1),
        ckpt=SimpleNamespace(output_dir=str(tmp_path), load_enable=False),
        algo=SimpleNamespace(advantage=SimpleNamespace(estimator="group_norm"), kl=SimpleNamespace(init_coef=0.001)),
        rollout=SimpleNamespace(n_samples_per_prompt=2, max_new_tokens=4),
    )
    return logging_utils.TensorboardLogger(args)


@pytest.fixture
def batch(tiny_model):
    """Two answers to one prompt: the first contains tool output, the second is truncated."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)
    prompt = tokenizer("the cat ")["input_ids"]
    answers = [tokenizer("sat on")["input_ids"], tokenizer("no no")["input_ids"]]
    sequences = torch.tensor([prompt + answer for answer in answers])
    own = [[0] * (len(prompt) - 1) + [1, 0, 1], [0] * (len(prompt) - 1) + [1, 1, 1]]
    made = Experience(
        sequences=sequences,
        action_mask=torch.tensor(own).bool(),
        advantages=torch.tensor(own) * torch.tensor([[0.7], [-0.7]]),
        rewards=torch.tensor([1.0, 0.0]),
        truncated=torch.tensor([False, True]),
        prompts=["the cat ", "the cat "],
    )
    return [made], tokenizer


def test_its_logger_and_its_experiences_are_recorded(logger, batch, tmp_path):
    for step in range(1, 9):
        adapter._followed[id(logger)].take(*batch)
        logger.log_train(step, {"policy_loss": 0.1, "reward": step / 10, "kl": 0.01, "generated_samples": ["x", 0.5]})
        if step % 4 == 0:
            logger.log_eval(step, {"eval_gsm8k_pass1": step / 20})
    logger.close()
    folder = tmp_path / "ppo_1115"
    run = rlvitals.open_run(folder)
    assert list(run.series("train/reward")[1]) == [step / 10 for step in range(1, 9)]
    assert list(run.series("eval/eval_gsm8k_pass1")[0]) == [4, 8]
    (group,) = run.rollouts(3)
    first, second = group.rollouts
    assert group.prompt == "the cat "
    assert [(turn.text, turn.observation) for turn in first.turns] == [("sat", " "), ("on", "")]
    assert [turn.text for turn in second.turns] == ["no no"]
    assert (first.reward, first.stop, second.reward, second.stop) == (1.0, "", 0.0, "length")
    assert (first.advantage, second.advantage) == (pytest.approx(0.7), pytest.approx(-0.7))
    assert list((tmp_path / "tensorboard" / "ppo_1115").glob("events*"))  # OpenRLHF's own logging continues
    assert (run.status, run.algorithm) == ("finished", "grpo")


class Policy:
    """A model that generates like OpenRLHF's RolloutRayActor and is trained like its PolicyModelActor."""

    def __init__(self, folder):
        torch.manual_seed(0)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.batches = []

    def get_num_unfinished_requests(self):
        return 0

    def generate_responses(self, *, prompt, label, sampling_params, hf_tokenizer, num_samples, **_):
        ids = hf_tokenizer(prompt)["input_ids"]
        asked = torch.tensor([ids] * num_samples)
        made = self.model.generate(
            asked, attention_mask=torch.ones_like(asked), do_sample=True, max_new_tokens=sampling_params.max_tokens,
            min_new_tokens=sampling_params.max_tokens,
        )  # fmt: skip
        return [
            {
                "prompt": prompt, "label": label, "observation_tokens": row, "action_ranges": [(len(ids), len(row))],
                "reward": -float(len(set(row[len(ids) :]))), "rollout_log_probs": None, "truncated": True,
            }
            for row in made.tolist()
        ]  # fmt: skip

    def execute_batch(self, name, data, start, end):
        rows = [{key: values[at] for key, values in data.items()} for at in range(start, end)]
        return [getattr(self, name)(**row) for row in rows]

    def logprobs(self, sequences, attention_mask):
        logits = self.model(sequences, attention_mask=attention_mask).logits[:, :-1].log_softmax(-1)
        return logits.gather(-1, sequences[:, 1:, None]).squeeze(-1)

    def forward(self, sequences, attention_mask, **_):
        with torch.no_grad():
            return self.logprobs(sequences, attention_mask)

    def append(self, experience):
        self.batches.append(experience)

    def fit(self, kl_ctl):
        losses = []
        for batch in self.batches:
            mask = batch.action_mask.float()
            ratio = (self.logprobs(batch.sequences, batch.attention_mask) - batch.action_log_probs).exp()
            loss = -(ratio * batch.advantages * mask).sum() / mask.sum()
            loss.backward()
            losses.append(loss.item())
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.batches.clear()
        return {"policy_loss": sum(losses) / len(losses), "actor_lr": 1e-2}

    def broadcast_to_vllm(self):
        """Nothing to do: the engine and the trained policy are the same model."""


class Settings(SimpleNamespace):
    """A section of OpenRLHF's settings; settings that are not given are None."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)


@pytest.fixture
def trainer(monkeypatch, tmp_path, tiny_model):
    """OpenRLHF's PPOTrainer in this process; OpenRLHF itself starts it as a Ray actor."""
    unused = {
        "vllm": {"SamplingParams": SimpleNamespace, "__version__": "0.0.0"},
        "vllm.inputs": {"TokensPrompt": dict},
        "vllm.utils": {"random_uuid": None},
        "flash_attn": {},
        "flash_attn.bert_padding": dict.fromkeys(("index_first_axis", "pad_input", "rearrange", "unpad_input")),
        "flash_attn.utils": {},
        "flash_attn.utils.distributed": {"all_gather": None},
    }
    for name, members in unused.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    from openrlhf.trainer import ppo_trainer
    from openrlhf.utils.deepspeed import DeepspeedStrategy

    data = tmp_path / "prompts.jsonl"
    data.write_text("\n".join(json.dumps({"input": prompt}) for prompt in PROMPTS))
    args = Settings(
        algo=Settings(
            advantage=Settings(estimator="group_norm", gamma=1.0, is_correction_level="off"),
            kl=Settings(init_coef=0.0, estimator="k1"),
        ),
        actor=Settings(num_nodes=1, num_gpus_per_node=1),
        ckpt=Settings(output_dir=str(tmp_path), path=str(tmp_path / "ckpt"), save_steps=-1),
        critic=Settings(freezing_steps=-1),
        data=Settings(prompt_dataset=str(data), prompt_split="train", max_samples=8, input_key="input",
                      dataloader_num_workers=0),
        ds=Settings(ring_attn_size=1, tensor_parallel_size=1, param_dtype="bf16"),
        eval=Settings(steps=-1),
        logger=Settings(
            wandb=Settings(run_name="ppo_1116"), tensorboard_dir=str(tmp_path / "tensorboard"), logging_steps=1
        ),
        reward=Settings(clip_range=(-10.0, 10.0), remote_url="a function"),
        rollout=Settings(batch_size=4, micro_batch_size=4, n_samples_per_prompt=4, max_new_tokens=6),
        train=Settings(seed=0, batch_size=16, num_episodes=6, max_epochs=1),
        vllm=Settings(num_engines=1, tensor_parallel_size=1),
    )  # fmt: skip
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    policy = ray.remote(Policy).remote(str(tiny_model))
    group = object.__new__(ppo_trainer.RayActorGroup)
    group._actor_handlers, group.duplicate_actors = [policy], 1
    adapter.install()
    kind = ppo_trainer.PPOTrainer.__ray_metadata__.modified_class
    strategy = DeepspeedStrategy(args=args)
    yield kind(
        str(tiny_model), strategy, group, None, None, None, [policy], max_new_tokens=6, max_len=64, temperature=1.0
    )
    ray.shutdown()


def test_grpo_in_its_own_loop(trainer, tmp_path, shown):
    trainer.fit()
    folder = tmp_path / "ppo_1116"
    run = rlvitals.open_run(folder)
    steps, rewards = run.series("train/rollout/reward_mean")
    assert list(steps) == list(range(1, 7))
    for step, mean in zip(steps, rewards, strict=True):
        groups = run.rollouts(int(step))
        rollouts = [each for group in groups for each in group.rollouts]
        assert sorted(group.prompt for group in groups) == sorted(PROMPTS)
        assert mean == pytest.approx(sum(each.reward for each in rollouts) / 16)
        assert sum(each.advantage for each in rollouts) == pytest.approx(0.0, abs=1e-4)
    assert (run.status, run.algorithm, run.framework, run.info.total_steps) == ("finished", "grpo", "openrlhf", 6)
    told = ("num_generations", "train_batch_size", "rollout_batch_size", "num_iterations", "num_gpus")
    assert [run.config[name] for name in told] == [4, 16, 4, 1, 2]
    shown("OpenRLHF", version("openrlhf"), "training, 6 steps; actors and engine are the test's", folder)
