"""Tests that need another project's package: `make frameworks`. They are no part of `make test`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rlvitals import open_run

if "RLVITALS_SHOWN" not in os.environ:
    collect_ignore_glob = ["*"]


@pytest.fixture(scope="session")
def shown():
    """Take down a row of the table in docs/frameworks.md: what of a framework ran, and what the run directory holds."""
    rows = []

    def show(framework, version, ran, run_path, *, acts="no"):
        view = open_run(run_path)
        logged = [name for name in view.metrics if not name.startswith(("time/", "memory/", "system/"))]
        resolved = sum(view.concept(name) is not None for name in logged)
        rollouts = sum(len(group.rollouts) for step in view.rollout_log.steps for group in view.rollouts(step))
        rows.append(
            {
                "framework": framework, "version": version, "ran": ran, "rows": view.rows, "rollouts": rollouts,
                "names": f"{resolved} of {len(logged)}", "acts": acts,
            }
        )  # fmt: skip

    yield show
    Path(os.environ["RLVITALS_SHOWN"]).write_text(json.dumps(rows), encoding="utf-8")
