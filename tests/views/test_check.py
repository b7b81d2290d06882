"""The report on a run or a log: the verdict, its evidence, and that it uses no later rows."""

from __future__ import annotations

import gc
import json
import math
import re
import time
import weakref
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlvitals
from judged_logs import dying_rows, healthy_rows, write_jsonl
from rlvitals.codec import to_json
from rlvitals.config import by_last_name, planned_steps
from rlvitals.errors import ConfigError, RlvitalsError, RuleError
from rlvitals.health import rules
from rlvitals.health.history import FEW_ROWS
from rlvitals.health.rows import rows_of_run
from rlvitals.importers import NotALog, read_log
from rlvitals.records import Finding, HealthEvent
from rlvitals.render.check import when
from rlvitals.render.evidence import _FOLLOWING, _PHRASES, evidence
from rlvitals.store.layout import RunDir
from rlvitals.views.check import FolderReport, check, check_source, report_on
from rlvitals.views.evaluations import evaluated_slices, read_trend
from rlvitals.views.feeds import RunFeed
from rlvitals.views.judge import MAX_BUCKETS, Judge, Trace
from rlvitals.views.places import one_place, open_source, places_in
from rlvitals.views.sources import RowSource, new_monitor


def test_a_run_that_learns_is_healthy(tmp_path):
    report = rlvitals.check(write_jsonl(tmp_path / "log.jsonl", healthy_rows()))
    assert (report.verdict, report.findings, report.points) == ("healthy", [], 60)
    assert (report.format, report.first_step, report.last_step) == ("jsonl", 1, 60)


def test_a_dead_gradient_is_to_be_acted_on_with_evidence_and_advice(tmp_path):
    report = check(write_jsonl(tmp_path / "log.jsonl", dying_rows()))
    worst = report.findings[0]
    assert report.verdict == "act"
    assert (worst.kind, worst.severity, worst.onset_step) == ("dead_gradient", "critical", 41)
    assert worst.evidence["metric"] == "grad_norm"
    assert worst.advice
    assert "dead gradient, since step 41" in report.reason
    assert worst.recovered_step is None


def test_an_evaluation_before_and_a_summary_after_the_training_are_no_rows_of_it(tmp_path):
    with rlvitals.start(tmp_path / "run", display="none", hardware=False, framework="trl_kto") as run:
        run.log_eval({"eval_rewards/chosen": 0.0, "eval_rewards/rejected": 0.0}, step=0)
        for step in range(1, 21):
            run.log({"loss": 1 / step}, step=step)
        run.log_eval({"train_runtime": 2.8, "train_loss": 0.1, "total_flos": 0.0, "epoch": 1.0}, step=20, whole={})
    report = check(tmp_path / "run")
    assert (report.rows, report.first_step, report.last_step) == (20, 1, 20)
    assert "eval_loss" not in {taken.signal for taken in report.names}
    trend = read_trend(tmp_path / "run")
    assert [stats["step"] for stats in trend.evaluations] == [0]
    assert evaluated_slices(rlvitals.open_run(tmp_path / "run"), trend.evaluations) == {}  # no two environments


@pytest.mark.parametrize(
    ("recovered", "again", "ending"),
    [
        (None, [], "not recovered"),
        (93, [], "recovered at 93"),
        (93, [(102, None)], "recovered at 93, again at 102, not recovered"),
        (93, [(102, 110)], "recovered at 93, again at 102, recovered at 110"),
        (None, [(60, None)], "again at 60, not recovered"),
    ],
)
def test_when_a_finding_came_back_its_end_is_that_of_the_last_time(recovered, again, ending):
    finding = {"severity": "warning", "onset_step": 41, "step": 57, "recovered_step": recovered}
    others = [{"severity": "warning", "step": step, "recovered_step": end} for step, end in again]
    assert when(finding, others) == f"started at step 41, warning at 57, {ending}"


