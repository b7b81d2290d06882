"""The checkpoints of trainers: folders that carry a step in their name, and which of them belong to a run that was
resumed or that shares its folder with others. What is in them is nobody's business here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_NAMED = re.compile(r"(?:checkpoint|ckpt|global_steps?|iter|step)[-_]?(?P<step>[0-9]{1,15})")
"""Folders of transformers and our own trainers, of verl, OpenRLHF and SkyRL, of slime, of NeMo-RL and prime-rl."""

_BELOW = ("", "checkpoints", "weights", "_actor")
"""Where in a trainer's folder they are: itself, prime-rl's and NeMo-RL's, prime-rl's other one, OpenRLHF's."""


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
            with os.scandir(folder / below) as found_here:  # a link to itself beside them hides none
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
    """Those of the living line. A folder that a superseded attempt left behind holds other weights, and one that was
    last changed before the run began is another training's. `cuts` are the first step that became a ghost, and when.
    """
    cuts = list(cuts)
    kept = {}
    for step, path in found.items():
        try:
            changed = path.stat().st_mtime
        except OSError:
            continue
        is_overtaken = any(step >= cut and changed < begun for cut, begun in cuts)
        if changed >= strangers_until and not is_overtaken:
            kept[step] = path
    return kept
