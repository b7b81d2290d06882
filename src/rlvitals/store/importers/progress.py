"""Progress bars in console output: where the training is, and the numbers some trainers hang on to them."""

from __future__ import annotations

import re
from typing import NamedTuple

from rlvitals.store.importers.base import Fields
from rlvitals.store.importers.cells import NUMBER, number_in

_BAR = re.compile(r"\d{1,3}%\|[^|\r\n]*\|\s*(\d+)/(\d+)(?=\s|\[|$)")
_REST = re.compile(r"\s*\[([^\[\]{}]*)\]?")
_POSTFIX = re.compile(rf"([A-Za-z_][\w/@.-]*)\s*=\s*({NUMBER})(?=[,\]\s]|$)", re.IGNORECASE)
_DESCRIBED = re.compile(rf"([A-Za-z_][\w/@.-]*):\s*({NUMBER})(?=\s*[|\]])", re.IGNORECASE)
_NOT_TRAINING = re.compile(
    r"load|download|map\b|generat|eval|valid|token|shard|filter|process|fetch|compil|captur|convert|upload|rollout|make_exp|warm|adding",
    re.IGNORECASE,
)


_METRIC = re.compile(
    r"loss|reward|return|kl\b|_kl|entropy|grad_norm|gradnorm|learning_rate|\blr\b|accurac|margin|score|advantage|ppo|"
    r"logps|train_runtime|perplexity|clip",
    re.IGNORECASE,
)


def is_metric_name(name: str) -> bool:
    """Whether a name is one that trainings log; console output holds other numbers too."""
    return _METRIC.search(name) is not None


class Bar(NamedTuple):
    """One drawing of a progress bar."""

    what: str
    done: int
    total: int
    numbers: Fields
    """What hangs on it: OpenRLHF's postfix, trlX's description."""
    start: int
    end: int
    """Where in the line it begins and ends."""

    @property
    def may_be_training(self) -> bool:
        return not _NOT_TRAINING.search(self.what)


def bar_in(text: str) -> Bar | None:
    """The last progress bar in a piece of a line.

    >>> bar_in("Train epoch [1/1]:  10%|█ | 5/50 [00:12<01:40, 2.3s/it, policy_loss=0.1, kl=nan]")[:4]
    ('Train epoch [1/1]:', 5, 50, {'policy_loss': 0.1, 'kl': nan})
    """
    if "%|" not in text:
        return None
    matches = list(_BAR.finditer(text))
    if not matches:
        return None
    match = matches[-1]
    begin = matches[-2].end() if len(matches) > 1 else 0
    what = text[begin : match.start()].strip()
    rest = _REST.match(text, match.end())
    numbers = {name: number_in(value) for name, value in _POSTFIX.findall(rest[1])} if rest else {}
    if not numbers and what.startswith("["):
        numbers = {name: number_in(value) for name, value in _DESCRIBED.findall(what)}
    return Bar(what, int(match[1]), int(match[2]), numbers, match.start(), rest.end() if rest else match.end())


class BarRows:
    """Rows from bars that carry numbers: one for each place a bar reached, with what it last showed there."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._offset = 0

    def take(self, bar: Bar) -> list[Fields]:
        """The row that this drawing completes: the one of the place before."""
        before = self._bar
        if not bar.may_be_training or not (bar.numbers or before):
            return []
        if before is None or (bar.done, bar.total) == (before.done, before.total):
            self._bar = bar if bar.numbers else before
            return []
        row = self._row(before)
        if bar.done <= before.done:  # drawn from its beginning: an inner bar, once more
            self._offset += before.done
        self._bar = bar
        return row

    def finish(self) -> list[Fields]:
        bar, self._bar = self._bar, None
        return self._row(bar) if bar else []

    def _row(self, bar: Bar) -> list[Fields]:
        is_row = any(map(is_metric_name, bar.numbers))
        return [{"step": self._offset + bar.done, **bar.numbers}] if is_row else []
