"""What findings lead to: which request, when a stop is allowed, when nothing is asked again."""

from __future__ import annotations

import pytest

from rlvitals.health.actions import MOST_LR_CUTS, Policy
from rlvitals.records import ACTIONS, Finding


def found(rule="r", kind="kl_explosion", severity="critical", action="stop", metrics=("kl",), **more):
    facts = {"step": 100, "onset_step": 90, "title": f"{rule} is wrong", **more}
    return Finding(rule=rule, kind=kind, severity=severity, action=action, metrics=metrics, **facts)


OTHER = {"rule": "other", "kind": "entropy_collapse", "metrics": ("entropy",), "action": "warn"}


def asked(policy, *findings, checkpoints=()):
    request = policy.consider(findings, lambda: {step: f"checkpoint-{step}" for step in checkpoints})
    return request.action if request else None


@pytest.mark.parametrize("action", ["warn", "checkpoint", "reduce_lr"])
def test_a_harmless_action_is_asked_for_as_it_is(action):
    request = Policy().consider([found(action=action, severity="warning")])
    assert request.action == action
    assert "r is wrong (since step 90)" in request.reason
    assert request.finding.rule == "r"
    assert request.factor == (0.5 if action == "reduce_lr" else None)


def test_a_finding_that_asks_for_nothing_leads_to_nothing():
    assert asked(Policy(), found(action="none")) is None


def test_nothing_new_leads_to_nothing():
    policy = Policy({"r"})
    assert asked(policy) is None
    assert policy.open is None


# Stop


def test_a_certain_critical_stops():
    assert asked(Policy({"r"}), found()) == "stop"


def test_an_uncertain_critical_alone_only_warns():
    assert asked(Policy(), found()) == "warn"


def test_a_warning_never_stops_however_certain_its_rule():
    assert asked(Policy({"r"}), found(severity="warning")) == "warn"


def test_two_independent_criticals_stop_and_both_are_named():
    request = Policy().consider([found(), found(**OTHER)])
    assert request.action == "stop"
    assert "r is wrong" in request.reason
    assert "other is wrong" in request.reason


@pytest.mark.parametrize(
    "second",
    [
        {"kind": "kl_explosion"},
        {"metrics": ("kl",)},
        {"metrics": ("entropy", "kl")},
        {"metrics": ()},
        {"severity": "warning"},
        {"kind": "memory"},
        {"kind": "stall"},
    ],
    ids=["same kind", "same signal", "shared signal", "no signal", "a warning", "memory", "a stall"],
)
def test_a_second_finding_that_is_not_independent_does_not_stop(second):
    assert asked(Policy(), found(), found(**{**OTHER, **second})) == "warn"


def test_the_second_critical_may_come_later():
    policy = Policy()
    assert asked(policy, found()) == "warn"
    assert asked(policy, found(**OTHER)) == "stop"
    assert policy.open.finding.rule == "r"


@pytest.mark.parametrize("own", [{"severity": "warning"}, {"kind": "data"}, {"metrics": ()}])
def test_what_is_no_critical_of_the_weights_does_not_stop_beside_one_that_is(own):
    assert asked(Policy(), found(**own), found(**OTHER)) == "warn"


def test_two_criticals_that_ask_for_no_stop_do_not_stop():
    assert asked(Policy(), found(action="reduce_lr"), found(**OTHER)) == "reduce_lr"


def test_a_critical_that_has_recovered_is_no_witness():
    policy = Policy()
    asked(policy, found(**OTHER))
    policy.recover({"r"})
    assert asked(policy, found()) == "warn"


def test_a_stall_only_warns_because_who_reads_it_has_gone_on():
    assert asked(Policy({"stall"}), found(rule="stall", kind="stall")) == "warn"


# Revert


def test_revert_takes_the_newest_checkpoint_before_the_onset():
    policy = Policy()
    request = policy.consider([found(action="revert")], lambda: {50: "a", 89: "b", 90: "c", 95: "d"})
    assert (request.action, request.checkpoint, request.checkpoint_step) == ("revert", "b", 89)


@pytest.mark.parametrize("checkpoints", [(), (90, 100)], ids=["none", "only later ones"])
def test_without_a_checkpoint_revert_is_a_stop_if_certain_and_a_warning_otherwise(checkpoints):
    assert asked(Policy({"r"}), found(action="revert"), checkpoints=checkpoints) == "stop"
    assert asked(Policy(), found(action="revert"), checkpoints=checkpoints) == "warn"


