"""RLAIF: what is learnt and logged, what is left out, how it ends and resumes."""

from __future__ import annotations

import copy
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

import rlvitals
from conftest import torchrun, unexplained, until
from rlvitals.compute import policy
from rlvitals.errors import ConfigError, RunExists
from rlvitals.train import functions, models, recipe, rlaif
from rlvitals.train.loop import MergedRow, open_accelerator
from rlvitals.train.rlaif import metrics
from rlvitals.train.rlaif.settings import RLAIFSettings as Settings
from rlvitals.train.rlaif.settings import check, open_gold
from rlvitals.train.rlaif.tasks import split_tasks, warmed_up
from rlvitals.train.rlaif.trainer import load_student, start_run
from rlvitals.train.teachers.base import WEIGHTS, Judgement
from rlvitals.train.teachers.offline import OfflineTeacher

pytestmark = pytest.mark.slow

SMALL = {
    "warm_up_steps": 6, "warm_up_batch_size": 4, "tasks": 8, "eval_tasks": 6, "prompts_per_step": 4, "group_size": 2,
    "max_new_tokens": 24, "max_steps": 4, "eval_steps": 0, "save_steps": 0, "agreement_steps": 2,
    "agreement_samples": 2, "track_with": (), "display": "none",
}  # fmt: skip


def settings(folder, **changes):
    return recipe.load("rlaif", Settings, None, {"output_dir": str(folder), **SMALL, **changes})


def rows_of(folder, name="training_metrics"):
    return [json.loads(line) for line in (Path(folder) / "logs" / f"{name}.jsonl").read_text().splitlines()]


