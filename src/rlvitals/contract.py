"""The type of every answer under `/api`, defined once.

The functions of `views` that build the answers return these types, `rlvitals.web.api` lists them by address, and
`rlvitals.web.typescript` writes them to `web/contract.d.ts`, which the page's scripts are checked against.
`tests/web/test_contract.py` compares real answers with them. A type with `Facts` in its name holds a record's fields.
JSON has no NaN: a number that may not be finite is `float | None`.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from rlvitals.catalog import Band, Symptom
from rlvitals.records import Action, Answer, Attempt, Finding, RunMarks, Severity, Status, Verdict

ShownStatus = Literal[Status, "unreadable"]
TileStatus = Literal["ok", "watch", "act"]
Bounds = tuple[float | None, float | None]
"""The lowest and the highest typical value; None if a side is open."""

Number = float | Literal["nan", "inf", "-inf"]
"""A number as the files of rollouts and findings hold it."""


# /api/runs


class Headline(TypedDict):
    """A run in one line. Unknown values are None; all of them are None if the run cannot be read."""

    name: str
    algorithm: str | None
    framework: str | None
    status: ShownStatus
    status_note: str
    verdict: Verdict
    reason: str
    started: float | None
    updated: float | None
    last_step: int | None
    total_steps: int | None
    rows: int | None
    metrics: int | None
    host: str | None
    seconds: float | None
    """Its duration, or its duration so far."""


class ListedRun(Headline):
    """A run in the list, by its place in the folder."""

    run: str


class Runs(TypedDict):
    """Every run of the folder, the newest first."""

    folder: str
    runs: list[ListedRun]
    note: str
    """A note on logs that are not shown."""


# /api/table


class TableRun(ListedRun):
    """A run with a value for each requested column; unknown values are None."""

    cells: list[float | str | bool | None]


class Choices(TypedDict):
    """The possible columns, the ones that most runs have first."""

    metrics: list[str]
    settings: list[str]


class Table(TypedDict):
    """Every run with the requested columns. `pending` runs are still being read. `choices`: None unless requested."""

    folder: str
    columns: list[str]
    runs: list[TableRun]
    pending: int
    choices: Choices | None
    note: str


# /api/run


class Described(TypedDict):
    """The description of a metric."""

    name: str
    concept: str | None
    title: str
    unit: str
    direction: str


class SliceValue(TypedDict):
    """The last value of a metric for one environment, data source, agent, task or tool."""

    label: str
    name: str
    value: float | None


class Division(TypedDict):
    """The slices of a metric, and what they divide it by: `env`, or empty if there are none."""

    divided_by: str
    slices: list[SliceValue]


class ChangeFacts(TypedDict):
    """How a metric has changed, measured between means of a tenth of the points. 0 means that the change is within the
    noise. `lately` covers the last `lately_steps` steps and is None if there are few points. `told` is the same in
    words.
    """

    first_step: int
    start: float
    now: float
    since_start: float
    lately: float | None
    lately_steps: int | None
    told: str


class TileFacts(Described, Division):
    """One vital sign; `band` is its typical range, `status` the severity of its findings."""

    value: float | None
    change: ChangeFacts | None
    band: Bounds | None
    status: TileStatus
    why: str
    spark: list[tuple[float, float | None]]
    points: int


StepCell = TypedDict(
    "StepCell",
    {"from": int, "to": int, "severity": Severity | None, "findings": list[int]},
)
"""Some steps of the bar. `findings` are indices in the list of `/api/findings`."""


class Now(TypedDict):
    """The progress of the run."""

    step: int | None
    total_steps: int | None
    eta_s: float | None
    tokens_per_s: float | None
    phase: str | None
    updated: float


class TrackerFacts(TypedDict):
    """How much of the run a tracker has received."""

    name: str
    state: str
    rows: int
    behind: int
    error: str
    since: float


class Vitals(TypedDict):
    """The overview of one run."""

    name: str
    id: str
    status: Status
    status_note: str
    algorithm: str | None
    framework: str | None
    started: float
    ended: float | None
    rows: int
    ghost_rows: int
    ranks: list[int]
    verdict: Verdict
    reason: str
    judging: bool
    was_watched: bool
    tiles: list[TileFacts]
    step_bar: list[StepCell]
    now: Now
    attempts: list[Attempt]
    config: dict[str, Any]
    environment: dict[str, Any]
    trackers: list[TrackerFacts]
    problems: list[str]


# /api/metrics


class SliceFacts(TypedDict):
    """The series of slices that a metric belongs to, and which slice it is."""

    series: str
    label: str
    title: str
    """The title of the whole series."""


class ListedMetric(Described):
    """One metric of one stream. `points` is None in a run that is too large to count them. `slice` is None for a metric
    that is not one of several slices. `held_out_of` is the training name of a metric that is measured here on held-out
    data; None if training logs no such name.
    """

    stream: Literal["train", "eval"]
    group: str
    has_band: bool
    points: int | None
    last: float | None
    is_constant: bool
    """Several points with the same value."""
    slice: SliceFacts | None
    held_out_of: str | None


class Metrics(TypedDict):
    """The metrics to choose from; `essentials` are the vital signs. `left_out` counts metrics that are not listed."""

    metrics: list[ListedMetric]
    essentials: list[str]
    texts: list[str]
    has_distributions: bool
    """Whether `/api/distributions` has any."""
    has_images: bool
    """Whether `/api/images` has any."""
    left_out: int


# /api/others


class OtherMetric(ListedMetric):
    """A metric that the first of several runs does not log, taken from the first other run that logs it."""

    logged_by: list[str]
    """The runs that log it."""


class Others(TypedDict):
    """Metrics that only the other runs log, not the first. `left_out` counts metrics that are not listed."""

    metrics: list[OtherMetric]
    left_out: int


# /api/distributions


class Distribution(TypedDict):
    """The distribution of values over the steps. If there are many steps, neighbouring steps share a place. `shares`
    are the shares of a place's values in each bin; values beyond the outermost `edges` are in the outermost bins.
    """

    name: str
    title: str
    source: Literal["rollouts", "logged"]
    """`logged`: from 21 quantiles of each step; `rollouts`: from every value."""
    steps: list[int]
    counts: list[int]
    levels: list[float]
    quantiles: list[list[float]]
    """A list for each level."""
    edges: list[float]
    shares: list[list[float]]
    """A list for each step."""


class LoggedText(TypedDict):
    """A text in a row."""

    name: str
    step: int
    text: str


class Distributions(TypedDict):
    """The distributions of a run, and the newest texts that were logged, the newest first."""

    distributions: list[Distribution]
    texts: list[LoggedText]


# /api/images, /api/image


class ListedImage(TypedDict):
    """An image of one step, without its pixels."""

    step: int
    width: int
    height: int
    caption: str


class ImageSeries(TypedDict):
    """The images under one name, in the order of their steps."""

    name: str
    images: list[ListedImage]


class Images(TypedDict):
    """Every image of a run."""

    images: list[ImageSeries]


class ImageFacts(TypedDict):
    """One image."""

    name: str
    step: int
    png: str
    """A PNG as base64."""


# /api/series, /api/overlay, /api/overlays


class Thinned(TypedDict):
    """`total` points in `shown` buckets. Each bucket has its start and its lowest, highest and mean value. `nonfinite`
    points are NaN or infinite. Without thinning, every bucket is one point.
    """

    total: int
    shown: int
    nonfinite: int
    x: list[float]
    low: list[float | None]
    high: list[float | None]
    y: list[float | None]


class Curve(Thinned):
    """Thinned points with the step at which each bucket begins."""

    steps: list[int]


class Ghost(TypedDict):
    """The rows of abandoned attempts."""

    x: list[float]
    y: list[float | None]


class DrawnLine(Curve):
    """A metric of one stream."""

    name: str
    stream: Literal["train", "eval"]
    ghosts: list[Ghost]


class FindingFacts(TypedDict):
    """A finding, with the same keys in every answer."""

    rule: str
    kind: str
    severity: Severity
    step: int
    """When it was raised."""
    onset_step: int
    """The step at which it began."""
    title: str
    metrics: list[str]
    cause: str
    """The cause, one of `records.CAUSES`; empty if the evidence does not show it."""
    slice: str
    """The slice it is about, such as `env=math`; empty for the whole run."""
    recovered_step: int | None
    """None: not recovered."""


class FindingMark(FindingFacts):
    """A finding on an x-axis, at its onset."""

    x: float


class Lines(TypedDict):
    """Lines to draw, with the healthy bounds and the findings of their metrics."""

    x: str
    lines: list[DrawnLine]
    bands: dict[str, Bounds]
    findings: list[FindingMark]


class OverlaidLine(Thinned):
    """A run's line among those of others. `low` and `high` are empty if every point is shown."""

    run: str
    name: str
    stream: Literal["train", "eval"]
    caution: str
    """A caution for the comparison with the other runs."""


