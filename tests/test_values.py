"""Mergeable numbers: any split and any order of merges gives the result of one pass over all the data."""

from __future__ import annotations

import json
import math
import random
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlvitals import values
from rlvitals.values import KINDS, Derived, Value, last, mean, merge, of

# Bounded so that sums of squares stay inside the range of a float; other tests cover the ends of the range.
# No subnormal numbers: half of the smallest one is zero, in any order.
NUMBERS = st.floats(min_value=-1e100, max_value=1e100, allow_nan=False, allow_infinity=False, allow_subnormal=False)
ORDINARY = st.one_of(
    NUMBERS, st.floats(min_value=-1e3, max_value=1e3, allow_subnormal=False), st.integers(-5, 5).map(float)
)
WEIGHTS = st.one_of(st.integers(0, 1000).map(float), st.floats(min_value=1e-3, max_value=1e3))
MOMENT_KINDS = [kind for kind in KINDS if kind != "last"]


@st.composite
def split_data(draw):
    """Weighted numbers, split anywhere (empty pieces too), and a seed for the order of merging."""
    pairs = draw(st.lists(st.tuples(ORDINARY, WEIGHTS), max_size=40))
    cuts = sorted(draw(st.lists(st.integers(0, len(pairs)), max_size=6)))
    edges = [0, *cuts, len(pairs)]
    pieces = [pairs[start:end] for start, end in pairwise(edges)]
    return pairs, pieces, draw(st.integers(0, 2**32))


def gathered(pairs, kind="mean"):
    return of([number for number, _ in pairs], kind, [weight for _, weight in pairs])


def merged_in_random_order(pieces: list[Value], seed: int) -> Value:
    """Merge random pairs until one is left: this can give every tree of merges, not only a chain."""
    chance = random.Random(seed)
    left = list(pieces)
    while len(left) > 1:
        first = left.pop(chance.randrange(len(left)))
        second = left.pop(chance.randrange(len(left)))
        left.append(first + second)
    return left[0]


def exact_moments(pairs):
    """Count, mean and M2 in exact arithmetic."""
    exact = [(Fraction(number), Fraction(weight)) for number, weight in pairs if weight > 0]
    count = sum(weight for _, weight in exact)
    average = sum(number * weight for number, weight in exact) / count
    return count, average, sum(weight * (number - average) ** 2 for number, weight in exact)


def assert_is_one_pass(found: Value, pairs) -> None:
    counted = [number for number, weight in pairs if weight > 0]
    if not counted:
        assert found.count == 0
        assert found.number is None
        return
    count, average, m2 = exact_moments(pairs)
    scale = max(map(abs, counted))
    assert found.count == pytest.approx(float(count), rel=1e-12)
    assert found.mean == pytest.approx(float(average), rel=1e-12, abs=1e-13 * scale)
    # A mean is exact only up to rounding, and so is a spread far below the size of the numbers.
    slack = max(float(count) * (1e-13 * scale) ** 2, 1e-300)  # subnormal numbers have few digits
    assert found.m2 == pytest.approx(float(m2), rel=1e-9, abs=slack)
    assert found.min == min(counted)
    assert found.max == max(counted)


@given(split_data())
def test_one_pass_agrees_with_exact_arithmetic(data):
    pairs, _, _ = data
    assert_is_one_pass(gathered(pairs), pairs)


@given(split_data())
@example(([(1e8, 1.0), (1e8 + 1, 1.0), (1e8 + 2, 1.0)], [[(1e8, 1.0)], [(1e8 + 1, 1.0), (1e8 + 2, 1.0)]], 0))
@example(([(0.0, 0.0)], [[(0.0, 0.0)], []], 0))
@example(([(0.0, 1.0), (5.837069736944564e-161, 1.0)], [[(0.0, 1.0), (5.837069736944564e-161, 1.0)]], 0))
def test_any_split_and_any_order_of_merges_is_one_pass(data):
    pairs, pieces, seed = data
    assert_is_one_pass(merged_in_random_order([gathered(piece) for piece in pieces], seed), pairs)


@pytest.mark.parametrize("kind", MOMENT_KINDS)
@given(split_data())
def test_the_finished_number_of_every_kind_does_not_depend_on_the_split(kind, data):
    pairs, pieces, seed = data
    whole = gathered(pairs, kind).number
    merged = merged_in_random_order([gathered(piece, kind) for piece in pieces], seed).number
    if kind == "sample_std" and abs(sum(weight for _, weight in pairs) - 1) < 1e-9:
        return  # the count is one up to rounding: defined or undefined are both right
    if whole is None:
        assert merged is None
        return
    scale = max(abs(number) for number, weight in pairs if weight > 0)
    total = sum(weight for _, weight in pairs)
    slack = {"var": (1e-6 * scale) ** 2, "sum": 1e-12 * scale * total, "count": 0.0}.get(kind, 1e-12 * scale)
    if kind == "sample_std":
        slack *= math.sqrt(total / (total - 1))
    assert merged == pytest.approx(whole, rel=1e-9, abs=slack)


