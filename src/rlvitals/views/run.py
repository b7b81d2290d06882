"""Opens a run: its stored data with its epochs, its rollouts and its card for notebooks."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from rlvitals.errors import RlvitalsError, RunNotFound
from rlvitals.health.history import by_gravity
from rlvitals.records import Group
from rlvitals.render.notebook import SHOWN_VALUES, CardSign, run_card
from rlvitals.render.numbers import number
from rlvitals.store.layout import RunDir
from rlvitals.store.remote import local_path
from rlvitals.terminal import plural
from rlvitals.views.changes import change
from rlvitals.views.discovery import linked_dumps, near_directory
from rlvitals.views.epochs import Epochs, gather
from rlvitals.views.query import StoredRun
from rlvitals.views.rollouts import DumpedRollouts, JoinedRollouts, RolloutSource
from rlvitals.views.thinning import thin

CARD_POINTS = 40
"""Points of a curve in a notebook's card."""


class RunView(StoredRun):
    """A stored run with its epochs, rollouts and notebook card. Created by `rlvitals.open_run`."""

    dumps_within: Path | None = None
    """The folder in which a dump named by the run's settings must be; None: the folder of the run."""

    def epochs(self, steps_per_epoch: int | None = None, by: str | None = None) -> Epochs:
        """The training rows epoch by epoch: by the metric `by`, or as given by the rows or the settings."""
        return gather(self, steps_per_epoch, by)

    def rollouts(self, step: int | None = None) -> list[Group]:
        """The groups of rollouts of a step; by default of the newest step that has some. See `rollout_log`."""
        wanted = self.rollout_log.last_step if step is None else step
        return [] if wanted is None else self.rollout_log.at(wanted)

    @cached_property
    def rollout_log(self) -> RolloutSource:
        """The run's rollouts, with queries by step, text and reward, and with those of linked dumps."""
        own = self.own_rollouts
        return JoinedRollouts([own, *self.linked_rollouts]) if self.linked_rollouts else own

    @cached_property
    def linked_rollouts(self) -> list[DumpedRollouts]:
        """The rollouts that a framework dumped beside the run."""
        within = self.dumps_within or self._dir.root.parent
        return [DumpedRollouts(folder) for folder in linked_dumps(self._dir.root, self.config, within)]

    @property
    def has_distributions(self) -> bool:
        return super().has_distributions or bool(self.linked_rollouts)

    def _repr_html_(self) -> str:
        """The card in a notebook: the verdict, the vital signs and the findings."""
        from rlvitals.views.diagnosis import diagnose  # imported here because reading a series does not need it

        try:
            step = "no rows yet" if self.last_step is None else f"step {number(self.last_step)}"
            about = [self.status, step, plural(self.rows, "row"), *filter(None, (self.algorithm, self.framework))]
            diagnosis = diagnose(self)
            signs = [self._sign(name) for name in self.vital_signs[:SHOWN_VALUES]]
        except RlvitalsError as error:  # damaged after it was opened: show the error
            return run_card(self.name, [str(error)], None, [], [])
        judged = (diagnosis.verdict, diagnosis.reason)
        return run_card(self.name, about, judged, signs, by_gravity(diagnosis.findings))

    def _sign(self, name: str) -> CardSign:
        steps, values = self.series(name)
        few = thin(steps, values, steps, CARD_POINTS)
        course = [(x, y) for x, y in zip(few["x"], few["y"], strict=True) if x is not None and y is not None]
        meaning = self.meaning(name)
        moved = change(steps, values, meaning.metric.direction if meaning else "none")
        return CardSign(name, float(values[-1]) if len(values) else None, course, moved["told"] if moved else "")


def open_run(path: str | os.PathLike[str]) -> RunView:
    """Open a run for reading. Raises RunNotFound or RunUnreadable; the message says what to do.

    Args:
        path: The run's directory, or its URL.

    Example:
        ```python
        import rlvitals

        with rlvitals.start("out/kto", display="none") as run:
            run.log({"loss": 0.62}, step=1)
            run.log({"loss": 0.58}, step=2)
        view = rlvitals.open_run("out/kto")
        steps, losses = view.series("loss")
        print(steps.tolist(), losses.tolist())  # [1, 2] [0.62, 0.58]
        ```
    """
    root = local_path(path)
    if not os.path.lexists(root):
        raise RunNotFound(f"there is no run in {root}: the directory does not exist.{near_directory(root)}")
    return RunView(RunDir(root))
