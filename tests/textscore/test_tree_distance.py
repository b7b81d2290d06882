"""The tree edit distance: by hand, and against the apted package."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvitals.textscore.tree_distance import Tree, distance


class Nested:
    """A node in the form that apted expects."""

    def __init__(self, name, children):
        self.name = name
        self.children = children


def flat(nested):
    """A nested tuple (label, child, ...) as a Tree."""
    labels, ends = [], []

    def add(node):
        place = len(labels)
        labels.append(node[0])
        ends.append(0)
        for child in node[1:]:
            add(child)
        ends[place] = len(labels)

    add(nested)
    return Tree(labels, ends)


def for_apted(nested):
    return Nested(nested[0], [for_apted(child) for child in nested[1:]])


def apted_distance(one, other):
    apted = pytest.importorskip("apted")
    return apted.APTED(for_apted(one), for_apted(other)).compute_edit_distance()


trees = st.recursive(
    st.sampled_from("abc").map(lambda label: (label,)),
    lambda inner: st.tuples(st.sampled_from("abc"), st.lists(inner, max_size=4)).map(lambda pair: (pair[0], *pair[1])),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (("a",), ("a",), 0),
        (("a",), ("b",), 1),
        (("a", ("b",), ("c",)), ("a", ("c",), ("b",)), 2),  # order counts
        (("a", ("b", ("c",))), ("a", ("c",)), 1),  # a node in between is deleted
        (("f", ("d", ("a",), ("c", ("b",))), ("e",)), ("f", ("c", ("d", ("a",), ("b",))), ("e",)), 2),  # Zhang, Shasha
    ],
)
def test_distances_by_hand(one, other, wanted):
    assert distance(flat(one), flat(other)) == wanted


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(trees, trees)
def test_it_is_the_distance_apted_finds(one, other):
    assert distance(flat(one), flat(other)) == apted_distance(one, other)


@settings(max_examples=100, deadline=None)
@given(trees, trees, trees)
def test_it_is_a_distance(one, other, third):
    there = distance(flat(one), flat(other))
    assert there == distance(flat(other), flat(one))
    assert (there == 0) == (one == other)
    assert there <= distance(flat(one), flat(third)) + distance(flat(third), flat(other))


def test_larger_trees_agree_with_apted_too():
    dice = random.Random(2)

    def grow(size):
        children = [[] for _ in range(size)]
        for node in range(1, size):
            children[dice.randrange(max(0, node - 6), node)].append(node)
        label = [dice.choice("abcd") for _ in range(size)]

        def nest(node):
            return (label[node], *map(nest, children[node]))

        return nest(0)

    for _ in range(6):
        one, other = grow(50), grow(40)
        assert distance(flat(one), flat(other)) == apted_distance(one, other)


def test_trees_that_take_too_many_steps_are_refused():
    wide = flat(("a", *[(label,) for label in "bcdef" * 40]))
    other = flat(("z", *[(label,) for label in "fedcb" * 40]))
    assert distance(wide, other, largest=1000) is None
    assert distance(wide, wide, largest=1000) == 0  # nothing is left to compare


def test_no_nesting_is_too_deep():
    chain = Tree(["a"] * 5000, [5000] * 5000)
    longer = Tree(["a"] * 5001, [5001] * 5001)
    assert distance(chain, longer) == 1
