"""Real trainings with graders that run programs: one that can be gamed, and one whose sandbox dies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlvitals
from conftest import REPO
from rlvitals.records import Finding

sys.path.insert(0, str(REPO / "benchmarks"))
import gamed_rollouts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEPS = 30


@pytest.fixture(scope="module")
def start() -> gamed_rollouts.Start:
    return gamed_rollouts.warmed_up("report", steps=450, seed=11)


@pytest.fixture
def runner() -> Iterator[gamed_rollouts.Runner]:
    made = gamed_rollouts.Runner()
    yield made
    made.close()


def test_a_grader_that_is_gamed_is_found_while_it_happens(
    start: gamed_rollouts.Start, runner: gamed_rollouts.Runner, tmp_path: Path
) -> None:
    """The grader rewards the exit code, so programs that exit before the tests are rewarded."""
    live: dict[str, Finding] = {}
    rewards = []
    with rlvitals.start(tmp_path, display="none", algorithm="grpo", hardware=None) as run:
        for step, _, _, paid, _ in gamed_rollouts.train("exit_code", start, run, steps=STEPS, runner=runner):
            rewards.append(sum(paid) / len(paid))
            for finding in run.findings:
                if finding.cited and finding.rule not in live:
                    live[finding.rule] = finding
                    print(f"step {step}: {finding.rule}, {finding.title}, reward {rewards[0]:.2f} -> {rewards[-1]:.2f}")
    assert rewards[-1] > rewards[0] + 0.3
    found = live["ends_the_process"]
    assert found.kind == "reward_hacking"
    assert found.step <= STEPS
    assert len({(cited.step, cited.group, cited.rollout) for cited in found.cited}) >= 3


def test_a_sandbox_that_dies_is_named_and_not_the_policy(
    start: gamed_rollouts.Start, runner: gamed_rollouts.Runner, tmp_path: Path
) -> None:
    """The process that runs the programs is killed before step 16. Nothing is rewarded from then on."""
    died_at = 16

    def kill(step: int) -> None:
        if step == died_at:
            runner.kill()

    with rlvitals.start(tmp_path, display="none", algorithm="grpo", hardware=None) as run:
        for _ in gamed_rollouts.train("shown_tests", start, run, steps=26, runner=runner, before_step=kill):
            pass
    findings = rlvitals.open_run(tmp_path).findings
    found = next(finding for finding in findings if finding.cause)
    print(f"found at step {found.step}: {found.title}")
    assert (found.rule, found.cause) == ("lost_to_failures", "sandbox")
    assert found.onset_step == died_at
    assert found.step <= died_at + 6
    assert not [finding for finding in findings if finding.kind == "reward_collapse" and not finding.cause]
