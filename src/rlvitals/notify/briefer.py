"""The state of a run and its chart for a message. A separate process (`rlvitals.briefing`) computes them.

Drawing takes one or two seconds of processor time, so all couriers of a run share the result.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from itertools import islice
from typing import get_args

from rlvitals.health.history import FEW_ROWS, NOT_MONITORED, recorded_verdict
from rlvitals.notify.messages import Standing
from rlvitals.notify.targets import Target, secrets_of, service_class
from rlvitals.records import Verdict
from rlvitals.store.layout import RunDir
from rlvitals.store.past import living_line
from rlvitals.store.tail import file_size

LIMIT_SECONDS = 60.0
FRESH_SECONDS = 60.0
MOST_KEPT = 8


class Briefer:
    """The state of one run. Several threads may ask; one starts the process, the others wait for its answer."""

    def __init__(self, run_dir: RunDir, targets: Sequence[Target]) -> None:
        self._dir = run_dir
        self._draws = any(target.picture and service_class(target.service).takes_pictures for target in targets)
        # The process that draws the chart receives no secrets.
        hidden = {value for target in targets for value in secrets_of(target).values()}
        self._environment = {name: value for name, value in os.environ.items() if value not in hidden}
        self._environment |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
        self._lock = threading.Lock()
        self._known: dict[tuple[int, tuple[str, ...]], tuple[float, Standing]] = {}

    def ask(self, metrics: tuple[str, ...] = ()) -> Standing:
        """The current state of the run, with a chart of these metrics, or of its vital signs if none are named."""
        with self._lock:
            key = file_size(self._dir.findings) or 0, metrics
            made, standing = self._known.get(key, (0.0, None))
            if standing is None or time.monotonic() - made > FRESH_SECONDS:
                standing = self._briefed(metrics) or self._worked_out()
                self._known[key] = time.monotonic(), standing
                for old in list(self._known)[:-MOST_KEPT]:
                    del self._known[old]
            return standing

    def _briefed(self, metrics: tuple[str, ...]) -> Standing | None:
        """The answer of the process; None if it fails or takes too long."""
        with contextlib.suppress(OSError, ValueError, KeyError, subprocess.SubprocessError):
            done = subprocess.run(
                [sys.executable, "-m", "rlvitals.briefing", str(self._dir.root)],
                input=json.dumps({"metrics": list(metrics), "picture": self._draws}).encode(),
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, timeout=LIMIT_SECONDS,
                env=self._environment,
            )  # fmt: skip
            line, _, picture = done.stdout.partition(b"\n")
            answer = json.loads(line)
            if answer["verdict"] in get_args(Verdict):
                return Standing(answer["verdict"], str(answer["reason"]), picture or None)
        return None

    def _worked_out(self) -> Standing:
        """The state from the health log and the first rows, without a chart."""
        line = living_line(self._dir)
        rows = len(list(islice(line.steps(), FEW_ROWS)))
        found = recorded_verdict(line.events(), line.attempts, rows, None, was_monitored=lambda: True)
        return Standing(*(found or ("cannot judge", NOT_MONITORED)))
