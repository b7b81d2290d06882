"""The global run of the process, for users of the functions `init`, `log` and `finish`."""

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
    """Open a run like `rlvitals.start`, and make it the run of this process.

    An earlier run of `rlvitals.init` is finished first.

    Args:
        output_dir: The run's directory.
        **settings: The settings of `rlvitals.start`.

    Example:
        ```python
        import rlvitals

        rlvitals.init("out/kto", display="none")
        rlvitals.log({"loss": 0.62}, step=1)
        rlvitals.finish()
        print(rlvitals.open_run("out/kto").last_step)  # 1
        ```
    """
    global _current  # noqa: PLW0603 - this module exists for a global run
    if _current is not None:
        _current.finish()
    _current = start(output_dir, **settings)
    return _current


def log(metrics: Mapping[str, Any], step: int | None = None) -> None:
    """Append one row to the run that `rlvitals.init` opened.

    Args:
        metrics: Names and values, as in `Run.log`.
        step: The training step. The default is one more than that of the last row.

    Example:
        ```python
        import rlvitals

        rlvitals.init("out/kto", display="none")
        rlvitals.log({"loss": 0.62})
        rlvitals.log({"loss": 0.58})
        rlvitals.finish()
        print(rlvitals.open_run("out/kto").rows)  # 2
        ```
    """
    if _current is None:
        raise RunError("rlvitals.log() needs a run: call rlvitals.init('out/my-run') first")
    _current.log(metrics, step)


def finish(status: Status | None = None, error: BaseException | str | None = None) -> None:
    """Close the run that `rlvitals.init` opened. Does nothing without such a run.

    Args:
        status: `finished`, `failed` or `interrupted`. None: `Run.finish` decides.
        error: The exception or message that ended the run.

    Example:
        ```python
        import rlvitals

        rlvitals.init("out/kto", display="none")
        rlvitals.log({"loss": float("nan")}, step=1)
        rlvitals.finish("failed")
        print(rlvitals.open_run("out/kto").status)  # failed
        ```
    """
    global _current  # noqa: PLW0603
    if _current is not None:
        _current.finish(status, error)
        _current = None
