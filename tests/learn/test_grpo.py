"""Real GRPO trainings on the mini mailbox: healthy ones must learn, and failures must be found in time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rlvitals
from rlvitals.train import grpo, recipe
from rlvitals.train.grpo import trainer
from rlvitals.train.mailbox.store import Mailbox

STEPS = 30


def accuracies(folder: Path) -> list[float]:
    return [
        json.loads(path.read_text())["accuracy"] for path in sorted((folder / "eval_logs").glob("eval_step_*.json"))
    ]


def train(folder: Path, **given: object) -> recipe.TrainingOutcome:
    return grpo.train(
        recipe.load(
            "grpo", grpo.Settings, None, {"output_dir": str(folder), "max_steps": STEPS, "display": "none", **given}
        )
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_held_out_accuracy_rises_by_a_quarter(tmp_path: Path, seed: int) -> None:
    train(tmp_path, seed=seed)
    first, *_, last = accuracies(tmp_path)
    print(f"seed {seed}: held-out accuracy {first:.2f} -> {last:.2f}")
    assert last >= first + 0.25
    assert not [finding for finding in rlvitals.open_run(tmp_path).findings if finding.severity == "critical"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_skill_that_was_not_there_is_learnt(tmp_path: Path, seed: int) -> None:
    given = {"output_dir": str(tmp_path), "display": "none", "seed": seed}
    grpo.train(recipe.load("grpo", grpo.Settings, "new-skill", given))
    first, *_, last = accuracies(tmp_path)
    print(f"seed {seed}: held-out accuracy {first:.2f} -> {last:.2f}")
    assert first <= 0.3
    assert last >= 0.8
    assert not [finding for finding in rlvitals.open_run(tmp_path).findings if finding.severity == "critical"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_far_too_high_learning_rate_collapses_and_the_doctor_says_so_before_half_of_it(tmp_path: Path) -> None:
    train(tmp_path, learning_rate=0.02, early_stopping=0)
    assert accuracies(tmp_path)[-1] <= 0.05
    critical = [finding for finding in rlvitals.open_run(tmp_path).findings if finding.severity == "critical"]
    print(f"found at step {critical[0].step} of {STEPS}: {critical[0].title}")
    assert critical[0].step < STEPS / 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_doctor_who_may_act_stops_the_collapse(tmp_path: Path) -> None:
    outcome = train(tmp_path, learning_rate=0.02, early_stopping=0, actions="act")
    assert outcome.status == "stopped"
    assert outcome.steps < STEPS / 2
    assert "the doctor asked for it" in outcome.verdict


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_mailbox_that_dies_is_named_and_not_the_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database of every mailbox is closed from step 15 on: searches fail, and answers are wrong."""
    died_at = 15
    is_dead = False
    ask, play = Mailbox._rows, trainer.GrpoTrainer._one_step

    def ask_a_dead_one(self: Mailbox, *query: object) -> object:
        if is_dead:
            self.close()
        return ask(self, *query)  # type: ignore[arg-type]

    def play_on(self: trainer.GrpoTrainer) -> dict[str, object]:
        nonlocal is_dead
        is_dead = self.step >= died_at
        return play(self)

    monkeypatch.setattr(Mailbox, "_rows", ask_a_dead_one)
    monkeypatch.setattr(trainer.GrpoTrainer, "_one_step", play_on)
    small = {"groups_per_step": 5, "rollouts_per_group": 5, "held_out": 10, "eval_steps": 100}
    train(tmp_path, max_steps=24, early_stopping=0, **small)
    findings = rlvitals.open_run(tmp_path).findings
    found = next(finding for finding in findings if finding.cause)
    print(f"found at step {found.step}: {found.title}")
    assert (found.rule, found.cause, found.severity) == ("lost_to_failures", "tool", "critical")
    assert found.onset_step == died_at
    assert found.step <= died_at + 6
    assert not [finding for finding in findings if finding.kind == "reward_collapse" and not finding.cause]
