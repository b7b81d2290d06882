"""Samples the machine every few seconds, in a thread of its own, on an axis of its own: `logs/system.jsonl`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from rlvitals.capture.pulse import Pulse

if TYPE_CHECKING:
    from rlvitals.capture.hardware import Machine

logger = logging.getLogger("rlvitals")


class Sampler:
    """Hands a sample of the machine to `take` every `seconds`, the first after as long: a short run has none."""

    def __init__(self, take: Callable[[dict[str, float]], None], seconds: float) -> None:
        self._take = take
        self._machine: Machine | None = None
        self._has_failed = False
        self._pulse = Pulse(self._sample, seconds, "rlvitals-hardware")

    def stop(self) -> None:
        """End the thread and wait for a sample in progress."""
        self._pulse.stop()
        if self._machine is not None:
            self._machine.close()

    def _sample(self) -> None:
        if self._has_failed:
            return
        try:
            if self._machine is None:
                from rlvitals.capture.hardware import Machine  # not at the start: a short run has no sample

                self._machine = Machine()
            if sample := self._machine.sample():
                self._take(sample)
        except Exception as error:  # noqa: BLE001 - a background thread must not die of a surprise
            self._has_failed = True
            logger.warning("the machine is no longer sampled: %s: %s", type(error).__name__, error)


def is_sampled_here(rank: int) -> bool:
    """Whether this process samples its machine: one of each machine does."""
    return rank == 0 or os.environ.get("LOCAL_RANK") == "0"
