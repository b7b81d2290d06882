"""Sends the findings of a run to one target: reads the health log, respects the limit, and sends nothing twice.

Each target has its own courier, thread and outbox, so a slow or failing service does not delay the others. The outbox
advances past a line of the health log once the service has accepted the message or the finding is held back. After an
outage, a restart or a kill the courier continues from there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlvitals.errors import ConfigError, RlvitalsError, RunLocked
from rlvitals.guard import Once, guarded
from rlvitals.health.history import alarm_key
from rlvitals.masking import mask_text
from rlvitals.notify.briefer import Briefer
from rlvitals.notify.messages import Message, Standing, about_finding, about_held, about_recovery, key_of, link_of
from rlvitals.notify.service import SendOutcome, Service
from rlvitals.notify.targets import Target, open_service, secrets_of, targets_of
from rlvitals.records import SEVERITIES, Finding, HealthEvent, Severity
from rlvitals.store.cards import read_info
from rlvitals.store.files import make_folder
from rlvitals.store.findings import event_of
from rlvitals.store.follower_state import FollowerStage
from rlvitals.store.layout import RunDir
from rlvitals.store.lock import HEARTBEAT_SECONDS, RunLock, read_holder
from rlvitals.store.outbox import HeldBack, Outbox, SentMessage, outbox_place, read_outbox, write_outbox
from rlvitals.store.reader import read_batch
from rlvitals.store.tail import file_size
from rlvitals.terminal import logger, plural

HOUR = 3600.0
POLL_SECONDS = 1.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
GRACE_SECONDS = 3.0
"""How long a run that has ended may still write its last findings."""

LINGER_SECONDS = 600.0
"""How long a courier keeps trying after the run has ended if nothing can be sent."""

MOST_KEPT = 200
MOST_HELD = 100
"""Largest number of sent messages and of held findings in an outbox. Beyond it, the oldest sent messages are forgotten,
and further held findings are only counted."""

LOST_SECONDS = 60.0
"""How long to wait for a directory that was deleted: a live trainer creates it again."""

WATCH_SECONDS = 0.2
_OF_ATTEMPT = "attempt "


class NotNow(Exception):
    """The service did not accept a message; try again after `wait` seconds, or after a pause."""

    def __init__(self, wait: float | None) -> None:
        super().__init__()
        self.wait = wait


class Courier:
    """The position of one target in the health log."""

    def __init__(self, run_dir: RunDir, target: Target, start: int = 0, briefer: Briefer | None = None) -> None:
        """`start`: the offset in the health log at which a new target begins. `briefer`: shared with the other couriers
        of the run.
        """
        self.target = target
        self.is_over = False
        """True when the run has ended and everything is sent."""
        self.waits_for_limit = False
        self.last_progress = time.monotonic()
        self._dir = run_dir
        self._briefer = briefer or Briefer(run_dir, [target])
        self._lock = RunLock(outbox_place(run_dir, target.name))
        self._has_lock = False
        self._next_beat = 0.0
        self._outbox = Outbox(target.name, offset=start)
        self._service: Service | None = None
        self._is_bare = False
        """Whether the current message is sent without its chart, because the service refused it with one."""
        self._quiet_since = time.monotonic()
        self._warn_once = Once()

    def run(self, stop: threading.Event, ended: threading.Event) -> None:
        """Send until `stop` is set, or until the run has ended (`ended` is set) and everything is sent."""
        pause = FIRST_PAUSE
        while not stop.is_set() and not self.is_over:
            wait: float | None = POLL_SECONDS
            with guarded(self._failed):
                try:
                    wait = 0.0 if self.advance() else POLL_SECONDS
                    pause = FIRST_PAUSE
                    if wait and ended.is_set():
                        self._finish()
                except NotNow as not_now:
                    pause, wait = min(pause * 2, LONGEST_PAUSE), max(pause, not_now.wait or 0.0)
                except RunLocked:  # another follower has the lock; it may end
                    self._has_lock = False
            if wait and not self.is_over:
                self._rest(stop, wait)
        self.let_go()

    def advance(self) -> bool:
        """Process one line of the health log, or send a digest; False if there is nothing to do now. Raises NotNow if
        the service did not accept a message, and RunLocked if another process holds the outbox.
        """
        self._take_lock()
        held = self._outbox.held
        if held and self._may_send(max((one.severity for one in held), key=SEVERITIES.index)):
            self._send_digest()
            return True
        lines, after = read_batch(self._dir.findings, self._outbox.offset, 1)
        if not lines:
            return False
        self._quiet_since = time.monotonic()
        event = event_of(lines[0]) if lines[0] else None
        if event is not None and event.finding is not None:
            self._take_finding(event, event.finding)
        elif event is not None and event.type == "recovered":
            self._take_recovery(_alarm_of(event), event)
        elif event is not None and event.type == "monitor":
            for alarm in self._outlived(event.attempt):
                self._take_recovery(alarm, event)
        self._outbox.offset = after
        self._save("following")
        self.last_progress = time.monotonic()
        return True

    def send_all(self) -> None:
        """Send everything, including a digest of held findings. Raises NotNow and RunLocked."""
        try:
            while self.advance():
                pass
            if self._outbox.held:
                self._send_digest()
                self._save("following")
        finally:
            self.let_go()

    def beat(self) -> None:
        """Show that the target has a live courier."""
        if self._has_lock and time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + HEARTBEAT_SECONDS
            with contextlib.suppress(OSError):
                self._lock.beat()

    def let_go(self) -> None:
        """Release the outbox's lock."""
        if self._has_lock:
            self._has_lock = False
            self._lock.release()

    def _rest(self, stop: threading.Event, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not stop.is_set():
            self.beat()
            stop.wait(min(left, HEARTBEAT_SECONDS))

    def _take_lock(self) -> None:
        """Lock the outbox and read it. Raises RunLocked if another process holds it."""
        if self._has_lock and not self._lock.is_ours():
            self._has_lock = False
        if not self._has_lock:
            make_folder(self._dir.notify, above=False)
            self._lock.acquire()
            self._has_lock = True
            known = read_outbox(self._dir, self.target.name)
            self._outbox = self._outbox if known is None else known
        size = file_size(self._dir.findings)
        if size is not None and size < self._outbox.offset:
            self._outbox.offset = size  # truncated or replaced: old findings are not sent again
        self.beat()

    def _take_finding(self, event: HealthEvent, finding: Finding) -> None:
        if SEVERITIES.index(finding.severity) < SEVERITIES.index(self.target.on):
            return
        alarm = _alarm_of(event)
        sent = self._message_about(alarm)
        if not self._may_send(finding.severity):
            self._hold(alarm, finding)
            return
        key = sent.key if sent else key_of(self._run_id, alarm, str(event.attempt), str(event.step))
        message = about_finding(
            self._run_name, key, finding, self._standing(finding.metrics), is_escalated=event.type == "escalated",
            timestamp=_time_of(event), link=self._link,
        )  # fmt: skip
        reference = self._deliver(message, sent.reference if sent else "")
        if sent is None:
            sent = SentMessage(key, [alarm])
            self._outbox.told = [*self._outbox.told, sent][-MOST_KEPT:]
        sent.title, sent.severity, sent.reference = message.title, finding.severity, reference or sent.reference

    def _outlived(self, attempt: int) -> list[str]:
        """The clock's alarms of earlier attempts. They are over, because the run continues."""
        known = [
            *(alarm for sent in self._outbox.told for alarm in sent.alarms),
            *(one.alarm for one in self._outbox.held),
        ]
        return [alarm for alarm in dict.fromkeys(known) if 0 < _attempt_in(alarm) < attempt]

    def _take_recovery(self, alarm: str, event: HealthEvent) -> None:
        for one in self._outbox.held:
            if one.alarm == alarm and one.recovered_step is None:
                one.recovered_step = event.step
        for sent in [sent for sent in self._outbox.told if alarm in sent.alarms]:
            if len(sent.alarms) > 1:  # other alarms of the message are still active
                sent.alarms.remove(alarm)
                continue
            if self._open().recovers_quietly or self._may_send("info"):
                message = about_recovery(
                    self._run_name, sent, event.step, self._standing(()), timestamp=_time_of(event), link=self._link
                )
                self._deliver(message, sent.reference)
            else:
                self._hold_recovery(alarm, sent, event.step)
            self._outbox.told.remove(sent)

    def _may_send(self, severity: Severity) -> bool:
        """Whether the limit allows a message. If it is above 1, the last message of an hour is reserved for critical
        findings.
        """
        now = time.time()
        self._outbox.sent_at = [then for then in self._outbox.sent_at if abs(now - then) < HOUR]
        kept = 1 if severity != "critical" and self.target.per_hour > 1 else 0
        return self.target.per_hour - len(self._outbox.sent_at) > kept

    def _hold(self, alarm: str, finding: Finding) -> None:
        held = self._outbox.held
        same = next((one for one in held if one.alarm == alarm and one.recovered_step is None), None)
        if same is not None:  # it became more severe while it was held back
            same.severity, same.title = finding.severity, finding.title
        elif len(held) < MOST_HELD:
            held.append(HeldBack(alarm, finding.severity, finding.step, finding.title))
        else:
            self._outbox.held_more += 1

    def _hold_recovery(self, alarm: str, sent: SentMessage, step: int) -> None:
        if any(one.alarm == alarm for one in self._outbox.held):
            return
        if len(self._outbox.held) < MOST_HELD:
            self._outbox.held.append(HeldBack(alarm, "info", step, sent.title, step, is_known=True))
        else:
            self._outbox.held_more += 1

    def _send_digest(self) -> None:
        outbox = self._outbox
        standing_alarms = [one.alarm for one in outbox.held if one.recovered_step is None]
        first = outbox.held[0]
        key = key_of(self._run_id, "digest", first.alarm, str(first.step), str(outbox.offset))
        message = about_held(
            self._run_name, key, outbox.held, self._standing(()), more=outbox.held_more,
            per_hour=self.target.per_hour, link=self._link,
        )  # fmt: skip
        reference = self._deliver(message, "")
        if standing_alarms:
            title = f"{plural(len(standing_alarms), 'finding')} of an earlier digest"
            sent = SentMessage(key, standing_alarms, title, message.severity, reference)
            outbox.told = [*outbox.told, sent][-MOST_KEPT:]
        outbox.held, outbox.held_more = [], 0
        self._save("following")

    def _finish(self) -> None:
        """Send held findings and finish, after the run has ended and the health log is read."""
        if time.monotonic() - self._quiet_since < GRACE_SECONDS:
            return
        outbox = self._outbox
        self.waits_for_limit = False
        if outbox.held:
            # The job's container may end at any moment, so the last digest does not wait. A job that restarts again
            # and again sends at most one such digest per hour.
            if abs(time.time() - outbox.last_words_at) < HOUR:
                self.waits_for_limit = True
                return
            self._send_digest()
            outbox.last_words_at = round(time.time(), 3)
        self._save("done")
        self.is_over = True

    def _deliver(self, message: Message, reference: str) -> str:
        """Send one message; returns its id at the service. Raises NotNow."""
        service, outbox = self._open(), self._outbox
        mark = f"{message.key} {message.kind} {message.severity}"
        was_on_its_way = outbox.sending == mark
        outbox.sending = mark
        self._save(outbox.state, outbox.error)
        shown = None if self._is_bare or not service.takes_pictures else message.picture
        is_repeat = was_on_its_way and not service.knows_repeats
        outcome = service.send(replace(message, is_repeat=is_repeat, picture=shown), reference)
        if outcome.fate == "refused" and shown is not None:
            self._is_bare = True
            outcome = service.send(replace(message, is_repeat=is_repeat, picture=None), reference)
        if outcome.fate == "later":
            if not outcome.is_doubtful and not was_on_its_way:
                outbox.sending = ""
            self._report_problem(outcome)
            raise NotNow(outcome.retry_after)
        self._is_bare = False
        outbox.sending = ""
        if outcome.fate == "refused":
            outbox.refused += 1
            logger.warning("%s refused a notification: %s", self.target.name, self._masked(outcome.problem))
            return ""
        outbox.sent += 1
        if message.kind != "recovered" or not service.recovers_quietly:
            outbox.sent_at.append(round(time.time(), 3))
        self.last_progress = time.monotonic()
        return outcome.reference

    def _report_problem(self, outcome: SendOutcome) -> None:
        reason = self._masked(outcome.problem)
        self._warn_once(f"{self.target.name} did not accept a notification: {reason}; retrying")
        self._save("failing", reason)

    def _failed(self, error: Exception) -> None:
        """Report a failure of the courier; the only place where they are caught. The text of foreign errors is not
        shown, because it may contain secrets.
        """
        reason = self._masked(str(error)) if isinstance(error, RlvitalsError | OSError) else type(error).__name__
        self._warn_once(f"notifications to {self.target.name}: {reason}")
        if self._has_lock:
            with contextlib.suppress(OSError, RunLocked):
                self._save("failing", reason)

    def _save(self, state: FollowerStage, error: str = "") -> None:
        outbox = self._outbox
        outbox.enter(state, error)
        if not self._lock.is_ours():
            self._has_lock = False
            raise RunLocked(f"another process now owns the outbox of {self.target.name}")
        write_outbox(self._dir, outbox)

    def _open(self) -> Service:
        if self._service is None:
            self._service = open_service(self.target)
        return self._service

    def _masked(self, text: str) -> str:
        with contextlib.suppress(ConfigError):
            for value in sorted(secrets_of(self.target).values(), key=len, reverse=True):
                text = text.replace(value, "***") if len(value) > 3 else text
        return mask_text(text)[:500]

    def _message_about(self, alarm: str) -> SentMessage | None:
        return next((sent for sent in reversed(self._outbox.told) if alarm in sent.alarms), None)

    def _standing(self, metrics: tuple[str, ...]) -> Standing:
        standing = self._briefer.ask(metrics)
        return standing if self.target.picture else replace(standing, picture=None)

    @property
    def _run_name(self) -> str:
        return read_info(self._dir).name

    @property
    def _run_id(self) -> str:
        return read_info(self._dir).id

    @property
    def _link(self) -> str:
        return link_of(self.target.link, self._dir.root.name)


def unsent(run_dir: RunDir, target: Target, start: int = 0) -> int:
    """The number of findings that were not sent to a target yet."""
    outbox = read_outbox(run_dir, target.name) or Outbox(target.name, offset=start)
    lines, _ = read_batch(run_dir.findings, outbox.offset, 10_000)
    least = SEVERITIES.index(target.on)
    findings = [event.finding for line in lines if line and (event := event_of(line)) is not None]
    waiting = sum(found is not None and SEVERITIES.index(found.severity) >= least for found in findings)
    return waiting + len(outbox.held) + outbox.held_more


def _alarm_of(event: HealthEvent) -> str:
    """The alarm of an event. An alarm of the clock (a stall, an exited process) belongs to one attempt."""
    alarm = alarm_key(event)
    return f"{_OF_ATTEMPT}{event.attempt}: {alarm}" if event.seen_in == "clock" else alarm


def _attempt_in(alarm: str) -> int:
    """The attempt to which an alarm belongs; 0 if it is not limited to one attempt."""
    number = alarm.removeprefix(_OF_ATTEMPT).partition(":")[0] if alarm.startswith(_OF_ATTEMPT) else ""
    return int(number) if number.isdecimal() else 0


def _time_of(event: HealthEvent) -> float:
    return event.timestamp if event.timestamp > 0 else time.time()


class Couriers:
    """All couriers of a run, each in a separate thread. Nothing here raises."""

    def __init__(self, run_dir: RunDir, notify: Mapping[str, Any], start: int, holder: str | None) -> None:
        """`notify`: see `config.Settings.notify`. `start`: see `Courier`. `holder`: the token of the run's lock. If the
        lock has another token, a new attempt has started with its own couriers.
        """
        self._dir, self._holder = run_dir, holder
        targets = targets_of(notify)
        briefer = Briefer(run_dir, targets)
        self._couriers = [Courier(run_dir, target, start, briefer) for target in targets]
        self._stop, self._ended = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=courier.run, args=(self._stop, self._ended), name=courier.target.name, daemon=True)
            for courier in self._couriers
        ]
        for thread in self._threads:
            thread.start()

    def finish(self, stop: threading.Event | None = None) -> bool:
        """Continue until the run has ended and everything is sent, or until nothing could be sent for too long. Returns
        whether everything is sent.
        """
        stop = stop or threading.Event()
        ended_at = None
        seen_at = time.monotonic()
        while any(thread.is_alive() for thread in self._threads) and not stop.is_set():
            seen_at = time.monotonic() if self._dir.root.exists() else seen_at
            if time.monotonic() - seen_at > LOST_SECONDS:
                break
            recorder = read_holder(self._dir)
            if recorder is not None and self._holder is not None and recorder.token != self._holder:
                break
            if recorder is None or not recorder.is_live:
                self._ended.set()
                ended_at = ended_at or time.monotonic()
                waiting = [courier for courier in self._couriers if not courier.is_over]
                if waiting and all(_is_hopeless(courier, ended_at) for courier in waiting):
                    break
            time.sleep(WATCH_SECONDS)
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=1.0)
        for courier, thread in zip(self._couriers, self._threads, strict=True):
            if not thread.is_alive():
                courier.let_go()
        return all(courier.is_over for courier in self._couriers)


def _is_hopeless(courier: Courier, ended_at: float) -> bool:
    patience = HOUR + LINGER_SECONDS if courier.waits_for_limit else LINGER_SECONDS
    return time.monotonic() - max(courier.last_progress, ended_at) > patience
