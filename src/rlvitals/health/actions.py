"""Which requests are made to the trainer and how they are carried out: the whole policy, without files, clock or torch.

`Policy` turns findings into at most one open request. `perform` carries a request out through `Controls`, the four
operations of a trainer. `rlvitals.Actions` joins the two in a training loop.

A stop needs a rule that is marked as certain, or two independent criticals. A revert needs a good checkpoint: older
than the onset, and not saved on a stretch that an earlier revert abandoned. Without one it becomes a stop, under the
conditions above, or a warning. Each revert halves the learning rate, because the same rate would lead to the same
failure. After two reverts, the next critical that asks for one is a stop. Without a revert, the learning rate is halved
at most twice in a run, and never for failures that a lower rate only delays.

>>> policy = Policy(certain={"dead_gradient"})
>>> dead = Finding("dead_gradient", "dead_gradient", "critical", 10, 1, "the gradient is zero", action="stop")
>>> policy.consider([dead]).action
'stop'
>>> policy.consider([dead]) is None  # it is open already
True
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rlvitals.guard import guarded, words_of
from rlvitals.records import ACTIONS, Action, Answer, Finding, HealthEvent, Request, alarm_of

LR_FACTOR = 0.5
MOST_LR_CUTS = 2
REVERT_FACTOR = 0.5
MOST_REVERTS = 2

NO_LR_CUT = frozenset({"reward_hacking", "zero_variance", "reward_floor", "not_learning"})
"""Kinds that a smaller learning rate does not fix: an exploit is found more slowly, and a missing signal stays
missing."""

NO_WITNESS = frozenset({"stall", "throughput", "memory", "gpu_idle", "data"})
"""Kinds that are no evidence about the weights, so they do not count as the second critical."""

PEOPLE = "asked"
"""The rule name under which requests of people are recorded."""

GRAVITY: dict[str, int] = {action: rank for rank, action in enumerate(ACTIONS)}


class Policy:
    """Keeps active findings, the open request and the answers; decides the next request."""

    def __init__(self, certain: Container[str] = (), asked: int = 0) -> None:
        """`certain` holds the rules whose single critical is enough to stop; `asked` is the number of past requests."""
        self.open: Request | None = None
        """The request that waits for its answer."""
        self._certain = certain
        self._asked = asked
        self._criticals: dict[str, Finding] = {}
        self._settled: set[tuple[str, Action]] = set()
        self._cuts = self._reverts = 0
        self._abandoned: list[tuple[int, int]] = []  # the first and the last step of each stretch
        self._of_people: deque[Request] = deque()

    def consider(
        self, findings: Iterable[Finding], checkpoints: Callable[[], Mapping[int, str]] = dict
    ) -> Request | None:
        """The request that new findings lead to, now the open one; None where none is stronger than the open one.

        `checkpoints` returns the folders to revert to, by step. It is called only for a possible revert.
        """
        new = list(findings)
        criticals = self.stand(new)
        # A critical may be the second one that an earlier finding needs for a stop.
        waiting = [finding for finding in self._criticals.values() if finding not in new] if criticals else []
        best: Request | None = None
        for finding in (*new, *waiting):
            request = self._decide(finding, checkpoints)
            if request is None or (finding.alarm, request.action) in self._settled:
                continue
            if finding in waiting and request.action != "stop":
                continue
            if GRAVITY[request.action] > GRAVITY[(best or self.open or _NOTHING).action]:
                best = request
        if best is None:
            return None
        self._asked += 1
        self.open = replace(best, number=self._asked)
        return self.open

    def ask(self, request: Request) -> Request:
        """Add a request of a person and number it. It is carried out unchanged, before the policy's own."""
        self._asked += 1
        self._of_people.append(replace(request, number=self._asked))
        return self._of_people[-1]

    def stand(self, findings: Iterable[Finding]) -> list[Finding]:
        """Remember the critical findings without making a request; returns them."""
        criticals = [finding for finding in findings if finding.severity == "critical"]
        self._criticals.update({finding.alarm: finding for finding in criticals})
        return criticals

    def hand_over(self) -> Request | None:
        """Return the request to pass to the trainer. It stays open until it is answered; a warning is settled on
        delivery.
        """
        if self._of_people:
            return self._of_people[0]
        request = self.open
        if request is not None and request.action == "warn":
            self.settle(request, "done")
        return request

    def settle(self, request: Request, answer: Answer, step: int = 0) -> None:
        """Close a request with the answer given at this step."""
        self.remember(request.finding.alarm, request.action, answer, (request.finding.onset_step, step))
        self._of_people = deque(asked for asked in self._of_people if asked.number != request.number)
        if self.open is not None and self.open.number == request.number:
            self.open = None
        if request.action == "revert" and answer == "done":
            self._criticals.clear()  # the weights that showed them are gone

    def remember(self, alarm: str, action: Action, answer: Answer, stretch: tuple[int, int] = (0, -1)) -> None:
        """Count an answer. `stretch` holds the steps from the onset to the answer, which a revert abandons. Requests of
        people do not count towards the policy's limits.
        """
        is_doctors = alarm != PEOPLE
        if is_doctors and answer in ("done", "declined"):
            self._settled.add((alarm, action))
        if action == "reduce_lr" and answer == "done":
            self._cuts += is_doctors
        elif action == "revert" and answer == "done":
            self._reverts += is_doctors
            self._abandoned.append(stretch)

    def recall(self, events: Iterable[HealthEvent], cuts: Mapping[int, int]) -> None:
        """Count the answers from before a resume. `cuts` holds, for each attempt that took over, the first step that it
        superseded: checkpoints saved from there on are new.
        """
        onsets: dict[Any, int] = {}
        for event in events:
            facts = event.facts
            if event.type == "request":
                onsets[facts.get("request")] = facts.get("onset_step", 0)
            elif event.type == "answer":
                overtaken = [cut - 1 for attempt, cut in cuts.items() if attempt > event.attempt]
                stretch = onsets.get(facts.get("request"), 0), min([event.step, *overtaken])
                alarm = alarm_of(str(facts.get("rule")), str(facts.get("slice", "")))
                self.remember(alarm, facts.get("action", "none"), facts.get("answer"), stretch)  # type: ignore[arg-type]

    def recover(self, in_alarm: Container[str]) -> Request | None:
        """Forget the alarms that have recovered; returns the open request if its alarm is among them."""
        for alarm in [alarm for alarm in self._criticals if alarm not in in_alarm]:
            del self._criticals[alarm]
        if self._settled:
            self._settled = {pair for pair in self._settled if pair[0] in in_alarm}
        if self.open is not None and self.open.finding.alarm not in in_alarm:
            withdrawn, self.open = self.open, None
            return withdrawn
        return None

    def _decide(self, finding: Finding, checkpoints: Callable[[], Mapping[int, str]]) -> Request | None:
        action, reason = finding.action, f"{finding.title} (since step {finding.onset_step})"
        if action == "none":
            return None
        if finding.kind == "stall":
            return Request("warn", reason, finding)  # a trainer that reads it has continued
        if action == "reduce_lr":
            if finding.kind in NO_LR_CUT:
                return Request("warn", f"{reason}; a smaller learning rate is no answer to it", finding)
            if self._cuts >= MOST_LR_CUTS:
                return Request("warn", f"{reason}; the learning rate was cut {MOST_LR_CUTS} times already", finding)
            return Request("reduce_lr", reason, finding, factor=LR_FACTOR)
        if action == "revert":
            good = {
                step: folder
                for step, folder in checkpoints().items()
                if step < finding.onset_step and not any(first <= step <= last for first, last in self._abandoned)
            }
            newest = max(good, default=0)
            if good and self._reverts < MOST_REVERTS:
                return Request("revert", reason, finding, good[newest], newest, REVERT_FACTOR)
            if self._reverts >= MOST_REVERTS:
                reason = f"{reason}; training was reverted {MOST_REVERTS} times already"
                if finding.severity == "critical":
                    hint = f", the last good checkpoint is {Path(good[newest]).name}" if good else ""
                    return Request("stop", f"{reason}{hint}", finding)
            else:
                reason = f"{reason}; no good checkpoint is older than that"
        if action in ("revert", "stop"):
            if finding.severity == "critical" and finding.rule in self._certain:
                return Request("stop", reason, finding)
            witness = self._witness(finding)
            if witness is not None:
                return Request("stop", f"{reason}; and independently: {witness.title}", finding)
            return Request("warn", reason, finding)
        return Request(action, reason, finding)

    def _witness(self, finding: Finding) -> Finding | None:
        """Another active critical, of another kind and read from other metrics."""
        if finding.severity != "critical" or finding.kind in NO_WITNESS or not finding.metrics:
            return None
        for other in self._criticals.values():
            if (
                other.kind != finding.kind
                and other.kind not in NO_WITNESS
                and other.metrics
                and not set(other.metrics) & set(finding.metrics)
            ):
                return other
        return None


