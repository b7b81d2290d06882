"""On-policy distillation: whether the student comes closer to its teacher, and how much of it the loss sees."""

from __future__ import annotations

from rlvitals.health.alarm import Alarm, critical, warning
from rlvitals.health.statistics import FAST_SHARE, Signal


def teacher_not_approached(
    teacher_kl: Signal, *, points: float, ratio: float, times: float, rising: float, noises: float
) -> Alarm | None:
    """The reverse KL to the teacher, which is what is minimised, does not fall, or rises."""
    base = teacher_kl.base
    if not base > 0:
        return None
    now = min(teacher_kl.fast, teacher_kl.median5)
    risen = now - base > noises * FAST_SHARE * max(teacher_kl.noise, teacher_kl.noise_base)
    if now > times * base and risen and teacher_kl.rising > -rising:
        return critical(teacher_kl, "rises", times=now / base)
    is_flat = min(now, teacher_kl.slow) > ratio * base and teacher_kl.rising > -rising and teacher_kl.trend > -rising
    return warning(teacher_kl, share=now / base) if teacher_kl.n >= points and is_flat else None


def student_leaves_teacher(
    student_mass: Signal | None, teacher_overlap: Signal | None, *, ratio: float, noises: float
) -> Alarm | None:
    """The student gives the teacher's likely tokens less and less probability."""
    for signal in (student_mass, teacher_overlap):
        if signal is None or not signal.n or not signal.base > 0:
            continue
        now = max(signal.fast, signal.median5)
        if now < ratio * signal.base and signal.base - now > noises * FAST_SHARE * signal.noise_base:
            return warning(signal, share=now, first=signal.base)
    return None


def teacher_cut_off(teacher_mass: Signal, *, share: float) -> Alarm | None:
    """The teacher's k most likely tokens hold too little of its probability."""
    level = max(teacher_mass.fast, teacher_mass.median5)
    return warning(teacher_mass, share=level) if level < share else None
