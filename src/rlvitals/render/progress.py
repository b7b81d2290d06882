"""A progress bar as text: the bar's line, the line of live numbers below it, and both as one plain line for a log.

Owns the format; `capture.progress` decides what is drawn, when and where.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlvitals.render.steps import cells, clip, compact

BLOCKS = " ▏▎▍▌▋▊▉█"
ASCII = " #"

UNBOUNDED = 10_000
"""More columns than any line needs."""

LEAST_CELLS = 5
"""A bar with fewer cells is not readable and is left out."""


def bar_line(
    title: str,
    done: int,
    total: int | None,
    seconds: float,
    *,
    size: int = 20,
    width: int | None = None,
    room: int = UNBOUNDED,
    ascii: bool = False,
    unit: str = "batch",
) -> str:
    """The bar and its counts. The bar has `size` cells; if `width` is given, the whole line has `width` columns
    instead. The line is never longer than `room`, the width of the terminal.

    >>> bar_line("Epoch 3/10", 100, 100, 332.0)
    'Epoch 3/10 |████████████████████| 100/100 [05:32<00:00, 3.32s/batch]'
    >>> bar_line("Epoch 1/2", 3, 8, 1.5, ascii=True, size=8)
    'Epoch 1/2 |###     | 3/8 [00:01<00:02, 2.00batch/s]'
    >>> bar_line("Evaluating", 37, None, 70.0)
    'Evaluating 37 [01:10, 1.89s/batch]'
    """
    counts = _counts(done, total, seconds, unit)
    if total is None:
        return clip(f"{title} {counts}", room, "ascii" if ascii else "utf-8")
    free = min(width or UNBOUNDED, room) - cells(title) - len(counts) - len(" || ")
    size = free if width else min(size, free)
    bar = f"|{_bar(done / total if total else 1.0, size, ASCII if ascii else BLOCKS)}| " if size >= LEAST_CELLS else ""
    return clip(f"{title} {bar}{counts}", room, "ascii" if ascii else "utf-8")


def plain_line(
    title: str, done: int, total: int | None, seconds: float, *, fields: Mapping[str, str], unit: str = "batch"
) -> str:
    """Everything on one line without a bar, for a stream that is not a terminal.

    >>> plain_line("Epoch 3/10", 30, 100, 99.6, fields={"loss": "2.3456"})
    'Epoch 3/10  30/100 [01:39<03:52, 3.32s/batch]  loss: 2.3456'
    """
    return "  ".join([title, _counts(done, total, seconds, unit), *_pairs(fields)])


def field_line(fields: Mapping[str, str], *, room: int = UNBOUNDED, ascii: bool = False) -> str:
    """The live numbers.

    >>> field_line({"loss": "2.3456", "lr": "1.00e-05", "step": "300/1000"})
    '  loss: 2.3456  lr: 1.00e-05  step: 300/1000'
    """
    return clip("".join(f"  {pair}" for pair in _pairs(fields)), room, "ascii" if ascii else "utf-8")


def field_text(name: str, value: object) -> str:
    """One live number: a learning rate in exponent notation, integers in full, others to four places or compact.

    >>> field_text("lr", 1e-5), field_text("processed", 160), field_text("avg_reward", 0.72344), field_text("kl", 3e-7)
    ('1.00e-05', '160', '0.7234', '3e-07')
    """
    if isinstance(value, bool | str) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return str(value)
    if name in ("lr", "learning_rate"):
        return f"{value:.2e}"
    return f"{value:.4f}" if value == 0 or 0.001 <= abs(value) < 10_000 else compact(value)


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours if there are any.

    >>> clock(332.4), clock(3725)
    ('05:32', '1:02:05')
    """
    whole = int(max(seconds, 0.0))
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def _counts(done: int, total: int | None, seconds: float, unit: str) -> str:
    each = seconds / done if done and seconds > 0 else math.nan
    pace = f"?{unit}/s" if math.isnan(each) else f"{each:.2f}s/{unit}" if each > 1 else f"{1 / each:.2f}{unit}/s"
    if total is None:
        return f"{done} [{clock(seconds)}, {pace}]"
    left = "?" if math.isnan(each) and done < total else clock(max(total - done, 0) * each if done < total else 0.0)
    return f"{done}/{total} [{clock(seconds)}<{left}, {pace}]"


def _bar(share: float, size: int, signs: str) -> str:
    parts = len(signs) - 1
    filled = int(min(max(share, 0.0), 1.0) * size * parts)
    whole, part = divmod(filled, parts)
    return (signs[-1] * whole + (signs[part] if part else "")).ljust(size)


def _pairs(fields: Mapping[str, str]) -> list[str]:
    return [f"{name}: {text}" for name, text in fields.items()]
