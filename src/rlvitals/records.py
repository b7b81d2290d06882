"""The few frozen records passed around: one logged row, one attempt, one run's identity, one finding, one request.

Plain data without behaviour beyond its own shape (a request hands its answer on); who writes and reads them is in
`store`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from rlvitals.values import Value

SCHEMA = 1
"""The run directory's format this version writes. Readers accept older ones and name the version needed for newer
ones."""

Status = Literal["running", "finished", "failed", "interrupted"]

STATUSES: tuple[Status, ...] = ("running", "finished", "failed", "interrupted")

Severity = Literal["info", "warning", "critical"]

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
"""From harmless to grave."""

Action = Literal["none", "warn", "checkpoint", "reduce_lr", "revert", "stop"]
"""What a finding asks of the trainer."""

ACTIONS: tuple[Action, ...] = get_args(Action)

KINDS: tuple[str, ...] = (
    "nonfinite", "dead_gradient", "grad_explosion", "loss_divergence", "instability", "lr_too_low", "lr_too_high",
    "kl_explosion", "kl_negative", "entropy_collapse", "entropy_explosion", "reward_collapse", "reward_floor",
    "not_learning", "plateau", "zero_variance", "reward_hacking", "reward_composition", "length_explosion",
    "length_collapse", "truncation", "clip_saturation", "ratio_off", "logprob_mismatch", "staleness", "value_failure",
    "margin_inversion", "preference_signal_lost", "likelihood_displacement", "logprob_crash", "saturated", "overfit",
    "class_imbalance", "tool_abandonment", "turn_runaway", "tool_errors", "agent_loop", "early_exit",
    "groups_filtered", "stall", "throughput", "memory", "gpu_idle", "data",
)  # fmt: skip
"""Every kind of trouble a finding can name. A closed list: other people's code switches on it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a log, checked: an integer step, numbers by name, texts by name."""

    step: int
    timestamp: float
    """Unix seconds; NaN where the line had none."""
    attempt: int
    numbers: dict[str, float]
    """Finished numbers, non-finite ones included."""
    texts: dict[str, str] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    """The mergeable form of those numbers that have one."""
    gap: int = 0
    """Rows known to be lost right before this one (a full disk outlasted the buffer)."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One (re)start of a run."""

    number: int
    started: float
    from_step: int | None = None
    """The step its weights come from. None: not said, so its own first row decides."""
    from_checkpoint: str | None = None
    changed: dict[str, list[Any]] = field(default_factory=dict)
    """Settings that differ from the attempt before: key -> [before, now]."""
    host: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run's identity card, `run.json`."""

    id: str
    name: str
    status: Status
    created: float
    updated: float
    schema: int = SCHEMA
    written_by: str = ""
    """The rlvitals version that wrote it."""
    attempt: int = 1
    algorithm: str | None = None
    framework: str | None = None
    total_steps: int | None = None
    ended: float | None = None
    error: str | None = None
    """The exception that ended the run, if one did."""
    left_out: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Values that could not be taken: key -> {count, reason}."""
    rows_dropped: int = 0
    host: str = ""
    pid: int = 0
    python: str = ""
    platform: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    git: dict[str, str] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the doctor found: what, since when, how it knows, why it happens and what to do."""

    rule: str
    kind: str
    """One of KINDS."""
    severity: Severity
    step: int
    """The step at which it was said."""
    onset_step: int
    """The step at which the statistic left its band."""
    title: str
    confidence: float = 0.5
    """The share of such findings that are right, as far as the calibration knows."""
    evidence: dict[str, float | str] = field(default_factory=dict)
    """The metric's name, its values, its band and the window, by name."""
    causes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    """What to do, with the setting to change."""
    action: Action = "none"
    """What is asked of the trainer, where it may act."""
    metrics: tuple[str, ...] = ()
    """The logged names it was read from."""


Answer = Literal["done", "declined", "replaced", "withdrawn"]
"""How a request ended: the first two are the trainer's words, `replaced` by a graver one, `withdrawn` on recovery."""


@dataclass(frozen=True, slots=True)
class Request:
    """One thing the doctor asks of the trainer, and the way to answer it."""

    action: Action
    reason: str
    finding: Finding
    checkpoint: str | None = None
    """revert: the folder to go back to."""
    checkpoint_step: int | None = None
    factor: float | None = None
    """reduce_lr: what to multiply the learning rate by."""
    number: int = 0
    """Counts the requests of a run."""
    answer: Callable[[Request, Answer, str], None] | None = field(default=None, repr=False, compare=False)
    """Takes the answer down; None where another process does."""

    def done(self, text: str = "") -> None:
        """It was done; `text` says what: "lr 5e-7 -> 2.5e-7"."""
        if self.answer is not None:
            self.answer(self, "done", text)

    def declined(self, text: str = "") -> None:
        """It will not be done; `text` says why."""
        if self.answer is not None:
            self.answer(self, "declined", text)


@dataclass(frozen=True, slots=True)
class Span:
    """One phase that has ended."""

    phase: str
    start: float
    """Unix seconds."""
    end: float
    step: int
    """The last logged step when it ended; -1 before the first row."""
    attempt: int
    parent: str = ""
    """The phase it ran in."""
    error: str = ""
    """The type of the exception that left it."""
