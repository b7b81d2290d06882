"""Computes the scores of a list of pairs: which scores exist, what each requires, and how work is split over processes.

Scores of single pairs are computed in chunks, by a pool of processes if there are several workers. The results have the
order of the pairs. Corpus BLEU and BERTScore need all pairs at once and run in this process. BERTScore's encoder
already uses every core.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any, NamedTuple

from rlvitals import textscore
from rlvitals.errors import BadText, ConfigError, did_you_mean
from rlvitals.textscore.codebleu import count_pairs, pool_counts
from rlvitals.textscore.encoder import is_offline_installed
from rlvitals.textscore.languages import find_language
from rlvitals.textscore.score import Corpus, Score, checked_pairs, mean_of
from rlvitals.textscore.syntax import LARGEST

LARGEST_CHUNK = 50
"""Pairs per task of a worker; small enough to spread slow pairs over the workers."""

Texts = tuple[str, str]
"""A prediction and its reference."""

OnProgress = Callable[[str, int], None]
"""Called with a metric's name and the number of its pairs that are done."""


class ScoreMetric(NamedTuple):
    """The name of a score in the catalogue, and the packages that it requires."""

    concept: str
    packages: tuple[str, ...] = ()
    extra: str = "text"


METRICS = {
    "bleu": ScoreMetric("textscore.bleu"),
    "corpus_bleu": ScoreMetric("textscore.corpus_bleu", ("sacrebleu",)),
    "rouge": ScoreMetric("textscore.rouge_l", ("rapidfuzz",)),
    "codebleu": ScoreMetric("textscore.codebleu", ("tree_sitter",)),
    "ruby": ScoreMetric("textscore.ruby", ("tree_sitter", "rapidfuzz")),
    "bertscore": ScoreMetric("textscore.bertscore", ("torch", "transformers"), "bertscore"),
}
"""The scores, in the order in which they are computed and shown. The names are those of the epoch tracker."""

CODE_SCORES = ("codebleu", "ruby")

OTHER_NAMES = {"rouge_l": "rouge", "rouge-l": "rouge", "rougel": "rouge"}


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """The options of the scores; they are sent to the workers."""

    lang: str = "python"
    stem: bool = False
    model: str | None = None
    device: str | None = None


def chosen_metrics(asked: Sequence[str], options: ScoreOptions) -> tuple[list[str], dict[str, str]]:
    """The scores to compute, and the reason for each score that is not. Without names: all that can be computed.

    `bleu` selects both variants of BLEU. A score that is named and cannot be computed raises a ConfigError.
    """
    words = [word.strip().lower() for word in asked]
    names = [OTHER_NAMES.get(word, word) for word in words]
    check_metrics(names, options)
    wanted = {*names, "corpus_bleu"} if "bleu" in names else set(names or METRICS)
    missing = {name: why for name in METRICS if name in wanted and (why := why_missing(name, options))}
    return [name for name in METRICS if name in wanted and name not in missing], missing


def check_metrics(names: Sequence[str], options: ScoreOptions) -> None:
    """Raise ConfigError for a score that does not exist or cannot be computed here."""
    for name in names:
        if name not in METRICS:
            raise ConfigError(f"there is no score {name!r}.{did_you_mean(name, METRICS)} Scores: {', '.join(METRICS)}.")
        if why := why_missing(name, options):
            raise ConfigError(why)


def why_missing(name: str, options: ScoreOptions) -> str:
    """Why a score cannot be computed here, with the command that fixes it; empty if it can be computed."""
    metric = METRICS[name]
    packages = (*metric.packages, *(("nltk",) if name == "rouge" and options.stem else ()))
    absent = [package for package in packages if find_spec(package) is None]
    if absent:
        return f"{name} needs {', '.join(absent)}: pip install 'rlvitals[{metric.extra}]'."
    if name in CODE_SCORES:
        grammar = find_language(options.lang).distribution
        return "" if find_spec(grammar.replace("-", "_")) else f"{name} needs a grammar: pip install {grammar}."
    if name == "bertscore" and options.model is None and not is_offline_installed():
        return "bertscore needs an encoder: name one with --model, or pip install 'rlvitals[bertscore-offline]'."
    return ""


