"""What is kept of a series: a few numbers with names, updated in constant time and memory.

A `Signal` is one quantity of a run as the rules see it. Everything a rule may ask of it is a named property here, so a
rule reads like its description. Points are logged values, never optimiser steps: logs are written every 1 to 50 steps.

>>> series = Signal("entropy")
>>> for step in range(40):
...     series.update(0.5 if step < 20 else 0.05, step)
>>> series.base, round(series.ratio, 2), series.onset_step
(0.5, 0.17, 20)
"""

from __future__ import annotations

import math

from rlvitals.health.levels import Levels
from rlvitals.health.weights import FAST_SHARE, HEAD, ROUNDING, SETTLED, SLOW_SHARE, SLOW_WARM, line_t, median


class Signal(Levels):
    """One series: its levels, its baseline, its noise, its best, its trend, its jumps.

    What several rules ask of one value is worked out once: an answer is kept with the number of values it is about.
    """

    __slots__ = ("_dropped", "_dropped_at", "_gained", "_gained_at", "_median", "_median_at", "_trend", "_trend_at")

    def reset(self) -> None:
        """Forget everything: the run began again."""
        super().reset()
        self._median, self._median_at = math.nan, 0
        self._gained = self._dropped = False
        self._trend = 0.0
        self._gained_at = self._dropped_at = self._trend_at = -1

    @property
    def zero_share(self) -> float:
        """The share of exact zeros, over about 30 points."""
        return self._zero / SLOW_WARM[min(self.n, SETTLED)] if self.n else 0.0

    @property
    def median5(self) -> float:
        """The median of the last five values: quick, and blind to one or two spikes."""
        if self._median_at != self.n:
            ordered = sorted(self._window)
            self._median, self._median_at = ordered[len(ordered) // 2], self.n
        return self._median

    @property
    def window(self) -> tuple[float, ...]:
        """The last five values."""
        return tuple(self._window)

    @property
    def head(self) -> tuple[float, ...]:
        """The first twelve values."""
        return tuple(self._head)

    @property
    def start(self) -> float:
        """The level of the first five points, the very first left out where there are more."""
        return median(self._head[1:5] or self._head) if self._head else math.nan

    @property
    def floor(self) -> float:
        """The smallest difference that means anything: the log's rounding; 0 while too few changes tell of it."""
        return self.quantum if self._changes >= 5 else 0.0

    @property
    def noise(self) -> float:
        """The usual distance of one value from the fast level, as a standard deviation."""
        return max(self._noise, 0.3 * self.quantum if self._changes >= 5 else 0.0, ROUNDING * abs(self.base))

    @property
    def noise_base(self) -> float:
        """The noise of the first points, then frozen."""
        return max(self._noise_base, 0.3 * self.quantum if self._changes >= 5 else 0.0, ROUNDING * abs(self.base))

    @property
    def ratio(self) -> float:
        """The fast level over the baseline; NaN where the baseline is nothing to divide by."""
        return self._over_base(self.fast)

    @property
    def median_ratio(self) -> float:
        """The median of the last five over the baseline."""
        return self._over_base(self.median5)

    def _over_base(self, level: float) -> float:
        if not self.n or abs(self.base) <= 1e-12 or self.base * level < 0:
            return math.nan
        return level / self.base

    @property
    def travelled(self) -> float:
        """The distance between the best and the worst slow level so far."""
        return self.top - self.bottom if self.n > HEAD else 0.0

    @property
    def gained(self) -> bool:
        """Whether the level is above its baseline by more than noise explains."""
        if self._gained_at != self.n:
            noise, floor = max(self.noise, self.noise_base), self.floor * 0.1
            self._gained_at = self.n
            self._gained = (
                self.fast > self.base + 4.0 * FAST_SHARE * noise + floor
                or self.slow > self.base + 4.0 * SLOW_SHARE * noise + floor
            )
        return self._gained

    @property
    def improving(self) -> bool:
        """Whether it is above its baseline or on its way up."""
        return self.gained or self.rising > 1.5 or self.trend > 2.5

    @property
    def lost(self) -> bool:
        """Whether the level is below its baseline by more than noise explains."""
        noise = max(self.noise, self.noise_base)
        return self.fast < self.base - 4.0 * FAST_SHARE * noise and self.slow < self.base - 3.0 * SLOW_SHARE * noise

    @property
    def drop(self) -> float:
        """How far the fast level is below the best slow level."""
        return self.top - self.fast if self.n > HEAD else 0.0

    @property
    def wander(self) -> float:
        """How far the fast level usually is from the middle one: what a drift of no meaning looks like."""
        return self._wander

    @property
    def dropped(self) -> bool:
        """Whether that is more than noise, more than its usual wandering and a sixth of the range travelled."""
        if self._dropped_at != self.n:
            self._dropped_at = self.n
            self._dropped = self.n > HEAD and self.drop > max(
                5.0 * FAST_SHARE * self.noise, 4.0 * self._wander, 0.15 * self.travelled, self.floor
            )
        return self._dropped

    @property
    def rising(self) -> float:
        """The recent movement in its own noise: above 3 is up, below -3 is down."""
        noise = max(self.noise, 1e-12)
        return (self.fast - self.slow) / (noise * math.hypot(FAST_SHARE, SLOW_SHARE))

    @property
    def speed(self) -> float:
        """The change per point, lately: the fast and the middle level look about 14 points apart."""
        return (self.fast - self._level) / 14.4 if self.n else 0.0

    @property
    def momentum(self) -> float:
        """The movement of the last few points in its own noise."""
        return 14.4 * self.speed / max(0.25 * self.noise, 1e-12)

    @property
    def trend(self) -> float:
        """The t value of a straight line through the whole run; 0 while there is nothing to fit."""
        n = self.n
        if self._trend_at != n:
            sum_t, sum_tt = float(n * (n + 1) // 2), float(n * (n + 1) * (2 * n + 1) // 6)
            self._trend, self._trend_at = line_t(n, sum_t, sum_tt, self._sum_x, self._sum_xx, self._sum_tx), n
        return self._trend

    @property
    def top_age(self) -> int:
        """Points since the best slow level."""
        return self.n - self.top_at if self.top_at else 0

    @property
    def plateau_age(self) -> int:
        """Points since the level last gained a twelfth of the whole range."""
        return self.n - self._mile_at if self._mile_at else 0

    @property
    def stalled(self) -> bool:
        """Whether it has not risen lately: no new best of the fast level for a while, and no movement upwards."""
        return self.n - self._peak_at >= 8 and self.momentum < 1.0

    @property
    def bottom_age(self) -> int:
        """Points since the lowest slow level."""
        return self.n - self.bottom_at if self.bottom_at else 0

    @property
    def jump_ratio(self) -> float:
        """Step-to-step jumps now over those of the first points and over those of the last hundred, whichever is
        less: jumps of a series that starts at 0 grow by themselves, but not on and on.
        """
        if self._jump_base <= 0 or self._jump_slow <= 0:
            return math.nan
        return min(self._jump / self._jump_base, self._jump / self._jump_slow)

    @property
    def jump(self) -> float:
        """The usual change from one value to the next, over about 10 points."""
        return self._jump

    @property
    def spread(self) -> float:
        """Largest minus smallest of the last five values."""
        return max(self._window) - min(self._window) if self._window else math.nan

    @property
    def is_out(self) -> bool:
        """Whether the level is out of the band it started in."""
        return not self._inside

    @property
    def onset_step(self) -> int:
        """The step since which it is out of the band it started in; the last step while it is inside."""
        return self.step if self._inside else self._outside_step
