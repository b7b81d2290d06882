"""The trainer's side of forwarding: starts the follower process, and at the end waits for it up to a deadline.

The follower also detects stalls (see `rlvitals.clock`), even without trackers. The trainer does not wait for that.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
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
from rlvitals.guard import guarded, words_of
from rlvitals.store.cursors import (
    announce_tracker,
    bytes_behind,
    cursor_place,
    read_cursor,
    rows_behind,
)
from rlvitals.store.files import make_folder, open_descriptor
from rlvitals.store.follower_state import FollowerPlace, locked_places
from rlvitals.store.layout import RunDir
from rlvitals.store.lock import STALE_SECONDS, Holder, read_holder
from rlvitals.store.outbox import outbox_place, read_outbox
from rlvitals.store.process import prove
from rlvitals.store.tail import file_size
from rlvitals.terminal import logger

if TYPE_CHECKING:
    import subprocess

    from rlvitals.notify.targets import Target

STOP_SECONDS = 1.0
"""How long a start waits, in total, for the followers of an earlier attempt to release their locks."""
HOPELESS_SECONDS = 10.0
NOTIFY_SECONDS = 20.0
"""How long the end of a run waits for notifications that are being sent."""

NOTIFIED = "notify/"
"""The prefix that distinguishes notification targets from trackers."""


def trackers_of(settings: Settings) -> dict[str, Mapping[str, Any]]:
    """The settings of each tracker. Raises on an unknown tracker or setting, or a missing package."""
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


def kept_kwargs(settings: Settings) -> dict[str, Any]:
    """The trackers' settings as they were passed, with absolute paths."""
    given, names = settings.tracker_kwargs, settings.track_with
    if len(names) == 1 and not isinstance(given.get(names[0]), Mapping):
        return _with_kept_paths(names[0], given)
    return {name: _with_kept_paths(name, own) if isinstance(own, Mapping) else own for name, own in given.items()}


