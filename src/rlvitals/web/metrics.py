"""`/metrics`: the recorded runs of the served folder for Prometheus. `gauges` reads each run."""

from __future__ import annotations

import threading
import time
from functools import lru_cache
from pathlib import Path

from rlvitals.errors import ConfigError, RlvitalsError
from rlvitals.gauges import RunGauges
from rlvitals.records import RunReading
from rlvitals.render.prometheus import FolderReading, folder_text
from rlvitals.store.files import changed_at
from rlvitals.store.layout import RunDir
from rlvitals.version import __version__
from rlvitals.web.answers import Query
from rlvitals.web.folder import Folder

RUNS, MOST_RUNS = 500, 5_000
"""Default and maximum number of runs on the page. A scraper chooses with `runs`."""

HOURS, MOST_HOURS = 24, 24 * 366
"""Default and maximum number of hours for which a run is shown after its last write."""

GOOD_SECONDS = 1.0
"""Seconds for which a page is reused, so that several scrapers cost no more than one."""

LEFT_OUT = ("limit", "age", "unreadable")


class MetricsPage:
    """The page, and the gauges of each run on it. Safe to use from several threads."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._gauges: dict[str, RunGauges] = {}
        self._page: tuple[float, tuple[int, int], str] = (0.0, (0, 0), "")

    def text(self, query: Query) -> str:
        """The page. The parameters `runs` and `hours` limit the number and the age of its runs. Raises ConfigError."""
        runs = _within(query, "runs", RUNS, MOST_RUNS)
        hours = _within(query, "hours", HOURS, MOST_HOURS)
        with self._lock:
            until, asked, page = self._page
            if time.monotonic() >= until or asked != (runs, hours):
                page = self._made(runs, hours)
                self._page = (time.monotonic() + GOOD_SECONDS, (runs, hours), page)
            return page

    def _made(self, most: int, hours: int) -> str:
        began = time.monotonic()
        places = self._folder.recorded_places()
        oldest = time.time() - 3600 * hours
        by_age = sorted(((_last_sign(path), run) for run, path in places.items()), reverse=True)
        recent = [run for sign, run in by_age if sign >= oldest]
        left_out = dict.fromkeys(LEFT_OUT, 0) | {"age": len(places) - len(recent)}
        left_out["limit"] = max(0, len(recent) - most)
        chosen = sorted(recent[:most])
        self._gauges = {run: self._gauges.get(run) or self._new(run, places[run]) for run in chosen}
        readings: list[RunReading] = []
        for gauges in self._gauges.values():
            try:
                readings.append(gauges.look())
            except (RlvitalsError, OSError):
                left_out["unreadable"] += 1
        seconds = time.monotonic() - began
        return folder_text(FolderReading(self._folder.name, len(places), left_out, seconds, __version__), readings)

    def _new(self, run: str, path: Path) -> RunGauges:
        return RunGauges(path, run, self._folder.name)


def _within(query: Query, key: str, default: int, most: int) -> int:
    given = query.whole(key, default)
    if given is None or not 1 <= given <= most:
        raise ConfigError(f"{key!r} is a number from 1 to {most:,}")
    return given


def _last_sign(path: Path) -> float:
    """When a run was last written. While it is being recorded, the heartbeat is written every few seconds."""
    heartbeat, log, info = _signs_of_life(path)
    return changed_at(heartbeat) or max(changed_at(log), changed_at(info))


@lru_cache(maxsize=MOST_RUNS)
def _signs_of_life(path: Path) -> tuple[str, str, str]:
    """Cached, because creating the paths takes longer than reading the modification times."""
    run_dir = RunDir(path)
    return str(run_dir.heartbeat), str(run_dir.train_log), str(run_dir.info)
