"""TRL's GRPOTrainer with an environment: the mini mailbox, recorded and monitored by VitalsCallback.

    pip install 'rlvitals[train]'
    python examples/trl_mailbox.py out/trl-mailbox [--steps 20] [--learning-rate 5e-4] [--seed 0]
    rlvitals check out/trl-mailbox

It is the task of `rlvitals train grpo`, with the same episodes, rewards and starting model, in TRL's loop: TRL calls
the environment's methods as tools and masks out what they return. Takes two minutes on a laptop.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a model this small is slower with threads; before torch
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # environments are new in TRL, and it warns at every turn

import datasets
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from rlvitals.adapters.transformers import VitalsCallback
from rlvitals.train import models
from rlvitals.train.grpo import warm_start
from rlvitals.train.mailbox.episode import Episode
from rlvitals.train.mailbox.tools import UnreadableCall, read_text
from rlvitals.train.mailbox.worlds import mini

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}"
    "{% for call in message.get('tool_calls', []) %}<{{ call.function.name }}>{{ call.function.arguments }}{% endfor %}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""The template of the tiny model, with tool calls: TRL checks that a template supports them."""


class Inbox:
    """One conversation about one question. TRL makes as many as it needs and resets them."""

    def reset(self, **kwargs: Any) -> None:
        """Start again with the mailbox that a row of the data set names."""
        made = mini(kwargs["world"])
        self.episode = Episode(made.questions[0], made.mailbox, max_turns=6, style="tags")

    def search_emails(self, keywords: list[str]) -> str:
        """Search the mailbox.

        Args:
            keywords: Words that must all be in a message.

        Returns:
            The messages that were found.
        """
        return self._call("search_emails", {"keywords": keywords})

    def read_email(self, message_id: str) -> str:
        """Read one message.

        Args:
            message_id: An id that a search gave.

        Returns:
            What the message says.
        """
        return self._call("read_email", {"message_id": message_id})

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        seen = self.episode.step({"tool_calls": [{"function": {"name": name, "arguments": arguments}}]})
        return seen[0].content if seen else "nothing"


def mailbox_reward(completions: list[Any], environments: list[Inbox], **_: Any) -> list[float | None]:
    """Submit the last message, which is the answer, and add up the reward of the episode."""
    for completion, inbox in zip(completions, environments, strict=True):
        inbox.episode.step(completion[-1].get("content") or "")
    return [sum(inbox.episode.reward().values()) for inbox in environments]


def correct(environments: list[Inbox], **_: Any) -> list[float | None]:
    """Share of right answers; only logged, not rewarded."""
    return [float(inbox.episode.rubric.answer_correct) for inbox in environments]


def tags_as_calls(tokenizer: Any) -> Any:
    """Make a tokenizer parse the tiny model's tags. The answer stays a text: it ends the conversation."""

    def parse_response(ids: list[int], **_: Any) -> dict[str, Any]:
        text = tokenizer.decode(ids, skip_special_tokens=True)
        try:
            calls = [call for call in read_text(text) if call.name in ("search_emails", "read_email")]
        except UnreadableCall:
            calls = []
        listed = [{"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls]
        return {"role": "assistant", "content": "" if listed else text} | ({"tool_calls": listed} if listed else {})

    tokenizer.chat_template = TEMPLATE
    tokenizer.response_template = {}  # set, so TRL does not look for another
    tokenizer.parse_response = parse_response
    return tokenizer


def build(
    model: Any, tokenizer: Any, folder: str, *, steps: int, learning_rate: float, seed: int = 0, **more: Any
) -> Any:
    """TRL's trainer for this task; `more` are further arguments of its config."""
    datasets.disable_progress_bars()
    asked = []
    for world in range(seed * 100_000, seed * 100_000 + 8 * steps):
        made = mini(world)
        asked.append({"prompt": [{"role": "user", "content": made.questions[0].question}], "world": world})
        made.mailbox.close()
    config = {
        "output_dir": folder, "max_steps": steps, "learning_rate": learning_rate, "seed": seed,
        "per_device_train_batch_size": 64, "num_generations": 8, "max_completion_length": 200,
        "max_tool_calling_iterations": 6, "reward_weights": [1.0, 0.0], "beta": 0.01, "logging_steps": 1,
        "save_steps": steps, "report_to": [], "bf16": False, "disable_tqdm": True, **more,
    }  # fmt: skip
    trainer = GRPOTrainer(
        model,
        [mailbox_reward, correct],
        args=GRPOConfig(**config),
        train_dataset=datasets.Dataset.from_list(asked),
        processing_class=tags_as_calls(tokenizer),
        environment_factory=Inbox,
        callbacks=[VitalsCallback(display="auto")],
    )
    trainer.remove_callback(PrinterCallback)  # the display below is enough
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    model, tokenizer = models.load(str(warm_start.SHIPPED["careless"]), None)
    how = {"steps": given.steps, "learning_rate": given.learning_rate, "seed": given.seed}
    build(model, tokenizer, given.output_dir, **how, use_cpu=True).train()


if __name__ == "__main__":
    main()
