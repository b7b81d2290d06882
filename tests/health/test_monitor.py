"""Guarantees of the monitor: it never raises, the same rows give the same findings, memory is constant, a finding is
reported once, and healthy runs have none.
"""

from __future__ import annotations

import math
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvitals.config import by_last_name
from rlvitals.health import rulebook, rules
from rlvitals.health.monitor import CLEAR_POINTS, STORM, STORM_POINTS, Monitor
from rlvitals.health.wording import of_this_run
from rlvitals.records import KINDS, SEVERITIES

BOOK = rulebook.load()

GRPO = {
    "loss": (0.01, 0.008), "grad_norm": (0.6, 0.18), "learning_rate": (1e-6, 0.0), "reward": (0.4, 0.06),
    "reward_std": (0.3, 0.05), "frac_reward_zero_std": (0.2, 0.08), "kl": (0.05, 0.015), "entropy": (0.5, 0.05),
    "completions/mean_length": (300.0, 30.0), "completions/max_length": (900.0, 80.0),
    "completions/clipped_ratio": (0.06, 0.03), "clip_ratio/region_mean": (0.01, 0.004), "step_time": (12.0, 1.2),
}  # fmt: skip
DPO = {
    "loss": (0.6, 0.05), "grad_norm": (8.0, 2.0), "learning_rate": (5e-7, 0.0), "rewards/chosen": (0.1, 0.15),
    "rewards/rejected": (-0.4, 0.2), "rewards/margins": (0.5, 0.2), "rewards/accuracies": (0.66, 0.08),
    "logps/chosen": (-220.0, 22.0), "logps/rejected": (-240.0, 24.0),
}  # fmt: skip
VERL = {
    "critic/score/mean": (0.4, 0.05), "critic/rewards/mean": (0.4, 0.05), "actor/entropy": (0.35, 0.035),
    "actor/kl_loss": (0.02, 0.006), "actor/pg_loss": (0.0, 0.01), "actor/pg_clipfrac": (0.002, 0.001),
    "actor/ppo_kl": (0.0004, 0.0003), "actor/grad_norm": (0.25, 0.06), "actor/lr": (1e-6, 0.0),
    "response_length/mean": (420.0, 40.0), "response_length/clip_ratio": (0.03, 0.015), "num_turns/mean": (2.6, 0.2),
    "timing_s/step": (90.0, 8.0), "perf/throughput": (1900.0, 150.0), "perf/max_memory_reserved_gb": (66.0, 0.5),
}  # fmt: skip
LEARNED = {
    "reward": 0.3, "critic/score/mean": 0.3, "critic/rewards/mean": 0.3, "rewards/margins": 0.6,
    "rewards/accuracies": 0.12, "loss": -0.1,
}  # fmt: skip
"""How far each metric moves in a run that learns."""
BOUNDED = ("reward", "ratio", "frac", "accuracies", "score")


def healthy_rows(levels, noise, seed, points=300):
    """A run that learns, with noise of one kind around realistic levels."""
    rng = np.random.default_rng([seed, len(levels)])
    shape = (points, len(levels))
    drawn = {"constant": np.zeros, "white": rng.standard_normal, "t": lambda size: rng.standard_t(3, size) / 3**0.5}
    around = drawn[noise](shape)
    progress = (np.arange(points) / points) ** 0.7  # still rising at the end, because a flat end would be a plateau
    columns = {}
    for place, (key, (level, spread)) in enumerate(levels.items()):
        moved = LEARNED.get(key, 0.0) if key != "loss" or level > 0.1 else 0.0
        column = level + moved * progress + spread * around[:, place]
        if "accuracies" in key or (any(word in key for word in BOUNDED) and not key.startswith("rewards/")):
            column = np.clip(column, 0, 1)
        elif level > 0 and spread and not key.startswith("rewards/"):
            column = np.maximum(column, 0.02 * level)
        columns[key] = column.tolist()
    return [{"step": i + 1, **{key: column[i] for key, column in columns.items()}} for i in range(points)]


