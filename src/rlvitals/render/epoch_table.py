"""A run's epochs as a table, with the verdict and notes on how the numbers were computed below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rlvitals.render.numbers import number
from rlvitals.render.screen import ruled_table

COLUMNS = {
    "Epoch/AvgReward": "reward",
    "Epoch/RewardTrend": "change",
    "Epoch/RewardVariance": "variance",
    "Epoch/AvgLoss": "loss",
    "Epoch/LossTrend": "improved",
    "Epoch/APITokens": "API tokens",
    "Epoch/NumSamples": "samples",
}
SIGNED = frozenset({"Epoch/RewardTrend", "Epoch/LossTrend"})
STYLES = {"improving": "green", "converged": "green", "inconsistent": "yellow", "worsening": "red", "flat": "yellow"}
WEIGHTS = {
    "counts": "every sample weighs the same: values carry their counts",
    "samples": "rows are weighted by their samples",
    "rows": "every row weighs the same: the run does not say how many samples a row stands for",
}


def epoch_rows(epochs: Sequence[Mapping[str, Any]], missing: str) -> tuple[list[str], list[list[str]]]:
    """The headers and the rows of a table of epochs. `missing` stands for a value that an epoch does not have."""
    shown = [name for name in COLUMNS if any(name in epoch["metrics"] for epoch in epochs)]
    rows = []
    for epoch in epochs:
        steps = f"{number(epoch['first_step'])} to {number(epoch['last_step'])}"
        cells = [_cell(name, epoch["metrics"][name]) if name in epoch["metrics"] else missing for name in shown]
        rows.append([number(epoch["epoch"]), steps, number(epoch["rows"]), *cells])
    return ["epoch", "steps", "rows", *(COLUMNS[name] for name in shown)], rows


def weighting_note(facts: Mapping[str, Any]) -> str:
    """Where the epochs end, and how much each row weighs."""
    return f"epochs inferred from {facts['told_by']}; {WEIGHTS[facts['weighted_by']]}"


def render_epochs(facts: dict[str, Any]) -> RenderableType:
    """The table of `Epochs.to_dict()`."""
    headers, rows = epoch_rows(facts["epochs"], missing="")
    table = ruled_table(*headers, right=range(len(headers)))
    for row in rows:
        table.add_row(*row)
    verdict = Text.assemble((facts["verdict"], f"bold {STYLES.get(facts['verdict'], '')}".strip()), f": {facts['why']}")
    notes = [weighting_note(facts)]
    if facts["variance"]:
        notes.append(f"variance of {facts['variance']}")
    lost = sum(count for epoch in facts["epochs"] for count in epoch["nonfinite"].values())
    if lost:
        notes.append(f"{number(lost)} values were not finite and take no part")
    return Group(table, "", verdict, *(Text(f"  {note}", style="dim") for note in notes))


def _cell(name: str, value: float) -> str:
    return f"+{number(value)}" if name in SIGNED and value > 0 else number(value)
