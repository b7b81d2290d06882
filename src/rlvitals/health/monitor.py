"""The monitor: one row in, new findings out. Constant time and memory, no clock, never raises.

It binds the rulebook's rules to the signals a run really logs, lets each rule look at every row that brought one of its
signals something new, and says what has held for as long as the rulebook asks: once per rule, slice and severity,
again after it had recovered.
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
"""Quiet points after which an alarm has recovered, and its rule may raise it again."""

MOST_DOUBLINGS = 4
"""An alarm that came back must be quiet for twice as long as the time before, so many times."""

OFTEN = 2
"""A warning that has come and gone so often while the outcome is up is a remark: the run lives with it."""

STORM = 8
"""Findings within `STORM_POINTS` rows after which lesser ones are counted instead of said."""

STORM_POINTS = 15

ECHO_POINTS = 30
"""Rows in which a rule stays silent after one it only echoes, such as a frozen loss after a dead gradient."""

MAX_VOTES = 60

_RANK = {severity: rank for rank, severity in enumerate(SEVERITIES, 1)}


class Monitor:
    """Watches one run, row by row: the doctor without files.

    Args:
        algorithm: `grpo`, `ppo`, `kto`, `dpo`, ...; None: recognised from the metric names.
        framework: Whose metric names the rows have: `trl`, `verl`, ...; None: recognised.
        total_steps: The planned number of steps.
        config: Settings that rules read: `num_generations`, `reward_max`, `learning_rate`, ...
        rules: A preset's name, a rule file, a one-line rule, or a list of these, on top of the rules that ship.
        mapping: What metric names are: {"my_name": "reward.total.mean"}.
        scales: How alarms are weighed; those that ship where it is not given.

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
        """Our own rules as they were shipped. Rules that a user wrote or changed are not weighed, nor is the clock."""
        self.case = Case(
            self.rulebook.sources,
            algorithm=algorithm,
            framework=framework,
            total_steps=total_steps,
            config=config,
            mapping=mapping,
        )
        self.events: list[HealthEvent] = []
        """What the last row or tick led to: alarms raised, escalated and recovered."""
        self._history = History()
        self.left_unsaid = 0
        """Findings swallowed by a storm."""
        self.problems: dict[str, str] = {}
        """Rules that failed on their own account, and how: a defect, never a reason to disturb training."""
        self._states: dict[str, _State] = {}
        self._bound: list[_Ready] = []
        self._on_tick: list[_Ready] = []
        self._missing: list[Missing] = []
        self._recent: list[int] = []
        self._spoken: dict[str, tuple[int, int]] = {}
        self._summed_up_at = -STORM_POINTS
        self._ticked_points = -1

    def update(self, row: Mapping[str, Any]) -> list[Finding]:
        """Take one flat row with `step`; return what is new."""
        case = self.case
        self.events = []
        with guarded(lambda error: self.problems.update({"(row)": words_of(error)})):
            restarts, before, points = case.restarts, case.step, case.points
            case.take(row)
            if case.restarts != restarts:
                self._note_attempt(points, before)
                self._spoken.clear()
                for alarm, state in self._states.items():
                    state.reset()
                    state.times = state.came_and_went = 0
                    self._recover(alarm, before)
            if case.changed:
                self._bind()
            return self._look(self._bound, case.points)
        return []

    def tick(self, now: float, *, open_phases: Sequence[OpenPhase] = (), lost_pid: int | None = None) -> list[Finding]:
        """Tell the time (unix seconds), and what is known of the trainer: the phases it is in, or that its process is
        gone. Returns what the silence says.
        """
        case = self.case
        self.events = []
        if self._ticked_points != case.points:
            self._ticked_points = case.points
            if math.isnan(case.timestamp):
                if now > case.heard_at:
                    case.interval.update(now - case.heard_at, case.step)
                case.heard_at = now
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
        """`act` after a critical, `watch` after a warning, `healthy` otherwise."""
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
        """Let the rules look that a row is something new for, all of them without one, and say what is new."""
        found: list[Finding] = []
        problems = self.problems
        for bound, state, first, warm_up, judge in rules:
            # Nearly all series come with every row: what `is_due` asks first is asked here, without a call.
            if (first.seen_at != points or first.n < warm_up) and points is not None and not bound.is_due(points):
                continue
            if problems and bound.rule.rule in problems:
                continue
            try:
                alarm = judge()
            except Exception as error:  # noqa: BLE001 - a rule that breaks is set aside; 70 guards a row are too slow
                problems[bound.rule.rule] = words_of(error)
                continue
            if alarm is not None or state.is_awake:
                self._weigh(bound, state, alarm, found)
        return self._report(found) if found else found

    def _weigh(self, bound: Bound, state: _State, alarm: Alarm | None, found: list[Finding]) -> None:
        """Weigh and count a rule's answer; what has held for long enough is found."""
        rule = bound.rule
        if alarm is not None and rule.rule in self.weighed and not alarm.is_beyond_doubt:
            state_now, confidence = outcome.state_of(self.case), None
            if not alarm.has_company:
                alarm.severity, confidence = self.scales.weigh(rule.rule, alarm.severity, state_now, rule.kind)
                alarm.confidence = confidence if alarm.confidence is None else alarm.confidence
            if state_now == "up" and alarm.severity == "warning" and state.came_and_went >= OFTEN:
                alarm.severity = "info"  # the run has come through this before, and is still ahead
            is_lost = state_now == "down" and alarm.severity == "warning" and confidence is not None
            if is_lost and (beside := self._beside(rule)) is not None:  # two different things show how it was lost
                alarm.severity = "critical"
                alarm.confidence = 1.0 - (1.0 - (alarm.confidence or 0.0)) * (1.0 - beside.confidence)
        severity = state.vote(alarm, self.case.points, self.case.step, is_sparse=bound.is_sparse(self.case.points))
        if state.is_clear:
            state.reset()
            self.case.raised.pop(bound.alarm, None)
            self._recover(bound.alarm, self.case.step)
        elif alarm is not None and severity is not None:
            self.case.raised[bound.alarm] = (severity, state.since_point)
            if _RANK[severity] > state.said:
                state.raise_to(severity, alarm)
                found.append(self._finding(bound, alarm, severity, state))

    def _beside(self, rule: Rule) -> Finding | None:
        """A finding of another kind that stands beside this rule's, of those that are weighed as it is."""
        for finding in self._history.open:
            if finding.severity != "info" and finding.kind != rule.kind and finding.rule in self.weighed:
                return finding
        return None

    def _note_attempt(self, points: int, step: int) -> None:
        """Remember that the attempt that has just ended failed. A restart cures nothing by itself."""
        case = self.case
        if case.failed_attempt is not None and points > case.failed_attempt.points:
            case.failed_attempt = None
        if grave := [one for one in self._history.open if one.severity == "critical"]:
            first = min(grave, key=lambda finding: finding.step)
            case.failed_attempt = FailedAttempt(points, step, first.kind, first.onset_step, first.title)

    def _recover(self, alarm: str, step: int) -> None:
        if finding := next((one for one in self._history.open if one.alarm == alarm), None):
            self._tell(recovery(finding, step))

    def _tell(self, event: HealthEvent) -> None:
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
        words, own = rule.says(alarm.variant), own_numbers(case)
        confidence = alarm.confidence if alarm.confidence is not None else rule.confidence
        causes, advice, cause = words.causes, words.advice, alarm.cause
        behind = gap.explain(gap.readings(case)) if (alarm.kind or rule.kind) in gap.KINDS else None
        if behind is not None:
            told = behind.about(cause)
            causes, advice, cause = told.causes or causes, (*told.advice, *advice), told.cause
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
        """Put the grave ones first, and count instead of say when it storms."""
        found.sort(key=lambda finding: -_RANK[finding.severity])
        points = self.case.points
        self._recent = [point for point in self._recent if point > points - STORM_POINTS]
        said: list[Finding] = []
        kept: list[Finding] = []
        for finding in found:
            if self._is_repetition(finding, points):
                self.left_unsaid += 1
            elif len(self._recent) < STORM or finding.severity == "critical":
                said.append(finding)
                self._recent.append(points)
                self._spoken[finding.rule] = (_RANK[finding.severity], points)
            else:
                self.left_unsaid += 1
                kept.append(finding)
                # Not reported, so it may be reported after the storm, if it still holds.
                self._states[finding.alarm].said = _RANK[finding.severity] - 1
        if kept and points - self._summed_up_at > STORM_POINTS:
            self._summed_up_at = points
            said.append(_summary(kept))
        for finding in said:
            is_standing = finding.alarm in self._history.standing
            self._tell(HealthEvent("escalated" if is_standing else "raised", finding.step, finding=finding))
        return said

    def _is_repetition(self, finding: Finding, points: int) -> bool:
        """Whether a rule that this one only echoes has spoken a moment ago, no less gravely."""
        for rule in self.rulebook.rules[finding.rule].echoes:
            rank, when = self._spoken.get(rule, (0, 0))
            if rank >= _RANK[finding.severity] and points - when <= ECHO_POINTS:
                return True
        return False


