"""`rlvitals sync RUN --to TRACKER`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from rlvitals.capture.forwarding import trackers_of
from rlvitals.cli.output import add_json_flag, print_json
from rlvitals.config import resolve
from rlvitals.errors import ConfigError
from rlvitals.masking import MASK
from rlvitals.sinks.follower import follow
from rlvitals.store.fields import checked
from rlvitals.store.layout import RunDir
from rlvitals.terminal import clear_status, say, show_status
from rlvitals.views.run import RunView, open_run

EXIT_BEHIND = 1
LINGER_SECONDS = 20.0
"""A tracker without progress for this long is given up and reported. With --follow, this applies after the run ends."""
SLOWEST_CALL_SECONDS = 120.0
"""The time limit of one call of a tracker. On a busy machine MLflow needs half a minute to create a database."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="a run's directory")
    parser.add_argument("--to", action="append", default=[], metavar="TRACKER", help="which one (repeatable)")
    parser.add_argument("--config", metavar="FILE", help="YAML with tracker_kwargs (default: as recorded)")
    parser.add_argument("--follow", action="store_true", help="continue for as long as the run is being recorded")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    view = open_run(arguments.path)
    names = arguments.to or [tracker["name"] for tracker in view.trackers]
    if not names:
        raise ConfigError(f"{view.path} has no trackers yet; name one: rlvitals sync {view.path} --to tensorboard")
    settings = _settings(view, names, arguments.config)
    run_dir = RunDir(Path(arguments.path))
    progress = _Progress(view, names)
    done = follow(
        run_dir,
        settings,
        linger=LINGER_SECONDS,
        slowest_call=SLOWEST_CALL_SECONDS,
        once=not arguments.follow,
        progress=progress.show,
    )
    progress.clear()
    trackers = [tracker for tracker in open_run(arguments.path).trackers if tracker["name"] in names]
    if arguments.json:
        print_json(trackers)
    else:
        for tracker in trackers:
            state = f"{tracker['behind']} rows behind: {tracker['error']}" if tracker["behind"] else "up to date"
            say(f"{tracker['name']}: {tracker['rows']} rows, {state}")
    return 0 if done else EXIT_BEHIND


class _Recorded(TypedDict):
    """The trackers in a run's recorded settings."""

    track_with: list[str]
    tracker_kwargs: dict[str, Any]


class _Progress:
    """One line on a terminal, about once a second; nothing elsewhere."""

    def __init__(self, view: RunView, names: list[str]) -> None:
        self._view = view
        self._names = names
        self._next = time.monotonic() + 1.0
        self._is_shown = False

    def show(self) -> None:
        if not sys.stderr.isatty() or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + 1.0
        trackers = [tracker for tracker in self._view.trackers if tracker["name"] in self._names]
        status = ", ".join(f"{tracker['name']}: {tracker['behind']} rows to go" for tracker in trackers)
        show_status(status)
        self._is_shown = True

    def clear(self) -> None:
        if self._is_shown:
            clear_status()


def _settings(view: RunView, names: list[str], config: str | None) -> dict[str, Mapping[str, Any]]:
    """Settings from the file, or as the run recorded them. Masked keys are dropped: the vendor's own login is used."""
    own = view.config.get("rlvitals")
    recorded = {"track_with": [], "tracker_kwargs": {}} | (checked(_Recorded, own) if isinstance(own, dict) else {})
    given = resolve(config, {"track_with": names}) if config else resolve(_for(names, recorded), {})
    return trackers_of(given)


def _for(names: list[str], recorded: dict[str, Any]) -> dict[str, Any]:
    by_name = recorded["tracker_kwargs"]
    if len(recorded["track_with"]) == 1 and not isinstance(by_name.get(recorded["track_with"][0]), dict):
        by_name = {recorded["track_with"][0]: by_name}
    return {"track_with": names, "tracker_kwargs": {name: _unmasked(_mapping(by_name.get(name))) for name in names}}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _unmasked(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _unmasked(value) if isinstance(value, dict) else value for key, value in settings.items() if value != MASK
    }
