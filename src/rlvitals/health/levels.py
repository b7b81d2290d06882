"""What is kept of a series from value to value, in constant time and memory: levels, baseline, noise, extremes, jumps.

`statistics.Signal` says what of it rules may ask.
"""

from __future__ import annotations

import math

from rlvitals.health.weights import (
    FAST,
    FAST_SHARE,
    FAST_WARM,
    HALF_SLOW_SHARE,
    HEAD,
    JUMP,
    JUMP_SLOW,
    MID,
    MID_WARM,
    NOISE,
    ROUNDING,
    SETTLED,
    SKIPPED,
    SLOW,
    SLOW_WARM,
    TINY,
    TO_SIGMA,
    WANDER,
    WANDER_FROM,
    WINDOW,
    WINSOR,
    median,
)


class Levels:
    """One series, as far as it has come."""

    __slots__ = (  # noqa: RUF023
        "_fast", "_head", "_inside", "_jump", "_jump_base", "_jump_slow", "_jumps", "_mid", "_mile", "_mile_at",
        "_noise", "_noise_base", "_outside_step", "_slow", "_peak", "_peak_at", "_band", "_sum_tx",
        "_sum_x", "_sum_xx", "_wander", "_window", "base", "bottom", "fast", "slow", "_level",
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
        self.fast = math.nan
        """The level over about 5 points."""
        self.slow = math.nan
        """The level over about 30 points."""
        self._level = math.nan
        self._fast = self._mid = self._slow = self._wander = 0.0
        self._noise = self._noise_base = self._jump = 0.0
        self._jump_base = self._jump_slow = 0.0
        self._jumps: list[float] = []
        self._inside = True
        self._outside_step = 0
        self._band = 0.0
        self._sum_x = self._sum_xx = self._sum_tx = 0.0

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
            self.equal_step = step
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
        self._fast += FAST * (taken - self._fast)
        self._mid += MID * (taken - self._mid)
        self._slow += SLOW * (taken - self._slow)
        self._sum_x += taken
        self._sum_xx += taken * taken
        self._sum_tx += n * taken
        if n <= HEAD:
            self._freeze(value, n)
        warm = n if n < SETTLED else SETTLED
        fast = self.fast = self._fast / FAST_WARM[warm]
        mid = self._level = self._mid / MID_WARM[warm]
        slow = self.slow = self._slow / SLOW_WARM[warm]
        if n > HEAD:
            least = HALF_SLOW_SHARE * noise  # what is less than this above the best is no new best
            if slow > self.top + least or n == HEAD + 1:
                self.top, self.top_at, self.top_step = slow, n, step
            if slow < self.bottom - least or n == HEAD + 1:
                self.bottom, self.bottom_at, self.bottom_step = slow, n, step
            if mid > self._mile + 0.08 * (self.top - self.bottom) + least:
                self._mile, self._mile_at = mid, n
            apart, wander = abs(fast - mid) * TO_SIGMA, self._wander
            if n > 3 * HEAD and apart > 1.5 * wander:
                apart = 1.5 * wander
            # A plain mean until there is enough to forget.
            self._wander = wander + (WANDER if n > WANDER_FROM else 1.0 / (n - HEAD)) * (apart - wander)
            if fast > self._peak + FAST_SHARE * noise:
                self._peak, self._peak_at = fast, n
        # Out of the starting band. Half level, half value: the level alone is late, a value alone is noise.
        away = abs(0.5 * (fast + value) - self.base)
        if away <= self._band or (self._changes >= 5 and away <= self.quantum):
            self._inside = True
        elif self._inside:
            self._inside = False
            self._outside_step = step

    def _hold(self, value: float, reach: float) -> tuple[float, float]:
        """A value beyond the reach of the noise as it is taken, and how far it is then from the fast level."""
        if reach > WINSOR * ROUNDING * abs(self.base):
            return self.fast + math.copysign(reach, value - self.fast), reach
        # Constant so far, so there is no noise to go by: what two of three values agree on.
        ordered = sorted(self._window)
        return median(self._window[-3:]), ordered[3] - ordered[1]

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
        self._band = max(2.0 * self._noise_base, 0.02 * abs(self.base))

    def _mend(self, usual: float) -> None:
        """Take the first points again, held within reach: nothing could hold a spike among the first four."""
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
