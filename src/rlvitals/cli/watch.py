"""`rlvitals watch RUN_OR_LOG`."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

from rlvitals.cli.flags import add_interval_flag, add_judge_flags, add_map_flag, check_polling, mapping_from
from rlvitals.cli.output import print_json_line
from rlvitals.errors import ConfigError, needs
from rlvitals.terminal import say, warn
from rlvitals.tui.lists import listed_event, listed_line
from rlvitals.tui.plain_lines import Event, follow, line
from rlvitals.tui.watched import Watched
from rlvitals.views.folder_list import FolderList
from rlvitals.views.places import one_place


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        metavar="RUN_OR_LOG",
        help="a run, a log of another tool, or its dump of rollouts, which need not be there yet; or a folder of "
        "runs and logs, to choose one",
    )
    parser.add_argument(
        "--plain", action="store_true", help="print lines instead of a screen; the default without a terminal"
    )
    add_judge_flags(parser)
    add_map_flag(parser)
    add_interval_flag(parser)
    parser.add_argument("--json", action="store_true", help="lines of JSON: rows, findings, the end")
    parser.add_argument(
        "--until-idle", type=float, metavar="SECONDS", help="with lines: end after this many seconds without a row"
    )


def run(arguments: argparse.Namespace) -> int:
    check_polling(arguments)
    place = Path(arguments.path)
    if arguments.plain or arguments.json or not (sys.stdout.isatty() and sys.stdin.isatty()):
        return _in_lines(place, arguments)
    with needs("the terminal view (lines come with --plain)", "watch"):
        from rlvitals.tui.app import WatchApp
        from rlvitals.tui.run_list import ChoosingApp
    listed = FolderList(place)
    if not listed.holds_several:
        WatchApp(_watched(one_place(place, "watch", dumps=True), arguments), arguments.interval).run()
        return 0
    chosen: Path | None = None
    while (chosen := ChoosingApp(listed, chosen).run()) is not None:
        if not WatchApp(_watched(chosen, arguments), arguments.interval, has_list=True).run():
            break
    return 0


def _in_lines(place: Path, arguments: argparse.Namespace) -> int:
    print_event: Callable[[Event], None] = print_json_line if arguments.json else lambda event: say(line(event))
    try:
        watched = _watched(one_place(place, "watch", dumps=True), arguments)
    except ConfigError:
        listed = FolderList(place)
        lines = listed.lines(wait=True) if listed.holds_several else []
        if not lines:
            raise
        for item in lines:
            print_json_line(listed_event(item)) if arguments.json else say(listed_line(item))
        warn(f"{place} holds {len(lines)} runs and logs: name one of them to follow it. {listed.note}".rstrip())
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        follow(watched, print_event, interval=arguments.interval, until_idle=arguments.until_idle)
    return 0


def _watched(place: Path, arguments: argparse.Namespace) -> Watched:
    mapping = mapping_from(arguments.map)
    return Watched(place, rules=arguments.rules, algorithm=arguments.algorithm, mapping=mapping)
