"""The monitor of a run that is being recorded: it reads rows, records and reports health events, and keeps requests for
the trainer.

The monitor is created at the first row, only on rank 0, and reads a row after the row is durable. The monitor of a
resumed run first reads the rows of the run's current line. That takes seconds, so a thread does it. Rows that are
logged meanwhile wait in a backlog and are judged afterwards, in order. Nothing here raises: a monitor that fails is
disabled with one warning.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvitals.capture.live_card import LiveCard
from rlvitals.capture.notices import Notices
from rlvitals.capture.text_scans import TextScans
from rlvitals.capture.token_checks import TokenChecks
from rlvitals.codec import NONFINITE, read_nonfinite
from rlvitals.config import Settings, by_last_name, with_secrets
from rlvitals.guard import guarded, value_or, words_of
from rlvitals.health.history import (
    NOT_MONITORED,
    History,
    by_gravity,
    is_standing,
    recorded_verdict,
    recovery,
    verdict_of,
    was_monitored_before,
    with_stop,
)
from rlvitals.health.rows import RowReader, is_set_back, rows_of_run
from rlvitals.masking import mask_text
from rlvitals.records import (
    Answer,
    Attempt,
    Fields,
    Finding,
    Group,
    HealthEvent,
    HealthEventType,
    OpenPhase,
    Request,
    RunInfo,
    SeenIn,
    Status,
    Verdict,
)
from rlvitals.store.asks import Ask, PendingAsks
from rlvitals.store.cards import read_attempts, read_config
from rlvitals.store.checkpoints import of_this_run
from rlvitals.store.files import put_file
from rlvitals.store.findings import answer_facts, event_line, read_events, request_facts
from rlvitals.store.layout import RunDir, Stream
from rlvitals.store.lines import MOMENTS
from rlvitals.store.past import LivingLine, living_line, past_before
from rlvitals.store.process import renew_after_fork
from rlvitals.store.reader import last_row
from rlvitals.terminal import logger

if TYPE_CHECKING:
    from rlvitals.catalog import Reader
    from rlvitals.health.actions import Policy
    from rlvitals.health.monitor import Monitor
    from rlvitals.health.notify import Notifier


MOST_UNWRITTEN = 1000

SETTLE_SECONDS = 30.0
"""How long `Run.finish` and `Run.findings` wait for a monitor that is still reading the past."""

SLICE = 20
"""How many rows of the backlog are judged each time the run's lock is taken. They take 3 ms."""


def check_rules(settings: Settings) -> None:
    """Raise RuleError for invalid rules, ConfigError for a mapping to an unknown concept. Called at the start, before
    anything is written.
    """
    if settings.monitor and (settings.rules is not None or settings.mapping):
        from rlvitals.health.monitor import Monitor

        Monitor(rules=settings.rules, mapping=settings.mapping)


def check_scanners(settings: Settings) -> None:
    """Raise ConfigError for invalid scanners. Called at the start, before anything is written."""
    if settings.scanners:
        from rlvitals.scan import load_scanners

        load_scanners(*settings.scanners)


def kept_rules(rules: str | tuple[Any, ...] | None) -> str | tuple[Any, ...] | None:
    """The same rules, with the entries of a rule file in its place: the run's settings record them, so that whoever
    judges the run again reads the same rules and opens no file that they name.
    """
    if rules is None:
        return None
    from rlvitals.health.rulebook import DEFAULT, entries_in, presets

    def is_file(rule: Any) -> bool:
        return isinstance(rule, str) and rule != DEFAULT and rule not in presets() and Path(rule).is_file()

    if isinstance(rules, str):
        return tuple(entries_in(rules)) if is_file(rules) else rules
    return tuple(entry for rule in rules for entry in (entries_in(rule) if is_file(rule) else [rule]))


