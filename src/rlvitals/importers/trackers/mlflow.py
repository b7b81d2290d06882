"""MLflow: runs of a tracking server, a database or a folder of files, through `MlflowClient`.

MLflow stores points, not rows. The points of a step become one row, and those of an evaluation another. The whole
history of a metric is fetched at once; the client splits it into pages of 25,000 points. A changed run is fetched
again.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from typing import Any

from rlvitals.errors import SourceError
from rlvitals.importers.base import Notes
from rlvitals.importers.mlflow import SYSTEM, largest_as_infinity, seconds, setting
from rlvitals.importers.points import PointTable
from rlvitals.importers.trackers.base import (
    Origin,
    Page,
    RemoteRun,
    RunCard,
    Source,
    client_module,
    in_pages,
    mark_of,
    status_of,
    without_nothing,
)
from rlvitals.records import Status

RUNS_A_PAGE = 500
_ID = re.compile(r"[0-9a-f]{32}")
_STATUS: dict[str, Status] = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "interrupted"}
_OWN = ("mlflow.", "rlvitals.", "text/")
"""Prefixes of tags that users did not set."""


class MlflowSource(Source):
    """An MLflow tracking server, database or folder."""

    scheme = "mlflow"
    grammar = (
        "mlflow:EXPERIMENT or mlflow:EXPERIMENT/RUN, by name or id, with the server or database in "
        "MLFLOW_TRACKING_URI or in front: mlflow:http://localhost:5000#EXPERIMENT"
    )
    login = (
        "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, and check the address of "
        "the server (MLFLOW_TRACKING_URI)."
    )
    goes_on = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it logs every table it creates
        mlflow = client_module("mlflow", self.scheme)
        self._error = mlflow.exceptions.MlflowException
        uri = self.address.place or self.ask(mlflow.get_tracking_uri, "the address of the server")
        database = uri.removeprefix("sqlite:///").partition("?")[0]
        if uri.startswith("sqlite:///") and not os.path.exists(database):  # the client would create an empty one
            raise SourceError(f"{self.address}: there is no database {database!r}. Write {self.grammar}")
        self._client = self.ask(lambda: mlflow.MlflowClient(tracking_uri=uri), "the server")
        self._run: Any = None
        self._experiments = self._find()

    @property
    def is_one_run(self) -> bool:
        return self._run is not None

    def runs(self) -> Iterator[RemoteRun]:
        if self._run is not None:
            yield self._remote(self._run)
            return
        token = None
        ids = list(self._experiments)
        while True:
            page = self.ask(
                lambda token=token: self._client.search_runs(  # type: ignore[misc]
                    ids, max_results=RUNS_A_PAGE, order_by=["attributes.start_time ASC"], page_token=token
                ),
                "the list of runs",
            )
            yield from map(self._remote, page)
            token = page.token
            if not token:
                return

    def card(self, run: RemoteRun) -> RunCard:
        data, info = run.handle.data, run.handle.info
        tags = [
            name if value == "true" else f"{name}={value}"
            for name, value in data.tags.items()
            if not name.startswith(_OWN)
        ]
        return RunCard(
            config={name: setting(value) for name, value in data.params.items()},
            tags=tags,
            note=data.tags.get("mlflow.note.content", ""),
            summary=dict(data.metrics),
            facts=without_nothing(
                {
                    "experiment": run.project,
                    "state": info.status.lower(),
                    "parent": data.tags.get("mlflow.parentRunId"),
                    "texts": {
                        name.removeprefix("text/"): text for name, text in data.tags.items() if name[:5] == "text/"
                    },
                }
            ),
        )

    def pages(self, run: RemoteRun, cursor: dict[str, Any]) -> Iterator[Page]:
        notes = Notes()
        points, samples = PointTable(notes), PointTable(notes)
        for place, name in enumerate(sorted(run.handle.data.metrics)):
            self._tell(f"{run.name}: metric {place + 1} of {len(run.handle.data.metrics)}")
            history = self.ask(lambda name=name: self._client.get_metric_history(run.id, name), f"the metric {name}")  # type: ignore[misc]
            is_sample = name.startswith(SYSTEM) or (run.origin is not None and name.lower().startswith(SYSTEM))
            (samples if is_sample else points).add(
                name,
                (point.step for point in history),
                (seconds(point.timestamp) for point in history),
                (largest_as_infinity(point.value) for point in history),
            )
        points.number()
        self.notes = dict.fromkeys(notes.texts())
        for kind, columns in (("rows", points), ("samples", samples)):
            for rows in in_pages(columns.rows()):
                yield Page(rows) if kind == "rows" else Page(samples=rows)

    def may_pass(self, error: Exception) -> bool:
        """MLflow's client retries for minutes before it raises."""
        return False

    def needs_login(self, error: Exception) -> bool:
        code = getattr(error, "error_code", "")
        match = re.search(r"error code (401|403)\b", str(error))  # an answer that MLflow itself did not send
        return code in ("UNAUTHENTICATED", "PERMISSION_DENIED") or status_of(error) in (401, 403) or bool(match)

    def _find(self) -> dict[str, str]:
        """The experiments that the address names, by id. Sets `_run` if it names a run."""
        path = self.address.path
        if not path:
            found = self.ask(self._client.search_experiments, "the list of experiments")
            return {one.experiment_id: one.name for one in found}
        whole = self._experiment(path)
        if whole is not None:
            return {whole.experiment_id: whole.name}
        places = [place for place, letter in enumerate(path) if letter == "/"]
        experiment = None
        for place in reversed(places):  # both names may contain slashes
            experiment = self._experiment(path[:place])
            if experiment is not None:
                self._run = self._run_by_name(experiment.experiment_id, path[place + 1 :])
            if self._run is not None:
                break
        last = path.rpartition("/")[2]
        if self._run is None and _ID.fullmatch(last):
            self._run = self._run_by_id(last)
        if self._run is not None:
            home = self.ask(lambda: self._client.get_experiment(self._run.info.experiment_id), "the experiment")
            return {home.experiment_id: home.name}
        known = self.ask(self._client.search_experiments, "the list of experiments")
        names = ", ".join(sorted(one.name for one in known)[:10])
        raise SourceError(
            f"{self.address}: there is no such experiment or run (experiments: {names}). Write {self.grammar}"
        )

    def _experiment(self, name: str) -> Any:
        found = self.ask(lambda: self._client.get_experiment_by_name(name), "the experiment")
        if found is None and name.isdecimal():
            found = self._or_none(lambda: self._client.get_experiment(name))
        return found

    def _run_by_id(self, run_id: str) -> Any:
        return self._or_none(lambda: self._client.get_run(run_id))

    def _run_by_name(self, experiment: str, name: str) -> Any:
        quoted = name.replace("\\", "\\\\").replace("'", "\\'")
        found = self.ask(
            lambda: self._client.search_runs(
                [experiment],
                f"attributes.run_name = '{quoted}'",
                max_results=1,
                order_by=["attributes.start_time DESC"],
            ),
            "the run",
        )
        return found[0] if found else None

    def _or_none(self, question: Any) -> Any:
        def asked() -> Any:
            try:
                return question()
            except self._error as error:
                if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    raise
                return None

        return self.ask(asked, "the run")

    def _remote(self, run: Any) -> RemoteRun:
        tags = run.data.tags
        origin = {name: tags.get(f"rlvitals.{name}") for name in ("run", "attempt", "from_step")}
        return RemoteRun(
            id=run.info.run_id,
            name=run.info.run_name or run.info.run_id,
            project=self._experiments.get(run.info.experiment_id, run.info.experiment_id),
            status=_STATUS.get(run.info.status, "running"),
            mark=_mark(run),
            created=seconds(run.info.start_time) or None,
            ended=seconds(run.info.end_time) or None,
            origin=Origin.of(origin),
            handle=run,
        )


def _mark(run: Any) -> str:
    """Changes with the newest point of any metric, the status, the params and the tags."""
    newest = getattr(run.data, "_metric_objs", None)
    points = (
        [(point.key, repr(point.value), point.step, point.timestamp) for point in newest]
        if newest is not None
        else [(name, repr(value)) for name, value in run.data.metrics.items()]
    )
    facts = (
        run.info.status,
        run.info.end_time,
        sorted(points),
        sorted(run.data.params.items()),
        sorted(run.data.tags.items()),
    )
    return mark_of(facts)
