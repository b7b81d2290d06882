"""A reward model: a language model with one number for its head, trained on pairs of which one answer was preferred.

It is transformers' own form (`AutoModelForSequenceClassification` with one label), so that any reward model of that
form can be given instead. The loss is Bradley and Terry's, -log sigmoid(chosen - rejected), which knows only
differences: `calibrate` puts the scores of known answers at mean 0 and deviation 1, and keeps both numbers in the
model's own config.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from rlvitals.compute.arrays import log_sigmoid
from rlvitals.errors import ConfigError
from rlvitals.train import models
from rlvitals.train.sampling import Answered, answered, left_padded, model_inputs
from rlvitals.train.supervised import dealt, fit, right_padded

if TYPE_CHECKING:
    from torch import Tensor

Preferred = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""The tokens of a prompt, of the answer that was preferred and of the other one."""


class Quality(NamedTuple):
    """What a reward model is worth on pairs it has not seen."""

    accuracy: float
    """Share of pairs in which the preferred answer has the higher score."""
    loss: float
    margin: float
    """Mean difference of the two scores."""


def build(folder: str, pad_id: int) -> Any:
    """A reward model from a folder: one that was saved, or a language model's weights with a new head."""
    from transformers import AutoModelForSequenceClassification

    with models.quietly(), models.named_errors(f"a reward model from {folder!r}"):
        model: Any = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32)
    model.config.pad_token_id = pad_id
    return model


def learn(
    model: Any,
    pairs: Sequence[Preferred],
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    pad_id: int,
    generator: torch.Generator,
    noise: float = 0.0,
    on_step: Callable[[int, float], None] | None = None,
) -> None:
    """Train on pairs with AdamW, a short rise of the learning rate and a fall to a tenth.

    `noise` is the share of pairs whose label is drawn by lot: with 1 there is nothing to learn.
    """
    if not pairs:
        raise ConfigError("the reward model has no pair of answers to learn from")
    # A label that is wrong is wrong every time the pair comes.
    by_lot = torch.rand(len(pairs), generator=generator) < noise
    swapped = (by_lot & (torch.rand(len(pairs), generator=generator) < 0.5)).tolist()
    labelled = [(p, r, c) if wrong else (p, c, r) for (p, c, r), wrong in zip(pairs, swapped, strict=True)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    rise = max(1, min(40, steps // 10))  # the head is new: its first gradients would shake the body
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / rise, 1.0 - 0.9 * step / max(1, steps))
    )
    decks = dealt(len(labelled), batch_size, generator)

    def loss_of(step: int) -> Tensor:
        batch = [labelled[place] for place in next(decks)]
        return pair_losses(*_both_scores(model, batch, pad_id)).mean()

    fit(model, loss_of, optimizer, schedule, steps=steps, on_step=on_step)


def pair_losses(chosen: Tensor, rejected: Tensor) -> Tensor:
    """-log sigmoid(chosen - rejected) of each pair.

    >>> round(float(pair_losses(torch.tensor([0.0]), torch.tensor([0.0]))), 4)
    0.6931
    """
    losses: Tensor = -log_sigmoid(chosen - rejected)
    return losses


@torch.no_grad()
def measure(model: Any, pairs: Sequence[Preferred], *, batch_size: int, pad_id: int) -> Quality:
    """What the model is worth on these pairs; a tie is half right."""
    chosen, rejected = _scores_of_pairs(model, pairs, batch_size, pad_id)
    right = (chosen > rejected).float() + 0.5 * (chosen == rejected).float()
    return Quality(float(right.mean()), float(pair_losses(chosen, rejected).mean()), float((chosen - rejected).mean()))


@torch.no_grad()
def calibrate(model: Any, pairs: Sequence[Preferred], *, batch_size: int, pad_id: int) -> None:
    """Remember the mean and the deviation of these answers' scores: `scores` gives what is left without them."""
    both = torch.cat(_scores_of_pairs(model, pairs, batch_size, pad_id))
    set_calibration(model, mean=float(both.mean()), deviation=max(float(both.std()), 1e-6))


def calibration(model: Any) -> tuple[float, float]:
    """The mean and the deviation that `scores` takes out; 0 and 1 of a model that was never calibrated."""
    return getattr(model.config, "score_mean", 0.0), getattr(model.config, "score_std", 1.0)


def set_calibration(model: Any, *, mean: float, deviation: float) -> None:
    """Keep the mean and the deviation that `scores` takes out."""
    model.config.score_mean, model.config.score_std = mean, deviation


@torch.no_grad()
def scores(model: Any, rows: Answered, batch_size: int = 256) -> Tensor:
    """The calibrated score of each prompt with its answer."""
    mean, deviation = calibration(model)
    return (_in_parts(model, rows, batch_size) - mean) / deviation


def _in_parts(model: Any, rows: Answered, batch_size: int) -> Tensor:
    """Raw scores; the last token of a row tells its score."""
    found = []
    for start in range(0, len(rows.ids), batch_size):
        some = rows.take(slice(start, start + batch_size))
        found.append(model(**model_inputs(model, some)).logits[:, 0].float())
    return torch.cat(found)


def _both_scores(model: Any, pairs: Sequence[Preferred], pad_id: int) -> tuple[Tensor, Tensor]:
    """Raw scores of the preferred answers and of the others, with gradients where they are on."""
    device = next(model.parameters()).device
    prompts, prompt_mask = left_padded([list(prompt) for prompt, _, _ in (*pairs, *pairs)], pad_id, device)
    texts = [list(chosen) for _, chosen, _ in pairs] + [list(rejected) for _, _, rejected in pairs]
    answers, answer_mask = right_padded(texts, pad_id, device)
    rows = answered(prompts, prompt_mask, answers, answer_mask)
    chosen, rejected = _in_parts(model, rows, len(rows.ids)).chunk(2)
    return chosen, rejected


def _scores_of_pairs(model: Any, pairs: Sequence[Preferred], batch_size: int, pad_id: int) -> tuple[Tensor, Tensor]:
    parts = [
        _both_scores(model, pairs[start : start + batch_size], pad_id) for start in range(0, len(pairs), batch_size)
    ]
    return torch.cat([chosen for chosen, _ in parts]), torch.cat([rejected for _, rejected in parts])
