"""The verdict at the end of a run: it distinguishes a change from noise, on any scale of rewards."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from rlvitals.views.epoch_trend import judge

UNKNOWN = float("nan")


def verdict(values, error=UNKNOWN, scale=None):
    values = np.array(values, dtype=float)
    return judge("reward", values, np.full(len(values), error), scale).verdict


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e5])
@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5], "improving"),
        ([0.1, 0.6, 0.7, 0.7, 0.701, 0.7], "converged"),
        ([0.1, 0.5, 0.2, 0.6, 0.1, 0.5], "inconsistent"),
        ([0.2, 0.5, 0.8, 0.65], "inconsistent"),
        ([0.2, 0.5, 0.8, 0.3], "worsening"),
        ([0.8, 0.6, 0.4, 0.2], "worsening"),
        ([0.8, 0.3, 0.3, 0.301, 0.3], "worsening"),
        ([0.3, 0.301, 0.299, 0.3, 0.3], "flat"),
    ],
)
def test_the_shape_decides_whatever_the_scale(shape, expected, size):
    assert verdict(np.array(shape) * size, error=0.005 * size) == expected


def test_the_same_change_is_an_improvement_or_noise_by_the_error_of_the_epochs():
    rising = [0.50, 0.52, 0.54, 0.56]
    assert verdict(rising, error=0.002) == "improving"
    assert verdict(rising, error=0.05) == "flat"


def test_rewards_that_only_scatter_are_rarely_called_anything_but_flat():
    rng = np.random.default_rng(11)
    verdicts = Counter(verdict(0.4 + 0.1 * rng.normal(size=6), error=0.1) for _ in range(400))
    assert verdicts["flat"] > 0.75 * 400
    assert verdicts["improving"] + verdicts["worsening"] + verdicts["inconsistent"] < 0.2 * 400


def test_a_noisy_climb_is_seen_over_the_whole_run_where_its_end_alone_does_not_show_it():
    assert verdict([0.27, 0.36, 0.45, 0.51, 0.60], error=0.08) == "improving"


def test_without_errors_the_scatter_of_the_curve_tells_the_noise():
    assert verdict([0.1, 0.21, 0.29, 0.41, 0.5]) == "improving"
    assert verdict([0.5, 0.7, 0.4, 0.6, 0.5]) in ("flat", "inconsistent")


def test_a_run_that_began_high_has_converged_and_one_that_began_low_has_not():
    still = [0.80, 0.81, 0.80, 0.805]
    assert verdict(still, error=0.01, scale=(0.0, 1.0)) == "converged"
    assert verdict(still, error=0.01, scale=(0.0, 10.0)) == "flat"
    assert verdict(still, error=0.01) == "flat"


@pytest.mark.parametrize("values", [[], [0.5], [0.5, 0.9]])
def test_too_little_gives_no_verdict(values):
    assert verdict(values) == "cannot judge"


def test_two_epochs_with_known_errors_may_differ():
    assert verdict([0.2, 0.6], error=0.01) == "improving"
    assert verdict([0.2, 0.21], error=0.01) == "cannot judge"


def test_ups_and_downs_of_the_beginning_are_forgotten_once_the_run_has_settled():
    wild = [0.1, 0.5, 0.1, 0.5, 0.1]
    assert verdict([*wild, 0.6, 0.7, 0.7], error=0.005) == "inconsistent"
    assert verdict([*wild, 0.6, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7], error=0.005) == "converged"


def why(values, error=UNKNOWN):
    return judge("reward", np.array(values, dtype=float), np.full(len(values), error)).why


def test_the_reason_tells_the_numbers_it_rests_on():
    assert why([0.5]) == "reward is known for one epoch only"
    assert why([0.5, 0.9]) == "two epochs of one row each do not tell how noisy reward is"
    assert why([0.2, 0.21], 0.01).startswith("reward rose by 0.01 over the last 2 epochs, which is within its noise")
    assert why([0.8, 0.6, 0.4, 0.2], 0.01).startswith("reward fell by 0.4 over the last 3 epochs, more than its noise")
    settled = "reward stands at 0.75 and no longer moves beyond its noise"
    assert why([0.25, 0.7, 0.74, 0.75], 0.02) == f"{settled}, 0.5 above the first epoch"
    assert why([0.95, 0.755, 0.745, 0.75], 0.01) == f"{settled}, 0.2 below the first epoch"
    assert why([0.74, 0.76, 0.74, 0.75], 0.02).startswith("reward stands at 0.75 and has not left the first epoch's")