def test_evidence_is_written_in_words():
    reward = {"metric": "reward", "value": 0.1, "level": 0.2, "base": 0.4, "noise": 0.05, "points": 31.0, "gain": -0.2}
    assert evidence({"evidence": reward, "metrics": ()}) == (
        "reward: moving average 0.2, at the start 0.4, typical noise 0.05, 31 points, gained -0.2"
    )
    texts = {"hits": 3.0, "of_rollouts": 40.0, "gain": 0.5}
    assert evidence({"evidence": texts, "metrics": ()}) == (
        "3 rollouts show it, of 40 that were read, they earn 0.5 more than others of the same prompt"
    )


def test_every_number_that_a_rule_gives_as_evidence_has_words():
    """Except names that need no explanation."""
    source = "".join(path.read_text() for path in Path(rules.__file__).parent.glob("*.py"))
    calls = re.findall(r"\b(?:critical|warning|info|alarm|found)\(([^()]*(?:\([^()]*\)[^()]*)*)\)", source)
    given = {name for call in calls for name in re.findall(r"(\w+)=", call)}
    assert {"level", "share", "depth", "jumps"} <= given
    plain = {
        "accuracy", "chosen", "desirable", "eval_metric", "last", "loser", "lost", "one", "one_now", "outside", "part",
        "phase", "pid", "rejected", "reward", "step", "true_metric", "undesirable", "what", "won",
    }  # fmt: skip
    assert given - _PHRASES.keys() - _FOLLOWING - plain == set()


def test_findings_come_worst_first(tmp_path):
    rules = ["reward > 0.1 for 2: warning", "loss > 0.1 for 20: critical"]
    report = check(write_jsonl(tmp_path / "log.jsonl", healthy_rows()), rules)
    assert [finding.severity for finding in report.findings] == ["critical", "warning"]
    assert report.findings[0].step > report.findings[1].step
    assert report.said_at == [finding.step for finding in report.findings]


def test_a_warning_alone_is_to_be_watched(tmp_path):
    report = check(write_jsonl(tmp_path / "log.jsonl", healthy_rows()), "reward > 0.1 for 5: warning")
    assert report.verdict == "watch"


def test_an_info_is_a_remark_and_no_finding(tmp_path):
    report = check(write_jsonl(tmp_path / "log.jsonl", healthy_rows()), "reward > 0.1 for 5: info")
    assert report.verdict == "healthy"
    assert not report.findings
    assert any(remark.severity == "info" for remark in report.normal)


def test_a_few_rows_cannot_be_judged(tmp_path):
    report = check(write_jsonl(tmp_path / "log.jsonl", healthy_rows(FEW_ROWS - 1)))
    assert report.verdict == "cannot judge"
    assert "7 rows" in report.reason
    assert check(write_jsonl(tmp_path / "log.jsonl", healthy_rows(FEW_ROWS))).verdict == "healthy"


def test_a_few_rows_with_a_nan_loss_are_acted_on_all_the_same(tmp_path):
    rows = healthy_rows(5)
    for row in rows[1:]:
        row["loss"] = math.nan
    assert check(write_jsonl(tmp_path / "log.jsonl", rows)).verdict == "act"


def test_metrics_that_no_rule_reads_cannot_be_judged(tmp_path):
    rows = [{"step": step, "colour_of_the_sky": step * 0.1} for step in range(1, 40)]
    report = check(write_jsonl(tmp_path / "log.jsonl", rows))
    assert report.verdict == "cannot judge"
    assert "none of its metrics" in report.reason


def test_what_is_missing_is_named_as_the_framework_calls_it(tmp_path):
    report = check(write_jsonl(tmp_path / "log.jsonl", healthy_rows()), framework="trl_grpo")
    entropy = next(item for item in report.cannot_judge if item.metric == "entropy")
    assert entropy.names == ("entropy",)
    assert "entropy_collapse" in entropy.kinds
    assert len({item.metric for item in report.cannot_judge}) == len(report.cannot_judge)
    assert len({(item.title, item.names) for item in report.cannot_judge}) == len(report.cannot_judge)
    assert "loss" not in {item.metric for item in report.cannot_judge}


def test_nothing_is_hindsight(tmp_path):
    rows = dying_rows()
    whole = check_source(RowSource(tmp_path, "jsonl", rows))
    for cut in (20, 45, 55):
        part = check_source(RowSource(tmp_path, "jsonl", rows[:cut]))
        assert part.findings == [finding for finding in whole.findings if finding.step <= cut]


