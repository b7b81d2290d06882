"""OpenTelemetry, with the real SDK and a real OTLP receiver on this machine that decodes the requests."""

from __future__ import annotations

import gzip
import json
import math
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed: pip install 'rlvitals[otel]'")

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from rows import START, facts, row, rows, samples

import rlvitals
from conftest import until
from health_lines import finding_line, monitor_line, recovered_line
from rlvitals.errors import SinkError
from rlvitals.records import Finding, HealthEvent
from rlvitals.sinks import opentelemetry
from rlvitals.sinks.base import SinkEvent
from rlvitals.sinks.follower import follow
from rlvitals.sinks.opentelemetry import OpenTelemetrySink
from rlvitals.store.cursors import read_cursor
from rlvitals.store.layout import RunDir

KL = Finding(
    "kl_high", "kl_explosion", "critical", 20, 15, "KL is high", confidence=0.9,
    evidence={"kl": 0.5, "slope": math.inf}, advice=("lower the learning rate", "go back"), metrics=("kl",),
)  # fmt: skip
WIRE = {
    "/v1/metrics": (ExportMetricsServiceRequest, ExportMetricsServiceResponse),
    "/v1/logs": (ExportLogsServiceRequest, ExportLogsServiceResponse),
}


class Receiver(ThreadingHTTPServer):
    """Keeps every request it has answered with 200. `faults` are the statuses of the next answers."""

    def __init__(self, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.taken = []
        self.faults = []
        self.headers = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def points(self):
        """(name, seconds since START, value, attributes) of every point, in the order they came."""
        return [
            (metric.name, point.time_unix_nano / 1e9 - START, number(point), attributes(point))
            for request in self.taken
            if isinstance(request, ExportMetricsServiceRequest)
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.gauge.data_points
        ]

    def records(self):
        return [
            record
            for request in self.taken
            if isinstance(request, ExportLogsServiceRequest)
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        request, response = WIRE[self.path]
        message = request.FromString(body)
        status = self.server.faults.pop(0) if self.server.faults else 200
        answer = response().SerializeToString() if status == 200 else b""
        if status == 200:
            self.server.taken.append(message)
            self.server.headers.append(dict(self.headers))
        self.send_response(status)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *words):
        pass


@contextmanager
def receiving(port=0):
    receiver = Receiver(port)
    thread = threading.Thread(target=receiver.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.shutdown()
        receiver.server_close()
        thread.join(10)


@pytest.fixture
def receiver():
    with receiving() as one:
        yield one


def number(point):
    return point.as_double if point.HasField("as_double") else point.as_int


def attributes(thing):
    return {item.key: plain(item.value) for item in thing.attributes}


def plain(value):
    kind = value.WhichOneof("value")
    return [plain(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def sink_event(type_, step=20, place=0, **more):
    return SinkEvent(place, HealthEvent(type_, step, START + step, **more))


def test_rows_are_gauges_at_their_own_times(tmp_path, receiver):
    sink = OpenTelemetrySink(facts(tmp_path), {"endpoint": receiver.url}, {})
    sink.write(rows([1, 2]))
    sink.write([row(2, stream="eval", accuracy=0.5), row(3, 2, loss=math.nan)])
    sink.write(samples([4]))
    sink.commit()
    sink.close()
    found = receiver.points()
    first, second = {"rlvitals.attempt": 1}, {"rlvitals.attempt": 2}
    assert [point for point in found if point[0] == "rlvitals.step"] == [
        ("rlvitals.step", 1.0, 1, first), ("rlvitals.step", 2.0, 2, first), ("rlvitals.step", 3.0, 3, second),
    ]  # fmt: skip
    losses = [point for point in found if point[0] == "rlvitals.loss"]
    assert losses[:2] == [("rlvitals.loss", 1.0, 1 / 2, first), ("rlvitals.loss", 2.0, 1 / 3, first)]
    assert math.isnan(losses[2][2])
    assert ("rlvitals.rewards/margins", 2.0, 1.2, first) in found
    assert ("rlvitals.eval/accuracy", 2.0, 0.5, first) in found
    assert ("rlvitals.System/CPU_Percent", 20.0, 4.0, first) in found
    assert len(found) == 3 + 5 + 1 + 1


def test_the_run_is_the_resource(tmp_path, receiver, monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=cluster-7")
    settings = {"endpoint": receiver.url, "project": "kto", "resource_attributes": {"team": "rl"}}
    sink = OpenTelemetrySink(facts(tmp_path), settings, {})
    sink.write(rows([1]))
    sink.commit()
    sink.close()
    [resource] = receiver.taken[0].resource_metrics
    about = attributes(resource.resource)
    assert about.items() >= {
        "service.name": "rlvitals", "service.instance.id": "kto-7b-0123abcd", "rlvitals.project": "kto",
        "rlvitals.run": "run", "rlvitals.run.name": "kto-7b", "rlvitals.algorithm": "kto", "team": "rl",
        "deployment.environment": "cluster-7",
    }.items()  # fmt: skip
    metric = next(one for one in resource.scope_metrics[0].metrics if one.name == "rlvitals.rewards/margins")
    assert metric.description == rlvitals.catalog.reader(algorithm="kto").title("rewards/margins") != ""


def test_findings_are_log_records(tmp_path, receiver):
    sink = OpenTelemetrySink(facts(tmp_path), {"endpoint": receiver.url}, {})
    sink.tell([
        sink_event("monitor", facts={"is_on": True}),
        sink_event("raised", place=100, finding=KL),
        sink_event("recovered", 30, place=200, facts={"rule": "kl_high", "severity": "critical"}),
        sink_event("request", 21, place=300, facts={"action": "reduce_lr", "reason": "KL is high", "request": 1}),
    ])  # fmt: skip
    sink.commit()
    sink.close()
    raised, recovered, request = receiver.records()
    assert (raised.body.string_value, raised.severity_number, raised.severity_text) == ("KL is high", 17, "critical")
    assert (raised.event_name, raised.time_unix_nano) == ("rlvitals.finding.raised", int((START + 20) * 1e9))
    about = attributes(raised)
    assert about.items() >= {
        "rlvitals.event.id": "kto-7b-0123abcd:100", "rlvitals.rule": "kl_high", "rlvitals.kind": "kl_explosion",
        "rlvitals.step": 20, "rlvitals.onset_step": 15, "rlvitals.confidence": 0.9, "rlvitals.attempt": 1,
    }.items()  # fmt: skip
    assert about["rlvitals.advice"] == ["lower the learning rate", "go back"]
    assert json.loads(about["rlvitals.evidence"]) == {"kl": 0.5, "slope": "inf"}
    assert (recovered.body.string_value, recovered.severity_number) == ("recovered: kl_high", 9)
    assert (request.body.string_value, request.severity_number) == ("KL is high", 13)


def test_names_that_are_no_instrument_names_stay_apart(tmp_path, receiver):
    sink = OpenTelemetrySink(facts(tmp_path), {"endpoint": receiver.url}, {})
    sink.write([row(1, numbers={"pass@4": 0.1, "pass 4": 0.2, "größe": 0.3, "x" * 400: 0.4})])
    sink.commit()
    sink.close()
    found = {(name, about.get("rlvitals.logged_name")): value for name, _, value, about in receiver.points()}
    assert found["rlvitals.pass_4", "pass@4"] == 0.1
    assert found["rlvitals.pass_4", "pass 4"] == 0.2
    assert found["rlvitals.gr__e", "größe"] == 0.3
    assert max(len(name) for name, _ in found) == 255


def test_a_long_batch_is_several_requests(tmp_path, receiver, monkeypatch):
    monkeypatch.setattr(opentelemetry, "POINTS", 10)
    sink = OpenTelemetrySink(facts(tmp_path), {"endpoint": receiver.url, "compression": "gzip"}, {})
    sink.write(rows(range(7)))  # three points per row
    sink.commit()
    sink.close()
    assert len(receiver.taken) == 3
    assert sorted(value for name, _, value, _ in receiver.points() if name == "rlvitals.step") == list(range(7))


@pytest.mark.parametrize("status", [400, 404, 500])
def test_a_refusal_is_an_error_with_its_status(tmp_path, receiver, status):
    receiver.faults = [status] * 20  # some versions of the exporter retry a 500 themselves
    sink = OpenTelemetrySink(facts(tmp_path), {"endpoint": receiver.url, "timeout": 1}, {})
    sink.write(rows([1]))
    with pytest.raises(SinkError, match="did not accept the metrics: "):
        sink.commit()
    sink.abandon()
    assert receiver.taken == []


def test_only_what_is_asked_for_is_sent(tmp_path, receiver):
    for wanted, kind in (("metrics", ExportMetricsServiceRequest), (["findings"], ExportLogsServiceRequest)):
        receiver.taken.clear()
        sink = OpenTelemetrySink(facts(tmp_path), {"endpoint": receiver.url, "send": wanted}, {})
        sink.write(rows([1]))
        sink.tell([sink_event("raised", finding=KL)])
        sink.commit()
        sink.close()
        assert [type(request) for request in receiver.taken] == [kind]
    with pytest.raises(SinkError, match="cannot send 'traces'"):
        OpenTelemetrySink(facts(tmp_path), {"send": "traces"}, {})


def record(folder, **more):
    run = rlvitals.start(folder, algorithm="grpo", display="none", hardware=False, monitor=False, **more)
    for step in range(25):
        run.log({"reward": step / 10}, step=step)
    return run


def steps(receiver):
    return [value for name, _, value, _ in receiver.points() if name == "rlvitals.step"]


def test_an_outage_and_a_restart_lose_nothing(tmp_path):
    """First 500s, then no server, then the receiver again: all rows and findings arrive, in order."""
    folder = tmp_path / "run"
    record(folder).finish()
    before = RunDir(folder).findings.stat().st_size if RunDir(folder).findings.exists() else 0
    lines = [monitor_line(), finding_line(KL), recovered_line("kl_high", 24)]
    with open(RunDir(folder).findings, "ab") as log:
        log.writelines(lines)
    with receiving() as receiver:
        port = receiver.server_port
        receiver.faults = [500] * 1000
        settings = {"otel": {"endpoint": receiver.url, "timeout": 1}}
        assert not follow(RunDir(folder), settings, linger=0.3)
        assert (receiver.taken, read_cursor(RunDir(folder), "otel").rows) == ([], 0)
        assert "500" in read_cursor(RunDir(folder), "otel").error
    assert not follow(RunDir(folder), settings, linger=0.3)  # no server
    assert read_cursor(RunDir(folder), "otel").state == "failing"
    with receiving(port) as receiver:
        receiver.faults = [200, 500]  # accepts the metrics and refuses the findings: the batch is sent again
        assert follow(RunDir(folder), settings)
        assert steps(receiver) == [*range(25)] * 2
        first, second = receiver.points()[:50], receiver.points()[50:]
        assert first == second  # the same series, times and values
        assert [record.event_name for record in receiver.records()] == [
            "rlvitals.finding.raised", "rlvitals.finding.recovered",
        ]  # fmt: skip
        places = [attributes(record)["rlvitals.event.id"].rpartition(":")[2] for record in receiver.records()]
        assert places == [str(before + len(lines[0])), str(before + len(lines[0] + lines[1]))]
        assert follow(RunDir(folder), settings)  # accepted data is not sent again
        assert len(receiver.taken) == 3
    assert read_cursor(RunDir(folder), "otel").state == "done"


@pytest.mark.slow
def test_a_run_is_forwarded_by_its_follower_with_keys_in_headers(tmp_path, receiver):
    secret = "collector-key-7777"
    run = record(
        tmp_path / "run", track_with="otel",
        tracker_kwargs={"endpoint": receiver.url, "headers": {"x-api-key": secret}},
    )  # fmt: skip
    run.finish()
    assert until(lambda: steps(receiver) == [*range(25)])
    assert {headers["x-api-key"] for headers in receiver.headers} == {secret}
    leaks = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert leaks == []
