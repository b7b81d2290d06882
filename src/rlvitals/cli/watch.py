"""`rlvitals watch RUN_OR_LOG`."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

from rlvitals.cli.flags import add_judge_flags, add_map_flag, mapping_from
from rlvitals.cli.output import print_json_line
from rlvitals.errors import ConfigError, MissingDependency
from rlvitals.terminal import say
from rlvitals.tui.plain import Event, follow, line
from rlvitals.tui.watched import Watched
from rlvitals.views.places import one_place


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="RUN_OR_LOG", help="a run, or a log any other tool writes; it need not be there yet"
    )
    parser.add_argument("--plain", action="store_true", help="lines instead of a screen, as when it is no terminal")
    add_judge_flags(parser)
    add_map_flag(parser)
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="how often to look (default: 1)")
    parser.add_argument("--json", action="store_true", help="lines of JSON: rows, findings, the end")
    parser.add_argument(
        "--until-idle", type=float, metavar="SECONDS", help="with lines: end when no row came for so long"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.interval <= 0 or (arguments.until_idle is not None and arguments.until_idle <= 0):
        raise ConfigError("--interval and --until-idle are seconds above 0")
    watched = Watched(
        one_place(Path(arguments.path), "watch"), arguments.rules, arguments.algorithm, mapping_from(arguments.map)
    )
    if arguments.plain or arguments.json or not (sys.stdout.isatty() and sys.stdin.isatty()):
        tell: Callable[[Event], None] = print_json_line if arguments.json else lambda event: say(line(event))
        with contextlib.suppress(KeyboardInterrupt):
            follow(watched, tell, interval=arguments.interval, until_idle=arguments.until_idle)
        return 0
    try:
        from rlvitals.tui.app import WatchApp
    except ImportError as error:
        raise MissingDependency("the terminal view (lines come with --plain)", "watch") from error
    WatchApp(watched, arguments.interval).run()
    return 0
