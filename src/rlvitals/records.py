"""The frozen records that modules exchange: a logged row, an attempt, a run's identity, a finding, a request, a phase,
a group of rollouts.

They are plain data with almost no behaviour (a request passes on its answer). `store` writes and reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, get_args

from rlvitals.signs import COLOURS, signed
from rlvitals.values import Value

SCHEMA = 1
"""The format of run directories that this version writes. Readers accept older formats. For a newer format, they name
the required version."""

Stream = Literal["train", "eval"]
"""The logs that a run's rows are in."""

Status = Literal["running", "finished", "failed", "interrupted"]

STATUSES: tuple[Status, ...] = ("running", "finished", "failed", "interrupted")

Severity = Literal["info", "warning", "critical"]

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
"""From least to most severe."""

Verdict = Literal["healthy", "watch", "act", "cannot judge"]
"""The possible verdicts on a run, the same in every command and page."""

Action = Literal["none", "warn", "checkpoint", "reduce_lr", "revert", "stop"]
"""What a finding requests from the trainer."""

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
"""Every kind of problem a finding can have. The list is closed, because other people's code depends on it."""


CAUSES: tuple[str, ...] = (
    "weight_sync", "numerics", "stale_samples", "expert_routing", "tokenization", "temperature",
    "sandbox", "tool", "time_out", "context_limit", "verifier", "parsing",
)  # fmt: skip
"""The possible causes of a finding, if the evidence shows one: six reasons why engine and trainer disagree, and six
origins of failures outside the policy. The list is closed, like KINDS."""


def alarm_of(rule: str, label: str) -> str:
    """The key of an alarm, which is raised and recovers as one: a rule, or a rule for one slice. Rule names contain no
    such bracket.

    >>> alarm_of("kl_high", ""), alarm_of("slice_collapse", "env=math")
    ('kl_high', 'slice_collapse[env=math]')
    """
    return f"{rule}[{label}]" if label else rule


class Range(NamedTuple):
    """The allowed range of a field. `store.fields` checks it when a record is read from a file."""

    least: float
    most: float


MAX_STEP = 2**53
"""Larger steps are not exact in the columns. The recorder does not write them."""

MAX_ATTEMPT = 2**31 - 1

MAX_TIME = 32_503_680_000
"""The year 3000 in Unix seconds. A later time means a damaged line, and some systems cannot convert it to a date."""

WHOLE = Range(-MAX_STEP, MAX_STEP)
"""Integers that are exact in every column and in every JSON reader."""

Count = Annotated[int, Range(0, MAX_STEP)]
AttemptNumber = Annotated[int, Range(1, MAX_ATTEMPT)]
Pid = Annotated[int, Range(0, 2**31 - 1)]
Share = Annotated[float, Range(0, 1)]
Time = Annotated[float, Range(0, MAX_TIME)]
"""Unix seconds."""


Fields = dict[str, Any]
"""One flat row: `step`, `timestamp` where it is known, and numbers by the names they were logged with."""

RESERVED = frozenset({"step", "timestamp", "attempt"})
"""The fields of a row beside its metrics. No metric has such a name."""

PLACES = RESERVED | {"epoch"}
"""The names in a row that give its position in the training."""

SAMPLED = "System/"
"""The prefix of the names in samples of the machine."""

STEP_AXIS, SAMPLE_AXIS = "rlvitals/step", "rlvitals/sample"
"""The step of a row, and the number of a sample of the machine, in a tracker that has its own counter."""


