"""`rlvitals train kto`: it learns, writes the files that the guide lists, is diagnosed, and survives a kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import rlvitals
from conftest import torchrun, unexplained, until
from rlvitals.errors import ConfigError, RuleError, RunExists
from rlvitals.train import kto, recipe
from rlvitals.train.kto import data as preferences
from rlvitals.train.kto import trainer as kto_trainer
from rlvitals.train.kto.data import LabelledAnswer
from test_documents import command_with, shell

FOLDER = "kto_output_rtx3090"
"""The name in the guide, so that its commands run unchanged."""

OURS = ("time/", "memory/", "system/", "timestamp", "attempt", "checkpoint")
"""Fields that differ between any two runs or attempts."""


def settings(**given):
    return recipe.load("kto", kto.Settings, None, given)


def command(*words):
    return [sys.executable, "-m", "rlvitals.cli.main", "train", "kto", *map(str, words)]


def run_in(folder, *words):
    return subprocess.run(command(*words), cwd=folder, capture_output=True, text=True, timeout=280, check=False)


def rows_of(folder: Path, name: str = "training_metrics"):
    return [json.loads(line) for line in (folder / "logs" / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A far shorter run than the recipe's, with every file that a run writes. tests/learn checks that the margin rises,
    which takes minutes and a model that has read more.
    """
    where = tmp_path_factory.mktemp("kto")
    (where / "bin").mkdir()
    (where / "bin" / "python").symlink_to(sys.executable)
    done = run_in(
        where, "--output-dir", FOLDER, "--max-steps", 30, "--batch-size", 8, "--warm-up-steps", 10,
        "--examples", 400, "--eval-steps", 15, "--save-steps", 12, "--display", "plain", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return where, done


@pytest.mark.slow
def test_the_margin_begins_at_nothing_and_the_model_moves_away_from_its_reference(trained):
    where, _ = trained
    margins = [row["rewards/margins"] for row in rows_of(where / FOLDER)]
    assert abs(margins[0]) < 0.01
    held_out = [row for row in rows_of(where / FOLDER, "eval_metrics") if "eval_loss" in row]
    assert abs(held_out[0]["eval_rewards/margins"]) < 0.01
    chosen = [row["eval_rewards/chosen"] for row in held_out]
    assert abs(chosen[0]) < 1e-4
    assert abs(chosen[-1]) > 0.01


@pytest.mark.slow
def test_the_catalogue_explains_every_name_in_the_log(trained):
    assert unexplained(trained[0] / FOLDER) == []


@pytest.mark.slow
def test_a_run_leaves_what_the_guide_draws(trained):
    where, done = trained
    folder = where / FOLDER
    assert {"checkpoint-12", "checkpoint-24", "checkpoint-30", "final_model", "logs"} <= set(os.listdir(folder))
    assert (folder / "final_model" / "model.safetensors").is_file()
    rows = rows_of(folder)
    assert [row["step"] for row in rows] == list(range(1, 31))
    for name in ("loss", "grad_norm", "learning_rate", "kl", "entropy", "rewards/chosen", "rewards/rejected"):
        assert all(name in row for row in rows), name
    rates = [row["learning_rate"] for row in rows]
    assert rates[:4] == sorted(rates[:4])
    assert rates[10:] == [3e-4] * 20
    outcome = json.loads(done.stdout)
    assert (outcome["where"], outcome["steps"], outcome["status"]) == (str(folder), 30, "finished")
    assert rlvitals.open_run(folder).info.algorithm == "kto"
    assert rlvitals.open_run(folder).config["recipe"]["warm_up_steps"] == 10


@pytest.mark.slow
def test_the_screen_shows_the_guides_table_and_nothing_of_the_stacks(trained):
    lines = trained[1].stderr.splitlines()
    head = next(number for number, line in enumerate(lines) if line.split()[:5] == TABLE)
    steps = [int(line.split()[0]) for line in lines[head + 1 :] if line.split() and line.split()[0].isdecimal()]
    assert steps == list(range(5, 31, 5))
    noise = [line for line in lines if "examples/s" in line or "Warning" in line or "it/s" in line or "{" in line]
    assert not noise


TABLE = ["Step", "Loss", "Chosen", "Reject", "Margin"]


@pytest.mark.slow
def test_the_guides_commands_run_unchanged(trained, shared):
    where, _ = trained
    guide = (shared / "reference" / "kto-metrics.md").read_text()
    last = rows_of(where / FOLDER)[-1]
    assert shell(command_with(guide, "wc -l"), where).strip() == "30"
    margin = f"Step 30: Margin={last['rewards/margins']:.4f}\n"
    assert shell(command_with(guide, "import sys, json"), where) == margin
    script = next(block for block in guide.split("```python\n") if "check_training_health" in block).split("```")[0]
    checked = subprocess.run([sys.executable, "-c", script], cwd=where, capture_output=True, text=True, check=True)
    assert "Latest step: 30" in checked.stdout
    # The guide's `python -m json.tool` reads JSONL only with --json-lines.
    formatted = shell(command_with(guide, "json.tool") + " --json-lines", where)
    assert formatted.count('"rewards/margins"') == 10


@pytest.mark.slow
def test_the_final_model_can_be_trained_on_from_its_folder_with_adapters(trained, tmp_path):
    where, _ = trained
    data = tmp_path / "data.jsonl"
    examples = preferences.make(40, seed=5, held_out_share=0.0).train
    # All good ones first: most batches of 4 then hold a single class.
    examples.sort(key=lambda example: not example.label)
    data.write_text("".join(json.dumps(kto_trainer.asdict(example)) + "\n" for example in examples))
    done = run_in(
        tmp_path, "--output-dir", "more", "--model", where / FOLDER / "final_model", "--dataset", data, "--lora",
        "--max-steps", 6, "--batch-size", 2, "--gradient-accumulation", 2, "--learning-rate", "1e-3", "--eval-share", 0,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "more")
    assert [row["step"] for row in rows] == list(range(1, 7))
    assert all(row["loss"] == row["loss"] for row in rows)
    assert (tmp_path / "more" / "final_model" / "adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_a_learning_rate_given_at_a_resume_counts(trained, tmp_path):
    where, _ = trained
    shutil.copytree(where / FOLDER, tmp_path / FOLDER)
    done = run_in(
        tmp_path, "--resume-from", f"{FOLDER}/checkpoint-24", "--learning-rate", "1e-4", "--max-steps", 27,
        "--batch-size", 8, "--examples", 400, "--eval-steps", 0, "--display", "none",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    steps, rates = rlvitals.open_run(tmp_path / FOLDER).series("learning_rate")
    assert list(steps) == list(range(1, 28))
    assert list(rates[-4:]) == pytest.approx([3e-4, 1e-4, 1e-4, 1e-4])


@pytest.mark.slow
@pytest.mark.cold
def test_a_learning_rate_far_too_high_is_the_guides_problematic_example_and_is_named(tmp_path):
    done = run_in(
        tmp_path, "--output-dir", "bad", "--learning-rate", "0.01", "--max-steps", 20, "--batch-size", 8,
        "--warm-up-steps", 10, "--eval-steps", 0, "--examples", 600, "--display", "plain",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kinds = {finding.kind for finding in rlvitals.open_run(tmp_path / "bad").findings}
    rules = {finding.rule for finding in rlvitals.open_run(tmp_path / "bad").findings}
    assert "margin_inversion" in kinds
    assert {"kto_margin_negative", "kto_chosen_very_negative"} <= rules
    assert "⚠ Very negative margin" in done.stderr
    assert f"The doctor reports {rlvitals.check(tmp_path / 'bad').reason}. See" in done.stdout


SMALL = ("--max-steps", 24, "--batch-size", 8, "--warm-up-steps", 10, "--examples", 300, "--save-steps", 8,
         "--eval-steps", 8, "--display", "none")  # fmt: skip


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_unbroken_runs_curve_and_files(tmp_path):
    whole = run_in(tmp_path, "--output-dir", "whole", *SMALL)
    assert whole.returncode == 0, whole.stderr
    with subprocess.Popen(
        command("--output-dir", "broken", *SMALL), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as child:
        log = tmp_path / "broken" / "logs" / "training_metrics.jsonl"
        assert until(lambda: log.is_file() and log.read_bytes().count(b"\n") >= 11, seconds=200)
        os.kill(child.pid, signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert not (tmp_path / "broken" / "final_model").exists()
    resumed = run_in(tmp_path, "--resume-from", "broken/checkpoint-8", *SMALL)
    assert resumed.returncode == 0, resumed.stderr

    one, two = rlvitals.open_run(tmp_path / "whole"), rlvitals.open_run(tmp_path / "broken")
    names = [name for name in one.metrics if not name.startswith(OURS)]
    assert {"loss", "rewards/margins", "num_tokens", "eval_rewards/margins"} <= set(names)
    for name in names:
        if name in ("eval_runtime", "eval_samples_per_second", "eval_steps_per_second") or name.startswith("train_"):
            continue
        (steps, values), (again_steps, again) = one.series(name), two.series(name)
        assert list(steps) == list(again_steps), name
        assert list(again) == pytest.approx(list(values), abs=1e-5, rel=1e-5), name
    assert files_below(tmp_path / "broken") == files_below(tmp_path / "whole")
    assert two.info.attempt == 2


def files_below(folder):
    """Every file except the system samples: a run of a few seconds has none."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return names - {"logs/system.jsonl"}


@pytest.mark.slow
def test_two_processes_train_one_model_and_one_of_them_records(tmp_path):
    words = ("--output-dir", "two", "--max-steps", "4", "--batch-size", "8", "--warm-up-steps", "3",
             "--examples", "120", "--eval-steps", "2", "--save-steps", "2", "--json")  # fmt: skip
    done = subprocess.run(
        torchrun("-m", "rlvitals.cli.main", "train", "kto", *words),
        cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 4  # printed once
    rows = rows_of(tmp_path / "two")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["system/samples"] == 4 * 8 * 2


@pytest.mark.slow
def test_a_training_that_raises_ends_its_run_as_failed(tmp_path, monkeypatch):
    from trl.trainer.kto_trainer import KTOTrainer

    def broken(*_, **__):
        raise FloatingPointError("broken")

    monkeypatch.setattr(KTOTrainer, "training_step", broken)
    with pytest.raises(FloatingPointError):
        kto.train(settings(output_dir=str(tmp_path), max_steps=2, batch_size=8, warm_up_steps=0, examples=40,
                           eval_steps=0, display="none"))  # fmt: skip
    ended = json.loads((tmp_path / "run.json").read_text())
    assert (ended["status"], "broken" in json.dumps(ended)) == ("failed", True)


def test_a_folder_that_holds_a_run_is_refused_before_anything_is_built(tmp_path):
    rlvitals.start(tmp_path / "run", monitor=False).finish()
    with pytest.raises(RunExists):
        kto.train(settings(output_dir=str(tmp_path / "run")))
    assert not (tmp_path / "run" / "tiny_model").exists()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"batch_size": 1}, "batch_size must be at least 2"),
        ({"learning_rate": -1.0}, "learning_rate must be above 0"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
        ({"eval_share": 1.0}, "eval_share must be from 0 to below 1"),
        ({"desirable_weight": -1.0}, "desirable_weight cannot be negative"),
        ({"save_steps": 0}, "save_steps must be at least 1"),
        ({"model_size": "huge"}, "no model size 'huge'"),
        ({"resume_from": "nowhere/checkpoint-5"}, "'nowhere/checkpoint-5' is not a checkpoint"),
        ({"dataset": "nothing.jsonl"}, "cannot read the dataset"),
        ({"examples": 20}, "fewer than one batch"),
        ({"display": "fancy"}, "unknown display 'fancy'"),
        ({"track_with": "wand"}, "unknown tracker 'wand'"),
    ],
)
def test_settings_that_make_no_sense_are_errors_before_training(tmp_path, monkeypatch, given, complaint):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=complaint):
        kto.train(settings(output_dir="run", **given))
    assert not (tmp_path / "run").exists()


def test_a_rule_that_cannot_be_read_is_an_error_before_training(tmp_path):
    with pytest.raises(RuleError):
        kto.train(settings(output_dir=str(tmp_path / "run"), rules="no-such-preset"))


def test_a_checkpoint_that_is_torn_or_another_runs_is_refused(tmp_path):
    (tmp_path / "run" / "checkpoint-5").mkdir(parents=True)
    torn = str(tmp_path / "run" / "checkpoint-5")
    with pytest.raises(ConfigError, match=r"is not a checkpoint; .* has: none"):
        kto_trainer.folder_of(settings(resume_from=torn))
    (tmp_path / "run" / "checkpoint-5" / "trainer_state.json").write_text("{}")
    assert kto_trainer.folder_of(settings(resume_from=torn)) == (tmp_path / "run", Path(torn))
    newest = settings(output_dir=str(tmp_path / "run"), resume_from="last")
    assert kto_trainer.folder_of(newest) == (tmp_path / "run", Path(torn))
    with pytest.raises(ConfigError, match="is not a checkpoint of the run in"):
        kto_trainer.folder_of(settings(resume_from=torn, output_dir=str(tmp_path / "other")))


def test_chats_and_texts_become_prompt_and_answer_tokens():
    from rlvitals.train import tiny

    words = tiny.build_tokenizer(["add a b"])
    prompt, answer = kto_trainer._tokens(words, LabelledAnswer("add ", "a b", True), 100)
    assert (words.decode(prompt), words.decode(answer)) == ("add ", "a b<eos>")
    chat = LabelledAnswer([{"role": "user", "content": "add"}], [{"role": "assistant", "content": "a"}], True)
    prompt, answer = kto_trainer._tokens(words, chat, 100)
    assert (words.decode(prompt), words.decode(answer)) == ("user: add\nassistant: ", "a<eos>\n")
    assert len(kto_trainer._tokens(words, LabelledAnswer("add ", "a b", True), 3)[1]) == 1
