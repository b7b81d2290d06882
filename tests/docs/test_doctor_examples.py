"""The examples of the doctor's pages run as printed: Python, rule files and command lines."""

from __future__ import annotations

import glob
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import rlvitals
from conftest import REPO
from rlvitals.cli.main import main
from rlvitals.health import rulebook

PAGES = ("doctor.md", "check.md", "actions.md")
WRONG_USAGE = 64


def blocks(page: str, language: str) -> list[str]:
    text = (REPO / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def rows(count: int = 20) -> list[dict[str, float]]:
    return [
        {"step": step, "loss": 0.6 - step / 100, "rewards/margins": 0.02 * step, "grad_norm": 1.0 + 0.1 * (step % 3)}
        for step in range(1, count + 1)
    ]


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Path:
    """A folder with only the files that the pages mention."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLACK_HOOK", "http://127.0.0.1:9/hook")
    Path("my-rules.yaml").write_text(blocks("doctor.md", "yaml")[0], encoding="utf-8")
    lines = "".join(f"{json.dumps(row)}\n" for row in rows())
    Path("logs").mkdir()
    for name in ("train.log", "logs/one.jsonl", "logs/two.jsonl"):
        Path(name).write_text(lines, encoding="utf-8")
    Path("logs/INDEX.tsv").write_text("file\tverdict\none.jsonl\thealthy\ntwo.jsonl\thealthy\n", encoding="utf-8")
    shown = {"output_type": "stream", "name": "stdout", "text": lines}
    cells = [{"cell_type": "code", "source": "trainer.train()", "outputs": [shown]}]
    Path("train.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    state = Path("outputs/checkpoint-500/trainer_state.json")
    state.parent.mkdir(parents=True)
    state.write_text(json.dumps({"log_history": rows(), "global_step": 20}), encoding="utf-8")
    return tmp_path


def record(folder: str) -> None:
    with rlvitals.start(folder) as run:
        for row in rows():
            run.log({name: value for name, value in row.items() if name != "step"}, step=int(row["step"]))


def run_python(page: str) -> dict[str, Any]:
    """Run a page's blocks one after the other, with the names that a trainer would define. Returns all names."""
    trained = iter(rows())
    names = {"rlvitals": rlvitals, "steps": 10, "train_step": lambda: next(trained)}
    names |= dict.fromkeys(("optimizer", "scheduler", "save_checkpoint", "load_checkpoint"))
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), names)
    if "run" in names:
        names["run"].finish()
    return names


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page, desk):
    if page == "check.md":
        record("out/kto")
    made = run_python(page)
    if page == "check.md":
        assert made["report"].verdict in ("healthy", "watch", "act")
    else:
        assert made["run"].status == "finished"


def test_the_monitor_by_hand_says_what_the_page_says(desk, capsys):
    run_python("doctor.md")
    assert blocks("doctor.md", "text")[0] in capsys.readouterr().out


def test_the_rule_file_of_the_page_changes_and_adds_rules(desk):
    shipped, changed = rulebook.load().rules, rulebook.load(Path("my-rules.yaml")).rules
    assert changed["kl_explosion"].warm_up == 20 != shipped["kl_explosion"].warm_up
    assert not changed["gpu_idle"].enabled
    assert changed["tests_broken"].kind == "reward_floor"


def test_the_own_rule_of_the_page_finds_what_it_is_for(desk):
    monitor = rlvitals.Monitor(rules="my-rules.yaml")
    for step in range(1, 31):
        monitor.update({"step": step, "tests/pass_rate": 0.4 if step < 15 else 0.01})
    said = [found for found in monitor.findings if found.rule == "tests_broken"]
    assert [(found.title, found.onset_step) for found in said] == [("only 1% of the tests pass", 15)]


def test_a_mistake_is_named_as_the_page_says(desk):
    Path("my-rules.yaml").write_text(blocks("doctor.md", "yaml")[0].replace("warm_up: 20", "warmup: 20"))
    with pytest.raises(rlvitals.errors.RuleError) as raised:
        rlvitals.Monitor(rules="my-rules.yaml")
    assert str(raised.value) == blocks("doctor.md", "text")[1].strip()


@pytest.mark.parametrize("page", ["doctor.md", "check.md"])
def test_the_command_lines_of_a_page_are_understood(page, desk, capsys):
    record("out/kto")
    record("out/grpo")
    lines = "".join(blocks(page, "bash")).splitlines()
    assert lines
    for line in lines:
        words = shlex.split(line, comments=True)
        assert words[0] == "rlvitals"
        arguments = [path for word in words[1:] for path in (glob.glob(word) if "*" in word else [word])]
        hurry = ["--until-idle", "0.1", "--interval", "0.05"] if "--follow" in arguments else []
        assert main([*arguments, *hurry]) != WRONG_USAGE, line
        capsys.readouterr()


def test_the_lines_of_the_findings_file_are_strict_json():
    lines = [line for block in blocks("actions.md", "json") for line in block.splitlines()]
    assert {json.loads(line)["type"] for line in lines} == {"monitor", "raised", "request", "answer"}
