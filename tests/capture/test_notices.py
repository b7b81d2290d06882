"""The messages about a run's health that a user sees in the terminal."""

from __future__ import annotations

import io
import subprocess
import sys
import types

import pytest

import rlvitals
from rlvitals.capture.notices import MOST_PRINTED, Notices
from rlvitals.records import Finding

LOOP = """
import sys
import rlvitals

with rlvitals.start(sys.argv[1], hardware=False, algorithm="grpo", **eval(sys.argv[2])) as run:
    for step in range(60):
        loss = 1.7**step if sys.argv[3] == "bad" else 1 / (1 + step)
        run.log({"loss": loss, "grad_norm": loss, "reward": 0.01 * step, "kl": 0.01}, step=step)
"""


def printed_lines(tmp_path, kind, **settings):
    """The lines that a plain loop prints."""
    command = [sys.executable, "-c", LOOP, tmp_path / "run", repr(settings), kind]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_a_plain_loop_that_diverges_prints_alarms_by_default(tmp_path):
    lines = printed_lines(tmp_path, "bad")
    found = rlvitals.open_run(tmp_path / "run").findings
    criticals = [finding for finding in found if finding.severity == "critical"]
    assert len(criticals) > 1
    for finding in criticals:
        line = next(line for line in lines if line.startswith("rlvitals ✖ critical") and finding.title in line)
        assert f"at step {finding.step}: " in line
        assert lines[lines.index(line) + 1] == f"  do: {finding.advice[0]}"
    warnings = [line for line in lines if line.startswith("rlvitals ! warning")]
    assert len(warnings) <= 1
    assert lines[-1].startswith(f"rlvitals ✖ act: {criticals[0].title}, since step {criticals[0].onset_step}")
    assert lines[-1].endswith(". rlvitals check run")


def test_a_healthy_loop_says_one_line_at_its_end(tmp_path):
    (line,) = printed_lines(tmp_path, "good")
    assert line.startswith("rlvitals ✔ healthy: ")
    assert line.endswith(". rlvitals check run")


@pytest.mark.parametrize("settings", [{"display": "none"}, {"monitor": False}])
def test_silence_can_be_asked_for(tmp_path, settings):
    assert printed_lines(tmp_path, "bad", **settings) == []


def finding(severity, number=1):
    return Finding(f"rule{number}", "nonfinite", severity, number, number, f"trouble {number}", advice=("stop",))


def test_of_many_findings_the_first_are_printed_and_warnings_once(tmp_path, capsys):
    notices = Notices("alarms", str(tmp_path))
    for number in range(1, 4):
        notices.print_finding(finding("warning", number))
        notices.print_finding(finding("info", number))
    assert capsys.readouterr().err.count("rlvitals !") == 1
    for number in range(4, 40):
        notices.print_finding(finding("critical", number))
    printed = capsys.readouterr().err
    assert printed.count("rlvitals ✖ critical") == MOST_PRINTED - 1
    assert printed.count(f"rlvitals check {tmp_path}") == 1


def test_a_stream_that_takes_only_ascii_or_is_closed_costs_nothing(tmp_path, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    Notices("alarms", str(tmp_path)).print_finding(finding("critical"))
    assert raw.getvalue().startswith(b"rlvitals x critical at step 1: trouble 1")
    sys.stderr.close()
    Notices("alarms", str(tmp_path)).print_finding(finding("critical"))
    monkeypatch.setattr(sys, "stderr", None)
    Notices("alarms", str(tmp_path)).print_finding(finding("critical"))


def test_hostile_titles_cannot_reach_the_terminal(tmp_path, capsys):
    hostile = Finding("r", "nonfinite", "critical", 1, 1, "\x1b[2Jgone\rnothing", advice=("\x1b]0;x\x07",))
    Notices("alarms", str(tmp_path)).print_finding(hostile)
    assert not set("\x1b\r\x07") & set(capsys.readouterr().err)


def test_a_notebook_shows_one_card_and_updates_it(tmp_path, monkeypatch, capsys):
    """IPython is a stand-in here; tests/docs/test_notebooks.py uses a real kernel."""
    shown, updates = [], []
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    display = types.ModuleType("IPython.display")
    display.HTML = str
    handle = types.SimpleNamespace(update=updates.append)
    display.display = lambda card, display_id: shown.append(card) or handle
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with rlvitals.start(tmp_path / "run", hardware=False, total_steps=30) as run:
        for step in range(30):
            run.log({"loss": 0.5 / (step + 1) if step < 10 else float("nan"), "reward": 0.1 * step}, step=step)
    (first,) = shown
    assert "step 0 of 30" in first
    assert "finite" not in first
    alarming = [card for card in updates if "loss is not a finite number" in card]
    assert "running" in alarming[0]  # during training
    assert "step 10 of 30" in alarming[0]
    assert "finished" in updates[-1]
    assert "step 29 of 30" in updates[-1]
    assert len(updates) < 10  # not one per row
    assert capsys.readouterr().err == ""


def test_a_display_that_fails_costs_the_training_nothing(tmp_path, monkeypatch, capsys):
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", types.ModuleType("IPython.display"))
    with rlvitals.start(tmp_path / "run", hardware=False) as run:
        run.log({"loss": 1.0}, step=1)
    assert rlvitals.open_run(tmp_path / "run").rows == 1
    assert capsys.readouterr().err == ""
