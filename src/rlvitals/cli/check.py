"""`rlvitals check RUN_OR_LOG [--follow]`: judges a run or a log, once or while another process writes it."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlvitals.catalog.slices import KEYS
from rlvitals.cli.flags import add_interval_flag, add_judge_flags, add_map_flag, check_polling, mapping_from
from rlvitals.cli.output import (
    EXIT_CODES,
    add_json_flag,
    print_json,
    print_json_line,
    printable,
    show,
    write_file,
)
from rlvitals.cli.reactions import Reactions
from rlvitals.errors import ConfigError
from rlvitals.records import Finding
from rlvitals.render.check import FolderView, ReportView, SlicesView, announcement
from rlvitals.render.numbers import duration
from rlvitals.render.screen import standard_output
from rlvitals.terminal import plural, put_status, warn
from rlvitals.views.check import FolderReport, Report, check, report_on
from rlvitals.views.diagnosis import of_judge
from rlvitals.views.feeds import News
from rlvitals.views.following import Following
from rlvitals.views.places import one_place
from rlvitals.views.slice_check import SlicesReport, check_slice, check_slices
from rlvitals.views.sources import Known


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "exit codes: 0 healthy, 1 watch (a warning), 2 act (a critical finding), 3 cannot judge,\n"
        "64 wrong usage or an unreadable file. A folder has the exit code of its most severe log."
    )
    parser.add_argument("path", metavar="RUN_OR_LOG", help="a run, a log of another tool, or a folder of them")
    add_judging_arguments(parser)
    parser.add_argument("--html", metavar="FILE", help="also write the report as one self-contained page")
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="every finding, every missing metric and how every name was interpreted",
    )
    parser.add_argument(
        "--names", action="store_true", help="how every name was interpreted, and with which confidence"
    )
    divided = parser.add_mutually_exclusive_group()
    divided.add_argument("--slice", metavar="KEY=VALUE", help="judge only one slice, such as env=math or source=gsm8k")
    divided.add_argument("--by", metavar="KEY", help=f"also judge every slice: {', '.join(KEYS)}")
    parser.add_argument(
        "--fail-on", choices=["warning", "critical"], default="warning",
        help="'critical': the verdict watch exits with 0 (default: warning)",
    )  # fmt: skip
    add_json_flag(parser)
    add_following_arguments(parser)


def add_judging_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that describe the run, and flags that choose the rules."""
    add_judge_flags(parser)
    parser.add_argument("--framework", help="the framework whose metric names these are (default: inferred from them)")
    parser.add_argument(
        "--config", action="append", metavar="KEY=VALUE", default=[],
        help="a setting that is missing from the log, such as num_generations=8 or reward_max=1 (repeatable)",
    )  # fmt: skip
    add_map_flag(parser)


def add_following_arguments(parser: argparse.ArgumentParser) -> None:
    follow = parser.add_argument_group("following a log that is being written")
    follow.add_argument("--follow", action="store_true", help="judge new rows as they are written")
    follow.add_argument("--until-idle", type=float, metavar="SECONDS", help="end after this many seconds without a row")
    add_interval_flag(follow)
    follow.add_argument(
        "--on-critical", metavar="COMMAND", help="run this command (no shell) with the finding as JSON on its stdin"
    )
    follow.add_argument("--sentinel", metavar="FILE", help="write the critical finding to this file")
    follow.add_argument("--webhook", metavar="URL", help="post critical findings to this address")
    follow.add_argument(
        "--signal", metavar="PID[:NAME]", help="send this process a signal once: TERM (default), INT or USR1"
    )


def run(arguments: argparse.Namespace) -> int:
    known: Known = {
        "rules": arguments.rules,
        "algorithm": arguments.algorithm,
        "framework": arguments.framework,
        "config": config_from(arguments.config),
        "mapping": mapping_from(arguments.map),
    }
    if arguments.follow:
        if arguments.slice or arguments.by:
            raise ConfigError("--slice and --by judge existing rows and cannot be combined with --follow")
        return exit_code(follow(arguments, known), arguments.fail_on)
    _refuse_following_options(arguments)
    if arguments.by:
        divided = check_slices(one_place(Path(arguments.path), "--by"), arguments.by, **known)
        facts = divided.to_dict()
        if arguments.json:
            print_json(facts)
        else:
            show(SlicesView(printable(facts)))
        return exit_code(divided, arguments.fail_on)
    report: Report | FolderReport
    if arguments.slice:
        report = check_slice(one_place(Path(arguments.path), "--slice"), arguments.slice, **known)
    else:
        report = check(arguments.path, **known)
    present(report, arguments)
    return exit_code(report, arguments.fail_on)


