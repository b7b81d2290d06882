"""The exact number of nodes to insert, delete or relabel to turn one ordered tree into another.

Uses Zhang and Shasha's algorithm with unit costs, and computes a row of the table for all key roots at once. Before
that, two steps make similar trees smaller without changing the result: equal roots are matched, and common first and
last trees of the two forests are dropped. (If an optimal matching matched a node of such a common tree elsewhere, the
two copies could be matched with each other instead at no greater cost.) The cheaper of the two directions is used. The
apted package gives the same numbers, but is pure Python and takes many times as long.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_NODES = 50_000
LARGEST = 20_000_000
"""Steps of the algorithm, about a second's work. For trees that need more, `distance` returns None."""

FAR = 1 << 24
"""A number larger than any distance."""


@dataclass(frozen=True, slots=True)
class Tree:
    """An ordered tree: the label of each node and the number after its last descendant, in preorder.

    A forest is the same with several trees one after the other.
    """

    labels: list[str]
    ends: list[int]

    def __len__(self) -> int:
        return len(self.labels)


def distance(one: Tree, other: Tree, largest: int = LARGEST) -> int | None:
    """The edit distance of two trees or forests; None if it would need more than `largest` steps.

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
    """A number for each subtree; equal subtrees have the same number."""
    shapes = [0] * len(tree)
    for node in range(len(tree) - 1, -1, -1):
        below = tuple([shapes[child] for child, _ in _children(tree, node + 1, tree.ends[node])])
        shapes[node] = known.setdefault((tree.labels[node], below), len(known))
    return shapes


def _strip(one: Tree, shapes: list[int], other: Tree, others: list[int]) -> tuple[Spans, Spans]:
    """The forests that remain after equal roots and common first and last trees are removed."""
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
    """A forest under one root in postorder: labels, first leaves and key roots."""

    __slots__ = ("firsts", "key_roots", "labels", "weight")

    def __init__(self, tree: Tree, forest: Spans, numbers: dict[str, int], mirrored: bool) -> None:
        self.labels: list[int] = []
        self.firsts: list[int] = []
        # Preorder read backwards is the postorder of the mirrored tree.
        order = [node for start, end in forest for node in range(start, end)]
        if mirrored:
            self._fill(tree, order[::-1], {node: tree.ends[node] - node for node in order}, numbers)
        else:
            self._fill(tree, _after_children(tree, forest), {node: tree.ends[node] - node for node in order}, numbers)
        self.labels.append(-1)  # the added root, the same in both trees and never relabelled
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


class _Blocks:
    """The columns of the table for all key roots of a tree side by side, so one numpy call fills a row.

    A key root's block has a column for the empty forest and one for each node of its subtree.
    """

    def __init__(self, tree: _Postorder) -> None:
        import numpy as np

        places, nodes, ramp = list[int](), list[int](), list[int]()
        self.parts: list[tuple[int, int, list[int], list[int]]] = []
        """For each block: its first column, its first node, and for each node the position of the forest before its
        subtree and its label."""

        for root in tree.key_roots:
            start, first = tree.firsts[root], len(places)
            before = [leaf - start for leaf in tree.firsts[start : root + 1]]
            self.parts.append((first, start, before, tree.labels[start : root + 1]))
            places += [first, *(first + place for place in before)]
            nodes += [len(tree.labels), *range(start, root + 1)]
            # Far below the previous block, so no minimum is carried over from it.
            ramp += [FAR * len(self.parts) + step for step in range(len(before) + 1)]
        self.places, self.nodes, self.ramp = np.array(places), np.array(nodes), np.array(ramp)
        self.empty = np.concatenate([np.arange(len(before) + 1) for _, _, before, _ in self.parts])


def _zhang_shasha(one: _Postorder, other: _Postorder) -> int:
    import numpy as np

    blocks = _Blocks(other)
    distances = np.zeros((len(one.labels), len(other.labels) + 1), dtype=np.int64)
    distances[:, -1] = FAR  # empty forests have no subtree
    for root in one.key_roots:
        start = one.firsts[root]
        rows = [blocks.empty]
        for node in range(start, root + 1):
            if one.firsts[node] == start:
                trees = distances[node].tolist()
                rows.append(np.array(_edge_row(rows[-1].tolist(), trees, one.labels[node], blocks)))
                distances[node] = trees
            else:
                known = rows[one.firsts[node] - start][blocks.places] + distances[node][blocks.nodes]
                row = np.minimum(known, rows[-1] + 1) - blocks.ramp
                rows.append(np.minimum.accumulate(row) + blocks.ramp)
    return int(distances[-1, -2])


def _edge_row(above: list[int], trees: list[int], label: int, blocks: _Blocks) -> list[int]:
    """The row of a node on the left edge of its key root's subtree. Writes its distances to subtrees into `trees`."""
    row = []
    for first, start, places, labels in blocks.parts:
        left = above[first] + 1
        row.append(left)
        for column, place in enumerate(places):
            # Off the left edge the distance of the subtree is already known from a smaller block.
            cost = place + trees[start + column] if place else above[first + column] + (label != labels[column])
            over = above[first + column + 1]
            left = (over if over < left else left) + 1
            left = cost if cost < left else left
            row.append(left)
            if not place:
                trees[start + column] = left
    return row
