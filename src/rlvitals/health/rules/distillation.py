"""On-policy distillation: whether the student approaches its teacher, and how much of the teacher the loss covers."""

from __future__ import annotations

from rlvitals.health.alarm import Alarm, critical, since, warning
from rlvitals.health.statistics import FAST_SHARE, Signal


def teacher_not_approached(
    teacher_kl: Signal,
    *,
    points: float,
    ratio: float,
    times: float,
    rising: float,
    noises: float,
    above: float,
    returned: float,
) -> Alarm | None:
    """The reverse KL to the teacher, which training minimises, does not fall, or it rises, possibly after a fall."""
    base = teacher_kl.base
    if not base > 0:
        return None
    now = teacher_kl.at_least
    is_falling = teacher_kl.rising <= -rising
    risen = now - base > noises * FAST_SHARE * max(teacher_kl.noise, teacher_kl.noise_base)
    if now > times * base and risen and not is_falling:
        return critical(teacher_kl, "rises", times=now / base)
    low = min(teacher_kl.course.levels, default=base)
    # Twice a KL that is close to 0 is still close to 0, so the rise must also undo a part of the fall.
    way = max((above - 1.0) * low, returned * (base - low), noises * FAST_SHARE * teacher_kl.noise)
    if now - low > way and not is_falling:
        return since(_end_of(low, teacher_kl), warning(teacher_kl, "leaves", level=now, lowest=low))
    is_flat = min(now, teacher_kl.slow) > ratio * base and not is_falling and teacher_kl.trend > -rising
    return warning(teacher_kl, share=now / base) if teacher_kl.n >= points and is_flat else None


def student_leaves_teacher(
    student_mass: Signal | None, teacher_overlap: Signal | None, *, ratio: float, returned: float, noises: float
) -> Alarm | None:
    """The student gives the teacher's likely tokens less and less probability."""
    for signal in (student_mass, teacher_overlap):
        if signal is None or not signal.n or not signal.base > 0:
            continue
        best = max([signal.base, *signal.course.levels])
        now = signal.at_most
        way = max(
            (1.0 - ratio) * best,
            returned * (best - signal.base),
            noises * FAST_SHARE * max(signal.noise, signal.noise_base),
        )
        if best - now > way:
            return since(_end_of(best, signal), warning(signal, share=now, best=best))
    return None


def _end_of(level: float, signal: Signal) -> int:
    """The step at which the stretch with this level ended; the first step if no stretch has it."""
    levels = signal.course.levels
    ended = (levels.index(level) + 1) / len(levels) if level in levels else 0.0
    return signal.first_step + round(ended * (signal.step - signal.first_step))


def teacher_cut_off(teacher_mass: Signal, *, share: float) -> Alarm | None:
    """The teacher's k most likely tokens hold too little of its probability."""
    level = teacher_mass.at_most
    return warning(teacher_mass, share=level) if level < share else None
