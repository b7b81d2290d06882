"""Labelled RL post-training runs, simulated: an independent judge for the health rules.

    from corpus import failing_runs, healthy_runs

Every run comes from a small latent model (`latent`, `preference`), is bent by a failure (`bends`, `failures_*`) or left
in health (`healthy`), sampled with the noise of real logs (`noise`) and written under a framework's names (`names`).
The same seed gives the same rows. Nothing here looks at the rules that are judged with it.

Tests find the package because this folder's parent is on pytest's path; a script elsewhere adds `tests` to its own.
"""

from __future__ import annotations

from corpus.catalogue import failing_runs, healthy_runs
from corpus.labelled import LabelledRun

__all__ = ["LabelledRun", "failing_runs", "healthy_runs"]
