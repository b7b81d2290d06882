// Written by `python -m rlvitals.web.typescript` from rlvitals/contract.py: change that file, not this one.

/** What each address under `/api` answers. */
export interface Answers {
  runs: Runs;
  table: Table;
  run: Vitals;
  metrics: Metrics;
  series: Lines;
  distributions: Distributions;
  images: Images;
  image: ImageFacts;
  explain: Explained;
  findings: Findings;
  hindsight: HindsightAnswer;
  performance: Performance;
  rollouts: RolloutSteps | GroupPage | WholeGroup | Hits;
  evaluations: Evaluated;
  compare: Compared;
  sweep: Sweep;
  overlay: Overlay;
  overlays: Overlays;
  others: Others;
  marks: Marks;
}

/** Every run of the folder, the newest first. */
export interface Runs {
  folder: string;
  runs: ListedRun[];
  note: string;
}

/** A run in the list, by its place in the folder. */
export interface ListedRun {
  name: string;
  algorithm: string | null;
  framework: string | null;
  status: "running" | "finished" | "failed" | "interrupted" | "unreadable";
  status_note: string;
  verdict: "healthy" | "watch" | "act" | "cannot judge";
  reason: string;
  started: number | null;
  updated: number | null;
  last_step: number | null;
  total_steps: number | null;
  rows: number | null;
  metrics: number | null;
  host: string | null;
  seconds: number | null;
  run: string;
}

/** Every run with the requested columns. `pending` runs are still being read. `choices`: None unless requested. */
export interface Table {
  folder: string;
  columns: string[];
  runs: TableRun[];
  pending: number;
  choices: Choices | null;
  note: string;
}

/** A run with a value for each requested column; unknown values are None. */
export interface TableRun {
  name: string;
  algorithm: string | null;
  framework: string | null;
  status: "running" | "finished" | "failed" | "interrupted" | "unreadable";
  status_note: string;
  verdict: "healthy" | "watch" | "act" | "cannot judge";
  reason: string;
  started: number | null;
  updated: number | null;
  last_step: number | null;
  total_steps: number | null;
  rows: number | null;
  metrics: number | null;
  host: string | null;
  seconds: number | null;
  run: string;
  cells: (number | string | boolean | null)[];
}

/** The possible columns, the ones that most runs have first. */
export interface Choices {
  metrics: string[];
  settings: string[];
}

/** The overview of one run. */
export interface Vitals {
  name: string;
  id: string;
  status: "running" | "finished" | "failed" | "interrupted";
  status_note: string;
  algorithm: string | null;
  framework: string | null;
  started: number;
  ended: number | null;
  rows: number;
  ghost_rows: number;
  ranks: number[];
  verdict: "healthy" | "watch" | "act" | "cannot judge";
  reason: string;
  judging: boolean;
  was_watched: boolean;
  tiles: TileFacts[];
  step_bar: StepCell[];
  now: Now;
  attempts: Attempt[];
  config: Record<string, unknown>;
  environment: Record<string, unknown>;
  trackers: TrackerFacts[];
  problems: string[];
}

/** One vital sign; `band` is its typical range, `status` the severity of its findings. */
export interface TileFacts {
  name: string;
  concept: string | null;
  title: string;
  unit: string;
  direction: string;
  divided_by: string;
  slices: SliceValue[];
  value: number | null;
  change: ChangeFacts | null;
  band: [number | null, number | null] | null;
  status: "ok" | "watch" | "act";
  why: string;
  spark: [number, number | null][];
  points: number;
}

/** The last value of a metric for one environment, data source, agent, task or tool. */
export interface SliceValue {
  label: string;
  name: string;
  value: number | null;
}

/** How a metric has changed, measured between means of a tenth of the points. 0 means that the change is within the noise. `lately` covers the last `lately_steps` steps and is None if there are few points. `told` is the same in words. */
export interface ChangeFacts {
  first_step: number;
  start: number;
  now: number;
  since_start: number;
  lately: number | null;
  lately_steps: number | null;
  told: string;
}

export interface StepCell {
  from: number;
  to: number;
  severity: "info" | "warning" | "critical" | null;
  findings: number[];
}

