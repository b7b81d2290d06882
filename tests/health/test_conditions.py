"""Rules without code: the syntax of conditions, and when they hold."""

from __future__ import annotations

import math

import pytest

from rlvitals import catalog
from rlvitals.errors import RuleError
from rlvitals.health import conditions
from rlvitals.health.statistics import Signal


def signal_of(*values: float, first_step: int = 1) -> Signal:
    signal = Signal("kl", "objective/kl")
    for step, value in enumerate(values, first_step):
        signal.update(value, step)
    return signal


def holds(text: str, *values: float) -> bool:
    terms = conditions.parse(text)
    return conditions.judge(terms, "warning", [signal_of(*values)] * len(terms)) is not None


@pytest.mark.parametrize(
    ("text", "below", "at", "above"),
    [
        ("kl > 0.5", False, False, True),
        ("kl >= 0.5", False, True, True),
        ("kl < 0.5", True, False, False),
        ("kl <= 0.5", True, True, False),
        ("kl == 0.5", False, True, False),
        ("kl>.5", False, False, True),
        ("kl > 5e-1", False, False, True),
        ("kl outside 0.5..1", True, False, False),
        ("kl outside 0.1..0.45", False, True, True),
    ],
)
def test_each_comparison_holds_where_it_should(text, below, at, above):
    assert [holds(text, value) for value in (0.4, 0.5, 0.6)] == [below, at, above]


def test_a_band_may_be_negative_on_both_sides():
    assert not holds("kl outside -0.5..-0.2", -0.3)
    assert holds("kl outside -0.5..-0.2", -0.1)
    assert holds("kl outside -0.5 .. -0.2", -0.6)


def test_all_terms_must_hold():
    assert holds("kl > 0.5 and kl.at_step > 2", 0.6, 0.6, 0.6)
    assert not holds("kl > 0.5 and kl.at_step > 3", 0.6, 0.6, 0.6)
    assert not holds("kl > 0.7 and kl.at_step > 2", 0.6, 0.6, 0.6)


@pytest.mark.parametrize("statistic", conditions.STATISTICS)
def test_every_statistic_is_a_number_once_there_are_values(statistic):
    signal = signal_of(*(0.3 + 0.1 * math.sin(step) for step in range(40)))
    assert math.isfinite(conditions.STATISTICS[statistic](signal))
    assert conditions.parse(f"kl.{statistic} > 1")[0] == conditions.Term(
        "kl", statistic, ">", 1.0, pytest.approx(math.nan, nan_ok=True)
    )


def test_change_is_the_difference_of_the_last_two_values():
    assert holds("kl.change > 0.05", 0.1, 0.2)
    assert not holds("kl.change > 0.05", 0.2, 0.1)
    assert not holds("kl.change > 0.05", 0.2)


def test_a_series_without_a_finite_value_holds_nothing():
    signal = Signal("kl", "kl")
    signal.update_nonfinite(1)
    assert conditions.judge(conditions.parse("kl < 100"), "warning", [signal]) is None


def test_the_evidence_has_the_threshold_and_what_was_compared():
    alarm = conditions.judge(
        conditions.parse("kl.fast > 0.5 and reward < 1"), "critical", [signal_of(0.7), signal_of(0.2)]
    )
    assert alarm is not None
    assert alarm.severity == "critical"
    assert alarm.evidence == {"threshold": 0.5, "fast": pytest.approx(0.7), "reward.value": pytest.approx(0.2)}
    assert alarm.signal is not None
    assert alarm.signal.key == "objective/kl"


def test_every_concept_of_the_catalogue_can_be_asked_for():
    for metric in catalog.metrics():
        plain, level = conditions.parse(f"{metric.id} > 1 and {metric.id}.fast > 1")
        assert (plain.signal, plain.statistic) == (metric.id, "value")
        assert (level.signal, level.statistic) == (metric.id, "fast")


def test_every_name_the_catalogue_knows_can_be_asked_for():
    names = {alias.name for metric in catalog.metrics() for alias in metric.names}
    assert len(names) > 500
    assert [name for name in names if conditions.parse(f"{name} < 0.5")[0].signal != name] == []


def test_a_logged_name_that_ends_like_a_statistic_is_distinguished_by_value():
    assert conditions.parse("my.drop > 1")[0].statistic == "drop"
    term = conditions.parse("my.drop.value > 1")[0]
    assert (term.signal, term.statistic) == ("my.drop", "value")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kl", "'kl' is not a condition"),
        ("kl >", "is not a condition"),
        ("> 3", "is not a condition"),
        ("kl > high", "is not a condition"),
        ("kl > 0.5 or reward < 1", "is not a condition"),
        ("kl > 0.5 and", "is not a condition"),
        ("kl > 1.2.3", "is not a condition"),
        ("kl => 1", "is not a condition"),
        ("kl > 0.5 for 5", r"The points are a separate key of the entry: 'hold: 5 of 5'"),
        ("kl.fsat > 0.5", "'fsat' is not a statistic. Did you mean 'fast'?"),
        ("kl outside 3..2", "first number must be below its second"),
    ],
)
def test_a_condition_that_is_none_says_how_to_write_one(text, message):
    with pytest.raises(RuleError, match=r"^my\.yaml, line 7: ") as caught:
        conditions.parse(text, "my.yaml, line 7")
    assert message in str(caught.value)
