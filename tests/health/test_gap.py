"""The cause of a gap between engine and trainer: shapes, rules, evidence, and results on generated runs."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from conftest import REPO
from corpus import gaps
from rlvitals.compute.token_gap import token_gap
from rlvitals.health import gap
from rlvitals.health.growth import growth_of
from rlvitals.health.monitor import Monitor
from rlvitals.health.rechecks import Rechecks
from rlvitals.health.rulebook import causes, shipped
from rlvitals.health.standstill import stood_still
from rlvitals.health.trail import MOST_BLOCKS, Trail
from rlvitals.records import CAUSES, Finding, Group, Recheck, Rollout, TokenGap, TokenTrace

GAP, WORST = "sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max"


def judged(rows: list[dict[str, Any]], **known: Any) -> list[Finding]:
    monitor = Monitor("grpo", **known)
    found = [one for row in rows for one in monitor.update(row)]
    assert monitor.problems == {}
    return [one for one in found if one.kind in gap.KINDS]


def noisy(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


# The course of a gap


@pytest.mark.parametrize("onset", [3, 10, 40])
def test_a_growth_is_dated_to_the_step_at_which_it_began(onset: int) -> None:
    rng = noisy(onset)
    steps = list(range(1, onset + 20))
    course = gap.course_of(
        [math.hypot(0.01, 0.01 * max(step - onset + 1, 0)) * math.exp(0.03 * rng.normal()) for step in steps], steps
    )
    assert course.shape == "grows"
    assert course.onset is not None
    assert abs(course.onset - onset) <= (0 if onset < 10 else 1)


def test_a_jump_and_a_level_are_no_growth() -> None:
    rng = noisy(1)
    steps = list(range(1, 61))
    level = [0.02 * math.exp(0.1 * rng.normal()) for _ in steps]
    assert gap.course_of(level, steps).shape == "level"
    jumped = [value * (5 if step >= 31 else 1) for step, value in zip(steps, level, strict=True)]
    assert gap.course_of(jumped, steps)[:2] == ("jump", 31)


def test_the_trail_is_of_constant_size_and_its_blocks_are_means() -> None:
    trail = Trail()
    values = noisy(2).random(10_000)
    for step, value in enumerate(values, 1):
        trail.add(step, float(value), 2.0 * step)
        assert len(trail.gaps) < MOST_BLOCKS
    assert trail.size == 128
    assert trail.gaps == pytest.approx([values[i : i + 128].mean() for i in range(0, 9984, 128)])
    assert trail.ages[0] == pytest.approx(129.0)
    assert trail.steps[:2] == [1, 129]


# A weight sync that does not deliver


def syncing(changed: dict[int, float], **more: dict[int, float]) -> list[dict[str, Any]]:
    rng = noisy(3)
    rows = []
    for step in range(1, 13):
        row = {"step": step, "reward": 0.3 + 0.01 * rng.normal(), "sync.changed_fraction": 0.14, "lr": 1e-6}
        row["sync.changed_fraction"] = changed.get(step, 0.14 + 0.01 * rng.normal())
        rows.append(row | {key: values[step] for key, values in more.items() if step in values})
    return rows


def test_syncs_that_change_nothing_are_reported_two_steps_later_and_dated_to_the_first() -> None:
    first = judged(syncing(dict.fromkeys(range(3, 13), 0.0)))[0]
    assert (first.rule, first.severity, first.cause) == ("sync_without_effect", "critical", "weight_sync")
    assert first.onset_step == 3
    assert first.step <= 6
    assert "engine" in first.causes[0]


def test_a_sync_that_changes_much_less_than_at_first_is_reported() -> None:
    (found,) = judged(syncing(dict.fromkeys(range(6, 13), 0.05)))
    assert (found.rule, found.severity, found.cause) == ("sync_without_effect", "warning", "weight_sync")
    assert found.title == "a weight sync changes 0.05 of the weights, 0.138 at the start"


def test_a_sync_may_change_nothing_once_the_learning_rate_has_decayed() -> None:
    decayed = {step: 1e-6 if step < 6 else 1e-9 for step in range(1, 13)}
    assert judged(syncing(dict.fromkeys(range(6, 13), 0.0), lr=decayed)) == []
    assert judged(syncing({4: 0.0})) == []


def test_a_version_that_stands_still_is_a_dead_sync() -> None:
    rows = [{"step": step, "reward": 0.3 + 0.01 * (step % 3), "async/staleness_mean": 0.0 if step < 5 else step - 4.0}
            for step in range(1, 13)]  # fmt: skip
    first = judged(rows)[0]
    assert (first.rule, first.cause, first.onset_step) == ("sync_without_effect", "weight_sync", 5)
    assert first.step <= 9


def growing(from_step: int, pace: float, points: int = 14, seed: int = 4) -> list[dict[str, Any]]:
    rng = noisy(seed)
    rows = []
    for step in range(1, points + 1):
        size = math.hypot(0.008, pace * max(step - from_step + 1, 0)) * math.exp(0.03 * rng.normal())
        rows.append({"step": step, "reward": 0.3 + 0.01 * rng.normal(), GAP: size, WORST: 12 * size, "temperature": 1})
    return rows


@pytest.mark.parametrize("pace", [0.006, 0.012, 0.03])
def test_a_gap_that_grows_from_step_3_on_is_dated_to_step_3_and_reported_by_step_6(pace: float) -> None:
    first = judged(growing(3, pace), config={"temperature": 1.0})[0]
    assert (first.rule, first.cause) == ("engine_stands_still", "weight_sync")
    assert first.onset_step == 3
    assert first.step <= 6


def test_an_engine_that_stands_still_is_distinguished_from_one_whose_samples_age() -> None:
    """Samples of an asynchronous training also get older in its first steps. Then their logged age stays constant. A
    dead sync shows in a gap that keeps growing while the age does not.
    """
    rng = noisy(8)
    age = [1.5 * (1 - math.exp(-(at + 0.5) / 3)) * math.exp(0.1 * rng.normal()) for at in range(10)]
    since = [*age[:2], *range(1, 9)]

    def sized(ages: list[float]) -> list[float]:
        return [math.hypot(0.004, 0.02 * each) * math.exp(0.05 * rng.normal()) for each in ages]

    for points in (6, 8, 10):
        dead = stood_still(sized(since)[:points], age[:points], 0, squared=False, signed=False)
        fine = stood_still(sized(age)[:points], age[:points], 0, squared=False, signed=False)
        untold = stood_still(sized(age)[:points], [], 0, squared=False, signed=False)
        assert (dead.onset, dead.rising) == (2, 1.0)
        assert dead.times == pytest.approx(points - 2, rel=0.35)
        assert dead.odds > 1.7 > max(fine.odds, untold.odds)


def test_a_jump_and_too_few_points_are_no_stand_still() -> None:
    jumped = [0.01, 0.011, 0.05, 0.049, 0.052, 0.05]
    assert stood_still(jumped, [], 0, squared=False, signed=False).odds < 0
    for few in ([0.01, 0.02, 0.03], [0.01, math.nan, 0.02, 0.03, 0.04]):
        assert stood_still(few, [], 0, squared=False, signed=False).odds == -math.inf


def signed_kl(gaps_: list[float], tokens: int, seed: int) -> list[float]:
    """k1 as a trail keeps it: the mean over `tokens` differences, whose KL is half the square of the gap."""
    rng = noisy(seed)
    means = [0.5 * gap * gap + gap / math.sqrt(tokens) * rng.normal() for gap in gaps_]
    return [math.sqrt(2.0 * abs(mean)) for mean in means]


@pytest.mark.parametrize("tokens", [3_000, 300_000])
def test_a_signed_kl_shows_a_stand_still_whether_its_noise_or_its_mean_is_larger(tokens: int) -> None:
    dead = [math.hypot(0.01, 0.05 * max(step - 2, 0)) for step in range(1, 9)]
    jumped = [0.01] * 2 + [0.3] * 6
    rightly = 0
    for seed in range(20):
        found = stood_still(signed_kl(dead, tokens, seed), [], 0, squared=True, signed=True)
        rightly += found.odds > 1.5 and found.over_jump > -1 and abs(found.onset - 2) <= 1
        fine = stood_still(signed_kl([0.02] * 8, tokens, seed), [], 0, squared=True, signed=True)
        assert fine.odds < 1.5
        other = stood_still(signed_kl(jumped, tokens, seed), [], 0, squared=True, signed=True)
        assert other.over_jump < -1
    assert rightly >= 18


def test_growth_is_measured_beside_what_was_usual_and_the_age_of_the_samples() -> None:
    values = [3.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0]
    grown = growth_of(values, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0], 4, 0.1)
    assert grown is not None
    assert (grown.times, grown.is_highest, grown.changes, grown.older) == (4.0, True, 3, 2.0)
    assert grown.least == pytest.approx(math.log(4 / 3))
    assert grown.largest == pytest.approx(math.log(2) / math.log(4))
    assert grown.usual == pytest.approx(math.log(1.5))  # the median of log 1.5, log 1.5 and log 3
    assert grown.later == 1.0
    lower = growth_of([5.0, *values[1:]], [math.nan] * 7, 4, 0.1)
    assert lower is not None
    assert (lower.is_highest, lower.older) == (False, 0.0)
    assert growth_of([1.0, 2.0, 3.0], [0.0] * 3, 4, 0.1) is None
    assert growth_of([1.0, 2.0, math.nan, 4.0], [0.0] * 4, 4, 0.1) is None


def test_a_gap_that_falls_and_comes_back_to_its_level_has_not_grown() -> None:
    rng = noisy(6)
    gaps_ = [0.03 * math.exp(0.15 * rng.normal()) for _ in range(16)]
    gaps_ += [0.0012, 0.005, 0.012, 0.02, 0.027, 0.029]
    rows = [{"step": step, "reward": 0.3 + 0.01 * rng.normal(), GAP: gap} for step, gap in enumerate(gaps_, 1)]
    assert judged(rows) == []
    risen = [*rows, *({"step": step, "reward": 0.3, GAP: 0.01 * step - 0.19} for step in range(23, 30))]
    assert {found.rule for found in judged(risen)} & {"gap_growing", "engine_stands_still"}


@pytest.mark.parametrize("framework", ["trl", "verl", "prime_rl"])
def test_a_sync_that_dies_at_step_3_is_reported_at_step_6_where_only_gap_and_ages_are_logged(framework: str) -> None:
    """benchmarks/causes.py measures the shares. Here the rule must work with the names of each framework."""
    own = [one for one in gaps.EARLY if one.framework == framework and not one.lagging]
    trouble = own[-1]  # verl has two: the one without a share of changed weights
    run = gaps.make_gap(trouble, 88)
    first = judged(run.rows, framework=run.framework, config=run.config)[0]
    assert (first.rule, first.cause, first.onset_step, first.step) == ("engine_stands_still", "weight_sync", 3, 6)


def test_what_is_reported_does_not_depend_on_later_rows() -> None:
    rows = growing(3, 0.012, 30)
    assert judged(rows)[0] == judged(rows[:6])[0]


def test_a_gap_that_settles_with_the_age_of_the_samples_is_no_alarm() -> None:
    rng = noisy(5)
    rows = []
    for step in range(1, 40):
        age = 2.5 * (1 - math.exp(-step / 3)) * math.exp(0.05 * rng.normal())
        size = math.hypot(0.004, 0.006 * age) * math.exp(0.05 * rng.normal())
        rows.append({"step": step, "reward": 0.3 + 0.01 * rng.normal(), GAP: size, "sample/staleness_mean": age})
    assert judged(rows) == []
    assert judged([{key: value for key, value in row.items() if "stale" not in key} for row in rows]) == []


# Evidence


def test_every_reading_has_a_likelihood_under_every_cause_and_words() -> None:
    table, words = gap.likelihoods(), causes()
    assert set(table) == set(words["features"]) == {*gap.FEATURES, *gap.TOKEN_FEATURES}
    assert list(words["causes"]) == list(CAUSES[:6])
    for feature, entry in words["features"].items():
        assert set(table[feature]) == set(entry["readings"])
        assert len(entry.get("edges", entry["readings"])) in (len(entry["readings"]), len(entry["readings"]) - 1)
        for cause in words["causes"]:
            chances = [table[feature][reading][cause] for reading in table[feature]]
            assert all(0 < chance <= 1 for chance in chances)
            assert sum(chances) == pytest.approx(1.0, abs=0.1)


def test_the_answer_is_bayes_rule_over_the_readings_that_were_seen() -> None:
    found = {
        "went": ("level", gap.FeatureReading("level")),
        "side": ("negative", gap.FeatureReading(-0.4, {"k1": -0.1, "gap": 0.25})),
    }
    answer = gap.explain(found)
    assert answer is not None
    table, trust = gap.likelihoods(), causes()["numbers"]["trust"]
    weights = {
        cause: (table["went"]["level"][cause] * table["side"]["negative"][cause]) ** trust for cause in CAUSES[:6]
    }
    shares = {each.cause: each.share for each in answer.ranked}
    assert shares == pytest.approx({cause: weight / sum(weights.values()) for cause, weight in weights.items()})
    assert answer.cause == "temperature"
    assert "k1 is -0.1" in answer.about().causes[0]
    assert "temperature" in answer.about().advice[0]


def seen(**logged: float) -> dict[str, Any]:
    """The value of each reading of a run that logs the same numbers at every step."""
    names = {name.replace("__", "."): value for name, value in logged.items()}
    monitor = Monitor("grpo", config={"temperature": 0.9, "rollout_dtype": "fp8_e4m3"})
    for step in range(1, 13):
        monitor.update({"step": step, "reward": 0.4, **names})
    return {feature: reading.value for feature, (_, reading) in gap.readings(monitor.case).items()}


def test_each_reading_is_the_ratio_that_its_docstring_names() -> None:
    known = seen(
        mismatch__logp_abs_diff__mean=0.02, mismatch__kl__k1=-0.001, mismatch__kl__k3=0.0008, sync__gap__mean=0.015,
        sync__changed_fraction=0.1, sync__mismatch=0.002, mismatch__chi2__token=0.003, mismatch__is_weight__mean=1.01,
        mismatch__token_mult_prob_error=1.02, mismatch__is_weight__max=3.0, moe__routing_mismatch=0.02,
        agent__turns__mean=3.0,
    )  # fmt: skip
    assert known == {
        "went": "level", "age": "not_logged", "experts": "yes", "temperature": "other", "precision": "low",
        "turns": "several", "fresh": pytest.approx(0.75), "changed": pytest.approx(1), "verified": pytest.approx(0.002),
        "routes": pytest.approx(0.02), "worst": pytest.approx(math.log(3)), "spread": pytest.approx(0.0008 / 0.02**2),
        "peak": pytest.approx(math.log(3) / 0.02), "burst": pytest.approx(1), "side": pytest.approx(-0.05),
        "weight": pytest.approx(0.5), "skew": pytest.approx(3.75),
    }  # fmt: skip
    by_kl = seen(mismatch__kl__k1=-0.001, mismatch__kl__k3=0.0008)
    assert by_kl["side"] == pytest.approx(-0.001 / math.sqrt(2 * 0.0008))


def test_each_reading_of_recorded_tokens_is_their_statistic_and_none_where_that_is_unknown() -> None:
    full = TokenGap(1000, 0.02, 1.0, 0.001, 0.001, 0.1, 0.3, 0.2, 0.5, 1.5, 0.0, 0.8, 2.0)
    found = {feature: each.value for feature, (_, each) in gap.token_readings(full, Trail()).items()}
    assert found == {
        "experts": "none_seen", "tokens_scaled": 0.1, "tokens_worst": 1.0, "tokens_few": 0.2, "tokens_at_edges": 0.5,
        "tokens_side": pytest.approx(0.05), "tokens_fresh": 0.8, "tokens_age": 2.0, "tokens_later": 1.5,
    }  # fmt: skip
    few = TokenGap(1000, 0.02, 1.0, 0.001, 0.001, None, None, 0.2, None, None, None, None, None)
    assert gap.token_readings(few, Trail()).keys() == {"experts", "tokens_worst", "tokens_few", "tokens_side"}


def aging(fresh_gap: float) -> Trail:
    trail = Trail()
    for step in range(1, 25):
        age = 0.0 if step in (2, 4) else min(step / 2, 8.0)
        trail.add(step, fresh_gap if age == 0 else 0.06, age)
    return trail


@pytest.mark.parametrize(("fresh_gap", "reading"), [(0.0, "nothing"), (0.02, "less"), (0.055, "as_large")])
def test_what_the_gap_was_while_samples_were_fresh_is_read_from_the_course(fresh_gap: float, reading: str) -> None:
    monitor = Monitor("grpo")
    monitor.case.trail = aging(fresh_gap)
    assert gap.readings(monitor.case)["rested"][0] == reading
    table = gap.likelihoods()["rested"][reading]
    is_age = table["stale_samples"] > max(table[cause] for cause in ("tokenization", "numerics", "temperature"))
    assert is_age == (reading != "as_large")


def test_one_level_kl_alone_has_several_explanations_and_none_is_named() -> None:
    rng = noisy(6)
    rows = [{"step": step, "reward": 0.3 + 0.01 * rng.normal(), "train/vllm_kl": 0.1 * math.exp(0.1 * rng.normal())}
            for step in range(1, 25)]  # fmt: skip
    found = judged(rows)
    assert found
    assert {one.cause for one in found} == {""}
    assert all("also log" in one.advice[0] for one in found)


@pytest.mark.parametrize("trouble", [
    next(one for one in gaps.TROUBLES if one.cause == cause and one.framework == "None")
    for cause in CAUSES[:6]
], ids=lambda trouble: trouble.cause)  # fmt: skip
def test_each_cause_is_named_on_a_run_that_logs_our_own_numbers(trouble: gaps.Trouble) -> None:
    run = gaps.make_gap(trouble, 80)  # this seed samples at temperature 1: at 0.97 that could be the cause
    found = judged(run.rows, framework=run.framework, config=run.config)
    named = next(one for one in found if one.cause)
    assert named.cause == trouble.cause
    assert named.causes[0].startswith(causes()["causes"][trouble.cause]["says"])
    assert run.onset is not None
    assert named.step > run.onset


def test_a_healthy_pair_has_no_finding() -> None:
    for trouble in gaps.HEALTHY[::4]:
        run = gaps.make_gap(trouble, 78)
        assert judged(run.rows, framework=run.framework, config=run.config) == []


# Recorded tokens


def grouped(traces: list[TokenTrace], step: int = 9) -> list[Group]:
    return [Group(id="a", step=step, rollouts=tuple(Rollout(trace=trace) for trace in traces))]


def test_the_statistics_of_recorded_tokens_are_those_of_the_definition() -> None:
    rng = noisy(7)
    traces, train, engine, ages, edges, places = [], [], [], [], [], []
    for number in range(10):
        size = 40 + number
        logp = np.log(rng.random(size))
        apart = 0.3 * logp + 0.01 * rng.normal(size=size)
        versions = [9 if number % 2 else 6] * size
        turns = [place // 10 for place in range(size)]
        traces.append(TokenTrace(turns=tuple(turns), trained=(True,) * size, engine_logprobs=tuple(logp),
                                 logprobs=tuple(logp + apart), versions=tuple(versions)))  # fmt: skip
        train.extend(logp + apart)
        engine.extend(logp)
        ages.extend([9 - version for version in versions])
        places.extend([place / (size - 1) for place in range(size)])
        edges.extend(
            place in (0, size - 1) or turns[place] != turns[place - 1] or turns[place] != turns[place + 1]
            for place in range(size)
        )
    seen = token_gap(grouped(traces))
    assert seen is not None
    d = [a - b for a, b in zip(train, engine, strict=True)]
    size = [abs(each) for each in d]

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    assert (seen.tokens, seen.worst) == (len(d), max(size))
    assert seen.mean == pytest.approx(mean(size))
    assert seen.k1 == pytest.approx(-mean(d))
    assert seen.k3 == pytest.approx(mean([math.exp(each) - 1 - each for each in d]))
    assert seen.scaling == pytest.approx(float(np.corrcoef(d, engine)[0, 1]))
    assert seen.slope == pytest.approx(float(np.polyfit(engine, d, 1)[0]))
    worst = sorted(size)[-(len(size) // 100) :]
    assert seen.in_few == pytest.approx(sum(worst) / sum(size))
    far = [edge for edge, each in zip(edges, size, strict=True) if each > 2]
    assert seen.at_edges == pytest.approx(mean(far)) if far else seen.at_edges is None
    later = mean([each for each, place in zip(size, places, strict=True) if place > 2 / 3])
    earlier = mean([each for each, place in zip(size, places, strict=True) if place <= 1 / 3])
    assert seen.later == pytest.approx(later / earlier)
    fresh = mean([each for each, age in zip(size, ages, strict=True) if age == 0])
    assert seen.fresh == pytest.approx(fresh / mean([each for each, age in zip(size, ages, strict=True) if age > 0]))
    assert seen.age == pytest.approx(mean(ages))


def test_tokens_without_both_log_probs_or_too_few_show_nothing() -> None:
    assert token_gap(grouped([TokenTrace(trained=(True,) * 300, logprobs=(-1.0,) * 300)])) is None
    few = TokenTrace(trained=(True,) * 50, logprobs=(-1.0,) * 50, engine_logprobs=(-2.0,) * 50)
    assert token_gap(grouped([few])) is None
    engine = (-2.0,) * 150 + (math.nan,) * 150
    lost = TokenTrace(trained=(True,) * 300, logprobs=(-1.0,) * 300, engine_logprobs=engine)
    assert token_gap(grouped([lost])) is None


def test_a_temperature_and_torn_tokens_are_recognised_in_recorded_tokens() -> None:
    for name in ("temperature", "other-tokens"):
        trouble = next(one for one in gaps.TROUBLES if one.name == name)
        checks, found = Rechecks(shipped()), list[Finding]()
        for groups in gaps.traced(trouble, 79, points=12):
            checked = Recheck(groups[0].step, 40, (), True, gap=token_gap(groups))
            found += [event.finding for event in checks.take(checked) if event.finding]
        assert [(one.rule, one.cause) for one in found] == [("recorded_gap", trouble.cause)]


def test_a_small_gap_of_recorded_tokens_is_no_finding() -> None:
    small = TokenGap(1000, 0.02, 1.0, 0.001, 0.001, 0.1, 0.0, 0.1, None, 1.0, 0.0, None, None)
    assert Rechecks(shipped()).take(Recheck(3, 8, (), True, gap=small)) == []


# Mixtures of experts and distillation


def course(key: str, values: list[float], **others: float) -> list[dict[str, Any]]:
    rng = noisy(8)
    return [
        {"step": step, "reward": 0.3 + 0.01 * rng.normal(), key: value * math.exp(0.02 * rng.normal()), **others}
        for step, value in enumerate(values, 1)
    ]


RULES = [
    ("routes_differ", "moe.routing_mismatch", [0.03] * 15 + [0.12] * 20, [0.1] * 40),
    ("routes_differ", "train/r3/routed_experts_fallback_token_route_fraction", [0.3] * 30, [0.001] * 30),
    ("experts_unbalanced", "moe.max_violation", [0.8] * 15 + [3.5] * 20, [0.8] * 20 + [1.1] * 20),
    ("experts_idle", "moe.idle_fraction", [0.05] * 15 + [0.4] * 20, [0.1] * 40),
    ("teacher_not_approached", "distill.reverse_kl", [0.4] * 90, [0.4 * 0.98**i for i in range(90)]),
    ("teacher_not_approached", "distill.reverse_kl", [0.4] * 15 + [0.9] * 20, [0.4 * 0.97**i for i in range(35)]),
    ("student_leaves_teacher", "distill.student_mass.mean", [0.8] * 15 + [0.5] * 20, [0.8] * 40),
    ("student_leaves_teacher", "distill.overlap", [0.6] * 15 + [0.3] * 20, [0.6 + 0.004 * i for i in range(40)]),
    ("teacher_cut_off", "distill.teacher_mass.mean", [0.5] * 20, [0.95] * 20),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "key", "bad", "good"), RULES, ids=[f"{rule}-{key}" for rule, key, _, _ in RULES])
def test_rules_of_experts_and_distillation(rule: str, key: str, bad: list[float], good: list[float]) -> None:
    algorithm = "opd" if key.startswith("distill") else "grpo"

    def rules_of(values: list[float]) -> set[str]:
        monitor = Monitor(algorithm)
        return {one.rule for row in course(key, values) for one in monitor.update(row) if one.severity != "info"}

    assert rule in rules_of(bad)
    assert rule not in rules_of(good)


def test_the_examples_of_the_page_print_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    page = (REPO / "docs" / "causes.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(examples) == 3
    for code, shown in examples:
        exec(compile(code, "docs/causes.md", "exec"), {})
        assert capsys.readouterr().out == shown


def test_samples_that_grow_old_within_what_is_allowed_are_compared_with_their_start() -> None:
    ages = [1.0 if step < 30 else 4.5 for step in range(1, 61)]
    rows = [{"step": step, "reward": 0.3 + 0.01 * (step % 3), "async/staleness_mean": age + 0.1 * (step % 2)}
            for step, age in enumerate(ages, start=1)]  # fmt: skip
    aged = [finding for finding in judged(rows) if finding.rule == "stale_samples"]
    assert [finding.severity for finding in aged] == ["warning"]
    level, start = re.findall(r"are (\S+) policy .* on, (\S+) at the start$", aged[0].title)[0]
    assert 3 < float(level) < 5
    assert 1.0 <= float(start) <= 1.1
    beyond = [{**row, "async/staleness_mean": 12.0 + row["step"] % 2} for row in rows]
    assert "(allowed: 8)" in next(finding for finding in judged(beyond) if finding.rule == "stale_samples").title
