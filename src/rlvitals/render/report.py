"""The content of a report and its tables as plain text. The HTML page and the Markdown only add their markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from rlvitals.contract import BestFacts, EpochsFacts, StepCell, TileFacts
from rlvitals.records import Attempt, Group, Rollout
from rlvitals.render.check import nearest_rows
from rlvitals.render.epoch_table import epoch_rows, weighting_note
from rlvitals.render.numbers import duration, moment, number, setting
from rlvitals.render.run_plots import Picture
from rlvitals.render.transcript import transcript
from rlvitals.terminal import plural
from rlvitals.values import is_number

MOST_EPOCHS = 30
MOST_EVALUATIONS = 30
MOST_COLUMNS = 9
MOST_SETTINGS = 300
LONGEST_TRANSCRIPT = 6000


@dataclass(frozen=True, slots=True)
class ShownRollout:
    """A rollout with its position and its group."""

    step: int
    group_number: int
    number: int
    group: Group
    rollout: Rollout

    @property
    def place(self) -> dict[str, Any]:
        """Its position, for `rlvitals rollouts`, with its reward, outcome and prompt."""
        facts = {"step": self.step, "group": self.group_number, "rollout": self.number}
        return facts | {"reward": self.rollout.reward, "outcome": self.rollout.outcome, "prompt": self.group.prompt}


@dataclass(frozen=True, slots=True)
class RunReport:
    """The facts that a report shows about a run. Parts that the run does not have are None or empty."""

    name: str
    about: dict[str, Any]
    """Status, algorithm, framework, rows, steps, times."""
    check: dict[str, Any]
    """The doctor's report: `Report.to_dict()`."""
    asked: dict[str, str]
    """By alarm, the requests made to the trainer, and its answers."""
    tiles: list[TileFacts]
    step_bar: list[StepCell]
    curves: Picture | None
    values: list[BestFacts]
    """Best and last values, the vital signs first."""
    values_left_out: int
    epochs: EpochsFacts | None
    evaluations: dict[str, Any] | None
    best_rollouts: list[ShownRollout]
    worst_rollouts: list[ShownRollout]
    config: dict[str, Any]
    """Dotted key -> value, secrets masked."""
    environment: dict[str, object]
    attempts: list[Attempt]
    compared: dict[str, Any] | None
    compared_curves: Picture | None
    """None if no metric can be compared."""
    made: float
    """Unix seconds."""
    written_by: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys. Of curves it has the names, the numbers of points and the last values."""
        plain = ("name", "about", "check", "asked", "tiles", "step_bar", "values", "epochs", "evaluations", "config",
                 "environment", "compared", "made", "written_by")  # fmt: skip
        return {key: getattr(self, key) for key in plain} | {
            "attempts": [asdict(attempt) for attempt in self.attempts],
            "curves": _drawn(self.curves),
            "best_rollouts": [shown.place for shown in self.best_rollouts],
            "worst_rollouts": [shown.place for shown in self.worst_rollouts],
        }


class ReportTable(NamedTuple):
    """Cells as plain text. Texts from a log are not escaped yet."""

    headers: list[str]
    rows: list[list[str]]
    note: str = ""
    words: int = 1
    """Number of columns from the left that hold words; the others hold numbers."""


def about_words(report: RunReport) -> list[str]:
    """Short phrases about the run: rows, steps, status, algorithm, framework, start and attempts."""
    about = report.about
    parts = [plural(about["rows"], "row")]
    if about["first_step"] is not None:
        total = f" of {number(about['total_steps'])}" if about["total_steps"] else ""
        parts.append(f"steps {number(about['first_step'])} to {number(about['last_step'])}{total}")
    parts.append(about["status"] or f"{about['format']} log")
    parts += [str(about[key]) for key in ("algorithm", "framework") if about[key]]
    if about["started"]:
        parts.append(f"started {moment(about['started'])}, {duration(about['seconds'])}")
    if len(report.attempts) > 1:
        parts.append(f"{len(report.attempts)} attempts, {number(about['ghost_rows'])} rows superseded")
    return parts


def values_table(report: RunReport) -> ReportTable | None:
    """Last and best value of each metric."""
    if not report.values:
        return None
    rows = [
        [best["name"], number(best["last"]), number(best["last_step"]), number(best["best"]), number(best["best_step"]),
         number(best["points"])]
        for best in report.values
    ]  # fmt: skip
    left = report.values_left_out
    note = f"and {number(left)} more metrics" if left else ""
    return ReportTable(["metric", "last", "at step", "best", "at step", "points"], rows, note)


def epochs_table(facts: Mapping[str, Any]) -> ReportTable:
    """The last epochs, up to `MOST_EPOCHS`."""
    headers, rows = epoch_rows(facts["epochs"], missing="-")
    notes = [weighting_note(facts)]
    if (count := len(facts["epochs"])) > MOST_EPOCHS:
        notes.insert(0, f"the last {MOST_EPOCHS} of {number(count)} epochs")
    return ReportTable(headers, rows[-MOST_EPOCHS:], "; ".join(notes), words=0)


def evaluations_table(facts: Mapping[str, Any]) -> ReportTable:
    """The last evaluations, up to `MOST_EVALUATIONS`, with the numbers that most of them have."""
    listed = facts["evaluations"]
    counts: dict[str, int] = {}
    for stats in listed:
        for name, value in stats.items():
            if is_number(value) and name != "step":
                counts[name] = counts.get(name, 0) + 1
    names = sorted(facts.get("names", counts), key=lambda name: -counts[name])[: MOST_COLUMNS - 1]  # ties: scores first
    rows = [
        [number(stats["step"]), *[number(value) if is_number(value := stats.get(name)) else "-" for name in names]]
        for stats in listed[-MOST_EVALUATIONS:]
    ]
    notes = []
    if len(listed) > MOST_EVALUATIONS:
        notes.append(f"the last {MOST_EVALUATIONS} of {number(len(listed))} evaluations")
    if len(counts) > len(names):
        notes.append(f"{len(counts) - len(names)} more numbers each")
    return ReportTable(["step", *names], rows, "; ".join(notes), words=0)


def differences_table(compared: Mapping[str, Any]) -> ReportTable | None:
    """Settings that differ between the runs."""
    differences = compared["config_differences"]
    if not differences:
        return None
    rows = [[key, *map(setting, values)] for key, values in list(differences.items())[:MOST_SETTINGS]]
    return ReportTable(["setting", *run_names(compared)], rows, words=1 + len(compared["runs"]))


def nearest_table(hindsight: dict[str, Any]) -> ReportTable | None:
    """Settings of a run that differ from those of the nearest healthy run."""
    rows, note = nearest_rows(hindsight)
    return ReportTable(rows[0], rows[1:], note, words=3) if rows else None


def compared_table(compared: Mapping[str, Any]) -> ReportTable | None:
    """Last and best values side by side. A note names metrics left out because they are different quantities."""
    rows, refused = [], []
    for row in compared["metrics"]:
        if row["verdict"] == "different":
            refused.append(row["name"])
            continue
        cells = []
        for best in row["best"]:
            last = "-" if best is None else number(best["last"])
            top = "" if best is None or best["best"] is None else f" (best {number(best['best'])})"
            cells.append(last + top)
        parted = "-" if row["first_divergence"] is None else number(row["first_divergence"])
        rows.append([row["name"] + ("" if row["verdict"] == "same" else f" ({row['verdict']})"), *cells, parted])
    if not rows:
        return None
    note = f"left out, not the same quantity: {', '.join(refused[:8])}" if refused else ""
    return ReportTable(["metric", *run_names(compared), "differs from step"], rows[:60], note)


def run_names(compared: Mapping[str, Any]) -> list[str]:
    """The runs' names, or their paths if two runs have the same name."""
    names = [run["name"] for run in compared["runs"]]
    return names if len(set(names)) == len(names) else [run["path"] for run in compared["runs"]]


