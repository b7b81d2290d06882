"""The completions of a real training by TRL's GRPO, recorded by the callback, on the Rollouts screen."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from browsing import REPO, browsing
from serving import serving

import rlvitals

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pages")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    pytest.importorskip("trl", reason="the example needs TRL")
    folder = tmp_path_factory.mktemp("trl")
    command = [sys.executable, REPO / "examples" / "trl_grpo.py", folder / "trl", "3"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_the_example_of_trl_has_its_rollouts_on_the_screen(browser, trained):
    groups = rlvitals.open_run(trained / "trl").rollouts(3)
    first = groups[0].rollouts[0]
    with serving(trained) as client, browsing(browser, client.port) as screen:
        page = screen.open("rollouts", run="trl")
        assert page.get_by_label("Step", exact=True).input_value() == "3"
        shown = screen.texts(".groups .group")
        assert len(shown) == len(groups) == 4
        assert all("kept" in text for text in shown)
        assert page.locator(".heat tbody tr").count() == 8
        transcript = page.locator(".transcript").inner_text()
        assert " ".join(first.turns[0].text.split()) in " ".join(transcript.split())
        for name in ("twelve_letters", "one_yes"):
            assert name in transcript
