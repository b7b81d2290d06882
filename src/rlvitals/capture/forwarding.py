"""The trainer's side of forwarding: starts the follower's process, and at the end waits for it up to a deadline.

The same process looks at the clock, also where there are no trackers; nobody waits for that.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlvitals import plugins
from rlvitals.config import Settings
from rlvitals.errors import ConfigError, MissingDependency, did_you_mean
from rlvitals.store.cursors import bytes_behind, cursor_place, read_cursor, read_cursors, rows_behind
from rlvitals.store.files import open_descriptor
from rlvitals.store.layout import RunDir
from rlvitals.store.lock import read_holder
from rlvitals.store.process import this_process

if TYPE_CHECKING:
    import subprocess

logger = logging.getLogger("rlvitals")

STOP_SECONDS = 5.0
HOPELESS_SECONDS = 10.0


def trackers_of(settings: Settings) -> dict[str, Mapping[str, Any]]:
    """Each tracker's own settings. Raises on a tracker that nobody knows or whose package is missing."""
    if not settings.track_with:
        return {}
    known = plugins.tracker_names()
    for name in settings.track_with:
        if name not in known:
            raise ConfigError(
                f"unknown tracker {name!r}.{did_you_mean(name, known)} Known trackers: {', '.join(known)}."
            )
        package = plugins.TRACKERS[name].package if name in plugins.TRACKERS else ""
        if package and importlib.util.find_spec(package) is None:
            raise MissingDependency(f"the tracker {name!r}", name)
    trackers = _by_name(settings)
    for name, own in trackers.items():
        known_settings = None if name == plugins.CONSOLE_TRACKER else plugins.tracker_class(name).known_settings
        if known_settings is None:
            continue
        for key in own:
            if key not in known_settings:
                near = did_you_mean(str(key), known_settings)
                takes = ", ".join(sorted(known_settings))
                raise ConfigError(f"the tracker {name!r} has no setting {key!r}.{near} Settings: {takes}.")
    return trackers


def _by_name(settings: Settings) -> dict[str, Mapping[str, Any]]:
    """The settings of each tracker; for a single one they may stand there directly."""
    given = settings.tracker_kwargs
    if len(settings.track_with) == 1 and not isinstance(given.get(settings.track_with[0]), Mapping):
        return {settings.track_with[0]: given}
    for name in given:
        if name not in settings.track_with:
            near = did_you_mean(name, settings.track_with)
            raise ConfigError(f"tracker_kwargs has settings for {name!r}, which is not among track_with.{near}")
    return {name: given.get(name) or {} for name in settings.track_with}


def start_following(
    run_dir: RunDir, settings: Settings, trackers: Mapping[str, Mapping[str, Any]], attempt: int
) -> Forwarding | None:
    """The follower of a run that has trackers, or a stall of which somebody is to hear; None for any other."""
    following = {name: own for name, own in trackers.items() if name != plugins.CONSOLE_TRACKER}
    if not following and not settings.notify and settings.actions != "act":
        return None
    holder = read_holder(run_dir) if settings.monitor else None
    clock = None
    if holder is not None:
        rules, notify = settings.rules, settings.notify
        clock = {"holder": holder.token, "attempt": attempt, "rules": rules, "notify": notify}
    return Forwarding(run_dir, following, clock)


