"""CodeBLEU (Ren et al., 2020): BLEU for programs, from four parts.

- `ngram`: BLEU-4 of the words split at whitespace; a precision without a match is smoothed to 0.1 matches.
- `weighted_ngram`: the same as recall of the reference, with weight 1 for a keyword and 0.2 for another word.
- `syntax`: the share of the reference's syntax subtrees, without texts, that the prediction also has.
- `dataflow`: the share of the reference's data-flow items (`dataflow.py`) that the prediction also has.

For a list of pairs, the counts of all pairs are pooled before any division, as in the paper.

Values agree up to rounding with the codebleu package 0.7.0, the successor of Microsoft's original, except for these
faults of that package:

1. The weighted part's brevity penalty assumes a reference of two words, so short predictions are not penalised. Here
   it uses the reference's own length.
2. A data flow of 0 counts as 1 in the sum. Here the score is the weighted sum of the parts shown. A reference without
   any data flow, for which the share is undefined, gives 0 as in the original, with a note.
3. Byte columns are applied to characters, so code after a non-ASCII character is cut in the wrong places.
4. Merged names have the order of a set, so values with loops change between processes. Here names have the order in
   which they are written.
5. `for ... else` loses the loop's body.
6. A string assigned to an attribute (`self.name = "x"`) removes all data flow of that program.
7. Docstrings are searched token by token. This also removes a string at the start of a line from its expression
   (`", ".join(x)`) and breaks indentation by tabs. Here only statements that are just a string are removed. Comments
   are also removed from code that Python's own tokenizer rejects.
8. A variable called `identifier` is treated as punctuation.
9. Each level of nested loops doubles the time, so a few dozen levels never finish. Here the time does not double, and
   the items are the same.
10. JavaScript's `=` and `for ... of` set nothing there. C, C++, Go, Rust and TypeScript have their own data flow
    here, and keywords are the languages' reserved words. Values of languages other than Python and Java differ.

Kept as published: subtrees are looked up, not used up (three equal ones in the reference all match one); programs of
fewer than four words do not reach 1 even against themselves; and the rules of the data flow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rlvitals.errors import BadText, ConfigError
from rlvitals.textscore.bleu import LONGEST, SMOOTHING, brevity_penalty, sequences
from rlvitals.textscore.dataflow import Item, flow_items
from rlvitals.textscore.languages import Language, find_language
from rlvitals.textscore.score import Corpus, Score, checked_pairs, joined_notes, text_of
from rlvitals.textscore.syntax import Program, Shape, parse, subtrees

PARTS = ("ngram", "weighted_ngram", "syntax", "dataflow")
OTHER_WORD = 0.2
"""The weight of a word that is not a keyword."""

POOLED = "corpus CodeBLEU (counts pooled over all pairs)"

Weights = tuple[float, float, float, float]
EQUAL: Weights = (0.25, 0.25, 0.25, 0.25)
Share = tuple[float, float]
"""The amount found, and the total."""


def codebleu(
    prediction: str | Sequence[str],
    reference: str | Sequence[str],
    lang: str = "python",
    weights: Weights = EQUAL,
) -> Score | Corpus:
    """CodeBLEU of a pair of programs, with its four parts; of lists, the corpus value and each pair's.

    `weights` are those of n-grams, weighted n-grams, syntax and data flow; they must add up to 1. Code that does not
    parse is scored on the parts that the grammar can parse, with a note.

    >>> score = codebleu("return a - b", "return a + b")
    >>> {part: round(value, 3) for part, value in score.parts.items()}
    {'ngram': 0.188, 'weighted_ngram': 0.195, 'syntax': 1.0, 'dataflow': 0.0}
    """
    language = find_language(lang)
    _check(weights)
    if isinstance(prediction, str):
        return _scored([_count(prediction, text_of(reference, "reference"), language)], weights)
    pairs = checked_pairs(prediction, reference)
    if not pairs:
        raise BadText("there are no pairs to score: both lists are empty.")
    return pool_counts(count_pairs(pairs, lang), weights)


def count_pairs(pairs: Sequence[tuple[str, str]], lang: str = "python") -> list[Counts]:
    """The counts of each pair, the first step of the corpus value. Several processes can share this work."""
    language = find_language(lang)
    return [_count(*pair, language) for pair in pairs]


def pool_counts(counts: list[Counts], weights: Weights = EQUAL) -> Corpus:
    """The corpus value from the counts of all pairs, the second step."""
    pooled = _scored(counts, weights)
    return Corpus(pooled.score, tuple(_scored([count], weights) for count in counts), POOLED, pooled.parts, pooled.note)


def _check(weights: Weights) -> None:
    try:
        good = len(weights) == len(PARTS) and min(weights) >= 0 and math.isclose(sum(weights), 1, abs_tol=1e-6)
    except TypeError:
        good = False
    if not good:
        raise ConfigError(
            f"weights must be four numbers of at least 0 that add up to 1 ({', '.join(PARTS)}); got {weights!r}."
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of one pair; their sums give the corpus value."""

    length: int
    reference_length: int
    found: list[Share]
    """Matching n-grams of the prediction and all its n-grams, for each n-gram length."""

    recalled: list[Share]
    """The same for the reference's n-grams, weighted."""

    syntax: Share
    dataflow: Share
    notes: tuple[str, ...]


