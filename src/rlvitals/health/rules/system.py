"""The machine: silence, slow steps, memory, idle accelerators."""

from __future__ import annotations

import math

from rlvitals.health.alarm import Alarm, critical, info, warning
from rlvitals.health.case import Case
from rlvitals.health.statistics import FAST_SHARE, NEAR_ZERO, TINY, Signal

SHARE_AT_MOST = 1.5
"""A share of memory that has been above this is a percentage."""


def stall(
    case: Case, *, times: float, seconds: float, times_critical: float, seconds_critical: float, points: float
) -> Alarm | None:
    """No row has been logged for much longer than usual."""
    silence = _silence(case)
    if not silence > 0 or case.points < points or not case.interval.n or case.lost_pid is not None:
        return None
    usual = case.interval.slow
    if silence > max(times_critical * usual, seconds_critical):
        return critical(None, silence=silence, usual=usual)
    return warning(None, silence=silence, usual=usual) if silence > max(times * usual, seconds) else None


def process_gone(case: Case) -> Alarm | None:
    """The trainer's process has ended silently."""
    if case.lost_pid is None:
        return None
    pid = float(case.lost_pid)
    if not case.points:
        return critical(None, "no_row", pid=pid)
    return critical(None, pid=pid, step=float(case.step), silence=max(0.0, _silence(case)))


def phase_stall(case: Case, *, times: float, seconds: float) -> Alarm | None:
    """Nothing has happened in a phase for much longer than it usually takes. If several phases are open, the one with
    the longest silence is reported.
    """
    stuck = [phase for phase in case.open_phases if phase.silence > max(times * (phase.usual or 0.0), seconds)]
    if not stuck:
        return None
    longest = max(stuck, key=lambda phase: phase.silence)
    if longest.usual is None:
        return warning(None, "first", phase=longest.phase, silence=longest.silence)
    return warning(None, phase=longest.phase, silence=longest.silence, usual=longest.usual)


def _silence(case: Case) -> float:
    """Seconds without a row."""
    return case.now - (case.timestamp if not math.isnan(case.timestamp) else case.noticed_at)


def slow_step(step_time: Signal, *, times: float) -> Alarm | None:
    """One step took many times as long as usual: a checkpoint, an evaluation, a straggler."""
    return (
        info(step_time, times=step_time.last / max(step_time.slow, NEAR_ZERO))
        if step_time.last > times * max(step_time.slow, NEAR_ZERO)
        else None
    )


def throughput(
    case: Case,
    step_time: Signal | None,
    tokens_per_s: Signal | None,
    length: Signal | None,
    cpu_wait: Signal | None,
    *,
    times: float,
    seconds: float,
    points: float,
    noises: float,
    length_share: float,
) -> Alarm | None:
    """Steps take much longer than at the start. Longer answers are the usual cause, and are then reported as such, as
    is a training that waits for a processor. Steps of milliseconds vary with other load on the machine.
    """
    slower = math.nan
    signal = None
    if tokens_per_s is not None and tokens_per_s.n >= points and tokens_per_s.base > 0:
        level = tokens_per_s.at_most
        if level > 0 and tokens_per_s.base - level > noises * FAST_SHARE * tokens_per_s.noise_base:
            signal, slower = tokens_per_s, tokens_per_s.base / level
        elif tokens_per_s.median5 <= 0:
            signal, slower = tokens_per_s, math.inf
    if step_time is not None and step_time.n >= points and step_time.base > 0 and not slower >= times:
        level = step_time.at_least
        slowed = level - step_time.base
        if slowed > seconds and slowed > noises * FAST_SHARE * step_time.noise_base:
            signal, slower = step_time, level / step_time.base
    if signal is None or not slower >= times or signal.seen_at != case.points:
        return None
    grown = length.ratio if length is not None and not math.isnan(length.ratio) else 1.0
    if signal is step_time and grown > length_share * slower:
        return info(signal, "length", times=slower, length=grown)
    if cpu_wait is not None and cpu_wait.seen_at == case.points and _is_explained(slower, cpu_wait, times):
        return info(signal, "waiting", times=slower, waiting=cpu_wait.median5)
    return warning(signal, times=slower, length=grown)