def test_checkpoints_are_looked_for_only_where_they_matter():
    def fail():
        raise AssertionError("nobody asked for a revert")

    assert Policy({"r"}).consider([found()], fail).action == "stop"


# Learning rate


@pytest.mark.parametrize("kind", ["reward_hacking", "zero_variance", "reward_floor", "not_learning"])
def test_a_smaller_learning_rate_is_never_the_answer_to_a_missing_signal_or_an_exploit(kind):
    request = Policy().consider([found(kind=kind, action="reduce_lr")])
    assert request.action == "warn"
    assert "no answer" in request.reason


def test_the_learning_rate_is_cut_at_most_twice():
    policy = Policy()
    for number in range(MOST_LR_CUTS):
        request = policy.consider([found(rule=f"r{number}", action="reduce_lr")])
        assert request.action == "reduce_lr"
        policy.settle(request, "done")
    assert asked(policy, found(rule="late", action="reduce_lr")) == "warn"


def test_a_declined_cut_does_not_count():
    policy = Policy()
    for number in range(5):
        request = policy.consider([found(rule=f"r{number}", action="reduce_lr")])
        assert request.action == "reduce_lr"
        policy.settle(request, "declined")


def test_only_cuts_of_the_learning_rate_count_as_such():
    policy = Policy()
    for number in range(5):
        request = policy.consider([found(rule=f"r{number}", action="checkpoint")])
        policy.settle(request, "done")
    assert asked(policy, found(action="reduce_lr")) == "reduce_lr"


def test_cuts_from_before_a_resume_count():
    policy = Policy()
    policy.remember("a", "reduce_lr", "done")
    policy.remember("b", "reduce_lr", "done")
    assert asked(policy, found(action="reduce_lr")) == "warn"


# One at a time


def test_a_graver_request_replaces_the_open_one_and_a_lesser_one_does_not():
    policy = Policy({"certain"})
    assert asked(policy, found(action="reduce_lr")) == "reduce_lr"
    assert asked(policy, found(rule="b", action="checkpoint")) is None
    assert asked(policy, found(rule="c", action="reduce_lr")) is None
    assert policy.open.finding.rule == "r"
    assert asked(policy, found(rule="certain")) == "stop"
    assert policy.open.finding.rule == "certain"


def test_of_several_findings_the_gravest_is_asked_for():
    findings = [found(rule=action, action=action) for action in ACTIONS]
    assert asked(Policy({"stop"}), *findings) == "stop"


def test_requests_are_numbered_on_from_those_made_before():
    policy = Policy(asked=7)
    assert policy.consider([found(action="checkpoint")]).number == 8


@pytest.mark.parametrize("answer", ["done", "declined"])
def test_an_answered_action_is_not_asked_again_until_the_rule_has_recovered(answer):
    policy = Policy({"r"})
    policy.settle(policy.consider([found()]), answer)
    assert policy.open is None
    policy.recover({"r"})
    assert asked(policy, found(step=120)) is None
    policy.recover(())
    assert asked(policy, found(step=150)) == "stop"


def test_a_graver_action_of_the_same_rule_is_asked_for_after_an_answer():
    policy = Policy({"r"})
    policy.settle(policy.consider([found(severity="warning", action="reduce_lr")]), "done")
    assert asked(policy, found()) == "stop"


def test_an_open_request_is_withdrawn_when_its_reason_is_gone():
    policy = Policy({"r"})
    request = policy.consider([found()])
    assert policy.recover({"r"}) is None
    assert policy.recover({"something else"}) == request
    assert policy.open is None


def test_a_warning_is_over_once_it_is_told_and_other_requests_stay_open():
    policy = Policy({"r"})
    asked(policy, found(rule="w", action="warn"))
    assert policy.hand_over().action == "warn"
    assert policy.hand_over() is None
    asked(policy, found())
    assert policy.hand_over().action == policy.hand_over().action == "stop"


def test_criticals_seen_in_weights_that_were_reverted_do_not_count_any_more():
    policy = Policy()
    request = policy.consider([found(action="revert")], lambda: {50: "checkpoint-50"})
    policy.settle(request, "done")
    assert asked(policy, found(**{**OTHER, "action": "stop"})) == "warn"