def watched(rows, **facts):
    monitor = Monitor(rules=BOOK, **facts)
    for row in rows:
        monitor.update(row)
    return monitor


def serious(monitor):
    return [(f.rule, f.severity, f.step, f.title) for f in monitor.findings if f.severity != "info"]


# Never raises.

KEYS = st.one_of(
    st.sampled_from(
        [*GRPO, *DPO, *VERL, "step", "timestamp", "_nonfinite", "attempt", "rewards/a/mean", "rewards/b/mean"]
    ),
    st.text(max_size=20),
)
NUMBERS = st.one_of(
    st.floats(), st.integers(-(10**400), 10**400), st.integers(-5, 5), st.booleans(), st.just(5e-324), st.just(1.7e308)
)
VALUES = st.recursive(
    st.one_of(NUMBERS, st.none(), st.text(max_size=10), st.binary(max_size=4), st.floats(width=32).map(np.float32)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=4,
)
ROWS = st.lists(st.dictionaries(KEYS, VALUES, max_size=12), max_size=60)


@pytest.mark.slow
@given(ROWS, st.sampled_from([None, "grpo", "dpo", "kto", "ppo", "no such thing"]), st.floats())
@settings(max_examples=60)
def test_no_row_makes_it_raise(rows, algorithm, now):
    monitor = Monitor(algorithm, rules=BOOK)
    for row in rows:
        for finding in monitor.update(row):
            assert finding.kind in KINDS
            assert finding.severity in SEVERITIES
        monitor.tick(now)
    assert monitor.verdict in ("healthy", "watch", "act")
    assert isinstance(monitor.cannot_judge, list)


EXTREME = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, 1e300, -1e300, 1e-300, 1e18]))


@given(st.sampled_from([GRPO, DPO, VERL]), st.lists(EXTREME, min_size=1, max_size=25), st.integers(1, 60))
@settings(max_examples=50)
def test_no_rule_fails_on_any_number(levels, values, points):
    monitor = Monitor(rules=BOOK)
    for step in range(1, points + 1):
        monitor.update({"step": step, **{key: values[(step * 7 + n) % len(values)] for n, key in enumerate(levels)}})
        monitor.tick(float(step))
    assert monitor.problems == {}


@pytest.mark.parametrize("levels", [GRPO, DPO, VERL], ids=["grpo", "dpo", "verl"])
@pytest.mark.parametrize("value", [0.0, 1e300, -1e300, 1e-300, -1.0, math.nan, math.inf])
def test_no_rule_fails_when_every_metric_is_the_same_odd_number(levels, value):
    monitor = watched({"step": step, **dict.fromkeys(levels, value)} for step in range(1, 320))
    assert monitor.problems == {}


class Hostile(dict):
    """A mapping that raises when it is read."""

    def items(self):
        raise RuntimeError("gone")


def test_a_row_that_cannot_be_read_is_noted_and_the_next_one_counts():
    monitor = Monitor(rules=BOOK)
    assert monitor.update(Hostile(step=1)) == []
    assert "gone" in next(iter(monitor.problems.values()))
    monitor.update({"step": 2, "reward": 0.5})
    assert monitor.case.signals["reward"].last == 0.5


LOOKED = []


def fail(*_, **__):
    LOOKED.append("once")  # in a global list: the function of a rule has no closure
    raise ZeroDivisionError("no such number")


def test_a_rule_that_fails_is_disabled_and_the_others_report(monkeypatch):
    LOOKED.clear()
    monkeypatch.setitem(rules.FUNCTIONS, BOOK.rules["dead_gradient"].function, fail)
    monitor = Monitor("grpo")
    for step in range(1, 30):
        loss = 0.1 if step < 20 else math.nan
        monitor.update({"step": step, "loss": loss, "grad_norm": 0.0, "reward": 0.3 + 0.01 * (step % 3)})
    assert monitor.problems == {"dead_gradient": "ZeroDivisionError: no such number"}
    assert LOOKED == ["once"]
    assert [finding.rule for finding in monitor.findings] == ["frozen_loss", "nonfinite_core"]


class Exploding:
    def __float__(self):
        raise ZeroDivisionError("no")


