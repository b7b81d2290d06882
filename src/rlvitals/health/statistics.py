"""The statistics of a series: a few named numbers, updated in constant time and memory.

A `Signal` is one quantity of a run as the rules see it. Every statistic that a rule may use is a named property here,
so a rule reads like its description. Points are logged values, never optimiser steps: logs are written every 1 to 50
steps.

>>> series = Signal("entropy")
>>> for step in range(40):
...     series.update(0.5 if step < 20 else 0.05, step)
>>> series.base, round(series.ratio, 2), series.onset_step
(0.5, 0.17, 20)
"""

from __future__ import annotations

import math

from rlvitals.health.course import SIGMA_OF_MEDIAN, Course
from rlvitals.values import median

WITH_COURSE = frozenset({
    "reward", "margin", "pair_accuracy", "eval_score", "true_score", "teacher_kl", "student_mass", "teacher_overlap",
})  # fmt: skip
"""The signals that may show what a run has achieved, or how near to its teacher it was. The course of the whole run is
kept for these, and for metrics that a user's rule names."""

HEAD = 12
"""Points until the baseline is frozen; it does not include the first two (KL 0, ties, warm-up)."""

SKIPPED = 2
OPENING = 5
"""Points of `start` and `opening`. A failure that begins at once would be part of a longer baseline."""

WINDOW = 5
WINSOR = 5.0
"""A value further from the fast level than this many times the noise is clipped to that distance, so one spike cannot
spoil the levels."""

TINY = 1e-12
"""Smaller values count as zero: a gradient of 1e-15 changes nothing."""

NEAR_ZERO = 1e-9
"""Levels this near to zero, or to each other, are not distinguished, and no smaller number is a divisor."""

FAST = 1.0 - 0.5 ** (1 / 5)
MID = 1.0 - 0.5 ** (1 / 15)
SLOW = 1.0 - 0.5 ** (1 / 30)
WANDER = 1.0 - 0.5 ** (1 / 60)
NOISE = 1.0 - 0.5 ** (1 / 12)
JUMP = 1.0 - 0.5 ** (1 / 10)
JUMP_SLOW = 1.0 - 0.5 ** (1 / 60)
ROUNDING = 1e-9
"""The least noise, relative to the baseline: the level of a constant series differs from it by a rounding error."""
TO_SIGMA = 1.2533
"""Mean absolute deviation to standard deviation, for a normal distribution."""
JUMP_TO_SIGMA = 1.0483
"""Median change between two independent values to their standard deviation, for a normal distribution."""

# The noise of the fast and the slow level as a share of one value's noise, for independent values.
FAST_SHARE = math.sqrt(FAST / (2 - FAST))
SLOW_SHARE = math.sqrt(SLOW / (2 - SLOW))
HALF_SLOW_SHARE = 0.5 * SLOW_SHARE

WANDER_FROM = HEAD + int(1.0 / WANDER)
"""Points until which a plain mean adapts faster than the fixed weight."""

MOST_DOUBLINGS = 60
"""The most doublings of the starting band that are tracked."""

BREAK = 3.0
"""A series that moves this many times faster than before has a new onset."""

SETTLED = 1700
"""Points after which the initial 0 of a level no longer matters: the tables below are 1 from there on."""


def _warm(weight: float) -> list[float]:
    """By the number of points: the share of a level that comes from values; the rest is the initial 0."""
    initial_share, shares = 1.0, [0.0]
    for _ in range(SETTLED):
        initial_share *= 1.0 - weight
        shares.append(1.0 - initial_share)
    return shares


FAST_WARM, MID_WARM, SLOW_WARM = _warm(FAST), _warm(MID), _warm(SLOW)