/** The progress of the run. */
export interface Now {
  step: number | null;
  total_steps: number | null;
  eta_s: number | null;
  tokens_per_s: number | null;
  phase: string | null;
  updated: number;
}

/** One (re)start of a run. */
export interface Attempt {
  number: number;
  started: number;
  from_step: number | null;
  from_checkpoint: string | null;
  changed: Record<string, unknown[]>;
  host: string;
  pid: number;
}

/** How much of the run a tracker has received. */
export interface TrackerFacts {
  name: string;
  state: string;
  rows: number;
  behind: number;
  error: string;
  since: number;
}

/** The metrics to choose from; `essentials` are the vital signs. `left_out` counts metrics that are not listed. */
export interface Metrics {
  metrics: ListedMetric[];
  essentials: string[];
  texts: string[];
  has_distributions: boolean;
  has_images: boolean;
  left_out: number;
}

/** One metric of one stream. `points` is None in a run that is too large to count them. `slice` is None for a metric that is not one of several slices. `held_out_of` is the training name of a metric that is measured here on held-out data; None if training logs no such name. */
export interface ListedMetric {
  name: string;
  concept: string | null;
  title: string;
  unit: string;
  direction: string;
  stream: "train" | "eval";
  group: string;
  has_band: boolean;
  points: number | null;
  last: number | null;
  is_constant: boolean;
  slice: SliceFacts | null;
  held_out_of: string | null;
}

/** The series of slices that a metric belongs to, and which slice it is. */
export interface SliceFacts {
  series: string;
  label: string;
  title: string;
}

/** Lines to draw, with the healthy bounds and the findings of their metrics. */
export interface Lines {
  x: string;
  lines: DrawnLine[];
  bands: Record<string, [number | null, number | null]>;
  findings: FindingMark[];
}

/** A metric of one stream. */
export interface DrawnLine {
  total: number;
  shown: number;
  nonfinite: number;
  x: number[];
  low: (number | null)[];
  high: (number | null)[];
  y: (number | null)[];
  steps: number[];
  name: string;
  stream: "train" | "eval";
  ghosts: Ghost[];
}

/** The rows of abandoned attempts. */
export interface Ghost {
  x: number[];
  y: (number | null)[];
}

/** A finding on an x-axis, at its onset. */
export interface FindingMark {
  rule: string;
  kind: string;
  severity: "info" | "warning" | "critical";
  step: number;
  onset_step: number;
  title: string;
  metrics: string[];
  cause: string;
  slice: string;
  recovered_step: number | null;
  x: number;
}

/** The distributions of a run, and the newest texts that were logged, the newest first. */
export interface Distributions {
  distributions: Distribution[];
  texts: LoggedText[];
}

/** The distribution of values over the steps. If there are many steps, neighbouring steps share a place. `shares` are the shares of a place's values in each bin; values beyond the outermost `edges` are in the outermost bins. */
export interface Distribution {
  name: string;
  title: string;
  source: "rollouts" | "logged";
  steps: number[];
  counts: number[];
  levels: number[];
  quantiles: number[][];
  edges: number[];
  shares: number[][];
}

/** A text in a row. */
export interface LoggedText {
  name: string;
  step: number;
  text: string;
}

/** Every image of a run. */
export interface Images {
  images: ImageSeries[];
}

/** The images under one name, in the order of their steps. */
export interface ImageSeries {
  name: string;
  images: ListedImage[];
}

/** An image of one step, without its pixels. */
export interface ListedImage {
  step: number;
  width: number;
  height: number;
  caption: string;
}

/** One image. */
export interface ImageFacts {
  name: string;
  step: number;
  png: string;
}

/** The catalogue's entry for a name, as `rlvitals explain --json` prints it. */
export interface Explained {
  name: string;
  id: string;
  title: string;
  family: string;
  what: string;
  formula: string;
  estimator: string;
  unit: string;
  direction: string;
  reduce: string;
  tier: string;
  quantity: string;
  is_collective: boolean;
  bands: Band[];
  symptoms: Symptom[];
  notes: string;
  matched: string;
  labels: Record<string, string>;
  sources: NameSource[];
  aliases: Record<string, string[]>;
  other_meanings: OtherMeaning[];
  is_ambiguous: boolean;
  page: string;
}

