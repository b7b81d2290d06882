"""A run against few baselines: what is measured, when it fails, how often it fails by chance, what is refused."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import rlvitals
from rlvitals.errors import ConfigError, NotComparable
from rlvitals.health.course import Course
from rlvitals.store.layout import RunDir
from rlvitals.views.gate import PRIORS, SHARES, GateLimits, gate, judge_measures, open_runs
from rlvitals.views.gate_measures import Levels, MetricCurve, goal_of, mean_error, measure_runs, scatter_of
from rlvitals.views.gate_rules import parse_margin, parse_rule, read_rules
from rlvitals.views.logs import open_any

POINTS = 60


def rows_of(seed, *, lift=1.0, pace=1.0, speed=1.0, memory=40.0, spikes=0, names=None, points=POINTS):
    """A run's rows: a rising reward with autocorrelated noise, a speed, a memory and a gradient norm."""
    rng = np.random.default_rng(seed)
    noise, rows, bent = 0.0, [], rng.normal(0, 0.01)
    keys = {"reward": "reward", "speed": "system/tps", "memory": "mem.gpu.max_allocated", "grad": "grad_norm"}
    keys |= names or {}
    far = rng.choice(np.arange(5, points - 5), spikes, replace=False)
    for at in range(points):
        noise = 0.3 * noise + rng.normal(0, 0.02)
        reward = lift * (0.3 + bent + 0.5 * (1 - math.exp(-4 * pace * at / points)) + noise)
        row = {
            "step": at + 1, keys["reward"]: reward, keys["speed"]: speed * 1000 * math.exp(rng.normal(0, 0.05)),
            keys["memory"]: memory, keys["grad"]: 0.5 * math.exp(rng.normal(0, 0.1)) * (100 if at in far else 1),
        }  # fmt: skip
        rows.append(row)
    return rows


def log(folder, name, rows):
    path = folder / f"{name}.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return open_any(path)


@pytest.fixture
def baselines(tmp_path):
    return [log(tmp_path, f"baseline{seed}", rows_of(seed)) for seed in range(3)]


def by_name(report):
    return {one.name: one for one in report.tests}


def judged(own, others):
    """The tests of a gate by name, without the rules' findings, which take most of its time."""
    return {one.name: one for one in judge_measures(measure_runs([own, *others]).measures, GateLimits())}


def test_every_measure_is_what_it_says(tmp_path, baselines):
    rows = rows_of(7, spikes=2)
    found = {one.name: one for one in measure_runs([log(tmp_path, "own", rows), *baselines]).measures}
    rewards = np.array([row["reward"] for row in rows])
    steps = np.arange(1, POINTS + 1)
    assert found["final"].candidate.value == pytest.approx(rewards[-6:].mean())
    tenths = [part.mean() for part in np.split(rewards, 10)]
    assert found["best"].candidate.value == pytest.approx(max(tenths))
    assert found["area"].candidate.value == pytest.approx(np.trapezoid(rewards, steps) / (POINTS - 1))
    assert found["early"].candidate.value == pytest.approx(rewards[:20].mean())
    speeds = np.array([row["system/tps"] for row in rows])[6:]
    assert found["speed"].candidate.value == pytest.approx(np.median(speeds), rel=0.01)
    assert found["speed_best"].candidate.value == pytest.approx(np.percentile(speeds, 90), rel=0.01)
    assert found["memory"].candidate.value == 40.0
    assert found["spikes"].candidate.value == 2
    running = np.convolve(rewards, np.ones(6) / 6, "valid")
    starts = np.mean([np.mean(view.series("reward").values[:6]) for view in baselines])
    ends = np.mean([np.mean(view.series("reward").values[-6:]) for view in baselines])
    level = starts + 0.8 * (ends - starts)
    assert found["steps_to_level"].candidate.value == np.flatnonzero(running >= level)[0] + 6


