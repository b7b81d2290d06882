"""PPO: what it records, that it learns, that it resumes after a kill, and what it refuses."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conftest import REPO, torchrun, unexplained, until
from rlvitals.errors import ConfigError, RunExists
from rlvitals.train import checkpoint, models, ppo, recipe, tiny
from rlvitals.train.ppo import data as ppo_data
from rlvitals.train.ppo import reward_model
from rlvitals.train.ppo.actor_critic import ActorCritic, parameter_groups
from rlvitals.train.ppo.evaluation import computable, text_scores
from rlvitals.train.ppo.experience import token_rewards
from rlvitals.train.sampling import answered, left_padded
from rlvitals.train.seeds import batch_places
from rlvitals.train.supervised import TrainingCourse, right_padded

pytestmark = pytest.mark.slow

PHASES = ("generate", "compute_log_probs", "compute_values", "compute_rewards", "train_step", "model_update",
          "do_checkpoint")  # fmt: skip

SMALL = {
    "families": ("add",), "held_out": 8, "warm_up_steps": 4, "warm_up_batch": 8, "reward_model_steps": 4,
    "reward_model_batch": 8, "value_warm_up_steps": 4, "max_steps": 6, "batch_size": 8, "minibatch_size": 4,
    "max_new_tokens": 12, "steps_per_epoch": 3, "eval_steps": 2, "save_steps": 2, "keep_last": 2, "display": "none",
    "plots": False, "text_scores": ("bleu", "rouge"),
}  # fmt: skip


def settings(folder, **changes):
    return recipe.load("ppo", ppo.Settings, given={"output_dir": str(folder), **SMALL, **changes})


def rows(folder, name="training_metrics"):
    return [json.loads(line) for line in (folder / "logs" / f"{name}.jsonl").read_text().splitlines()]


def command(folder, **changes):
    """The same training on a command line."""
    flags = []
    for name, value in {"output_dir": folder, **SMALL, **changes}.items():
        given = ",".join(value) if isinstance(value, tuple) else str(value).lower() if value in (True, False) else value
        flags += [f"--{name.replace('_', '-')}", str(given)]
    return ["-m", "rlvitals.cli.main", "train", "ppo", *flags]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small finished run. Its reward model has learnt almost nothing, so some scores are above 0 and some below. The
    metrics of ROLL for positive and negative losses need both.
    """
    folder = tmp_path_factory.mktemp("ppo") / "run"
    scores = ("codebleu", "bleu", "rouge", "ruby")
    changes = {"missing_eos_penalty": 0.0, "reward_model_learning_rate": 1e-6, "kl_target": 0.05, "kl_horizon": 100.0}
    return folder, ppo.train(settings(folder, plots=True, text_scores=scores, **changes))


def test_a_text_score_that_cannot_be_computed_here_is_reported_before_the_training(monkeypatch, caplog):
    monkeypatch.setattr("rlvitals.textscore.evaluate.is_offline_installed", lambda: False)
    assert computable(("bertscore", "bleu")) == ["bleu"]
    assert "bertscore-offline" in caplog.text


def test_a_text_score_that_throws_is_left_out_and_the_others_stay(monkeypatch, caplog):
    def throws(predictions, references):
        raise RecursionError("too deep")

    monkeypatch.setattr("rlvitals.textscore.bleu", throws)
    found = text_scores(["bleu", "rouge"], ["a b c"], ["a b"])
    assert found == {"rouge": pytest.approx(0.8)}
    assert "RecursionError" in caplog.text


def test_one_run_has_every_name_of_the_roll_document_that_this_machine_can_give(finished):
    page = (REPO / "docs" / "measure-coverage.md").read_text().partition("## The 35 tags")[0]
    listed = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(listed) == 89
    wanted = {name.replace("{metric_infix}", phase) for name in listed for phase in PHASES}
    if not torch.cuda.is_available():
        wanted = {name for name in wanted if "{device_id}" not in name}
    found = {
        name for stream in ("training_metrics", "eval_metrics") for row in rows(finished[0], stream) for name in row
    }
    assert {name.replace("{device_id}", "0") for name in wanted} - found == set()


