"""The clock of a run: detects from outside the trainer that no rows arrive any more, or that its process is gone.

It runs in the follower's process, because a trainer that hangs or was killed cannot report it. It reads only the step
and the time of each row. A monitor with only the clock rules of the rulebook decides how much time without rows is too
long. A clock belongs to one attempt and ends with it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rlvitals.errors import RlvitalsError
from rlvitals.guard import Once, guarded, words_of
from rlvitals.health.monitor import Monitor
from rlvitals.health.notify import Notifier, open_notifier
from rlvitals.health.rows import in_order
from rlvitals.health.rulebook import Rulebook
from rlvitals.health.rules import OUTSIDE
from rlvitals.records import Row
from rlvitals.store.cards import read_info
from rlvitals.store.files import put_file
from rlvitals.store.findings import append_event, event_line
from rlvitals.store.layout import STREAMS, RunDir, Stream
from rlvitals.store.lock import STALE_SECONDS, heartbeat_age, read_holder
from rlvitals.store.process import ProcessId, is_alive
from rlvitals.store.tail import RowTail, file_size
from rlvitals.terminal import logger

LOOK_SECONDS = 2.0
PAST_BYTES = 2**20
"""Bytes of each log that are read at the start, to learn how often rows are logged: at least some hundred rows."""

ASLEEP_SECONDS = 30.0
"""If a clock could not look for this long, its machine was suspended too: a suspended job, a closed laptop."""

LOST_SECONDS = 60.0
"""How long to wait for a run whose directory was deleted: a live trainer recreates it within 10 s."""

NOTIFY_SECONDS = 20.0
"""Enough for every retry of a notification. No other process waits for this one."""

AttemptState = Literal["running", "gone", "ended"]


def open_clock(run_dir: RunDir, task: Mapping[str, Any] | None) -> AttemptClock | None:
    """The clock that a trainer asks for: `holder` (its lock's token), `attempt`, `rules` and `notify`.

    None if the trainer asks for none, if the clock rules are disabled, or if the clock cannot be created. Forwarding to
    trackers works without it.
    """
    if task is None:
        return None
    with guarded(lambda error: logger.warning("stalls are not detected: %s", words_of(error))):
        info = read_info(run_dir)
        known = Monitor(rules=task["rules"]).rulebook.rules.values()
        rules = [rule for rule in known if rule.enabled and rule.function in OUTSIDE]
        if rules:
            monitor = Monitor(info.algorithm, info.framework, rules=Rulebook(rules, ()))
            notifier = open_notifier(info.name, task["notify"], put_file=put_file)
            return AttemptClock(run_dir, monitor, notifier, holder=task["holder"], attempt=task["attempt"])
    return None


class AttemptClock:
    """Monitors one attempt. `look` and `run` never raise."""

    def __init__(
        self, run_dir: RunDir, monitor: Monitor, notifier: Notifier | None, *, holder: str, attempt: int
    ) -> None:
        self.is_over = False
        """True once the attempt has ended, for any reason, or the clock has failed."""
        self._dir, self._monitor, self._notifier = run_dir, monitor, notifier
        self._holder, self._attempt = holder, attempt
        self._tails = {stream: _tail(run_dir.log(stream)) for stream in STREAMS}
        self._last: Row | None = None
        self._process: ProcessId | None = None
        self._unwritten: deque[bytes] = deque()
        self._warn_once = Once()
        self._next_look = 0.0
        self._looked_at = self._seen_at = time.time()
        self._slept = 0.0

    def look_when_due(self) -> None:
        """Look if the last look is a few seconds old. For callers that call more often than that."""
        if time.monotonic() >= self._next_look:
            self.look()

    def run(self) -> None:
        """Look every few seconds until the attempt is over."""
        while not self.is_over:
            self.look()
            if not self.is_over:
                time.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Read the new rows, then record and report new findings."""
        if self.is_over:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        try:
            with guarded(self._put_aside, but=(OSError,)):
                self._look(time.time())
        except OSError as error:  # a disk error may be temporary: the next look tries again
            self._warn_once(f"the clock cannot read {self._dir.root}: {error.strerror or error}")

    def _put_aside(self, error: Exception) -> None:
        self.is_over = True
        self._warn_once(f"the clock failed and is disabled: {words_of(error)}")

    def close(self) -> None:
        """Write the lines that could not be written before, and wait for notifications that are being sent."""
        self._write()
        if self._notifier is not None:
            self._notifier.close(NOTIFY_SECONDS)

    def _look(self, now: float) -> None:
        state = self._state(now)  # read before the logs, so that rows logged until then are still included
        rows = self._new_rows()
        for stream, row in rows:
            self._take(stream, row)
        if now - self._looked_at > ASLEEP_SECONDS:
            self._slept += now - self._looked_at
        if rows:
            self._slept = 0.0
        self._looked_at = now
        if state == "gone":
            pid = self._process.pid if self._process is not None else 0
            self._monitor.tick(now, lost_pid=pid)
            self._report(now)
        elif state == "running" and self._last is not None and self._last.attempt == self._attempt:
            # Loading a model before an attempt's first row may take any amount of time.
            self._monitor.tick(now - self._slept)
            self._report(now)
        self.is_over = state != "running"
        self._write()

    def _state(self, now: float) -> AttemptState:
        """The state of the attempt. `finish` writes the card before it releases the lock, so the card decides."""
        holder = read_holder(self._dir)
        if holder is not None:
            if holder.token != self._holder:
                return "ended"  # another attempt has begun
            self._process = holder.process
            if holder.is_live:
                self._seen_at = now
                return "running"
        try:
            status = read_info(self._dir).status
        except RlvitalsError:
            return "running" if now - self._seen_at < LOST_SECONDS else "ended"
        if status != "running":
            return "ended"
        return "running" if holder is None and self._is_alive() else "gone"  # the lock file may have been removed

    def _is_alive(self) -> bool:
        alive = None if self._process is None else is_alive(self._process)
        return heartbeat_age(self._dir) < STALE_SECONDS if alive is None else alive

    def _new_rows(self) -> list[tuple[Stream, Row]]:
        """The rows since the last look, of both logs, in their order."""
        return list(in_order(self._tails["train"].rows(), self._tails["eval"].rows()))

    def _take(self, stream: Stream, row: Row) -> None:
        case = self._monitor.case
        if self._last is not None and self._last.attempt != row.attempt:
            case.timestamp = math.nan  # the time between two attempts is not the time between two rows
        self._last = row
        # An evaluation may belong to an earlier step, and the monitor reads a falling step as a restart.
        step = max(row.step, case.step) if stream == "eval" else row.step
        self._monitor.update({"step": step, "timestamp": row.timestamp})

    def _report(self, now: float) -> None:
        """Record and report the events of the last tick."""
        for event in self._monitor.events:
            self._unwritten.append(event_line(replace(event, timestamp=now, attempt=self._attempt, seen_in="clock")))
            if (finding := event.finding) is not None:
                logger.warning("%s at step %d: %s", finding.severity, finding.step, finding.title)
                if self._notifier is not None:
                    self._notifier.notify(finding)

    def _write(self) -> None:
        """Record the new events, and those that could not be recorded before."""
        try:
            while self._unwritten:
                append_event(self._dir, self._unwritten[0])
                self._unwritten.popleft()
        except OSError as error:
            self._warn_once(f"cannot write {self._dir.findings}: {error.strerror or error}")


def _tail(log: Path) -> RowTail:
    """A tail that starts near the end of the log. The rows there show how often rows are logged."""
    return RowTail(log, max(0, (file_size(log) or 0) - PAST_BYTES))
