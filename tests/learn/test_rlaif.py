"""RLAIF learns from scratch: the teacher's reward on held-out functions rises, on three seeds. Each takes minutes."""

from __future__ import annotations

import json
import time

import pytest

from rlvitals.train import recipe, rlaif
from rlvitals.train.rlaif import Settings

CPU_MINUTES = 12  # six minutes on two cores


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_held_out_reward_rises_by_more_than_a_seventh_with_the_default_recipe(tmp_path, seed):
    given = {"output_dir": str(tmp_path), "seed": seed, "track_with": (), "display": "none", "save_steps": 0}
    started = time.process_time()
    outcome = rlaif.train(recipe.load("rlaif", Settings, None, given))
    minutes = (time.process_time() - started) / 60
    print(f"seed {seed}, {minutes:.1f} CPU minutes: {outcome.verdict}")
    rows = [json.loads(line) for line in (tmp_path / "logs" / "eval_metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == outcome.steps
    assert rows[-1]["reward"] >= rows[0]["reward"] + 0.15, outcome.verdict
    assert minutes <= CPU_MINUTES
