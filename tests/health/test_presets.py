"""The presets: the guides' own numbers, warning signs and printed examples."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path

import pytest

from rlvitals.health import rulebook
from rlvitals.health.monitor import Monitor
from rlvitals.records import Finding

RUNS = Path(__file__).parent / "kto_runs"
NAMES = ("loss", "rewards/chosen", "rewards/rejected", "rewards/margins")

HEALTHY = """
5        0.650   -0.045  0.033   -0.078
10       0.620   0.012   -0.015  0.027
25       0.580   0.089   -0.112  0.201
50       0.520   0.234   -0.189  0.423
100      0.450   0.512   -0.298  0.810
145      0.420   0.678   -0.445  1.123
"""
PROBLEMATIC = """
5        0.650   -0.045  0.033   -0.078
10       0.720   -0.112  0.089   -0.201
25       0.850   -0.234  0.198   -0.432
"""


def printed(table: str) -> list[dict[str, float]]:
    rows = [line.split() for line in table.strip().splitlines()]
    return [{"step": int(step)} | dict(zip(NAMES, map(float, values), strict=True)) for step, *values in rows]


def findings_of(preset: str, rows: list[dict[str, float]], **facts: object) -> list[Finding]:
    monitor = Monitor(rules=preset, **facts)  # type: ignore[arg-type]
    found = [finding for row in rows for finding in monitor.update(row)]
    assert monitor.problems == {}
    assert [finding.title for finding in found if "{" in finding.title] == []
    return found


def rules_of(preset: str, rows: list[dict[str, float]], **facts: object) -> dict[str, tuple[str, int, str]]:
    """Rule -> severity, step and action of its last finding, for the preset's own rules."""
    own = set(rulebook.load(preset).rules) - set(rulebook.shipped().rules)
    found = findings_of(preset, rows, **facts)
    return {finding.rule: (finding.severity, finding.step, finding.action) for finding in found if finding.rule in own}


def kto_rows(count: int = 60, **series: object) -> list[dict[str, float]]:
    """A run on the guide's targets, one row per step. A number or a function of the step may replace a series."""
    rows = []
    for step in range(1, count + 1):
        row = {
            "step": step,
            "loss": 0.66 - 0.0025 * step,
            "rewards/chosen": 0.006 * step,
            "rewards/rejected": -0.004 * step,
            "rewards/margins": 0.01 * step,
            "grad_norm": 10.0,
            "learning_rate": 5e-7,
            "kl": 0.1,
        }
        for name, value in series.items():
            key = {"margin": "rewards/margins", "chosen": "rewards/chosen", "rejected": "rewards/rejected"}.get(
                name, name
            )
            row[key] = value(step) if callable(value) else value
        rows.append({name: value for name, value in row.items() if value is not None})
    return rows


KTO = [{}, {"algorithm": "kto"}, {"algorithm": "kto", "framework": "trl_kto"}]


# The KTO guide.


@pytest.mark.parametrize("facts", KTO)
def test_the_guides_healthy_example_is_quiet(facts):
    assert findings_of("kto_guide", printed(HEALTHY), **facts) == []


@pytest.mark.parametrize("facts", KTO)
def test_the_guides_problematic_example_gets_its_banner(facts):
    found = findings_of("kto_guide", printed(PROBLEMATIC), **facts)
    assert [finding.step for finding in found if finding.severity != "info"] == [25, 25, 25]
    banner = found[[finding.step for finding in found].index(25)]
    assert banner.title == "Very negative margin: -0.432 (chosen model may be worse than reference)"
    assert banner.advice[0] == "reducing learning rate or reverting to last checkpoint"
    assert (banner.severity, banner.kind, banner.action) == ("critical", "margin_inversion", "revert")
    assert {finding.rule for finding in found if finding.severity != "info"} == {
        "kto_margin_negative", "kto_margin_backwards", "kto_loss_increasing",
    }  # fmt: skip