def test_a_report_is_strict_json_with_stable_keys(tmp_path):
    rows = dying_rows()
    rows[5]["kl"] = math.nan
    facts = json.loads(to_json(check(write_jsonl(tmp_path / "log.jsonl", rows)).to_dict()))
    assert list(facts) == [
        "source", "format", "verdict", "reason", "points", "rows", "first_step", "last_step", "algorithm", "framework",
        "findings", "normal", "cannot_judge", "notes", "names", "parts", "series", "hindsight",
    ]  # fmt: skip
    assert list(facts["findings"][0]) == [
        "rule", "kind", "severity", "step", "onset_step", "title", "confidence", "evidence", "causes", "advice",
        "action", "metrics", "cause", "slice", "cited", "recovered_step", "row", "more",
    ]  # fmt: skip
    assert list(facts["cannot_judge"][0]) == [
        "metric", "title", "names", "is_in_framework", "kinds", "rules",
    ]  # fmt: skip
    assert list(facts["names"][0]) == ["signal", "name", "concept", "sureness", "why"]
    assert list(facts["series"]["grad_norm"]) == ["points", "nonfinite", "rows", "steps", "low", "high"]


def test_only_series_that_a_finding_is_about_are_kept(tmp_path):
    report = check(write_jsonl(tmp_path / "log.jsonl", dying_rows()))
    assert set(report.series) == {name for finding in report.findings for name in finding.metrics}


def test_a_wrong_rule_is_reported_at_once(tmp_path):
    log = write_jsonl(tmp_path / "log.jsonl", healthy_rows())
    with pytest.raises(RuleError):
        check(log, "kto_gide")
    with pytest.raises(RuleError):
        check(tmp_path, "kto_gide")


def test_an_unknown_framework_gets_a_suggestion(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'verl'"):
        check(write_jsonl(tmp_path / "log.jsonl", healthy_rows()), framework="vrel")


# --- recorded runs


def record(path, rows, evaluations=(), **settings):
    with rlvitals.start(path, **settings) as run:
        for row in rows:
            run.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])
            for evaluation in evaluations:
                if evaluation["step"] == row["step"]:
                    run.log_eval(
                        {name: value for name, value in evaluation.items() if name != "step"}, step=row["step"]
                    )
    return path


def test_a_run_is_judged_as_its_log_would_be(tmp_path):
    run = check(record(tmp_path / "run", dying_rows(), algorithm="grpo", total_steps=70))
    log = check(write_jsonl(tmp_path / "log.jsonl", dying_rows()), algorithm="grpo")
    assert (run.format, run.verdict, run.points) == ("run", "act", 70)
    assert run.findings[0].title == log.findings[0].title
    assert run.findings[0].onset_step == log.findings[0].onset_step


def test_a_run_gives_its_settings_to_the_monitor(tmp_path):
    config = {"trainer": {"num_generations": 8}, "reward_max": 2}
    source = open_source(record(tmp_path / "run", healthy_rows(10), algorithm="grpo", total_steps=70, config=config))
    monitor = new_monitor(source, config={"beta": 0.1})
    assert (monitor.case.algorithm, monitor.case.total_steps) == ("grpo", 70)
    assert [monitor.case.number(name) for name in ("num_generations", "reward_max", "beta")] == [8, 2, 0.1]
    assert [new_monitor(source, config={name: 90}).case.total_steps for name in ("total_steps", "max_steps")] == [
        90
    ] * 2


def test_rows_that_a_resume_overtook_are_not_judged(tmp_path):
    path = record(tmp_path / "run", dying_rows())
    with rlvitals.start(path, resume=40) as run:
        for row in healthy_rows(80)[40:]:
            run.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])
    report = check(path)
    assert (report.verdict, report.points) == ("healthy", 80)


def test_evaluations_are_judged_in_their_place_and_never_as_training(tmp_path):
    path = record(tmp_path / "run", healthy_rows(20), [{"step": 10, "reward": 99.0, "eval/loss": 1.0}])
    rows = list(open_source(path).rows)
    assert len(rows) == 21
    assert rows[10] == {"step": 10, "timestamp": rows[10]["timestamp"], "eval/reward": 99.0, "eval/loss": 1.0}
    assert rows[9]["step"] == 10