@given(split_data())
def test_merging_two_values_is_the_same_from_either_side(data):
    _, pieces, _ = data
    left, right = gathered(pieces[0]), gathered(pieces[-1])
    assert left + right == right + left


@given(st.lists(st.tuples(ORDINARY, st.integers(0, 6)), min_size=1, max_size=20))
def test_a_whole_weight_counts_as_that_many_samples(pairs):
    repeated = [number for number, weight in pairs for _ in range(weight)]
    weighted = gathered(pairs)
    assert_is_one_pass(weighted, [(number, 1.0) for number in repeated])


@given(st.lists(ORDINARY, min_size=2, max_size=50))
def test_finished_numbers_are_those_of_numpy(numbers):
    scale = max(map(abs, numbers))
    close = {"rel": 1e-9, "abs": 1e-12 * scale * len(numbers)}
    assert of(numbers, "mean").number == pytest.approx(np.mean(numbers), **close)
    assert of(numbers, "sum").number == pytest.approx(np.sum(numbers), **close)
    assert of(numbers, "std").number == pytest.approx(np.std(numbers), **close)
    assert of(numbers, "sample_std").number == pytest.approx(np.std(numbers, ddof=1), **close)
    assert of(numbers, "var").number == pytest.approx(np.var(numbers), rel=1e-9, abs=(1e-6 * scale) ** 2)
    assert of(numbers, "min").number == np.min(numbers)
    assert of(numbers, "max").number == np.max(numbers)
    assert of(numbers, "count").number == len(numbers)


@given(st.permutations([last(10.0, 1), last(20.0, 5), last(30.0, 5), last(-1.0, 3)]))
def test_the_last_value_wins_in_any_order_of_merging(shuffled):
    # Two have the greatest order; the order of merging must not decide which one is shown.
    assert merge(shuffled).number == 30.0


@given(st.permutations([1.0, math.nan, 3.0, math.inf]), st.integers(1, 3))
def test_a_nan_sample_is_never_lost_whichever_side_it_is_on(numbers, cut):
    merged = of(numbers[:cut]) + of(numbers[cut:])
    assert math.isnan(merged.mean)
    assert math.isnan(merged.min)
    assert math.isnan(merged.max)
    assert merged.count == 4


def test_a_last_value_of_nothing_gives_way_to_any_other_however_late_it_is():
    nothing = Value.from_list([0, 0, 0, "inf", "-inf", "last", 9])
    assert (nothing + last(5.0, 1)).number == (last(5.0, 1) + nothing).number == 5.0
    assert (nothing + last(5.0, 1)).order == 1


def test_the_last_value_may_be_nan_in_either_order():
    older, newer = last(1.0, 1), last(math.nan, 2)
    assert math.isnan((older + newer).number)
    assert math.isnan((newer + older).number)


def test_a_value_of_nothing_is_undefined_for_every_kind():
    for kind in MOMENT_KINDS:
        assert of([], kind).number is None


def test_a_value_of_nothing_changes_nothing_it_is_merged_with():
    some = mean([1.0, 2.0])
    assert some + mean([]) == some
    assert mean([]) + some == some
    assert (mean([]) + mean([])).number is None


def test_one_sample_has_a_population_spread_and_no_sample_spread():
    assert values.spread([5.0]).number == 0.0
    assert values.spread([5.0], sample=True).number is None
    assert (values.spread([5.0], sample=True) + values.spread([7.0], sample=True)).number == pytest.approx(math.sqrt(2))


def test_a_mean_of_unequal_parts_is_no_mean_of_means():
    assert (mean([1.0] * 99) + mean([101.0])).number == 2.0


def test_the_short_names_finish_as_they_say():
    data = [1.0, 2.0, 6.0]
    assert mean(data).number == 3.0
    assert values.total(data).number == pytest.approx(9.0)
    assert values.smallest(data).number == 1.0
    assert values.largest(data).number == 6.0
    assert values.spread(data).number == pytest.approx(np.std(data))
    assert values.spread(data, sample=True).number == pytest.approx(np.std(data, ddof=1))


def test_arrays_and_generators_are_gathered_like_lists():
    array = np.array([1.0, 2.0, 4.0], dtype=np.float32)
    assert of(array) == of([1.0, 2.0, 4.0]) == of(number for number in [1.0, 2.0, 4.0])


def test_the_same_data_can_be_shown_as_another_number():
    rewards = mean([1.0, 3.0])
    assert rewards.showing("std").number == 1.0
    assert rewards.showing("std").showing("mean") == rewards
    with pytest.raises(ValueError, match="cannot be shown"):
        rewards.showing("last")
    with pytest.raises(ValueError, match="cannot be shown"):
        last(1.0, 1).showing("mean")


