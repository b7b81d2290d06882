"""Rules tried on labelled logs: hits, delay, false alarms, and confidence intervals for small numbers."""

from __future__ import annotations

import math

import pytest

import rlvitals
from judged_logs import dying_rows, healthy_rows, write_jsonl
from rlvitals.errors import ConfigError, RlvitalsError, RuleError
from rlvitals.views.backtest import backtest, deadline, share
from rlvitals.views.labels import Label, is_labels, read_labels

DEAD = "grad_norm < 0.01 for 10: critical"


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    write_jsonl(folder / "dead_early.jsonl", dying_rows(0, 60))
    write_jsonl(folder / "dead_late.jsonl", dying_rows(80, 60))
    write_jsonl(folder / "fine.jsonl", healthy_rows(60))
    (folder / "INDEX.tsv").write_text(
        "file\tverdict\tonset_step\tfailure_class\tkind\n"
        "dead_early.jsonl\tfail\t1\tno gradient\tdead_gradient\n"
        "dead_late.jsonl\tfail\t81\tno gradient\tkl_explosion\n"
        "fine.jsonl\thealthy\t\tnone\t\n"
    )
    return folder


def results_of(rules, logs):
    done = backtest([rules], [logs], read_labels(logs / "INDEX.tsv"))
    return {result.file: result for result in done.results}, done.totals()


def test_each_log_gets_onset_first_critical_and_delay(logs):
    results, totals = results_of("default", logs)
    late = results["dead_late.jsonl"]
    assert (late.label, late.onset_step, late.onset_point, late.points) == ("fail", 81, 81, 140)
    assert late.first_critical["kind"] == "dead_gradient"
    assert late.delay == late.first_critical["point"] - 81
    assert 0 < late.delay <= 15
    assert late.in_time is True
    assert results["fine.jsonl"].first_warning is None
    assert (totals["failed_critical_in_time"].count, totals["failed_critical_in_time"].of) == (2, 2)
    assert (totals["healthy_quiet"].count, totals["healthy_critical"].count) == (1, 0)


def test_a_kind_is_right_where_the_label_names_it(logs):
    results, totals = results_of("default", logs)
    assert results["dead_early.jsonl"].kind_right is True
    assert results["dead_late.jsonl"].kind_right is False
    assert results["fine.jsonl"].kind_right is None
    assert (totals["failed_kind_right"].count, totals["failed_kind_right"].of) == (1, 2)


def test_a_false_alarm_on_a_healthy_log_is_counted(logs):
    results, totals = results_of("reward > 0.1 for 3: critical", logs)
    assert results["fine.jsonl"].first_critical["point"] == 3
    assert totals["healthy_critical"].count == 1
    assert totals["healthy_quiet"].count == 0


def test_a_critical_that_comes_too_late_is_no_hit(logs):
    write_jsonl(logs / "dead_early.jsonl", dying_rows(45, 30))  # labelled dead from the start, dies at 46
    results, totals = results_of("default", logs)
    assert results["dead_early.jsonl"].first_critical["point"] > 40
    assert results["dead_early.jsonl"].in_time is False
    assert totals["failed_critical_in_time"].count == 1
    assert totals["failed_critical"].count == 2
    assert (totals["failed_from_the_start_in_time"].count, totals["failed_later_in_time"].count) == (0, 1)


def test_a_run_that_nothing_is_reported_of_is_missed(logs):
    labels = {"fine.jsonl": Label("fail", 20), "dead_late.jsonl": Label("watch", 81)}
    done = backtest(["default"], [logs / "fine.jsonl", logs / "dead_late.jsonl"], labels)
    assert (done.results[0].in_time, done.results[0].delay) == (False, None)
    assert done.results[1].in_time is None
    assert done.totals()["watch_warned"].count == 1


@pytest.mark.parametrize(("onset", "points", "last"), [(1, 500, 40), (12, 30, 40), (13, 50, 28), (100, 200, 140)])
def test_the_deadline_depends_on_onset_and_length(onset, points, last):
    assert deadline(onset, points) == last


def test_logs_without_labels_are_only_counted(logs):
    done = backtest([DEAD], [logs / "dead_late.jsonl", logs / "fine.jsonl"])
    totals = done.totals()
    assert (totals["unlabelled_critical"].count, totals["unlabelled_critical"].of) == (1, 2)
    assert totals["failed_critical"] is None
    assert totals["median_delay_points"] is None


def test_runs_are_tried_as_well(tmp_path):
    with rlvitals.start(tmp_path / "run") as run:
        for row in dying_rows():
            run.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])
    (result,) = backtest(["default"], [tmp_path / "run"], {"run": Label("fail", 41)}).results
    assert (result.onset_point, result.in_time) == (41, True)