def test_the_columns_of_the_guides_table_are_understood_as_printed():
    columns = dict(zip(NAMES, ("Loss", "Chosen", "Reject", "Margin"), strict=True))
    rows = [{columns.get(name, name): value for name, value in row.items()} for row in printed(PROBLEMATIC)]
    titles = [finding.title for finding in findings_of("kto_guide", rows)]
    assert "Very negative margin: -0.432 (chosen model may be worse than reference)" in titles


def test_the_default_rules_are_quiet_on_the_healthy_example_too():
    monitor = Monitor(algorithm="kto")
    assert [finding for row in printed(HEALTHY) for finding in monitor.update(row)] == []


def test_a_run_on_the_guides_targets_is_quiet():
    found = rules_of("kto_guide", kto_rows(), total_steps=145)
    assert {rule: raised for rule, raised in found.items() if not rule.startswith("kto_stage")} == {}


SIGNS = {
    "margin negative after 20 steps": (
        {"margin": lambda step: -0.05 if step > 10 else 0.02}, "kto_margin_negative", ("critical", 21, "revert"),
    ),
    "margin very negative in the first steps": (
        {"margin": lambda step: -0.3}, "kto_margin_negative", ("critical", 21, "revert"),
    ),
    "margin very negative in the first steps alone": (
        {"margin": lambda step: -0.3 if step < 10 else 0.1 + 0.01 * step},
        "kto_margin_negative", ("warning", 2, "warn"),
    ),
    "margin negative and decreasing": (
        {"margin": lambda step: 0.05 - 0.02 * step}, "kto_margin_backwards", ("critical", 8, "stop"),
    ),
    "margin stuck at 0": (
        {"margin": lambda step: 0.01 + 0.03 * (step % 2)}, "kto_margin_stuck", ("warning", 55, "warn"),
    ),
    "margin above 5": ({"margin": 5.5}, "kto_margin_very_large", ("warning", 2, "checkpoint")),
    "margin flat": (
        {"margin": lambda step: 0.3 - 0.001 * step}, "kto_margin_not_increasing", ("info", 20, "none"),
    ),
    "loss up 10 times in a row": (
        {"loss": lambda step: 0.5 + 0.001 * step if step > 20 else 0.7 - 0.01 * step},
        "kto_loss_rises_on", ("critical", 30, "revert"),
    ),
    "loss increasing": ({"loss": lambda step: 0.65 + 0.01 * step}, "kto_loss_increasing", ("warning", 12, "warn")),
    "loss not decreasing after 30": (
        {"loss": lambda step: 0.65 + 0.002 * (step % 2)}, "kto_loss_not_decreasing", ("warning", 32, "warn"),
    ),
    "loss not decreasing after 50": (
        {"loss": lambda step: 0.65 + 0.002 * (step % 2)}, "kto_loss_still_not_decreasing", ("warning", 52, "reduce_lr"),
    ),
    "loss below 0.1 in 10 steps": (
        {"loss": lambda step: 0.65 / step**2}, "kto_loss_too_fast", ("warning", 3, "warn"),
    ),
    "loss NaN": (
        {"loss": lambda step: math.nan if step == 30 else 0.6}, "kto_nonfinite", ("critical", 30, "revert"),
    ),
    "chosen reward infinite": (
        {"chosen": lambda step: math.inf if step == 30 else 0.2}, "kto_nonfinite", ("critical", 30, "revert"),
    ),
    "chosen very negative": ({"chosen": -1.2}, "kto_chosen_very_negative", ("warning", 5, "warn")),
    "rewards near zero": (
        {"chosen": 0.004, "rejected": -0.004}, "kto_rewards_collapsed", ("warning", 55, "warn"),
    ),
    "the only reward near zero": (
        {"chosen": None, "rejected": -0.004}, "kto_rewards_collapsed", ("warning", 55, "warn"),
    ),
    "rejected above chosen": (
        {"rejected": 0.9, "chosen": 0.1, "margin": None}, "kto_inverted", ("critical", 21, "stop"),
    ),
    "grad norm above 100": (
        {"grad_norm": lambda step: 120.0 if 20 <= step < 25 else 10.0},
        "kto_gradient_high", ("warning", 21, "reduce_lr"),
    ),
    "grad norm above 100 persistently": (
        {"grad_norm": lambda step: 120.0 if step >= 20 else 10.0}, "kto_gradient_high", ("critical", 27, "revert"),
    ),
    "grad norm above 1000": (
        {"grad_norm": lambda step: 2000.0 if step >= 20 else 10.0}, "kto_gradient_exploding", ("critical", 21, "stop"),
    ),
    "grad norm often 50 to 100": (
        {"grad_norm": lambda step: 70.0 if step % 2 else 10.0}, "kto_gradient_often_high", ("warning", 9, "reduce_lr"),
    ),
    "grad norm tiny": ({"grad_norm": 0.005}, "kto_gradient_small", ("warning", 5, "warn")),
    "metrics jumping": (
        {"loss": lambda step: 0.5 + 0.101 * (-1) ** step}, "kto_unstable", ("warning", 16, "reduce_lr"),
    ),
    "warm-up too long": (
        {"learning_rate": lambda step: 1e-8 * step}, "kto_warm_up_too_long", ("warning", 17, "none"),
    ),
    "kl above 1": ({"kl": 1.2}, "kto_kl_very_high", ("warning", 2, "warn")),
    "kl below 0.001": ({"kl": 0.0005}, "kto_kl_very_low", ("warning", 25, "warn")),
}  # fmt: skip


