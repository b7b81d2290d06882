"""What every address under `/api` answers, typed once.

The functions of `views` that make the answers return these types, `rlvitals.web.api` lists them by address, and
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
"""The lowest and the highest typical value; None where a side is open."""

Number = float | Literal["nan", "inf", "-inf"]
"""What the files of rollouts and findings hold."""


# /api/runs


class Headline(TypedDict):
    """A run in a line. What is not known is None, all of it where the run cannot be read."""

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
    """How long it lasted, or has so far."""


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
    """A run with a value for each column that was asked for; what is not known is None."""

    cells: list[float | str | bool | None]


class Choices(TypedDict):
    """What columns may be made of, what most runs have first."""

    metrics: list[str]
    settings: list[str]


class Table(TypedDict):
    """Every run with the columns asked for. `pending` runs are still being read. `choices`: None unless asked for."""

    folder: str
    columns: list[str]
    runs: list[TableRun]
    pending: int
    choices: Choices | None
    note: str


# /api/run


class Described(TypedDict):
    """What a metric is."""

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
    """The slices of a metric, and by what they divide it: `env`, or nothing where there are none."""

    divided_by: str
    slices: list[SliceValue]


class ChangeFacts(TypedDict):
    """How a metric has changed, in levels that are means of a tenth of the points: 0 is no more than its scatter.
    `lately` is over the last `lately_steps` steps, None where there are few points; `told` says it all in words.
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
"""Some steps of the bar. `findings` are places in the list of `/api/findings`."""


class Now(TypedDict):
    """Where the run is."""

    step: int | None
    total_steps: int | None
    eta_s: float | None
    tokens_per_s: float | None
    phase: str | None
    updated: float


class TrackerFacts(TypedDict):
    """How far a tracker has followed the run."""

    name: str
    state: str
    rows: int
    behind: int
    error: str
    since: float


class Vitals(TypedDict):
    """One run at a glance."""

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
    """To which series of slices a metric belongs, and as what."""

    series: str
    label: str
    title: str
    """Of the whole series."""


class ListedMetric(Described):
    """One metric of one stream; `points` is None in a run too large to count them. `slice` is None for what is not one
    of several slices. `held_out_of` is the training's name of what is measured here on held-out data; None where
    training logs no such name.
    """

    stream: Literal["train", "eval"]
    group: str
    has_band: bool
    points: int | None
    last: float | None
    is_constant: bool
    """Several points, all of one value."""
    slice: SliceFacts | None
    held_out_of: str | None


class Metrics(TypedDict):
    """The metrics to choose from; `essentials` are the vital signs. `left_out` counts those that are not listed."""

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
    """A metric that the first of several runs does not log, as the first of the others has it."""

    logged_by: list[str]
    """The runs that do."""


class Others(TypedDict):
    """What only the others of several runs log. `left_out` counts those that are not listed."""

    metrics: list[OtherMetric]
    left_out: int


# /api/distributions


class Distribution(TypedDict):
    """How values are spread over the steps; neighbouring steps share a place where there are many. `shares` are the
    shares of a place's values in each bin; what lies beyond the outermost `edges` is in the outermost bins.
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
    """A text that a row carries."""

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


class Curve(TypedDict):
    """`total` points in `shown` buckets, each with where it begins, its lowest, highest and mean value."""

    total: int
    shown: int
    nonfinite: int
    x: list[float]
    low: list[float | None]
    high: list[float | None]
    y: list[float | None]
    steps: list[int]


class Ghost(TypedDict):
    """What abandoned attempts had logged."""

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
    """Since when it holds."""
    title: str
    metrics: list[str]
    cause: str
    """What lies behind it, one of `records.CAUSES`; empty where the evidence does not show it."""
    slice: str
    """The slice it is about, such as `env=math`; empty for the whole run."""
    recovered_step: int | None
    """None: it still stands."""


class FindingMark(FindingFacts):
    """A finding on an x-axis: where it began."""

    x: float


class Lines(TypedDict):
    """Lines to draw, with the healthy bounds and the findings of their metrics."""

    x: str
    lines: list[DrawnLine]
    bands: dict[str, Bounds]
    findings: list[FindingMark]


class OverlaidLine(TypedDict):
    """A run's line among those of others. `low` and `high` are empty where every point is shown."""

    run: str
    name: str
    stream: Literal["train", "eval"]
    total: int
    shown: int
    nonfinite: int
    x: list[float]
    y: list[float | None]
    low: list[float | None]
    high: list[float | None]
    caution: str
    """What to mind when it is compared with the others."""


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
    """What was asked of the trainer, because of a finding or by people, and its answer; None: not answered."""

    request: int
    step: int
    timestamp: float | None
    action: Action
    reason: str
    answer: Answer | None
    answer_text: str
    asked_by: str
    """Who asked from outside; empty: the doctor."""


class CitedFacts(TypedDict):
    """A place in a rollout that shows a finding."""

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
    """Characters of that part, by code points."""
    quote: str
    reward: Number | None


