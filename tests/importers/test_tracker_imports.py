"""Features of all trackers: addresses, folders, retries, continued imports, and rows built from points."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import ClassVar

import pytest
from brought import folders, rows

from rlvitals.capture.start import refuse_existing
from rlvitals.cli.main import main
from rlvitals.errors import ConfigError, RunExists, RunLocked, SourceError
from rlvitals.importers.base import Notes
from rlvitals.importers.points import Point, PointTable
from rlvitals.importers.trackers import base, transfer
from rlvitals.importers.trackers.address import Address, address_in
from rlvitals.importers.trackers.base import Page, RemoteRun, RunCard, Source
from rlvitals.importers.trackers.transfer import bring
from rlvitals.records import Row
from rlvitals.store.layout import RunDir
from rlvitals.store.lock import RunLock
from rlvitals.views.run import open_run


class Fake(Source):
    """A tracker whose runs are lists of rows. It fails at the rows in `fail_at`."""

    scheme, grammar, goes_on = "wandb", "fake:PROJECT", True
    runs_held: ClassVar[dict[str, list[RemoteRun]]] = {}
    rows_held: ClassVar[dict[str, list[Row]]] = {}
    fail_at: ClassVar[dict[str, int]] = {}
    asked: ClassVar[list[tuple[str, int]]] = []

    @property
    def is_one_run(self) -> bool:
        return "/" in self.address.path

    def runs(self):
        project, _, one = self.address.path.partition("/")
        return iter([run for run in self.runs_held[project] if one in ("", run.id)])

    def card(self, run):
        return RunCard(config={"lr": 0.1}, tags=["a" * 100, "b\x1b"], note="n")

    def pages(self, run, cursor):
        begin = cursor.get("next", 0)
        self.asked.append((run.identity, begin))
        held = self.rows_held[run.identity]
        for place in range(begin, len(held), 2):
            if self.fail_at.get(run.identity, 10**9) <= place:
                raise SourceError("the server fails")
            yield Page(held[place : place + 2], cursor={"next": min(place + 2, len(held))})


class Whole(Fake):
    goes_on = False


@pytest.fixture
def tracker(monkeypatch):
    Fake.runs_held, Fake.rows_held, Fake.fail_at, Fake.asked = {}, {}, {}, []
    kind = SimpleNamespace(of=Fake)
    monkeypatch.setattr(transfer, "open_source", lambda address, tell=lambda message: None: kind.of(address, tell))
    return kind


def add(project: str, run_id: str, steps, mark: str = "1", *, name: str = "", status: str = "finished") -> None:
    run = RemoteRun(run_id, name or run_id, project, status, mark, 1.7e9, within=project)
    Fake.runs_held.setdefault(project, [])
    Fake.runs_held[project] = [one for one in Fake.runs_held[project] if one.id != run_id] + [run]
    Fake.rows_held[run.identity] = [
        Row(step, 1.7e9 + step, 1, {"loss": 1 / (1 + place)}) for place, step in enumerate(steps)
    ]


def fetch(path: str, to, **more):
    return bring(Address("wandb", "", path), to, version="1", refuse=refuse_existing, **more)


@pytest.mark.parametrize("kind", [Fake, Whole])
def test_a_failure_loses_nothing_and_doubles_nothing(tracker, tmp_path, kind):
    tracker.of = kind
    add("p", "a", range(7))
    add("p", "b", [0, 1, 2, 3, 1, 2], status="running")
    Fake.fail_at["p/a"] = 4
    done = fetch("p", tmp_path / "runs")
    assert [(one.outcome, one.rows) for one in done] == [
        ("failed", 0),
        ("new", 6),
    ]  # one failure does not end the others
    Fake.fail_at = {}
    done = fetch("p", tmp_path / "runs")
    assert [(one.outcome, one.rows) for one in done] == [("continued", 7), ("unchanged", 6)]
    found = folders(tmp_path / "runs")
    assert [row.step for row in rows(found["a"])] == list(range(7))
    assert [(row.step, row.attempt) for row in rows(found["b"])] == [(0, 1), (1, 1), (2, 1), (3, 1), (1, 2), (2, 2)]
    assert [open_run(found[name]).status for name in "ab"] == ["finished", "interrupted"]
    add("p", "b", [0, 1, 2, 3, 1, 2, 3, 4, 2], mark="2", name="renamed")  # it continued and restarted again
    Fake.asked.clear()
    done = fetch("p", tmp_path / "runs")
    assert [(one.name, one.outcome, one.path) for one in done][1] == ("renamed", "continued", found["b"])
    assert Fake.asked == [("p/b", 6 if kind is Fake else 0)]
    assert [(row.step, row.attempt) for row in rows(found["b"])][4:] == [(1, 2), (2, 2), (3, 2), (4, 2), (2, 3)]
    assert [attempt.number for attempt in open_run(found["b"]).attempts] == [1, 2, 3]
    assert (open_run(found["b"]).info.name, open_run(found["b"]).status) == ("renamed", "finished")


def test_what_a_kill_left_beyond_the_last_commit_is_cut_off(tracker, tmp_path):
    add("p", "a", range(7))
    Fake.fail_at["p/a"] = 4
    with pytest.raises(SourceError):
        fetch("p/a", tmp_path / "run")
    log = RunDir(tmp_path / "run").train_log
    with open(log, "ab") as file:  # rows of an uncommitted page, and half a row
        file.write(b'{"step":4,"attempt":1,"loss":0.2}\n{"step":5,"attempt":1,"loss":0.2}\n{"step":6,"att')
    assert open_run(tmp_path / "run").info.status == "interrupted"
    Fake.fail_at = {}
    fetch("p/a", tmp_path / "run")
    assert [row.step for row in rows(tmp_path / "run")] == list(range(7))
    assert open_run(tmp_path / "run").info.status == "finished"
    with open(log, "ab") as file:
        file.write(b'{"step":9,"attempt":1,"loss":0.2}\n')
    assert fetch("p/a", tmp_path / "run")[0].outcome == "unchanged"
    add("p", "a", range(8), mark="2")
    with pytest.raises(RunExists, match="was changed after it was imported"):
        fetch("p/a", tmp_path / "run")
    assert rows(tmp_path / "run")[-1].step == 9


def test_columns_of_a_run_that_was_replaced_are_made_again(tracker, tmp_path):
    tracker.of = Whole
    add("p", "a", range(600))
    fetch("p/a", tmp_path / "run")
    assert open_run(tmp_path / "run").series("loss").values[0] == 1.0
    assert any(RunDir(tmp_path / "run").index.iterdir())
    add("p", "a", range(600), mark="2")
    Fake.rows_held["p/a"] = [Row(row.step, row.timestamp, 1, {"loss": 7.0}) for row in Fake.rows_held["p/a"]]
    fetch("p/a", tmp_path / "run")
    assert set(open_run(tmp_path / "run").series("loss").values.tolist()) == {7.0}


def test_runs_of_two_projects_may_share_name_and_id(tracker, tmp_path):
    add("p", "a", range(3))
    add("q", "a", range(5))
    fetch("p", tmp_path)
    fetch("q", tmp_path)
    assert sorted(len(rows(path)) for path in tmp_path.iterdir() if path.is_dir()) == [3, 5]
    assert [one.outcome for one in (*fetch("p", tmp_path), *fetch("q", tmp_path))] == ["unchanged", "unchanged"]


def test_a_directory_of_another_run_and_one_in_use_are_refused(tracker, tmp_path):
    add("p", "a", range(3))
    add("p", "b", range(3))
    fetch("p/a", tmp_path / "run", name="mine")
    assert open_run(tmp_path / "run").info.name == "mine"
    with pytest.raises(RunExists, match="holds another run, imported from wandb:p/a"):
        fetch("p/b", tmp_path / "run")
    with pytest.raises(RunExists, match="run"):
        fetch("p", tmp_path / "run")  # a project goes into a folder, not into a run
    with pytest.raises(ConfigError, match="--name is for one run"):
        fetch("p", tmp_path / "runs", name="mine")
    add("p", "a", range(4), mark="2")
    lock = RunLock(RunDir(tmp_path / "run"))
    lock.acquire()
    with pytest.raises(RunLocked):
        fetch("p/a", tmp_path / "run")
    lock.release()
    assert fetch("p/a", tmp_path / "run")[0].added == 1


@pytest.mark.parametrize(
    "name", ["..", "../x", "/etc/passwd", "a\x1b[2Jb", "CON", "." * 300, "", "名前", "a/../../b", "-rf"]
)
def test_no_name_leaves_the_folder(tracker, tmp_path, name):
    folder = tmp_path / "deep" / "runs"
    add("p", name or "x", range(2), name=name)
    fetch("p", folder)
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["runs"]
    [child] = [path for path in folder.iterdir() if path.is_dir()]
    assert len(rows(child)) == 2
    assert child.name.isascii()
    assert child.name.isprintable()
    assert child.name[0].isalnum()


class Refused(Exception):
    """An error as HTTP clients raise it."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"status {status} for key hf_abcdefghijklmnopqrstuvwxyz012345")
        self.response = SimpleNamespace(
            status_code=status, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )


