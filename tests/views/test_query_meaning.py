"""The meaning of a logged name in a run: it depends on the framework and on the stream it was logged to."""

from __future__ import annotations

import rlvitals


def test_a_name_that_only_evaluations_have_is_an_evaluations(tmp_path):
    with rlvitals.start(tmp_path, framework="trl", display="none", hardware=False) as run:
        run.log({"reward": 0.1, "grad_norm": 1.0}, step=1)
        run.log_eval({"accuracy": 0.3, "reward": 0.2}, step=1)
    view = rlvitals.open_run(tmp_path)
    assert view.concept("accuracy") == "eval.score.mean"
    assert view.concept("reward") == "reward.total.mean"  # training has it too


def test_an_accuracy_that_training_logs_is_the_frameworks(tmp_path):
    with rlvitals.start(tmp_path, framework="trl", display="none", hardware=False) as run:
        run.log({"accuracy": 0.3, "grad_norm": 1.0}, step=1)
    assert rlvitals.open_run(tmp_path).concept("accuracy") == "rm.accuracy"