@dataclass(frozen=True, slots=True)
class Row:
    """One checked line of a log: an integer step, numbers by name, texts by name."""

    step: int
    timestamp: float
    """Unix seconds; NaN if the line has no time."""
    attempt: int
    numbers: dict[str, float]
    """Finished numbers, including non-finite ones."""
    texts: dict[str, str] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    """The mergeable form of the numbers that have one."""
    gap: int = 0
    """How many rows were lost right before this one, because the disk was full for longer than the buffer could
    hold."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One (re)start of a run."""

    number: AttemptNumber
    started: Time
    from_step: int | None = None
    """The step its weights come from. None: not given, so its first row decides."""
    from_checkpoint: str | None = None
    changed: dict[str, list[Any]] = field(default_factory=dict)
    """Settings that differ from the previous attempt: key -> [before, now]."""
    host: str = ""
    pid: Pid = 0


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run's identity card, `run.json`."""

    id: str
    name: str
    status: Status
    created: Time
    updated: Time
    schema: Count = SCHEMA
    written_by: str = ""
    """The rlvitals version that wrote it."""
    attempt: AttemptNumber = 1
    algorithm: str | None = None
    framework: str | None = None
    total_steps: Count | None = None
    ended: Time | None = None
    error: str | None = None
    """The exception that ended the run, if one did."""
    left_out: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Unsupported values that were dropped: key -> {count, reason}."""
    rows_dropped: Count = 0
    host: str = ""
    pid: Pid = 0
    processes: Count | None = None
    """How many processes a launcher started; None without a launcher."""
    python: str = ""
    platform: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    git: dict[str, str] = field(default_factory=dict)
    command: str = ""


class RunMarks(TypedDict, total=False):
    """What people noted about a run, stored outside the run. Empty entries are left out."""

    name: str
    tags: list[str]
    note: str
    archived: bool
    deleted: bool


@dataclass(frozen=True, slots=True)
class Citation:
    """A place in a recorded rollout that is evidence for a finding, by the numbers that lists and pages show."""

    step: int
    group: Count
    """Of the step, from 1."""
    rollout: Count
    """Of the group, from 1."""
    turn: Count = 1
    """From 1."""
    part: str = "text"
    """The part of the turn: `text`, or `call 2` for the texts of its second call's arguments, joined by line ends."""
    start: Count = 0
    end: Count = 0
    """Character offsets in that part; the end is exclusive."""
    quote: str = ""
    """The text there, shortened."""
    reward: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem that a rule found: what it is, when it began, the evidence, the causes and what to do."""

    rule: str
    kind: str
    """One of KINDS."""
    severity: Severity
    step: int
    """The step at which it was raised."""
    onset_step: int
    """The step at which the statistic left its band."""
    title: str
    confidence: Share = 0.5
    """The share of such findings that are right, according to the calibration."""
    evidence: dict[str, float | str] = field(default_factory=dict)
    """The metric's name, its values, its band and the window, by name."""
    causes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    """What to do, with the setting to change."""
    action: Action = "none"
    """What is requested from the trainer, if actions are enabled."""
    metrics: tuple[str, ...] = ()
    """The logged names it was read from."""
    cause: str = ""
    """One of CAUSES; empty if the evidence does not show the cause."""
    slice: str = ""
    """The label of the slice it is about, such as `env=math`; empty for the whole run."""
    cited: tuple[Citation, ...] = ()
    """Places in rollouts that show it, if it was found in texts."""
    recovered_step: int | None = None
    """The step at which it recovered; None: not recovered."""

    @property
    def alarm(self) -> str:
        """The alarm it belongs to: its rule, and its slice if it has one. Each alarm is raised and recovers
        separately.
        """
        return alarm_of(self.rule, self.slice)

    def _repr_html_(self) -> str:
        """The finding as HTML for a notebook. Texts from the log are escaped."""
        from html import escape

        parts = [
            f"started at step {self.onset_step}, {self.severity} at step {self.step}; {self.kind}",
            f"do: {'; '.join(self.advice)}" if self.advice else "",
            f"causes: {'; '.join(self.causes)}" if self.causes else "",
        ]
        details = "".join(f"<div>{escape(part)}</div>" for part in parts if part)
        return (
            f'<div style="border-left:4px solid {COLOURS[self.severity]};padding-left:10px;margin:4px 0">'
            f"<b>{signed(self.severity)}: {escape(self.title)}</b>{details}</div>"
        )


