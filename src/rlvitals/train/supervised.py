"""Next-token warm-up: a model learns the form of an answer from pairs before it is rewarded for the content.

The loss covers only the answer's tokens. All pairs are used once, in shuffled order, before any is repeated, so every
pair is seen equally often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from rlvitals.errors import ConfigError
from rlvitals.train.sampling import answer_stats, answered, left_padded
from rlvitals.train.schedule import adamw

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Pair = tuple[Sequence[int], Sequence[int]]
"""The tokens of a prompt and of its answer, including the end-of-sequence token."""

T = TypeVar("T")
S = TypeVar("S")


class Tokenized(Sequence[T], Generic[S, T]):
    """Texts as tokens, each tokenized when it is first read: a short training reads few of its texts.

    >>> seen = Tokenized(["a", "b"], lambda text: [ord(text)])
    >>> len(seen), seen[1]
    (2, [98])
    """

    def __init__(self, texts: Sequence[S], encode: Callable[[S], T]) -> None:
        self._texts, self._encode = texts, encode
        self._known: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, place: int) -> T:  # type: ignore[override]
        if place not in self._known:
            self._known[place] = self._encode(self._texts[place])
        return self._known[place]


class TrainingCourse(NamedTuple):
    """How long, how fast and in which order a model is trained on examples."""

    steps: int
    batch_size: int
    learning_rate: float
    generator: torch.Generator
    """On the CPU. It determines the order: all examples are used once before any is repeated."""
    on_step: Callable[[int, float], None] | None = None
    """Called with the number of each step, from 1, and its loss."""

    def train(
        self, model: Any, count: int, loss_of: Callable[[list[int]], Tensor], share: Callable[[int], float], *,
        weights: Iterable[Tensor] | None = None,
    ) -> float:  # fmt: skip
        """Train all or some weights of a model with AdamW on batches of `count` examples. `loss_of` receives their
        places, and `share` gives the share of the learning rate at each step (from 0). Returns the last loss.
        """
        trained = model.parameters() if weights is None else weights
        optimizer, schedule = adamw([{"params": trained, "lr": self.learning_rate}], share)
        batches = shuffled_batches(count, self.batch_size, self.generator)
        steps, on_step = self.steps, self.on_step
        return fit(model, lambda _: loss_of(next(batches)), optimizer, schedule, steps=steps, on_step=on_step)


def warm_up(model: PreTrainedModel, pairs: Sequence[Pair], course: TrainingCourse, pad_id: int) -> float:
    """Train on the pairs' answers. The learning rate rises shortly and falls to a tenth. Returns the last loss."""
    rise = max(1, min(20, course.steps // 10))

    def share(step: int) -> float:
        return min((step + 1) / rise, 1.0 - 0.9 * max(0, step - rise) / max(1, course.steps - rise))

    def loss_of(places: list[int]) -> Tensor:
        return answer_loss(model, [pairs[place] for place in places], pad_id)

    return course.train(model, len(pairs), loss_of, share)


def fit(
    model: Any,
    loss_of: Callable[[int], Tensor],
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    *,
    steps: int,
    on_step: Callable[[int, float], None] | None = None,
) -> float:
    """Make optimizer steps (from 1) on the loss of each, with gradients clipped to norm 1. Returns the last loss.
    `on_step(step, loss)` is called after each.
    """
    was_training, loss = model.training, float("nan")
    model.train()
    for step in range(1, steps + 1):
        now = loss_of(step)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(now)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        loss = float(now.detach())
        if on_step is not None:
            on_step(step, loss)
    model.train(was_training)
    return loss


def answer_loss(model: PreTrainedModel, pairs: Sequence[Pair], pad_id: int) -> Tensor:
    """Mean negative log-prob of the answers' tokens."""
    device = next(model.parameters()).device
    prompts, prompt_mask = left_padded([list(prompt) for prompt, _ in pairs], pad_id, device)
    answers, answer_mask = right_padded([list(answer) for _, answer in pairs], pad_id, device)
    stats = answer_stats(model, answered(prompts, prompt_mask, answers, answer_mask))
    return -(stats.logprobs * answer_mask).sum() / answer_mask.sum()


def right_padded(rows: list[list[int]], pad_id: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Token lists as ids and mask, [rows, longest], padded on the right.

    >>> ids, mask = right_padded([[5], [6, 7]], pad_id=0)
    >>> ids.tolist(), mask.tolist()
    ([[5, 0], [6, 7]], [[1, 0], [1, 1]])
    """
    longest = max(len(row) for row in rows)
    ids = [list(row) + [pad_id] * (longest - len(row)) for row in rows]
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def shuffled_batches(count: int, batch_size: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Indices below `count`, `batch_size` at a time, without end. Each shuffled pass contains every index once.

    >>> batches = shuffled_batches(3, 2, torch.Generator().manual_seed(0))
    >>> sorted(next(batches) + next(batches) + next(batches))
    [0, 0, 1, 1, 2, 2]
    """
    if not count:
        raise ConfigError("there are no examples to learn from")
    waiting: list[int] = []
    while True:
        while len(waiting) < batch_size:
            waiting += torch.randperm(count, generator=generator).tolist()
        yield waiting[:batch_size]
        waiting = waiting[batch_size:]