def test_an_evaluation_of_an_earlier_step_does_not_turn_the_clock_back():
    from rlvitals.records import Row

    train = [Row(step, float(step), 1, {"loss": 1.0}) for step in (1, 2, 3)]
    rows = list(rows_of_run(train, [Row(1, 2.5, 1, {"loss": 9.0})]))
    assert [row["step"] for row in rows] == [1, 2, 2, 3]


def test_streams_without_times_are_merged_by_step():
    from rlvitals.records import Row

    train = [Row(step, math.nan, 1, {"loss": 1.0}) for step in (1, 2, 3)]
    evals = [Row(2, math.nan, 1, {"loss": 9.0}), Row(9, math.nan, 1, {"loss": 9.0})]
    assert [(row["step"], "loss" in row) for row in rows_of_run(train, evals)] == [
        (1, True), (2, True), (2, False), (3, True), (9, False),
    ]  # fmt: skip


@pytest.mark.parametrize("is_file", [False, True])
def test_a_run_is_judged_again_by_the_rules_it_was_watched_with(tmp_path, is_file):
    (file := tmp_path / "own.yaml").write_text(
        "rules: [{rule: own, kind: instability, when: zq > 5, hold: 2 of 2, severity: critical, title: high}]"
    )
    rules = str(file) if is_file else ["zq > 5 for 2: critical"]
    with rlvitals.start(tmp_path / "run", rules=rules, hardware=False, display="none") as run:
        for step in range(1, 21):
            run.log({"zq": float(step)}, step=step)
    file.unlink()
    assert [finding.severity for finding in check(tmp_path / "run").findings] == ["critical"]
    assert check(tmp_path / "run", rules="default").findings == []
    assert check(tmp_path / "run", rules="zq > 500: warning").findings == []


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        ("secret.yaml", "watched with the rules of secret.yaml"),
        (["zq > 5 for 2: critical", "/etc/passwd"], "watched with the rules of /etc/passwd"),
        (["zq > 5 for 2: catastrophic"], "cannot be used"),
        ([{"rule": 7}], "cannot be used"),
    ],
)
def test_a_file_that_a_run_names_is_not_opened_and_a_broken_rule_is_a_note(tmp_path, monkeypatch, recorded, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.yaml").write_text("rules: [{rule: plateau, enabled: false}]")
    with rlvitals.start(tmp_path / "run", monitor=False, hardware=False, display="none") as run:
        for step in range(1, 21):
            run.log({"reward": 1.0}, step=step)
    config = tmp_path / "run" / "config.json"
    config.write_text(json.dumps({"rlvitals": {"rules": recorded}}))
    assert any(message in note for note in check(tmp_path / "run").notes)


def test_a_verdict_that_differs_from_the_runs_own_is_reported(tmp_path):
    finding = Finding("kl", "kl_explosion", "warning", 5, 4, "KL")
    for own, expected in (([HealthEvent("raised", 5, finding=finding)], True), ([], False)):
        source = RowSource(tmp_path, "run", healthy_rows(), recorded=own)
        report = check_source(source)
        assert any("own monitor said 'watch'" in note for note in report.notes) == expected


def test_settings_that_two_sections_give_differently_are_nobodys():
    config = {"actor": {"lr": 1, "clip": 0.2}, "critic": {"lr": 2}, "max_steps": -1, "trainer": {"total_steps": 7}}
    assert by_last_name(config) == {"clip": 0.2, "max_steps": -1, "total_steps": 7}
    assert planned_steps(config) == 7
    assert planned_steps({"max_steps": -1}) is None


# --- folders


def test_a_folder_of_runs_and_logs_gives_a_report_on_each(tmp_path):
    record(tmp_path / "a-run", healthy_rows())
    write_jsonl(tmp_path / "b.jsonl", dying_rows())
    (tmp_path / "notes.txt").write_text("nothing to see here\n")
    (tmp_path / "INDEX.tsv").write_text("file\tverdict\tonset_step\nb.jsonl\tfail\t41\n")
    report = check(tmp_path)
    assert isinstance(report, FolderReport)
    assert [(one.format, one.verdict) for one in report.reports] == [("run", "healthy"), ("jsonl", "act")]
    assert report.verdict == "act"
    assert len(report) == 2
    assert list(report) == report.reports
    assert [path.rpartition("/")[2] for path in report.passed_over] == ["notes.txt"]


def test_a_run_whose_rows_cannot_be_read_is_no_healthy_one_of_its_folder(tmp_path):
    record(tmp_path / "a-run", healthy_rows())
    log = RunDir(record(tmp_path / "b-run", healthy_rows())).train_log
    log.unlink()
    log.symlink_to(log.name)  # opening it is an error of the operating system
    report = check(tmp_path)
    assert isinstance(report, FolderReport)
    assert [(one.source.rpartition("/")[2], one.verdict) for one in report] == [
        ("a-run", "healthy"), ("b-run", "cannot judge"),
    ]  # fmt: skip


def test_findings_of_a_storm_are_counted_in_a_note(tmp_path):
    storm = {f"own{number}": 1.0 for number in range(20)}
    rows = [row | storm for row in healthy_rows(10)]
    report = check(write_jsonl(tmp_path / "log.jsonl", rows), rules=[f"{name} > 0.5: warning" for name in storm])
    listed = [finding for finding in report.findings if finding.metrics and finding.metrics[0] in storm]
    (note,) = (note for note in report.notes if "lesser findings left out" in note)
    assert 0 < len(listed) < 20 <= len(listed) + int(note.rpartition(": ")[2])


def test_a_trainers_output_folder_is_one_log(tmp_path):
    state = {"log_history": dying_rows(), "max_steps": 70}
    (tmp_path / "checkpoint-70").mkdir()
    (tmp_path / "checkpoint-70" / "trainer_state.json").write_text(json.dumps(state))
    assert places_in(tmp_path) is None
    assert check(tmp_path).verdict == "act"


def test_runs_below_are_found_and_neither_settings_nor_links_are_logs(tmp_path):
    """A project's folder with files of trackers and trainers."""
    for number in (1, 2):
        write_jsonl(tmp_path / f"wandb/run-{number}/files/wandb-history.jsonl", dying_rows())
    (tmp_path / "wandb/latest-run").symlink_to("run-2", target_is_directory=True)
    (tmp_path / "wandb/debug.log").symlink_to("run-2/files/wandb-history.jsonl")
    (tmp_path / "config.json").write_text('{"learning_rate": 1e-6}')
    found = [tmp_path / "wandb/run-1", tmp_path / "wandb/run-2"]
    assert places_in(tmp_path) == places_in(tmp_path / "wandb") == found
    assert [report.verdict for report in check(tmp_path)] == ["act", "act"]


def test_one_log_below_is_the_folders_log(tmp_path):
    write_jsonl(tmp_path / "out/logs/train.jsonl", dying_rows())
    (tmp_path / "README.md").write_text("# mine\n")
    assert places_in(tmp_path) is None
    assert check(tmp_path).verdict == "act"
    (tmp_path / "train.py").write_text("print(1)\n")
    assert check(tmp_path).verdict == "act"


def test_of_several_logs_the_one_that_is_read_is_followed(tmp_path):
    for number in (1, 2):
        write_jsonl(tmp_path / f"run-{number}/files/wandb-history.jsonl", dying_rows())
    assert one_place(tmp_path, "watch") == tmp_path / "run-2/files/wandb-history.jsonl"
    for number in (1, 2):
        record(tmp_path / f"recorded-{number}", healthy_rows())
    with pytest.raises(ConfigError, match=r"watch takes one run or log, and .* holds 4: name one of them"):
        one_place(tmp_path, "watch")


@pytest.mark.parametrize("steps", [1, 3])
def test_a_dump_of_rollouts_is_one_place_to_watch_and_has_no_slices(tmp_path, steps):
    for step in range(steps):
        write_jsonl(tmp_path / f"{step}.jsonl", [{"input": "p", "output": "o", "score": 1.0, "step": step}])
    assert one_place(tmp_path, "watch", dumps=True) == tmp_path
    with pytest.raises(ConfigError, match=rf"dump of rollouts.*'rlvitals rollouts {tmp_path}'"):
        one_place(tmp_path, "--by")
    write_jsonl(tmp_path / "metrics.jsonl", dying_rows())
    assert one_place(tmp_path, "watch", dumps=True) == tmp_path / "metrics.jsonl"


def test_a_folder_without_any_log_is_an_error(tmp_path):
    with pytest.raises(NotALog):
        check(tmp_path)
    (tmp_path / "notes.txt").write_text("nothing\n")
    with pytest.raises(NotALog, match=r"it holds nothing that can be read \(notes.txt\)"):
        check(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x00\x01\x02" * 999, b"hello\n", b"{", b"step,loss\n"])
def test_a_file_without_rows_is_an_error_that_says_what_can_be_read(tmp_path, content):
    (tmp_path / "broken.log").write_bytes(content)
    with pytest.raises(NotALog, match="What can be read"):
        check(tmp_path / "broken.log")


def test_what_is_not_there_is_an_error_with_a_suggestion(tmp_path):
    (tmp_path / "kto-run").mkdir()
    with pytest.raises(
        RlvitalsError, match=r"kto-rnu is not a training log: there is nothing there\. Did you mean 'kto-run'\?$"
    ):
        check(tmp_path / "kto-rnu")


# --- what is kept of a series


@pytest.mark.slow
@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=2000))
def test_a_thinned_series_keeps_its_extremes_and_stays_small(values):
    trace = Trace()
    for point, value in enumerate(values, 1):
        trace.add(point, point * 10, value)
    finite = [value for value in values if math.isfinite(value)]
    facts = trace.to_dict()
    assert len(facts["rows"]) <= MAX_BUCKETS
    assert (facts["points"], facts["nonfinite"]) == (len(values), len(values) - len(finite))
    assert min((low for low in facts["low"] if low is not None), default=None) == min(finite, default=None)
    assert max((high for high in facts["high"] if high is not None), default=None) == max(finite, default=None)
    assert facts["rows"] == sorted(set(facts["rows"]))
    assert facts["rows"][0] == 1
    assert [step // 10 for step in facts["steps"]] == facts["rows"]


def test_a_value_stays_in_the_bucket_of_its_place():
    trace = Trace()
    for point in range(1, 5001):
        trace.add(point, point, 1.0 if point == 3210 else 0.0)
    spike = next(position for position, high in enumerate(trace.highs) if high == 1.0)
    assert trace.points[spike] <= 3210
    assert spike == len(trace.points) - 1 or trace.points[spike + 1] > 3210


@pytest.mark.parametrize("count", [1, MAX_BUCKETS, MAX_BUCKETS + 1, 3 * MAX_BUCKETS, 5000])
def test_a_thinned_series_is_the_extremes_of_equally_many_rows_each(count):
    values = [math.nan if place % 11 == 3 or 100 <= place < 140 else place * 7919 % 1009 for place in range(count)]
    trace = Trace()
    for place, value in enumerate(values):
        trace.add(place + 1, 10 * place, value)
    starts = [row - 1 for row in trace.points]
    size = starts[1] if len(starts) > 1 else 1
    assert starts == list(range(0, count, size))
    assert MAX_BUCKETS / 2 < len(starts) <= MAX_BUCKETS or count <= MAX_BUCKETS
    facts = trace.to_dict()
    assert facts["steps"] == [10 * start for start in starts]
    for place, start in enumerate(starts):
        finite = [value for value in values[start : start + size] if math.isfinite(value)]
        assert (facts["low"][place], facts["high"][place]) == (min(finite, default=None), max(finite, default=None))


@pytest.mark.parametrize("asked_every", [1, 7, 1000])
def test_what_is_kept_of_a_series_is_the_same_however_often_it_is_asked_for(asked_every):
    rows, alone = healthy_rows(300), Trace()
    judge = Judge(new_monitor(None))
    for point, row in enumerate(rows, 1):
        judge.take(row)
        alone.add(point, row["step"], row["loss"])
        if point % asked_every == 0:
            assert judge.trace("loss").taken == point
    assert judge.trace("loss").to_dict() == alone.to_dict()


class HeldRow(dict):
    """A row whose release can be observed: a plain dict allows no weak reference."""


def test_rows_that_were_judged_are_let_go():
    judge, rows = Judge(new_monitor(None)), []
    for step in range(1, 1001):
        row = HeldRow(step=step, loss=0.5, reward=0.01 * (step % 7))
        rows.append(weakref.ref(row))
        judge.take(row)
    del row
    gc.collect()
    assert sum(held() is not None for held in rows) < 200
    assert judge.trace("loss").taken == 1000


def test_a_number_too_large_for_a_float_counts_as_not_finite():
    judge = Judge(new_monitor(None))
    for step, value in enumerate([1.0, 10**400, True, "1.0", None, 2.0], 1):
        judge.take({"step": step, "loss": value})
    assert judge.trace("loss").to_dict() | {"rows": None, "steps": None} == {
        "points": 4,
        "nonfinite": 1,
        "rows": None,
        "steps": None,
        "low": [1.0, None, 1.0, 2.0],
        "high": [1.0, None, 1.0, 2.0],
    }


@pytest.mark.slow
def test_thirty_thousand_rows_leave_a_small_report(tmp_path):
    rows = healthy_rows(300)
    log = tmp_path / "huge.jsonl"
    with log.open("w") as file:
        for step in range(1, 30_001):
            reward = 0.5 if step % 1000 < 300 else 0.0
            file.write(json.dumps({**rows[step % 300], "step": step, "reward": reward}) + "\n")
    report = check(log, "reward > 0.1 for 5: warning")
    assert report.points == 30_000
    assert len(to_json(report.to_dict())) < 100_000
    own = [finding.step for finding in report.findings if finding.rule.startswith("reward > 0.1")]
    kept = f"times (warning); the first {len(own) - 1} and the last are kept"
    assert any("came and went" in note and note.endswith(kept) for note in report.notes)
    assert own[-1] > 15_000 > own[-2]  # the reward is back at 0 for 700 rows each time


# --- real logs


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("verl_agent_instant_collapse.log", "tool_abandonment"),
        ("dpo_symlog_logp_crash_183.csv", "logprob_crash"),
        ("rl_hack_compilable_1b_hard.jsonl", "reward_hacking"),
        ("grpo_floor_reward_200.json", "reward_floor"),
    ],
)
def test_real_logs_that_failed_are_acted_on(shared, name, kind):
    report = check(shared / "logs" / name)
    assert report.verdict == "act"
    assert kind in {finding.kind for finding in report.findings}
    assert set(report.series) <= {metric for finding in report.findings for metric in finding.metrics}
    json.loads(to_json(report.to_dict()))


