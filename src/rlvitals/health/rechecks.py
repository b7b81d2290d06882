"""What it means that a trainer's numbers are others than those computed again from its tokens: alarms, and their end.

The comparison itself is `compute.recomputation`'s; here it gets words, and is said once. The same comparisons in the
same order lead to the same events, while a run trains and afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rlvitals.health.wording import fill
from rlvitals.records import Difference, Finding, HealthEvent, Recheck, RecheckCause, Severity

CLEAR_STEPS = 3
"""Compared steps that agree after which an alarm is over."""

MOST_TOLD = 4
"""Numbers that a finding lists."""


_TITLE = "{metric} was logged as {logged:.4g}, and the recorded tokens give {recomputed:.4g}"


class _Words(NamedTuple):
    ending: str
    """Of the title."""
    causes: tuple[str, ...]
    advice: tuple[str, ...]
    severity: Severity = "warning"


_WORDS: dict[RecheckCause, _Words] = {
    "loss_scale": _Words(
        ": the scale of the loss is off",
        ("the logged loss is {factor:.4g} times the recomputed one{counted}",),
        (
            "check what the loss is divided by: tokens, rollouts, micro-batches or processes",
            "the learning rate in effect is scaled by the same factor if the gradient is, too",
        ),
    ),
    "mask_shift": _Words(
        ": the mask is shifted by one token",
        ("with the mask moved {direction} by one token the logged numbers come out",),
        (
            "check the shift between tokens and log-probs: the logits at position t are of token t + 1",
            "a shifted mask trains the first token of tool results and leaves out a token of the model",
        ),
        "critical",
    ),
    "advantage_sign": _Words(
        ": the sign of the advantages is turned",
        ("with the opposite sign of the advantages the numbers come out: rollouts of low reward are reinforced",),
        ("stop the run", "check the sign of the loss: it is minus the ratio times the advantage"),
        "critical",
    ),
    "microbatch_weighting": _Words(
        ": micro-batches are weighted equally",
        (
            "the mean of the means of {microbatches:.0f} micro-batches gives the logged numbers, though they hold "
            "unequal numbers of tokens",
        ),
        ("divide sums by the number of tokens of the whole batch, not each micro-batch by its own",),
    ),
    "not_explained": _Words(
        "",
        (
            "it is not explained by a scaled loss, a shifted mask, turned advantages or equally weighted micro-batches",
            "the recorded log-probs, mask or advantages may not be those of the update",
        ),
        ("compare how the trainer computes this number with the definition: rlvitals explain {metric}",),
    ),
}


class Rechecks:
    """The comparisons of one run, one after the other."""

    def __init__(self) -> None:
        self._standing: dict[str, int] = {}  # rule -> compared steps since it last held

    @property
    def standing(self) -> frozenset[str]:
        """The rules in alarm."""
        return frozenset(self._standing)

    def stand(self, rules: Iterable[str]) -> None:
        """These are in alarm."""
        self._standing |= dict.fromkeys(rules, 0)

    def take(self, checked: Recheck) -> list[HealthEvent]:
        """What a comparison leads to. Steps come in order."""
        events = []
        found = finding_of(checked) if checked.differences else None
        for rule in list(self._standing):
            self._standing[rule] = 0 if found is not None and found.rule == rule else self._standing[rule] + 1
            if self._standing[rule] >= CLEAR_STEPS:
                del self._standing[rule]
                events.append(HealthEvent("recovered", checked.step, facts={"rule": rule}, seen_in="tokens"))
        if found is not None and found.rule not in self._standing:
            self._standing[found.rule] = 0
            events.append(HealthEvent("raised", checked.step, finding=found, seen_in="tokens"))
        return events


def finding_of(checked: Recheck) -> Finding:
    """The differences of a step as a finding."""
    first = max(checked.differences, key=_distance)
    words = _WORDS[checked.cause]
    evidence: dict[str, float | str] = {
        "metric": first.name, "logged": first.logged, "recomputed": first.recomputed,
        "rollouts": float(checked.rollouts), **checked.facts,
    }  # fmt: skip
    for number, other in enumerate((each for each in checked.differences if each is not first), 2):
        if number > MOST_TOLD:
            break
        evidence[f"also {other.name}"] = f"logged {other.logged:.4g}, recomputed {other.recomputed:.4g}"
    count = checked.facts.get("count_of")
    told = evidence | {
        "counted": f", which is the number of {count}" if count else "",
        "direction": "to the right" if checked.facts.get("shift") == 1 else "to the left",
    }
    is_sure = checked.is_whole or checked.cause == "advantage_sign"
    severity = words.severity if is_sure else "info" if checked.cause == "not_explained" else "warning"
    causes = words.causes
    if not checked.is_whole:
        causes = (*causes, f"only {checked.rollouts} rollouts of the step were recorded with tokens")
    return Finding(
        rule=f"recomputed_{checked.cause}",
        kind="data",
        severity=severity,
        step=checked.step,
        onset_step=checked.step,
        title=fill(_TITLE + words.ending, told),
        confidence=0.95 if is_sure else 0.6,
        evidence=evidence,
        causes=tuple(fill(text, told) for text in causes),
        advice=tuple(fill(text, told) for text in words.advice),
        action="warn" if severity == "critical" else "none",
        metrics=tuple(each.name for each in checked.differences if each.name != "advantage"),
    )


def _distance(each: Difference) -> tuple[bool, float]:
    """Losses first: they are what is trained on. Then what is furthest off."""
    return "loss" in each.name, abs(each.logged - each.recomputed) / (abs(each.recomputed) + abs(each.logged) + 1e-12)
