"""`rlvitals eval PREDICTIONS.jsonl`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rlvitals import catalog
from rlvitals.cli.output import add_json_flag, print_json, printable, show, write_file
from rlvitals.codec import encode
from rlvitals.errors import BadText
from rlvitals.render.screen import Screen
from rlvitals.render.textscores import render_scores
from rlvitals.terminal import warn
from rlvitals.textscore.encoder import OFFLINE
from rlvitals.textscore.evaluate import METRICS, ScoreOptions, chosen_metrics, evaluate
from rlvitals.textscore.pairs import PREDICTION_KEYS, REFERENCE_KEYS, Pair, read_pairs
from rlvitals.textscore.score import Corpus

PAIRS_FOR_A_POOL = 500
"""Fewer pairs are scored faster than worker processes start."""

MOST_WORKERS = 8
"""The maximum number of workers without `--workers`."""

DECIMALS = 9
"""Decimals of a pair's score in files and JSON."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="PREDICTIONS.jsonl", help="a file with one JSON object per line; - for standard input"
    )
    parser.add_argument(
        "--metrics",
        default="",
        metavar="A,B",
        help=f"some of {', '.join(METRICS)} (default: all whose packages are installed)",
    )
    parser.add_argument(
        "--lang", default="python", help="the language of code, for codebleu and ruby (default: python)"
    )
    parser.add_argument("--stem", action="store_true", help="ROUGE-L over Porter stems")
    parser.add_argument(
        "--model",
        metavar="NAME",
        help=f"BERTScore's encoder: a folder, a hub name, or {OFFLINE} (default, if installed)",
    )
    parser.add_argument("--device", help="where the encoder runs: cpu, cuda, ... (default: a GPU if there is one)")
    parser.add_argument(
        "--workers", type=_count, metavar="N", help="number of processes (default: one per core from 500 pairs on)"
    )
    parser.add_argument("--prediction-key", metavar="KEY", help=f"its field (default: {', '.join(PREDICTION_KEYS)})")
    parser.add_argument("--reference-key", metavar="KEY", help=f"its field (default: {', '.join(REFERENCE_KEYS)})")
    parser.add_argument("--skip-bad", action="store_true", help="skip and count lines that are not pairs")
    parser.add_argument("--output", metavar="PAIRS.jsonl", help="write the scores of each pair there")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    options = ScoreOptions(arguments.lang, arguments.stem, arguments.model, arguments.device)
    names, left_out = chosen_metrics([word for word in arguments.metrics.split(",") if word.strip()], options)
    pairs, bad = _read(arguments)
    if not pairs:
        raise BadText(f"{arguments.path} holds no pairs of prediction and reference.")
    with _progress(names, len(pairs)) as progress:
        results = evaluate(
            [pair.prediction for pair in pairs],
            [pair.reference for pair in pairs],
            names,
            options=options,
            workers=arguments.workers or _workers_for(len(pairs)),
            progress=progress,
        )
    rows = _rows(pairs, results)
    if arguments.output:
        write_file(Path(arguments.output), b"".join(map(encode, rows)))
    facts = {
        "path": arguments.path,
        "pairs": len(pairs),
        "scores": {name: result.score for name, result in results.items()},
        "details": {name: _detail(name, result, pairs) for name, result in results.items()},
        "left_out": left_out,
        "bad_lines": bad,
    }
    if arguments.json:
        print_json(facts | {"per_pair": rows})
    else:
        show(render_scores(printable(facts)))
    return 0


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1 worker is needed")
    return number


def _workers_for(pairs: int) -> int:
    return min(os.cpu_count() or 1, MOST_WORKERS) if pairs >= PAIRS_FOR_A_POOL else 1


def _read(arguments: argparse.Namespace) -> tuple[list[Pair], list[str]]:
    how: dict[str, Any] = {
        "prediction_key": arguments.prediction_key,
        "reference_key": arguments.reference_key,
        "skip_bad": arguments.skip_bad,
    }
    try:
        if arguments.path == "-":
            return read_pairs(sys.stdin.buffer, **how)
        with open(arguments.path, "rb") as file:
            return read_pairs(file, **how)
    except OSError as error:
        raise BadText(f"cannot read {arguments.path}: {error.strerror or error}") from error
    except BadText as error:
        raise BadText(f"{arguments.path}, {error}") from error


def _rows(pairs: Sequence[Pair], results: dict[str, Corpus]) -> list[dict[str, Any]]:
    """Each pair's line, its id, and its scores with their parts and levels."""
    rows: list[dict[str, Any]] = [
        {"line": pair.line} | ({"id": pair.id} if pair.id is not None else {}) for pair in pairs
    ]
    for name, result in results.items():
        for row, score in zip(rows, result.scores, strict=False):
            row[name] = round(score.score, DECIMALS)
            if score.parts:
                row[f"{name}_parts"] = {part: round(value, DECIMALS) for part, value in score.parts.items()}
            if score.level:
                row[f"{name}_level"] = score.level
            if score.note and score.note != result.note:
                row[f"{name}_note"] = score.note
    return rows


def _detail(name: str, result: Corpus, pairs: Sequence[Pair]) -> dict[str, Any]:
    """One score, with its description from the catalogue."""
    what = catalog.explain(METRICS[name].concept).what
    values = [score.score for score in result.scores]
    lowest = values.index(min(values)) if values else 0
    spread = values and {
        "lowest": values[lowest],
        "lowest_line": pairs[lowest].line,
        "median": median(values),
        "highest": max(values),
    }
    return {
        "score": result.score,
        "name": result.name,
        "what": what.split(". ")[0].rstrip(".") + ".",
        "parts": dict(result.parts),
        "levels": result.levels,
        "note": result.note,
        "pairs": spread or None,
    }


@contextmanager
def _progress(names: list[str], pairs: int) -> Iterator[Callable[[str, int], None]]:
    """On a terminal, a bar for each score; otherwise, a line when a score is done. Both go to standard error."""
    if not sys.stderr.isatty():
        yield lambda name, done: warn(f"{name}: {done} pairs") if done == pairs else None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Screen(stderr=True), transient=True) as bars:
        tasks = {name: bars.add_task(name, total=pairs) for name in names}
        yield lambda name, done: bars.update(tasks[name], completed=done)
