"""OpenTelemetry: sends metrics and findings to any collector, with OTLP over HTTP.

Each logged metric is a gauge, `rlvitals.NAME`, with one point per row at the row's own time. `rlvitals.step` is a gauge
as well. The step is not an attribute, because back ends create a separate time series for each value of an attribute.
Findings are log records: the title is the body, the severity is INFO, WARN or ERROR, and rule, step, advice and
evidence are attributes. The run is the resource, with its id as `service.instance.id`.

The SDK's instruments keep one value per interval and give it the time of the export. So rows do not use them: they are
passed as data points to the SDK's OTLP exporters, which return when the receiver has accepted them. OTLP has no ids by
which a receiver could detect a second copy. After a crash or an outage a batch may come again, with the same times,
attributes and values. Back ends that keep one value per series and time store it once; a finding has the attribute
`rlvitals.event.id`.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from rlvitals import catalog
from rlvitals.codec import encode
from rlvitals.errors import SinkError
from rlvitals.records import HealthEvent
from rlvitals.sinks.base import (
    RunFacts,
    Sink,
    SinkEvent,
    SinkRow,
    check_settings,
    explained,
    import_vendor,
    metric_name,
)
from rlvitals.version import __version__

PREFIX = "rlvitals."
POINTS = 5_000
"""Largest number of data points per request, well below the size that collectors accept."""

SIGNALS = ("metrics", "findings")
SEVERITY_NAMES = {"info": "INFO", "warning": "WARN", "critical": "ERROR"}

LONGEST_NAME = 255
"""Longest name of an instrument in the specification."""

_ODD = re.compile(r"[^A-Za-z0-9_.\-/]")
_EXPORTERS = "opentelemetry.exporter.otlp.proto.http"


class OpenTelemetrySink(Sink):
    """Sends to `endpoint`, the base address of a receiver (`http://localhost:4318`). By default the SDK reads its own
    environment variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, `..._HEADERS`). `headers`, `timeout` in seconds, `compression`
    and `certificate_file` are passed to the exporters. `send` is `metrics`, `findings` or both. `service_name`,
    `project` and `resource_attributes` describe the run.
    """

    known_settings: ClassVar[frozenset[str] | None] = frozenset({
        "endpoint", "headers", "timeout", "compression", "certificate_file", "send", "service_name", "project",
        "resource_attributes",
    })  # fmt: skip
    path_settings: ClassVar[frozenset[str]] = frozenset({"certificate_file"})
    takes_samples: ClassVar[bool] = True
    takes_findings: ClassVar[bool] = True

    def __init__(self, facts: RunFacts, settings: Mapping[str, Any], memory: dict[str, Any]) -> None:
        super().__init__(facts, settings, memory)
        check_settings("otel", settings, self.known_settings or frozenset())
        self._signals = _signals(settings.get("send", SIGNALS))
        self._points = import_vendor("opentelemetry.sdk.metrics.export", "otel")
        self._logs = import_vendor("opentelemetry.sdk._logs", "otel")
        self._logs_api = import_vendor("opentelemetry._logs", "otel")
        self._reader = catalog.reader(facts.framework, facts.algorithm)
        self._rows: list[SinkRow] = []
        self._events: list[SinkEvent] = []
        self._last_warning = _LastWarning()
        with explained(lambda problem: f"OpenTelemetry cannot start: {problem}"):
            self._resource = self._described()
            scope = import_vendor("opentelemetry.sdk.util.instrumentation", "otel").InstrumentationScope
            self._scope = scope("rlvitals", __version__)
            self._metric_exporter = self._exporter("metric_exporter", "OTLPMetricExporter", "v1/metrics")
            self._log_exporter = self._exporter("_log_exporter", "OTLPLogExporter", "v1/logs")
        logging.getLogger(_EXPORTERS).addHandler(self._last_warning)

    def write(self, rows: Sequence[SinkRow]) -> None:
        self._rows.extend(rows)

    def tell(self, events: Sequence[SinkEvent]) -> None:
        self._events.extend(events)

    def commit(self) -> None:
        if "metrics" in self._signals:
            for part in self._requests():
                self._check(self._metric_exporter.export(part), "metrics")
        records = [record for item in self._events if (record := self._record(item)) is not None]
        if "findings" in self._signals and records:
            self._check(self._log_exporter.export(records), "findings")
        self._rows, self._events = [], []

    def close(self) -> None:
        self._let_go()

    def abandon(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        logging.getLogger(_EXPORTERS).removeHandler(self._last_warning)
        self._metric_exporter.shutdown()
        self._log_exporter.shutdown()

    def _exporter(self, module: str, name: str, path: str) -> Any:
        given = {key: self.settings[key] for key in ("headers", "timeout", "certificate_file") if key in self.settings}
        if "compression" in self.settings:
            given["compression"] = import_vendor(_EXPORTERS, "otel").Compression(str(self.settings["compression"]))
        if endpoint := self.settings.get("endpoint"):
            given["endpoint"] = f"{str(endpoint).rstrip('/')}/{path}"
        return getattr(import_vendor(f"{_EXPORTERS}.{module}", "otel"), name)(**given)

    def _described(self) -> Any:
        """The run as a resource, including the attributes of `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME`."""
        facts = self.facts
        about = {
            "service.instance.id": facts.id,
            "rlvitals.project": str(self.settings.get("project") or facts.root.parent.name),
            "rlvitals.run": facts.root.name,
            "rlvitals.run.name": facts.name,
            "rlvitals.algorithm": facts.algorithm or "",
            "rlvitals.framework": facts.framework or "",
        }
        about = {key: value for key, value in about.items() if value}
        resource = import_vendor("opentelemetry.sdk.resources", "otel").Resource.create(about)
        if name := self.settings.get("service_name"):
            about["service.name"] = str(name)
        elif str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
            about["service.name"] = "rlvitals"
        given = self.settings.get("resource_attributes") or {}
        more = {
            str(key): value if isinstance(value, bool | int | float) else str(value) for key, value in given.items()
        }
        return resource.merge(type(resource)({**about, **more}))

    def _requests(self) -> Iterator[Any]:
        """The rows as requests of at most POINTS data points each. A row with more has its own request."""
        taken: list[SinkRow] = []
        points = 0
        for item in self._rows:
            if taken and points + len(item.row.numbers) + 1 > POINTS:
                yield self._request(taken)
                taken, points = [], 0
            taken.append(item)
            points += len(item.row.numbers) + 1
        if taken:
            yield self._request(taken)

    def _request(self, rows: Sequence[SinkRow]) -> Any:
        by_name: dict[str, list[Any]] = {}
        for item in rows:
            row = item.row
            values: dict[str, float] = {metric_name(item.stream, name): number for name, number in row.numbers.items()}
            if item.stream == "train":
                by_name.setdefault("step", []).append(self._point(item, "step", row.step))
            for name, value in values.items():
                by_name.setdefault(name, []).append(self._point(item, name, float(value)))
        kinds = self._points
        metrics = [
            kinds.Metric(
                name=instrument_name(name), description=self._title(name), unit="", data=kinds.Gauge(data_points=points)
            )
            for name, points in by_name.items()
        ]
        scoped = kinds.ScopeMetrics(scope=self._scope, metrics=metrics, schema_url="")
        return kinds.MetricsData(
            resource_metrics=[kinds.ResourceMetrics(resource=self._resource, scope_metrics=[scoped], schema_url="")]
        )

    def _point(self, item: SinkRow, name: str, value: float) -> Any:
        attributes: dict[str, int | str] = {"rlvitals.attempt": item.row.attempt}
        if instrument_name(name) != f"{PREFIX}{name}":
            attributes["rlvitals.logged_name"] = name  # two metrics with the same instrument name stay two series
        return self._points.NumberDataPoint(
            attributes=attributes, start_time_unix_nano=0, time_unix_nano=_nanoseconds(item.row.timestamp), value=value
        )

    def _title(self, name: str) -> str:
        return "Step of the row" if name == "step" else self._reader.title(name)

    def _record(self, item: SinkEvent) -> Any:
        """An event as a log record; None for events that do not concern the run's health."""
        parts = _words(item.event)
        if parts is None:
            return None
        event, (name, severity, body, facts) = item.event, parts
        attributes = {
            "rlvitals.event.id": f"{self.facts.id}:{item.place}",
            "rlvitals.step": event.step,
            "rlvitals.attempt": event.attempt,
            **{f"{PREFIX}{key}": value for key, value in facts.items() if value not in (None, "", (), [])},
        }
        api = self._logs_api
        record = api.LogRecord(
            timestamp=_nanoseconds(event.timestamp), observed_timestamp=time.time_ns(), severity_text=severity,
            severity_number=api.SeverityNumber[SEVERITY_NAMES.get(severity, "INFO")], body=body, attributes=attributes,
            event_name=f"{PREFIX}{name}",
        )  # fmt: skip
        return self._logs.ReadableLogRecord(
            log_record=record, resource=self._resource, instrumentation_scope=self._scope
        )

    def _check(self, result: Any, what: str) -> None:
        if result.name != "SUCCESS":
            reason = f": {self._last_warning.text}" if self._last_warning.text else ""
            raise SinkError(f"the OpenTelemetry receiver did not accept the {what}{reason}")


