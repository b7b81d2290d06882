"""A run's epochs as a table, with the verdict and notes on how the numbers were computed below it."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlvitals.render.numbers import number

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


def render_epochs(facts: dict[str, Any]) -> RenderableType:
    """The table of `Epochs.to_dict()`."""
    shown = [name for name in COLUMNS if any(name in epoch["metrics"] for epoch in facts["epochs"])]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("epoch", "steps", "rows", *(COLUMNS[name] for name in shown)):
        table.add_column(heading, justify="right")
    for epoch in facts["epochs"]:
        steps = f"{number(epoch['first_step'])} to {number(epoch['last_step'])}"
        cells = [_cell(name, epoch["metrics"].get(name)) for name in shown]
        table.add_row(number(epoch["epoch"]), steps, number(epoch["rows"]), *cells)
    verdict = Text.assemble((facts["verdict"], f"bold {STYLES.get(facts['verdict'], '')}".strip()), f": {facts['why']}")
    notes = [f"epochs inferred from {facts['told_by']}; {WEIGHTS[facts['weighted_by']]}"]
    if facts["variance"]:
        notes.append(f"variance of {facts['variance']}")
    lost = sum(count for epoch in facts["epochs"] for count in epoch["nonfinite"].values())
    if lost:
        notes.append(f"{number(lost)} values were not finite and take no part")
    return Group(table, "", verdict, *(Text(f"  {note}", style="dim") for note in notes))


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"+{number(value)}" if name in SIGNED and value > 0 else number(value)