def _count(prediction: str, reference: str, language: Language) -> Counts:
    words, others = prediction.split(), reference.split()
    found, recalled = _count_words(words, others, language)
    program, wanted = parse(prediction, language), parse(reference, language)
    dataflow = _used_up(flow_items(program), flow_items(wanted))
    notes = _notes(program, wanted, dataflow)
    return Counts(len(words), len(others), found, recalled, _looked_up(program, wanted), dataflow, notes)


def _count_words(words: list[str], others: list[str], language: Language) -> tuple[list[Share], list[Share]]:
    found: list[Share] = []
    recalled: list[Share] = []
    for size in range(1, LONGEST + 1):
        ours, theirs = sequences(words, size), sequences(others, size)
        both = ours & theirs
        found.append((both.total(), max(1, ours.total())))
        if size == 1:
            recalled.append((_weigh(both, language), max(1, _weigh(theirs, language))))
        else:
            recalled.append((both.total(), max(1, theirs.total())))
    return found, recalled


def _weigh(counts: Counter[tuple[str, ...]], language: Language) -> float:
    return sum(count if word in language.keywords else count * OTHER_WORD for (word,), count in counts.items())


def _looked_up(program: Program, wanted: Program) -> Share:
    known: dict[Shape, int] = {}
    present = set(subtrees(program, known))
    shapes = subtrees(wanted, known)
    return sum(shape in present for shape in shapes), len(shapes)


def _used_up(items: Counter[Item], wanted: Counter[Item]) -> Share:
    return (items & wanted).total(), wanted.total()


def _notes(program: Program, wanted: Program, dataflow: Share) -> tuple[str, ...]:
    notes = []
    if not (program.tokens or wanted.tokens):
        notes.append("both programs are empty")
    if program.broken:
        notes.append("the prediction does not parse")
    if wanted.broken:
        notes.append("the reference does not parse")
    if not dataflow[1]:
        notes.append("the reference has no data flow, so that part is 0")
    return tuple(notes)


def _scored(counts: list[Counts], weights: Weights) -> Score:
    length, reference_length = sum(one.length for one in counts), sum(one.reference_length for one in counts)
    parts = {
        "ngram": _bleu([one.found for one in counts], length, reference_length),
        "weighted_ngram": _bleu([one.recalled for one in counts], length, reference_length),
        "syntax": _share([one.syntax for one in counts]),
        "dataflow": _share([one.dataflow for one in counts]),
    }
    score = math.fsum(weight * parts[part] for part, weight in zip(PARTS, weights, strict=True))
    return Score(score, parts, note=joined_notes((note for one in counts for note in one.notes), len(counts)))


def _share(shares: list[Share]) -> float:
    found, wanted = (sum(column) for column in zip(*shares, strict=True))
    return found / wanted if wanted else 0.0


def _bleu(shares: list[list[Share]], length: int, reference_length: int) -> float:
    pooled = [(sum(one[0] for one in sizes), sum(one[1] for one in sizes)) for sizes in zip(*shares, strict=True)]
    if not pooled[0][0]:
        return 0.0
    penalty = brevity_penalty(length, reference_length)
    return penalty * math.exp(math.fsum(math.log((found or SMOOTHING) / of) for found, of in pooled) / LONGEST)