def test_the_catalogue_explains_every_name_in_the_log(finished):
    assert unexplained(finished[0]) == []


def test_a_run_leaves_the_documents_epochs_and_everything_to_go_on_from(finished):
    folder, outcome = finished
    assert (outcome.status, outcome.steps) == ("finished", 6)
    assert [row["step"] for row in rows(folder)] == list(range(7))
    evaluations = rows(folder, "eval_metrics")
    assert [row["step"] for row in evaluations] == [0, 2, 3, 4, 6]
    first, last = (row["val/score/mean"] for row in (evaluations[0], evaluations[-1]))
    assert f"went from {first:.3f} to {last:.3f}" in outcome.verdict
    with (folder / "metrics" / "training_metrics.csv").open() as file:
        epochs = list(csv.DictReader(file))
    columns = ("loss", "reward", "kl_divergence", "entropy", "learning_rate", "epoch_time", "samples_per_second",
               "codebleu", "bleu", "rouge", "ruby")  # fmt: skip
    assert [epoch["epoch"] for epoch in epochs] == ["1", "2"]
    assert all(math.isfinite(float(epoch[column])) for epoch in epochs for column in columns)
    assert json.loads((folder / "metrics" / "training_metrics.json").read_text())[1]["epoch"] == 2
    assert {path.name for path in (folder / "metrics" / "plots").iterdir()} == {
        "training_progress.png", "policy_metrics.png", "evaluation_metrics.png",
    }  # fmt: skip
    assert list(checkpoint.checkpoints(folder)) == [4, 6]
    for name in ("warm_start", "reward_model", "final_model"):
        assert (folder / name / "model.safetensors").is_file()
    start = rows(folder)[0]
    assert 0.0 <= start["rm.accuracy"] <= 1.0
    assert start["sft.loss"] > 0


def test_an_epochs_reward_is_the_mean_over_its_samples(finished):
    folder, _ = finished
    with (folder / "metrics" / "training_metrics.csv").open() as file:
        first = next(csv.DictReader(file))
    rewards = [row["critic/score/mean"] for row in rows(folder) if row["step"] in (1, 2, 3)]
    assert float(first["reward"]) == pytest.approx(sum(rewards) / 3)
    assert float(first["samples_per_second"]) * float(first["epoch_time"]) == pytest.approx(3 * SMALL["batch_size"])
    rates = [row["actor/lr"] for row in rows(folder) if row["step"] in (1, 2, 3)]
    assert float(first["learning_rate"]) == pytest.approx(sum(rates) / 3)


def test_the_kls_coefficient_follows_the_kl_of_the_step_before(finished):
    logged = [row for row in rows(finished[0]) if row["step"] > 0]
    assert {row["critic/kl_coef"] for row in logged} != {logged[0]["critic/kl_coef"]}
    for row, after in itertools.pairwise(logged):
        error = min(max(row["objective/kl"] / 0.05 - 1.0, -0.2), 0.2)
        assert after["critic/kl_coef"] == pytest.approx(row["critic/kl_coef"] * (1 + error * 8 / 100), rel=1e-9)


def test_a_folder_with_a_run_is_not_trained_over(finished):
    with pytest.raises(RunExists):
        ppo.train(settings(finished[0]))


MEASURED = re.compile(r"time/|memory/|perf|system/(?:tps|cpu_wait)|timestamp|attempt|_m$")


def curve(folder):
    """The rows of a training by step, without measured times and sizes."""
    return {
        row["step"]: {name: value for name, value in row.items() if not MEASURED.match(name)}
        for row in rows(folder) + [dict(row, step=f"eval {row['step']}") for row in rows(folder, "eval_metrics")]
    }


