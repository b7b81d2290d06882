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
from typing import Any, Literal

from rlvitals.errors import RlvitalsError
from rlvitals.health.monitor import Monitor
from rlvitals.health.notify import Notifier
from rlvitals.health.rulebook import Rulebook
from rlvitals.health.rules import OUTSIDE
from rlvitals.records import Finding, Row
from rlvitals.store.cards import read_info
from rlvitals.store.cursors import STREAMS
from rlvitals.store.files import put_file
from rlvitals.store.findings import append_event, finding_line
from rlvitals.store.layout import RunDir, Stream
from rlvitals.store.lines import BadLine, decode
from rlvitals.store.lock import STALE_SECONDS, heartbeat_age, read_holder
from rlvitals.store.process import ProcessId, is_alive
from rlvitals.store.reader import read_blocks
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
    try:
        info = read_info(run_dir)
        known = Monitor(rules=task["rules"]).rulebook.rules.values()
        rules = [rule for rule in known if rule.enabled and rule.function in OUTSIDE]
        if not rules:
            return None
        monitor = Monitor(info.algorithm, info.framework, rules=Rulebook(rules, ()))
        notifier = Notifier(info.name, task["notify"], put_file=put_file) if task["notify"] else None
        return Clock(run_dir, monitor, notifier, holder=task["holder"], attempt=task["attempt"])
    except Exception as error:  # noqa: BLE001 - a rule or plug-in of somebody's own may raise anything
        logger.warning("nobody looks at the clock: %s: %s", type(error).__name__, error)
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
        self._offsets = {stream: max(0, _size(run_dir, stream) - PAST_BYTES) for stream in STREAMS}
        self._last: Row | None = None
        self._process: ProcessId | None = None
        self._unwritten: deque[bytes] = deque()
        self._said: set[str] = set()
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
            self._look(time.time())
        except OSError as error:  # a sick disk: the next look may do better
            self._say_once(f"the clock cannot read {self._dir.root}: {error.strerror or error}")
        except Exception as error:  # noqa: BLE001 - the trackers in this process have nothing to do with it
            self.is_over = True
            self._say_once(f"the clock is put aside: {type(error).__name__}: {error}")

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
            for finding in self._monitor.tick(now, lost_pid=pid):
                self._tell(finding, now)
        elif state == "running" and self._last is not None and self._last.attempt == self._attempt:
            # Loading a model before an attempt's first row takes as long as it takes.
            for finding in self._monitor.tick(now - self._slept):
                self._tell(finding, now)
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
        """The rows since the last look, of both logs, by their time."""
        found: list[tuple[Stream, Row]] = []
        for stream in STREAMS:
            if _size(self._dir, stream) < self._offsets[stream]:
                self._offsets[stream] = 0  # deleted and made again
            for lines, after in read_blocks(self._dir.log(stream), self._offsets[stream]):
                self._offsets[stream] = after
                for line in lines:
                    try:
                        found.append((stream, decode(line)))
                    except BadLine:  # among them the piece of a line that the past begins with
                        continue
        return sorted(found, key=lambda item: item[1].timestamp)

    def _take(self, stream: Stream, row: Row) -> None:
        case = self._monitor.case
        if self._last is not None and self._last.attempt != row.attempt:
            case.timestamp = math.nan  # the time between two attempts is none between two rows
        self._last = row
        # An evaluation may be of an earlier step; the monitor would take a step that falls for a restart.
        step = max(row.step, case.step) if stream == "eval" else row.step
        self._monitor.update({"step": step, "timestamp": row.timestamp})

    def _tell(self, finding: Finding, now: float) -> None:
        logger.warning("%s at step %d: %s", finding.severity, finding.step, finding.title)
        self._unwritten.append(finding_line(finding, now, self._attempt))
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

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            logger.warning(sentence)


def _size(run_dir: RunDir, stream: Stream) -> int:
    try:
        return run_dir.log(stream).stat().st_size
    except OSError:
        return 0