def line_t(n: int, t: float, tt: float, x: float, xx: float, tx: float) -> float:  # noqa: PLR0917
    """Return the t value of the slope of a straight line, from the sums of t, t*t, x, x*x and t*x.

    >>> round(line_t(8, 36, 204, 37, 197, 198), 2)  # x = 2, 3, 3, 5, 4, 6, 7, 7
    7.94
    """
    if n < 8 or xx == math.inf:
        return 0.0
    spread_t, spread_x = tt - t * t / n, xx - x * x / n
    together = tx - t * x / n
    left = spread_x - together * together / spread_t
    # Sums of squares of nearly equal numbers keep rounding errors of this size.
    if left <= 1e-12 * max(xx, 1e-300):
        flat = abs(together) <= 1e-9 * math.sqrt(spread_t * max(xx, 1e-300))
        return 0.0 if flat else math.copysign(math.inf, together)
    return together / spread_t / math.sqrt(left / (n - 2) / spread_t)


class Signal:
    """One series: its levels, its baseline, its noise, its best, its trend, its jumps.

    Statistics that several rules read are computed once per value: the result is cached with the number of values.
    """

    __slots__ = (  # noqa: RUF023
        "_fast", "_head", "_left", "_jump", "_jump_base", "_jump_slow", "_jumps", "_mid", "_mile", "_mile_at",
        "_noise", "_noise_base", "_slow", "_peak", "_peak_at", "_band", "_sum_tx", "first_step",
        "_sum_x", "_sum_xx", "_wander", "_window", "base", "bottom", "fast", "slow", "_level",
        "bottom_at", "equal_step", "equal_streak", "highest", "in_ratios", "key", "last", "lowest",
        "n", "name", "nonfinite", "nonfinite_recent", "quantum", "seen_at", "step", "top", "top_at", "top_step",
        "course", "keeps_course", "_zero", "zero_step", "zero_streak", "_changes",
        "_dropped", "_dropped_at", "_gained", "_gained_at", "_median", "_median_at", "_trend", "_trend_at",
        "opening", "start",
    )  # fmt: skip

    def __init__(self, name: str, key: str = "") -> None:
        self.name = name
        self.key = key or name
        """The logged name it is read from."""
        self.keeps_course = name in WITH_COURSE
        self.in_ratios = False
        """Whether its jumps are measured as ratios: a gradient norm or a KL moves by factors."""
        self.reset()

    def reset(self) -> None:  # noqa: PLR0915 - one statement for each number
        """Forget everything, because the run restarted."""
        self.n = 0
        """Finite values seen."""
        self.last = math.nan
        self.first_step = self.step = 0
        self.seen_at = 0
        """The run's row number of the last value, finite or not."""
        self.base = math.nan
        """The robust starting level: median of points 3 to 12, then frozen."""
        self.start = math.nan
        """The median of the first five points, without the very first where there are more."""
        self.opening = math.nan
        """The median of the first five points."""
        self.highest = -math.inf
        self.lowest = math.inf
        self.top = -math.inf
        """The highest slow level; below, its point and its step."""
        self.top_at = 0
        self.top_step = 0
        self.bottom = math.inf
        self.bottom_at = 0
        self._mile = self._peak = -math.inf
        self._mile_at = self._peak_at = 0
        self.quantum = math.inf
        """The smallest change ever seen: the rounding of the log."""
        self._changes = 0
        self.equal_streak = 0
        """Values in a row that are exactly the same, including the last one; below, the step they began at."""
        self.equal_step = 0
        self.zero_streak = self.zero_step = 0
        self._zero = 0.0
        self.nonfinite, self.nonfinite_recent = 0, 0.0
        self._head: list[float] = []
        self._window: list[float] = []
        self.fast = math.nan
        """The level over about 5 points."""
        self.slow = math.nan
        """The level over about 30 points."""
        self._level = math.nan
        self._fast = self._mid = self._slow = self._wander = 0.0
        self._noise = self._noise_base = self._jump = 0.0
        self._jump_base = self._jump_slow = 0.0
        self._jumps: list[float] = []
        self._left: list[int] = []
        """The steps at which it went beyond the starting band, twice the band, four times ..."""
        self._band = 0.0
        self._sum_x = self._sum_xx = self._sum_tx = 0.0
        self._median, self._median_at = math.nan, 0
        self._gained = self._dropped = False
        self._trend = 0.0
        self.course = Course()
        """The levels over the whole run; empty unless `keeps_course`."""
        self._gained_at = self._dropped_at = self._trend_at = -1

    def update_nonfinite(self, step: int) -> None:
        """Count a NaN or an infinity that was logged."""
        self.nonfinite += 1
        self.nonfinite_recent = self.nonfinite_recent * 0.8 + 1.0
        self.step = step

    def update(self, value: float, step: int) -> None:  # noqa: PLR0915 - one frame, because it runs for every value
        """Take the next value."""
        n = self.n = self.n + 1
        previous = self.last
        self.last = value
        self.step = step
        if self.nonfinite_recent:
            self.nonfinite_recent *= 0.8
        if value > self.highest:  # noqa: PLR1730 - max() and min() cost a call, here and below
            self.highest = value
        if value < self.lowest:  # noqa: PLR1730
            self.lowest = value
        window = self._window
        window.append(value)
        if n > WINDOW:
            del window[0]
        if -TINY < value < TINY:
            self.zero_step = self.zero_step if self.zero_streak else step
            self.zero_streak += 1
            self._zero += SLOW * (1.0 - self._zero)
        elif self._zero:
            self.zero_streak = 0
            self._zero -= SLOW * self._zero
        taken, noise = value, 0.0
        if n == 1:
            self.equal_streak = 1
            self.equal_step = self.first_step = step
        else:
            jump = abs(value - previous)
            if jump:
                self.equal_streak = 1
                self.equal_step = step
                if jump < self.quantum:  # noqa: PLR1730
                    self.quantum = jump
                self._changes += 1
            else:
                self.equal_streak += 1
            noise, away = self._noise, abs(value - self.fast)
            if n <= 4:
                noise += (away * TO_SIGMA - noise) / (n - 1)
            else:
                if away > WINSOR * noise:
                    taken, away = self._hold(value, WINSOR * noise)
                noise += NOISE * (away * TO_SIGMA - noise)
            self._noise = noise
            if self.in_ratios and value > TINY and previous > TINY:
                jump = abs(math.log(value) - math.log(previous))
            if n <= 2 * HEAD:
                self._jumps.append(jump)
                self._jump = self._jump_base = self._jump_slow = median(self._jumps)
            else:
                usual = self._jump
                largest = WINSOR * 2 * usual
                if largest and jump > largest:
                    jump = largest
                self._jump = usual + JUMP * (jump - usual)
                self._jump_slow += JUMP_SLOW * (jump - self._jump_slow)
        self._sum_x += taken
        self._sum_xx += taken * taken
        self._sum_tx += n * taken
        if self.keeps_course:
            self.course.add(taken)
        fast, mid, slow = self._fast, self._mid, self._slow
        fast = self._fast = fast + FAST * (taken - fast)
        mid = self._mid = mid + MID * (taken - mid)
        slow = self._slow = slow + SLOW * (taken - slow)
        if n <= HEAD:
            self._freeze(value, n)
            fast, mid, slow = self._fast, self._mid, self._slow  # the head may have been corrected
        if n < SETTLED:
            fast /= FAST_WARM[n]
            mid /= MID_WARM[n]
            slow /= SLOW_WARM[n]
        self.fast, self._level, self.slow = fast, mid, slow
        if n > HEAD:
            least = HALF_SLOW_SHARE * noise  # a new best must be at least this much better
            if slow > self.top + least or n == HEAD + 1:
                self.top, self.top_at, self.top_step = slow, n, step
            if slow < self.bottom - least or n == HEAD + 1:
                self.bottom, self.bottom_at = slow, n
            if mid > self._mile + 0.08 * (self.top - self.bottom) + least:
                self._mile, self._mile_at = mid, n
            apart, wander = abs(fast - mid) * TO_SIGMA, self._wander
            if n > 3 * HEAD and apart > 1.5 * wander:
                apart = 1.5 * wander
            # A plain mean until there are enough points for the fixed weight.
            self._wander = wander + (WANDER if n > WANDER_FROM else 1.0 / (n - HEAD)) * (apart - wander)
            if fast > self._peak + FAST_SHARE * noise:
                self._peak, self._peak_at = fast, n
        # Whether it is out of the starting band. The level alone is late and a value alone is noise, so half of each.
        away = abs(0.5 * (fast + value) - self.base)
        if away <= self._band or (self._changes >= 5 and away <= self.quantum):
            if self._left:
                self._left.clear()
        else:
            self._note_distance(away, step)

    def _note_distance(self, away: float, step: int) -> None:
        """Keep the steps at which the distance from the baseline exceeded each doubling of the starting band."""
        left = self._left
        limit = max(self._band, TINY) * 2.0 ** len(left)
        while away > limit and len(left) < MOST_DOUBLINGS:
            left.append(step)
            limit *= 2.0
        while len(left) > 1 and away <= 0.5 * limit:
            left.pop()
            limit *= 0.5

    def _hold(self, value: float, reach: float) -> tuple[float, float]:
        """Clip a value that is further away than `reach`; returns it and its distance from the fast level."""
        if reach > WINSOR * ROUNDING * abs(self.base):
            return self.fast + math.copysign(reach, value - self.fast), reach
        # Constant so far, so there is no noise to compare with: take what two of three values agree on.
        ordered = sorted(self._window)
        return median(self._window[-3:]), ordered[3] - ordered[1]

    def _freeze(self, value: float, n: int) -> None:
        self._head.append(value)
        if n <= OPENING:
            self.start = median(self._head[1:] or self._head)
            self.opening = sorted(self._head)[n // 2]
        kept = self._head[SKIPPED:] if n > SKIPPED else self._head
        self.base = median(kept)
        spread = SIGMA_OF_MEDIAN * median([abs(kept_value - self.base) for kept_value in kept])
        if n == HEAD:
            later = self._head[4:]
            usual = max(spread, TO_SIGMA * sum(abs(other - self.base) for other in later) / len(later))
            if any(abs(early - self.base) > 2.0 * WINSOR * usual for early in self._head[:4]):
                self._mend(usual)
        self._noise_base = max(spread, self._noise if n == HEAD else 0.0)
        self._band = max(2.0 * self._noise_base, 0.02 * abs(self.base))

    def _mend(self, usual: float) -> None:
        """Compute the levels from the first points again, and clip the first four, which were taken unchanged."""
        self._fast = self._mid = self._slow = self._sum_x = self._sum_xx = self._sum_tx = 0.0
        low, high = self.base - WINSOR * usual, self.base + WINSOR * usual
        for n, value in enumerate(self._head, 1):
            taken = min(max(value, low), high) if n <= 4 else value
            self._fast += FAST * (taken - self._fast)
            self._mid += MID * (taken - self._mid)
            self._slow += SLOW * (taken - self._slow)
            self._sum_x += taken
            self._sum_xx += taken * taken
            self._sum_tx += n * taken
        self._noise = usual

    @property
    def zero_share(self) -> float:
        """The share of exact zeros, over about 30 points."""
        return self._zero / SLOW_WARM[min(self.n, SETTLED)] if self.n else 0.0

    @property
    def median5(self) -> float:
        """The median of the last five values: fast, and not affected by one or two spikes."""
        if self._median_at != self.n:
            ordered = sorted(self._window)
            self._median, self._median_at = ordered[len(ordered) // 2], self.n
        return self._median

    @property
    def at_least(self) -> float:
        """The level that both the fast level and the median of the last five reach: the lower of the two. A rule about
        high values compares this, so that neither a spike nor a level that is still falling counts.
        """
        return min(self.fast, self.median5)

    @property
    def at_most(self) -> float:
        """The level that neither of the two exceeds: the higher of them, for rules about low values."""
        return max(self.fast, self.median5)

    @property
    def window(self) -> tuple[float, ...]:
        """The last five values."""
        return tuple(self._window)

    @property
    def head(self) -> tuple[float, ...]:
        """The first twelve values."""
        return tuple(self._head)

    @property
    def floor(self) -> float:
        """The smallest meaningful difference, which is the log's rounding; 0 after fewer than five changes."""
        return self.quantum if self._changes >= 5 else 0.0

    @property
    def noise(self) -> float:
        """The usual distance of one value from the fast level, as a standard deviation."""
        return self._above_rounding(self._noise)

    @property
    def noise_base(self) -> float:
        """The noise of the first points; it does not change after them."""
        return self._above_rounding(self._noise_base)

    def _above_rounding(self, noise: float) -> float:
        """The noise, but at least that of the log's rounding and of float rounding."""
        if self._changes >= 5 and noise < 0.3 * self.quantum:
            noise = 0.3 * self.quantum
        least = ROUNDING * abs(self.base)
        return least if least > noise else noise

    @property
    def ratio(self) -> float:
        """The fast level over the baseline; NaN where the baseline is about 0 or the signs differ."""
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
        """How far the fast level usually is from the middle one: the size of a meaningless drift."""
        return self._wander

    @property
    def dropped(self) -> bool:
        """Whether `drop` is more than noise, more than its usual drift and more than 15% of the range travelled."""
        if self._dropped_at != self.n:
            self._dropped_at = self.n
            self._dropped = self.n > HEAD and self.drop > max(
                5.0 * FAST_SHARE * self.noise, 4.0 * self._wander, 0.15 * self.travelled, self.floor
            )
        return self._dropped

    @property
    def hurt(self) -> bool:
        """Whether it has dropped from its best level or is below its baseline."""
        return self.dropped or self.lost

    @property
    def keeps_gain(self) -> bool:
        """Whether it is above its baseline and has not dropped."""
        return self.gained and not self.dropped

    @property
    def winning(self) -> bool:
        """Whether it is above its baseline or on its way up, and has not dropped."""
        return self.improving and not self.dropped

    @property
    def climbing(self) -> bool:
        """Whether it is winning and has risen lately."""
        return self.winning and not self.stalled

    @property
    def ahead(self) -> bool:
        """Whether the course of the whole run is a gain, and it has not dropped lately."""
        return self.won and not self.dropped

    @property
    def rising(self) -> float:
        """The recent movement in units of its noise: above 3 is up, below -3 is down."""
        noise = max(self.noise, 1e-12)
        return (self.fast - self.slow) / (noise * math.hypot(FAST_SHARE, SLOW_SHARE))

    @property
    def speed(self) -> float:
        """The recent change per point: the fast and the middle level are about 14 points apart."""
        return (self.fast - self._level) / 14.4 if self.n else 0.0

    @property
    def momentum(self) -> float:
        """The movement of the last few points in units of its noise."""
        return 14.4 * self.speed / max(0.25 * self.noise, 1e-12)

    @property
    def trend(self) -> float:
        """The t value of the slope of a straight line through the whole run; 0 with too few points."""
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
        """Step-to-step jumps now over those of the first points or over those of the last hundred, whichever is less:
        jumps of a series that starts at 0 grow at first, but not for the whole run.
        """
        if self._jump_base <= 0 or self._jump_slow <= 0:
            return math.nan
        return min(self._jump / self._jump_base, self._jump / self._jump_slow)

    @property
    def jump(self) -> float:
        """The usual change from one value to the next, over about 10 points."""
        return self._jump

    @property
    def usual_jump(self) -> float:
        """The median change from one of the first values to the next."""
        return self._jump_base

    @property
    def jump_noise(self) -> float:
        """The noise of one value as a standard deviation, if the usual jump is only noise."""
        return JUMP_TO_SIGMA * self._jump_base

    @property
    def won(self) -> bool:
        """Whether the last stretch of the run is above the first, and most of the best gain is kept."""
        return self.course.won

    @property
    def spread(self) -> float:
        """Largest minus smallest of the last five values."""
        return max(self._window) - min(self._window) if self._window else math.nan

    @property
    def is_out(self) -> bool:
        """Whether the level is out of the band it started in."""
        return bool(self._left)

    @property
    def onset_step(self) -> int:
        """The step at which it began to move to its present level; the last step while it is inside its band.

        That is where it left the band it started in, unless it drifted slowly at first and moved much faster later: a
        slow drift before a sudden fall is not the fall.
        """
        left = self._left
        if not left:
            return self.step
        away, onset, best = abs(0.5 * (self.fast + self.last) - self.base), left[0], BREAK
        for place, step in enumerate(left):
            limit = max(self._band, TINY) * 2.0**place
            before, after = limit / max(step - self.first_step, 1), (away - limit) / max(self.step - step, 1)
            if after > best * before:
                onset, best = step, after / before
        return onset
