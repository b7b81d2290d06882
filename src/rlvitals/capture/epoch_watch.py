"""Early stopping: the epochs of a training before the monitor, with the guide's rules and no others.

Each look replays the epochs as they stand, so a corrected value, a late one and a resumed training are all judged
alike. What was said before is not said again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlvitals.errors import ConfigError
from rlvitals.records import Finding

if TYPE_CHECKING:
    from rlvitals.health.rulebook import Rulebook
    from rlvitals.store.epochs import Epoch

STOP_RULE = "early_stop_reward"
RULES = (STOP_RULE, "early_stop_loss")

MOST_EPOCHS = 1000
"""The monitor looks no further back; a replay of these takes a tenth of a second."""


class EpochWatch:
    """What the monitor says of some epochs; `findings` count in epochs where others count in steps."""

    def __init__(self, patience: bool | int = True) -> None:
        """False: says nothing. A number: so many epochs without a better reward, or a lower loss."""
        if patience is not True and patience is not False and patience < 1:
            raise ConfigError(f"early_stopping={patience!r} must be True, False or a number of epochs, as in 5")
        self._patience = patience
        self._book: Rulebook | None = None
        self._known: set[tuple[str, str, int]] = set()
        self.findings: list[Finding] = []
        self.standing: set[str] = set()
        """The rules that are in alarm now."""
        self.should_stop = False

    def look(self, history: Sequence[Epoch]) -> list[Finding]:
        """Judge the epochs as they stand; returns what was not said before."""
        if self._patience is False:
            return []
        from rlvitals.health.monitor import Monitor

        book = self._book = self._book or self._rules()
        monitor = Monitor(algorithm="ppo", framework="rlhf_tracker", rules=book)
        for epoch in history[-MOST_EPOCHS:]:
            monitor.update({**epoch.numbers, "step": epoch.number, "epoch": epoch.number})
        self.findings = list(monitor.findings)
        self.standing = set(monitor.case.raised)
        needed = book.rules[STOP_RULE].hold[0]
        is_said = any(finding.rule == STOP_RULE for finding in self.findings)
        self.should_stop = is_said and epochs_since_best(history) >= needed
        if not self.should_stop:
            self.standing.discard(STOP_RULE)
        new = [finding for finding in self.findings if _key(finding) not in self._known]
        self._known.update(map(_key, new))
        return new

    def _rules(self) -> Rulebook:
        from rlvitals.health import rulebook

        book = [{"rule": "*", "enabled": False}, {"rule": "nonfinite_core", "enabled": True}]
        if self._patience is True:
            return rulebook.load(book, "early_stopping")
        hold = f"{self._patience} of {self._patience}"
        return rulebook.load(book, "early_stopping", [{"rule": rule, "hold": hold} for rule in RULES])


def epochs_since_best(history: Sequence[Epoch]) -> int:
    """How many epochs with a reward came after the best one; 0 where there is none."""
    rewards = [epoch.numbers["reward"] for epoch in history if math.isfinite(epoch.numbers.get("reward", math.nan))]
    return len(rewards) - 1 - rewards.index(max(rewards)) if rewards else 0


def _key(finding: Finding) -> tuple[str, str, int]:
    return finding.rule, finding.severity, finding.step
