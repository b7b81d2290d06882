"""Every statistic compared with a slow, independent computation, and properties that hold for any input."""

from __future__ import annotations

import math
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvitals.health.statistics import (
    FAST_SHARE,
    FAST_WARM,
    HEAD,
    MID_WARM,
    SLOW_SHARE,
    SLOW_WARM,
    WANDER,
    WANDER_FROM,
    Signal,
)
from rlvitals.values import median

FAST = 1 - 0.5 ** (1 / 5)
SLOW = 1 - 0.5 ** (1 / 30)
NOISE = 1 - 0.5 ** (1 / 12)

ORDINARY = st.floats(-100, 100, allow_nan=False).map(lambda value: round(value, 3))
ANY = st.floats(allow_nan=False, allow_infinity=False)
POWERS = st.integers(-12, 12).map(lambda power: 2.0**power)
"""Factors that scale a float without rounding, so exact equality can be checked."""

READ = (
    "fast", "slow", "noise", "noise_base", "ratio", "median_ratio", "travelled", "gained", "lost", "drop", "dropped",
    "rising", "trend", "top_age", "bottom_age", "jump_ratio", "jump", "spread", "is_out", "onset_step", "start",
    "median5", "base", "floor", "improving",
)  # fmt: skip


def fed(values, first_step=1):
    signal = Signal("x")
    for step, value in enumerate(values, first_step):
        signal.update(float(value), step)
    return signal


def weighted(values, share):
    """An exponentially weighted mean, computed with explicit weights."""
    weights = (1 - share) ** np.arange(len(values))[::-1]
    return float(np.dot(weights, values) / weights.sum())


class Oracle:
    """The same numbers computed from the whole history by definition, not recursively, for series without spikes."""

    def __init__(self, values):
        self.values = values
        self.fasts = [weighted(values[:n], FAST) for n in range(1, len(values) + 1)]
        self.slows = [weighted(values[:n], SLOW) for n in range(1, len(values) + 1)]
        self.noises, deviations = [0.0], []
        for n, value in enumerate(values[1:], 2):
            away, noise = abs(value - self.fasts[n - 2]), self.noises[-1]
            assert n <= 4 or away <= 5 * noise, "a spike: what is done with those is tested by itself"
            deviations.append(1.2533 * away)
            self.noises.append(float(np.mean(deviations)) if n <= 4 else (1 - NOISE) * noise + NOISE * deviations[-1])
        self.fast, self.slow, self.noise = self.fasts[-1], self.slows[-1], self.noises[-1]


@pytest.fixture(params=["white", "rounded", "wave", "rising", "fading"])
def series(request):
    rng = np.random.default_rng(7)
    time = np.arange(150)
    white = rng.uniform(-1, 1, 150)
    white[:4] = [1.0, -1.0, 0.8, -0.9]  # the noise is known from the start, so nothing looks like a spike
    return {
        "white": 0.5 + 0.1 * white,
        "rounded": (0.01 + 0.05 * white).round(2),
        "wave": np.sin(time / 9) + 0.7 * white,
        "rising": 0.02 * time + white,
        "fading": 3 * np.exp(-time / 40) + white,
    }[request.param].tolist()


def test_levels_are_weighted_means_and_the_noise_is_the_distance_from_them(series):
    for length in (1, 2, 4, 5, 12, 13, 60, 150):
        signal, oracle = fed(series[:length]), Oracle(series[:length])
        assert signal.fast == pytest.approx(oracle.fast, rel=1e-9, abs=1e-12)
        assert signal.slow == pytest.approx(oracle.slow, rel=1e-9, abs=1e-12)
        assert signal._noise == pytest.approx(oracle.noise, rel=1e-9, abs=1e-12)


def test_the_first_value_is_the_level_at_once():
    signal = fed([7.25])
    assert (signal.fast, signal.slow, signal.base, signal.median5) == (7.25, 7.25, 7.25, 7.25)


def test_the_baseline_is_the_median_of_points_three_to_twelve_and_then_stays(series):
    assert fed(series).base == fed(series[:HEAD]).base == pytest.approx(np.median(series[2:12]))
    assert fed(series).head == tuple(series[:12])
    assert fed(series).start == pytest.approx(np.median(series[1:5]))


def test_the_baseline_noise_is_the_larger_of_mad_and_noise(series):
    kept = np.array(series[2:12])
    mad = 1.4826 * np.median(np.abs(kept - np.median(kept)))
    quantum = min((abs(d) for d in np.diff(series) if d), default=0.0)
    expected = max(mad, Oracle(series[:12]).noise, 0.3 * quantum)
    assert fed(series).noise_base == pytest.approx(expected)