class RunGroup(TypedDict):
    """Runs that belong together."""

    label: str
    runs: list[str]


class RunBand(RunGroup):
    """Lowest, highest and mean over the runs of a group that have the metric."""

    x: list[float]
    low: list[float | None]
    high: list[float | None]
    mean: list[float | None]


class Refusal(TypedDict):
    """A run that is not drawn, and why: its metric is another quantity, or it does not have the x-axis."""

    run: str
    reason: str


class Overlay(TypedDict):
    """One metric of several runs; `typical` is its typical range in the first run that has it."""

    x: str
    name: str
    typical: Bounds | None
    lines: list[OverlaidLine]
    missing: list[str]
    refused: list[Refusal]
    bands: list[RunBand]


class Overlays(TypedDict):
    """Several metrics of several runs. `settings` are those that the runs can be grouped by."""

    x: str
    groups: list[RunGroup]
    settings: list[str]
    overlays: list[Overlay]


# /api/findings


class TracedLine(DrawnLine):
    """A series around a finding."""

    band: Bounds | None


class AskedFacts(TypedDict):
    """A request to the trainer, because of a finding or from people, and its answer; None: not answered."""

    request: int
    step: int
    timestamp: float | None
    action: Action
    reason: str
    answer: Answer | None
    answer_text: str
    asked_by: str
    """Who sent it from outside; empty: the doctor."""