def test_one_value_that_cannot_be_read_does_not_cost_the_row():
    monitor = Monitor(rules=BOOK)
    for step in range(1, 6):
        monitor.update({"step": step, "loss": Exploding(), "reward": 0.5, "kl": 0.1})
    assert monitor.case.signals["kl"].n == 5


@pytest.mark.parametrize("step", [math.nan, math.inf, -math.inf])
def test_a_step_that_is_not_finite_does_not_cost_the_row(step):
    monitor = Monitor(rules=BOOK)
    for _ in range(5):
        monitor.update({"step": step, "reward": 0.5})
    assert monitor.case.signals["reward"].n == 5
    assert monitor.problems == {}


@pytest.mark.parametrize("stamp", [math.nan, math.inf, -1.0, 10**400, True, "now", None])
def test_an_odd_timestamp_does_not_cost_the_row(stamp):
    monitor = Monitor(rules=BOOK)
    for step in range(1, 6):
        monitor.update({"step": step, "timestamp": stamp, "reward": 0.5})
        monitor.tick(1e9 + step)
    assert monitor.case.signals["reward"].n == 5
    assert monitor.problems == {}


# Deterministic, and constant in memory.


@pytest.mark.slow
@given(ROWS)
@settings(max_examples=40)
def test_the_same_rows_give_the_same_findings(rows):
    assert repr(watched(rows).findings) == repr(watched(rows).findings)


def test_the_order_of_keys_in_a_row_changes_nothing():
    rows = healthy_rows(GRPO, "white", 3, 120)
    for row in rows[60:]:
        row["kl"], row["reward"] = 9.0, 0.0
    turned = [dict(reversed(row.items())) for row in rows]
    assert {(f.rule, f.severity, f.step) for f in watched(rows).findings} == {
        (f.rule, f.severity, f.step) for f in watched(turned).findings
    }


def held_bytes(root):
    """The bytes reachable from an object, without the shared rulebook."""
    seen, waiting, total = {id(BOOK)}, [root], 0
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, type) or (callable(item) and not hasattr(item, "args")):
            continue
        seen.add(id(item))
        total += sys.getsizeof(item)
        if isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset):
            waiting += item
        else:
            waiting += [getattr(item, name) for name in getattr(item, "__slots__", ()) if hasattr(item, name)]
            waiting += list(getattr(item, "__dict__", {}).values())
    return total


@pytest.mark.slow
def test_twenty_thousand_rows_are_held_in_the_memory_of_a_thousand():
    rows = healthy_rows(GRPO, "white", 1, 1000)
    monitor, sizes = Monitor(rules=BOOK), {}
    for step in range(1, 20_001):
        monitor.update({**rows[step % 1000], "step": step})
        if step in (1000, 20_000):
            sizes[step] = held_bytes(monitor) - held_bytes(monitor._history)
    assert sizes[20_000] <= sizes[1000] + 400


def test_findings_without_end_are_not_kept_without_end():
    monitor = Monitor(rules=[*_only(), "kl > 0.5: warning"])
    for step in range(1, 60_000):
        monitor.update({"step": step, "kl": 1.0 if step % 25 == 0 else 0.0})
    assert len(monitor.findings) <= 1000


# Reports a finding once, again when it gets worse, and again after a recovery.


def _only(*kept):
    """Entries that switch off every shipped rule except these."""
    return [{"rule": name, "enabled": False} for name in BOOK.rules if name not in kept]


def _kl(values, *rules):
    monitor = Monitor(rules=[*_only(), *rules])
    reported = []
    for step, value in enumerate(values, 1):
        reported += [(f.step, f.severity) for f in monitor.update({"step": step, "kl": value, "reward": 0.5})]
    return reported


def test_a_rule_that_holds_is_reported_once():
    assert _kl([1.0] * 200, "kl > 0.5 for 5: warning") == [(5, "warning")]


def test_a_rule_that_holds_for_too_short_is_not_reported():
    assert _kl(([1.0] * 4 + [0.0]) * 40, "kl > 0.5 for 5: warning") == []