def test_a_real_log_that_was_started_again_after_a_failure_tells_of_it(shared):
    report = check(shared / "logs" / "grpo_nan_grad_46.log")
    assert report.verdict == "watch"
    assert "1 critical finding, 1 warning; first: nonfinite" in report.reason
    raised = {
        (finding.rule, finding.kind, finding.recovered_step)
        for finding in report.findings
        if finding.severity != "info"
    }
    assert raised == {("nonfinite_core", "nonfinite", 20), ("earlier_attempt_failed", "nonfinite", None)}


@pytest.mark.parametrize(
    "name", ["grpo_text2sql_1000.json", "dpo_zephyr_reference_114.csv", "verl_agent_healthy_180.log"]
)
def test_real_logs_that_were_healthy_are_not_stopped(shared, name):
    report = check(shared / "logs" / name)
    assert report.verdict in ("healthy", "watch")


def test_a_finding_before_a_restart_inside_the_file_is_marked_in_its_own_part(shared):
    from rlvitals.render.charts import ChartSeries

    report = check(shared / "logs" / "grpo_nan_grad_46.log")
    place = next(at for at, finding in enumerate(report.findings) if finding.kind == "nonfinite")
    drawn = ChartSeries.from_dict(report.series["grad_norm"].to_dict())
    assert drawn.onset(report.findings[place].onset_step, report.said_at[place]) == 0.0
    assert any("restart inside the file" in note for note in report.notes)