@given(st.lists(ORDINARY, min_size=1, max_size=40))
def test_the_window_statistics_are_those_of_the_last_five(values):
    signal, last = fed(values), values[-5:]
    assert signal.window == tuple(last)
    assert signal.spread == max(last) - min(last)
    assert signal.median5 == sorted(last)[len(last) // 2]
    assert (signal.highest, signal.lowest, signal.last) == (max(values), min(values), values[-1])
    assert median(values) == pytest.approx(float(np.median(values)))


def test_the_trend_is_the_t_value_of_a_least_squares_line(series):
    for length in (8, 30, 150):
        taken = np.array(series[:length])
        t = np.arange(1, length + 1)
        slope, level = np.polyfit(t, taken, 1)
        left = taken - slope * t - level
        error = math.sqrt(left @ left / (length - 2) / ((t - t.mean()) @ (t - t.mean())))
        assert fed(series[:length]).trend == pytest.approx(slope / error, rel=1e-6, abs=1e-9)


def test_a_straight_line_has_a_trend_without_bounds_and_too_few_points_have_none():
    assert fed([0.1 * n for n in range(40)]).trend > 1e6
    assert fed([-3.0 * n for n in range(40)]).trend < -1e6
    assert fed(range(7)).trend == 0.0


@given(st.lists(st.sampled_from([0.0, 1e-15, 1.0, -2.0]), min_size=1, max_size=60))
def test_zeros_are_counted_in_a_row_and_as_a_share(values):
    signal = fed(values)
    zero = [abs(value) < 1e-12 for value in values]
    assert signal.zero_streak == next((n for n, is_zero in enumerate(reversed(zero)) if not is_zero), len(zero))
    weights = [(1 - SLOW) ** age for age in range(len(zero))]
    share = sum(weight * is_zero for weight, is_zero in zip(weights, reversed(zero), strict=True)) / sum(weights)
    assert signal.zero_share == pytest.approx(share)


@given(st.lists(st.sampled_from([0.25, 0.5, 0.75]), min_size=1, max_size=60))
def test_equal_values_are_counted_and_the_rounding_is_the_smallest_of_several_changes(values):
    signal = fed(values)
    equal = 1
    while equal < len(values) and values[-equal - 1] == values[-1]:
        equal += 1
    assert signal.equal_streak == equal
    changes = [abs(b - a) for a, b in pairwise(values) if a != b]
    assert signal.quantum == min(changes, default=math.inf)
    assert signal.floor == (signal.quantum if len(changes) >= 5 else 0.0)


def test_the_best_and_the_worst_level_and_their_ages(series):
    oracle = Oracle(series)
    later = oracle.slows[HEAD:]
    signal = fed(series, first_step=100)
    little = 0.5 * SLOW_SHARE * max(oracle.noises[HEAD:])  # smaller changes are no new best
    assert max(later) - little <= signal.top <= max(later) + 1e-12
    assert min(later) - 1e-12 <= signal.bottom <= min(later) + little
    assert oracle.slows[signal.n - signal.top_age - 1] == pytest.approx(signal.top)
    assert oracle.slows[signal.n - signal.bottom_age - 1] == pytest.approx(signal.bottom)
    assert signal.top_step == 99 + signal.n - signal.top_age
    assert signal.travelled == signal.top - signal.bottom
    assert signal.drop == pytest.approx(signal.top - oracle.fast)


def test_the_jumps_of_the_first_points_are_a_median_and_later_ones_a_mean(series):
    jumps = np.abs(np.diff(series))
    early = float(np.median(jumps[:23]))
    assert fed(series[:24]).jump == pytest.approx(early)
    now = slow = early
    for jump in jumps[23:]:
        held = min(jump, 10 * now) if now else jump
        now += (1 - 0.5 ** (1 / 10)) * (held - now)
        slow += (1 - 0.5 ** (1 / 60)) * (held - slow)
    signal = fed(series)
    assert signal.jump == pytest.approx(now)
    assert signal.jump_ratio == pytest.approx(min(now / early, now / slow))


def test_jumps_that_grow_while_the_level_stays_are_seen():
    rng = np.random.default_rng(1)
    signal, ratios = fed(rng.normal(1, 0.05, 60)), []
    assert signal.jump_ratio < 2
    for step, value in enumerate(rng.normal(1, 0.5, 40), 61):
        signal.update(value, step)
        ratios.append(signal.jump_ratio)
    assert max(ratios) > 2.3


def test_the_onset_is_the_step_at_which_the_level_left_its_band_for_good(series):
    fasts = Oracle(series).fasts
    signal, outside = Signal("x"), None
    for n, value in enumerate(series, 1):
        signal.update(value, 10 * n)
        band = max(2 * signal._noise_base, 0.02 * abs(signal.base), signal.floor)
        if abs(0.5 * (fasts[n - 1] + value) - signal.base) <= band:
            outside = None
        elif outside is None:
            outside = 10 * n
        assert signal.is_out is (outside is not None)
        assert signal.onset_step == (outside if outside is not None else 10 * n)


def test_a_step_change_is_dated_within_two_points():
    rng = np.random.default_rng(3)
    for at in (15, 40, 100):
        signal = fed([*rng.normal(1, 0.05, at), *rng.normal(3, 0.05, 30)])
        assert signal.is_out
        assert at <= signal.onset_step - 1 <= at + 2


def test_the_share_of_noise_left_in_a_level_is_what_is_claimed():
    rng = np.random.default_rng(5)
    fasts, slows = [], []
    for _ in range(300):
        signal = fed(rng.uniform(-1, 1, 200))
        fasts.append(signal.fast)
        slows.append(signal.slow)
    assert np.std(fasts) / math.sqrt(1 / 3) == pytest.approx(FAST_SHARE, rel=0.15)
    assert np.std(slows) / math.sqrt(1 / 3) == pytest.approx(SLOW_SHARE, rel=0.15)


# Properties that hold for any input.


def _numbers(signal, names=READ):
    return {name: getattr(signal, name) for name in names}


UNCHANGED_BY_SCALE = (
    "ratio", "median_ratio", "gained", "lost", "dropped", "improving", "top_age", "bottom_age", "jump_ratio", "is_out",
    "onset_step", "rising", "trend",
)  # fmt: skip
GROWING_WITH_SCALE = ("fast", "slow", "noise", "noise_base", "base", "drop", "travelled", "jump", "spread", "floor")


@given(st.lists(ORDINARY, min_size=1, max_size=80), POWERS)
def test_shares_do_not_change_with_the_unit_and_levels_change_with_it(values, scale):
    plain, scaled = fed(values), fed([scale * value for value in values])
    one, other = _numbers(plain), _numbers(scaled)
    for name in UNCHANGED_BY_SCALE:
        if name == "rising" and plain.noise < 1e-3:
            continue  # the noise has a minimum of 1e-12, whatever the unit
        assert other[name] == pytest.approx(one[name], rel=1e-9, nan_ok=True), name
    for name in GROWING_WITH_SCALE:
        assert other[name] == pytest.approx(scale * one[name], rel=1e-12, nan_ok=True), name


@given(st.lists(ORDINARY, min_size=8, max_size=80), st.integers(-1000, 1000))
def test_movement_does_not_change_with_a_shift(values, shift):
    one, other = fed(values), fed([value + shift for value in values])
    if one.noise < 1e-2:
        return  # the rounding of the shift is then as large as the movement
    assert other.noise == pytest.approx(one.noise, rel=1e-6)
    assert other.rising == pytest.approx(one.rising, rel=1e-5, abs=1e-6)
    assert other.drop == pytest.approx(one.drop, rel=1e-6, abs=1e-6)
    assert other.travelled == pytest.approx(one.travelled, rel=1e-6, abs=1e-6)
    if math.isfinite(one.trend) and abs(one.trend) < 1e3:
        assert other.trend == pytest.approx(one.trend, rel=1e-4, abs=1e-4)


@given(st.lists(ORDINARY, min_size=13, max_size=80))
def test_turned_upside_down_up_is_down(values):
    one, other = fed(values), fed([-value for value in values])
    assert other.rising == -one.rising
    assert other.trend == -one.trend
    assert (other.top, other.bottom) == (-one.bottom, -one.top)
    assert (other.top_age, other.bottom_age) == (one.bottom_age, one.top_age)
    assert other.onset_step == one.onset_step


@pytest.mark.slow
@given(st.floats(-1e12, 1e12, allow_nan=False, allow_subnormal=False), st.integers(1, 400))
def test_a_constant_has_no_noise_no_trend_and_never_moves(value, points):
    signal = fed([value] * points)
    assert signal.base == value
    assert signal.noise <= 1e-8 * abs(value)
    assert signal.trend == 0.0
    assert abs(signal.rising) < 1.0
    assert not signal.gained
    assert not signal.improving
    assert not signal.lost
    assert not signal.dropped
    assert not signal.is_out
    assert signal.equal_streak == points


@given(
    st.lists(st.floats(0.4, 0.6).map(lambda value: round(value, 3)), min_size=5, max_size=60),
    st.floats(1, 1e300),
    st.sampled_from([1, -1]),
)
def test_one_spike_of_any_size_moves_the_levels_by_five_noises_at_most(values, size, sign):
    before = fed(values)
    after = fed(values)
    after.update(sign * size, len(values) + 1)
    reach = 5 * before.noise + 1e-12
    weights = {share: share / (1 - (1 - share) ** after.n) for share in (FAST, SLOW)}
    assert abs(after.fast - before.fast) <= weights[FAST] * (reach + max(values) - min(values))
    assert abs(after.slow - before.slow) <= weights[SLOW] * (reach + max(values) - min(values))
    assert after.noise <= before.noise * (1 + 5.5 * NOISE) + 0.3 * (max(values) - min(values)) + 1e-8
    assert math.isfinite(after.trend)


@pytest.mark.parametrize("constant", [0.0, 0.1, 0.5, 1 / 3])
def test_a_new_level_after_a_constant_is_followed(constant):
    signal = fed([constant] * 30 + [0.9] * 20)
    assert signal.fast == pytest.approx(0.9, abs=0.2)
    assert signal.is_out
    assert signal.onset_step in (31, 32)


@pytest.mark.parametrize("size", [5, 30, 1000])
def test_a_new_level_is_followed_within_thirty_points(size):
    rng = np.random.default_rng(8)
    signal = fed([*rng.normal(0, 1, 40), *rng.normal(size, 1, 30)])
    assert signal.fast == pytest.approx(size, rel=0.3)


def test_one_great_change_is_not_taken_for_the_rounding_of_the_log():
    signal = fed([0.9] * 30 + [0.1] * 20)
    assert signal.floor < 0.1
    assert signal.dropped
    assert signal.lost


def test_one_spike_after_a_constant_does_not_own_the_level():
    signal = fed([0.0] * 30)
    signal.update(1e6, 31)
    for step in range(32, 42):
        signal.update(0.0, step)
    assert abs(signal.fast) < 1.0
    assert signal.noise < 1.0


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_spike_among_the_first_points_is_forgotten_by_the_fiftieth(at):
    rng = np.random.default_rng(2)
    values = rng.normal(0.5, 0.05, 50)
    clean = fed(values)
    values[at] = 1e6
    spiked = fed(values)
    assert spiked.base == pytest.approx(clean.base, abs=0.05)
    assert spiked.fast == pytest.approx(clean.fast, abs=0.2)
    assert spiked.slow == pytest.approx(clean.slow, abs=0.2)
    assert spiked.noise < 10 * clean.noise


@given(st.lists(ANY, min_size=1, max_size=60))
def test_every_statistic_of_finite_values_can_be_read_and_compared(values):
    signal = fed(values)
    for name, value in _numbers(signal).items():
        assert isinstance(value, float | int), name


@given(st.lists(st.floats(-1e150, 1e150, allow_nan=False), min_size=13, max_size=60))
def test_levels_of_large_finite_values_are_finite(values):
    signal = fed(values)
    for name in ("fast", "slow", "noise", "noise_base", "base", "rising", "drop", "travelled", "jump", "spread"):
        assert math.isfinite(getattr(signal, name)), name
    assert not math.isnan(signal.trend)


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1e30, 1e150, 1e300])
def test_the_size_of_the_unit_never_makes_a_statistic_undefined(size):
    rng = np.random.default_rng(4)
    signal = fed(size * rng.uniform(0.5, 1.5, 100))
    assert signal.fast == pytest.approx(size, rel=0.5)
    assert signal.slow == pytest.approx(size, rel=0.5)
    assert not math.isnan(signal.trend)
    assert abs(signal.trend) < 6


