"""`rlvitals check --follow`: judges a log while another process writes it."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlvitals.cli.check import present, write_page
from rlvitals.cli.output import print_json_line, printable
from rlvitals.cli.reactions import Reactions
from rlvitals.errors import ConfigError
from rlvitals.importers import NotALog
from rlvitals.records import Finding
from rlvitals.render.check import announcement
from rlvitals.render.numbers import duration
from rlvitals.render.screen import standard_output
from rlvitals.terminal import put_status, warn
from rlvitals.views.check import Report, new_monitor, report_on
from rlvitals.views.judging import Judge
from rlvitals.views.live import Feed, News, open_feed
from rlvitals.views.sources import places_in


def follow(arguments: argparse.Namespace, config: dict[str, Any]) -> Report:
    """Watch until the run ends, nothing comes any more, or Ctrl-C; return the report after the last row."""
    if arguments.interval <= 0 or (arguments.until_idle is not None and arguments.until_idle <= 0):
        raise ConfigError("--interval and --until-idle are seconds above 0")
    watch = _Watch(arguments, config)
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


class _Watch:
    """One log being followed."""

    def __init__(self, arguments: argparse.Namespace, config: dict[str, Any]) -> None:
        self._arguments = arguments
        self._config = config
        self._path = _one_log(Path(arguments.path))
        self._feed: Feed = open_feed(self._path)
        self._reactions = Reactions(arguments)
        self._judge = self._new_judge(is_known=False)
        self._heard = time.monotonic()
        self._screen = standard_output()

    def run(self) -> None:
        """Judge what is there without a word, then what comes, aloud."""
        self._take(self._feed.poll(), aloud=False)
        self._greet()
        while True:
            ending = self._feed.ending  # asked before the poll: what was written until then is still read
            news = self._feed.poll()
            if not self._judge.points and not news.rows:
                self._feed = open_feed(self._path)  # it may be a run that had not begun yet
            self._take(news, aloud=True)
            self._announce(self._judge.tick(time.time()))
            self._reactions.tend()
            idle = time.monotonic() - self._heard
            if ending:
                return self.end(ending)
            if self._arguments.until_idle is not None and idle >= self._arguments.until_idle:
                return self.end(f"no row came for {duration(idle)}")
            self._show_status(idle)
            time.sleep(self._arguments.interval)

    def end(self, why: str) -> None:
        self._clear_status()
        self._reactions.end()
        warn(f"{why}; the verdict:")

    def report(self) -> Report:
        return report_on(self._judge, self._feed.source())

    def _new_judge(self, *, is_known: bool) -> Judge:
        arguments = self._arguments
        source = self._feed.source() if is_known else None
        return Judge(new_monitor(source, arguments.rules, arguments.algorithm, arguments.framework, self._config))

    def _take(self, news: News, *, aloud: bool) -> None:
        if news.before is not None:
            self._judge = self._new_judge(is_known=True)
            for row in news.before:
                self._judge.take(row)
        if news.rows:
            self._heard = time.monotonic()
            if not self._judge.points:  # only now is it known what the log says of itself
                self._judge = self._new_judge(is_known=True)
        for row in news.rows:
            found = self._judge.take(row)
            if aloud:
                self._announce(found)

    def _announce(self, found: list[Finding]) -> None:
        for finding in found:
            facts = asdict(finding)
            self._clear_status()
            if self._arguments.json:
                print_json_line({"type": "finding", "source": str(self._path), **facts})
            elif finding.severity != "info" or self._arguments.verbose:
                self._screen.print(announcement(printable(facts), ascii_only=self._screen.options.ascii_only))
            sys.stdout.flush()
            if finding.severity == "critical":
                self._reactions.react(finding, str(self._path))

    def _greet(self) -> None:
        judge = self._judge
        if not judge.points:
            what = "is there, without rows yet" if self._path.exists() else "is not there yet"
            warn(f"following {self._path}, which {what}; Ctrl-C ends")
            return
        report = self.report()
        warn(
            f"following {self._path} ({report.format}): {judge.points:,} rows so far, {report.verdict}: "
            f"{report.reason}. From now on findings are announced; Ctrl-C ends"
        )

    def _show_status(self, idle: float) -> None:
        if sys.stderr.isatty() and not self._arguments.json:
            judge = self._judge
            step = "-" if judge.last_step is None else judge.last_step
            text = f"step {step} | {judge.points:,} rows | {judge.monitor.verdict} | last row {duration(idle)} ago"
            put_status(text, self._screen.width - 1)

    def _clear_status(self) -> None:
        if sys.stderr.isatty() and not self._arguments.json:
            put_status("", 0)


def _one_log(path: Path) -> Path:
    """What is to be followed; an empty folder may become a run."""
    try:
        places = places_in(path)
    except NotALog:
        places = None
    if places is not None and len(places) > 1:
        raise ConfigError(f"--follow takes one run or log, and {path} holds {len(places)}: name one of them")
    return places[0] if places else path
