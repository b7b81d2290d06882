"""How many nodes must be inserted, deleted or relabelled to turn one ordered tree into another: exact.

Zhang and Shasha's algorithm with unit costs, after two steps that change no result and make similar trees small: equal
roots are matched, and trees that both forests begin or end with are dropped. (Were a node of such a common tree matched
elsewhere, the node it is matched with could be left over instead at no greater cost.) Of the two directions the cheaper
one is taken. The pure-Python packages there are (apted, zss) give the same numbers and are many times slower; edist is
fast, and brings scikit-learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_NODES = 50_000
LARGEST = 6_000_000
"""Steps of the algorithm; trees that need more are refused (`distance` gives None), about a second's work."""


@dataclass(frozen=True, slots=True)
class Tree:
    """An ordered tree: for each node, each before its children, its label and the number after its last descendant.

    A forest is such a list with several trees one after the other.
    """

    labels: list[str]
    ends: list[int]

    def __len__(self) -> int:
        return len(self.labels)


def distance(one: Tree, other: Tree, largest: int = LARGEST) -> int | None:
    """The edit distance of two trees or forests; None where more than `largest` steps would be needed.

    >>> distance(Tree(["f", "a", "b"], [3, 2, 3]), Tree(["f", "b"], [2, 2]))
    1
    """
    if len(one) + len(other) > MOST_NODES:
        return None
    known: dict[tuple[str, tuple[int, ...]], int] = {}
    first, second = _strip(one, _shapes(one, known), other, _shapes(other, known))
    if not first or not second:
        return _size(first) + _size(second)
    labels: dict[str, int] = {}
    choices = [
        (_Postorder(one, first, labels, mirrored), _Postorder(other, second, labels, mirrored))
        for mirrored in (False, True)
    ]
    left, right = min(choices, key=lambda pair: pair[0].weight * pair[1].weight)
    return _zhang_shasha(left, right) if left.weight * right.weight <= largest else None


Spans = list[tuple[int, int]]
"""Trees of a forest: the number of the root and the number after the last descendant."""


def _size(forest: Spans) -> int:
    return sum(end - start for start, end in forest)


def _children(tree: Tree, start: int, end: int) -> Spans:
    found = []
    while start < end:
        found.append((start, tree.ends[start]))
        start = tree.ends[start]
    return found


def _shapes(tree: Tree, known: dict[tuple[str, tuple[int, ...]], int]) -> list[int]:
    """A number for each subtree, the same for equal ones."""
    shapes = [0] * len(tree)
    for node in range(len(tree) - 1, -1, -1):
        below = tuple([shapes[child] for child, _ in _children(tree, node + 1, tree.ends[node])])
        shapes[node] = known.setdefault((tree.labels[node], below), len(known))
    return shapes


def _strip(one: Tree, shapes: list[int], other: Tree, others: list[int]) -> tuple[Spans, Spans]:
    """The forests that are left when equal roots and common first and last trees are taken away."""
    first, second = _children(one, 0, len(one)), _children(other, 0, len(other))
    while True:
        start = 0
        while start < min(len(first), len(second)) and shapes[first[start][0]] == others[second[start][0]]:
            start += 1
        first, second = first[start:], second[start:]
        while first and second and shapes[first[-1][0]] == others[second[-1][0]]:
            first, second = first[:-1], second[:-1]
        if not (len(first) == len(second) == 1 and one.labels[first[0][0]] == other.labels[second[0][0]]):
            return first, second
        first, second = _children(one, first[0][0] + 1, first[0][1]), _children(other, second[0][0] + 1, second[0][1])


class _Postorder:
    """A forest under one root, its nodes after their children: labels, first leaves and key roots."""

    __slots__ = ("firsts", "key_roots", "labels", "weight")

    def __init__(self, tree: Tree, forest: Spans, numbers: dict[str, int], mirrored: bool) -> None:
        self.labels: list[int] = []
        self.firsts: list[int] = []
        # A node before its children, read from the last: that is a node after its children, in the mirror.
        order = [node for start, end in forest for node in range(start, end)]
        if mirrored:
            self._fill(tree, order[::-1], {node: tree.ends[node] - node for node in order}, numbers)
        else:
            self._fill(tree, _after_children(tree, forest), {node: tree.ends[node] - node for node in order}, numbers)
        self.labels.append(-1)  # the root of both, never relabelled
        self.firsts.append(0)
        last_with = {first: place for place, first in enumerate(self.firsts)}
        self.key_roots = sorted(last_with.values())
        self.weight = sum(root - self.firsts[root] + 1 for root in self.key_roots)

    def _fill(self, tree: Tree, order: list[int], sizes: dict[int, int], numbers: dict[str, int]) -> None:
        for place, node in enumerate(order):
            self.labels.append(numbers.setdefault(tree.labels[node], len(numbers)))
            self.firsts.append(place - sizes[node] + 1)


def _after_children(tree: Tree, forest: Spans) -> list[int]:
    order, open_nodes = [], list[int]()
    for start, end in forest:
        for node in range(start, end):
            while open_nodes and tree.ends[open_nodes[-1]] <= node:
                order.append(open_nodes.pop())
            open_nodes.append(node)
    return order + open_nodes[::-1]


def _zhang_shasha(one: _Postorder, other: _Postorder) -> int:
    distances = [[0] * len(other.labels) for _ in one.labels]
    for root in one.key_roots:
        for other_root in other.key_roots:
            _fill_forests(one, root, other, other_root, distances)
    return distances[-1][-1]


def _fill_forests(one: _Postorder, root: int, other: _Postorder, other_root: int, distances: list[list[int]]) -> None:
    """Distances of all forests that end inside two subtrees, and from these of the subtrees on their left edges."""
    start, other_start = one.firsts[root], other.firsts[other_root]
    stop = other_root + 1
    places = [first - other_start for first in other.firsts[other_start:stop]]
    labels = other.labels[other_start:stop]
    rows: list[Sequence[int]] = [range(len(places) + 1)]
    for node in range(start, root + 1):
        above, before = rows[-1], rows[one.firsts[node] - start]
        left = above[0] + 1
        row = [left]
        trees = distances[node]
        if one.firsts[node] == start:
            label = one.labels[node]
            for column, place in enumerate(places):
                if place:  # not on the left edge: the subtree's own distance is known
                    cost = before[place] + trees[other_start + column]
                else:
                    cost = above[column] + (label != labels[column])
                left = min(cost, left + 1, above[column + 1] + 1)
                row.append(left)
                if not place:
                    trees[other_start + column] = left
        else:
            for place, tree, over in zip(places, trees[other_start:stop], above[1:], strict=True):
                cost = before[place] + tree
                left = (over if over < left else left) + 1
                left = cost if cost < left else left
                row.append(left)
        rows.append(row)
