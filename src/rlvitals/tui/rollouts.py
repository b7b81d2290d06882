"""The screen of rollouts: a step's groups, one group's table of turn advantages, one rollout's transcript."""

from __future__ import annotations

from rich.text import Text

from rlvitals.errors import RlvitalsError
from rlvitals.records import Group
from rlvitals.render.numbers import number
from rlvitals.render.transcript import decision, moments, rollout_heading, transcript
from rlvitals.render.turn_table import signed, turn_table
from rlvitals.terminal import plural, visible
from rlvitals.tui.drawing import FAINT, cut, window, wrapped
from rlvitals.tui.panes import Pane
from rlvitals.tui.watched import Watched
from rlvitals.views.discovery import is_dump, is_joined, is_run
from rlvitals.views.places import open_rollouts
from rlvitals.views.rollouts import RolloutHit

SHOWN_HITS = 200


class RolloutsPane(Pane):
    """The rollouts of a run or a dump, read when the screen is drawn. It follows the newest step unless the user has
    moved to an earlier one.
    """

    def __init__(self, watched: Watched, name: str) -> None:
        super().__init__(watched, name)
        self._steps: list[int] = []
        self._step: int | None = None
        self._groups: list[Group] = []
        self._group = 0
        self._hits: list[RolloutHit] = []
        self._why = ""
        self.is_worst = False

    @property
    def count(self) -> int:
        if self._is_list:
            return len(self._hits)
        return len(self._groups[self._group].rollouts) if self._groups else 0

    @property
    def _is_list(self) -> bool:
        """Whether single rollouts of all steps are listed: the worst, or those that contain the filter's text."""
        return self.is_worst or bool(self.filter)

    def read(self) -> None:
        """Read the rollouts again, at the newest step unless the user has chosen an earlier one."""
        path = self.watched.path
        if not (is_run(path) or is_joined(path) or (path.is_dir() and is_dump(path))):
            self._why = "a foreign log holds no rollouts; name the folder of a dump to see those"
            return
        was_newest = self._step is None or (bool(self._steps) and self._step == self._steps[-1])
        try:
            log = open_rollouts(path)
            self._steps = log.steps
            if self._steps and (was_newest or self._step not in self._steps):
                self._step = self._steps[-1]
            if self._step is not None:
                self._groups = log.at(self._step)
                self._group = max(0, min(self._group, len(self._groups) - 1))
            if self._is_list:
                self._hits = log.find(text=self.filter or None, worst=self.is_worst, limit=SHOWN_HITS)
            self._why = "" if self._steps else "no rollouts were recorded"
        except (RlvitalsError, OSError) as error:
            self._why = str(error)
        self.refresh()

    def walk_groups(self, by: int) -> None:
        """Show another group of the step."""
        self._group = max(0, min(self._group + by, len(self._groups) - 1))
        self.selected = self.scrolled_away = 0
        self.refresh()

    def walk_steps(self, by: int) -> None:
        """Show another step."""
        if self._step in self._steps:
            place = max(0, min(self._steps.index(self._step) + by, len(self._steps) - 1))
            self._step, self._group, self.selected, self.scrolled_away = self._steps[place], 0, 0, 0
            self.read()

    def open(self) -> None:
        """Open the rollout that is selected in the list."""
        if self._is_list and self._hits:
            hit = self._hits[min(self.selected, len(self._hits) - 1)]
            self._step, self.is_worst, self.filter = hit.step, False, ""
            self.read()
            self._group, self.selected, self.scrolled_away = hit.group - 1, hit.rollout - 1, 0
            self.refresh()

    def lines(self, width: int, height: int) -> list[Text]:
        if self._why:
            return wrapped([Text(visible(self._why), style=FAINT)], width, self.app.console)
        if self._is_list:
            return self._listed(width, height)
        if not self._groups:
            return [Text("this step has no groups", style=FAINT)]
        place = 0 if self._step is None else self._steps.index(self._step) + 1
        group = self._groups[min(self._group, len(self._groups) - 1)]
        head = (
            f"step {number(self._step)} ({place} of {len(self._steps)})  group {self._group + 1} of {len(self._groups)}"
        )
        lines = [
            Text(cut(head, width), style="bold"),
            Text(
                cut(f"{moments(group)}, {plural(len(group.rollouts), 'rollout')}, {decision(group)}", width),
                style=FAINT,
            ),
            Text(cut(f"{group.id}: {group.prompt}" if group.id else group.prompt, width)),
        ]
        return [*lines, *self.page(self._details(group, width), height - len(lines))]

    def _details(self, group: Group, width: int) -> list[Text]:
        lines: list[Text] = []
        if any(turn.advantage is not None for rollout in group.rollouts for turn in rollout.turns):
            lines += [Text(line) for line in turn_table(group, width).split("\n")]
        if not group.rollouts:
            return [*lines, Text("no rollouts", style=FAINT)]
        self.selected = min(self.selected, len(group.rollouts) - 1)
        rollout = group.rollouts[self.selected]
        lines.append(Text(rollout_heading(self.selected + 1, rollout).strip(), style="bold"))
        lines += [Text(line) for line in transcript(rollout, full=True).split("\n")]
        return wrapped(lines, width, self.app.console)

    def _listed(self, width: int, height: int) -> list[Text]:
        what = "lowest rewards first" if self.is_worst else f"with {self.filter!r}"
        lines = [Text(cut(f"{len(self._hits)} rollouts, {what}; Enter opens one", width), style="bold")]
        self.selected = max(0, min(self.selected, len(self._hits) - 1))
        for place in window(len(self._hits), self.selected, height - 1):
            hit = self._hits[place]
            head = (
                f"step {number(hit.step):>6}  group {hit.group:>3}.{hit.rollout:<3} {signed(hit.reward)}  {hit.outcome}"
            )
            text = cut(f"{head}  {' '.join(hit.prompt.split())}", width)
            lines.append(Text(text, style="reverse" if place == self.selected else "", no_wrap=True))
        return lines
