"""Scans of rollout texts during training: the same findings as afterwards, at a bounded cost, and without raising."""

from __future__ import annotations

import random

import pytest

import rlvitals
from rlvitals.capture import text_scans
from rlvitals.errors import ConfigError
from rlvitals.records import Group, Rollout, Turn
from rlvitals.views.check import check
from rlvitals.views.places import open_rollouts
from rlvitals.views.run import open_run
from rlvitals.views.texts import scan_rollouts

HONEST = "```python\ndef f(x):\n    return x + 1\n```"
EXIT = "```python\nimport os\nos._exit(0)\n```"


def groups_of(step, steps=16, count=4):
    dice = random.Random(step)
    for _ in range(count):
        cheats = [dice.random() < step / steps for _ in range(8)]
        rewards = [1.0 if cheat else float(dice.random() < 0.3) for cheat in cheats]
        turns = [(Turn(EXIT if cheat else HONEST),) for cheat in cheats]
        yield Group("Write f.", tuple(Rollout(turn, reward=pay) for turn, pay in zip(turns, rewards, strict=True)))


def train(path, steps=range(16), **settings):
    run = rlvitals.start(path, display="none", hardware=None, **settings)
    for step in steps:
        run.log({"loss": 1.0}, step=step)
        groups = list(groups_of(step))
        run.log_groups(groups[:1], step=step)  # a trainer may record a step in several calls
        run.log_groups(groups[1:], step=step)
    return run


def cited_findings(findings):
    return [(each.rule, each.severity, each.step, each.cited) for each in findings if each.cited]


def test_a_run_reports_it_during_training_and_records_it(tmp_path):
    run = train(tmp_path / "run")
    live = cited_findings(run.findings)
    run.finish()
    assert ("ends_the_process", "critical") in {each[:2] for each in live}
    assert all(len(each[3]) >= 3 for each in live)
    view = open_run(tmp_path / "run")
    assert cited_findings(view.findings) == live
    assert cited_findings(check(tmp_path / "run").findings) == [each for each in live if each[1] != "info"][::-1]
    assert check(tmp_path / "run").verdict == "act"


def test_a_run_that_nobody_watched_is_scanned_when_it_is_looked_at(tmp_path):
    train(tmp_path / "watched").finish()
    train(tmp_path / "alone", monitor=False).finish()
    rules = {
        name: [each[:2] for each in cited_findings(check(tmp_path / name).findings)] for name in ("watched", "alone")
    }
    assert rules["alone"] == [("ends_the_process", "critical"), ("ends_the_process", "warning")]
    assert rules["watched"] == rules["alone"]


def test_places_are_those_of_the_files(tmp_path):
    run = train(tmp_path / "run")
    cited = [place for finding in run.findings for place in finding.cited]
    run.finish()
    source = open_rollouts(tmp_path / "run")
    assert cited
    for place in cited:
        rollout = source.at(place.step)[place.group - 1].rollouts[place.rollout - 1]
        assert rollout.turns[place.turn - 1].text[place.start : place.end] == "os._exit("


def test_scanning_stops_where_its_time_is_spent(tmp_path, monkeypatch):
    monkeypatch.setattr(text_scans, "ALLOWANCE", 0.0)
    monkeypatch.setattr(text_scans, "TIME_SHARE", 0.0)
    run = train(tmp_path / "run")
    assert cited_findings(run.findings) == []
    run.finish()
    assert scan_rollouts(open_rollouts(tmp_path / "run")).findings


def test_what_waits_is_limited():
    scans = text_scans.TextScans(lambda: None)
    for step in range(text_scans.MOST_WAITING + 5):
        scans.take_groups(list(groups_of(1)), step, 0.0)
    assert len(scans._waiting) == text_scans.MOST_WAITING
    assert scans.left_out == 5 * 32
    scans.take_groups(list(groups_of(1, count=20)), 999, 0.0)
    assert sum(len(group.rollouts) for group in scans._waiting[-1][2]) == text_scans.MOST_OF_A_CALL