class Scripted:
    """A teacher that prefers long answers, and fails to judge those that `fails` selects."""

    identity = "scripted"

    def __init__(self, fails=lambda number: False):
        self.fails, self.number = fails, 0

    def check(self): ...

    def close(self): ...

    def judge(self, questions):
        found = []
        for question in questions:
            self.number += 1
            score = min(1.0, len(question.answer) / 100)
            scores = None if self.fails(self.number) else dict.fromkeys(WEIGHTS, score)
            found.append(Judgement(scores, "" if scores else "no opinion", 10, 2))
        return found


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A tiny student with hardly any pre-training."""
    folder = tmp_path_factory.mktemp("small")
    loaded = warmed_up(0, steps=6, batch_size=4, learning_rate=6e-3)
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def trainer(small):
    def build(folder, teacher, gold=None, **changes):
        chosen = settings(folder, model=small, chat=False, **changes)
        accelerator = open_accelerator(chosen)
        student = load_student(chosen, accelerator)
        run = start_run(chosen, student, None)
        tasks = split_tasks(chosen)
        return rlaif.RlaifTrainer(chosen, tasks, teacher, student, run=run, accelerator=accelerator, gold=gold)

    return build


def learn(trainer):
    with trainer.run:
        return trainer.learn(None)


class LikesSpaces(Scripted):
    """A teacher whose preference even a student with hardly any pre-training learns in a few steps."""

    def judge(self, questions):
        shares = (question.answer.count(" ") / max(1, len(question.answer)) for question in questions)
        return [Judgement(dict.fromkeys(WEIGHTS, share), "", 10, 2) for share in shares]


def test_a_student_learns_what_its_teacher_likes(tmp_path, trainer):
    """tests/learn does this with the tests of functions, which takes minutes and a student that has read more."""
    outcome = learn(
        trainer(tmp_path, LikesSpaces(), max_steps=12, group_size=6, learning_rate=1e-2, lr_warmup_steps=0, kl_coef=0.0)
    )
    before, after = (row["reward"] for row in rows_of(tmp_path, "eval_metrics"))
    assert after >= before + 0.2, outcome
    assert rows_of(tmp_path, "eval_metrics")[-1]["baseline_gain"] == pytest.approx(after - before)
    assert f"{before:.3f} -> {after:.3f}" in outcome.verdict


DOCUMENT = {
    "step": [
        *(f"Train/{name}" for name in (
            "Loss", "PolicyLoss", "KLPenalty", "AvgReward", "RewardStd", "RewardMin", "RewardMax", "RewardVariance")),
        *(f"Performance/{name}" for name in (
            "Generation_TokensPerSec", "Generation_Time", "Generation_AvgTokensPerSec", "Generation_P99TokensPerSec",
            "Backprop_TokensPerSec", "Backprop_AvgTokensPerSec", "Backprop_P99TokensPerSec")),
        "Teacher/Tokens", "Teacher/Seconds", "Teacher/FailureRate", "Teacher/CacheHitRate",
    ],
    "epoch": [
        *(f"Epoch/{name}" for name in (
            "AvgReward", "AvgLoss", "RewardVariance", "RewardTrend", "LossTrend", "APITokens", "NumSamples")),
        *(f"Scoring/{name}{kind}" for name in ("Correctness", "CodeQuality", "Efficiency", "Documentation")
          for kind in ("", "_Score")),
    ],
    "own": [f"System/{name}" for name in (
        "CPU_Percent", "Memory_Percent", "Memory_Used_GB", "Memory_Available_GB", "Process_Memory_GB")],
}  # fmt: skip


def test_tensorboard_has_every_tag_of_the_document_on_its_axis(tmp_path, monkeypatch, small):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    start = rlvitals.start
    monkeypatch.setattr(rlvitals, "start", lambda *a, **given: start(*a, hardware=0.1, **given))
    rlaif.train(settings(tmp_path, model=small, chat=False, max_steps=6, track_with=("tensorboard",)))
    events = EventAccumulator(str(tmp_path / "logs" / "tensorboard"))
    events.Reload()
    steps = {tag: [event.step for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    missing = [tag for tags in DOCUMENT.values() for tag in tags if tag not in steps]
    assert not missing
    for tag in DOCUMENT["step"]:
        assert steps[tag] == [1, 2, 3, 4, 5, 6], tag
    for tag in DOCUMENT["epoch"]:
        first = 1 if tag.endswith("Trend") else 0  # the first epoch has no previous one
        assert steps[tag] == list(range(first, 3)), tag
    for tag in DOCUMENT["own"]:
        assert steps[tag] == sorted(set(steps[tag])), tag
    assert events.Scalars("Scoring/Correctness")[0].value == pytest.approx(0.3)


def test_the_catalogue_explains_every_name_in_the_log(tmp_path, small):
    rlaif.train(settings(tmp_path, model=small, chat=False, eval_steps=2, save_steps=2))
    assert {"Epoch/RewardTrend", "Teacher/SelfAgreement", "baseline_gain"} <= set(rlvitals.open_run(tmp_path).metrics)
    assert unexplained(tmp_path) == []


# The meaning of the metrics


def by_hand(run, batch, advantages):
    """The loss and its gradient from logits, token by token, over the answers with an advantage. Only the sampled ids
    come from our code.
    """
    model = copy.deepcopy(run.accelerator.unwrap_model(run.model)).double()
    reference = copy.deepcopy(run.reference).double()
    rows, width, losses = batch.rows, batch.rows.width, []
    for place, advantage in enumerate(advantages):
        if advantage is None:
            continue
        kept = rows.mask[place].bool()
        ids = rows.ids[place][kept][None]
        answer = int(rows.mask[place, -width:].sum())
        own = (model(input_ids=ids).logits[0] / run.settings.temperature).log_softmax(-1)
        with torch.no_grad():
            ref = (reference(input_ids=ids).logits[0] / run.settings.temperature).log_softmax(-1)
        for column in range(ids.shape[1] - answer, ids.shape[1]):
            lp, base = own[column - 1, ids[0, column]], ref[column - 1, ids[0, column]]
            losses.append(-advantage * lp + run.settings.kl_coef * ((base - lp).exp() - (base - lp) - 1))
    total = torch.stack(losses).mean()
    return total.item(), torch.autograd.grad(total, list(model.parameters()))


@pytest.mark.parametrize("changes", [{"kl_coef": 0.0}, {"kl_coef": 0.5}, {"kl_coef": 0.5, "temperature": 0.8}])
@pytest.mark.parametrize("fails", [(), (1, 6)])
def test_the_loss_is_that_of_the_answers_tokens_and_of_nothing_else(tmp_path, trainer, changes, fails):
    run = trainer(tmp_path, Scripted(), learning_rate=1e-2, max_grad_norm=1e9, micro_batch_size=5, **changes)
    gradients = []
    with run.run:
        run.step = 1
        run.take_step()  # so that student and reference differ
        run.step = 2
        batch = run.answer(run.tasks[:3], 4, run.generator(5))
        judgements = run.teacher.judge(batch.questions)
        judgements = [Judgement(None, "no opinion") if at in fails else one for at, one in enumerate(judgements)]
        rewards = [judgement.reward for judgement in judgements]
        advantages = []
        for start in range(0, 12, 4):
            group = [reward for reward in rewards[start : start + 4] if reward is not None]
            mean = sum(group) / len(group)
            spread = math.sqrt(sum((reward - mean) ** 2 for reward in group) / len(group))
            advantages += [
                None if reward is None else (reward - mean) / (spread + 1e-8) for reward in rewards[start : start + 4]
            ]
        expected, slopes = by_hand(run, batch, advantages)
        run.optimizer.optimizer.register_step_pre_hook(
            lambda *_: gradients.extend(weight.grad.clone() for weight in run.model.parameters())
        )
        found = run.improve(batch, judgements)
    assert found["Train/Loss"].number == pytest.approx(expected, abs=2e-5)
    assert found["Train/Loss"].count == sum(int(batch.mask[at].sum()) for at in range(12) if at not in fails)
    assert (found["Train/KLPenalty"].number > 0) == (changes["kl_coef"] > 0)
    largest = max(slope.abs().max().item() for slope in slopes)
    assert largest > 1e-3
    for gradient, slope in zip(gradients, slopes, strict=True):
        assert torch.allclose(gradient.double(), slope, rtol=1e-3, atol=1e-4 * largest)


def test_micro_batches_make_the_same_step(tmp_path, trainer):
    weights = []
    for name, size in (("whole", None), ("parts", 3)):
        run = trainer(tmp_path / name, Scripted(), micro_batch_size=size)
        with run.run:
            run.step = 1
            run.take_step()
        weights.append(torch.cat([weight.detach().flatten() for weight in run.model.parameters()]))
    assert torch.allclose(*weights, atol=2e-5)


def test_the_student_moves_and_the_reference_does_not(tmp_path, trainer, small):
    run = trainer(tmp_path, Scripted())
    learn(run)
    kept = models.load(small, None).model.state_dict()
    reference, student = run.reference.state_dict(), run.accelerator.unwrap_model(run.model).state_dict()
    assert all(torch.equal(kept[name], reference[name]) for name in kept)
    assert not all(torch.equal(kept[name], student[name]) for name in kept)


def test_every_batch_is_one_optimiser_step_and_one_row(tmp_path, trainer):
    run = trainer(tmp_path, Scripted())
    steps = []
    run.optimizer.optimizer.register_step_post_hook(lambda *_: steps.append(run.step))
    learn(run)
    assert steps == [1, 2, 3, 4]
    assert [row["step"] for row in rows_of(tmp_path)] == [1, 2, 3, 4]


# Judgements that are missing


def test_an_answer_without_a_judgement_is_in_no_number(tmp_path, trainer):
    run = trainer(tmp_path, Scripted(fails=lambda number: number % 2 == 0))
    with run.run:
        run.step = 1
        batch = run.answer(run.tasks[:2], 4, run.generator(1))
        judgements = run.teacher._teacher.judge(batch.questions)
        stats = metrics.judged_stats(judgements, batch.groups, batch.mask, ~batch.finished)
        learnt = run.improve(batch, judgements)
    rewards = [judgement.reward for judgement in judgements if judgement.scores]
    assert len(rewards) == 4
    assert stats["Train/AvgReward"].count == 4
    assert stats["Train/AvgReward"].number == pytest.approx(sum(rewards) / 4)
    assert stats["Teacher/FailureRate"].number == 0.5
    assert learnt["Train/Loss"].count == int(batch.mask[::2].sum())


def test_a_teacher_that_judges_nothing_teaches_nothing_and_ends_the_run(tmp_path, trainer):
    run = trainer(tmp_path, Scripted(fails=lambda number: True), teacher_patience=3)
    before = [weight.detach().clone() for weight in run.model.parameters()]
    with pytest.raises(ConfigError, match="judged nothing for 3 steps"):
        learn(run)
    assert all(torch.equal(was, now) for was, now in zip(before, run.model.parameters(), strict=True))
    for row in rows_of(tmp_path):
        assert row["Teacher/FailureRate"] == 1.0
        assert not [name for name in row if "Reward" in name or name.startswith("rewards/") or name == "Train/Loss"]
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "failed"


def test_a_students_answer_cannot_end_the_training(tmp_path, trainer):
    """Some answers are code deeper than Python's stack: they are counted as not judged, and the others are used."""

    class Fed(OfflineTeacher):
        """Gets such code instead of about half of the answers."""

        def judge(self, questions):
            def deep(task):
                return f"def {task.entry_point}({task.argument}): return {'-' * 1900}{task.argument}"

            return super().judge(
                [one._replace(answer=deep(one.task)) if sum(map(ord, one.answer)) % 2 else one for one in questions]
            )

    teacher = Fed()
    try:
        assert learn(trainer(tmp_path, teacher, max_steps=2)).status == "finished"
    finally:
        teacher.close()
    logged = rows_of(tmp_path)
    assert [row["step"] for row in logged] == [1, 2]
    assert all(0 < row["Teacher/FailureRate"] < 1 for row in logged)


