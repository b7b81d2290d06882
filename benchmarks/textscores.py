"""The text scores compared with their reference packages: seconds for the same pairs, one after the other, in one run.

    python benchmarks/textscores.py [--pairs 1000] [--only bleu,rouge,...] [--repeats 3] [--threads 1]

Half of the pairs are prose, half are Python functions; for the code scores all are functions. The prediction is the
reference with words or names changed, a line removed, or another text. Everything is generated from a seed. Both sides
are warmed up on a few pairs first, so that imports, grammars and weights are loaded. Each figure is the fastest of the
repeats, by wall time and by the process's own processor time, which excludes other processes on the machine. The
largest difference between the values of the two sides is printed too, to show that both compute the same score.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

Texts = list[str]
Scorer = Callable[[Texts, Texts], Sequence[float]]
"""Takes predictions and references; returns the values on which both sides should agree."""

WARM_UP = 20

SUBJECTS = ["The model", "A careful reader", "The first experiment", "Every agent in the group", "The old lighthouse"]
VERBS = ["shows", "explains", "ignores", "repeats", "improves", "questions", "describes", "follows"]
OBJECTS = ["the reward of the last step", "an answer nobody expected", "the limits of the method", "a much longer text"]
TAILS = ["in most cases", "without any doubt", "after three hours of training", "because the data changed", "again"]
FUNCTIONS = [
    "def {f}({a}, {b}):\n    {c} = 0\n    for {d} in {a}:\n        if {d} > {b}:\n            {c} += {d}\n"
    "    return {c}\n",
    "def {f}({a}):\n    {b} = {{}}\n    for {c} in {a}:\n        {b}[{c}] = {b}.get({c}, 0) + 1\n    return {b}\n",
    "def {f}({a}, {b}=10):\n    {c} = [{d} * {b} for {d} in {a} if {d}]\n    {c}.sort(reverse=True)\n"
    "    return {c}[0]\n",
    "def {f}({a}):\n    if {a} < 2:\n        return {a}\n    {b}, {c} = 0, 1\n    for {d} in range({a} - 1):\n"
    "        {b}, {c} = {c}, {b} + {c}\n    return {c}\n",
    "def {f}({a}, {b}):\n    try:\n        with open({a}) as {c}:\n            {d} = {c}.read().split({b})\n"
    "    except OSError as error:\n        raise ValueError({a}) from error\n    return [x.strip() for x in {d}]\n",
]
NAMES = ["items", "limit", "total", "value", "result", "count", "data", "key", "rows", "index", "left", "right", "node"]


class Figure(NamedTuple):
    wall: float
    cpu: float
    values: Sequence[float]


def prose(draw: random.Random) -> str:
    sentences = [
        f"{draw.choice(SUBJECTS)} {draw.choice(VERBS)} {draw.choice(OBJECTS)} {draw.choice(TAILS)}."
        for _ in range(draw.randint(2, 6))
    ]
    return " ".join(sentences)


def altered_prose(text: str, draw: random.Random) -> str:
    words = [draw.choice(VERBS) if draw.random() < 0.12 else word for word in text.split() if draw.random() > 0.08]
    return " ".join(words) if draw.random() > 0.1 else prose(draw)


def program(draw: random.Random) -> str:
    parts = []
    for number in range(draw.randint(1, 3)):
        names = dict(zip("abcd", draw.sample(NAMES, 4), strict=True))
        parts.append(draw.choice(FUNCTIONS).format(f=f"{draw.choice(VERBS)}_{number}", **names))
    return "\n\n".join(parts)


def altered_program(code: str, draw: random.Random) -> str:
    if draw.random() < 0.1:
        return program(draw)
    old, new = draw.choice(NAMES), draw.choice(NAMES)
    lines = re.sub(rf"\b{old}\b", new, code).splitlines(keepends=True)
    if draw.random() < 0.3:
        del lines[draw.randrange(1, len(lines))]
    return "".join(lines)


def make_pairs(count: int, code_only: bool, seed: int = 7) -> tuple[Texts, Texts]:
    draw = random.Random(seed)
    is_code = [code_only or number % 2 == 0 for number in range(count)]
    references = [program(draw) if code else prose(draw) for code in is_code]
    predictions = [
        altered_program(text, draw) if code else altered_prose(text, draw)
        for code, text in zip(is_code, references, strict=True)
    ]
    return predictions, references


def bleu_pair() -> tuple[str, Scorer, Scorer]:
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    from rlvitals.textscore import bleu

    smoothing = SmoothingFunction().method1

    def theirs(predictions: Texts, references: Texts) -> Sequence[float]:
        return [
            sentence_bleu([reference.split()], prediction.split(), smoothing_function=smoothing)
            for prediction, reference in zip(predictions, references, strict=True)
        ]

    return "nltk", lambda *columns: [score.score for score in bleu(*columns).scores], theirs


def corpus_bleu_pair() -> tuple[str, Scorer, Scorer]:
    import sacrebleu

    from rlvitals.textscore import corpus_bleu

    return (
        "sacrebleu",
        lambda *columns: [corpus_bleu(*columns).score],
        lambda predictions, references: [sacrebleu.corpus_bleu(predictions, [references], force=True).score / 100],
    )


def rouge_pair(stem: bool = False) -> tuple[str, Scorer, Scorer]:
    from rouge_score.rouge_scorer import RougeScorer

    from rlvitals.textscore import rouge_l

    scorer = RougeScorer(["rougeL"], use_stemmer=stem)

    def theirs(predictions: Texts, references: Texts) -> Sequence[float]:
        return [
            scorer.score(reference, prediction)["rougeL"].fmeasure
            for prediction, reference in zip(predictions, references, strict=True)
        ]

    return "rouge-score", lambda *columns: [score.score for score in rouge_l(*columns, stem=stem).scores], theirs


def codebleu_pair() -> tuple[str, Scorer, Scorer]:
    from codebleu import calc_codebleu

    from rlvitals.textscore import codebleu

    return (
        "codebleu",
        lambda *columns: [codebleu(*columns).score],
        lambda predictions, references: [calc_codebleu(references, predictions, "python")["codebleu"]],
    )


def ruby_pair() -> tuple[str, Scorer, None]:
    from rlvitals.textscore import ruby

    return "none is right", lambda *columns: [score.score for score in ruby(*columns).scores], None


def bertscore_pair() -> tuple[str, Scorer, Scorer]:
    from bert_score import BERTScorer

    from rlvitals.textscore import bertscore
    from rlvitals.textscore.encoder import OFFLINE_MODULE

    folder = str(Path(find_spec(OFFLINE_MODULE).origin).parent / "model")
    scorer = BERTScorer(model_type=folder, num_layers=6, device="cpu", batch_size=64)
    return (
        "bert-score",
        lambda *columns: [score.score for score in bertscore(*columns, model=folder, layer=6, device="cpu").scores],
        lambda predictions, references: scorer.score(predictions, references)[2].tolist(),
    )


CONTESTS = {
    "bleu": bleu_pair,
    "corpus_bleu": corpus_bleu_pair,
    "rouge": rouge_pair,
    "rouge, stems": lambda: rouge_pair(stem=True),
    "codebleu": codebleu_pair,
    "ruby": ruby_pair,
    "bertscore": bertscore_pair,
}


def measure(scorer: Scorer, predictions: Texts, references: Texts, repeats: int) -> Figure:
    scorer(predictions[:WARM_UP], references[:WARM_UP])
    figures = []
    for _ in range(repeats):
        wall, cpu = perf_counter(), process_time()
        values = scorer(predictions, references)
        figures.append(Figure(perf_counter() - wall, process_time() - cpu, values))
    return Figure(min(one.wall for one in figures), min(one.cpu for one in figures), figures[0].values)


def report(name: str, pairs: tuple[Texts, Texts], repeats: int) -> None:
    peer, ours, theirs = CONTESTS[name]()
    own = measure(ours, *pairs, repeats)
    line = f"{name:<13} rlvitals {own.wall:8.3f} s wall {own.cpu:8.3f} s cpu"
    if theirs is None:
        print(f"{line}   peer: {peer}")
        return
    other = measure(theirs, *pairs, repeats)
    apart = max(abs(one - two) for one, two in zip(own.values, other.values, strict=True))
    print(
        f"{line}   {peer:<11} {other.wall:8.3f} s wall {other.cpu:8.3f} s cpu   "
        f"times faster: {other.wall / own.wall:6.2f} wall {other.cpu / own.cpu:6.2f} cpu   apart by {apart:.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--only", default="", help=f"of {', '.join(CONTESTS)}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of torch, for both sides (default: torch's own choice)")
    arguments = parser.parse_args()
    chosen = [name.strip() for name in arguments.only.split(",") if name.strip()] or list(CONTESTS)
    if arguments.threads:
        import torch

        torch.set_num_threads(arguments.threads)
    print(f"{arguments.pairs} pairs")
    for name in chosen:
        pairs = make_pairs(arguments.pairs, code_only=name in ("codebleu", "ruby"))
        report(name, pairs, arguments.repeats if name != "bertscore" else 1)


if __name__ == "__main__":
    main()
