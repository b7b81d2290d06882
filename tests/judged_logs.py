"""Small logs with an unambiguous verdict, for tests of the reports about logs."""

from __future__ import annotations

import json
import random
from pathlib import Path


def healthy_rows(count: int = 60, seed: int = 1) -> list[dict]:
    """A run that learns."""
    noise = random.Random(seed)
    return [
        {
            "step": step,
            "loss": 0.5 + 0.02 * noise.gauss(0, 1),
            "grad_norm": 1.0 + 0.1 * noise.random(),
            "reward": 0.3 + 0.003 * min(step, 100) + 0.02 * noise.gauss(0, 1),
            "kl": 0.01 + 0.001 * noise.random(),
        }
        for step in range(1, count + 1)
    ]


def dying_rows(healthy: int = 40, dead: int = 30) -> list[dict]:
    """The same run, until its gradient is exactly zero, which is always critical."""
    rows = healthy_rows(healthy + dead)
    for row in rows[healthy:]:
        row["grad_norm"] = 0.0
    return rows


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