class _LastWarning(logging.Handler):
    """Keeps the exporters' last warning: they log the reason of a failure and do not return it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()[:500]


def instrument_name(name: str) -> str:
    """The instrument name of a metric.

    >>> instrument_name("rewards/margins"), instrument_name("pass@4 (math)")
    ('rlvitals.rewards/margins', 'rlvitals.pass_4__math_')
    """
    return f"{PREFIX}{_ODD.sub('_', name)}"[:LONGEST_NAME]


def _signals(given: Any) -> tuple[str, ...]:
    chosen = (given,) if isinstance(given, str) else tuple(given)
    for signal in chosen:
        if signal not in SIGNALS:
            raise SinkError(
                f"tracker 'otel' cannot send {str(signal)[:40]!r}; send is one or both of: {', '.join(SIGNALS)}"
            )
    return chosen


def _words(event: HealthEvent) -> tuple[str, str, str, dict[str, Any]] | None:
    """Name, severity, body and attributes of an event."""
    finding = event.finding
    if finding is not None:
        facts = {
            "rule": finding.rule, "kind": finding.kind, "onset_step": finding.onset_step, "slice": finding.slice,
            "cause": finding.cause, "action": finding.action, "confidence": float(finding.confidence),
            "metrics": list(finding.metrics), "causes": list(finding.causes), "advice": list(finding.advice),
            "evidence": encode({key: _strict(value) for key, value in finding.evidence.items()}).decode().strip(),
        }  # fmt: skip
        return f"finding.{event.type}", finding.severity, finding.title, facts
    facts = {key: value for key, value in event.facts.items() if isinstance(value, str | int | float | bool)}
    if event.type == "recovered":
        return "finding.recovered", "info", f"recovered: {event.alarm}", facts
    if event.type == "request":
        return "request", "warning", str(facts.get("reason") or facts.get("action", "")), facts
    if event.type == "answer":
        return "answer", "info", f"{facts.get('action', '')}: {facts.get('answer', '')}", facts
    return None


def _strict(value: float | str) -> float | str:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _nanoseconds(timestamp: float) -> int:
    """A timestamp in nanoseconds. A row without a time gets the current time."""
    return int(timestamp * 1e9) if math.isfinite(timestamp) else time.time_ns()
