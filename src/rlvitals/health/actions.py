"""What is asked of the trainer: findings in, at most one open request out. No files, no clock.

A stop needs certainty (the rule's own) or two independent criticals. A revert needs a checkpoint from before the onset;
without one it becomes a stop that needs the same, or a warning. The learning rate is halved at most twice in a run, and
never where a slower policy would only get to the same place.

>>> policy = Policy(certain={"dead_gradient"})
>>> dead = Finding("dead_gradient", "dead_gradient", "critical", 10, 1, "the gradient is zero", action="stop")
>>> policy.consider([dead]).action
'stop'
>>> policy.consider([dead]) is None  # it is open already
True
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace

from rlvitals.records import ACTIONS, Action, Answer, Finding, Request

LR_FACTOR = 0.5
MOST_LR_CUTS = 2

NO_LR_CUT = frozenset({"reward_hacking", "zero_variance", "reward_floor", "not_learning"})
"""Kinds that a smaller learning rate does not cure: the exploit is found more slowly, the missing signal stays
missing."""

NO_WITNESS = frozenset({"stall", "throughput", "memory", "gpu_idle", "data"})
"""Kinds that say nothing about the weights, and so do not count as the second critical."""

GRAVITY: dict[str, int] = {action: rank for rank, action in enumerate(ACTIONS)}


class Policy:
    """Remembers what stands, what is open and what was answered; decides what is asked next."""

    def __init__(self, certain: Container[str] = (), asked: int = 0) -> None:
        """`certain` holds the rules one critical of which is enough; `asked` counts the requests made before."""
        self.open: Request | None = None
        """The request that waits for its answer."""
        self._certain = certain
        self._asked = asked
        self._criticals: dict[str, Finding] = {}
        self._settled: set[tuple[str, Action]] = set()
        self._cuts = 0

    def consider(
        self, findings: Iterable[Finding], checkpoints: Callable[[], Mapping[int, str]] = dict
    ) -> Request | None:
        """The request that new findings lead to, now the open one; None where nothing graver is to be asked.

        `checkpoints` gives the folders there are to go back to, by step; it is called where that matters.
        """
        new = list(findings)
        criticals = self.stand(new)
        # A critical may be the second one that an earlier wish to stop was waiting for.
        waiting = [finding for finding in self._criticals.values() if finding not in new] if criticals else []
        best: Request | None = None
        for finding in (*new, *waiting):
            request = self._decide(finding, checkpoints)
            if request is None or (finding.rule, request.action) in self._settled:
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

    def stand(self, findings: Iterable[Finding]) -> list[Finding]:
        """Take note of criticals without asking for anything; returns them."""
        criticals = [finding for finding in findings if finding.severity == "critical"]
        self._criticals.update({finding.rule: finding for finding in criticals})
        return criticals

    def hand_over(self) -> Request | None:
        """The open request, on its way to the trainer. It stays open until it is answered; a warning is over once it
        is told.
        """
        request = self.open
        if request is not None and request.action == "warn":
            self.settle(request, "done")
        return request

    def settle(self, request: Request, answer: Answer) -> None:
        """A request has its answer."""
        self.remember(request.finding.rule, request.action, answer)
        if self.open is not None and self.open.number == request.number:
            self.open = None
        if request.action == "revert" and answer == "done":
            self._criticals.clear()  # what they were seen in is gone

    def remember(self, rule: str, action: Action, answer: Answer) -> None:
        """Count an answer, also one from before a resume."""
        if answer in ("done", "declined"):
            self._settled.add((rule, action))
        if action == "reduce_lr" and answer == "done":
            self._cuts += 1

    def recover(self, in_alarm: Container[str]) -> Request | None:
        """Forget the rules that are no longer in alarm; returns the open request where its reason is gone with them."""
        for rule in [rule for rule in self._criticals if rule not in in_alarm]:
            del self._criticals[rule]
        if self._settled:
            self._settled = {pair for pair in self._settled if pair[0] in in_alarm}
        if self.open is not None and self.open.finding.rule not in in_alarm:
            withdrawn, self.open = self.open, None
            return withdrawn
        return None

    def _decide(self, finding: Finding, checkpoints: Callable[[], Mapping[int, str]]) -> Request | None:
        action, reason = finding.action, f"{finding.title} (since step {finding.onset_step})"
        if action == "none":
            return None
        if finding.kind == "stall":
            return Request("warn", reason, finding)  # a trainer that reads it has gone on
        if action == "reduce_lr":
            if finding.kind in NO_LR_CUT:
                return Request("warn", f"{reason}; a smaller learning rate is no answer to it", finding)
            if self._cuts >= MOST_LR_CUTS:
                return Request("warn", f"{reason}; the learning rate was cut {MOST_LR_CUTS} times already", finding)
            return Request("reduce_lr", reason, finding, factor=LR_FACTOR)
        if action == "revert":
            before = {step: folder for step, folder in checkpoints().items() if step < finding.onset_step}
            if before:
                newest = max(before)
                return Request("revert", reason, finding, checkpoint=before[newest], checkpoint_step=newest)
            reason = f"{reason}; no checkpoint is older than that"
        if action in ("revert", "stop"):
            if finding.severity == "critical" and finding.rule in self._certain:
                return Request("stop", reason, finding)
            witness = self._witness(finding)
            if witness is not None:
                return Request("stop", f"{reason}; and independently: {witness.title}", finding)
            return Request("warn", reason, finding)
        return Request(action, reason, finding)

    def _witness(self, finding: Finding) -> Finding | None:
        """Another standing critical, of another kind and read from other metrics."""
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