/** A typical range with its source and scope. It is information only: rules judge a run, bands do not. */
export interface Band {
  low: number | null;
  high: number | null;
  algorithm: string;
  stage: "any" | "start" | "early" | "mid" | "late" | "end";
  min_parameters: number | null;
  estimator: string;
  is_typical: boolean;
  source: string;
  note: string;
}

/** One problem: what is seen, what it means, what to do. */
export interface Symptom {
  when: string;
  means: string;
  do: string;
}

/** A framework that uses the name, and what it means there. */
export interface NameSource {
  framework?: string;
  name?: string;
  when?: string;
  definition?: string;
  trap?: string;
  caveat?: CaveatFacts;
}

/** How a framework's number differs from the concept. */
export interface CaveatFacts {
  kind?: string;
  note?: string;
  factor?: number;
}

/** Another concept with the same name. */
export interface OtherMeaning {
  id: string;
  title: string;
  what: string;
  sources: NameSource[];
}

/** The findings of a run. */
export interface Findings {
  verdict: "healthy" | "watch" | "act" | "cannot judge";
  reason: string;
  judging: boolean;
  was_watched: boolean;
  findings: WholeFinding[];
  asked: AskedFacts[];
  left_out: number;
  first_step: number | null;
  last_step: number | null;
  names: TakenFacts[];
  has_rollouts: boolean;
}

/** A finding with all its details. */
export interface WholeFinding {
  rule: string;
  kind: string;
  severity: "info" | "warning" | "critical";
  step: number;
  onset_step: number;
  title: string;
  metrics: string[];
  cause: string;
  slice: string;
  recovered_step: number | null;
  confidence: number;
  evidence: Record<string, number | "nan" | "inf" | "-inf" | string>;
  evidence_told: string;
  causes: string[];
  advice: string[];
  action: "none" | "warn" | "checkpoint" | "reduce_lr" | "revert" | "stop";
  requests: AskedFacts[];
  trace: TracedLine[];
  cited: CitedFacts[];
  page: string;
}

/** A request to the trainer, because of a finding or from people, and its answer; None: not answered. */
export interface AskedFacts {
  request: number;
  step: number;
  timestamp: number | null;
  action: "none" | "warn" | "checkpoint" | "reduce_lr" | "revert" | "stop";
  reason: string;
  answer: "done" | "declined" | "replaced" | "withdrawn" | null;
  answer_text: string;
  asked_by: string;
}

/** A series around a finding. */
export interface TracedLine {
  total: number;
  shown: number;
  nonfinite: number;
  x: number[];
  low: (number | null)[];
  high: (number | null)[];
  y: (number | null)[];
  steps: number[];
  name: string;
  stream: "train" | "eval";
  ghosts: Ghost[];
  band: [number | null, number | null] | null;
}

/** A place in a rollout that is evidence for a finding. */
export interface CitedFacts {
  step: number;
  group: number;
  rollout: number;
  turn: number;
  part: string;
  start: number;
  end: number;
  quote: string;
  reward: number | "nan" | "inf" | "-inf" | null;
}

/** The concept that the rules read a logged name as. */
export interface TakenFacts {
  signal: string;
  name: string;
  concept: string;
  sureness: string;
  why: string;
}

/** `hindsight` is None if there is nothing to report: the run is healthy, or still runs. */
export interface HindsightAnswer {
  judging: boolean;
  hindsight: Hindsight | null;
}

/** What stopping a failed run earlier would have saved, and where to continue. */
export interface Hindsight {
  onset: OnsetFacts | null;
  cost: CostFacts;
  checkpoint: CheckpointFacts | null;
  nearest: NearestFacts | null;
  told: string[];
}

/** The first critical finding that has not recovered: the reason to stop the run. */
export interface OnsetFacts {
  rule: string;
  kind: string;
  title: string;
  step: number;
  said_step: number;
}

/** The cost of continuing after the onset. Unknown values are None, and `told` gives the reason. */
export interface CostFacts {
  hours: number | null;
  gpu_hours: number | null;
  hours_after_said: number | null;
  gpu_hours_after_said: number | null;
  gpus: number | null;
  gpus_from: string;
  measured_by: "timestamps" | "step times" | "";
  told: string;
}

