"""Any step-logged run epoch by epoch: aggregates that weigh every sample alike, trends, and the verdict at the end.

Values that carry their counts are merged exactly; plain numbers are weighted by the samples of their row where the run
tells them, and by rows otherwise. Which of these was done is part of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import cast, get_args, overload

import numpy as np

from rlvitals import catalog
from rlvitals.config import by_last_name
from rlvitals.contract import EpochFacts, EpochsFacts
from rlvitals.store.chunks import FieldArray
from rlvitals.views.epoch_rows import REWARD, EpochRows, Sums, Weight
from rlvitals.views.epoch_trend import Ending, Trend, judge
from rlvitals.views.query import StoredRun

WEIGHTS: tuple[Weight, ...] = get_args(Weight)

LOSS = "train.loss"
GOALS = (REWARD, "pref.reward.margin", LOSS)
"""What the verdict is about: the first of these that the run logs."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch's aggregates."""

    epoch: int
    first_step: int
    last_step: int
    rows: int
    metrics: dict[str, float]
    """`Epoch/AvgReward` and its like, as far as they are known."""
    values: dict[str, float]
    """Every metric under its logged name."""
    nonfinite: dict[str, int] = field(default_factory=dict)
    """Values that were NaN or infinite and take no part, by name."""


@dataclass(frozen=True)
class Epochs(Sequence[Epoch]):
    """A run's epochs, in order, and what they say together."""

    epochs: list[Epoch]
    told_by: str
    """What says where an epoch ends."""
    reward: str | None
    """The logged name of the reward; likewise the loss."""
    loss: str | None
    weights: dict[str, Weight]
    """What each metric's average is weighted by."""
    variance: str | None
    """What `Epoch/RewardVariance` was made from."""
    verdict: Trend
    why: str

    @property
    def weighted_by(self) -> Weight:
        """The roughest weight among reward and loss; of all metrics where there is neither."""
        shown = [name for name in (self.reward, self.loss) if name is not None] or list(self.weights)
        return max((self.weights[name] for name in shown), key=WEIGHTS.index, default="rows")

    def __len__(self) -> int:
        return len(self.epochs)

    @overload
    def __getitem__(self, place: int) -> Epoch: ...
    @overload
    def __getitem__(self, place: slice) -> list[Epoch]: ...
    def __getitem__(self, place: int | slice) -> Epoch | list[Epoch]:
        return self.epochs[place]

    def to_dict(self) -> EpochsFacts:
        """Plain data with stable keys."""
        return {
            "verdict": self.verdict,
            "why": self.why,
            "weighted_by": self.weighted_by,
            "variance": self.variance,
            "told_by": self.told_by,
            "reward": self.reward,
            "loss": self.loss,
            "epochs": [cast(EpochFacts, asdict(epoch)) for epoch in self.epochs],
            "weights": self.weights,
        }


def gather(view: StoredRun, steps_per_epoch: int | None = None, by: str | None = None) -> Epochs:
    """The epochs of a run's living training rows."""
    table = EpochRows(view, steps_per_epoch, by)
    sums = {name: table.sum_up(name) for name in table.columns.names}
    reward, loss = table.named(REWARD), table.named(LOSS)
    variance, made_from = table.variance(reward)
    derived = _Derived(table, sums, reward, loss, variance)
    ending = derived.ending()
    return Epochs(
        epochs=[
            Epoch(
                epoch=int(label),
                first_step=int(table.steps[table.labels == label].min()),
                last_step=int(table.steps[table.labels == label].max()),
                rows=int((table.labels == label).sum()),
                metrics=derived.metrics(place),
                values={name: found.values[place] for name, found in sums.items() if place in found.values},
                nonfinite={name: found.nonfinite[place] for name, found in sums.items() if place in found.nonfinite},
            )
            for place, label in enumerate(table.epochs)
        ],
        told_by=table.told_by,
        reward=reward,
        loss=loss,
        weights={name: found.weight for name, found in sums.items()},
        variance=made_from if variance else None,
        verdict=ending.verdict,
        why=ending.why,
    )


class _Derived:
    """What is made from the aggregates: the document's `Epoch/*` metrics and the verdict."""

    def __init__(
        self,
        table: EpochRows,
        sums: dict[str, Sums],
        reward: str | None,
        loss: str | None,
        variance: dict[int, float],
    ) -> None:
        self._table = table
        self._sums = sums
        self._rewards = self._in_concept(reward)
        self._losses = self._in_concept(loss)
        self._variance = variance
        self._tokens = self._in_concept(table.named("reward.api_tokens"))
        self._samples = table.count_samples(reward)

    def metrics(self, place: int) -> dict[str, float]:
        """One epoch's metrics of the RLAIF document; trends are positive when it got better."""
        found = {
            "Epoch/AvgReward": self._rewards.get(place),
            "Epoch/AvgLoss": self._losses.get(place),
            "Epoch/RewardVariance": self._variance.get(place),
            "Epoch/RewardTrend": _rise(self._rewards, place),
            "Epoch/LossTrend": _rise({at: -loss for at, loss in self._losses.items()}, place),
            "Epoch/APITokens": self._tokens.get(place),
            "Epoch/NumSamples": self._samples.get(place),
        }
        return {name: number for name, number in found.items() if number is not None}

    def ending(self) -> Ending:
        """The verdict on the first goal the run logs."""
        goal = next((name for concept in GOALS if (name := self._table.named(concept)) is not None), None)
        if goal is None:
            return Ending("cannot judge", "the run logs neither a reward nor a loss")
        better = -1.0 if self._table.view.concept(goal) == LOSS else 1.0
        means = self._in_concept(goal)
        places = sorted(means)
        errors = self._table.errors(goal, self._variance if better > 0 else {})[places]
        values = better * np.array([means[place] for place in places])
        said = "the loss (less is better, so its fall is a rise here)" if better < 0 else goal
        return judge(said, values, errors, self._scale(goal, values))

    def _in_concept(self, name: str | None) -> dict[int, float]:
        if name is None:
            return {}
        meaning = self._table.view.meaning(name)
        return {place: catalog.to_concept(meaning, number) for place, number in self._sums[name].values.items()}

    def _scale(self, goal: str, values: FieldArray) -> tuple[float, float] | None:
        """The lowest and highest reward there can be: as the settings say, or 0 to 1 where every row lies there."""
        if self._table.view.concept(goal) != REWARD:
            return None
        said = by_last_name(self._table.view.config)
        low, high = said.get("reward_min", 0.0), said.get("reward_max")
        if isinstance(high, int | float) and isinstance(low, int | float):
            return float(low), float(high)
        return (0.0, 1.0) if len(values) and values.min() >= 0 and values.max() <= 1 else None


def _rise(values: dict[int, float], place: int) -> float | None:
    """By how much an epoch's value lies above that of the last epoch before it that has one."""
    before = max((at for at in values if at < place), default=None)
    return None if before is None or place not in values else values[place] - values[before]
