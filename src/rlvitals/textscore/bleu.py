"""The two common variants of BLEU, each under its own name.

`bleu` scores every pair separately: BLEU-4 over words split at whitespace, where a precision without a match counts 0.1
matches (smoothing method 1 of Chen and Cherry). For a list it is the mean over the pairs. `corpus_bleu` pools the
counts of all pairs before it divides, with sacrebleu's own code and settings (tokenizer 13a, exponential smoothing).
Papers report this value. The two values differ, and neither can be computed from the other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rlvitals.errors import BadText, needs
from rlvitals.textscore.score import Corpus, Score, check_lengths, mean_of, text_of

LONGEST = 4
"""The length of the longest word sequence that is counted."""

SMOOTHING = 0.1
"""The number of matches assumed for a sequence length without any match."""

SENTENCE_MEAN = "mean of sentence BLEU-4 (whitespace words, smoothing method 1)"
POOLED = "corpus BLEU-4 (sacrebleu, counts pooled over all pairs)"

References = str | Sequence[str]


def bleu(prediction: str | Sequence[str], reference: References | Sequence[References]) -> Score | Corpus:
    """Sentence BLEU-4 of a pair; of lists, the mean over the pairs. One prediction may have several references.

    >>> round(bleu("the cat sat on the mat", "the cat sat on a mat").score, 6)
    0.537285
    >>> bleu("", "the cat").score
    0.0
    """
    if isinstance(prediction, str):
        return _sentence_bleu(prediction, _references_of(reference))
    check_lengths(prediction, reference)
    scores = [
        _sentence_bleu(text_of(one, "prediction", number), _references_of(its, number))
        for number, (one, its) in enumerate(zip(prediction, reference, strict=True), start=1)
    ]
    return mean_of(scores, SENTENCE_MEAN)


def corpus_bleu(predictions: Sequence[str], references: Sequence[References], *, tokenize: str = "13a") -> Corpus:
    """BLEU of the whole list as sacrebleu computes it, in 0..1; `tokenize` is one of sacrebleu's tokenizers.

    `parts` holds the four precisions, the brevity penalty and both lengths, `note` sacrebleu's signature. Pooled counts
    give no value per pair, so `scores` is empty.
    """
    with needs("corpus BLEU", "text"):
        from sacrebleu.metrics.bleu import BLEU
    check_lengths(predictions, references)
    if not predictions:
        raise BadText("there are no pairs to score: both lists are empty.")
    texts = [text_of(prediction, "prediction", number) for number, prediction in enumerate(predictions, start=1)]
    per_pair = [_references_of(its, number) for number, its in enumerate(references, start=1)]
    most = max(map(len, per_pair))
    # sacrebleu expects all first references, then all second ones, with None for a pair that has fewer.
    streams: Any = [[its[place] if place < len(its) else None for its in per_pair] for place in range(most)]
    metric = BLEU(tokenize=tokenize, force=True)  # force: no warning about texts that look tokenized already
    result = metric.corpus_score(texts, streams)
    parts = {f"precision_{size}": share / 100 for size, share in enumerate(result.precisions, start=1)}
    parts |= {"brevity_penalty": result.bp, "length": result.sys_len, "reference_length": result.ref_len}
    return Corpus(result.score / 100, (), POOLED, parts, str(metric.get_signature()))


def _references_of(value: object, number: int | None = None) -> Sequence[str]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        if not value:
            raise BadText("a prediction has no reference" + (f": pair {number}." if number else "."))
        return [text_of(reference, "reference", number) for reference in value]
    return [text_of(value, "reference", number)]


def _sentence_bleu(prediction: str, references: Sequence[str]) -> Score:
    words = prediction.split()
    others = [reference.split() for reference in references]
    closest = min((len(other) for other in others), key=lambda length: (abs(length - len(words)), length))
    matches = _matches(words, others)
    precisions = [
        (found or (SMOOTHING if matches[0] else 0)) / max(1, len(words) - size) for size, found in enumerate(matches)
    ]
    penalty = brevity_penalty(len(words), closest)
    score = penalty * math.exp(math.fsum(map(math.log, precisions)) / LONGEST) if matches[0] else 0.0
    parts = {f"precision_{size}": share for size, share in enumerate(precisions, start=1)}
    return Score(score, parts | {"brevity_penalty": penalty})


def _matches(words: list[str], others: list[list[str]]) -> list[int]:
    """How many sequences of one to four words are also in a reference, each counted at most as often as there."""
    found = []
    for size in range(1, LONGEST + 1):
        allowed = sequences(others[0], size)
        for other in others[1:]:
            allowed |= sequences(other, size)
        found.append((sequences(words, size) & allowed).total())
        if not found[-1]:  # no match of this length, so no longer match
            return found + [0] * (LONGEST - size)
    return found


def sequences(words: list[str], size: int) -> Counter[tuple[str, ...]]:
    """The sequences of this many words, counted."""
    return Counter(zip(*(words[start:] for start in range(size)), strict=False))


def brevity_penalty(length: int, reference_length: int) -> float:
    """The factor for a text that is shorter than its reference."""
    if length >= reference_length:
        return 1.0 if length else 0.0
    return math.exp(1 - reference_length / length) if length else 0.0
