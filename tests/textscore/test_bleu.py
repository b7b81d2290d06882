"""Sentence BLEU against NLTK, corpus BLEU against sacrebleu."""

from __future__ import annotations

import random

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from rlvitals.errors import BadText
from rlvitals.textscore import bleu, corpus_bleu

WORDS = ["the", "a", "cat", "sat", "on", "mat.", "U.S.", "3.5", "naïve", "(x", "==", "y)"]
texts = st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join)


def by_nltk(prediction: str, references: list[str]) -> float:
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu  # takes two seconds, only needed here

    return sentence_bleu(
        [reference.split() for reference in references],
        prediction.split(),
        smoothing_function=SmoothingFunction().method1,
    )


@given(texts, st.lists(texts, min_size=1, max_size=3))
def test_sentence_bleu_is_that_of_nltk(prediction, references):
    assert bleu(prediction, references).score == pytest.approx(by_nltk(prediction, references), abs=1e-12)


@pytest.mark.parametrize(
    ("prediction", "reference"),
    [("", ""), ("", "a b"), ("a", ""), ("a", "a"), ("a b c", "a b c"), ("x y", "a b"), (" \n\t", "a"), ("a  b", "a b")],
)
def test_short_and_empty_texts_score_as_in_nltk(prediction, reference):
    assert bleu(prediction, reference).score == pytest.approx(by_nltk(prediction, [reference]), abs=1e-12)


def test_a_case_computed_by_hand():
    # "the cat sat on the mat" against "the cat sat on a mat": 5/6, 3/5, 2/4, 1/3, lengths equal.
    score = bleu("the cat sat on the mat", "the cat sat on a mat")
    assert score.score == pytest.approx((5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25, abs=1e-12)
    assert score.parts == pytest.approx(
        {"precision_1": 5 / 6, "precision_2": 3 / 5, "precision_3": 0.5, "precision_4": 1 / 3, "brevity_penalty": 1.0}
    )


def some_pairs(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    draw = random.Random(seed)
    made = [" ".join(draw.choices(WORDS, k=draw.randrange(40))) for _ in range(2 * count)]
    return made[:count], made[count:]


def test_a_list_gives_the_mean_of_its_sentences_and_says_so():
    predictions, references = some_pairs(50)
    corpus = bleu(predictions, references)
    each = [by_nltk(*pair) for pair in zip(predictions, [[one] for one in references], strict=True)]
    assert [score.score for score in corpus.scores] == pytest.approx(each, abs=1e-12)
    assert corpus.score == pytest.approx(sum(each) / 50, abs=1e-12)
    assert "mean of sentence" in corpus.name


def test_corpus_bleu_is_that_of_sacrebleu():
    predictions, references = some_pairs(200)
    corpus = corpus_bleu(predictions, references)
    theirs = sacrebleu.corpus_bleu(predictions, [references])
    assert corpus.score == pytest.approx(theirs.score / 100, abs=1e-12)
    assert corpus.parts["precision_2"] == pytest.approx(theirs.precisions[1] / 100)
    assert corpus.parts["brevity_penalty"] == pytest.approx(theirs.bp)
    assert "tok:13a" in corpus.note
    assert "pooled" in corpus.name


def test_the_two_bleus_differ():
    predictions, references = some_pairs(200)
    assert abs(corpus_bleu(predictions, references).score - bleu(predictions, references).score) > 0.01


def test_corpus_bleu_takes_a_different_number_of_references_for_each_pair():
    predictions, first = some_pairs(60)
    second, third = some_pairs(60, seed=1)
    all_three = zip(first, second, third, strict=True)
    per_pair = [list(its)[number % 2 :] for number, its in enumerate(all_three)]
    streams = [[[*its, None][place] for its in per_pair] for place in range(3)]
    theirs = sacrebleu.corpus_bleu(predictions, streams).score / 100
    assert corpus_bleu(predictions, per_pair).score == pytest.approx(theirs, abs=1e-12)


def test_corpus_bleu_of_empty_texts_is_zero_and_of_equal_ones_one():
    assert corpus_bleu(["", ""], ["", "a b c d"]).score == 0.0
    assert corpus_bleu(["a b c d e"], ["a b c d e"]).score == pytest.approx(1.0)


def test_a_prediction_without_references_is_an_error():
    with pytest.raises(BadText, match="no reference: pair 2"):
        bleu(["a", "b"], [["a"], []])
    with pytest.raises(BadText, match="no reference"):
        bleu("a", [])


def test_odd_characters_are_compared_like_any_other():
    odd = "half \ud800 a \x00 nul \x1b[2J and \u202e more words"
    assert bleu(odd, odd).score == pytest.approx(1.0)
    assert corpus_bleu([odd], [odd]).score == pytest.approx(1.0)


@pytest.mark.slow
def test_a_megabyte_is_scored():
    text = " ".join(random.Random(0).choices(WORDS, k=250_000))
    assert len(text) > 900_000
    assert bleu(text, text).score == pytest.approx(1.0)
