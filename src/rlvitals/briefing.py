"""`python -m rlvitals.briefing RUN`: writes the content of a notification, which is the run's verdict and a chart.

The courier starts this process for a message and waits for a limited time. numpy and matplotlib are loaded in this
process only, so the trainer's processes do not need memory for them. Standard input has the metrics to draw. Standard
output receives one line of JSON, followed by the PNG if matplotlib is installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from rlvitals.codec import encode
from rlvitals.errors import RlvitalsError
from rlvitals.render.run_plots import draw
from rlvitals.views.diagnosis import Diagnosis, diagnose
from rlvitals.views.plots import chosen, overview
from rlvitals.views.run import RunView, open_run

MOST_METRICS = 4
NICENESS = 5


def chart(view: RunView, names: Sequence[str], found: Diagnosis) -> bytes | None:
    """A PNG of the metrics that a finding is about, or of the vital signs; None without matplotlib or without rows."""
    if find_spec("matplotlib") is None:
        return None
    there = [name for name in names if name in view.metrics][:MOST_METRICS]
    with contextlib.suppress(RlvitalsError):
        return draw(chosen(view, there, raised=found.findings) if there else overview(view, raised=found.findings))
    return None


def main() -> None:
    """Read the task and write the answer."""
    if hasattr(os, "nice"):
        os.nice(NICENESS)  # the trainer has priority
    task = json.load(sys.stdin)
    view = open_run(sys.argv[1])
    found = diagnose(view)
    picture = chart(view, task["metrics"], found) if task["picture"] else None
    out = sys.stdout.buffer
    out.write(encode({"verdict": found.verdict, "reason": found.reason}).strip() + b"\n")
    out.write(picture or b"")
    out.flush()


if __name__ == "__main__":
    main()
