"""Patterns in the texts of rollouts (`scan`): whether they are rewarded, and whether they spread."""

from __future__ import annotations

from rlvitals.health.alarm import Alarm, critical, info, since, warning
from rlvitals.records import SEVERITIES, Scanned


def gamed_text(
    scanned: Scanned, *, least: float, share: float, share_critical: float, share_alone: float, gain: float,
    gain_z: float, growth_z: float,
) -> Alarm | None:  # fmt: skip
    """A pattern of exploits. Critical if rollouts with it earn more than others of the same prompt and become more
    frequent, a warning if one of the two is true, otherwise a remark.
    """
    if scanned.recent_hits < least or scanned.share < share:
        return None
    earns = _earns(scanned, gain, gain_z)
    loses = scanned.gain is not None and scanned.gain_z <= -gain_z
    grows = scanned.growth_z >= growth_z and scanned.share > scanned.start_share
    if earns and (grows or scanned.share >= share_alone) and scanned.share >= share_critical:
        return _alarm(scanned, critical(None, "earns_and_grows" if grows else "earns"))
    if earns:
        return _alarm(scanned, warning(None, "earns"))
    if grows and not loses and scanned.share >= share_critical:
        return _alarm(scanned, warning(None, "grows"))
    if scanned.share >= share_alone and not loses:
        return _alarm(scanned, warning(None))
    return _alarm(scanned, info(None))


def spreading_text(
    scanned: Scanned, *, least: float, share: float, rise: float, share_alone: float, gain: float, gain_z: float,
    growth_z: float,
) -> Alarm | None:  # fmt: skip
    """A habit that the model may always have had. A warning if it becomes frequent or is rewarded, critical if most
    rollouts show it and both are true, a remark if it was always there.
    """
    if scanned.recent_hits < least or scanned.share < share:
        return None
    earns = _earns(scanned, gain, gain_z)
    grows = _grows(scanned, growth_z, rise)
    if earns and grows:
        grave = critical if scanned.share >= share_alone else warning
        return _alarm(scanned, grave(None, "earns_and_grows"))
    if grows:
        return _alarm(scanned, warning(None, "grows"))
    if earns:
        return _alarm(scanned, warning(None, "earns"))
    return _alarm(scanned, info(None))


def alike_text(
    scanned: Scanned, *, least: float, share: float, rise: float, share_alone: float, gain: float, gain_z: float,
    growth_z: float,
) -> Alarm | None:  # fmt: skip
    """Groups whose rollouts are nearly identical. A warning if most of them have become so without earning more than
    others. If they earn more, the policy agrees on right answers, which is the goal: a remark.
    """
    if scanned.recent_hits < least or scanned.share < share:
        return None
    earns = _earns(scanned, gain, gain_z)
    grows = _grows(scanned, growth_z, rise)
    if earns:
        return _alarm(scanned, info(None, "earns"))
    if grows and scanned.share >= share_alone:
        return _alarm(scanned, warning(None, "grows"))
    return _alarm(scanned, info(None))


def declared_text(scanned: Scanned, *, least: float, share: float, gravity: float) -> Alarm | None:
    """A pattern that the user declared, with the user's severity, from the required number of hits on."""
    if scanned.recent_hits < least or scanned.share < share:
        return None
    grave = {"info": info, "warning": warning, "critical": critical}[SEVERITIES[int(gravity)]]
    return _alarm(scanned, grave(None))


def _earns(scanned: Scanned, gain: float, gain_z: float) -> bool:
    """Whether rollouts with the pattern earn more than the others."""
    return scanned.gain is not None and scanned.gain_z >= gain_z and scanned.gain >= gain * scanned.spread


def _grows(scanned: Scanned, growth_z: float, rise: float) -> bool:
    """Whether the pattern has become more frequent."""
    return scanned.growth_z >= growth_z and scanned.share - scanned.start_share >= rise


def _alarm(scanned: Scanned, alarm: Alarm) -> Alarm:
    evidence: dict[str, float | str] = {
        "share": scanned.share, "start_share": scanned.start_share, "hits": float(scanned.hits),
        "of_rollouts": float(scanned.rollouts), "growth_z": scanned.growth_z,
    }  # fmt: skip
    if scanned.gain is not None:
        evidence |= {"gain": scanned.gain, "gain_z": scanned.gain_z}
    alarm.evidence |= evidence
    return since(scanned.onset_step, alarm)
