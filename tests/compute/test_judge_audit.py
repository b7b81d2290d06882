"""The audit of a judge, compared with scipy and sets counted by hand, and tested on judges with planted faults."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats

from rlvitals.compute.judge_audit import HeldAnswer, HeldPair, audit, audit_pairs, estimate


def held(rows):
    return [HeldAnswer(gold, (verdict,)) for gold, verdict, times in rows for _ in range(times)]


def test_errors_and_their_intervals_are_those_of_scipy():
    found = audit(held([(False, True, 7), (False, False, 43), (True, False, 3), (True, True, 57)]))
    for seen, wrong, count in (
        (found.false_positives, 7, 50),
        (found.false_negatives, 3, 60),
        (found.agreement, 100, 110),
    ):
        wilson = stats.binomtest(wrong, count).proportion_ci(method="wilson")
        assert (seen.share, seen.count) == (pytest.approx(wrong / count), count)
        assert (seen.low, seen.high) == (pytest.approx(wilson.low), pytest.approx(wilson.high))
    po, pe = 100 / 110, (64 * 60 + 46 * 50) / 110**2
    assert found.kappa == pytest.approx((po - pe) / (1 - pe))
    assert found.drift is None


def test_replies_without_a_verdict_are_counted_and_are_no_error():
    found = audit([HeldAnswer(True, (None, True)), HeldAnswer(False, (None,)), HeldAnswer(False, (False, False))])
    assert found.unread.share == pytest.approx((0.5 + 1 + 0) / 3)
    assert found.false_positives.share == 0.0
    assert found.false_positives.count == 1
    assert found.verdicts == 5


def test_repetitions_count_as_one_item():
    once = audit(held([(False, True, 1), (False, False, 3)]))
    often = audit([HeldAnswer(False, (True,) * 9), *[HeldAnswer(False, (False,) * 9)] * 3])
    assert often.false_positives == once.false_positives
    assert often.self_agreement.share == 1.0


def test_self_agreement_is_that_of_pairs_of_verdicts():
    found = audit(
        [HeldAnswer(True, (True, True, False, False)), HeldAnswer(True, (True, True)), HeldAnswer(True, (True,))]
    )
    assert found.self_agreement.share == pytest.approx((2 / 6 + 1) / 2)
    assert found.self_agreement.count == 2


def test_length_bias_is_found_within_the_gold_label_alone():
    dice = random.Random(0)
    honest, biased = [], []
    for _ in range(400):
        gold, size = dice.random() < 0.5, dice.randint(50, 2000)
        size *= 2 if gold else 1  # right answers are longer, which is not a bias
        honest.append(HeldAnswer(gold, ((dice.random() < 0.8) == gold,), size))
        biased.append(HeldAnswer(gold, (dice.random() < (0.7 if gold else 0.1) + size / 8000,), size))
    assert audit(honest).length.p > 0.05
    found = audit(biased)
    assert found.length.p < 0.001
    assert found.length.size > 1.2
    strata = {
        gold: [(math.log(one.length), one.verdicts[0]) for one in biased if one.gold == gold] for gold in (True, False)
    }
    sums = [[size for size, verdict in rows if verdict] for rows in strata.values()]
    moves = [
        (sum(kept) - len(kept) * np.mean([size for size, _ in rows]),
         len(kept) * (len(rows) - len(kept)) / len(rows) * np.var([size for size, _ in rows], ddof=1))
        for kept, rows in zip(sums, strata.values(), strict=True)
    ]  # fmt: skip
    z = sum(move for move, _ in moves) / math.sqrt(sum(variance for _, variance in moves))
    assert found.length.p == pytest.approx(2 * stats.norm.sf(abs(z)))


def test_pairs_flips_and_positions_by_hand():
    rows = [("a", "a", "a"), ("a", "a", "b"), ("b", "a", "b"), ("b", "b", "b"), ("a", "b", "a"), ("tie", "a", "b")]
    found = audit_pairs([HeldPair(gold, (one,), (other,)) for gold, one, other in rows])
    assert found.flips.share == pytest.approx(4 / 6)
    assert found.position.size == pytest.approx((1 + 2 + 2 + 1 + 0 + 2) / 12)
    assert found.position.p == pytest.approx(stats.binomtest(3, 4).pvalue)
    assert found.agreement.count == 5  # a tie has no right answer
    assert found.agreement.share == pytest.approx((1 + 0.5 + 0.5 + 1 + 0.5) / 5)


def test_a_judge_that_prefers_the_first_is_found_and_an_even_one_is_not():
    dice = random.Random(1)

    def pairs(lean):
        found = []
        for _ in range(200):
            gold = dice.choice("ab")
            right = 0.75 if gold == "a" else 0.25
            verdicts = ["a" if dice.random() < right + shift else "b" for shift in (lean, -lean)]
            found.append(HeldPair(gold, (verdicts[0],), (verdicts[1],)))
        return found

    assert audit_pairs(pairs(0.2)).position.p < 0.001
    assert audit_pairs(pairs(0.0)).position.p > 0.05


def test_the_length_bias_of_pairs_looks_at_errors():
    longer = [HeldPair("a", ("b",), lengths=(10, 90))] * 9 + [HeldPair("b", ("a",), lengths=(10, 90))]
    right = [HeldPair("b", ("b",), lengths=(10, 90))] * 50  # prefers the longer answer, correctly
    found = audit_pairs([*longer, *right]).length
    assert (found.size, found.count) == (0.9, 10)
    assert found.p == pytest.approx(stats.binomtest(9, 10).pvalue)
    ungolden = audit_pairs([HeldPair(None, ("b",), lengths=(10, 90))] * 8)
    assert ungolden.length.p == pytest.approx(stats.binomtest(8, 8).pvalue)
    assert ungolden.agreement.share is None


def test_drift_of_false_positives_is_distinguished():
    dice = random.Random(2)
    rows = []
    for step in range(100):
        for gold in (True, False):
            wrong = dice.random() < (0.1 if gold else 0.05 + 0.5 * step / 100)
            rows.append(HeldAnswer(gold, (gold != wrong,), step=step))
    drift = audit(rows).drift
    assert drift.false_positives.p < 0.001
    assert drift.false_positives.z > 0
    assert drift.false_negatives.p > 0.05
    places = [row.step for row in rows if not row.gold]
    wrong = [float(row.verdicts[0]) for row in rows if not row.gold]
    r = stats.pearsonr(places, wrong).statistic
    assert drift.false_positives.z == pytest.approx(r * math.sqrt(100))
    assert (drift.bins[0].first_step, drift.bins[0].last_step) == (0, 12)
    assert sum(part.errors.count for part in drift.bins) == 200
    assert len(drift.bins) == 8


def test_a_judge_that_does_not_change_has_no_drift():
    drift = audit([HeldAnswer(True, (True,), step=step) for step in range(5)]).drift
    assert drift.all_errors.p is None
    assert estimate([]).share is None