_NOTHING = Request("none", "", Finding("", "data", "info", 0, 0, ""))


class Declined(Exception):
    """The trainer declines a request. Nothing was changed and training continues; the message gives the reason."""


class CannotGoBack(Exception):
    """A revert is not possible here, so training has to stop; the message states why, and how to continue by hand."""


class Controls(Protocol):
    """The operations of a trainer. A method that does not carry out its operation raises `Declined`."""

    def stop(self) -> None:
        """End the training after this step. A loop that ends when `Actions.carry_out` returns True need not do anything
        here.
        """

    def save(self) -> str | None:
        """Save a checkpoint and return its name; None where the trainer saves later (see `Actions.saved`)."""

    def scale_rate(self, factor: float) -> tuple[float, float]:
        """Multiply the learning rate permanently; returns the rate before and after."""

    def revert(self, checkpoint: Path) -> None:
        """Restore the weights and the optimizer's moments from a checkpoint. Learning rate and schedule stay."""


class RequestOutcome(NamedTuple):
    """How a request ended."""

    answer: Answer | None
    """None: the trainer will answer later."""
    text: str = ""
    must_stop: bool = False


def perform(request: Request, controls: Controls) -> RequestOutcome:
    """Carry out a request. An exception of the controls is the answer `declined`. After a revert that failed, training
    must also stop: the weights may be half restored.
    """
    problems: list[Exception] = []
    with guarded(problems.append):
        return _perform(request, controls)
    problem = problems[0]
    why = str(problem) if isinstance(problem, Declined | CannotGoBack) else words_of(problem)
    if request.action == "revert" and not isinstance(problem, Declined):
        return RequestOutcome(
            "declined", f"training stops: it cannot revert to {_name(request)}: {why}", must_stop=True
        )
    return RequestOutcome("declined", why)


def _perform(request: Request, controls: Controls) -> RequestOutcome:
    if request.action == "stop":
        return RequestOutcome("done", "training stops", must_stop=True)
    if request.action == "checkpoint":
        saved = controls.save()
        return RequestOutcome(None) if saved is None else RequestOutcome("done", f"saved {saved}")
    if request.action == "reduce_lr":
        return RequestOutcome("done", _scale(request, controls))
    if request.action == "revert":
        controls.revert(Path(request.checkpoint or ""))
        try:
            rate = _scale(request, controls)
        except Declined as why:
            rate = f"the learning rate stays the same ({why})"
        return RequestOutcome("done", f"back to {_name(request)}, {rate}; steps and data continue")
    return RequestOutcome("done")


def _scale(request: Request, controls: Controls) -> str:
    before, after = controls.scale_rate(request.factor or 1.0)
    return f"learning rate {before:.4g} -> {after:.4g}"


def _name(request: Request) -> str:
    return Path(request.checkpoint or "").name
