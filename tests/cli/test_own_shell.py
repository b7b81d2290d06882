"""`rlvitals env` for bug reports, and completion in the real shells."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from importlib import metadata

import pytest

from rlvitals.cli.main import VERBS, main
from rlvitals.version import __version__


def test_env_tells_the_versions_there_are(capsys, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")
    assert main(["env", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["rlvitals"] == __version__
    assert platform.python_version() in facts["python"]
    assert facts["packages"]["base"]["orjson"] == metadata.version("orjson")
    assert main(["env"]) == 0
    shown = capsys.readouterr().out
    assert f"orjson {metadata.version('orjson')}" in shown
    assert "0123456789abcdef" not in shown + json.dumps(facts)


def script(shell, tmp_path, capsys):
    assert main(["completion", shell]) == 0
    file = tmp_path / f"completion.{shell}"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    return file


def test_bash_completes_verbs_and_flags(tmp_path, capsys):
    file = script("bash", tmp_path, capsys)

    def completed(*words):
        line = " ".join(words)
        code = f"source {file}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _rlvitals; echo ${{COMPREPLY[@]}}"
        return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert completed("rlvitals", "che") == ["check"]
    assert set(completed("rlvitals", "''")) == set(VERBS)
    assert completed("rlvitals", "check", "--foll") == ["--follow"]
    assert completed("rlvitals", "check", "some") == []  # bash itself completes paths


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish: apt-get install fish")
def test_fish_completes_verbs_and_flags(tmp_path, capsys):
    file = script("fish", tmp_path, capsys)
    code = f'source {file}; complete -C "rlvitals che"; complete -C "rlvitals check --foll"'
    done = subprocess.run(["fish", "-c", code], capture_output=True, text=True, check=True)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["check", "--follow"]
    assert done.stderr == ""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh: apt-get install zsh")
def test_zsh_takes_the_script(tmp_path, capsys):
    file = script("zsh", tmp_path, capsys)
    code = f"autoload -Uz compinit; compinit -u; source {file}; print ${{_comps[rlvitals]}}"
    done = subprocess.run(
        ["zsh", "-fc", code],
        capture_output=True,
        text=True,
        check=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout.split() == ["_rlvitals"]
    assert done.stderr == ""
