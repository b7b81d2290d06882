"""`python -m rlvitals.follow RUN`: the follower's process.

Started by `rlvitals.start` with the trackers' settings on standard input, so that keys are neither on disk nor on a
command line. It outlives a killed trainer and finishes the forwarding.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

from rlvitals.sinks.follower import follow
from rlvitals.store.layout import RunDir


def main() -> None:
    """Read the settings, follow, and leave: a tracker's stuck thread must not keep the process."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    trackers = json.load(sys.stdin)
    caught_up = follow(RunDir(Path(sys.argv[1])), trackers)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if caught_up else 1)


if __name__ == "__main__":
    main()