Answer = Literal["done", "declined", "replaced", "withdrawn"]
"""How a request ended. The trainer answers `done` or `declined`. `replaced`: a more severe request followed.
`withdrawn`: the finding recovered.
"""


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the trainer, with methods to answer it."""

    action: Action
    reason: str
    finding: Finding
    checkpoint: str | None = None
    """revert: the folder to revert to."""
    checkpoint_step: int | None = None
    factor: float | None = None
    """reduce_lr, revert: the factor for the learning rate."""
    number: int = 0
    """The number of the request within its run."""
    asked_by: str = ""
    """Who sent it from outside; empty for a request because of a finding."""
    answer: Callable[[Request, Answer, str], None] | None = field(default=None, repr=False, compare=False)
    """Records the answer; None if another process records it."""

    def done(self, text: str = "") -> None:
        """Report that the request was carried out. `text` gives details: "lr 5e-7 -> 2.5e-7"."""
        if self.answer is not None:
            self.answer(self, "done", text)

    def declined(self, text: str = "") -> None:
        """Report that the request will not be carried out. `text` gives the reason."""
        if self.answer is not None:
            self.answer(self, "declined", text)


HealthEventType = Literal["raised", "escalated", "recovered", "request", "answer", "monitor"]
"""The types of lines in the health log: an alarm was raised, became more severe or recovered; a request was sent to the
trainer, or answered; a monitor started or failed."""

SeenIn = Literal["rows", "clock", "epochs", "tokens", "texts"]
"""The source of a finding. Findings from rows can be recomputed from the log, and those from tokens and texts from
recorded rollouts. The others can only be found during training."""


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """One line of `logs/findings.jsonl`."""

    type: HealthEventType
    step: int
    timestamp: Time = float("nan")
    attempt: AttemptNumber = 1
    seen_in: SeenIn = "rows"
    finding: Finding | None = None
    """Set if an alarm was raised or became more severe."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The facts of other events, with checked types. A recovered alarm has its `rule`, `severity` and `slice`."""

    @property
    def rule(self) -> str:
        return self.finding.rule if self.finding is not None else str(self.facts.get("rule", ""))

    @property
    def alarm(self) -> str:
        """The alarm it is about, in the form of `Finding.alarm`."""
        return self.finding.alarm if self.finding is not None else alarm_of(self.rule, str(self.facts.get("slice", "")))


@dataclass(frozen=True, slots=True)
class RunReading:
    """The current readings of one run for the monitoring of a fleet."""

    run: str
    """The run's path below its project, unique within the project."""
    project: str
    """The folder of runs it belongs to."""
    name: str
    algorithm: str
    """Empty if unknown, like the framework."""
    framework: str
    status: Status
    verdict: Verdict
    rows: int
    """Recorded training rows, including those of abandoned attempts."""
    attempt: int
    started: float
    """Unix seconds."""
    last_row: float | None
    """When the newest row was logged."""
    step: int | None
    total_steps: int | None
    tokens_per_s: float | None
    open_findings: dict[Severity, int]
    """Alarms that have not recovered."""
    raised_findings: dict[Severity, int]
    """Findings raised so far."""
    vitals: dict[str, float]
    """The newest value of each vital sign, by the catalogue's id, in the concept's own sign and scale."""


class OpenPhase(NamedTuple):
    """One phase that has not ended."""

    phase: str
    silence: float
    """Seconds since the last activity in it."""
    usual: float | None = None
    """The seconds it usually takes; None if it has never ended."""


@dataclass(frozen=True, slots=True)
class PhaseSpan:
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


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call with its result, so that parallel calls keep their own results."""

    name: str
    arguments: Any = None
    """The parsed arguments, or the model's text if it could not be parsed."""
    result: str | None = None
    error: str = ""
    """Why it failed: `bad_arguments`, `unknown_tool`, or the tool's own message."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the model and its consequences."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    observation: str = ""
    """The next message of the environment or the user, without tool results."""
    outcome: str = ""
    """What the turn achieved, in the terms of the credit rules: `search_hit`, `answer_wrong` ..."""
    tokens: int | None = None
    """All tokens of the turn, including results."""
    trainable_tokens: int | None = None
    """The tokens that the model generated."""
    seconds: float | None = None
    reward: float | None = None
    """The turn's own contribution (a process reward)."""
    advantage: float | None = None


