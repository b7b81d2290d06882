"""Groups and turns compared with cases computed by hand and with numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlvitals.compute import groups, rollout
from rlvitals.compute.credit import OUTCOMES, SEARCH_AGENT, outcome_of, read_rules, turn_advantage
from rlvitals.errors import ConfigError
from rlvitals.records import Group, Rollout, ToolCall, Turn


def group_with(*rewards, **fields):
    return Group(rollouts=tuple(Rollout(reward=reward) for reward in rewards), **fields)


def turn_with(name, arguments=None, result=None, error="", **fields):
    return Turn(calls=(ToolCall(name, arguments, result, error),), **fields)


def test_the_advantage_is_the_distance_from_the_groups_mean_in_its_population_deviations():
    (done,) = groups.advantages([group_with(2.0, 0.0, -1.0, 3.0)])
    # mean 1; squares 1 + 1 + 4 + 4 = 10, divided by 4: 2.5
    assert (done.mean, done.std, done.kept, done.reason) == (1.0, pytest.approx(math.sqrt(2.5)), True, "")
    expected = [1 / math.sqrt(2.5), -1 / math.sqrt(2.5), -2 / math.sqrt(2.5), 2 / math.sqrt(2.5)]
    assert [rollout.advantage for rollout in done.rollouts] == pytest.approx(expected)


def test_advantages_are_those_numpy_gives():
    rewards = np.random.default_rng(3).normal(size=(5, 7))
    for row, done in zip(rewards, groups.advantages([group_with(*row.tolist()) for row in rewards]), strict=True):
        assert [rollout.advantage for rollout in done.rollouts] == pytest.approx(
            (row - row.mean()) / (row.std() + 1e-8), abs=1e-12
        )


@pytest.mark.parametrize("reward", [-1.9, 0.1, 1 / 3, 1e17])
@pytest.mark.parametrize("count", [3, 7, 8, 10])
def test_equal_rewards_have_no_deviation_at_all_whatever_their_sum_rounds_to(reward, count):
    (done,) = groups.advantages([group_with(*[reward] * count)])
    assert (done.mean, done.std) == (reward, 0.0)
    assert {rollout.advantage for rollout in done.rollouts} == {0.0}
    assert groups.stats([done], names="trl")["frac_reward_zero_std"].number == 1.0


@pytest.mark.parametrize(
    ("rewards", "kept", "reason"),
    [
        ((0.0, 0.1), True, ""),  # the deviation is 0.05, exactly the limit: kept
        ((0.0, 0.0999), False, "reward std 0.050 < 0.05"),
        ((1.0, 1.0, 1.0), False, "reward std 0.000 < 0.05"),
        ((0.7,), False, "reward std 0.000 < 0.05"),
        ((1.0, math.nan), False, "a reward is not a number"),
        ((), False, "no rewards"),
    ],
)
def test_a_group_is_filtered_strictly_below_the_least_deviation(rewards, kept, reason):
    (done,) = groups.advantages([group_with(*rewards)])
    assert (done.kept, done.reason) == (kept, reason)


def test_the_least_deviation_can_be_set_to_keep_all():
    (done,) = groups.advantages([group_with(1.0, 1.0)], min_group_std=0.0)
    assert done.kept
    assert [rollout.advantage for rollout in done.rollouts] == [0.0, 0.0]


def test_a_rollout_without_a_reward_takes_no_part():
    rollouts = (Rollout(reward=1.0), Rollout(error="the sandbox died", turns=(Turn(text="x"),)), Rollout(reward=0.0))
    (done,) = groups.advantages([Group(rollouts=rollouts)])
    assert (done.mean, done.std) == (0.5, 0.5)
    assert done.rollouts[1].advantage is None
    assert done.rollouts[1].turns[0].advantage is None


def test_one_reward_has_no_spread_however_many_rollouts_stand_beside_it():
    rewards = [(1.0, None), (0.7,), (None, None), (1.0, 0.0), (0.5, 0.5, None)]
    done = groups.advantages([Group(rollouts=tuple(Rollout(reward=r) for r in group)) for group in rewards])
    row = numbers(groups.stats(done, names="canonical"))
    # Only the last two have a spread: 0.5, and 0.
    assert row["group.zero_std_fraction"] == pytest.approx(1 / 2)
    assert row["group.reward_std.mean"] == pytest.approx(0.5 / 2)
    assert row["group.reward_mean.mean"] == pytest.approx((1.0 + 0.7 + 0.5 + 0.5) / 4)


def test_groups_and_rollouts_of_one_step_give_one_number_under_one_id():
    rewards, ids = [1.0, 0.0, 0.5, 0.5, 0.25, 0.9], [0, 0, 1, 1, 2, 2]
    done = groups.advantages([group_with(*pair) for pair in zip(rewards[::2], rewards[1::2], strict=True)])
    by_groups = numbers(groups.stats(done, names="canonical"))
    by_rollouts = numbers(rollout.stats(scores=rewards, group_ids=ids, min_group_std=0.05))
    shared = by_groups.keys() & by_rollouts.keys()
    assert shared >= {"reward.total.std", "reward.total.mean", "group.zero_std_fraction", "group.kept_count"}
    for name in shared:
        assert by_groups[name] == pytest.approx(by_rollouts[name], rel=1e-12), name


def test_the_scale_can_be_left_out():
    (done,) = groups.advantages([group_with(2.0, 0.0)], scale="none")
    assert [rollout.advantage for rollout in done.rollouts] == [1.0, -1.0]


def test_each_turn_is_credited_by_what_it_achieved():
    good = Rollout(
        reward=1.0,
        outcome="correct",
        turns=(
            turn_with("search_emails", {"keywords": ["x"]}, "[]"),
            turn_with("search_emails", {"keywords": ["budget"]}, '[{"message_id": "m7"}]'),
            turn_with("read_email", {"message_id": "m7"}, "The budget ..."),
            turn_with("return_final_answer", {"answer": "40"}),
        ),
    )
    bad = Rollout(
        reward=0.0,
        outcome="wrong",
        turns=(
            turn_with("search_emails", {"keywords": ["y"]}, '[{"message_id": "m8"}]'),
            turn_with("read_email", {"message_id": "m8"}, "..."),
            Turn(text="Hm."),
            turn_with("return_final_answer", {"answer": "I don't know"}),
        ),
    )
    (done,) = groups.advantages([Group(rollouts=(good, bad), sources=("m7",))])
    assert [turn.outcome for turn in done.rollouts[0].turns] == [
        "search_empty", "search_hit", "read_hit", "answer_correct",
    ]  # fmt: skip
    assert [turn.advantage for turn in done.rollouts[0].turns] == pytest.approx([0.85, 1.8, 1.8, 2.5])
    assert [turn.outcome for turn in done.rollouts[1].turns] == ["search_miss", "read_miss", "no_tool", "answer_wrong"]
    assert [turn.advantage for turn in done.rollouts[1].turns] == pytest.approx([-1.2, -1.25, -1.0, -2.5])


def test_filtered_groups_have_turn_advantages_to_look_at():
    search = turn_with("search_emails", {}, '[{"message_id": "m7"}]')
    (done,) = groups.advantages([Group(rollouts=(Rollout(reward=0.0, turns=(search,)),) * 2, sources=("m7",))])
    assert done.kept is False
    assert [rollout.turns[0].advantage for rollout in done.rollouts] == [0.8, 0.8]


def test_without_turn_credit_each_turn_has_its_rollouts_advantage():
    search = turn_with("search_emails", {}, "[]")
    (done,) = groups.advantages(
        [Group(rollouts=(Rollout(reward=1.0, turns=(search,)), Rollout(reward=0.0)))], turns=False
    )
    assert done.rollouts[0].turns[0].advantage == done.rollouts[0].advantage


def test_a_turns_own_reward_is_put_on_top_where_no_rule_speaks():
    rollout = Rollout(reward=1.0, turns=(Turn(reward=0.25), Turn(reward=0.25, outcome="search_hit")))
    (done,) = groups.advantages([Group(rollouts=(rollout, Rollout(reward=0.0)))])
    assert [turn.advantage for turn in done.rollouts[0].turns] == pytest.approx([1.25, 1.8])


def test_an_outcome_without_a_rule_corrects_nothing():
    rollout = Rollout(reward=1.0, turns=(Turn(outcome="opened_door"),))
    (done,) = groups.advantages([Group(rollouts=(rollout, Rollout(reward=0.0)))])
    assert done.rollouts[0].turns[0].advantage == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("call", "sources", "outcome"),
    [
        (ToolCall("search_emails", '{"keywords": ['), ("m7",), "bad_arguments"),
        (ToolCall("search_emails", {}, error="bad_arguments"), ("m7",), "bad_arguments"),
        (ToolCall("serch", {}, error="unknown_tool"), ("m7",), "unknown_tool"),
        (ToolCall("calculator", {}, "4"), ("m7",), "unjudged"),
        (ToolCall("search_emails", {}, '["m70"]'), ("m7",), "search_miss"),
        (ToolCall("search_emails", {}, '["m7"]'), (), "unjudged"),
        (ToolCall("search_emails", {}, None), ("m7",), "search_empty"),
        (ToolCall("read_email", {"message_id": 7}), ("7",), "read_hit"),
        (ToolCall("read_email", None), ("7",), "read_miss"),
        (ToolCall("return_final_answer", {}), ("m7",), "unjudged"),
    ],
)
def test_what_a_turn_achieved_is_judged_by_its_first_call(call, sources, outcome):
    assert outcome_of(Turn(calls=(call, ToolCall("calculator"))), Rollout(), Group(sources=sources)) == outcome


def test_what_the_environment_says_of_a_turn_stands():
    assert outcome_of(turn_with("search_emails", {}, "[]", outcome="search_hit"), Rollout(), Group()) == "search_hit"


def test_rules_are_data(tmp_path):
    file = tmp_path / "credit.yaml"
    file.write_text("tools: {search: grep}\noutcomes:\n  search_hit: {shift: 2, ceiling: 1.5}\n  stuck: {shift: -3}\n")
    rules = read_rules(file)
    assert outcome_of(turn_with("grep", {}, "m7"), Rollout(), Group(sources=("m7",)), rules) == "search_hit"
    assert turn_advantage(0.0, "search_hit", rules) == 1.5
    assert turn_advantage(1.0, "stuck", rules) == -2.0
    assert rules.outcomes["read_hit"] == OUTCOMES["read_hit"]
    assert read_rules() is SEARCH_AGENT


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"outcome": {}}, "Did you mean 'outcomes'"),
        ({"outcomes": {"search_hit": {"shfit": 1}}}, "Did you mean 'shift'"),
        ({"outcomes": {"search_hit": {"shift": "much"}}}, "not numbers"),
        ({"outcomes": {"search_hit": 3}}, "must be a mapping"),
        ({"tools": {"write": ["x"]}}, "unknown 'write'"),
    ],
)
def test_wrong_rules_are_reported_with_the_fix(rules, message):
    with pytest.raises(ConfigError, match=message):
        read_rules(rules)


def numbers(found):
    return {name: value.number for name, value in found.items()}


def test_counts_stay_true_when_every_group_is_filtered():
    rollouts = (Rollout(reward=1.0, stop="answered"), Rollout(reward=1.0, stop="turn_limit"))
    row = numbers(groups.stats(groups.advantages([Group(rollouts=rollouts)] * 3)))
    assert (row["train/groups_kept"], row["train/groups_filtered"], row["train/num_early_exit"]) == (0, 3, 3)
    assert row["group.total_count"] == 3
    assert row["group.filter_pass_rate"] == 0.0


def test_groups_that_nobody_has_filtered_are_neither_kept_nor_dropped():
    tried = [Group("a", (Rollout(reward=1.0), Rollout(reward=0.0)), kept=kept) for kept in (None, None, True, False)]
    row = numbers(groups.stats(tried, names="canonical"))
    assert (row["group.kept_count"], row["group.dropped_count"], row["group.filter_pass_rate"]) == (1, 1, 0.5)
    assert row["group.total_count"] == 4
    unfiltered = groups.stats(tried[:2], names="canonical")
    assert (unfiltered["group.kept_count"].count, unfiltered["group.filter_pass_rate"].count) == (0, 0)  # missing


def test_a_rollout_is_early_when_it_ended_before_the_limit_for_any_reason():
    turns = (Turn(), Turn(), Turn())
    ends = [
        Rollout(turns=turns[:2], stop="answered"),
        Rollout(turns=turns[:1], stop="idk"),
        Rollout(turns=turns[:1], stop="bad_arguments"),
        Rollout(turns=turns, stop="turn_limit"),
        Rollout(turns=turns, stop="answered"),  # on its last turn
    ]
    row = numbers(groups.stats([Group(rollouts=tuple(ends), max_turns=3)]))
    assert row["train/num_early_exit"] == 3
    assert row["agent.turn_limit_fraction"] == pytest.approx(0.2)
    row = numbers(groups.stats([Group(rollouts=tuple(ends))]))  # the limit is unknown, so the stop reasons decide
    assert row["train/num_early_exit"] == 4
    assert numbers(groups.stats([Group(rollouts=(Rollout(),))]))["train/num_early_exit"] == 0  # nothing is known


def test_the_row_of_a_step_can_be_merged_over_ranks():
    from rlvitals.compute import merge

    done = groups.advantages([group_with(1.0, 0.0), group_with(1.0, 1.0), group_with(0.5, 0.0, 1.0)])
    whole = numbers(groups.stats(done))
    parts = numbers(merge([groups.stats(done[:1]), groups.stats(done[1:])]))
    assert parts == pytest.approx(whole)
    assert (whole["train/groups_kept"], whole["train/groups_filtered"]) == (2, 1)


def test_rollouts_of_filtered_groups_are_discarded_and_compared_with_the_trained_ones():
    def group(kept, *rollouts):
        return Group(rollouts=tuple(Rollout(trainable_tokens=n, seconds=s) for n, s in rollouts), kept=kept)

    row = numbers(groups.stats([group(True, (10, 1.0), (20, None)), group(False, (90, 9.0)), group(None, (999, 99.0))]))
    assert row["discard.fraction"] == pytest.approx(1 / 3)  # of the groups with a decision
    assert row["discard.length_ratio"] == pytest.approx(15 / 40)
    assert (row["discard.time.trained.mean"], row["discard.time.discarded.mean"]) == (1.0, 9.0)
    assert row["discard.time_ratio"] == pytest.approx(1 / 5)


def test_turns_and_calls_are_counted_over_all_rollouts():
    first = Rollout(turns=(turn_with("a", {}, error="x"), turn_with("b")), outcome="correct", trainable_tokens=10)
    second = Rollout(turns=(Turn(), Turn(), Turn(), Turn()), outcome="wrong", trainable_tokens=30, error="lost")
    row = numbers(groups.stats([Group(rollouts=(first, second))], names="canonical"))
    assert (row["agent.turns.mean"], row["agent.turns.max"], row["agent.turns.min"]) == (3, 4, 2)
    assert (row["agent.tool_calls.mean"], row["agent.tool_failure_fraction"]) == (1, 0.5)
    assert (row["reward.accuracy"], row["agent.turns.correct.mean"]) == (0.5, 2)
    assert (row["agent.model_tokens.mean"], row["agent.error_fraction"]) == (20, 0.5)
    assert row["reward.total.mean"] is None
