"""The rules of the training guides: of the KTO, RLAIF and RLHF documents, used by the presets of their names.

The guides use steps and single values; the calibrated rules use points and levels. Several values in a row are still
required wherever one value would be noise.
"""

from __future__ import annotations

from itertools import pairwise

from rlvitals.health.alarm import Alarm, critical, info, warning
from rlvitals.health.case import Case
from rlvitals.health.statistics import Signal
from rlvitals.values import median

_SEVEN = ("loss", "chosen", "rejected", "margin", "grad_norm", "lr", "kto_kl", "kl")


def guide_nonfinite(case: Case) -> Alarm | None:
    """One of the guide's metrics is NaN or infinite."""
    for name in _SEVEN:
        signal = case.signals.get(name)
        if signal is not None and signal.nonfinite_recent >= 1.0 and signal.seen_at == case.points:
            return critical(signal, count=float(signal.nonfinite))
    return None


def guide_margin_negative(margin: Signal, *, step: float, rows: float, very: float) -> Alarm | None:
    """The margin is negative after the first steps, for some rows in a row; or very negative before that."""
    recent = margin.window[-int(rows) :]
    variant = "very" if margin.last < -very else ""
    if margin.step > step and len(recent) >= rows and max(recent) < 0:
        return critical(margin, variant, after=step)
    if variant and len(recent) > 1 and recent[-2] < 0:
        return warning(margin, variant, after=step)
    return None


def guide_margin_backwards(margin: Signal, *, rows: float, band: float) -> Alarm | None:
    """The margin is below the band it may start in, and falls from row to row."""
    recent = margin.window[-int(rows) :]
    falling = all(later < earlier for earlier, later in pairwise(recent))
    if len(recent) >= rows and falling and max(recent) < 0 and margin.last < -band:
        return critical(margin, first=recent[0])
    return None


def guide_margin_stuck(margin: Signal, *, step: float, band: float) -> Alarm | None:
    """The margin is still in the band around 0 it started in."""
    if margin.step > step and abs(margin.median5) <= band and abs(margin.fast) <= band:
        return warning(margin, band=band)
    return None


def guide_rejected_above_chosen(
    chosen: Signal, rejected: Signal, margin: Signal | None, *, step: float, rows: float
) -> Alarm | None:
    """Rejected answers earn more than chosen ones, for some rows in a row. Where the margin is logged, it is read
    instead.
    """
    pairs = list(zip(chosen.window, rejected.window, strict=False))[-int(rows) :]
    if margin is not None or rejected.step <= step or chosen.n != rejected.n or len(pairs) < rows:
        return None
    if all(good < bad for good, bad in pairs):
        return critical(rejected, chosen=chosen.last, rejected=rejected.last)
    return None


def guide_rewards_collapsed(
    chosen: Signal | None, rejected: Signal | None, *, step: float, near: float, moving: float
) -> Alarm | None:
    """The rewards are near zero and do not move. If both are logged, both must be so: one of them may be healthy."""
    logged = [signal for signal in (chosen, rejected) if signal is not None]
    for signal in logged:
        if signal.n < 5 or signal.step <= step or abs(signal.median5) >= near or signal.spread >= moving:
            return None
    return warning(logged[0], spread=logged[0].spread) if logged else None


def guide_loss_not_decreasing(loss: Signal, *, step: float, least: float) -> Alarm | None:
    """After the given number of steps the loss is no lower than its first values."""
    first, now = median(list(loss.head[:3])), median(list(loss.window[-3:]))
    if loss.n > 3 and loss.step >= step and min(now, loss.fast) > first - least:
        return warning(loss, first=first, now=now, after=step)
    return None


def guide_loss_increasing(loss: Signal, *, rows: float, rise: float) -> Alarm | None:
    """The loss rises from row to row, to its highest value and well above its first. One row alone is noise."""
    recent = loss.window[-int(rows) :]
    rising = all(later > earlier for earlier, later in pairwise(recent))
    if len(recent) >= rows and rising and loss.last >= loss.highest and loss.last > loss.head[0] + rise:
        return warning(loss, first=recent[0])
    return None


def guide_unstable(
    case: Case, loss: Signal | None, margin: Signal | None, *, points: float, loss_jump: float, margin_jump: float
) -> Alarm | None:
    """The usual change from one row to the next is as large as the whole band of a stage."""
    for signal, largest in ((loss, loss_jump), (margin, margin_jump)):
        if signal is None or signal.n < points or signal.seen_at != case.points or signal.jump <= largest:
            continue
        window = signal.window
        turns = sum((b - a) * (c - b) < 0 for a, b, c in zip(window, window[1:], window[2:], strict=False))
        if turns >= 2:
            return warning(signal, jump=signal.jump, largest=largest)
    return None


