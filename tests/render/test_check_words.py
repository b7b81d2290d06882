"""The text of a finding in a report: when it was reported, its evidence and its confidence."""

from __future__ import annotations

import pytest

from rlvitals.render.check import evidence, kind, when


def finding(**changed):
    plain = {
        "rule": "entropy_collapse", "kind": "entropy_collapse", "slice": "", "cause": "", "severity": "warning",
        "onset_step": 1, "step": 10, "recovered_step": None, "title": "", "evidence": {}, "metrics": ["entropy"],
        "confidence": 0.8,
    }  # fmt: skip
    return plain | changed


def test_reports_and_recoveries_of_one_alarm_are_listed_in_the_order_of_the_steps():
    worst = finding(severity="critical", step=15, recovered_step=44)
    warned = finding(step=12, recovered_step=44)
    again = finding(severity="critical", step=60, recovered_step=80)
    assert when(worst, [again, warned]) == (
        "started at step 1, warning at 12, critical at 15, recovered at 44, again at 60, recovered at 80"
    )
    assert when(finding(severity="critical"), []) == "started at step 1, critical at 10, not recovered"


def test_an_alarm_that_comes_and_goes_all_the_time_is_cut_and_still_says_how_it_ended():
    passing = [finding(step=10 * n, recovered_step=10 * n + 5) for n in range(1, 9)]
    text = when(passing[0], passing[1:])
    assert text.startswith("started at step 1, warning at 10, recovered at 15, again at 20")
    assert text.endswith("…, recovered at 85")
    assert text.count(",") == 8


@pytest.mark.parametrize(
    ("title", "own"),
    [
        ("the reward is no better than at the start (+0.19)", {"gain": 0.1917}),
        (f"{0.42:.0%} of the calls fail", {"share_now": 0.4183}),
        ("training diverges within the first 15 points: kl 16.8", {"signs": "kl 16.8"}),
        ("-1 against -0.878", {"now": -1.0, "start": -0.8778}),
        ("a learning rate of 2.5e-07", {"highest": 2.5e-7}),
        ("1,552 tokens", {"length": 1552.2}),
    ],
)
def test_what_the_title_says_is_not_repeated(title, own):
    numbers = {"level": 0.74, "base": 1.0, "noise": 1.6, "points": 104.0}
    assert evidence(finding(title=title, evidence=numbers | own)) == (
        "entropy: moving average 0.74, at the start 1, typical noise 1.6, 104 points"
    )


def test_what_the_title_does_not_say_has_words():
    found = finding(title="no better than at the start (+0.19)", evidence={"t": 1.35, "limit": 2.5, "gain": 0.2})
    assert evidence(found) == "entropy: limit 2.5, 1.35 standard errors, gained 0.2"


def test_no_finding_is_called_certain():
    assert kind(finding(confidence=1.0)) == "entropy_collapse, 99% sure"
    assert kind(finding(confidence=0.804)) == "entropy_collapse, 80% sure"


@pytest.mark.parametrize("noise", [0.0, 5e-10, "nan"])
def test_equal_values_have_no_noise_to_show(noise):
    numbers = {"level": 0.5, "base": 0.5, "noise": noise, "points": 38.0}
    assert evidence(finding(evidence=numbers)) == "entropy: moving average 0.5, at the start 0.5, 38 points"
