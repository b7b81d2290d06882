"""`rlvitals gate RUN --baseline RUN...`: tests whether a change made training worse."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rlvitals.cli.output import add_json_flag, print_json, printable, show, write_file
from rlvitals.cli.plot import picture_named, write_picture
from rlvitals.errors import ConfigError, RlvitalsError
from rlvitals.render.gate import gate_error_junit, gate_error_markdown, gate_junit, gate_markdown, render_gate
from rlvitals.terminal import put, warn
from rlvitals.views.compare import compare_runs
from rlvitals.views.gate import ALPHA, PRIORS, GateLimits, GateReport, gate, open_runs
from rlvitals.views.gate_rules import GateRule, is_rule_file, parse_margin, parse_rule, read_rules
from rlvitals.views.plots import comparison
from rlvitals.views.run import RunView

EXIT_CODES = {"pass": 0, "fail": 1}
EXIT_CANNOT = 2
STDOUT = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "exit codes: 0 not worse, 1 worse or a limit not kept, 2 the runs cannot be compared or read, or a rule is\n"
        f"wrong, 64 wrong usage. Measures: {', '.join(PRIORS)}."
    )
    parser.add_argument("path", metavar="RUN", help="the run to judge, or a log of another tool")
    parser.add_argument(
        "--baseline", metavar="RUN", nargs="+", action="extend", required=True,
        help="runs, logs or folders of them to compare with; 3 or more with different seeds find most",
    )  # fmt: skip
    parser.add_argument(
        "--rule", metavar="RULE", action="append", default=[],
        help="a limit such as 'reward>=0.8' (a value) or 'speed>-10%%' (a change beside the baselines), or a YAML file "
        "of them (repeatable)",
    )  # fmt: skip
    parser.add_argument("--rules-only", action="store_true", help="judge by the limits alone, without the tests")
    parser.add_argument(
        "--margin", metavar="MEASURE=SHARE", action="append", default=[],
        help="a difference up to this passes, even if it is significant, as in speed=5%% (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--alpha", type=float, help=f"probability that a harmless change fails (default: {ALPHA:g})",
    )  # fmt: skip
    parser.add_argument("--metric", help="the goal of the runs (default: their reward or margin)")
    parser.add_argument(
        "--direction", choices=["up", "down"], help="whether higher or lower is better (default: from the catalogue)"
    )
    parser.add_argument(
        "--markdown", metavar="FILE", help="also write a summary as Markdown; '-' prints it in place of the table"
    )
    parser.add_argument("--junit", metavar="FILE", help="also write the results as JUnit XML")
    parser.add_argument("--plot", metavar="FILE", help="also plot the runs in one figure: .png, .svg or .pdf")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    try:
        return _judged(arguments)
    except (RlvitalsError, OSError) as error:
        message = str(error)
        warn(f"rlvitals: error: {message}")
        if arguments.junit:
            write_file(Path(arguments.junit), gate_error_junit(message), folder_too=True)
        if arguments.markdown:
            _write_markdown(gate_error_markdown(message), arguments.markdown)
        return EXIT_CANNOT


def _judged(arguments: argparse.Namespace) -> int:
    if arguments.json and arguments.markdown == STDOUT:
        raise ConfigError("--json and --markdown - both print to standard output: name a file for one of them")
    target = picture_named(arguments.plot) if arguments.plot else None
    limits = _limits(arguments)
    candidate, baselines = open_runs(arguments.path, arguments.baseline)
    report = gate(candidate, baselines, limits, metric=arguments.metric, direction=arguments.direction)
    facts = report.to_dict()
    if target is not None:
        _draw(report, [candidate, *baselines], target)
    if arguments.junit:
        write_file(Path(arguments.junit), gate_junit(facts), folder_too=True)
    if arguments.markdown:
        _write_markdown(gate_markdown(facts), arguments.markdown)
    if arguments.json:
        print_json(facts)
    elif arguments.markdown != STDOUT:
        show(render_gate(printable(facts)))
    return EXIT_CODES[report.state]


def _limits(arguments: argparse.Namespace) -> GateLimits:
    """The rules, margins and alpha of the rule files. Flags override the files."""
    rules: list[GateRule] = []
    margins: dict[str, float] = {}
    alpha = ALPHA
    for text in arguments.rule:
        if is_rule_file(text):
            read = read_rules(text)
            rules += read.rules
            margins |= read.margins
            alpha = alpha if read.alpha is None else read.alpha
        else:
            rules.append(parse_rule(text))
    margins |= dict(map(parse_margin, arguments.margin))
    alpha = alpha if arguments.alpha is None else arguments.alpha
    return GateLimits(alpha, rules, margins, tested=not arguments.rules_only)


def _write_markdown(text: str, target: str) -> None:
    if target == STDOUT:
        put(text.removesuffix("\n"))
    else:
        write_file(Path(target), text.encode("utf-8", "replace"), folder_too=True)


def _draw(report: GateReport, views: list[RunView], target: Path) -> None:
    """Draw the goal and every tested metric, with the runs overlaid."""
    logged: Any = {one.metric for one in report.tests if one.metric in views[0].metrics}
    names = list(dict.fromkeys([report.goal["metric"], *sorted(logged)]))
    write_picture(comparison(views, compare_runs(views, names)), target)
