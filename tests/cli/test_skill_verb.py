"""`rlvitals skill` prints the guide and installs it where agents look for it, without overwriting changed files."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from argparse import ArgumentParser
from importlib import import_module

import pytest

from conftest import REPO
from rlvitals.agents.skill import skill_text
from rlvitals.agents.tools import TOOLS
from rlvitals.cli.ask import ACTIONS
from rlvitals.cli.main import MODULES, main


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / ".claude" / "skills" / "rlvitals" / "SKILL.md"


def test_it_is_printed(capsys):
    assert main(["skill"]) == 0
    assert capsys.readouterr().out == skill_text()


def test_it_has_the_head_that_agents_choose_a_skill_by():
    first, name, description, last = skill_text().split("\n")[:4]
    assert (first, name, last) == ("---", "name: rlvitals", "---")
    assert description.startswith("description: ")
    assert len(description) < 1024


def test_it_teaches_every_tool_the_requests_and_when_not_to_stop():
    text = skill_text()
    assert all(f"`{tool}`" in text for tool in TOOLS)
    assert all(f"rlvitals ask RUN {action}" in text for action in ACTIONS)
    assert "A plateau after a gain is not a reason to stop" in text


def commands_in(text: str) -> list[str]:
    return re.findall(r"(?:^|`)(rlvitals [a-z][^`\n]*)", text, re.MULTILINE)


@pytest.mark.parametrize(
    "command", commands_in(skill_text() + (REPO / "docs" / "agents.md").read_text().partition("## Connect")[0])
)
def test_every_command_in_it_is_one(command):
    verb, *words = shlex.split(command, comments=True)[1:]
    parser = ArgumentParser(exit_on_error=False)
    import_module(f"rlvitals.cli.{MODULES.get(verb, verb)}").add_arguments(parser)
    assert parser.parse_known_args(words)[1] == []


def test_the_commands_are_found():
    assert len(commands_in(skill_text())) > 12


def test_installing_writes_it_once(place, capsys):
    assert main(["skill", "--install"]) == 0
    assert place.read_text().startswith(skill_text())
    before = place.stat().st_mtime_ns
    assert main(["skill", "--install"]) == 0
    assert place.stat().st_mtime_ns == before
    assert "up to date" in capsys.readouterr().out


def test_a_folder_may_be_given(place, tmp_path, capsys):
    assert main(["skill", "--install", str(tmp_path / "skills"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == {"file": str(tmp_path / "skills" / "rlvitals" / "SKILL.md"), "written": True}
    assert not place.exists()


def test_a_changed_file_is_left_unless_forced(place, capsys):
    main(["skill", "--install"])
    place.write_text(place.read_text() + "Our own rule: never on Fridays.\n")
    changed = place.read_text()
    assert main(["skill", "--install"]) == 64
    assert place.read_text() == changed
    assert "--force" in capsys.readouterr().err
    assert main(["skill", "--install", "--force"]) == 0
    assert "Fridays" not in place.read_text()


def test_a_file_of_somebody_else_is_left(place):
    place.parent.mkdir(parents=True)
    place.write_text("mine")
    assert main(["skill", "--install"]) == 64
    assert place.read_text() == "mine"


def test_an_old_version_that_nobody_changed_is_replaced(place):
    old = b"---\nname: rlvitals\n---\nold words\n"
    place.parent.mkdir(parents=True)
    place.write_bytes(old + f"\n<!-- rlvitals 0.0.9 sha256:{hashlib.sha256(old).hexdigest()} -->\n".encode())
    assert main(["skill", "--install"]) == 0
    assert place.read_text().startswith(skill_text())


def test_force_alone_is_an_error():
    assert main(["skill", "--force"]) == 64