def test_noise_is_that_of_the_sampled_means():
    """The error estimated from one run is close to the spread of many runs."""
    rng = np.random.default_rng(5)
    finals, areas, expected_finals, expected_areas = [], [], [], []
    for _ in range(200):
        values = 0.5 + rng.normal(0, 0.1, 120)
        levels = Levels(MetricCurve(np.arange(120), values, 0), "up")
        finals.append(levels.final.value)
        areas.append(levels.area.value)
        expected_finals.append(levels.final.noise)
        expected_areas.append(levels.area.noise)
    # The estimate is conservative, since autocorrelation can never be ruled out.
    assert 0.9 < np.median(expected_finals) / np.std(finals) < 1.7
    assert 0.9 < np.median(expected_areas) / np.std(areas) < 1.7
    assert np.median([scatter_of(rng.normal(0, 0.1, 120)).value for _ in range(100)]) == pytest.approx(0.1, rel=0.1)


def test_noise_with_a_memory_is_larger():
    rng = np.random.default_rng(6)
    shocks = rng.normal(0, 1, 400)
    remembered = np.zeros(400)
    for at in range(1, 400):
        remembered[at] = 0.8 * remembered[at - 1] + 0.6 * shocks[at]
    assert mean_error(remembered) > 1.8 * mean_error(shocks)


def test_a_run_of_the_same_kind_passes(tmp_path, baselines):
    report = gate(log(tmp_path, "own", rows_of(11)), baselines)
    assert report.state == "pass"
    assert report.failed == []
    assert set(by_name(report)) == set(PRIORS) - {"held_out"}
    assert "would be found" in report.reason


@pytest.mark.parametrize(
    ("change", "failing"),
    [({"lift": 0.88}, {"final", "area"}), ({"speed": 0.8}, {"speed", "speed_best"}), ({"memory": 50.0}, {"memory"}),
     ({"spikes": 18}, {"spikes"})],
)  # fmt: skip
def test_what_is_worse_fails_and_is_named(tmp_path, baselines, change, failing):
    report = gate(log(tmp_path, "own", rows_of(12, **change)), baselines)
    assert report.state == "fail"
    assert failing <= {one.name for one in report.failed}
    assert report.reason == f"worse than 3 baselines: {'; '.join(one.title for one in report.failed)}"


@pytest.mark.parametrize("change", [{"lift": 1.3}, {"speed": 1.4}, {"memory": 20.0}, {"pace": 3.0}])
def test_what_is_better_passes(tmp_path, baselines, change):
    assert gate(log(tmp_path, "own", rows_of(13, **change)), baselines).state == "pass"


def test_slower_learning_is_seen_in_the_steps_to_a_level(tmp_path, baselines):
    report = gate(log(tmp_path, "own", rows_of(14, pace=0.25)), baselines)
    found = by_name(report)["steps_to_level"]
    assert found.candidate == POINTS
    assert any("does not reach it" in note for note in found.notes)
    assert {"area", "final"} <= {one.name for one in report.failed}


def test_a_metric_where_less_is_better_is_turned(tmp_path):
    def losses(name, seed, lift):
        rows = [{"step": at, "eval/loss": lift * (2.0 - 0.01 * at) + 0.01 * math.sin(at * seed)} for at in range(60)]
        return log(tmp_path, name, rows)

    baselines = [losses(f"b{seed}", seed, 1.0) for seed in (1, 2, 3)]
    worse, better = losses("worse", 4, 1.15), losses("better", 5, 0.85)
    assert by_name(gate(worse, baselines, metric="eval/loss"))["final"].state == "fail"
    report = gate(better, baselines, metric="eval/loss")
    assert report.state == "pass"
    assert by_name(report)["final"].change == pytest.approx(-0.15, abs=0.02)


