"""Runs for measurements, recorded with rlvitals itself, and the expected values of their series."""

from __future__ import annotations

import hashlib
import json
import random
import struct

import rlvitals

NAMES = ["loss", "grad_norm", "learning_rate", "entropy", "kl", "reward", "reward_std", "epoch", "num_tokens"]
NAMES += [f"rewards/check_{number}/mean" for number in range(60 - len(NAMES))]


class Recorded:
    """A recorded run whose last rows are held back, to be appended while others read it."""

    def __init__(self, root, rows, held_back=0):
        self.root, self.log = root, root / "logs" / "training_metrics.jsonl"
        with rlvitals.start(root) as run:
            for step, row in enumerate(rows):
                run.log(row, step=step)
        self._lines = self.log.read_bytes().splitlines(keepends=True)
        self._parsed = [json.loads(line) for line in self._lines]
        self.rows = len(self._lines) - held_back
        self.log.write_bytes(b"".join(self._lines[: self.rows]))
        self._digests = {}

    def append(self, count):
        """Append rows that were held back to the log."""
        with open(self.log, "ab") as file:
            file.writelines(self._lines[self.rows : self.rows + count])
        self.rows += count

    def expected(self, name):
        """The digest of one series, from the standard library's reading of the log."""
        key = (name, self.rows)
        if key not in self._digests:
            self._digests[key] = self._digest(name)
        return self._digests[key]

    def _digest(self, name):
        rows = [row for row in self._parsed[: self.rows] if name in row or f"{name}=" in row.get("_nonfinite", "")]
        steps, values = [row["step"] for row in rows], [row.get(name, float("nan")) for row in rows]
        return digest(struct.pack(f"<{len(rows)}q", *steps), struct.pack(f"<{len(rows)}d", *values))


def digest(steps, values):
    """One series, by the bytes of its int64 steps and float64 values."""
    return hashlib.sha256(steps + b"|" + values).hexdigest()


def noisy_rows(count):
    """Random walks with noise; every other metric has the digits of a float32, like a tensor's .item()."""
    rng = random.Random(0)
    levels = [rng.uniform(0.1, 2.0) for _ in NAMES]
    single = struct.Struct("f")
    for step in range(count):
        row = {}
        for number, name in enumerate(NAMES):
            levels[number] += rng.gauss(0, 0.002)
            value = levels[number] + rng.gauss(0, 0.05)
            row[name] = single.unpack(single.pack(value))[0] if number % 2 else value
        yield row | {"epoch": step / 5000, "num_tokens": step * 8192 + rng.randrange(999)}


def awkward_rows(count):
    """Rows with the irregularities of real logs: a NaN, and a metric that first appears late."""
    for step in range(count):
        row = {"kl": step / 7, "loss": float("nan") if step == count * 5 // 6 else 1 / (1 + step)}
        yield row | ({"late": step / 3} if step >= count - 1000 else {})
