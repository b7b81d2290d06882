"""SwanLab: experiments of a server, through the `swanlab` package's `Api`.

SwanLab stores points, not rows; the points of a step become one row. The client exports complete metrics, sixteen per
request, and hides errors. If a listed metric has no points, it is requested again, and in the end raises an error. A
changed experiment is fetched again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rlvitals.errors import SourceError
from rlvitals.importers.base import Notes
from rlvitals.importers.cells import time_of
from rlvitals.importers.points import PointTable
from rlvitals.importers.swanlab import OWN
from rlvitals.importers.trackers.address import Address
from rlvitals.importers.trackers.base import (
    Origin,
    Page,
    RemoteRun,
    RunCard,
    Source,
    chain,
    client_module,
    in_pages,
    mark_of,
    status_of,
    utc_time,
    without_nothing,
)
from rlvitals.importers.trackers.rows import RowMaker
from rlvitals.records import Status

KEYS_A_REQUEST = 16
_STATUS: dict[str, Status] = {
    "RUNNING": "running", "OFFLINE": "interrupted", "FINISHED": "finished", "CRASHED": "failed",
    "ABORTED": "interrupted",
}  # fmt: skip


class _Unanswered(Exception):
    """The client hid an error after its own retries."""


class _NoPoints(ConnectionError):
    """The client hid an error: its answer is incomplete."""


class SwanLabSource(Source):
    """A SwanLab project, or an experiment of it."""

    scheme = "swanlab"
    grammar = (
        "swanlab:USER/PROJECT or swanlab:USER/PROJECT/RUN, with the run's id; a server of your own in SWANLAB_API_HOST "
        "or in front: swanlab:https://HOST#USER/PROJECT"
    )
    login = "Log in with 'swanlab login', or set SWANLAB_API_KEY; for a server of your own set SWANLAB_API_HOST, too."
    goes_on = False

    def __init__(self, address: Address, tell: Callable[[str], None] = lambda message: None) -> None:
        super().__init__(address, tell)
        parts = address.path.split("/")
        if not all(parts) or not 2 <= len(parts) <= 3:
            raise self.wrong_address()
        self._project, self._wanted = "/".join(parts[:2]), parts[2] if len(parts) == 3 else ""
        swanlab = client_module("swanlab", self.scheme)
        self._api = self.ask(lambda: swanlab.Api(host=address.place or None), "the server")

    @property
    def is_one_run(self) -> bool:
        return bool(self._wanted)

    def runs(self) -> Iterator[RemoteRun]:
        if self._wanted:
            found = self.ask(lambda: _answered(self._api.run(f"{self._project}/{self._wanted}")), "the run")
            if not found.run_id:
                raise SourceError(f"{self.address}: the project {self._project!r} has no run {self._wanted!r}")
            yield self._remote(found)
            return

        def listed() -> list[Any]:
            runs = self._api.runs_get(self._project, all=True)
            found = list(runs)
            _answered(runs)
            return found

        runs = self.ask(listed, "the list of runs")
        yield from sorted(map(self._remote, runs), key=lambda run: run.created or 0.0)

    def card(self, run: RemoteRun) -> RunCard:
        found = run.handle
        profile = self.ask(lambda: found.profile, "the settings") or {}
        config = {name: _setting(value) for name, value in (profile.get("config") or {}).items()}
        labels = [str(label.get("name", "")) for label in found.labels if isinstance(label, dict)]
        facts = {"state": run.handle.state.lower(), "group": found.group, "job_type": found.job_type}
        return RunCard(
            config={name: value for name, value in config.items() if name != "rlvitals"},
            tags=[label for label in labels if label],
            note=found.description or "",
            facts=without_nothing(facts),
        )

    def pages(self, run: RemoteRun, cursor: dict[str, Any]) -> Iterator[Page]:
        notes = Notes()
        points, samples = PointTable(notes), PointTable(notes)
        for columns, kind in ((points, "CUSTOM"), (samples, "SYSTEM")):
            keys = self.ask(lambda kind=kind: self._keys(run, kind), "the list of metrics")  # type: ignore[misc]
            for place in range(0, len(keys), KEYS_A_REQUEST):
                self._tell(f"{run.name}: metric {place + 1} of {len(keys)}")
                some = keys[place : place + KEYS_A_REQUEST]
                for name, history in self.ask(lambda some=some: self._histories(run, some), "the metrics").items():  # type: ignore[misc]
                    columns.add(
                        name.removeprefix(OWN) if kind == "SYSTEM" else name,
                        (point["step"] for point in history),
                        (time_of(point.get("timestamp")) or 0.0 for point in history),
                        (float(point["value"]) for point in history),
                    )
        maker = RowMaker(self.scheme, is_ours=run.origin is not None)
        placed = (maker.row(dict(row.numbers), row.step, row.timestamp) for row in points.rows())
        for rows in in_pages(filter(None, placed)):
            yield Page(rows)
        self.notes = dict.fromkeys([*notes.texts(), *maker.notes.texts()])
        yield Page(samples=list(samples.rows()))

    def needs_login(self, error: Exception) -> bool:
        names = {type(one).__name__ for one in chain(error)}
        return "AuthenticationError" in names or status_of(error) in (401, 403)

    def _keys(self, run: RemoteRun, kind: str) -> list[str]:
        series = run.handle.series(metric_class=kind)
        keys = [one.key for one in series]
        _answered(series)
        return keys

    def _histories(self, run: RemoteRun, keys: list[str]) -> dict[str, list[dict[str, Any]]]:
        listed = run.handle.metrics(keys=keys, all=True)["list"]
        found = {one["key"]: one["metrics"] for one in listed}
        missing = [key for key in keys if not found.get(key)]
        if missing:
            raise _NoPoints(f"the server gives no points of {', '.join(missing[:3])}")
        return found

    def _remote(self, run: Any) -> RemoteRun:
        status = _STATUS.get(run.state, "interrupted")
        facts = [run.name, run.state, run.finished_at, run.description, run.labels]
        # Every run that rlvitals forwards has a group. The settings of other runs are not requested yet.
        profile = self.ask(lambda: run.profile, "the settings") if run.group else None
        config = profile.get("config") if isinstance(profile, dict) else None
        origin = _setting(config.get("rlvitals")) if isinstance(config, dict) else None
        return RemoteRun(
            id=run.run_id,
            name=run.name or run.run_id,
            project=self._project,
            status=status,
            # The listed facts do not change while points arrive.
            mark="" if status == "running" else mark_of(facts),
            created=utc_time(run.created_at),
            ended=utc_time(run.finished_at),
            origin=Origin.of(origin),
            handle=run,
        )


def _answered(entity: Any) -> Any:
    """The entity, after a check of its answer. Raises if the client hid an error."""
    wrapper = getattr(entity, "wrapper", None)
    answer = wrapper() if callable(wrapper) else None
    if answer is not None and not answer.ok:
        raise _Unanswered(str(answer.errmsg))
    return entity


def _setting(stored: Any) -> Any:
    """A setting's value. SwanLab stores it with its position and description."""
    return stored["value"] if isinstance(stored, dict) and "value" in stored else stored