def evaluate(
    predictions: Sequence[str],
    references: Sequence[str],
    metrics: Sequence[str] = ("bleu", "rouge"),
    *,
    options: ScoreOptions | None = None,
    workers: int = 1,
    progress: OnProgress | None = None,
) -> dict[str, Corpus]:
    """The result of each of the given metrics (names in METRICS) over all pairs."""
    options = options or ScoreOptions()
    check_metrics(metrics, options)
    pairs = checked_pairs(predictions, references)
    if not pairs:
        raise BadText("there are no pairs to score.")
    if set(metrics) & set(CODE_SCORES):
        _check_sizes(pairs)
    report = progress or (lambda name, done: None)
    with _pool(workers) as pool:
        return {name: _evaluate_one(name, pairs, options, pool, report) for name in metrics}


def _check_sizes(pairs: list[Texts]) -> None:
    """Reject texts that are too long before hours of work, not after."""
    for number, pair in enumerate(pairs, start=1):
        if max(map(len, pair)) > LARGEST:
            raise BadText(
                f"pair {number} has a text of {max(map(len, pair)):,} characters; the code scores take at most "
                f"{LARGEST:,}. Leave it out, or ask for other scores."
            )


def _evaluate_one(
    name: str, pairs: list[Texts], options: ScoreOptions, pool: ProcessPoolExecutor | None, report: OnProgress
) -> Corpus:
    if name == "corpus_bleu":
        result: Score | Corpus = textscore.corpus_bleu(*_columns(pairs))
        report(name, len(pairs))
    elif name == "bertscore":
        model, device = options.model, options.device
        result = textscore.bertscore(
            *_columns(pairs), model=model, device=device, progress=lambda done: report(name, done)
        )
    else:
        chunks = []
        done = 0
        for chunk in _scored_chunks(name, pairs, options, pool):
            chunks.append(chunk)
            done += len(chunk.items)
            report(name, done)
        result = _joined(name, chunks)
    assert isinstance(result, Corpus)
    return result


class _Chunk(NamedTuple):
    """The result of a worker: scores and the name of their mean. For CodeBLEU these are counts, which are pooled into
    one score later.
    """

    items: list[Any]
    title: str


def _joined(name: str, chunks: list[_Chunk]) -> Corpus:
    items = [item for chunk in chunks for item in chunk.items]
    if name == "codebleu":
        return pool_counts(items)
    return mean_of(items, chunks[0].title)


def _scored_chunks(
    name: str, pairs: list[Texts], options: ScoreOptions, pool: ProcessPoolExecutor | None
) -> Iterator[_Chunk]:
    parts = [pairs[start : start + LARGEST_CHUNK] for start in range(0, len(pairs), LARGEST_CHUNK)]
    if pool is None:
        yield from (_score_chunk(name, part, options) for part in parts)
        return
    count = len(parts)
    try:
        yield from pool.map(_score_chunk, [name] * count, parts, [options] * count)
    except BrokenProcessPool as error:
        raise ConfigError(
            f"a worker process died while it computed {name}, probably because it ran out of memory. Try fewer workers."
        ) from error


def _score_chunk(name: str, pairs: list[Texts], options: ScoreOptions) -> _Chunk:
    """One metric over some pairs; runs in a worker."""
    if name == "codebleu":
        return _Chunk(list(count_pairs(pairs, options.lang)), "")
    columns = _columns(pairs)
    if name == "bleu":
        result = textscore.bleu(*columns)
    elif name == "rouge":
        result = textscore.rouge_l(*columns, stem=options.stem)
    else:
        result = textscore.ruby(*columns, lang=options.lang)
    assert isinstance(result, Corpus)
    return _Chunk(list(result.scores), result.name)


def _columns(pairs: list[Texts]) -> tuple[list[str], list[str]]:
    return [prediction for prediction, _ in pairs], [reference for _, reference in pairs]


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor | None]:
    if workers <= 1:
        yield None
        return
    # Spawned, because a fork of a process that has threads of torch or of a tracker can deadlock.
    # Only this process handles an interrupt; otherwise each worker would print a traceback.
    pool = ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
