"""`rlvitals gate` as CI runs it: exit codes, the files it writes, the GitHub Action's steps, the pre-commit hook."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml

import rlvitals
from conftest import REPO
from rlvitals.cli.main import main

pytestmark = pytest.mark.slow

ACTION = REPO / ".github" / "actions" / "gate" / "action.yml"
HOOKS = REPO / ".pre-commit-hooks.yaml"

SCHEMA = """
<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
  <xs:element name="testsuites"><xs:complexType>
    <xs:sequence><xs:element ref="testsuite" minOccurs="0" maxOccurs="unbounded"/></xs:sequence>
    <xs:attributeGroup ref="counts"/>
  </xs:complexType></xs:element>
  <xs:element name="testsuite"><xs:complexType>
    <xs:sequence><xs:element ref="testcase" minOccurs="0" maxOccurs="unbounded"/></xs:sequence>
    <xs:attributeGroup ref="counts"/>
  </xs:complexType></xs:element>
  <xs:attributeGroup name="counts">
    <xs:attribute name="name" type="xs:string" use="required"/>
    <xs:attribute name="tests" type="xs:nonNegativeInteger" use="required"/>
    <xs:attribute name="failures" type="xs:nonNegativeInteger" use="required"/>
    <xs:attribute name="errors" type="xs:nonNegativeInteger" use="required"/>
    <xs:attribute name="skipped" type="xs:nonNegativeInteger"/>
    <xs:attribute name="time" type="xs:decimal"/>
  </xs:attributeGroup>
  <xs:element name="testcase"><xs:complexType>
    <xs:choice minOccurs="0">
      <xs:element name="skipped">
        <xs:complexType><xs:attribute name="message" type="xs:string"/></xs:complexType>
      </xs:element>
      <xs:element name="error" type="told"/><xs:element name="failure" type="told"/>
      <xs:element name="system-out" type="xs:string"/>
    </xs:choice>
    <xs:attribute name="name" type="xs:string" use="required"/>
    <xs:attribute name="classname" type="xs:string" use="required"/>
    <xs:attribute name="time" type="xs:decimal"/>
  </xs:complexType></xs:element>
  <xs:complexType name="told"><xs:simpleContent><xs:extension base="xs:string">
    <xs:attribute name="message" type="xs:string"/><xs:attribute name="type" type="xs:string"/>
  </xs:extension></xs:simpleContent></xs:complexType>
</xs:schema>
"""
"""The part of the JUnit schema used here, as Jenkins, GitLab and GitHub read it."""


def record(path, seed, *, lift=1.0, name=None, metric="reward", error=None, rules=None):
    """Record a run as a trainer does; it is monitored if rules are given."""
    rng = np.random.default_rng(seed)
    run = rlvitals.start(
        path, name=name or path.name, config={"seed": seed, "lr": 1e-5 * lift}, algorithm="grpo", display="none",
        hardware=False, monitor=rules is not None, rules=rules,
    )  # fmt: skip
    for step in range(1, 61):
        reward = lift * (0.3 + 0.5 * (1 - math.exp(-step / 15)) + rng.normal(0, 0.02))
        run.log({metric: reward, "grad_norm": float(0.5 * np.exp(rng.normal(0, 0.1)))}, step=step)
    run.finish("failed" if error else "finished", error=error)
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three baselines in a folder; beside it a healthy run, one 15 % worse, one with another metric, one failed."""
    root = tmp_path_factory.mktemp("gate")
    (root / "baselines").mkdir()
    for seed in (1, 2, 3):
        record(root / "baselines" / f"seed{seed}", seed)
    record(root / "same", 4)
    record(root / "worse", 5, lift=0.85)
    record(root / "other", 6, metric="rewards/margins")
    record(root / "broken", 7, error="CUDA out of memory")
    return root


