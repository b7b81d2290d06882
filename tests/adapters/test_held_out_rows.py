"""Every framework's logger and the doctor treat the same names as held-out metrics."""

from __future__ import annotations

import json

import pytest

from rlvitals.adapters import nemo_rl, torchtune
from rlvitals.adapters.openrlhf import VitalsLogger
from rlvitals.adapters.roll import VitalsTracker
from rlvitals.adapters.transformers_settings import event_of
from rlvitals.adapters.verl import VitalsBackend
from rlvitals.splits import is_held_out

ROW = {
    "actor/pg_loss": 1.0, "critic/value_loss": 1.0, "value_loss": 1.0, "evaluate": 1.0, "testing": 1.0,
    "val-core/gsm8k/reward": 1.0, "val_correct/all/mean": 1.0, "validation/accuracy": 1.0, "held_out/score": 1.0,
    "heldout_score": 1.0, "eval_loss": 1.0, "Test/accuracy": 1.0, "holdout.reward": 1.0,
}  # fmt: skip
NESTED = {"eval": {"loss": 1.0}, "actor": {"kl": 1.0}}

LOGGERS = {
    "verl": (lambda **s: VitalsBackend("project", "name", {}, **s), lambda logger, row: logger.log(row, 1)),
    "roll": (lambda **s: VitalsTracker({}, **s), lambda logger, row: logger.log(row, 1)),
    "openrlhf": (lambda **s: VitalsLogger(None, **s), lambda logger, row: logger.log_train(1, row)),
    "nemo_rl": (lambda **s: nemo_rl.VitalsLogger({}, **s), lambda logger, row: logger.log_metrics(row, 1)),
    "torchtune": (torchtune.VitalsLogger, lambda logger, row: logger.log_dict(row, 1)),
}


def names_in(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {name for line in lines for name in line} - {"step", "timestamp", "attempt", "wall_time"}


@pytest.mark.parametrize("framework", LOGGERS)
def test_a_row_is_divided_as_the_doctor_divides_it(framework, tmp_path):
    make, send = LOGGERS[framework]
    logger = make(output_dir=tmp_path, resume=False, hardware=False)
    send(logger, {**ROW, **NESTED})
    logger.run.finish()
    trained, held_out = (names_in(tmp_path / "logs" / f"{log}.jsonl") for log in ("training_metrics", "eval_metrics"))
    prefix = "train/" if framework == "openrlhf" else ""  # OpenRLHF prefixes every name
    sent = {f"{prefix}{name}" for name in [*ROW, "eval/loss", "actor/kl"]}
    assert {name for name in held_out if name in sent} == {name for name in sent if is_held_out(name)}
    assert {name for name in trained if name in sent} == {name for name in sent if not is_held_out(name)}


@pytest.mark.parametrize("prefix", ["eval_", "test_", "validation/", "held_out_"])
def test_an_event_of_transformers_with_held_out_names_alone_is_an_evaluation(prefix):
    assert event_of({f"{prefix}loss": 0.5, f"{prefix}accuracy": 0.5, "epoch": 1.0}) == "eval"
    assert event_of({f"{prefix}loss": 0.5, "loss": 0.5, "epoch": 1.0}) == "train"
