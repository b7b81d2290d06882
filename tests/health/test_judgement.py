"""Findings for series whose meaning is beyond doubt, and series without findings: rows in, findings out.

The tests name no thresholds: they hold for any reasonable rules.
"""

from __future__ import annotations

import math
import random

import pytest

from rlvitals.health.alarm_weights import Chances, Scales
from rlvitals.health.monitor import Monitor


def judged(rows, **facts):
    """Every finding for a GRPO run with these rows, numbered from 1."""
    monitor = Monitor("grpo", "trl_grpo", **facts)
    found = [finding for step, row in enumerate(rows, 1) for finding in monitor.update({"step": step, **row})]
    assert monitor.problems == {}
    return found


def alarms(findings):
    return [(finding.kind, finding.severity) for finding in findings if finding.severity != "info"]


def noisy(values, spread, seed=0):
    draw = random.Random(seed)
    return [value + draw.gauss(0, spread) for value in values]


def climb(begin, end, steps):
    return [begin + (end - begin) * step / (steps - 1) for step in range(steps)]


# How often a finding is reported


def steps_reported(rule, rows):
    """The steps at which a user's rule raises a finding. Findings of shipped rules are ignored."""
    monitor = Monitor(rules=[rule])
    own = set(monitor.rulebook.rules) - set(Monitor().rulebook.rules)
    return [
        step for step, row in enumerate(rows, 1) for found in monitor.update({"step": step, **row}) if found.rule in own
    ]


def test_an_alarm_that_flickers_is_reported_once_and_one_that_was_away_for_long_again():
    flickering = ([0.9] * 5 + [0.1] * 12) * 4
    assert len(steps_reported("zq > 0.5 for 3: warning", [{"zq": value} for value in flickering])) == 1
    returning = [0.9] * 5 + [0.1] * 60 + [0.9] * 5
    coming_and_going = ([0.9] * 5 + [0.1] * 25) * 6  # from the second time on, it must be away for longer
    assert len(steps_reported("zq > 0.5 for 3: warning", [{"zq": value} for value in coming_and_going])) == 2
    assert len(steps_reported("zq > 0.5 for 3: warning", [{"zq": value} for value in returning])) == 2


@pytest.mark.parametrize("seed", range(3))
def test_a_finding_names_the_step_at_which_its_series_left_where_it_had_been(seed):
    """The onset is long before the rule's limit is reached. A good checkpoint must be older than the onset."""
    values = noisy([1.0] * 40 + climb(1.0, 9.0, 80), 0.05, seed)
    monitor = Monitor(rules=["zq > 5 for 3: warning"])
    (found,) = [found for step, zq in enumerate(values, 1) for found in monitor.update({"step": step, "zq": zq})]
    assert values[found.step - 1] > 5
    assert 38 <= found.onset_step <= 50


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_drift_before_a_sudden_fall_is_not_its_onset(seed):
    values = noisy([*climb(1.2, 1.0, 50), *climb(1.0, 0.05, 12), *[0.05] * 60], 0.01, seed)
    monitor = Monitor(rules=["zq < 0.3 for 3: warning"])
    (found,) = [found for step, zq in enumerate(values, 1) for found in monitor.update({"step": step, "zq": zq})]
    assert 45 <= found.onset_step <= 56  # although it leaves its band at step 20


@pytest.mark.parametrize("seed", range(3))
def test_a_steady_drift_began_where_it_left_its_band(seed):
    values = noisy(climb(1.0, 0.1, 150), 0.01, seed)
    monitor = Monitor(rules=["zq < 0.3 for 3: warning"])
    (found,) = [found for step, zq in enumerate(values, 1) for found in monitor.update({"step": step, "zq": zq})]
    assert found.onset_step <= 25


def collapsed(after, seed):
    """A reward that rises, falls, and then continues with `after`."""
    reward = noisy([*climb(0.2, 0.6, 60), *climb(0.6, 0.05, 15), *after], 0.02, seed)
    return [{"reward": value, "grad_norm": 0.5, "kl": 0.01} for value in reward]


@pytest.mark.parametrize("seed", range(3))
def test_a_reward_that_stays_at_the_bottom_has_not_recovered_and_is_not_called_too_slow(seed):
    monitor = Monitor("grpo", total_steps=215)
    for step, row in enumerate(collapsed([0.05] * 140, seed), 1):
        monitor.update({"step": step, **row})
    fallen = [finding for finding in monitor.findings if finding.kind == "reward_collapse"]
    assert fallen
    assert any(finding.recovered_step is None for finding in fallen)
    assert monitor.verdict == "act"
    assert "not_learning" not in {finding.rule for finding in monitor.findings}


@pytest.mark.parametrize("seed", range(3))
def test_a_reward_that_comes_back_has_recovered(seed):
    monitor = Monitor("grpo", total_steps=265)
    for step, row in enumerate(collapsed([*climb(0.05, 0.65, 60), *[0.65] * 130], seed), 1):
        monitor.update({"step": step, **row})
    fallen = [finding for finding in monitor.findings if finding.kind == "reward_collapse"]
    assert fallen
    assert all(finding.recovered_step is not None for finding in fallen)


def test_a_finding_about_a_series_that_was_always_there_begins_with_the_first_row_that_broke_the_rule():
    monitor = Monitor(rules=["zq > 5 for 3: warning"])
    (found,) = [found for step in range(11, 40) for found in monitor.update({"step": step, "zq": 7.0})]
    assert (found.onset_step, found.step) == (11, 13)


