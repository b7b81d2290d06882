"""What `/api/rollouts` answers: steps, a page of groups, one group whole, or hits."""

from __future__ import annotations

import math
from typing import Any

from rlvitals.errors import ConfigError, RunNotFound
from rlvitals.records import Group
from rlvitals.store.rollout_forms import plain
from rlvitals.views.rollouts import RunRollouts, outcomes, pick
from rlvitals.web.answers import Query

Facts = dict[str, Any]
PAGE_SIZE = 50


def rollouts_told(log: RunRollouts, query: Query) -> Facts:
    """Without a step: which steps there are. With outcome, search or worst: hits. With a group: whole transcripts."""
    step, page = query.whole("step"), query.whole("page", 0) or 0
    outcome, text, worst = query.text("outcome"), query.text("search"), query.text("worst") == "1"
    if outcome or text or worst:
        wanted = PAGE_SIZE * (max(page, 0) + 1)
        if wanted > 20 * PAGE_SIZE:
            raise ConfigError(f"{20 * PAGE_SIZE} hits are the most; narrow the search")
        hits = log.find(step=step, outcome=outcome, text=text or None, worst=worst, limit=wanted + 1)
        shown = hits[wanted - PAGE_SIZE : wanted]
        return {"hits": [plain(hit._asdict()) for hit in shown], "page": page, "more": len(hits) > wanted}
    if step is None:
        overview = log.overview()
        if not overview:
            raise RunNotFound("no rollouts were recorded; a trainer records them with run.log_groups(groups, step=...)")
        return {"steps": overview, "problems": log.problems}
    groups = log.at(step)
    if not groups:
        raise RunNotFound(f"there are no rollouts at step {step}")
    chosen = query.text("group")
    if chosen is not None:
        number, group = pick(groups, chosen)
        return {"step": step, "groups": [_group(number, group)], "total": len(groups)}
    first = max(page, 0) * PAGE_SIZE
    listed = [_brief(number, group) for number, group in enumerate(groups, 1)]
    return {"step": step, "groups": listed[first : first + PAGE_SIZE], "total": len(groups), "page": page}


def _group(number: int, group: Group) -> Facts:
    told: Facts = {"number": number, "outcomes": outcomes(group), **plain(group)}
    return told | {"early": len(group.early_rollouts)}


def _brief(number: int, group: Group) -> Facts:
    """A group for the list: its rollouts in a line each, without their texts."""
    rewards = [rollout.reward for rollout in group.rollouts if rollout.reward is not None]
    return {
        "number": number,
        "id": group.id,
        "prompt": group.prompt[:300],
        "mean": _finite(group.mean),
        "std": _finite(group.std),
        "rewards": [_finite(reward) for reward in rewards],
        "kept": group.kept,
        "reason": group.reason,
        "outcomes": outcomes(group),
        "early": len(group.early_rollouts),
        "rollouts": len(group.rollouts),
    }


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
