"""RUBY (Tran et al., 2019): the similarity of two programs at the deepest level that can be analysed.

- `graph`: GRS = 1 - GED / (|PDG| + |PDG'|), if program dependence graphs can be built: for Python that parses. GED is
  the graph edit distance. A graph's size is its number of vertices and edges.
- `tree`: TRS = 1 - TED / (|AST| + |AST'|), if both programs parse. TED is the exact tree edit distance of the named
  syntax nodes. A tree's size is its number of nodes.
- `string`: STS = 1 - SED / max(length, length'), always. SED is the edit distance of the tokens: words, numbers and
  single other characters.

Some details are adapted, because the paper does not define them or they cannot be computed. The graph edit distance is
an upper bound from an optimal assignment of vertices, improved by exchanges (`graph_distance.py`), so GRS is a lower
bound of the paper's. Graphs consist of statements as `dependence.py` describes. Moving a node counts as a deletion and
an insertion. Comments and docstrings count only at the string level. Programs that are too large for a level are scored
at the next one, with a note. Nothing depends on a clock, so a pair always has the same score.

Identical programs score 1, and the score is symmetric. At the graph level, a program also scores 1 if its own
variables, parameters and functions are renamed, or if independent statements are reordered. At the tree and string
level every name counts. The three levels have different scales: only compare scores of the same level.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

from rlvitals.errors import needs
from rlvitals.textscore.dependence import Graph, dependence_graph
from rlvitals.textscore.graph_distance import graph_distance
from rlvitals.textscore.languages import Language, find_language
from rlvitals.textscore.score import Corpus, Score, score_pairs
from rlvitals.textscore.syntax import Program, parse
from rlvitals.textscore.tree_distance import Tree, distance

MEAN = "mean of RUBY"
BOUND = "graph edit distance bounded from above by assignment"
TOO_LARGE = "trees too large to compare"

_TOKEN = re.compile(r"\w+|[^\w\s]")
_PUNCTUATION = frozenset("()[]{},:;.")


def ruby(prediction: str | Sequence[str], reference: str | Sequence[str], lang: str = "python") -> Score | Corpus:
    """RUBY of a pair of programs; `level` is graph, tree or string. Of lists, the mean over the pairs.

    >>> ruby("def f(a): return a + 1", "def g(b): return b + 1").score
    1.0
    >>> score = ruby("x = = 1", "x = 1")
    >>> score.level, score.score, score.note
    ('string', 0.75, 'the prediction does not parse')
    """
    language = find_language(lang)
    return score_pairs(lambda one, other: _ruby(one, other, language), prediction, reference, name=MEAN)


def _ruby(prediction: str, reference: str, language: Language) -> Score:
    programs = [parse(code, language, open_strings=True) for code in (prediction, reference)]
    why_not = _why_no_tree(*programs)
    if why_not:
        return _at_string_level(prediction, reference, why_not)
    one, other = map(dependence_graph, programs)
    if isinstance(one, Graph) and isinstance(other, Graph):
        similarity = 1 - graph_distance(one, other) / (one.size + other.size)
        return Score(similarity, level="graph", note=BOUND)
    why_not = next(found for found in (one, other) if isinstance(found, str))
    tree, wanted = map(_tree, programs)
    edits = distance(tree, wanted)
    if edits is None:
        return _at_string_level(prediction, reference, TOO_LARGE)
    return Score(1 - edits / (len(tree) + len(wanted)), level="tree", note=why_not)


def _why_no_tree(program: Program, wanted: Program) -> str:
    for one, name in ((program, "prediction"), (wanted, "reference")):
        if not one.tokens:
            return f"the {name} is empty"
        if one.broken:
            return f"the {name} does not parse"
    return ""


def _at_string_level(prediction: str, reference: str, why: str) -> Score:
    numbers: dict[str, int] = {}
    one, other = (
        [numbers.setdefault(token, len(numbers)) for token in _TOKEN.findall(code)] for code in (prediction, reference)
    )
    longest = max(len(one), len(other))
    similarity = 1 - _edit_distance()(one, other) / longest if longest else 1.0
    return Score(similarity, level="string", note=why)


def _tree(program: Program) -> Tree:
    """The tree of named nodes. A leaf's label has its text, another node's label its own operators and keywords."""
    labels: list[str] = []
    ends: list[int] = []
    places = [0] * (len(program.kinds) + 1)
    node = 0
    while node < len(program.kinds):
        is_token = program.is_token(node)
        end = program.ends[node] if is_token else node + 1
        places[node:end] = [len(labels)] * (end - node)
        if program.named[node]:
            labels.append(_label(program, node, is_token))
            ends.append(program.ends[node])
        node = end
    places[-1] = len(labels)
    return Tree(labels, [places[end] for end in ends])


def _label(program: Program, node: int, is_token: bool) -> str:
    if is_token:
        return f"{program.kinds[node]} {program.text(node).decode('utf-8', 'replace')}"
    unnamed = [program.kinds[child] for child in program.children(node) if not program.named[child]]
    return " ".join([program.kinds[node], *(kind for kind in unnamed if kind not in _PUNCTUATION)])


@cache
def _edit_distance() -> Callable[[Sequence[int], Sequence[int]], int]:
    with needs("RUBY", "text"):
        from rapidfuzz.distance import Levenshtein
    return Levenshtein.distance