def test_the_exit_code_is_the_answer(runs, capsys):
    baselines = str(runs / "baselines")
    assert main(["gate", str(runs / "same"), "--baseline", baselines]) == 0
    output = capsys.readouterr().out
    assert "Gate passed" in output
    assert "Mean reward, end of the run" in output
    assert main(["gate", str(runs / "worse"), "--baseline", baselines]) == 1
    output = capsys.readouterr().out
    assert "Gate failed" in output
    assert "lr: 8.5e-06 (baseline: 1e-05)" in output
    assert main(["gate", str(runs / "broken"), "--baseline", baselines]) == 1
    assert "CUDA out of memory" in capsys.readouterr().out


@pytest.mark.parametrize(("severity", "code"), [("warning", 0), ("critical", 1)])
def test_a_new_finding_fails_where_it_is_critical(runs, tmp_path, severity, code, capsys):
    own = record(tmp_path / "own", 8, rules=[f"reward > 0.2 for 3: {severity}"])
    assert severity in {finding.severity for finding in rlvitals.open_run(own).findings}
    assert main(["gate", str(own), "--baseline", str(runs / "baselines")]) == code
    assert ("✖ No new critical finding" in capsys.readouterr().out) is (code == 1)


def test_baselines_may_be_named_one_by_one_and_be_logs(runs, tmp_path, capsys):
    log = tmp_path / "foreign.jsonl"
    shutil.copy(runs / "baselines" / "seed1" / "logs" / "training_metrics.jsonl", log)
    words = [
        "gate",
        str(runs / "same"),
        "--baseline",
        str(log),
        "--baseline",
        str(runs / "baselines" / "seed2"),
        "--json",
    ]
    assert main(words) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [view["name"] for view in facts["baselines"]] == ["foreign", "seed2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{same}", "--baseline", "{other}"], "does not log"),
        (["{missing}", "--baseline", "{baselines}"], "there is nothing there"),
        (["{same}", "--baseline", "{missing}"], "there is nothing there"),
        (["{same}", "--baseline", "{same}"], "no baseline besides the candidate"),
        (["{same}", "--baseline", "{baselines}", "--rule", "reward=1"], "write NAME OP NUMBER"),
        (["{same}", "--baseline", "{baselines}", "--rule", "{missing}.yaml"], "cannot read"),
        (["{same}", "--baseline", "{baselines}", "--rule", "entropy>1"], "entropy"),
        (["{same}", "--baseline", "{baselines}", "--metric", "lr_of_mine"], "lr_of_mine"),
        (["{same}", "--baseline", "{baselines}", "--plot", "curve.txt"], "a picture's name ends in"),
        (["{same}", "--baseline", "{baselines}", "--json", "--markdown", "-"], "both print"),
        (["{same}", "--baseline", "{baselines}", "--rules-only"], "at least one rule"),
    ],
)
def test_what_cannot_be_compared_exits_with_2(runs, tmp_path, words, message, capsys):
    junit = tmp_path / "junit.xml"
    filled = [
        word.format(**{name: runs / name for name in ("same", "other", "missing", "baselines")}) for word in words
    ]
    assert main(["gate", *filled, "--junit", str(junit)]) == 2
    assert message in capsys.readouterr().err
    suite = ElementTree.parse(junit).getroot()
    assert suite.get("errors") == "1"
    assert message in suite.find(".//error").get("message")


def test_wrong_usage_exits_as_with_every_verb(runs, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["gate", str(runs / "same")])
    assert ended.value.code == 64
    assert "--baseline" in capsys.readouterr().err


def validated(path):
    """A JUnit file, parsed by lxml and checked against the schema."""
    etree = pytest.importorskip("lxml.etree")
    document = etree.parse(str(path))
    etree.XMLSchema(etree.fromstring(SCHEMA)).assertValid(document)
    return document.getroot()