/** A checkpoint to revert to. */
export interface CheckpointFacts {
  step: number;
  name: string;
  path: string;
  metric: string | null;
  value: number | null;
  last_value: number | null;
  hours_since: number | null;
  gpu_hours_since: number | null;
  told: string;
}

/** The healthy run whose settings differ least. */
export interface NearestFacts {
  run: string;
  name: string;
  status: "running" | "finished" | "failed" | "interrupted" | "unreadable";
  differences: Record<string, unknown[]>;
  left_out: number;
  told: string;
}

/** The time and memory that a run used. `left_out` counts older phases. */
export interface Performance {
  phases: PhaseFacts[];
  left_out: number;
  share: Record<string, number>;
  throughput: Record<string, Speed>;
  memory: PhaseMemory[];
  system: MachineFacts;
}

/** One phase that ended. */
export interface PhaseFacts {
  step: number;
  name: string;
  start: number;
  end: number;
  parent: string;
  error: string;
  attempt: number;
}

/** A speed over the rows: the last value, the slow tail, the median, the best. */
export interface Speed {
  title: string;
  unit: string;
  points: number;
  last: number;
  p1: number;
  p50: number;
  p99: number;
}

/** A phase's memory on one device over the course of the phase. */
export interface PhaseMemory {
  phase: string;
  device: string;
  stages: MemoryStage[];
  peak: MemoryUse;
}

/** The memory at one stage of a phase. */
export interface MemoryStage {
  allocated?: number;
  reserved?: number;
  stage: string;
}

/** GiB. */
export interface MemoryUse {
  allocated?: number;
  reserved?: number;
}

/** Samples of the machine over time, by name. */
export interface MachineFacts {
  samples: number;
  lines: Record<string, Curve>;
}

/** Thinned points with the step at which each bucket begins. */
export interface Curve {
  total: number;
  shown: number;
  nonfinite: number;
  x: number[];
  low: (number | null)[];
  high: (number | null)[];
  y: (number | null)[];
  steps: number[];
}

/** The answer to a request without a step: all steps with rollouts. */
export interface RolloutSteps {
  steps: RolloutStep[];
  problems: string[];
}

/** The rollouts of one step in one line. */
export interface RolloutStep {
  step: number;
  attempt: number;
  groups: number;
  kept: number;
  filtered: number;
  rollouts: number;
  mean: number | null;
  early: number;
}

/** The answer to a request with a step: one page of its groups. */
export interface GroupPage {
  step: number;
  groups: ListedGroup[];
  total: number;
  page: number;
  page_size: number;
}

/** A group in the list of its step. */
export interface ListedGroup {
  number: number;
  id: string;
  prompt: string;
  mean: number | null;
  std: number | null;
  rewards: (number | null)[];
  kept: boolean | null;
  reason: string;
  outcomes: Record<string, number>;
  early: number;
  rollouts: number;
}

/** The answer to a request with a step and a group: that group, and the number of groups. */
export interface WholeGroup {
  step: number;
  groups: GroupFacts[];
  total: number;
}

/** A group with its complete rollouts. */
export interface GroupFacts {
  prompt?: string;
  rollouts?: RolloutFacts[];
  id?: string;
  answer?: string;
  sources?: string[];
  max_turns?: number;
  mean?: number | "nan" | "inf" | "-inf";
  std?: number | "nan" | "inf" | "-inf";
  kept?: boolean;
  reason?: string;
  meta?: Record<string, unknown>;
  step?: number;
  attempt?: number;
  timestamp?: number | "nan" | "inf" | "-inf";
  number: number;
  outcomes: Record<string, number>;
  early: number;
}

/** One attempt at a prompt. */
export interface RolloutFacts {
  turns?: TurnFacts[];
  reward?: number | "nan" | "inf" | "-inf";
  advantage?: number | "nan" | "inf" | "-inf";
  outcome?: string;
  stop?: string;
  error?: string;
  rubric?: Record<string, unknown>;
  reward_parts?: Record<string, number | "nan" | "inf" | "-inf">;
  tokens?: number;
  trainable_tokens?: number;
  seconds?: number | "nan" | "inf" | "-inf";
  seed?: number;
  policy_version?: number;
  trace?: TraceFacts;
  traced?: number;
  meta?: Record<string, unknown>;
}

