"""The few frozen records passed around: one logged row, one attempt, one run's identity, one finding, one request, one
phase, one group of rollouts.

Plain data without behaviour beyond its own shape (a request hands its answer on); who writes and reads them is in
`store`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, get_args

from rlvitals.values import Value

SCHEMA = 1
"""The run directory's format this version writes. Readers accept older ones and name the version needed for newer
ones."""

Stream = Literal["train", "eval"]
"""The logs that a run's rows are in."""

Status = Literal["running", "finished", "failed", "interrupted"]

STATUSES: tuple[Status, ...] = ("running", "finished", "failed", "interrupted")

Severity = Literal["info", "warning", "critical"]

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
"""From harmless to grave."""

Verdict = Literal["healthy", "watch", "act", "cannot judge"]
"""The words a run is judged in, the same in every command and page."""

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


CAUSES: tuple[str, ...] = (
    "weight_sync", "numerics", "stale_samples", "expert_routing", "tokenization", "temperature",
    "sandbox", "tool", "time_out", "context_limit", "verifier", "parsing",
)  # fmt: skip
"""What may lie behind a finding, where the evidence shows it: the six reasons why engine and trainer disagree, and the
origins of failures that are not the policy's. A closed list, as the kinds are."""


def alarm_of(rule: str, label: str = "") -> str:
    """What is raised and recovers as one: a rule, or a rule about one slice. No rule's name has such a bracket.

    >>> alarm_of("kl_high"), alarm_of("slice_collapse", "env=math")
    ('kl_high', 'slice_collapse[env=math]')
    """
    return f"{rule}[{label}]" if label else rule


class Range(NamedTuple):
    """The numbers that a field may hold; `store.fields` looks at it where a record is read from a file."""

    least: float
    most: float


MAX_STEP = 2**53
"""Steps beyond it are not exact in the columns; the recorder does not write them."""

MAX_ATTEMPT = 2**31 - 1

MAX_TIME = 32_503_680_000
"""The year 3000 in Unix seconds. A later time means a damaged line, and not every system can show it as a date."""

WHOLE = Range(-MAX_STEP, MAX_STEP)
"""Whole numbers that are exact in every column and in every reader of JSON."""

Count = Annotated[int, Range(0, MAX_STEP)]
AttemptNumber = Annotated[int, Range(1, MAX_ATTEMPT)]
Pid = Annotated[int, Range(0, 2**31 - 1)]
Share = Annotated[float, Range(0, 1)]
Time = Annotated[float, Range(0, MAX_TIME)]
"""Unix seconds."""


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

    number: AttemptNumber
    started: Time
    from_step: int | None = None
    """The step its weights come from. None: not said, so its own first row decides."""
    from_checkpoint: str | None = None
    changed: dict[str, list[Any]] = field(default_factory=dict)
    """Settings that differ from the attempt before: key -> [before, now]."""
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
    """Values that could not be taken: key -> {count, reason}."""
    rows_dropped: Count = 0
    host: str = ""
    pid: Pid = 0
    processes: Count | None = None
    """How many processes a launcher started; None where none did."""
    python: str = ""
    platform: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    git: dict[str, str] = field(default_factory=dict)
    command: str = ""


class RunMarks(TypedDict, total=False):
    """What people say of a run, beside the run. What says nothing is not there."""

    name: str
    tags: list[str]
    note: str
    archived: bool
    deleted: bool


