"""`rlvitals serve DUMPS/`: dumps are entries of the list, and new files appear on an open page."""

from __future__ import annotations

import json

import pytest
from browsing import browsing
from conforming import differences
from serving import serving

import rlvitals
from rlvitals import contract
from rlvitals.web.folder import Folder

pytest_plugins = ["page_fixtures"]


def dump_step(folder, step, texts=("bad", "good")):
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"input": "p", "output": f"{text} {step}", "gts": "4", "score": n, "step": step} for n, text in enumerate(texts)
    ]
    (folder / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def dumps(tmp_path):
    for step in range(1, 4):
        dump_step(tmp_path / "exp" / "rollout_data", step)
    dump_step(tmp_path / "exp" / "validation_data", 3, texts=("held out",))
    return tmp_path


def test_a_dump_is_an_entry_and_its_validation_another(dumps):
    with serving(dumps) as client:
        listed = client.api("runs").facts["runs"]
        assert sorted((line["run"], line["name"], line["last_step"]) for line in listed) == [
            ("exp", "exp", 3), ("exp#validation", "exp (validation)", 3),
        ]  # fmt: skip
        steps = client.api("rollouts", run="exp").facts["steps"]
        assert [(line["step"], line["rollouts"], line["mean"]) for line in steps] == [
            (1, 2, 0.5),
            (2, 2, 0.5),
            (3, 2, 0.5),
        ]
        (group,) = client.api("rollouts", run="exp#validation", step=3, group=1).facts["groups"]
        assert group["rollouts"][0]["turns"][0]["text"] == "held out 3"
        assert client.api("rollouts", run="exp", worst=1).facts["hits"][0]["reward"] == 0.0
        assert client.api("rollouts", run="exp", search="GOOD 2").facts["hits"][0]["step"] == 2
        assert client.api("series", run="exp", name="reward").facts["lines"][0]["y"] == [0.5, 0.5, 0.5]
        for address in ("run", "findings", "metrics", "performance", "evaluations"):
            assert client.api(address, run="exp").status == 200


def test_every_answer_about_a_dump_has_its_type(dumps):
    with serving(dumps) as client:
        for address, kind in (("run", contract.Vitals), ("evaluations", contract.Evaluated), ("runs", contract.Runs)):
            assert differences(kind, client.api(address, run="exp").facts) == []


@pytest.mark.parametrize(
    "run", ["exp/rollout_data/..", "../exp", "exp#other", "nowhere#validation", "#validation", "exp\0"]
)
def test_nothing_else_is_an_entry(dumps, run):
    with pytest.raises(rlvitals.errors.RunNotFound):
        Folder(dumps).served(run)


def test_a_folder_served_itself_is_its_only_entry(dumps):
    folder = Folder(dumps / "exp" / "rollout_data")
    assert [line["run"] for line in folder.runs()["runs"]] == ["."]
    assert folder.view(".").rollout_log.steps == [1, 2, 3]
    assert folder.view(".").series("reward")[1].tolist() == [0.5, 0.5, 0.5]


def test_a_runs_settings_lead_only_to_dumps_that_are_served(dumps, tmp_path):
    secret = tmp_path / "secret"
    dump_step(secret, 9)
    served = tmp_path / "served"
    for name, place in (("inside", served / "dumps"), ("outside", secret)):
        dump_step(served / "dumps", 1)
        config = {"trainer": {"rollout_data_dir": str(place)}}
        with rlvitals.start(served / name, config=config, monitor=False, display="none") as run:
            run.log({"loss": 1.0}, step=1)
    folder = Folder(served)
    assert folder.view("inside").rollout_log.steps == [1]
    assert folder.view("outside").rollout_log.steps == []
    tail, other = folder.tail("inside", ""), folder.tail("outside", "")
    assert not tail.look_at_dumps()
    dump_step(served / "dumps", 2)
    dump_step(secret, 10)
    assert tail.look_at_dumps()
    assert not tail.look_at_dumps()
    assert not other.look_at_dumps()
    assert folder.view("inside").rollout_log.steps == [1, 2]


def test_a_link_in_a_dump_is_skipped_and_the_dump_is_listed(dumps, tmp_path):
    dump_step(tmp_path.parent / f"{tmp_path.name}-secret", 9)
    (dumps / "exp" / "rollout_data" / "9.jsonl").symlink_to(tmp_path.parent / f"{tmp_path.name}-secret" / "9.jsonl")
    folder = Folder(dumps)
    assert "exp" in [line["run"] for line in folder.runs()["runs"]]
    assert folder.view("exp").rollout_log.steps == [1, 2, 3]


@pytest.mark.slow
def test_a_new_file_is_received(dumps):
    with serving(dumps) as client, client.listen("exp") as events:
        name, facts, place = next(events)
        assert (name, facts["status"]) == ("status", "running")
        dump_step(dumps / "exp" / "rollout_data", 4)
        name, facts, later = next(events)
        assert (name, facts["rows"]) == ("rows", 0)
        assert later != place
        assert [line["step"] for line in client.api("rollouts", run="exp").facts["steps"]] == [1, 2, 3, 4]
        assert client.api("run", run="exp").facts["now"]["step"] == 4
    with serving(dumps) as client, client.listen("exp", place) as events:
        next(events)
        assert next(events)[0] == "rows"  # it was written while no page listened


@pytest.mark.slow
@pytest.mark.xdist_group("pages")
def test_the_pages_of_a_dump_show_it_and_what_comes(dumps, browser):
    with serving(dumps) as client, browsing(browser, client.port) as screen:
        page = screen.open()
        page.wait_for_selector("text=exp#validation")
        page = screen.open("rollouts", run="exp")
        page.wait_for_selector(".transcript:has-text('bad 3')")
        dump_step(dumps / "exp" / "rollout_data", 4)
        page.wait_for_selector(".transcript:has-text('bad 4')")
        page = screen.open("rollouts", run="exp#validation")
        page.wait_for_selector(".transcript:has-text('held out 3')")
        for name in ("vitals", "metrics", "health", "performance", "evaluations"):
            screen.open(name, run="exp")
