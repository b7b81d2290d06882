"""The parts of the reward are found by checking which series add up to it."""

from __future__ import annotations

import math
import random

import pytest

from rlvitals.health import rulebook
from rlvitals.health.case import Case
from rlvitals.health.parts import MOST_ROWS

SOURCES = rulebook.load().sources


def rows_of(total, count=60, digits=None, **levels):
    """Rows of independent series, and a reward computed from them."""
    noise = random.Random(1)
    for _ in range(count):
        row = {name: level + 0.2 * noise.random() for name, level in levels.items()}
        row |= {"reward": total(row)}
        yield {name: round(value, digits) if digits else value for name, value in row.items()}


def case_of(rows, **facts):
    case = Case(SOURCES, **facts)
    for step, row in enumerate(rows, 1):
        case.take({"step": step, **row})
    return case


def weights(case):
    return {name: round(weight, 3) for name, weight in case.part_weights.items()}


def test_series_of_any_name_that_add_up_are_the_parts():
    case = case_of(rows_of(lambda r: r["ndcg"] + r["cold_bonus_mean"], ndcg=0.3, cold_bonus_mean=0.1, recall=0.5))
    assert weights(case) == {"cold_bonus": 1.0, "ndcg": 1.0}
    assert case.parts.keys() == {"ndcg", "cold_bonus"}
    assert not case.others


def test_so_are_weighted_ones_whose_weights_are_unknown():
    rows = rows_of(lambda r: r["func_0/mean"] + 0.25 * r["func_1/mean"] - 2 * r["length_penalty"],
                   **{"func_0/mean": 0.5, "func_1/mean": 0.4, "length_penalty": 0.1})  # fmt: skip
    assert weights(case_of(rows)) == {"func_0": 1.0, "func_1": 0.25, "length_penalty": -2.0}


def test_a_part_has_the_values_from_before_it_was_found():
    case = case_of(rows_of(lambda r: r["ndcg"] + r["bonus"], count=30, ndcg=0.3, bonus=0.1))
    assert {part.n for part in case.parts.values()} == {30}
    assert all(part.seen_at == case.points for part in case.parts.values())


def test_what_is_named_as_a_part_and_adds_nothing_is_a_score_beside_the_reward():
    case = case_of(rows_of(lambda r: r["rewards/a/mean"] + r["rewards/b/mean"],
                           **{"rewards/a/mean": 0.5, "rewards/b/mean": 0.4, "rewards/c/mean": 0.1}))  # fmt: skip
    assert weights(case) == {"a": 1.0, "b": 1.0}
    assert case.others.keys() == {"c"}
    assert case.others["c"].n == 60


def test_numbers_that_were_rounded_still_add_up():
    rows = rows_of(lambda r: r["rewards/a"] + r["rewards/b"], digits=3, **{"rewards/a": 0.5, "rewards/b": 0.4})
    assert weights(case_of(rows)) == pytest.approx({"a": 1.0, "b": 1.0}, abs=0.02)


@pytest.mark.parametrize(("a", "b", "total"), [("rewards/a", "rewards/b", "rewards/total"), ("ndcg", "hits", "tally")])
def test_the_total_logged_twice_is_not_its_own_part_where_others_add_up(a, b, total):
    rows = rows_of(lambda r: r[a] + r[b], **{a: 0.5, b: 0.4})
    case = case_of([row | {total: row["reward"]} for row in rows])
    assert weights(case) == {a.removeprefix("rewards/"): 1.0, b.removeprefix("rewards/"): 1.0}


def test_where_nothing_adds_up_the_names_have_to_do():
    rows = rows_of(lambda r: math.sin(40 * r["rewards/a"]), **{"rewards/a": 0.5, "rewards/b": 0.4, "other": 0.1})
    case = case_of(rows)
    assert case.parts.keys() == {"a", "b"}
    assert case.part_weights == {}


def test_series_that_merely_follow_the_reward_are_no_parts():
    noise = random.Random(0)
    rows = [
        {"reward": 0.01 * n + 0.05 * noise.random(), "recall": 0.01 * n + 0.05 * noise.random(), "hits": 0.02 * n}
        for n in range(60)
    ]
    assert case_of(rows).parts == {}


def test_many_series_that_could_be_bent_to_fit_are_no_parts():
    noise = random.Random(0)
    rows = [{"reward": noise.random(), **{f"x{m}y": noise.random() for m in range(24)}} for _ in range(60)]
    assert case_of(rows).parts == {}
    few = [{"reward": noise.random(), **{f"x{m}y": noise.random() for m in range(12)}} for _ in range(13)]
    assert case_of(few).parts == {}


def test_a_sum_that_ends_after_the_first_rows_is_none():
    rows = list(rows_of(lambda r: r["ndcg"] + r["hits"], ndcg=0.3, hits=0.1))
    changed = [row | {"reward": row["reward"] + 0.1 * (n % 2)} if n > 7 else row for n, row in enumerate(rows)]
    assert case_of(changed).parts == {}


def test_a_constant_reward_is_the_sum_of_nothing():
    assert case_of([{"reward": 0.5, "ndcg": 0.2, "bonus": 0.3}] * 60).parts == {}


@pytest.mark.parametrize("earned", [0.0, 0.5])
def test_a_part_that_nobody_earned_yet_or_everybody_earns_stays_one(earned):
    rows = rows_of(lambda r: r["rewards/a"] + r["rewards/b"] + earned, **{"rewards/a": 0.5, "rewards/b": 0.4})
    case = case_of([row | {"rewards/format": earned} for row in rows])
    assert weights(case) == {"a": 1.0, "b": 1.0, "format": 1.0}


def test_weights_in_the_settings_are_the_last_word():
    rows = rows_of(lambda r: r["rewards/a"], **{"rewards/a": 0.5, "rewards/b": 0.4})
    case = case_of(rows, config={"reward_weights": [1.0, 1.0]})
    assert case.parts.keys() == {"a", "b"}
    assert case.part_weights == {}


def test_the_order_of_the_keys_does_not_matter():
    rows = list(rows_of(lambda r: r["reward_ndcg"] + 3 * r["reward_bonus"], reward_ndcg=0.3, reward_bonus=0.1, x=0.5))
    for order in (list, reversed):
        case = case_of([dict(order(list(row.items()))) for row in rows])
        assert weights(case) == {"ndcg": 1.0, "bonus": 3.0}
        assert case.signals["reward"].key == "reward"


def test_looking_ends_and_what_is_kept_is_bounded():
    rows = [{"reward": math.sin(n), **{f"rewards/part_{m}": math.cos(n * m) for m in range(n % 5)}} for n in range(400)]
    case = case_of(rows)
    assert case._parts.is_decided
    assert len(case._parts._rows._totals) <= 48
    many = case_of([{"reward": math.sin(n), **{f"x{m}y": math.cos(n * m) for m in range(300)}} for n in range(60)])
    assert len(many._parts.candidates()) <= 48
    assert MOST_ROWS < 400