def present(report: Report | FolderReport, arguments: argparse.Namespace) -> None:
    """Print a report, and write its page if one is requested."""
    facts = report.to_dict()
    if arguments.html:
        write_page(facts, Path(arguments.html))
    if arguments.json:
        print_json(facts)
        return
    readable = printable(facts)
    if isinstance(report, Report):
        show(ReportView(readable, verbose=arguments.verbose, names=arguments.names))
        return
    show(FolderView(readable))
    if arguments.verbose:
        for one in readable["reports"]:
            show("")
            show(ReportView(one, verbose=True))


def exit_code(report: Report | FolderReport | SlicesReport, fail_on: str) -> int:
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

    write_file(path, page(facts).encode("utf-8", "replace"))


def _refuse_following_options(arguments: argparse.Namespace) -> None:
    for option in ("until_idle", "on_critical", "sentinel", "webhook", "signal"):
        if getattr(arguments, option) is not None:
            raise ConfigError(f"--{option.replace('_', '-')} is for --follow")


def follow(arguments: argparse.Namespace, known: Known) -> Report:
    """Watch until the run ends, `--until-idle` is reached, or Ctrl-C. Returns the report after the last row."""
    check_polling(arguments)
    watch = _Watch(arguments, known)
    try:
        watch.run()
    except KeyboardInterrupt:
        watch.end("stopped by Ctrl-C")
    report = watch.report()
    if arguments.json:
        facts = report.to_dict()
        if arguments.html:
            write_page(facts, Path(arguments.html))
        print_json_line({"type": "report", **facts})
    else:
        present(report, arguments)
    return report


class _Watch(Following):
    """One log being followed."""

    def __init__(self, arguments: argparse.Namespace, known: Known) -> None:
        self._arguments = arguments
        place = one_place(Path(arguments.path), "--follow", dumps=True)
        self._reactions = Reactions(arguments)
        self._screen = standard_output()
        super().__init__(place, **known)

    def run(self) -> None:
        """Judge the existing rows without announcing their findings, then announce the findings of new rows."""
        self._take(self.poll_feed()[0], aloud=False)
        self._greet()
        while True:
            news, ending = self.poll_feed()
            self._take(news, aloud=True)
            if not ending and self.feed.misses_rows:
                self._announce(self.judge.tick(time.time()))
            self._reactions.tend()
            idle = time.monotonic() - self.last_row_at
            if ending:
                return self.end(ending)
            if self._arguments.until_idle is not None and idle >= self._arguments.until_idle:
                return self.end(f"no row came for {duration(idle)}")
            self._show_status(idle)
            time.sleep(self._arguments.interval)

    def end(self, why: str) -> None:
        self._take(self.feed.flush(), aloud=True)
        self._clear_status()
        self._reactions.end()
        warn(f"{why}; the verdict:")

    def report(self) -> Report:
        return report_on(self.judge, self.feed.source())

    def _take(self, news: News, *, aloud: bool) -> None:
        if (source := self.source_for(news)) is not None:
            self.start_again(source)
        for row in news.before or ():
            self.judge.take(row)
        if news.rows:
            self.last_row_at = time.monotonic()
        for row in news.rows:
            found = self.judge.take(row)
            if aloud:
                self._announce(found)
        for event in news.events:
            self.judge.take_recorded(event)
            if aloud and event.finding is not None:
                self._announce([event.finding])

    def _announce(self, found: list[Finding]) -> None:
        for finding in found:
            facts = asdict(finding)
            self._clear_status()
            if self._arguments.json:
                print_json_line({"type": "finding", "source": str(self.path), **facts})
            elif finding.severity != "info" or self._arguments.verbose:
                self._screen.print(announcement(printable(facts), ascii_only=self._screen.options.ascii_only))
            sys.stdout.flush()
            if finding.severity == "critical":
                self._reactions.react(finding, str(self.path))

    def _greet(self) -> None:
        judge = self.judge
        if not judge.points:
            what = "is there, without rows yet" if self.path.exists() else "is not there yet"
            warn(f"following {self.path}, which {what}; Ctrl-C ends")
            return
        report = self.report()
        warn(
            f"following {self.path} ({report.format}): {plural(report.rows, 'row')} so far, {report.verdict}: "
            f"{report.reason}. New findings are printed from now on. Press Ctrl-C to stop"
        )

    def _show_status(self, idle: float) -> None:
        if sys.stderr.isatty() and not self._arguments.json:
            judge = self.judge
            step = "-" if judge.last_step is None else judge.last_step
            verdict = of_judge(judge, self.feed.counted).verdict
            text = f"step {step} | {plural(self.rows, 'row')} | {verdict} | last row {duration(idle)} ago"
            put_status(text, self._screen.width - 1)

    def _clear_status(self) -> None:
        if sys.stderr.isatty() and not self._arguments.json:
            put_status("", 0)
