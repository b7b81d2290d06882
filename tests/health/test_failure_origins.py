"""A fall of the reward that failures explain is reported with its cause; one that precedes the failures is not."""

from __future__ import annotations

import random

import pytest

from corpus import origins
from rlvitals.health.monitor import Monitor
from rlvitals.records import CAUSES

STEPS, BROKEN_AT, SHARE = 110, 60, 0.6
PLAIN = ("reward_collapse", "reward_floor")


def rows(
    name, *, cost=1.0, fails_from=BROKEN_AT, falls_from=BROKEN_AT, over=1, form="share", length=None, back_at=None
):
    """A run whose rollouts fail from `fails_from` on. Its reward loses `cost` times that share from `falls_from` on."""
    noise = random.Random(3)
    total = 0.0

    def share(step, start):
        is_on = step > start and (back_at is None or step < back_at)
        return SHARE * min((step - start) / over, 1.0) if is_on else 0.0

    for step in range(1, STEPS + 1):
        failing = max(0.02 + share(step, fails_from) + noise.gauss(0, 0.01), 0.0)
        total += round(64 * failing)
        level = (0.35 + 0.002 * min(step, 60)) * (1 - cost * share(step, falls_from))
        row = {"step": step, "loss": noise.gauss(0, 0.01), "reward": level + noise.gauss(0, 0.02)}
        row |= {"entropy": 0.5 + noise.gauss(0, 0.01), "completions/mean_length": length(step) if length else 200.0}
        yield row | {name: {"share": failing, "total": total, "success": 1 - failing}[form]}


def judged(some, **facts):
    monitor = Monitor("grpo", **facts)
    for row in some:
        monitor.update(row)
    assert monitor.problems == {}
    return monitor


def causes(monitor):
    return {found.cause for found in monitor.findings if found.cause}


@pytest.mark.parametrize(
    ("name", "form", "framework", "cause", "kind"),
    [
        ("agent.failures.sandbox", "share", None, "sandbox", "tool_errors"),
        ("environment/container_failure_rate", "share", "skyrl", "sandbox", "tool_errors"),
        ("rollout/infra_drops_total/sandbox_crash", "total", "nemo_rl", "sandbox", "tool_errors"),
        ("tools/failure_frequency", "share", "trl", "tool", "tool_errors"),
        ("rollout/tool_success_rate", "success", "verl", "tool", "tool_errors"),
        ("rollout/error_cat/timeout", "share", "slime", "time_out", "tool_errors"),
        ("rollout_errors/TimeoutError", "total", "tinker", "time_out", "tool_errors"),
        ("train/agg/all/solver/stop_condition/prompt_too_long", "share", "prime_rl", "context_limit", "truncation"),
        ("completions/clipped_ratio", "share", "trl", "context_limit", "truncation"),
        ("judge.parse_failure_fraction", "share", None, "verifier", "data"),
        ("env/all/parse_error", "share", "tinker", "parsing", "data"),
    ],
)
def test_the_cause_is_named_and_the_policy_is_not_blamed(name, form, framework, cause, kind):
    monitor = judged(rows(name, form=form), framework=framework)
    found = next(one for one in monitor.findings if one.rule == "lost_to_failures")
    assert (found.cause, found.kind) == (cause, kind)
    assert cause in CAUSES
    assert BROKEN_AT < found.step <= BROKEN_AT + 12
    assert found.onset_step == BROKEN_AT + 1
    assert name in found.title
    assert "keep the learning rate" in " ".join(found.advice)
    assert not [one for one in monitor.findings if one.kind in PLAIN and not one.cause]
    assert found.severity == "warning" or found.action != "revert"  # a revert would cut the learning rate


def test_the_lost_reward_is_that_of_the_failed_share():
    monitor = judged(rows("agent.failures.sandbox"))
    found = next(one for one in monitor.findings if one.rule == "lost_to_failures" and one.severity == "critical")
    # 60 of 100 rollouts fail, so about 0.28 of 0.47 is lost.
    assert found.evidence["lost"] == pytest.approx(0.28, abs=0.06)
    assert found.evidence["expected"] == pytest.approx(0.28, abs=0.06)


def test_an_error_whose_name_comes_with_it_was_none_before():
    name = "train/agg/all/solver/error/SandboxError"
    some = ({key: value for key, value in row.items() if key != name or row["step"] > BROKEN_AT} for row in rows(name))
    monitor = judged(some, framework="prime_rl")
    assert causes(monitor) == {"sandbox"}


def test_failures_that_follow_the_fall_are_not_its_cause():
    monitor = judged(rows("agent.failures.sandbox", fails_from=BROKEN_AT + 12))
    assert "lost_to_failures" not in {one.rule for one in monitor.findings}
    assert any(one.kind == "reward_collapse" and not one.cause for one in monitor.findings)


def test_failures_too_few_for_the_fall_are_not_its_cause():
    monitor = judged(few_failures())
    assert "lost_to_failures" not in {one.rule for one in monitor.findings}
    assert any(one.kind == "reward_collapse" and not one.cause for one in monitor.findings)


def few_failures():
    """The share of failures rises by 0.2, and the reward loses four fifths."""
    for row in rows("agent.failures.sandbox", cost=1.4):
        yield row | {"agent.failures.sandbox": row["agent.failures.sandbox"] / 3}


def test_masked_failures_cost_nothing_and_are_no_alarm():
    monitor = judged(rows("agent.failures.sandbox", cost=0.0))
    assert "lost_to_failures" not in {one.rule for one in monitor.findings}


def test_a_policy_that_slowly_forgets_its_format_is_to_blame_itself():
    monitor = judged(rows("env/all/parse_error", over=40), framework="tinker")
    assert "lost_to_failures" not in {one.rule for one in monitor.findings}
    # Sandbox failures with a similar course are not caused by the policy.
    assert causes(judged(rows("agent.failures.sandbox", over=20))) == {"sandbox"}


def test_answers_that_grew_into_the_limit_are_the_policys():
    grown = judged(rows("completions/clipped_ratio", length=lambda step: 200.0 + 4 * step), framework="trl")
    assert "context_limit" not in causes(grown)


def test_a_repaired_sandbox_recovers():
    monitor = judged(rows("agent.failures.sandbox", back_at=80))
    found = [one for one in monitor.findings if one.rule == "lost_to_failures"]
    assert found
    assert all(one.recovered_step is not None for one in found)


@pytest.mark.parametrize("counted", origins.COUNTED, ids=lambda one: one.name)
def test_generated_runs_are_named(counted):
    run = origins.failing_run(811, counted)
    monitor = judged(run.rows, framework=run.framework, total_steps=run.total_steps, config=run.config)
    assert counted.cause in causes(monitor)
    quiet = origins.harmless_run(811, counted)
    monitor = judged(quiet.rows, framework=quiet.framework, total_steps=quiet.total_steps, config=quiet.config)
    assert "lost_to_failures" not in {one.rule for one in monitor.findings}