def test_a_tiny_but_sure_difference_passes(tmp_path):
    """Runs without noise that differ by 1 %: the difference is certain, but below the margin."""

    def line(name, lift):
        return log(tmp_path, name, [{"step": at, "reward": lift * (0.5 + 0.004 * at)} for at in range(100)])

    baselines = [line(f"b{at}", 1.0 + 0.0001 * at) for at in range(3)]
    report = gate(line("own", 0.99), baselines, GateLimits())
    assert report.state == "pass"
    tight = GateLimits(margins=dict.fromkeys(("final", "best", "area", "early"), 0.001))
    assert gate(line("own", 0.97), baselines, tight).state == "fail"


def test_a_harmless_change_fails_seldom(tmp_path):
    """200 gates over runs of one kind fail no more often than a 5 % test may by chance."""
    runs = [log(tmp_path, f"r{seed}", rows_of(seed, points=40)) for seed in range(100, 160)]
    rng = np.random.default_rng(0)
    failed = 0
    for _ in range(200):
        own, *others = (runs[place] for place in rng.choice(len(runs), 4, replace=False))
        failed += any(one.state == "fail" for one in judged(own, others).values())
    assert failed <= 18  # a 5 % test exceeds this with a probability of 1 %


def test_the_chance_of_a_false_failure_is_shared_out(tmp_path, baselines):
    report = gate(log(tmp_path, "own", rows_of(15)), baselines)
    alphas = {one.group: one.alpha for one in report.tests}
    assert sum(alphas.values()) == pytest.approx(0.05 * sum(SHARES.values()))
    few = [log(tmp_path, f"f{seed}", [{"step": at, "reward": 0.1 * seed} for at in range(20)]) for seed in (1, 2)]
    alone = {one.group: one.alpha for one in gate(few[0], few[1:]).tests}
    assert sum(alone.values()) == pytest.approx(sum(alphas.values()))


def test_more_baselines_find_smaller_differences(tmp_path):
    own = log(tmp_path, "own", rows_of(16))
    many = [log(tmp_path, f"m{seed}", rows_of(seed)) for seed in range(40, 50)]
    found = [by_name(gate(own, many[:count]))["area"].detectable for count in (1, 3, 10)]
    assert found[0] > found[1] > found[2]
    assert "Use 3 or more" in " ".join(gate(own, many[:1]).notes)


def test_found_from_is_found_nine_times_in_ten(tmp_path):
    """A run lowered by exactly the reported detectable difference fails about that often."""
    hits, tries = 0, 60
    runs = [log(tmp_path, f"r{seed}", rows_of(seed)) for seed in range(200, 206)]
    for seed in range(tries):
        rng = np.random.default_rng(seed)
        others = [runs[place] for place in rng.choice(len(runs), 3, replace=False)]
        fall = judged(runs[0], others)["area"].detectable
        lowered = log(tmp_path, "own", rows_of(300 + seed, lift=1 - fall))
        hits += any(one.group == "outcome" and one.state == "fail" for one in judged(lowered, others).values())
    assert hits >= 0.85 * tries


def test_a_new_critical_finding_fails_and_a_known_one_does_not(tmp_path):
    def collapse(seed):
        rows = rows_of(seed, points=120)
        for row in rows[70:]:
            row["reward"] = 0.02
        return rows

    healthy = [log(tmp_path, f"h{seed}", rows_of(seed, points=120)) for seed in (1, 2)]
    broken = log(tmp_path, "broken", collapse(3))
    report = gate(broken, healthy)
    check = next(one for one in report.checks if one.name == "findings")
    assert check.state == "fail"
    assert report.reason.startswith("worse than 2 baselines: ")
    assert report.reason.endswith(" | failed checks: No new critical finding")
    again = gate(log(tmp_path, "again", collapse(4)), [broken])
    assert next(one for one in again.checks if one.name == "findings").state == "pass"


def test_runs_of_unlike_length_are_compared_over_common_steps(tmp_path, baselines):
    report = gate(log(tmp_path, "own", rows_of(17)[:30]), baselines)
    assert report.horizon == 30
    assert sum("compared up to step 30" in note for note in report.notes) == 3
    mean = np.mean([np.mean(view.series("reward").values[:10]) for view in baselines])
    assert by_name(report)["early"].mean == pytest.approx(mean)


