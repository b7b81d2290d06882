"""`rlvitals ask` on runs that really train. The trainer carries out a request and answers it. The requester, the reason
and the answer are recorded. A request that no trainer takes is refused or withdrawn.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import rlvitals
from rlvitals.cli.main import main
from rlvitals.store.asks import MAX_BYTES, Ask, put
from rlvitals.store.layout import RunDir

TRAINER = """
import pathlib, sys, time, types, rlvitals
folder, mode, listens = sys.argv[1], sys.argv[2], sys.argv[3] == "listens"
optimizer = types.SimpleNamespace(param_groups=[{"lr": 1.0}])  # all that is asked of one
loaded = []
with rlvitals.start(folder, actions=mode, hardware=False, display="none") as run:
    def save():
        path = pathlib.Path(folder) / f"checkpoint-{step}"
        path.mkdir(exist_ok=True)
        return path
    actions = rlvitals.Actions(run, optimizer, save=save, load=lambda path: loaded.append(path.name))
    for step in range(1, 2000):
        run.log({"loss": 1.0 / step, "learning_rate": optimizer.param_groups[0]["lr"]}, step=step)
        if step == 5:
            save()
        if listens and actions.carry_out():
            break
        time.sleep(0.02)
print(step, optimizer.param_groups[0]["lr"], *loaded)
"""


@pytest.fixture
def train(tmp_path):
    started = []

    def start(mode="asked", listens="listens"):
        folder = tmp_path / "run"
        started.append(subprocess.Popen(
            [sys.executable, "-c", TRAINER, str(folder), mode, listens], stdout=subprocess.PIPE, text=True
        ))  # fmt: skip
        wait_for(lambda: (folder / "logs" / "findings.jsonl").exists() and (folder / "checkpoint-5").exists())
        return folder, started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(is_so, seconds=60):
    import time

    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.02)


def ask(capsys, *words):
    code = main(["ask", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def events(folder, kind):
    lines = map(json.loads, (folder / "logs" / "findings.jsonl").read_text().splitlines())
    return [line for line in lines if line["type"] == kind]


def test_each_request_is_carried_out_and_on_record_with_who_asked_and_why(train, capsys):
    folder, trainer = train()
    code, saved = ask(capsys, folder, "checkpoint", "--why", "before the demo", "--by", "Ada")
    assert (code, saved["answer"]) == (0, "done")
    assert (folder / saved["text"].removeprefix("saved ")).is_dir()
    code, cut = ask(capsys, folder, "reduce_lr", "--factor", "0.1")
    assert (code, cut["text"]) == (0, "learning rate 1 -> 0.1")
    code, back = ask(capsys, folder, "revert", "--checkpoint", "5")
    assert code == 0
    assert back["text"].startswith("back to checkpoint-5, learning rate 0.1 -> 0.05")
    code, missing = ask(capsys, folder, "revert", "--checkpoint", "4")
    assert (code, missing["answer"]) == (1, "declined")
    assert "checkpoint-5" in missing["text"]
    code, stopped = ask(capsys, folder, "stop", "--why", "the reward is gamed")
    assert (code, stopped["text"]) == (0, "training stops")
    out, _ = trainer.communicate(timeout=30)
    step, rate, *loaded = out.split()
    assert (int(step), float(rate), loaded) == (stopped["step"], pytest.approx(0.05), ["checkpoint-5"])
    requests, answers = events(folder, "request"), events(folder, "answer")
    assert [(line["action"], line["request"]) for line in requests] == [
        ("checkpoint", 1), ("reduce_lr", 2), ("revert", 3), ("revert", 4), ("stop", 5),
    ]  # fmt: skip
    assert [line["answer"] for line in answers] == ["done", "done", "done", "declined", "done"]
    assert (requests[0]["asked_by"], requests[0]["reason"]) == ("Ada", "asked by Ada: before the demo")
    assert rlvitals.open_run(folder).status == "finished"
    assert main(["ask", str(folder)]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 5
    assert listed[0] == f"step {requests[0]['step']}: checkpoint, asked by Ada: before the demo: done ({saved['text']})"
    assert main(["show", str(folder)]) == 0
    assert "checkpoint, asked by Ada: before the demo: done" in " ".join(capsys.readouterr().out.split())
    assert main(["ask", str(folder), "stop"]) == 64
    assert "is finished: there is no trainer to ask" in capsys.readouterr().err


def test_a_run_that_only_advises_takes_no_requests(train, capsys):
    folder, _ = train(mode="advise")
    assert main(["ask", str(folder), "stop"]) == 64
    assert "takes no requests: start it with actions='asked' or actions='act'" in capsys.readouterr().err
    assert not list((folder / "asks").glob("*"))


def test_what_a_loop_does_not_take_is_withdrawn_and_cannot_stop_it_later(train, capsys):
    folder, _ = train(listens="is deaf")
    code, facts = ask(capsys, folder, "stop", "--wait", "0.5")
    assert (code, facts["answer"]) == (1, "withdrawn")
    assert not list((folder / "asks").glob("*.json"))
    assert not events(folder, "request")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["stop", "--factor", "0.5"], "--factor is for reduce_lr and revert, not for stop"),
        (["reduce_lr", "--checkpoint", "3"], "--checkpoint is for revert, not for reduce_lr"),
        (["reduce_lr", "--factor", "2"], "between 0 and 1, not 2"),
    ],
)
def test_what_makes_no_sense_is_refused_before_it_is_asked(words, message, tmp_path, capsys):
    with rlvitals.start(tmp_path, actions="asked", hardware=False, display="none") as run:
        run.log({"loss": 1.0}, step=1)
        assert main(["ask", str(tmp_path), *words]) == 64
        assert message in capsys.readouterr().err
        assert run.request() is None


def test_the_doctor_asks_nothing_where_only_people_may(tmp_path):
    """With `actions="act"`, the same zero gradient stops the run."""
    for mode, asked in (("asked", None), ("act", "stop")):
        with rlvitals.start(tmp_path / mode, actions=mode, algorithm="ppo", hardware=False, display="none") as run:
            for step in range(1, 40):
                run.log({"grad_norm": 0.0, "loss": 0.5, "reward": 0.1}, step=step)
            request = run.request()
            assert (request and request.action) == asked, mode
            assert run.findings


def test_a_request_for_an_earlier_attempt_does_not_stop_the_resumed_run(tmp_path):
    with rlvitals.start(tmp_path, actions="asked", hardware=False, display="none") as run:
        run.log({"loss": 1.0}, step=1)
    put(RunDir(tmp_path), Ask("stop", "Ada", attempt=1))
    with rlvitals.start(tmp_path, resume=1, actions="asked", hardware=False, display="none") as run:
        for step in range(2, 5):
            run.log({"loss": 1.0}, step=step)
        assert run.findings is not None  # waits until the earlier rows are read
        assert run.request() is None
        assert not list((tmp_path / "asks").glob("*.json"))
        put(RunDir(tmp_path), Ask("stop", "Ada", attempt=2))
        assert run.request().asked_by == "Ada"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"action":"format_disk","asked_by":"x","attempt":1}', b" " * (MAX_BYTES + 1)]
)
def test_a_file_that_is_no_request_is_removed_and_training_goes_on(content, tmp_path):
    with rlvitals.start(tmp_path, actions="asked", hardware=False, display="none") as run:
        run.log({"loss": 1.0}, step=1)
        (tmp_path / "asks").mkdir()
        (tmp_path / "asks" / "1.json").write_bytes(content)
        assert run.request() is None
        assert not list((tmp_path / "asks").iterdir())
        put(RunDir(tmp_path), Ask("stop", "Ada", attempt=1))
        assert run.request().action == "stop"


def test_requests_of_people_come_in_order_and_before_the_doctors(tmp_path):
    with rlvitals.start(tmp_path, actions="act", algorithm="ppo", hardware=False, display="none") as run:
        for step in range(1, 40):
            run.log({"grad_norm": 0.0, "loss": 0.5, "reward": 0.1}, step=step)
        for action in ("checkpoint", "reduce_lr"):
            put(RunDir(tmp_path), Ask(action, "Ada", attempt=1))
        seen = []
        while (request := run.request()) is not None and len(seen) < 5:
            seen.append((request.action, request.asked_by))
            request.done()
        assert seen == [("checkpoint", "Ada"), ("reduce_lr", "Ada"), ("stop", "")]


def test_a_shared_copy_does_not_tell_who_asked(tmp_path):
    from rlvitals.store.redaction import Redaction

    with rlvitals.start(tmp_path, actions="asked", hardware=False, display="none") as run:
        run.log({"loss": 1.0}, step=1)
        put(RunDir(tmp_path), Ask("stop", "Ada Lovelace", attempt=1, why="gamed"))
        run.request().done()
    shared = Redaction.of(RunDir(tmp_path)).finding(events(tmp_path, "request")[0])
    assert "Lovelace" not in json.dumps(shared)
    assert "gamed" in shared["reason"]


def test_a_secret_in_a_reason_is_masked_on_record(tmp_path):
    secret = "sk-1234567890abcdefXYZ"
    how = {"config": {"api_key": secret}, "actions": "asked", "hardware": False, "display": "none"}
    with rlvitals.start(tmp_path, **how) as run:
        run.log({"loss": 1.0}, step=1)
        put(RunDir(tmp_path), Ask("stop", "Ada", attempt=1, why=f"the key {secret} leaked"))
        run.request().done()
    assert secret not in (tmp_path / "logs" / "findings.jsonl").read_text()
