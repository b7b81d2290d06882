"""prime-rl's two runs read as one."""

from __future__ import annotations

import json

import pytest

import rlvitals
from rlvitals.cli.main import main
from rlvitals.views.logs import open_any


def record(folder, rows, framework="prime_rl", **config):
    with rlvitals.start(
        folder, algorithm="grpo", framework=framework, display="none", hardware=False, config=config
    ) as run:
        for step, row in rows.items():
            run.log(row, step=step)
    return run


@pytest.fixture
def training(tmp_path):
    """The orchestrator is a step ahead; both log the time of a step; the gradient of the trainer dies."""
    folder = tmp_path / "rlvitals"
    steps = range(60)
    rewards = {step: {"reward/all/mean": 0.3 + 0.002 * step, "time/step": 2.0} for step in range(61)}
    losses = {step: {"optim/grad_norm": 0.5 if step < 30 else 0.0, "time/step": 1.0} for step in steps}
    record(folder / "orchestrator", rewards, group_size=8)
    record(folder / "trainer", losses, lr=1e-6)
    return folder


def test_rows_of_a_step_are_one_row_and_one_verdict(training):
    view = open_any(training)
    assert (view.framework, view.algorithm, view.rows) == ("prime_rl", "grpo", 61)
    assert set(view.metrics) == {"reward/all/mean", "time/step", "optim/grad_norm"}
    assert list(view.series("time/step").values) == [2.0] * 61  # the orchestrator's
    steps, norms = view.series("optim/grad_norm")
    assert (list(steps), list(norms[:31])) == (list(range(60)), [0.5] * 30 + [0.0])
    assert view.config == {"orchestrator": {"group_size": 8}, "trainer": {"lr": 1e-6}}
    report = rlvitals.check(training)
    assert (report.verdict, report.rows) == ("act", 61)
    assert {"reward/all/mean", "optim/grad_norm"} <= {taken.name for taken in report.names}
    assert "logged by several processes, and read from the orchestrator's run: time/step" in report.notes


def test_a_folder_above_tells_of_it_once(training, capsys):
    main(["check", str(training.parent), "--json"])
    told = json.loads(capsys.readouterr().out)
    sources = [report["source"] for report in told["reports"]] if "reports" in told else [told["source"]]
    assert sources == [str(training)]


def test_two_runs_of_other_names_or_frameworks_stay_two(tmp_path):
    rows = {step: {"loss": 1.0} for step in range(1, 4)}
    for name in ("orchestrator", "trainer"):
        record(tmp_path / name, rows, framework="verl")
    assert len(rlvitals.check(tmp_path)) == 2
