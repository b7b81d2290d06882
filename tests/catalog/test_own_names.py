"""The catalogue knows the names of rlvitals' own trainers and recorder, and does not recognise other logs as theirs."""

from __future__ import annotations

import pytest

from rlvitals import catalog
from rlvitals.capture.counters import Rates
from rlvitals.capture.hardware import GpuSample, combined
from rlvitals.compute import step_channels


@pytest.mark.parametrize(
    ("name", "framework", "concept"),
    [
        ("perf/train_step/tokens_per_s", "trl_kto", "perf.phase.tokens_per_s"),
        ("perf/actor/train_step/tokens_per_s/p1", None, "perf.phase.tokens_per_s.p1"),
        ("time/generate/device", "roll", "time.phase.device"),
        ("Performance/Backprop_Time", "rlvitals", "time.backward"),
        ("Performance/TrainStep_Time", "rlvitals", "time.phase.execute"),
        ("eval/right", "roll", "eval.solved_fraction"),
        ("wins", "trl", "eval.control.wins"),
        ("losses", "trl", "eval.control.losses"),
        ("best_accuracy", "verl", "eval.score.best"),
        ("eval/evals_without_improvement", None, "eval.since_best"),
        ("found_email_fraction", "trl", "agent.found_source_fraction"),
        ("Teacher/FailureRate", "rlvitals", "reward.unscorable_fraction"),
        ("Teacher/Tokens", "rlvitals", "reward.api_tokens"),
        ("Scoring/Correctness", "rlvitals", "reward.component.weight"),
        ("Scoring/Correctness_Score", "rlvitals", "reward.component.mean"),
        ("correctness", "rlvitals", "reward.component.mean"),
        ("accuracy", "rlvitals", "eval.score.mean"),
        ("eval/response_length", "rlvitals", "eval.length.mean"),
        ("eval_samples_per_second", "trl_kto", "perf.eval_samples_per_s"),
        ("eval_steps_per_second", "trl_kto", "perf.eval_steps_per_s"),
        ("eval_runtime", "trl_kto", "time.eval"),
    ],
)
def test_a_name_of_ours_means_what_the_code_computes(name, framework, concept):
    assert catalog.find(name, framework)[0].metric.id == concept


def test_a_phases_time_is_described_as_the_recorder_takes_it_and_in_a_run_of_roll_as_roll_does():
    ours, rolls = (catalog.find("time/train_step/total", framework)[0].alias for framework in ("trl", "roll"))
    assert (ours.framework, rolls.framework) == ("rlvitals", "roll")


@pytest.mark.parametrize("names", ["canonical", "rlaif"])
def test_every_speed_of_a_phase_is_explained(names):
    rates = Rates(names)
    for phase in ("generate", "backward", "train_step", "compute_log_probs"):
        rates.add(phase, tokens=100, seconds=1.0)
    speeds = rates.take()
    assert len(speeds) >= 16
    assert {catalog.find(name)[0].metric.family for name in speeds} <= {"throughput", "time"}


def test_every_number_of_a_card_is_explained():
    card = GpuSample(utilisation=90.0, memory_used=20.0, memory_total=80.0, power=300.0, temperature=60.0)
    numbers = combined([card, card])
    assert len(numbers) == 18
    assert [name for name in numbers if not catalog.reader().matches(name)] == []


def test_every_statistic_of_a_step_is_explained():
    names = [*step_channels.SHOWN, *step_channels._DERIVED, *step_channels._MIRRORED]
    assert [name for name in names if not catalog.reader().matches(name)] == []


BARE = ["correctness", "efficiency", "documentation", "wins", "ties", "losses", "response_length", "best_accuracy"]


def test_bare_words_point_to_no_framework():
    assert catalog.recognise(BARE) == (None, None)
    assert catalog.recognise([*BARE, "reward", "accuracy", "epoch"]).framework != "rlvitals"


def test_what_the_recorder_adds_to_a_run_leaves_its_framework_as_it_was():
    recorded = ["perf/train_step/tokens_per_s", "perf/train_step/tokens_per_s/p1", "time/train_step/device", *BARE]
    dpo = ["loss", "rewards/chosen", "rewards/margins", "rewards/accuracies", "logps/chosen"]
    assert catalog.recognise([*dpo, *recorded]) == ("trl_dpo", "dpo")
    rlaif = ["Train/Loss", "Train/AvgReward", "Epoch/AvgReward", "Teacher/Tokens", "Teacher/FailureRate"]
    assert catalog.recognise([*rlaif, *recorded]) == ("rlaif", "rlaif")


def test_lengths_of_a_hand_written_log_stay_lengths():
    assert catalog.find("response_length")[0].metric.id == "length.response.mean"
    assert catalog.find("truncated_fraction")[0].metric.id == "length.truncated_fraction"


def test_our_names_do_not_make_a_common_one_ambiguous():
    assert not catalog.explain("reward").is_ambiguous
    assert not catalog.explain("epoch").is_ambiguous
