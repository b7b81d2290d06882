"""On-policy distillation: a student learns from a teacher on its own samples, hardly moves, or moves away from it.

Both are tables of logits. A step samples tokens from the student, follows the gradient of the reverse KL on the sampled
contexts, and logs the numbers that a framework would log, computed from the two distributions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from corpus.noise import Array, generator, wobble

CONTEXTS, WORDS, TOKENS = 300, 40, 1200
NAMES: dict[str, dict[str, str]] = {
    "rlvitals": {"kl": "distill.reverse_kl", "student": "distill.student_mass.mean",
                 "teacher": "distill.teacher_mass.mean", "overlap": "distill.overlap"},
    "slime": {"kl": "train/opd_reverse_kl"},
    "prime_rl": {"kl": "ref_kl/mean"},
    "verl": {"student": "actor/distillation/student_mass", "teacher": "actor/distillation/teacher_mass",
             "overlap": "actor/distillation/overlap_ratio"},
}  # fmt: skip
"""By framework: its names of the reverse KL, of both masses on the teacher's likeliest tokens, and of the overlap."""

TROUBLES = {
    "stuck": ("rlvitals", "slime", "prime_rl"),
    "leaving": ("rlvitals", "slime", "prime_rl", "verl"),
    "cut": ("rlvitals", "verl"),
}
"""For each trouble, the frameworks whose logs can show it."""


@dataclass(frozen=True)
class DistilledRun:
    """The rows of a run. `onset` is the row at which it goes wrong; None for a healthy run."""

    name: str
    framework: str
    rows: list[dict[str, Any]]
    onset: int | None


def distilled_run(seed: int, framework: str, trouble: str = "") -> DistilledRun:
    """A student that learns, hardly moves (`stuck`), or moves away from some step on (`leaving`). With `cut`, the top k
    tokens cover too little of the teacher's probability.
    """
    rng = generator(seed, f"distilled-{framework}-{trouble}")
    points, top = int(rng.integers(90, 180)), int(rng.choice([8, 12, 16]))
    sharpness = float(rng.uniform(1.5, 3.0))
    if trouble == "cut":
        top, sharpness = int(rng.choice([2, 3, 4])), float(rng.uniform(0.4, 0.9))
    teacher = rng.normal(0, sharpness, (CONTEXTS, WORDS))
    student = teacher + rng.normal(0, rng.uniform(0.5, 1.4), (CONTEXTS, WORDS))
    away = rng.normal(0, 1.0, (CONTEXTS, WORDS))
    rate = float(np.exp(rng.uniform(np.log(0.4), np.log(2.5)))) * (0.0002 if trouble == "stuck" else 1.0)
    onset = {"stuck": 0, "leaving": int(rng.uniform(0.25, 0.5) * points), "cut": 0}.get(trouble)
    off = float(rng.uniform(0.04, 0.15))
    q, likeliest = _softmax(teacher), np.argsort(-teacher)[:, :top]
    names, rows = NAMES[framework], []
    for step in range(points):
        p = _softmax(student)
        contexts = rng.integers(0, CONTEXTS, TOKENS)
        apart = np.log(p) - np.log(q)
        drawn = (np.log(p[contexts]) + rng.gumbel(size=(TOKENS, WORDS))).argmax(-1)
        overlap = (np.argsort(-student)[:, :top, None] == likeliest[:, None, :]).any(-1).mean(-1)
        seen = {
            "kl": float(apart[contexts, drawn].mean()),
            "student": float(np.take_along_axis(p, likeliest, 1).sum(1)[contexts].mean()),
            "teacher": float(np.take_along_axis(q, likeliest, 1).sum(1)[contexts].mean()),
            "overlap": float(overlap[contexts].mean()),
        }
        row = {"step": step + 1, "entropy": float(-(p * np.log(p)).sum(1)[contexts].mean()),
               "loss": max(seen["kl"], 0.0) * float(wobble(rng, 1, 0.05)[0])}  # fmt: skip
        rows.append(row | {key: seen[name] for name, key in names.items()})
        kl = (p * apart).sum(1, keepdims=True)
        weight = np.bincount(contexts, minlength=CONTEXTS)[:, None] / (TOKENS / CONTEXTS)
        student = student - rate * 0.05 * weight * p * (apart - kl) * WORDS
        if trouble == "leaving" and onset is not None and step >= onset:
            student = student + off * away
    return DistilledRun(f"{framework}-{trouble or 'fine'}-{seed}", framework, rows, onset)


def _softmax(logits: Array) -> Array:
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(raised / raised.sum(-1, keepdims=True))