class CitedFacts(TypedDict):
    """A place in a rollout that is evidence for a finding."""

    step: int
    group: int
    """Of the step, from 1."""
    rollout: int
    """Of the group, from 1."""
    turn: int
    part: str
    """`text`, or `call 2`."""
    start: int
    end: int
    """The offset in characters (code points) of that part."""
    quote: str
    reward: Number | None


class WholeFinding(FindingFacts):
    """A finding with all its details."""

    confidence: float
    evidence: dict[str, Number | str]
    evidence_told: str
    """The evidence as a sentence."""
    causes: list[str]
    advice: list[str]
    action: Action
    requests: list[AskedFacts]
    trace: list[TracedLine]
    cited: list[CitedFacts]
    """Places in recorded rollouts that show it."""
    page: str
    """The address of the rule in the documentation; empty if unknown."""


class TakenFacts(TypedDict):
    """The concept that the rules read a logged name as."""

    signal: str
    name: str
    concept: str
    sureness: str
    why: str


class Findings(TypedDict):
    """The findings of a run."""

    verdict: Verdict
    reason: str
    judging: bool
    was_watched: bool
    findings: list[WholeFinding]
    asked: list[AskedFacts]
    """Requests that people sent to the trainer from outside."""
    left_out: int
    first_step: int | None
    last_step: int | None
    names: list[TakenFacts]
    has_rollouts: bool


# /api/hindsight


class OnsetFacts(TypedDict):
    """The first critical finding that has not recovered: the reason to stop the run."""

    rule: str
    kind: str
    title: str
    step: int
    """Where it began."""
    said_step: int
    """The step at which it was critical."""


