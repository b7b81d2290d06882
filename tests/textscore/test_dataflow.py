"""CodeBLEU's data-flow items, by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from rlvitals.textscore.dataflow import READ, SET, flow_items
from rlvitals.textscore.languages import LANGUAGES
from rlvitals.textscore.syntax import parse

pytest.importorskip("tree_sitter_python")


def items(code, lang="python"):
    return flow_items(parse(code, LANGUAGES[lang]))


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("x = y", [(1, SET, (0,)), (0, READ, ())]),
        ("x = y\nz = x", [(1, SET, (0,)), (0, READ, ()), (2, SET, (1,)), (1, READ, (1,))]),
        ("x += 1", [(1, SET, (0,)), (0, READ, ())]),
        ("a, b = c, d", [(1, SET, (0,)), (3, SET, (2,)), (0, READ, ()), (2, READ, ())]),
        ("a = b + b", [(1, SET, (0, 0)), (0, READ, ()), (0, READ, (0,))]),
        ("def f(a, b=c): return a", [(0, READ, ()), (2, READ, (1,)), (1, READ, ()), (0, READ, (0,))]),
        ("for x in y: z = x", [(1, SET, (0,)), (0, READ, (0,)), (2, SET, (1,)), (1, READ, (1,))]),
        # The target of the comprehension is set before the expression in front of it is read.
        ("[x for x in y]", [(0, READ, (0,)), (0, SET, (1,)), (1, READ, ())]),
        ("f(1)", []),
        ("", []),
    ],
)
def test_items_by_hand(code, wanted):
    assert items(code) == Counter(wanted)


def test_a_branch_does_not_see_what_the_other_set():
    apart = items("if c:\n    x = 1\nelse:\n    y = x")
    after = items("if c:\n    x = 1\ny = x")
    # In the first the x that is read has not been set; in the second it comes from the branch.
    assert sum(count for (name, relation, sources), count in apart.items() if relation == READ and sources) == 0
    assert sum(count for (name, relation, sources), count in after.items() if relation == READ and sources) == 1


def test_a_loop_sees_what_its_last_round_set():
    looped = items("while c:\n    y = x\n    x = c")
    straight = items("y = x\nx = c")
    reads = [relation == READ and sources == (name,) for name, relation, sources in looped]
    assert any(reads)
    assert not any(relation == READ and sources for _, relation, sources in straight)


def test_renaming_changes_nothing():
    code = "def f(a, b):\n    total = a\n    for x in b:\n        total += x * a\n    return total"
    renamed = code.replace("total", "t").replace("a,", "first,").replace("= a", "= first").replace("* a", "* first")
    assert items(renamed) == items(code)


def test_names_inside_non_ascii_code_are_whole():
    assert items('größe = "日本"\nx = größe') == items('size = "jp"\nx = size')


def test_comments_and_docstrings_carry_no_values():
    bare = "def f(a):\n    x = a\n    return x"
    dressed = 'def f(a):  # the a\n    """Say x = a."""\n    # set\n    x = a\n    return x'
    assert items(dressed) == items(bare)
    assert items('def f(a):\n    "only this"') == items("def f(a): pass")
