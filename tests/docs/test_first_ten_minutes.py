"""The first ten minutes of a new user at a terminal: a plain loop, a TRL script, a log of another tool.

The important output is compared word by word: the alarm that appears by default, the verdict, the next command. That
command is then run as printed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

LOOP = """
import rlvitals

with rlvitals.start("out/loop", total_steps=80, config={"learning_rate": 0.03}) as run:
    loss = 1.0
    for step in range(80):
        loss *= 1.7 if step > 20 else 0.98
        run.log({"loss": loss, "grad_norm": loss}, step=step)
"""

GRPO = """
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from rlvitals.adapters.transformers import VitalsCallback
from rlvitals.train import tiny

prompts = ["the cat ", "the dog ", "a bird ", "my fish "]
model, tokenizer = tiny.build([*prompts, "sat on the mat ."], width=16, layers=1, heads=2, context=64, seed=0)


def reward(completions, **_):
    return [0.0 for _ in completions]  # a verifier that never finds an answer


trainer = GRPOTrainer(
    model,
    reward_funcs=reward,
    args=GRPOConfig(
        output_dir="out/grpo", max_steps=16, logging_steps=1, learning_rate=1e-3, max_completion_length=4,
        num_generations=2, per_device_train_batch_size=2, save_strategy="no", report_to=[], use_cpu=True, bf16=False,
        disable_tqdm=True,
    ),
    train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts * 8]),
    processing_class=tokenizer,
    callbacks=[VitalsCallback()],
)
trainer.train()
"""


def run(folder, *command):
    """Runs a command: its exit code, stdout and stderr."""
    environment = {**os.environ, "COLUMNS": "200", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run([*command], cwd=folder, capture_output=True, encoding="utf-8", check=False, env=environment)
    return done.returncode, done.stdout, done.stderr


def script(folder, text):
    (folder / "train.py").write_text(text)
    return run(folder, sys.executable, "train.py")


def rlvitals(folder, *words):
    return run(folder, sys.executable, "-m", "rlvitals.cli.main", *words)


def last_word(err):
    """The last line of rlvitals; libraries may print more after it."""
    return next(line for line in reversed(err.splitlines()) if line.startswith("rlvitals "))


def printed_command(line):
    """The command at the end of a line, as a user would copy it."""
    return shlex.split(re.search(r"rlvitals (check \S+)$", line)[1])


def test_a_plain_loop_whose_loss_explodes(tmp_path):
    code, out, err = script(tmp_path, LOOP)
    assert (code, out) == (0, "")
    said = err.splitlines()
    assert said[0] == "rlvitals ! warning at step 27: the loss rises: 1.62 against 0.859 at the start, since step 22"
    assert said[1] == "  do: revert to the checkpoint before the rise and halve learning_rate (0.03 -> 0.015)"
    assert any(line.startswith("rlvitals ✖ critical at step 31: the loss rises: 3.51 against 0.859") for line in said)
    assert said[-1] == (
        "rlvitals ✖ act: the gradient norm is 53 times its initial value, since step 22 (and 2 more). "
        "rlvitals check out/loop"
    )
    code, out, err = rlvitals(tmp_path, *printed_command(said[-1]))
    assert code == 2
    assert out.startswith("✖ ACT  2 critical findings, 1 warning; first: grad explosion, since step 22")
    assert "80 rows | steps 0 to 79" in out
    assert "halve learning_rate (0.03 -> 0.015)" in out
    # Run again, the script fails when it opens the run, before any training, and the error names the options.
    code, _, err = run(tmp_path, sys.executable, "train.py")
    assert code == 1
    assert "out/loop holds a run already. Pass resume=True to continue with it" in err.splitlines()[-1]


@pytest.mark.slow
def test_a_trl_script_of_thirty_lines(tmp_path):
    code, _, err = script(tmp_path, GRPO)
    assert code == 0, err
    last = last_word(err)
    assert re.match(r"rlvitals ✖ act: .+, since step \d+", last), err
    code, out, _ = rlvitals(tmp_path, *printed_command(last))
    assert code == 2
    assert out.startswith("✖ ACT  ")
    assert "16 rows | steps 1 to 16 | a recorded run | algorithm grpo" in out
    # Run again, the script keeps the old run and records the new one next to it.
    code, _, err = run(tmp_path, sys.executable, "train.py")
    assert code == 0, err
    assert "out/grpo holds a run already; this training is recorded in" in err
    assert printed_command(last_word(err)) == ["check", "out/grpo-2"]
    code, out, _ = rlvitals(tmp_path, "runs", "out")
    assert code == 0
    assert [line.split()[:3] for line in out.splitlines()[2:4]] == [
        ["out/grpo", "act", "finished"],
        ["out/grpo-2", "act", "finished"],
    ]


def test_a_log_that_another_tool_wrote(tmp_path):
    history = [
        {"step": step, "loss": 0.5, "reward": 0.4, "grad_norm": 1.0 if step < 40 else float("nan")}
        for step in range(1, 61)
    ]
    state = {"global_step": 60, "max_steps": 100, "log_history": history}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "trainer_state.json").write_text(json.dumps(state))
    code, out, err = rlvitals(tmp_path, "check", "run")
    assert code == 2
    assert out.startswith("✖ ACT  ")
    assert "grad_norm is not a finite number" in out
    assert "60 rows | steps 1 to 60 | trainer_state log" in out
    code, out, err = rlvitals(tmp_path, "runs", ".")
    assert (code, err) == (0, "")
    assert out.splitlines()[2].split()[:5] == ["run", "act", "trainer_state", "log", "grpo"]
