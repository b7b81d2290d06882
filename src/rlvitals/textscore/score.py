"""The results of text scores, and how their arguments are read.

One prediction and its reference give a `Score`; lists of the same length give a `Corpus`. `float()` accepts both, and
their `score` is in 0..1. `score_pairs` applies the formula of one pair to both forms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rlvitals.errors import BadText

SHOWN_OF_A_VALUE = 60
"""Characters of a wrong value that an error shows."""


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one pair.

    `parts` holds the numbers it consists of (precision and recall, the four parts of CodeBLEU), `level` the method if
    there are several (RUBY's graph, tree or string), and `note` a limitation of this value.
    """

    score: float
    parts: Mapping[str, float] = field(default_factory=dict)
    level: str = ""
    note: str = ""

    def __float__(self) -> float:
        return self.score


@dataclass(frozen=True, slots=True)
class Corpus:
    """The score of a list of pairs; `scores` holds the score of each pair in the given order.

    `name` describes `score` ("mean of sentence BLEU-4", "corpus BLEU-4"), because the two differ.
    """

    score: float
    scores: tuple[Score, ...]
    name: str
    parts: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    def __float__(self) -> float:
        return self.score

    @property
    def levels(self) -> dict[str, int]:
        """How many pairs were scored at each level."""
        return dict(Counter(score.level for score in self.scores if score.level))


def score_pairs(
    score_one: Callable[[str, str], Score],
    prediction: str | Sequence[str],
    reference: str | Sequence[str],
    *,
    name: str,
) -> Score | Corpus:
    """Score one pair, or each pair of two lists; `name` describes the mean over the pairs.

    >>> same = lambda prediction, reference: Score(float(prediction == reference))
    >>> score_pairs(same, ["a", "b"], ["a", "x"], name="mean of equality").score
    0.5
    """
    if isinstance(prediction, str):
        return score_one(prediction, text_of(reference, "reference"))
    pairs = checked_pairs(prediction, reference)
    return mean_of([score_one(*pair) for pair in pairs], name)


def mean_of(scores: Sequence[Score], name: str, note: str = "") -> Corpus:
    """A corpus result in which the score and each part are means over the pairs."""
    if not scores:
        raise BadText("there are no pairs to score: both lists are empty.")
    count = len(scores)
    parts = {
        part: sum(score.parts[part] for score in scores) / count
        for part in scores[0].parts
        if all(part in score.parts for score in scores)
    }
    mean = sum(score.score for score in scores) / count
    note = note or joined_notes(filter(None, (score.note for score in scores)), count)
    return Corpus(mean, tuple(scores), name, parts, note)


def joined_notes(notes: Iterable[str], pairs: int) -> str:
    """The notes on so many pairs, each once, with the number of pairs unless it is about all."""
    counts = Counter(notes)
    return "; ".join(note if times == pairs else f"{times} of {pairs} pairs: {note}" for note, times in counts.items())


def checked_pairs(predictions: Sequence[str], references: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of two lists; raises BadText for the first pair that is not two texts."""
    check_lengths(predictions, references)
    return [
        (text_of(prediction, "prediction", number), text_of(reference, "reference", number))
        for number, (prediction, reference) in enumerate(zip(predictions, references, strict=True), start=1)
    ]


def check_lengths(predictions: Sequence[object], references: Sequence[object]) -> None:
    """Raise BadText unless both are lists of the same length."""
    for side, values in (("predictions", predictions), ("references", references)):
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise BadText(f"{side} must be a list of texts when the other side is one; got {_shown(values)}.")
    if len(predictions) != len(references):
        raise BadText(
            f"{len(predictions)} predictions and {len(references)} references: each prediction needs its reference, "
            f"in the same order."
        )


def text_of(value: object, side: str, number: int | None = None) -> str:
    """The value if it is a text; otherwise (None, NaN, a list) raises BadText with the number of the pair."""
    if isinstance(value, str):
        return value
    where = f"the {side}" if number is None else f"the {side} of pair {number}"
    raise BadText(f"{where} is not a text: got {_shown(value)}. Leave such pairs out, or give an empty text.")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_OF_A_VALUE else f"{text[:SHOWN_OF_A_VALUE]}..."
