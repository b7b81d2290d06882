"""Carries out what the doctor asks of a trainer with a loop of its own, and answers each request.

The learning rate is cut where the scheduler computes it from, so that its next step keeps the cut. To go back is the
trainer's own business: `revert` puts the state of a checkpoint back and says which one it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvitals.adapters.learning_rate import CannotCut, cut_learning_rate

if TYPE_CHECKING:
    from rlvitals.capture.run import Run

logger = logging.getLogger("rlvitals")


def carry_out(
    run: Run,
    *,
    optimizer: Any,
    scheduler: Any,
    save: Callable[[], Path],
    revert: Callable[[Path], Path | None],
) -> bool:
    """Ask for the run's request and do it; True: stop now. Every rank calls it at the same place.

    `revert` is given the checkpoint to go back to and returns where it went, or None where it could not; see
    `checkpoint.go_back`.
    """
    request = run.request()
    if request is None:
        return False
    if request.action == "stop":
        _say(request.reason, "training stops")
        request.done("stopped")
        return True
    if request.action == "checkpoint":
        request.done(f"saved {save().name}")
    elif request.action == "reduce_lr":
        try:
            before, after = cut_learning_rate(optimizer, scheduler, request.factor or 1.0)
        except CannotCut as problem:
            request.declined(str(problem))
        else:
            _say(request.reason, f"learning rate {before:.3g} -> {after:.3g}")
            request.done(f"lr {before:.3g} -> {after:.3g}")
    elif request.action == "revert":
        went = revert(Path(request.checkpoint or ""))
        if went is None:
            request.declined("the checkpoint is gone")
        else:
            _say(request.reason, f"back to {went.name}")
            request.done(f"back to {went.name}")
    return False


def _say(reason: str, what: str) -> None:
    logger.warning("%s: %s", reason, what)
