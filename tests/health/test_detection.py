"""What the rules find, on labelled real logs and on generated runs with seeds that were not used for tuning."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable

import pytest

from corpus import LabelledRun, failing_runs, healthy_runs
from rlvitals.health.monitor import Monitor
from rlvitals.importers import read_log
from rlvitals.records import Finding

UNSEEN_SEEDS = (9002,)

SLOW = {"not_learning", "plateau"}
"""Kinds that can only be reported after a long time."""

NAMES_THE_CAUSE = {
    "verl_agent_instant_collapse.log": {"tool_abandonment", "length_collapse", "kl_explosion", "entropy_collapse"},
    "verl_agent_collapse_step30.log": {"tool_abandonment", "reward_collapse", "kl_explosion"},
    "verl_agent_len_turncollapse.log": {"tool_abandonment", "length_explosion", "truncation"},
    "verl_agent_turncollapse_30.log": {"tool_abandonment"},
    "grpo_aaipl_zerostd_500.json": {"zero_variance", "reward_collapse", "truncation"},
    "grpo_chaos_saturated_100.log": {"truncation", "zero_variance", "plateau"},
    "grpo_nan_grad_46.log": {"nonfinite"},
    "grpo_floor_reward_200.json": {"reward_floor", "truncation", "zero_variance"},
    "ppo_trl_v1_floor_100.json": {"reward_floor"},
    "rl_hack_compilable_1b_easy.jsonl": {"reward_hacking"},
    "rl_hack_compilable_1b_hard.jsonl": {"reward_hacking"},
    "rl_hack_compilable_3b_easy_g.jsonl": {"reward_hacking"},
    "rl_hack_llmjudge_hard_long.jsonl": {"reward_hacking"},
    "simpleppo_overfit_100.json": {"ratio_off", "clip_saturation", "kl_negative"},
    "grpo_qwen3_8b_truncated_100.csv": {"truncation", "not_learning"},
    "dpo_symlog_logp_crash_183.csv": {"logprob_crash"},
    "dpo_outproj_nolearn_203.csv": {"preference_signal_lost"},
}


def findings_of(monitor: Monitor, rows: Iterable[dict], ticks: Iterable[float] = ()) -> list[tuple[int, Finding]]:
    """Every finding with the number of its row. Rows are fed one by one, so later rows are unknown."""
    found = []
    number = -1
    for number, row in enumerate(rows):
        found += [(number, finding) for finding in monitor.update(row)]
    for now in ticks:
        found += [(number + 1, finding) for finding in monitor.tick(now)]
    assert monitor.problems == {}
    return found


def deadline(onset: int, points: int, kind: str = "") -> float:
    if kind in SLOW:
        return onset + 0.7 * points
    allowed = onset + max(15, 0.2 * points)
    return max(40, allowed) if onset <= 12 else allowed


def wilson(hits: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    z, share = 1.96, hits / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return middle - half, middle + half


@pytest.fixture(scope="module")
def judged():
    """Every labelled real log with its findings."""
    from conftest import SHARED

    index = SHARED / "logs" / "INDEX.tsv"
    if not index.is_file():
        pytest.skip("needs the labelled logs in ../shared/logs, which are not part of the repository")
    found = []
    with open(index, encoding="utf-8") as file:
        for label in csv.DictReader(file, delimiter="\t"):
            log = read_log(index.parent / label["file"])
            steps = log.config.get("max_steps")
            monitor = Monitor(total_steps=steps if isinstance(steps, int) else None, config=log.config)
            onset = label["onset_step"]
            start = next((n for n, row in enumerate(log.rows) if onset and row["step"] >= float(onset)), 0)
            found.append((label, len(log.rows), start, findings_of(monitor, log.rows)))
    return found


def of_severity(found: list[tuple[int, Finding]], *severities: str) -> list[tuple[int, Finding]]:
    return [(row, finding) for row, finding in found if finding.severity in severities]


@pytest.mark.slow
def test_no_healthy_real_log_gets_a_critical_and_hardly_one_a_warning(judged):
    healthy = [(label, found) for label, _, _, found in judged if label["verdict"] == "healthy"]
    assert len(healthy) == 11
    assert [label["file"] for label, found in healthy if of_severity(found, "critical")] == []
    warned = [label["file"] for label, found in healthy if of_severity(found, "warning")]
    assert len(warned) <= 3, warned  # slow starts, whose warning recovers


@pytest.mark.slow
def test_every_failed_real_log_is_named_and_nearly_all_in_time(judged):
    failed = [(label, points, start, found) for label, points, start, found in judged if label["verdict"] == "fail"]
    assert len(failed) == len(NAMES_THE_CAUSE) == 17
    assert [label["file"] for label, *_, found in failed if not of_severity(found, "warning", "critical")] == []
    critical = [label["file"] for label, *_, found in failed if of_severity(found, "critical")]
    assert len(critical) >= 0.75 * len(failed)
    for starts_late in (True, False):
        group = [case for case in failed if (case[2] > 12) == starts_late]
        in_time = [
            label["file"]
            for label, points, start, found in group
            if any(row <= deadline(start, points) for row, _ in of_severity(found, "critical"))
        ]
        assert len(in_time) >= 0.7 * len(group), (starts_late, in_time)


@pytest.mark.slow
def test_the_cause_of_a_failed_real_log_is_named_in_time(judged):
    wrong = [
        label["file"]
        for label, points, start, found in judged
        if label["verdict"] == "fail"
        and not any(
            finding.kind in NAMES_THE_CAUSE[label["file"]] and row <= deadline(start, points)
            for row, finding in of_severity(found, "warning", "critical")
        )
    ]
    assert wrong == []


def judge(run: LabelledRun) -> list[tuple[int, Finding]]:
    monitor = Monitor(run.algorithm, run.framework, run.total_steps, run.config)
    return findings_of(monitor, run.rows, run.ticks)


def names_it_in_time(run: LabelledRun) -> bool:
    assert run.onset is not None
    last = deadline(run.onset, len(run.rows), run.kind or "")
    return any(
        finding.kind in run.accept and run.onset - 5 <= row <= last
        for row, finding in of_severity(judge(run), "warning", "critical")
    )


@pytest.mark.slow
def test_the_right_kind_is_named_in_time_on_four_of_five_generated_failures():
    runs = [run for seed in UNSEEN_SEEDS for run in failing_runs(seed) if run.accept]
    missed = [run.name for run in runs if not names_it_in_time(run)]
    low, high = wilson(len(runs) - len(missed), len(runs))
    share = 1 - len(missed) / len(runs)
    assert share >= 0.8, f"{share:.0%} (95 % interval {low:.0%} to {high:.0%}) of {len(runs)}; missed: {missed}"


@pytest.mark.slow
def test_nine_of_ten_generated_healthy_runs_stay_quiet_and_none_is_stopped():
    runs = [run for seed in UNSEEN_SEEDS for run in healthy_runs(seed)]
    findings = {run.name: judge(run) for run in runs}
    warned = [name for name, found in findings.items() if of_severity(found, "warning", "critical")]
    low, high = wilson(len(runs) - len(warned), len(runs))
    assert len(warned) <= 0.1 * len(runs), f"quiet: 95 % interval {low:.0%} to {high:.0%}; warned: {warned}"
    stopped = [name for name, found in findings.items() if any(finding.action == "stop" for _, finding in found)]
    assert stopped == []
