"""The text about a run whose process exited without finishing it, and how to resume it. Such a run is not healthy,
whatever its last rows show. Every screen, list and report uses this text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvitals.health.history import GONE
from rlvitals.records import Finding, RunInfo
from rlvitals.render.numbers import number
from rlvitals.store.checkpoints import checkpoints_in

_OWN_TRAINER = re.compile(r"(?:.*/)?rlvitals(?:/cli/main\.py)? train (?P<trainer>[a-z]+)(?P<rest>(?: [\w@%+=:,./-]+)*)")
"""An rlvitals command without shell metacharacters. Users paste the command, and a run's data is not trusted."""
_RESUME_FLAG = re.compile(r" --resume-from[= ]\S+")
_CAUSES = ("it was killed (out of memory, a scheduler, kill -9), or the interpreter itself crashed",)


@dataclass(frozen=True, slots=True)
class Stop:
    """How a run stopped without finishing."""

    when: float
    """The last sign of life, in Unix seconds."""
    is_known: bool
    """Whether the process is known to have exited. False if it ran on another machine and is only silent."""


def finding_of(stop: Stop, info: RunInfo, last_step: int | None, resume: str) -> Finding:
    """The finding about a stopped run."""
    total = f" of {number(info.total_steps)}" if info.total_steps else ""
    where = f"at step {number(last_step)}{total}" if last_step is not None else "before its first row"
    why = "the process is gone" if stop.is_known else f"no heartbeat from {info.host or 'its machine'} any more"
    step = 0 if last_step is None else last_step
    return Finding(
        rule=GONE,
        kind="stall",
        severity="critical",
        step=step,
        onset_step=step,
        title=f"stopped {where}: {why}",
        confidence=1.0,
        evidence={"process": f"pid {info.pid} on {info.host or 'an unknown host'}"} if info.pid else {},
        causes=_CAUSES,
        advice=(resume, "look at dmesg and the scheduler's log for what ended it"),
    )


def resume_words(info: RunInfo, config: Mapping[str, Any], path: Path) -> str:
    """The command or call that resumes a run, as far as the run records what trained it."""
    own = _OWN_TRAINER.fullmatch(info.command)
    if own is not None:
        return f"resume with: rlvitals train {own['trainer']}{_RESUME_FLAG.sub('', own['rest'])} --resume-from last"
    if is_of_transformers(info):
        folder = config.get("output_dir")
        places = [path, path.parent, *([Path(folder)] if isinstance(folder, str) else [])]
        if any(map(checkpoints_in, places)):
            return "resume with: trainer.train(resume_from_checkpoint=True)"
        return "no checkpoint was saved, so nothing can be resumed: start the script again"
    return f"resume from your newest checkpoint, with rlvitals.start({str(path)!r}, resume=STEP)"


def is_of_transformers(info: RunInfo) -> bool:
    """Whether a trainer of transformers or TRL trained the run, inside whose folder the run usually is."""
    return (info.framework or "").startswith("trl")
