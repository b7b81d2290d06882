"""Which names show that a number was measured on held-out data: the catalogue and `splits` agree."""

from __future__ import annotations

import json

import pytest

from rlvitals import catalog
from rlvitals.splits import is_held_out
from rlvitals.views.evaluations import trend_of_log
from rlvitals.views.raw_logs import open_raw

UNDER_VAL = {"open_instruct", "trl_ppo", "trl_online_dpo"}
"""Trainers that log numbers of training under val/."""


def names():
    return [(alias, metric) for metric in catalog.metrics() for alias in metric.names]


@pytest.mark.parametrize("framework", sorted(UNDER_VAL))
def test_numbers_of_training_under_val_are_not_held_out(framework):
    found = [alias.name for alias, _ in names() if alias.framework == framework and alias.name.startswith("val/")]
    assert found
    assert [name for name in found if is_held_out(name)] == []


def test_no_other_name_is_taken_for_one_of_training():
    under_val = [alias for alias, _ in names() if alias.name.startswith(("val/", "val-", "valid/", "validation/"))]
    assert {alias.framework for alias in under_val if not is_held_out(alias.name)} == UNDER_VAL


def test_a_log_of_training_under_val_has_no_evaluations(tmp_path):
    rows = [{"step": step, "loss/policy_avg": 0.1, "val/ratio": 1.0, "val/clipfrac_avg": 0.2} for step in range(20)]
    rows[-1]["val/accuracy"] = 0.5
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (evaluation,) = trend_of_log(open_raw(log)).evaluations
    assert {name for name in evaluation if name.startswith("val/")} == {"val/accuracy"}
