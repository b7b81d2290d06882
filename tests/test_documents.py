"""The commands and scripts in the KTO guide work unchanged on a run's directory."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest

import rlvitals


@pytest.fixture
def guide(shared) -> str:
    return (shared / "reference" / "kto-metrics.md").read_text()


@pytest.fixture
def folder(tmp_path):
    """A KTO run under the name the guide uses, with a NaN and evaluation rows in between."""
    with rlvitals.start(tmp_path / "kto_output_rtx3090", algorithm="kto") as run:
        for step in range(1, 21):
            kl = float("nan") if step == 15 else 0.1
            run.log({"loss": 0.65 - step / 100, "rewards/margins": 0.02 * step, "kl": kl}, step=step)
            if step % 5 == 0:
                run.log_eval({"eval_loss": 0.6}, step=step)
    # A shell where `python` is this Python.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    return tmp_path


def shell(command: str, folder) -> str:
    path = f"PATH={folder / 'bin'}:$PATH"
    done = subprocess.run(["bash", "-c", f"{path}; {command}"], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def command_with(guide: str, word: str) -> str:
    """The line of the guide that contains a word."""
    blocks = re.findall(r"```bash\n(.*?)```", guide, re.DOTALL)
    return next(line for block in blocks for line in block.splitlines() if word in line and not line.startswith("#"))


def test_the_health_check_script_runs_unchanged(guide, folder):
    script = next(
        block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "check_training_health" in block
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    assert "Latest step: 20" in done.stdout
    assert "Current margin: 0.4000" in done.stdout
    assert "Margin trend (last 10 steps): +0.2000" in done.stdout
    assert "Training is healthy" in done.stdout


def test_the_line_count_is_the_number_of_steps(guide, folder):
    assert shell(command_with(guide, "wc -l"), folder).strip() == "20"


def test_the_one_liner_shows_the_current_margin(guide, folder):
    assert shell(command_with(guide, "import sys, json"), folder) == "Step 20: Margin=0.4000\n"


def test_tail_follows_new_rows(guide, folder):
    command = command_with(guide, "tail -f")
    with subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=folder, stdout=subprocess.PIPE, text=True) as tail:
        with rlvitals.start(folder / "kto_output_rtx3090", resume=True) as run:
            run.log({"rewards/margins": 0.5}, step=21)
        try:
            seen = next(line for line in tail.stdout if '"step":21,' in line)
        finally:
            tail.kill()
    assert '"rewards/margins":0.5' in seen


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_jq_reads_one_metric_over_time(guide, folder):
    assert shell(command_with(guide, "jq"), folder).split() == [json.dumps(0.02 * step) for step in range(1, 21)]