class WholeFinding(FindingFacts):
    """A finding with all that is known of it."""

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
    """Where recorded rollouts show it."""
    page: str
    """The address of the rule in the documentation; empty where it is not known."""


class TakenFacts(TypedDict):
    """What the doctor takes a logged name for."""

    signal: str
    name: str
    concept: str
    sureness: str
    why: str


class Findings(TypedDict):
    """What the doctor said of a run."""

    verdict: Verdict
    reason: str
    judging: bool
    was_watched: bool
    findings: list[WholeFinding]
    asked: list[AskedFacts]
    """What people asked of the trainer from outside."""
    left_out: int
    first_step: int | None
    last_step: int | None
    names: list[TakenFacts]
    has_rollouts: bool


# /api/hindsight


class OnsetFacts(TypedDict):
    """The first critical finding that still stands: what a run should have been stopped for."""

    rule: str
    kind: str
    title: str
    step: int
    """Where it began."""
    said_step: int
    """Where it was critical."""


class CostFacts(TypedDict):
    """What continuing after the onset has cost. What is unknown is None, and `told` gives the reason."""

    hours: float | None
    """Of the run's own clock: the time its processes were alive."""
    gpu_hours: float | None
    hours_after_said: float | None
    """Those of them that came after the finding was critical."""
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
    """Where it is; empty where nothing but its name is on record."""
    metric: str | None
    """What it was chosen by; None: it is the newest."""
    value: float | None
    last_value: float | None
    """The same at the end of the run."""
    hours_since: float | None
    gpu_hours_since: float | None
    told: str


class NearestFacts(TypedDict):
    """The healthy run whose settings differ least."""

    run: str
    name: str
    status: ShownStatus
    differences: dict[str, list[Any]]
    """Setting -> its value here and there."""
    left_out: int
    told: str


class Hindsight(TypedDict):
    """What would have happened if a run that went wrong had been stopped, and where to continue."""

    onset: OnsetFacts | None
    """None: the run failed or was killed, and nothing critical was found before."""
    cost: CostFacts
    checkpoint: CheckpointFacts | None
    nearest: NearestFacts | None
    told: list[str]
    """All of it in sentences."""


class HindsightAnswer(TypedDict):
    """`hindsight` is None where there is nothing to tell: the run is healthy, or continues."""

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
    """The address of the metric in the documentation; empty where it is not known."""


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
    """A speed over the rows: the last one, the slow tail, the median, the best."""

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
    """A phase's memory on one device as the phase passes."""

    phase: str
    device: str
    stages: list[MemoryStage]
    peak: MemoryUse


class MachineFacts(TypedDict):
    """Samples of the machine over time, by name."""

    samples: int
    lines: dict[str, Curve]


class Performance(TypedDict):
    """Where the time and the memory went. `left_out` counts older phases."""

    phases: list[PhaseFacts]
    left_out: int
    share: dict[str, float]
    throughput: dict[str, Speed]
    memory: list[PhaseMemory]
    system: MachineFacts


# /api/rollouts


class RolloutStep(TypedDict):
    """The rollouts of one step in a line."""

    step: int
    attempt: int
    groups: int
    kept: int
    filtered: int
    rollouts: int
    mean: float | None
    early: int


class RolloutSteps(TypedDict):
    """Asked without a step: the steps there are."""

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
    """Asked with a step: a page of its groups."""

    step: int
    groups: list[ListedGroup]
    total: int
    page: int
    page_size: int


class CallFacts(TypedDict, total=False):
    """A call of a tool; as the types below, without the fields that say nothing."""

    name: str
    arguments: Any
    result: str
    error: str


class TurnFacts(TypedDict, total=False):
    """One message of the model and what it led to."""

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
    """Of the rollout whose number was asked for with `tokens`."""
    traced: int
    """Tokens that were recorded of it; missing where none were."""
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
    """A group with its rollouts whole."""

    number: int
    outcomes: dict[str, int]
    early: int


class WholeGroup(TypedDict):
    """Asked with a step and a group: that group, and how many there are."""

    step: int
    groups: list[GroupFacts]
    total: int


class HitFacts(TypedDict):
    """A rollout that was found."""

    step: int
    group: int
    rollout: int
    reward: Number | None
    outcome: str
    stop: str
    turns: int
    prompt: str


class Hits(TypedDict):
    """Asked with a text, an outcome or for the worst: a page of what was found, and whether there is more."""

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
    """The evaluations over the steps. Each has its `step` and whatever it recorded. `epochs` is None where no row says
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
    """One metric over the runs."""

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
    """Runs beside the first one named."""

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
    """What a setting has to do with the target over `n` runs: Spearman's rank correlation, or for words the share of
    the ranks they explain. None: cannot be said, and `note` says why.
    """

    key: str
    n: int
    kind: Literal["number", "category"]
    strength: float | None
    is_clear: bool
    """Beyond what chance gives in 95 of 100 cases."""
    note: str


class Sweep(TypedDict):
    """Runs by the settings that vary among them. `left_out` counts settings beyond the most."""

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
    """Whether the run continues."""

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
    """What every answer tells of a finding."""
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
