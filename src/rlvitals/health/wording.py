"""Turns an alarm's numbers into evidence and a rule's templates into sentences.

Advice contains a run's own settings: `halve learning_rate {learning_rate / 2}` becomes "halve learning_rate
(0.03 -> 0.015)", `raise beta {beta?}` becomes "raise beta (now 0.04)". Where a run does not give the setting, the slot
is removed and the general advice remains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlvitals.health.alarm import Alarm
from rlvitals.records import Citation, Finding

if TYPE_CHECKING:  # a run without a monitor does not load the catalogue
    from rlvitals.health.case import Case
    from rlvitals.health.entries import Rule

SETTINGS: dict[str, tuple[str, ...]] = {
    "learning_rate": ("learning_rate", "lr", "actor_lr", "policy_lr", "actor_learning_rate"),
    "beta": ("beta", "kl_coef", "init_kl_coef", "kl_loss_coef", "kl_penalty_coef", "reference_policy_kl_penalty"),
    "max_completion_length": (
        "max_completion_length", "max_new_tokens", "max_response_length", "response_length", "generate_max_len",
        "max_total_sequence_length",
    ),
    "num_generations": ("num_generations", "group_size", "n_samples_per_prompt", "num_generations_per_prompt"),
    "inner_epochs": ("num_iterations", "ppo_epochs", "num_ppo_epochs", "update_epochs"),
    "epsilon_high": ("epsilon_high", "clip_ratio_high", "eps_clip_high", "clip_eps_high"),
    "temperature": ("temperature",),
    "max_grad_norm": ("max_grad_norm", "clip_grad", "grad_clip"),
    "warmup_ratio": ("warmup_ratio", "lr_warmup_steps_ratio"),
    "max_turns": ("max_turns", "max_rollout_turns"),
    "per_device_train_batch_size": ("per_device_train_batch_size", "micro_train_batch_size"),
}  # fmt: skip
"""The settings used in advice, with the names that trainers give them."""

_OWN = re.compile(r"\s?\{(\w+)(?:\?|\s*([*/])\s*([\d.]+))\}")
_SLOT = re.compile(r"\{(\w+)(?::([-+ ,.%\w]*))?\}")


def evidence_of(alarm: Alarm) -> dict[str, float | str]:
    """The alarm's own numbers, and those of every finding about a signal: value, level, baseline, noise, points."""
    evidence: dict[str, float | str] = {}
    signal = alarm.signal
    if signal is not None:
        evidence["metric"] = signal.key
        for name, number in (
            ("value", signal.last),
            ("level", signal.fast),
            ("base", signal.base),
            ("noise", signal.noise),
            ("points", float(signal.n)),
        ):
            if math.isfinite(number):
                evidence[name] = number
    for name, value in alarm.evidence.items():
        # Findings are written as strict JSON, which has no infinity, so such a number is kept as text.
        evidence[name] = value if isinstance(value, str) or math.isfinite(value) else f"{value:g}"
    return evidence


def finding_of(
    rule: Rule, alarm: Alarm, step: int, *, further_causes: tuple[str, ...] = (), metrics: tuple[str, ...] = (),
    cited: tuple[Citation, ...] = (),
) -> Finding:  # fmt: skip
    """The finding for an alarm about recorded rollouts, whose rules have no settings and no series."""
    evidence = evidence_of(alarm)
    words, severity = rule.texts_of(alarm.variant), alarm.severity
    return Finding(
        rule=rule.rule,
        kind=rule.kind,
        severity=severity,
        step=step,
        onset_step=step if alarm.onset_step is None else alarm.onset_step,
        title=fill(words.title, evidence),
        confidence=rule.confidence if alarm.confidence is None else alarm.confidence,
        evidence=evidence,
        causes=(*(fill(text, evidence) for text in words.causes), *further_causes),
        advice=tuple(fill(of_this_run(text, {}), evidence) for text in words.advice),
        action=rule.action_critical if severity == "critical" else rule.action if severity == "warning" else "none",
        metrics=metrics,
        cause=alarm.cause,
        cited=cited,
    )


def own_numbers(case: Case) -> dict[str, float]:
    """The settings that a run gives. A learning rate that is not among them is read from the log."""
    settings = {name: value for name, names in SETTINGS.items() if (value := case.number(*names)) is not None}
    rate = case.signals.get("lr")
    if "learning_rate" not in settings and rate is not None and math.isfinite(rate.last) and rate.last > 0:
        settings["learning_rate"] = rate.last
    return settings


def of_this_run(template: str, own: Mapping[str, float]) -> str:
    """Put a run's own settings into advice; slots of unknown settings are removed.

    >>> own = {"learning_rate": 0.03, "beta": 0.04}
    >>> of_this_run("raise beta {beta?}, halve learning_rate {learning_rate / 2}; fewer epochs {inner_epochs?}", own)
    'raise beta (now 0.04), halve learning_rate (0.03 -> 0.015); fewer epochs'
    """

    def put(match: re.Match[str]) -> str:
        name, sign, factor = match.groups()
        if name not in SETTINGS:
            return match[0]  # a slot of a user's rule
        now = own.get(name)
        if now is None or (sign and now == 0):
            return ""
        if not sign:
            return f" (now {now:.4g})"
        return f" ({now:.4g} -> {now * float(factor) if sign == '*' else now / float(factor):.4g})"

    return _OWN.sub(put, template)


def fill(template: str, evidence: Mapping[str, float | str]) -> str:
    """Put evidence into a template. Only plain names with a number format are slots: templates come from rule files.

    >>> fill("{metric} is at {ratio:.0%} of its start", {"metric": "entropy", "ratio": 0.21})
    'entropy is at 21% of its start'
    >>> fill("{nothing} is kept as it is", {})
    '{nothing} is kept as it is'
    """

    def put(match: re.Match[str]) -> str:
        value = evidence.get(match[1])
        if value is None:
            return match[0]
        if isinstance(value, str):
            return value
        try:
            return format(value, match[2] or ".4g")
        except ValueError:
            return format(value, ".4g")

    return _SLOT.sub(put, template)
