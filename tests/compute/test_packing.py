"""Moments in one tensor, and values with the sign, scale and direction of their names."""

from __future__ import annotations

import numpy as np
import pytest

from rlvitals import values
from rlvitals.catalog.entries import Alias, Caveat
from rlvitals.compute import merge
from rlvitals.compute.names import FamilyNames, Name, _converting
from rlvitals.compute.packing import StatisticSheet

NUMBERS = [0.1, 0.4, 0.7]


@pytest.mark.parametrize("kind", ["mean", "max", "min", "std", "var"])
@pytest.mark.parametrize(
    ("caveat", "logged"),
    [
        (Caveat("sign", factor=-1.0), lambda x: -x),
        (Caveat("scale", factor=0.01), lambda x: 100.0 * x),
        (Caveat("complement"), lambda x: 1.0 - x),
        (Caveat("scope"), lambda x: x),
    ],
)
def test_a_converted_value_is_the_value_of_converted_numbers(caveat, logged, kind):
    name = _converting(Alias("somebody", "theirs", caveat=caveat))
    sheet = StatisticSheet(FamilyNames({"ours": name}))
    sheet.moments(NUMBERS, **{kind: "ours"})
    found = sheet.pack().values()["theirs"]
    # If the sign differs, our maximum is their minimum.
    mirrored = {"max": "min", "min": "max"}.get(kind, kind) if name.scale < 0 else kind
    expected = values.of([logged(x) for x in NUMBERS], mirrored)
    assert found.kind == expected.kind
    assert found.number == pytest.approx(expected.number)
    for part in ("count", "mean", "m2", "min", "max"):
        assert getattr(found, part) == pytest.approx(getattr(expected, part)), part


def test_nothing_stays_nothing_under_any_name():
    sheet = StatisticSheet(FamilyNames({"ours": Name("theirs", -1.0, 1.0)}))
    for nothing in (([1.0], [0.0]), ([],)):
        sheet.moments(*nothing, mean="ours")
        assert sheet.pack().values()["theirs"] == values.mean([])
    assert StatisticSheet(FamilyNames({})).pack().values() == {}


def ratio(one, other):
    return one.mean / other.mean


def test_a_derived_number_is_computed_again_after_a_merge():
    found = []
    for numbers in ([1.0, 3.0], [10.0, 14.0]):
        sheet = StatisticSheet(FamilyNames({}))
        rows = sheet.moments(numbers), sheet.moments([2.0])
        sheet.derive("ratio", ratio, *rows)
        found.append(sheet.pack().values())
    assert [each["ratio"].number for each in found] == [1.0, 6.0]
    assert merge(found)["ratio"].number == 3.5


def test_moments_are_those_of_the_mergeable_values():
    weights = [2.0, 0.0, 1.0]
    sheet = StatisticSheet(FamilyNames({}))
    sheet.moments(NUMBERS, weights, mean="a", sum="b")
    packed = sheet.pack()
    assert packed.moments.shape == (1, 5)  # one row, shown twice
    expected = values.of(NUMBERS, "mean", weights)
    assert packed.moments[0] == pytest.approx(np.array(expected.to_list()))
    assert packed.values()["b"].number == pytest.approx(2 * 0.1 + 0.7)


def test_a_name_only_some_frameworks_have_is_left_out_by_the_others():
    for naming, there in ((FamilyNames({}), False), (FamilyNames({"extra": Name("theirs")}), True)):
        sheet = StatisticSheet(naming)
        sheet.show(sheet.moments([1.0]), "mean", "extra", only_if_named=True)
        assert ("theirs" in sheet.pack().values()) == there
