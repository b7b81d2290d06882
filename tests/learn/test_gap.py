"""Real GRPO trainings on the mini mailbox with a sampler that differs from the trainer's policy. The doctor names the
cause during training.
"""

from __future__ import annotations

import copy
from collections import deque
from pathlib import Path
from typing import Any

import pytest

import rlvitals
from rlvitals.compute import staleness
from rlvitals.records import Finding
from rlvitals.train import grpo, recipe
from rlvitals.train.grpo import trainer as grpo_trainer
from rlvitals.train.grpo.trainer import GrpoTrainer
from rlvitals.train.grpo.update import Played

STEPS = 24
DIES_AT = 3


class OtherSampler(GrpoTrainer):
    """Samples rollouts from the weights that `_sampler` returns."""

    sampler: Any = None

    @property
    def inner(self) -> Any:
        return super().inner if self.sampler is None else self.sampler

    def _play(self, *given: Any) -> Played:
        self.sampler = self._sampler()
        try:
            return super()._play(*given)
        finally:
            self.sampler = None

    def _sampler(self) -> Any:
        raise NotImplementedError


class DeadSync(OtherSampler):
    """From step 3 on, rollouts come from the weights of step 2: later updates never reach the sampler."""

    def _sampler(self) -> Any:
        if self.step == DIES_AT - 1:
            self.frozen = copy.deepcopy(self.inner)
        return self.frozen if self.step >= DIES_AT else self.inner

    def _describe(self, played: Played) -> dict[str, Any]:
        """The trainer reports every sample as fresh, because it does not know that the sync failed."""
        versions = [float(self.step)] * len(played.groups)
        return super()._describe(played) | staleness.stats(train_version=float(self.step), versions=versions)


class StaleSampler(OtherSampler):
    """Rollouts come from increasingly old weights, up to eight steps, and report their version."""

    past: deque[Any]

    def _sampler(self) -> Any:
        self.past = getattr(self, "past", deque(maxlen=9))
        self.past.append(copy.deepcopy(self.inner))
        return self.past[-1 - self._age()]

    def _age(self) -> int:
        wanted = max(self.step - 4, 0) + self.step % 2  # grows, but alternates up and down
        return min(wanted, len(self.past) - 1)

    def _describe(self, played: Played) -> dict[str, Any]:
        versions = [float(self.step - self._age())] * len(played.groups)
        return super()._describe(played) | staleness.stats(train_version=float(self.step), versions=versions)


class ColdSampler(GrpoTrainer):
    """The sampler uses a different temperature than the trainer."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.sampling = self.sampling._replace(temperature=0.5)


def trained(folder: Path, kind: type[GrpoTrainer], monkeypatch: pytest.MonkeyPatch, **given: object) -> list[Finding]:
    monkeypatch.setattr(grpo_trainer, "GrpoTrainer", kind)
    asked = {
        "output_dir": str(folder), "max_steps": STEPS, "display": "none", "eval_steps": 100, "seed": 1,
        "early_stopping": 0, **given,
    }  # fmt: skip
    grpo.train(recipe.load("grpo", grpo.Settings, None, asked))
    found = rlvitals.open_run(folder).findings
    for one in found:
        print(
            f"step {one.step}, since {one.onset_step}: {one.severity} {one.rule}: {one.title}; cause {one.cause}, "
            f"{one.causes}"
        )
    return [one for one in found if one.kind in ("logprob_mismatch", "staleness", "ratio_off")]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sync_that_dies_at_step_3_is_dated_to_step_3_and_reported_by_step_6(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = trained(tmp_path, DeadSync, monkeypatch)[0]
    assert first.cause == "weight_sync"
    assert first.onset_step == DIES_AT
    assert first.step <= 6


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_stale_sampler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = trained(tmp_path, StaleSampler, monkeypatch)
    assert found
    assert {one.cause for one in found} == {"stale_samples"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sampler_with_another_temperature_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trained(tmp_path, ColdSampler, monkeypatch)[0]
    assert first.cause == "temperature"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_trainer_as_it_is_has_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trained(tmp_path, GrpoTrainer, monkeypatch, trace_rollouts=16, max_steps=12) == []