def test_what_may_pass_is_waited_for_as_the_server_asks(monkeypatch):
    waited: list[float] = []
    monkeypatch.setattr(base.time, "sleep", waited.append)
    source = Fake(Address("wandb", "", "p"))
    answers = iter([Refused(429, retry_after="17"), Refused(503), ConnectionResetError(), Refused(502), "here"])

    def question():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert source.ask(question) == "here"
    assert waited[0] == 17
    assert all(low <= one <= high for one, (low, high) in zip(waited[1:], [(1.5, 2.5), (3, 5), (6, 10)], strict=True))
    waited.clear()
    with pytest.raises(SourceError, match="cannot be fetched: status 404 for key \\*\\*\\*"):
        source.ask(lambda: (_ for _ in ()).throw(Refused(404)))
    assert waited == []
    with pytest.raises(SourceError, match="refuses the login"):
        source.ask(lambda: (_ for _ in ()).throw(Refused(401)))
    with pytest.raises(SourceError, match="status 500"):
        source.ask(lambda: (_ for _ in ()).throw(Refused(500)))
    assert len(waited) == base.TRIES - 1


def test_what_a_client_prints_is_not_in_our_output(capsys):
    assert Fake(Address("wandb", "", "p")).ask(lambda: print("noise") or 3) == 3
    assert capsys.readouterr().out == ""