def files(folder):
    """The files of a run except its lock and the system samples: a run of a few seconds may have none."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}
    return found - {"logs/system.jsonl"}


@pytest.mark.parametrize(
    "changes",
    [{"critic": "shared", "reward": "model"}, {"critic": "separate", "reward": "grade", "logging_steps": 3}],
    ids=lambda changes: changes["critic"],
)
def test_a_killed_training_goes_on_as_if_nothing_had_happened(tmp_path, child_environment, changes):
    changes = {**changes, "kl_target": 0.1, "kl_horizon": 100.0}
    ppo.train(settings(tmp_path / "unbroken", **changes))
    child = subprocess.Popen(
        [sys.executable, *command(tmp_path / "killed", **changes)], env=child_environment, stderr=subprocess.DEVNULL
    )
    assert until(lambda: len(checkpoint.checkpoints(tmp_path / "killed")) >= 1, 200)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert len(rows(tmp_path / "killed")) < SMALL["max_steps"] + 1
    ppo.train(settings(tmp_path / "killed", resume_from="last", **changes))
    wanted, found = curve(tmp_path / "unbroken"), curve(tmp_path / "killed")
    assert wanted.keys() == found.keys()
    for step, row in wanted.items():
        assert row.keys() == found[step].keys()
        for name, value in row.items():
            if isinstance(value, float):
                assert found[step][name] == pytest.approx(value, abs=1e-5, nan_ok=True), (step, name)
    assert files(tmp_path / "killed") == files(tmp_path / "unbroken")


def length(prompts, answers, references):
    """A user's reward, for tests that are not about the reward: it needs no trained model."""
    return [len(answer) % 5 / 4 for answer in answers]


def test_parts_of_a_minibatch_make_the_same_update_as_the_whole(tmp_path):
    for name, microbatch in (("whole", None), ("parts", 1)):
        ppo.train(settings(tmp_path / name, microbatch_size=microbatch, max_steps=2, reward=f"{__name__}:length"))
    whole, parts = (
        torch.load(tmp_path / name / "checkpoint-2" / "trainer.pt", weights_only=True) for name in ("whole", "parts")
    )
    assert any(one["exp_avg"].abs().max() > 1e-3 for one in whole["optimizer"]["state"].values())
    for one, other in zip(whole["optimizer"]["state"].values(), parts["optimizer"]["state"].values(), strict=True):
        assert torch.allclose(one["exp_avg"], other["exp_avg"], atol=1e-6)


def test_the_true_score_rises_when_it_is_the_reward(tmp_path):
    words = ["red", "blue", "green", "black", "white", "brown"]
    lines = [{"prompt": f"say {word} {other}:", "reference": f" {word}"} for word in words for other in words]
    file = tmp_path / "words.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    outcome = ppo.train(
        settings(tmp_path / "run", dataset=str(file), families=(), reward="grade", held_out=6, warm_up_steps=12,
                 warm_up_batch=16, max_new_tokens=4, max_steps=40, batch_size=32, minibatch_size=16, eval_steps=40,
                 steps_per_epoch=40, save_steps=40, learning_rate=2e-3, kl_coef=0.01, critic="separate")
    )  # fmt: skip
    scores = [row["critic/score/mean"] for row in rows(tmp_path / "run") if row["step"]]
    assert sum(scores[-5:]) / 5 > sum(scores[:3]) / 3 + 0.25
    assert outcome.status == "finished"


def sometimes(prompts, answers, references):
    """A user's reward that raises on some answers."""
    if any(len(answer) % 3 == 0 for answer in answers):
        raise RecursionError("too deep")
    return [float(len(answer) % 3) for answer in answers]


def never(prompts, answers, references):
    raise MemoryError


def test_an_answer_that_cannot_be_scored_is_left_out_counted_and_ends_nothing(tmp_path, caplog):
    changes = {"warm_up_steps": 30, "max_steps": 3, "reward": f"{__name__}:sometimes", "text_scores": ()}
    outcome = ppo.train(settings(tmp_path / "run", **changes))
    assert outcome.status == "finished"
    logged = [row for row in rows(tmp_path / "run") if row["step"] > 0]
    assert len(logged) == 3
    shares = [row["reward.unscorable_fraction"] for row in logged]
    assert all(0 < share < 1 for share in shares)
    assert all(row["critic/score/mean"] > 0 for row in logged)  # the mean of the scored ones: 1 and 2
    assert all(math.isfinite(row["actor/total_loss"]) for row in logged)
    assert sum("RecursionError" in record.getMessage() for record in caplog.records) == 1
    assert not unexplained(tmp_path / "run")


