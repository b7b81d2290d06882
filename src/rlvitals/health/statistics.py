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

from rlvitals.health.weights import (
    FAST,
    FAST_SHARE,
    HEAD,
    JUMP,
    JUMP_SLOW,
    MID,
    NOISE,
    ROUNDING,
    SKIPPED,
    SLOW,
    SLOW_SHARE,
    TINY,
    TO_SIGMA,
    WANDER,
    WINDOW,
    WINSOR,
    line_t,
    median,
)


class Signal:
    """One series: its levels, its baseline, its noise, its best, its trend, its jumps."""

    __slots__ = (  # noqa: RUF023
        "_fast", "_head", "_inside", "_jump", "_jump_base", "_jump_slow", "_jumps", "_mid", "_mile", "_mile_at",
        "_noise", "_noise_base", "_outside_step", "_slow", "_peak", "_peak_at", "_sum_t", "_sum_tt", "_sum_tx",
        "_sum_x", "_sum_xx", "_wander", "_warm_fast", "_warm_mid", "_warm_slow", "_window", "base", "bottom",
        "bottom_at", "bottom_step", "equal_step", "equal_streak", "highest", "in_ratios", "key", "last", "lowest",
        "n", "name", "nonfinite", "nonfinite_recent", "quantum", "seen_at", "step", "top", "top_at", "top_step",
        "_zero", "zero_step", "zero_streak", "_changes",
    )  # fmt: skip

    def __init__(self, name: str, key: str = "") -> None:
        self.name = name
        self.key = key or name
        """The logged name it is read from."""
        self.in_ratios = False
        """Whether its jumps are measured as ratios: a gradient norm or a KL moves by factors."""
        self.reset()

    def reset(self) -> None:
        """Forget everything: the run began again."""
        self.n = 0
        """Finite values seen."""
        self.last = math.nan
        self.step = 0
        self.seen_at = 0
        """The run's row number of the last value, finite or not."""
        self.base = math.nan
        """The robust starting level: median of points 3 to 12, then frozen."""
        self.highest = -math.inf
        self.lowest = math.inf
        self.top = -math.inf
        """The best slow level upwards, the point at which it was and its step."""
        self.top_at = 0
        self.top_step = 0
        self.bottom = math.inf
        self.bottom_at = 0
        self.bottom_step = 0
        self._mile = self._peak = -math.inf
        self._mile_at = self._peak_at = 0
        self.quantum = math.inf
        """The smallest change ever seen: the rounding of the log."""
        self._changes = 0
        self.equal_streak = 0
        """Values in a row that are exactly the same, the last one included, and the step they began at."""
        self.equal_step = 0
        self.zero_streak = self.zero_step = 0
        self._zero = 0.0
        self.nonfinite, self.nonfinite_recent = 0, 0.0
        self._head: list[float] = []
        self._window: list[float] = []
        self._fast = self._mid = self._slow = 0.0
        self._warm_fast = self._warm_mid = self._warm_slow = 1.0
        self._wander = 0.0
        self._noise = self._noise_base = self._jump = 0.0
        self._jump_base = self._jump_slow = 0.0
        self._jumps: list[float] = []
        self._inside = True
        self._outside_step = 0
        self._sum_t = self._sum_tt = self._sum_x = self._sum_xx = self._sum_tx = 0.0

    def update_nonfinite(self, step: int) -> None:
        """Note a NaN or an infinity that was really logged."""
        self.nonfinite += 1
        self.nonfinite_recent = self.nonfinite_recent * 0.8 + 1.0
        self.step = step

    def update(self, value: float, step: int) -> None:  # noqa: PLR0915 - one frame, because it runs for every value
        """Take the next value."""
        n = self.n = self.n + 1
        previous = self.last
        self.last = value
        self.step = step
        self.nonfinite_recent *= 0.8
        self.highest = max(self.highest, value)
        self.lowest = min(self.lowest, value)
        window = self._window
        window.append(value)
        if len(window) > WINDOW:
            del window[0]
        if -TINY < value < TINY:
            self.zero_step = self.zero_step if self.zero_streak else step
            self.zero_streak += 1
            self._zero += SLOW * (1.0 - self._zero)
        else:
            self.zero_streak = 0
            self._zero -= SLOW * self._zero
        if n == 1:
            self.equal_streak = 1
            self.equal_step = step
            taken = value
        else:
            jump = abs(value - previous)
            if jump:
                self.equal_streak = 1
                self.equal_step = step
                self.quantum = min(self.quantum, jump)
                self._changes += 1
            else:
                self.equal_streak += 1
            if self.in_ratios and value > TINY and previous > TINY:
                jump = abs(math.log(value) - math.log(previous))
            taken = self._take(value, jump)
        self._warm_fast *= 1.0 - FAST
        self._warm_mid *= 1.0 - MID
        self._warm_slow *= 1.0 - SLOW
        self._sum_t += n
        self._sum_tt += n * n
        self._add(taken, n)
        if n <= HEAD:
            self._freeze(value, n)
        else:
            slow = self._slow / (1.0 - self._warm_slow)
            least = 0.5 * SLOW_SHARE * self._noise  # what is less than this above the best is no new best
            if slow > self.top + least or n == HEAD + 1:
                self.top, self.top_at, self.top_step = slow, n, step
            if slow < self.bottom - least or n == HEAD + 1:
                self.bottom, self.bottom_at, self.bottom_step = slow, n, step
            mid = self._mid / (1.0 - self._warm_mid)
            if mid > self._mile + 0.08 * (self.top - self.bottom) + least:
                self._mile, self._mile_at = mid, n
            fast = self._fast / (1.0 - self._warm_fast)
            apart = abs(fast - mid) * TO_SIGMA
            share = max(WANDER, 1.0 / (n - HEAD))  # a plain mean until there is enough to forget
            self._wander += share * ((min(apart, 1.5 * self._wander) if n > 3 * HEAD else apart) - self._wander)
            if fast > self._peak + FAST_SHARE * self._noise:
                self._peak, self._peak_at = fast, n
        self._note_departure(step)

    def _add(self, taken: float, n: int) -> None:
        self._fast += FAST * (taken - self._fast)
        self._mid += MID * (taken - self._mid)
        self._slow += SLOW * (taken - self._slow)
        self._sum_x += taken
        self._sum_xx += taken * taken
        self._sum_tx += n * taken

    def _take(self, value: float, jump: float) -> float:
        """Update the noise and hold the value within reach of it."""
        n, fast = self.n, self.fast
        taken = value
        away = abs(value - fast)
        reach = WINSOR * self._noise
        if n <= 4:
            self._noise += (away * TO_SIGMA - self._noise) / (n - 1)
        else:
            if away > reach:
                if reach > WINSOR * ROUNDING * abs(self.base):
                    taken = fast + math.copysign(reach, value - fast)
                    away = reach
                else:  # constant so far, so there is no noise to go by: what two of three values agree on
                    ordered = sorted(self._window)
                    taken = median(self._window[-3:])
                    away = ordered[3] - ordered[1]
            self._noise += NOISE * (away * TO_SIGMA - self._noise)
        if n <= 2 * HEAD:
            self._jumps.append(jump)
            self._jump = self._jump_base = self._jump_slow = median(self._jumps)
        else:
            largest = WINSOR * 2 * self._jump
            if largest:
                jump = min(jump, largest)
            self._jump += JUMP * (jump - self._jump)
            self._jump_slow += JUMP_SLOW * (jump - self._jump_slow)
        return taken

    def _freeze(self, value: float, n: int) -> None:
        self._head.append(value)
        kept = self._head[SKIPPED:] if n > SKIPPED else self._head
        self.base = median(kept)
        spread = 1.4826 * median([abs(kept_value - self.base) for kept_value in kept])
        if n == HEAD:
            later = self._head[4:]
            usual = max(spread, TO_SIGMA * sum(abs(other - self.base) for other in later) / len(later))
            if any(abs(early - self.base) > 2.0 * WINSOR * usual for early in self._head[:4]):
                self._mend(usual)
        self._noise_base = max(spread, self._noise if n == HEAD else 0.0)

    def _mend(self, usual: float) -> None:
        """Take the first points again, held within reach: nothing could hold a spike among the first four."""
        self._fast = self._mid = self._slow = self._sum_x = self._sum_xx = self._sum_tx = 0.0
        low, high = self.base - WINSOR * usual, self.base + WINSOR * usual
        for n, value in enumerate(self._head, 1):
            self._add(min(max(value, low), high) if n <= 4 else value, n)
        self._noise = usual

    def _note_departure(self, step: int) -> None:
        """Keep the step since which the fast level has been out of the starting band."""
        band = max(2.0 * self._noise_base, 0.02 * abs(self.base), self.floor)
        # Half level, half value: the level alone is late, a value alone is noise.
        if abs(0.5 * (self.fast + self.last) - self.base) <= band:
            self._inside = True
        elif self._inside:
            self._inside = False
            self._outside_step = step

    # What rules ask.

    @property
    def fast(self) -> float:
        """The level over about 5 points."""
        return self._fast / (1.0 - self._warm_fast) if self.n else math.nan

    @property
    def slow(self) -> float:
        """The level over about 30 points."""
        return self._slow / (1.0 - self._warm_slow) if self.n else math.nan

    @property
    def zero_share(self) -> float:
        """The share of exact zeros, over about 30 points."""
        return self._zero / (1.0 - self._warm_slow) if self.n else 0.0

    @property
    def median5(self) -> float:
        """The median of the last five values: quick, and blind to one or two spikes."""
        ordered = sorted(self._window)
        return ordered[len(ordered) // 2] if ordered else math.nan

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
        return max(self._noise, 0.3 * self.floor, ROUNDING * abs(self.base))

    @property
    def noise_base(self) -> float:
        """The noise of the first points, then frozen."""
        return max(self._noise_base, 0.3 * self.floor, ROUNDING * abs(self.base))

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
        noise = max(self.noise, self.noise_base)
        return (
            self.fast > self.base + 4.0 * FAST_SHARE * noise + self.floor * 0.1
            or self.slow > self.base + 4.0 * SLOW_SHARE * noise + self.floor * 0.1
        )

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
        return self.n > HEAD and self.drop > max(
            5.0 * FAST_SHARE * self.noise, 4.0 * self._wander, 0.15 * self.travelled, self.floor
        )

    @property
    def rising(self) -> float:
        """The recent movement in its own noise: above 3 is up, below -3 is down."""
        noise = max(self.noise, 1e-12)
        return (self.fast - self.slow) / (noise * math.hypot(FAST_SHARE, SLOW_SHARE))

    @property
    def speed(self) -> float:
        """The change per point, lately: the fast and the middle level look about 14 points apart."""
        return (self.fast - self._mid / (1.0 - self._warm_mid)) / 14.4 if self.n else 0.0

    @property
    def momentum(self) -> float:
        """The movement of the last few points in its own noise."""
        return 14.4 * self.speed / max(0.25 * self.noise, 1e-12)

    @property
    def trend(self) -> float:
        """The t value of a straight line through the whole run; 0 while there is nothing to fit."""
        return line_t(self.n, self._sum_t, self._sum_tt, self._sum_x, self._sum_xx, self._sum_tx)

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
