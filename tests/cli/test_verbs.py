"""Each verb as a user runs it: what it prints, --json, exit codes, no tracebacks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import rlvitals
from rlvitals.cli.main import VERBS, main
from rlvitals.health import rulebook


@pytest.fixture
def run_path(tmp_path):
    with rlvitals.start(tmp_path / "run", name="demo", algorithm="kto", total_steps=5, config={"lr": 5e-7}) as run:
        for step in range(1, 6):
            run.log({"loss": 0.7 - step / 20, "rewards/margins": step / 5, "kl": float("nan")}, step=step)
    return tmp_path / "run"


def facts(capsys, *words: str):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_show_tells_status_last_rows_and_best_values(run_path, capsys):
    assert main(["show", str(run_path)]) == 0
    shown = capsys.readouterr().out
    assert "demo" in shown
    assert "finished" in shown
    last = shown.partition("Last rows")[2].splitlines()
    assert "rewards/margins" in "".join(last[:3])
    assert any("0.45" in line and line.rstrip().endswith("nan") for line in last)
    info = facts(capsys, "show", str(run_path), "--last", "2")
    assert (info["status"], info["step"], info["rows"], info["total_steps"]) == ("finished", 5, 5, 5)
    assert [row["step"] for row in info["last_rows"]] == [4, 5]
    margin = next(metric for metric in info["metrics"] if metric["name"] == "rewards/margins")
    assert (margin["best"], margin["best_step"], margin["last"]) == (1.0, 5, 1.0)
    assert info["metrics"][0]["name"] == "rewards/margins"  # the vital sign of KTO comes first
    assert next(metric for metric in info["metrics"] if metric["name"] == "kl")["last"] == "nan"


def test_show_reads_the_log_of_another_tool(tmp_path, capsys):
    log = tmp_path / "train.jsonl"
    log.write_text("".join(f'{{"step": {step}, "loss": {1 / step}}}\n' for step in range(1, 11)))
    assert main(["show", str(log)]) == 0
    shown = capsys.readouterr().out
    assert "jsonl log" in shown
    assert "10 rows" in shown
    assert "started" not in shown  # the log has no times, and its file's is when it was written last
    assert facts(capsys, "show", str(log))["seconds"] is None
    assert main(["export", str(log), "--to", "csv"]) == 64
    assert "it is a file, not a directory. 'rlvitals import LOG --to DIR' makes a run" in capsys.readouterr().err


def test_show_tells_what_was_left_out_and_torn(tmp_path, capsys, caplog):
    with rlvitals.start(tmp_path / "run") as run:
        run.log({"loss": 1.0, "grads": [1, 2, 3]}, step=1)
    with (tmp_path / "run" / "logs" / "training_metrics.jsonl").open("a") as file:
        file.write('garbage\n{"step": 2, "lo')
    assert main(["show", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "'grads' was left out 1 times" in shown
    assert "1 line skipped (line 2: not JSON)" in shown
    assert "the last line is torn" in shown


def test_control_characters_in_a_log_do_not_reach_the_terminal(tmp_path, capsys):
    with rlvitals.start(tmp_path / "run", name="evil\x1b[2Jname") as run:
        run.log({"loss\x1b]0;owned\x07": 1.0, "note": "\x1b[31mred"}, step=1)
    for words in (["show", str(tmp_path / "run")], ["runs", str(tmp_path)]):
        assert main(words) == 0
        assert "\x1b" not in capsys.readouterr().out


def test_runs_lists_what_is_below_a_folder(run_path, tmp_path, capsys):
    listed = facts(capsys, "runs", str(tmp_path))
    assert [(run["name"], run["status"], run["step"]) for run in listed] == [("demo", "finished", 5)]
    assert main(["runs", str(tmp_path)]) == 0
    assert "5/5" in capsys.readouterr().out


def test_a_damaged_run_is_a_line_of_runs_that_says_so(run_path, tmp_path, capsys):
    with rlvitals.start(tmp_path / "other") as run:
        run.log({"loss": 1.0})
    (tmp_path / "other" / "run.json").write_text("{")
    assert main(["runs", str(tmp_path), "--json"]) == 0
    captured = capsys.readouterr()
    lines = {Path(line["path"]).name: line for line in json.loads(captured.out)}
    assert {name: line["status"] for name, line in lines.items()} == {"run": "finished", "other": "unreadable"}
    assert "run.json is damaged" in lines["other"]["note"]
    assert "run.json is damaged" in captured.err
    assert main(["runs", str(tmp_path)]) == 0
    assert "unreadable" in capsys.readouterr().out


def test_runs_in_an_empty_folder_says_so(tmp_path, capsys):
    assert main(["runs", str(tmp_path)]) == 0
    assert "no runs and no logs below" in capsys.readouterr().err


def test_compare_prints_and_tells(run_path, tmp_path, capsys):
    with rlvitals.start(tmp_path / "b", config={"lr": 1e-6}) as run:
        run.log({"loss": 0.9}, step=1)
    assert main(["compare", str(run_path), str(tmp_path / "b")]) == 0
    shown = capsys.readouterr().out
    assert "Settings that differ" in shown
    assert "differ from step 1 on" in shown
    compared = facts(capsys, "compare", str(run_path), str(tmp_path / "b"))
    assert compared["config_differences"]["lr"] == [5e-7, 1e-6]
    assert compared["first_divergence"] == 1


def test_compare_refuses_what_does_not_compare(tmp_path, capsys):
    for name, framework, row in (("a", "trl_grpo", {"kl": 0.1}), ("b", "trl_ppo", {"objective/kl": 9.0})):
        with rlvitals.start(tmp_path / name, framework=framework) as run:
            run.log(row, step=1)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--metric", "kl"]) == 1
    assert "not the same quantity" in capsys.readouterr().err


@pytest.mark.parametrize("to", ["csv", "json", "parquet"])
def test_export_writes_a_file_and_says_how_much(run_path, tmp_path, capsys, to):
    target = tmp_path / f"out.{to}"
    exported = facts(capsys, "export", str(run_path), "--to", to, "--output", str(target))
    assert (exported["rows"], exported["bytes"]) == (5, target.stat().st_size)


def test_export_to_a_place_that_cannot_be_written_is_one_line(run_path, capsys):
    assert main(["export", str(run_path), "--to", "csv", "--output", "/no/such/folder/x.csv"]) == 64
    assert "cannot write /no/such/folder/x.csv" in capsys.readouterr().err


def test_explain_is_one_screen_with_everything(capsys):
    assert main(["explain", "rewards/margins"]) == 0
    shown = capsys.readouterr().out
    for part in ("pref.reward.margin", "formula", "Typical range", "When it is off", "Elsewhere called", "trap"):
        assert part in shown
    assert facts(capsys, "explain", "actor/policykl", "--framework", "roll")["sources"][0]["caveat"]["factor"] == -1


def test_explain_takes_a_catalogue_of_ones_own(tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text("metrics:\n- {id: mine.smiles, title: Smiles, what: Smiles per answer., unit: smiles}\n")
    assert facts(capsys, "explain", "mine.smiles", "--catalog", str(file))["title"] == "Smiles"


def test_explain_of_an_unknown_name_exits_1_with_the_nearest(capsys):
    assert main(["explain", "rewards/margns"]) == 1
    assert "rewards/margins" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["show", "nowhere"], ["compare", "only-one"], ["runs", "nowhere"], ["export", "nowhere", "--to", "csv"]],
)
def test_an_unreadable_run_exits_64_without_a_traceback(words, capsys):
    assert main(words) == 64
    captured = capsys.readouterr().err
    assert captured.startswith("rlvitals: error: ")
    assert "Traceback" not in captured


@pytest.mark.parametrize("words", [["shwo"], ["show"], ["export", "x", "--to", "xml"], ["show", "x", "--nope"]])
def test_wrong_usage_exits_64(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 64
    assert "Did you mean 'show'" in capsys.readouterr().err or words != ["shwo"]


def test_help_lists_every_verb(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in VERBS)


def test_the_installed_command_works_and_survives_a_closed_pipe(run_path):
    command = f"{sys.executable} -m rlvitals.cli.main export {run_path} --to csv --output - | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("step,timestamp,attempt")
    assert "Traceback" not in done.stderr
    version = subprocess.run(
        [sys.executable, "-m", "rlvitals.cli.main", "--version"], capture_output=True, text=True, check=True
    )
    assert version.stdout.strip() == f"rlvitals {rlvitals.__version__}"


def test_rules_lists_every_rule_and_tells_one_or_a_kind_in_full(capsys):
    shipped = rulebook.shipped().rules
    assert main(["rules", "--json"]) == 0
    assert [rule["rule"] for rule in json.loads(capsys.readouterr().out)] == list(shipped)
    assert main(["explain", "reward_hacking"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name, rule in shipped.items() if rule.kind == "reward_hacking")
    assert main(["rules", "proxy_gap"]) == 0
    assert "the policy exploits the reward" in capsys.readouterr().out
    assert main(["explain", "kto_margin_backwards"]) == 0  # a preset's rule, by the name in its findings
    assert "the model is learning backwards" in capsys.readouterr().out
    assert main(["rules", "proxy_gapp"]) == 64
    assert "Did you mean 'proxy_gap'?" in capsys.readouterr().err


def test_runs_tells_verdict_outcome_and_duration(tmp_path, capsys):
    with rlvitals.start(tmp_path / "good", display="none", hardware=False, algorithm="grpo") as run:
        for step in range(40):
            run.log({"reward": 0.01 * step, "loss": 1 / (1 + step)}, step=step)
    with rlvitals.start(tmp_path / "bad", display="none", hardware=False, monitor=False, algorithm="dpo") as run:
        for step in range(40):
            run.log({"loss": float("nan"), "rewards/margins": 0.5}, step=step)
    assert main(["runs", str(tmp_path), "--json"]) == 0
    by_name = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert by_name["good"]["verdict"] == "healthy"
    assert by_name["good"]["outcome"] == {"name": "reward", "value": pytest.approx(0.39)}
    assert by_name["bad"]["verdict"] == rlvitals.check(tmp_path / "bad").verdict == "act"  # it was not monitored
    assert by_name["bad"]["outcome"]["name"] == "rewards/margins"
    assert 0 < by_name["good"]["seconds"] < 60


def test_the_reward_in_the_list_of_runs_is_no_slices(tmp_path, capsys):
    with rlvitals.start(tmp_path / "run", display="none", hardware=False, algorithm="grpo") as run:
        for step in range(20):
            run.log({"reward/env=a": 0.9, "reward/env=b": 0.1}, step=step)
    assert main(["runs", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["outcome"] is None