def test_the_verdict_of_a_judge_can_be_asked_for_at_any_row(tmp_path):
    source = RowSource(tmp_path, "jsonl", ())
    judge = Judge(new_monitor(source))
    verdicts = []
    for row in dying_rows():
        judge.take(row)
        verdicts.append(report_on(judge, source).verdict)
    assert list(dict.fromkeys(verdicts)) == ["cannot judge", "healthy", "act"]


def test_the_importers_notes_and_settings_reach_the_report(shared):
    path = shared / "logs" / "verl_agent_len_turncollapse.log"
    assert set(read_log(path).notes) <= set(check(path).notes)


def sampled(run, percent):
    time.sleep(0.002)  # times are recorded in milliseconds
    run._measurements._take_sample({"System/Memory_Percent": percent, "System/GPU_Utilization/0": 5.0})
    time.sleep(0.002)


def test_samples_of_the_machine_are_joined_to_the_row_after_them_read_at_once_or_poll_by_poll(tmp_path):
    path = tmp_path / "run"
    with rlvitals.start(path, hardware=False, monitor=False) as run:
        feed, polled = RunFeed(path), []
        for step in range(4):
            run.log({"loss": 1.0}, step=step)
            polled += feed.poll().rows
            sampled(run, 50.0 + step)
            polled += feed.poll().rows
        sampled(run, 99.0)
        run.log({"loss": 1.0}, step=4)
        polled += feed.poll().rows
        sampled(run, 30.0)  # no row comes after it
    memory = [row.get("System/Memory_Percent") for row in polled]
    assert memory == [None, 50.0, 51.0, 52.0, 99.0]
    assert list(open_source(path).rows) == polled
    assert not any("System/GPU_Utilization/0" in row for row in polled)


