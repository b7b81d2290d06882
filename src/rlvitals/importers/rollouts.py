"""Reads rollouts that other frameworks wrote, as groups: a whole dump at once, or a single row of it.

`importers/dumps` has the forms. `views/rollouts` reads dumps piece by piece for the screens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvitals.errors import ConfigError, NotALog
from rlvitals.importers.base import Notes
from rlvitals.importers.dumps import openrlhf, roll
from rlvitals.importers.dumps.base import NO_ROLLOUTS, LineForm, RowContents, Split, group_in, with_part
from rlvitals.importers.dumps.registry import FORMS, dump_files, form_of
from rlvitals.importers.dumps.trl import contents_of as contents_of_trl
from rlvitals.records import Group


@dataclass(frozen=True, slots=True)
class RolloutDump:
    """The rollouts of a dump."""

    groups: list[Group]
    format: str
    """The name of the first file's form: "trl", "verl", "slime", "messages" ..."""
    notes: list[str]


def read_rollouts(path: str | Path, split: Split | None = None) -> RolloutDump:
    """Read the rollouts of a file, or of a folder of such files, into memory. Raises NotALog if there are none.

    The rows of one step and one prompt form a group. `split` selects only training or only validation.
    """
    place, notes, skipped = Path(path), Notes(), list[str]()
    groups: dict[tuple[int, str, str], Group] = {}
    names = []
    files = dump_files(place)
    for file in files:
        try:
            form = form_of(file.path)
            for piece in form.pick(file.path, None, notes):
                contents = piece.contents
                group = group_in(contents, notes) if split in (None, contents.split) else None
                if group is not None:
                    key = (group.step, contents.split, group.key)
                    groups[key] = with_part(groups.get(key), group)
            names.append(form.name)
        except NotALog as error:
            if len(files) == 1:
                raise
            skipped.append(f"{file.name}: {error.why}")
    if not groups:
        raise NotALog(place, NO_ROLLOUTS)
    ordered = sorted(groups.values(), key=lambda group: group.step)
    return RolloutDump(ordered, names[0], [*notes.texts(), *skipped])


def group_of_row(form: str, row: Mapping[str, Any], step: int = 0) -> Group | None:
    """Converts a framework's row to a group; None if it holds no rollout. `form` is a name of `FORMS`.

    >>> group_of_row("openrlhf", {"text": "2 + 2 = 4", "reward": 1.0}, step=3).rollouts[0].reward
    1.0
    """
    notes = Notes()
    whole: dict[str, Callable[[], RowContents | None]] = {
        "trl": lambda: contents_of_trl(row, step, notes),
        "roll": lambda: roll.contents_of(row, step),
        "openrlhf": lambda: openrlhf.contents_of(row, step),
    }
    lines = {item.name: item for item in FORMS if isinstance(item, LineForm)}
    if form in whole:
        contents = whole[form]()
    elif form in lines:
        contents = lines[form].contents(row, Path(f"{step}.jsonl"), notes)
    else:
        raise ConfigError(f"{form!r} is not a form of rows; there are {', '.join(sorted({*whole, *lines}))}")
    return None if contents is None else group_in(contents, notes)
