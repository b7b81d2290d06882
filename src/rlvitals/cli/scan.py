"""`rlvitals scan RUN|DUMPS [--scanner FILE] [--rules FILE] [--rubric FILE --endpoint URL --model NAME] [--json]`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from rlvitals.cli.output import EXIT_CODES, add_json_flag, print_json, printable, show
from rlvitals.errors import ConfigError
from rlvitals.health import rulebook
from rlvitals.records import Group
from rlvitals.render.scan import RubricView, ScanView
from rlvitals.scan import load_scanners
from rlvitals.scan.rubric import (
    RolloutPlace,
    RubricQuestions,
    RubricVerdict,
    agreement,
    cited,
    messages,
    read_rubric,
    read_verdict,
    sample,
)
from rlvitals.terminal import warn
from rlvitals.views.places import open_rollouts
from rlvitals.views.rollouts import RolloutSource
from rlvitals.views.texts import marked_rollouts, scan_facts, scan_rollouts

ASKED_AT_ONCE = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="a run's directory, or a framework's dump of rollouts")
    parser.add_argument(
        "--scanner", action="append", default=[], metavar="FILE",
        help="your own scanners: a YAML file with patterns, or a Python file with functions; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--rules",
        action="append",
        default=[],
        metavar="FILE",
        help="a rule file that changes or disables rules",
    )
    parser.add_argument("--validation", action="store_true", help="the rollouts of evaluations")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="read at most about N rollouts, from evenly spaced steps"
    )
    parser.add_argument("--verbose", action="store_true", help="every pattern and remark")
    rubric = parser.add_argument_group("a model judges a rubric too")
    rubric.add_argument("--rubric", metavar="FILE", help="a YAML file with 'name' and 'question'")
    rubric.add_argument("--endpoint", metavar="URL", help="an OpenAI-compatible server, as in http://localhost:8000/v1")
    rubric.add_argument("--model", metavar="NAME", help="the model's name there")
    rubric.add_argument(
        "--sample", type=int, default=40, metavar="N", help="the number of rollouts that it reads (default: 40)"
    )
    rubric.add_argument("--price", metavar="IN,OUT", help="dollars for a million tokens read and written")
    rubric.add_argument(
        "--key-variable", default="OPENAI_API_KEY", metavar="NAME", help="the variable that holds the key"
    )
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    scanners = load_scanners(*arguments.scanner)
    rules = rulebook.load(*arguments.rules)
    rubric = _rubric(arguments)
    prices = _prices(arguments.price)
    source = open_rollouts(arguments.path, "validation" if arguments.validation else None)
    found = scan_rollouts(source, scanners=scanners, rules=rules, most=arguments.limit)
    facts: dict[str, Any] = scan_facts(arguments.path, found)
    if rubric is not None:
        marked = marked_rollouts(source, found.scans, arguments.limit)
        facts["rubric"] = _judge(rubric, source, sample(marked, arguments.sample), arguments, prices)
    if arguments.json:
        print_json(facts)
    else:
        show(ScanView(facts, verbose=arguments.verbose))
        if rubric is not None:
            show(RubricView(printable(facts["rubric"])))
    for problem in source.problems:
        warn(problem)
    return EXIT_CODES[facts["verdict"]]


def _rubric(arguments: argparse.Namespace) -> RubricQuestions | None:
    if arguments.rubric is None:
        for option in ("endpoint", "model", "price"):
            if getattr(arguments, option) is not None:
                raise ConfigError(f"--{option} is for --rubric FILE")
        return None
    if not arguments.endpoint or not arguments.model:
        raise ConfigError("--rubric needs --endpoint URL and --model NAME")
    if arguments.sample < 1:
        raise ConfigError(f"--sample is a number of rollouts, not {arguments.sample}")
    return read_rubric(arguments.rubric)


def _prices(given: str | None) -> tuple[float, float] | None:
    if given is None:
        return None
    try:
        read, written = map(float, given.split(","))
    except ValueError:
        raise ConfigError(
            f"--price is two numbers, dollars for a million tokens, as in 0.15,0.6, not {given!r}"
        ) from None
    return read, written


def _judge(
    rubric: RubricQuestions,
    source: RolloutSource,
    chosen: list[tuple[RolloutPlace, bool]],
    arguments: argparse.Namespace,
    prices: tuple[float, float] | None,
) -> dict[str, Any]:  # fmt: skip
    """Ask the model about each chosen rollout, and measure its agreement with the scanners' marks."""
    from rlvitals.train.teachers.base import BadVerdict
    from rlvitals.train.teachers.endpoint import EndpointAnswer, JudgeClient

    client = JudgeClient(arguments.endpoint, arguments.model, key_variable=arguments.key_variable, max_tokens=300)
    groups: dict[tuple[int, int], Group] = {}
    for place, _ in chosen:
        if place[:2] not in groups:
            groups |= {(place.step, number): group for number, group in enumerate(source.at(place.step), 1)}

    def read(answer: dict[str, Any]) -> RubricVerdict:
        try:
            return read_verdict(answer)
        except ValueError as error:
            raise BadVerdict(str(error)) from None

    def ask(place: RolloutPlace) -> EndpointAnswer[RubricVerdict]:
        return client.ask(messages(rubric, groups[place[:2]], place.rollout), read)

    with ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="rlvitals-rubric") as threads:
        answers = list(threads.map(ask, [place for place, _ in chosen]))
    judged = [
        (answer.verdict, is_marked, place)
        for answer, (place, is_marked) in zip(answers, chosen, strict=True)
        if answer.verdict is not None
    ]
    failures = [answer.failure for answer in answers if answer.verdict is None]
    agreed = agreement([(verdict.is_hit, is_marked) for verdict, is_marked, _ in judged])
    hits = [
        asdict(cited(verdict, groups[place[:2]], place)) | {"why": verdict.why, "is_marked": is_marked}
        for verdict, is_marked, place in judged
        if verdict.is_hit
    ]
    tokens = {
        "prompt_tokens": sum(answer.prompt_tokens for answer in answers),
        "completion_tokens": sum(answer.completion_tokens for answer in answers),
        "unaccounted": sum(answer.unaccounted for answer in answers),
    }
    return {
        "name": rubric.name, "question": rubric.question, "model": arguments.model, "asked": len(answers),
        "judged": len(judged), "failures": failures, "hits": hits, **asdict(agreed), "share": asdict(agreed.share),
        "kappa": agreed.kappa, **tokens, "dollars": _dollars(tokens, prices),
    }  # fmt: skip


def _dollars(tokens: Mapping[str, int], prices: tuple[float, float] | None) -> float | None:
    if prices is None:
        return None
    return (tokens["prompt_tokens"] * prices[0] + tokens["completion_tokens"] * prices[1]) / 1_000_000