@dataclass(frozen=True, slots=True)
class Citation:
    """A place in a recorded rollout that a finding points at, by the numbers that lists and pages show."""

    step: int
    group: Count
    """Of the step, from 1."""
    rollout: Count
    """Of the group, from 1."""
    turn: Count = 1
    """From 1."""
    part: str = "text"
    """What of the turn: `text`, or `call 2` for the texts of its second call's arguments, joined by line ends."""
    start: Count = 0
    end: Count = 0
    """Characters of that part, the end not included."""
    quote: str = ""
    """The words there, shortened."""
    reward: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the doctor found: what, since when, how it knows, why it happens and what to do."""

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
    cause: str = ""
    """One of CAUSES; empty where the evidence does not show what lies behind it."""
    slice: str = ""
    """The label of the slice it is about, such as `env=math`; empty for the whole run."""
    cited: tuple[Citation, ...] = ()
    """Places in rollouts that show it, where it was read from texts."""
    recovered_step: int | None = None
    """The step at which its rule was content again; None: it still stands."""

    @property
    def alarm(self) -> str:
        """The alarm it is of: its rule, and its slice where it has one. Each alarm is raised and recovers by itself."""
        return alarm_of(self.rule, self.slice)

    def _repr_html_(self) -> str:
        """How a notebook shows it; what comes from the log is escaped."""
        from html import escape

        edge = {"critical": "#c62828", "warning": "#b8860b"}.get(self.severity, "#4682b4")
        symbol = {"critical": "✖", "warning": "!"}.get(self.severity, "·")
        parts = [
            f"started at step {self.onset_step}, {self.severity} at step {self.step}; {self.kind}",
            f"do: {'; '.join(self.advice)}" if self.advice else "",
            f"causes: {'; '.join(self.causes)}" if self.causes else "",
        ]
        told = "".join(f"<div>{escape(part)}</div>" for part in parts if part)
        return (
            f'<div style="border-left:4px solid {edge};padding-left:10px;margin:4px 0">'
            f"<b>{symbol} {escape(self.severity)}: {escape(self.title)}</b>{told}</div>"
        )


Answer = Literal["done", "declined", "replaced", "withdrawn"]
"""How a request ended: the first two are the trainer's words, `replaced` by a more severe one, `withdrawn` on
recovery.
"""


@dataclass(frozen=True, slots=True)
class Request:
    """One thing the doctor asks of the trainer, and the way to answer it."""

    action: Action
    reason: str
    finding: Finding
    checkpoint: str | None = None
    """revert: the folder to revert to."""
    checkpoint_step: int | None = None
    factor: float | None = None
    """reduce_lr, revert: what to multiply the learning rate by."""
    number: int = 0
    """Counts the requests of a run."""
    asked_by: str = ""
    """Who asked for it from outside; empty: the doctor."""
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


HealthEventType = Literal["raised", "escalated", "recovered", "request", "answer", "monitor"]
"""What a line of the health log tells: an alarm that was raised, that got more severe, that is over; what was asked of
the trainer and what it answered; that a monitor began to watch or gave up."""

SeenIn = Literal["rows", "clock", "epochs", "tokens", "texts"]
"""What a finding was read from. Those of rows can be found again from the log, those of tokens and texts from recorded
rollouts; the others only while it trains."""


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """One line of `logs/findings.jsonl`."""

    type: HealthEventType
    step: int
    timestamp: Time = float("nan")
    attempt: AttemptNumber = 1
    seen_in: SeenIn = "rows"
    finding: Finding | None = None
    """Of an alarm that was raised or got more severe."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Of the others; each is of the type it should be. An alarm that is over has its `rule`, `severity` and `slice`."""

    @property
    def rule(self) -> str:
        return self.finding.rule if self.finding is not None else str(self.facts.get("rule", ""))

    @property
    def alarm(self) -> str:
        """The alarm it is about, as `Finding.alarm`."""
        return self.finding.alarm if self.finding is not None else alarm_of(self.rule, str(self.facts.get("slice", "")))


@dataclass(frozen=True, slots=True)
class RunReading:
    """The current readings of one run for the monitoring of a fleet."""

    run: str
    """The run's path below its project; no other run of the project has the same."""
    project: str
    """The folder of runs it belongs to."""
    name: str
    algorithm: str
    """Empty where it is not known; so is the framework."""
    framework: str
    status: Status
    verdict: Verdict
    rows: int
    """Training rows on record, those of abandoned attempts included."""
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
    """Seconds since anything happened in it."""
    usual: float | None = None
    """The seconds it takes when it ends; None where it never has."""


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
    """One call of a tool and what came back: a pair, so that parallel calls keep their own results."""

    name: str
    arguments: Any = None
    """As parsed; the model's own text where it could not be."""
    result: str | None = None
    error: str = ""
    """Why it failed: `bad_arguments`, `unknown_tool`, or the tool's own words."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the model and what it led to."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    observation: str = ""
    """What the environment or the user said next, tool results aside."""
    outcome: str = ""
    """What the turn achieved, by the words of the credit rules: `search_hit`, `answer_wrong` ..."""
    tokens: int | None = None
    """All tokens of the turn, results included."""
    trainable_tokens: int | None = None
    """The model's own."""
    seconds: float | None = None
    reward: float | None = None
    """The turn's own contribution (a process reward)."""
    advantage: float | None = None


