"""The monitor: one row in, new findings out. Constant time and memory, no clock, never raises.

The monitor binds the rulebook's rules to the signals that a run logs. It runs each rule on every row that has a new
value for one of the rule's signals. An alarm that holds for as long as the rulebook requires is reported once per rule,
slice and severity, and again after it has recovered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvitals.guard import guarded, words_of
from rlvitals.health import alarm_weights, gap, outcome
from rlvitals.health import rulebook as rulebooks
from rlvitals.health.alarm import Alarm
from rlvitals.health.alarm_weights import Scales
from rlvitals.health.binding import Bound, Missing, bind
from rlvitals.health.case import Case, FailedAttempt
from rlvitals.health.history import History, recovery, worst
from rlvitals.health.rulebook import Rule, Rulebook
from rlvitals.health.statistics import Signal
from rlvitals.health.wording import evidence_of, fill, of_this_run, own_numbers
from rlvitals.records import SEVERITIES, Finding, HealthEvent, OpenPhase, Severity, Verdict

CLEAR_POINTS = 20
"""Points without the alarm after which it has recovered and its rule may raise it again."""

MOST_DOUBLINGS = 4
"""Each time an alarm returns, the quiet period it needs to recover doubles, at most this many times."""

OFTEN = 2
"""A warning that has recovered this many times becomes an info while the outcome is up: it does no harm to this run."""

STORM = 8
"""After this many findings within `STORM_POINTS` rows, those that are not critical are counted instead of reported."""

STORM_POINTS = 15

ECHO_POINTS = 30
"""Rows during which a rule is not reported after one that it echoes, such as a frozen loss after a dead gradient."""

MAX_VOTES = 60

_RANK = {severity: rank for rank, severity in enumerate(SEVERITIES, 1)}


class Monitor:
    """Monitors one run, row by row: the doctor without files.

    Args:
        algorithm: `grpo`, `ppo`, `kto`, `dpo`, ...; None: recognised from the metric names.
        framework: The framework whose metric names the rows have: `trl`, `verl`, ...; None: recognised.
        total_steps: The planned number of steps.
        config: Settings that rules read: `num_generations`, `reward_max`, `learning_rate`, ...
        rules: A preset's name, a rule file, a one-line rule, or a list of these, on top of the rules that ship.
        mapping: What metric names mean: {"my_name": "reward.total.mean"}.
        scales: How alarms are weighed; None: the scales that ship.

    Examples:
        >>> monitor = Monitor(algorithm="grpo")
        >>> for step in range(1, 40):
        ...     found = monitor.update({"step": step, "loss": 0.1, "grad_norm": 0.0, "reward": 0.3 + 0.01 * (step % 3)})
        ...     for finding in found:
        ...         print(finding.step, finding.severity, finding.kind)
        10 critical dead_gradient
    """

    def __init__(
        self,
        algorithm: str | None = None,
        framework: str | None = None,
        total_steps: int | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        rules: str | Path | Sequence[Any] | Rulebook | None = None,
        mapping: Mapping[str, str] | None = None,
        scales: Scales | None = None,
    ) -> None:
        self.rulebook = _open_rulebook(rules)
        self.scales = scales or alarm_weights.shipped()
        ours = rulebooks.shipped().rules
        self.weighed = {
            name
            for name, rule in self.rulebook.rules.items()
            if ours.get(name) == rule and alarm_weights.is_weighed(rule)
        }
        """The unchanged shipped rules whose alarms are weighed; rules that a user wrote or changed are not in it."""
        self.case = Case(
            self.rulebook.sources,
            algorithm=algorithm,
            framework=framework,
            total_steps=total_steps,
            config=config,
            mapping=mapping,
        )
        self.events: list[HealthEvent] = []
        """The events of the last row or tick: alarms raised, escalated and recovered."""
        self._history = History()
        self.left_unsaid = 0
        """Findings that were counted instead of reported: echoes, and lesser findings in a storm."""
        self.problems: dict[str, str] = {}
        """Rules that raised an exception, and its text: a defect, but never a reason to disturb training."""
        self._states: dict[str, _State] = {}
        self._bound: list[_Ready] = []
        self._on_tick: list[_Ready] = []
        self._missing: list[Missing] = []
        self._recent: list[int] = []
        self._last_reports: dict[str, tuple[int, int]] = {}
        self._summed_up_at = -STORM_POINTS
        self._ticked_points = -1

    def update(self, row: Mapping[str, Any]) -> list[Finding]:
        """Take one flat row with `step`; return the new findings."""
        case = self.case
        self.events = []
        with guarded(lambda error: self.problems.update({"(row)": words_of(error)})):
            restarts, before, points = case.restarts, case.step, case.points
            case.take(row)
            if case.restarts != restarts:
                self._note_attempt(points, before)
                self._last_reports.clear()
                for alarm, state in self._states.items():
                    state.reset()
                    state.times = state.came_and_went = 0
                    self._recover(alarm, before)
            if case.changed:
                self._bind()
            return self._look(self._bound, case.points)
        return []

    def tick(self, now: float, *, open_phases: Sequence[OpenPhase] = (), lost_pid: int | None = None) -> list[Finding]:
        """Pass the time (unix seconds) and what is known about the trainer: the phases it is in, or that its process is
        gone. Returns the new findings of the rules that run on the clock.
        """
        case = self.case
        self.events = []
        if self._ticked_points != case.points:
            self._ticked_points = case.points
            if math.isnan(case.timestamp):
                if now > case.noticed_at:
                    case.interval.update(now - case.noticed_at, case.step)
                case.noticed_at = now
        case.now, case.open_phases, case.lost_pid = now, open_phases, lost_pid
        with guarded(lambda error: self.problems.update({"(clock)": words_of(error)})):
            if case.changed:
                self._bind()
            return self._look(self._on_tick, None)
        return []

    @property
    def findings(self) -> list[Finding]:
        """Everything raised so far, in order, each with the step at which it recovered."""
        return self._history.findings

    @property
    def cannot_judge(self) -> list[Missing]:
        """The rules that cannot run, and which metric each is missing."""
        if self.case.changed:
            self._bind()
        return list(self._missing)

    @property
    def verdict(self) -> Verdict:
        """`act` while a critical finding is active, `watch` while a warning is, `healthy` otherwise; see `worst`."""
        return worst(self._history.findings)

    def _bind(self) -> None:
        self.case.changed = False
        bound, self._missing = bind(self.rulebook, self.case)
        ready = [
            (one, self._states.setdefault(one.alarm, _State(one.rule)), _pace(one), one.warm_up, one.judge)
            for one in bound
        ]
        self._bound = [one for one in ready if not one[0].on_tick]
        self._on_tick = [one for one in ready if one[0].on_tick]

    def _look(self, rules: Iterable[_Ready], points: int | None) -> list[Finding]:
        """Run the rules for which row `points` has a new value, or all of them for None; return the new findings."""
        found: list[Finding] = []
        problems = self.problems
        for bound, state, first, warm_up, judge in rules:
            # Nearly all series come with every row, so the first check of `is_due` is made here, without a call.
            if (first.seen_at != points or first.n < warm_up) and points is not None and not bound.is_due(points):
                continue
            if problems and bound.rule.rule in problems:
                continue
            try:
                alarm = judge()
            except Exception as error:  # noqa: BLE001 - a rule that fails is disabled; 70 guards a row are too slow
                problems[bound.rule.rule] = words_of(error)
                continue
            if alarm is not None or state.is_awake:
                self._weigh(bound, state, alarm, found)
        return self._report(found) if found else found

    def _weigh(self, bound: Bound, state: _State, alarm: Alarm | None, found: list[Finding]) -> None:
        """Weigh and count a rule's answer; add a finding to `found` if it has held for long enough."""
        rule = bound.rule
        if alarm is not None and rule.rule in self.weighed and not alarm.is_beyond_doubt:
            state_now, confidence = outcome.state_of(self.case), None
            if not alarm.has_company:
                alarm.severity, confidence = self.scales.weigh(rule.rule, alarm.severity, state_now, rule.kind)
                alarm.confidence = confidence if alarm.confidence is None else alarm.confidence
            if state_now == "up" and alarm.severity == "warning" and state.came_and_went >= OFTEN:
                alarm.severity = "info"  # the run has recovered from this before and is still up
            is_lost = state_now == "down" and alarm.severity == "warning" and confidence is not None
            if is_lost and (beside := self._beside(rule)) is not None:  # a second kind of finding confirms it
                alarm.severity = "critical"
                alarm.confidence = 1.0 - (1.0 - (alarm.confidence or 0.0)) * (1.0 - beside.confidence)
        severity = state.vote(alarm, self.case.points, self.case.step, is_sparse=bound.is_sparse(self.case.points))
        if state.is_clear:
            state.reset()
            self.case.raised.pop(bound.alarm, None)
            self._recover(bound.alarm, self.case.step)
        elif alarm is not None and severity is not None:
            self.case.raised[bound.alarm] = (severity, state.since_point)
            if _RANK[severity] > state.reported_rank:
                state.raise_to(severity, alarm)
                found.append(self._finding(bound, alarm, severity, state))

    def _beside(self, rule: Rule) -> Finding | None:
        """An active finding of another kind, from a rule whose alarms are weighed."""
        for finding in self._history.open:
            if finding.severity != "info" and finding.kind != rule.kind and finding.rule in self.weighed:
                return finding
        return None

    def _note_attempt(self, points: int, step: int) -> None:
        """Remember the attempt that has just ended if it failed. A restart alone fixes nothing."""
        case = self.case
        if case.failed_attempt is not None and points > case.failed_attempt.points:
            case.failed_attempt = None
        if grave := [one for one in self._history.open if one.severity == "critical"]:
            first = min(grave, key=lambda finding: finding.step)
            case.failed_attempt = FailedAttempt(points, step, first.kind, first.onset_step, first.title)

    def _recover(self, alarm: str, step: int) -> None:
        if finding := next((one for one in self._history.open if one.alarm == alarm), None):
            self._add_event(recovery(finding, step))

    def _add_event(self, event: HealthEvent) -> None:
        self.events.append(event)
        self._history.take(event)

    def _finding(self, bound: Bound, alarm: Alarm, severity: Severity, state: _State) -> Finding:
        case, signal, rule = self.case, alarm.signal, bound.rule
        onset = alarm.onset_step
        if onset is None:
            onset = state.since_step
            if signal is not None and signal.is_out:
                onset = min(onset, signal.onset_step)
        evidence = evidence_of(alarm) | case.doubt(signal) | ({"slice": bound.slice} if bound.slice else {})
        words, own = rule.texts_of(alarm.variant), own_numbers(case)
        confidence = alarm.confidence if alarm.confidence is not None else rule.confidence
        causes, advice, cause = words.causes, words.advice, alarm.cause
        behind = gap.explain(gap.readings(case)) if (alarm.kind or rule.kind) in gap.KINDS else None
        if behind is not None:
            named_cause = behind.about(cause)
            causes, advice, cause = named_cause.causes or causes, (*named_cause.advice, *advice), named_cause.cause
            onset = onset if alarm.onset_step is not None or behind.onset is None else behind.onset
        return Finding(
            rule=rule.rule,
            kind=alarm.kind or rule.kind,
            severity=severity,
            step=case.step,
            onset_step=onset,
            title=fill(words.title or rule.rule, evidence),
            confidence=confidence * case.trust(signal),
            evidence=evidence,
            causes=tuple(fill(of_this_run(text, own), evidence) for text in causes),
            advice=tuple(fill(of_this_run(text, own), evidence) for text in advice),
            action=rule.action_critical if severity == "critical" else rule.action if severity == "warning" else "none",
            metrics=case.names_of(signal) if signal is not None else (),
            cause=cause,
            slice=bound.slice,
        )

    def _report(self, found: list[Finding]) -> list[Finding]:
        """Report the most severe first; in a storm, count the lesser ones instead."""
        found.sort(key=lambda finding: -_RANK[finding.severity])
        points = self.case.points
        self._recent = [point for point in self._recent if point > points - STORM_POINTS]
        reported: list[Finding] = []
        kept: list[Finding] = []
        for finding in found:
            if self._is_repetition(finding, points):
                self.left_unsaid += 1
            elif len(self._recent) < STORM or finding.severity == "critical":
                reported.append(finding)
                self._recent.append(points)
                self._last_reports[finding.rule] = (_RANK[finding.severity], points)
            else:
                self.left_unsaid += 1
                kept.append(finding)
                # Not reported, so it may be reported after the storm, if it still holds.
                self._states[finding.alarm].reported_rank = _RANK[finding.severity] - 1
        if kept and points - self._summed_up_at > STORM_POINTS:
            self._summed_up_at = points
            reported.append(_summary(kept))
        for finding in reported:
            is_standing = finding.alarm in self._history.standing
            self._add_event(HealthEvent("escalated" if is_standing else "raised", finding.step, finding=finding))
        return reported

    def _is_repetition(self, finding: Finding, points: int) -> bool:
        """Whether a rule that this one echoes was reported shortly before, with at least this severity."""
        for rule in self.rulebook.rules[finding.rule].echoes:
            rank, when = self._last_reports.get(rule, (0, 0))
            if rank >= _RANK[finding.severity] and points - when <= ECHO_POINTS:
                return True
        return False