class LiveMonitor:
    """The monitor of one recording process."""

    def __init__(
        self,
        run_dir: RunDir,
        settings: Settings,
        info: RunInfo,
        attempt: Attempt,
        *,
        rank: int,
        lock: AbstractContextManager[Any],
        append: Callable[[bytes], bool],
    ) -> None:
        """`append` writes a line to `logs/findings.jsonl`; if it returns False, the line is tried again later. `lock`
        is the run's own lock: callers of `look` and `tick` hold it.
        """
        self.is_on = self._is_meant_to_be_on = settings.monitor and rank == 0
        """False: calling `look` does nothing."""
        self._dir, self._settings, self._info, self._attempt = run_dir, settings, info, attempt
        self._lock, self._append = lock, append
        renew_after_fork(self, "_lock")
        self._is_ours = True
        """False in a forked child, which must not answer for the run's process."""
        self._history = History()
        self._reader = RowReader()
        self._monitor: Monitor | None = None
        self._has_started = False
        self._reads_metrics: bool | None = None
        """Whether a rule reads one of the run's metrics, as it was recorded last. None: nothing was recorded yet."""
        self._policy: Policy | None = None
        self._notifier: Notifier | None = None
        self._notices = Notices(settings.display, str(run_dir.root))
        self._standing_epochs: frozenset[str] = frozenset()
        self._checkpoint_dir: RunDir = run_dir
        self._strangers_until = 0.0
        """Checkpoints saved before this time belong to another training."""
        self._cuts: list[tuple[int, float]] = []  # (first superseded step, time of the resume)
        self._answered: set[int] = set()
        self._asks = PendingAsks(run_dir)
        self._unwritten: deque[bytes] = deque(maxlen=MOST_UNWRITTEN)
        self._step = 0
        self._problems_reported = 0
        self._is_busy = False
        self._tokens = TokenChecks(info, settings, lambda: (self._monitor or self._open_monitor()).rulebook)
        self._texts = TextScans(lambda: (self._monitor or self._open_monitor()).rulebook, settings.scanners)
        self._backlog: deque[Callable[[], None]] | None = None  # None: new rows are judged at once
        self._first: tuple[Stream, int] | None = None
        """The first row of a resumed attempt, if it is an evaluation, until the past is read."""
        self._has_read_past = threading.Event()

    @property
    def findings(self) -> list[Finding]:
        """The findings of the run's current line in order, including those of earlier attempts. Waits for the rows in
        the backlog.
        """
        if self._waits_for_its_first_row:
            return History(self._recorded_before(living_line(self._dir))).findings
        self.settle()
        with self._lock:
            return self._history.findings

    @property
    def verdict(self) -> tuple[Verdict, str]:
        """The verdict on the run, and its reason."""
        if not self._has_started and not self._is_meant_to_be_on:
            return "cannot judge", "the run is not monitored"
        if self._waits_for_its_first_row:
            line = living_line(self._dir)
            steps = list(line.steps())
            found = recorded_verdict(
                self._recorded_before(line), line.attempts, len(steps), max(steps, default=None),
                was_monitored=lambda: was_monitored_before(self._info, lambda: read_config(self._dir)),
            )  # fmt: skip
            return found or ("cannot judge", NOT_MONITORED)
        findings = self.findings
        reads_metrics = self._reads_metrics is not False
        return verdict_of(findings, self._reader.rows, self._reader.last_step, reads_metrics=reads_metrics)

    @property
    def _waits_for_its_first_row(self) -> bool:
        """Whether the run was resumed and no row came since. Where it continues is then unknown, so the record of the
        attempts before counts.
        """
        return not self._has_started and self._attempt.number > 1

    def _recorded_before(self, line: LivingLine) -> list[HealthEvent]:
        return with_stop(line.events(), self._attempt.number, None, math.nan)

    @property
    def names(self) -> Reader:
        """Reads the run's names as the monitor does, or by the run's settings if it is not monitored."""
        from rlvitals import catalog

        if self._monitor is not None:
            return self._monitor.case.reader
        return catalog.reader(self._info.framework, self._info.algorithm)

    def look(self, step: int, metrics: Mapping[str, Any], now: float, stream: Stream = "train") -> None:
        """Judge a row as it was written, or add it to the backlog. The caller holds the run's lock."""
        if not self.is_on or self._is_busy:  # busy: a signal handler logs while the monitor is working
            return
        if stream == "train" and self._tokens.is_used:
            self._tokens.take_row(step, _numbers(metrics), now)
        if not self._has_started:
            self._has_started = True
            if self._attempt.number > 1:
                self._backlog, self._first = deque(), (stream, step)
        if self._first is not None and stream == "train":  # it shows where the attempt continues; an evaluation may not
            self._first = None
            self._begin_reading_past(stream, step)
        if self._backlog is None:
            self._guarded(partial(self._judge, step, metrics, now, stream))
            return
        self._backlog.append(partial(self._judge, step, dict(metrics), now, stream))
        if self._has_read_past.is_set():
            self._work_off(SLICE)  # else a loop that logs faster than the thread judges would let the backlog grow

    def take_sample(self, sample: Mapping[str, float]) -> None:
        """Take a sample of the machine; the monitor reads it together with the next row."""
        if self.is_on:
            with self._lock:
                if self._backlog is None:
                    self._reader.add_sample(sample)
                else:
                    self._backlog.append(partial(self._reader.add_sample, dict(sample)))

    def tick(self, now: float, open_phases: Sequence[OpenPhase] = (), *, has_clock: bool = False) -> None:
        """Check for stalls: pass the time and the trainer's open phases to the monitor. The caller holds the run's
        lock.

        `has_clock`: a process beside the trainer records stalls and sends notifications; here they are only shown.
        """
        if self._backlog is not None or not self.is_on or self._is_busy or not (self._monitor or open_phases):
            return
        self._guarded(partial(self._tick, now, open_phases, has_clock))

    def _tick(self, now: float, open_phases: Sequence[OpenPhase], has_clock: bool) -> None:
        monitor = self._monitor or self._open_monitor()  # a phase may hang before the first row
        monitor.tick(now, open_phases=open_phases)
        for event in monitor.events:
            self._take([event], now, seen_in="clock", is_reported_elsewhere=has_clock and self._is_outside(event.rule))
        self._write()

    def take_from_epochs(self, found: list[Finding], standing: Iterable[str], now: float) -> None:
        """Take the findings of an epoch tracker, and the names of its rules in alarm. The caller holds the run's
        lock.
        """
        if self._is_busy:
            return
        before, self._standing_epochs = self._standing_epochs, frozenset(standing)
        over = [HealthEvent("recovered", self._step, facts={"rule": rule}) for rule in before - self._standing_epochs]
        events = [*over, *(HealthEvent("raised", finding.step, finding=finding) for finding in found)]
        if not events or not self.is_on:
            return
        take = partial(self._take, events, now, seen_in="epochs")
        if self._backlog is not None:
            self._backlog.append(take)
        else:
            self._guarded(take)

    def take_groups(self, groups: Sequence[Group], step: int) -> None:
        """Take the recorded rollouts of a step. `recheck` later compares their tokens with the step's row and scans
        their texts.
        """
        if self.is_on:
            with self._lock:
                self._texts.take_groups(groups, step, time.time())
        if self.is_on and any(rollout.trace for group in groups for rollout in group.rollouts):
            with self._lock:
                if not self._tokens.is_used and (row := last_row(self._dir.train_log)) is not None:
                    self._tokens.take_row(row.step, row.numbers, row.timestamp)  # rollouts may come after their row
                self._tokens.take_groups(groups, step)

    def relieve(self) -> None:
        """Check waiting rollouts now if there are too many. The caller does not hold the run's lock."""
        if self._tokens.is_used and self._tokens.is_full:
            self.recheck()

    def recheck(self, *, is_last: bool = False) -> None:
        """Recompute metrics from recorded tokens, compare them with the logged ones, and scan texts. This is slow, so
        the caller must not hold the run's lock. `is_last`: no further row will come.
        """
        if not self.is_on:
            return
        if self._tokens.is_used:
            with guarded(self._tokens.give_up):
                self._take_all(self._tokens.checked(self._lock, is_last=is_last), "tokens")
        if self._texts.is_used:
            with guarded(self._texts.give_up):
                self._take_all(self._texts.scanned(self._lock), "texts")

    def _take_all(self, found: Iterable[tuple[float, list[HealthEvent]]], seen_in: SeenIn) -> None:
        for now, events in found:
            with self._lock:
                if self.is_on and not self._is_busy:
                    self._guarded(partial(self._take, events, now, seen_in=seen_in))

    def request(self, *, everywhere: bool = True) -> Request | None:
        """The open request. Under torch.distributed all ranks must call this; each gets rank 0's (`Run.request`)."""
        if self._settings.actions == "advise" or not self._is_ours:
            return None
        request = None
        with self._lock:
            if self._policy is not None and self.is_on and self._backlog is None:
                with guarded(self._put_aside):
                    self._take_asks(self._policy)
                request = self._policy.hand_over()
        request = replace(request, answer=self._take_answer) if request is not None else None
        if not everywhere:
            return request
        from rlvitals.capture.actions import shared_request

        return value_or(None, shared_request, request, handle=_cannot_share)

    def settle(self) -> None:
        """Judge everything that was logged so far. Waits while the past of a resumed run is being read."""
        self._settle_past()
        self.recheck()

    def _settle_past(self) -> None:
        if self._backlog is None or not self.is_on:
            return
        with self._lock:
            first, self._first = self._first, None
        if first is not None:  # no training row came
            self._begin_reading_past(*first)
        self._has_read_past.wait(SETTLE_SECONDS)
        with self._lock:
            if self._backlog is None:
                return
            if self._has_read_past.is_set():
                self._work_off()
            else:
                logger.warning(
                    "the monitor still reads the past of %s after %.0f s; %d rows are not judged yet. 'rlvitals check' "
                    "judges the whole run",
                    self._dir.root,
                    SETTLE_SECONDS,
                    len(self._backlog),
                )

    def detach(self) -> None:
        """Do nothing from now on: this process is a forked child."""
        self.is_on = self._is_ours = False

    def show_in(self, card: LiveCard) -> None:
        """Show findings and the verdict on this card instead of on stderr."""
        self._notices.card = card

    def take_last_rows(self) -> None:
        """Judge the row whose step may have continued: no row follows. The caller holds the run's lock."""
        if self.is_on and self._backlog is None and (rows := self._reader.flush()):
            self._guarded(lambda: self._look_at(rows, time.time()))

    def close(self, status: Status = "finished") -> None:
        """Report the verdict. Waits briefly for notifications that are being sent."""
        self.settle()
        with self._lock:
            if self.is_on and self._backlog is None and self._reader.rows:
                self._guarded(lambda: self._notices.print_verdict(*self.verdict, by_gravity(self.findings), status))
        self.is_on = False
        self._write()
        if self._unwritten:
            logger.warning("%d lines could not be written to %s", len(self._unwritten), self._dir.findings)
        if self._notifier is not None:
            self._notifier.close()

    def _open_monitor(self) -> Monitor:
        from rlvitals.health.monitor import Monitor

        monitor = Monitor(
            algorithm=self._info.algorithm,
            framework=self._info.framework,
            total_steps=self._info.total_steps,
            config=by_last_name(self._settings.config),
            rules=self._settings.rules,
            mapping=self._settings.mapping,
        )
        if self._settings.actions != "advise":
            from rlvitals.health.actions import Policy

            certain = {rule.rule for rule in monitor.rulebook.rules.values() if rule.certain}
            self._policy = Policy(certain, asked=_requests_in(self._dir) if self._attempt.number > 1 else 0)
        if self._settings.notify:
            from rlvitals.health.notify import open_notifier

            self._notifier = open_notifier(self._info.name, self._settings.notify, logger.warning, put_file=put_file)
        monitor.case.step = self._attempt.from_step or 0  # until the first row
        self._monitor = monitor
        return monitor

    def _is_outside(self, rule: str) -> bool:
        """Whether the process beside the trainer applies the same rule."""
        from rlvitals.health.rules import OUTSIDE

        known = self._monitor.rulebook.rules.get(rule) if self._monitor is not None else None
        return known is not None and known.function in OUTSIDE

    def _judge(self, step: int, metrics: Mapping[str, Any], now: float, stream: Stream) -> None:
        """Pass one row to the monitor."""
        self._look_at(self._reader.take(stream, step, now, _numbers(metrics)), now)

    def _look_at(self, rows: Iterable[Fields], now: float) -> None:
        monitor = self._monitor or self._open_monitor()
        for row in rows:
            self._step = row["step"]
            monitor.update(row)
            if bool(monitor.case.signals) is not self._reads_metrics:
                self._announce(now)
            if monitor.events or self._policy is not None:
                self._take(monitor.events, row.get("timestamp", time.time()))
        if len(monitor.problems) != self._problems_reported:
            self._report_problems(monitor)

    def _announce(self, now: float) -> None:
        """Record that this attempt is monitored, and whether a rule reads one of its metrics. Without alarms, this is
        the only line in its health log.
        """
        self._reads_metrics = self._monitor is not None and bool(self._monitor.case.signals)
        facts: dict[str, Any] = {"is_on": True, "reads_texts": True, "reads_metrics": self._reads_metrics}
        if self._settings.actions != "advise":
            facts["takes_requests"] = True
        self._write(self._line("monitor", facts, now))

    def _guarded(self, work: Callable[[], None]) -> None:
        """Call `work`, and disable the monitor if it fails. The caller holds the run's lock."""
        self._is_busy = True
        try:
            with guarded(self._put_aside):
                work()
        finally:  # `guarded` does not catch Ctrl-C
            self._is_busy = False

    def _begin_reading_past(self, stream: Stream, step: int) -> None:
        """Start a thread that reads the rows before this attempt's first row."""
        reading = threading.Thread(target=self._read_past, args=(stream, step), name="rlvitals-past", daemon=True)
        try:
            reading.start()
        except RuntimeError:  # the interpreter is ending, or the system has no thread left
            self._read_past(stream, step)

    def _read_past(self, stream: Stream, step: int) -> None:
        with guarded(self._put_aside):
            self._catch_up(stream, step)
        self._has_read_past.set()
        while self._backlog is not None:
            with self._lock:
                self._work_off(SLICE)
            time.sleep(0)  # without a pause, no other thread would get the lock

    def _work_off(self, most: int | None = None) -> None:
        """Judge all rows of the backlog, or at most `most`. When it is empty, the backlog ends. The caller holds the
        run's lock.
        """
        backlog = self._backlog
        if backlog is None or self._is_busy:
            return
        for _ in range(len(backlog) if most is None else min(most, len(backlog))):
            work = backlog.popleft()
            if self.is_on:
                self._guarded(work)
        if not backlog:
            self._backlog = None

    def _catch_up(self, stream: Stream, step: int) -> None:
        """Let the monitor of a resumed run read its past, without repeating events that are already recorded.

        Runs in a thread without the run's lock, because a caller that waits for the thread may hold the lock. Until
        the backlog ends, nothing else uses the monitor.
        """
        monitor = self._monitor or self._open_monitor()
        past = past_before(self._dir, self._attempt.number, stream, step)
        start_times = {attempt.number: attempt.started for attempt in read_attempts(self._dir)}
        self._cuts = [(cut, start_times.get(number, 0.0)) for number, cut in past.lineage.cuts.items()]
        if past.has_gap:
            logger.info("the monitor skips rows in the middle of the run's history")
        events = read_events(self._dir)
        is_ghost = past.lineage.is_abandoned
        known = [event for event in events if not is_ghost(event.attempt, event.step)]
        streams: tuple[Stream, ...] = ("train", "eval")
        set_back = is_set_back(*((row.timestamp for row in past.rows(stream)) for stream in streams))
        logs = (past.rows("train"), past.rows("eval"), past.rows("system"))

        def read() -> Iterator[Fields]:
            yield from rows_of_run(*logs, reader=self._reader, is_set_back=set_back)
            yield from self._reader.flush()  # this attempt adds nothing to a step of an earlier one

        for row in read():
            self._step = row["step"]
            monitor.update(row)
            time.sleep(0)  # a training loop that waits for the interpreter gets it at once, not after 5 ms
        standing = [finding for finding in monitor.findings if is_standing(finding)]
        before = History(event for event in known if event.seen_in == "rows")
        recorded = {(found.alarm, found.severity) for found in before.findings if is_standing(found)}
        if self._policy is not None:
            self._policy.stand(standing)
            self._policy.recall(events, past.lineage.cuts)
        # Alarms that were not recorded (the monitor was off, or the process died after the row) are reported now.
        missed = [
            HealthEvent("escalated" if finding.alarm in before.standing else "raised", finding.step, finding=finding)
            for finding in standing
            if (finding.alarm, finding.severity) not in recorded
        ]
        in_alarm = {finding.alarm for finding in standing}
        missed += [recovery(finding, self._step) for finding in before.open if finding.alarm not in in_alarm]
        if self._backlog is not None:
            self._backlog.appendleft(partial(self._take_past, known, missed))

    def _take_past(self, known: list[HealthEvent], missed: list[HealthEvent]) -> None:
        for event in known:
            self._history.take(event)
        self._tokens.stand(History(event for event in known if event.seen_in == "tokens").standing)
        self._texts.stand(History(event for event in known if event.seen_in == "texts").standing)
        self._announce(time.time())
        self._take(missed, time.time())

    def _take(
        self, events: list[HealthEvent], now: float, *, seen_in: SeenIn = "rows", is_reported_elsewhere: bool = False
    ) -> None:
        """Record and report new events, and update the open request."""
        found = [event.finding for event in events if event.finding is not None]
        for event in events:
            placed = replace(event, timestamp=now, attempt=self._attempt.number, seen_in=seen_in)
            self._history.take(placed)
            if not is_reported_elsewhere:
                self._write(event_line(placed))
                if event.finding is not None and self._notifier is not None:
                    self._notifier.notify(event.finding)
            if event.finding is not None:
                self._show(event.finding)
        if self._policy is None or self._monitor is None or self._settings.actions != "act":
            return
        withdrawn = self._policy.recover(
            {*self._monitor.case.raised, *self._standing_epochs, *self._tokens.standing, *self._texts.standing}
        )
        if withdrawn is not None:
            self._record_answer(withdrawn, "withdrawn", "it has recovered", now)
        if not found:
            return
        earlier = self._policy.open
        request = self._policy.consider(found, self._checkpoints)
        if request is not None:
            if earlier is not None:
                self._record_answer(earlier, "replaced", f"by request {request.number}: {request.action}", now)
            self._write(self._line("request", request_facts(request), now))

    def _take_asks(self, policy: Policy) -> None:
        """Record the requests that people make from outside, and pass them to the policy."""
        for ask in self._asks.waiting():
            if ask.attempt == self._attempt.number:
                now, checkpoints = time.time(), self._checkpoints() if ask.action == "revert" else {}
                masked = replace(ask, why=mask_text(ask.why, with_secrets(self._settings)))
                request = policy.ask(_request_of(masked, self._step, checkpoints))
                self._write(self._line("request", request_facts(request) | {"ask": ask.id}, now))
                if ask.action == "revert" and request.checkpoint is None:
                    policy.settle(request, "declined")
                    there = ", ".join(f"checkpoint-{step}" for step in checkpoints) or "none"
                    self._record_answer(request, "declined", f"no such checkpoint; this run has: {there}", now)
            self._asks.remove(ask.id)

    def _show(self, finding: Finding) -> None:
        logger.info("%s at step %d: %s", finding.severity, finding.step, finding.title)
        self._notices.print_finding(finding)

    def look_for_checkpoints_in(self, folder: Path) -> None:
        """Set the folder where the trainer saves checkpoints. Those saved before the run belong to another training."""
        if folder != self._dir.root:
            self._checkpoint_dir, self._strangers_until = RunDir(folder), self._info.created

    def _checkpoints(self) -> dict[int, str]:
        """The checkpoints that a revert may restore."""
        found = of_this_run(self._checkpoint_dir.checkpoints(), self._cuts, self._strangers_until)
        return {step: str(path) for step, path in found.items()}

    def _take_answer(self, request: Request, answer: Answer, text: str) -> None:
        """Take the trainer's answer; only the first answer counts."""
        if not self._is_ours or self._policy is None:
            return
        with guarded(self._put_aside), self._lock:
            if request.number not in self._answered:
                self._policy.settle(request, answer, max([self._step, *self._checkpoints()]))
                self._record_answer(request, answer, mask_text(str(text), with_secrets(self._settings)), time.time())

    def _write(self, *lines: bytes) -> None:
        """Append lines, after earlier lines that could not be written."""
        self._unwritten.extend(lines)
        while self._unwritten and self._append(self._unwritten[0]):
            self._unwritten.popleft()

    def _record_answer(self, request: Request, answer: Answer, text: str, now: float) -> None:
        self._answered.add(request.number)
        self._write(self._line("answer", answer_facts(request, answer, text), now))

    def _line(self, kind: HealthEventType, facts: dict[str, Any], now: float) -> bytes:
        return event_line(HealthEvent(kind, self._step, now, self._attempt.number, facts=facts))

    def _report_problems(self, monitor: Monitor) -> None:
        for rule, problem in list(monitor.problems.items())[self._problems_reported :]:
            logger.warning("the health rule %s failed and is disabled: %s", rule, problem)
        self._problems_reported = len(monitor.problems)

    def _put_aside(self, error: Exception) -> None:
        self.is_on = False
        self._unwritten.append(self._line("monitor", {"is_on": False, "reason": words_of(error)}, time.time()))
        logger.warning("the monitor of %s is disabled, rows are still recorded: %s", self._dir.root, words_of(error))


