"""Any step-logged run epoch by epoch: aggregates that weight every sample equally, trends, and the verdict at the end.

Values that carry their counts are merged exactly. Plain numbers are weighted by the samples of their row if the run
logs them, and by rows otherwise. The result names the weighting.
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
from rlvitals.views.epoch_trend import EpochTrend, TrendVerdict, judge
from rlvitals.views.query import OUTCOMES, StoredRun

WEIGHTS: tuple[Weight, ...] = get_args(Weight)

LOSS = "train.loss"
GOALS = (*OUTCOMES, LOSS)
"""The metric that the verdict is about: the first of these that the run logs."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch's aggregates."""

    epoch: int
    first_step: int
    last_step: int
    rows: int
    metrics: dict[str, float]
    """`Epoch/AvgReward` and similar metrics, as far as they are known."""
    values: dict[str, float]
    """Every metric under its logged name."""
    nonfinite: dict[str, int] = field(default_factory=dict)
    """The number of NaN and infinite values, by name. They are not aggregated."""


@dataclass(frozen=True)
class Epochs(Sequence[Epoch]):
    """A run's epochs, in order, and the verdict on them."""

    epochs: list[Epoch]
    told_by: str
    """What the epochs were derived from."""
    reward: str | None
    """The logged name of the reward. `loss` is that of the loss."""
    loss: str | None
    weights: dict[str, Weight]
    """The weighting of each metric's average."""
    variance: str | None
    """What `Epoch/RewardVariance` was computed from."""
    verdict: EpochTrend
    why: str

    @property
    def weighted_by(self) -> Weight:
        """The roughest weighting of reward and loss, or of all metrics if there is neither."""
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
        told_by=table.derived_from,
        reward=reward,
        loss=loss,
        weights={name: found.weight for name, found in sums.items()},
        variance=made_from if variance else None,
        verdict=ending.verdict,
        why=ending.why,
    )


class _Derived:
    """The values derived from the aggregates: the `Epoch/*` metrics of the RLAIF document and the verdict."""

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
        """One epoch's metrics of the RLAIF document. Trends are positive if the value improved."""
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

    def ending(self) -> TrendVerdict:
        """The verdict on the first goal that the run logs."""
        goal = next((name for concept in GOALS if (name := self._table.named(concept)) is not None), None)
        if goal is None:
            return TrendVerdict("cannot judge", "the run logs neither a reward nor a loss")
        better = -1.0 if self._table.view.concept(goal) == LOSS else 1.0
        means = self._in_concept(goal)
        places = sorted(means)
        errors = self._table.errors(goal, self._variance if better > 0 else {})[places]
        values = better * np.array([means[place] for place in places])
        label = "the loss (less is better, so its fall is a rise here)" if better < 0 else goal
        return judge(label, values, errors, self._scale(goal, values))

    def _in_concept(self, name: str | None) -> dict[int, float]:
        if name is None:
            return {}
        meaning = self._table.view.meaning(name)
        return {place: catalog.to_concept(meaning, number) for place, number in self._sums[name].values.items()}

    def _scale(self, goal: str, values: FieldArray) -> tuple[float, float] | None:
        """The lowest and highest possible reward: from the settings, or 0 to 1 if the values of all epochs are in this
        range.
        """
        if self._table.view.concept(goal) != REWARD:
            return None
        settings = by_last_name(self._table.view.config)
        low, high = settings.get("reward_min", 0.0), settings.get("reward_max")
        if isinstance(high, int | float) and isinstance(low, int | float):
            return float(low), float(high)
        return (0.0, 1.0) if len(values) and values.min() >= 0 and values.max() <= 1 else None


def _rise(values: dict[int, float], place: int) -> float | None:
    """The difference between an epoch's value and that of the last earlier epoch that has one."""
    before = max((at for at in values if at < place), default=None)
    return None if before is None or place not in values else values[place] - values[before]
