"""Weighs a rule's alarm by the state of the run's outcome, with probabilities measured on labelled runs.

A rule proposes a severity. `data/reliability.json` holds, for each rule, proposal and state of the outcome, two
probabilities estimated from labelled logs and generated runs: that such a run has failed, and that it has failed or is
worth watching. The alarm stays critical only where the first is high enough. Otherwise it is a warning where the second
is high enough, or an info. The probability is the finding's confidence. `benchmarks/calibration.py --fit` writes the
table. A rule that is not in it keeps the severity it proposes and the confidence of its entry.

Three groups of rules are not weighed: rules that a user or a preset has written or changed, because their author has
weighed them; rules about the machine and the log itself, because a training may go well on a bad machine; and rules
whose evidence is the outcome itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rlvitals.health.entries import Rule, parameters
from rlvitals.health.outcome import OutcomeState
from rlvitals.health.rules import ON_TICK
from rlvitals.records import Severity

_UNWEIGHED_KINDS = frozenset({"stall", "throughput", "memory", "gpu_idle", "data", "class_imbalance"})
"""Kinds that are no evidence of how well the policy learns."""

INSIDES = frozenset({
    "loss_divergence", "instability", "lr_too_low", "lr_too_high", "kl_explosion", "kl_negative", "entropy_collapse",
    "entropy_explosion", "clip_saturation", "ratio_off", "value_failure", "grad_explosion", "dead_gradient",
    "length_explosion", "length_collapse", "staleness", "logprob_mismatch",
})  # fmt: skip
"""Kinds about the internals of the training, not about its outcome. Their meaning depends most on the outcome, so they
are not critical while that is up. Exceptions are the kinds that mean that nothing is trained at all."""

_UNTRAINED = frozenset({"lr_too_low", "dead_gradient"})

_WEIGH_THEMSELVES = frozenset({
    "slice_collapse", "lost_to_failures", "coverage_lost", "prompts_lost", "answers_alike", "prompt_ignored",
    "eval_left_behind",
})  # fmt: skip
"""Functions whose evidence is the outcome itself, of a part of the run or together with its cause: the state of the
whole outcome adds nothing."""

_UNSEEN = frozenset({
    "sync_without_effect", "engine_stands_still", "gap_growing", "routes_differ", "experts_unbalanced", "experts_idle",
    "teacher_not_approached", "student_leaves_teacher",
})  # fmt: skip
"""Functions that read metrics that no labelled log has, so how often they are right is unknown."""

_RECORDED = frozenset({"recheck", "scanned"})
"""Parameters of rules about recorded rollouts, which read no rows."""

_TABLE = Path(__file__).parent / "data" / "reliability.json"


def is_weighed(rule: Rule) -> bool:
    """Whether alarms of a shipped rule are weighed. Rules about the clock, the machine, the log and recorded rollouts
    are not, nor those that weigh the outcome themselves, nor those for which there is no labelled log.
    """
    if rule.kind in _UNWEIGHED_KINDS or rule.function in ON_TICK | _WEIGH_THEMSELVES | _UNSEEN:
        return False
    return bool(rule.when) or _RECORDED.isdisjoint(name for name, _ in parameters(rule.function).signals)


class Chances(NamedTuple):
    """The probabilities of a run with this alarm."""

    failed: float
    sick: float
    """Failed, or worth watching."""


class Scales:
    """The table, and the probabilities that an alarm needs to be critical (`act`) or a warning (`watch`).

    >>> table = {"kl_explosion critical up": Chances(0.3, 0.8), "kl_explosion critical down": Chances(0.9, 0.95)}
    >>> scales = Scales(table, act=0.6, watch=0.6)
    >>> scales.weigh("kl_explosion", "critical", "up", "kl_explosion")
    ('warning', 0.8)
    >>> scales.weigh("kl_explosion", "critical", "down", "kl_explosion")
    ('critical', 0.9)
    """

    def __init__(self, table: Mapping[str, Chances], *, act: float, watch: float) -> None:
        self._act = act
        self._watch = watch
        self._table = table

    def weigh(self, rule: str, proposed: Severity, state: OutcomeState, kind: str) -> tuple[Severity, float | None]:
        """The severity after weighing a rule's proposal, and the finding's confidence; None where nothing is known."""
        chances = self._table.get(f"{rule} {proposed} {state}")
        if chances is None or proposed == "info":
            return proposed, None
        can_be_critical = proposed == "critical" and not (state == "up" and kind in INSIDES - _UNTRAINED)
        if can_be_critical and chances.failed >= self._act:
            return "critical", chances.failed
        return ("warning" if chances.sick >= self._watch else "info"), chances.sick


@cache
def shipped() -> Scales:
    """The scales of the data file."""
    data = json.loads(_TABLE.read_bytes())
    table = {key: Chances(*pair) for key, pair in data["chances"].items()}
    return Scales(table, act=data["act"], watch=data["watch"])
