"""`rlvitals train` as a user types it, up to the start of the training."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml

from rlvitals.cli import train
from rlvitals.cli.main import main
from rlvitals.train import recipe
from rlvitals.train.recipe import TrainingOutcome

USAGE = 64
WRITTEN = [name for name in train.TRAINERS if (recipe.RECIPES / f"{name}.yaml").exists()]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def helped(*words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", *words])
    assert ended.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_help_names_every_trainer(capsys):
    text = helped("--help", capsys=capsys)
    for name, what in train.TRAINERS.items():
        assert f"{name} {what}" in text


@pytest.mark.parametrize("name", WRITTEN)
def test_a_trainers_help_explains_every_setting(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    text = helped(name, "--help", capsys=capsys)
    for setting in recipe.explained(name):
        assert f"--{setting.name.replace('_', '-')} " in text
        assert " ".join(setting.comment.split()) in text


def test_help_does_not_wait_for_torch():
    code = (
        "import sys; from rlvitals.cli.main import main\ntry: main(['train', 'kto', '--help'])\nexcept SystemExit: pass"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint('torch' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("name", WRITTEN)
def test_without_torch_the_command_that_installs_it_is_named(name):
    code = "import sys; sys.modules['torch'] = None; from rlvitals.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, "train", name], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert done.stderr == (
        f"rlvitals: error: train {name} needs a package that is not installed. "
        "Install it with: pip install 'rlvitals[train]'\n"
    )


def test_the_settings_are_printed_resolved_and_explained(tmp_path, capsys):
    (tmp_path / "my.yaml").write_text("beta: 0.2\nmax_steps: 7\ndata:\n  output_path: out/${model_size}\n")
    words = ["my.yaml", "--model-size", "7b", "--learning-rate", "5e-7", "--max-steps", "9", "--lora", "--print-config"]
    assert main(["train", "kto", *words]) == 0
    printed = capsys.readouterr().out
    config = yaml.safe_load(printed)
    assert (config["beta"], config["max_steps"], config["learning_rate"], config["lora"]) == (0.2, 9, 5e-7, True)
    assert config["output_dir"] == "out/7b"
    assert "# strength of the penalty for leaving the reference" in printed


@pytest.mark.parametrize(("word", "lora"), [("--lora", True), ("--no-lora", False), ("--lora=true", True)])
def test_a_switch_takes_no_value_or_one(word, lora, capsys):
    assert main(["train", "kto", "--print-config", word]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["lora"] is lora


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], f"no trainer is named. Trainers: {', '.join(train.TRAINERS)}"),
        (["kta"], "there is no trainer 'kta'. Did you mean 'kto'?"),
        (["kto", "--lerning-rate", "1"], "kto has no setting '--lerning-rate'. Did you mean '--learning-rate'?"),
        (
            ["kto", "--learning", "1"],
            "kto has no setting '--learning'",
        ),  # no abbreviations: they break with new settings
        (["kto", "--learning-rate"], "--learning-rate: expected one argument"),
        (["kto", "--learning-rate", "fast"], "learning_rate must be a number or null, not 'fast'"),
        (["kto", "--lora=maybe"], "lora must be true or false, not 'maybe'"),
        (["kto", "nothing.yaml"], "cannot read 'nothing.yaml'"),
        (["kto", "--dataset", "bad.jsonl"], "bad.jsonl, line 2: label must be true or false (or 1 or 0), not 'yes'"),
        (["kto", "--actions", "do"], "actions must be 'advise' or 'asked' or 'act', not 'do'"),
    ],
)
def test_wrong_usage_is_one_line_and_64(tmp_path, words, complaint, capsys):
    row = {"prompt": "p", "completion": "c", "label": True}
    (tmp_path / "bad.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(row | {'label': 'yes'})}\n")
    assert main(["train", *words]) == USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert complaint in printed.err
    assert len(printed.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("stopped", 0), ("failed", 1)])
def test_how_it_ended_is_reported_and_is_the_exit_code(status, code, capsys, monkeypatch):
    from rlvitals.train import kto

    monkeypatch.setattr(kto, "train", lambda settings: TrainingOutcome("out", 3, status, "It is over."))
    assert main(["train", "kto"]) == code
    assert capsys.readouterr().out == "It is over.\n"
    assert main(["train", "kto", "--json"]) == code
    facts = {"where": "out", "steps": 3, "status": status, "verdict": "It is over."}
    assert json.loads(capsys.readouterr().out) == facts


def test_of_several_processes_one_prints(capsys, monkeypatch):
    from rlvitals.train import kto

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(kto, "train", lambda settings: TrainingOutcome("out", 3, "finished", "It is over."))
    assert main(["train", "kto"]) == 0
    assert capsys.readouterr().out == ""
