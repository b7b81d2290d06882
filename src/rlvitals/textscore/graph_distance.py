"""An upper bound on the number of vertices and edges to insert, delete or relabel to turn one graph into another.

The exact number takes exponential time. Here an optimal assignment matches the vertices, with a cost that includes the
edges at each vertex (Riesen and Bunke, 2009). Then partners are exchanged while that lowers the cost of the edit path.
The result is the cost of that path, a real sequence of edits. It is never less than the exact distance, 0 for equal
graphs, and the same in both directions and on every machine. Nothing depends on a clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from difflib import SequenceMatcher
from functools import lru_cache

from rlvitals.textscore.dependence import Graph

Matching = list[int]
"""For each vertex of the smaller graph its partner in the larger one; then the remaining vertices of the larger one.

Every vertex of the smaller graph has a partner: relabelling one costs 1, deleting and inserting 2, and its edges cost
no more with a partner than without.
"""

ROUNDS = 4
"""The maximum number of rounds over all pairs of vertices."""


def graph_distance(one: Graph, other: Graph) -> int:
    """The cost of the best edit path found between two graphs.

    >>> graph_distance(Graph(("a", "b"), {(0, 1): ("x",)}), Graph(("a", "b"), {(0, 1): ("y",)}))
    1
    """
    small, large = sorted((one, other), key=_order)
    if small.labels == large.labels and small.edges == large.edges:
        return 0
    return min(_Path(small, large, start).improved() for start in (_assigned(small, large), _in_order(small, large)))


def _order(graph: Graph) -> tuple[int, tuple[str, ...], list[tuple[tuple[int, int], tuple[str, ...]]]]:
    return len(graph.labels), graph.labels, sorted(graph.edges.items())


class _Path:
    """The edits of a matching and their cost."""

    def __init__(self, small: Graph, large: Graph, matching: Matching) -> None:
        self.small, self.large, self.matching = small, large, matching
        self.at: list[set[tuple[int, int]]] = [set() for _ in large.labels]
        for source, target in small.edges:
            self.at[source].add((source, target))
            self.at[target].add((source, target))

    def cost(self) -> int:
        inserted = self.large.size - len(self.small.labels)
        return (
            inserted + sum(map(self._vertex_cost, range(len(self.small.labels)))) + self._edges_cost(self.small.edges)
        )

    def improved(self) -> int:
        """The cost after exchanges of partners, two vertices at a time, while the cost decreases."""
        cost = self.cost()
        for _ in range(ROUNDS):
            gained = sum(
                self._exchange(first, second)
                for first in range(len(self.small.labels))
                for second in range(first + 1, len(self.matching))
            )
            if not gained:
                break
            cost -= gained
        return cost

    def _exchange(self, first: int, second: int) -> int:
        """Exchange the partners of two vertices if that lowers the cost; return the decrease."""
        edges = self.at[first] | self.at[second]
        before = self._edges_cost(edges) + self._vertex_cost(first) + self._vertex_cost(second)
        self._swap(first, second)
        gained = before - self._edges_cost(edges) - self._vertex_cost(first) - self._vertex_cost(second)
        if gained <= 0:
            self._swap(first, second)
            return 0
        return gained

    def _swap(self, first: int, second: int) -> None:
        matching = self.matching
        matching[first], matching[second] = matching[second], matching[first]

    def _vertex_cost(self, vertex: int) -> int:
        labels = self.small.labels
        return vertex < len(labels) and labels[vertex] != self.large.labels[self.matching[vertex]]

    def _edges_cost(self, edges: Iterable[tuple[int, int]]) -> int:
        """The cost of these edges of the smaller graph, minus the edges of the larger one that need no insertion."""
        cost, matching, others = 0, self.matching, self.large.edges
        for source, target in edges:
            partners = others.get((matching[source], matching[target]), ())
            cost += _labels_cost(self.small.edges[source, target], partners)
        return cost


@lru_cache(maxsize=2**16)
def _labels_cost(labels: tuple[str, ...], others: tuple[str, ...]) -> int:
    return max(len(labels), len(others)) - (Counter(labels) & Counter(others)).total() - len(others)


def _assigned(small: Graph, large: Graph) -> Matching:
    """The cheapest assignment, with a cost that includes the edges at each vertex.

    The cost of a pair is the saving, as a negative number, compared with deleting one vertex and inserting the other.
    It is in half units, because an edge has two ends.
    """
    here, there = _surroundings(small), _surroundings(large)
    saved = [
        [
            -2 * (small.labels[vertex] == large.labels[partner]) - _saved_by_edges(here[vertex], there[partner])
            for partner in range(len(large.labels))
        ]
        for vertex in range(len(small.labels))
    ]
    return _with_the_rest(_assign(saved), len(large.labels))


def _with_the_rest(matching: Matching, count: int) -> Matching:
    return matching + sorted(set(range(count)) - set(matching))


def _surroundings(graph: Graph) -> list[tuple[str, ...]]:
    around: list[list[str]] = [[] for _ in graph.labels]
    for (source, target), labels in graph.edges.items():
        around[source] += [f"to {label}" for label in labels]
        around[target] += [f"from {label}" for label in labels]
    return [tuple(sorted(labels)) for labels in around]


@lru_cache(maxsize=2**16)
def _saved_by_edges(around: tuple[str, ...], other: tuple[str, ...]) -> int:
    return min(len(around), len(other)) + (Counter(around) & Counter(other)).total()


def _assign(costs: list[list[int]]) -> list[int]:
    """The cheapest assignment of rows to columns (the Hungarian algorithm). There are at least as many columns."""
    columns = len(costs[0]) if costs else 0
    of_rows, of_columns = [0] * (len(costs) + 1), [0] * (columns + 1)
    row_of = [0] * (columns + 1)
    for row in range(1, len(costs) + 1):
        row_of[0] = row
        least, came_from, used = [1 << 60] * (columns + 1), [0] * (columns + 1), [False] * (columns + 1)
        column = 0
        while row_of[column]:
            used[column] = True
            current, slack, best = row_of[column], 1 << 60, 0
            values, offset = costs[current - 1], of_rows[current]
            for other in range(1, columns + 1):
                if not used[other]:
                    value = values[other - 1] - offset - of_columns[other]
                    if value < least[other]:
                        least[other], came_from[other] = value, column
                    if least[other] < slack:
                        slack, best = least[other], other
            for other in range(columns + 1):
                if used[other]:
                    of_rows[row_of[other]] += slack
                    of_columns[other] -= slack
                else:
                    least[other] -= slack
            column = best
        while column:
            row_of[column] = row_of[came_from[column]]
            column = came_from[column]
    partners = [0] * len(costs)
    for column in range(1, columns + 1):
        if row_of[column]:
            partners[row_of[column] - 1] = column - 1
    return partners


def _in_order(small: Graph, large: Graph) -> Matching:
    """Match vertices with the same label in the order of the program, then the others in order."""
    blocks = SequenceMatcher(None, small.labels, large.labels, autojunk=False).get_matching_blocks()
    matched = {block.a + step: block.b + step for block in blocks for step in range(block.size)}
    free = iter(sorted(set(range(len(large.labels))) - set(matched.values())))
    matching = [matched[vertex] if vertex in matched else next(free) for vertex in range(len(small.labels))]
    return _with_the_rest(matching, len(large.labels))