def test_the_rules_that_are_tried_are_those_asked_for_and_not_the_runs_own(tmp_path):
    with rlvitals.start(tmp_path / "run", rules=["zq > 5 for 2: critical"], hardware=False, display="none") as run:
        for step in range(1, 41):
            run.log({"zq": float(step), "loss": 1.0 / step}, step=step)
    (result,) = backtest(["default"], [tmp_path / "run"]).results
    assert result.first_critical is None
    (result,) = backtest(["zq > 5 for 2: critical"], [tmp_path / "run"]).results
    assert result.first_critical is not None


def test_steps_that_do_not_count_rows_are_turned_into_rows(tmp_path):
    rows = [{**row, "step": row["step"] * 10} for row in dying_rows()]
    write_jsonl(tmp_path / "log.jsonl", rows)
    (result,) = backtest(["default"], [tmp_path / "log.jsonl"], {"log.jsonl": Label("fail", 405)}).results
    assert (result.onset_step, result.onset_point) == (405, 41)


def test_a_wrong_rule_or_no_log_is_an_error(tmp_path, logs):
    with pytest.raises(RuleError):
        backtest(["defualt"], [logs])
    (tmp_path / "empty.log").write_text("")
    with pytest.raises(RlvitalsError, match="is empty"):
        backtest(["default"], [tmp_path / "empty.log"])


def test_a_file_that_is_no_log_is_skipped_and_named(logs):
    (logs / "notes.txt").write_text("no numbers\n")
    done = backtest(["default"], [logs])
    assert [path.rpartition("/")[2] for path in done.passed_over] == ["notes.txt"]
    assert len(done.results) == 3


# --- Wilson's interval


@pytest.mark.parametrize("of", [1, 5, 17, 200])
def test_the_interval_holds_exactly_the_rates_the_count_does_not_contradict(of):
    """Wilson's bounds are the rates at which the observed count just passes the normal test; bisection finds them."""

    def bound(count: int, low: float, high: float) -> float:
        for _ in range(80):
            middle = (low + high) / 2
            distance = abs(count / of - middle) / math.sqrt(middle * (1 - middle) / of)
            if (distance > 1.96) == (middle < count / of):
                low = middle
            else:
                high = middle
        return (low + high) / 2

    for count in {0, 1, of // 2, of}:
        found = share([True] * count + [False] * (of - count))
        assert (found.count, found.of) == (count, of)
        if count > 0:
            assert found.low == pytest.approx(bound(count, 1e-9, count / of), abs=1e-3)
        if count < of:
            assert found.high == pytest.approx(bound(count, count / of, 1 - 1e-9), abs=1e-3)
        assert 0 <= found.low <= count / of <= found.high <= 1


def test_nothing_has_no_share():
    assert share([]) is None


# --- labels


def test_labels_are_read_with_what_they_leave_out(tmp_path):
    path = tmp_path / "labels.tsv"
    path.write_text("verdict\tfile\nhealthy\ta.csv\nwatch\tb.csv\n")
    assert read_labels(path) == {"a.csv": Label("healthy"), "b.csv": Label("watch")}
    assert is_labels(path)
    (tmp_path / "metrics.tsv").write_text("step\tloss\n1\t0.5\n")
    assert not is_labels(tmp_path / "metrics.tsv")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("file\tonset_step\na\t1\n", "no 'verdict' here"),
        ("file\tverdict\na\tgood\n", "line 2: a verdict is one of"),
        ("file\tverdict\tonset_step\nx\tfail\t1\na\tfail\tsoon\n", "line 3: onset_step is a step"),
        ("file\tverdict\tkind\na\tfail\tboom\n", "'boom' is not a kind"),
    ],
)
def test_a_wrong_table_of_labels_is_an_error_that_points_at_the_line(tmp_path, table, message):
    (tmp_path / "labels.tsv").write_text(table)
    with pytest.raises(ConfigError, match=message):
        read_labels(tmp_path / "labels.tsv")
    with pytest.raises(ConfigError, match="cannot read"):
        read_labels(tmp_path / "none.tsv")


@pytest.mark.slow
def test_the_real_logs_all_get_a_result(shared):
    labels = read_labels(shared / "logs" / "INDEX.tsv")
    done = backtest(["default"], [shared / "logs"], labels)
    assert {result.file for result in done.results} == set(labels)
    assert not done.passed_over
    assert done.totals()["healthy_critical"].count == 0
