"""The clock of a run: says from outside the trainer that rows have stopped coming, or that its process is gone.

It lives in the follower's process, because a trainer that hangs or was killed can say nothing itself. Of each row it
reads the step and the time; what silence is too long is left to a monitor that has the rulebook's rules for the clock
and no others. A clock belongs to one attempt and ends with it.
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
from rlvitals.store.cursors import STREAMS
from rlvitals.store.files import put_file
from rlvitals.store.findings import append_event, event_line
from rlvitals.store.layout import RunDir, Stream
from rlvitals.store.lock import STALE_SECONDS, heartbeat_age, read_holder
from rlvitals.store.process import ProcessId, is_alive
from rlvitals.store.tail import RowTail, file_size
from rlvitals.terminal import logger

LOOK_SECONDS = 2.0
PAST_BYTES = 2**20
"""How much of each log is read at the start, to learn how often rows come: some hundred rows at least."""

ASLEEP_SECONDS = 30.0
"""A clock that could not look for so long was asleep itself, with its machine: a suspended job, a closed laptop."""

LOST_SECONDS = 60.0
"""How long a run whose directory was deleted is waited for: a live trainer makes it again within 10 s."""

NOTIFY_SECONDS = 20.0
"""Enough for every try of a notification; nobody waits for this process."""

State = Literal["running", "gone", "ended"]


def open_clock(run_dir: RunDir, task: Mapping[str, Any] | None) -> Clock | None:
    """The clock a trainer asks for: `holder` (its lock's token), `attempt`, `rules` and `notify`.

    None where it asks for none, the rules for the clock are switched off, or it cannot be made: trackers are followed
    all the same.
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
            return Clock(run_dir, monitor, notifier, holder=task["holder"], attempt=task["attempt"])
    return None


class Clock:
    """Watches one attempt. `look` and `run` never raise."""

    def __init__(
        self, run_dir: RunDir, monitor: Monitor, notifier: Notifier | None, *, holder: str, attempt: int
    ) -> None:
        self.is_over = False
        """Nothing more to say: the attempt has ended, one way or another."""
        self._dir, self._monitor, self._notifier = run_dir, monitor, notifier
        self._holder, self._attempt = holder, attempt
        self._tails = {stream: _tail(run_dir.log(stream)) for stream in STREAMS}
        self._last: Row | None = None
        self._process: ProcessId | None = None
        self._unwritten: deque[bytes] = deque()
        self._say_once = Once()
        self._next_look = 0.0
        self._looked_at = self._seen_at = time.time()
        self._slept = 0.0

    def look_when_due(self) -> None:
        """Look, if the last look is a few seconds old. For a caller that comes by more often."""
        if time.monotonic() >= self._next_look:
            self.look()

    def run(self) -> None:
        """Look every few seconds until the attempt is over."""
        while not self.is_over:
            self.look()
            if not self.is_over:
                time.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Read what is new and say what there is to say."""
        if self.is_over:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        try:
            with guarded(self._put_aside, but=(OSError,)):
                self._look(time.time())
        except OSError as error:  # a sick disk: the next look may do better
            self._say_once(f"the clock cannot read {self._dir.root}: {error.strerror or error}")

    def _put_aside(self, error: Exception) -> None:
        self.is_over = True
        self._say_once(f"the clock failed and is disabled: {words_of(error)}")

    def close(self) -> None:
        """Write what could not be written before, and wait for notifications on their way."""
        self._write()
        if self._notifier is not None:
            self._notifier.close(NOTIFY_SECONDS)

    def _look(self, now: float) -> None:
        state = self._state(now)  # asked before the logs are read: what was logged until then is still seen
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
            self._tell(now)
        elif state == "running" and self._last is not None and self._last.attempt == self._attempt:
            # Loading a model before an attempt's first row takes as long as it takes.
            self._monitor.tick(now - self._slept)
            self._tell(now)
        self.is_over = state != "running"
        self._write()

    def _state(self, now: float) -> State:
        """How the attempt is. `finish` writes the card before it gives the lock back, so the card has the last word."""
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
        return "running" if holder is None and self._is_alive() else "gone"  # somebody may have removed the lock

    def _is_alive(self) -> bool:
        alive = None if self._process is None else is_alive(self._process)
        return heartbeat_age(self._dir) < STALE_SECONDS if alive is None else alive

    def _new_rows(self) -> list[tuple[Stream, Row]]:
        """The rows since the last look, of both logs, in their order."""
        return list(in_order(self._tails["train"].rows(), self._tails["eval"].rows()))

    def _take(self, stream: Stream, row: Row) -> None:
        case = self._monitor.case
        if self._last is not None and self._last.attempt != row.attempt:
            case.timestamp = math.nan  # the time between two attempts is none between two rows
        self._last = row
        # An evaluation may be of an earlier step; the monitor would take a step that falls for a restart.
        step = max(row.step, case.step) if stream == "eval" else row.step
        self._monitor.update({"step": step, "timestamp": row.timestamp})

    def _tell(self, now: float) -> None:
        """Record and tell what the last tick led to."""
        for event in self._monitor.events:
            self._unwritten.append(event_line(replace(event, timestamp=now, attempt=self._attempt, seen_in="clock")))
            if (finding := event.finding) is not None:
                logger.warning("%s at step %d: %s", finding.severity, finding.step, finding.title)
                if self._notifier is not None:
                    self._notifier.tell(finding)

    def _write(self) -> None:
        """Record what was found, and what could not be recorded before."""
        try:
            while self._unwritten:
                append_event(self._dir, self._unwritten[0])
                self._unwritten.popleft()
        except OSError as error:
            self._say_once(f"cannot write {self._dir.findings}: {error.strerror or error}")


def _tail(log: Path) -> RowTail:
    """From near the end on: the rows there tell how often rows come."""
    return RowTail(log, max(0, (file_size(log) or 0) - PAST_BYTES))
