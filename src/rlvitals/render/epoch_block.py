"""The summary printed after each epoch, line by line as the RLHF tracker's guide shows it.

Owns the sections, the labels and their widths. A section without values is left out; zero is a value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from rlvitals.render.numbers import number
from rlvitals.splits import is_held_out
from rlvitals.terminal import visible

WIDTH = 80


class _Line(NamedTuple):
    label: str
    form: str


_SECTIONS: dict[str, dict[str, _Line]] = {
    "Training Metrics": {
        "loss": _Line("Loss", "{:.6f}"),
        "reward": _Line("Reward", "{:.6f}"),
        "kl_divergence": _Line("KL Divergence", "{:.6f}"),
        "entropy": _Line("Entropy", "{:.6f}"),
        "learning_rate": _Line("Learning Rate", "{:.2e}"),
    },
    "Evaluation Metrics": {
        "bertscore": _Line("BERTScore", "{:.4f}"),
        "codebleu": _Line("CodeBLEU", "{:.4f}"),
        "bleu": _Line("BLEU", "{:.4f}"),
        "rouge": _Line("ROUGE", "{:.4f}"),
        "ruby": _Line("RUBY", "{:.4f}"),
    },
    "Performance": {
        "epoch_time": _Line("Epoch Time", "{:.2f}s"),
        "samples_per_second": _Line("Samples/sec", "{:.2f}"),
    },
}
_LABEL_WIDTHS = {"Training Metrics": 15, "Evaluation Metrics": 12, "Performance": 24}

_FAMILIES = {
    "textscore": "Evaluation Metrics",
    "eval": "Evaluation Metrics",
    "time": "Performance",
    "throughput": "Performance",
    "system": "Performance",
    "memory": "Performance",
}
"""The section of a metric that `_SECTIONS` does not list, by its family in the catalogue. Other families belong to
Training Metrics."""


def epoch_block(epoch: int, metrics: Mapping[str, float | str], seconds_left: float | None = None) -> str:
    """The whole block.

    >>> print(epoch_block(1, {"loss": 0.5, "bleu": 0.0}))  # doctest: +ELLIPSIS
    ====...
    EPOCH 1 SUMMARY
    ====...
    <BLANKLINE>
    [Training Metrics]
      Loss:          0.500000
    <BLANKLINE>
    [Evaluation Metrics]
      BLEU:       0.0000
    <BLANKLINE>
    ====...
    """
    edge = "=" * WIDTH
    lines = [edge, f"EPOCH {epoch} SUMMARY", edge, ""]
    for title, known in _SECTIONS.items():
        section = _lines(title, known, metrics)
        if title == "Performance" and seconds_left is not None:
            section.append(f"  Estimated Time Remaining: {seconds_left / 60:.1f} min ({seconds_left:.0f}s)")
        if section:
            lines += [f"[{title}]", *section, ""]
    return "\n".join([*lines, edge])


def _lines(title: str, known: Mapping[str, _Line], metrics: Mapping[str, float | str]) -> list[str]:
    width = _LABEL_WIDTHS[title]
    found = []
    for name, line in known.items():
        if (value := metrics.get(name)) is not None:
            found.append(_line(line.label, width, value if isinstance(value, str) else _formed(line.form, value)))
    for name, value in metrics.items():
        if name not in _ALL and section_of(name) == title:
            found.append(_line(name, width, value if isinstance(value, str) else _further(value)))
    return found


def _line(label: str, width: int, text: str) -> str:
    return f"  {visible(label) + ':':<{width - 1}} {visible(text)}"


def _formed(form: str, value: float) -> str:
    return form.format(value) if abs(value) < 1e9 else number(value)


def _further(value: float) -> str:
    """A number of unknown scale: a reward of 0.0713 and 12,000 tokens must both be readable."""
    return f"{value:.4f}" if 0.001 <= abs(value) < 1000 and not float(value).is_integer() else number(value)


@lru_cache(maxsize=1000)
def section_of(name: str) -> str:
    """The title of the section for a metric that `_SECTIONS` does not list.

    >>> [section_of(name) for name in ("eval_loss", "grad_norm", "time/rollout", "my/own")]
    ['Evaluation Metrics', 'Training Metrics', 'Performance', 'Training Metrics']
    """
    from rlvitals import catalog  # takes tens of milliseconds, so only when needed

    if is_held_out(name):
        return "Evaluation Metrics"
    found = catalog.reader().meaning(name)
    return _FAMILIES.get(found.metric.family if found else "", "Training Metrics")


_ALL = frozenset(name for section in _SECTIONS.values() for name in section)


def time_left(epoch_times: list[float], remaining: int | None) -> float | None:
    """Seconds until the last epoch ends, from the mean duration of the measured epochs; None if it is unknown or 0.

    >>> time_left([330.0, 334.0, 336.2], 7)
    2333.8
    """
    known = [seconds for seconds in epoch_times if math.isfinite(seconds)]
    if not known or not remaining:
        return None
    return round(sum(known) / len(known) * remaining, 3)
