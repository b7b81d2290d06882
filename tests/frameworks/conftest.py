"""Tests that need another project's package, run by `make frameworks`. `make test` does not include them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rlvitals import open_run

if "RLVITALS_SHOWN" not in os.environ:
    collect_ignore_glob = ["*"]

# No model or data set is downloaded, and W&B is disabled.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", WANDB_MODE="disabled")

PROMPTS = ["the cat ", "the dog ", "a bird ", "my fish "]
GOOD, BAD = "sat on the mat .", "no no no !"
DIALOGUE = "<|im_start|> <|im_end|> system user assistant Human: Assistant: You are a helpful assistant. \n"
"""The text that the frameworks' chat templates put around messages."""


@pytest.fixture(scope="session")
def shown():
    """Write a row of the table in docs/frameworks.md: the tested part of a framework and the content of its run."""
    rows = []

    def show(framework, version, ran, run_path, *, acts="no", users=()):
        """`users`: metric names that the test adds as a user would; they are not the framework's names."""
        view = open_run(run_path)
        ours = ("time/", "memory/", "system/")
        logged = [name for name in view.metrics if not name.startswith(ours) and name not in users]
        unknown = [name for name in logged if view.concept(name) is None]
        rollouts = sum(len(group.rollouts) for step in view.rollout_log.steps for group in view.rollouts(step))
        rows.append(
            {
                "framework": framework, "version": version, "ran": ran, "rows": view.rows, "rollouts": rollouts,
                "names": f"{len(logged) - len(unknown)} of {len(logged)}", "acts": acts, "unknown": unknown,
            }
        )  # fmt: skip

    yield show
    Path(os.environ["RLVITALS_SHOWN"]).write_text(json.dumps(rows), encoding="utf-8")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A folder with a Llama of a few thousand random weights in Hugging Face's format, and its tokenizer."""
    from rlvitals.train import tiny

    folder = tmp_path_factory.mktemp("tiny-model")
    model, tokenizer = tiny.build([*PROMPTS, GOOD, BAD, DIALOGUE], width=16, layers=1, heads=2, context=256)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def ask_for():
    """A rule that requests an action as soon as its condition holds."""

    def rule(action, when):
        return {
            "rule": f"asked_{action}", "kind": "instability", "when": when, "severity": "critical", "warm_up": 1,
            "hold": "1 of 1", "action_critical": action, "certain": action == "stop", "title": "on purpose",
        }  # fmt: skip

    return rule


@pytest.fixture
def answers():
    """The answers to a run's requests, in order: action, answer and text."""

    def given(folder):
        path = Path(folder) / "logs" / "findings.jsonl"
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
        return [(line["action"], line["answer"], line["text"]) for line in lines if line["type"] == "answer"]

    return given