class CostFacts(TypedDict):
    """The cost of continuing after the onset. Unknown values are None, and `told` gives the reason."""

    hours: float | None
    """By the run's own clock: the time in which its processes were alive."""
    gpu_hours: float | None
    hours_after_said: float | None
    """The part of `hours` after the finding was critical."""
    gpu_hours_after_said: float | None
    gpus: int | None
    gpus_from: str
    measured_by: Literal["timestamps", "step times", ""]
    told: str


class CheckpointFacts(TypedDict):
    """A checkpoint to revert to."""

    step: int
    name: str
    path: str
    """Its path; empty if only its name is recorded."""
    metric: str | None
    """The metric it was chosen by; None: it is the newest."""
    value: float | None
    last_value: float | None
    """The value of the same metric at the end of the run."""
    hours_since: float | None
    gpu_hours_since: float | None
    told: str


class NearestFacts(TypedDict):
    """The healthy run whose settings differ least."""

    run: str
    name: str
    status: ShownStatus
    differences: dict[str, list[Any]]
    """Setting -> its value in this run and in the other one."""
    left_out: int
    told: str


class Hindsight(TypedDict):
    """What stopping a failed run earlier would have saved, and where to continue."""

    onset: OnsetFacts | None
    """None: the run failed or was killed without a critical finding before."""
    cost: CostFacts
    checkpoint: CheckpointFacts | None
    nearest: NearestFacts | None
    told: list[str]
    """All facts as sentences."""


class HindsightAnswer(TypedDict):
    """`hindsight` is None if there is nothing to report: the run is healthy, or still runs."""

    judging: bool
    hindsight: Hindsight | None


# /api/explain


class CaveatFacts(TypedDict, total=False):
    """How a framework's number differs from the concept."""

    kind: str
    note: str
    factor: float


class NameSource(TypedDict, total=False):
    """A framework that uses the name, and what it means there."""

    framework: str
    name: str
    when: str
    definition: str
    trap: str
    caveat: CaveatFacts


class OtherMeaning(TypedDict):
    """Another concept with the same name."""

    id: str
    title: str
    what: str
    sources: list[NameSource]


class Explained(TypedDict):
    """The catalogue's entry for a name, as `rlvitals explain --json` prints it."""

    name: str
    id: str
    title: str
    family: str
    what: str
    formula: str
    estimator: str
    unit: str
    direction: str
    reduce: str
    tier: str
    quantity: str
    is_collective: bool
    bands: list[Band]
    symptoms: list[Symptom]
    notes: str
    matched: str
    labels: dict[str, str]
    sources: list[NameSource]
    aliases: dict[str, list[str]]
    other_meanings: list[OtherMeaning]
    is_ambiguous: bool
    page: str
    """The address of the metric in the documentation; empty if unknown."""


# /api/performance


class PhaseFacts(TypedDict):
    """One phase that ended."""

    step: int
    name: str
    start: float
    end: float
    parent: str
    error: str
    attempt: int


class Speed(TypedDict):
    """A speed over the rows: the last value, the slow tail, the median, the best."""

    title: str
    unit: str
    points: int
    last: float
    p1: float
    p50: float
    p99: float


class MemoryUse(TypedDict, total=False):
    """GiB."""

    allocated: float
    reserved: float


class MemoryStage(MemoryUse):
    """The memory at one stage of a phase."""

    stage: str


class PhaseMemory(TypedDict):
    """A phase's memory on one device over the course of the phase."""

    phase: str
    device: str
    stages: list[MemoryStage]
    peak: MemoryUse


class MachineFacts(TypedDict):
    """Samples of the machine over time, by name."""

    samples: int
    lines: dict[str, Curve]


class Performance(TypedDict):
    """The time and memory that a run used. `left_out` counts older phases."""

    phases: list[PhaseFacts]
    left_out: int
    share: dict[str, float]
    throughput: dict[str, Speed]
    memory: list[PhaseMemory]
    system: MachineFacts


