"""`Run.log_groups`: rollouts handed over group by group, written before it returns.

Durable on return like a row, without a thread: encoding and writing a step of 64 rollouts of 8 KB takes a few
milliseconds (see docs/rollouts.md), and there is no queue that a kill could take with it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from rlvitals.errors import BadValue
from rlvitals.records import Group
from rlvitals.store.messages import are_messages
from rlvitals.store.rollout_forms import group_of
from rlvitals.store.rollouts import RolloutWriter, group_line
from rlvitals.store.writer import LogWriter

if TYPE_CHECKING:
    from rlvitals.capture.run import Run

logger = logging.getLogger("rlvitals")


def is_verbose(asked: bool | None = None) -> bool:
    """Whether turn tables, rollout details and full summaries are printed: as asked, or as `VERBOSE=true` says."""
    return os.environ.get("VERBOSE", "").lower() in ("1", "true", "yes", "on") if asked is None else asked


def log_groups(run: Run, groups: Iterable[Any] | Mapping[str, Any] | Group, step: int | None) -> None:
    """Record the rollouts of a step. What cannot be taken is warned about once and left out; `strict` raises."""
    run.flush()  # a row that waits for a device comes first
    try:
        number = max(run.last_step, 0) if step is None else run._whole_step(step)
        now = time.time()
        lines = [group_line(group, number, run.attempt, now) for group in _groups(run, groups)]
        if not lines:
            return
        with run._lock:
            if not run._recording:
                run._say_once("groups", f"rollouts for {run.dir} are dropped: {run._closed_because}")
                return
            run._writer.verify()  # files are made where the run is now
            _writer(run).append(lines, number)
    except OSError as error:
        said = f"cannot write rollouts: {error.strerror or error}. They are kept in memory and tried again"
        run._say_once("groups OSError", said)
    except BadValue:
        raise
    except Exception as error:  # noqa: BLE001 - as in log(): nothing of ours raises into training
        said = f"rollouts could not be recorded: {type(error).__name__}: {error}"
        run._say_once(f"groups {type(error)}", said)


def _groups(run: Run, given: Any) -> list[Group]:
    def note(sentence: str) -> None:
        if run.settings.strict:
            raise BadValue(sentence)
        run._say_once(f"groups {sentence[:40]}", sentence)

    if isinstance(given, Group | Mapping) or are_messages(given):
        given = [given]
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        note(f"rollouts are left out: {type(given).__name__} is no list of groups")
        return []
    return [group for item in given if (group := group_of(item, note)) is not None]


def _writer(run: Run) -> RolloutWriter:
    """The run's writer of rollouts, among those it tends and closes."""
    writers = cast("dict[str, Any]", run._writers)
    if "rollouts" not in writers:

        def open_file(step: int) -> LogWriter:
            return run._open_writer(lambda: run._dir.rollout_file(step, run.rank))

        writers["rollouts"] = RolloutWriter(open_file, run._dir, run.rank, sync=run.settings.fsync != "never")
    writer: RolloutWriter = writers["rollouts"]
    return writer