def test_values_of_different_kinds_do_not_merge():
    with pytest.raises(ValueError, match="cannot merge a mean with a sum"):
        mean([1.0]) + values.total([1.0])
    with pytest.raises(TypeError):
        mean([1.0]) + 1.0


def test_merging_nothing_is_an_error():
    with pytest.raises(ValueError, match="nothing to merge"):
        merge([])


def test_weights_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="2 numbers came with 1 weights"):
        of([1.0, 2.0], weights=[1.0])
    with pytest.raises(ValueError, match="zero or more"):
        of([1.0], weights=[-1.0])
    with pytest.raises(ValueError, match="zero or more"):
        of([1.0], weights=[math.nan])
    with pytest.raises(ValueError, match="last"):
        of([1.0], "last")


def test_a_number_of_weight_zero_leaves_no_trace():
    assert of([1.0, math.nan, 1e9], weights=[1.0, 0.0, 0.0]) == of([1.0])


@pytest.mark.parametrize("numbers", [[1e200, -1e200], [1.7e308, -1.7e308], [1.7e308, 1.7e308], [math.inf, 1e200]])
def test_numbers_at_the_end_of_the_range_do_not_raise(numbers):
    """The recorder must not stop a training loop, least of all when the loss diverges."""
    assert of(numbers).count == 2
    assert (of(numbers[:1]) + of(numbers[1:])).count == 2
    assert of(numbers).max == max(numbers)


@given(st.sampled_from(MOMENT_KINDS), st.lists(ORDINARY, min_size=1, max_size=5))
def test_the_stored_form_survives_json_unchanged(kind, numbers):
    value = of(numbers, kind)
    assert Value.from_list(json.loads(json.dumps(value.to_list()))) == value


def test_the_stored_form_of_a_last_value_keeps_its_order():
    value = last(3.5, 17)
    assert Value.from_list(json.loads(json.dumps(value.to_list()))) == value


def test_the_stored_form_of_a_mean_is_its_five_moments():
    assert mean([1.0, 3.0]).to_list() == [2.0, 2.0, 2.0, 1.0, 3.0]
    assert values.total([1.0, 3.0]).to_list() == [2.0, 2.0, 2.0, 1.0, 3.0, "sum"]


@pytest.mark.parametrize(
    "stored",
    [
        [],
        [1, 2, 3, 4],
        [1, 2, 3, 4, 5, "mean", 0, 0],
        [1, 2, "3", 4, 5],
        [True, 2, 3, 4, 5],
        [-1, 2, 3, 4, 5],
        [1, 2, 3, 4, 5, "median"],
        [1, 2, 3, 4, 5, ["mean"]],
        [1, 2, 3, 4, 5, "last", "x"],
        [1, None, 3, 4, 5],
        [1, 10**400, 3, 4, 5],
        "12345",
        {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5},
        None,
        5,
    ],
)
def test_anything_else_is_no_stored_value(stored):
    with pytest.raises(ValueError, match="not a stored value"):
        Value.from_list(stored)


def _gap(high, low):
    return high.mean - low.mean


def test_a_derived_number_is_computed_again_from_merged_parts():
    left = values.Derived((values.mean([1.0, 2.0]), values.mean([0.0])), _gap)
    right = values.Derived((values.mean([9.0]), values.mean([2.0, 4.0])), _gap)
    assert left.number == 1.5
    assert (left + right).number == (1.0 + 2.0 + 9.0) / 3 - (0.0 + 2.0 + 4.0) / 3


def test_a_derived_number_without_a_part_is_undefined_until_another_brings_it():
    half = values.Derived((values.mean([1.0]), values.mean([])), _gap)
    assert half.number is None
    assert (half + values.Derived((values.mean([]), values.mean([4.0])), _gap)).number == -3.0


def test_numbers_of_different_formulas_do_not_merge():
    parts = (values.mean([1.0]), values.mean([2.0]))
    with pytest.raises(ValueError, match="different formulas"):
        values.Derived(parts, _gap) + values.Derived(parts, lambda high, low: high.mean + low.mean)


@pytest.mark.parametrize("kind", MOMENT_KINDS)
def test_a_value_is_the_number_it_stands_for(kind):
    value = of([1.0, 2.0, 6.0], kind)
    assert float(value) == value.number
    assert isinstance(float(value), float)


def test_the_last_value_and_a_derived_one_are_numbers_too():
    assert float(last(3, 1)) == 3.0
    assert math.isnan(float(mean([math.nan])))
    gap = Derived((mean([3.0]), mean([1.0])), lambda high, low: high.mean - low.mean)
    assert float(gap) == 2.0


@pytest.mark.parametrize("nothing", [mean([]), of([1.0], "sample_std"), Derived((mean([]),), lambda part: part.mean)])
def test_what_is_undefined_is_no_number(nothing):
    """The result is neither 0.0 nor a NaN that was never logged."""
    with pytest.raises(ValueError, match="undefined"):
        float(nothing)
