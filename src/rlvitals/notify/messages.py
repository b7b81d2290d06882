"""The messages that people receive: one per finding, one when it has recovered, and a digest of held findings.

A message is plain data. The names of runs, metrics and slices may contain any text. Here each becomes one printable
line of limited length; each service then escapes it for its own markup.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote

from rlvitals.documentation import rule_address
from rlvitals.records import SEVERITIES, Finding, Severity, Verdict
from rlvitals.store.outbox import HeldBack, SentMessage
from rlvitals.terminal import cut_middle, plural, visible

MessageKind = Literal["raised", "escalated", "recovered", "digest", "test"]

LONGEST_NAME = 120
LONGEST_TITLE = 400
MOST_ADVICE = 2
MOST_METRICS = 4
MOST_LISTED = 10
"""Largest number of findings that a digest lists; the others are counted."""

REPEATED = "This message may be a repeat: sending it was interrupted before."


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of the run when a message is sent, and its chart."""

    verdict: Verdict
    reason: str
    picture: bytes | None = field(default=None, repr=False)
    """A PNG."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message, before a service formats it."""

    kind: MessageKind
    key: str
    """The same for a finding, its escalation and its recovery."""
    run: str
    severity: Severity
    title: str
    facts: Mapping[str, str]
    """Further facts, by label, in order."""
    advice: Sequence[str] = ()
    link: str = ""
    timestamp: float = 0.0
    is_repeat: bool = False
    """Whether the message may have arrived before: a process was killed, or the service did not answer, while it was
    sent.
    """
    picture: bytes | None = field(default=None, repr=False)

    @property
    def headline(self) -> str:
        """The message in one line."""
        word = {"recovered": "Recovered", "digest": "Held back", "test": "Test"}.get(self.kind, self.severity.upper())
        return f"{word} in {self.run}: {self.title}"

    @property
    def lines(self) -> list[str]:
        """The lines after the headline, without markup."""
        parts = [f"{label}: {value}" for label, value in self.facts.items()]
        parts += [f"Consider: {advice}" for advice in self.advice]
        return [*parts, *([REPEATED] if self.is_repeat else [])]

    @property
    def text(self) -> str:
        """The whole message without markup, the link last."""
        return "\n".join([self.headline, *self.lines, *([self.link] if self.link else [])])


def about_finding(
    run: str, key: str, finding: Finding, standing: Standing, *, is_escalated: bool, timestamp: float, link: str = ""
) -> Message:
    """A finding that was raised or became more severe."""
    facts = {"Verdict": _verdict(standing), "Step": f"{finding.step} (started at step {finding.onset_step})"}
    if finding.slice:
        facts["Slice"] = _line(finding.slice, LONGEST_NAME)
    if finding.metrics:
        facts["Metrics"] = ", ".join(_line(name, LONGEST_NAME) for name in finding.metrics[:MOST_METRICS])
    if page := rule_address(finding.rule):
        facts["More"] = page
    return Message(
        kind="escalated" if is_escalated else "raised",
        key=key,
        run=_line(run, LONGEST_NAME),
        severity=finding.severity,
        title=_line(finding.title, LONGEST_TITLE),
        facts=facts,
        advice=tuple(_line(advice, LONGEST_TITLE) for advice in finding.advice[:MOST_ADVICE]),
        link=link,
        timestamp=timestamp,
        picture=standing.picture,
    )


def about_recovery(
    run: str, sent: SentMessage, step: int, standing: Standing, *, timestamp: float, link: str = ""
) -> Message:
    """The recovery of everything that an earlier message was about."""
    return Message(
        kind="recovered",
        key=sent.key,
        run=_line(run, LONGEST_NAME),
        severity=sent.severity,
        title=_line(sent.title, LONGEST_TITLE),
        facts={"Verdict": _verdict(standing), "Recovered": f"at step {step}"},
        link=link,
        timestamp=timestamp,
        picture=standing.picture,
    )


def about_held(
    run: str, key: str, held: Sequence[HeldBack], standing: Standing, *, more: int, per_hour: int, link: str = ""
) -> Message:
    """A digest of held findings: all are counted, the most severe are listed."""
    order = sorted(held, key=lambda one: -SEVERITIES.index(one.severity))
    facts = {"Verdict": _verdict(standing)}
    for place, one in enumerate(order[:MOST_LISTED], start=1):
        facts[str(place)] = held_line(one)
    left = len(held) + more - min(len(held), MOST_LISTED)
    if left:
        facts["More"] = f"{left} not listed; logs/findings.jsonl of the run lists all"
    count = len(held) + more
    title = f"{plural(count, 'message')} beyond the limit of {per_hour} an hour"
    most_severe = order[0].severity if order else "info"
    name = _line(run, LONGEST_NAME)
    return Message("digest", key, name, most_severe, title, facts, (), link, time.time(), picture=standing.picture)


def held_line(held: HeldBack) -> str:
    """A finding that was held back, in one line.

    >>> held_line(HeldBack("kl_high", "warning", 20, "KL is 3.1", recovered_step=60))
    'warning at step 20: KL is 3.1 (recovered at step 60)'
    """
    if held.is_known:
        return f"recovered at step {held.recovered_step}: {_line(held.title, LONGEST_TITLE)}"
    line = f"{held.severity} at step {held.step}: {_line(held.title, LONGEST_TITLE)}"
    return line if held.recovered_step is None else f"{line} (recovered at step {held.recovered_step})"


def trial_message(picture: bytes | None = None, link: str = "") -> Message:
    """The message that `rlvitals notify --test` sends."""
    return Message(
        kind="test",
        key=key_of("test", str(time.time())),
        run="rlvitals",
        severity="info",
        title="notifications from rlvitals arrive here",
        facts={"Verdict": "healthy (this is a test)", "Step": "0"},
        advice=("no action needed",),
        link=link,
        timestamp=time.time(),
        picture=picture,
    )


def key_of(*parts: str) -> str:
    """A key that depends only on the parts and does not reveal them.

    >>> key_of("run", "kl_high", "1", "20") == key_of("run", "kl_high", "1", "20"), len(key_of("run"))
    (True, 41)
    """
    return f"rlvitals-{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}"


def link_of(pattern: str, folder: str) -> str:
    """The address of a run's page: `{run}` stands for the name of its directory.

    >>> link_of("https://team.example/#health?run={run}", "kto 7b&x")
    'https://team.example/#health?run=kto%207b%26x'
    """
    return pattern.replace("{run}", quote(folder.encode("utf-8", "surrogateescape"), safe=""))


def _verdict(standing: Standing) -> str:
    return f"{standing.verdict} ({_line(standing.reason, LONGEST_TITLE)})"


def _line(text: str, longest: int) -> str:
    return cut_middle(visible(text), longest)
