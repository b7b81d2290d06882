"""Simulated and labelled RL post-training runs: an independent test of the health rules.

    from corpus import failing_runs, healthy_runs

Every run comes from a small latent model (`latent`, `preference`). A failure bends its curves (`bends`, `failures_*`),
or the run stays healthy (`healthy`). It is sampled with the noise of real logs (`noise`) and written under a
framework's names (`names`). The same seed gives the same rows. Nothing here depends on the rules that are tested.

Tests find the package because this folder's parent is on pytest's path. Other scripts add `tests` to `sys.path`.
"""

from __future__ import annotations

from corpus.catalogue import failing_runs, healthy_runs
from corpus.labelled import LabelledRun

__all__ = ["LabelledRun", "failing_runs", "healthy_runs"]