TURN_LIMIT = frozenset({"turn_limit", "max_turns", "out_of_turns", "ran_out_of_turns", "max_turns_reached"})
"""Stop reasons that mean that the turn limit was reached."""


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """A rollout token by token, without the prompt: lists of the same length. A list that was not recorded is empty."""

    ids: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    turns: tuple[int, ...] = ()
    """The turn a token belongs to, from 0: the model's tokens, and the environment's tokens after them."""
    trained: tuple[bool, ...] = ()
    """Whether the loss includes the token: False for tool results, padding and masked tokens."""
    logprobs: tuple[float, ...] = ()
    """Of the trainer, with the weights at the start of the step."""
    engine_logprobs: tuple[float, ...] = ()
    """Of the engine that sampled the token."""
    new_logprobs: tuple[float, ...] = ()
    """Of the trainer during the update: the numerator of the ratio."""
    reference_logprobs: tuple[float, ...] = ()
    entropies: tuple[float, ...] = ()
    advantages: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    """The step of the weights that generated the token."""

    @property
    def length(self) -> int:
        """The number of tokens."""
        return max(len(getattr(self, name)) for name in self.__slots__)


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt at a prompt, turn by turn."""

    turns: tuple[Turn, ...] = ()
    reward: float | None = None
    advantage: float | None = None
    outcome: str = ""
    """The environment's result: `correct`, `wrong`, `idk`, `error` ..."""
    stop: str = ""
    """Why it ended: `answered`, `turn_limit`, `length`, `bad_arguments` ..."""
    error: str = ""
    """What went wrong, if the rollout failed. Failed rollouts are recorded too."""
    rubric: dict[str, Any] = field(default_factory=dict)
    reward_parts: dict[str, float] = field(default_factory=dict)
    tokens: int | None = None
    """All tokens, including the prompt; None: the sum over the turns."""
    trainable_tokens: int | None = None
    seconds: float | None = None
    seed: int | None = None
    policy_version: int | None = None
    """The step of the weights that generated it."""
    trace: TokenTrace | None = None
    """Its tokens, if they were recorded: only for selected rollouts, because they need more space than the text."""
    meta: dict[str, Any] = field(default_factory=dict)
    """Anything else."""

    def ended_early(self, max_turns: int | None) -> bool:
        """Whether it ended before the turn limit, for any reason. False if neither the limit nor the reason is
        known.
        """
        if max_turns is not None:
            return len(self.turns) < max_turns
        return bool(self.stop) and self.stop not in TURN_LIMIT

    @property
    def total_tokens(self) -> int | None:
        return _sum(turn.tokens for turn in self.turns) if self.tokens is None else self.tokens

    @property
    def total_trainable(self) -> int | None:
        given = self.trainable_tokens
        return _sum(turn.trainable_tokens for turn in self.turns) if given is None else given


