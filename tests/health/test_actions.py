"""The requests that findings lead to: which action, when a stop is allowed, when nothing is requested again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rlvitals.health.actions import MOST_LR_CUTS, MOST_REVERTS, CannotGoBack, Declined, Policy, RequestOutcome, perform
from rlvitals.records import ACTIONS, Finding, Request


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
    assert request.factor == 0.5


@pytest.mark.parametrize("checkpoints", [(), (90, 100)], ids=["none", "only later ones"])
def test_without_a_checkpoint_revert_is_a_stop_if_certain_and_a_warning_otherwise(checkpoints):
    assert asked(Policy({"r"}), found(action="revert"), checkpoints=checkpoints) == "stop"
    assert asked(Policy(), found(action="revert"), checkpoints=checkpoints) == "warn"


def test_checkpoints_are_looked_for_only_where_they_matter():
    def fail():
        raise AssertionError("nobody asked for a revert")

    assert Policy({"r"}).consider([found()], fail).action == "stop"


def went_back(policy, *, onset, now, rule="earlier"):
    """The policy after a revert that was requested and done."""
    request = policy.consider([found(rule, action="revert", onset_step=onset)], lambda: {1: "checkpoint-1"})
    policy.settle(request, "done", now)
    return policy


@pytest.mark.parametrize(("step", "is_good"), [(59, True), (60, False), (65, False), (70, False), (71, True)])
def test_a_stretch_that_a_revert_abandoned_has_both_of_its_ends(step, is_good):
    policy = went_back(Policy(), onset=60, now=70)
    request = policy.consider([found(action="revert")], lambda: {1: "old", step: "newest"})
    assert request.checkpoint == ("newest" if is_good else "old")


@pytest.mark.parametrize(("step", "is_good"), [(89, True), (90, False), (91, False)])
def test_a_checkpoint_of_the_onset_itself_is_spoiled_already(step, is_good):
    request = Policy().consider([found(action="revert", onset_step=90)], lambda: {1: "old", step: "newest"})
    assert request.checkpoint == ("newest" if is_good else "old")


def test_where_only_spoiled_checkpoints_are_left_there_is_none():
    policy = went_back(Policy({"r"}), onset=60, now=70)
    request = policy.consider([found(action="revert")], lambda: {65: "spoiled"})
    assert request.action == "stop"
    assert "no good checkpoint is older" in request.reason


def test_a_revert_that_was_declined_abandons_nothing_and_does_not_count():
    policy = Policy()
    for number in range(MOST_REVERTS + 1):
        request = policy.consider([found(f"r{number}", action="revert")], lambda: {80: "checkpoint-80"})
        assert (request.action, request.checkpoint_step) == ("revert", 80)
        policy.settle(request, "declined", 100)


@pytest.mark.parametrize(("severity", "action"), [("critical", "stop"), ("warning", "warn")])
def test_the_third_way_back_is_a_stop_that_names_the_last_good_checkpoint(severity, action):
    policy = Policy()
    for number in range(MOST_REVERTS):
        went_back(policy, onset=10 + 10 * number, now=15 + 10 * number, rule=f"r{number}")
    request = policy.consider([found(action="revert", severity=severity)], lambda: {15: "spoiled", 70: "out/good-70"})
    assert request.action == action
    assert f"reverted {MOST_REVERTS} times already" in request.reason
    assert ("the last good checkpoint is good-70" in request.reason) == (action == "stop")


def line(kind, step, attempt=1, **facts):
    return SimpleNamespace(type=kind, step=step, attempt=attempt, facts=facts)


def reverted(onset, now, *, number=1, attempt=1, answer="done"):
    return [
        line("request", onset + 1, attempt, request=number, action="revert", rule=f"r{number}", onset_step=onset),
        line("answer", now, attempt, request=number, action="revert", rule=f"r{number}", answer=answer),
    ]


@pytest.mark.parametrize(
    ("cuts", "good"),
    [
        ({}, {59, 71}),
        ({2: 71}, {59, 71}),
        ({2: 66}, {59, 66, 70, 71}),
        ({2: 60}, {59, 60, 65, 66, 70, 71}),
        ({2: 30}, {59, 60, 65, 66, 70, 71}),
        ({1: 66}, {59, 71}),
    ],
    ids=["no resume", "after it", "in its middle", "at its onset", "before it", "an earlier attempt"],
)
def test_what_a_revert_spoiled_before_a_resume_stays_spoiled_unless_it_is_trained_again(cuts, good):
    for step in (59, 60, 65, 66, 70, 71):
        policy = Policy()
        policy.recall(reverted(60, 70), cuts)
        request = policy.consider([found(action="revert")], lambda step=step: {1: "old", step: "newest"})
        assert (request.checkpoint == "newest") == (step in good), step


def test_reverts_from_before_a_resume_count():
    policy = Policy()
    policy.recall([*reverted(10, 12), *reverted(20, 22, number=2), *reverted(30, 31, number=3, answer="declined")], {})
    assert asked(policy, found(action="revert"), checkpoints=[5]) == "stop"
    policy = Policy()
    policy.recall([*reverted(10, 12), *reverted(30, 31, number=3, answer="declined")], {})
    assert asked(policy, found(action="revert"), checkpoints=[5]) == "revert"


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


# One request at a time


def test_a_more_severe_request_replaces_the_open_one_and_a_lesser_one_does_not():
    policy = Policy({"certain"})
    assert asked(policy, found(action="reduce_lr")) == "reduce_lr"
    assert asked(policy, found(rule="b", action="checkpoint")) is None
    assert asked(policy, found(rule="c", action="reduce_lr")) is None
    assert policy.open.finding.rule == "r"
    assert asked(policy, found(rule="certain")) == "stop"
    assert policy.open.finding.rule == "certain"


def test_of_several_findings_the_most_severe_is_asked_for():
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


def test_a_more_severe_action_of_the_same_rule_is_asked_for_after_an_answer():
    policy = Policy({"r"})
    policy.settle(policy.consider([found(severity="warning", action="reduce_lr")]), "done")
    assert asked(policy, found()) == "stop"


def test_an_open_request_is_withdrawn_when_its_reason_is_gone():
    policy = Policy({"r"})
    request = policy.consider([found()])
    assert policy.recover({"r"}) is None
    assert policy.recover({"something else"}) == request
    assert policy.open is None


def test_a_warning_is_over_once_it_is_handed_over_and_other_requests_stay_open():
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


# Carrying out a request


class Trainer:
    """Controls that record their calls, and raise the given problems."""

    def __init__(self, **problems):
        self.calls, self.problems = [], problems

    def _take(self, name, *given):
        self.calls.append((name, *map(str, given)))
        if name in self.problems:
            raise self.problems[name]

    def stop(self):
        self._take("stop")

    def save(self):
        self._take("save")
        return "checkpoint-7"

    def scale_rate(self, factor):
        self._take("scale_rate", factor)
        return 1e-3, 1e-3 * factor

    def revert(self, checkpoint):
        self._take("revert", checkpoint)


def request_for(action):
    return Request(action, "why", found(action=action), checkpoint="out/checkpoint-4", checkpoint_step=4, factor=0.5)


@pytest.mark.parametrize(
    ("action", "calls", "outcome"),
    [
        ("stop", [], RequestOutcome("done", "training stops", must_stop=True)),
        ("checkpoint", [("save",)], RequestOutcome("done", "saved checkpoint-7")),
        ("reduce_lr", [("scale_rate", "0.5")], RequestOutcome("done", "learning rate 0.001 -> 0.0005")),
        (
            "revert",
            [("revert", "out/checkpoint-4"), ("scale_rate", "0.5")],
            RequestOutcome("done", "back to checkpoint-4, learning rate 0.001 -> 0.0005; steps and data continue"),
        ),
        ("warn", [], RequestOutcome("done")),
    ],
)
def test_each_action_uses_its_control_and_says_what_was_done(action, calls, outcome):
    trainer = Trainer()
    assert perform(request_for(action), trainer) == outcome
    assert trainer.calls == calls


@pytest.mark.parametrize("action", ["checkpoint", "reduce_lr", "revert"])
def test_what_a_trainer_does_not_do_is_declined_and_training_goes_on(action):
    trainer = Trainer(save=Declined("not here"), scale_rate=Declined("not here"), revert=Declined("not here"))
    assert perform(request_for(action), trainer) == RequestOutcome("declined", "not here")


@pytest.mark.parametrize(
    ("problem", "why"),
    [(CannotGoBack("it is sharded"), "it is sharded"), (ValueError("bad file"), "ValueError: bad file")],
)
def test_a_revert_that_fails_stops_the_training(problem, why):
    text = f"training stops: it cannot revert to checkpoint-4: {why}"
    assert perform(request_for("revert"), Trainer(revert=problem)) == RequestOutcome("declined", text, must_stop=True)
    assert perform(request_for("revert"), Trainer(scale_rate=ValueError())).must_stop


def test_a_save_or_a_cut_that_fails_does_not_stop_the_training():
    trainer = Trainer(save=OSError("full"), scale_rate=KeyError("lr"))
    assert perform(request_for("checkpoint"), trainer) == RequestOutcome("declined", "OSError: full")
    assert perform(request_for("reduce_lr"), trainer) == RequestOutcome("declined", "KeyError: 'lr'")


def test_a_rate_that_cannot_be_cut_does_not_undo_a_revert():
    outcome = perform(request_for("revert"), Trainer(scale_rate=Declined("it chooses its own")))
    assert outcome == RequestOutcome(
        "done", "back to checkpoint-4, the learning rate stays the same (it chooses its own); steps and data continue"
    )


def test_a_trainer_that_saves_later_answers_later():
    class Later(Trainer):
        def save(self):
            return None

    assert perform(request_for("checkpoint"), Later()) == RequestOutcome(None)
