"""The page's contract: the answers match the declared types, and the scripts are checked against these types."""

from __future__ import annotations

import json
import math
import shutil
from typing import Literal, TypedDict, get_type_hints

import page_runs
import pytest
from conforming import differences
from serving import serving

import damage
import rlvitals
from conftest import until
from rlvitals import contract
from rlvitals.cli.main import main
from rlvitals.codec import encode_with_json, parse_json
from rlvitals.errors import RlvitalsError
from rlvitals.records import Group, Rollout, ToolCall, Turn
from rlvitals.web import typescript
from rlvitals.web.answers import Query, as_json
from rlvitals.web.api import ANSWERS
from rlvitals.web.folder import Folder

LOGS = {
    "printed.log": page_runs.LOG,
    "rows.jsonl": "".join(
        json.dumps({"step": step, "loss": 1 / step, "kl": 0.1 * step, "eval/accuracy": step / 40}) + "\n"
        for step in range(1, 41)
    ),
    "table.csv": "step,reward,entropy\n"
    + "".join(f"{step},{step / 9},{'nan' if step == 3 else 0.5}\n" for step in range(1, 10)),
}
DAMAGED = range(1, 7)


def ask(folder: Folder, address: str, question: dict, answered: set[str] | None = None) -> list[str]:
    """How an answer differs from its type; an empty list if the request is refused with a message."""
    answered = set() if answered is None else answered
    pairs = [(key, str(one)) for key, many in question.items() for one in (many if isinstance(many, list) else [many])]
    try:
        answer = parse_json(as_json(ANSWERS[address](folder, Query(pairs))))
    except RlvitalsError:
        return []
    answered.add(address if address != "rollouts" else f"rollouts with {sorted(answer)[0]}")
    return [f"{address}{one}" for one in differences(get_type_hints(ANSWERS[address])["return"], answer)]


def ask_all(folder: Folder, run: str, beside: str, answered: set[str] | None = None) -> list[str]:
    """Every address, with each metric, axis, group and page of rollouts."""
    until(lambda: not ANSWERS["run"](folder, Query([("run", run)]))["judging"])
    names = folder.view(run).metrics[:200]
    asked = damage.questions(run, beside)
    asked += [("series", {"run": run, "name": names, "x": axis}) for axis in ("step", "time", "epoch", "tokens")]
    asked += [("series", {"run": run, "name": names, "points": 7, "from": 2, "to": 250})] if names else []
    asked += [("explain", {"run": run, "name": name}) for name in names[:40]]
    asked += [("overlay", {"run": [run, beside], "name": name}) for name in names[:10]]
    asked += [("performance", {"run": run, "from": 1, "to": 5}), ("compare", {"run": [run, beside], "name": names[:1]})]
    for step in folder.view(run).rollout_log.steps[:3]:
        asked += [("rollouts", {"run": run, "step": step, **more}) for more in ({}, {"group": 1}, {"worst": 1})]
    return [text for address, question in asked for text in ask(folder, address, question, answered)]