def test_alternating_values_stay_in_the_middle_and_go_nowhere():
    signal = fed([0.0, 1.0] * 200)
    assert signal.fast == pytest.approx(0.5, abs=0.1)
    assert signal.slow == pytest.approx(0.5, abs=0.02)
    assert signal.noise == pytest.approx(1.2533 * 0.5, rel=0.15)
    assert abs(signal.trend) < 0.5
    assert abs(signal.rising) < 1
    assert signal.jump == pytest.approx(1.0)
    assert signal.jump_ratio == pytest.approx(1.0)
    assert not signal.gained
    assert not signal.lost
    assert not signal.dropped


@given(st.lists(ORDINARY, min_size=1, max_size=60), st.lists(ORDINARY, min_size=1, max_size=60))
def test_a_reset_signal_is_a_fresh_one(before, after):
    signal = fed(before)
    signal.update_nonfinite(3)
    signal.seen_at = 9
    signal.reset()
    fresh = Signal("x")
    for step, value in enumerate(after, 1):
        signal.update(value, step)
        fresh.update(value, step)
    for name in Signal.__slots__:
        if name not in ("name", "key", "course"):
            assert getattr(signal, name) == pytest.approx(getattr(fresh, name), nan_ok=True)
    assert signal.course.levels == fresh.course.levels