def test_the_junit_file_is_what_ci_reads(runs, tmp_path):
    baselines, file = str(runs / "baselines"), tmp_path / "reports" / "junit.xml"
    words = ["--baseline", baselines, "--rule", "reward>=0.75", "--rule", "reward<0.1", "--junit", str(file)]
    assert main(["gate", str(runs / "worse"), *words]) == 1
    root = validated(file)
    cases = root.findall(".//testcase")
    failed = {case.get("name") for case in cases if case.find("failure") is not None}
    assert {"Mean reward, end of the run", "reward>=0.75", "reward<0.1"} <= failed
    assert int(root.get("tests")) == len(cases)
    assert int(root.get("failures")) == len(failed)
    assert int(root.get("skipped")) == len(root.findall(".//skipped")) > 0
    text = next(case for case in cases if case.get("name") == "Mean reward, end of the run").find("failure").text
    assert re.search(r"change -1\d\.\d %", text)


def test_hostile_names_are_harmless_in_xml_and_markdown(tmp_path, capsys):
    bad = "a\x1b[31m<b>|`@you`\x00]]>"
    own = record(tmp_path / "own", 1, name=bad)
    baseline = record(tmp_path / "baseline", 2, name=bad)
    words = ["gate", str(own), "--baseline", str(baseline), "--junit", str(tmp_path / "j.xml"), "--markdown", "-"]
    assert main(words) == 0
    validated(tmp_path / "j.xml")
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "<b>" not in output.replace("&lt;b>", "")


def test_a_bar_in_a_name_ends_no_cell_of_the_table_and_stays_as_it_is_elsewhere(tmp_path, capsys):
    for place, seed in (("own|one", 1), ("baseline", 2)):
        with rlvitals.start(tmp_path / place, display="none", monitor=False) as run:
            for step in range(1, 61):
                run.log({"my|score": 0.5 + 0.01 * ((step * seed) % 7)}, step=step)
    words = ["gate", str(tmp_path / "own|one"), "--baseline", str(tmp_path / "baseline"), "--metric", "my|score"]
    main([*words, "--direction", "up", "--markdown", "-"])
    output = capsys.readouterr().out
    rows = [line for line in output.splitlines() if line.startswith("| ")]
    assert any(r"my\|score, end of the run" in row for row in rows)
    assert {re.sub(r"\\.", "", row).count("|") for row in rows} == {8}  # a bar after a backslash separates nothing
    assert f"- candidate: `{tmp_path / 'own|one'}`" in output


def test_the_markdown_summary_shows_every_measure(runs, tmp_path, capsys):
    file = tmp_path / "summary.md"
    assert main(["gate", str(runs / "worse"), "--baseline", str(runs / "baselines"), "--markdown", str(file)]) == 1
    text = file.read_text()
    assert text.startswith("## ✖ Gate failed: worse\n")
    rows = [line for line in text.splitlines() if re.match(r"\| [✔✖] \|", line)]
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|") and "setting" not in line}
    assert any("Mean reward, end of the run" in row and row.startswith("| ✖") for row in rows)
    assert len(rows) >= 6
    assert 8 in widths
    assert "| `lr` | `8.5e-06` | `1e-05` |" in text
    assert "Gate failed" in capsys.readouterr().out
    assert main(["gate", str(runs / "worse"), "--baseline", str(runs / "baselines"), "--markdown", "-"]) == 1
    assert capsys.readouterr().out == text


def test_limits_from_a_file_and_flags_over_it(runs, tmp_path, capsys):
    rules = tmp_path / "gate.yaml"
    rules.write_text("rules: ['reward>=0.5']\nalpha: 0.01\nmargins: {final: 50%, best: 50%, area: 50%, early: 50%}\n")
    words = ["gate", str(runs / "worse"), "--baseline", str(runs / "baselines"), "--rule", str(rules), "--json"]
    main(words)
    facts = json.loads(capsys.readouterr().out)
    assert facts["alpha"] == 0.01
    assert [one["title"] for one in facts["rules"]] == ["reward>=0.5"]
    outcomes = {one["name"]: one["state"] for one in facts["tests"] if one["group"] == "outcome"}
    assert set(outcomes.values()) == {"pass"}
    main([*words, "--margin", "final=1%", "--alpha", "0.05"])
    facts = json.loads(capsys.readouterr().out)
    assert facts["alpha"] == 0.05
    assert next(one for one in facts["tests"] if one["name"] == "final")["state"] == "fail"