def test_a_teacher_that_throws_at_everything_is_one_that_judges_nothing(tmp_path, trainer):
    class Broken(Scripted):
        def judge(self, questions):
            raise MemoryError

    run = trainer(tmp_path, Broken(), teacher_patience=2)
    with pytest.raises(ConfigError, match="judged nothing for 2 steps"):
        learn(run)
    assert [row["Teacher/FailureRate"] for row in rows_of(tmp_path)] == [1.0, 1.0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_the_user_ends_the_training_while_answers_are_judged(tmp_path, trainer, error):
    class Asked(Scripted):
        def judge(self, questions):
            raise error

    with pytest.raises(error):
        learn(trainer(tmp_path, Asked()))


def test_the_teacher_is_held_against_the_tests_at_evaluations(tmp_path, trainer):
    """The teacher accepts everything, also answers that pass no test."""

    class Flattering(Scripted):
        def judge(self, questions):
            return [Judgement(dict.fromkeys(WEIGHTS, 1.0), "", 10, 2) for _ in questions]

    gold = OfflineTeacher()
    try:
        learn(trainer(tmp_path, Flattering(), max_steps=1, gold=gold))
        seen = rows_of(tmp_path, "eval_metrics")[-1]
    finally:
        gold.close()
    assert seen["judge.false_positive_fraction"] == 1.0
    assert seen["judge.gold_agreement"] == seen["accuracy"] < 1.0  # it is right only about the answers that pass
    assert seen["true_score"] < seen["reward"] == 1.0
    assert "judge.gold_agreement" not in rows_of(tmp_path)[-1]


@pytest.mark.parametrize(
    ("given", "is_run"),
    [
        ({}, False),  # the tests are the teacher
        ({"teacher": "local"}, True),
        ({"teacher": "local", "gold_tests": False}, False),
        ({"teacher": "local", "dataset": "mine.jsonl"}, False),
        ({"teacher": "local", "eval_dataset": "mine.jsonl"}, False),
        ({"teacher": "local", "dataset": "mine.jsonl", "gold_tests": True}, True),
    ],
)
def test_held_out_answers_are_run_beside_a_model_that_judges_and_to_own_tasks_only_if_asked_for(given, is_run):
    assert (open_gold(recipe.load("rlaif", Settings, None, given)) is not None) == is_run


def test_the_share_of_verdicts_that_are_right_by_hand():
    def judged(*rights):
        return [Judgement(None if right is None else dict.fromkeys(WEIGHTS, float(right))) for right in rights]

    # Right and called right, wrong and called right, right and called wrong, not judged, tests not run.
    verdicts, tested = judged(True, True, False, None, True), judged(True, False, True, True, None)
    stats = {name: value.number for name, value in metrics.gold_stats(verdicts, tested).items()}
    assert stats == {
        "judge.gold_agreement": pytest.approx(1 / 3),
        "judge.false_positive_fraction": 1.0,
        "judge.false_negative_fraction": 0.5,
        "judge.gold_separation": 0.25,  # of two pairs one is tied, in the other the wrong answer is ranked higher
        "solved": 0.75,
        "true_score": 0.75,
    }


def test_replies_without_a_verdict_are_counted_among_replies():
    scores = dict.fromkeys(WEIGHTS, 1.0)
    judgements = [
        Judgement(scores, "", 10, 5),
        Judgement(None, "no verdict", 10, 5, is_unread=True),
        Judgement(None, "time-out"),  # no reply at all
        Judgement(scores, is_cached=True),
        Judgement(scores, "", 10, 5),
    ]
    mask = torch.ones(5, 3)
    stats = metrics.judged_stats(judgements, [0, 0, 1, 1, 2], mask, torch.zeros(5, dtype=torch.bool))
    assert stats["judge.parse_failure_fraction"].number == pytest.approx(1 / 3)
    assert stats["Teacher/FailureRate"].number == pytest.approx(2 / 5)
    by_tests = metrics.judged_stats([Judgement(scores)], [0], mask[:1], torch.zeros(1, dtype=torch.bool))
    assert "judge.parse_failure_fraction" not in by_tests


def test_self_agreement_is_that_of_two_judgements_of_the_same_answer():
    def judged(*scores):
        return [Judgement(None if score is None else dict.fromkeys(WEIGHTS, score)) for score in scores]

    stats = metrics.agreement_stats(judged(1.0, 0.5, None, 0.2), judged(1.0, 0.25, 0.5, None))
    assert stats["Teacher/SelfAgreement"].number == pytest.approx((1.0 + 0.75) / 2)
    assert metrics.agreement_stats(judged(None), judged(1.0)) == {}


def test_epochs_are_means_over_samples_and_tokens_not_over_batches():
    epochs = metrics.EpochTags()
    values = rlvitals.values
    for rewards, losses, tokens in (([0.0, 1.0, 1.0], [2.0], 10), ([0.5], [1.0, 1.0, 1.0], 5)):
        stats = {"Train/AvgReward": values.mean(rewards), "Train/RewardVariance": values.of(rewards, "var")}
        stats |= {"Train/Loss": values.mean(losses), "Teacher/Tokens": values.total([tokens])}
        epochs.add(stats | {name: values.mean(rewards) for name in metrics.SCORES})
    first = epochs.close()
    assert first["Epoch/AvgReward"] == pytest.approx(2.5 / 4)
    assert first["Epoch/AvgLoss"] == pytest.approx(5.0 / 4)
    assert first["Epoch/RewardVariance"] == pytest.approx(sum((x - 0.625) ** 2 for x in (0, 1, 1, 0.5)) / 4)
    assert (first["Epoch/NumSamples"], first["Epoch/APITokens"]) == (4, 15)
    assert "Epoch/RewardTrend" not in first
    restored = metrics.EpochTags(json.loads(json.dumps(epochs.state())))
    for each in (epochs, restored):
        stats = {"Train/AvgReward": values.mean([1.0]), "Train/RewardVariance": values.of([1.0], "var")}
        each.add(stats | {"Train/Loss": values.mean([0.25])} | {name: values.mean([1.0]) for name in metrics.SCORES})
        second = each.close()
        assert second["Epoch/RewardTrend"] == pytest.approx(0.375)
        assert second["Epoch/LossTrend"] == pytest.approx(1.0)  # positive: the loss falls


def test_a_number_derived_from_several_values_survives_a_restart_in_the_middle_of_its_row():
    rng = torch.Generator().manual_seed(0)
    batches = [
        policy.stats(
            logprobs=-torch.rand(3, 4, generator=rng), advantages=torch.randn(3, generator=rng), mask=torch.ones(3, 4)
        )
        for _ in range(3)
    ]
    unbroken, resumed = MergedRow(), MergedRow()
    for batch in batches:
        unbroken.add(batch)
    for batch in batches:
        resumed.add(batch)
        resumed = MergedRow(json.loads(json.dumps(resumed.state())))
        resumed = MergedRow(json.loads(json.dumps(resumed.state())))  # before another batch came
        if batch is batches[1]:
            resumed.add(batches[2])
            break
    expected, found = unbroken.take(), resumed.take()
    name = "policy.logp_advantage_cov"
    assert found[name].number == pytest.approx(expected[name].number)
    assert found[name].number != pytest.approx(batches[2][name].number)
    assert found.keys() == expected.keys()
    assert resumed.take() == {}


def test_the_cost_counts_the_tokens_of_both_directions_and_of_failed_judgements():
    stats = metrics.cost_stats([Judgement(dict.fromkeys(WEIGHTS, 1.0), "", 20, 3), Judgement(None, "", 10, 1)], 1.5)
    assert {name.removeprefix("Teacher/"): value.number for name, value in stats.items()} == {
        "Tokens": 34, "PromptTokens": 30, "CompletionTokens": 4, "Seconds": 1.5,
    }  # fmt: skip


def test_tokens_are_paid_once_for_an_answer_that_comes_again(tmp_path, trainer):
    run = trainer(tmp_path, Scripted(), agreement_steps=0, max_new_tokens=1)  # one token: the same answers are repeated
    with run.run:
        run.step = 1
        asked = run.answer(run.tasks_of_step(), 2, run.generator(1)).questions  # the answers that the step will draw
        different = len({(question.task.prompt, question.answer) for question in asked})
        row = run.take_step()
    assert row["Teacher/Tokens"].number == 12 * different
    assert row["Teacher/CacheHitRate"].number == (len(asked) - different) / len(asked)


# Ending, acting, resuming


def comparable(row):
    timed = ("time/", "memory/", "Performance/", "system/", "timestamp", "attempt", "Teacher/Seconds", "_m", "System/")
    return {name: value for name, value in row.items() if not name.startswith(timed)}


def files_of(folder):
    volatile = ("sinks", "logs/system.jsonl", "logs/phases.jsonl", "heartbeat", "index")
    names = (str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())
    return {name for name in names if not name.startswith(volatile)}


COMMAND = [sys.executable, "-m", "rlvitals.cli.main", "train", "rlaif"]


def flags(chosen):
    words = []
    for name, value in asdict(chosen).items():
        if value is not None:
            text = (
                ",".join(value)
                if isinstance(value, tuple)
                else str(value).lower()
                if isinstance(value, bool)
                else value
            )
            words += [f"--{name.replace('_', '-')}", str(text)]
    return words


def test_a_killed_run_goes_on_as_if_nothing_had_been(tmp_path, child_environment):
    chosen = settings(
        tmp_path / "whole", max_steps=9, save_steps=3, eval_steps=4, keep_last=2, tasks=16, logging_steps=2
    )
    rlaif.train(chosen)
    broken = replace(chosen, output_dir=str(tmp_path / "broken"))
    log = tmp_path / "broken" / "logs" / "training_metrics.jsonl"
    child = subprocess.Popen(
        [*COMMAND, *flags(broken)], env=child_environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert until(lambda: child.poll() is not None or (log.exists() and log.read_text().count("\n") >= 4), 200)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert child.returncode == -signal.SIGKILL, "it had ended before it was killed"
    outcome = rlaif.train(replace(broken, resume_from="checkpoint-6"))
    assert outcome.steps == 9
    for stream in ("training_metrics", "eval_metrics"):
        lines = {
            folder: {row["step"]: comparable(row) for row in rows_of(tmp_path / folder, stream)}
            for folder in ("whole", "broken")
        }  # the last row of a step counts: a resumed run replaces rows of the killed one
        assert lines["whole"].keys() == lines["broken"].keys()
        for step, row in lines["whole"].items():
            assert lines["broken"][step] == pytest.approx(row, abs=1e-5), (stream, step)
    assert rlvitals.open_run(tmp_path / "broken").attempts[-1].from_step == 6
    extra = {"logs/findings.jsonl"}
    assert files_of(tmp_path / "whole") - extra == files_of(tmp_path / "broken") - extra


def test_a_run_killed_before_its_first_checkpoint_begins_again_and_pays_again(tmp_path, trainer):
    for changes in ({}, {"resume_from": "last"}):
        run = trainer(tmp_path, Scripted(), max_steps=1, agreement_steps=0, **changes)
        assert learn(run).steps == 1
    first, second = rows_of(tmp_path)
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert second["Teacher/CacheHitRate"] == first["Teacher/CacheHitRate"] < 1
    assert second["Train/Loss"] == first["Train/Loss"]


def test_going_back_puts_the_weights_of_a_checkpoint_under_the_step_that_is_reached(tmp_path, trainer):
    def weights():
        return torch.cat([weight.detach().flatten() for weight in run.model.parameters()])

    run = trainer(tmp_path, Scripted(), learning_rate=1e-2, lr_warmup_steps=0)
    seen = []
    with run.run:
        for run.step in (1, 2):
            run.take_step()
            seen.append(weights())
            if run.step == 1:
                place = run.save()
        assert not torch.equal(*seen)
        run.revert(place)
    assert torch.equal(weights(), seen[0])
    assert run.step == 2


def write_rules(folder, action):
    rule = "{rule: mine, kind: reward_collapse, when: 'Train/AvgReward < 2', severity: critical, warm_up: 2, "
    rule += f"hold: 2 of 2, certain: true, title: enough, action_critical: {action}}}"
    (folder / "rules.yaml").write_text(f"- {rule}\n")
    return str(folder / "rules.yaml")


def test_a_stop_that_the_doctor_asks_for_is_carried_out_and_reported(tmp_path, trainer):
    run = trainer(tmp_path / "run", Scripted(), actions="act", max_steps=8, rules=write_rules(tmp_path, "stop"))
    outcome = learn(run)
    assert outcome.status == "stopped"
    assert outcome.steps < 8
    assert "stopped by the doctor" in outcome.verdict
    answers = [json.loads(line) for line in (tmp_path / "run/logs/findings.jsonl").read_text().splitlines()]
    assert [row["answer"] for row in answers if row["type"] == "answer"] == ["done"]


def test_the_doctors_cut_of_the_learning_rate_lasts(tmp_path, trainer):
    run = trainer(
        tmp_path / "run", Scripted(), actions="act", max_steps=8, lr_warmup_steps=1, learning_rate=1e-3,
        rules=write_rules(tmp_path, "reduce_lr"),
    )  # fmt: skip
    learn(run)
    rates = [row["optim.lr"] for row in rows_of(tmp_path / "run")]
    assert rates[0] == pytest.approx(1e-3)
    assert rates[-1] == pytest.approx(5e-4)


def test_the_doctors_revert_puts_a_good_checkpoint_back_at_half_the_rate(tmp_path, trainer):
    rules = write_rules(tmp_path, "revert")
    (tmp_path / "rules.yaml").write_text(
        (tmp_path / "rules.yaml").read_text().replace("Train/AvgReward < 2", "optim.lr > 0.0009")
    )
    run = trainer(
        tmp_path / "run", Scripted(), actions="act", max_steps=8, lr_warmup_steps=5, learning_rate=1e-3, save_steps=1,
        rules=rules,
    )  # fmt: skip
    assert learn(run).status == "finished"
    lines = [json.loads(line) for line in (tmp_path / "run/logs/findings.jsonl").read_text().splitlines()]
    (request,) = [line for line in lines if line["type"] == "request"]
    (answer,) = [line for line in lines if line["type"] == "answer"]
    assert (request["onset_step"], request["checkpoint_step"]) == (5, 4)
    assert answer["text"] == "back to checkpoint-4, learning rate 0.001 -> 0.0005; steps and data continue"
    rates = [row["optim.lr"] for row in rows_of(tmp_path / "run")]
    assert rates[answer["step"] :] == pytest.approx([5e-4] * (8 - answer["step"]))


def test_the_doctor_may_only_advise(tmp_path, trainer):
    run = trainer(tmp_path / "run", Scripted(), actions="advise", max_steps=4, rules=write_rules(tmp_path, "stop"))
    assert learn(run).status == "finished"


def test_two_processes_train_one_student(tmp_path, child_environment):
    chosen = settings(tmp_path / "run", max_steps=3, save_steps=3, eval_steps=3)
    launched = subprocess.run(
        torchrun("-m", "rlvitals.cli.main", "train", "rlaif", *flags(chosen)),
        env={**child_environment, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert launched.returncode == 0, launched.stderr[-3000:]
    rows = rows_of(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[0]["train.samples.total"] == 2 * 4 * 2  # ranks x prompts x answers
    assert (tmp_path / "run" / "checkpoint-3" / "trainer.pt").exists()
    assert launched.stdout.count("held-out reward") >= 1


# Errors are reported before the training starts


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"group_size": 1}, "group_size must be at least 2"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
        ({"tasks": 2, "prompts_per_step": 4}, "must be at least prompts_per_step"),
        ({"eval_share": 1.5}, "between 0 and 1"),
        ({"teacher": "endpoint"}, "needs teacher_url and teacher_model"),
        ({"teacher": "local"}, "needs teacher_model"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path, changes, words):
    with pytest.raises(ConfigError, match=words):
        check(settings(tmp_path, **changes))


GOOD = {
    "prompt": "Write f(x): add 1.",
    "entry_point": "f",
    "reference": "def f(x): return x + 1",
    "tests": [["f(1)", "2"]],
}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "is empty"),
        (["{not json"], "line 1 is not JSON"),
        ([json.dumps(GOOD), "[1]"], "line 2 must be a JSON object"),
        ([json.dumps({"prompt": "x"})], "line 1 has no 'entry_point'; it has prompt"),
        ([json.dumps({**GOOD, "prompt": " "})], "line 1: 'prompt' must be a text"),
        ([json.dumps({**GOOD, "tests": []})], "at least one"),
        ([json.dumps({**GOOD, "tests": ["f(1) == 2"]})], "must be two texts"),
        ([json.dumps({**GOOD, "tests": [["f(1)", "open('x')"]]})], "not a literal"),
        ([json.dumps(GOOD)], "too few to hold"),
    ],
)
def test_a_bad_data_set_is_an_error_that_names_the_line(tmp_path, lines, words):
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=words):
        rlaif.train(settings(tmp_path / "run", dataset=str(file)))
    assert not (tmp_path / "run").exists()


