"""Another package adds a metric, a rule and the tracker of the docs by entry points, as pip leaves them. For importers
see `tests/importers/test_registry.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from conftest import REPO

PACKAGE = """
METRICS = {"metrics": [{"id": "mail.errors", "title": "Mail errors", "what": "Share of mails that the server rejects.",
                        "unit": "fraction", "direction": "down", "names": {"rlvitals": "mail/errors"}}]}

RULES = [{"rule": "mails_fail", "kind": "tool_errors", "when": "mail.errors > 0.2", "severity": "critical",
          "hold": "3 of 3", "title": "{value:.0%} of the mails fail"}]
"""
PAGE = (REPO / "docs" / "trackers.md").read_text()
TRACKER = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "class LinesSink" in block)
GROUPS = {"catalog": "METRICS", "rules": "RULES", "sinks": "LinesSink"}

TRAINING = """
import rlvitals
run = rlvitals.start("run", track_with="mail", tracker_kwargs={"path": "lines.txt"}, display="none", hardware=False)
for step in range(1, 6):
    run.log({"mail/errors": 0.5}, step=step)
run.finish()
"""


@pytest.fixture
def installed(tmp_path, child_environment):
    """Installs a package `mail` with these entry points, and runs Python where it is installed."""
    site = tmp_path / "site"
    about = site / "mail-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "mail.py").write_text(PACKAGE + TRACKER)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mail\nVersion: 1.0\n")
    environment = {**child_environment, "PYTHONPATH": os.pathsep.join([str(site), str(REPO / "src")])}

    def install(entries):
        lines = [f"[rlvitals.{group}]\nmail = {entry}\n" for group, entry in entries.items()]
        (about / "entry_points.txt").write_text("".join(lines))

        def run(*arguments):
            return subprocess.run(
                [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
            )

        return run

    return install


def test_what_another_package_adds_is_used_and_explained(installed, tmp_path):
    python = installed({group: f"mail:{name}" for group, name in GROUPS.items()})
    done = python("-c", TRAINING)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "lines.txt").read_text().startswith("train 1 {'mail/errors': 0.5}\ntrain 2 ")
    rlvitals = ("-m", "rlvitals.cli.main")
    assert "critical  50% of the mails fail" in python(*rlvitals, "check", "run").stdout
    assert python(*rlvitals, "explain", "mail/errors").stdout.startswith("Mail errors  mail.errors")
    for words in (["rules", "mails_fail"], ["explain", "mails_fail"]):
        assert "Condition: mail.errors > 0.2." in python(*rlvitals, *words).stdout
    assert "mails_fail" in python(*rlvitals, "rules").stdout


@pytest.mark.parametrize(("group", "words"), [("catalog", ["explain", "kl"]), ("rules", ["rules"])])
def test_a_package_that_cannot_be_imported_is_named_with_what_to_do(installed, group, words):
    done = installed({group: "gone:X"})("-m", "rlvitals.cli.main", *words)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr == (
        "rlvitals: error: gone:X (plug-in 'mail') cannot be imported: ModuleNotFoundError: No module named 'gone'. "
        "Repair or uninstall its package\n"
    )


def test_a_tracker_that_cannot_be_imported_is_an_error_at_the_start(installed):
    done = installed({"sinks": "gone:X"})("-c", TRAINING)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "rlvitals.errors.ConfigError: gone:X (plug-in 'mail') cannot be imported: ModuleNotFoundError: No module named "
        "'gone'. Repair or uninstall its package"
    )
