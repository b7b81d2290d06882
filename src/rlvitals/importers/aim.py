"""Aim: repositories are recognised, and the message explains how to export them. They are RocksDB databases, which only
Aim's own package reads.
"""

from __future__ import annotations

import os
from pathlib import Path

EXPORT = (
    'python -c "import json; from aim import Repo; '
    "[print(json.dumps({'run': m.run.hash, 'step': int(s), m.name: float(v)})) "
    "for m in Repo('.').query_metrics('run.hash != None') "
    'for s, v in zip(*m.values.sparse_numpy())]" > metrics.jsonl'
)


def export_of(folder: Path) -> str:
    """What to do with a folder that is, or contains, an Aim repository; empty for any other folder."""
    root = folder if folder.name == ".aim" else folder / ".aim"
    if not os.path.isdir(root / "meta"):
        return ""
    return (
        "it is an Aim repository, kept in RocksDB, which only Aim itself reads. Export it where aim is installed, in "
        f"the folder that holds .aim, and pass the file: {EXPORT}"
    )