def test_a_missing_data_set_is_reported(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the dataset .*No such file"):
        rlaif.train(settings(tmp_path / "run", dataset=str(tmp_path / "none.jsonl")))


def test_a_data_set_of_ones_own_is_trained_on(tmp_path, small):
    file = tmp_path / "tasks.jsonl"
    tasks = functions.tasks(8, seed=0)
    file.write_text("\n".join(
        json.dumps({"prompt": t.prompt, "entry_point": t.entry_point, "reference": t.reference, "tests": t.tests})
        for t in tasks
    ))  # fmt: skip
    outcome = rlaif.train(
        settings(tmp_path / "run", dataset=str(file), max_steps=1, eval_share=0.25, model=small, chat=False)
    )
    assert outcome.status == "finished"


def test_a_folder_that_holds_a_run_is_not_touched(tmp_path, small):
    rlaif.train(settings(tmp_path, max_steps=1, model=small, chat=False))
    with pytest.raises(RunExists):
        rlaif.train(settings(tmp_path, max_steps=1))


def test_a_checkpoint_that_is_not_there_is_reported(tmp_path):
    with pytest.raises(ConfigError, match=r"is not a checkpoint; .* has: none"):
        rlaif.train(settings(tmp_path, resume_from="checkpoint-7"))


def test_the_offline_teacher_leaves_no_process_behind(tmp_path):
    teacher = OfflineTeacher()
    teacher.check()
    worker = teacher._runner._worker
    teacher.close()
    assert worker.poll() is not None
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)
