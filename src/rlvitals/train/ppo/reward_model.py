"""A reward model: a language model whose head outputs one number, trained on pairs of which one answer was preferred.

It has the format of transformers (`AutoModelForSequenceClassification` with one label), so that any reward model of
that format can be used instead. The loss is Bradley and Terry's, -log sigmoid(chosen - rejected), which depends only on
differences. Therefore `calibrate` stores the mean and the deviation of given scores in the model's config, and `scores`
normalises with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from rlvitals.compute.arrays import log_sigmoid
from rlvitals.train import models
from rlvitals.train.sampling import Answered, answered, left_padded, model_inputs
from rlvitals.train.schedule import rise_and_fall
from rlvitals.train.supervised import TrainingCourse, right_padded

if TYPE_CHECKING:
    from torch import Tensor

Preferred = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""The tokens of a prompt, the preferred answer and the other answer."""


def build(folder: str, pad_id: int) -> Any:
    """A reward model from a folder: one that was saved, or a language model's weights with a new head."""
    from transformers import AutoModelForSequenceClassification

    with models.quietly(), models.named_errors(f"a reward model from {folder!r}"):
        model: Any = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32)
    model.config.pad_token_id = pad_id
    return model


def learn(model: Any, pairs: Sequence[Preferred], course: TrainingCourse, pad_id: int, noise: float = 0.0) -> None:
    """Train on pairs with AdamW. The learning rate rises for a short time and then falls to a tenth.

    `noise` is the share of pairs whose label is drawn at random: with 1 there is nothing to learn.
    """
    # Labels are drawn once, so that a wrong label is wrong in every epoch.
    is_random = torch.rand(len(pairs), generator=course.generator) < noise
    swapped = (is_random & (torch.rand(len(pairs), generator=course.generator) < 0.5)).tolist()

    def labelled(place: int) -> Preferred:
        prompt, chosen, rejected = pairs[place]
        return (prompt, rejected, chosen) if swapped[place] else (prompt, chosen, rejected)

    def loss_of(places: list[int]) -> Tensor:
        return pair_losses(*_both_scores(model, list(map(labelled, places)), pad_id)).mean()

    # A longer warm-up: the head is new, and its first gradients would disturb the trained body.
    course.train(model, len(pairs), loss_of, rise_and_fall(course.steps, 40))


def pair_losses(chosen: Tensor, rejected: Tensor) -> Tensor:
    """-log sigmoid(chosen - rejected) of each pair.

    >>> round(float(pair_losses(torch.tensor([0.0]), torch.tensor([0.0]))), 4)
    0.6931
    """
    losses: Tensor = -log_sigmoid(chosen - rejected)
    return losses


def accuracy(chosen: Tensor, rejected: Tensor) -> float:
    """The share of pairs in which the preferred answer has the higher score. A tie counts half.

    >>> accuracy(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 1.0]))
    0.75
    """
    return float(((chosen > rejected).float() + 0.5 * (chosen == rejected).float()).mean())


def calibrate(model: Any, raw: Tensor) -> None:
    """Store the mean and the deviation of these raw scores; `scores` normalises with them."""
    set_calibration(model, mean=float(raw.mean()), deviation=max(float(raw.std()), 1e-6))


def calibration(model: Any) -> tuple[float, float]:
    """The mean and the deviation that `scores` normalises with; 0 and 1 for a model that was never calibrated."""
    return getattr(model.config, "score_mean", 0.0), getattr(model.config, "score_std", 1.0)


def set_calibration(model: Any, *, mean: float, deviation: float) -> None:
    """Store the mean and the deviation that `scores` normalises with."""
    model.config.score_mean, model.config.score_std = mean, deviation


@torch.no_grad()
def scores(model: Any, rows: Answered, batch_size: int = 256) -> Tensor:
    """The calibrated score of each prompt with its answer."""
    mean, deviation = calibration(model)
    return (_in_parts(model, rows, batch_size) - mean) / deviation


def _in_parts(model: Any, rows: Answered, batch_size: int) -> Tensor:
    """Raw scores, computed in parts. The score is read at the last token of a row."""
    found = []
    for start in range(0, len(rows.ids), batch_size):
        some = rows.take(slice(start, start + batch_size))
        found.append(model(**model_inputs(model, some)).logits[:, 0].float())
    return torch.cat(found)


def _both_scores(model: Any, pairs: Sequence[Preferred], pad_id: int) -> tuple[Tensor, Tensor]:
    """Raw scores of the preferred answers and of the others, with gradients if enabled."""
    device = next(model.parameters()).device
    prompts, prompt_mask = left_padded([list(prompt) for prompt, _, _ in (*pairs, *pairs)], pad_id, device)
    texts = [list(chosen) for _, chosen, _ in pairs] + [list(rejected) for _, _, rejected in pairs]
    answers, answer_mask = right_padded(texts, pad_id, device)
    rows = answered(prompts, prompt_mask, answers, answer_mask)
    chosen, rejected = _in_parts(model, rows, len(rows.ids)).chunk(2)
    return chosen, rejected


@torch.no_grad()
def scores_of_pairs(model: Any, pairs: Sequence[Preferred], *, batch_size: int, pad_id: int) -> tuple[Tensor, Tensor]:
    """Raw scores of the preferred answers and of the others."""
    parts = [
        _both_scores(model, pairs[start : start + batch_size], pad_id) for start in range(0, len(pairs), batch_size)
    ]
    return torch.cat([chosen for chosen, _ in parts]), torch.cat([rejected for _, rejected in parts])
