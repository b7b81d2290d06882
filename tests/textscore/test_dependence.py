"""Program dependence graphs of Python: which statement controls another, or gives it a value."""

from __future__ import annotations

import itertools

import pytest

from rlvitals.textscore.dependence import Graph, dependence_graph
from rlvitals.textscore.graph_distance import graph_distance
from rlvitals.textscore.languages import LANGUAGES
from rlvitals.textscore.syntax import parse

pytest.importorskip("tree_sitter_python")


def graph_of(code):
    graph = dependence_graph(parse(code, LANGUAGES["python"], open_strings=True))
    assert isinstance(graph, Graph)
    return graph


def data_edges(code):
    """The data edges between statements, which are numbered in source order."""
    found = graph_of(code).edges
    return {pair for pair, labels in found.items() if any(label.startswith("reads") for label in labels)}


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("x = 1\ny = x", {(0, 1)}),
        ("x = 1\nx = 2\ny = x", {(1, 2)}),
        ("x = 1\nx += 2\ny = x", {(0, 1), (1, 2)}),
        ("x, y = f()\nz = y", {(0, 1)}),
        ("a = []\na[0] = 1\nb = a", {(0, 1), (0, 2), (1, 2)}),
        ("a = C()\na.b.c = 1\nb = a", {(0, 1), (0, 2), (1, 2)}),
        ("a = []\na.append(1)\nb = a", {(0, 1), (0, 2), (1, 2)}),
        ("import os\nos.remove(1)\nos.getcwd()", {(0, 1), (0, 2)}),
        ("x = 1\ndel x\ny = x", {(0, 1)}),
        ("with f() as (a, b):\n    c = b", {(0, 1)}),
        ("try:\n    x = 1\nexcept E as e:\n    y = e\n    z = x", {(2, 3), (1, 4)}),
        ("if (n := f()):\n    x = n", {(0, 1)}),
        ("n = 1\nif (n := f()) and n:\n    x = n", {(1, 2)}),
        ("x = 1\ny = [x for x in z]", set()),
        ("x = 1\ny = [x for x in x]", {(0, 1)}),
        ("x = 1\ny = [a + x for a in z]", {(0, 1)}),
        ("x = 1\ny = lambda x, b=x: x", {(0, 1)}),
        ("x = 1\ny = lambda a: a + x", {(0, 1)}),
        ("x = 1\ny = f'{x} {x:>{x}}'", {(0, 1)}),
        ("x = 1\nf(x=2)\ng.x", set()),
        ("from a import b as c\nc(b)", {(0, 1)}),
        ("import a.b\na.b.c()", {(0, 1)}),
        ("match p:\n    case [x, *y]:\n        z = y\n    case C(k=v) if v:\n        w = v", {(1, 2), (3, 4)}),
    ],
)
def test_values_flow_from_where_they_are_set(code, wanted):
    assert data_edges(code) == wanted


def test_both_sides_of_a_branch_reach_what_follows():
    assert data_edges("if c:\n    x = 1\nelse:\n    x = 2\ny = x") == {(1, 3), (2, 3)}
    assert data_edges("x = 0\nif c:\n    x = 1\ny = x") == {(0, 3), (2, 3)}
    assert data_edges("x = 0\nif c:\n    x = 1\n    raise E\ny = x") == {(0, 4)}


def test_a_loop_gives_values_to_its_next_round_and_to_what_follows():
    assert data_edges("x = 0\nfor i in n:\n    x = x + i\ny = x") == {(0, 2), (2, 2), (1, 2), (0, 3), (2, 3)}
    assert data_edges("while c:\n    if d:\n        x = 1\n        break\n    x = 2\nelse:\n    x = 3\ny = x") == {
        (2, 6), (5, 6),
    }  # fmt: skip
    assert data_edges("for i in n:\n    x = 1\n    continue\n    x = 2\ny = x") == {(1, 4)}


def test_finally_sees_what_may_have_been_set_before():
    code = "try:\n    x = 1\n    y = 2\nexcept E:\n    x = 3\nfinally:\n    z = x"
    assert {(1, 5), (4, 5)} <= data_edges(code)


def test_functions_have_their_own_names():
    code = "x = 1\ndef f(x):\n    return x\nf(x)"
    # 0 x = 1, 1 def f, 2 parameter, 3 return, 4 f(x)
    assert data_edges(code) == {(2, 3), (0, 4), (1, 4)}