_Ready = tuple[Bound, "_State", Signal, int, Callable[[], Alarm | None]]
"""A rule, its state, its first signal, the number of points that signal needs, and the function to call."""

_NEVER = Signal("never")
"""Stands in for the first signal of a rule that reads none: it never gets a value."""


def _pace(bound: Bound) -> Signal:
    return bound.signals[0] if bound.signals else _NEVER


def _summary(kept: Sequence[Finding]) -> Finding:
    """One finding that sums up many."""
    kinds = ", ".join(dict.fromkeys(finding.kind.replace("_", " ") for finding in kept))
    first = kept[0]
    return Finding(
        rule="storm",
        kind=first.kind,
        severity="info",
        step=first.step,
        onset_step=min(finding.onset_step for finding in kept),
        title=f"many rules raised findings at once: {kinds}. Start with the most severe",
        confidence=1.0,
        evidence={"count": float(len(kept))},
        metrics=tuple(name for finding in kept for name in finding.metrics),
    )


class _State:
    """The state of one rule, or of one rule on one slice: its votes, the severity reported, and since when it holds."""

    __slots__ = (
        "_any", "_critical", "_hold", "_hold_critical", "_masks", "_quiet", "_serious", "_way_back", "came_and_went",
        "is_awake", "reported_rank", "since_point", "since_step", "times",
    )  # fmt: skip

    def __init__(self, rule: Rule) -> None:
        self._hold = rule.hold[0]
        self._hold_critical = (rule.hold_critical or rule.hold)[0]
        self._masks = ((1 << rule.hold[1]) - 1, (1 << (rule.hold_critical or rule.hold)[1]) - 1)
        self.times = 0
        """How often it has been raised."""
        self.reported_rank = 0
        self.came_and_went = 0
        """How often a warning or critical finding of it has recovered."""
        self.reset()

    def reset(self) -> None:
        # A bit for each of the last points, set where the answer had at least that severity.
        self._any = self._serious = self._critical = 0
        self._quiet = 0
        self._way_back: tuple[Signal, float] | None = None
        self.came_and_went += self.reported_rank >= _RANK["warning"]
        self.reported_rank = 0
        self.since_point = 0
        self.since_step = 0
        self.is_awake = False
        """Whether there is any vote or report to keep; if not, an answer without an alarm need not be counted."""

    @property
    def is_clear(self) -> bool:
        """Whether the alarm has recovered: it was quiet for `CLEAR_POINTS` points, or longer if it had come back
        before. A rule that only detects a fall becomes quiet at the bottom, so its level must return as well.
        """
        if self._quiet < CLEAR_POINTS << min(max(self.times - 1, 0), MOST_DOUBLINGS):
            return False
        return self._way_back is None or self._way_back[0].fast >= self._way_back[1]

    def raise_to(self, severity: Severity, alarm: Alarm) -> None:
        """Note that it is reported now, at this severity."""
        self.times += not self.reported_rank
        self.reported_rank = _RANK[severity]
        self.is_awake = True
        if alarm.back_at is not None and alarm.signal is not None:
            self._way_back = alarm.signal, alarm.back_at

    def vote(self, alarm: Alarm | None, point: int, step: int, *, is_sparse: bool) -> Severity | None:
        """Count this row's answer; return the severity that has held long enough. For a sparse series two alarms are
        enough.
        """
        rank = 0 if alarm is None else _RANK[alarm.severity]
        if rank and not self._any and not self.reported_rank:
            self.since_point, self.since_step = point, step
        if rank and rank >= self.reported_rank:
            self._quiet = 0
        else:
            self._quiet += 1
        mask, mask_critical = self._masks
        self._any = ((self._any << 1) | (rank > 0)) & mask
        self._serious = ((self._serious << 1) | (rank > 1)) & mask
        self._critical = ((self._critical << 1) | (rank > 2)) & mask_critical
        self.is_awake = bool(self._any or self._critical or self.reported_rank)
        if not rank:
            return None
        most = 2 if is_sparse else MAX_VOTES
        if rank == _RANK["critical"] and self._critical.bit_count() >= min(self._hold_critical, most):
            return "critical"
        if rank >= _RANK["warning"] and self._serious.bit_count() >= min(self._hold, most):
            return "warning"
        return "info" if self._any.bit_count() >= min(self._hold, most) else None


def _open_rulebook(rules: str | Path | Sequence[Any] | Rulebook | None) -> Rulebook:
    if isinstance(rules, Rulebook):
        return rules
    if rules is None:
        return rulebooks.load()
    if isinstance(rules, str | Path):
        return rulebooks.load(rules)
    # In the order given: a pattern that switches rules off must not reach those that come after it.
    return rulebooks.load(*(item if isinstance(item, str | Path) else [item] for item in rules))