def _request_of(ask: Ask, step: int, checkpoints: Mapping[int, str]) -> Request:
    """The request that the trainer gets for an ask. `checkpoints` are those that a revert may restore."""
    from rlvitals.health.actions import LR_FACTOR, PEOPLE, REVERT_FACTOR

    back_to = ask.checkpoint_step
    if ask.action == "revert" and back_to is None:
        back_to = max(checkpoints, default=None)
    factor = {"reduce_lr": LR_FACTOR, "revert": REVERT_FACTOR}.get(ask.action) if ask.factor is None else ask.factor
    reason = f"asked by {ask.asked_by}" + (f": {ask.why}" if ask.why else "")
    about = Finding(PEOPLE, "data", "info", step, step if back_to is None else back_to + 1, reason)
    folder = None if back_to is None else checkpoints.get(back_to)
    return Request(ask.action, reason, about, folder, back_to, factor, asked_by=ask.asked_by)


def _requests_in(run_dir: RunDir) -> int:
    numbers = [event.facts.get("request") for event in read_events(run_dir) if event.type == "request"]
    return max((number for number in numbers if type(number) is int), default=0)


def _numbers(metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    """The numbers of a row as it was written, including non-finite ones, as they are read from the log."""
    if NONFINITE not in metrics and MOMENTS not in metrics and str not in map(type, metrics.values()):
        return metrics
    plain = {
        name: value for name, value in metrics.items() if name not in (NONFINITE, MOMENTS) and type(value) is not str
    }
    return plain | read_nonfinite(metrics.get(NONFINITE, ""))


def _cannot_share(error: Exception) -> None:
    logger.warning("a request could not be shared with the other ranks: %s", words_of(error))
