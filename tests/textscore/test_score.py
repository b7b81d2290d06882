"""The result of every score, and the errors for invalid pairs."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from rlvitals import textscore
from rlvitals.errors import BadText
from rlvitals.textscore import Score, bleu, corpus_bleu, rouge_l
from rlvitals.textscore.score import checked_pairs, mean_of

EVERY = [bleu, rouge_l, textscore.codebleu, textscore.ruby, corpus_bleu]


@pytest.mark.parametrize("score", EVERY, ids=lambda score: score.__name__)
@pytest.mark.parametrize("bad", [None, float("nan"), 3, b"bytes"])
def test_a_pair_that_is_no_text_is_named(score, bad):
    with pytest.raises(BadText, match="the prediction of pair 2 is not a text"):
        score(["a", bad, "c"], ["a", "b", "c"])
    with pytest.raises(BadText, match="the reference of pair 3 is not a text"):
        score(["a", "b", "c"], ["a", "b", bad])


@pytest.mark.parametrize("score", EVERY, ids=lambda score: score.__name__)
def test_lists_of_different_length_are_an_error(score):
    with pytest.raises(BadText, match="2 predictions and 1 references"):
        score(["a", "b"], ["a"])


@pytest.mark.parametrize("score", EVERY, ids=lambda score: score.__name__)
def test_no_pairs_at_all_are_an_error_and_no_zero(score):
    with pytest.raises(BadText, match="no pairs"):
        score([], [])


@pytest.mark.parametrize("score", EVERY, ids=lambda score: score.__name__)
def test_a_list_and_a_text_are_no_pair(score):
    with pytest.raises(BadText, match="must be a list of texts"):
        score(["a", "b"], "ab")


def test_a_missing_reference_of_one_text_is_named():
    with pytest.raises(BadText, match="the reference is not a text: got None"):
        rouge_l("a", None)


def test_a_long_wrong_value_is_not_repeated_in_full():
    with pytest.raises(BadText) as caught:
        checked_pairs(["a"], [["x" * 10_000]])
    assert len(str(caught.value)) < 250


def test_scores_are_numbers_and_travel_between_processes():
    score = Score(0.25, {"recall": 1.0}, "tree", "careful")
    assert float(score) == 0.25
    assert pickle.loads(pickle.dumps(score)) == score


def test_a_mean_averages_score_and_parts_and_counts_levels_and_notes():
    corpus = mean_of([Score(1.0, {"p": 1.0}, "tree", "odd"), Score(0.0, {"p": 0.5}, "graph")], "mean of x")
    assert (corpus.score, float(corpus), corpus.parts, corpus.levels) == (
        0.5,
        0.5,
        {"p": 0.75},
        {"tree": 1, "graph": 1},
    )
    assert corpus.note == "1 of 2 pairs: odd"


def test_importing_the_scores_imports_none_of_their_packages():
    code = (
        "import sys, rlvitals.textscore.evaluate as e; from rlvitals.textscore import *\n"
        "print(*{'torch', 'transformers', 'sacrebleu', 'nltk', 'rapidfuzz', 'tree_sitter', 'numpy'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


@pytest.mark.parametrize("module", ["bleu", "bertscore", "codebleu", "ruby"])
def test_a_score_is_a_function_even_after_its_module_was_imported(module):
    code = f"import rlvitals.textscore.{module}\nfrom rlvitals.textscore import {module}\nprint(callable({module}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