TURN_LIMIT = frozenset({"turn_limit", "max_turns", "out_of_turns", "ran_out_of_turns", "max_turns_reached"})
"""Stop reasons that mean that the turns were used up."""


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """A rollout token by token, the prompt left out: lists of one length, each empty where it was not recorded."""

    ids: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    turns: tuple[int, ...] = ()
    """The turn a token belongs to, from 0: the model's own tokens, and what the environment said after them."""
    trained: tuple[bool, ...] = ()
    """Whether the loss takes the token: False for tool results, padding and what was masked."""
    logprobs: tuple[float, ...] = ()
    """Of the trainer, with the weights it began the step with."""
    engine_logprobs: tuple[float, ...] = ()
    """Of the engine that sampled the token."""
    new_logprobs: tuple[float, ...] = ()
    """Of the trainer within the update: the numerator of the ratio."""
    reference_logprobs: tuple[float, ...] = ()
    entropies: tuple[float, ...] = ()
    advantages: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    """The step of the weights that wrote the token."""

    @property
    def length(self) -> int:
        """How many tokens it holds."""
        return max(len(getattr(self, name)) for name in self.__slots__)


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt at a prompt, turn by turn."""

    turns: tuple[Turn, ...] = ()
    reward: float | None = None
    advantage: float | None = None
    outcome: str = ""
    """`correct`, `wrong`, `idk`, `error` ..., the environment's word."""
    stop: str = ""
    """Why it ended: `answered`, `turn_limit`, `length`, `bad_arguments` ..."""
    error: str = ""
    """A bad rollout is data: what went wrong with it."""
    rubric: dict[str, Any] = field(default_factory=dict)
    reward_parts: dict[str, float] = field(default_factory=dict)
    tokens: int | None = None
    """All tokens, the prompt's included; None: the sum of the turns'."""
    trainable_tokens: int | None = None
    seconds: float | None = None
    seed: int | None = None
    policy_version: int | None = None
    """The step of the weights that wrote it."""
    trace: TokenTrace | None = None
    """Its tokens, where they were recorded: for chosen rollouts only, they take more room than the text."""
    meta: dict[str, Any] = field(default_factory=dict)
    """Anything else."""

    def ended_early(self, max_turns: int | None = None) -> bool:
        """Whether it ended before the turn limit, for any reason; not where neither the limit nor the reason is
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
"""In the `meta` of a group: how many rollouts the update of its step took, over all groups and ranks. Where as many
have a trace, the step's statistics can be computed again exactly."""


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one prompt at one step."""

    prompt: str = ""
    rollouts: tuple[Rollout, ...] = ()
    id: str = ""
    """The prompt's own name, the same at every step; empty: its text is."""
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
        """What tells that two groups are of the same prompt."""
        return self.id or self.prompt

    @property
    def early_rollouts(self) -> list[Rollout]:
        return [rollout for rollout in self.rollouts if rollout.ended_early(self.max_turns)]


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


RecheckCause = Literal["loss_scale", "mask_shift", "advantage_sign", "microbatch_weighting", "not_explained"]
"""Why a number that a trainer logged is another than the one computed again from its tokens."""


class Difference(NamedTuple):
    """A number as it was logged, and as the recorded tokens give it."""

    name: str
    """Under which it was logged."""
    logged: float
    recomputed: float


@dataclass(frozen=True, slots=True)
class TokenGap:
    """How far engine and trainer are apart on a step's recorded tokens, and where: what tells the cause of the gap."""

    tokens: int
    mean: float
    """Of the absolute gaps, in nats."""
    worst: float
    k1: float
    """The mean of the engine's log-prob minus the trainer's."""
    k3: float
    """The same KL by the estimator that is never negative."""
    scaling: float | None
    """Correlation of the gap with the engine's log-prob: a temperature multiplies log-probs."""
    slope: float | None
    """By how much the gap changes for each nat of the engine's log-prob."""
    in_few: float
    """The share of the gap that the worst hundredth of the tokens has."""
    at_edges: float | None
    """Of the tokens that are far out, the share at the first or last token of a turn; None without turns or such
    tokens."""
    later: float | None
    """The gap in the last third of the rollouts over that in the first."""
    by_length: float | None
    """Correlation of a rollout's mean gap with its length."""
    fresh: float | None
    """The gap of tokens that the newest weights wrote over that of the others; None where not both are known."""
    age: float | None
    """The mean age in versions, where versions were recorded."""


@dataclass(frozen=True, slots=True)
class Recheck:
    """A step's statistics computed again from recorded tokens, beside what was logged."""

    step: int
    rollouts: int
    """Those whose tokens were recorded."""
    compared: tuple[str, ...]
    """The logged names that could be compared."""
    is_whole: bool
    """Whether the tokens are all that the update took: then every number must agree to rounding."""
    differences: tuple[Difference, ...] = ()
    """The numbers that do not agree."""
    cause: RecheckCause = "not_explained"
    facts: dict[str, float | str] = field(default_factory=dict)
    """What tells the cause: `factor`, `count_of`, `shift`, `microbatch_size`."""
    gap: TokenGap | None = None
    """Between engine and trainer, where both log-probs were recorded."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """How one pattern has come up in the texts of rollouts, up to a step."""

    pattern: str
    step: int
    rollouts: int
    """That were read."""
    hits: int
    """Those of them that show the pattern."""
    recent_rollouts: int
    """Of the newest steps."""
    recent_hits: int
    start_rollouts: int
    """Of the first steps."""
    start_hits: int
    gain: float | None
    """Mean reward of the hits minus that of the other rollouts of the same prompt (or of the same step, where no group
    has both); None where that cannot be said."""
    gain_z: float
    """The same in standard deviations of what chance gives."""
    spread: float
    """Standard deviation of all rewards."""
    growth_z: float
    """How surely the share rises with the steps, in standard deviations."""
    onset_step: int
    """The first step at which the share was at least half of what it is now."""
    cited: tuple[Citation, ...] = ()

    @property
    def share(self) -> float:
        """The share of hits among the newest rollouts."""
        return self.recent_hits / self.recent_rollouts if self.recent_rollouts else 0.0

    @property
    def start_share(self) -> float:
        return self.start_hits / self.start_rollouts if self.start_rollouts else 0.0
