"""What GRPO starts from: the tiny model of the package, one that is warmed up here, or any other model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rlvitals.store.layout import kept_folder
from rlvitals.train import models, warm_mailbox
from rlvitals.train.agent_dialogue import Dialogue
from rlvitals.train.agent_tasks import Tasks, episode_of
from rlvitals.train.grpo_settings import Settings
from rlvitals.train.mailbox.episode import Style
from rlvitals.train.mailbox.grade import token_recall
from rlvitals.train.mailbox.records import Question
from rlvitals.train.mailbox.tools import TOOLS
from rlvitals.train.warm_mailbox import Example

FOLDER = "warm_start"


def style_of(settings: Settings) -> Style:
    """How episodes talk to this model."""
    return "tags" if settings.is_tiny else "chat"


def dialogue_of(settings: Settings, tokenizer: Any) -> Dialogue:
    """How the model is spoken to. Where one message is all there is, the answer is the only tool."""
    if style_of(settings) == "tags":
        return Dialogue(tokenizer, None)
    return Dialogue(tokenizer, TOOLS[-1:] if settings.mode == "simple" else TOOLS)


def start_of(settings: Settings, tasks: Tasks, device: Any, *, is_anew: bool) -> models.Loaded:
    """The model before GRPO. One that was warmed up is kept in the run's folder: the KL is to it."""
    if settings.warm_up_steps is None:
        if settings.is_tiny:
            return models.load(str(warm_mailbox.SHIPPED), None)
        return models.load(settings.model, settings.model_size)
    folder = kept_folder(settings.output_dir) / FOLDER
    return models.keep(folder, lambda: _warmed_up(settings, tasks, device), anew=is_anew)


def _warmed_up(settings: Settings, tasks: Tasks, device: Any) -> models.Loaded:
    steps, batch = settings.warm_up_steps or 0, settings.warm_up_batch
    if settings.is_tiny:
        loaded = warm_mailbox.build(settings.seed)
        dialogue = dialogue_of(settings, loaded.tokenizer)
        deal = warm_mailbox.lessons(dialogue, steps=steps, batch=batch, seed=settings.seed)
    else:
        loaded = models.load(settings.model, settings.model_size)
        deal = _demonstrations(settings, tasks, dialogue := dialogue_of(settings, loaded.tokenizer))
    loaded.model.to(device)
    rate = settings.warm_up_learning_rate or (warm_mailbox.RATE if settings.is_tiny else 2e-5)
    warm_mailbox.teach(loaded.model, dialogue, deal, steps=steps, rate=rate)
    return loaded


def _demonstrations(settings: Settings, tasks: Tasks, dialogue: Dialogue) -> Callable[[int], list[Example]]:
    """Questions of training, answered as they should be."""

    def deal(step: int) -> list[Example]:
        examples = []
        for task in tasks.batch(step, settings.warm_up_batch, 1_000_000):
            episode = episode_of(task, settings, token_recall, "chat")
            calls = demonstration(task.question)
            examples.append(Example(dialogue, episode, calls[-1:] if settings.mode == "simple" else calls))
        return examples

    return deal


def demonstration(question: Question) -> list[str]:
    """The messages of an agent that knows how, as tool calls in JSON.

    >>> from rlvitals.train.mailbox.records import Question
    >>> asked = Question("1", "Where?", "Here", ("m7",), "me@x.y", searches=(("falcon", "room"),))
    >>> print(demonstration(asked)[1])
    <tool_call>
    {"name": "read_email", "arguments": {"message_id": "m7"}}
    </tool_call>
    """
    calls: list[tuple[str, dict[str, Any]]] = []
    for keywords, message_id in zip(question.searches, question.message_ids, strict=True):
        calls.append(("search_emails", {"keywords": list(keywords)}))
        calls.append(("read_email", {"message_id": message_id}))
    final = {"answer": question.answer, "source_message_ids": list(question.message_ids)}
    calls.append(("return_final_answer", final))
    written = (json.dumps({"name": name, "arguments": given}, ensure_ascii=False) for name, given in calls)
    return [f"<tool_call>\n{text}\n</tool_call>" for text in written]