def _is_explained(slower: float, cpu_wait: Signal, times: float) -> bool:
    """Whether waiting for a processor is most of a slowdown, and the rest is too small to report."""
    at_start, now = 1.0 - cpu_wait.base, 1.0 - cpu_wait.median5
    by_waiting = at_start / now if now > 0 else math.inf
    return by_waiting * by_waiting > slower and slower < times * by_waiting


def memory_full(
    case: Case,
    gpu_memory: Signal | None,
    gpu_memory_share: Signal | None,
    gpu_memory_total: Signal | None,
    host_memory_share: Signal | None,
    *,
    warn: float,
    grave: float,
    points: float,
    falling: float,
    varies_times: float,
) -> Alarm | None:
    """So little memory is left that the next long batch may end the run."""
    for signal, share in _shares(case, gpu_memory, gpu_memory_share, gpu_memory_total, host_memory_share):
        if (
            share > grave
            and signal.n >= points
            and signal.rising > -falling
            and signal.highest > signal.lowest * varies_times
        ):
            return critical(signal, share=share)
        if share > warn and signal is host_memory_share:
            return warning(signal, share=share)
    return None


def memory_creep(
    case: Case,
    gpu_memory: Signal | None,
    gpu_memory_share: Signal | None,
    gpu_memory_total: Signal | None,
    host_memory_share: Signal | None,
    *,
    points: float,
    t: float,
    growth: float,
    points_least: float,
    momentum: float,
    steady: float,
    rise_least: float,
    share_least: float,
    share_full: float,
    planned_times: float,
) -> Alarm | None:
    """Memory grows steadily and will be full soon."""
    for signal, share in _shares(case, gpu_memory, gpu_memory_share, gpu_memory_total, host_memory_share):
        rise = signal.fast - signal.base
        if (
            signal.n < points_least
            or rise < rise_least * abs(signal.base)
            or signal.momentum < momentum
            or signal.speed < steady * rise / signal.n  # slowing down: caches that fill up
            or signal.trend < t
        ):
            continue
        per_point = signal.speed
        if not math.isnan(share) and share > share_least:
            left = (share_full - share) / max(share * per_point / max(signal.fast, NEAR_ZERO), TINY)
            planned = case.planned_points
            if left < max(points, min(planned - case.points, planned_times * points) if planned else 0):
                return warning(signal, share=share, left=left)
        elif rise > growth * abs(signal.base):
            return warning(signal, "unknown_size", growth=rise / max(abs(signal.base), NEAR_ZERO))
    return None


def _shares(
    case: Case,
    gpu_memory: Signal | None,
    gpu_memory_share: Signal | None,
    gpu_memory_total: Signal | None,
    host_memory_share: Signal | None,
) -> list[tuple[Signal, float]]:
    """Each memory series with the share of the memory that is used; NaN where the size of the memory is not known."""
    found = []
    for signal in (gpu_memory_share, host_memory_share):
        if signal is not None and signal.n:
            level = signal.at_least
            found.append((signal, level / 100.0 if signal.highest > SHARE_AT_MOST else level))
    if gpu_memory is not None and gpu_memory.n:
        total = case.number("gpu_memory_total_gb", "gpu_memory_gb")
        if total is None and gpu_memory_total is not None and gpu_memory_total.n:
            total = gpu_memory_total.last
        found.append((gpu_memory, gpu_memory.at_least / total if total else math.nan))
    return found


def gpu_idle(
    gpu_utilisation: Signal, *, percent: float, drop: float, points: float, percent_dropped: float
) -> Alarm | None:
    """The accelerator is idle most of the time."""
    scale = 100.0 if gpu_utilisation.highest <= 1.0 else 1.0
    level = max(gpu_utilisation.slow, gpu_utilisation.fast) * scale
    if level < percent or (
        gpu_utilisation.n >= points
        and gpu_utilisation.base > 0
        and level < drop * gpu_utilisation.base * scale
        and level < percent_dropped
    ):
        return warning(gpu_utilisation, percent=level)
    return None