_Ready = tuple[Bound, "_State", Signal, int, Callable[[], Alarm | None]]
"""A rule, what is remembered of it, its first signal, the points that one needs, and the question itself."""

_NEVER = Signal("never")
"""In place of the first signal of a rule that reads none: no row brings it anything."""


def _pace(bound: Bound) -> Signal:
    return bound.signals[0] if bound.signals else _NEVER


def _summary(kept: Sequence[Finding]) -> Finding:
    """One note in place of many."""
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
    """What the monitor remembers of one rule, or of one about one slice: votes, what was said, since when it holds."""

    __slots__ = (
        "_any", "_critical", "_hold", "_hold_critical", "_masks", "_quiet", "_serious", "_way_back", "came_and_went",
        "is_awake", "said", "since_point", "since_step", "times",
    )  # fmt: skip

    def __init__(self, rule: Rule) -> None:
        self._hold = rule.hold[0]
        self._hold_critical = (rule.hold_critical or rule.hold)[0]
        self._masks = ((1 << rule.hold[1]) - 1, (1 << (rule.hold_critical or rule.hold)[1]) - 1)
        self.times = 0
        """How often it has been raised."""
        self.said = 0
        self.came_and_went = 0
        """How often a warning or critical of it has recovered."""
        self.reset()

    def reset(self) -> None:
        # A bit for each of the last points, set where the answer was at least that grave.
        self._any = self._serious = self._critical = 0
        self._quiet = 0
        self._way_back: tuple[Signal, float] | None = None
        self.came_and_went += self.said >= _RANK["warning"]
        self.said = 0
        self.since_point = 0
        self.since_step = 0
        self.is_awake = False
        """Whether anything is remembered: else a rule that is content need not be counted."""

    @property
    def is_clear(self) -> bool:
        """Whether the alarm has been quiet for `CLEAR_POINTS` points, longer if it came back, and so has recovered. A
        rule that only sees a fall falls silent at the bottom: there the level has to come back, too.
        """
        if self._quiet < CLEAR_POINTS << min(max(self.times - 1, 0), MOST_DOUBLINGS):
            return False
        return self._way_back is None or self._way_back[0].fast >= self._way_back[1]

    def raise_to(self, severity: Severity, alarm: Alarm) -> None:
        """It is reported now, at this severity."""
        self.times += not self.said
        self.said = _RANK[severity]
        self.is_awake = True
        if alarm.back_at is not None and alarm.signal is not None:
            self._way_back = alarm.signal, alarm.back_at

    def vote(self, alarm: Alarm | None, point: int, step: int, *, is_sparse: bool) -> Severity | None:
        """Count this row's answer; return the severity that has held long enough. Two answers in a row are enough of a
        series that comes with few rows only.
        """
        rank = 0 if alarm is None else _RANK[alarm.severity]
        if rank and not self._any and not self.said:
            self.since_point, self.since_step = point, step
        if rank and rank >= self.said:
            self._quiet = 0
        else:
            self._quiet += 1
        mask, mask_critical = self._masks
        self._any = ((self._any << 1) | (rank > 0)) & mask
        self._serious = ((self._serious << 1) | (rank > 1)) & mask
        self._critical = ((self._critical << 1) | (rank > 2)) & mask_critical
        self.is_awake = bool(self._any or self._critical or self.said)
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