def test_a_recorded_run_uses_the_memory_of_its_samples_up_to_the_last_common_step(tmp_path):
    def record(name, seed, memory):
        with rlvitals.start(tmp_path / name, monitor=False, hardware=False, display="none") as run:
            for row in rows_of(seed, names={"memory": "mine"}, points=40 + 20 * (seed == 7)):
                run.log({key: value for key, value in row.items() if key != "step"}, step=row["step"])
        samples = [(5, memory), (30, memory / 2), (35, math.nan), (50, 90.0)]
        lines = [{"step": step, "timestamp": 1.0, "attempt": 1, "sys.gpu_memory_used": used} for step, used in samples]
        RunDir(tmp_path / name).log("system").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return rlvitals.open_run(tmp_path / name)

    found = judged(record("own", 7, 60.0), [record(f"baseline{seed}", seed, 40.0) for seed in range(3)])["memory"]
    assert (found.candidate, found.mean, found.state) == (60.0, 40.0, "fail")


def waiting(folder, name, seed, waited, *, speed=1.0, memory="mem.process.rss"):
    """A run that waited for a processor for this share of its time and was slower by that much."""
    rows = rows_of(seed, speed=speed * (1 - waited), names={"memory": memory})
    return log(folder, name, [row | {"system/cpu_wait": waited} for row in rows])


def test_a_busy_machine_is_no_slower_program(tmp_path):
    baselines = [waiting(tmp_path, f"on-time{seed}", seed, waited) for seed, waited in enumerate((0.0, 0.3, 0.1))]
    report = gate(waiting(tmp_path, "busy", 8, 0.45), baselines)
    busy = by_name(report)["speed"]
    assert busy.state == "pass"
    assert busy.candidate == pytest.approx(1000, rel=0.03)
    assert busy.limit < 0.12  # waiting baselines do not widen it
    assert any("waited for a processor in 45% of its time, the baselines in 13%" in note for note in report.notes)
    slower = judged(waiting(tmp_path, "slower", 8, 0.0, speed=0.82), baselines)["speed"]
    assert slower.state == "fail"
    assert slower.change == pytest.approx(-0.18, abs=0.03)


def test_a_gpu_works_while_its_thread_waits_so_its_speed_is_that_of_the_clock(tmp_path):
    gpu = {"memory": "mem.gpu.max_allocated"}
    baselines = [waiting(tmp_path, f"on-gpu{seed}", seed, 0.0, **gpu) for seed in range(3)]
    report = gate(waiting(tmp_path, "slow", 8, 0.45, **gpu), baselines)
    assert by_name(report)["speed"].state == "fail"
    assert not any("processor" in note for note in report.notes)


def test_waiting_that_not_every_run_logs_corrects_none(tmp_path, baselines):
    report = gate(waiting(tmp_path, "busy", 8, 0.45), baselines)
    assert by_name(report)["speed"].state == "fail"
    assert not any("processor" in note for note in report.notes)


def test_a_speed_that_falls_in_all_runs_alike_is_no_noise(tmp_path):
    def falling(name, seed, speed=1.0):
        rows = rows_of(seed, speed=speed)
        for at, row in enumerate(rows):
            row["system/tps"] *= math.exp(-2.0 * at / POINTS)
        return log(tmp_path, name, rows)

    baselines = [falling(f"longer{seed}", seed) for seed in range(3)]
    assert judged(falling("alike", 8), baselines)["speed"].state == "pass"
    assert judged(falling("slower", 8, speed=0.82), baselines)["speed"].state == "fail"