def test_a_rule_is_reported_again_after_it_was_clear_for_long_enough():
    clear = [0.0] * CLEAR_POINTS
    assert _kl([1.0] * 10 + clear + [1.0] * 10, "kl > 0.5 for 3: warning") == [
        (3, "warning"),
        (10 + CLEAR_POINTS + 3, "warning"),
    ]
    almost = [0.0] * (CLEAR_POINTS - 1)
    assert _kl([1.0] * 10 + almost + [1.0] * 10, "kl > 0.5 for 3: warning") == [(3, "warning")]


def test_a_warning_becomes_critical_once_and_a_critical_that_subsides_a_warning_again():
    entry = {"rule": "kl_explosion", "enabled": True}
    monitor = Monitor("grpo", rules=[*_only("kl_explosion"), entry])
    reported = []
    for step in range(1, 200):
        level = 0.05 if step < 30 else 3.5 if step < 60 else 40.0 if step < 90 else 3.5
        reported += [(f.step, f.severity) for f in monitor.update({"step": step, "kl": level, "reward": 0.5})]
    assert [severity for _, severity in reported] == ["warning", "critical", "warning"]
    assert reported[0][0] < 45
    assert 60 <= reported[1][0] < 75
    assert 90 + CLEAR_POINTS <= reported[2][0] < 130
    assert [finding.recovered_step is None for finding in monitor.findings] == [False, False, True]


def test_the_verdict_follows_what_stands():
    monitor = Monitor(rules=[*_only(), "kl > 0.5 for 2: warning", "kl > 5 for 2: critical"])
    verdicts = []
    for step, value in enumerate([0.1] * 3 + [1.0] * 3 + [9.0] * 3 + [0.1] * (CLEAR_POINTS + 2), 1):
        monitor.update({"step": step, "kl": value})
        verdicts.append(monitor.verdict)
    assert (verdicts[2], verdicts[5], verdicts[8], verdicts[-1]) == ("healthy", "watch", "act", "healthy")
    assert not any(finding.recovered_step is None for finding in monitor.findings)


def test_a_storm_is_counted_instead_of_reported_but_a_critical_gets_through():
    lines = [f"own{n} > 0.5: warning" for n in range(20)]
    monitor = Monitor(rules=[*_only(), *lines, "kl > 0.5: critical"])
    calm = {f"own{n}": 0.0 for n in range(20)}
    monitor.update({"step": 1, **calm, "kl": 0.0})
    reported = monitor.update({"step": 2, **dict.fromkeys(calm, 1.0), "kl": 0.0})
    *warnings, summary = reported
    assert len(warnings) == STORM
    assert (summary.rule, summary.severity, summary.evidence["count"]) == ("storm", "info", 20 - STORM)
    assert monitor.left_unsaid == 20 - STORM
    assert [f.severity for f in monitor.update({"step": 3, **calm, "kl": 1.0})] == ["critical"]


def test_after_a_storm_a_new_warning_is_reported():
    lines = [f"own{n} > 0.5: warning" for n in range(20)]
    monitor = Monitor(rules=[*_only(), *lines, "kl > 0.5: warning"])
    for step in range(1, 3 * STORM_POINTS):
        row = {"step": step, **{f"own{n}": 1.0 for n in range(20)}, "kl": 0.0}
        monitor.update(row)
    assert [f.metrics for f in monitor.update({**row, "step": step + 1, "kl": 1.0})] == [("kl",)]


def test_what_was_swallowed_by_a_storm_is_reported_when_it_still_holds_afterwards():
    lines = [f"own{n} > 0.5: warning" for n in range(20)]
    monitor = Monitor(rules=[*_only(), *lines])
    for step in range(1, 4 * STORM_POINTS):
        monitor.update({"step": step, **{f"own{n}": 1.0 for n in range(20)}})
    assert len({f.rule for f in monitor.findings} - {"storm"}) == 20


def test_a_run_that_begins_again_may_be_warned_again():
    monitor = Monitor(rules=[*_only(), "kl > 0.5 for 3: warning"])
    reported = []
    for step in [*range(1, 11), *range(1, 11)]:
        reported += [f.step for f in monitor.update({"step": step, "kl": 1.0})]
    assert reported == [3, 3]


