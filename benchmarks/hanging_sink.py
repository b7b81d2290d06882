"""A tracker that takes a row and never returns, registered like any plug-in, with an entry point.

The follower is a separate process that imports trackers by name. It finds this one if the trainer's PYTHONPATH has a
folder with the entry point.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from rlvitals.sinks.base import Sink


class HangingSink(Sink):
    def write(self, rows):
        Path(self.settings["mark"]).touch()
        while True:
            time.sleep(3600)

    def commit(self): ...
    def close(self): ...


def register(folder, name):
    """Write the entry point into a folder; returns the PYTHONPATH with which the tracker has that name."""
    plugin = folder / "hanging_sink-1.dist-info"
    plugin.mkdir(parents=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging-sink\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text(f"[rlvitals.sinks]\n{name} = hanging_sink:HangingSink\n")
    return os.pathsep.join([str(folder), str(Path(__file__).parent)])
