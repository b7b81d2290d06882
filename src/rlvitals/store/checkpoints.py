"""Finds the checkpoints of trainers: folders with a step in their name. Selects those that belong to a run, which may
have been resumed or may share its folder with other runs. The content of checkpoints is not read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_NAMED = re.compile(r"(?:checkpoint|ckpt|global_steps?|iter|step)[-_]?(?P<step>[0-9]{1,15})")
"""The folder names of transformers, rlvitals, verl, OpenRLHF, SkyRL, slime, NeMo-RL and prime-rl."""

_BELOW = ("", "checkpoints", "weights", "_actor")
"""Subfolders of a trainer's folder: none, prime-rl and NeMo-RL, prime-rl (weights), OpenRLHF."""


def step_of(name: str) -> int | None:
    """The step in a checkpoint's name.

    >>> [step_of(name) for name in ("checkpoint-50", "global_step_7", "global_step12", "iter_0000040", "final_model")]
    [50, 7, 12, 40, None]
    """
    found = _NAMED.fullmatch(name)
    return int(found["step"]) if found else None


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """The checkpoints of any framework in a trainer's folder, by step, in order."""
    found: dict[int, Path] = {}
    for below in _BELOW:
        try:
            with os.scandir(folder / below) as found_here:  # `os.path.isdir` tolerates a link to itself
                entries = sorted(entry.path for entry in found_here if os.path.isdir(entry.path))
        except (OSError, ValueError):
            continue
        for entry in map(Path, entries):
            step = step_of(entry.name)
            if step is not None:
                found.setdefault(step, entry)
    return dict(sorted(found.items()))


def of_this_run(
    found: Mapping[int, Path], cuts: Iterable[tuple[int, float]], strangers_until: float = 0.0
) -> dict[int, Path]:
    """The checkpoints of the current attempts. Excluded are those of superseded attempts, which hold other weights, and
    those last changed before `strangers_until`, which belong to another training. Each of `cuts` is the first step that
    a resume superseded, and the time of the resume.
    """
    cuts = list(cuts)
    kept = {}
    for step, path in found.items():
        try:
            changed = path.stat().st_mtime
        except OSError:
            continue
        is_overtaken = any(step >= cut and changed < resumed_at for cut, resumed_at in cuts)
        if changed >= strangers_until and not is_overtaken:
            kept[step] = path
    return kept