def evaluated(scores, every=10):
    """Rows of training with an evaluation now and then."""
    return [{"loss": 0.5} | ({"zq": scores[n // every]} if n % every == 0 else {}) for n in range(every * len(scores))]


def test_one_bad_evaluation_is_waited_for_and_a_second_is_reported_though_the_rule_asks_for_five():
    rule = "zq < 0.5 for 5: warning"
    assert steps_reported(rule, evaluated([0.8, 0.8, 0.8, 0.3, 0.8, 0.8, 0.8, 0.8])) == []
    assert steps_reported(rule, evaluated([0.8, 0.8, 0.8, 0.3, 0.3, 0.8, 0.8, 0.8])) == [41]


# A solved task


@pytest.mark.parametrize("seed", range(3))
def test_a_task_that_is_nearly_solved_at_first_and_always_solved_later_has_no_dead_reward(seed):
    draw = random.Random(seed)
    rewards = [draw.choice([0.75, 0.875, 1.0, 1.0, 1.0]) for _ in range(40)] + [1.0] * 40
    assert alarms(judged({"reward": reward, "loss": 0.01 * draw.gauss(0, 1)} for reward in rewards)) == []


def test_a_reward_that_stops_moving_where_nothing_is_won_is_an_alarm():
    """The series of the previous test, turned upside down."""
    draw = random.Random(0)
    rewards = [draw.choice([0.25, 0.125, 0.0, 0.0, 0.0]) for _ in range(40)] + [0.0] * 40
    found = judged({"reward": reward, "loss": 0.01 * draw.gauss(0, 1)} for reward in rewards)
    assert ("reward_floor", "critical") in alarms(found)


def entropy_falls(last_reward, seed):
    """The reward climbs and stays; then the entropy falls to a twentieth."""
    rewards = noisy(climb(0.5, last_reward, 60) + [last_reward] * 90, 0.01, seed)
    entropies = noisy([0.6] * 70 + climb(0.6, 0.03, 40) + [0.03] * 40, 0.005, seed + 100)
    return judged(
        {"reward": min(reward, 1.0), "entropy": max(entropy, 0.01)}
        for reward, entropy in zip(rewards, entropies, strict=True)
    )


@pytest.mark.parametrize("seed", range(3))
def test_entropy_may_fall_when_something_is_learnt_and_not_for_nothing(seed):
    assert "entropy_collapse" not in {kind for kind, _ in alarms(entropy_falls(0.98, seed))}
    assert "entropy_collapse" in {kind for kind, _ in alarms(entropy_falls(0.5, seed))}


# Signals that other facts explain


@pytest.mark.parametrize("seed", range(3))
def test_groups_of_two_may_agree_most_of_the_time_and_groups_of_sixteen_may_not(seed):
    rewards, shares = noisy([0.5] * 90, 0.03, seed), noisy([0.72] * 90, 0.03, seed + 100)
    rows = [{"reward": one, "frac_reward_zero_std": two} for one, two in zip(rewards, shares, strict=True)]
    for size, expected in ((2, False), (3, False), (16, True)):
        kinds = {kind for kind, _ in alarms(judged(rows, config={"num_generations": size}))}
        assert ("zero_variance" in kinds) == expected, size


def test_a_flat_training_reward_beside_a_held_out_score_that_climbs_is_learning():
    alone = [{"reward": 0.4 + 0.01 * (n * 7 % 13 - 6)} for n in range(325)]  # it fluctuates without a trend
    scored = [row | ({"eval_reward": 0.3 + n / 800} if n % 20 == 0 else {}) for n, row in enumerate(alone)]
    assert "not_learning" in {kind for kind, _ in alarms(judged(alone))}
    assert "not_learning" not in {kind for kind, _ in alarms(judged(scored))}


# How far the policy may go


@pytest.mark.parametrize(
    ("before", "after", "severity"), [(1.0, 4.0, "warning"), (0.05, 9.0, "critical"), (1.0, 1.8, None)]
)
@pytest.mark.parametrize("has_reward", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_kl_far_above_its_start_is_reported_and_critical_where_no_policy_should_be(
    before, after, severity, has_reward, seed
):
    start, end = math.log(before), math.log(after)
    kls = noisy([start] * 30 + climb(start, end, 30) + [end] * 40, 0.05, seed)
    rows = [{"kl": math.exp(kl), "loss": 0.1} for kl in kls]
    if has_reward:
        rewards = noisy([0.4] * len(rows), 0.05, seed + 100)
        rows = [row | {"reward": reward} for row, reward in zip(rows, rewards, strict=True)]
    levels = [level for kind, level in alarms(judged(rows)) if kind == "kl_explosion"]
    assert ("critical" in levels, "warning" in levels or "critical" in levels) == (
        severity == "critical",
        severity is not None,
    )


@pytest.mark.parametrize("top", [1.0, 0.97])
def test_a_reward_at_the_top_from_the_first_row_is_a_remark_at_every_row(top):
    found = judged([{"reward": top, "loss": 0.0}] * 60)
    assert [finding.severity for finding in found if finding.rule == "reward_constant"] == ["info"]


def test_a_reward_that_is_constant_anywhere_else_is_reported():
    found = judged([{"reward": 0.4, "loss": 0.0}] * 60)
    assert ("reward_floor", "critical") in alarms(found)


@pytest.mark.parametrize("seed", range(3))
def test_a_learning_rate_printed_as_zero_is_too_low_only_where_nothing_moves(seed):
    """A console rounds 1e-6 to 0.000."""
    kinds = [
        {kind for kind, _ in alarms(judged([{"reward": reward, "learning_rate": 0.0} for reward in rewards]))}
        for rewards in (noisy(climb(0.0, 0.6, 60), 0.02, seed), noisy([0.3] * 60, 0.02, seed))
    ]
    assert ["lr_too_low" in of for of in kinds] == [False, True]


@pytest.mark.parametrize(
    ("name", "solved", "expected"),
    [
        ("group.all_pass_fraction", 0.875, set()),
        ("group.all_pass_fraction", 0.0, {"warning", "critical"}),
        ("reward.accuracy", 0.95, set()),  # at most 0.05 of the groups always fail: 0.825 of 0.875 are solved
        ("reward.accuracy", 0.8, {"warning", "critical"}),
    ],
)
@pytest.mark.parametrize("is_counted", [True, False])
def test_groups_that_are_filtered_because_every_sample_solves_them_are_no_alarm(name, solved, expected, is_counted):
    rows = [
        {"train/groups_kept": 8.0 - 7.0 * (step > 20), "train/groups_filtered": 7.0 * (step > 20)} if is_counted
        else {"train/dynamic_filtering_pass_rate": 1.0 - 0.875 * (step > 20)}
        for step in range(60)
    ]  # fmt: skip
    right = {"reward.accuracy": 0.95}  # counts only where the share of solved groups is not logged
    rows = [row | right | {name: solved * (step > 20)} for step, row in enumerate(rows)]
    assert {finding.severity for finding in judged(rows) if finding.rule == "groups_filtered"} <= expected
    assert bool(severities("groups_filtered", judged(rows))) == bool(expected)


@pytest.mark.parametrize(("spread", "title"), [(0.002, "every prompt gets the reward 0.52"), (0.1, "too easy")])
def test_a_reward_that_is_the_same_for_every_answer_is_not_called_an_easy_task(spread, title):
    """A judge that copies an example; and random prompts of which half are always solved and half never."""
    rewards = noisy([0.52] * 40, spread, 0)
    rows = [{"step": step, "reward": reward, "frac_reward_zero_std": 0.99} for step, reward in enumerate(rewards)]
    (found,) = {one.title for one in judged(rows) if one.rule == "groups_without_spread"}
    assert title in found


@pytest.mark.parametrize("seed", range(3))
def test_groups_that_all_pass_as_the_task_is_learnt_are_no_alarm_and_groups_that_all_fail_are(seed):
    rising = [
        (reward, max(0.1, 4 * (reward - 0.6))) for reward in noisy(climb(0.3, 0.78, 150) + [0.78] * 100, 0.01, seed)
    ]
    falling = [(reward, 0.9 - 0.2 * reward) for reward in noisy([0.2] * 200, 0.02, seed)]
    for values, is_reported in ((rising, False), (falling, True)):
        found = judged([{"reward": reward, "frac_reward_zero_std": share, "loss": 0.0} for reward, share in values])
        reported = {finding.severity for finding in found if finding.rule == "groups_without_spread"}
        assert bool(reported - {"info"}) == is_reported


# No alarm while the run is ahead


def severities(rule, findings):
    return {finding.severity for finding in findings if finding.rule == rule}


def test_a_loss_that_was_zero_while_a_buffer_was_filled_has_no_start_to_climb_from():
    monitor = Monitor()
    losses = [0.0] * 20 + noisy([8.0 - 0.05 * step for step in range(130)], 0.3)
    for step, (loss, score) in enumerate(zip(losses, noisy(climb(0.5, 0.4, 150), 0.02), strict=True), 1):
        monitor.update({"step": step, "loss": loss, "eval_accuracy": score})
    assert not severities("loss_divergence", monitor.findings)


def test_a_critic_s_loss_may_grow_with_the_returns_but_not_without_them():
    losses = noisy(climb(1.0, 12.0, 160), 0.1)
    ahead = noisy(climb(1.0, 9.0, 160), 0.3)
    level = noisy([1.0] * 160, 0.3)

    def proposed(rewards):
        monitor = Monitor("ppo", "sb3")
        monitor.scales = Scales({}, act=0.0, watch=0.0)  # keeps the severity that the rule proposes
        for step, (loss, reward) in enumerate(zip(losses, rewards, strict=True), 1):
            monitor.update({"step": step, "train/value_loss": loss, "rollout/ep_rew_mean": reward})
        return monitor.case.raised["value_loss_growth"][0]

    assert proposed(ahead) == "info"
    assert proposed(level) in {"warning", "critical"}


@pytest.mark.parametrize(("accuracy", "is_reported"), [(0.85, False), (0.5, True)])
def test_groups_that_agree_because_they_are_right_are_recognised_by_the_accuracy(accuracy, is_reported):
    """The reward has several parts and a maximum of 1.5: alone it does not show the share of right answers."""
    zeros = noisy(climb(0.2, 0.82, 200), 0.03)
    right = noisy(climb(accuracy - 0.3, accuracy, 200), 0.02)
    rows = [
        {"reward": 1.5 * share, "accuracy": share, "frac_reward_zero_std": zero}
        for zero, share in zip(zeros, right, strict=True)
    ]
    # The reward is constant at the end, so nothing else can excuse the groups.
    rows += [{**row, "frac_reward_zero_std": 0.85} for row in rows[-1:] * 40]
    found = severities("groups_without_spread", judged(rows, config={"num_generations": 8}))
    assert bool(found & {"warning", "critical"}) == is_reported


def test_a_few_held_out_pairs_below_zero_are_a_warning_at_most():
    monitor = Monitor("orpo", "trl")
    for step, margin in enumerate([-0.009, -0.011, -0.012, -0.013], 1):
        monitor.update({"step": 10 * step, "eval_rewards/margins": margin, "eval_loss": 1.6 - 0.1 * step})
    assert severities("eval_margin_inversion", monitor.findings) == {"warning"}


@pytest.mark.parametrize(
    ("name", "reward", "is_reported"),
    [("reward", (0.1, 0.9), False), ("reward", (0.4, 0.4), True), ("grad_norm", (0.4, 0.4), True)],
)
def test_answers_may_grow_where_the_reward_grows_by_more(name, reward, is_reported):
    rows = [
        {name: score, "completions/mean_length": length}
        for score, length in zip(noisy(climb(*reward, 150), 0.02), noisy(climb(100, 320, 150), 5), strict=True)
    ]
    assert bool(severities("length_explosion", judged(rows)) & {"warning", "critical"}) == is_reported


@pytest.mark.parametrize(("reward", "is_critical"), [((0.2, 0.9), False), ((0.4, 0.4), True)])
def test_more_answers_may_be_cut_off_where_the_reward_rises(reward, is_critical):
    rewards = noisy(climb(*reward, 100), 0.01)
    shares = noisy([0.05] * 20 + climb(0.05, 0.47, 50) + [0.47] * 30, 0.005, 1)
    rows = [{"reward": one, "completions/clipped_ratio": two} for one, two in zip(rewards, shares, strict=True)]
    found = severities("truncation_rising", judged(rows, scales=Scales({}, act=0.6, watch=0.5)))
    assert ("critical" in found) == is_critical
    assert found - {"critical"} <= ({"warning"} if is_critical else {"info"})


def test_a_warning_that_came_and_went_twice_is_a_remark_while_the_run_is_ahead():
    """Three times most ratios are clipped. Each time the alarm has recovered before the next."""
    calm, burst = [0.05], [0.95] * 40
    clipped = calm * 40 + burst + calm * 100 + burst + calm * 200 + burst
    always = {f"clip_saturation {proposed} {state}": Chances(0.0, 0.9)
              for proposed in ("warning", "critical") for state in ("up", "flat", "down", "early")}  # fmt: skip

    def reported_severities(rewards):
        monitor = Monitor("ppo", "sb3")
        monitor.scales = Scales(always, act=0.7, watch=0.5)
        for step, (share, reward) in enumerate(zip(clipped, rewards, strict=True), 1):
            monitor.update({"step": step, "train/clip_fraction": share, "rollout/ep_rew_mean": reward})
        return [finding.severity for finding in monitor.findings if finding.rule == "clip_saturation"]

    assert reported_severities(noisy(climb(0.1, 0.9, len(clipped)), 0.02)) == ["warning", "warning", "info"]
    assert reported_severities(noisy([0.5] * len(clipped), 0.02)) == ["warning"] * 3


def warming_up(total_steps):
    """The proposed severity for a learning rate that rises to the end."""
    monitor = Monitor("dpo", total_steps=total_steps, scales=Scales({}, act=0.0, watch=0.0))
    for step in range(1, 201):
        swing = 0.02 * (step % 5 - 2)
        monitor.update({
            "step": step, "learning_rate": 1e-6 * step / 200, "loss": 0.69 - 0.001 * step + swing / 10,
            "rewards/margins": 0.01 * step + swing,
        })  # fmt: skip
    return {found.rule: found.severity for found in monitor.findings if found.rule == "warm_up_without_end"}


def test_a_plan_that_the_run_has_left_behind_is_no_plan():
    """Another cell of a notebook set max_steps=10. By that plan the run is over, and any warm-up is too long."""
    assert warming_up(200) == {"warm_up_without_end": "warning"}
    assert warming_up(10) == {"warm_up_without_end": "info"}


def filling(curve):
    """The rules raised for memory that grows along a curve from 56 of 80 GB."""
    monitor = Monitor("grpo", config={"gpu_memory_total_gb": 80.0})
    for step in range(1, 141):
        memory = 56.0 + curve(step) + 0.3 * (step % 4)
        monitor.update({"step": step, "reward": 0.3 + 0.01 * (step % 3), "perf/max_memory_reserved_gb": memory})
    return {found.rule for found in monitor.findings}


def test_memory_that_grows_on_and_on_is_reported_and_one_that_settles_is_not():
    assert "memory_creep" in filling(lambda step: 0.12 * step)
    assert "memory_creep" not in filling(lambda step: 14.0 * (1 - 0.5 ** (step / 18)))


def slowed(waiting, seed):
    """A speed that falls to a third after half of the run, and the share of time without a processor from then on."""
    speeds = noisy([1200.0] * 40 + [400.0] * 40, 40.0, seed)
    waits = noisy([0.05] * 40 + [waiting] * 40, 0.01, seed + 1)
    return [
        {"reward": 0.2 + 0.005 * step, "system/tps": speed, "system/cpu_wait": wait}
        for step, (speed, wait) in enumerate(zip(speeds, waits, strict=True))
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("waiting", "severity"), [(0.05, "warning"), (0.3, "warning"), (0.68, "info")])
def test_a_training_that_waits_for_a_processor_is_not_called_slower(waiting, severity, seed):
    found = [finding for finding in judged(slowed(waiting, seed)) if finding.rule == "throughput"]
    assert [finding.severity for finding in found] == [severity]
    assert ("waits for a processor 6" in found[0].title) == (severity == "info")
    assert 2 <= found[0].evidence["times"] <= 3.2


@pytest.mark.parametrize("whole", [1.0, 100.0], ids=["as a share", "in percent"])
def test_a_gpu_and_a_memory_are_read_in_either_unit(whole):
    for busy, titles in ((0.12, ["the GPU is busy only 12 % of the time"]), (0.9, [])):
        found = judged({"reward": 0.3 + 0.01 * step, "System/GPU_Utilization": busy * whole} for step in range(60))
        assert [finding.title for finding in found if finding.rule == "gpu_idle"] == titles
    filled = [0.4 + 0.002 * step for step in range(1, 151)]
    (creep,) = [
        finding
        for finding in judged(
            {"reward": 0.3 + 0.01 * share, "System/Memory_Percent": share * whole} for share in filled
        )
        if finding.rule == "memory_creep"
    ]
    share = filled[creep.step - 1]
    assert creep.evidence["share"] == pytest.approx(share, abs=0.02)
    assert creep.evidence["left"] == pytest.approx((0.97 - share) / 0.002, rel=0.1)


@pytest.mark.parametrize(
    ("desirable", "undesirable", "title"),
    [
        (100, 0, "all examples are of one class (100 desirable, 0 undesirable)"),
        (0, 80, "all examples are of one class (0 desirable, 80 undesirable)"),
        (100, 10, "the weights of desirable and undesirable examples are 10 to 1 (recommended: 1 to 1.33)"),
        (100, 90, None),
    ],
)
def test_kto_needs_examples_of_both_classes(desirable, undesirable, title):
    monitor = Monitor("kto", config={"n_desirable": desirable, "n_undesirable": undesirable})
    for step in range(1, 20):
        monitor.update({"step": step, "loss": 0.5 - 0.001 * step})
    assert monitor.problems == {}
    assert [found.title for found in monitor.findings if found.rule == "class_imbalance"] == ([title] if title else [])


@pytest.mark.parametrize(
    ("reward", "expected"), [((0.6, 0.1), {"warning", "critical"}), ((0.5, 0.5), {"warning"}), ((0.2, 0.9), set())]
)
def test_an_entropy_of_many_times_its_start_is_as_severe_as_what_became_of_the_reward(reward, expected):
    entropies = noisy([0.5] * 40 + climb(0.5, 3.0, 40) + [3.0] * 60, 0.01)
    rewards = noisy([reward[0]] * 40 + climb(*reward, 40) + [reward[1]] * 60, 0.02, 1)
    rows = [{"entropy": one, "reward": two} for one, two in zip(entropies, rewards, strict=True)]
    assert severities("entropy_explosion", judged(rows, scales=Scales({}, act=0.6, watch=0.5))) == expected


@pytest.mark.parametrize(
    ("accuracy", "held_out", "expected"),
    [((0.6, 0.9), 0.4, {"info"}), ((0.9, 0.55), 0.4, {"warning"}), ((0.6, 0.9), 0.9, {"warning"})],
)
def test_chosen_answers_may_lose_probability_only_while_more_pairs_are_ranked_right(accuracy, held_out, expected):
    monitor = Monitor("dpo", "trl_dpo")
    columns = (noisy([0.0] * 30 + climb(0.0, -1.2, 90), 0.02), noisy([0.0] * 30 + climb(0.0, 2.0, 90), 0.02, 1),
               noisy([accuracy[0]] * 30 + climb(*accuracy, 90), 0.01, 2))  # fmt: skip
    for step, (chosen, margin, right) in enumerate(zip(*columns, strict=True), 1):
        monitor.update({"step": step, "rewards/chosen": chosen, "rewards/margins": margin, "rewards/accuracies": right,
                        "rewards/rejected": chosen - margin, "loss": 0.69 - 0.004 * step})  # fmt: skip
        if step % 20 == 0:
            monitor.update({"step": step, "eval_loss": 0.69 + (held_out - 0.69) * step / 120})
    assert severities("likelihood_displacement", monitor.findings) == expected


@pytest.mark.parametrize(
    ("name", "calm", "mild", "grave"),
    [
        ("mismatch.kl.k3", 0.001, 0.03, 0.5),
        ("mismatch.logp_abs_diff.mean", 0.01, 0.1, 0.6),
        ("mismatch.chi2.token", 0.02, 0.7, 5.0),
        ("mismatch.is_weight.std", 0.1, 1.8, 8.0),
        ("mismatch.effective_sample_size", 0.9, 0.5, 0.1),
        ("mismatch.is_weight.mean", 1.0, None, 3.0),
        ("mismatch.is_weight.mean", 1.0, None, 0.2),
        ("mismatch.token_mult_prob_error", 1.01, None, 1.5),
    ],
)
def test_an_engine_that_disagrees_with_the_trainer_is_reported_by_every_measure_of_it(name, calm, mild, grave):
    for level, expected in ((calm, set()), (mild, {"warning"}), (grave, {"critical"})):
        if level is None:
            continue  # without a limit for a warning
        values = noisy([calm] * 20 + climb(calm, level, 15) + [level] * 25, 0.01 * abs(calm))
        found = judged(({name: value} for value in values), scales=Scales({}, act=0.6, watch=0.5))
        assert severities("rollout_mismatch", found) - ({"warning"} if level == grave else set()) == expected, level


def stepping(name, before, after, reward=(0.4, 0.4), **more):
    """A metric that changes its level at row 31, and a reward that moves from there on."""
    levels = noisy([before] * 30 + [after] * 30, 0.03 * max(before, 0.1))
    rewards = noisy([reward[0]] * 30 + climb(*reward, 30), 0.01, 1)
    return [{name: level, "reward": won, **more} for level, won in zip(levels, rewards, strict=True)]


FALLS, IS_FLAT, RISES = (0.5, 0.1), (0.4, 0.4), (0.3, 0.8)


@pytest.mark.parametrize(
    ("rule", "name", "change", "expected"),
    [
        ("tool_abandonment", "agent.tool_calls.mean", (4, 3.3), [set(), set(), set()]),
        ("tool_abandonment", "agent.tool_calls.mean", (4, 2.5), [{"warning", "critical"}, {"warning"}, {"info"}]),
        ("tool_abandonment", "agent.turns.mean", (4, 1.6), [{"warning", "critical"}] * 2 + [{"warning"}]),
        ("turn_runaway", "agent.turns.mean", (3, 4), [set(), set(), set()]),
        ("turn_runaway", "agent.turns.mean", (3, 7), [{"warning", "critical"}, {"warning"}, {"info"}]),
        ("early_exits", "agent.abstained.count", (0.05, 0.2), [set(), set(), set()]),
        ("early_exits", "agent.abstained.count", (0.05, 0.4), [{"warning", "critical"}, {"warning"}, {"info"}]),
        ("early_exits", "agent.abstained.count", (0.05, 0.7), [{"warning", "critical"}, {"warning"}, {"warning"}]),
        ("early_exits", "agent.abstained.count", (10, 16), [set(), set(), set()]),
        ("early_exits", "agent.abstained.count", (10, 30), [{"warning", "critical"}, {"warning"}, {"warning"}]),
    ],
)
def test_what_agents_do_is_as_severe_as_what_became_of_the_reward(rule, name, change, expected):
    found = [severities(rule, judged(stepping(name, *change, reward))) for reward in (FALLS, IS_FLAT, RISES)]
    assert found == expected


def test_a_count_of_early_exits_is_compared_with_the_most_that_there_were():
    rows = stepping("agent.abstained.count", 1, 3)
    assert severities("early_exits", judged(rows)) == WARNING
    rows[5]["agent.abstained.count"] = 12.0
    assert severities("early_exits", judged(rows)) == set()


@pytest.mark.parametrize(
    ("before", "after", "expected", "cause"),
    [
        (0.05, 0.1, set(), ""),
        (0.05, 0.3, {"warning"}, "tool"),
        (0.05, 0.5, {"warning", "critical"}, "tool"),
        (0.3, 0.3, set(), ""),
        (0.5, 0.5, {"warning"}, ""),
        (0.7, 0.7, {"critical"}, ""),
    ],
)
def test_failing_tools_are_reported_once_they_fail_more_often_or_most_of_the_time(before, after, expected, cause):
    found = [one for one in judged(stepping("agent.tool_failure_fraction", before, after)) if one.rule == "tool_errors"]
    assert {one.severity for one in found} == expected
    assert {one.cause for one in found} == ({cause} if expected else set())


@pytest.mark.parametrize(
    ("before", "after", "searches", "expected"),
    [
        (0.05, 0.1, None, set()),
        (0.05, 0.3, None, {"warning"}),
        (0.05, 0.5, None, {"critical"}),
        (0.3, 0.3, None, set()),
        (3, 5, None, set()),
        (0.5, 2.4, None, set()),
        (1, 3.5, None, {"warning"}),
        (1, 10, None, {"critical"}),
        (1, 3.5, 20, set()),
        (3, 5, 20, {"warning"}),
        (1, 10, 20, {"critical"}),
        (2, 40, 20, {"critical"}),  # it cannot be a part of the searches
    ],
)
def test_an_agent_that_repeats_itself_is_reported_by_a_share_or_a_count(before, after, searches, expected):
    known = {} if searches is None else {"agent.searches.total": float(searches)}
    found = judged(stepping("agent.repeated_actions", before, after, **known))
    assert severities("repeated_actions", found) == expected


def moving(before, after, first=30, last=50, spread=0.01, *, rows=60):
    """A series that moves from one level to another between two rows."""
    return noisy([before] * first + climb(before, after, last - first) + [after] * (rows - last), spread)


def missing(*places, rows=60):
    return [math.nan if place in places else 0.4 + 0.01 * (place % 3) for place in range(rows)]


HOPELESS = [0.4] * 60
LENGTH, CUT_OFF = "completions/mean_length", "completions/clipped_ratio"
LEARNS = moving(0.2, 0.8, 10, 60)
WARNING, CRITICAL, BOTH = {"warning"}, {"critical"}, {"warning", "critical"}


@pytest.mark.parametrize(
    ("rule", "algorithm", "columns", "expected"),
    [
        ("nonfinite_core", "grpo", {"loss": missing(30)}, CRITICAL),
        ("nonfinite_core", "grpo", {"reward": missing(30)}, WARNING),
        ("nonfinite_core", "grpo", {"reward": missing(30, 31)}, BOTH),
        ("nonfinite_other", "grpo", {"zq": missing(30, 31)}, set()),
        ("nonfinite_other", "grpo", {"zq": missing(30, 31, 35)}, WARNING),
        ("nonfinite_other", "grpo", {"zq": missing(*range(30, 60))}, BOTH),
        ("frozen_loss", "grpo", {"loss": moving(0.6, 0.5, spread=0)}, CRITICAL),
        ("frozen_loss", "grpo", {"loss": moving(0.6, 0.5, 10, 15, 0), "grad_norm": moving(0.5, 0.5)}, WARNING),
        ("frozen_loss", "grpo", {"loss": moving(0.6, 0.5, 10, 15, 0), "grad_norm": [0.5] * 60}, CRITICAL),
        ("frozen_loss", "grpo", {"loss": moving(0.6, 0.0, 10, 15, 0), "grad_norm": moving(0.5, 0.5)}, set()),
        ("frozen_loss", "dpo", {"loss": moving(0.6, 0.0, 10, 15, 0), "grad_norm": moving(0.5, 0.5)}, WARNING),
        ("gradient_explosion", "grpo", {"grad_norm": moving(0.5, 2)}, set()),
        ("gradient_explosion", "grpo", {"grad_norm": moving(0.5, 7), "loss": moving(0.5, 0.5)}, WARNING),
        ("gradient_explosion", "grpo", {"grad_norm": moving(0.5, 7), "loss": moving(0.5, 0.9)}, BOTH),
        ("gradient_explosion", "grpo", {"grad_norm": moving(0.5, 20)}, BOTH),
        ("gradient_explosion", "dpo", {"grad_norm": moving(0.5, 7), "loss": moving(0.5, 0.5)}, set()),
        ("gradient_explosion", "dpo", {"grad_norm": moving(0.5, 7), "loss": moving(0.5, 0.9)}, BOTH),
        ("gradient_explosion", "dpo", {"grad_norm": moving(0.5, 20)}, BOTH),
        ("loss_divergence", "dpo", {"loss": moving(0.5, 0.55)}, set()),
        ("loss_divergence", "dpo", {"loss": moving(0.5, 0.7)}, WARNING),
        ("loss_divergence", "dpo", {"loss": moving(0.5, 3)}, BOTH),
        ("loss_divergence", "dpo", {"loss": moving(0.5, 3), "reward": LEARNS}, {"info"}),
        ("loss_divergence", "grpo", {"loss": moving(0.5, 1)}, set()),
        ("loss_divergence", "grpo", {"loss": moving(0.5, 3), "reward": LEARNS}, {"info"}),
        ("loss_divergence", "grpo", {"loss": moving(0.5, 3), "grad_norm": moving(0.5, 2.5), "reward": HOPELESS}, BOTH),
        ("loss_divergence", "grpo", {"loss": moving(0.5, 1e5), "reward": LEARNS}, BOTH),
        ("early_blow_up", "dpo", {"loss": moving(0.5, 3, 3, 8)}, WARNING),
        ("early_blow_up", "grpo", {"loss": moving(0.5, 3, 3, 8)}, set()),
        ("early_blow_up", "grpo", {"grad_norm": moving(0.5, 30, 3, 8)}, WARNING),
        ("early_blow_up", "grpo", {"grad_norm": moving(0.5, 30, 3, 8), "kl": moving(0.01, 9, 3, 8, 0.001)}, CRITICAL),
        ("early_blow_up", "grpo", {"entropy": [2.0] * 4 + [0.1] * 56}, WARNING),
        ("early_blow_up", "grpo", {"entropy": moving(0.5, 9, 3, 8)}, WARNING),
        ("early_blow_up", "grpo", {"entropy": moving(0.5, 9, 30, 35)}, set()),
        ("learning_rate_too_low", "grpo", {"lr": [1e-6] * 60, "reward": HOPELESS}, set()),
        ("learning_rate_too_low", "grpo", {"lr": [1e-9] * 60, "reward": HOPELESS}, BOTH),
        ("learning_rate_too_low", "grpo", {"lr": climb(1e-10, 1e-9, 60), "reward": HOPELESS}, WARNING),
        ("learning_rate_too_low", "grpo", {"lr": [0.0] * 60, "reward": LEARNS}, set()),
        ("warm_up_without_end", "grpo", {"lr": climb(1e-8, 1e-6, 60)}, set()),
        ("warm_up_without_end", "grpo", {"lr": climb(1e-6, 1e-8, 200)}, set()),
        ("length_explosion", "grpo", {LENGTH: moving(200, 260, spread=4), "reward": HOPELESS}, set()),
        ("length_explosion", "grpo", {LENGTH: moving(200, 380, spread=4), "reward": HOPELESS}, WARNING),
        ("length_explosion", "grpo", {LENGTH: moving(200, 380, spread=4), "reward": moving(0.5, 0.1)}, CRITICAL),
        ("length_explosion", "grpo", {LENGTH: moving(200, 380, spread=4), "reward": LEARNS}, set()),
        ("length_explosion", "grpo", {LENGTH: moving(200, 600, spread=4), "reward": LEARNS}, WARNING),
        ("length_explosion", "grpo", {LENGTH: moving(200, 1200, spread=4), "reward": HOPELESS}, BOTH),
        ("length_explosion", "grpo",
         {LENGTH: moving(200, 600, spread=4), CUT_OFF: moving(0.01, 0.4), "reward": HOPELESS}, BOTH),
        ("length_collapse", "grpo", {LENGTH: moving(200, 80, spread=4), "reward": HOPELESS}, set()),
        ("length_collapse", "grpo", {LENGTH: moving(200, 20, spread=4), "reward": HOPELESS}, WARNING),
        ("length_collapse", "grpo", {LENGTH: moving(200, 20, spread=4), "reward": moving(0.5, 0.1)}, CRITICAL),
        ("length_collapse", "grpo", {LENGTH: moving(200, 20, spread=4), "reward": LEARNS}, {"info"}),
        ("truncation", "grpo", {CUT_OFF: moving(0.6, 0.6), "reward": HOPELESS}, set()),
        ("truncation", "grpo", {CUT_OFF: moving(0.9, 0.9), "reward": HOPELESS}, CRITICAL),
        ("truncation", "grpo", {CUT_OFF: moving(0.9, 0.9), "reward": LEARNS}, {"info"}),
        ("truncation", "grpo", {CUT_OFF: [1.0] * 60, "reward": LEARNS}, {"critical", "info"}),
        ("truncation", "grpo", {CUT_OFF: moving(0.9, 0.1), "reward": HOPELESS}, CRITICAL),
        ("truncation_rising", "grpo", {CUT_OFF: moving(0.05, 0.1), "reward": HOPELESS}, set()),
        ("truncation_rising", "grpo", {CUT_OFF: moving(0.05, 0.3), "reward": HOPELESS}, WARNING),
        ("truncation_rising", "grpo", {CUT_OFF: moving(0.05, 0.3), "reward": LEARNS}, {"info"}),
        ("looping_text", "grpo", {"response.repetition": moving(0.02, 0.1)}, set()),
        ("looping_text", "grpo", {"response.repetition": moving(0.35, 0.35)}, set()),
        ("looping_text", "grpo", {"response.repetition": moving(0.02, 0.35)}, WARNING),
        ("looping_text", "grpo", {"response.repetition": moving(0.02, 0.6)}, BOTH),
        ("teacher_not_approached", "opd", {"train/opd_reverse_kl": [0.0] * 40 + climb(0, 0.5, 20)}, set()),
        ("routes_differ", "grpo", {"moe.routing_mismatch": moving(0.06, 0.1, spread=0.001)}, set()),
        ("routes_differ", "grpo", {"moe.routing_mismatch": moving(0.02, 0.1, spread=0.001)}, WARNING),
        ("routes_differ", "grpo", {"moe.routing_mismatch": moving(0.05, 0.6)}, BOTH),
        ("experts_unbalanced", "grpo", {"moe.max_violation": moving(1, 1.2)}, set()),
        ("experts_unbalanced", "grpo", {"moe.max_violation": moving(1, 6), "reward": HOPELESS}, WARNING),
        ("memory_full", "grpo", {"System/Memory_Percent": moving(0.5, 0.85)}, set()),
        ("memory_full", "grpo", {"System/Memory_Percent": [0.97] * 60}, WARNING),  # reserved once and for all
        ("memory_full", "grpo", {"System/Memory_Percent": climb(0.8, 0.995, 60)}, BOTH),
        ("warm_up_without_end", "grpo", {"lr": climb(1e-8, 1e-6, 200)}, {"info"}),
    ],
)  # fmt: skip
def test_each_rule_about_steps_answers_and_machines_is_raised_by_its_course_and_by_no_milder_one(
    rule, algorithm, columns, expected
):
    monitor = Monitor(algorithm)
    for step, values in enumerate(zip(*columns.values(), strict=True), 1):
        monitor.update({"step": step, **dict(zip(columns, values, strict=True))})
    assert monitor.problems == {}
    assert severities(rule, monitor.findings) == expected
    assert all(set(found.metrics) <= columns.keys() for found in monitor.findings)
    assert all(found.metrics for found in monitor.findings if found.rule == rule != "nonfinite_other")
    for found in monitor.findings:
        if found.metrics and "level" in found.evidence:
            shown = [value for value in columns[found.metrics[0]] if not math.isnan(value)]
            assert min(shown) - 1e-9 <= found.evidence["level"] <= max(shown) + 1e-9


@pytest.mark.parametrize(("level", "title"), [(1.0, "keeps its level but jumps"), (4.0, "its level went from")])
def test_jumps_that_grow_are_reported_with_what_became_of_the_level(level, title):
    calm, wild = moving(1.0, 1.0, spread=0.02, rows=90), moving(level, level, spread=0.3, rows=90)
    rows = [{"grad_norm": one, "reward": 0.4 + 0.1 * (one - 1)} for one in calm + wild]
    found = [one.title for one in judged(rows) if one.rule == "instability"]
    assert found
    assert all(title in one for one in found)
