"""RUBY: the formulas by hand at each level, its properties, and bad input."""

from __future__ import annotations

import inspect
import json.decoder
import os
import statistics
import subprocess
import sys
import textwrap
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvitals.errors import BadText, ConfigError
from rlvitals.textscore import ruby

pytest.importorskip("tree_sitter_python")
pytest.importorskip("rapidfuzz")

PROGRAMS = [
    textwrap.dedent(inspect.getsource(one))
    for module in (textwrap, statistics, json.decoder)
    for _, one in inspect.getmembers(module, inspect.isfunction)
    if one.__module__ == module.__name__
]


def test_graph_similarity_by_hand():
    # Both graphs: two statements and one data edge, 3 + 3; one statement is relabelled.
    score = ruby("x = 1\ny = x", "x = 2\ny = x")
    assert score.level == "graph"
    assert score.score == pytest.approx(1 - 1 / 6)
    assert "bounded from above" in score.note
    # A statement and its edge are missing: 2 of 3 + 1.
    assert ruby("x = 1", "x = 1\ny = x").score == pytest.approx(1 - 2 / 4)


def test_tree_similarity_by_hand():
    pytest.importorskip("tree_sitter_javascript")
    # program, expression_statement, assignment_expression, two names: one of 5 + 5 is relabelled.
    score = ruby("x = y;", "x = z;", lang="javascript")
    assert score.level == "tree"
    assert score.score == pytest.approx(1 - 1 / 10)
    assert score.note == "no dependence graphs for javascript"
    # Operators count, though the grammar does not name them.
    assert ruby("a + b", "a - b", lang="javascript").score == pytest.approx(1 - 1 / 10)


def test_string_similarity_by_hand():
    # Tokens: x = = 1 against x = 1: one deletion, the longer has 4.
    score = ruby("x = = 1", "x = 1")
    assert (score.level, score.score) == ("string", 0.75)
    assert score.note == "the prediction does not parse"
    assert ruby("x = 1", "x = (").note == "the reference does not parse"


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [("", "", 1), ("", "x = 1", 0), ("x = 1", "", 0), ("# only words", "# only words", 1), ("  \n", "\t", 1)],
)
def test_empty_programs_are_compared_as_strings(one, other, wanted):
    score = ruby(one, other)
    assert (score.level, score.score) == ("string", wanted)
    assert "is empty" in score.note


def test_renamed_variables_and_independent_statements_in_another_order_are_the_same_graph():
    one = "def area(width, height):\n    a = width * 2\n    b = height + 1\n    return a * b\n"
    other = "def f(x, y):\n    q = y + 1\n    p = x * 2\n    return p * q\n"
    assert ruby(one, other).score == 1


def test_operand_order_and_called_functions_count():
    base = "def f(a, b):\n    return min(a, b) - b"
    assert ruby(base, base.replace("min(a, b)", "min(b, a)")).score < 1
    assert ruby(base, base.replace("min", "max")).score < 1
    assert ruby(base, base.replace("- b", "- a")).score < 1


def test_comments_and_docstrings_do_not_count_in_graphs():
    assert ruby('def f(a):\n    """Doc."""\n    return a  # done', "def f(a):\n    return a").score == 1


def test_a_corpus_is_the_mean_and_says_which_levels_were_used():
    corpus = ruby(["x = 1", "x = = 1"], ["x = 1", "x = 1"])
    assert corpus.score == pytest.approx((1 + 0.75) / 2)
    assert corpus.levels == {"graph": 1, "string": 1}
    assert corpus.name == "mean of RUBY"


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_is_like_itself(program):
    score = ruby(program, program)
    assert (score.level, score.score) == ("graph", 1)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(st.sampled_from(PROGRAMS), st.sampled_from(PROGRAMS))
def test_real_programs_may_change_places(one, other):
    there, back = ruby(one, other), ruby(other, one)
    assert there.score == back.score
    assert 0 <= there.score <= 1


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="abx=+-()[]:,\n .'#é", max_size=40), st.text(alphabet="abx=+-()[]:,\n .'#é", max_size=40))
def test_any_text_has_a_score(one, other):
    there, back = ruby(one, other), ruby(other, one)
    assert there.score == back.score
    assert 0 <= there.score <= 1
    assert ruby(one, one).score == 1


def test_the_score_is_the_same_in_every_process():
    code = (
        "import sys\nfrom rlvitals.textscore import ruby\n"
        "print(repr(ruby(sys.argv[1], sys.argv[2]).score), repr(ruby('x = = 1', 'y = 1').score))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code, PROGRAMS[3], PROGRAMS[4]],
            env={**os.environ, "PYTHONHASHSEED": str(seed)}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in range(3)
    }  # fmt: skip
    assert len(outputs) == 1


def test_a_long_program_is_compared_at_the_next_level_and_the_note_says_so():
    long = "\n".join(f"x{number} = {number}" for number in range(250))
    score = ruby(long, long.replace("x7 = 7", "x7 = 8"))
    assert score.level == "tree"
    assert score.note == "more than 200 statements, too many for a dependence graph"
    # 250 statements of 4 nodes under the module; one leaf is relabelled.
    assert score.score == pytest.approx(1 - 1 / (2 * (1 + 250 * 4)))


def test_trees_that_are_too_large_are_compared_as_strings():
    one = "\n".join(f"f(a{number}, b, c)" for number in range(900))
    other = "\n".join(f"x[{number}] = g(h)" for number in range(900))
    score = ruby(one, other)
    assert (score.level, score.note) == ("string", "trees too large to compare")


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    ["(" * 150_000, "x = " + " + ".join(["a"] * 40_000), "\n".join(f"if a{i}:\n    x = b" for i in range(10_000))],
    ids=["brackets", "one long sum", "many branches"],
)
def test_huge_and_deep_programs_come_to_an_end(program):
    start = time.process_time()  # processor time: other processes do not count
    assert ruby(program, program).score == 1
    assert 0 <= ruby(program[: len(program) // 2], program).score < 1
    assert time.process_time() - start < 30


def test_what_is_no_program_is_refused_by_name():
    with pytest.raises(BadText, match="pair 1"):
        ruby([float("nan")], ["a"])
    with pytest.raises(BadText, match="too large"):
        ruby("x" * 1_200_000, "x")
    with pytest.raises(ConfigError, match="They know"):
        ruby("a", "a", lang="klingon")