/** One message of the model and its consequences. */
export interface TurnFacts {
  text?: string;
  calls?: CallFacts[];
  observation?: string;
  outcome?: string;
  tokens?: number;
  trainable_tokens?: number;
  seconds?: number | "nan" | "inf" | "-inf";
  reward?: number | "nan" | "inf" | "-inf";
  advantage?: number | "nan" | "inf" | "-inf";
}

/** A tool call. Empty fields are left out, as in the types below. */
export interface CallFacts {
  name?: string;
  arguments?: unknown;
  result?: string;
  error?: string;
}

/** A rollout token by token: lists of one length. */
export interface TraceFacts {
  ids?: number[];
  texts?: string[];
  turns?: number[];
  trained?: boolean[];
  logprobs?: (number | "nan" | "inf" | "-inf")[];
  engine_logprobs?: (number | "nan" | "inf" | "-inf")[];
  new_logprobs?: (number | "nan" | "inf" | "-inf")[];
  reference_logprobs?: (number | "nan" | "inf" | "-inf")[];
  entropies?: (number | "nan" | "inf" | "-inf")[];
  advantages?: (number | "nan" | "inf" | "-inf")[];
  versions?: number[];
}

/** The answer to a search for a text, an outcome or the worst rollouts: one page of hits, and whether there are more. */
export interface Hits {
  hits: HitFacts[];
  page: number;
  more: boolean;
}

/** A rollout that matches a search. */
export interface HitFacts {
  step: number;
  group: number;
  rollout: number;
  reward: number | "nan" | "inf" | "-inf" | null;
  outcome: string;
  stop: string;
  turns: number;
  prompt: string;
}

/** The evaluations over the steps. Each has its `step` and everything it recorded. `epochs` is None if no row shows where an epoch ends. */
export interface Evaluated {
  name: string;
  evaluations: Record<string, unknown>[];
  first: StepAccuracy | null;
  best: StepAccuracy | null;
  last: StepAccuracy | null;
  problems: string[];
  metrics: string[];
  names: string[];
  slices: Record<string, SliceFacts>;
  has_rollouts: boolean;
  epochs: EpochsFacts | null;
}

/** The accuracy of one evaluation. */
export interface StepAccuracy {
  step: number;
  accuracy: number;
}

/** A run epoch by epoch, as `rlvitals epochs --json` prints it. */
export interface EpochsFacts {
  verdict: string;
  why: string;
  weighted_by: string;
  variance: string | null;
  told_by: string;
  reward: string | null;
  loss: string | null;
  epochs: EpochFacts[];
  weights: Record<string, "counts" | "samples" | "rows">;
}

/** One epoch's aggregates. */
export interface EpochFacts {
  epoch: number;
  first_step: number;
  last_step: number;
  rows: number;
  metrics: Record<string, number | null>;
  values: Record<string, number | null>;
  nonfinite: Record<string, number>;
}

/** Runs compared with the first one named. */
export interface Compared {
  runs: ComparedRun[];
  config_differences: Record<string, unknown[]>;
  metrics: ComparedMetric[];
  only_in_one: Record<string, string[]>;
  first_divergence: number | null;
  bookkeeping: Record<string, unknown[]>;
}

/** One of the runs. */
export interface ComparedRun {
  run: string;
  name: string;
  status: "running" | "finished" | "failed" | "interrupted";
  step: number | null;
  rollouts: boolean;
}

/** One metric in each of the runs. */
export interface ComparedMetric {
  name: string;
  concept: string | null;
  names: (string | null)[];
  best: (BestFacts | null)[];
  verdict: "same" | "convert" | "caution" | "different";
  note: string;
  first_divergence: number | null;
  common_steps: number;
  parts: (number | null)[];
  bands: (number | null)[];
}

/** A metric's best and last value. */
export interface BestFacts {
  name: string;
  last: number | null;
  last_step: number;
  best: number | null;
  best_step: number | null;
  direction: string;
  points: number;
}

