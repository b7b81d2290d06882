"""The step of console rows that do not say it: from the training's progress bar, else counted on."""

from __future__ import annotations

from rlvitals.store.importers.base import Fields
from rlvitals.store.importers.padding import family
from rlvitals.store.importers.progress import Bar

_STEPS = ("step", "global_step", "train/global_step", "training/global_step", "system/step")


class Clock:
    """Stamps rows with steps. Knows that a training began anew, so that steps may go back."""

    def __init__(self) -> None:
        self.counted = 0
        """Rows that neither said their step nor followed a moving bar."""
        self._last = 0
        self._bars: dict[int, Bar] = {}
        self._total: int | None = None
        self._epoch = 0.0
        self.has_ended = False
        """Whether the summary of a finished training was the last row."""

    @property
    def total(self) -> int | None:
        """The training's steps in all, once a banner or the bar that moves with the rows has told."""
        return self._total

    def announce(self, total: int) -> None:
        """A banner says that a training of so many steps begins."""
        self._begin()
        self._total = total

    def see(self, bar: Bar) -> None:
        """A progress bar was drawn; which one is the training's shows when rows come."""
        if bar.may_be_training:
            self._bars[bar.total] = bar

    def stamp(self, row: Fields, said: int | None = None) -> Fields:
        """The row with its step; `said` is what the text before it says."""
        is_summary = "train_runtime" in row
        is_train = not is_summary and not {family(name) for name in row} <= {"eval", "axis"}
        epoch = row.get("epoch")
        if is_train and isinstance(epoch, int | float):
            if epoch < self._epoch:
                self._begin()
            self._epoch = epoch
        if is_train and self.has_ended:
            self._begin()
        self.has_ended = is_summary
        own = next((row[name] for name in _STEPS if isinstance(row.get(name), int | float)), said)
        if own is not None and float(own).is_integer():
            self._last = int(own)
        elif is_train:
            self._count()
        row.pop("step", None)
        return {"step": self._last, **row}

    def _count(self) -> None:
        bar = self._training_bar()
        if bar is not None and bar.done > self._last:
            self._last = bar.done
        else:
            self._last += 1
            self.counted += 1

    def _training_bar(self) -> Bar | None:
        """The bar of the announced length, or the first unfinished one that rows came with."""
        if self._total is None:
            moving = [bar for bar in self._bars.values() if 0 < bar.done < bar.total]
            if moving:
                self._total = max(moving, key=lambda bar: bar.total).total
        return None if self._total is None else self._bars.get(self._total)

    def _begin(self) -> None:
        self._last, self._bars, self._total, self._epoch, self.has_ended = 0, {}, None, 0.0, False