TRAINED_ROLLOUTS = "trained_rollouts"
"""In the `meta` of a group: how many rollouts the update of its step used, over all groups and ranks. If as many have a
trace, the step's statistics can be recomputed exactly."""


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one prompt at one step."""

    prompt: str = ""
    rollouts: tuple[Rollout, ...] = ()
    id: str = ""
    """Identifies the prompt, the same at every step; if empty, its text identifies it."""
    answer: str = ""
    """The reference answer."""
    sources: tuple[str, ...] = ()
    """Ids of the documents that hold the answer."""
    max_turns: int | None = None
    mean: float | None = None
    std: float | None = None
    """Of the rewards, over the population."""
    kept: bool | None = None
    """Whether it is trained on; None: not decided."""
    reason: str = ""
    """Why it was filtered."""
    meta: dict[str, Any] = field(default_factory=dict)
    step: int = -1
    attempt: int = 1
    timestamp: float = float("nan")

    @property
    def key(self) -> str:
        """Identifies the prompt of a group."""
        return self.id or self.prompt

    @property
    def early_rollouts(self) -> list[Rollout]:
        return [rollout for rollout in self.rollouts if rollout.ended_early(self.max_turns)]


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


RecheckCause = Literal["loss_scale", "mask_shift", "advantage_sign", "microbatch_weighting", "not_explained"]
"""Why a logged number differs from the one recomputed from the recorded tokens."""


class Difference(NamedTuple):
    """A logged number, and the number recomputed from the recorded tokens."""

    name: str
    """The name under which it was logged."""
    logged: float
    recomputed: float


@dataclass(frozen=True, slots=True)
class TokenGap:
    """How far engine and trainer differ on a step's recorded tokens, and where. The cause is inferred from it."""

    tokens: int
    mean: float
    """The mean absolute gap, in nats."""
    worst: float
    k1: float
    """The mean of the engine's log-prob minus the trainer's."""
    k3: float
    """The same KL by the estimator that is never negative."""
    scaling: float | None
    """Correlation of the gap with the engine's log-prob, because a temperature multiplies log-probs."""
    slope: float | None
    """The change of the gap per nat of the engine's log-prob."""
    in_few: float
    """The share of the total gap that the worst 1% of the tokens have."""
    at_edges: float | None
    """The share of tokens with a large gap that are the first or last of a turn; None without turns or such
    tokens."""
    later: float | None
    """The gap in the last third of each rollout divided by that in its first third."""
    by_length: float | None
    """Correlation of a rollout's mean gap with its length."""
    fresh: float | None
    """The gap of tokens from the newest weights divided by that of the others; None unless there are both."""
    age: float | None
    """The mean age in versions; None if versions were not recorded."""


@dataclass(frozen=True, slots=True)
class Recheck:
    """A step's statistics recomputed from recorded tokens, compared with the logged ones."""

    step: int
    rollouts: int
    """How many rollouts have recorded tokens."""
    compared: tuple[str, ...]
    """The logged names that could be compared."""
    is_whole: bool
    """Whether all tokens of the update were recorded. Every number must then agree up to rounding."""
    differences: tuple[Difference, ...] = ()
    """The numbers that differ."""
    cause: RecheckCause = "not_explained"
    facts: dict[str, float | str] = field(default_factory=dict)
    """The evidence for the cause: `factor`, `count_of`, `shift`, `microbatch_size`."""
    gap: TokenGap | None = None
    """The gap between engine and trainer, if both log-probs were recorded."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """How often one pattern has occurred in the texts of rollouts, up to a step."""

    pattern: str
    step: int
    rollouts: int
    """How many rollouts were scanned."""
    hits: int
    """How many of them show the pattern."""
    recent_rollouts: int
    """Rollouts of the newest steps."""
    recent_hits: int
    start_rollouts: int
    """Rollouts of the first steps."""
    start_hits: int
    gain: float | None
    """Mean reward of the hits minus that of the other rollouts of the same prompt, or of the same step if too few
    groups have both; None if it cannot be computed."""
    gain_z: float
    """The gain in standard deviations of random variation."""
    spread: float
    """Standard deviation of all rewards."""
    growth_z: float
    """How significantly the share rises with the steps, in standard deviations."""
    onset_step: int
    """The first step at which the share was at least half of its current value."""
    cited: tuple[Citation, ...] = ()

    @property
    def share(self) -> float:
        """The share of hits among the newest rollouts."""
        return self.recent_hits / self.recent_rollouts if self.recent_rollouts else 0.0

    @property
    def start_share(self) -> float:
        return self.start_hits / self.start_rollouts if self.start_rollouts else 0.0