def test_without_a_logged_speed_the_times_of_the_rows_tell_it(tmp_path):
    def clocked(name, seconds):
        rng, now, rows = np.random.default_rng(len(name)), 1.7e9, []
        for at in range(40):
            now += seconds * math.exp(rng.normal(0, 0.03))
            rows.append({"step": at + 1, "timestamp": now, "reward": 0.5 + 0.01 * math.sin(at)})
        return log(tmp_path, name, rows)

    baselines = [clocked("b", 2.0), clocked("bb", 2.0), clocked("bbb", 2.0)]
    found = by_name(gate(clocked("own-one", 2.5), baselines))["speed"]
    assert (found.unit, found.state) == ("steps/s", "fail")
    assert found.change == pytest.approx(-0.2, abs=0.02)
    report = gate(clocked("own-too-fast", 0.001), [clocked("b", 0.001)])
    assert "speed" in report.missing


@pytest.mark.parametrize(("every", "is_measured"), [(10, True), (30, False)])
def test_a_held_out_score_takes_a_few_evaluations(tmp_path, every, is_measured):
    def evaluated(name, seed, score):
        rng, rows = np.random.default_rng(seed), rows_of(seed)
        for row in rows[every - 1 :: every]:
            row["eval/accuracy"] = score + rng.normal(0, 0.005)
        return log(tmp_path, name, rows)

    baselines = [evaluated(f"e{seed}", seed, 0.7) for seed in (1, 2, 3)]
    report = gate(evaluated("own", 4, 0.5), baselines)
    if is_measured:
        assert by_name(report)["held_out"].state == "fail"
    else:
        assert "fewer than 4 evaluations" in report.missing["held-out score"]


def test_other_names_of_the_same_quantity_are_paired(tmp_path, baselines):
    verl = {"reward": "critic/score/mean", "grad": "actor/grad_norm", "speed": "perf/throughput"}
    report = gate(log(tmp_path, "own", rows_of(18, names=verl)), baselines)
    assert report.goal["metric"] == "critic/score/mean"
    assert report.state == "pass"


def test_what_does_not_compare_is_refused(tmp_path, baselines):
    pairs = [{"step": at, "rewards/margins": 0.01 * at, "rewards/chosen": 0.1, "kl": 0.1} for at in range(30)]
    margins = log(tmp_path, "margins", pairs)
    with pytest.raises(NotComparable, match=r"'reward', which .*margins.* does not log.*--metric"):
        gate(baselines[0], [margins])
    nothing = log(tmp_path, "nothing", [{"step": at, "mine": 1.0 * at} for at in range(30)])
    with pytest.raises(NotComparable, match="logs no metric that says how well it does"):
        gate(nothing, baselines)
    short = log(tmp_path, "short", rows_of(19)[:2])
    with pytest.raises(NotComparable, match="has 2 values"):
        gate(short, baselines)
    with pytest.raises(NotComparable, match="no baseline"):
        gate(baselines[0], [])


def test_a_metric_without_a_direction_must_be_given_one(tmp_path):
    runs = [log(tmp_path, f"r{seed}", [{"step": at, "mine": at + seed} for at in range(30)]) for seed in (0, 1)]
    with pytest.raises(ConfigError, match="--direction"):
        gate(runs[0], runs[1:], metric="mine")
    assert goal_of(runs, "mine", "down").direction == "down"


def test_values_that_are_no_numbers_are_left_out_and_reported(tmp_path, baselines):
    rows = rows_of(20)
    rows[30]["reward"] = math.nan
    path = tmp_path / "own.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    report = gate(open_any(path), baselines)
    assert "the candidate: 1 values of the goal are not finite and are left out" in report.notes


def test_a_folder_of_baselines_is_opened_without_the_candidate(tmp_path):
    for seed in range(4):
        log(tmp_path, f"r{seed}", rows_of(seed))
    own, others = open_runs(tmp_path / "r0.jsonl", [str(tmp_path)])
    assert own.path.name == "r0.jsonl"
    assert [view.path.name for view in others] == ["r1.jsonl", "r2.jsonl", "r3.jsonl"]
    with pytest.raises(ConfigError, match="no baseline besides the candidate"):
        open_runs(tmp_path / "r0.jsonl", [str(tmp_path / "r0.jsonl")])