/** Runs by the settings that vary among them. `left_out` counts settings beyond the maximum. */
export interface Sweep {
  target: string;
  runs: SweepRun[];
  settings: SweepSetting[];
  importance: Importance[];
  left_out: number;
}

/** A run of a sweep: its target, and its values of the settings that vary. */
export interface SweepRun {
  run: string;
  target: number | null;
  values: unknown[];
}

/** A setting that varies: numbers, or words in order. */
export interface SweepSetting {
  key: string;
  kind: "number" | "category";
  is_log: boolean;
  words: string[];
}

/** How a setting is related to the target over `n` runs: Spearman's rank correlation, or for words the share of the ranks that they explain. None: it cannot be computed, and `note` gives the reason. */
export interface Importance {
  key: string;
  n: number;
  kind: "number" | "category";
  strength: number | null;
  is_clear: boolean;
  note: string;
}

/** One metric of several runs; `typical` is its typical range in the first run that has it. */
export interface Overlay {
  x: string;
  name: string;
  typical: [number | null, number | null] | null;
  lines: OverlaidLine[];
  missing: string[];
  refused: Refusal[];
  bands: RunBand[];
}

/** A run's line among those of others. `low` and `high` are empty if every point is shown. */
export interface OverlaidLine {
  total: number;
  shown: number;
  nonfinite: number;
  x: number[];
  low: (number | null)[];
  high: (number | null)[];
  y: (number | null)[];
  run: string;
  name: string;
  stream: "train" | "eval";
  caution: string;
}

/** A run that is not drawn, and why: its metric is another quantity, or it does not have the x-axis. */
export interface Refusal {
  run: string;
  reason: string;
}

/** Lowest, highest and mean over the runs of a group that have the metric. */
export interface RunBand {
  label: string;
  runs: string[];
  x: number[];
  low: (number | null)[];
  high: (number | null)[];
  mean: (number | null)[];
}

/** Several metrics of several runs. `settings` are those that the runs can be grouped by. */
export interface Overlays {
  x: string;
  groups: RunGroup[];
  settings: string[];
  overlays: Overlay[];
}

/** Runs that belong together. */
export interface RunGroup {
  label: string;
  runs: string[];
}

/** Metrics that only the other runs log, not the first. `left_out` counts metrics that are not listed. */
export interface Others {
  metrics: OtherMetric[];
  left_out: number;
}

/** A metric that the first of several runs does not log, taken from the first other run that logs it. */
export interface OtherMetric {
  name: string;
  concept: string | null;
  title: string;
  unit: string;
  direction: string;
  stream: "train" | "eval";
  group: string;
  has_band: boolean;
  points: number | null;
  last: number | null;
  is_constant: boolean;
  slice: SliceFacts | null;
  held_out_of: string | null;
  logged_by: string[];
}

/** Every mark in the folder, by run, and the boards by name. */
export interface Marks {
  editable: boolean;
  runs: Record<string, RunMarks>;
  boards: Record<string, unknown>;
}

/** What people noted about a run, stored outside the run. Empty entries are left out. */
export interface RunMarks {
  name?: string;
  tags?: string[];
  note?: string;
  archived?: boolean;
  deleted?: boolean;
}

/** The events of `/api/live` by name. */
export interface Events {
  rows: NewRows;
  findings: NewFindings;
  status: NewStatus;
}

/** Rows that were added: the last step, and the newest value of each metric. */
export interface NewRows {
  step: number | null;
  updated: number | null;
  rows: number;
  values: Record<string, number | null>;
}

/** Findings that were added. */
export interface NewFindings {
  findings: FindingFacts[];
}

/** A finding, with the same keys in every answer. */
export interface FindingFacts {
  rule: string;
  kind: string;
  severity: "info" | "warning" | "critical";
  step: number;
  onset_step: number;
  title: string;
  metrics: string[];
  cause: string;
  slice: string;
  recovered_step: number | null;
}

/** Whether the run is still running. */
export interface NewStatus {
  status: "running" | "finished" | "failed" | "interrupted" | "unreadable";
  status_note: string;
  ended: number | null;
}

/** Any answer with a status of 400 or above. */
export interface Failure {
  error: string;
}
