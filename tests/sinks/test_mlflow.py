"""The MLflow tracker on SQLite: written by the real package, read back with MlflowClient.

All tests share one database, because creating one takes seconds. Every test has its own experiment.
"""

from __future__ import annotations

import math
import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from kills import fed_row, feed_through_kills
from rows import START, facts, files_with, row, rows, samples

from rlvitals.records import Attempt, Row
from rlvitals.sinks.base import SinkError, SinkRow
from rlvitals.sinks.mlflow import MlflowSink, _spell

pytestmark = [
    pytest.mark.slow,
    # Found, not imported: the import takes seconds and is done with the settings of the sink.
    pytest.mark.skipif(find_spec("mlflow") is None, reason="needs the package mlflow"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"),
]

LARGEST = 1.7976931348623157e308


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow').as_posix()}/mlflow.db"


@pytest.fixture
def settings(store, request) -> dict:
    return {"tracking_uri": store, "experiment_name": request.node.name}


class Reader:
    """The back end as MLflow's own client shows it."""

    def __init__(self, settings):
        from mlflow import MlflowClient

        self.client = MlflowClient(tracking_uri=settings["tracking_uri"])
        self.experiment = self.client.get_experiment_by_name(settings["experiment_name"])

    def runs(self):
        found = self.client.search_runs([self.experiment.experiment_id])
        return {int(run.data.tags["rlvitals.attempt"]): run for run in found}

    def points(self, attempt, name):
        history = self.client.get_metric_history(self.runs()[attempt].info.run_id, name)
        return sorted((point.step, point.value, point.timestamp) for point in history)


def hand_over(sink, *batches):
    for batch in batches:
        sink.write(batch)
        sink.commit()


def points_of(items, name):
    """The points of one metric in the rows, as MLflow should show them."""
    return sorted(
        (item.row.step, item.row.numbers[name], round(item.row.timestamp * 1000))
        for item in items
        if name in item.row.numbers
    )


def test_every_value_is_at_its_step_and_time_in_full_precision(tmp_path, settings, capfd):
    handed = [*rows(range(1, 400)), *rows([700, 650, -3]), row(701, numbers={"loss": 0.1 + 0.2, "pass@8": 0.5})]
    sink = MlflowSink(facts(tmp_path), settings, {})
    hand_over(sink, handed, rows([640]), [])
    sink.close()
    reader = Reader(settings)
    everything = [*handed, *rows([640])]
    assert reader.points(1, "loss") == points_of(everything, "loss")
    assert reader.points(1, "rewards/margins") == points_of(everything, "rewards/margins")
    assert reader.points(1, "pass_at_8") == points_of(everything, "pass@8")
    assert capfd.readouterr() == ("", "")


def test_nan_is_kept_and_infinities_become_the_largest_numbers(tmp_path, settings):
    odd = [row(1, loss=math.nan), row(2, loss=math.inf), row(3, loss=-math.inf), row(3, loss=math.nan)]
    sink = MlflowSink(facts(tmp_path), settings, {})
    hand_over(sink, odd, odd)  # a repeated NaN is also a copy
    sink.close()
    history = Reader(settings).points(1, "loss")
    assert len(history) == 4
    assert [(step, value) for step, value, _ in history if not math.isnan(value)] == [(2, LARGEST), (3, -LARGEST)]
    assert sorted(step for step, value, _ in history if math.isnan(value)) == [1, 3]


def test_texts_are_tags_evaluations_are_named_apart_and_settings_are_params(tmp_path, settings):
    config = {
        "lr": 1e-5,
        "model": {"name": "tiny"},
        "list": [1, "a"],
        "nothing": None,
        "long": "x" * 9000,
        "odd (key)": 1,
    }
    config |= {f"many{number}": number for number in range(150)}
    sink = MlflowSink(facts(tmp_path, config=config), settings, {})
    hand_over(
        sink,
        [row(1, texts={"phase": "warm-up"}, loss=1.0), row(2, texts={"phase": "main", "eval_note": "x"})],
        [
            row(2, stream="eval", texts={"sample": "y"}, accuracy=0.5, eval_loss=0.25),
            row(3, timestamp=math.nan, loss=2.0),
        ],
    )
    sink.close()
    reader = Reader(settings)
    data = reader.runs()[1].data
    tags = {key: value for key, value in data.tags.items() if key.startswith("text/")}
    assert tags == {"text/phase": "main", "text/eval_note": "x", "text/eval/sample": "y"}
    assert reader.points(1, "eval/accuracy") == [(2, 0.5, round((START + 2) * 1000))]
    assert reader.points(1, "eval_loss")[0][1] == 0.25
    assert reader.points(1, "loss")[1] == (3, 2.0, round(START * 1000))  # without a time: that of its attempt
    assert len(data.params) == len(config)
    assert (data.params["lr"], data.params["model.name"], data.params["list"]) == ("1e-05", "tiny", '[1, "a"]')
    assert (data.params["nothing"], data.params["long"]) == ("None", "x" * 6000)
    assert data.params[_spell("odd (key)")] == "1"


def test_each_attempt_is_a_run_of_its_own_below_the_first(tmp_path, settings):
    first = facts(tmp_path, config={"lr": 0.1, "old": 1})
    sink = MlflowSink(first, {**settings, "name": "kto"}, {})
    hand_over(sink, rows(range(1, 11)))
    sink.close()
    changed = {"lr": [0.1, 0.2], "old": [1, None], "new": [None, 2]}
    resumed = facts(
        tmp_path, config={"lr": 0.2, "new": 2}, attempts=(Attempt(1, START), Attempt(2, START + 50, 5, changed=changed))
    )
    sink = MlflowSink(resumed, {**settings, "name": "kto"}, sink.memory)
    hand_over(sink, rows(range(6, 13), attempt=2), rows([4], attempt=1))
    reader = Reader(settings)
    assert reader.runs()[2].info.status == "RUNNING"
    sink.close()
    runs = reader.runs()
    assert reader.points(1, "loss") == points_of([*rows([4]), *rows(range(1, 4)), *rows(range(5, 11))], "loss")
    assert reader.points(2, "loss") == points_of(rows(range(6, 13), attempt=2), "loss")
    assert (runs[1].info.run_name, runs[2].info.run_name) == ("kto", "kto (attempt 2)")
    assert runs[2].data.tags["mlflow.parentRunId"] == runs[1].info.run_id
    assert runs[2].data.tags["rlvitals.from_step"] == "5"
    assert runs[1].data.params == {"lr": "0.1", "old": "1"}
    assert runs[2].data.params == {"lr": "0.2", "new": "2"}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert runs[2].info.start_time == round((START + 50) * 1000)
    assert runs[2].info.end_time == round((START + 12) * 1000)


def test_earlier_attempts_sent_late_get_the_settings_they_had(tmp_path, settings):
    changes = ({"lr": [0.1, 0.2]}, {"lr": [0.2, 0.3], "new": [None, 1]})
    attempts = (Attempt(1, START), Attempt(2, START, 1, changed=changes[0]), Attempt(3, START, 2, changed=changes[1]))
    sink = MlflowSink(facts(tmp_path, config={"lr": 0.3, "new": 1}, attempts=attempts), settings, {})
    hand_over(sink, [*rows([1], attempt=1), *rows([2], attempt=2), *rows([3], attempt=3)])
    sink.close()
    params = {number: run.data.params for number, run in Reader(settings).runs().items()}
    assert params == {1: {"lr": "0.1"}, 2: {"lr": "0.2"}, 3: {"lr": "0.3", "new": "1"}}


def test_rows_sent_again_after_a_failure_are_there_once(tmp_path, settings):
    of = facts(tmp_path)
    sink = MlflowSink(of, settings, {})
    hand_over(sink, rows(range(1, 4)))
    memory = {"runs": dict(sink.memory["runs"])}
    sink.write([*rows(range(4, 600)), row(600, texts={"note": "x"}, loss=math.nan)])
    sink.abandon()
    sink = MlflowSink(of, settings, memory)
    hand_over(sink, [*rows(range(4, 600)), row(600, texts={"note": "x"}, loss=math.nan)], rows([601]))
    sink.close()
    assert [step for step, *_ in Reader(settings).points(1, "loss")] == list(range(1, 602))
    assert len(Reader(settings).runs()) == 1


def test_a_run_made_by_a_follower_that_was_killed_before_its_first_commit_is_found_again(tmp_path, settings):
    of = facts(tmp_path)
    broken = MlflowSink(of, settings, {})
    real = broken._client.log_batch

    def fail(*given, **options):
        if options.get("metrics"):
            raise ConnectionError("the server is gone")
        real(*given, **options)

    broken._client.log_batch = fail
    with pytest.raises(ConnectionError):
        hand_over(broken, rows([1]))
    broken.abandon()
    sink = MlflowSink(of, settings, {})
    hand_over(sink, rows([1, 2]))
    sink.close()
    reader = Reader(settings)
    assert len(reader.client.search_runs([reader.experiment.experiment_id])) == 1
    assert reader.runs()[1].data.params == {"lr": "1e-05", "model.name": "tiny", "model.layers": "2", "token": "***"}
    assert [step for step, *_ in reader.points(1, "loss")] == [1, 2]


def test_every_row_is_there_once_after_kills_at_random_moments(tmp_path, settings, child_environment):
    Reader(settings)  # creates the database before the first child starts
    memory = feed_through_kills(
        "rlvitals.sinks.mlflow", "MlflowSink", tmp_path, settings, total=270, kills=3, environment=child_environment
    )
    reader = Reader(settings)
    found = reader.client.search_runs([reader.experiment.experiment_id])
    assert {run.info.run_id for run in found} == set(memory["runs"].values())
    assert len(found) == 2
    for attempt in (1, 2):
        for stream, prefix in (("train", ""), ("eval", "eval/")):
            handed = [fed_row(index) for index in range(270)]
            of_stream = [item for item in handed if (item.row.attempt, item.stream) == (attempt, stream)]
            assert reader.points(attempt, f"{prefix}loss") == points_of(of_stream, "loss")
            for number in range(270 // 40 + 1):
                name = f"metric/{number}"
                assert reader.points(attempt, f"{prefix}{name}") == points_of(of_stream, name)


def test_settings_are_used_as_given_and_no_secret_is_written(tmp_path, store, settings):
    of = facts(tmp_path)
    given = {
        **settings, "run_name": "seven", "tags": ["roll", "rl"], "description": "why it runs",
        "artifact_location": (tmp_path / "artifacts").as_uri(),
    }  # fmt: skip
    sink = MlflowSink(of, given, {})
    hand_over(sink, rows([1]))
    sink.close()
    reader = Reader(settings)
    run = reader.runs()[1]
    assert run.info.run_name == "seven"
    assert (run.data.tags["roll"], run.data.tags["rl"], run.data.tags["mlflow.note.content"]) == (
        "true", "true", "why it runs",
    )  # fmt: skip
    assert run.data.tags["rlvitals.algorithm"] == "kto"
    assert reader.experiment.artifact_location == (tmp_path / "artifacts").as_uri()
    by_number = {"tracking_uri": store, "experiment_id": reader.experiment.experiment_id, "tags": {"team": 1}}
    sink = MlflowSink(facts(tmp_path, id="another"), by_number, {})
    hand_over(sink, rows([1]))
    sink.close()
    assert len(reader.client.search_runs([reader.experiment.experiment_id], "tags.team = '1'")) == 1
    with pytest.raises(SinkError, match="MLflow cannot be reached") as caught:
        MlflowSink(of, {"tracking_uri": "nonsense://me:hunter2secret@host/db"}, {})
    assert "hunter2secret" not in str(caught.value)
    assert not files_with(tmp_path, "hunter2secret")


def test_by_default_everything_stays_in_the_run_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.example.com")
    monkeypatch.chdir(tmp_path)
    asked = []
    look_up = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest, **more: asked.append(host) or look_up(host, *rest, **more)
    )
    of = facts(tmp_path)
    sink = MlflowSink(of, {}, {})
    hand_over(sink, rows([1, 2]))
    sink.close()
    assert "tracking.example.com" not in asked
    assert [path.name for path in (of.root / "logs").iterdir()] == ["mlflow.db"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    reader = Reader({"tracking_uri": f"sqlite:///{of.root}/logs/mlflow.db", "experiment_name": "rlvitals"})
    assert reader.points(1, "loss") == points_of(rows([1, 2]), "loss")
    assert reader.experiment.artifact_location == (of.root / "logs" / "mlartifacts").as_uri()
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_a_run_deleted_by_hand_is_an_error_that_says_what_to_do(tmp_path, settings):
    of = facts(tmp_path)
    sink = MlflowSink(of, settings, {})
    hand_over(sink, rows([1]))
    sink.close()
    reader = Reader(settings)
    reader.client.delete_run(reader.runs()[1].info.run_id)
    for memory in (sink.memory, {"runs": {"1": "0" * 32}}):
        again = MlflowSink(of, settings, memory)
        again.write(rows([2]))
        with pytest.raises(SinkError, match=r"restore --run-id .*or delete .*mlflow\.json"):
            again.commit()
        again.abandon()
    reader.client.delete_experiment(reader.experiment.experiment_id)
    with pytest.raises(SinkError, match=r"is deleted\. Restore it"):
        MlflowSink(of, settings, {})


@pytest.mark.parametrize("folder", ["mlruns", "./mlruns", "file:///tmp/mlruns", Path("mlruns")])
def test_folders_of_files_are_refused_because_they_would_show_rows_twice(tmp_path, folder):
    with pytest.raises(SinkError, match=r"would show twice.*sqlite:///"):
        MlflowSink(facts(tmp_path), {"tracking_uri": folder}, {})


def test_wrong_settings_are_refused_with_the_nearest(tmp_path, store):
    with pytest.raises(SinkError, match=r"no setting 'tracking_url'.*tracking_uri"):
        MlflowSink(facts(tmp_path), {"tracking_url": store}, {})
    with pytest.raises(SinkError, match=r"no setting 'experiment_nam'.*experiment_name"):
        MlflowSink(facts(tmp_path), {"experiment_nam": "x"}, {})
    with pytest.raises(SinkError, match="tags must be a mapping or a list"):
        MlflowSink(facts(tmp_path), {"tags": "roll"}, {})


def test_a_missing_package_is_reported_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(SinkError, match=r"pip install 'rlvitals\[mlflow\]'"):
        MlflowSink(facts(tmp_path), {}, {})


NAMES = [
    "loss", "rewards/chosen", "a b", "é", "", "/a", "a/", "a//b", "../a", "a/./b", ".", "..", "..a", "a\n", "%", "a\\b",
    "tokens (total)", "tokens [total]", "x" * 400, "x" * 399 + "y",
]  # fmt: skip


def test_any_name_is_taken_and_none_runs_into_another(tmp_path, settings):
    sink = MlflowSink(facts(tmp_path), settings, {})
    numbers = {name: float(number) for number, name in enumerate(NAMES)}
    hand_over(sink, [SinkRow("train", Row(1, START, 1, numbers, dict.fromkeys(NAMES, "text")))])
    sink.close()
    found = Reader(settings).runs()[1].data.metrics
    assert found == {_spell(name): float(number) for number, name in enumerate(NAMES)}
    assert len(found) == len(NAMES)
    assert (found["loss"], found["rewards/chosen"], found["a b"], found["é"]) == (0.0, 1.0, 2.0, 3.0)


def test_samples_of_the_machine_are_at_their_place_and_time(tmp_path, settings):
    handed = samples(range(4))
    sink = MlflowSink(facts(tmp_path), settings, {})
    hand_over(sink, [*rows([100]), *handed], handed[2:])  # two of them are sent twice
    sink.close()
    reader = Reader(settings)
    assert reader.points(1, "System/CPU_Percent") == points_of(handed, "System/CPU_Percent")
    assert reader.points(1, "loss") == points_of(rows([100]), "loss")
