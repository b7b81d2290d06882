"""Follows a run's logs and forwards rows to its trackers, each at its own pace.

Each tracker has its own forwarder, thread and cursor, so a slow, failing or hanging back end does not delay the others.
A cursor advances only past rows that the back end has stored. After an error or a crash, rows after the cursor are sent
again. This runs in a separate process (`rlvitals.follow`), in `rlvitals sync`, or, if no process can be started, in a
thread of the trainer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rlvitals import plugins
from rlvitals.errors import RunLocked
from rlvitals.guard import guarded
from rlvitals.masking import mask_text
from rlvitals.sinks.base import RunFacts, Sink, SinkEvent, SinkRow
from rlvitals.store.cards import read_attempts, read_config, read_info
from rlvitals.store.cursors import FORWARDED, Cursor, cursor_place, read_cursor, write_cursor
from rlvitals.store.files import make_folder
from rlvitals.store.findings import event_of
from rlvitals.store.follower_state import FollowerStage
from rlvitals.store.layout import RunDir
from rlvitals.store.lines import BadLine, decode
from rlvitals.store.lock import HEARTBEAT_SECONDS, RunLock, is_recorded, read_holder
from rlvitals.store.reader import read_batch
from rlvitals.terminal import logger

BATCH_ROWS = 1000
POLL_SECONDS = 0.5
WATCH_SECONDS = 0.2
LONGEST_PAUSE = 30.0
PART_SECONDS = 1.0
"""How long a follower that must end waits for batches that are being sent."""

LINGER_SECONDS = 600.0
"""How long a follower keeps trying without progress after the run has ended."""


class Forwarder:
    """The position of one tracker in the logs."""

    def __init__(self, run_dir: RunDir, name: str, settings: Mapping[str, Any], *, once: bool = False) -> None:
        self.name = name
        self._once = once
        self.is_over = False
        """True when the run has ended and the tracker holds all of it."""
        self.last_progress = time.monotonic()
        self.is_waiting_for_tracker = False
        """Whether a call of the tracker is running. MLflow's first call creates a database, which can take half a
        minute.
        """
        self._dir = run_dir
        self._settings = settings
        self._lock = RunLock(cursor_place(run_dir, name))
        self._has_lock = False
        self._takes_samples = self._takes_findings = False
        self._cursor = Cursor(name)
        self._sink: Sink | None = None

    def run(self, stop: threading.Event) -> None:
        """Forward until the run has ended and everything is sent, or until `stop` is set."""
        pause = POLL_SECONDS
        while not stop.is_set() and not self.is_over:
            moved, next_pause = False, min(pause * 2, LONGEST_PAUSE)
            with guarded(self._failed):  # the only place where failures of a tracker are caught
                self.is_waiting_for_tracker = True
                try:
                    moved = self.advance()
                except RunLocked:  # another follower has the lock; it may end
                    self._drop_sink()
                finally:
                    self.is_waiting_for_tracker = False
                next_pause = POLL_SECONDS
            pause = next_pause
            if not moved and not self.is_over:
                stop.wait(pause)
        self.let_go()

    def advance(self) -> bool:
        """Send one batch; False if there is nothing to send now. Raises the tracker's errors, and RunLocked if another
        follower holds the cursor.
        """
        self._check_lock()
        if not self._has_lock:
            sink_class = plugins.tracker_class(self.name)
            self._takes_samples = sink_class.takes_samples
            self._takes_findings = getattr(sink_class, "takes_findings", False)  # another package's class may lack it
            make_folder(self._dir.sinks, above=False)
            self._lock.acquire()
            self._has_lock = True
            self._cursor = self._read_cursor()
        has_ended = self._once or not is_recorded(self._dir)
        rows, events, offsets = self._read()
        if offsets == self._cursor.offsets:
            if has_ended:
                self._finish()
            return False
        sink = self._open(rows)
        sink.write(rows)
        if events:
            sink.tell(events)
        sink.commit()
        self._cursor.offsets = offsets
        samples = sum(item.stream == "system" for item in rows)
        self._cursor.rows += len(rows) - samples
        self._cursor.samples += samples
        self._save("following")
        self.last_progress = time.monotonic()
        return True

    def beat(self) -> None:
        """Show that the tracker has a live follower."""
        if self._has_lock:
            with contextlib.suppress(OSError):
                self._lock.beat()

    def let_go(self) -> None:
        """Release the cursor's lock."""
        if self._has_lock:
            self._has_lock = False
            self._lock.release()

    def _check_lock(self) -> None:
        """Raise RunLocked if the lock was lost: the directory was emptied, or another follower has started."""
        if self._has_lock and not self._lock.is_ours():
            self._has_lock = False
            raise RunLocked(f"another follower now holds the lock of tracker {self.name}")

    def _read(self) -> tuple[list[SinkRow], list[SinkEvent], dict[str, int]]:
        rows: list[SinkRow] = []
        offsets = dict(self._cursor.offsets)
        place = self._cursor.samples
        for stream in FORWARDED:
            if stream not in offsets:
                continue
            lines, offsets[stream] = read_batch(self._dir.log(stream), offsets[stream], BATCH_ROWS)
            for line in lines:
                with contextlib.suppress(BadLine):
                    row = decode(line)
                    if stream == "system":
                        row, place = replace(row, step=place), place + 1
                    rows.append(SinkRow(stream, row))
        return rows, self._read_events(offsets), offsets

    def _read_events(self, offsets: dict[str, int]) -> list[SinkEvent]:
        """New events of the health log, if the tracker takes findings. Advances `offsets`."""
        if not self._takes_findings:
            return []
        place = offsets["findings"]
        lines, offsets["findings"] = read_batch(self._dir.log("findings"), place, BATCH_ROWS)
        found = []
        for line in lines:
            if (event := event_of(line)) is not None:
                found.append(SinkEvent(place, event))
            place += len(line) + 1
        return found

    def _read_cursor(self) -> Cursor:
        cursor = read_cursor(self._dir, self.name)
        if self._takes_samples:
            cursor.offsets.setdefault("system", 0)
        if self._takes_findings:
            cursor.offsets.setdefault("findings", 0)
        return cursor

    def _open(self, rows: list[SinkRow]) -> Sink:
        """The open tracker. It is opened again if a new attempt has started since it was opened."""
        sink = self._sink
        if sink is not None and self._is_news(sink.facts, rows):
            self._sink = None
            sink.close()
            sink = None
        if sink is None:
            sink = plugins.tracker_class(self.name)(run_facts(self._dir), self._settings, dict(self._cursor.memory))
            self._sink = sink
        return sink

    def _is_news(self, facts: RunFacts, rows: list[SinkRow]) -> bool:
        """Whether rows belong to a recorded attempt that started after the tracker was opened."""
        unheard = any(facts.attempt(item.row.attempt) is None for item in rows)
        return unheard and len(read_attempts(self._dir)) > len(facts.attempts)

    def _finish(self) -> None:
        if self._sink is None and (self._cursor.rows or self._cursor.samples) and self._cursor.state != "done":
            self._open([])  # a killed follower left it unfinished
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()
            self._cursor.memory = sink.memory
        self._save("done")
        self.is_over = True

    def _save(self, state: FollowerStage, error: str = "") -> None:
        if self._sink is not None:
            self._cursor.memory = self._sink.memory
        self._cursor.enter(state, error)
        self._check_lock()
        write_cursor(self._dir, self._cursor)

    def _failed(self, error: Exception) -> None:
        self._drop_sink()
        reason = mask_text(str(error) or type(error).__name__, self._settings)[:1000]
        logger.warning("tracker %s: %s", self.name, reason)
        if self._has_lock:
            # Reset the memory to the last commit: changes by the failed sink do not count.
            self._cursor = self._read_cursor()
            with contextlib.suppress(OSError, RunLocked):
                self._save("failing", reason)

    def _drop_sink(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            with guarded():
                sink.abandon()


def follow(
    run_dir: RunDir,
    trackers: Mapping[str, Mapping[str, Any]],
    *,
    linger: float = LINGER_SECONDS,
    slowest_call: float = 0.0,
    once: bool = False,
    progress: Callable[[], None] | None = None,
    stop: threading.Event | None = None,
    holder: str | None = None,
) -> bool:
    """Forward to all trackers until the run has ended and each holds it, or has made no progress for too long.

    Returns whether all trackers hold everything. The limit without progress is `linger` seconds, or `slowest_call`
    seconds, if that is more, while a call of the tracker is running. So a tracker that fails at once is given up sooner
    than a slow one. With `once`, forwarding stops when all current rows are sent, even if the run continues. `progress`
    is called several times a second. `holder` is the token of the run's lock. If the lock has another token, a new
    attempt has started with its own follower.
    """
    stop = stop or threading.Event()
    forwarders = [Forwarder(run_dir, name, settings, once=once) for name, settings in trackers.items()]
    threads = [
        threading.Thread(target=forwarder.run, args=(stop,), name=forwarder.name, daemon=True)
        for forwarder in forwarders
    ]
    for thread in threads:
        thread.start()

    def is_given_up(forwarder: Forwarder) -> bool:
        patience = max(linger, slowest_call) if forwarder.is_waiting_for_tracker else linger
        return time.monotonic() - forwarder.last_progress > patience

    next_beat = 0.0
    while any(thread.is_alive() for thread in threads) and not stop.is_set():
        if time.monotonic() >= next_beat:
            next_beat = time.monotonic() + HEARTBEAT_SECONDS
            for forwarder in forwarders:
                forwarder.beat()
        if progress is not None:
            progress()
        waiting = [forwarder for forwarder in forwarders if not forwarder.is_over]
        recorder = read_holder(run_dir)
        if holder is not None and recorder is not None and recorder.token != holder:
            break
        has_ended = once or recorder is None or not recorder.is_live
        if has_ended and waiting and all(is_given_up(forwarder) for forwarder in waiting):
            break
        for thread in threads:
            thread.join(timeout=WATCH_SECONDS / len(threads))
    stop.set()
    deadline = time.monotonic() + PART_SECONDS
    for forwarder, thread in zip(forwarders, threads, strict=True):
        thread.join(timeout=max(0.0, deadline - time.monotonic()))
        if not thread.is_alive():  # a hanging thread may still write: it keeps its lock until this process ends
            forwarder.let_go()
    return all(forwarder.is_over for forwarder in forwarders)


def run_facts(run_dir: RunDir) -> RunFacts:
    """The facts about a run that its trackers get."""
    info = read_info(run_dir)
    config = {key: value for key, value in read_config(run_dir).items() if key != "rlvitals"}
    attempts = tuple(read_attempts(run_dir))
    return RunFacts(run_dir.root, info.id, info.name, info.algorithm, config, attempts, info.framework)
