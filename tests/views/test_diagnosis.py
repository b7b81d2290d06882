"""The reported facts about a run's findings: the verdict, requests and answers, and the curve around each finding."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import rlvitals
from health_lines import finding_line, monitor_line, recovered_line
from rlvitals.cli.main import main
from rlvitals.gauges import RunGauges
from rlvitals.health.history import History
from rlvitals.records import Finding, HealthEvent, Request
from rlvitals.store.findings import answer_facts, append_event, event_line, request_facts
from rlvitals.store.layout import RunDir
from rlvitals.views.diagnosis import MOST_LISTED, Diagnosis, diagnose, diagnose_quickly, findings_answer
from rlvitals.views.headlines import Headlines
from rlvitals.views.run import open_run

ALARM = Finding("mine", "kl_explosion", "critical", 50, 40, "too much", action="stop", metrics=("zq",))


def write_run(path, rows=120, extra=(), **options):
    """One value per step, the step itself; by default without a monitor."""
    settings = {"monitor": False, "hardware": False, "display": "none"} | options
    with rlvitals.start(path, **settings) as run:
        for step in range(1, rows + 1):
            run.log({"zq": float(step), **dict.fromkeys(extra, 1.0)}, step=step)
    return open_run(path)


# Which verdict is shown


def test_what_the_run_s_own_monitor_reported_is_the_verdict_also_where_it_reported_nothing(tmp_path):
    quiet = [{"rule": "*", "enabled": False}]
    dead = [{"grad_norm": 0.0, "loss": 0.1 + 0.01 * (step % 7), "reward": 0.3} for step in range(60)]
    with rlvitals.start(tmp_path / "watched", rules=quiet, hardware=False, display="none") as run:
        for step, row in enumerate(dead, 1):
            run.log(row, step=step)
    with rlvitals.start(tmp_path / "unwatched", monitor=False, hardware=False, display="none") as run:
        for step, row in enumerate(dead, 1):
            run.log(row, step=step)
    diagnosis = diagnose(open_run(tmp_path / "watched"))
    assert (diagnosis.verdict, diagnosis.findings) == ("healthy", [])
    judged = diagnose(open_run(tmp_path / "unwatched"))
    assert judged.verdict == "act"
    assert "dead_gradient" in {found.kind for found in judged.findings}
    assert [found.recovered_step for found in judged.findings if found.rule == "dead_gradient"] == [None]


def test_what_a_clock_found_counts_though_nobody_watched_every_row(tmp_path):
    view = write_run(tmp_path)
    stall = replace(ALARM, kind="stall")
    append_event(RunDir(tmp_path), event_line(HealthEvent("raised", 50, 1.0, seen_in="clock", finding=stall)))
    diagnosis = diagnose(view)
    assert (diagnosis.verdict, diagnosis.findings) == ("act", [stall])
    assert diagnosis.reason == "1 critical finding; first: stall, since step 40"


def test_a_stall_that_an_earlier_version_recorded_counts_too(tmp_path):
    view = write_run(tmp_path)
    stall = replace(ALARM, kind="stall")
    line = finding_line(stall).replace(b'"type":"raised"', b'"type":"finding"')
    append_event(RunDir(tmp_path), line)
    assert diagnose(view).findings == [stall]


@pytest.mark.parametrize(
    ("lines", "is_recorded"),
    [
        ([monitor_line()], True),
        ([monitor_line(), monitor_line(is_on=False, step=60)], False),
        ([monitor_line(attempt=2)], False),
        ([], False),
    ],
    ids=["watched", "put aside", "another attempt", "not watched"],
)
def test_a_record_counts_where_a_monitor_looked_at_every_row(tmp_path, lines, is_recorded):
    view = write_run(tmp_path)
    for line in (*lines, finding_line(ALARM)):
        append_event(RunDir(tmp_path), line)
    assert diagnose(view).findings == ([ALARM] if is_recorded else [])


@pytest.mark.parametrize(("limit", "least"), [("MOST_CELLS", 60 * 3), ("MOST_METRICS", 3)])
def test_a_log_of_exactly_the_size_that_is_judged_is_judged_and_a_larger_one_is_not(
    tmp_path, monkeypatch, limit, least
):
    view = write_run(tmp_path, rows=60, extra=["one", "two"])
    monkeypatch.setattr(f"rlvitals.views.diagnosis.{limit}", least)
    assert "take long" not in diagnose(view).reason
    monkeypatch.setattr(f"rlvitals.views.diagnosis.{limit}", least - 1)
    diagnosis = diagnose(view)
    assert (diagnosis.verdict, diagnosis.findings) == ("cannot judge", [])
    assert "60 rows of 3 metrics" in diagnosis.reason
    assert "take long: run 'rlvitals check'" in diagnosis.reason


def test_a_list_judges_logs_up_to_a_size_at_which_a_run_s_own_page_still_does(tmp_path, monkeypatch):
    view = write_run(tmp_path, rows=60, extra=["one", "two"])
    monkeypatch.setattr("rlvitals.views.diagnosis.QUICK_CELLS", 60 * 3)
    assert diagnose_quickly(view) == diagnose(view)
    monkeypatch.setattr("rlvitals.views.diagnosis.QUICK_CELLS", 60 * 3 - 1)
    assert diagnose_quickly(view).reason == "not monitored during training: run 'rlvitals check'"


# Requests because of a finding


def asked(number, finding, step):
    request = Request("stop", "because", finding, number=number)
    return request, event_line(HealthEvent("request", step, 100.0 + step, facts=request_facts(request)))


def test_each_finding_has_the_requests_it_led_to_and_their_answers(tmp_path):
    later, other = replace(ALARM, step=90, onset_step=80), replace(ALARM, rule="yours")
    view = write_run(tmp_path)
    first, first_line = asked(1, ALARM, 51)
    second, second_line = asked(2, later, 91)
    _, unanswered = asked(3, other, 52)
    for line in (
        finding_line(ALARM, 1.0, 1), finding_line(later, 1.0, 1), finding_line(other, 1.0, 1),
        monitor_line(), first_line, second_line, unanswered,
        event_line(HealthEvent("answer", 92, 1.0, facts=answer_facts(second, "done", "stopped"))),
        event_line(HealthEvent("answer", 53, 1.0, facts=answer_facts(first, "declined", "not now"))),
    ):  # fmt: skip
        append_event(RunDir(tmp_path), line)
    findings = findings_answer(view, diagnose(view))["findings"]
    assert [
        [
            (one["request"], one["step"], one["timestamp"], one["answer"], one["answer_text"])
            for one in found["requests"]
        ]
        for found in findings
    ] == [[(1, 51, 151.0, "declined", "not now")], [(2, 91, 191.0, "done", "stopped")], [(3, 52, 152.0, None, "")]]


def test_an_answer_to_no_known_request_and_a_request_without_a_number_are_harmless():
    facts = {"rule": "mine", "finding_step": 50}
    answer = {"request": 7, "answer": "done"}
    events = [HealthEvent("request", 51, 1.0, facts=facts), HealthEvent("answer", 52, 1.0, facts=answer)]
    assert History(events).asked_about(ALARM) == []


# What is reported for each finding


def test_the_step_at_which_a_finding_recovered_is_reported(tmp_path):
    view = write_run(tmp_path)
    for line in (monitor_line(), finding_line(ALARM), finding_line(replace(ALARM, rule="yours"))):
        append_event(RunDir(tmp_path), line)
    append_event(RunDir(tmp_path), recovered_line("mine", 80))
    answer = findings_answer(view, diagnose(view))
    assert [(found["rule"], found["recovered_step"]) for found in answer["findings"]] == [("mine", 80), ("yours", None)]
    assert (answer["verdict"], answer["was_watched"], answer["judging"]) == ("act", True, False)


def test_of_very_many_findings_the_newest_are_listed_and_the_others_counted(tmp_path):
    view = write_run(tmp_path, rows=1)
    for count, left_out in ((MOST_LISTED, 0), (MOST_LISTED + 30, 30)):
        findings = [replace(ALARM, step=step, metrics=()) for step in range(count)]
        answer = findings_answer(view, Diagnosis("act", "", findings))
        assert ([found["step"] for found in answer["findings"]], answer["left_out"]) == (
            list(range(left_out, count)),
            left_out,
        )


@pytest.mark.parametrize(
    ("onset", "raised", "first", "last"),
    [
        (40, 50, 20, 70),  # twice the distance between the two, on both sides
        (60, 60, 40, 80),  # at least a minimum
        (5, 110, 1, 120),
    ],
)
def test_the_curve_around_a_finding_shows_what_came_before_its_onset_and_after_it_was_raised(
    tmp_path, onset, raised, first, last
):
    view = write_run(tmp_path, extra=["loss", "kl"])
    found = replace(ALARM, onset_step=onset, step=raised, metrics=("gone", "zq", "loss", "kl"))
    trace = findings_answer(view, Diagnosis("act", "", [found]))["findings"][0]["trace"]
    assert [line["name"] for line in trace] == ["zq", "loss"]  # at most two, and only existing ones
    assert (trace[0]["steps"][0], trace[0]["steps"][-1]) == (first, last)
    assert trace[0]["high"][-1] == float(last)


def test_the_curve_around_a_finding_has_the_band_of_its_metric(tmp_path):
    view = write_run(tmp_path, extra=["kl"], algorithm="grpo", framework="trl_grpo")
    found = replace(ALARM, metrics=("zq", "kl"))
    unknown, kl = findings_answer(view, Diagnosis("act", "", [found]))["findings"][0]["trace"]
    assert unknown["band"] is None
    assert kl["band"][0] < kl["band"][1]


def states(path):
    """The verdict of a run in a list, in its gauges, and on its own page."""
    return Headlines().of(path)["verdict"], RunGauges(path, "run", "").look().verdict, diagnose(open_run(path)).verdict


def test_a_run_of_which_no_rule_reads_a_metric_is_never_healthy(tmp_path):
    with rlvitals.start(tmp_path / "run", display="none") as run:
        for step in range(1, 21):
            run.log({"foo": 0.1 * step}, step=step)
            if step == 15:
                assert states(tmp_path / "run") == ("cannot judge",) * 3
        assert run.verdict == ("cannot judge", "none of its metrics is one that a rule reads")
        run.log({"foo": 0.1, "reward": 0.5}, step=21)
        assert run.verdict[0] == "healthy"
    assert states(tmp_path / "run") == ("healthy",) * 3
    with rlvitals.start(tmp_path / "run", resume=0, display="none") as run:
        for step in range(1, 21):
            run.log({"foo": 0.1 * step}, step=step)
    assert states(tmp_path / "run") == ("cannot judge",) * 3  # what an overtaken attempt logged is not judged
    with rlvitals.start(tmp_path / "run", resume=True, display="none") as run:
        run.log_eval({"reward": 0.5}, step=20)
    assert rlvitals.check(tmp_path / "run").verdict == "healthy"
    assert states(tmp_path / "run") == ("healthy",) * 3


def test_a_list_does_not_trust_the_record_of_a_run_that_was_monitored_in_part(tmp_path, capsys):
    path, dead = tmp_path / "run", {"grad_norm": 0.0, "reward": 0.5}
    with rlvitals.start(path, algorithm="grpo", display="none") as run:
        for step in range(1, 9):
            run.log({"loss": 1.0 / step, **dead, "grad_norm": 1.0 + 0.1 * step}, step=step)
    with rlvitals.start(path, resume=True, monitor=False, display="none") as run:
        for step in range(9, 60):
            run.log({"loss": 1.0 / step, **dead}, step=step)
    assert states(path) == ("cannot judge", "cannot judge", "act")
    assert main(["show", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["verdict"] == "act"
    assert "dead_gradient" in [found["rule"] for found in shown["findings"]]


def test_a_list_does_not_call_rows_healthy_that_no_monitor_read(tmp_path):
    """Although the settings of the newest attempt, which has no rows yet, ask for a monitor."""
    path = tmp_path / "run"
    with rlvitals.start(path, monitor=False, display="none") as run:
        for step in range(1, 30):
            run.log({"loss": 0.5 if step < 10 else float("nan")}, step=step)
    assert states(path) == ("cannot judge", "cannot judge", "act")
    with rlvitals.start(path, resume=True, display="none") as run:
        assert run.verdict[0] == "cannot judge"
        assert states(path) == ("cannot judge", "cannot judge", "act")


def test_the_steps_of_a_short_run_may_be_in_several_rows(tmp_path):
    with rlvitals.start(tmp_path / "run", display="none") as run:
        for step in range(1, 5):
            run.log({"loss": 1.0 / step}, step=step)
            run.log({"reward": 0.1 * step}, step=step)
    assert run.verdict == ("healthy", "nothing to act on up to step 4")
    report = rlvitals.check(tmp_path / "run")
    assert ((report.verdict, report.reason), report.rows) == (run.verdict, 8)
    assert states(tmp_path / "run") == ("healthy",) * 3