def test_addresses(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wandb:log").write_text('{"step": 1, "loss": 0.5}\n')
    assert address_in("wandb:log") is None  # a file of that name
    assert address_in("wandb://bucket/x") is None
    assert address_in("swanlab:https://swanlab.cn/@me/grpo/runs/ab12/chart") == Address("swanlab", "", "me/grpo/ab12")
    assert address_in("wandb:https://wandb.corp/team/p/runs/r") == Address("wandb", "https://wandb.corp", "team/p/r")
    assert address_in("trackio:me/space#kto/run 1") == Address("trackio", "me/space", "kto/run 1")
    assert address_in("neptune:exports/data#RUN-1") == Address("neptune", "exports/data", "RUN-1")
    assert str(Address("mlflow", "http://me:secret@host", "x")) == "mlflow:http://***@host#x"
    assert main(["import", "wandb:a/b/c/d", "--to", "x"]) == 64
    assert "is not an address of wandb. Write wandb:ENTITY/PROJECT" in capsys.readouterr().err
    assert main(["import", "wandb:log", "--to", "y"]) == 0
    assert main(["watch", "mlflow:http://host:5000#x", "--plain"]) == 64
    assert "mlflow:http://host:5000#x is on a tracker's server, which watch does not follow" in capsys.readouterr().err
    assert main(["check", "--follow", "trackio:kto/run"]) == 64
    assert "pass DIR" in capsys.readouterr().err


@pytest.mark.parametrize("seed", range(20))
def test_points_become_the_rows_that_the_plain_way_gives(seed):
    """Each row is compared with a dictionary that takes the points one by one."""
    chance = random.Random(seed)
    points: list[Point] = []
    moment = 1.7e9
    for name in ("loss", "kl", "reward"):
        steps = sorted(chance.sample(range(60), chance.randint(1, 40)))
        if chance.random() < 0.5:  # a restart, or a step that was logged twice
            steps += steps[-chance.randint(1, 5) :]
        for place, step in enumerate(steps):
            value = chance.choice([chance.random(), math.inf, chance.random()])
            points.append(Point(step, moment + place + chance.random() / 4, name, value))
    points.sort(key=lambda point: point.time)
    plain: dict[tuple[int, int], dict[str, float]] = {}
    newest: dict[str, int] = {}
    segment = 0
    for step, time, name, value in points:
        if newest.get(name, -1) >= step:
            segment, newest = segment + 1, {}
        newest[name] = step
        row = plain.setdefault((segment, step), {"step": step, "timestamp": time})
        row[name] = value
    by_metric, written = PointTable(Notes()), PointTable(Notes())
    for name in ("loss", "kl", "reward"):
        own = [point for point in points if point.name == name]
        by_metric.add(name, [p.step for p in own], [p.time for p in own], [p.value for p in own])
    written.add_written(points)
    assert by_metric.fields() == written.fields() == [plain[place] for place in sorted(plain)]


def test_evaluations_of_a_step_are_a_row_of_their_own_and_impossible_steps_are_counted():
    notes = Notes()
    columns = PointTable(notes)
    columns.add("loss", [1, 2, 2**70], [5.0, 6.0, 7.0], [0.1, math.nan, 0.3])
    columns.add("eval/loss", [2], [8.0], [0.5])
    columns.add("_odd", [2], [0.0], [1.0])
    found = [(row.step, row.timestamp, repr(row.numbers)) for row in columns.rows()]
    assert found == [
        (1, 5.0, "{'loss': 0.1}"),
        (2, 6.0, "{'metric/_odd': 1.0, 'loss': nan}"),
        (2, 8.0, "{'eval/loss': 0.5}"),
    ]
    assert notes.texts() == ["1 point has no possible step and was skipped"]