def test_polling_over_a_resume_joins_each_sample_once(tmp_path):
    path = tmp_path / "run"
    feed = None
    for resume in (False, 1):
        with rlvitals.start(path, resume=resume, hardware=False, monitor=False) as run:
            feed = feed or RunFeed(path)
            for step in range(2 if resume else 0, 4):
                sampled(run, (70.0 if resume else 90.0) + step)
                run.log({"loss": 1.0}, step=step)
            news = feed.poll()
    story = (news.before or []) + news.rows
    # The sample before step 2 belongs to the current line, the one before step 3 to the abandoned one.
    memory = [(row["step"], row["System/Memory_Percent"]) for row in story]
    assert memory == [(0, 90.0), (1, 91.0), (2, 92.0), (3, 73.0)]
    assert list(open_source(path).rows) == story


def test_what_could_not_be_judged_is_of_this_kind_of_training(tmp_path):
    def missed(algorithm, **more):
        log = tmp_path / f"{algorithm}-{len(more)}.jsonl"
        rows = [{"step": step, "loss": 1 / (1 + step), "reward": 0.01 * step, **more} for step in range(40)]
        log.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return {item.metric for item in check(log, algorithm=algorithm).cannot_judge}

    plain, agent = missed("grpo"), missed("grpo", **{"agent.turns.mean": 3.0})
    assert "entropy" in plain
    assert not plain & {"repeated_actions", "tool_failures", "explained_variance", "kto_kl", "margin", "teacher_kl"}
    assert "teacher_kl" in missed("grpo", **{"distill.teacher_mass.mean": 0.9})
    assert agent - plain >= {"repeated_actions", "tool_failures"}
    assert "kto_kl" in missed("kto")


def test_the_names_to_log_a_missing_metric_as_are_of_this_kind_of_training(tmp_path):
    rows = [{"step": step, "reward/total": 0.1, "optim/kl_sample_train_v1": 0.1} for step in range(40)]
    log = write_jsonl(tmp_path / "tinker.jsonl", rows)
    names = {item.metric: item.names for item in check(log, framework="tinker").cannot_judge}
    assert "dpo_loss" not in names["loss"]
    assert names["kl"] == ("kl_policy_base",)