# /api/rollouts


class RolloutStep(TypedDict):
    """The rollouts of one step in one line."""

    step: int
    attempt: int
    groups: int
    kept: int
    filtered: int
    rollouts: int
    mean: float | None
    early: int


class RolloutSteps(TypedDict):
    """The answer to a request without a step: all steps with rollouts."""

    steps: list[RolloutStep]
    problems: list[str]


class ListedGroup(TypedDict):
    """A group in the list of its step."""

    number: int
    id: str
    prompt: str
    mean: float | None
    std: float | None
    rewards: list[float | None]
    kept: bool | None
    reason: str
    outcomes: dict[str, int]
    early: int
    rollouts: int


class GroupPage(TypedDict):
    """The answer to a request with a step: one page of its groups."""

    step: int
    groups: list[ListedGroup]
    total: int
    page: int
    page_size: int


class CallFacts(TypedDict, total=False):
    """A tool call. Empty fields are left out, as in the types below."""

    name: str
    arguments: Any
    result: str
    error: str


class TurnFacts(TypedDict, total=False):
    """One message of the model and its consequences."""

    text: str
    calls: list[CallFacts]
    observation: str
    outcome: str
    tokens: int
    trainable_tokens: int
    seconds: Number
    reward: Number
    advantage: Number


class TraceFacts(TypedDict, total=False):
    """A rollout token by token: lists of one length."""

    ids: list[int]
    texts: list[str]
    turns: list[int]
    trained: list[bool]
    logprobs: list[Number]
    engine_logprobs: list[Number]
    new_logprobs: list[Number]
    reference_logprobs: list[Number]
    entropies: list[Number]
    advantages: list[Number]
    versions: list[int]


class RolloutFacts(TypedDict, total=False):
    """One attempt at a prompt."""

    turns: list[TurnFacts]
    reward: Number
    advantage: Number
    outcome: str
    stop: str
    error: str
    rubric: dict[str, Any]
    reward_parts: dict[str, Number]
    tokens: int
    trainable_tokens: int
    seconds: Number
    seed: int
    policy_version: int
    trace: TraceFacts
    """Only in the rollout whose number was requested with `tokens`."""
    traced: int
    """Number of recorded tokens; missing if none were recorded."""
    meta: dict[str, Any]


class _Group(TypedDict, total=False):
    prompt: str
    rollouts: list[RolloutFacts]
    id: str
    answer: str
    sources: list[str]
    max_turns: int
    mean: Number
    std: Number
    kept: bool
    reason: str
    meta: dict[str, Any]
    step: int
    attempt: int
    timestamp: Number


class GroupFacts(_Group):
    """A group with its complete rollouts."""

    number: int
    outcomes: dict[str, int]
    early: int


class WholeGroup(TypedDict):
    """The answer to a request with a step and a group: that group, and the number of groups."""

    step: int
    groups: list[GroupFacts]
    total: int


class HitFacts(TypedDict):
    """A rollout that matches a search."""

    step: int
    group: int
    rollout: int
    reward: Number | None
    outcome: str
    stop: str
    turns: int
    prompt: str


class Hits(TypedDict):
    """The answer to a search for a text, an outcome or the worst rollouts: one page of hits, and whether there are
    more.
    """

    hits: list[HitFacts]
    page: int
    more: bool


RolloutAnswer = RolloutSteps | GroupPage | WholeGroup | Hits


# /api/evaluations


class StepAccuracy(TypedDict):
    """The accuracy of one evaluation."""

    step: int
    accuracy: float


class EpochFacts(TypedDict):
    """One epoch's aggregates."""

    epoch: int
    first_step: int
    last_step: int
    rows: int
    metrics: dict[str, float | None]
    values: dict[str, float | None]
    nonfinite: dict[str, int]


class EpochsFacts(TypedDict):
    """A run epoch by epoch, as `rlvitals epochs --json` prints it."""

    verdict: str
    why: str
    weighted_by: str
    variance: str | None
    told_by: str
    reward: str | None
    loss: str | None
    epochs: list[EpochFacts]
    weights: dict[str, Literal["counts", "samples", "rows"]]