# Limits


@pytest.mark.parametrize(
    ("text", "state"),
    [("reward>=0.7", "pass"), ("reward>=0.9", "fail"), ("reward > -5%", "pass"), ("memory<=39", "fail"),
     ("grad_norm.max<1", "pass"), ("grad_norm.median < 0.1", "fail"), ("speed<+20%", "pass"), ("best>=5e-1", "pass"),
     ("reward.total.mean.min > 0", "pass"), ("steps_to_level<=10", "fail"), ("goal.min > 0", "pass")],
)  # fmt: skip
def test_a_limit_is_kept_or_not(tmp_path, baselines, text, state):
    report = gate(log(tmp_path, "own", rows_of(21)), baselines, GateLimits(rules=[parse_rule(text)], tested=False))
    assert [one.state for one in report.rules] == [state]
    assert report.state == state
    assert report.tests == []


def test_a_change_is_beside_the_mean_of_the_baselines(tmp_path):
    runs = [log(tmp_path, f"r{at}", [{"step": n, "reward": value} for n in range(30)]) for at, value in
            enumerate((0.9, 1.0, 1.2))]  # fmt: skip
    report = gate(runs[0], runs[1:], GateLimits(rules=[parse_rule("reward>-10%")]))
    assert report.rules[0].value == pytest.approx(0.9 / 1.1 - 1)


@pytest.mark.parametrize(
    "text", ["", "reward", "reward=0.8", "reward>", ">0.8", "reward>x", "reward>=1%%", "reward>nan"]
)
def test_a_limit_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="write NAME OP NUMBER"):
        parse_rule(text)


def test_a_limit_on_what_is_not_logged_is_an_error(tmp_path, baselines):
    with pytest.raises(NotComparable, match="--rule 'entropy>1'"):
        gate(baselines[0], baselines[1:], GateLimits(rules=[parse_rule("entropy>1")]))


def test_limits_from_a_file(tmp_path):
    file = tmp_path / "gate.yaml"
    file.write_text("rules: ['reward>=0.8', 'speed>-10%']\nmargins: {speed: 8%, spikes: 5}\nalpha: 0.01\n")
    read = read_rules(file)
    assert [rule.text for rule in read.rules] == ["reward>=0.8", "speed>-10%"]
    assert read.margins == {"speed": 0.08, "spikes": 5.0}
    assert read.alpha == 0.01
    file.write_text("- reward>=0.8\n")
    assert read_rules(file).rules == [parse_rule("reward>=0.8")]


@pytest.mark.parametrize(
    ("text", "message"),
    [("rule: []", "no setting 'rule'. Did you mean 'rules'"), ("rules: reward", "rules is a list"), ("7", "no list"),
     ("margins: [1]", "margins is a mapping"), ("alpha: much", "alpha is a number"), ("rules: [3]", "rules is a list"),
     ("margins: {speed: fast}", "--margin")],
)  # fmt: skip
def test_a_file_that_is_wrong_is_refused(tmp_path, text, message):
    file = tmp_path / "gate.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_rules(file)


def test_limits_that_contradict_are_refused():
    with pytest.raises(ConfigError, match="no measure 'sped'"):
        GateLimits(margins=dict([parse_margin("sped=5%")]))
    with pytest.raises(ConfigError, match="at least one rule"):
        GateLimits(tested=False)
    with pytest.raises(ConfigError, match="alpha"):
        GateLimits(alpha=1.5)
    with pytest.raises(ConfigError, match="write MEASURE=SHARE"):
        parse_margin("speed")


def test_a_short_course_is_measured_by_quarters():
    levels = Levels(MetricCurve(np.arange(8), np.arange(8.0), 0), "up")
    assert Course().levels == []
    assert levels.final.value == 6.5
    assert levels.levels == [0.5, 2.5, 4.5, 6.5]
