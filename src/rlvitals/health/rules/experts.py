"""Mixtures of experts: routes that differ between engine and trainer, and a router that narrows."""

from __future__ import annotations

from rlvitals.health.alarm import Alarm, critical, warning
from rlvitals.health.statistics import FAST_SHARE, Signal


def routes_differ(
    routing_mismatch: Signal | None,
    replay_fallback: Signal | None,
    *,
    share: float,
    share_critical: float,
    grown: float,
    times: float,
    lost: float,
    noises: float,
) -> Alarm | None:
    """Engine and trainer send the same tokens to different experts, or routes to be replayed have no record."""
    found: Alarm | None = None
    if routing_mismatch is not None and routing_mismatch.n:
        level = routing_mismatch.at_least
        has_grown = (
            level > grown
            and level > times * routing_mismatch.base
            and level - routing_mismatch.base > noises * FAST_SHARE * routing_mismatch.noise_base
        )
        if level > share_critical:
            found = critical(routing_mismatch, share=level)
        elif level > share or has_grown:
            found = warning(routing_mismatch, share=level)
    if found is None and replay_fallback is not None and replay_fallback.n:
        level = replay_fallback.at_least
        if level > lost:
            found = warning(replay_fallback, "no_record", share=level)
    if found is not None:
        found.cause = "expert_routing"
    return found


def experts_unbalanced(
    expert_load: Signal, reward: Signal | None, *, level: float, times: float, noises: float
) -> Alarm | None:
    """The busiest expert gets a growing multiple of its share: the router narrows to a few experts."""
    now = expert_load.at_least
    if now < level or now < times * max(expert_load.base, 0.0):
        return None
    if now - expert_load.base < noises * FAST_SHARE * expert_load.noise_base:
        return None
    hurt = reward is not None and reward.hurt
    return (critical if hurt else warning)(expert_load, more=now + 1, first=expert_load.base + 1)


def experts_idle(expert_idle: Signal, *, share: float, rise: float, noises: float) -> Alarm | None:
    """More and more experts get no token at all."""
    now = expert_idle.at_least
    risen = now - expert_idle.base
    if now < share or risen < rise or risen < noises * FAST_SHARE * expert_idle.noise_base:
        return None
    return warning(expert_idle, share=now, first=expert_idle.base)