class Forwarding:
    """The follower of one run, as its trainer sees it."""

    def __init__(
        self, run_dir: RunDir, trackers: Mapping[str, Mapping[str, Any]], clock: Mapping[str, Any] | None
    ) -> None:
        """`clock`: what `rlvitals.clock` needs to know, or None for no clock."""
        self._dir = run_dir
        self._wants_clock = clock is not None
        self._names = list(trackers)
        self._reported: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()
        try:
            run_dir.sinks.mkdir(exist_ok=True)
            self._spawn(trackers, clock)
        except OSError as error:  # processes may not be spawned here
            if not trackers:
                logger.warning("cannot start a process for the clock (%s); only the trainer itself sees a stall", error)
                return
            logger.warning("cannot start a process for the trackers (%s); a thread follows the log instead", error)
            self._follow_in_thread(trackers)

    @property
    def has_clock(self) -> bool:
        """Whether somebody outside this process looks at the clock."""
        return self._wants_clock and self._process is not None and self._process.poll() is None

    def wait(self, seconds: float) -> None:
        """Wait until the trackers hold the whole run; what is left at the deadline is said, and goes on without us."""
        began = time.monotonic()
        said = False
        while (left := self._left()) and time.monotonic() - began < seconds and not self._is_hopeless(left):
            if not said and time.monotonic() - began > 2.0:
                said = True
                logger.warning("waiting up to %.0f s for %s; Ctrl-C leaves them to go on", seconds, ", ".join(left))
            time.sleep(0.05)
        for name in left:
            cursor = read_cursor(self._dir, name)
            behind = rows_behind(self._dir, cursor)
            reason = f" ({cursor.error})" if cursor.error else ""
            how = f"'rlvitals sync {self._dir.root} --to {name}' brings it up to date"
            logger.warning("%s: %d rows are not there yet%s; %s", name, behind, reason, how)
        self._part()

    def report(self) -> None:
        """Say once of each tracker that it fails, and why. For the background thread."""
        for name in self._names:
            cursor = read_cursor(self._dir, name)
            if cursor.state == "failing" and cursor.error != self._reported.get(name):
                self._reported[name] = cursor.error
                logger.warning("%s is behind: %s. Training and recording go on; it is tried again", name, cursor.error)

    def _left(self) -> list[str]:
        """The trackers that do not hold all of the run."""
        cursors = [read_cursor(self._dir, name) for name in self._names]
        return [cursor.name for cursor in cursors if cursor.state != "done" or bytes_behind(self._dir, cursor)]

    def _is_hopeless(self, left: list[str]) -> bool:
        """Whether waiting makes no sense: the follower is gone, or all that are left have been failing for a while."""
        if self._process is not None and self._process.poll() is not None:
            return True
        cursors = [read_cursor(self._dir, name) for name in left]
        return all(cursor.state == "failing" and time.time() - cursor.since > HOPELESS_SECONDS for cursor in cursors)

    def _part(self) -> None:
        """Leave the process to itself: it ends when it has done its work."""
        if self._process is None:
            return
        import subprocess

        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0 if self._names and not self._left() else 0.0)
        if self._process.returncode is None:
            self._process.returncode = 0  # it outlives us on purpose; Popen would warn of that
            with contextlib.suppress(RuntimeError):  # the interpreter is ending
                threading.Thread(target=_see_off, args=(self._process.pid,), daemon=True).start()

    def _spawn(self, trackers: Mapping[str, Mapping[str, Any]], clock: Mapping[str, Any] | None) -> None:
        import subprocess

        descriptor = open_descriptor(self._dir.sinks / "follower.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with os.fdopen(descriptor, "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "rlvitals.follow", str(self._dir.root.resolve())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if process.stdin is not None:
            with process.stdin as pipe:
                task = {"trackers": {name: dict(settings) for name, settings in trackers.items()}, "clock": clock}
                pipe.write(json.dumps(task, default=str).encode())
        self._process = process

    def _follow_in_thread(self, trackers: Mapping[str, Mapping[str, Any]]) -> None:
        from rlvitals.sinks.follower import follow

        arguments = {"stop": self._stop}
        threading.Thread(target=follow, args=(self._dir, trackers), kwargs=arguments, daemon=True).start()


def _see_off(pid: int) -> None:
    """Wait for a child that outlives its run, so that a process which records many leaves no defunct ones behind."""
    if os.name != "nt":
        with contextlib.suppress(OSError):
            os.waitpid(pid, 0)


def stop_followers(run_dir: RunDir) -> None:
    """End the followers an earlier attempt left behind on this host; their rows are sent again from the last commit."""
    own = this_process()
    for cursor in read_cursors(run_dir):
        place = cursor_place(run_dir, cursor.name)
        holder = read_holder(place)
        if holder is None or not holder.is_live or holder.process.host != own.host or holder.process.pid == own.pid:
            continue
        with contextlib.suppress(OSError):
            os.kill(holder.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline and (still := read_holder(place)) is not None and still.is_live:
            time.sleep(0.02)