def test_a_value_that_is_no_number_is_counted_and_forgotten_but_changes_no_level():
    signal, other = fed([1.0, 2.0, 3.0]), fed([1.0, 2.0, 3.0])
    signal.update_nonfinite(4)
    assert (signal.nonfinite, signal.nonfinite_recent, signal.n, signal.step) == (1, 1.0, 3, 4)
    signal.update_nonfinite(5)
    assert signal.nonfinite_recent == pytest.approx(1.8)
    assert (signal.fast, signal.slow, signal.noise) == (other.fast, other.slow, other.noise)
    for step in range(6, 20):
        signal.update(2.0, step)
    assert signal.nonfinite_recent < 0.1


def _size(signal):
    total = 0
    for name in Signal.__slots__:
        value = getattr(signal, name)
        total += sys.getsizeof(value) + (sum(map(sys.getsizeof, value)) if isinstance(value, list) else 0)
    return total


@pytest.mark.slow
def test_a_million_points_stay_finite_in_constant_memory():
    rng = np.random.default_rng(6)
    signal, sizes = Signal("x"), {}
    for step, value in enumerate((0.5 + 0.1 * rng.standard_t(3, 1_000_000)).tolist(), 1):
        signal.update(value, step)
        if step in (1_000, 1_000_000):
            sizes[step] = _size(signal)
    assert sizes[1_000_000] <= sizes[1_000] + 100
    assert signal.slow == pytest.approx(0.5, abs=0.1)
    assert abs(signal.trend) < 5
    assert all(not math.isinf(getattr(signal, name)) for name in READ)