@pytest.mark.parametrize("framework", [None, "trl_kto"])
@pytest.mark.parametrize("sign", SIGNS)
def test_each_warning_sign_of_the_guide_is_found(sign, framework):
    series, rule, expected = SIGNS[sign]
    rows = kto_rows(**series)  # type: ignore[arg-type]
    assert rules_of("kto_guide", rows, algorithm="kto", framework=framework, total_steps=145).get(rule) == expected


def test_every_rule_of_the_guide_is_tested_above_or_a_stage():
    own = set(rulebook.load("kto_guide").rules) - set(rulebook.shipped().rules)
    assert own == {rule for _, rule, _ in SIGNS.values()} | {f"kto_stage_{name}" for name in BANDS}


EDGES = {
    "kto_margin_very_large": ("margin", 5.0, 5.01),
    "kto_gradient_high": ("grad_norm", 100.0, 100.1),
    "kto_gradient_exploding": ("grad_norm", 1000.0, 1000.1),
    "kto_gradient_often_high": ("grad_norm", 49.9, 50.0),
    "kto_gradient_small": ("grad_norm", 0.01, 0.0099),
    "kto_loss_too_fast": ("loss", 0.1, 0.0999),
    "kto_chosen_very_negative": ("chosen", -1.0, -1.001),
    "kto_rewards_collapsed": (("chosen", "rejected"), 0.0201, 0.0199),
    "kto_margin_stuck": ("margin", 0.1001, 0.0999),
    "kto_kl_very_high": ("kl", 1.0, 1.001),
    "kto_kl_very_low": ("kl", 0.00101, 0.00099),
    "kto_loss_increasing": ("loss", lambda step: 0.65 + 0.01 * (step // 2), lambda step: 0.65 + 0.01 * step),
    "kto_loss_not_decreasing": (
        "loss",
        lambda step: 0.65 if step < 4 else 0.6399,
        lambda step: 0.65 if step < 4 else 0.6401,
    ),
    "kto_loss_still_not_decreasing": (
        "loss",
        lambda step: 0.65 if step < 4 else 0.6399,
        lambda step: 0.65 if step < 4 else 0.6401,
    ),
    "kto_unstable": (
        "margin",
        lambda step: 0.7 + 0.499 * (-1) ** step,
        lambda step: 0.7 + 0.501 * (-1) ** step,
    ),
}


@pytest.mark.parametrize("rule", EDGES)
def test_the_guides_numbers_are_exactly_the_edge(rule):
    names, allowed, sign = EDGES[rule]
    names = names if isinstance(names, tuple) else (names,)
    facts = {"algorithm": "kto", "framework": "trl_kto", "total_steps": 145}
    assert rule not in rules_of("kto_guide", kto_rows(**dict.fromkeys(names, allowed)), **facts)
    assert rule in rules_of("kto_guide", kto_rows(**dict.fromkeys(names, sign)), **facts)


@pytest.mark.parametrize(
    ("rule", "name", "allowed"),
    [
        ("kto_gradient_often_high", "grad_norm", 100.1),
        ("kto_unstable", "loss", lambda step: 0.5 + 0.099 * (-1) ** step),
        ("kto_rewards_collapsed", "chosen", 0.004),
        ("kto_rewards_collapsed", "rejected", 0.004),
        ("kto_loss_too_fast", "loss", lambda step: 0.05 if step > 10 else 0.6),
    ],
)
def test_what_lies_on_the_other_side_of_a_band_is_another_matter(rule, name, allowed):
    assert rule not in rules_of("kto_guide", kto_rows(**{name: allowed}), algorithm="kto")


@pytest.mark.parametrize(("margin", "word"), [(-0.249, "Negative margin"), (-0.251, "Very negative margin")])
def test_a_margin_is_very_negative_below_a_quarter(margin, word):
    titles = [finding.title for finding in findings_of("kto_guide", kto_rows(30, margin=margin))]
    assert any(title.startswith(word) for title in titles)


EXCUSED = {
    "rewards near zero that move": {
        "chosen": lambda step: 0.0105 * (-1) ** step,
        "rejected": lambda step: -0.0105 * (-1) ** step,
    },
    "one negative margin": {"margin": lambda step: -0.05 if step == 40 else 0.01 * step},
    "a negative margin in the first 20 steps": {"margin": lambda step: -0.05 if step <= 20 else 0.1 + 0.01 * step},
    "one gradient spike": {"grad_norm": lambda step: 5000.0 if step == 40 else 10.0},
    "one jump of the loss": {"loss": lambda step: 3.0 if step == 40 else 0.66 - 0.0025 * step},
    "one jump of the kl": {"kl": lambda step: 9.0 if step == 40 else 0.1},
    "kl cut off at 0": {"kl": lambda step: 0.0 if step % 3 else 0.0004},
}


@pytest.mark.parametrize("excuse", EXCUSED)
def test_a_single_spike_or_a_normal_start_is_no_sign(excuse):
    found = rules_of("kto_guide", kto_rows(**EXCUSED[excuse]), algorithm="kto", framework="trl_kto", total_steps=145)
    assert {rule: raised for rule, raised in found.items() if raised[0] != "info"} == {}


BANDS = {
    "start": ((1, 10), (0.6, 0.7), (-0.1, 0.1), (-0.5, 0.5), (-0.5, 0.5)),
    "early": ((11, 50), (0.5, 0.6), (0.1, 0.5), (0.0, 0.5), (-0.5, 0.0)),
    "mid": ((51, 100), (0.4, 0.5), (0.5, 1.0), (0.3, 0.8), (-0.5, -0.2)),
    "late": ((101, 145), (0.3, 0.5), (1.0, 2.0), (0.5, 1.0), (-0.8, -0.3)),
}
COLUMNS = ("loss", "rewards/margins", "rewards/chosen", "rewards/rejected")


@pytest.mark.parametrize("stage", BANDS)
@pytest.mark.parametrize("column", range(4))
def test_each_cell_of_the_stage_table_is_a_band(stage, column):
    steps, *bands = BANDS[stage]
    inside = {name: (low + high) / 2 for name, (low, high) in zip(COLUMNS, bands, strict=True)}
    rule, name, (low, high) = f"kto_stage_{stage}", COLUMNS[column], bands[column]
    for step in steps:
        for value, is_out in ((low, False), (high, False), (low - 0.01, True), (high + 0.01, True)):
            found = findings_of("kto_guide", [{"step": step} | inside | {name: value}])
            reported = [finding for finding in found if finding.rule == rule]
            assert bool(reported) == is_out, (step, value)
            if reported:
                assert reported[0].severity == "info"
                assert f"{value:.3g} ({low:g} to {high:g})" in reported[0].title
    for step in (steps[0] - 1, steps[1] + 1):
        found = findings_of("kto_guide", [{"step": step} | inside | {name: low - 0.01}])
        assert rule not in [finding.rule for finding in found]


@pytest.mark.parametrize(
    ("planned", "step", "stage"),
    [
        (None, 10, "Start (steps 1-10)"),
        (145, 11, "Early (steps 11-50)"),
        (290, 20, "Start (steps 1-20)"),
        (290, 21, "Early (steps 21-100)"),
        (60, 60, "Late (steps 42-60)"),
    ],
)
def test_the_stages_are_as_long_as_the_run_plans(planned, step, stage):
    found = findings_of("kto_guide", [{"step": step, "loss": 9.0}], total_steps=planned)
    assert [finding.title.partition(",")[0] for finding in found if finding.rule.startswith("kto_stage")] == [stage]


def test_the_guide_replaces_the_default_rules_of_its_matters_and_no_others():
    book = rulebook.load("kto_guide")
    own = {rule.kind for name, rule in book.rules.items() if name.startswith("kto_") and rule.enabled}
    off = {name for name, rule in book.rules.items() if not rule.enabled}
    assert {book.rules[name].kind for name in off} <= own
    assert {"margin_inversion", "margin_is_noise", "loss_divergence", "gradient_explosion", "nonfinite_core"} <= off
    # No default rule of these kinds is enabled in addition to the guide's own.
    matters = own - {"data", "overfit", "plateau"}
    assert [
        name
        for name, rule in book.rules.items()
        if rule.kind in matters and rule.enabled and name in rulebook.shipped().rules
    ] == []
    assert not off & {"dead_gradient", "stall", "eval_overfit", "class_imbalance", "kto_kl_at_zero", "memory_full"}


def test_no_healthy_run_made_with_trl_gets_a_critical_of_the_guide():
    with (RUNS / "runs.tsv").open(encoding="utf-8", newline="") as lines:
        healthy = [run for run in csv.DictReader(lines, delimiter="\t") if run["verdict"] == "healthy"]
    assert len(healthy) >= 4
    for run in healthy:
        rows = [json.loads(line) for line in (RUNS / run["file"]).read_text(encoding="utf-8").splitlines()]
        found = rules_of("kto_guide", rows, algorithm=run["algorithm"])
        assert {rule for rule, (severity, *_) in found.items() if severity == "critical"} == set(), run["file"]


def test_every_advice_of_the_guide_reads_after_consider():
    for name, rule in rulebook.load("kto_guide").rules.items():
        if name.startswith("kto_") and name not in rulebook.shipped().rules:
            assert not any(text.lower().startswith("consider") for text in rule.words.advice)


def test_the_numbers_of_a_preset_can_be_changed_on_top_of_it():
    rows = kto_rows(margin=lambda step: -0.05 if step > 10 else 0.02)
    late = [{"rule": "kto_margin_negative", "numbers": {"step": 40}}]
    monitor = Monitor(rules=["kto_guide", *late])
    found = [finding for row in rows for finding in monitor.update(row) if finding.rule == "kto_margin_negative"]
    assert [finding.step for finding in found] == [41]


# The RLAIF guide.


def rlaif_rows(replaced: dict[str, object] | None = None, count: int = 12) -> list[dict[str, float]]:
    rows = []
    for epoch in range(1, count + 1):
        row: dict[str, object] = {
            "step": 100 * epoch,
            "Train/AvgReward": 0.5,
            "Train/Loss": 1.0,
            "Epoch/AvgReward": 0.4 + 0.02 * epoch,
            "Epoch/AvgLoss": 1.0 / epoch,
            "Epoch/RewardVariance": 0.005,
            "Epoch/RewardTrend": 0.02,
            "Epoch/LossTrend": 0.05,
            "Performance/Generation_TokensPerSec": 30.0,
            "System/GPU_Utilization": 80.0,
            "System/Memory_Percent": 60.0,
        }
        row |= replaced or {}
        rows.append({name: value(epoch) if callable(value) else value for name, value in row.items()})
    return rows


def test_a_run_as_the_rlaif_guide_wants_it_is_quiet():
    assert rules_of("rlaif_guide", rlaif_rows()) == {}


KEY_METRICS = {
    "reward flat below target": (
        {"Epoch/AvgReward": lambda epoch: min(0.4 + 0.02 * epoch, 0.5)}, "rlaif_reward_not_rising", ("warning", 800),
    ),
    "reward flat above target": (
        {"Epoch/AvgReward": lambda epoch: min(0.4 + 0.1 * epoch, 0.8)}, "rlaif_reward_not_rising", ("info", 700),
    ),
    "loss rising": ({"Epoch/AvgLoss": lambda epoch: 1.0 + 0.1 * epoch}, "rlaif_loss_not_settling", ("warning", 400)),
    "loss coming back": (
        {"Epoch/AvgLoss": lambda epoch: 1.0 / epoch if epoch < 6 else 0.61},
        "rlaif_loss_not_settling", ("warning", 800),
    ),
    "variance 0.01": ({"Epoch/RewardVariance": 0.01}, "rlaif_reward_variance", ("warning", 300)),
    "generation below 1": ({"Performance/Generation_TokensPerSec": 0.9}, "rlaif_generation_slow", ("warning", 300)),
    "gpu at 50": ({"System/GPU_Utilization": 50.0}, "rlaif_gpu_idle", ("warning", 500)),
    "memory above 90": ({"System/Memory_Percent": 91.0}, "rlaif_memory", ("warning", 200)),
    "reward trend negative": ({"Epoch/RewardTrend": -0.01}, "rlaif_reward_trend", ("warning", 300)),
    "loss trend negative": ({"Epoch/LossTrend": -0.01}, "rlaif_loss_trend", ("warning", 300)),
}  # fmt: skip


@pytest.mark.parametrize("sign", KEY_METRICS)
def test_each_key_metric_of_the_rlaif_guide_is_watched(sign):
    series, rule, expected = KEY_METRICS[sign]
    found = rules_of("rlaif_guide", rlaif_rows(series))
    assert {name: (severity, step) for name, (severity, step, _) in found.items()} == {rule: expected}


ALLOWED = {
    "variance just below": {"Epoch/RewardVariance": 0.0099},
    "generation at 1": {"Performance/Generation_TokensPerSec": 1.0},
    "gpu just above": {"System/GPU_Utilization": 50.5},
    "memory at 90": {"System/Memory_Percent": 90.0},
    "a loss that gives back less than half of its fall": {
        "Epoch/AvgLoss": lambda epoch: 1.0 / epoch if epoch < 6 else 0.59
    },
    "a loss that is stable": {"Epoch/AvgLoss": lambda epoch: max(1.0 / epoch, 0.25) + 0.01 * (epoch % 2)},
    "trends near 0": {"Epoch/RewardTrend": lambda epoch: 0.001 * (-1) ** epoch, "Epoch/LossTrend": 0.0},
}


@pytest.mark.parametrize("sign", ALLOWED)
def test_what_the_rlaif_guide_allows_is_quiet(sign):
    assert rules_of("rlaif_guide", rlaif_rows(ALLOWED[sign])) == {}


def test_every_rule_of_the_rlaif_guide_is_tested_above():
    own = set(rulebook.load("rlaif_guide").rules) - set(rulebook.shipped().rules)
    assert own == {rule for _, rule, _ in KEY_METRICS.values()}


# Early stopping.


def epochs(rewards: list[float], losses: list[float] | None = None) -> list[dict[str, float]]:
    losses = losses or [1.0 / (epoch + 1) for epoch in range(len(rewards))]
    return [
        {"step": epoch, "epoch": epoch, "loss": loss, "reward": reward, "kl_divergence": 0.05, "entropy": 2.0}
        for epoch, (reward, loss) in enumerate(zip(rewards, losses, strict=True), 1)
    ]


RISING = [0.1 * epoch for epoch in range(1, 21)]


def test_a_reward_that_rises_and_a_loss_that_falls_go_on():
    assert rules_of("early_stopping", epochs(RISING)) == {}


@pytest.mark.parametrize("after", [[0.4] * 8, [0.39, 0.4, 0.38, 0.4, 0.37, 0.39], [0.3, 0.2, 0.1, 0.0, -0.1, -0.2]])
def test_five_epochs_without_a_better_reward_advise_to_stop(after):
    found = findings_of("early_stopping", epochs([0.1, 0.2, 0.3, 0.4, *after]))
    stops = [finding for finding in found if finding.rule == "early_stop_reward"]
    assert [(finding.step, finding.severity, finding.kind, finding.action) for finding in stops] == [
        (9, "warning", "plateau", "stop")
    ]
    assert "best 0.4" in stops[0].title


def test_four_epochs_without_a_better_reward_are_none():
    assert rules_of("early_stopping", epochs([0.1, 0.2, 0.3, 0.3, 0.2, 0.3, 0.3, 0.31, 0.3, 0.3, 0.3, 0.3, 0.32])) == {}


def test_the_patience_can_be_changed():
    rows = epochs([0.1, 0.2, 0.3, 0.4, *[0.4] * 12])
    monitor = Monitor(rules=["early_stopping", {"rule": "early_stop_reward", "hold": "8 of 8"}])
    found = [finding for row in rows for finding in monitor.update(row) if finding.rule == "early_stop_reward"]
    assert [finding.step for finding in found] == [12]


def test_a_loss_that_stays_is_too_low_a_learning_rate_and_one_that_rises_too_high():
    flat = findings_of("early_stopping", epochs(RISING[:10], [1.0, 0.9, 0.8, *[0.81] * 7]))
    assert [(finding.rule, finding.kind, finding.step) for finding in flat] == [("early_stop_loss", "lr_too_low", 8)]
    up = findings_of("early_stopping", epochs(RISING[:10], [1.0 + 0.1 * epoch for epoch in range(10)]))
    own = [finding for finding in up if finding.rule == "early_stop_loss"]
    assert [(finding.kind, finding.step) for finding in own] == [("lr_too_high", 6)]


def test_rows_of_single_steps_are_no_epochs():
    rows = [
        {"step": step, "epoch": step / 50, "loss": 0.5 + 0.01 * (step % 2), "reward": 0.3 + 0.01 * (step % 3)}
        for step in range(1, 60)
    ]
    assert rules_of("early_stopping", rows) == {}


def test_without_an_epoch_column_it_says_what_is_missing():
    monitor = Monitor(rules="early_stopping")
    monitor.update({"step": 1, "loss": 0.5, "reward": 0.1})
    assert ("early_stop_reward", ("epoch",)) in [(gap.rule, gap.metrics) for gap in monitor.cannot_judge]


# All presets.


@pytest.mark.parametrize("preset", rulebook.presets())
def test_every_rule_of_a_preset_has_words_and_a_source(preset):
    for name, rule in rulebook.load(preset).rules.items():
        if name not in rulebook.shipped().rules:
            assert rule.words.title, name
            assert rule.sources, name
            assert not any(re.match(r"(or|and)\b", text) for text in (*rule.words.causes, *rule.words.advice)), name
