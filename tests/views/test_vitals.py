"""The overview of a run, compared with what was logged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import rlvitals
from rlvitals.health.history import verdict_of
from rlvitals.records import Finding
from rlvitals.views.changes import change
from rlvitals.views.diagnosis import Diagnosis, diagnose
from rlvitals.views.headlines import Headlines
from rlvitals.views.run import open_run
from rlvitals.views.vitals import now, step_bar, time_left, vitals

QUIET = {"monitor": False, "hardware": False, "display": "none"}


def write_run(path, rows, metrics, **options):
    with rlvitals.start(path, **QUIET | options) as run:
        for step in range(1, rows + 1):
            run.log({name: value(step) if callable(value) else value for name, value in metrics.items()}, step=step)
    return open_run(path)


def finding(severity, onset, step, metric="kl", rule="r"):
    return Finding(
        rule=rule,
        kind="kl_explosion",
        severity=severity,
        step=step,
        onset_step=onset,
        title="too much",
        metrics=(metric,),
    )


GRPO = {
    "reward": 0.5, "frac_reward_zero_std": 0.1, "kl": 0.01, "entropy": 0.4, "completions/mean_length": 200.0,
    "completions/clipped_ratio": 0.0, "grad_norm": 1.0, "learning_rate": 1e-6, "loss": 0.1,
}  # fmt: skip
KTO = {
    "rewards/margins": 0.1, "loss": 0.5, "rewards/chosen": 0.1, "rewards/rejected": 0.0, "logps/chosen": -10.0,
    "kl": 0.1, "grad_norm": 1.0, "learning_rate": 1e-6,
}  # fmt: skip


def test_the_tiles_are_the_algorithm_s_own_in_its_order(tmp_path):
    names = write_run(tmp_path / "grpo", 3, GRPO, algorithm="grpo").vital_signs
    assert names[:3] == ["reward", "loss", "frac_reward_zero_std"]
    assert 8 <= len(names) <= 12
    assert write_run(tmp_path / "kto", 3, KTO, algorithm="kto").vital_signs[0] == "rewards/margins"


def test_names_nobody_knows_still_make_tiles(tmp_path):
    view = write_run(tmp_path / "run", 2, {f"zq{place}": 1.0 for place in range(20)})
    assert view.vital_signs == [f"zq{place}" for place in range(8)]


def test_a_tile_tells_the_last_value_its_band_and_the_whole_curve(tmp_path):
    view = write_run(tmp_path / "run", 400, GRPO | {"kl": lambda step: 0.001 * step}, algorithm="grpo")
    tile = next(tile for tile in vitals(view, Diagnosis("healthy", "", []))["tiles"] if tile["name"] == "kl")
    assert tile["value"] == pytest.approx(0.4)
    assert tile["points"] == 400
    assert len(tile["spark"]) <= 60
    change = tile["change"]
    assert (change["start"], change["now"]) == (pytest.approx(0.0205), pytest.approx(0.3805))  # steps 1-40 and 361-400
    assert (change["lately"], change["lately_steps"]) == (pytest.approx(0.04), 80)
    assert change["told"] == "▲ 0.0205 → 0.3805 since step 1; +0.04 over the last 80 steps"


def tile_of(view, name, *findings):
    answer = vitals(view, Diagnosis("act", "", list(findings)))
    return next(tile for tile in answer["tiles"] if tile["name"] == name)


def test_the_worst_standing_finding_colours_a_tile(tmp_path):
    view = write_run(tmp_path / "run", 20, GRPO, algorithm="grpo")
    warned, critical = finding("warning", 5, 6, rule="a"), finding("critical", 7, 8, rule="b")
    over = [replace(found, recovered_step=15) for found in (warned, critical)]
    for findings, status, since in (
        ([warned], "watch", 5),
        ([warned, critical], "act", 7),
        ([warned, over[1]], "watch", 5),
        (over, "ok", None),
        ([finding("info", 5, 6)], "ok", None),
    ):
        tile = tile_of(view, "kl", *findings)
        assert (tile["status"], tile["why"]) == (status, "" if since is None else f"too much, since step {since}")
        assert tile_of(view, "reward", *findings)["status"] == "ok"


def test_a_typical_range_is_reported_and_colours_nothing(tmp_path):
    for value in (0.1, 0.99):
        view = write_run(tmp_path / f"run{value}", 20, GRPO | {"frac_reward_zero_std": value}, algorithm="grpo")
        tile = tile_of(view, "frac_reward_zero_std")
        assert (tile["band"], tile["status"]) == ((None, 0.3), "ok")


def test_the_reference_point_of_kto_may_be_zero(tmp_path):
    view = write_run(tmp_path / "run", 60, KTO | {"kl": 0.0}, algorithm="kto", framework="trl")
    diagnosis = diagnose(view)
    assert not any("kl" in found.metrics for found in diagnosis.findings if found.severity != "info")
    tile = next(tile for tile in vitals(view, diagnosis)["tiles"] if tile["name"] == "kl")
    assert (tile["concept"], tile["status"], tile["band"]) == ("kl_ref.kto", "ok", None)


@pytest.mark.parametrize(("parameters", "band"), [(None, None), (120_000, None), (7_000_000_000, (None, 1e-6))])
def test_a_band_made_for_large_models_is_not_shown_for_a_tiny_one(tmp_path, parameters, band):
    view = write_run(
        tmp_path / "run", 20, KTO | {"learning_rate": 3e-4}, algorithm="kto", config={"model_parameters": parameters}
    )
    tile = tile_of(view, "learning_rate")
    assert (tile["status"], tile["band"]) == ("ok", band)


def test_a_tile_shows_the_range_of_the_stage_the_run_is_in(tmp_path):
    for step, band in ((8, (-0.1, 0.1)), (80, (0.5, 1.0)), (145, (0.3, 2.0))):
        view = write_run(tmp_path / f"run{step}", step, KTO, algorithm="kto", total_steps=145)
        assert tile_of(view, "rewards/margins")["band"] == band


def test_the_step_bar_covers_every_step_once_and_marks_what_was_reported(tmp_path):
    view = write_run(tmp_path / "run", 600, {"loss": 1.0})
    findings = [finding("warning", 100, 120), finding("critical", 115, 130), finding("info", 500, 500)]
    bar = step_bar(view, [replace(found, recovered_step=found.step) for found in findings])
    assert [step for cell in bar for step in range(cell["from"], cell["to"] + 1)] == list(range(1, 601))
    marked = {step: cell["severity"] for cell in bar for step in range(cell["from"], cell["to"] + 1)}
    assert (marked[50], marked[101], marked[118], marked[500]) == (None, "warning", "critical", "info")
    assert next(cell for cell in bar if cell["from"] <= 118 <= cell["to"])["findings"] == [1, 0]


def test_a_finding_covers_the_steps_until_it_recovered(tmp_path):
    view = write_run(tmp_path / "run", 600, {"loss": 1.0})
    found = finding("critical", 100, 120)
    standing = step_bar(view, [found])
    assert (standing[0]["severity"], standing[-1]["severity"]) == (None, "critical")
    over = step_bar(view, [replace(found, recovered_step=300)])
    covered = [(cell["from"], cell["to"]) for cell in over if cell["severity"] == "critical"]
    assert covered[0][0] <= 100 <= covered[0][1]
    assert covered[-1][0] <= 300 <= covered[-1][1]


def changed(values, direction="none"):
    return change(np.arange(1, len(values) + 1), np.array(values, dtype=float), direction)


def test_a_wobble_is_no_change_and_a_trend_is_one():
    wobble = np.random.default_rng(0).normal(size=200)
    assert changed(wobble)["told"] == "steady since step 1"
    trend = changed(wobble * 0.1 + np.linspace(0, 10, 200))
    assert trend["lately"] == pytest.approx(1.0, abs=0.15)
    assert trend["since_start"] == pytest.approx(9.0, abs=0.15)
    assert changed([3.0, 2.0, 1.0])["told"] == "▼ 3 → 1 since step 1"


def test_what_has_moved_since_the_start_is_not_unchanged_when_it_rests_at_the_end():
    kl = changed([*np.linspace(0.0, 1.87, 20), *[1.87] * 20], "down")
    assert kl["told"] == "▲ 0.1476 → 1.87 since step 1, worse; steady over the last 8 steps"
    length = changed([*[400.0] * 10, *np.linspace(400, 10, 20), *[10.0] * 10])
    assert length["told"] == "▼ 400 → 10 since step 1; steady over the last 8 steps"
    leap = changed([*[0.0] * 30, 5.0])
    assert leap["lately"] == pytest.approx(5 / 3)
    assert changed([1.0, 2.0, 1.0], "up")["told"] == "steady since step 1"


def test_a_run_that_has_ended_is_in_no_phase(tmp_path):
    run = rlvitals.start(tmp_path / "run", **QUIET)
    with run.phase("generate"):
        pass
    run.log({"loss": 1.0}, step=1)
    assert now(open_run(tmp_path / "run"))["phase"] == "generate"
    run.finish()
    assert now(open_run(tmp_path / "run"))["phase"] is None


def test_a_run_of_three_steps_has_three_cells(tmp_path):
    assert [(cell["from"], cell["to"]) for cell in step_bar(write_run(tmp_path / "r", 3, {"a": 1.0}), [])] == [
        (1, 1),
        (2, 2),
        (3, 3),
    ]


def test_a_run_without_rows_has_vitals_too(tmp_path):
    rlvitals.start(tmp_path / "run", **QUIET).finish()
    view = open_run(tmp_path / "run")
    facts = vitals(view, diagnose(view))
    assert (facts["verdict"], facts["tiles"], facts["step_bar"], facts["now"]["step"]) == ("cannot judge", [], [], None)


def test_the_time_left_goes_by_the_pace_of_the_last_rows():
    assert time_left([(10, 100.0), (20, 120.0)], 50) == 60.0
    assert time_left([(10, 100.0)], 50) is None
    assert time_left([(10, 100.0), (10, 120.0)], 50) is None
    assert time_left([(10, 100.0), (60, 120.0)], 50) == 0.0
    assert time_left([(10, 100.0), (20, 120.0)], None) is None


def test_a_finished_run_has_no_time_left(tmp_path):
    view = write_run(tmp_path / "run", 20, {"loss": 1.0}, total_steps=100)
    facts = now(view)
    assert (facts["eta_s"], facts["total_steps"], facts["step"]) == (None, 100, 20)


def test_now_names_the_phase_that_ended_last_and_the_speed(tmp_path):
    with rlvitals.start(tmp_path / "run", **QUIET) as run:
        for step in (1, 2):
            with run.phase("generate"):
                pass
            with run.phase("train_step"):
                pass
            run.count(tokens=1000)
            run.log({"loss": 1.0}, step=step)
        view = open_run(tmp_path / "run")
        facts = now(view)
    assert facts["phase"] == "train_step"
    assert facts["tokens_per_s"] == view.series("system/tps").values[-1]


def test_a_change_is_between_the_last_two_tenths():
    values = np.concatenate([np.zeros(80), np.full(10, 2.0), np.full(10, 5.0)])
    assert (changed(values)["lately"], changed(values)["since_start"]) == (3.0, 5.0)
    assert changed([1.0, np.nan, 3.0])["since_start"] == 2.0
    assert changed([1.0, 3.0])["lately"] is None
    assert changed([]) is None
    assert changed([np.nan, 1.0]) is None


def test_recorded_findings_amount_to_the_verdict_of_check():
    assert verdict_of([finding("info", 1, 1)], 100) == ("healthy", "nothing to act on")
    assert [verdict_of([], rows)[0] for rows in (3, 7, 8)] == ["cannot judge", "cannot judge", "healthy"]
    verdict, reason = verdict_of([finding("warning", 10, 12), finding("critical", 30, 33, rule="s")], 100)
    assert (verdict, reason) == ("act", "1 critical finding, 1 warning; first: kl explosion, since step 30")


def test_a_log_nobody_watched_is_judged_unless_it_is_very_long(tmp_path, monkeypatch):
    view = write_run(tmp_path / "run", 200, GRPO | {"kl": lambda step: 0.01 * 1.1 ** max(0, step - 100)})
    assert diagnose(view).verdict == rlvitals.check(tmp_path / "run").verdict == "act"
    monkeypatch.setattr("rlvitals.views.diagnosis.MOST_CELLS", 100)
    diagnosis = diagnose(view)
    assert diagnosis.verdict == "cannot judge"
    assert "200 rows of 9 metrics" in diagnosis.reason


def test_a_headline_counts_only_what_was_added_and_notices_a_new_log(tmp_path):
    lines = Headlines()
    run = rlvitals.start(tmp_path / "run", **QUIET)
    for step in range(1, 30):
        run.log({"loss": 1.0, "reward": 0.5}, step=step)
        line = lines.of(tmp_path / "run")
        assert (line["rows"], line["last_step"], line["metrics"]) == (step, step, 2)
    run.finish()
    assert lines.of(tmp_path / "run")["status"] == "finished"
    rlvitals.start(tmp_path / "run", overwrite=True, **QUIET).finish()
    assert lines.of(tmp_path / "run")["rows"] == 0


def test_rows_are_counted_the_same_from_the_index_and_from_the_log(tmp_path):
    view = write_run(tmp_path / "run", 700, {"loss": 1.0})
    assert len(view.series("loss").values) == 700
    (index,) = (tmp_path / "run" / "index").glob("*.columns")  # reading has written one
    with (tmp_path / "run" / "logs" / "training_metrics.jsonl").open("a") as log:
        log.write('{"step": 701, "attempt": 1, "loss": 2.0}\n')
    assert Headlines().of(tmp_path / "run")["rows"] == 701
    index.write_bytes(index.read_bytes()[:-1])
    assert Headlines().of(tmp_path / "run")["rows"] == 701


def test_the_headline_leaves_out_what_an_abandoned_attempt_raised(tmp_path):
    options = {"hardware": False, "display": "none", "rules": ["zq > 5: critical"]}
    with rlvitals.start(tmp_path / "run", **options) as run:
        for step in range(1, 40):
            run.log({"zq": 9.0 if step > 20 else 1.0}, step=step)
    assert Headlines().of(tmp_path / "run")["verdict"] == "act"
    with rlvitals.start(tmp_path / "run", resume=10, **options) as run:
        for step in range(11, 40):
            run.log({"zq": 1.0}, step=step)
    assert Headlines().of(tmp_path / "run")["verdict"] == "healthy"
