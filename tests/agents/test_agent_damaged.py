"""For a damaged run, a tool returns an error message or the readable part. Other runs stay visible."""

from __future__ import annotations

import random
import shutil

import pytest

from damage import LAST_STEP, alarm, damage, make_run
from rlvitals.agents.budget import MOST_TOKENS, tokens_at_most
from rlvitals.agents.tools import TOOLS, Refused, ask
from rlvitals.web.answers import as_json
from rlvitals.web.folder import Folder

pytestmark = pytest.mark.slow

SEEDS = range(1, 7)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("damaged") / "out" / "good")


def questions(run: str) -> list[tuple[str, dict]]:
    given = {
        "run": run, "runs": [run, "good"], "names": ["reward"], "name": "kl", "path": run, "step": 10, "group": "1",
        "before": 10, "after": 20,
    }  # fmt: skip
    needed = {name: {argument.name for argument in tool.arguments if argument.needed} for name, tool in TOOLS.items()}
    asked = [(name, {key: value for key, value in given.items() if key in needed[name]}) for name in TOOLS]
    parts = [("run_summary", {"run": run, "part": part}) for part in ("settings", "attempts", "problems")]
    return [*asked, *parts, ("rollouts", {"run": run, "worst": True}), ("rollouts", {"run": run, "search": "the"})]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_run_is_answered(good, seed):
    bad = good.parent / "bad"
    shutil.copytree(good, bad, symlinks=True)
    try:
        damage(bad, random.Random(seed))
        folder = Folder(good.parent)
        for tool, given in questions("bad"):
            with alarm():
                try:
                    answer = ask(folder, tool, given)
                except Refused as refused:
                    answer = refused.facts
            assert tokens_at_most(as_json(answer).decode()) <= MOST_TOKENS
        (line,) = [line for line in ask(folder, "list_runs", {})["runs"] if line["run"] == "good"]
        assert line["step"] == ask(folder, "run_summary", {"run": "good"})["step"] == LAST_STEP
    finally:
        shutil.rmtree(bad, ignore_errors=True)


def test_a_link_to_itself_hides_no_checkpoint(good):
    bad = good.parent / "looped"
    shutil.copytree(good, bad, symlinks=True)
    before = ask(Folder(good.parent), "best_checkpoint", {"run": "looped"})["checkpoints"]
    (bad / "a-loop").symlink_to(bad / "a-loop")
    try:
        assert ask(Folder(good.parent), "best_checkpoint", {"run": "looped"})["checkpoints"] == before != []
    finally:
        shutil.rmtree(bad)
