"""Run directories written by earlier versions stay readable. They are kept in tests/golden and never rewritten."""

from __future__ import annotations

import math
from pathlib import Path

import rlvitals

GOLDEN = Path(__file__).parent.parent / "golden"


def test_schema_1_reads_as_it_was_written():
    view = rlvitals.open_run(GOLDEN / "schema-1")
    assert (view.name, view.status, view.algorithm, view.info.schema) == ("golden", "finished", "kto", 1)
    assert [attempt.number for attempt in view.attempts] == [1, 2]
    assert view.attempts[1].from_step == 2
    assert view.attempts[1].changed == {"learning_rate": [5e-07, 2.5e-07]}
    assert view.series("loss").steps.tolist() == [1, 2, 3, 4]
    assert view.series("loss").values.tolist() == [0.7, 0.6, 0.55, 0.5]
    assert view.series("loss", ghosts=True).values.tolist() == [0.9]
    assert math.isnan(view.series("kl").values[0])
    assert view.series("rewards/margins").values.tolist() == [0.25]
    assert view.series("accuracy").values.tolist() == [0.85]
    assert view.config["wandb"]["api_key"] == "***"
    assert view.problems == [
        "training_metrics.jsonl: the last line is torn (16 bytes of a row that was never acknowledged)"
    ]


def test_a_bare_log_of_another_recorder_reads_too():
    view = rlvitals.open_run(GOLDEN / "bare-log")
    assert view.series("rewards/margins").values.tolist() == [-0.078, 0.027]
    assert view.series("loss", x="time").steps[1] - view.series("loss", x="time").steps[0] == 60
    assert view.algorithm == "kto"