def guide_kl_high(kto_kl: Signal | None, kl: Signal | None, *, level: float) -> Alarm | None:
    """The policy is too far from the reference."""
    signal = kto_kl or kl
    return warning(signal, most=level) if signal is not None and signal.last > level else None


def guide_kl_low(kto_kl: Signal | None, kl: Signal | None, *, step: float, level: float) -> Alarm | None:
    """The policy hardly differs from the reference. Exact zeros of an estimator that is cut off at 0 do not count."""
    signal = kto_kl or kl
    if signal is None or signal.step <= step or signal.zero_share > 0.2:
        return None
    return warning(signal, least=level) if abs(signal.median5) < level and abs(signal.last) < level else None


def guide_stage(
    case: Case,
    loss: Signal | None,
    margin: Signal | None,
    chosen: Signal | None,
    rejected: Signal | None,
    *,
    first: float,
    last: float,
    steps: float,
    loss_low: float,
    loss_high: float,
    margin_low: float,
    margin_high: float,
    chosen_low: float,
    chosen_high: float,
    rejected_low: float,
    rejected_high: float,
) -> Alarm | None:
    """Some metrics are outside their band in one stage of the guide's table. The guide's training has `steps` steps;
    the stages are scaled to the number of steps that a run plans.
    """
    if case.total_steps:
        first, last = ((first - 1) * case.total_steps) // steps + 1, last * case.total_steps // steps
    outside: list[tuple[Signal, str]] = []
    for name, signal, low, high in (
        ("loss", loss, loss_low, loss_high),
        ("margin", margin, margin_low, margin_high),
        ("chosen", chosen, chosen_low, chosen_high),
        ("rejected", rejected, rejected_low, rejected_high),
    ):
        if signal is not None and signal.n and first <= signal.step <= last and not low <= signal.last <= high:
            outside.append((signal, f"{name} {signal.last:.3g} ({low:g} to {high:g})"))
    if not outside:
        return None
    return info(outside[0][0], first=first, last=last, outside=", ".join(text for _, text in outside))


def guide_without_rise(series: Signal, *, target: float) -> Alarm | None:
    """The last row has no new best. After as many rows in a row as the entry's `hold` it is a plateau, unless the
    target was reached.
    """
    if series.n < 2 or _is_new_best(series):
        return None
    if series.highest >= target:
        return info(series, "reached", best=series.highest, target=target)
    return warning(series, best=series.highest, target=target)


def guide_loss_settles(series: Signal, *, share: float) -> Alarm | None:
    """A loss should fall and then stay near its lowest. This one never fell, or has undone a good part of its fall."""
    first = series.head[0] if series.head else series.last
    fallen = first - series.lowest
    if series.n < 2 or (fallen > 0 and series.last - series.lowest <= share * fallen):
        return None
    return warning(series, "" if fallen > 0 else "never", first=first, best=series.lowest)


def epochs_without_rise(reward: Signal, epoch: Signal) -> Alarm | None:
    """An epoch without a new best reward; the entry's `hold` is the patience."""
    if not _is_epoch_row(reward, epoch) or _is_new_best(reward):
        return None
    return warning(reward, best=reward.highest)


def epochs_without_fall(loss: Signal, epoch: Signal) -> Alarm | None:
    """An epoch without a new lowest loss; the entry's `hold` is the patience. A loss above its first value points to a
    learning rate that is too high rather than too low.
    """
    if not _is_epoch_row(loss, epoch) or _is_new_low(loss):
        return None
    alarm = warning(loss, best=loss.lowest, first=loss.head[0])
    if loss.median5 > loss.head[0]:
        alarm.variant, alarm.kind = "rising", "lr_too_high"
    return alarm


def _is_new_best(series: Signal) -> bool:
    """Whether the last value is above all before it."""
    return series.last >= series.highest and series.last > max(series.window[:-1], default=series.last)


def _is_new_low(series: Signal) -> bool:
    """Whether the last value is below all before it."""
    return series.last <= series.lowest and series.last < min(series.window[:-1], default=series.last)


def _is_epoch_row(series: Signal, epoch: Signal) -> bool:
    """Whether each row is a whole epoch, and this one a later epoch than the row before. Rows of single steps have
    fractions of an epoch; other rules read them.
    """
    if series.n < 2 or epoch.n < 2 or series.seen_at != epoch.seen_at:
        return False
    return all(value == int(value) for value in epoch.window) and epoch.last > epoch.window[-2]
