"""The process's one global run, for people used to `init`, `log`, `finish`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rlvitals.capture.run import Run
from rlvitals.capture.start import start
from rlvitals.errors import RunError
from rlvitals.records import Status

_current: Run | None = None


def init(output_dir: str | os.PathLike[str], **settings: Any) -> Run:
    """`rlvitals.start`, remembered as the process's run. A run begun before is finished first."""
    global _current  # noqa: PLW0603 - a global run is what this module is for
    if _current is not None:
        _current.finish()
    _current = start(output_dir, **settings)
    return _current


def log(metrics: Mapping[str, Any], step: int | None = None) -> None:
    """Append one row to the run that `init` began."""
    if _current is None:
        raise RunError("rlvitals.log() needs a run: call rlvitals.init('out/my-run') first")
    _current.log(metrics, step)


def finish(status: Status | None = None, error: BaseException | str | None = None) -> None:
    """Close the run that `init` began, as `Run.finish`; without one it does nothing."""
    global _current  # noqa: PLW0603
    if _current is not None:
        _current.finish(status, error)
        _current = None