def odd(path) -> None:
    """A run with NaN and infinity, which JSON lacks, in every place for numbers, and that stops in a phase."""
    with page_runs.start(path, rules=["loss > 5 for 3: critical"], actions="act") as run:
        for step in range(1, 30):
            with run.phase("generate") as phase:
                phase.tokens(10)
            values = {"loss": math.nan if step == 1 else math.inf if step == 2 else 9.0, "kl": -math.inf}
            run.log(values | {"reward": math.nan, "note": "text", "epoch": step // 10}, step=step)
        turn = Turn("t", (ToolCall("search", {"q": [1, None]}),), reward=math.nan, advantage=math.inf, seconds=1.5)
        rollout = Rollout((turn,), reward=math.nan, reward_parts={"a": math.inf}, rubric={"x": {"y": 1}})
        run.log_groups(
            [Group("p", (rollout, Rollout(error="gone")), kept=False, reason="r", meta={"a": 1}, max_turns=3)], step=29
        )
        run.log_eval({"accuracy": math.nan, "samples": [{"q": "a"}]}, step=29)
        run.log_image("grid", [[0, 255]], step=1, caption="c")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contract")
    damage.make_run(folder / "everything")
    page_runs.agent(folder / "agent")
    page_runs.resumed(folder / "resumed")
    odd(folder / "odd")
    page_runs.start(folder / "empty").finish()
    failed = page_runs.start(folder / "failed")
    failed.log({"loss": 1.0}, step=1)
    failed.finish("failed")
    for name, text in LOGS.items():
        (folder / name).write_text(text)
        assert main(["import", str(folder / name), "--to", str(folder / name.replace(".", "-"))]) == 0
        (folder / name).unlink()
    return folder


RUNS = [
    "everything",
    "agent",
    "resumed",
    "odd",
    "empty",
    "failed",
    *(name.replace(".", "-") for name in LOGS),
]


@pytest.mark.parametrize("run", RUNS)
def test_every_answer_is_what_is_declared(runs, run):
    assert ask_all(Folder(runs), run, "agent") == []


def test_every_address_answers_of_a_run_with_everything_in_it(runs):
    answered = set()
    ask_all(Folder(runs), "everything", "agent", answered)
    rollouts = {f"rollouts with {key}" for key in ("groups", "hits", "problems")}
    assert answered == ANSWERS.keys() - {"rollouts"} | rollouts


def test_a_run_that_is_being_written_is_answered_as_declared(tmp_path):
    page_runs.agent(tmp_path / "other")
    with page_runs.start(tmp_path / "run", total_steps=50) as run:
        for step in range(1, 20):
            with run.phase("generate"):
                run.log({"loss": 1.0 / step, "perf/tokens_per_sec": 5.0}, step=step)
        assert ask_all(Folder(tmp_path), "run", "other") == []


def test_every_run_of_the_folder_was_asked(runs):
    assert {line["run"] for line in Folder(runs).runs()["runs"]} == set(RUNS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", DAMAGED)
def test_every_answer_about_a_damaged_run_is_what_is_declared(bench, seed):
    done = bench.put(seed)
    folder = Folder(bench.runs)
    troubles = [
        text for address, question in damage.questions("bad", "good") for text in ask(folder, address, question)
    ]
    assert (done, troubles) == (done, [])


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    made = damage.Bench(tmp_path_factory.mktemp("damaged") / "bench")
    yield made
    made.clear()


def test_events_are_what_is_declared(tmp_path):
    """Also for the line of a finding that another recorder wrote incompletely."""
    kinds = set()
    hints = get_type_hints(contract.Events)
    with page_runs.start(tmp_path / "run", rules=["loss > 5: critical"]) as run, serving(tmp_path) as client:
        run.log({"loss": math.nan}, step=1)
        with client.listen("run") as events:
            kinds.add(next(events)[0])
            with (tmp_path / "run" / "logs" / "findings.jsonl").open("a") as log:
                log.write('{"type":"finding","step":3,"rule":"mine"}\n')
            for step in range(2, 30):
                run.log({"loss": 9.0}, step=step)
            for kind, facts, _ in events:
                assert differences(hints[kind], facts, kind) == []
                kinds.add(kind)
                if kinds == {"status", "rows", "findings"}:
                    break
    assert kinds == hints.keys()


def test_without_orjson_the_answers_are_the_same(runs, monkeypatch):
    folder = Folder(runs)
    asked = [(name, Query([("run", "odd"), ("name", "loss")])) for name in ("run", "series", "findings", "evaluations")]
    quick = [as_json(ANSWERS[address](folder, query)) for address, query in asked]
    monkeypatch.setattr("rlvitals.web.answers.encode", encode_with_json)
    assert [json.loads(as_json(ANSWERS[address](folder, query))) for address, query in asked] == list(
        map(json.loads, quick)
    )


def test_a_finding_has_the_same_keys_in_every_answer(runs):
    folder = Folder(runs)
    query = Query([("run", "odd"), ("name", "loss")])
    answer = until(lambda: None if (latest := ANSWERS["findings"](folder, query))["judging"] else latest)
    about = [found for found in answer["findings"] if "loss" in found["metrics"]]
    whole = next(found for found in about if found["step"] > found["onset_step"])
    mark = ANSWERS["series"](folder, query)["findings"][about.index(whole)]
    shared = contract.FindingFacts.__annotations__
    assert mark.keys() == shared.keys() | {"x"}
    assert {key: mark[key] for key in shared} == {key: whole[key] for key in shared}
    found = next(found for found in rlvitals.open_run(runs / "odd").findings if found.rule == whole["rule"])
    assert (mark["step"], mark["onset_step"], mark["x"]) == (found.step, found.onset_step, found.onset_step)


def test_the_written_types_are_those_of_the_code(tmp_path, monkeypatch, capsys):
    assert typescript.main(["--check"]) == 0
    copy = tmp_path / "contract.d.ts"
    shutil.copy(typescript.WRITTEN, copy)
    monkeypatch.setattr(typescript, "WRITTEN", copy)
    copy.write_text(copy.read_text().replace("onset_step: number", "onset_step: string", 1))
    assert typescript.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert typescript.main([]) == 0
    assert typescript.main(["--check"]) == 0


class Sample(TypedDict):
    step: int
    severity: Literal["info", "warning"]
    metrics: list[str]
    x: float


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"step": "3"}, ".step is '3', not <class 'int'>"),
        ({"step": True}, ".step is True, not <class 'int'>"),
        ({"severity": "grave"}, ".severity is 'grave', not typing.Literal['info', 'warning']"),
        ({"metrics": [1]}, ".metrics.0 is 1, not <class 'str'>"),
        ({"more": 1}, ".more is not declared"),
        ({"x": math.nan}, ".x is nan, not <class 'float'>"),
        ({"x": None}, ".x is None, not <class 'float'>"),
    ],
)
def test_the_comparison_finds_what_differs(change, difference):
    value = {"step": 3, "severity": "info", "metrics": [], "x": 1}
    assert differences(Sample, value) == []
    assert differences(Sample, value | change) == [difference]
    assert differences(Sample, {}) == [f".{key} is missing" for key in sorted(value)]