def config_table(report: RunReport) -> ReportTable | None:
    """The settings, the user's first."""
    if not report.config:
        return None
    keys = sorted(report.config, key=lambda key: key.startswith("rlvitals."))
    rows = [[key, setting(report.config[key])] for key in keys[:MOST_SETTINGS]]
    left = len(keys) - len(rows)
    return ReportTable(["setting", "value"], rows, f"and {number(left)} more" if left else "", words=2)


def environment_table(report: RunReport) -> ReportTable:
    """The run's source, its environment, and what changed with each further attempt."""
    rows = [["source", report.about["source"]]]
    for key, value in report.environment.items():
        text = ", ".join(f"{name} {item}" for name, item in value.items()) if isinstance(value, Mapping) else str(value)
        rows.append([key.replace("_", " "), text])
    for attempt in report.attempts[1:]:
        changed = ", ".join(f"{key}: {setting(was)} -> {setting(now)}" for key, (was, now) in _pairs(attempt.changed))
        start = "" if attempt.from_step is None else f"from step {number(attempt.from_step)}"
        rows.append([f"attempt {attempt.number}", "; ".join(filter(None, (start, changed))) or "resumed"])
    return ReportTable(["", ""], rows, words=2)


def cut_transcript(rollout: Rollout) -> str:
    """A rollout's transcript, cut to `LONGEST_TRANSCRIPT` characters, with control characters made visible."""
    text = transcript(rollout, full=True)
    left = len(text) - LONGEST_TRANSCRIPT
    return text if left <= 0 else f"{text[:LONGEST_TRANSCRIPT]}\n[+{number(left)} characters]"


def _pairs(changed: Mapping[str, Any]) -> list[tuple[str, Sequence[Any]]]:
    return [(key, pair) for key, pair in changed.items() if isinstance(pair, list | tuple) and len(pair) == 2]


def _drawn(picture: Picture | None) -> list[dict[str, Any]]:
    panels = picture.panels if picture is not None else []
    return [
        {
            "title": panel.title,
            "band": panel.band,
            "lines": [
                {"name": line.label, "points": len(line.y), "last": float(line.y[-1]) if len(line.y) else None}
                for line in panel.lines
            ],
        }
        for panel in panels
    ]
