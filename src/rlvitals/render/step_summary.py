"""The summary of a GRPO step, full or short, with the facts of the GRPO agent's document in its order.

Owns the wording. The numbers come from the trainer and from the groups. Unknown facts are left out.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlvitals.records import Group
from rlvitals.render.transcript import group_heading, rollout_heading
from rlvitals.render.turn_table import LINE, WIDTH, turn_table
from rlvitals.terminal import visible

PHASES = ("ROLLOUT COLLECTION", "ADVANTAGES", "TOKENIZATION & OLD LOG-PROBS", "BACKPROPAGATION & OPTIMIZATION")
"""The phases of a step, numbered from 1."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """The numbers of one step."""

    step: int
    total_steps: int | None = None
    groups: int = 0
    kept: int = 0
    filtered: int = 0
    rollouts: int = 0
    early: int = 0
    """Rollouts that ended before the turn limit, for any reason."""
    early_reasons: Mapping[str, int] = field(default_factory=dict)
    grad_norm: float | None = None
    """Before clipping, as `clip_grad_norm_` returns it."""
    grad_norm_clipped: float | None = None
    tokens_trained: int | None = None
    loss: float | None = None
    rollout_seconds: float | None = None
    training_seconds: float | None = None
    tokens: int | None = None
    trainable_tokens: int | None = None


def is_verbose(asked: bool | None = None) -> bool:
    """Whether turn tables, rollout details and full summaries are printed. Without `asked`, `VERBOSE=true` decides."""
    return os.environ.get("VERBOSE", "").lower() in ("1", "true", "yes", "on") if asked is None else asked


def step_facts(
    groups: Sequence[Group],
    step: int,
    *,
    total_steps: int | None = None,
    grad_norm: float | None = None,
    max_grad_norm: float | None = None,
    tokens_trained: int | None = None,
    loss: float | None = None,
    rollout_seconds: float | None = None,
    training_seconds: float | None = None,
) -> StepFacts:
    """Count the groups of a step. The counts include the rollouts of filtered groups.

    `grad_norm` is the norm before clipping, as `clip_grad_norm_` returns it. `max_grad_norm` gives the norm after it.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    early = [rollout for group in groups for rollout in group.early_rollouts]
    tokens = [count for rollout in rollouts if (count := rollout.total_tokens) is not None]
    own = [count for rollout in rollouts if (count := rollout.total_trainable) is not None]
    clipped = None if grad_norm is None or max_grad_norm is None else min(grad_norm, max_grad_norm)
    return StepFacts(
        step=step,
        total_steps=total_steps,
        groups=len(groups),
        kept=sum(group.kept is True for group in groups),
        filtered=sum(group.kept is False for group in groups),
        rollouts=len(rollouts),
        early=len(early),
        early_reasons=dict(Counter(one.stop or one.outcome or "unknown" for one in early).most_common()),
        grad_norm=grad_norm,
        grad_norm_clipped=clipped,
        tokens_trained=tokens_trained,
        loss=loss,
        rollout_seconds=rollout_seconds,
        training_seconds=training_seconds,
        tokens=sum(tokens) if tokens else None,
        trainable_tokens=sum(own) if own else None,
    )


def concise(facts: StepFacts) -> str:
    """The short summary, in three lines.

    >>> print(concise(StepFacts(10, 200, groups=8, kept=6, filtered=2, rollouts=48, early=18)))
    Step 10/200
    Collecting 6 rollouts for 8 queries...
      Groups: 6/8 kept (2 filtered), 18/48 finished early
    """
    return "\n".join([*opening(facts), closing(facts)])


def opening(facts: StepFacts) -> list[str]:
    """The text before a step's rollouts are collected. `facts` holds the planned numbers of groups and rollouts."""
    of = f"/{facts.total_steps}" if facts.total_steps is not None else ""
    each = facts.rollouts / facts.groups if facts.groups else 0
    return [f"Step {facts.step}{of}", f"Collecting {each:g} rollouts for {facts.groups} queries..."]


def closing(facts: StepFacts) -> str:
    """The text after a step's rollouts are collected."""
    kept = f"{facts.kept}/{facts.groups} kept ({facts.filtered} filtered)"
    return f"  Groups: {kept}, {facts.early}/{facts.rollouts} finished early"


def banner(phase: int) -> str:
    """The heading of a phase, 1 to 4.

    >>> print(banner(4).splitlines()[1])
    STEP PHASE 4: BACKPROPAGATION & OPTIMIZATION
    """
    rule = LINE * WIDTH
    return f"{rule}\nSTEP PHASE {phase}: {PHASES[phase - 1]}\n{rule}"


def group_details(groups: Sequence[Group], width: int = WIDTH) -> str:
    """All groups, including filtered ones, each with its rollouts and its turn table. Call it after the advantages."""
    parts = []
    for number, group in enumerate(groups, 1):
        rollouts = [rollout_heading(place, rollout) for place, rollout in enumerate(group.rollouts, 1)]
        parts.append("\n".join([group_heading(number, group), *rollouts, turn_table(group, width)]))
    return "\n\n".join(parts)


def verbose(facts: StepFacts) -> str:
    """The block of the last phase: the training numbers and the summary of the groups."""
    lines = [banner(4)]
    trained = {
        "Grad norm (before clipping)": _form(facts.grad_norm, ".4f"),
        "Grad norm (after clipping)": _form(facts.grad_norm_clipped, ".4f"),
        "Tokens trained": _form(facts.tokens_trained, ","),
        "Total loss": _form(facts.loss, ".4f"),
    }
    lines += [f"✓ {name}: {value}" for name, value in trained.items() if value]
    reasons = ", ".join(f"{visible(reason)} {count}" for reason, count in facts.early_reasons.items())
    share = f" ({facts.trainable_tokens / facts.tokens:.1%})" if facts.tokens and facts.trainable_tokens else ""
    summary = {
        "Total groups": str(facts.groups),
        "Groups kept for training": str(facts.kept),
        "Groups filtered (low variance)": str(facts.filtered),
        "Rollouts that finished early (didn't exhaust turns)": f"{facts.early}/{facts.rollouts}"
        + (f" ({reasons})" if reasons else ""),
        "Total rollout time": _form(facts.rollout_seconds, ".1f", "s"),
        "Total training time": _form(facts.training_seconds, ".1f", "s"),
        "Total tokens": _form(facts.tokens, ","),
        "Trainable tokens": _form(facts.trainable_tokens, ",", share),
    }
    lines += ["", "Group Summary:", *[f"  - {name}: {value}" for name, value in summary.items() if value]]
    return "\n".join([*lines, LINE * WIDTH])


def _form(number: float | None, form: str, unit: str = "") -> str:
    return "" if number is None else f"{number:{form}}{unit}"
