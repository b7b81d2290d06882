"""ROUGE-L: the F1 of the shares of both texts that their longest common subsequence of words covers.

Words are runs of a-z and 0-9 in lower case, as in the rouge-score package and Lin's original. With `stem=True` words
longer than three letters are reduced to their Porter stem. Only the search for the subsequence differs: it uses
rapidfuzz's bit-parallel algorithm instead of a table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from importlib import import_module

from rlvitals.errors import needs
from rlvitals.textscore.score import Corpus, Score, score_pairs

MEAN = "mean of ROUGE-L F1"
STEMMED_MEAN = "mean of ROUGE-L F1 (Porter stems)"
SHORTEST_STEMMED = 4
"""Shorter words are not stemmed."""

NO_WORDS = "no words to compare: ROUGE reads the letters a-z and digits only"

_WORD = re.compile("[a-z0-9]+")


def rouge_l(prediction: str | Sequence[str], reference: str | Sequence[str], *, stem: bool = False) -> Score | Corpus:
    """ROUGE-L F1 of a pair, with `precision` and `recall` as parts; of lists, the mean over the pairs.

    >>> round(rouge_l("the cat sat", "the cat lay and sat").score, 6)
    0.75
    >>> rouge_l("", "the cat").score
    0.0
    """
    words_of = _stemmed_words if stem else _words
    common = _common_words()

    def score_one(prediction: str, reference: str) -> Score:
        return _rouge(words_of(prediction), words_of(reference), common, blank=not (prediction and reference))

    return score_pairs(score_one, prediction, reference, name=STEMMED_MEAN if stem else MEAN)


def _rouge(words: list[str], others: list[str], common: Callable[[list[str], list[str]], int], *, blank: bool) -> Score:
    if not words or not others:
        return Score(0.0, {"precision": 0.0, "recall": 0.0}, note="" if blank else NO_WORDS)
    length = common(words, others)
    precision, recall = length / len(words), length / len(others)
    f1 = 2 * precision * recall / (precision + recall) if length else 0.0
    return Score(f1, {"precision": precision, "recall": recall})


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _stemmed_words(text: str) -> list[str]:
    stem = _stemmer()
    return [stem(word) if len(word) >= SHORTEST_STEMMED else word for word in _words(text)]


@cache
def _stemmer() -> Callable[[str], str]:
    with needs("ROUGE-L with stemming", "text"):
        porter = import_module("nltk.stem.porter")
    return lru_cache(maxsize=2**16)(porter.PorterStemmer().stem)  # words repeat, and stemming is slow


@cache
def _common_words() -> Callable[[list[str], list[str]], int]:
    with needs("ROUGE-L", "text"):
        from rapidfuzz.distance import LCSseq
    return LCSseq.similarity
