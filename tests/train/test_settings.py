"""The limits of settings, and the learning rate by model size and by step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from rlvitals.errors import ConfigError
from rlvitals.train import settings as kinds
from rlvitals.train.schedule import rate_by_size, shares_of_rate
from rlvitals.train.settings import check_divides, check_limits


@dataclass(frozen=True)
class Numbers:
    model: str | None = None
    model_size: str | None = None
    count: kinds.Count = 1
    pair: kinds.Pair = 2
    whole: kinds.Whole = 0
    amount: kinds.Amount = 0.0
    positive: kinds.Positive = math.inf
    rate: kinds.Rate | None = None
    share: kinds.Share = 1.0
    part: kinds.Part | None = 0.0


def test_values_at_their_limits_and_none_are_taken():
    check_limits(Numbers())
    check_limits(Numbers(share=0.0, part=0.999, rate=1e300))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"count": 0}, "count must be at least 1, not 0"),
        ({"pair": 1}, "pair must be at least 2, not 1"),
        ({"whole": -1}, "whole cannot be negative, not -1"),
        ({"amount": -0.1}, "amount cannot be negative, not -0.1"),
        ({"amount": math.nan}, "amount cannot be negative, not nan"),
        ({"positive": 0.0}, "positive must be above 0, not 0.0"),
        ({"rate": math.inf}, "rate must be above 0, not inf"),
        ({"rate": 0.0}, "rate must be above 0, not 0.0"),
        ({"share": 1.1}, "share must be between 0 and 1, not 1.1"),
        ({"part": 1.0}, "part must be from 0 to below 1, not 1.0"),
        ({"model_size": "huge"}, "no model size 'huge'"),
    ],
)
def test_a_number_outside_the_limits_of_its_type_is_named(given, complaint):
    with pytest.raises(ConfigError, match=complaint):
        check_limits(Numbers(**given))


def test_a_setting_that_must_divide_another():
    check_divides(SimpleNamespace(small=4, large=12), "small", "large")
    check_divides(SimpleNamespace(small=None, large=12), "small", "large")
    with pytest.raises(ConfigError, match="small must divide large: 12 is not a multiple of 5"):
        check_divides(SimpleNamespace(small=5, large=12), "small", "large")


@pytest.mark.parametrize(
    ("parameters", "rate"), [(116_096, 3e-4), (10**7 - 1, 3e-4), (10**7, 5e-6), (10**9 - 1, 5e-6), (10**9, 5e-7)]
)
def test_the_learning_rate_fits_the_size(parameters, rate):
    assert rate_by_size(parameters, tiny=3e-4, large=5e-7) == rate


def test_the_learning_rate_rises_and_then_falls_to_a_tenth_or_stays():
    shares = {
        name: shares_of_rate(SimpleNamespace(warmup_steps=1, max_steps=10, lr_schedule=name))
        for name in ("linear", "constant")
    }
    assert [shares["constant"](step) for step in (0, 1, 9)] == [0.5, 1.0, 1.0]
    assert [shares["linear"](step) for step in (0, 1, 5, 10, 11)] == pytest.approx([0.5, 0.91, 0.55, 0.1, 0.1])
