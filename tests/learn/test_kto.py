"""KTO on the tiny model with the recipe's settings: the guide's healthy example on three seeds, and a failure."""

from __future__ import annotations

import pytest

import rlvitals
from rlvitals.train import kto, recipe


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_margin_rises_from_zero_to_one_in_training_and_on_held_out_prompts(tmp_path, seed):
    settings = recipe.load(
        "kto", kto.Settings, None, {"output_dir": str(tmp_path / "run"), "seed": seed, "display": "none"}
    )
    outcome = kto.train(settings)
    print(f"seed {seed}: {outcome.verdict}")
    assert (outcome.status, outcome.steps) == ("finished", 145)
    view = rlvitals.open_run(tmp_path / "run")
    _, margins = view.series("rewards/margins")
    assert abs(margins[0]) < 0.01
    assert margins[-20:].mean() >= 1.0
    _, held_out = view.series("eval_rewards/margins")
    assert abs(held_out[0]) < 0.01
    assert held_out[-1] >= 1.0
    _, losses = view.series("loss")
    assert losses[-20:].mean() < losses[:10].mean() - 0.08
    assert not [finding for finding in view.findings if finding.severity == "critical"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_doctor_who_may_act_takes_a_learning_rate_far_too_high_in_hand(tmp_path):
    given = {"output_dir": str(tmp_path / "run"), "learning_rate": 0.03, "actions": "act", "warm_up_steps": 200,
             "display": "none", "save_steps": 2}  # fmt: skip
    outcome = kto.train(recipe.load("kto", kto.Settings, None, given))
    view = rlvitals.open_run(tmp_path / "run")
    assert "margin_inversion" in {finding.kind for finding in view.findings}
    text = (tmp_path / "run" / "logs" / "findings.jsonl").read_text()
    assert '"type":"answer"' in text
    assert outcome.status == "stopped" or '"answer":"done"' in text