def test_memory_does_not_grow_with_the_points():
    rng = np.random.default_rng(6)
    values = rng.normal(size=20_000).tolist()
    assert _size(fed(values)) <= _size(fed(values[:200])) + 100


def test_a_streak_of_zeros_begins_at_its_first_zero_though_rounding_keeps_them_apart():
    signal = Signal("grad_norm")
    for step, value in enumerate([0.4, 1e-15, 0.0, 3e-15, 1e-15], start=10):
        signal.update(value, step)
    assert (signal.zero_streak, signal.zero_step, signal.equal_streak) == (4, 11, 1)


@given(st.lists(ORDINARY, min_size=1, max_size=80))
def test_asking_changes_no_later_answer(values):
    asked = Signal("x")
    for step, value in enumerate(values, 1):
        asked.update(value, step)
        for name in READ:
            getattr(asked, name)
    silent = fed(values)
    for name in READ:
        assert getattr(asked, name) == pytest.approx(getattr(silent, name), rel=0, abs=0, nan_ok=True), name


def test_a_series_that_begins_again_answers_for_its_new_values_alone():
    signal = fed([1.0, 5.0, 9.0] * 20)
    before = [getattr(signal, name) for name in READ]
    signal.reset()
    for step, value in enumerate([0.5, 0.25, 0.5] * 20, 1):
        signal.update(value, step)
    fresh = fed([0.5, 0.25, 0.5] * 20)
    assert [getattr(signal, name) for name in READ] == [getattr(fresh, name) for name in READ] != before


@pytest.mark.parametrize("table", [FAST_WARM, MID_WARM, SLOW_WARM])
def test_the_tables_of_how_warm_a_level_is_end_where_nothing_is_left_to_correct(table):
    assert table[-1] == 1.0
    assert all(earlier <= later for earlier, later in pairwise(table))


def test_the_wander_is_a_plain_mean_while_that_weighs_new_values_more():
    assert 1 / (WANDER_FROM - HEAD) >= WANDER > 1 / (WANDER_FROM + 1 - HEAD)