def test_a_reward_that_scores_nothing_is_reported_after_a_few_steps(tmp_path):
    changes = {"max_steps": 9, "reward": f"{__name__}:never", "text_scores": (), "warm_up_steps": 1}
    with pytest.raises(ConfigError, match="scored nothing for 5 steps"):
        ppo.train(settings(tmp_path / "run", **changes))
    logged = [row for row in rows(tmp_path / "run") if row["step"] > 0]
    assert [row["reward.unscorable_fraction"] for row in logged] == [1.0] * 4
    assert not [name for row in logged for name in row if name.startswith(("actor/", "critic/score"))]


def test_the_doctor_stops_it_when_it_may(tmp_path):
    rule = "- {rule: mine, kind: reward_collapse, when: 'critic/score/mean > -100', severity: critical, warm_up: 2, "
    rule += "hold: 2 of 2, certain: true, title: enough, action_critical: %s}\n"
    (tmp_path / "stop.yaml").write_text(rule % "stop")
    (tmp_path / "cut.yaml").write_text(rule % "reduce_lr")
    given = {"actions": "act", "reward": f"{__name__}:length"}
    stopped = ppo.train(settings(tmp_path / "stop", rules=str(tmp_path / "stop.yaml"), **given))
    assert stopped.status == "stopped"
    assert stopped.steps < 6
    assert f"stopped at step {stopped.steps} of 6" in stopped.verdict
    ppo.train(
        settings(tmp_path / "cut", rules=str(tmp_path / "cut.yaml"), lr_schedule="constant", warmup_steps=0, **given)
    )
    rates = [row["actor/lr"] for row in rows(tmp_path / "cut") if row["step"]]
    assert rates[0] == 3e-4
    assert rates[-1] == 1.5e-4