class Evaluated(TypedDict):
    """The evaluations over the steps. Each has its `step` and everything it recorded. `epochs` is None if no row shows
    where an epoch ends.
    """

    name: str
    evaluations: list[dict[str, Any]]
    first: StepAccuracy | None
    best: StepAccuracy | None
    last: StepAccuracy | None
    problems: list[str]
    metrics: list[str]
    names: list[str]
    """The numbers in `evaluations`, the scores first."""
    slices: dict[str, SliceFacts]
    """By name of a number in `evaluations`."""
    has_rollouts: bool
    epochs: EpochsFacts | None


# /api/compare


class ComparedRun(TypedDict):
    """One of the runs."""

    run: str
    name: str
    status: Status
    step: int | None
    rollouts: bool


class BestFacts(TypedDict):
    """A metric's best and last value."""

    name: str
    last: float | None
    last_step: int
    best: float | None
    best_step: int | None
    direction: str
    points: int


class ComparedMetric(TypedDict):
    """One metric in each of the runs."""

    name: str
    concept: str | None
    names: list[str | None]
    best: list[BestFacts | None]
    verdict: Literal["same", "convert", "caution", "different"]
    note: str
    first_divergence: int | None
    common_steps: int
    parts: list[int | None]
    bands: list[int | None]


class Compared(TypedDict):
    """Runs compared with the first one named."""

    runs: list[ComparedRun]
    config_differences: dict[str, list[Any]]
    metrics: list[ComparedMetric]
    only_in_one: dict[str, list[str]]
    first_divergence: int | None
    bookkeeping: dict[str, list[Any]]


# /api/sweep


class SweepRun(TypedDict):
    """A run of a sweep: its target, and its values of the settings that vary."""

    run: str
    target: float | None
    values: list[Any]


class SweepSetting(TypedDict):
    """A setting that varies: numbers, or words in order."""

    key: str
    kind: Literal["number", "category"]
    is_log: bool
    words: list[str]


class Importance(TypedDict):
    """How a setting is related to the target over `n` runs: Spearman's rank correlation, or for words the share of the
    ranks that they explain. None: it cannot be computed, and `note` gives the reason.
    """

    key: str
    n: int
    kind: Literal["number", "category"]
    strength: float | None
    is_clear: bool
    """Whether it exceeds what chance gives in 95 of 100 cases."""
    note: str


class Sweep(TypedDict):
    """Runs by the settings that vary among them. `left_out` counts settings beyond the maximum."""

    target: str
    runs: list[SweepRun]
    settings: list[SweepSetting]
    importance: list[Importance]
    left_out: int


# /api/marks


class Marks(TypedDict):
    """Every mark in the folder, by run, and the boards by name."""

    editable: bool
    runs: dict[str, RunMarks]
    boards: dict[str, Any]


# /api/live


class NewRows(TypedDict):
    """Rows that were added: the last step, and the newest value of each metric."""

    step: int | None
    updated: float | None
    rows: int
    values: dict[str, float | None]


class NewFindings(TypedDict):
    """Findings that were added."""

    findings: list[FindingFacts]


class NewStatus(TypedDict):
    """Whether the run is still running."""

    status: ShownStatus
    status_note: str
    ended: float | None


class Events(TypedDict):
    """The events of `/api/live` by name."""

    rows: NewRows
    findings: NewFindings
    status: NewStatus


class Failure(TypedDict):
    """Any answer with a status of 400 or above."""

    error: str


def finding_facts(found: Finding) -> FindingFacts:
    """The fields of a finding that every answer contains."""
    return {
        "rule": found.rule,
        "kind": found.kind,
        "severity": found.severity,
        "step": found.step,
        "onset_step": found.onset_step,
        "title": found.title,
        "metrics": list(found.metrics),
        "cause": found.cause,
        "slice": found.slice,
        "recovered_step": found.recovered_step,
    }
