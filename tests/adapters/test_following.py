"""How the adapters wrap functions of other projects and start their programs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace

import pytest

import rlvitals
from rlvitals.adapters import framework, nemo_rl
from rlvitals.errors import RunExists


def test_ours_comes_after_theirs_with_its_result_and_only_once():
    calls = []
    theirs = SimpleNamespace(double=lambda number: calls.append("theirs") or 2 * number)
    for _ in range(2):
        framework.follow(theirs, "double", lambda *given: calls.append(given))
    assert theirs.double(4) == 8
    assert calls == ["theirs", (8, 4)]


def test_a_coroutine_stays_one():
    seen = []

    async def double(number, *, step=0):
        await asyncio.sleep(0)
        return 2 * number

    theirs = SimpleNamespace(double=double)
    framework.follow(theirs, "double", lambda result, number, step: seen.append((result, number, step)))
    assert asyncio.run(theirs.double(4, step=3)) == 8
    assert seen == [(8, 4, 3)]


def test_what_goes_wrong_in_ours_does_not_reach_theirs_but_a_wrong_start_does():
    def fail(error):
        raise error

    theirs = SimpleNamespace(log=lambda: "done", begin=lambda: "done", broken=lambda: 1 / 0)
    framework.follow(theirs, "log", lambda *_: fail(ValueError("ours")))
    framework.follow(theirs, "begin", lambda *_: fail(RunExists("there is one")))
    framework.follow(theirs, "broken", lambda *_: None)
    assert theirs.log() == "done"
    with pytest.raises(RunExists):
        theirs.begin()
    with pytest.raises(ZeroDivisionError):  # an error of the wrapped function is raised unchanged
        theirs.broken()


@pytest.mark.parametrize("by", ["script", "module"])
def test_a_program_is_started_with_its_own_arguments(by, tmp_path):
    (tmp_path / "theirs.py").write_text("import sys, beside\nprint(sys.argv[1:], beside.x, __name__)\n")
    (tmp_path / "beside.py").write_text("x = 7\n")
    starter = tmp_path / "starter.py"
    starter.write_text("from rlvitals.adapters.framework import launch\nlaunch(lambda: print('installed'))\n")
    what = [str(tmp_path / "theirs.py")] if by == "script" else ["-m", "theirs"]
    done = subprocess.run(
        [sys.executable, str(starter), *what, "--config", "x"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.stdout.splitlines() == ["installed", "['--config', 'x'] 7 __main__"], done.stderr
    nothing = subprocess.run([sys.executable, str(starter)], capture_output=True, text=True, check=False)
    assert nothing.returncode == 1
    assert "say what to run" in nothing.stderr


def test_samples_of_nemo_rl_that_have_no_tokens_are_rollouts_too(tmp_path):
    logger = nemo_rl.VitalsLogger({"log_dir": str(tmp_path)}, hardware=False)
    logger.log_samples({"content": [["1 + 1?", "2"], ["1 + 1?", "3"]], "rewards": [1.0, 0.0]}, "train_data_step3.jsonl")
    logger.log_samples({"content": []}, "something_else.jsonl")
    logger.finish()
    (group,) = rlvitals.open_run(tmp_path).rollouts(3)
    assert (group.prompt, [each.reward for each in group.rollouts]) == ("1 + 1?", [1.0, 0.0])
    assert group.rollouts[1].turns[0].text == "3"