def _with_kept_paths(name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    if not own or name == plugins.CONSOLE_TRACKER or name not in plugins.tracker_names():
        return dict(own)
    keep = getattr(plugins.tracker_class(name), "with_kept_paths", None)  # another package's class may be no Sink
    return dict(own) if keep is None else keep(own)


def _by_name(settings: Settings) -> dict[str, Mapping[str, Any]]:
    """The settings of each tracker. For a single tracker, `tracker_kwargs` may hold them directly."""
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
    """Start the follower if the run has trackers, notifications or `actions="act"`; None otherwise."""
    following = {name: own for name, own in trackers.items() if name != plugins.CONSOLE_TRACKER}
    if not following and not settings.notify and settings.actions != "act":
        return None
    holder = read_holder(run_dir)
    token = holder.token if holder is not None else None
    clock = None
    if settings.monitor and token is not None:
        clock = {"holder": token, "attempt": attempt, "rules": settings.rules, "notify": settings.notify}
    return Forwarding(run_dir, following, clock, token, settings.notify if settings.notify.get("to") else None)


class Forwarding:
    """The trainer's handle to the follower of one run."""

    def __init__(
        self,
        run_dir: RunDir,
        trackers: Mapping[str, Mapping[str, Any]],
        clock: Mapping[str, Any] | None,
        holder: str | None = None,
        notify: Mapping[str, Any] | None = None,
    ) -> None:
        """`clock`: the settings of `rlvitals.clock`; None for no clock. `holder`: the token of the run's lock; the
        follower ends when the lock has another token. `notify`: the settings of the notification targets.
        """
        self._dir = run_dir
        self._holder = holder
        self._wants_clock = clock is not None
        self._names = list(trackers)
        self._reported: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()
        # A target that is new in this attempt does not get the findings of earlier attempts.
        start = file_size(run_dir.findings) or 0
        self._notify: dict[str, Any] | None = None if notify is None else {"settings": dict(notify), "start": start}
        self._targets = [] if notify is None else _targets_of(notify)
        self._task = (trackers, clock)
        self._begin()

    def _begin(self) -> None:
        trackers, clock = self._task
        self._root = self._dir.root
        try:
            make_folder(self._dir.sinks, above=False)
            for name in trackers:
                announce_tracker(self._dir, name)
            self._spawn(trackers, clock)
        except OSError as error:  # processes may not be spawned here
            if not trackers and self._notify is None:
                logger.warning("cannot start a process for the clock (%s); only the trainer can detect a stall", error)
                return
            logger.warning("cannot start a process for the trackers (%s); a thread follows the log instead", error)
            self._follow_in_thread(trackers)

    @property
    def has_clock(self) -> bool:
        """Whether the follower process is running and detects stalls."""
        return self._wants_clock and self._process is not None and self._process.poll() is None

    def wait(self, seconds: float) -> None:
        """Wait until the trackers hold the complete run. At the deadline, report which are behind; the follower
        continues after this process ends.
        """
        with guarded(lambda error: logger.warning("cannot wait for notifications: %s", words_of(error))):
            self._wait_for_notifications(min(seconds, NOTIFY_SECONDS))
        began = time.monotonic()
        has_warned = False
        while (left := self._left()) and time.monotonic() - began < seconds and not self._is_hopeless(left):
            if not has_warned and time.monotonic() - began > 2.0:
                has_warned = True
                logger.warning("waiting up to %.0f s for %s; Ctrl-C stops waiting", seconds, ", ".join(left))
            time.sleep(0.05)
        for name in left:
            cursor = read_cursor(self._dir, name)
            behind = rows_behind(self._dir, cursor)
            reason = f" ({cursor.error})" if cursor.error else ""
            how = f"run 'rlvitals sync {self._dir.root} --to {name}' to send them"
            logger.warning("%s: %d rows are not sent yet%s; %s", name, behind, reason, how)
        self._part()

    def _wait_for_notifications(self, seconds: float) -> None:
        """Wait briefly for notifications that are not sent yet, and report how many are left."""
        if self._notify is None:
            return
        from rlvitals.notify.courier import unsent

        start, deadline = self._notify["start"], time.monotonic() + seconds
        while time.monotonic() < deadline and any(unsent(self._dir, target, start) for target in self._targets):
            if self._process is not None and self._process.poll() is not None:
                break
            time.sleep(0.05)
        for target in self._targets:
            if left := unsent(self._dir, target, start):
                outbox = read_outbox(self._dir, target.name)
                logger.warning(
                    "%s: %d notification%s not sent yet%s; run 'rlvitals notify %s' to send the rest",
                    *(target.name, left, " is" if left == 1 else "s are"),
                    *(f" ({outbox.error})" if outbox is not None and outbox.error else "", self._dir.root),
                )

    def keep_up(self) -> None:
        """Restart the follower if the run's directory was renamed, because it still uses the old path."""
        if self._root == self._dir.root:
            return
        self._stop.set()
        if self._process is not None and self._process.poll() is None:
            self._end(self._process)
        self._process, self._stop = None, threading.Event()
        self._begin()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End our own follower, even if it is stopped; rows after its last commit are sent again."""
        import subprocess

        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def report(self) -> None:
        """Warn about each failing tracker and target, once per reason. Called by the background thread."""
        for name in self._names:
            cursor = read_cursor(self._dir, name)
            if cursor.state == "failing" and cursor.error != self._reported.get(name):
                self._reported[name] = cursor.error
                logger.warning("%s is behind: %s. Training and recording continue; retrying", name, cursor.error)
        for target in self._targets:
            outbox = read_outbox(self._dir, target.name)
            key = f"{NOTIFIED}{target.name}"
            if outbox is not None and outbox.state == "failing" and outbox.error != self._reported.get(key):
                self._reported[key] = outbox.error
                logger.warning("notifications to %s are late: %s. Retrying", target.name, outbox.error)

    def _left(self) -> list[str]:
        """The trackers that do not hold the complete run."""
        cursors = [read_cursor(self._dir, name) for name in self._names]
        return [cursor.name for cursor in cursors if cursor.state != "done" or bytes_behind(self._dir, cursor)]

    def _is_hopeless(self, left: list[str]) -> bool:
        """Whether to stop waiting: the follower has ended, or all remaining trackers have been failing for a while."""
        if self._process is not None and self._process.poll() is not None:
            return True
        cursors = [read_cursor(self._dir, name) for name in left]
        return all(cursor.state == "failing" and time.time() - cursor.since > HOPELESS_SECONDS for cursor in cursors)

    def _part(self) -> None:
        """Detach from the follower process, which ends when its work is done."""
        if self._process is None:
            return
        import subprocess

        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0 if self._names and not self._left() else 0.0)
        if self._process.returncode is None:
            self._process.returncode = 0  # it outlives this process on purpose; Popen would warn about it
            with contextlib.suppress(RuntimeError):  # the interpreter is ending
                threading.Thread(target=_see_off, args=(self._process.pid,), daemon=True).start()

    def _spawn(self, trackers: Mapping[str, Mapping[str, Any]], clock: Mapping[str, Any] | None) -> None:
        import subprocess

        log = self._open_log()
        try:
            process = subprocess.Popen(
                [sys.executable, *_command(self._dir)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL if log is None else log,
                stderr=subprocess.DEVNULL if log is None else log,
                start_new_session=True,
            )
        finally:
            if log is not None:
                os.close(log)
        if process.stdin is not None:
            with process.stdin as pipe:
                by_name = {name: dict(settings) for name, settings in trackers.items()}
                task = {"trackers": by_name, "clock": clock, "holder": self._holder, "notify": self._notify}
                pipe.write(json.dumps(task, default=str).encode())
        self._process = process

    def _open_log(self) -> int | None:
        """The open log file for the follower's messages; None if it cannot be opened."""
        path = self._dir.sinks / "follower.log"
        try:
            return open_descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        except OSError as error:
            logger.warning("cannot write %s (%s); the follower's messages are not kept", path, error.strerror or error)
            return None

    def _follow_in_thread(self, trackers: Mapping[str, Mapping[str, Any]]) -> None:
        from rlvitals.sinks.follower import follow

        arguments = {"stop": self._stop, "holder": self._holder}
        if trackers:
            threading.Thread(target=follow, args=(self._dir, trackers), kwargs=arguments, daemon=True).start()
        if self._notify is not None:
            from rlvitals.notify.courier import Couriers

            couriers = Couriers(self._dir, self._notify["settings"], self._notify["start"], self._holder)
            threading.Thread(target=couriers.finish, args=(self._stop,), daemon=True).start()


def _targets_of(notify: Mapping[str, Any]) -> list[Target]:
    from rlvitals.notify.targets import targets_of

    return targets_of(notify)


def _see_off(pid: int) -> None:
    """Wait for a child that outlives its run. Otherwise a process that records many runs would leave zombies."""
    if os.name != "nt":
        with contextlib.suppress(OSError):
            os.waitpid(pid, 0)


def stop_followers(run_dir: RunDir) -> None:
    """End the followers of an earlier attempt; rows after their last commit are sent again.

    A follower ends by itself when another attempt has locked the run. A follower of this user on this machine is ended
    at once, even if it hangs or is stopped, but only if the system proves that it belongs to this run: see
    `process.prove`. Others are not ended: after a short wait, a warning names them.
    """
    found = _held(run_dir)
    processes = {holder.process for holder in found.values()}
    proven = [handle for process in processes if (handle := prove(process, _command(run_dir))) is not None]
    deadline = time.monotonic() + STOP_SECONDS
    for handle in proven:
        with contextlib.suppress(OSError):
            handle.send(signal.SIGTERM)
    _wait_until_free(run_dir, time.monotonic() + STOP_SECONDS / 3)
    for handle in proven:  # safe if it has ended: a handle never reaches another process
        with contextlib.suppress(OSError):
            handle.send(signal.SIGKILL)
        handle.close()
    for name, holder in _wait_until_free(run_dir, deadline).items():
        process = holder.process
        logger.warning(
            "process %d on host %s holds the tracker %s of %s (last heartbeat %.0f s ago). rlvitals cannot "
            "confirm that it is a follower of this run and does not stop it. Forwarding continues when that process "
            "ends or has no heartbeat for %.0f s. Stop it if it should not run; if there is no such process, delete %s",
            *(process.pid, process.host, name, run_dir.root, holder.silent_for, STALE_SECONDS),
            _place(run_dir, name).lock,
        )


def _held(run_dir: RunDir) -> dict[str, Holder]:
    """The trackers and targets that a live process holds, with that process."""
    holders = {name: read_holder(place) for name, place in _places(run_dir).items()}
    return {name: holder for name, holder in holders.items() if holder is not None and holder.is_live}


def _places(run_dir: RunDir) -> dict[str, FollowerPlace]:
    """The locks of trackers and of notification targets."""
    notified = {f"{NOTIFIED}{place.name}": place for place in locked_places(run_dir.notify)}
    return {place.name: place for place in locked_places(run_dir.sinks)} | notified


def _place(run_dir: RunDir, name: str) -> FollowerPlace:
    if name.startswith(NOTIFIED):
        return outbox_place(run_dir, name.removeprefix(NOTIFIED))
    return cursor_place(run_dir, name)


def _wait_until_free(run_dir: RunDir, deadline: float) -> dict[str, Holder]:
    """Wait until no process holds a tracker; returns those still held at the deadline."""
    while (left := _held(run_dir)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def _command(run_dir: RunDir) -> list[str]:
    """The arguments that start a follower of this run; they also identify its process."""
    return ["-m", "rlvitals.follow", str(run_dir.root)]
