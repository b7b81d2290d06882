"""`rlvitals check RUN_OR_LOG [--follow]`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rlvitals.cli.output import add_json_flag, print_json, printable, show
from rlvitals.errors import ConfigError, RunError
from rlvitals.render.check import FolderView, ReportView
from rlvitals.store.files import replace_file
from rlvitals.views.check import FolderReport, Report, check

EXIT_CODES = {"healthy": 0, "watch": 1, "act": 2, "cannot judge": 3}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "exit codes: 0 healthy, 1 watch (a warning), 2 act (a critical finding), 3 cannot judge,\n"
        "64 wrong usage or an unreadable file. A folder's is that of the gravest log in it."
    )
    parser.add_argument("path", metavar="RUN_OR_LOG", help="a run, a log any other tool wrote, or a folder of them")
    add_judging_arguments(parser)
    parser.add_argument("--html", metavar="FILE", help="also write the report as one self-contained page")
    parser.add_argument("--verbose", action="store_true", help="every finding and every missing metric")
    parser.add_argument(
        "--fail-on", choices=["warning", "critical"], default="warning",
        help="'critical': a verdict of watch exits with 0 too (default: warning)",
    )  # fmt: skip
    add_json_flag(parser)
    add_following_arguments(parser)


def add_judging_arguments(parser: argparse.ArgumentParser) -> None:
    """What is known of the run, and what to judge it by."""
    parser.add_argument(
        "--rules", action="append", metavar="RULES",
        help="a preset, a rule file, or a rule such as 'kl > 0.5 for 5: warning' (may be given again; default: those "
        "the run was watched with; 'default': ours)",
    )  # fmt: skip
    parser.add_argument("--algorithm", help="grpo, ppo, kto, dpo, ... (default: told by the metric names)")
    parser.add_argument("--framework", help="whose metric names these are (default: told by them)")
    parser.add_argument(
        "--config", action="append", metavar="KEY=VALUE", default=[],
        help="a setting the log does not hold, such as num_generations=8 or reward_max=1 (may be given again)",
    )  # fmt: skip


def add_following_arguments(parser: argparse.ArgumentParser) -> None:
    follow = parser.add_argument_group("following a log that is being written")
    follow.add_argument("--follow", action="store_true", help="judge new rows as they come")
    follow.add_argument("--until-idle", type=float, metavar="SECONDS", help="end when no row came for so long")
    follow.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="how often to look (default: 1)")
    follow.add_argument(
        "--on-critical", metavar="COMMAND", help="run this (no shell), the finding as JSON on its stdin"
    )
    follow.add_argument("--sentinel", metavar="FILE", help="write the critical finding to this file")
    follow.add_argument("--webhook", metavar="URL", help="post critical findings there")
    follow.add_argument("--signal", metavar="PID[:NAME]", help="signal this process once: TERM (default), INT or USR1")


def run(arguments: argparse.Namespace) -> int:
    config = config_from(arguments.config)
    if arguments.follow:
        from rlvitals.cli.following import follow

        return exit_code(follow(arguments, config), arguments.fail_on)
    _refuse_following_options(arguments)
    report = check(arguments.path, arguments.rules, arguments.algorithm, arguments.framework, config)
    present(report, arguments)
    return exit_code(report, arguments.fail_on)


def present(report: Report | FolderReport, arguments: argparse.Namespace) -> None:
    """Print a report, and write its page where one is asked for."""
    facts = report.to_dict()
    if arguments.html:
        write_page(facts, Path(arguments.html))
    if arguments.json:
        print_json(facts)
        return
    readable = printable(facts)
    if isinstance(report, Report):
        show(ReportView(readable, verbose=arguments.verbose))
        return
    show(FolderView(readable))
    if arguments.verbose:
        for one in readable["reports"]:
            show("")
            show(ReportView(one, verbose=True))


def exit_code(report: Report | FolderReport, fail_on: str) -> int:
    """The verdict as an exit code."""
    if report.verdict == "watch" and fail_on == "critical":
        return 0
    return EXIT_CODES[report.verdict]


def config_from(words: list[str]) -> dict[str, Any]:
    """Settings from the command line."""
    config: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise ConfigError(f"--config {word}: a setting is written KEY=VALUE, as in --config num_generations=8")
        config[key.strip()] = _value(value.strip())
    return config


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def write_page(facts: dict[str, Any], path: Path) -> None:
    """The report as one file of HTML."""
    from rlvitals.render.check_html import page

    try:
        replace_file(path, page(facts).encode("utf-8", "replace"))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


def _refuse_following_options(arguments: argparse.Namespace) -> None:
    for option in ("until_idle", "on_critical", "sentinel", "webhook", "signal"):
        if getattr(arguments, option) is not None:
            raise ConfigError(f"--{option.replace('_', '-')} is for --follow")
