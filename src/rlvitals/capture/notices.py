"""Prints a run's alarms during training, and its verdict in one line at the end.

The setting `display` decides. `alarms`, the default, prints each critical finding in two lines, and a warning if it is
the first finding. Displays that print rows put every finding in a frame. `none` and `json` print nothing. The output
goes to stderr, above any progress bars; in a notebook the run's card shows the findings instead. A missing or closed
stream is ignored.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress

from rlvitals.capture.console import ALARMS, SILENT, apart_from_bars
from rlvitals.capture.live_card import LiveCard
from rlvitals.health.history import is_standing
from rlvitals.records import Finding, Status, Verdict
from rlvitals.signs import SYMBOLS, signed
from rlvitals.terminal import cut_middle, put, visible

MOST_PRINTED = 10
"""Largest number of printed findings; `rlvitals check` shows the rest."""

_IN_ASCII = {"✖": "x", "✔": "ok"}


class Notices:
    """Prints the findings of one recording process."""

    def __init__(self, display: str, run_dir: str) -> None:
        self._display = display
        self._run_dir = run_dir
        self._printed = 0
        self._warned = False
        self.card: LiveCard | None = None
        """The card that shows findings and the verdict in a notebook instead."""

    def print_finding(self, finding: Finding) -> None:
        """Print a finding if the display shows it."""
        if finding.severity == "info" or self._display in SILENT:
            return
        if self.card is not None:
            self.card.hurry()
            return
        if self._display != ALARMS:
            from rlvitals.health.notify import banner

            _put(banner(finding, _encoding()))
            return
        is_first_warning = finding.severity == "warning" and not self._warned
        self._warned = True
        if self._printed >= MOST_PRINTED or not (finding.severity == "critical" or is_first_warning):
            return
        self._printed += 1
        _put(alarm(finding))
        if self._printed == MOST_PRINTED:
            _put(f"rlvitals: further findings are not printed. See them with: {self._check_command}")

    def print_verdict(
        self, verdict: Verdict, reason: str, findings: Sequence[Finding], status: Status = "finished"
    ) -> None:
        """Print the verdict at the end of the run. `findings` are sorted, the most severe first."""
        if self.card is not None:
            self.card.update()
        if self._display in SILENT or self.card is not None:
            return
        grave = [finding for finding in findings if is_standing(finding) and finding.severity != "info"]
        if grave:
            others = len({finding.alarm for finding in grave}) - 1  # an alarm counts once
            more = f" (and {others} more)" if others else ""
            reason = f"{grave[0].title}, since step {grave[0].onset_step}{more}"
        text = cut_middle(visible(reason))
        head = signed(verdict)
        if status != "finished" and verdict == "healthy":  # a failed training is not healthy
            head = f"{SYMBOLS['critical' if status == 'failed' else 'warning']} {status}"
        _put(f"rlvitals {head}: {text}. {self._check_command}")

    @property
    def _check_command(self) -> str:
        place = os.path.relpath(self._run_dir)
        shorter = place if not place.startswith("..") else self._run_dir
        return visible(f"rlvitals check {shorter}")


def alarm(finding: Finding) -> str:
    """A finding in two lines.

    >>> found = Finding("m", "nonfinite", "critical", 112, 110, "loss is NaN", advice=("lower the learning rate",))
    >>> print(alarm(found))
    rlvitals ✖ critical at step 112: loss is NaN, since step 110
      do: lower the learning rate
    """
    since = f", since step {finding.onset_step}" if finding.onset_step != finding.step else ""
    head = f"rlvitals {signed(finding.severity)} at step {finding.step}: {cut_middle(visible(finding.title))}{since}"
    return "\n  do: ".join((head, *(cut_middle(visible(advice)) for advice in finding.advice[:1])))


def _put(text: str) -> None:
    stream = sys.stderr
    encoding = _encoding()
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        for mark, plain in _IN_ASCII.items():
            text = text.replace(mark, plain)
        text = text.encode("ascii", "replace").decode()
    with suppress(OSError, ValueError, AttributeError), apart_from_bars(stream) if stream.isatty() else nullcontext():
        put(text, stream)


def _encoding() -> str | None:
    return getattr(sys.stderr, "encoding", None)
