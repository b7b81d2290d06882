"""ms-swift's own `swift sft` and `swift rlhf`, with the plug-in file that a user writes."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest

import rlvitals

PLUGIN = """
from rlvitals.adapters import ms_swift
from swift.rewards import ORM, orms

ms_swift.register(actions="act", rules=[{rules}])


class Short(ORM):
    def __call__(self, completions, **rest):
        return [-float(len(text.split())) for text in completions]


orms["short"] = Short
"""
SENTENCES = [("the cat ", "sat on the mat ."), ("the dog ", "sat on the mat ."), ("a bird ", "no no no !")]


@pytest.fixture
def train(tiny_model, tmp_path):
    """Run one of ms-swift's commands on the tiny model; returns the folder of its run."""

    def run(main, rows, *options, rules="", steps=6):
        data, plugin, out = tmp_path / "data.jsonl", tmp_path / "vitals.py", tmp_path / "out"
        data.write_text("\n".join(json.dumps(row) for row in rows * 20))
        plugin.write_text(PLUGIN.format(rules=rules))
        main(
            [
                *("--model", str(tiny_model), "--model_type", "llama", "--template", "qwen"),
                *("--dataset", str(data), "--output_dir", str(out), "--add_version", "false"),
                *("--external_plugins", str(plugin), "--callbacks", "rlvitals"),
                *("--max_steps", str(steps), "--logging_steps", "1", "--per_device_train_batch_size", "4"),
                *("--tuner_type", "full", "--torch_dtype", "float32", "--use_hf", "true", "--report_to", "none"),
                *("--gradient_accumulation_steps", "1", "--load_from_cache_file", "false", "--use_cpu", "true"),
                *("--dataloader_num_workers", "0", "--dataset_num_proc", "1", "--split_dataset_ratio", "0"),
                *options,
            ]
        )
        return out

    return run


def messages(prompt, answer=None):
    told = [{"role": "user", "content": prompt}]
    return {"messages": told if answer is None else [*told, {"role": "assistant", "content": answer}]}


def test_sft(train, shown):
    from swift.pipelines import sft_main

    folder = train(sft_main, [messages(*pair) for pair in SENTENCES])
    run = rlvitals.open_run(folder)
    assert list(run.series("loss")[0]) == [1, 2, 3, 4, 5, 6]
    assert (run.framework, run.status) == ("ms_swift", "finished")
    shown("ms-swift sft", version("ms-swift"), "training, 6 steps", folder, acts="stop, save, rate, revert")


def test_grpo_with_its_completions(train, shown):
    from swift.pipelines import rlhf_main

    folder = train(
        rlhf_main,
        [messages(prompt) for prompt, _ in SENTENCES],
        *("--rlhf_type", "grpo", "--reward_funcs", "short", "--num_generations", "4", "--max_completion_length", "8"),
    )
    run = rlvitals.open_run(folder)
    assert list(run.series("reward")[0]) == [1, 2, 3, 4, 5, 6]
    assert (run.framework, run.algorithm) == ("ms_swift", "grpo")
    for step, mean in zip(*run.series("reward"), strict=True):
        rewards = [rollout.reward for group in run.rollouts(int(step)) for rollout in group.rollouts]
        assert len(rewards) == 4
        assert sum(rewards) / 4 == pytest.approx(mean, abs=1e-6)
    shown("ms-swift grpo", version("ms-swift"), "training, 6 steps", folder, acts="stop, save, rate, revert")


def test_a_critical_finding_stops_it(train, ask_for):
    from swift.pipelines import sft_main

    folder = train(sft_main, [messages(*pair) for pair in SENTENCES], rules=ask_for("stop", "loss > 0"), steps=30)
    assert rlvitals.open_run(folder).last_step < 30