# Silence.


def test_silence_with_timestamps_is_measured_from_the_last_row():
    monitor = Monitor(rules=BOOK)
    for step in range(1, 20):
        monitor.update({"step": step, "timestamp": 1000.0 + 10 * step, "reward": 0.4 + 0.01 * (step % 4)})
        assert monitor.tick(1000.0 + 10 * step + 5) == []
    assert monitor.tick(1190.0 + 250) == []
    assert [(f.kind, f.severity) for f in monitor.tick(1190.0 + 400)] == [("stall", "warning")]
    assert monitor.tick(1190.0 + 500) == []
    assert [(f.kind, f.severity) for f in monitor.tick(1190.0 + 2000)] == [("stall", "critical")]


@pytest.mark.parametrize(
    ("rows", "lost_pid", "rules"), [(2, None, []), (19, None, ["stall"]), (19, 7, ["process_gone"])]
)
def test_silence_is_a_stall_after_some_rows_and_while_the_process_lives(rows, lost_pid, rules):
    monitor = Monitor(rules=BOOK)
    for step in range(1, rows + 1):
        monitor.update({"step": step, "timestamp": 10.0 * step, "reward": 0.4})
    assert [found.rule for found in monitor.tick(10.0 * rows + 2000, lost_pid=lost_pid)] == rules


def test_silence_without_timestamps_is_measured_from_the_tick_that_noticed_the_row():
    monitor = Monitor(rules=BOOK)
    for step in range(1, 20):
        monitor.update({"step": step, "reward": 0.4 + 0.01 * (step % 4)})
        assert monitor.tick(5000.0 + 10 * step) == []
    assert monitor.tick(5190.0 + 250) == []
    assert [f.kind for f in monitor.tick(5190.0 + 400)] == ["stall"]


def test_rows_every_ten_minutes_are_no_stall():
    monitor = Monitor(rules=BOOK)
    for step in range(1, 40):
        monitor.update({"step": step, "timestamp": 600.0 * step, "reward": 0.4 + 0.01 * (step % 4)})
        for seconds in range(0, 600, 60):
            assert monitor.tick(600.0 * step + seconds) == []


def test_slow_rows_without_timestamps_are_no_stall():
    monitor = Monitor(rules=BOOK)
    for step in range(1, 40):
        monitor.update({"step": step, "reward": 0.4 + 0.01 * (step % 4)})
        for seconds in range(0, 600, 60):
            assert monitor.tick(600.0 * step + seconds) == []


def test_a_stall_that_ended_may_be_reported_again():
    monitor = Monitor(rules=BOOK)
    reported = []
    for step in range(1, 80):
        stamp = 10.0 * step + (1000.0 if step > 20 else 0.0) + (1000.0 if step > 60 else 0.0)
        reported += [f.kind for f in monitor.tick(stamp - 10.0)]
        monitor.update({"step": step, "timestamp": stamp, "reward": 0.4 + 0.01 * (step % 4)})
        reported += [f.kind for f in monitor.tick(stamp)]
    assert reported == ["stall", "stall"]


@pytest.mark.parametrize("now", [math.nan, math.inf, -1e18, 0.0])
def test_an_odd_clock_reports_nothing_and_breaks_nothing(now):
    monitor = watched(healthy_rows(GRPO, "white", 1, 30))
    assert [f for f in monitor.tick(now) if now != math.inf] == []
    assert monitor.problems == {}


def test_a_clock_before_the_first_row_reports_nothing():
    monitor = Monitor(rules=BOOK)
    assert monitor.tick(1e9) == []
    assert monitor.tick(2e9) == []


# Healthy runs have no findings.