def test_rollouts_without_texts_are_not_scanned():
    scans = text_scans.TextScans(lambda: None)
    scans.take_groups([Group("p", (Rollout(reward=1.0),))], 1, 0.0)
    assert not scans.is_used


def test_a_resumed_run_does_not_report_it_again(tmp_path):
    run = train(tmp_path / "run")
    first = cited_findings(run.findings)
    run.finish()
    run = train(tmp_path / "run", range(16, 20), resume=True)
    again = cited_findings(run.findings)
    run.finish()
    assert [each[:3] for each in again] == [each[:3] for each in first]


def test_a_defect_of_the_scanners_is_logged_and_training_goes_on(tmp_path, monkeypatch, caplog):
    def breaks(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr("rlvitals.scan.tally.Scans.take", breaks)
    run = train(tmp_path / "run", range(3))
    assert run.findings == []
    run.finish()
    assert caplog.text.count("the texts of rollouts are not scanned") == 1


@pytest.mark.parametrize("texts", [True, False])
def test_a_shared_copy_quotes_no_model_where_texts_stay_at_home(tmp_path, texts):
    from rlvitals.store.findings import event_line, read_events
    from rlvitals.store.layout import RunDir
    from rlvitals.store.redaction import Redaction

    train(tmp_path / "run").finish()
    events = [event for event in read_events(RunDir(tmp_path / "run")) if event.finding and event.finding.cited]
    redaction = Redaction.of(RunDir(tmp_path / "run"), texts=texts)
    import json

    copied = [redaction.finding(json.loads(event_line(event))) for event in events]
    assert copied
    assert all(("os._exit(0)" in json.dumps(one)) == texts for one in copied)


def shouts(rollout, group):
    assert group.prompt == "Write f."
    return ["os._exit"] if "os._exit" in rollout.turns[-1].text else []


def test_scanners_of_the_users_own_are_at_work_while_it_trains(tmp_path, monkeypatch):
    plain_sum = '{name: plain_sum, match: "return x", severity: warning}'
    (tmp_path / "mine.yaml").write_text(f"scanners:\n- {plain_sum}\n")
    monkeypatch.chdir(tmp_path)
    entry = {"name": "imports_os", "match": "import os", "severity": "critical", "kind": "agent_loop"}
    run = train(tmp_path / "run", scanners=["mine.yaml", shouts, entry])
    found = {each.rule: each for each in run.findings if each.cited}
    run.finish()
    assert {"ends_the_process", "plain_sum", "shouts", "imports_os"} <= found.keys()
    assert (found["imports_os"].kind, found["imports_os"].severity) == ("agent_loop", "critical")
    assert found["plain_sum"].severity == "warning"
    assert {each.quote for each in found["shouts"].cited} == {"os._exit(0)"}  # quoted with its whole line
    on_record = open_run(tmp_path / "run").config["rlvitals"]["scanners"]
    assert on_record == [str(tmp_path / "mine.yaml"), "shouts", entry]


def broken(rollout, group):
    raise RuntimeError("not today")


def test_a_scanner_that_raises_leaves_the_others_and_the_training_alone(tmp_path):
    run = train(tmp_path / "run", scanners=broken)
    assert {each.rule for each in run.findings if each.cited} == {"ends_the_process"}
    run.finish()


@pytest.mark.parametrize(
    ("scanners", "words"),
    [
        ([{"name": "open", "match": "("}], "not a regular expression"),
        ([{"name": "ends_the_process", "match": "x"}], "has the name of another one"),
        ("missing.yaml", "missing.yaml"),
        (7, "scanners must be"),
    ],
)
def test_a_scanner_that_cannot_be_used_is_an_error_before_anything_is_written(tmp_path, scanners, words):
    with pytest.raises(ConfigError, match=words.replace("(", "[(]")):
        rlvitals.start(tmp_path / "run", scanners=scanners, display="none")
    assert not (tmp_path / "run").exists()


def test_scanners_need_the_monitor(tmp_path):
    with pytest.raises(ConfigError, match="scanners needs the monitor"):
        rlvitals.start(tmp_path / "run", scanners=shouts, monitor=False, display="none")
