"""ROUGE-L against the rouge-score package."""

from __future__ import annotations

import functools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvitals.textscore import rouge_l

WORDS = ["The", "cats", "were", "running", "generously", "a", "U.S.", "3.5", "naïve", "x_y", "skies", "dying", "it's"]
texts = st.lists(st.sampled_from([*WORDS, "his", "hi"]), max_size=20).map(" ".join)


@functools.cache
def theirs(stem):
    from rouge_score.rouge_scorer import RougeScorer  # imports all of nltk too

    return RougeScorer(["rougeL"], use_stemmer=stem)


@given(texts | st.text(max_size=60), texts | st.text(max_size=60), st.booleans())
def test_rouge_l_is_that_of_rouge_score(prediction, reference, stem):
    wanted = theirs(stem).score(reference, prediction)["rougeL"]
    ours = rouge_l(prediction, reference, stem=stem)
    assert ours.score == pytest.approx(wanted.fmeasure, abs=1e-12)
    assert ours.parts == pytest.approx({"precision": wanted.precision, "recall": wanted.recall}, abs=1e-12)


def test_a_case_computed_by_hand():
    # "the cat sat" is a subsequence of "the cat lay and sat": P = 3/3, R = 3/5.
    assert rouge_l("the cat sat", "the cat lay and sat").score == pytest.approx(0.75)


def test_stems_make_forms_of_a_word_equal():
    assert rouge_l("running cats", "runs cat").score == 0.0
    assert rouge_l("running cats", "runs cat", stem=True).score == 1.0


@pytest.mark.parametrize(
    ("word", "other", "score"),
    [("his", "hi", 0.0), ("gas", "ga", 0.0), ("dogs", "dog", 1.0), ("ties", "tie", 1.0)],  # stems need four letters
)
def test_words_of_three_letters_are_left_as_they_are(word, other, score):
    assert rouge_l(word, other, stem=True).score == score
    assert theirs(True).score(other, word)["rougeL"].fmeasure == score


def test_a_list_gives_the_mean_and_says_so():
    corpus = rouge_l(["a b", "c"], ["a", "c"])
    assert [score.score for score in corpus.scores] == pytest.approx([2 / 3, 1.0])
    assert corpus.score == pytest.approx(5 / 6)
    assert corpus.name == "mean of ROUGE-L F1"
    assert "stems" in rouge_l(["a"], ["a"], stem=True).name


@pytest.mark.parametrize(("prediction", "reference"), [("", ""), ("", "a"), ("a", "")])
def test_empty_texts_score_zero(prediction, reference):
    assert rouge_l(prediction, reference).score == 0.0


def test_another_alphabet_scores_zero_and_the_note_says_why():
    score = rouge_l("Привет, мир", "Привет, мир")
    assert score.score == 0.0
    assert "a-z" in score.note
    assert rouge_l(["Привет", "a"], ["Привет", "a"]).note.startswith("1 of 2 pairs:")


@pytest.mark.slow
def test_long_texts_are_scored():
    draw = random.Random(0)
    one, other = (" ".join(draw.choices(WORDS, k=60_000)) for _ in range(2))
    assert min(len(one), len(other)) > 300_000
    assert 0.3 < rouge_l(one, other).score < 0.9
