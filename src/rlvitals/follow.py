"""`python -m rlvitals.follow RUN`: the process beside a trainer. It forwards rows to trackers, detects stalls, and
sends notifications.

`rlvitals.start` starts it and passes the settings on standard input, so that keys and addresses are neither on disk nor
on a command line. It continues after a trainer was killed, reports that, and finishes the forwarding.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvitals.clock import open_clock
from rlvitals.sinks.follower import follow
from rlvitals.store.cursors import bytes_behind, read_cursor
from rlvitals.store.layout import RunDir


def bring_last_findings(run_dir: RunDir, trackers: Mapping[str, Mapping[str, Any]]) -> bool:
    """Send findings that the clock raised after the last row, such as a killed trainer, to the trackers that accept
    findings. Returns whether the trackers have them.
    """
    behind = {name: own for name, own in trackers.items() if bytes_behind(run_dir, read_cursor(run_dir, name))}
    return follow(run_dir, behind, once=True) if behind else True


def main() -> None:
    """Read the settings, follow the run, and exit at once: a blocked thread of a tracker must not keep the process
    alive.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    task = json.load(sys.stdin)
    run_dir = RunDir(Path(sys.argv[1]))
    clock = open_clock(run_dir, task["clock"])
    notify = task.get("notify")
    couriers = None
    if notify:
        from rlvitals.notify.courier import Couriers

        couriers = Couriers(run_dir, notify["settings"], notify["start"], task["holder"])
    look = clock.look_when_due if clock is not None else None
    caught_up = follow(run_dir, task["trackers"], progress=look, holder=task["holder"])
    if clock is not None:
        clock.run()
        clock.close()
    if clock is not None:  # before waiting for the couriers, which may take minutes if a service is down
        caught_up = bring_last_findings(run_dir, task["trackers"]) and caught_up
    if couriers is not None:
        caught_up = couriers.finish() and caught_up
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if caught_up else 1)


if __name__ == "__main__":
    main()