def test_the_picture_is_drawn(runs, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "gate.svg"
    assert main(["gate", str(runs / "same"), "--baseline", str(runs / "baselines"), "--plot", str(file)]) == 0
    assert ElementTree.parse(file).getroot().tag.endswith("svg")


# The GitHub Action


def steps():
    return yaml.safe_load(ACTION.read_text())["runs"]["steps"]


def run_action(tmp_path, **inputs):
    """Run the shell script of the action's step as GitHub's runner does: inputs through its `env`, bash with -e."""
    action = yaml.safe_load(ACTION.read_text())
    given = {name: str(entry.get("default", "")) for name, entry in action["inputs"].items()} | inputs
    step = next(step for step in steps() if step.get("id") == "gate")
    environment = {
        name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: given[found[1]], value)
        for name, value in step["env"].items()
    }
    (tmp_path / "bin").mkdir(exist_ok=True)
    command = tmp_path / "bin" / "rlvitals"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rlvitals.cli.main "$@"\n')
    command.chmod(0o755)
    files = {name: tmp_path / name for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    for file in files.values():
        file.write_text("before\n")
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    variables = os.environ | environment | {name: str(file) for name, file in files.items()}
    variables |= {"PATH": path, "PYTHONPATH": str(REPO / "src")}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines()[1:])
    return done, files["GITHUB_STEP_SUMMARY"].read_text(), outputs


def test_the_action_reads_no_input_into_a_script():
    assert all("${{" not in step["run"] for step in steps())
    assert {step["shell"] for step in steps()} == {"bash"}
    outputs = yaml.safe_load(ACTION.read_text())["outputs"]
    assert {entry["value"] for entry in outputs.values()} == {
        "${{ steps.gate.outputs.state }}", "${{ steps.gate.outputs.code }}",
    }  # fmt: skip


def test_the_action_fails_the_job_and_writes_the_summary(runs, tmp_path):
    done, summary, outputs = run_action(
        tmp_path, run=str(runs / "worse"), baselines=f"{runs / 'baselines'}\n", junit="out/junit.xml",
        rules="reward>=0.1\nspikes<50\n",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert summary.startswith("before\n## ✖ Gate failed: worse")
    assert outputs == {"state": "fail", "code": "1"}
    assert validated(tmp_path / "out" / "junit.xml").get("name") == "rlvitals gate"
    assert "spikes<50" in summary


def test_the_action_passes_reports_only_and_says_what_is_wrong(runs, tmp_path):
    same = {"run": str(runs / "same"), "baselines": str(runs / "baselines")}
    done, summary, outputs = run_action(tmp_path, **same)
    assert (done.returncode, outputs["state"]) == (0, "pass"), done.stderr
    done, _, outputs = run_action(tmp_path, **same | {"run": str(runs / "worse"), "fail": "false"})
    assert (done.returncode, outputs["state"]) == (0, "fail")
    done, summary, outputs = run_action(tmp_path, **same | {"run": str(runs / "other")})
    assert (done.returncode, outputs["state"]) == (2, "cannot-compare")
    assert "could not be compared" in summary


def test_the_action_runs_nothing_that_an_input_says(runs, tmp_path):
    bad = '$(touch pwned)"; touch pwned; echo "`touch pwned`'
    done, _, outputs = run_action(tmp_path, run=str(runs / "same"), baselines=f"{bad}\n--help", rules=f"{bad}\n--help")
    assert done.returncode in (2, 64)
    assert outputs["state"] == "cannot-compare"
    assert not (tmp_path / "pwned").exists()


def test_the_hook_is_a_command_that_gates(runs):
    """As pre-commit runs it: the words of `entry`, then those of `args`."""
    hook = yaml.safe_load(HOOKS.read_text())[0]
    assert hook["pass_filenames"] is False
    program, *words = shlex.split(hook["entry"])
    assert program == "rlvitals"
    assert main([*words, str(runs / "same"), "--baseline", str(runs / "baselines")]) == 0
    assert main([*words, str(runs / "worse"), "--baseline", str(runs / "baselines")]) == 1