def test_a_folders_model_of_another_kind_is_trained_in_bfloat16_with_checkpointing(tmp_path, child_environment):
    from transformers import GPT2Config, GPT2LMHeadModel

    from rlvitals.train import functions

    tokenizer = tiny.build_tokenizer(functions.corpus())
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_positions=128, n_embd=32, n_layer=2, n_head=2, bos_token_id=1,
                   eos_token_id=2, pad_token_id=0)
    )  # fmt: skip
    model.save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    # accelerate sets the precision once per process, so this test starts a separate one.
    changes = {"model": tmp_path / "gpt2", "bf16": True, "gradient_checkpointing": True, "max_steps": 2}
    done = subprocess.run(
        [sys.executable, *command(tmp_path / "run", **changes), "--json"],
        env=child_environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["steps"] == 2
    assert all(math.isfinite(row["actor/total_loss"]) for row in rows(tmp_path / "run") if row["step"])


def test_two_processes_train_one_model_and_one_of_them_writes(tmp_path, child_environment):
    # accelerate's launcher starts a single process on a CPU; torch's starts any number.
    launched = subprocess.run(
        torchrun(*command(tmp_path / "run", max_steps=2)),
        env={**child_environment, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert launched.returncode == 0, launched.stderr[-3000:]
    found = rows(tmp_path / "run")
    assert [row["step"] for row in found] == [0, 1, 2]
    assert {row["actor/total_samples"] for row in found if row["step"]} == {2 * 8 * 2}  # ranks, answers, epochs
    assert found[-1]["system/samples"] == 2 * 8 * 2
    assert list(checkpoint.checkpoints(tmp_path / "run")) == [2]


WRONG = [
    ({"minibatch_size": 3}, "minibatch_size must divide batch_size: 8 is not a multiple of 3"),
    ({"microbatch_size": 3}, "microbatch_size must divide minibatch_size"),
    ({"temperature": 0.0}, "temperature must be above 0"),
    ({"max_steps": 0}, "max_steps must be at least 1"),
    ({"gamma": 1.5}, "gamma must be between 0 and 1"),
    ({"kl_coef": -0.1}, "kl_coef cannot be negative"),
    ({"families": ("ad",)}, "no family 'ad'"),
    ({"text_scores": ("blue",)}, "Did you mean 'bleu'"),
    ({"reward": "modell"}, "Did you mean 'model'"),
    ({"reward": "no_such_module:f"}, "No module named"),
    ({"reward": "math:nothing"}, "no function 'nothing'"),
    ({"preferences": "p.jsonl"}, "preferences need a dataset"),
    ({"resume_from": "checkpoint-3"}, "is not a checkpoint"),
    ({"model_size": "huge"}, "no model size 'huge'"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_what_cannot_work_is_reported_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        ppo.train(settings(tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


GOOD = '{"prompt": "a", "reference": "b"}\n'
PAIR = '{"prompt": "a", "chosen": "b", "rejected": "c"}\n'
BAD_FILES = [
    ("", PAIR, "is empty"),
    (GOOD, PAIR, "at least 2"),
    ('{"prompt": "a"}\n', PAIR, "line 1 has no 'reference'; it has prompt."),
    (GOOD + '{"prompt": "a", "reference": 3}\n', PAIR, "line 2: 'reference' must be a text"),
    (GOOD + "{nonsense\n", PAIR, "line 2 is not JSON"),
    (GOOD * 2, '{"prompt": "a", "chosen": "b"}\n', "has no 'rejected'; it has prompt, chosen."),
    (GOOD * 2, '{"prompt": "a", "chosen": "b", "rejected": "b"}\n' * 2, "pair 1: chosen and rejected are the same"),
    (GOOD * 2, "", "is empty"),
    (GOOD * 2, None, "needs pairs to learn from"),
]


@pytest.mark.parametrize(("data", "pairs", "message"), BAD_FILES)
def test_bad_data_is_named_with_its_line_before_anything_is_written(tmp_path, data, pairs, message):
    (tmp_path / "data.jsonl").write_text(data)
    given = {"dataset": str(tmp_path / "data.jsonl"), "families": ()}
    if pairs is not None:
        (tmp_path / "pairs.jsonl").write_text(pairs)
        given["preferences"] = str(tmp_path / "pairs.jsonl")
    with pytest.raises(ConfigError, match=re.escape(message)):
        ppo.train(settings(tmp_path / "run", **given))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("most", "kept_examples"), [(128, 12), (1, 13)])
def test_the_last_fifth_of_a_users_files_is_held_out(tmp_path, most, kept_examples):
    examples = [{"prompt": f"p{number}", "reference": "r"} for number in range(14)]
    pairs = [{"prompt": f"q{number}", "chosen": "a", "rejected": "b"} for number in range(9)]
    for name, lines in (("data", examples), ("pairs", pairs)):
        (tmp_path / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    data = ppo_data.read(str(tmp_path / "data"), str(tmp_path / "pairs"), held_out=most)
    assert [each.prompt for each in data.examples] == [f"p{number}" for number in range(kept_examples)]
    assert [each.prompt for each in data.held_out] == [f"p{number}" for number in range(kept_examples, 14)]
    assert data.demonstrations == [(each.prompt, "r") for each in data.examples]
    assert [each.prompt for each in data.preferences] == [f"q{number}" for number in range(8)]
    assert [each.prompt for each in data.held_out_preferences] == ["q8"]
    without = ppo_data.read(str(tmp_path / "data"), None, held_out=most)
    assert (without.preferences, without.held_out_preferences) == ([], [])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        ppo_data.read(str(tmp_path / "none.jsonl"), None, held_out=1)


def test_each_token_pays_its_kl_and_the_last_one_gets_the_score(tmp_path):
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    given = settings(tmp_path, reward_clip=2.0, missing_eos_penalty=1.5)
    penalties = torch.tensor([[0.1, -0.2, 0.3], [0.4, 9.0, 9.0]])
    found = token_rewards(given, torch.tensor([7.0, 0.5]), torch.tensor([True, False]), penalties, mask)
    wanted = torch.tensor([[-0.1, 0.2, 2.0 - 0.3], [0.5 - 1.5 - 0.4, 0.0, 0.0]])
    assert torch.allclose(found, wanted)


def test_every_prompt_comes_once_before_one_comes_again():
    drawn = [place for step in range(1, 8) for place in batch_places(step, 3, 7, 5)]
    assert [sorted(drawn[start : start + 7]) for start in (0, 7, 14)] == [list(range(7))] * 3
    assert drawn[:7] != drawn[7:14]


@pytest.mark.parametrize("is_separate", [False, True])
def test_a_value_is_of_the_state_before_its_token(is_separate):
    model, tokenizer = tiny.build(["a b c d e f"], width=16, layers=2, heads=2)
    both = ActorCritic(model, is_separate=is_separate)
    torch.nn.init.normal_(both.value_head.weight)
    prompts, prompt_mask = left_padded([[5, 6], [7]], tokenizer.pad_token_id)
    found = []
    for answer in ([8, 9, 10], [8, 5, 10]):
        answers, mask = right_padded([answer, answer], tokenizer.pad_token_id)
        rows = answered(prompts, prompt_mask, answers, mask)
        found.append(both("read", rows, 1.0).values)
    assert torch.allclose(found[0][:, :2], found[1][:, :2])  # the second token is not known yet
    assert not torch.allclose(found[0][:, 2], found[1][:, 2])


@pytest.mark.parametrize("is_separate", [False, True])
def test_every_parameter_is_in_one_group(is_separate):
    both = ActorCritic(tiny.build(["a b"], width=16, layers=1, heads=2)[0], is_separate=is_separate)
    groups = parameter_groups(both, 1e-3, 1e-2)
    placed = [id(weight) for group in groups for weight in group["params"]]
    assert sorted(placed) == sorted(id(weight) for weight in both.parameters())
    assert [group["lr"] for group in groups] == [1e-3, 1e-2]


def test_a_reward_model_learns_which_answer_is_preferred_and_learns_nothing_from_labels_by_lot(tmp_path):
    model, tokenizer = tiny.build(["a b c d e f g h"], width=16, layers=1, heads=2)
    model.save_pretrained(tmp_path)
    letters = tokenizer("abcdefgh".replace("", " ").split(), add_special_tokens=False)["input_ids"]
    good, bad = [one[0] for one in letters[:4]], [one[0] for one in letters[4:]]
    pairs = [([letters[0][0]], [one], [other]) for one in good for other in bad] * 4
    quality = []
    for noise in (0.0, 1.0):
        torch.manual_seed(0)
        judge = reward_model.build(str(tmp_path), tokenizer.pad_token_id)
        course = TrainingCourse(40, 16, 1e-2, torch.Generator().manual_seed(1))
        reward_model.learn(judge, pairs, course, pad_id=0, noise=noise)
        both = reward_model.scores_of_pairs(judge, pairs, batch_size=16, pad_id=0)
        quality.append(reward_model.accuracy(*both))
    assert quality[0] == 1.0
    assert quality[1] < 0.9
    reward_model.calibrate(judge, torch.cat(both))
    models.write(Path(tmp_path) / "judge", models.Loaded(judge, tokenizer))
    again = reward_model.build(str(tmp_path / "judge"), 0)
    prompts, prompt_mask = left_padded([[letters[0][0]]] * 8, 0)
    answers, mask = right_padded([[one] for one in good + bad], 0)
    rows = answered(prompts, prompt_mask, answers, mask)
    scores = reward_model.scores(again.train(False), rows)
    assert torch.allclose(scores, reward_model.scores(judge, rows))
    assert scores.mean().item() == pytest.approx(0.0, abs=0.05)
    assert scores.std().item() == pytest.approx(1.0, abs=0.1)


def test_grades_are_whole_for_right_answers_and_at_most_half_for_others():
    data = ppo_data.made(0, families=("add", "limit"), held_out=6)
    grader = ppo_data.Grader()
    try:
        for example in data.held_out:
            assert grader.grade(example, example.reference) == 1.0
            assert 0.0 <= grader.grade(example, f"{example.reference} + 1") <= 0.5
            assert grader.grade(example, "no code") == 0.0
        unseen = {example.prompt for example in data.held_out}
        assert not unseen & {example.prompt for example in data.examples}
        assert not unseen & {pair.prompt for pair in data.preferences}
        for pair in data.preferences[:20]:
            example = next(example for example in data.examples if example.prompt == pair.prompt)
            assert grader.grade(example, pair.chosen) == 1.0
            assert grader.grade(example, pair.rejected) < 1.0
    finally:
        grader.close()