def test_a_function_reads_what_is_set_around_it():
    assert data_edges("def f():\n    return x\nx = 1\nx = 2") == {(2, 1), (3, 1)}
    assert data_edges("def f():\n    y = 1\n    def g():\n        return y\n    return g") == {(1, 3), (2, 4)}


def test_global_and_nonlocal_write_outside():
    code = "c = 0\ndef f():\n    global c\n    c = c + 1\nprint(c)"
    assert data_edges(code) == {(0, 3), (3, 3), (0, 4), (3, 4)}
    code = "def f():\n    n = 0\n    def g():\n        nonlocal n\n        n += 1\n    return n"
    assert {(1, 4), (4, 4), (1, 5), (4, 5)} == data_edges(code)


def test_a_method_does_not_see_the_names_of_its_class():
    assert data_edges("class A:\n    x = 1\n    y = x\n    def f(self):\n        return x") == {(1, 2)}


def test_control_edges_say_on_which_side_a_statement_stands():
    edges = graph_of("if a:\n    b()\nelif c:\n    d()\nelse:\n    e()").edges
    assert edges == {(0, 1): ("body",), (0, 2): ("else",), (2, 3): ("body",), (2, 4): ("else",)}
    edges = graph_of("def f(a, *b, c=1):\n    pass").edges
    assert edges == {
        (0, 1): ("parameter",), (0, 2): ("parameter",), (0, 3): ("parameter",), (0, 4): ("body",),
    }  # fmt: skip


def test_labels_keep_what_the_program_does_not_name_itself():
    assert graph_of("def f(a, b=1):\n    return len(a) - b.size").labels == (
        "def $0 ( parameter , parameter = 1 ) :",
        "parameter 0",
        "parameter 1",
        "return len ( $0 ) - $1 . size",
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(a, b):\n    return a - b", "def f(a, b):\n    return b - a"),
        ("x = [a - b for a, b in z]", "x = [b - a for a, b in z]"),
        ("print(a - b)", "print(b - a)"),
        ("x = 1\nf(x, x)", "x = 1\ny = 1\nf(x, y)"),
        ("if a:\n    b()", "if a:\n    pass\nelse:\n    b()"),
    ],
)
def test_programs_that_differ_have_graphs_that_differ(one, other):
    assert graph_distance(graph_of(one), graph_of(other)) > 0


def test_other_languages_and_deep_or_long_programs_have_no_graph():
    deep = "x = " + "(" * 400 + "1" + ")" * 400
    assert "nested too deeply" in dependence_graph(parse(deep, LANGUAGES["python"]))
    assert "more than 200" in dependence_graph(parse("x = 1\n" * 300, LANGUAGES["python"]))


# The distance of graphs


def exact_distance(one, other):
    """The lowest cost over all ways to match the vertices, computed from the definition."""
    best = one.size + other.size
    spots = [*range(len(other.labels)), *[None] * len(one.labels)]
    for chosen in set(itertools.permutations(spots, len(one.labels))):
        price = len(other.labels) - sum(partner is not None for partner in chosen)
        for label, partner in zip(one.labels, chosen, strict=True):
            price += 1 if partner is None else label != other.labels[partner]
        left = {pair: list(labels) for pair, labels in other.edges.items()}
        for (source, target), labels in one.edges.items():
            theirs = left.pop((chosen[source], chosen[target]), [])
            same = sum(min(labels.count(label), theirs.count(label)) for label in set(labels))
            price += max(len(labels), len(theirs)) - same
        price += sum(map(len, left.values()))
        best = min(best, price)
    return best


SMALL = [
    "x = 1\ny = x",
    "x = 1",
    "print(1)\nprint(2)",
    "y = 2\nx = y\nprint(x)",
    "for i in n:\n    print(i)",
    "if a:\n    x = 1\nprint(x)",
    "def f(a):\n    return a",
    "while a:\n    a = f(a)",
]


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations_with_replacement(SMALL, 2)))
def test_the_distance_is_never_less_than_the_exact_one_and_rarely_more(one, other):
    first, second = graph_of(one), graph_of(other)
    found, exact = graph_distance(first, second), exact_distance(first, second)
    assert exact <= found <= exact + 1
    assert found == graph_distance(second, first)
    if one == other:
        assert found == exact == 0


def test_the_distance_is_exact_on_most_small_graphs():
    graphs = [graph_of(code) for code in SMALL]
    pairs = list(itertools.combinations(graphs, 2))
    assert sum(graph_distance(*pair) == exact_distance(*pair) for pair in pairs) >= 0.9 * len(pairs)
