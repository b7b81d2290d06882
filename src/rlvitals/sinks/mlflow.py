"""The MLflow tracker: one MLflow run per attempt, in a database or on a tracking server."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import math
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from rlvitals.config import flatten
from rlvitals.errors import SinkError
from rlvitals.masking import mask_text
from rlvitals.sinks.base import (
    RunFacts,
    Sink,
    SinkRow,
    attempt_name,
    check_settings,
    explained,
    import_vendor,
    metric_name,
)
from rlvitals.store.layout import RunDir, kept_file

METRICS_A_BATCH = 500
"""MLflow accepts 1,000 metrics and one megabyte per request; half of them fit even with long names."""

PARAMS_A_BATCH, PARAM_LENGTH = 25, 6000
"""MLflow accepts 100 params of 6,000 characters, which may exceed one megabyte."""

TAGS_A_BATCH, TAG_LENGTH, NAME_LENGTH = 100, 5000, 250

OWN_SETTINGS = frozenset({"experiment", "experiment_name", "artifact_location", "name", "description"})
RUN, ATTEMPT = "rlvitals.run", "rlvitals.attempt"


SQLITE = "sqlite:///"


class MlflowSink(Sink):
    """Logs to `logs/mlflow.db` (SQLite), or to the database or server that the setting `tracking_uri` names.

    Settings: `tracking_uri`, `experiment_name` (or `experiment`; default rlvitals), `run_name` (or `name`), `tags` (a
    mapping or a list), `description`, `artifact_location`, and the parameters of `MlflowClient` and its `create_run`.
    The variable MLFLOW_TRACKING_URI is ignored, so nothing is sent to a server that these settings do not name. The
    login of a server comes from MLFLOW_TRACKING_USERNAME and _PASSWORD, or from MLFLOW_TRACKING_TOKEN. MLflow's
    telemetry is disabled.

    Numbers are metrics in full precision, at their step and time. Metrics of evaluations get the prefix `eval/`, unless
    their name has such a prefix already. For hardware samples (`System/...`), the step is the number of the sample. NaN
    stays NaN; MLflow stores infinities as ±1.7976931348623157e308, the largest float. A text is the tag `text/NAME`
    with its last value. The settings are params. Characters that MLflow does not accept in names are replaced (`pass@8`
    becomes `pass_at_8`).

    After a crash, rows after the last commit are sent again; MLflow's primary key (metric, time, step, value) removes
    the second copy. Folders of files (`mlruns`) have no such key, so they are rejected. After a resume there is one
    MLflow run per attempt, each with its own settings; the later ones are children of the first. Superseded rows stay
    in the run of the earlier attempt. A run is marked finished when the tracker closes.

    Memory: `runs`, the MLflow run of each attempt. If one of them is missing, the tracker stops with an error that
    names the fix.
    """

    takes_samples: ClassVar[bool] = True

    path_settings: ClassVar[frozenset[str]] = frozenset({"artifact_location"})

    @classmethod
    def with_kept_paths(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        kept = super().with_kept_paths(settings)
        address = str(kept.get("tracking_uri") or "")
        file = address.removeprefix(SQLITE)
        if file and file != address and not file.startswith(":memory:"):
            kept["tracking_uri"] = f"{SQLITE}{kept_file(file).as_posix()}"
        return kept

    def __init__(self, facts: RunFacts, settings: Mapping[str, Any], memory: dict[str, Any]) -> None:
        super().__init__(facts, settings, memory)
        self._mlflow = _load_mlflow()
        client = self._mlflow.MlflowClient
        constructing, creating = _parameters(client.__init__), _parameters(client.create_run)
        check_settings("mlflow", settings, OWN_SETTINGS | constructing | creating)
        self._tags = _tags(settings)
        self._uri = _address(facts, settings)
        self._metrics: dict[int, list[Any]] = {}
        self._texts: dict[int, dict[str, str]] = {}
        self._ended: dict[int, int] = {}
        self._runs: dict[int, str] = {}
        """The runs used since the tracker was opened, by attempt."""
        with explained(
            lambda problem: (
                f"MLflow cannot be reached at {mask_text(self._uri)}: {mask_text(problem)[:300]}. Check "
                "tracking_uri (a database such as sqlite:///mlflow.db, or a server such as http://localhost:5000) and "
                "its login"
            )
        ):
            options = {key: settings[key] for key in constructing & settings.keys()}
            self._client = client(**options | {"tracking_uri": self._uri})
            self._experiment = self._find_experiment()

    def write(self, rows: Sequence[SinkRow]) -> None:
        """Send the rows in batches. `commit` sends an incomplete batch."""
        metric = self._mlflow.entities.Metric
        for item in rows:
            row, number = item.row, item.row.attempt
            time = self._milliseconds(item)
            self._ended[number] = max(time, self._ended.get(number, 0))
            waiting = self._metrics.setdefault(number, [])
            waiting.extend(metric(_named(item, name), value, time, row.step) for name, value in row.numbers.items())
            for name, text in row.texts.items():
                self._texts.setdefault(number, {})[_spell(f"text/{metric_name(item.stream, name)}")] = text[:TAG_LENGTH]
            if len(waiting) >= METRICS_A_BATCH:
                self._send(number)

    def commit(self) -> None:
        """Send the rest. Each batch is one transaction, which is acknowledged before the call returns."""
        for number in list(self._ended):
            self._send(number)
        self.memory["runs"] = {**self.memory.get("runs", {}), **{str(key): run for key, run in self._runs.items()}}

    def close(self) -> None:
        for number, run in self._runs.items():
            self._client.set_terminated(run, status="FINISHED", end_time=self._ended[number])

    def _send(self, number: int) -> None:
        run = self._run_of(number)
        for metrics in _batches(self._metrics.pop(number, []), METRICS_A_BATCH):
            self._client.log_batch(run, metrics=metrics, synchronous=True)
        tags = [self._mlflow.entities.RunTag(key, text) for key, text in self._texts.pop(number, {}).items()]
        for some in _batches(tags, TAGS_A_BATCH):
            self._client.log_batch(run, tags=some, synchronous=True)

    def _run_of(self, number: int) -> str:
        """The MLflow run of an attempt: the committed one, the one that a killed follower created, or a new one."""
        if number not in self._runs:
            committed = self.memory.get("runs", {}).get(str(number))
            run = self._committed_run(committed) if committed else self._found_run(number)
            if run.info.status != "RUNNING":
                self._client.update_run(run.info.run_id, status="RUNNING")
            self._runs[number] = str(run.info.run_id)
        return self._runs[number]

    def _committed_run(self, run_id: str) -> Any:
        try:
            run = self._client.get_run(run_id)
        except self._mlflow.exceptions.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            run = None
        if run is None or run.info.lifecycle_stage != "active":
            cursor = RunDir(self.facts.root).sinks / "mlflow.json"
            raise SinkError(
                f"MLflow run {run_id}, which held rows of this run, was deleted from {mask_text(self._uri)}. Restore "
                f"it ('mlflow runs restore --run-id {run_id}'), or delete {cursor} to send the whole log again"
            )
        return run

    def _found_run(self, number: int) -> Any:
        identity = self.facts.id or _spell(self.facts.name)
        known = {
            int(run.data.tags[ATTEMPT]): run
            for run in self._client.search_runs([self._experiment], f"tags.`{RUN}` = '{identity}'")
        }
        run = known.get(number) or self._create_run(number, identity, known)
        # The follower may have been killed after it created the run and before it logged the params.
        params = {_spell(key): _param(value) for key, value in self._config_of(number).items()}
        missing = [
            self._mlflow.entities.Param(key, value) for key, value in params.items() if key not in run.data.params
        ]
        for some in _batches(missing, PARAMS_A_BATCH):
            self._client.log_batch(run.info.run_id, params=some, synchronous=True)
        return run

    def _create_run(self, number: int, identity: str, known: Mapping[int, Any]) -> Any:
        attempt = self.facts.attempt(number)
        tags = {**self._tags, RUN: identity, ATTEMPT: str(number)}
        if self.facts.algorithm:
            tags["rlvitals.algorithm"] = self.facts.algorithm
        if attempt is not None and attempt.from_step is not None:
            tags["rlvitals.from_step"] = str(attempt.from_step)
        if known and min(known) < number:
            tags["mlflow.parentRunId"] = known[min(known)].info.run_id
        name = str(self.settings.get("run_name") or self.settings.get("name") or self.facts.name)
        return self._client.create_run(
            self._experiment,
            start_time=self.settings.get("start_time") or (_milliseconds(attempt.started) if attempt else None),
            tags=tags,
            run_name=attempt_name(name, number),
        )

    def _config_of(self, number: int) -> dict[str, Any]:
        """The settings of an attempt: the current ones without the changes of later attempts."""
        config = flatten(self.facts.config)
        for attempt in sorted(self.facts.attempts, key=lambda attempt: -attempt.number):
            if attempt.number > number:
                config.update({key: before for key, (before, _) in attempt.changed.items() if before is not None})
                for key in (key for key, (before, _) in attempt.changed.items() if before is None):
                    config.pop(key, None)
        return config

    def _find_experiment(self) -> str:
        if self.settings.get("experiment_id") is not None:
            return str(self._client.get_experiment(str(self.settings["experiment_id"])).experiment_id)
        name = str(self.settings.get("experiment_name") or self.settings.get("experiment") or "rlvitals")
        place = self.settings.get("artifact_location")
        if place is None and not self.settings.get("tracking_uri"):
            place = (RunDir(self.facts.root).logs.resolve() / "mlartifacts").as_uri()
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self._client.create_experiment(name, artifact_location=place))
            except self._mlflow.exceptions.MlflowException:  # the tracker of another run may have created it
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        if experiment.lifecycle_stage != "active":
            raise SinkError(
                f"the MLflow experiment {name!r} is deleted. Restore it ('mlflow experiments restore --experiment-id "
                f"{experiment.experiment_id}') or choose another experiment_name"
            )
        return str(experiment.experiment_id)

    def _milliseconds(self, item: SinkRow) -> int:
        """The time of a row. It is part of the key, so it must be the same each time the row is sent."""
        if math.isfinite(item.row.timestamp):
            return _milliseconds(item.row.timestamp)
        attempt = self.facts.attempt(item.row.attempt)
        return _milliseconds(attempt.started) if attempt else 0


def _load_mlflow() -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it logs every table that it creates
    return import_vendor("mlflow", "mlflow")


def _parameters(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters) - {"self"}


def _address(facts: RunFacts, settings: Mapping[str, Any]) -> str:
    given = settings.get("tracking_uri")
    if not given:
        logs = RunDir(facts.root).logs.resolve()
        return f"{SQLITE}{(logs / 'mlflow.db').as_posix()}"
    address = str(given)
    if address.startswith("file:") or ("://" not in address and address != "databricks"):
        raise SinkError(
            f"tracker 'mlflow': {address} is a folder of files, where rows sent again after a crash would show twice. "
            f"Set tracking_uri to a database, such as sqlite:///mlflow.db, or to a server"
        )
    return address


def _tags(settings: Mapping[str, Any]) -> dict[str, str]:
    given = settings.get("tags") or {}
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        raise SinkError(f"tracker 'mlflow': tags must be a mapping or a list, not {given!r}")
    pairs = given.items() if isinstance(given, Mapping) else ((tag, "true") for tag in given)
    tags = {_spell(str(key)): str(value)[:TAG_LENGTH] for key, value in pairs}
    if settings.get("description"):
        tags["mlflow.note.content"] = str(settings["description"])[:TAG_LENGTH]
    return tags


def _named(item: SinkRow, name: str) -> str:
    return _spell(metric_name(item.stream, name))


def _spell(name: str) -> str:
    """A name that MLflow accepts. If more than an @ was replaced, a few digits keep it distinct from other names.

    >>> _spell("rewards/margins"), _spell("pass@8"), _spell("tokens (total)"), _spell("a//b")
    ('rewards/margins', 'pass_at_8', 'tokens _total_-76de', 'a/b-7a9a')
    """
    allowed = re.sub(r"[^/\w.\- :]" if os.name != "nt" else r"[^/\w.\- ]", "_", spelled := name.replace("@", "_at_"))
    allowed = posixpath.normpath(re.sub(r"^(/+|\.\.)|(?<![^/])\.\.?(?![^/])", "_", allowed)) if allowed else "_"
    if allowed == spelled and len(allowed) <= NAME_LENGTH:
        return allowed
    return f"{allowed[: NAME_LENGTH - 5]}-{hashlib.sha256(name.encode()).hexdigest()[:4]}"


def _param(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list) else str(value)
    return text[:PARAM_LENGTH]


def _milliseconds(seconds: float) -> int:
    return min(max(0, round(seconds * 1000)), 2**63 - 1)


def _batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