WORLDS = {"grpo": GRPO, "dpo": DPO, "verl": VERL}


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["white", "t"])
@pytest.mark.parametrize("world", WORLDS)
def test_a_run_that_learns_with_noise_is_never_warned_of(world, noise):
    alarms = Counter()
    for seed in range(6):
        alarms.update(rule for rule, *_ in serious(watched(healthy_rows(WORLDS[world], noise, seed))))
    assert not alarms


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["white", "t"])
@pytest.mark.parametrize("world", WORLDS)
def test_nine_in_ten_runs_that_learn_are_never_warned_of(world, noise):
    warned = [seed for seed in range(100, 120) if serious(watched(healthy_rows(WORLDS[world], noise, seed)))]
    assert len(warned) <= 2


@pytest.mark.parametrize("world", WORLDS)
def test_metrics_that_never_change_beside_one_that_learns_are_no_alarm(world):
    progress = (
        "reward",
        "critic/score/mean",
        "rewards/margins",
        "rewards/accuracies",
        "loss",
        "grad_norm",
        "actor/grad_norm",
    )
    noisy, still = (healthy_rows(WORLDS[world], kind, 5) for kind in ("white", "constant"))
    rows = [
        {key: (moving if key in progress else fixed)[key] for key in fixed}
        for fixed, moving in zip(still, noisy, strict=True)
    ]
    for row, number in zip(rows, range(1, 301), strict=True):
        row["step"] = number
    assert serious(watched(rows)) == []


SPIKED = [
    (world, key) for world, levels in WORLDS.items() for key in levels if key not in ("learning_rate", "actor/lr")
]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "key"), SPIKED)
def test_one_spike_in_one_metric_is_never_more_than_a_note(world, key):
    before = {rule for rule, *_ in serious(watched(healthy_rows(WORLDS[world], "white", 11, 100)))}
    for number, (times, at) in enumerate([(10, 60), (100, 61), (1000, 62), (1000, 2), (-1000, 60), (1000, 14)]):
        rows = healthy_rows(WORLDS[world], "white", 11, 100)
        level = abs(WORLDS[world][key][0]) or WORLDS[world][key][1]
        rows[at][key] = times * level
        found = [item for item in serious(watched(rows)) if item[0] not in before]
        assert found == [], (number, times, at)


@pytest.mark.parametrize(
    ("config", "advice"),
    [
        ({"learning_rate": 0.03}, "halve learning_rate (0.03 -> 0.015)"),
        ({"optim": {"lr": 4e-6}}, "halve learning_rate (4e-06 -> 2e-06)"),
        ({}, "halve learning_rate and"),
    ],
)
def test_advice_has_the_runs_own_numbers(config, advice):
    monitor = Monitor("grpo", config=by_last_name(config))
    found = []
    for step in range(60):
        found += monitor.update({"step": step, "grad_norm": 1.0 if step < 30 else 500.0, "loss": 0.1 + 0.001 * step})
    (finding, *_) = [finding for finding in found if finding.rule == "gradient_explosion"]
    assert any(text.startswith(advice) for text in finding.advice), finding.advice
    assert not any("{" in text for text in (*finding.advice, *finding.causes))


def test_every_slot_of_the_shipped_words_is_a_setting_that_is_known():
    for preset in (rulebook.DEFAULT, *rulebook.presets()):
        for rule in rulebook.load(preset).rules.values():
            for words in (rule.words, *(rule.texts_of(variant) for variant in rule.variants)):
                for text in (*words.causes, *words.advice):
                    assert "?}" not in of_this_run(text, {}), text
                    assert " / " not in of_this_run(text, {}) or "{" not in of_this_run(text, {}), text


@pytest.mark.parametrize("every", [2, 3])
def test_a_rule_about_the_margin_counts_margins_and_not_the_rows_between_them(every):
    found = []
    for apart in (1, every):
        monitor, chance = Monitor("dpo"), np.random.default_rng(1)
        margins = []
        for step in range(1, 120 * apart + 1):
            row = {"step": step, "train/learning_rate": 1e-6}
            if step % apart == 0:
                row["rewards/margins"] = chance.normal(0.3 if step // apart < 100 else -1.5, 0.05)
            margins += [(finding.rule, finding.severity, step // apart) for finding in monitor.update(row)]
        found.append(margins)
    assert found[0] == found[1] != []
