"""How a run that is being recorded shows itself in a notebook: where it is, its last row, what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvitals.health.history import by_gravity
from rlvitals.render.notebook import last_values, run_card
from rlvitals.render.numbers import number
from rlvitals.store.layout import RunDir
from rlvitals.store.reader import last_row

if TYPE_CHECKING:
    from rlvitals.capture.run import Run


def card(run: Run, run_dir: RunDir) -> str:
    """The card of a run."""
    row = last_row(run_dir.train_log)
    step = "no rows yet" if run.last_step < 0 else f"step {number(run.last_step)}"
    values = last_values(row.numbers if row else {})
    return run_card(run.name, [run.status, step, run.dir], run.verdict, values, by_gravity(run.findings))
